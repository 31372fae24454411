//! The hash of a card.

use std::fmt;

use serde::Serialize;

use super::Metadata;
use crate::{id::ToolCallId, json};

/// BLAKE3 over the canonical form of a card: content, tool calls, tool call id, type, role, author.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
pub struct CardHash([u8; 32]);

impl CardHash {
    /// Hashes a card. The keys stand in canonical order and the small values need no escaping, so the whole is the
    /// RFC 8785 form of one object.
    pub(super) fn of(
        metadata: &Metadata,
        content: &str,
        tool_calls: Option<&str>,
        tool_call_id: Option<ToolCallId>,
    ) -> CardHash {
        let author_id = metadata.author_id.as_ref().map(json::canonical);
        let tool_call_id = tool_call_id.map(|id| format!("\"{id}\""));
        let mut hasher = blake3::Hasher::new();
        let parts = [
            "waybill.card.v1\n{\"author_id\":",
            author_id.as_deref().unwrap_or("null"),
            ",\"content\":",
            content,
            ",\"role\":\"",
            metadata.role.as_str(),
            "\",\"tool_call_id\":",
            tool_call_id.as_deref().unwrap_or("null"),
            ",\"tool_calls\":",
            tool_calls.unwrap_or("null"),
            ",\"type\":\"",
            metadata.card_type.as_str(),
            "\"}",
        ];
        for part in parts {
            hasher.update(part.as_bytes());
        }
        CardHash(*hasher.finalize().as_bytes())
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub fn from_bytes(bytes: [u8; 32]) -> CardHash {
        CardHash(bytes)
    }
}

impl fmt::Display for CardHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CardHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for CardHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        card::{CardType, Content, Draft, Role, ToolCall},
        id::{CardId, StepId, TraceId},
    };

    fn hash(draft: &Draft) -> CardHash {
        draft.clone().seal().unwrap().hash()
    }

    /// CB-5: the form is fixed for ever. A reader in any language gets this from the object below.
    #[test]
    fn the_hash_is_blake3_of_the_canonical_object() {
        let mut draft = Draft::instruction("Summarise the report");
        draft.metadata.author_id = Some("user-1".to_owned());
        let form = json!({
            "type": "task.instruction", "role": "user", "author_id": "user-1",
            "content": "Summarise the report", "tool_calls": null, "tool_call_id": null,
        });
        let mut bytes = b"waybill.card.v1\n".to_vec();
        bytes.extend(json::canonical(&form).as_bytes());
        assert_eq!(hash(&draft).as_bytes(), blake3::hash(&bytes).as_bytes());
        assert_eq!(hash(&draft).to_string(), "c026574ac04d57a734de96f2bbfdf162d25522e765de37735c7a43ffe1570426");
    }

    /// CB-5
    #[test]
    fn the_hash_covers_what_is_said_and_not_the_trace() {
        let draft = Draft::instruction("x");
        let original = hash(&draft);
        let changed = |change: fn(&mut Draft)| {
            let mut draft = draft.clone();
            change(&mut draft);
            hash(&draft) != original
        };
        assert!(changed(|d| d.content = Content::Text("y".into())));
        assert!(changed(|d| d.metadata.role = Role::Assistant));
        assert!(changed(|d| d.metadata.card_type = CardType::thought()));
        assert!(changed(|d| d.metadata.author_id = Some("a".into())));
        assert!(changed(|d| d.tool_call_id = Some(ToolCallId::new())));
        assert!(changed(|d| d.tool_calls.push(ToolCall {
            tool_call_id: ToolCallId::new(),
            tool_name: "t".into(),
            arguments: "{}".into(),
            provider_call_id: None,
        })));
        assert!(!changed(|d| d.card_id = CardId::new()));
        assert!(!changed(|d| d.metadata.trace_id = Some(TraceId::from_bytes([1; 16]))));
        assert!(!changed(|d| d.metadata.step_id = Some(StepId::new())));
        assert!(!changed(|d| drop(d.metadata.extra.insert("k".into(), json!(1)))));
    }
}

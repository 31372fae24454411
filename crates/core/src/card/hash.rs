//! The hash of a card.

use std::fmt;

use serde::Serialize;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, schema::Type};

use super::Metadata;
use crate::{id::ToolCallId, json};

/// Random bytes that are hashed before a card, so that what is left of an erased card cannot be compared with a guess (CB-5, CB-13).
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
pub struct Salt([u8; 16]);

impl Salt {
    pub fn mint() -> Salt {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the system has random numbers");
        Salt(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Salt {
        Salt(bytes)
    }
}

impl fmt::Debug for Salt {
    /// Leaves the bytes out: in a log they would outlive the card.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Salt")
    }
}

impl Serialize for Salt {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

/// BLAKE3 over the salt, if there is one, and the canonical form of a card: content, tool calls, tool call id, type, role, author.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
pub struct CardHash([u8; 32]);

impl CardHash {
    /// Hashes a card. The keys stand in canonical order and the small values need no escaping, so the whole is the
    /// RFC 8785 form of one object.
    pub(super) fn of(
        salt: Option<Salt>,
        metadata: &Metadata,
        content: &str,
        tool_calls: Option<&str>,
        tool_call_id: Option<ToolCallId>,
    ) -> CardHash {
        let author_id = metadata.author_id.as_ref().map(json::canonical);
        let tool_call_id = tool_call_id.map(|id| format!("\"{id}\""));
        let mut hasher = blake3::Hasher::new();
        if let Some(salt) = salt {
            hasher.update(salt.as_bytes());
        }
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

impl utoipa::PartialSchema for CardHash {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9a-f]{64}$")).into()
    }
}

impl utoipa::ToSchema for CardHash {}

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
        draft.salt = Salt::from_bytes(*b"0123456789abcdef");
        let form = json!({
            "type": "task.instruction", "role": "user", "author_id": "user-1",
            "content": "Summarise the report", "tool_calls": null, "tool_call_id": null,
        });
        let bytes = format!("0123456789abcdefwaybill.card.v1\n{}", json::canonical(&form));
        assert_eq!(hash(&draft).as_bytes(), blake3::hash(bytes.as_bytes()).as_bytes());
        assert_eq!(hash(&draft).to_string(), "ef2cb79f2d0f7b43cd9236f2d758373c0313696e4e91888a26ad95b7005ef0ef");
    }

    /// CB-5: equal content has another hash in each card, so that an erased card cannot be found by a guess. `sys.*` cards are found by their content.
    #[test]
    fn only_shared_cards_hash_by_their_content_alone() {
        let prompt = || Draft::new(CardType::rendered_prompt(), Role::System, Content::Text("yes".into()));
        assert_eq!(hash(&prompt()), hash(&prompt()));
        assert_ne!(hash(&Draft::instruction("yes")), hash(&Draft::instruction("yes")));
        let draft = Draft::instruction("yes");
        assert_eq!(hash(&draft), hash(&draft.clone()), "a draft keeps its salt");
        assert_eq!(serde_json::to_value(Salt::from_bytes([10; 16])).unwrap(), json!("0a".repeat(16)));
        assert_eq!(format!("{:?}", Salt::mint()), "Salt");
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

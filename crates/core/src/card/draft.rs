//! A card before it is stored: drafted, then checked and sealed.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Card, CardHash, CardType, Content, Metadata, Origin, ResultContent, Role, Salt, ToolCall};
use crate::{
    id::{CardId, ToolCallId},
    json,
    tokens::{self, Tokens},
};

/// Why a draft cannot become a card.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    #[error("the content is not valid for a card of type `{card_type}`")]
    Content { card_type: CardType, source: serde_json::Error },
    #[error("a list of fields must be the only content of its card, and the card's type must be `task.result_fields`")]
    Fields,
    #[error(
        "a package with its artifacts is allowed only in a card of type `handoff.package`, which may contain nothing else"
    )]
    Handoff,
    #[error("`artifacts` of a `tool.result` card must be an object of paths and hashes: `{{path: hash}}`")]
    Artifacts(#[source] serde_json::Error),
    #[error("a `tool.result` card must have a `tool_call_id`")]
    NoCall,
    #[error("`ttl_seconds` is {0}: it must be at least 1")]
    Ttl(i32),
    #[error("cards of type `{0}` are shared and cannot expire: leave `ttl_seconds` out")]
    SharedTtl(CardType),
    #[error("`metadata.{0}` is not allowed: set the field `{0}` of the card instead")]
    Reserved(String),
    #[error(transparent)]
    Json(#[from] json::Error),
}

/// A card that is not written yet. The id is minted here: a replay carries the same one.
#[derive(Clone, Debug)]
pub struct Draft {
    pub card_id: CardId,
    /// Goes into the hash, except for `sys.*` cards, which are found by their content.
    pub salt: Salt,
    pub metadata: Metadata,
    pub content: Content,
    pub tool_calls: Vec<ToolCall>,
    pub tool_call_id: Option<ToolCallId>,
    pub ttl_seconds: Option<i32>,
}

impl Draft {
    pub fn new(card_type: CardType, role: Role, content: Content) -> Draft {
        Draft {
            card_id: CardId::new(),
            salt: Salt::mint(),
            metadata: Metadata::new(card_type, role),
            content,
            tool_calls: Vec::new(),
            tool_call_id: None,
            ttl_seconds: None,
        }
    }

    /// Makes a user's `task.instruction`.
    pub fn instruction(text: &str) -> Draft {
        Draft::new(CardType::instruction(), Role::User, Content::Text(json::text(text).into_owned()))
    }

    /// Makes the `tool.result` that answers a call.
    pub fn tool_result(tool_call_id: ToolCallId, status: &str, result: Value) -> Draft {
        let content = ResultContent { status: status.to_owned(), result, extra: Map::new() };
        let draft = Draft::new(CardType::tool_result(), Role::Tool, Content::ToolResult(content));
        Draft { tool_call_id: Some(tool_call_id), ..draft }
    }

    /// Checks the draft, writes its canonical bytes, hashes them and counts their tokens.
    pub fn seal(self) -> Result<NewCard, Invalid> {
        let tokens = self.count_tokens();
        self.seal_counted(tokens)
    }

    /// Seals a draft whose tokens are counted already: see [`Draft::seal`].
    pub fn seal_counted(self, n_tokens: Tokens) -> Result<NewCard, Invalid> {
        self.check()?;
        let content = self.content.canonical();
        let tool_calls = (!self.tool_calls.is_empty()).then(|| json::canonical(&self.tool_calls));
        let salt = (!self.metadata.card_type.is_system()).then_some(self.salt);
        let hash = CardHash::of(salt, &self.metadata, &content, tool_calls.as_deref(), self.tool_call_id);
        let extra = (!self.metadata.extra.is_empty()).then(|| json::canonical(&self.metadata.extra));
        Ok(NewCard { draft: self, content, tool_calls, extra, hash, salt, n_tokens })
    }

    fn count_tokens(&self) -> Tokens {
        let content = match &self.content {
            Content::Text(text) => tokens::count(text),
            Content::Handoff(handoff) => tokens::count(&json::canonical(&handoff.package)),
            other => tokens::count(&other.canonical()),
        };
        let calls = self.tool_calls.iter().map(|call| tokens::count(&call.tool_name) + tokens::count(&call.arguments));
        content + calls.sum()
    }

    fn check(&self) -> Result<(), Invalid> {
        let card_type = &self.metadata.card_type;
        if (*card_type == CardType::result_fields()) != matches!(self.content, Content::Fields(_)) {
            return Err(Invalid::Fields);
        }
        if (*card_type == CardType::handoff_package()) != matches!(self.content, Content::Handoff(_)) {
            return Err(Invalid::Handoff);
        }
        if let Content::ToolResult(result) = &self.content {
            result.artifacts().map_err(Invalid::Artifacts)?;
        }
        if *card_type == CardType::tool_result() && self.tool_call_id.is_none() {
            return Err(Invalid::NoCall);
        }
        if let Some(seconds) = self.ttl_seconds {
            if seconds <= 0 {
                return Err(Invalid::Ttl(seconds));
            }
            if card_type.is_system() {
                return Err(Invalid::SharedTtl(card_type.clone()));
            }
        }
        const OWN: [&str; 6] = ["type", "role", "author_id", "trace_id", "step_id", "parent_step_id"];
        if let Some(key) = OWN.into_iter().find(|key| self.metadata.extra.contains_key(*key)) {
            return Err(Invalid::Reserved(key.to_owned()));
        }
        if let Content::Text(text) = &self.content {
            json::check_string(text)?;
        } else {
            json::check(&value_of(&self.content))?;
        }
        if !self.tool_calls.is_empty() {
            json::check(&value_of(&self.tool_calls))?;
        }
        if let Some(author_id) = &self.metadata.author_id {
            json::check_string(author_id)?;
        }
        Ok(json::check_fields(&self.metadata.extra)?)
    }
}

fn value_of<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("content has string keys only")
}

/// A sealed card, ready to be stored. The stored bytes are the hashed bytes.
#[derive(Clone, Debug)]
pub struct NewCard {
    draft: Draft,
    content: String,
    tool_calls: Option<String>,
    extra: Option<String>,
    hash: CardHash,
    salt: Option<Salt>,
    n_tokens: Tokens,
}

#[cfg(feature = "sqlx")]
crate::composite!(card: NewCard => "cardbox.new_card" {
    card.card_id(),
    card.n_tokens(),
    card.metadata().card_type.as_str(),
    card.metadata().role,
    card.metadata().author_id.as_deref(),
    &card.hash.as_bytes()[..],
    card.salt.as_ref().map(|salt| &salt.as_bytes()[..]),
    card.tool_call_id(),
    card.metadata().trace_id,
    card.metadata().step_id,
    card.metadata().parent_step_id,
    card.ttl_seconds(),
    card.content_json(),
    card.tool_calls_json(),
    card.extra_json(),
});

impl NewCard {
    pub fn card_id(&self) -> CardId {
        self.draft.card_id
    }

    pub fn metadata(&self) -> &Metadata {
        &self.draft.metadata
    }

    pub fn content(&self) -> &Content {
        &self.draft.content
    }

    /// Returns the content as canonical JSON.
    pub fn content_json(&self) -> &str {
        &self.content
    }

    /// Returns the calls as canonical JSON; `None` if the card makes no calls.
    pub fn tool_calls_json(&self) -> Option<&str> {
        self.tool_calls.as_deref()
    }

    /// Returns the metadata that has no field of its own, as canonical JSON; `None` if there is none.
    pub fn extra_json(&self) -> Option<&str> {
        self.extra.as_deref()
    }

    pub fn tool_call_id(&self) -> Option<ToolCallId> {
        self.draft.tool_call_id
    }

    pub fn ttl_seconds(&self) -> Option<i32> {
        self.draft.ttl_seconds
    }

    pub fn hash(&self) -> CardHash {
        self.hash
    }

    pub fn n_tokens(&self) -> Tokens {
        self.n_tokens
    }

    /// Returns the card as it reads once it is written, for a writer that goes on with it.
    pub fn into_card(self, created_at: DateTime<Utc>) -> Card {
        let Draft { card_id, metadata, content, tool_calls, tool_call_id, ttl_seconds, .. } = self.draft;
        // As it was stored: 1.0 reads as 1.
        let content = match content {
            Content::Text(text) => Content::Text(text),
            other => Content::read_stored(&metadata.card_type, &self.content).unwrap_or(other),
        };
        let expires_at = ttl_seconds.map(|seconds| created_at + TimeDelta::seconds(seconds.into()));
        let (hash, salt, n_tokens, origin) = (self.hash, self.salt, self.n_tokens, Origin::of(&metadata, false));
        Card {
            origin,
            card_id,
            content,
            tool_calls,
            tool_call_id,
            metadata,
            ttl_seconds,
            expires_at,
            created_at,
            hash,
            salt,
            n_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn refused(change: fn(&mut Draft), complaint: &str) {
        let mut draft = Draft::instruction("x");
        change(&mut draft);
        let error = draft.seal().unwrap_err().to_string();
        assert!(error.contains(complaint), "{error}");
    }

    #[test]
    fn a_draft_that_makes_no_sense_is_refused() {
        refused(|d| d.metadata.card_type = CardType::tool_result(), "tool_call_id");
        refused(|d| d.metadata.card_type = CardType::result_fields(), "list of fields");
        refused(|d| d.content = Content::Fields(vec![]), "list of fields");
        refused(|d| d.ttl_seconds = Some(0), "must be at least 1");
        refused(|d| d.content = Content::Json(json!({"n": u64::MAX})), "at /n");
        refused(|d| d.content = Content::Text("\0".into()), "U+0000");
        refused(|d| drop(d.metadata.extra.insert("role".into(), json!("system"))), "metadata.role");
        refused(
            |d| {
                d.metadata.card_type = CardType::rendered_prompt();
                d.ttl_seconds = Some(60);
            },
            "cannot expire",
        );
    }

    #[test]
    fn tokens_are_counted_once_over_text_and_calls() {
        let mut draft = Draft::instruction("hello world");
        assert_eq!(draft.clone().seal().unwrap().n_tokens().get(), 2);
        draft.tool_calls.push(ToolCall {
            tool_call_id: ToolCallId::new(),
            tool_name: "hello".into(),
            arguments: "hello world".into(),
            provider_call_id: None,
        });
        assert_eq!(draft.seal().unwrap().n_tokens().get(), 5);
    }
}

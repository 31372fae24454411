//! A card as it is read back, or what is left of it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, schema::Type};

use super::{CardHash, CardType, Content, Metadata, Role, Salt, ToolCall};
use crate::{
    id::{CardId, ToolCallId},
    json,
    tokens::Tokens,
};

/// A card as it was stored.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Card {
    pub card_id: CardId,
    pub content: Content,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
    pub metadata: Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub hash: CardHash,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub salt: Option<Salt>,
    pub n_tokens: Tokens,
    pub origin: Origin,
}

/// Where a card came from, according to the kernel, not to its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CardOrigin)]
pub enum Origin {
    User,
    Model,
    Tool,
    /// From outside, or written by a turn that had seen content from outside.
    External,
}

impl Origin {
    pub fn of(metadata: &Metadata, is_external: bool) -> Origin {
        match metadata.role {
            _ if is_external => Origin::External,
            _ if metadata.card_type == CardType::tool_result() => Origin::Tool,
            Role::Assistant => Origin::Model,
            Role::Tool => Origin::Tool,
            Role::System | Role::User => Origin::User,
        }
    }
}

impl Card {
    /// Reads the content as the type that its writer used.
    pub fn read_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::to_value(&self.content).and_then(serde_json::from_value)
    }

    /// Checks whether the card still says what was hashed when it was written.
    pub fn verifies(&self) -> bool {
        let content = self.content.canonical();
        let tool_calls = (!self.tool_calls.is_empty()).then(|| json::canonical(&self.tool_calls));
        self.hash == CardHash::of(self.salt, &self.metadata, &content, tool_calls.as_deref(), self.tool_call_id)
    }
}

/// Lists the cards that no longer say what was hashed when they were written: someone has changed them in the database, without Waybill.
pub fn changed<'a>(cards: impl IntoIterator<Item = &'a Card>) -> Vec<CardId> {
    cards.into_iter().filter(|card| !card.verifies()).map(|card| card.card_id).collect()
}

/// What is left of a card whose content may no longer be shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tombstone {
    pub card_id: CardId,
    pub hash: CardHash,
    pub gone_at: DateTime<Utc>,
    #[serde(flatten)]
    pub why: Gone,
}

/// Why a card's content may no longer be shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "why", content = "reason", rename_all = "lowercase")]
pub enum Gone {
    Expired,
    Deleted(String),
    Erased(String),
}

/// A card, or what is left of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Reading {
    Live(Box<Card>),
    Gone(Tombstone),
}

impl utoipa::PartialSchema for Reading {
    fn schema() -> RefOr<Schema> {
        let string = || ObjectBuilder::new().schema_type(Type::String);
        let time = || string().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
        let words = |words: &[&str]| string().enum_values(Some(words.iter().copied()));
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some("A card. If it has expired or was deleted (`state: gone`), its content is not shown."))
            .property("state", words(&["live", "gone"]))
            .required("state")
            .property("card_id", CardId::schema())
            .required("card_id")
            .property("hash", CardHash::schema())
            .required("hash")
            .property("salt", string())
            .property("content", serde_json::Value::schema())
            .property("metadata", Metadata::schema())
            .property("tool_calls", Vec::<ToolCall>::schema())
            .property("tool_call_id", ToolCallId::schema())
            .property("n_tokens", Tokens::schema())
            .property("origin", Origin::schema())
            .property("ttl_seconds", i32::schema())
            .property("expires_at", time())
            .property("created_at", time())
            .property("gone_at", time())
            .property("why", words(&["expired", "deleted", "erased"]))
            .property("reason", string())
            .into()
    }
}

impl utoipa::ToSchema for Reading {}

impl Reading {
    pub fn card_id(&self) -> CardId {
        match self {
            Reading::Live(card) => card.card_id,
            Reading::Gone(tombstone) => tombstone.card_id,
        }
    }

    /// Returns the card, if its content may be shown.
    pub fn live(&self) -> Option<&Card> {
        match self {
            Reading::Live(card) => Some(card),
            Reading::Gone(_) => None,
        }
    }

    /// Returns the card by value, if its content may be shown: see [`Reading::live`].
    pub fn into_live(self) -> Option<Card> {
        match self {
            Reading::Live(card) => Some(*card),
            Reading::Gone(_) => None,
        }
    }

    pub fn hash(&self) -> CardHash {
        match self {
            Reading::Live(card) => card.hash,
            Reading::Gone(tombstone) => tombstone.hash,
        }
    }
}

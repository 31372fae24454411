//! The card: the smallest unit of information. Immutable, typed, one id for ever (CB-1 … CB-6).
//!
//! A card is written as a [`Draft`], sealed into a [`NewCard`] (canonical bytes, hash, token count: each taken
//! once), stored, and read back as a [`Card`], or as a [`Tombstone`] when its content may no longer be shown.

use std::{fmt, str::FromStr};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, schema::Type};

use crate::{
    artifact::Pins,
    id::{CardId, StepId, ToolCallId, TraceId},
    json,
    tokens::{self, Tokens},
};

/// What a card is, such as `task.instruction`. The standard ones are constants; others are allowed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(try_from = "String")]
pub struct CardType(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a card type: use 1 to 64 of a-z, 0-9, `_` and `.`, such as `task.instruction`")]
pub struct MalformedType(String);

macro_rules! card_types {
    ($($name:ident = $text:literal),* $(,)?) => {
        impl CardType { $(
            #[doc = concat!("`", $text, "`")]
            pub fn $name() -> CardType { CardType($text.to_owned()) }
        )* }
    };
}

card_types! {
    instruction = "task.instruction",
    thought = "agent.thought",
    reasoning = "agent.reasoning",
    reminder = "agent.reminder",
    tool_call = "tool.call",
    tool_result = "tool.result",
    deliverable = "task.deliverable",
    profile = "sys.profile",
    rendered_prompt = "sys.rendered_prompt",
    tools = "sys.tools",
    tool = "sys.tool",
    handoff_type = "sys.handoff_type",
    plan = "sys.plan",
    settings = "sys.settings",
    parent_pointer = "meta.parent_pointer",
    result_fields = "task.result_fields",
    compression = "context.compression",
    todo = "context.todo",
    handoff_package = "handoff.package",
    request = "request",
    decision = "request.decision",
}

impl CardType {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `sys.*` cards exist once per project and content, and never enter a context or output box.
    pub fn is_system(&self) -> bool {
        self.0.starts_with("sys.")
    }
}

impl TryFrom<String> for CardType {
    type Error = MalformedType;

    fn try_from(text: String) -> Result<Self, MalformedType> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.'));
        if fits { Ok(CardType(text)) } else { Err(MalformedType(text)) }
    }
}

impl FromStr for CardType {
    type Err = MalformedType;

    fn from_str(text: &str) -> Result<Self, MalformedType> {
        CardType::try_from(text.to_owned())
    }
}

impl fmt::Display for CardType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The role a model sees. The only authority for it; `author_id` is for the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// Everything about a card except its content. Trace fields and `extra` are not hashed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Metadata {
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub card_type: CardType,
    pub role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub trace_id: Option<TraceId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<StepId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_step_id: Option<StepId>,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Metadata {
    pub fn new(card_type: CardType, role: Role) -> Metadata {
        Metadata {
            card_type,
            role,
            author_id: None,
            trace_id: None,
            step_id: None,
            parent_step_id: None,
            extra: Map::new(),
        }
    }
}

/// One tool call of an assistant card. `arguments` is the model's own text, byte for byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ToolCall {
    pub tool_call_id: ToolCallId,
    pub tool_name: String,
    pub arguments: String,
    /// The provider's label for the call, echoed to that provider only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_call_id: Option<String>,
}

/// What a card says. On the wire text is a JSON string and the rest plain JSON; the card's type says which it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Fields(Vec<Field>),
    ToolCall(CallContent),
    ToolResult(ResultContent),
    Handoff(HandoffContent),
    Json(Value),
}

/// One field that a result must have (`task.result_fields`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Field {
    pub name: String,
    pub description: String,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Content of a `tool.call` card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallContent {
    pub tool_name: String,
    /// The model's own text, byte for byte.
    pub arguments: String,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Content of a `tool.result` card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultContent {
    pub status: String,
    pub result: Value,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Content of a `handoff.package` card: the package, and which version of each artifact it means. A model does not see the versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoffContent {
    pub package: Map<String, Value>,
    pub artifacts: Pins,
}

impl ResultContent {
    /// Returns the artifacts that it refers to: what it wrote, or where a result is that was too large for the card.
    pub fn artifacts(&self) -> Result<Option<Pins>, serde_json::Error> {
        self.extra.get("artifacts").map(|pins| serde_json::from_value(pins.clone())).transpose()
    }
}

impl Content {
    /// Returns the artifacts that the content refers to, with their versions.
    pub fn artifacts(&self) -> Option<Pins> {
        match self {
            Content::Handoff(handoff) => Some(handoff.artifacts.clone()),
            Content::ToolResult(result) => result.artifacts().ok().flatten(),
            _ => None,
        }
    }

    /// Reads content from the wire, in the form that this type of card requires.
    pub fn read(card_type: &CardType, value: Value) -> Result<Content, Invalid> {
        let wrong = |source| Invalid::Content { card_type: card_type.clone(), source };
        match (card_type.as_str(), value) {
            ("task.result_fields", value) => serde_json::from_value(value).map(Content::Fields).map_err(wrong),
            ("handoff.package", value) => serde_json::from_value(value).map(Content::Handoff).map_err(wrong),
            (_, Value::String(text)) => Ok(Content::Text(text)),
            ("tool.call", value) => serde_json::from_value(value).map(Content::ToolCall).map_err(wrong),
            ("tool.result", value) => serde_json::from_value(value).map(Content::ToolResult).map_err(wrong),
            (_, value) => Ok(Content::Json(value)),
        }
    }

    /// Writes the content as RFC 8785 text.
    fn canonical(&self) -> String {
        match self {
            // A lone string has one form: no keys to sort, no numbers to write, and the escapes are the same.
            Content::Text(text) => serde_json::to_string(text).expect("a string always serialises"),
            other => json::canonical(other),
        }
    }

    /// Reads what we stored. A row from before a shape was tightened is still readable, as plain JSON.
    pub fn read_stored(card_type: &CardType, stored: &str) -> Result<Content, serde_json::Error> {
        if stored.starts_with('"') {
            return serde_json::from_str(stored).map(Content::Text);
        }
        let value: Value = serde_json::from_str(stored)?;
        Ok(Content::read(card_type, value.clone()).unwrap_or(Content::Json(value)))
    }
}

/// Why a draft cannot become a card.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    #[error("the content does not have the shape of `{card_type}`")]
    Content { card_type: CardType, source: serde_json::Error },
    #[error("a card of type `task.result_fields` holds a list of fields, and only such a card does")]
    Fields,
    #[error("a card of type `handoff.package` holds a package and its artifacts, and only such a card does")]
    Handoff,
    #[error("`artifacts` of a `tool.result` is `{{path: hash}}`")]
    Artifacts(#[source] serde_json::Error),
    #[error("a `tool.result` card must name its `tool_call_id`")]
    NoCall,
    #[error("`ttl_seconds` is {0}: it must be positive")]
    Ttl(i32),
    #[error("a card of type `{0}` is shared by its content and cannot expire: leave `ttl_seconds` out")]
    SharedTtl(CardType),
    #[error("`metadata.{0}` is a field of its own: set it there")]
    Reserved(String),
    #[error(transparent)]
    Json(#[from] json::Error),
}

/// A card that is not written yet. The id is minted here: a replay carries the same one.
#[derive(Clone, Debug)]
pub struct Draft {
    pub card_id: CardId,
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
        let hash = CardHash::of(&self.metadata, &content, tool_calls.as_deref(), self.tool_call_id);
        let extra = (!self.metadata.extra.is_empty()).then(|| json::canonical(&self.metadata.extra));
        Ok(NewCard { draft: self, content, tool_calls, extra, hash, n_tokens })
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
    n_tokens: Tokens,
}

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
        let Draft { card_id, metadata, content, tool_calls, tool_call_id, ttl_seconds } = self.draft;
        // As it was stored: 1.0 reads as 1.
        let content = match content {
            Content::Text(text) => Content::Text(text),
            other => Content::read_stored(&metadata.card_type, &self.content).unwrap_or(other),
        };
        let expires_at = ttl_seconds.map(|seconds| created_at + TimeDelta::seconds(seconds.into()));
        let (hash, n_tokens, origin) = (self.hash, self.n_tokens, Origin::of(&metadata, false));
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
            n_tokens,
        }
    }
}

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
    pub n_tokens: Tokens,
    pub origin: Origin,
}

/// Where a card came from, according to the kernel, not to its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
        self.hash == CardHash::of(&self.metadata, &content, tool_calls.as_deref(), self.tool_call_id)
    }
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
            .description(Some("A card (`state: live`), or what is left of it (`state: gone`)."))
            .property("state", words(&["live", "gone"]))
            .required("state")
            .property("card_id", CardId::schema())
            .required("card_id")
            .property("hash", string())
            .required("hash")
            .property("content", serde_json::Value::schema())
            .property("metadata", Metadata::schema())
            .property("tool_calls", Vec::<ToolCall>::schema())
            .property("tool_call_id", ToolCallId::schema())
            .property("n_tokens", i32::schema())
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

/// BLAKE3 over the canonical form of a card: content, tool calls, tool call id, type, role, author.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
pub struct CardHash([u8; 32]);

impl CardHash {
    /// The keys stand in canonical order and the small values need no escaping, so the whole is the RFC 8785 form
    /// of one object.
    fn of(metadata: &Metadata, content: &str, tool_calls: Option<&str>, tool_call_id: Option<ToolCallId>) -> CardHash {
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
        refused(|d| d.ttl_seconds = Some(0), "must be positive");
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

    /// CB-2, CB-6
    #[test]
    fn content_is_typed_by_the_card_and_open_for_other_types() {
        let fields = json!([{"name": "answer", "description": "one line", "max": 80}]);
        let read = Content::read(&CardType::result_fields(), fields.clone()).unwrap();
        assert!(matches!(&read, Content::Fields(list) if list[0].extra["max"] == 80));
        assert_eq!(value_of(&read), fields);
        assert!(Content::read(&CardType::result_fields(), json!({"name": "x"})).is_err());

        let result = json!({"status": "success", "result": [1, 2], "took": "3 s"});
        let read = Content::read(&CardType::tool_result(), result.clone()).unwrap();
        assert!(matches!(&read, Content::ToolResult(_)));
        assert_eq!(value_of(&read), result);

        let own: CardType = "acme.weather".parse().unwrap();
        assert_eq!(Content::read(&own, json!({"t": 21})).unwrap(), Content::Json(json!({"t": 21})));
        assert!("Acme Weather".parse::<CardType>().is_err());
    }

    /// CB-5
    #[test]
    fn a_text_is_written_as_the_canonical_form_has_it() {
        let text: String =
            (1..0x800).chain(0x2000..0x2100).chain(0x1F600..0x1F610).filter_map(char::from_u32).collect();
        assert_eq!(Content::Text(text.clone()).canonical(), json::canonical(&text));
    }

    /// CB-2
    #[test]
    fn metadata_is_one_flat_object_with_type_and_role() {
        let mut metadata = Metadata::new(CardType::thought(), Role::Assistant);
        metadata.extra.insert("mood".into(), json!("calm"));
        let wire = value_of(&metadata);
        assert_eq!(wire, json!({"type": "agent.thought", "role": "assistant", "mood": "calm"}));
        assert_eq!(serde_json::from_value::<Metadata>(wire).unwrap(), metadata);
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

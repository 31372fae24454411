//! What a card is, apart from its content: its type, its role, its author and its trace.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, schema::Type};

use crate::id::{StepId, TraceId};

/// What a card is, such as `task.instruction`. The standard ones are constants; others are allowed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(try_from = "String")]
pub struct CardType(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a card type: use 1 to 64 characters (a-z, 0-9, `_` and `.`), such as `task.instruction`")]
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
    request_part = "sys.request_part",
    wire_message = "wire.message",
    wire_answer = "wire.answer",
    tool = "sys.tool",
    handoff_type = "sys.handoff_type",
    plan = "sys.plan",
    settings = "sys.settings",
    parent_pointer = "meta.parent_pointer",
    result_fields = "task.result_fields",
    result_schema = "task.result_schema",
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

    /// Says what the result of a turn must be: a rule for the answer, which is not part of the question.
    pub fn is_result_form(&self) -> bool {
        matches!(self.as_str(), "task.result_fields" | "task.result_schema")
    }
}

impl utoipa::PartialSchema for CardType {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[a-z0-9_.]{1,64}$")).into()
    }
}

impl utoipa::ToSchema for CardType {}

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

/// Role in which a model sees the card. `author_id` has no influence on it: it only records who wrote the card.
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

/// Metadata of a card. Only `type`, `role` and `author_id` are part of the card's hash.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// CB-2
    #[test]
    fn metadata_is_one_flat_object_with_type_and_role() {
        let mut metadata = Metadata::new(CardType::thought(), Role::Assistant);
        metadata.extra.insert("mood".into(), json!("calm"));
        let wire = serde_json::to_value(&metadata).unwrap();
        assert_eq!(wire, json!({"type": "agent.thought", "role": "assistant", "mood": "calm"}));
        assert_eq!(serde_json::from_value::<Metadata>(wire).unwrap(), metadata);
    }
}

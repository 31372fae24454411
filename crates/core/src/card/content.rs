//! What a card says, and the form that its type requires.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{CardType, Invalid};
use crate::{artifact::Pins, id::ToolCallId, json};

/// One tool call of an assistant card. `arguments` is the text that the model wrote, byte for byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ToolCall {
    pub tool_call_id: ToolCallId,
    pub tool_name: String,
    pub arguments: String,
    /// Id that the model provider gave to the call. It is sent back only to that provider.
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

/// What the result of a turn must be, as a card of its context says.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ResultForm {
    /// A text, or any JSON.
    #[default]
    Any,
    /// An object with these fields (`task.result_fields`).
    Fields(Vec<Field>),
    /// An object that fits this JSON Schema (`task.result_schema`).
    Schema(Map<String, Value>),
}

impl ResultForm {
    /// Reads the content of a card.
    pub fn of(card_type: &CardType, content: Content) -> ResultForm {
        match content {
            Content::Fields(fields) if !fields.is_empty() => ResultForm::Fields(fields),
            Content::Json(Value::Object(schema)) if *card_type == CardType::result_schema() => {
                ResultForm::Schema(schema)
            }
            _ => ResultForm::Any,
        }
    }

    /// Returns the JSON Schema, if it has one of its own.
    pub fn schema(&self) -> Option<&Map<String, Value>> {
        match self {
            ResultForm::Schema(schema) => Some(schema),
            ResultForm::Any | ResultForm::Fields(_) => None,
        }
    }
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
    /// The status of a call that succeeded. Tools choose the words for everything else.
    pub const SUCCESS: &'static str = "success";

    pub fn is_success(&self) -> bool {
        self.status == ResultContent::SUCCESS
    }

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
    pub(super) fn canonical(&self) -> String {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// CB-2, CB-6
    #[test]
    fn content_is_typed_by_the_card_and_open_for_other_types() {
        let fields = json!([{"name": "answer", "description": "one line", "max": 80}]);
        let read = Content::read(&CardType::result_fields(), fields.clone()).unwrap();
        assert!(matches!(&read, Content::Fields(list) if list[0].extra["max"] == 80));
        assert_eq!(serde_json::to_value(&read).unwrap(), fields);
        assert!(Content::read(&CardType::result_fields(), json!({"name": "x"})).is_err());
        assert!(matches!(ResultForm::of(&CardType::result_fields(), read), ResultForm::Fields(_)));

        let schema = Content::read(&CardType::result_schema(), json!({"type": "object"})).unwrap();
        let form = ResultForm::of(&CardType::result_schema(), schema);
        assert_eq!(form.schema().map(|schema| &schema["type"]), Some(&json!("object")));

        let result = json!({"status": "success", "result": [1, 2], "took": "3 s"});
        let read = Content::read(&CardType::tool_result(), result.clone()).unwrap();
        assert!(matches!(&read, Content::ToolResult(_)));
        assert_eq!(serde_json::to_value(&read).unwrap(), result);

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
}

//! OpenAI's responses: a list of items, with nothing stored at the provider. Reasoning comes encrypted and is sent back as it came.

use std::borrow::Cow;

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, value::RawValue};
use waybill_core::{card::Role, id::ToolCallId};

use super::{Adapter, Each, Params, Tool, legal, verbatim};
use crate::{compose::Composed, unit::Message};

pub(super) struct Responses<'a> {
    pub(super) composed: &'a Composed<'a>,
    pub(super) tools: &'a [Tool],
    pub(super) params: &'a Params,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Item<'a> {
    Verbatim(&'a RawValue),
    Said { role: Role, content: &'a str },
    Typed(Typed<'a>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Typed<'a> {
    Message { role: Role, content: [Part<'a>; 1] },
    FunctionCall { call_id: ToolCallId, name: Cow<'a, str>, arguments: &'a str },
    FunctionCallOutput { call_id: ToolCallId, output: &'a str },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    OutputText { text: &'a str },
}

#[derive(Serialize)]
struct ResponsesTool<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
    strict: bool,
}

impl Serialize for Responses<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in &self.params.0 {
            map.serialize_entry(key, value)?;
        }
        map.serialize_entry("store", &false)?;
        map.serialize_entry("include", &["reasoning.encrypted_content"])?;
        map.serialize_entry("input", &Items(&self.composed.messages))?;
        if !self.tools.is_empty() {
            map.serialize_entry("tools", &Each(self.tools, responses_tool))?;
        }
        map.end()
    }
}

struct Items<'a>(&'a [Message<'a>]);

impl Serialize for Items<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().flat_map(items_of))
    }
}

fn items_of<'a>(message: &'a Message<'_>) -> impl Iterator<Item = Item<'a>> {
    let text = &*message.content;
    let said = match (message.tool_call_id, message.role) {
        (Some(call_id), _) => Some(Item::Typed(Typed::FunctionCallOutput { call_id, output: text })),
        (None, _) if text.trim().is_empty() => None,
        (None, role @ Role::Assistant) => {
            Some(Item::Typed(Typed::Message { role, content: [Part::OutputText { text }] }))
        }
        (None, role) => Some(Item::Said { role, content: text }),
    };
    let calls = message.tool_calls.iter().map(|call| {
        let (call_id, name) = (call.tool_call_id, legal(&call.tool_name));
        Item::Typed(Typed::FunctionCall { call_id, name, arguments: &call.arguments })
    });
    let thought = verbatim(message, Adapter::OpenaiResponses).into_iter().map(Item::Verbatim);
    thought.chain(said).chain(calls)
}

fn responses_tool(tool: &Tool) -> ResponsesTool<'_> {
    let Tool { tool_name: name, description, parameters } = tool;
    ResponsesTool { r#type: "function", name, description, parameters, strict: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn nothing_is_kept_at_the_providers() {
        let request = golden::read("react layered 900\nquery: x").call(Adapter::OpenaiResponses).request;
        let front =
            r#"{"max_tokens":1000,"model":"m-1","store":false,"include":["reasoning.encrypted_content"],"input":["#;
        assert!(request.starts_with(front.as_bytes()), "{}", String::from_utf8_lossy(&request));
    }
}

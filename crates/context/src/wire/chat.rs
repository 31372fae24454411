//! OpenAI's chat completions: a message is a message.

use std::borrow::Cow;

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;
use waybill_core::{card::Role, id::ToolCallId};

use super::{Adapter, Each, Params, Tool, legal, reasoning};
use crate::{compose::Composed, unit::Message};

pub(super) struct Chat<'a> {
    pub(super) composed: &'a Composed<'a>,
    pub(super) tools: &'a [Tool],
    pub(super) params: &'a Params,
}

#[derive(Serialize)]
struct ChatMessage<'a> {
    role: Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    /// Not part of OpenAI's API: DeepSeek, Kimi and others require it back while the model uses tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ChatCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<ToolCallId>,
}

#[derive(Serialize)]
struct ChatCall<'a> {
    id: ToolCallId,
    r#type: &'static str,
    function: ChatFunction<'a>,
}

#[derive(Serialize)]
struct ChatFunction<'a> {
    name: Cow<'a, str>,
    arguments: &'a str,
}

#[derive(Serialize)]
struct ChatTool<'a> {
    r#type: &'static str,
    function: ChatToolFunction<'a>,
}

#[derive(Serialize)]
struct ChatToolFunction<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

impl Serialize for Chat<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in &self.params.0 {
            map.serialize_entry(key, value)?;
        }
        map.serialize_entry("messages", &Each(&self.composed.messages, chat_message))?;
        if !self.tools.is_empty() {
            map.serialize_entry("tools", &Each(self.tools, chat_tool))?;
        }
        map.end()
    }
}

fn chat_message<'a>(message: &'a Message<'_>) -> ChatMessage<'a> {
    let calls = message.tool_calls.iter().map(|call| ChatCall {
        id: call.tool_call_id,
        r#type: "function",
        function: ChatFunction { name: legal(&call.tool_name), arguments: &call.arguments },
    });
    // A call needs no text; a result may be empty.
    let speaks = !message.content.is_empty() || message.role == Role::Tool;
    let thought = reasoning(message, Adapter::OpenaiChat).map(|reasoning| &*reasoning.text);
    ChatMessage {
        role: message.role,
        content: speaks.then_some(&*message.content),
        reasoning_content: thought.filter(|text| !text.is_empty()),
        tool_calls: calls.collect(),
        tool_call_id: message.tool_call_id,
    }
}

fn chat_tool(tool: &Tool) -> ChatTool<'_> {
    let Tool { tool_name, description, parameters } = tool;
    ChatTool { r#type: "function", function: ChatToolFunction { name: tool_name, description, parameters } }
}

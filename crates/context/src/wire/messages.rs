//! Anthropic's messages: alternating roles, results as blocks of the user's message, and marks for the cache.

use std::borrow::Cow;

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, value::RawValue};
use waybill_core::{card::Role, id::ToolCallId, resource::Order};

use super::{Adapter, Each, Params, Tool, arguments, legal, verbatim};
use crate::{compose::Composed, layer::Layer, policy::Policy, unit::Message};

/// Inserted if the first message is an assistant's, such as one that another agent handed over: the API requires a user message first.
const OPENING: &str = "What follows was handed over.";
/// Added if the last message is an assistant's: models refuse to continue from their own message.
const CLOSING: &str = "Go on.";
/// The tokens of both: a generous estimate.
pub(crate) const ADDED: i32 = 24;

pub(super) struct Messages<'a> {
    pub(super) composed: &'a Composed<'a>,
    pub(super) policy: &'a Policy,
    pub(super) tools: &'a [Tool],
    pub(super) params: &'a Params,
}

#[derive(Serialize)]
struct Turn<'a> {
    role: Role,
    content: Vec<Block<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    ToolUse {
        id: ToolCallId,
        name: Cow<'a, str>,
        input: Cow<'a, RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    ToolResult {
        tool_use_id: ToolCallId,
        #[serde(skip_serializing_if = "str::is_empty")]
        content: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    /// Reasoning, with its signature.
    #[serde(untagged)]
    Verbatim(&'a RawValue),
}

impl<'a> Block<'a> {
    fn text(text: &'a str) -> Block<'a> {
        Block::Text { text, cache_control: None }
    }

    fn mark(&mut self) {
        match self {
            Block::Text { cache_control, .. }
            | Block::ToolUse { cache_control, .. }
            | Block::ToolResult { cache_control, .. } => *cache_control = Some(CacheControl { r#type: "ephemeral" }),
            // The provider refuses a cache mark on reasoning.
            Block::Verbatim(_) => {}
        }
    }
}

/// A cache mark: the provider may cache everything up to here.
#[derive(Clone, Copy, Serialize)]
struct CacheControl {
    r#type: &'static str,
}

#[derive(Serialize)]
struct MessagesTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
}

impl Serialize for Messages<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let messages = &self.composed.messages;
        let n_system = messages.iter().take_while(|message| message.role == Role::System).count();
        let marked = self.marks(n_system);
        let (mut system, mut turns): (Vec<Block<'_>>, Vec<Turn<'_>>) = (Vec::new(), Vec::new());
        for (n, message) in messages.iter().enumerate() {
            let blocks = if n < n_system {
                &mut system
            } else {
                // Here results belong to the user, and two messages of one role are joined.
                let role = if message.role == Role::Assistant { Role::Assistant } else { Role::User };
                if turns.is_empty() && role == Role::Assistant {
                    turns.push(Turn { role: Role::User, content: vec![Block::text(OPENING)] });
                }
                if turns.last().is_none_or(|turn| turn.role != role) {
                    turns.push(Turn { role, content: Vec::new() });
                }
                &mut turns.last_mut().expect("one was pushed").content
            };
            blocks.extend(blocks_of(message));
            if let Some(last) = blocks.last_mut().filter(|_| marked.contains(&Some(n))) {
                last.mark();
            }
        }
        if turns.last().is_some_and(|turn| turn.role == Role::Assistant) {
            turns.push(Turn { role: Role::User, content: vec![Block::text(CLOSING)] });
        }
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in &self.params.0 {
            map.serialize_entry(key, value)?;
        }
        if !system.is_empty() {
            map.serialize_entry("system", &system)?;
        }
        map.serialize_entry("messages", &turns)?;
        if !self.tools.is_empty() {
            map.serialize_entry("tools", &Each(self.tools, messages_tool))?;
        }
        map.end()
    }
}

impl Messages<'_> {
    /// Returns after which messages to put cache marks, if the order is made for the cache: after the system text, the history, and the turn's
    /// messages so far. Blocks of every step come after all of them.
    fn marks(&self, n_system: usize) -> [Option<usize>; 3] {
        if self.policy.order != Order::CacheFirst {
            return [None; 3];
        }
        let last = |of: fn(&Layer) -> bool| self.composed.messages.iter().rposition(|message| of(&message.layer));
        [
            n_system.checked_sub(1),
            last(|layer| *layer == Layer::CheckpointMessages),
            last(|layer| matches!(layer, Layer::Query | Layer::Steps)),
        ]
    }
}

fn blocks_of<'a>(message: &'a Message<'_>) -> impl Iterator<Item = Block<'a>> {
    let text = &*message.content;
    let said = match message.tool_call_id {
        Some(tool_use_id) => Some(Block::ToolResult { tool_use_id, content: text, cache_control: None }),
        None => (!text.trim().is_empty()).then(|| Block::text(text)),
    };
    let calls = message.tool_calls.iter().map(|call| Block::ToolUse {
        id: call.tool_call_id,
        name: legal(&call.tool_name),
        input: arguments(call),
        cache_control: None,
    });
    let thought = verbatim(message, Adapter::AnthropicMessages).into_iter().map(Block::Verbatim);
    thought.chain(said).chain(calls)
}

fn messages_tool(tool: &Tool) -> MessagesTool<'_> {
    let Tool { tool_name, description, parameters } = tool;
    MessagesTool { name: tool_name, description, input_schema: parameters }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{golden, kit::tokens};

    fn request(script: &str) -> Value {
        serde_json::from_slice(&golden::read(script).call(Adapter::AnthropicMessages).request).unwrap()
    }

    #[test]
    fn the_user_begins_where_the_provider_wants_it() {
        let script = "react layered 900\nhistory\n  deliverable: part one\n  deliverable: part two\nquery: join them";
        let request = request(script);
        let roles: Vec<&str> =
            request["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "user"]);
        assert_eq!(request["messages"][0]["content"][0]["text"], OPENING);
        assert_eq!(request["messages"][1]["content"].as_array().unwrap().len(), 2);
    }

    /// Models refuse to continue from their own message.
    #[test]
    fn the_last_word_is_the_users() {
        let script = "react layered 900\nquery: go\nsteps\n  assistant: I could. ";
        let request = request(script);
        let last = request["messages"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["role"], &last["content"][0]["text"]), (&"user".into(), &CLOSING.into()));
        let added = waybill_core::tokens::count(OPENING) + waybill_core::tokens::count(CLOSING);
        assert!(added + tokens(8) <= tokens(ADDED));
    }

    /// CX-3: marks come after system text, history and own steps, and before what changes with every step.
    #[test]
    fn the_cache_is_told_where_it_may_stop() {
        let script = "react cache_first 900\nprompt: p\nclock*: noon\nhistory\n  user: a\n  assistant: b\nquery: c";
        let marked = |request: &Value| -> Vec<String> {
            let blocks =
                request["system"].as_array().unwrap().iter().chain(
                    request["messages"].as_array().unwrap().iter().flat_map(|m| m["content"].as_array().unwrap()),
                );
            let marked = blocks.filter(|block| block.get("cache_control").is_some());
            marked.map(|block| block["text"].as_str().unwrap().chars().take(3).collect()).collect()
        };
        assert_eq!(marked(&request(script)), ["You", "b", "<tu"]);
        let layered = script.replace("cache_first", "layered");
        assert!(marked(&request(&layered)).is_empty());
    }

    /// The provider refuses a cache mark on reasoning.
    #[test]
    fn a_thought_carries_no_mark() {
        let thought = r#"{"type":"thinking","thinking":"t","signature":"s"}"#;
        let script = format!(
            "react cache_first 900\nquery: x\nsteps\n  reasoning anthropic_messages: t -> [{thought}]\n  assistant: y"
        );
        let said = &request(&script)["messages"][1]["content"];
        assert_eq!(said[0].to_string(), thought.parse::<Value>().unwrap().to_string());
        assert_eq!((&said[1]["text"], &said[1]["cache_control"]["type"]), (&"y".into(), &"ephemeral".into()));
    }
}

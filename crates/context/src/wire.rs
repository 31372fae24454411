//! How a provider wants it: from messages to the bytes of a request. Equal messages give equal bytes.
//!
//! Rules of one provider are kept here, and never cost a message: roles by turns, a user who begins, results as a user's blocks.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, value::RawValue};
use waybill_core::{
    card::{Role, ToolCall},
    id::ToolCallId,
    json,
    resource::Order,
};

use crate::{compose::Composed, layer::Layer, policy::Policy, unit::Message};

/// A tool that the model may call, as a `sys.tools` card lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    pub tool_name: String,
    pub description: String,
    /// JSON Schema.
    pub parameters: Value,
}

/// What a profile says of the call itself: model, temperature, limits. Sent as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Params(Map<String, Value>);

/// The parameters would replace what Waybill composes.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is composed and cannot be a parameter of the call: leave it out")]
pub struct Reserved(String);

impl TryFrom<Map<String, Value>> for Params {
    type Error = Reserved;

    fn try_from(params: Map<String, Value>) -> Result<Params, Reserved> {
        match ["messages", "system", "tools"].into_iter().find(|key| params.contains_key(*key)) {
            Some(key) => Err(Reserved(key.to_owned())),
            None => Ok(Params(params)),
        }
    }
}

/// Who is asked, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Adapter {
    /// `POST …/chat/completions`
    OpenaiChat,
    /// `POST …/messages`
    AnthropicMessages,
}

impl Adapter {
    pub const ALL: [Adapter; 2] = [Adapter::OpenaiChat, Adapter::AnthropicMessages];

    pub const fn as_str(self) -> &'static str {
        match self {
            Adapter::OpenaiChat => "openai_chat",
            Adapter::AnthropicMessages => "anthropic_messages",
        }
    }

    /// Changes whenever equal messages would give other bytes. Receipts name it.
    pub const fn version(self) -> u32 {
        match self {
            Adapter::OpenaiChat | Adapter::AnthropicMessages => 1,
        }
    }

    /// The request, byte for byte as it is sent.
    pub fn request(self, composed: &Composed<'_>, policy: &Policy, tools: &[Tool], params: &Params) -> Vec<u8> {
        let text = match self {
            Adapter::OpenaiChat => serde_json::to_string(&Chat { composed, tools, params }),
            Adapter::AnthropicMessages => serde_json::to_string(&Messages { composed, policy, tools, params }),
        };
        let text = text.expect("a request has string keys only");
        match json::legible(&text) {
            Cow::Borrowed(_) => text.into_bytes(),
            Cow::Owned(shown) => shown.into_bytes(),
        }
    }
}

// ── OpenAI ──────────────────────────────────────────────────────────────────────────────────────────────────────

struct Chat<'a> {
    composed: &'a Composed<'a>,
    tools: &'a [Tool],
    params: &'a Params,
}

#[derive(Serialize)]
struct ChatMessage<'a> {
    role: Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
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
    // A call needs no words; a result may have none.
    let speaks = !message.content.is_empty() || message.role == Role::Tool;
    ChatMessage {
        role: message.role,
        content: speaks.then_some(&*message.content),
        tool_calls: calls.collect(),
        tool_call_id: message.tool_call_id,
    }
}

/// A name that every provider takes, also for a tool that the model made up.
fn legal(name: &str) -> Cow<'_, str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if (1..=64).contains(&name.len()) && name.chars().all(fits) {
        return Cow::Borrowed(name);
    }
    let legal: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(64).collect();
    if legal.is_empty() { Cow::Borrowed("_") } else { Cow::Owned(legal) }
}

fn chat_tool(tool: &Tool) -> ChatTool<'_> {
    let Tool { tool_name, description, parameters } = tool;
    ChatTool { r#type: "function", function: ChatToolFunction { name: tool_name, description, parameters } }
}

/// A list, each element of which is turned into its wire form when its turn comes.
struct Each<'a, T, F>(&'a [T], F);

impl<'a, T, F, W> Serialize for Each<'a, T, F>
where
    F: Fn(&'a T) -> W,
    W: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(&self.1))
    }
}

// ── Anthropic ───────────────────────────────────────────────────────────────────────────────────────────────────

/// Said where the first message is an assistant's, as in what another agent handed over: the user must begin.
const OPENING: &str = "What follows was handed over.";
/// Said where the last one is: models do not go on from their own words.
const CLOSING: &str = "Go on.";
/// What both may count, with room to spare.
pub(crate) const ADDED: i32 = 24;

struct Messages<'a> {
    composed: &'a Composed<'a>,
    policy: &'a Policy,
    tools: &'a [Tool],
    params: &'a Params,
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
}

impl<'a> Block<'a> {
    fn text(text: &'a str) -> Block<'a> {
        Block::Text { text, cache_control: None }
    }

    fn mark(&mut self) {
        let (Block::Text { cache_control, .. }
        | Block::ToolUse { cache_control, .. }
        | Block::ToolResult { cache_control, .. }) = self;
        *cache_control = Some(CacheControl { r#type: "ephemeral" });
    }
}

/// Up to here the provider may remember what it read.
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
                // Results come from the user here, and two messages of one role are one.
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
    /// Behind which messages the provider is to remember, where the order is made for it: the system text, the history, and what the
    /// turn has by now. Blocks of every step stand behind all of them.
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
    said.into_iter().chain(calls)
}

/// The model's own text where it is an object, as the provider wants it; else an object that says what it was.
fn arguments(call: &ToolCall) -> Cow<'_, RawValue> {
    // A raw value may hold escapes that stand for no character.
    let is_legible = |text: &str| !text.contains("\\u") || serde_json::from_str::<Value>(text).is_ok();
    match serde_json::from_str::<&RawValue>(&call.arguments) {
        Ok(raw) if raw.get().starts_with('{') && is_legible(raw.get()) => Cow::Borrowed(raw),
        _ => {
            let said = serde_json::json!({ "INVALID_JSON": call.arguments });
            Cow::Owned(RawValue::from_string(said.to_string()).expect("it was just written"))
        }
    }
}

fn messages_tool(tool: &Tool) -> MessagesTool<'_> {
    let Tool { tool_name, description, parameters } = tool;
    MessagesTool { name: tool_name, description, input_schema: parameters }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use waybill_core::{
        card::{CardType, Content, Draft},
        card_box::Places,
        tokens::Tokens,
    };

    use super::*;
    use crate::{
        compose::{self, Input},
        golden,
        kit::{self, Kit, any_line, cases, tokens},
        lint::{self, Rule},
    };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(1_000)))]

        /// CX-12: whatever the history is, no provider has a reason to refuse the request. And equal input gives equal bytes.
        #[test]
        fn whatever_comes_the_request_is_clean(line in any_line(), budget in 5..60i32, cache in any::<bool>()) {
            let mut kit = Kit::default();
            let (history, query) = (kit.placed(&line), kit.cards("u5"));
            let contexts = kit.contexts("framework todo clock*");
            let order = if cache { Order::CacheFirst } else { Order::Layered };
            let policy = Policy { order, budget: tokens(budget), per_message: Tokens::ZERO };
            let covered = Places::default();
            let input = Input {
                system_prompt: None, contexts: &contexts, history: &history, n_pinned: 0, covered: &covered,
                query: &query, steps: &[], besides: Tokens::ZERO,
            };
            let Ok(composed) = compose::compose(&input, &policy) else { return Ok(()) };
            let again = compose::compose(&input, &policy).unwrap();
            for adapter in Adapter::ALL {
                let bytes = adapter.request(&composed, &policy, &[], &Params::default());
                prop_assert_eq!(&bytes, &adapter.request(&again, &policy, &[], &Params::default()));
                let findings = lint::lint(std::str::from_utf8(&bytes).unwrap()).unwrap();
                // Words of one kind and number say the same here.
                let findings: Vec<_> = findings.into_iter().filter(|f| f.rule != Rule::DoubledInput).collect();
                prop_assert!(findings.is_empty(), "{:?} {:?}", adapter, findings);
            }
        }
    }

    fn request(script: &str, adapter: Adapter) -> Value {
        serde_json::from_slice(&golden::read(script).call(adapter).request).unwrap()
    }

    #[test]
    fn the_user_begins_where_the_provider_wants_it() {
        let script = "react layered 900\nhistory\n  deliverable: part one\n  deliverable: part two\nquery: join them";
        let request = request(script, Adapter::AnthropicMessages);
        let roles: Vec<&str> =
            request["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "user"]);
        assert_eq!(request["messages"][0]["content"][0]["text"], OPENING);
        assert_eq!(request["messages"][1]["content"].as_array().unwrap().len(), 2);
    }

    /// CB-5: what the model wrote goes back as it wrote it, key order and all.
    #[test]
    fn arguments_are_sent_back_verbatim() {
        let script = r#"react layered 900
query: go
steps
  assistant: -> a=search({"z":1.50,"a":[]}) b=fetch([1]) c=fetch({broken)
  tool a: 1
  tool b: 2
  tool c: 3"#;
        let scene = golden::read(script);
        let text = |adapter| String::from_utf8(scene.call(adapter).request).unwrap();
        assert!(text(Adapter::AnthropicMessages).contains(r#""input":{"z":1.50,"a":[]}"#));
        assert!(text(Adapter::AnthropicMessages).contains(r#""input":{"INVALID_JSON":"[1]"}"#));
        assert!(text(Adapter::AnthropicMessages).contains(r#""input":{"INVALID_JSON":"{broken"}"#));
        assert!(text(Adapter::OpenaiChat).contains(r#""arguments":"{broken""#));
    }

    /// What could not be stored as it was is shown as something that every reader takes.
    #[test]
    fn escapes_of_the_store_stay_inside() {
        let mut scene = golden::read("react layered 900\nquery: x");
        let draft = Draft::new(CardType::instruction(), Role::User, Content::Text(json::text("a\0b␛").into_owned()));
        scene.materials.query = vec![kit::stored(draft)];
        for adapter in Adapter::ALL {
            let text = String::from_utf8(scene.call(adapter).request).unwrap();
            assert!(text.contains("a\u{fffd}b␛\""), "{text}");
        }
    }

    /// A lone surrogate in a card must not make every later call a refusal; nor in arguments, which go as they are.
    #[test]
    fn half_a_character_is_not_sent() {
        let mut scene = golden::read(
            "react layered 900\nquery: x\nsteps\n  assistant: -> a=search({\"q\":\"\\ud83d\"})\n  tool a: y",
        );
        let outside = json::parse(br#""cut \ud83d""#).unwrap();
        let draft = Draft::new(CardType::instruction(), Role::User, Content::Text(outside.as_str().unwrap().into()));
        scene.materials.query = vec![kit::stored(draft)];
        for adapter in Adapter::ALL {
            let request = scene.call(adapter).request;
            let value: Value = serde_json::from_slice(&request).unwrap();
            assert!(value.to_string().contains("cut \u{fffd}"), "{value}");
        }
    }

    #[test]
    fn a_made_up_tool_has_a_name_that_can_be_sent() {
        for (name, sent) in [("functions.search", "functions_search"), ("a b", "a_b"), ("", "_"), ("ok-1", "ok-1")] {
            assert_eq!(legal(name), sent);
        }
        assert_eq!(legal(&"é".repeat(80)).len(), 64);
    }

    /// Models refuse to go on from their own words.
    #[test]
    fn the_last_word_is_the_users() {
        let script = "react layered 900\nquery: go\nsteps\n  assistant: I could. ";
        let request = request(script, Adapter::AnthropicMessages);
        let last = request["messages"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["role"], &last["content"][0]["text"]), (&"user".into(), &CLOSING.into()));
        let added = waybill_core::tokens::count(OPENING) + waybill_core::tokens::count(CLOSING);
        assert!(added + tokens(8) <= tokens(ADDED));
    }

    #[test]
    fn parameters_cannot_replace_what_is_composed() {
        for key in ["messages", "system", "tools"] {
            let params: Map<String, Value> = [(key.to_owned(), Value::Null)].into_iter().collect();
            assert!(Params::try_from(params).is_err(), "{key}");
        }
    }

    /// CX-3: marks stand behind system text, history and own steps, and in front of what changes with every step.
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
        assert_eq!(marked(&request(script, Adapter::AnthropicMessages)), ["You", "b", "c"]);
        let layered = script.replace("cache_first", "layered");
        assert!(marked(&request(&layered, Adapter::AnthropicMessages)).is_empty());
    }
}

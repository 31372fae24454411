//! Wire formats of providers: from messages to the bytes of a request. Equal messages give equal bytes.
//!
//! The rules of each provider are applied here, and never drop a message: alternating roles, a user message first, results as blocks of a
//! user message.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, value::RawValue};
use waybill_core::{
    card::{Draft, ToolCall},
    json,
};

use crate::{
    compose::Composed,
    policy::Policy,
    unit::{Message, Reasoning},
};

mod chat;
pub(crate) mod messages;
mod responses;

/// A tool that the model may call, as a `sys.tools` card lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    pub tool_name: String,
    pub description: String,
    /// JSON Schema.
    pub parameters: Value,
}

/// A profile's parameters of the call itself: model, temperature, limits. They are sent as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Params(Map<String, Value>);

/// A parameter would replace what Waybill composes.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` cannot be a parameter of the model call, because Waybill sets it: leave it out")]
pub struct Reserved(String);

impl TryFrom<Map<String, Value>> for Params {
    type Error = Reserved;

    fn try_from(params: Map<String, Value>) -> Result<Params, Reserved> {
        const COMPOSED: [&str; 6] = ["messages", "system", "tools", "input", "store", "include"];
        match COMPOSED.into_iter().find(|key| params.contains_key(*key)) {
            Some(key) => Err(Reserved(key.to_owned())),
            None => Ok(Params(params)),
        }
    }
}

/// The format of a provider's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Adapter {
    /// `POST …/chat/completions`
    OpenaiChat,
    /// `POST …/messages`
    AnthropicMessages,
    /// `POST …/responses`
    OpenaiResponses,
}

impl Adapter {
    pub const ALL: [Adapter; 3] = [Adapter::OpenaiChat, Adapter::AnthropicMessages, Adapter::OpenaiResponses];

    pub const fn as_str(self) -> &'static str {
        match self {
            Adapter::OpenaiChat => "openai_chat",
            Adapter::AnthropicMessages => "anthropic_messages",
            Adapter::OpenaiResponses => "openai_responses",
        }
    }

    /// Returns the version, which changes whenever equal messages would give other bytes. Receipts name it.
    pub const fn version(self) -> u32 {
        match self {
            Adapter::OpenaiChat | Adapter::AnthropicMessages | Adapter::OpenaiResponses => 1,
        }
    }

    /// Renders the request, byte for byte as it is sent.
    pub fn request(self, composed: &Composed<'_>, policy: &Policy, tools: &[Tool], params: &Params) -> Vec<u8> {
        let text = match self {
            Adapter::OpenaiChat => serde_json::to_string(&chat::Chat { composed, tools, params }),
            Adapter::AnthropicMessages => {
                serde_json::to_string(&messages::Messages { composed, policy, tools, params })
            }
            Adapter::OpenaiResponses => serde_json::to_string(&responses::Responses { composed, tools, params }),
        };
        let text = text.expect("a request has string keys only");
        match json::legible(&text) {
            Cow::Borrowed(_) => text.into_bytes(),
            Cow::Owned(shown) => shown.into_bytes(),
        }
    }
}

/// Makes a card of what a model thought before it answered, to be put before its answer. Both texts are as the provider sent them.
pub fn reasoning_draft(adapter: Adapter, text: String, verbatim: Option<String>) -> Draft {
    let inside = |text: String| Cow::Owned(json::text(&text).into_owned());
    Reasoning { adapter: adapter.as_str().into(), text: inside(text), verbatim: verbatim.map(inside) }.draft()
}

/// Returns the reasoning before a message, if it came through this adapter. No other adapter can use it.
fn reasoning<'a>(message: &'a Message<'_>, adapter: Adapter) -> Option<&'a Reasoning<'a>> {
    message.reasoning.as_ref().filter(|reasoning| reasoning.adapter == adapter.as_str())
}

/// Returns the provider's own blocks of the reasoning, each byte for byte. It is empty if they are not a list of objects.
fn verbatim<'a>(message: &'a Message<'_>, adapter: Adapter) -> Vec<&'a RawValue> {
    let text = reasoning(message, adapter).and_then(|reasoning| reasoning.verbatim.as_deref());
    let blocks = text.and_then(|text| serde_json::from_str::<Vec<&RawValue>>(text).ok());
    blocks.filter(|blocks| blocks.iter().all(|block| is_object(block))).unwrap_or_default()
}

/// Returns a name that every provider accepts, even for a tool that the model invented.
fn legal(name: &str) -> Cow<'_, str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if (1..=64).contains(&name.len()) && name.chars().all(fits) {
        return Cow::Borrowed(name);
    }
    let legal: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(64).collect();
    if legal.is_empty() { Cow::Borrowed("_") } else { Cow::Owned(legal) }
}

/// Returns the model's own text if it is a JSON object, as the provider requires; otherwise an object that contains the text.
fn arguments(call: &ToolCall) -> Cow<'_, RawValue> {
    match serde_json::from_str::<&RawValue>(&call.arguments) {
        Ok(raw) if is_object(raw) => Cow::Borrowed(raw),
        _ => {
            let said = serde_json::json!({ "INVALID_JSON": call.arguments });
            Cow::Owned(RawValue::from_string(said.to_string()).expect("it was just written"))
        }
    }
}

fn is_object(raw: &RawValue) -> bool {
    // A raw value may contain escapes that are not valid characters.
    let is_legible = |text: &str| !text.contains("\\u") || serde_json::from_str::<Value>(text).is_ok();
    raw.get().starts_with('{') && is_legible(raw.get())
}

/// A list whose elements are converted to their wire form one by one.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use waybill_core::{
        card::{CardType, Content, Reading, Role},
        card_box::Places,
        resource::Order,
        tokens::Tokens,
    };

    use super::*;
    use crate::{
        compose::{self, Input},
        golden,
        kit::{self, Kit, any_line, any_steps, cases, tokens},
        lint::{self, Rule},
    };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(1_000)))]

        /// CX-12: for any history, and whatever the turn did and thought, no provider has a reason to refuse the request. Equal input gives equal
        /// bytes.
        #[test]
        fn whatever_comes_the_request_is_clean(
            line in any_line(), did in any_steps(), budget in 5..120i32, cache in any::<bool>(),
        ) {
            let mut kit = Kit::default();
            let (history, query, steps) = (kit.placed(&line), kit.cards("u5"), kit.placed(&did));
            let contexts = kit.contexts("framework todo clock*");
            let order = if cache { Order::CacheFirst } else { Order::Layered };
            let policy = Policy { order, budget: tokens(budget), per_message: Tokens::ZERO };
            let covered = Places::default();
            let input = Input {
                system_prompt: None, contexts: &contexts, history: &history, n_pinned: 0, covered: &covered,
                query: &query, steps: &steps, other_tokens: Tokens::ZERO,
            };
            let Ok(composed) = compose::compose(&input, &policy) else { return Ok(()) };
            let again = compose::compose(&input, &policy).unwrap();
            for adapter in Adapter::ALL {
                let bytes = adapter.request(&composed, &policy, &[], &Params::default());
                prop_assert_eq!(&bytes, &adapter.request(&again, &policy, &[], &Params::default()));
                let findings = lint::lint(std::str::from_utf8(&bytes).unwrap()).unwrap();
                // In these tests, texts of the same kind and length are equal.
                let findings: Vec<_> = findings.into_iter().filter(|f| f.rule != Rule::DoubledInput).collect();
                prop_assert!(findings.is_empty(), "{:?} {:?}", adapter, findings);
            }
        }
    }

    /// CB-5: what the model wrote is sent back exactly as it wrote it, including the order of keys.
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
        assert!(text(Adapter::OpenaiResponses).contains(r#""arguments":"{broken""#));
    }

    /// One step, and the reasoning before it.
    fn after(adapter: Adapter, verbatim: &str) -> golden::Scene {
        let mut scene = golden::read("react layered 900\nquery: x\nsteps\n  reasoning openai_chat: t\n  assistant: y");
        let draft = reasoning_draft(adapter, "a ␛ thought".into(), Some(verbatim.into()));
        scene.materials.steps[0].reading = Reading::Live(Box::new(kit::stored(draft)));
        scene
    }

    /// A signature is valid only for the bytes that were signed, and only for the provider that signed them.
    #[test]
    fn what_was_thought_goes_back_to_whoever_it_came_from_byte_for_byte() {
        let blocks = [r#"{ "type":"sealed","n":1.50,"s":"␛ ␛␛ ␛D800 \u00e9 é"}"#, "{}"];
        for from in Adapter::ALL {
            let scene = after(from, &format!("[{} , {}]", blocks[0], blocks[1]));
            for to in Adapter::ALL {
                let text = String::from_utf8(scene.call(to).request).unwrap();
                let is_chat = to == Adapter::OpenaiChat;
                assert_eq!(text.contains(&blocks.join(",")), from == to && !is_chat, "{text}");
                assert_eq!(text.contains(r#""reasoning_content":"a ␛ thought""#), from == to && is_chat, "{text}");
            }
        }
    }

    #[test]
    fn what_cannot_be_blocks_is_not_sent() {
        for adapter in [Adapter::AnthropicMessages, Adapter::OpenaiResponses] {
            let nothing = after(adapter, "[]").call(adapter).request;
            for bad in ["", "[", "{}", "[1]", "[{}] x", "\0", r#"[{"half":"\ud83d"}]"#] {
                assert!(after(adapter, bad).call(adapter).request == nothing, "{bad}");
            }
        }
    }

    /// Content that could not be stored as it was is shown in a form that every reader accepts.
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

    /// A lone surrogate in a card must not make the provider refuse every later call; nor in arguments, which are sent as they are.
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

    #[test]
    fn parameters_cannot_replace_what_is_composed() {
        for key in ["messages", "system", "tools", "input", "store", "include"] {
            let params: Map<String, Value> = [(key.to_owned(), Value::Null)].into_iter().collect();
            assert!(Params::try_from(params).is_err(), "{key}");
        }
    }
}

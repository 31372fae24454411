//! A request body as pieces: what stays the same from request to request is stored once, and the exact bytes can be joined again.
//!
//! ```text
//! {"model":"m","system":"Be brief.","messages":[{…},{…}],"tools":[…]}    body
//! {"model":"m","system":○          ,"messages":[○      ],"tools":○  }    skeleton: texts and holes
//! ```
//!
//! * A body of which nothing is withheld is joined byte for byte, whatever its spacing, escapes, numbers and duplicate keys.
//! * If a request only adds messages to the last one, the skeletons are equal and the messages of the last one come first.
//! * Credentials are replaced before anything else happens: no field of [`Cut`] has one. See [`withhold`].
//! * Time is linear in the size of the body, and nesting takes no stack.
//!
//! Not here: how pieces are stored, what the provider answers, the headers of the request.

use std::{ops::Range, str::Utf8Error};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use self::{
    raw::Object,
    withhold::{Pattern, Withheld},
};
use crate::wire::Adapter;

pub use self::shown::tool_names;
pub(crate) use self::shown::{message, raw_of, system_message};

mod data;
mod raw;
pub mod receipt;
mod shown;
pub mod view;
pub mod withhold;

#[cfg(test)]
mod bodies;
#[cfg(test)]
mod tests;

/// A request body, cut into the parts that stay the same and those that are new.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// What is left of the body, with holes.
    pub skeleton: Skeleton,
    /// The raw JSON of Anthropic's `system` or Responses' `instructions`. In chat completions the system prompt is a message.
    pub system: Option<String>,
    /// The raw JSON of `tools`, the whole value.
    pub tools: Option<String>,
    /// The raw JSON of each element of `messages` or `input`. An `input` that is a string is one element.
    pub messages: Vec<String>,
    /// Paths of the credentials that were replaced, such as `tools[0].authorization`.
    pub withheld: Vec<String>,
    /// The model that the client asked for.
    pub model: Option<String>,
    /// Whether the client wants the answer as a stream.
    pub is_stream: bool,
    /// The id of what the provider itself remembers, if the request builds on it. Then the model saw more than these bytes.
    pub rests_on: Option<String>,
    /// Whether that is an earlier call or a conversation: its messages come before those of the request. A prompt or an item is neither.
    pub goes_on: bool,
    /// Whether that id stays the same for all requests that build on it: a conversation of the provider.
    pub is_conversation: bool,
}

/// What is left of a body without its system prompt, tools and messages.
///
/// In JSON it is a list. A string is text as it is; `{"hole":"system"}`, `{"hole":"tools"}` and `{"hole":"messages"}` stand for what was cut out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skeleton(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Part {
    Text(String),
    Hole(Hole),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "hole", rename_all = "lowercase")]
enum Hole {
    System,
    Tools,
    Messages(Between),
}

/// The text between two messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Between {
    /// A text for each gap, so there is one message more than texts.
    Each { betweens: Vec<String> },
    /// The same text everywhere, for any number of messages.
    Same {
        #[serde(default = "comma", skip_serializing_if = "is_comma")]
        between: String,
    },
}

fn comma() -> String {
    ",".to_owned()
}

fn is_comma(between: &str) -> bool {
    between == ","
}

/// The body is not what a provider would accept, so it cannot be cut.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("the request body is not UTF-8")]
    NotUtf8(#[source] Utf8Error),
    #[error("the request body is not JSON")]
    NotJson(#[source] serde_json::Error),
    #[error("the request body is JSON, but not an object")]
    NotAnObject,
    #[error("the request body has more messages or credentials than are recorded")]
    TooMany,
}

/// The pieces do not belong to the skeleton.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("the skeleton has a hole for `{0}`, but no such piece was given")]
    Missing(&'static str),
    #[error("the skeleton has no hole for `{0}`")]
    NoHole(&'static str),
    #[error("the skeleton needs {needed} messages, not {given}")]
    Count { needed: usize, given: usize },
}

/// Cuts a request body into pieces. `key` hides the credentials, and `patterns` find more of them.
pub fn cut(adapter: Adapter, body: &[u8], key: &[u8; 32], patterns: &[&Pattern<'_>]) -> Result<Cut, Unreadable> {
    let body = str::from_utf8(body).map_err(Unreadable::NotUtf8)?;
    let object = read(body)?;
    let withheld = withhold::find(adapter, body, &object, key, patterns).ok_or(Unreadable::TooMany)?;
    let piece = |raw: &str| withheld.text(body, raw::place(body, raw));
    let (system_name, messages_name) = match adapter {
        Adapter::OpenaiChat => (None, "messages"),
        Adapter::AnthropicMessages => (Some("system"), "messages"),
        Adapter::OpenaiResponses => (Some("instructions"), "input"),
    };

    let system = system_name.and_then(|name| object.get(name));
    let tools = object.get("tools");
    let list = object.get(messages_name);
    let is_one = adapter == Adapter::OpenaiResponses && list.is_some_and(|list| list.starts_with('"'));
    let messages = if is_one { list.map(|one| vec![one]) } else { list.and_then(raw::elements) };
    if messages.is_none() && list.is_some_and(|list| list.starts_with('[')) {
        return Err(Unreadable::TooMany);
    }

    let mut holes = Vec::new();
    holes.extend(system.map(|raw| (raw::place(body, raw), Hole::System)));
    holes.extend(tools.map(|raw| (raw::place(body, raw), Hole::Tools)));
    if let (Some(list), Some(messages)) = (list, &messages) {
        let between = match is_one {
            true => Between::Each { betweens: Vec::new() },
            false => between(body, &object, list, messages),
        };
        let place = match (messages.first(), messages.last()) {
            (Some(first), Some(last)) => raw::place(body, first).start..raw::place(body, last).end,
            _ => {
                let end = raw::place(body, list).end - 1;
                end..end
            }
        };
        holes.push((place, Hole::Messages(between)));
    }
    holes.sort_by_key(|(place, _)| place.start);

    let messages = messages.unwrap_or_default();
    Ok(Cut {
        skeleton: skeleton(body, &withheld, holes),
        system: system.map(piece),
        tools: tools.map(piece),
        model: object.get("model").and_then(|raw| Some(raw::text(&piece(raw))?.into_owned())),
        is_stream: object.get("stream") == Some("true"),
        rests_on: rests_on(adapter, &object, &messages).map(|raw| {
            let piece = piece(raw);
            raw::text(&piece).map_or_else(|| piece.clone(), |text| text.into_owned())
        }),
        goes_on: goes_on(&object),
        is_conversation: object.get("previous_response_id").is_none() && object.get("conversation").is_some(),
        messages: messages.into_iter().map(piece).collect(),
        withheld: withheld.paths,
    })
}

/// Joins the pieces of a body. If nothing was withheld, they give the bytes that were cut.
pub fn join(
    skeleton: &Skeleton,
    system: Option<&str>,
    tools: Option<&str>,
    messages: &[impl AsRef<str>],
) -> Result<String, Misfit> {
    let mut body = String::new();
    let (mut has_system, mut has_tools, mut has_messages) = (false, false, false);
    for part in &skeleton.0 {
        match part {
            Part::Text(text) => body.push_str(text),
            Part::Hole(Hole::System) => {
                body.push_str(system.ok_or(Misfit::Missing("system"))?);
                has_system = true;
            }
            Part::Hole(Hole::Tools) => {
                body.push_str(tools.ok_or(Misfit::Missing("tools"))?);
                has_tools = true;
            }
            Part::Hole(Hole::Messages(between)) => {
                between.check(messages.len())?;
                for (n, message) in messages.iter().enumerate() {
                    body.push_str(if n == 0 { "" } else { between.before(n) });
                    body.push_str(message.as_ref());
                }
                has_messages = true;
            }
        }
    }
    let left = [
        ("system", system.is_some() && !has_system),
        ("tools", tools.is_some() && !has_tools),
        ("messages", !messages.is_empty() && !has_messages),
    ];
    match left.into_iter().find(|(_, is_left)| *is_left) {
        Some((what, _)) => Err(Misfit::NoHole(what)),
        None => Ok(body),
    }
}

impl Between {
    fn check(&self, given: usize) -> Result<(), Misfit> {
        match self {
            Between::Each { betweens } if betweens.len() + 1 != given => {
                Err(Misfit::Count { needed: betweens.len() + 1, given })
            }
            _ => Ok(()),
        }
    }

    /// Returns the text before a message that is not the first.
    fn before(&self, n: usize) -> &str {
        match self {
            Between::Same { between } => between,
            Between::Each { betweens } => betweens.get(n - 1).map_or("", String::as_str),
        }
    }
}

fn read(body: &str) -> Result<Object<'_>, Unreadable> {
    // Only for an object: what serde_json says about another value contains that value.
    if body.trim_start().starts_with('{') {
        return Object::read(body).map_err(Unreadable::NotJson);
    }
    match serde_json::from_str::<&RawValue>(body) {
        Ok(_) => Err(Unreadable::NotAnObject),
        Err(error) => Err(Unreadable::NotJson(error)),
    }
}

fn skeleton(body: &str, withheld: &Withheld, holes: Vec<(Range<usize>, Hole)>) -> Skeleton {
    let mut parts = Vec::new();
    let mut at = 0;
    for (place, hole) in holes {
        parts.push(Part::Text(withheld.text(body, at..place.start)));
        parts.push(Part::Hole(hole));
        at = place.end;
    }
    parts.push(Part::Text(withheld.text(body, at..body.len())));
    Skeleton(parts)
}

/// Returns what stands between the messages.
fn between(body: &str, object: &Object<'_>, list: &str, messages: &[&str]) -> Between {
    let gap = |left: &str, right: &str| &body[raw::place(body, left).end..raw::place(body, right).start];
    let mut gaps = messages.windows(2).map(|pair| gap(pair[0], pair[1]));
    let Some(first) = gaps.next() else { return Between::Same { between: likely(body, object, list, messages) } };
    if gaps.all(|gap| gap == first) {
        return Between::Same { between: first.to_owned() };
    }
    Between::Each { betweens: messages.windows(2).map(|pair| gap(pair[0], pair[1]).to_owned()).collect() }
}

/// Guesses what will stand between the messages once there are two, so that the first request of a conversation has the skeleton of the next.
/// A wrong guess costs one more skeleton.
fn likely(body: &str, object: &Object<'_>, list: &str, messages: &[&str]) -> String {
    let gap = |left: usize, right: usize| &body[left..right];
    if let Some(first) = messages.first() {
        let lead = gap(raw::place(body, list).start + 1, raw::place(body, first).start);
        if lead.contains('\n') {
            return format!(",{lead}");
        }
    }
    let on_one_line = |text: &str| !text.contains('\n');
    match object.0.as_slice() {
        [(_, value), (key, _), ..] => {
            let gap = gap(raw::place(body, value).end, raw::place(body, key).start);
            if on_one_line(gap) { gap.to_owned() } else { comma() }
        }
        [(key, value)] => {
            let gap = gap(raw::place(body, key).end, raw::place(body, value).start);
            if on_one_line(gap) { gap.replacen(':', ",", 1) } else { comma() }
        }
        [] => comma(),
    }
}

/// Checks whether what the provider remembers can be an earlier call or a conversation.
fn goes_on(object: &Object<'_>) -> bool {
    ["previous_response_id", "conversation", "thread"].into_iter().any(|name| object.get(name).is_some())
}

/// Finds what the provider remembers and the request builds on.
fn rests_on<'a>(adapter: Adapter, object: &Object<'a>, messages: &[&'a str]) -> Option<&'a str> {
    if let Some(id) = object.get("previous_response_id") {
        return Some(id);
    }
    if let Some(conversation) = object.get("conversation") {
        return Some(object.object("conversation").and_then(|it| it.get("id")).unwrap_or(conversation));
    }
    if let Some(thread) = object.get("thread") {
        let it = Object::of(thread).unwrap_or_default();
        // A thread that begins with this request holds nothing yet.
        let begins = it.text("type").is_some_and(|kind| kind == "create");
        return it.get("previous_message_id").or(it.get("id")).or((!begins).then_some(thread));
    }
    if adapter != Adapter::OpenaiResponses {
        return None;
    }
    // A prompt that is stored at the provider, or an item of an earlier response.
    let prompt = object.object("prompt").and_then(|prompt| prompt.get("id"));
    prompt.or_else(|| messages.iter().find_map(|item| reference(item)))
}

/// Returns the id, if this item of `input` only names another.
fn reference(item: &str) -> Option<&str> {
    const LONGEST: usize = 1_000;
    let item = Some(item).filter(|item| item.len() <= LONGEST).and_then(Object::of)?;
    let is_plain = item.0.iter().all(|(key, _)| raw::is_key(key, "type") || raw::is_key(key, "id"));
    let is_reference = item.text("type").is_none_or(|kind| kind == "item_reference");
    item.get("id").filter(|_| is_plain && is_reference)
}

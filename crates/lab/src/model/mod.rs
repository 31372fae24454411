//! The scripted model: an HTTP server on 127.0.0.1 that speaks the wire formats of real model providers, byte by byte, and answers as a
//! script says. It can be slow, cut a connection, fall silent and send garbage. Its ledger records each request and whether it was answered
//! completely.
//!
//! `asked` reads the three request formats into one type; `chat`, `responses` and `messages` each write one answer format; `fault` writes
//! their errors; `wire` is HTTP; `server` serves; `rules` is the script as JSON, for the program `scripted-model`.

mod asked;
mod chat;
mod fault;
mod ledger;
mod messages;
mod responses;
mod rules;
mod server;
#[cfg(test)]
mod tests;
mod wire;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::{ledger::Entry, rules::Rules, server::Server};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    OpenaiChat,
    OpenaiResponses,
    AnthropicMessages,
}

/// A call that the model made earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

/// A message of the conversation, the same for all formats. Roles are `system`, `user`, `assistant` and `tool`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub role: String,
    pub text: String,
    pub calls: Vec<Called>,
    /// The call that this is the result of.
    pub result_of: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Asked {
    /// How many requests came before this one, since the start.
    pub n: usize,
    pub format: Format,
    pub model: String,
    /// The header `Idempotency-Key`.
    pub key: Option<String>,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub messages: Vec<Said>,
    pub tools: Vec<String>,
    pub stream: bool,
    pub body: Value,
}

impl Asked {
    /// Returns the results after the last user message.
    pub fn results(&self) -> impl Iterator<Item = &Said> {
        let since = self.messages.iter().rposition(|said| said.role == "user").map_or(0, |at| at + 1);
        self.messages[since..].iter().filter(|said| said.result_of.is_some())
    }

    /// Returns the last user message or result.
    pub fn last(&self) -> &str {
        let is_input = |said: &&Said| said.role == "user" || said.result_of.is_some();
        self.messages.iter().rfind(is_input).map_or("", |said| &said.text)
    }
}

/// What the model answers. `n_input` counts all input, including the cached part, as OpenAI does.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub text: String,
    pub reasoning: Option<String>,
    /// Name and arguments. Arguments are sent unchanged, even if they are not JSON.
    pub calls: Vec<(String, String)>,
    pub n_input: u32,
    pub n_cached: u32,
    pub n_output: u32,
    /// Why less came from the cache than possible, if the request asks for it.
    pub cache_miss: Option<Value>,
    /// Whether the answer ends because it reached the length limit.
    pub cut_at_limit: bool,
    pub pace: Pace,
    pub fault: Option<Fault>,
}

impl Reply {
    pub fn say(text: impl Into<String>) -> Reply {
        Reply { text: text.into(), ..Reply::default() }
    }

    pub fn call(name: &str, arguments: &Value) -> Reply {
        Reply::default().and_call(name, arguments)
    }

    pub fn and_call(mut self, name: &str, arguments: &Value) -> Reply {
        self.calls.push((name.to_owned(), arguments.to_string()));
        self
    }

    pub fn with_reasoning(self, reasoning: impl Into<String>) -> Reply {
        Reply { reasoning: Some(reasoning.into()), ..self }
    }

    pub fn with_usage(self, n_input: u32, n_cached: u32, n_output: u32) -> Reply {
        Reply { n_input, n_cached, n_output, ..self }
    }

    pub fn with_fault(self, fault: Fault) -> Reply {
        Reply { fault: Some(fault), ..self }
    }

    pub fn paced(self, pace: Pace) -> Reply {
        Reply { pace, ..self }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pace {
    /// Pause before the first byte.
    #[serde(rename = "before_ms", deserialize_with = "rules::milliseconds")]
    pub before: Duration,
    /// Pause between two events of a stream.
    #[serde(rename = "between_ms", deserialize_with = "rules::milliseconds")]
    pub between: Duration,
    /// Bytes per write, which is also an HTTP chunk; 0 means one event per write. 7 splits events and UTF-8 characters; a large number joins
    /// events.
    pub chunk: usize,
    /// Into how many deltas the text is split, and the arguments of each call.
    pub pieces: usize,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { before: Duration::ZERO, between: Duration::ZERO, chunk: 0, pieces: 4 }
    }
}

/// What goes wrong with an answer. If the answer has fewer events, the fault comes after the last; an answer that is not streamed breaks
/// halfway.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// An HTTP error instead of an answer; `retry_after` in seconds.
    Status { code: u16, retry_after: Option<u64>, message: String },
    /// An error event, then a proper end. An answer that is not streamed is a 500.
    ErrorInStream { after_events: usize, message: String },
    /// The connection is closed.
    CutOff { after_events: usize },
    /// Nothing more comes, and the connection stays open until the client closes it.
    HalfOpen { after_events: usize },
    /// A line of garbage, then the rest.
    NotJson { after_events: usize },
}

pub trait Script: Send + Sync + 'static {
    fn reply(&self, asked: &Asked) -> Reply;
}

impl<F: Fn(&Asked) -> Reply + Send + Sync + 'static> Script for F {
    fn reply(&self, asked: &Asked) -> Reply {
        self(asked)
    }
}

/// A reply that is about to be written in one of the formats.
struct Answer<'a> {
    asked: &'a Asked,
    reply: &'a Reply,
    /// Unique, across servers too.
    id: String,
    created: u64,
}

impl Answer<'_> {
    fn events(&self) -> Vec<String> {
        match self.asked.format {
            Format::OpenaiChat => chat::events(self),
            Format::OpenaiResponses => responses::events(self),
            Format::AnthropicMessages => messages::events(self),
        }
    }

    fn whole(&self) -> Value {
        match self.asked.format {
            Format::OpenaiChat => chat::whole(self),
            Format::OpenaiResponses => responses::whole(self),
            Format::AnthropicMessages => messages::whole(self),
        }
    }

    /// Splits a text into deltas. An empty text is one empty delta.
    fn pieces<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let size = text.len().div_ceil(self.reply.pace.pieces.max(1));
        let (mut pieces, mut rest) = (Vec::new(), text);
        while rest.len() > size {
            let (piece, after) = rest.split_at(rest.ceil_char_boundary(size));
            pieces.push(piece);
            rest = after;
        }
        if !rest.is_empty() || pieces.is_empty() {
            pieces.push(rest);
        }
        pieces
    }
}

/// Writes an event with its name, for the formats that name events.
fn named_event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

//! Models: providers that answer over HTTP as a stream, and what an answer is.
//!
//! The bytes that are sent are those that the receipt hashed; headers carry the key and nothing of the content. Each stream format
//! has a small reader of its own, which makes one [`Answer`] of it. It also reads answers that were not streamed, for workers elsewhere.

use std::time::Duration;

use serde_json::value::RawValue;
use waybill_context::wire::Adapter;
use waybill_core::{id::Name, turn::Usage};

mod chat;
mod demo;
mod http;
mod messages;
pub mod provider;
mod responses;
mod sse;

pub use http::{ModelRequest, Models};
pub use provider::{Provider, without_price};

/// What a model said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    pub reasoning: Option<Reasoning>,
    pub calls: Vec<ModelToolCall>,
    /// Whether it was cut off at the model's output limit.
    pub is_cut: bool,
    pub read: Read,
    /// The provider's own id of the answer.
    pub message_id: Option<String>,
    /// The provider's explanation of a prompt cache miss.
    pub cache_miss: Option<serde_json::Value>,
}

/// What the model thought before it answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasoning {
    pub text: String,
    /// What must be sent back to the provider byte for byte, as a JSON array.
    pub verbatim: Option<String>,
}

/// A tool call of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelToolCall {
    /// The provider's own id of the call.
    pub provider_call_id: String,
    pub tool_name: String,
    /// The model's own text.
    pub arguments: String,
}

/// Tokens, as the provider counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    pub input: u32,
    pub cached: u32,
    pub output: u32,
}

/// An answer, and what it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    pub answer: Answer,
    pub usage: Usage,
}

/// Why there is no answer. None of these texts contains a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It may answer later, or another model may.
    #[error("{0}")]
    Unavailable(String, Option<Duration>),
    /// The answer does not have the provider's format.
    #[error("the response of the provider is not valid: {0}")]
    Garbled(String),
    /// It will not answer this request; a retry does not help.
    #[error("{0}")]
    Refused(String),
    #[error("the request is too long for the model: {0}")]
    TooLong(String),
    #[error("the providers file of the worker has no provider `{0}`: add it there")]
    NoProvider(Name),
    #[error("{0}")]
    Secret(String),
}

impl Error {
    fn unavailable(why: impl Into<String>) -> Error {
        Error::Unavailable(why.into(), None)
    }

    /// Checks whether a retry may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Error::Unavailable(..) | Error::Garbled(_))
    }

    /// Returns how long the provider wants callers to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Unavailable(_, after) => *after,
            _ => None,
        }
    }
}

/// Reads one provider's stream.
trait Reader: Send {
    /// Reads one event. Returns the text that may be shown at once.
    fn read(&mut self, event: &sse::Event) -> Result<Option<String>, Error>;

    /// Reads an answer that was not streamed: one JSON object.
    fn read_whole(&mut self, json: &str) -> Result<(), Error>;

    /// Returns the answer. An incomplete one is an error.
    fn answer(self: Box<Self>) -> Result<Answer, Error>;
}

/// Returns the reader of a format.
fn reader(adapter: Adapter) -> Box<dyn Reader> {
    match adapter {
        Adapter::OpenaiChat => Box::<chat::Chat>::default(),
        Adapter::OpenaiResponses => Box::<responses::Responses>::default(),
        Adapter::AnthropicMessages => Box::<messages::Messages>::default(),
    }
}

/// Reads a provider's answer as another process received it: the event stream as one JSON string, or the JSON object of an answer that was not
/// streamed.
pub fn read(adapter: Adapter, response: &RawValue) -> Result<Answer, Error> {
    let mut reader = reader(adapter);
    match serde_json::from_str::<String>(response.get()) {
        Ok(stream) => {
            let mut lines = sse::Lines::default();
            // The last event may have come without its empty line.
            for piece in [stream.as_bytes(), &b"\n\n"[..]] {
                for event in lines.feed(piece)? {
                    reader.read(&event)?;
                }
            }
        }
        Err(_) => reader.read_whole(response.get())?,
    }
    reader.answer()
}

fn garbled(error: serde_json::Error) -> Error {
    Error::Garbled(error.to_string())
}

/// Returns the error for a stream that ended before the answer was complete.
fn cut_off() -> Error {
    Error::unavailable("the response of the provider ended too early")
}

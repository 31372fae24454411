//! Models: who answers, over HTTP and as a stream, and what an answer is.
//!
//! The bytes that are sent are those that the receipt hashed; headers carry the key and nothing of the content. Every provider's
//! stream is read by a small reader of its own into one [`Answer`].

use std::time::Duration;

use waybill_core::{id::Name, turn::Usage};

mod chat;
mod demo;
mod http;
mod messages;
pub mod provider;
mod responses;
mod sse;

pub use http::{Asking, Models};
pub use provider::{Price, Provider, without_price};

/// What a model said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    pub reasoning: Option<Reasoning>,
    pub calls: Vec<Called>,
    /// It was cut off at the most that it may write.
    pub is_cut: bool,
    pub read: Read,
    /// The provider's own id of the answer.
    pub message_id: Option<String>,
    /// Why it found less in its prompt cache than it could, in its own words.
    pub cache_miss: Option<serde_json::Value>,
}

/// What it thought before it spoke.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasoning {
    pub text: String,
    /// What the provider wants back byte for byte, as a JSON array.
    pub verbatim: Option<String>,
}

/// A call that it makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Called {
    /// The provider's own label.
    pub provider_call_id: String,
    pub tool_name: String,
    /// Its own text.
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

/// Why there is no answer. None of these texts holds a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It may answer later, or another may.
    #[error("{0}")]
    Unavailable(String, Option<Duration>),
    /// What came is not what such a provider says.
    #[error("the answer cannot be read: {0}")]
    Garbled(String),
    /// It will not answer this, however often it is asked.
    #[error("{0}")]
    Refused(String),
    #[error("the request is too long for the model: {0}")]
    TooLong(String),
    #[error("there is no provider `{0}`: name it in the worker's file of providers")]
    NoProvider(Name),
    #[error("{0}")]
    Secret(String),
}

impl Error {
    fn unavailable(why: impl Into<String>) -> Error {
        Error::Unavailable(why.into(), None)
    }

    /// Asking again may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Error::Unavailable(..) | Error::Garbled(_))
    }

    /// How long the provider wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Unavailable(_, after) => *after,
            _ => None,
        }
    }
}

/// Reads one provider's stream.
trait Reader: Send {
    /// One event. Gives the text that may be shown at once.
    fn read(&mut self, event: &sse::Event) -> Result<Option<String>, Error>;

    /// What it came to. An answer that did not come to its end is none.
    fn answer(self: Box<Self>) -> Result<Answer, Error>;
}

fn garbled(error: serde_json::Error) -> Error {
    Error::Garbled(error.to_string())
}

/// The stream ended without its last word.
fn cut_off() -> Error {
    Error::unavailable("the answer was cut off")
}

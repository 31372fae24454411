//! OpenAI's Responses, with `store=false`: reasoning comes back encrypted, and is sent again with the next request.

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use super::{Answer, Error, ModelToolCall, Read, Reader, Reasoning, cut_off, garbled, sse::Event};

#[derive(Debug, Default)]
pub(super) struct Responses {
    answer: Answer,
    reasoning: Vec<String>,
    verbatim: Vec<String>,
    ended: bool,
}

#[derive(Deserialize)]
struct Said<'a> {
    r#type: String,
    #[serde(default)]
    delta: Option<String>,
    #[serde(borrow)]
    item: Option<&'a RawValue>,
    response: Option<Response>,
    message: Option<String>,
    code: Option<String>,
}

#[derive(Deserialize)]
struct Response {
    id: Option<String>,
    usage: Option<Used>,
    error: Option<Failure>,
    incomplete_details: Option<Incomplete>,
}

/// An answer that was not streamed.
#[derive(Deserialize)]
struct Whole<'a> {
    id: Option<String>,
    status: Option<String>,
    #[serde(borrow, default)]
    output: Vec<&'a RawValue>,
    usage: Option<Used>,
    error: Option<Failure>,
    incomplete_details: Option<Incomplete>,
}

/// An item of an answer. The text of a message is in its parts.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Spoken {
    Message {
        #[serde(default)]
        content: Vec<Words>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Words {
    text: Option<String>,
    refusal: Option<String>,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Incomplete {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Used {
    input_tokens: u32,
    output_tokens: u32,
    input_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: u32,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item {
    Reasoning {
        #[serde(default)]
        summary: Vec<Part>,
    },
    FunctionCall {
        call_id: String,
        name: String,
        arguments: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    text: String,
}

/// Removes the id of an item that is sent back: with an id, the provider would look for an item that it did not store.
fn without_id(item: &RawValue) -> Result<String, Error> {
    let mut item: Map<String, Value> = serde_json::from_str(item.get()).map_err(garbled)?;
    item.remove("id");
    item.remove("status");
    Ok(Value::Object(item).to_string())
}

fn failed(why: &str) -> Error {
    Error::unavailable(format!("the model failed while it wrote its response: {why}"))
}

impl Responses {
    /// Reads an item that is complete: reasoning, or a call.
    fn take(&mut self, raw: &RawValue) -> Result<(), Error> {
        match serde_json::from_str(raw.get()).map_err(garbled)? {
            Item::Reasoning { summary } => {
                self.reasoning.extend(summary.into_iter().map(|part| part.text));
                self.verbatim.push(without_id(raw)?);
            }
            Item::FunctionCall { call_id, name, arguments } => {
                self.answer.calls.push(ModelToolCall { provider_call_id: call_id, tool_name: name, arguments });
            }
            Item::Other => {}
        }
        Ok(())
    }

    fn end(&mut self, usage: Option<Used>, incomplete: Option<Incomplete>, is_cut: bool) -> Result<(), Error> {
        if incomplete.and_then(|details| details.reason).as_deref() == Some("content_filter") {
            return Err(Error::Refused("the content filter of the provider withheld the response".into()));
        }
        let cached = |used: &Used| used.input_tokens_details.as_ref().map_or(0, |details| details.cached_tokens);
        let read = |used: Used| Read { input: used.input_tokens, cached: cached(&used), output: used.output_tokens };
        self.answer.read = usage.map(read).unwrap_or_default();
        self.answer.is_cut = is_cut;
        self.ended = true;
        Ok(())
    }
}

impl Reader for Responses {
    fn read(&mut self, event: &Event) -> Result<Option<String>, Error> {
        let said: Said<'_> = serde_json::from_str(&event.data).map_err(garbled)?;
        match said.r#type.as_str() {
            "response.output_text.delta" => {
                let text = said.delta.unwrap_or_default();
                self.answer.text.push_str(&text);
                return Ok(Some(text));
            }
            "response.refusal.delta" => self.answer.text.push_str(&said.delta.unwrap_or_default()),
            "response.output_item.done" => {
                if let Some(raw) = said.item {
                    self.take(raw)?;
                }
            }
            ending @ ("response.completed" | "response.incomplete") => {
                let response = said.response.ok_or_else(cut_off)?;
                self.answer.message_id = response.id;
                self.end(response.usage, response.incomplete_details, ending == "response.incomplete")?;
            }
            "response.failed" => {
                let failure = said.response.and_then(|response| response.error);
                return Err(failed(&failure.map(|failure| failure.message).unwrap_or_default()));
            }
            "error" => return Err(failed(&said.message.or(said.code).unwrap_or_default())),
            _ => {}
        }
        Ok(None)
    }

    fn read_whole(&mut self, json: &str) -> Result<(), Error> {
        let whole: Whole<'_> = serde_json::from_str(json).map_err(garbled)?;
        if let Some(failure) = whole.error {
            return Err(failed(&failure.message));
        }
        self.answer.message_id = whole.id;
        for raw in whole.output {
            match serde_json::from_str(raw.get()).map_err(garbled)? {
                Spoken::Message { content } => {
                    let words = content.into_iter().filter_map(|words| words.text.or(words.refusal));
                    self.answer.text.extend(words);
                }
                Spoken::Other => self.take(raw)?,
            }
        }
        match whole.status.as_deref() {
            Some(status @ ("completed" | "incomplete")) => {
                self.end(whole.usage, whole.incomplete_details, status == "incomplete")
            }
            _ => Err(cut_off()),
        }
    }

    fn answer(mut self: Box<Self>) -> Result<Answer, Error> {
        if !self.ended {
            return Err(cut_off());
        }
        if !self.verbatim.is_empty() {
            let verbatim = Some(format!("[{}]", self.verbatim.join(",")));
            self.answer.reasoning = Some(Reasoning { text: self.reasoning.join("\n\n"), verbatim });
        }
        Ok(self.answer)
    }
}

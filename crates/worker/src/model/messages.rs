//! Anthropic's messages.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{Answer, Error, ModelToolCall, Reader, Reasoning, cut_off, garbled, sse::Event};

#[derive(Debug, Default)]
pub(super) struct Messages {
    answer: Answer,
    blocks: Vec<Block>,
    stop_reason: Option<String>,
    ended: bool,
}

/// A content block as it came. A thinking block must be sent back unchanged.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text {
        #[serde(default)]
        text: String,
    },
    Thinking {
        #[serde(default)]
        thinking: String,
        #[serde(default)]
        signature: String,
    },
    RedactedThinking {
        data: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[serde(skip)]
        arguments: String,
    },
    #[serde(other, skip_serializing)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Said {
    MessageStart {
        message: Started,
    },
    ContentBlockStart {
        content_block: Block,
    },
    ContentBlockDelta {
        index: usize,
        delta: Delta,
    },
    MessageDelta {
        delta: Ended,
        usage: Option<Used>,
    },
    MessageStop,
    Error {
        error: Failure,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Started {
    id: Option<String>,
    #[serde(default)]
    usage: Used,
    diagnostics: Option<Diagnostics>,
}

#[derive(Deserialize)]
struct Diagnostics {
    cache_miss_reason: Option<Value>,
}

/// An answer that was not streamed.
#[derive(Deserialize)]
struct Whole<'a> {
    id: Option<String>,
    #[serde(borrow, default)]
    content: Vec<&'a RawValue>,
    stop_reason: Option<String>,
    usage: Option<Used>,
    diagnostics: Option<Diagnostics>,
    error: Option<Failure>,
}

/// The arguments of a call, in an answer that was not streamed.
#[derive(Deserialize)]
struct Called<'a> {
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Used {
    input_tokens: Option<u32>,
    cache_read_input_tokens: Option<u32>,
    cache_creation_input_tokens: Option<u32>,
    output_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Ended {
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
struct Failure {
    r#type: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Delta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    #[serde(other)]
    Other,
}

/// Checks that the reason can be stored: it is kept with the step, and must not make writing the step fail.
fn is_short(reason: &Value) -> bool {
    let text = reason.to_string();
    text.len() <= 1_000 && !text.contains("\\u0000")
}

impl Messages {
    fn count(&mut self, used: &Used) {
        let cached = used.cache_read_input_tokens.unwrap_or_default();
        if let Some(input) = used.input_tokens {
            let created = used.cache_creation_input_tokens.unwrap_or_default();
            self.answer.read.input = input.saturating_add(cached).saturating_add(created);
            self.answer.read.cached = cached;
        }
        self.answer.read.output = used.output_tokens.unwrap_or(self.answer.read.output);
    }

    fn start(&mut self, message: Started) {
        self.count(&message.usage);
        self.answer.message_id = message.id;
        self.answer.cache_miss = message.diagnostics.and_then(|said| said.cache_miss_reason).filter(is_short);
    }
}

fn failed(error: &Failure) -> Error {
    Error::unavailable(format!("the model failed while it wrote its response: {}: {}", error.r#type, error.message))
}

impl Reader for Messages {
    fn read(&mut self, event: &Event) -> Result<Option<String>, Error> {
        match serde_json::from_str(&event.data).map_err(garbled)? {
            Said::MessageStart { message } => self.start(message),
            Said::ContentBlockStart { content_block } => self.blocks.push(content_block),
            Said::ContentBlockDelta { index, delta } => match (self.blocks.get_mut(index), delta) {
                (Some(Block::Text { text }), Delta::Text { text: more }) => {
                    text.push_str(&more);
                    return Ok(Some(more));
                }
                (Some(Block::Thinking { thinking, .. }), Delta::Thinking { thinking: more }) => {
                    thinking.push_str(&more);
                }
                (Some(Block::Thinking { signature, .. }), Delta::Signature { signature: more }) => {
                    signature.push_str(&more);
                }
                (Some(Block::ToolUse { arguments, .. }), Delta::InputJson { partial_json }) => {
                    arguments.push_str(&partial_json);
                }
                (None, _) => {
                    return Err(Error::Garbled(format!("it contains a part of block {index}, which has not started")));
                }
                _ => {}
            },
            Said::MessageDelta { delta, usage } => {
                self.stop_reason = delta.stop_reason.or(self.stop_reason.take());
                usage.iter().for_each(|used| self.count(used));
            }
            Said::MessageStop => self.ended = true,
            Said::Error { error } => return Err(failed(&error)),
            Said::Other => {}
        }
        Ok(None)
    }

    fn read_whole(&mut self, json: &str) -> Result<(), Error> {
        let whole: Whole<'_> = serde_json::from_str(json).map_err(garbled)?;
        if let Some(error) = whole.error {
            return Err(failed(&error));
        }
        for raw in whole.content {
            let mut block: Block = serde_json::from_str(raw.get()).map_err(garbled)?;
            if let Block::ToolUse { arguments, .. } = &mut block {
                let called: Called<'_> = serde_json::from_str(raw.get()).map_err(garbled)?;
                *arguments = called.input.map(|input| input.get().to_owned()).unwrap_or_default();
            }
            self.blocks.push(block);
        }
        self.start(Started { id: whole.id, usage: whole.usage.unwrap_or_default(), diagnostics: whole.diagnostics });
        self.ended = whole.stop_reason.is_some();
        self.stop_reason = whole.stop_reason;
        Ok(())
    }

    fn answer(mut self: Box<Self>) -> Result<Answer, Error> {
        if !self.ended {
            return Err(cut_off());
        }
        if self.stop_reason.as_deref() == Some("refusal") {
            return Err(Error::Refused("the model refused to respond to this request".into()));
        }
        self.answer.is_cut = self.stop_reason.as_deref() == Some("max_tokens");
        let is_thought = |block: &&Block| matches!(block, Block::Thinking { .. } | Block::RedactedThinking { .. });
        let thought: Vec<&Block> = self.blocks.iter().filter(is_thought).collect();
        if !thought.is_empty() {
            let verbatim = serde_json::to_string(&thought).map_err(garbled)?;
            let text = |block: &&Block| match block {
                Block::Thinking { thinking, .. } => thinking.clone(),
                _ => String::new(),
            };
            let text = thought.iter().map(text).collect::<Vec<_>>().join("\n\n");
            self.answer.reasoning = Some(Reasoning { text, verbatim: Some(verbatim) });
        }
        for block in self.blocks {
            match block {
                Block::Text { text } => self.answer.text.push_str(&text),
                Block::ToolUse { id, name, arguments } => {
                    let arguments = if arguments.trim().is_empty() { "{}".to_owned() } else { arguments };
                    self.answer.calls.push(ModelToolCall { provider_call_id: id, tool_name: name, arguments });
                }
                _ => {}
            }
        }
        Ok(self.answer)
    }
}

//! OpenAI's chat completions, and compatible servers: vLLM, Ollama, DeepSeek, Kimi, Gemini's compatible endpoint.

use serde::Deserialize;

use super::{Answer, Error, ModelToolCall, Reader, Reasoning, cut_off, garbled, sse::Event};

#[derive(Debug, Default)]
pub(super) struct Chat {
    answer: Answer,
    reasoning: String,
    /// The call to which each piece belongs: the stream's index and the position of the call.
    open: Vec<(u32, usize)>,
    ended: bool,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Used>,
    error: Option<Failure>,
}

/// An answer that was not streamed.
#[derive(Deserialize)]
struct Whole {
    #[serde(default)]
    choices: Vec<Said>,
    usage: Option<Used>,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Said {
    message: Delta,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    #[serde(alias = "reasoning")]
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<Piece>>,
}

#[derive(Deserialize)]
struct Piece {
    #[serde(default)]
    index: u32,
    id: Option<String>,
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct Used {
    #[serde(default)]
    prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: u32,
    prompt_tokens_details: Option<Details>,
    /// DeepSeek's name for it.
    prompt_cache_hit_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

impl Chat {
    fn take(&mut self, chunk: Chunk) -> Result<Option<String>, Error> {
        if let Some(failure) = chunk.error {
            return Err(Error::unavailable(format!(
                "the model failed while it wrote its response: {}",
                failure.message
            )));
        }
        if let Some(used) = chunk.usage {
            let cached = used.prompt_tokens_details.and_then(|details| details.cached_tokens);
            self.answer.read.input = used.prompt_tokens;
            self.answer.read.cached = cached.or(used.prompt_cache_hit_tokens).unwrap_or_default();
            self.answer.read.output = used.completion_tokens;
        }
        let Some(choice) = chunk.choices.into_iter().next() else { return Ok(None) };
        self.reasoning.push_str(&choice.delta.reasoning_content.unwrap_or_default());
        for piece in choice.delta.tool_calls.unwrap_or_default() {
            self.add(piece);
        }
        match choice.finish_reason.as_deref() {
            None | Some("") => {}
            Some("content_filter") => {
                return Err(Error::Refused("the content filter of the provider withheld the response".into()));
            }
            Some(reason) => {
                self.ended = true;
                self.answer.is_cut = reason == "length";
            }
        }
        let text = choice.delta.content.filter(|text| !text.is_empty());
        self.answer.text.push_str(text.as_deref().unwrap_or_default());
        Ok(text)
    }

    fn add(&mut self, piece: Piece) {
        let id = piece.id.filter(|id| !id.is_empty());
        let known = self.open.iter().rev().find(|(index, _)| *index == piece.index).map(|(_, place)| *place);
        // Some providers send every call under one index: another id means another call.
        let same = |place: &usize| id.as_ref().is_none_or(|id| self.answer.calls[*place].provider_call_id == *id);
        let place = known.filter(same).unwrap_or_else(|| {
            self.open.push((piece.index, self.answer.calls.len()));
            self.answer
                .calls
                .push(ModelToolCall { provider_call_id: id.clone().unwrap_or_default(), ..ModelToolCall::default() });
            self.answer.calls.len() - 1
        });
        let call = &mut self.answer.calls[place];
        if let Some(function) = piece.function {
            call.tool_name.push_str(&function.name.unwrap_or_default());
            call.arguments.push_str(&function.arguments.unwrap_or_default());
        }
    }
}

impl Reader for Chat {
    fn read(&mut self, event: &Event) -> Result<Option<String>, Error> {
        if event.data == "[DONE]" {
            self.ended = true;
            return Ok(None);
        }
        self.take(serde_json::from_str(&event.data).map_err(garbled)?)
    }

    fn read_whole(&mut self, json: &str) -> Result<(), Error> {
        let Whole { choices, usage, error } = serde_json::from_str(json).map_err(garbled)?;
        let choice = |Said { message: mut delta, finish_reason }: Said| {
            for (piece, index) in delta.tool_calls.iter_mut().flatten().zip(0..) {
                piece.index = index;
            }
            Choice { delta, finish_reason }
        };
        self.take(Chunk { choices: choices.into_iter().map(choice).collect(), usage, error })?;
        Ok(())
    }

    fn answer(mut self: Box<Self>) -> Result<Answer, Error> {
        if !self.ended {
            return Err(cut_off());
        }
        if !self.reasoning.is_empty() {
            self.answer.reasoning = Some(Reasoning { text: self.reasoning, verbatim: None });
        }
        Ok(self.answer)
    }
}

//! A model as a summariser: it puts earlier messages into fewer words (CX-10).

use std::error;

use futures::future::BoxFuture;
use serde_json::json;
use waybill_context::{unit::Message, wire::Adapter};
use waybill_core::{id::ProjectId, resource::LlmConfig, tokens};

use crate::{
    compact::{Summarised, Summariser},
    model::{self, Answered, ModelRequest, Models},
};

const INSTRUCTION: &str = "You keep the memory of an agent. Put what follows into fewer words for the agent that continues the work: \
what was asked, what was decided and why, what was found (names, numbers and paths exactly), what was tried and failed, and what is \
still to be done. Leave nothing out that later work may need. Write the summary and nothing else.";

/// Summarises with the agent's own models, unless its profile names another profile for it.
pub(crate) struct Summarise<'a> {
    pub(crate) models: &'a Models,
    pub(crate) llms: &'a [LlmConfig],
    /// The prompt of the profile that was named. `None` means the standard instruction.
    pub(crate) prompt: Option<&'a str>,
    pub(crate) project_id: ProjectId,
}

impl Summariser for Summarise<'_> {
    fn summarise<'a>(
        &'a self,
        previous: Option<&'a str>,
        messages: &'a [Message<'a>],
    ) -> BoxFuture<'a, Result<Summarised, Box<dyn error::Error + Send + Sync>>> {
        let transcript = transcript(previous, messages);
        Box::pin(async move {
            let mut trouble = model::Error::Refused("the profile of the summariser has no model".into());
            for llm in self.llms {
                match self.ask(llm, &transcript).await {
                    Ok(summarised) => return Ok(summarised),
                    Err(error) => trouble = error,
                }
            }
            Err(trouble.into())
        })
    }
}

impl Summarise<'_> {
    async fn ask(&self, llm: &LlmConfig, transcript: &str) -> Result<Summarised, model::Error> {
        let (adapter, params) = self.models.config(llm)?;
        let mut request = serde_json::to_value(params).unwrap_or_default();
        let user = json!([{ "role": "user", "content": transcript }]);
        let prompt = self.prompt.unwrap_or(INSTRUCTION);
        let both = json!([{ "role": "system", "content": prompt }, user[0]]);
        match adapter {
            Adapter::OpenaiChat => request["messages"] = both,
            Adapter::OpenaiResponses => (request["input"], request["store"]) = (both, false.into()),
            Adapter::AnthropicMessages => (request["system"], request["messages"]) = (prompt.into(), user),
        }
        let bytes = request.to_string().into_bytes();
        let key = format!("waybill-summary-{}", blake3::hash(&bytes).to_hex());
        let asking = ModelRequest {
            project_id: self.project_id,
            llm,
            request: &bytes,
            key: &key,
            n_tokens: count(transcript),
            n_before: 0,
            previous: None,
        };
        let Answered { answer, usage } = self.models.ask(&asking, &|_, _| {}).await?;
        Ok(Summarised { text: answer.text, usage: Some(usage) })
    }
}

fn count(text: &str) -> u32 {
    u32::try_from(tokens::count(text).get()).unwrap_or_default()
}

/// Renders the messages as plain text, so that no provider's rule about roles applies.
fn transcript(previous: Option<&str>, messages: &[Message<'_>]) -> String {
    let mut text =
        previous.map(|previous| format!("[summary of what came before]\n{previous}\n\n")).unwrap_or_default();
    for message in messages {
        text.push_str(&format!("[{}]\n{}\n", message.role.as_str(), message.content));
        for call in message.tool_calls.iter() {
            text.push_str(&format!("calls {}({})\n", call.tool_name, call.arguments));
        }
        text.push('\n');
    }
    text
}

//! Compacts what the model would see, composes the request, and asks the model.

use std::{collections::HashSet, time::Duration};

use serde_json::json;
use waybill_context::{
    call::{Call, RenderConfig},
    wire::Adapter,
};
use waybill_core::{bus::Chunk, card::Role, id::StepId, resource::LlmConfig, turn::Limit};

use super::{Halt, Turn};
use crate::{
    compact::compact,
    model::{self, Answered, ModelRequest},
    summarise::Summarise,
};

/// How long to wait after the first failed attempt; doubled after each further one.
const BACKOFF: Duration = Duration::from_secs(2);

/// What the model said, before it is written.
pub(super) struct ModelStep {
    pub(super) step_id: StepId,
    pub(super) adapter: Adapter,
    pub(super) answered: Answered,
    pub(super) receipt: String,
}

impl Turn<'_> {
    /// Compacts if it is time to.
    pub(super) async fn compact(&mut self) -> Result<(), Halt> {
        let (Some(compaction), Some(gathered)) = (self.memory.compaction, self.gathered.as_mut()) else {
            return Ok(());
        };
        let (llms, prompt) = match &self.summariser {
            Some((llms, prompt)) => (llms, Some(prompt.as_str())),
            None => (&self.llms, None),
        };
        let (models, project_id) = (self.worker.models(), self.claimed.fence.project_id());
        let summariser = Summarise { models, llms, prompt, project_id };
        let (kernel, policy) = (self.worker.kernel(), &self.setting.policy);
        let done = compact(kernel, self.claimed, gathered, policy, compaction, &summariser).await?;
        self.set_budget(done.budget);
        if done.n_summaries > 0 {
            // A caller may have sent the turn a message meanwhile: then the positions of its cards have changed.
            self.gather().await?;
        }
        Ok(())
    }

    /// Asks the model, then its fallbacks, each with a request that is composed for it.
    pub(super) async fn compose_and_ask(&mut self) -> Result<ModelStep, Halt> {
        let step_id = StepId::new();
        let asked_again = std::mem::take(&mut self.asked_again);
        let mut trouble = model::Error::Refused("the profile has no model: set `llm_config`".into());
        for llm in &self.llms {
            let config = match self.config(llm) {
                Ok(config) => config,
                Err(error) => {
                    trouble = error;
                    continue;
                }
            };
            let call = self.gathered().materials.call(&config)?;
            self.afford(&call)?;
            match self.ask(llm, &call, step_id).await {
                Ok(mut answered) => {
                    answered.usage.asked_again = asked_again;
                    let receipt = serde_json::to_string(&call.receipt).unwrap_or_default();
                    return Ok(ModelStep { step_id, adapter: config.adapter, answered, receipt });
                }
                Err(error) => {
                    tracing::warn!(turn = %self.fence().agent_turn_id(), provider = %llm.provider, model = llm.model, %error, "a model call failed; the next fallback model is tried, if there is one");
                    trouble = error;
                }
            }
        }
        Err(self.without_answer(trouble))
    }

    /// Returns how the request to a model is composed and written.
    pub(super) fn config(&self, llm: &LlmConfig) -> Result<RenderConfig, model::Error> {
        let (adapter, params) = self.worker.models().config(llm)?;
        Ok(RenderConfig { adapter, policy: self.setting.policy, params })
    }

    /// Checks that the request does not use more tokens than the turn has left.
    pub(super) fn afford(&self, call: &Call<'_>) -> Result<(), Halt> {
        let n_tokens = i64::from(call.receipt.n_tokens.get());
        if self.budget.and_then(|budget| budget.tokens).is_some_and(|left| left < n_tokens) {
            return Err(Halt::Over(Limit::Tokens));
        }
        Ok(())
    }

    /// Sends the request to one model.
    async fn ask(&self, llm: &LlmConfig, call: &Call<'_>, step_id: StepId) -> Result<Answered, model::Error> {
        let materials = &self.gathered().materials;
        // This includes steps that a summary covers.
        let said = materials.steps.iter().filter_map(|placed| placed.reading.live());
        let said = said.filter(|card| card.metadata.role == Role::Assistant);
        let own: HashSet<_> = said.filter_map(|card| card.metadata.step_id).collect();
        let key =
            format!("waybill-{}-{}-{}", self.fence().agent_turn_id(), materials.output.upto, call.receipt.request_hash);
        let asking = ModelRequest {
            project_id: self.fence().project_id(),
            llm,
            request: &call.request,
            key: &key,
            n_tokens: u32::try_from(call.receipt.n_tokens.get()).unwrap_or_default(),
            n_before: own.len(),
            previous: self.previous_message.as_deref(),
        };
        self.worker.models().ask(&asking, &|attempt, text| self.tell(step_id, attempt, text)).await
    }

    /// Returns what follows if no model answered. `error` is the last model's.
    fn without_answer(&self, error: model::Error) -> Halt {
        match error {
            error if error.may_pass() => {
                let doubled = BACKOFF * 2_u32.pow(self.n_failed.clamp(0, 8).unsigned_abs());
                Halt::Retry { backoff: error.retry_after().unwrap_or(doubled), error }
            }
            error @ model::Error::TooLong(_) => Halt::GiveUp { code: "context_too_long", why: error.to_string() },
            error => Halt::GiveUp { code: "model_refused", why: error.to_string() },
        }
    }

    /// Sends a piece of the model's text to the clients that watch this turn (WK-5).
    fn tell(&self, step_id: StepId, attempt: u16, text: &str) {
        let agent_turn_id = self.fence().agent_turn_id();
        let text = self.worker.models().blot(text.to_owned());
        let content = json!({ "agent_turn_id": agent_turn_id, "step_id": step_id, "attempt": attempt, "text": text });
        self.kernel().bus().send(Chunk {
            project_id: self.fence().project_id(),
            channel: self.claimed.channel.clone(),
            agent_id: self.fence().agent_id(),
            content: content.to_string().into_bytes(),
        });
    }
}

//! Writes what the model answered, in one transaction: a step, or the end of the turn.

use waybill_context::wire;
use waybill_core::{
    card::{CardType, Content, Draft, Invalid, NewCard, Role},
    id::{SessionId, StepId},
    json,
    resource::InternalTool,
    turn::{End, Usage},
};
use waybill_kernel::{
    blackboard::{self, Patch},
    turn::{Call, Step, Stepped},
};

use super::{
    Error, Next, Outcome, Turn,
    end::{delivering, failure},
    think::ModelStep,
};
use crate::{model::Answered, write};

/// How many reminders to end with a required tool a model gets in one turn. After that, the turn fails.
const MOST_REMINDERS: usize = 3;

/// What is recorded of a step in which a model was asked.
pub(super) struct StepRecord {
    pub(super) step_id: StepId,
    pub(super) receipt: String,
    pub(super) usage: Usage,
}

impl Turn<'_> {
    /// Writes what came back in one transaction, which continues, suspends or finishes the turn.
    pub(super) async fn write(&mut self, step: ModelStep) -> Result<Next, Error> {
        let ModelStep { step_id, adapter, answered, receipt } = step;
        let Answered { answer, usage } = answered;
        self.previous_message = answer.message_id;
        let mut cards = Vec::new();
        if let Some(reasoning) = answer.reasoning {
            let draft = wire::reasoning_draft(adapter, reasoning.text, reasoning.verbatim);
            cards.push(self.seal(step_id, draft)?);
        }
        let speaks = !answer.text.trim().is_empty();
        let text = || Content::Text(json::text(&answer.text).into_owned());
        let record = StepRecord { step_id, receipt, usage };
        if answer.calls.is_empty() && speaks && self.must_end_with().is_none() {
            let deliverable = marked(delivering(text()), answer.is_cut);
            return self.finish(End::Success, cards, deliverable, Some(record)).await;
        }
        if speaks {
            let draft = Draft::new(CardType::thought(), Role::Assistant, text());
            cards.push(self.seal(step_id, marked(draft, answer.is_cut))?);
        }
        if answer.calls.is_empty() {
            return self.remind(cards, record).await;
        }
        self.act(cards, answer.calls, record).await
    }

    /// Returns the tools with one of which the turn must end, if any.
    fn must_end_with(&self) -> Option<String> {
        self.setting.toolbox.must_end_with(&self.gathered().result_form)
    }

    /// Handles an answer that does not end as required: writes a reminder, or ends the turn after too many.
    async fn remind(&mut self, mut cards: Vec<NewCard>, record: StepRecord) -> Result<Next, Error> {
        let reminder = CardType::reminder();
        let steps = self.gathered().materials.steps.iter().filter_map(|placed| placed.reading.live());
        let n = steps.filter(|card| card.metadata.card_type == reminder).count();
        if n >= MOST_REMINDERS {
            let why = format!("the model was reminded {n} times how to end the turn, and did not do it");
            let deliverable = failure(End::Failed, "did_not_end", &why);
            return self.finish(End::Failed, cards, deliverable, Some(record)).await;
        }
        let text = match self.must_end_with() {
            Some(tools) => format!("End your work by calling one of these tools: {tools}."),
            None => "Your answer was empty. Continue, or give your result.".to_owned(),
        };
        cards.push(self.remark(record.step_id, &text)?);
        self.write_step(cards, Vec::new(), record, None).await
    }

    /// Writes a step after which the turn continues, or waits for calls.
    pub(super) async fn write_step(
        &mut self,
        cards: Vec<NewCard>,
        calls: Vec<Call>,
        record: StepRecord,
        todo: Option<NewCard>,
    ) -> Result<Next, Error> {
        let StepRecord { step_id, receipt, usage } = record;
        self.n_steps += 1;
        self.n_tokens += i64::from(usage.input_tokens) + i64::from(usage.output_tokens);
        let suspend = !calls.is_empty();
        let step = Step { step_id, cards, calls, suspend, receipt: Some(receipt), usage: Some(usage) };
        let (step, stepped) = match (todo, self.claimed.session_id) {
            (Some(todo), Some(session_id)) => self.write_with_todo(step, todo, session_id).await?,
            _ => {
                let stepped = write::step(self.kernel(), self.fence(), &step).await?;
                (step, stepped)
            }
        };
        if let Some(gathered) = &mut self.gathered {
            gathered.wrote(step.cards);
        }
        self.n_failed = 0;
        self.set_budget(stepped.budget);
        if stepped.suspended {
            return Ok(Next::Done(Outcome::Suspended));
        }
        if let Some(reason) = stepped.stop_reason {
            self.stop_reason = Some(reason);
            self.stop_asked = true;
        }
        Ok(Next::Step)
    }

    /// Writes a step together with the changed todo list. If another turn changed the list first, the step is written without the change.
    /// Returns the step as it was written.
    async fn write_with_todo(
        &self,
        step: Step,
        todo: NewCard,
        session_id: SessionId,
    ) -> Result<(Step, Stepped), Error> {
        let (kernel, fence) = (self.kernel(), self.fence());
        let patch = Patch::default().todo(todo, self.gathered().todo_card_id());
        let refused = match write::step_and_patch(kernel, fence, &step, session_id, &patch).await {
            Ok(stepped) => return Ok((step, stepped)),
            Err(write::Error::Patch(
                conflict @ (blackboard::Error::Conflict { .. } | blackboard::Error::NotFound(_)),
            )) => conflict.to_string(),
            Err(error) => return Err(error.into()),
        };
        let step = self.without_todo(step, &refused)?;
        let stepped = write::step(kernel, fence, &step).await?;
        Ok((step, stepped))
    }

    /// Turns the results of todo changes into failures, because another turn changed the list first.
    fn without_todo(&self, step: Step, why: &str) -> Result<Step, Invalid> {
        let is_todo = |card: &NewCard| match card.content() {
            Content::ToolCall(call) => call.tool_name == InternalTool::UpdateTodo.as_str(),
            _ => false,
        };
        let changed: Vec<_> = step.cards.iter().filter(|card| is_todo(card)).map(NewCard::tool_call_id).collect();
        let mut cards = Vec::new();
        for card in step.cards {
            cards.push(match (card.content(), card.tool_call_id()) {
                (Content::ToolResult(result), Some(call)) if result.is_success() && changed.contains(&Some(call)) => {
                    self.seal(step.step_id, Draft::tool_result(call, "failed", why.into()))?
                }
                _ => card,
            });
        }
        Ok(Step { cards, ..step })
    }
}

/// Notes on the card that the model's answer was cut off at its token limit.
fn marked(mut draft: Draft, is_cut: bool) -> Draft {
    if is_cut {
        draft.metadata.extra.insert("is_cut".to_owned(), true.into());
    }
    draft
}

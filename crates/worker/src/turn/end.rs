//! Ends a turn, or gives it back. Every turn that ends has a deliverable.

use serde_json::{Value, json};
use waybill_core::{
    card::{CallContent, Card, CardType, Content, Draft, NewCard, ResultContent, Role},
    id::StepId,
    json,
    turn::{End, Limit},
};
use waybill_kernel::turn::{self, Claimed, Ending, Loss, ending_card};

use super::{Error, Halt, Next, Outcome, Turn, answer::StepRecord, load::resources};
use crate::{serve::Worker, write};

/// What the model reads when it ended its work while a new message for it arrived.
const UNSEEN: &str =
    "New information arrived while you wrote this; it is shown above. Take it into account, then finish again.";

impl Turn<'_> {
    /// Returns the result that ends the turn, if one of its last calls has it (WK-3).
    pub(super) fn ending_result(&self) -> Option<Content> {
        let steps = &self.gathered().materials.steps;
        let cards: Vec<_> = steps.iter().filter_map(|placed| placed.reading.live()).collect();
        let is = |card: &Card, card_type: CardType| card.metadata.card_type == card_type;
        let behind = cards.iter().rposition(|card| is(card, CardType::tool_call()))?;
        let first = cards[..behind].iter().rposition(|card| !is(card, CardType::tool_call())).map_or(0, |at| at + 1);
        // A new message came since: the model answers that first.
        if cards[first..].iter().any(|card| is(card, CardType::instruction())) {
            return None;
        }
        let calls: Vec<_> = cards[first..=behind].iter().rev().collect();
        calls.into_iter().rev().find_map(|call| {
            let Content::ToolCall(CallContent { tool_name, .. }) = &call.content else { return None };
            let answers = |card: &&&Card| {
                card.tool_call_id == call.tool_call_id && card.metadata.card_type == CardType::tool_result()
            };
            let Content::ToolResult(result) = &cards.iter().find(answers)?.content else { return None };
            let form = &self.gathered().result_form;
            self.setting.toolbox.ends_with(tool_name, result, form).then(|| delivered(result))
        })
    }

    /// Ends the turn with the result of a call.
    pub(super) async fn deliver(&mut self, result: Content) -> Result<Next, Error> {
        self.finish(End::Success, Vec::new(), delivering(result), None).await
    }

    /// Ends the turn, together with everything that the last step wrote. If a message for the turn arrived meanwhile, the answer is written
    /// as a step instead, and the turn continues.
    pub(super) async fn finish(
        &mut self,
        status: End,
        mut cards: Vec<NewCard>,
        deliverable: Draft,
        record: Option<StepRecord>,
    ) -> Result<Next, Error> {
        let (step_id, receipt, usage) = match &record {
            Some(record) => (Some(record.step_id), Some(record.receipt.clone()), Some(record.usage.clone())),
            None => (None, None, None),
        };
        cards.push(self.seal(step_id.unwrap_or_else(StepId::new), deliverable)?);
        let seen = (status == End::Success).then_some(self.seen);
        let ending = Ending { fence: *self.fence(), status, step_id, receipt, usage, seen, cards: cards.clone() };
        match self.worker.ends().write(self.claimed, ending).await {
            Ok(()) => return Ok(Next::Done(Outcome::Finished(status))),
            Err(turn::Error::Unseen(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let Some(record) = record else { return Ok(Next::Step) };
        let said = cards.pop().map(|card| card.content().clone());
        let submits = cards.iter().any(|card| card.metadata().card_type == CardType::tool_result());
        if let Some(content @ Content::Text(_)) = said.filter(|_| !submits) {
            cards.push(self.seal(record.step_id, Draft::new(CardType::thought(), Role::Assistant, content))?);
        }
        for card in &mut cards {
            if let (Content::ToolResult(_), Some(call)) = (card.content(), card.tool_call_id()) {
                *card = self.seal(record.step_id, Draft::tool_result(call, "failed", UNSEEN.into()))?;
            }
        }
        cards.push(self.remark(record.step_id, UNSEEN)?);
        self.write_step(cards, Vec::new(), record, None).await
    }
}

/// Ends a turn, gives it back or leaves it, according to why this worker takes no further step of it.
pub(super) async fn halt(worker: &Worker, claimed: &Claimed, halt: Halt) -> Result<Outcome, Error> {
    match halt {
        Halt::Stopped { reason } => cancel(worker, claimed, reason).await,
        Halt::Leaving => Ok(Outcome::Left),
        Halt::Over(limit) => {
            let status = if limit == Limit::Seconds { End::Timeout } else { End::Failed };
            let why = format!("the turn has used up its limit of {}", limit.as_str());
            give_up(worker, claimed, status, "limit_reached", &why).await
        }
        Halt::GiveUp { code, why } => give_up(worker, claimed, End::Failed, code, &why).await,
        // To be retried later by any worker. After too many attempts it fails.
        Halt::Retry { error, backoff } => {
            let loss = Loss::Attempt { error: error.to_string(), backoff };
            write::give_back(worker.kernel(), &claimed.fence, &loss, worker.attempts()).await?;
            Ok(Outcome::Failed)
        }
        Halt::Failed(error) => Err(error),
    }
}

/// Ends a turn that a caller stopped.
async fn cancel(worker: &Worker, claimed: &Claimed, reason: Option<String>) -> Result<Outcome, Error> {
    let reason = match reason {
        Some(reason) => reason,
        // The order to stop came during this run, without its reason.
        None => resources(worker, claimed).await?.stop_reason.unwrap_or_else(|| "the turn was stopped".to_owned()),
    };
    end_with(worker, claimed, End::Canceled, ending_card(End::Canceled, &reason)?).await
}

/// Ends a turn that cannot succeed.
async fn give_up(worker: &Worker, claimed: &Claimed, status: End, code: &str, why: &str) -> Result<Outcome, Error> {
    end_with(worker, claimed, status, failure(status, code, why).seal()?).await
}

/// Ends a turn without a step.
async fn end_with(worker: &Worker, claimed: &Claimed, status: End, deliverable: NewCard) -> Result<Outcome, Error> {
    let cards = vec![deliverable];
    let ending = Ending { fence: claimed.fence, status, step_id: None, receipt: None, usage: None, seen: None, cards };
    worker.ends().write(claimed, ending).await?;
    Ok(Outcome::Finished(status))
}

/// Makes a deliverable.
pub(super) fn delivering(content: Content) -> Draft {
    Draft::new(CardType::deliverable(), Role::Assistant, content)
}

/// Returns a tool's result as the content of a deliverable.
fn delivered(result: &ResultContent) -> Content {
    match &result.result {
        Value::String(text) => Content::Text(text.clone()),
        other => Content::Json(other.clone()),
    }
}

/// Makes the deliverable of a turn that did not succeed.
pub(super) fn failure(status: End, code: &str, why: &str) -> Draft {
    let message = json::text(why);
    delivering(Content::Json(json!({ "status": status.as_str(), "reason": code, "message": message })))
}

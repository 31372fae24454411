//! Writing the steps of a turn.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Json};
use serde::Deserialize;
use utoipa::ToSchema;
use waybill_core::{
    card::NewCard,
    id::{CardId, StepId, Target, ToolCallId, TurnId},
    key::Scope,
    turn::{Fence, Usage},
};
use waybill_kernel::{
    external,
    turn::{self, Call, Step, Stepped},
};
use waybill_worker::model::Models;

use super::{TurnFence, card::CardDraft};
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Path, not_too_many},
    routes::turn::OneTurn,
};

/// A call that a step makes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallOut {
    /// Id of the call: a UUIDv7 that the worker generated within the last day.
    tool_call_id: ToolCallId,
    /// Id of the `tool.call` card of the call. The card must be one of `cards`.
    tool_call_card_id: CardId,
    /// Target (queue) from which the call is claimed, to be answered: the `target` of the tool. `pmo` is the orchestrator.
    target: Target,
    /// Seconds until the call times out.
    #[schema(minimum = 1, maximum = 86400)]
    timeout_seconds: u32,
    /// Whether the call must not be repeated. If the worker that claimed it is lost, the call is answered with `outcome_unknown`, and no other worker
    /// gets it. If omitted, false.
    #[serde(default)]
    once: bool,
}

/// One step of a turn. Its id is its idempotency key: sending the step again changes nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewStep {
    /// Fence of the turn, as the claim returned it.
    fence: TurnFence,
    /// Id of the step: a UUIDv7 that the worker generated within the last day.
    step_id: StepId,
    /// Cards that the step writes.
    #[serde(default)]
    #[schema(max_items = 1000)]
    cards: Vec<CardDraft>,
    /// Calls that the step makes.
    #[serde(default)]
    #[schema(max_items = 1000)]
    calls: Vec<CallOut>,
    /// Whether the turn then waits for the answers to its calls, including calls of earlier steps. While it waits, the worker does not hold it. If
    /// omitted, false.
    #[serde(default)]
    suspend: bool,
    /// Whether the worker has seen external content that is not in a card of the turn's boxes, such as a website. What the turn writes is then
    /// labelled as external. If omitted, false.
    #[serde(default)]
    saw_external: bool,
    /// Tokens and cost of the step's model call. If omitted, nothing is counted.
    #[serde(default)]
    usage: Option<UsageSaid>,
}

/// Tokens, cost and duration of a model call. Waybill subtracts the tokens and the cost from what the turn may still spend.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UsageSaid {
    /// Name of the provider, at most 200 characters. If the operator's providers file has this provider, use its name there, so that Waybill finds the price.
    #[schema(max_length = 200)]
    provider: String,
    /// Name of the model, as the provider spells it, at most 200 characters.
    #[schema(max_length = 200)]
    model: String,
    /// Tokens that the model read, cached ones included.
    #[schema(maximum = 2147483647)]
    input_tokens: u32,
    /// How many of the input tokens came from the provider's prompt cache.
    #[schema(maximum = 2147483647)]
    cached_tokens: u32,
    /// Tokens that the model wrote.
    #[schema(maximum = 2147483647)]
    output_tokens: u32,
    /// Cost in millionths of a dollar. Counts only if the operator has set no price for this provider and model.
    #[schema(maximum = 2147483647)]
    microdollars: u32,
    /// Duration of the model call in milliseconds.
    #[schema(maximum = 2147483647)]
    took_ms: u32,
}

/// The most characters of the name of a provider or model.
const MOST_NAME: usize = 200;

impl UsageSaid {
    pub(super) fn check(self, models: &Models) -> Result<Usage, Problem> {
        let most = i32::MAX.unsigned_abs();
        let said = [self.input_tokens, self.cached_tokens, self.output_tokens, self.microdollars, self.took_ms];
        if said.into_iter().any(|n| n > most) {
            return Err(Problem::invalid(format!("each number in `usage` must be at most {most}")));
        }
        if [&self.provider, &self.model].iter().any(|name| name.chars().count() > MOST_NAME) {
            return Err(Problem::invalid(format!(
                "`provider` and `model` in `usage` must have at most {MOST_NAME} characters"
            )));
        }
        let mut usage = Usage {
            provider: self.provider,
            model: self.model,
            input_tokens: self.input_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            microdollars: self.microdollars.into(),
            took_ms: self.took_ms,
            n_asked: 1,
            asked_again: false,
            cache_miss: None,
            reported: true,
        };
        if let Some(price) = models.price(&usage.provider, &usage.model) {
            usage.microdollars = price.of(&usage);
        }
        Ok(usage)
    }
}

/// Write a step of a turn that the worker has claimed.
///
/// 409 `stale` means that another worker has the turn, or that the turn has ended.
#[utoipa::path(
    post, path = "/turns/{turn}/steps", tag = "worker", request_body = NewStep,
    params(("turn" = TurnId, Path)),
    responses((status = 200, body = Stepped)),
)]
pub(crate) async fn write_step(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Body { value: step, .. }: Body<NewStep>,
) -> Result<Json<Stepped>, Problem> {
    caller.may(&[Scope::Worker])?;
    let step_id = step.step_id;
    not_too_many("cards", &step.cards)?;
    not_too_many("calls", &step.calls)?;
    let cards: Vec<NewCard> =
        step.cards.into_iter().map(|card| card.seal(&caller, Some(step_id))).collect::<Result<_, _>>()?;
    let mut calls = Vec::with_capacity(step.calls.len());
    for call in step.calls {
        if !(1..=86_400).contains(&call.timeout_seconds) {
            return Err(Problem::invalid("`timeout_seconds` must be 1 to 86,400"));
        }
        let is_its_card =
            |card: &NewCard| card.card_id() == call.tool_call_card_id && card.tool_call_id() == Some(call.tool_call_id);
        if !cards.iter().any(is_its_card) {
            let said = format!(
                "call {}: `cards` of the step must contain its `tool.call` card {}, with the same `tool_call_id`",
                call.tool_call_id, call.tool_call_card_id
            );
            return Err(Problem::invalid(said));
        }
        let timeout = Duration::from_secs(call.timeout_seconds.into());
        let CallOut { tool_call_id, tool_call_card_id, target, once, .. } = call;
        calls.push(Call { tool_call_id, target, tool_call_card_id, timeout, once });
    }
    let usage = step.usage.map(|said| said.check(&api.config.models)).transpose()?;
    let fence = step.fence.of(&caller, turn);
    if step.saw_external {
        mark(&api, &caller, &fence).await?;
    }
    let step = Step { step_id, cards, calls, suspend: step.suspend, receipt: None, usage };
    let mut work = caller.begin(&api).await?;
    caller.holds(&mut work, &fence).await?;
    let stepped = turn::step(&mut work, &fence, &step).await?;
    work.commit().await?;
    Ok(Json(stepped))
}

/// Records that a turn has seen content from outside, if a worker of the caller holds it. In a unit of work of its own: a box is not locked before
/// its turn.
pub(super) async fn mark(api: &Api, caller: &Caller, fence: &Fence) -> Result<(), Problem> {
    let mut work = caller.begin(api).await?;
    if caller.holds(&mut work, fence).await? {
        let found = turn::show(&mut work, &[fence.agent_turn_id()]).await?.pop();
        if let Some(turn) = found {
            external::mark(&mut work, turn.output_box_id).await?;
            work.commit().await?;
        }
    }
    Ok(())
}

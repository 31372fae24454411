//! The two halves of a step, for a worker that asks the model itself (WK-9): what to send, and what comes of the answer. Between them the worker
//! makes the call. Everything else of a step is done as Waybill's own worker does it.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{Json, Response},
};
use chrono::{TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use waybill_context::{
    receipt::{Digest, Receipt},
    unit::Omitted,
};
use waybill_core::{
    id::{Name, StepId, TurnId},
    key::Scope,
    turn::{Budget, End, Fence},
};
use waybill_kernel::turn::{self, Claimed};
use waybill_worker::turn::{
    self as run, Outcome,
    reported::{self, Composed, ModelReport, Needs, Proof, Refused, Reporter},
};

use super::{TurnFence, step::UsageSaid};
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Path, answer},
    routes::turn::OneTurn,
};

/// The highest number of a fallback model.
const MOST_FALLBACKS: u8 = 100;

/// The largest receipt that is read, in bytes.
const MOST_RECEIPT: usize = 1 << 20;

/// Which turn to compose a request for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Compose {
    /// Fence of the turn, as the claim returned it.
    fence: TurnFence,
    /// Which of the profile's models to ask: 0 is its own model, 1 its first fallback, and so on. If omitted, 0.
    #[serde(default)]
    #[schema(maximum = 100)]
    fallback: u8,
}

/// What the turn needs next.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "next", rename_all = "snake_case")]
pub(crate) enum ComposedStep {
    /// A model call: send `request` to the provider, and its answer to `answer`.
    Ask(Box<ToAsk>),
    /// Nothing: the turn has ended. It was stopped, has used up a limit, cannot be composed, or has its result.
    Ended(HasEnded),
}

/// How the turn has ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HasEnded {
    /// Outcome of the turn.
    status: End,
}

/// A model call to make.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToAsk {
    /// Id that the step will have. Send it with the answer.
    step_id: StepId,
    /// Name of the provider, as the profile and the operator's providers file spell it.
    provider: Name,
    /// Format of the request: `openai_chat`, `openai_responses` or `anthropic_messages`.
    adapter: &'static str,
    /// Name of the model, as the provider spells it.
    model: String,
    /// Body of the request to the provider. Send it byte for byte, in UTF-8.
    request: String,
    /// BLAKE3 hash of the request's bytes.
    request_hash: Digest,
    /// Receipt of the call. Send it with the answer, unchanged.
    receipt: Receipt,
    /// Seal of the receipt. Send it with the receipt.
    seal: Digest,
    /// Cards that the model is not shown, and why.
    omitted: Vec<Omitted>,
    /// Whether the profile wants the context to be summarised by now. The server calls no model, so it leaves older messages out instead.
    compaction_due: bool,
    /// What the turn may still spend, by its own limits and the project's settings.
    left: Budget,
}

impl ToAsk {
    fn new(composed: Composed) -> Result<ToAsk, Problem> {
        let Composed { step_id, provider, model, adapter, request, receipt, seal, omitted, compaction_due, left } =
            composed;
        Ok(ToAsk {
            step_id,
            provider,
            adapter: adapter.as_str(),
            model,
            request: String::from_utf8(request).map_err(Problem::internal)?,
            request_hash: receipt.request_hash,
            receipt,
            seal,
            omitted,
            compaction_due,
            left,
        })
    }
}

/// Compose the next model request of a turn that the worker has claimed.
///
/// The request has the exact bytes that Waybill's own worker would send. Composing it again changes nothing. If there is nothing to ask any more, the
/// turn is ended. 409 `stale` means that another worker has the turn, or that the turn has ended; 422 `no_provider`, that the server does not know the
/// provider of the profile.
#[utoipa::path(
    post, path = "/turns/{turn}/compose", tag = "worker", request_body = Compose,
    params(("turn" = TurnId, Path)),
    responses((status = 200, body = ComposedStep)),
)]
pub(crate) async fn compose_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Body { value: compose, .. }: Body<Compose>,
) -> Result<Response, Problem> {
    caller.may(&[Scope::Worker])?;
    if compose.fallback > MOST_FALLBACKS {
        return Err(Problem::invalid(format!("`fallback` must be at most {MOST_FALLBACKS}")));
    }
    let fence = compose.fence.of(&caller, turn);
    let mut work = caller.begin(&api).await?;
    caller.holds(&mut work, &fence).await?;
    let claimed = turn::claimed(&mut work, &fence).await?.ok_or_else(|| stale(&fence))?;
    drop(work);
    let needs = reported::compose(&api.worker, &claimed, reporter(&caller), compose.fallback.into()).await?;
    let step = match needs {
        Needs::Model(composed) => ComposedStep::Ask(Box::new(ToAsk::new(*composed)?)),
        Needs::Nothing(status) => ComposedStep::Ended(HasEnded { status }),
    };
    answer(step, |step| match step {
        ComposedStep::Ask(asked) => asked.request.len(),
        ComposedStep::Ended(_) => 0,
    })
    .await
}

/// What a model answered. `receipt` or `request_hash` is required: with `receipt`, an answer can be written even if the turn got a message, or its
/// sources changed, while the model worked.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelAnswer {
    /// Fence of the turn, as the claim returned it.
    fence: TurnFence,
    /// `step_id` of the composed request. It is the idempotency key: sending the answer again changes nothing.
    step_id: StepId,
    /// `receipt` of the composed request, of at most 1 MiB. If omitted, `request_hash` is required.
    #[serde(default)]
    #[schema(value_type = Option<Receipt>)]
    receipt: Option<Box<RawValue>>,
    /// `seal` of the composed request. Required with `receipt`.
    #[serde(default)]
    seal: Option<Digest>,
    /// `request_hash` of the composed request. If omitted, `receipt` is required.
    #[serde(default)]
    request_hash: Option<Digest>,
    /// Body of the provider's answer: the whole event stream as one text, or, if the parameters of the profile set `stream` to false, the JSON object.
    #[schema(value_type = serde_json::Value)]
    response: Box<RawValue>,
    /// What the call used. The tokens that the provider's answer reports count before those here. If omitted, only those count.
    #[serde(default)]
    usage: Option<UsageSaid>,
}

impl ModelAnswer {
    /// Returns which call was made.
    fn proof(&self) -> Result<Proof, Problem> {
        match (&self.receipt, self.request_hash) {
            (Some(receipt), hash) => {
                if receipt.get().len() > MOST_RECEIPT {
                    return Err(Problem::invalid("`receipt` has more than 1 MiB: send `request_hash` instead"));
                }
                let unsealed = || Problem::invalid("send `seal` with `receipt`, as `compose` returned it");
                let seal = self.seal.ok_or_else(unsealed)?;
                // What cannot be read is not a receipt of ours.
                let receipt: Box<Receipt> =
                    serde_json::from_str(receipt.get()).map_err(|_| Problem::from(Refused::Mismatch))?;
                if hash.is_some_and(|hash| hash != receipt.request_hash) {
                    return Err(Refused::Mismatch.into());
                }
                Ok(Proof::Receipt { receipt, seal })
            }
            (None, Some(hash)) => Ok(Proof::Hash(hash)),
            (None, None) => Err(Problem::invalid("send `receipt` or `request_hash`, as `compose` returned it")),
        }
    }
}

/// What came of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerTaken {
    /// What the worker does next.
    next: AfterAnswer,
    /// Id of the step.
    step_id: StepId,
    /// Whether the answer had been written before, so that this request changed nothing.
    duplicate: bool,
}

/// What a worker does after an answer. `again`: compose the next request. `suspended`: the turn waits for its calls, and the worker no longer holds
/// it. `ended`: the turn has ended.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AfterAnswer {
    /// Compose the next request.
    Again,
    /// The turn waits for its calls.
    Suspended,
    /// The turn has ended.
    Ended,
}

impl AnswerTaken {
    /// Returns what came of a step that was written before.
    fn before(step_id: StepId, outcome: &str) -> AnswerTaken {
        let next = match outcome {
            "suspended" => AfterAnswer::Suspended,
            "finished" => AfterAnswer::Ended,
            _ => AfterAnswer::Again,
        };
        AnswerTaken { next, step_id, duplicate: true }
    }
}

/// Send what the model answered to a composed request.
///
/// The server reads the answer as Waybill's own worker does: it refuses, answers or sends out each tool call, and writes cards, calls, usage and the
/// receipt in one transaction. The step and the receipt are marked as `reported`. 409 `receipt_mismatch` means that the server would not have composed
/// this request, or that another answer to it was written, and 422 `unreadable_response` that the answer is not one of this provider's format, or
/// reports a failure: nothing was written. If the turn was stopped, or its time is over, it is ended without the answer. 409 `stale` means that another worker has the turn, or that the turn has ended.
#[utoipa::path(
    post, path = "/turns/{turn}/answer", tag = "worker", request_body = ModelAnswer,
    params(("turn" = TurnId, Path)),
    responses((status = 200, body = AnswerTaken)),
)]
pub(crate) async fn answer_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Body { value: said, .. }: Body<ModelAnswer>,
) -> Result<Json<AnswerTaken>, Problem> {
    caller.may(&[Scope::Worker])?;
    let step_id = said.step_id;
    if step_id.minted_at().is_none_or(|at| (Utc::now() - at).abs() > TimeDelta::days(1)) {
        return Err(Problem::invalid("`step_id` must be the one that `compose` returned within the last day"));
    }
    let (fence, proof) = (said.fence.of(&caller, turn), said.proof()?);
    let usage = said.usage.map(|said| said.check(&api.config.models)).transpose()?.unwrap_or_default();
    let claimed = match held(&api, &caller, &fence, step_id).await? {
        Held::Turn(claimed) => claimed,
        Held::Step(outcome) => return Ok(Json(AnswerTaken::before(step_id, &outcome))),
    };
    let report = ModelReport { step_id, proof, response: said.response, usage };
    let next = match reported::answer(&api.worker, &claimed, reporter(&caller), report).await {
        Ok(None) => AfterAnswer::Again,
        Ok(Some(Outcome::Suspended)) => AfterAnswer::Suspended,
        Ok(Some(Outcome::Finished(_))) => AfterAnswer::Ended,
        Ok(Some(Outcome::Failed | Outcome::Left)) => return Err(stale(&fence)),
        // Sent twice at the same time, the other request may have written it.
        Err(run::Error::Turn(turn::Error::Stale(_)) | run::Error::Refused(Refused::Mismatch)) => {
            return match held(&api, &caller, &fence, step_id).await? {
                // Another answer to this request was written, or it is not the request that was composed.
                Held::Turn(_) => Err(Refused::Mismatch.into()),
                Held::Step(outcome) => Ok(Json(AnswerTaken::before(step_id, &outcome))),
            };
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Json(AnswerTaken { next, step_id, duplicate: false }))
}

/// What is found under a fence.
enum Held {
    /// The turn: the step is still to be written.
    Turn(Box<Claimed>),
    /// The step, and its outcome.
    Step(String),
}

/// Finds a step that was written under the fence, or else the turn that a worker of the caller holds.
async fn held(api: &Api, caller: &Caller, fence: &Fence, step_id: StepId) -> Result<Held, Problem> {
    let mut work = caller.begin(api).await?;
    caller.holds(&mut work, fence).await?;
    if let Some(outcome) = turn::step_outcome(&mut work, fence, step_id).await? {
        return Ok(Held::Step(outcome));
    }
    let claimed = turn::claimed(&mut work, fence).await?.ok_or_else(|| stale(fence))?;
    Ok(Held::Turn(Box::new(claimed)))
}

/// Returns who reports, and which artifacts its tool calls may use.
fn reporter(caller: &Caller) -> Reporter {
    let paths = caller.sender().map(|_| caller.bounds.paths.clone());
    Reporter { actor: caller.actor.clone(), paths }
}

fn stale(fence: &Fence) -> Problem {
    turn::Error::Stale(fence.to_string()).into()
}

//! Transaction 3: what one step wrote, and the calls that leave with it; then go on or suspend (L0-2, L0-13).

use std::time::Duration;

use serde::Serialize;
use sqlx::{FromRow, types::Json};
use waybill_core::{
    bus::Door,
    card::NewCard,
    id::{CardId, StepId, Target, ToolCallId},
    metric,
    turn::{Budget, Fence, Usage},
};

use super::{Error, check_cards, check_fresh};
use crate::work::{self, Work};

/// A call that leaves with a step. Answered by a report, or at its deadline by a timeout.
#[derive(Clone, Debug, Serialize)]
pub struct Call {
    pub tool_call_id: ToolCallId,
    pub target: Target,
    pub tool_call_card_id: CardId,
    #[serde(rename = "timeout_seconds", serialize_with = "seconds")]
    pub timeout: Duration,
    /// If the process that claimed it is lost, it is unknown whether it was done: it is answered so, and never given to another process (WK-7).
    pub once: bool,
}

fn seconds<S: serde::Serializer>(timeout: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    timeout.as_secs_f64().serialize(serializer)
}

/// One step. Its id is its idempotency key: writing it again changes nothing.
#[derive(Clone, Debug)]
pub struct Step {
    pub step_id: StepId,
    /// Appended to the turn's output box, in order.
    pub cards: Vec<NewCard>,
    pub calls: Vec<Call>,
    /// Wait for the calls, these and earlier ones. If none is left to wait for, the turn goes on.
    pub suspend: bool,
    /// What the model saw, as JSON, where it was asked.
    pub receipt: Option<String>,
    /// What was used for it, where a model was asked. Spent from what the turn may spend.
    pub usage: Option<Usage>,
}

/// What happened when a step was written.
#[derive(Clone, Debug, PartialEq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Stepped {
    /// Whether the turn now waits for its calls. The worker then no longer holds it.
    pub suspended: bool,
    /// Why the turn was stopped. If it is not `null`, the worker must end the turn.
    pub stop_reason: Option<String>,
    /// Whether the step had been written before, so that this request changed nothing.
    pub duplicate: bool,
    /// What the turn may still spend. `null` if the step has no `usage`, or the turn has no limits.
    #[sqlx(json(nullable))]
    pub budget: Option<Budget>,
}

/// Writes a step under the fence.
pub async fn step(work: &mut impl Work, fence: &Fence, step: &Step) -> Result<Stepped, Error> {
    #[derive(Serialize)]
    struct Wire<'a> {
        step_id: StepId,
        calls: &'a [Call],
        suspend: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        receipt: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<&'a Usage>,
    }
    check_cards(&step.cards)?;
    let minted = step.calls.iter().map(|call| call.tool_call_id.minted_at()).chain([step.step_id.minted_at()]);
    check_fresh(
        minted,
        "the id of a step or a call must be a UUIDv7 that was generated within the last day: check this machine's clock",
    )?;
    let Step { step_id, cards, calls, suspend, receipt, usage } = step;
    let (receipt, usage) = (receipt.as_deref(), usage.as_ref());
    let wire = Wire { step_id: *step_id, calls, suspend: *suspend, receipt, usage };
    let query = sqlx::query_as(
        "select outcome = 'suspended' as suspended, stop_reason, duplicate, budget
           from state.step(p_fence => $1, p_step => $2, p_cards => $3)",
    )
    .bind(fence)
    .bind(Json(wire))
    .bind(cards);
    let stepped: Stepped = work::one(work, query).await?;
    metrics::counter!(metric::STEPS, "outcome" => if stepped.suspended { "suspended" } else { "running" }).increment(1);
    for call in &step.calls {
        work.ring(Door::of_calls(call.target.clone()));
    }
    Ok(stepped)
}

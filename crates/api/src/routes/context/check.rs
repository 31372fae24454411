//! Model calls checked: for defects of the request, and against their receipts.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use waybill_context::{
    lint::{Finding, Rule, lint},
    receipt::Receipt,
};
use waybill_core::id::{StepId, TurnId};
use waybill_kernel::offload;
use waybill_orchestrator::replay::{self, Verified};

use super::rendered;
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Page, Path, Query},
    routes::turn::{OneTurn, one},
};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LintParams {
    /// Step of the model call. If omitted, the last model call of the turn.
    step_id: Option<StepId>,
}

/// The defects of a model call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Linted {
    /// Step of the model call.
    step_id: StepId,
    /// Step of the call before it, with which it was compared for breaks of the prompt cache. `null` if there is none, or if it cannot be rendered
    /// again.
    before_step_id: Option<StepId>,
    /// Defects, in the order in which they occur. Empty if there are none.
    findings: Vec<Defect>,
}

/// One defect of a request, and where it is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Defect {
    /// Kind of the defect.
    rule: Rule,
    /// Number of the message, from 1, as the provider got it. 0 means the tools, or system text that is not a message.
    message: usize,
    /// What was found, and what to do.
    what: String,
}

/// Check a model call for defects: those that providers answer with an error, and those that they silently bill for.
///
/// The rules are those of `waybill lint`. The call is compared with the call before it, to find breaks of the prompt cache.
#[utoipa::path(
    get, path = "/turns/{turn}/context/lint", tag = "context", params(("turn" = TurnId, Path), LintParams),
    responses((status = 200, body = Linted)),
)]
pub(crate) async fn lint_context(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn: turn_id }): Path<OneTurn>,
    Query(LintParams { step_id }): Query<LintParams>,
) -> Result<Json<Linted>, Problem> {
    caller.may_read()?;
    let mut work = caller.begin(&api).await?;
    one(&mut work, turn_id).await?;
    let recorded = replay::recorded(&mut work, turn_id, step_id).await?;
    let (step_id, mut calls) = (recorded.step_id, replay::list(&mut work, turn_id).await?);
    let place = calls.iter().position(|(known, _)| *known == step_id);
    let before = place.and_then(|place| place.checked_sub(1)).map(|place| calls.swap_remove(place));
    let before = match before {
        Some((step_id, receipt)) if receipt.adapter == recorded.receipt.adapter => {
            Some(replay::record(&mut work, step_id, receipt).await?)
        }
        _ => None,
    };
    drop(work);
    let call = rendered(recorded).await?;
    let (mut text, mut before_step_id) = (Vec::new(), None);
    if let Some(recorded) = before {
        let step_id = recorded.step_id;
        // One that cannot be rendered again is not compared with.
        if let Ok(before) = rendered(recorded).await {
            text.extend(before.request);
            text.push(b'\n');
            before_step_id = Some(step_id);
        }
    }
    text.extend(call.request);
    let n = if before_step_id.is_some() { 2 } else { 1 };
    let found = offload::run(text.len(), move || lint(&String::from_utf8_lossy(&text))).await;
    let found = found.map_err(Problem::internal)?.into_iter().filter(|finding| finding.request == n);
    let findings = found.map(|Finding { rule, message, what, .. }| Defect { rule, message, what }).collect();
    Ok(Json(Linted { step_id, before_step_id, findings }))
}

/// The most calls that one request verifies, and the most tokens that are composed for it; a single call may have more.
const MOST_CALLS: u16 = 200;
const MOST_TOKENS: i64 = 10_000_000;

/// The model calls to verify.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Verify {
    /// Step of the only model call to verify. If omitted, all model calls of the turn.
    #[serde(default)]
    step_id: Option<StepId>,
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[serde(default)]
    after: Option<StepId>,
    /// Entries per page, at most 200. If omitted, 200.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 200)]
    most: Option<u16>,
}

/// Verify the model calls of a turn: compose each again from the record, and compare it with its receipt.
///
/// The request is compared byte for byte, by its hash. Each card is compared with its own hash, and all of them with the receipt. A page has up to
/// 200 calls, and fewer if they are very long.
#[utoipa::path(
    post, path = "/turns/{turn}/context/verify", tag = "context", request_body = Verify, params(("turn" = TurnId, Path)),
    responses((status = 200, body = Page<Verified>)),
)]
pub(crate) async fn verify_context(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn: turn_id }): Path<OneTurn>,
    Body { value: Verify { step_id, after, most }, .. }: Body<Verify>,
) -> Result<Json<Page<Verified>>, Problem> {
    caller.may_read()?;
    let most = most.unwrap_or(MOST_CALLS);
    if !(1..=MOST_CALLS).contains(&most) {
        return Err(Problem::invalid(format!("`most` must be 1 to {MOST_CALLS}")));
    }
    let mut work = caller.begin(&api).await?;
    one(&mut work, turn_id).await?;
    let mut calls = replay::list(&mut work, turn_id).await?;
    drop(work);
    let place = |calls: &[(StepId, Receipt)], step_id: StepId| {
        let place = calls.iter().position(|(known, _)| *known == step_id);
        place.ok_or_else(|| Problem::not_found(format!("turn {turn_id} has no model call in step {step_id}")))
    };
    if let Some(step_id) = step_id {
        let place = place(&calls, step_id)?;
        calls = vec![calls.swap_remove(place)];
    }
    let first = match after {
        Some(after) => 1 + place(&calls, after)?,
        None => 0,
    };
    let n_calls = calls.len();
    let (mut verified, mut n_tokens) = (Vec::new(), 0);
    for (step_id, receipt) in calls.into_iter().skip(first).take(most.into()) {
        n_tokens += i64::from(receipt.n_tokens.get());
        if n_tokens > MOST_TOKENS && !verified.is_empty() {
            break;
        }
        let recorded = replay::record(&mut caller.begin(&api).await?, step_id, receipt).await?;
        verified.push(offload::run(recorded.n_bytes(), move || recorded.verify()).await);
    }
    let last = verified.last().map(|call: &Verified| call.step_id);
    let next = last.filter(|_| first + verified.len() < n_calls);
    Ok(Json(Page::upto(verified, next)))
}

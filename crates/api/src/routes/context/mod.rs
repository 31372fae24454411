//! What a model saw: receipts, requests rendered again, comparisons, and why a card was there.

use std::sync::Arc;

use axum::{
    extract::State,
    http::HeaderMap,
    response::{Json, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waybill_context::{call::Call, receipt::Receipt};
use waybill_core::id::{CardId, StepId, TurnId};
use waybill_kernel::{
    handover::{self, Why},
    offload,
};
use waybill_orchestrator::replay::{self, Recorded};

use super::turn::{OneTurn, one};
use crate::{Api, caller::Caller, kept, problem::Problem, request::Path};

pub(super) mod check;
pub(super) mod compare;
pub(super) mod seen;

/// Receipt of one model call. It records what the model saw, as references to boxes and cards, with versions and hashes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OneReceipt {
    /// Step of the model call.
    step_id: StepId,
    /// The receipt.
    receipt: Receipt,
}

/// List the receipts of a turn's model calls. A receipt records what the model saw.
#[utoipa::path(
    get, path = "/turns/{turn}/receipts", tag = "context", params(("turn" = TurnId, Path)),
    responses((status = 200, body = Vec<OneReceipt>), (status = 304, description = "The client has the answer.")),
)]
pub(crate) async fn list_receipts(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    caller.may_read()?;
    let mut work = caller.begin(&api).await?;
    one(&mut work, turn).await?;
    let listed = replay::list(&mut work, turn).await?;
    drop(work);
    let receipts: Vec<OneReceipt> =
        listed.into_iter().map(|(step_id, receipt)| OneReceipt { step_id, receipt }).collect();
    let n_bytes = receipts.len() * 1_000;
    kept::json(&headers, receipts, n_bytes).await
}

/// Renders a model call again: that of this step, or the last one of the turn.
async fn render(
    api: &Api,
    caller: &Caller,
    turn_id: TurnId,
    step_id: Option<StepId>,
) -> Result<Call<'static>, Problem> {
    let mut work = caller.begin(api).await?;
    one(&mut work, turn_id).await?;
    let recorded = replay::recorded(&mut work, turn_id, step_id).await?;
    drop(work);
    Ok(rendered(recorded).await?)
}

/// Renders a call again. A long one is rendered apart from the threads that answer requests.
pub(super) async fn rendered(recorded: Recorded) -> Result<Call<'static>, replay::Error> {
    offload::run(recorded.n_bytes(), move || recorded.render()).await
}

#[derive(Debug, Deserialize)]
pub(crate) struct TurnAndCard {
    turn: TurnId,
    card: CardId,
}

/// Show why a turn has a card: how the card came into its boxes.
///
/// Each entry is one position of the card. It names the handover rule that put the card there, the sender, the box that the card was taken from, and
/// the right to read that box. The list is empty if the turn does not have the card.
#[utoipa::path(
    get, path = "/turns/{turn}/why/{card}", tag = "context",
    params(("turn" = TurnId, Path), ("card" = CardId, Path)),
    responses((status = 200, body = Vec<Why>)),
)]
pub(crate) async fn why_card(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(TurnAndCard { turn, card }): Path<TurnAndCard>,
) -> Result<Json<Vec<Why>>, Problem> {
    caller.may_read()?;
    let mut work = caller.begin(&api).await?;
    one(&mut work, turn).await?;
    Ok(Json(handover::why(&mut work, card, turn).await?))
}

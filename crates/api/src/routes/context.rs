//! What a model saw: receipts, requests rendered again, comparisons, and why a card was there.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use waybill_context::{call::Call, diff};
use waybill_core::id::{CardId, StepId, TurnId};
use waybill_kernel::handover::{self, Why};
use waybill_orchestrator::replay;

use super::turn::{OneTurn, one};
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Path, Query},
};

/// The receipt of one model call: what the model saw, as ranges of boxes, cards, versions and hashes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OneReceipt {
    /// Step of the model call.
    step_id: StepId,
    /// The receipt.
    #[schema(value_type = Object)]
    receipt: Value,
}

/// List the receipts of a turn's model calls.
#[utoipa::path(
    get, path = "/turns/{turn}/receipts", tag = "context", params(("turn" = TurnId, Path)),
    responses((status = 200, body = Vec<OneReceipt>)),
)]
pub(crate) async fn list_receipts(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
) -> Result<Json<Vec<OneReceipt>>, Problem> {
    caller.may_read()?;
    let mut work = caller.begin(&api).await?;
    one(&mut work, turn).await?;
    let listed = replay::list(&mut work, turn).await?;
    let receipt = |(step_id, receipt)| {
        Ok(OneReceipt { step_id, receipt: serde_json::to_value(receipt).map_err(Problem::internal)? })
    };
    Ok(Json(listed.into_iter().map(receipt).collect::<Result<_, Problem>>()?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowParams {
    /// Step of the model call. If omitted, the last model call of the turn.
    step_id: Option<StepId>,
}

/// A model call, rendered again and verified against its receipt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Seen {
    /// The receipt of the call.
    #[schema(value_type = Object)]
    receipt: Value,
    /// Request that was sent. Its hash is the receipt's `request_hash`.
    #[schema(value_type = Object)]
    request: Value,
    /// Messages, each with its layer, its tokens, and the cards that it came from.
    #[schema(value_type = Vec<Object>)]
    messages: Value,
    /// What was left out, and why.
    #[schema(value_type = Vec<Object>)]
    omitted: Value,
}

/// Show what a model saw, byte for byte.
///
/// If the same bytes cannot be rendered again, the answer is 409 `not_renderable`, with the reason.
#[utoipa::path(
    get, path = "/turns/{turn}/context", tag = "context", params(("turn" = TurnId, Path), ShowParams),
    responses((status = 200, body = Seen)),
)]
pub(crate) async fn show_context(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(params): Query<ShowParams>,
) -> Result<Json<Seen>, Problem> {
    caller.may_read()?;
    let call = render(&api, &caller, turn, params.step_id).await?;
    let value = |value: serde_json::Result<Value>| value.map_err(Problem::internal);
    Ok(Json(Seen {
        receipt: value(serde_json::to_value(&call.receipt))?,
        request: value(serde_json::from_slice(&call.request))?,
        messages: value(serde_json::to_value(&call.composed.messages))?,
        omitted: value(serde_json::to_value(&call.composed.omitted))?,
    }))
}

async fn render(
    api: &Api,
    caller: &Caller,
    turn_id: TurnId,
    step_id: Option<StepId>,
) -> Result<Call<'static>, Problem> {
    let mut work = caller.begin(api).await?;
    one(&mut work, turn_id).await?;
    Ok(replay::replay(&mut work, turn_id, step_id).await?)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DiffParams {
    /// Turn of the first model call.
    left: TurnId,
    /// Step of the first model call. If omitted, the last model call of the turn.
    left_step_id: Option<StepId>,
    /// Turn of the second model call.
    right: TurnId,
    /// Step of the second model call. If omitted, the last model call of the turn.
    right_step_id: Option<StepId>,
}

/// Compare two model calls.
///
/// They are compared by set, order and tokens, and by where a prompt cache stops being of use.
#[utoipa::path(
    get, path = "/context/diff", tag = "context", params(DiffParams),
    responses((status = 200, body = Object)),
)]
pub(crate) async fn diff_contexts(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<DiffParams>,
) -> Result<Json<Value>, Problem> {
    caller.may_read()?;
    let left = render(&api, &caller, params.left, params.left_step_id).await?;
    let right = render(&api, &caller, params.right, params.right_step_id).await?;
    serde_json::to_value(diff::diff(&left, &right)).map(Json).map_err(Problem::internal)
}

#[derive(Debug, Deserialize)]
pub(crate) struct TurnAndCard {
    turn: TurnId,
    card: CardId,
}

/// Show why a turn has a card.
///
/// Each entry names the handover's rule, the sender, the box, and the right by which the card was taken from it. The list is empty if the turn does
/// not have the card.
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

//! What followed from a card (NX-3).

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::Deserialize;
use utoipa::IntoParams;
use waybill_core::id::CardId;
use waybill_orchestrator::blast::{self, Radius};

use super::card::{OneCard, one_card};
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Path, Query},
};

/// The most turns of one answer.
const MOST_TURNS: u16 = 10_000;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct BlastParams {
    /// Turns to look at, at most 10,000. If omitted, 1,000.
    #[param(minimum = 1, maximum = 10_000)]
    most: Option<u16>,
}

/// List what followed from a card: the turns that saw it, and all that was written after seeing it.
///
/// A model call `did` see the card if the card was part of its request. What the turn wrote with that call and later is `derived`, and so are calls
/// that saw something of it: in an answer, a handover, an argument, a summary, a todo list, or a package that names an artifact. A turn `could` see
/// the card if the card was there for it, but in none of its requests. Prompts, tool lists and documents of the knowledge are not followed.
#[utoipa::path(
    get, path = "/cards/{card}/blast", tag = "cards", params(("card" = CardId, Path), BlastParams),
    responses((status = 200, body = Radius)),
)]
pub(crate) async fn show_blast(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneCard { card: card_id }): Path<OneCard>,
    Query(BlastParams { most }): Query<BlastParams>,
) -> Result<Json<Radius>, Problem> {
    caller.may_read()?;
    let most = most.unwrap_or(1_000);
    if !(1..=MOST_TURNS).contains(&most) {
        return Err(Problem::invalid("`most` must be between 1 and 10,000"));
    }
    let mut work = caller.begin(&api).await?;
    one_card(&mut work, card_id).await?;
    Ok(Json(blast::radius(&mut work, &[card_id], usize::from(most)).await?))
}

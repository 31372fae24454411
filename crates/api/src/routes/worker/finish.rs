//! How a worker lets go of a turn: it finishes the turn, or gives it back after a failed attempt.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waybill_core::{
    id::{StepId, TurnId},
    key::Scope,
    turn::End,
};
use waybill_kernel::turn::{self, Attempts, Ended, Ending, Loss};

use super::{
    TurnFence,
    card::CardDraft,
    step::{UsageSaid, mark},
};
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Path, not_empty, not_too_many},
    routes::turn::OneTurn,
};

/// How the turn ends, and the last cards to write.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finish {
    /// Fence of the turn, as the claim returned it.
    fence: TurnFence,
    /// Outcome of the turn.
    status: End,
    /// Id of a last step that is recorded with the end: a UUIDv7 that the worker generated within the last day. It is required if you send `usage`.
    /// If omitted, no step is recorded.
    #[serde(default)]
    step_id: Option<StepId>,
    /// Cards to write. The last one must be the `task.deliverable`.
    #[schema(min_items = 1, max_items = 1000)]
    cards: Vec<CardDraft>,
    /// Whether the worker has seen external content that is not in a card of the turn's boxes, such as a website. The cards are then labelled as
    /// external. If omitted, false.
    #[serde(default)]
    saw_external: bool,
    /// Tokens and cost of the last model call. If omitted, nothing is counted.
    #[serde(default)]
    usage: Option<UsageSaid>,
    /// How many cards of the output box the worker has read. If a caller has sent the turn a message after these, the turn does not end, and the
    /// response is 409 `unseen`: read the output box and continue. If omitted, and `status` is `success`, the server assumes that the worker has read
    /// everything up to the last step.
    #[serde(default)]
    #[schema(minimum = 0)]
    seen: Option<i64>,
}

/// Finish a turn: write its deliverable and end it.
///
/// 409 `stale` means that another worker has the turn, or that the turn has ended.
#[utoipa::path(
    post, path = "/turns/{turn}/finish", tag = "worker", request_body = Finish,
    params(("turn" = TurnId, Path)),
    responses((status = 200, body = Ended)),
)]
pub(crate) async fn finish_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Body { value: finish, .. }: Body<Finish>,
) -> Result<Json<Ended>, Problem> {
    caller.may(&[Scope::Worker])?;
    not_too_many("cards", &finish.cards)?;
    let cards = finish.cards.into_iter().map(|card| card.seal(&caller, finish.step_id)).collect::<Result<_, _>>()?;
    let fence = finish.fence.of(&caller, turn);
    if finish.saw_external {
        mark(&api, &caller, &fence).await?;
    }
    let mut ending = Ending {
        fence,
        status: finish.status,
        step_id: finish.step_id,
        receipt: None,
        usage: finish.usage.map(|said| said.check(&api.config.models)).transpose()?,
        seen: finish.seen,
        cards,
    };
    if ending.seen.is_some_and(|seen| seen < 0) {
        return Err(Problem::invalid("`seen` must not be negative"));
    }
    let mut work = caller.begin(&api).await?;
    caller.holds(&mut work, &fence).await?;
    if ending.seen.is_none() && ending.status == End::Success {
        ending.seen = Some(turn::written_upto(&mut work, turn).await?);
    }
    let ended = turn::finish(&mut work, &[ending]).await?;
    work.commit().await?;
    Ok(Json(ended))
}

/// Why the attempt failed, and how long to wait before the next one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GiveBack {
    /// Fence of the turn, as the claim returned it.
    fence: TurnFence,
    /// Error that ended the attempt.
    #[schema(min_length = 1)]
    error: String,
    /// Seconds to wait before the next attempt, at most 3,600. If omitted, 0.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 3600)]
    backoff_seconds: f64,
}

/// What happens to the turn after the failed attempt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GivenBack {
    /// `armed`: there will be another attempt. `ended`: this was the last attempt, and the turn has ended as `failed`. `stale`: another worker has
    /// the turn, or it had already ended.
    outcome: &'static str,
}

/// Give a turn back after a failed attempt.
///
/// The next attempt continues from the cards written so far. After three failed attempts without a new card, the turn ends as `failed`.
#[utoipa::path(
    post, path = "/turns/{turn}/give-back", tag = "worker", request_body = GiveBack,
    params(("turn" = TurnId, Path)),
    responses((status = 200, body = GivenBack)),
)]
pub(crate) async fn give_back_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Body { value: back, .. }: Body<GiveBack>,
) -> Result<Json<GivenBack>, Problem> {
    caller.may(&[Scope::Worker])?;
    not_empty("error", &back.error)?;
    if !(0.0..=3600.0).contains(&back.backoff_seconds) {
        return Err(Problem::invalid("`backoff_seconds` must be 0 to 3,600"));
    }
    let loss = Loss::Attempt { error: back.error, backoff: Duration::from_secs_f64(back.backoff_seconds) };
    let fence = back.fence.of(&caller, turn);
    let mut work = caller.begin(&api).await?;
    caller.holds(&mut work, &fence).await?;
    let reclaimed = turn::reclaim(&mut work, &fence, &loss, Attempts::default()).await?;
    work.commit().await?;
    Ok(Json(GivenBack { outcome: reclaimed.as_str() }))
}

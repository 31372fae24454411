//! What turns were given to spend, and what a project has spent (WK-5, WK-8).

use std::sync::Arc;

use axum::{extract::State, response::Json};
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use utoipa::IntoParams;
use waybill_core::id::TurnId;
use waybill_kernel::{
    cache::{self, CacheMisses},
    spend::{self, Budget, By, Spend},
};

use super::turn::OneTurn;
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Path, Query},
};

/// The most turns of a tree that are added up for one answer.
const MOST_TURNS: usize = 1_000;

/// Show the budget of a turn: what it was given, what is left, what it lent to its children and got back, and what it has spent.
///
/// Up to 1,000 turns of its tree are added up. `truncated` says whether there are more.
#[utoipa::path(
    get, path = "/turns/{turn}/budget", tag = "turns", params(("turn" = TurnId, Path)),
    responses((status = 200, body = Budget)),
)]
pub(crate) async fn show_budget(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
) -> Result<Json<Budget>, Problem> {
    caller.may_audit()?;
    let found = spend::budget(&mut caller.begin(&api).await?, turn, MOST_TURNS).await?;
    Ok(Json(found.ok_or_else(|| Problem::not_found(format!("there is no turn {turn} in this project")))?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SpendParams {
    /// What to group by: `hour` or `day` (in which the turns began, UTC), `profile`, `model`, `agent` or `session`. If omitted, `day`.
    #[param(inline)]
    by: Option<By>,
    /// Only turns that began at this time or later. If omitted, 24 hours before `until`.
    since: Option<DateTime<Utc>>,
    /// Only turns that began before this time. If omitted, now.
    until: Option<DateTime<Utc>>,
}

/// Show what the turns have spent that began in a span of time, by hour, day, profile, model, agent or session.
///
/// A turn counts with all that it has used so far, also after `until`. One answer adds up about 100,000 steps: `complete_until` says where to
/// continue.
#[utoipa::path(
    get, path = "/spend", tag = "turns", params(SpendParams),
    responses((status = 200, body = Spend)),
)]
pub(crate) async fn show_spend(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<SpendParams>,
) -> Result<Json<Spend>, Problem> {
    caller.may_audit()?;
    let (since, until) = span(params.since, params.until);
    let by = params.by.unwrap_or(By::Day);
    Ok(Json(spend::spend(&mut caller.begin(&api).await?, by, since, until).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CacheParams {
    /// What to add up by: `why` (what had changed), `day` (of the call, UTC), `profile`, `model` or `conversation`. If omitted, `why`.
    #[param(inline)]
    by: Option<cache::By>,
    /// Only turns that began at this time or later. If omitted, 24 hours before `until`.
    since: Option<DateTime<Utc>>,
    /// Only turns that began before this time. If omitted, now.
    until: Option<DateTime<Utc>>,
}

/// Show where calls found less in the provider's prompt cache than it could have kept: what had changed, and what it cost.
///
/// Each call is compared with the one before it in its conversation. What that one had sent already, and this one did not read from the cache, is lost;
/// less than 1,024 tokens do not count, because providers keep nothing shorter. Where a message changed, that is the most
/// that it can be: what follows the message may be new. One answer looks at about 10,000 calls: `complete_until` says where to
/// continue. Money is known where the operator's file has the prices of the model.
#[utoipa::path(
    get, path = "/cache-misses", tag = "turns", params(CacheParams),
    responses((status = 200, body = CacheMisses)),
)]
pub(crate) async fn show_cache_misses(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<CacheParams>,
) -> Result<Json<CacheMisses>, Problem> {
    caller.may_audit()?;
    let (since, until) = span(params.since, params.until);
    let by = params.by.unwrap_or(cache::By::Why);
    let price = |provider: &str, model: &str| api.config.models.price(provider, model);
    Ok(Json(cache::misses(&mut caller.begin(&api).await?, by, since, until, price).await?))
}

/// Returns a span of time that was asked for: the last 24 hours, unless it says otherwise.
fn span(since: Option<DateTime<Utc>>, until: Option<DateTime<Utc>>) -> (DateTime<Utc>, DateTime<Utc>) {
    // One more second: the clock of the process that started a turn may be ahead of ours.
    let latest = Utc::now() + TimeDelta::seconds(1);
    let until = until.unwrap_or(latest).clamp(DateTime::UNIX_EPOCH, latest);
    let since = since.unwrap_or_else(|| until - TimeDelta::days(1)).clamp(DateTime::UNIX_EPOCH, latest);
    (since, until)
}

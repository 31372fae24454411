//! A turn and the turns below it as a client draws them: a graph, and a timeline.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use utoipa::IntoParams;
use waybill_core::id::TurnId;
use waybill_kernel::turn::{self, Graph, Period, Timeline};

use super::turn::{OneTurn, one};
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Path, Query},
};

/// The most turns of a graph, and the most segments of a timeline, in one answer.
const MOST: u16 = 10_000;

fn most(asked: Option<u16>) -> Result<u16, Problem> {
    let most = asked.unwrap_or(MOST);
    if !(1..=MOST).contains(&most) {
        return Err(Problem::invalid(format!("`most` must be 1 to {MOST}")));
    }
    Ok(most)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct GraphParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<TurnId>,
    /// Turns per page, at most 10,000. If omitted, 10,000.
    #[param(minimum = 1, maximum = 10000)]
    most: Option<u16>,
}

/// Show the graph of a turn: the turn and the turns below it, in columns.
///
/// Each list of the answer is a column with one entry for each turn. The first turn is the one that was asked for; the others come in the order in
/// which they were started.
#[utoipa::path(
    get, path = "/turns/{turn}/graph", tag = "turns", params(("turn" = TurnId, Path), GraphParams),
    responses((status = 200, body = Graph)),
)]
pub(crate) async fn show_graph(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(params): Query<GraphParams>,
) -> Result<Json<Graph>, Problem> {
    caller.may_audit()?;
    let most = most(params.most)?;
    let graph = turn::graph(&mut caller.begin(&api).await?, turn, params.after, i32::from(most)).await?;
    graph.map(Json).ok_or_else(|| Problem::not_found(format!("there is no turn {turn} in this project")))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimelineParams {
    /// Whether to show the turns below it too. If omitted, false.
    #[serde(default)]
    tree: bool,
    /// Only segments that ended at this time or later. If omitted, from the start of the turn on.
    from: Option<DateTime<Utc>>,
    /// Only segments that began before this time. If omitted, until now.
    to: Option<DateTime<Utc>>,
    /// The most segments, at most 10,000. If omitted, 10,000.
    #[param(minimum = 1, maximum = 10000)]
    most: Option<u16>,
}

/// Show how a turn spent its time: in queues, in model calls, and waiting for tools, child turns and people.
///
/// The segments come from the record. That a worker was lost is recorded for every turn. When a worker took a turn up is recorded for turns that were
/// started over HTTP; for the turns below them, the wait for a worker is shown until the next model call. With `tree`, up to 2,000 turns are shown.
#[utoipa::path(
    get, path = "/turns/{turn}/timeline", tag = "turns", params(("turn" = TurnId, Path), TimelineParams),
    responses((status = 200, body = Timeline)),
)]
pub(crate) async fn show_timeline(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(params): Query<TimelineParams>,
) -> Result<Json<Timeline>, Problem> {
    caller.may_audit()?;
    let most = usize::from(most(params.most)?);
    let mut work = caller.begin(&api).await?;
    let started = one(&mut work, turn).await?.created_at;
    // A day more: the database has a clock of its own. Times that it cannot store say no more than these.
    let latest = started.max(Utc::now()) + TimeDelta::days(1);
    let within = |time: Option<DateTime<Utc>>, usual| time.unwrap_or(usual).clamp(started, latest);
    let (from, to) = (within(params.from, started), within(params.to, latest));
    let period = Period { from, to, tree: params.tree, most };
    Ok(Json(turn::timeline(&mut work, turn, period).await?))
}

//! The lease of a worker: renewing it and ending it.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waybill_core::key::Scope;
use waybill_kernel::{call, lease, turn};

use super::{
    brief::shown,
    call::{OneCall, admitted},
    claim::ClaimedTurn,
};
use crate::{Api, caller::Caller, problem::Problem, request::Body};

const LEASE: std::ops::RangeInclusive<f64> = 1.0..=300.0;

/// Returns how long a lease lasts where a request does not say.
pub(super) const fn lease_seconds() -> f64 {
    30.0
}

/// Checks how long a lease is to last.
pub(super) fn lease_of(seconds: f64) -> Result<Duration, Problem> {
    if !LEASE.contains(&seconds) {
        return Err(Problem::invalid("`lease_seconds` must be 1 to 300"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The worker whose lease is renewed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Heartbeat {
    /// Name of the worker.
    #[schema(min_length = 1, max_length = 200)]
    worker: String,
    /// Length of the lease in seconds, 1 to 300. If the worker sends no heartbeat for this time, its turns and calls are given to other workers. If
    /// omitted, 30.
    #[serde(default = "lease_seconds")]
    #[schema(minimum = 1, maximum = 300)]
    lease_seconds: f64,
}

/// All turns and calls that the worker holds. If the response to a claim was lost, you find the claimed turns and calls here.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Held {
    /// Turns that the worker holds.
    turns: Vec<ClaimedTurn>,
    /// Calls that the worker holds.
    calls: Vec<OneCall>,
}

/// Renew the lease of a worker.
///
/// 410 `lease_lost` means that the lease has expired, and that other workers may already have the worker's turns and calls. Stop working on them, and
/// continue under a new worker name.
#[utoipa::path(
    post, path = "/worker/heartbeat", tag = "worker", request_body = Heartbeat,
    responses((status = 200, body = Held)),
)]
pub(crate) async fn keep_lease(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Body { value: beat, .. }: Body<Heartbeat>,
) -> Result<Json<Held>, Problem> {
    caller.may(&[Scope::Worker, Scope::Tool])?;
    let worker_id = caller.worker_id(&beat.worker)?;
    caller.enter(&api).await?;
    lease::renew::<uuid::Uuid>(&api.kernel, worker_id, lease_of(beat.lease_seconds)?).await?;
    let mut turns = turn::held(&api.kernel, worker_id).await?;
    turns.retain(|turn| turn.fence.project_id() == caller.project_id);
    let turns = match turns.is_empty() {
        true => Vec::new(),
        false => shown(&mut caller.begin(&api).await?, turns, &[]).await?,
    };
    let mut calls = call::held(&api.kernel, worker_id).await?;
    calls.retain(|call| call.project_id == caller.project_id);
    let calls = admitted(&api, &caller, calls, true).await?;
    Ok(Json(Held { turns, calls }))
}

/// The worker whose lease ends.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leave {
    /// Name of the worker.
    #[schema(min_length = 1, max_length = 200)]
    worker: String,
}

/// Confirmation that the lease has ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Done {
    /// Always true.
    done: bool,
}

/// End the lease of a worker that shuts down.
///
/// Turns and calls that it still holds are given to other workers at once.
#[utoipa::path(
    post, path = "/worker/leave", tag = "worker", request_body = Leave,
    responses((status = 200, body = Done)),
)]
pub(crate) async fn leave(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Body { value: leave, .. }: Body<Leave>,
) -> Result<Json<Done>, Problem> {
    caller.may(&[Scope::Worker, Scope::Tool])?;
    caller.enter(&api).await?;
    lease::end(&api.kernel, caller.worker_id(&leave.worker)?).await?;
    Ok(Json(Done { done: true }))
}

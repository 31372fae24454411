//! Claiming turns, and waiting for work.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Json};
use futures::{StreamExt, stream::BoxStream};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;
use waybill_core::{
    bus::Door,
    id::{BatchId, BoxId, CardId, Channel, SessionId, Target, TurnId},
    key::Scope,
    turn::MessageType,
};
use waybill_kernel::turn::{self, Claimed, Claiming};

use super::{
    TurnFence,
    lease::{lease_of, lease_seconds},
};
use crate::{
    Api,
    caller::{Caller, STANDING, unauthorized},
    limit::Place,
    problem::Problem,
    request::Body,
};

const LONGEST_WAIT: f64 = 30.0;
/// Poll interval for work, while no doorbell rings.
const LOOK: Duration = Duration::from_secs(1);

/// Which worker claims, and how much.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    /// Name of the worker. It stands for one process while its lease holds; once the lease is lost, use another name.
    #[schema(min_length = 1, max_length = 200)]
    worker: String,
    /// Target to claim from: the `worker_target` of profiles, or the `target` of tools.
    pub(super) target: Target,
    /// The most turns or calls to claim. If omitted, 1.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 100)]
    most: u8,
    /// Seconds to wait for work, at most 30. If omitted, the request does not wait.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 30)]
    pub(super) wait_seconds: f64,
    /// Seconds that the process may be silent before other workers get what it holds: 1 to 300. If omitted, 30.
    #[serde(default = "lease_seconds")]
    #[schema(minimum = 1, maximum = 300)]
    lease_seconds: f64,
}

const fn one() -> u8 {
    1
}

impl Claim {
    pub(super) fn check(&self, caller: &Caller) -> Result<Claiming, Problem> {
        let lease = lease_of(self.lease_seconds)?;
        if !(1..=100).contains(&self.most) {
            return Err(Problem::invalid("`most` must be 1 to 100"));
        }
        if !(0.0..=LONGEST_WAIT).contains(&self.wait_seconds) {
            return Err(Problem::invalid("`wait_seconds` must be 0 to 30"));
        }
        caller.may_claim(&self.target)?;
        let worker_id = caller.worker_id(&self.worker)?;
        Ok(Claiming { most: self.most.into(), lease, ..Claiming::new(worker_id, self.target.clone()) })
    }
}

/// A turn that the worker holds until it ends, waits, or is taken from the worker.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimedTurn {
    /// The turn.
    agent_turn_id: TurnId,
    /// Fence to send with everything that you write to the turn.
    fence: TurnFence,
    /// Why the worker gets the turn.
    message_type: MessageType,
    /// How often the turn was taken from a worker that was lost.
    n_lost_leases: i32,
    /// Attempts that failed before this one.
    retry_count: i32,
    /// Whether a caller has asked for the turn to end.
    stop_asked: bool,
    /// Box of the profile, if there is one.
    profile_box_id: Option<BoxId>,
    /// Box of what the turn may read.
    context_box_id: BoxId,
    /// Box of what the turn has written.
    output_box_id: BoxId,
    /// Cards that say what the turn is to do.
    query_card_ids: Vec<CardId>,
    /// Session that the turn is part of, if any.
    session_id: Option<SessionId>,
    /// Turn that started this one, if any.
    parent_agent_turn_id: Option<TurnId>,
    /// Batch that the turn belongs to, if any.
    batch_id: Option<BatchId>,
    /// How deep the turn stands below the first one of its tree.
    recursion_depth: i32,
    /// Channel that its events are published to.
    channel: Channel,
}

impl From<Claimed> for ClaimedTurn {
    fn from(claimed: Claimed) -> ClaimedTurn {
        let fence = &claimed.fence;
        ClaimedTurn {
            agent_turn_id: fence.agent_turn_id(),
            fence: TurnFence {
                agent_id: fence.agent_id(),
                turn_epoch: fence.turn_epoch(),
                claim_token: fence.claim_token(),
            },
            message_type: claimed.message_type,
            n_lost_leases: claimed.n_lost_leases,
            retry_count: claimed.retry_count,
            stop_asked: claimed.stop_asked,
            profile_box_id: claimed.profile_box_id,
            context_box_id: claimed.context_box_id,
            output_box_id: claimed.output_box_id,
            query_card_ids: claimed.query_card_ids,
            session_id: claimed.session_id,
            parent_agent_turn_id: claimed.parent_agent_turn_id,
            batch_id: claimed.batch_id,
            recursion_depth: claimed.recursion_depth,
            channel: claimed.channel,
        }
    }
}

/// The claimed turns. Empty if there were none.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimedTurns {
    /// Claimed turns.
    turns: Vec<ClaimedTurn>,
}

/// Claim turns of the project that are ready, or wait for some.
#[utoipa::path(
    post, path = "/worker/claim", tag = "worker", request_body = Claim,
    responses((status = 200, body = ClaimedTurns)),
)]
pub(crate) async fn claim_turns(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Body { value: claim, .. }: Body<Claim>,
) -> Result<Json<ClaimedTurns>, Problem> {
    caller.may(&[Scope::Worker])?;
    let mut claiming = claim.check(&caller)?;
    let door = Door::Agent(claim.target.clone());
    let mut waiting = Waiting::new(&api, &caller, &door, claim.wait_seconds);
    loop {
        let mut work = caller.begin(&api).await?;
        let claimed = turn::claim_in(&mut work, &mut claiming).await?;
        work.commit().await?;
        if !claimed.is_empty() || !waiting.again(&api).await? {
            return Ok(Json(ClaimedTurns { turns: claimed.into_iter().map(ClaimedTurn::from).collect() }));
        }
    }
}

/// Waits for work: until a doorbell rings, it is time to poll, or the time is over.
pub(super) struct Waiting<'a> {
    caller: &'a Caller,
    bells: BoxStream<'static, ()>,
    until: Instant,
    /// When the caller's access was last checked.
    stood: Instant,
    place: Option<Place>,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(api: &Api, caller: &'a Caller, door: &Door, seconds: f64) -> Waiting<'a> {
        let now = Instant::now();
        let until = now + Duration::from_secs_f64(seconds);
        Waiting { caller, bells: api.kernel.bus().hear(door), until, stood: now, place: None }
    }

    /// Waits once. Returns false if the time is over, or the server is to end.
    pub(super) async fn again(&mut self, api: &Api) -> Result<bool, Problem> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() || *api.ending.borrow() {
            return Ok(false);
        }
        if self.place.is_none() {
            self.place = Some(api.gate.waits.take(self.caller.lane, 1)?);
        }
        self.caller.rest();
        tokio::select! {
            _ = self.bells.next() => {}
            () = sleep(LOOK.min(left)) => {}
            () = api.ended() => {}
        }
        if self.stood.elapsed() >= STANDING {
            self.caller.enter(api).await?;
            if self.caller.is_shut_out(api).await {
                return Err(unauthorized("the API key or token has expired or was revoked"));
            }
            self.stood = Instant::now();
        }
        Ok(true)
    }
}

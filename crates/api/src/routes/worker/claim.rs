//! Claiming turns, and waiting for work.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use futures::{StreamExt, stream::BoxStream};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;
use waybill_core::{
    bus::Door,
    card::Reading,
    id::{BatchId, BoxId, CardId, Channel, Name, SessionId, Target, TurnId},
    key::Scope,
    turn::{Budget, MessageType},
};
use waybill_kernel::turn::{self, Claimed, Claiming};

use super::{
    TurnFence,
    brief::{ClaimedProfile, Include, shown},
    lease::{lease_of, lease_seconds},
};
use crate::{
    Api,
    caller::{Caller, STANDING, unauthorized},
    limit::Place,
    problem::Problem,
    request::{Body, answer, size, wait},
};

/// Poll interval for work, while no doorbell rings.
const LOOK: Duration = Duration::from_secs(1);

/// Which worker claims, from which target, and how many calls.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    /// Name that the worker process chooses for itself. Two processes must not use the same name. After a process has lost its lease, it must use a
    /// new name.
    #[schema(min_length = 1, max_length = 200)]
    worker: String,
    /// Target (queue) to claim from: the `target` of tools.
    pub(super) target: Target,
    /// Maximum number of calls to claim. If omitted, 1.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 100)]
    most: u8,
    /// Seconds to wait if there is no work, at most 30. If omitted, the request does not wait.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 30)]
    pub(super) wait_seconds: f64,
    /// Length of the lease in seconds, 1 to 300. If the worker sends no heartbeat for this time, its turns and calls are given to other workers. If
    /// omitted, 30.
    #[serde(default = "lease_seconds")]
    #[schema(minimum = 1, maximum = 300)]
    lease_seconds: f64,
}

const fn one() -> u8 {
    1
}

/// Which worker claims, from which target, how many turns, and what the answer brings along.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimTurns {
    /// Name that the worker process chooses for itself. Two processes must not use the same name. After a process has lost its lease, it must use a
    /// new name.
    #[schema(min_length = 1, max_length = 200)]
    worker: String,
    /// Target (queue) to claim from: the `worker_target` of profiles.
    target: Target,
    /// Maximum number of turns to claim. If omitted, 1.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 100)]
    most: u8,
    /// Seconds to wait if there is no work, at most 30. If omitted, the request does not wait.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 30)]
    wait_seconds: f64,
    /// Length of the lease in seconds, 1 to 300. If the worker sends no heartbeat for this time, its turns and calls are given to other workers. If
    /// omitted, 30.
    #[serde(default = "lease_seconds")]
    #[schema(minimum = 1, maximum = 300)]
    lease_seconds: f64,
    /// What each turn brings along, up to 4 MiB of cards and 4 MiB of profiles in all. If omitted, only ids.
    #[serde(default)]
    #[schema(max_items = 3)]
    include: Vec<Include>,
}

impl Claim {
    pub(super) fn check(&self, caller: &Caller) -> Result<Claiming, Problem> {
        let lease = lease_of(self.lease_seconds)?;
        if !(1..=100).contains(&self.most) {
            return Err(Problem::invalid("`most` must be 1 to 100"));
        }
        wait(self.wait_seconds)?;
        caller.may_claim(&self.target)?;
        let worker_id = caller.worker_id(&self.worker)?;
        Ok(Claiming { most: self.most.into(), lease, ..Claiming::new(worker_id, self.target.clone()) })
    }
}

/// A turn that a worker has claimed. The worker holds it until it finishes the turn, gives it back, lets it wait for calls, or loses its lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimedTurn {
    /// Id of the turn.
    agent_turn_id: TurnId,
    /// Name of the profile of its agent. `null` if the agent has no profile.
    pub(super) profile_name: Option<Name>,
    /// Fence to send with everything that you write to the turn.
    fence: TurnFence,
    /// Why the turn was ready to be claimed.
    message_type: MessageType,
    /// How often the turn was taken from a worker whose lease had expired or that wrote nothing for too long. A new card of the turn resets it to 0.
    n_lost_leases: i32,
    /// Number of failed attempts since the turn last wrote a card.
    retry_count: i32,
    /// Whether the turn was stopped. The worker must then end it as `canceled`.
    stop_asked: bool,
    /// Box with the profile of the turn. `null` if the turn has no profile.
    profile_box_id: Option<BoxId>,
    /// Box with the cards that the turn was given to read.
    context_box_id: BoxId,
    /// Box with the cards that the turn has written, the answers to its calls, and messages that callers sent to it.
    output_box_id: BoxId,
    /// Ids of the cards that say what the turn must do.
    query_card_ids: Vec<CardId>,
    /// Session that the turn is part of, if any.
    session_id: Option<SessionId>,
    /// Turn that started this one, if any.
    parent_agent_turn_id: Option<TurnId>,
    /// Batch that the turn belongs to, if any.
    batch_id: Option<BatchId>,
    /// Number of turns above this one: 0 for a turn that a caller started, 1 for a turn that such a turn started, and so on.
    recursion_depth: i32,
    /// Channel to which the events of the turn are published.
    channel: Channel,
    /// With `query` in `include`: the cards of `query_card_ids`, and last the card with the fields or the JSON Schema of the result, if there is one.
    /// Absent if they did not fit into the response: read them by their ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) query: Option<Vec<Reading>>,
    /// With `profile` in `include`: the profile of the turn, and its tools. Absent if the turn has no profile that can be read, or if it did not fit
    /// into the response: read the card of `profile_box_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) profile: Option<ClaimedProfile>,
    /// With `limits` in `include`: what the turn may still spend. Absent if it has no limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limits: Option<Budget>,
}

impl From<Claimed> for ClaimedTurn {
    fn from(claimed: Claimed) -> ClaimedTurn {
        let fence = &claimed.fence;
        ClaimedTurn {
            agent_turn_id: fence.agent_turn_id(),
            profile_name: None,
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
            query: None,
            profile: None,
            limits: None,
        }
    }
}

/// The turns that the worker has claimed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimedTurns {
    /// Claimed turns. Empty if no turn was ready.
    turns: Vec<ClaimedTurn>,
}

/// Claim turns of a target, to run them.
///
/// If no turn is ready, the request waits up to `wait_seconds` for one.
#[utoipa::path(
    post, path = "/worker/claim", tag = "worker", request_body = ClaimTurns,
    responses((status = 200, body = ClaimedTurns)),
)]
pub(crate) async fn claim_turns(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Body { value, .. }: Body<ClaimTurns>,
) -> Result<Response, Problem> {
    caller.may(&[Scope::Worker])?;
    let ClaimTurns { worker, target, most, wait_seconds, lease_seconds, include } = value;
    if include.len() > 3 {
        return Err(Problem::invalid("`include` must have at most three entries: `query`, `profile` and `limits`"));
    }
    let claim = Claim { worker, target, most, wait_seconds, lease_seconds };
    let mut claiming = claim.check(&caller)?;
    let door = Door::Agent(claim.target.clone());
    let mut waiting = Waiting::new(&api, &caller, &door, claim.wait_seconds);
    loop {
        let mut work = caller.begin(&api).await?;
        let claimed = turn::claim_in(&mut work, &mut claiming).await?;
        let turns = shown(&mut work, claimed, &include).await?;
        work.commit().await?;
        if !turns.is_empty() || !waiting.again(&api).await? {
            let cards =
                |claimed: &ClaimedTurns| size(claimed.turns.iter().flat_map(|turn| turn.query.iter().flatten()));
            return answer(ClaimedTurns { turns }, cards).await;
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

//! Running turns and answering calls from any language (UI-2): the kernel's own transitions, under the same fence.
//!
//! A worker has a name of its own choosing, which stands for one process and its lease. It claims, renews its lease with heartbeats, writes steps,
//! and finishes. If it gets `lease_lost` or `stale` it stops what it was doing: another worker has it. Steps, endings and answers carry ids that
//! the worker mints, and may be sent again until the worker knows that one has arrived.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Json};
use futures::{StreamExt, stream::BoxStream};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;
use waybill_core::{
    bus::Door,
    card::{CardType, Content, Draft, Metadata, NewCard, Role},
    id::{AgentId, BatchId, BoxId, CardId, Channel, Name, SessionId, StepId, Target, ToolCallId, TurnId},
    key::Scope,
    turn::{ClaimToken, End, Fence, MessageType, Prices, TurnEpoch, Usage},
};
use waybill_kernel::{
    call::{self, ClaimedCall},
    external, lease,
    turn::{self, Attempts, Call, Claimed, Claiming, Ended, Ending, Loss, Report, Reported, Step, Stepped},
};

use waybill_tool::{
    admit::{self, Verdict},
    conclude::{Said, conclude},
};

use super::turn::OneTurn;
use crate::{
    Api,
    caller::{Caller, STANDING, unauthorized},
    limit::Place,
    problem::Problem,
    request::{Body, Path, not_empty, not_too_many},
};

const LEASE: std::ops::RangeInclusive<f64> = 1.0..=300.0;
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
    target: Target,
    /// The most turns or calls to claim. If omitted, 1.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 100)]
    most: u8,
    /// Seconds to wait for work, at most 30. If omitted, the request does not wait.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 30)]
    wait_seconds: f64,
    /// Seconds that the process may be silent before other workers get what it holds: 1 to 300. If omitted, 30.
    #[serde(default = "lease_seconds")]
    #[schema(minimum = 1, maximum = 300)]
    lease_seconds: f64,
}

const fn one() -> u8 {
    1
}

const fn lease_seconds() -> f64 {
    30.0
}

impl Claim {
    fn check(&self, caller: &Caller) -> Result<Claiming, Problem> {
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

fn lease_of(seconds: f64) -> Result<Duration, Problem> {
    if !LEASE.contains(&seconds) {
        return Err(Problem::invalid("`lease_seconds` must be 1 to 300"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The right to act on a turn. Send it with everything that you write to the turn.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct TurnFence {
    /// Agent of the turn.
    agent_id: AgentId,
    /// Epoch of the agent: it counts the agent's owners.
    turn_epoch: TurnEpoch,
    /// Token of the claim.
    claim_token: ClaimToken,
}

impl TurnFence {
    fn of(self, caller: &Caller, turn_id: TurnId) -> Fence {
        Fence::claimed(caller.asked, self.agent_id, turn_id, self.turn_epoch, self.claim_token)
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
struct Waiting<'a> {
    caller: &'a Caller,
    bells: BoxStream<'static, ()>,
    until: Instant,
    /// When the caller's access was last checked.
    stood: Instant,
    place: Option<Place>,
}

impl<'a> Waiting<'a> {
    fn new(api: &Api, caller: &'a Caller, door: &Door, seconds: f64) -> Waiting<'a> {
        let now = Instant::now();
        let until = now + Duration::from_secs_f64(seconds);
        Waiting { caller, bells: api.kernel.bus().hear(door), until, stood: now, place: None }
    }

    /// Waits once. Returns false if the time is over, or the server is to end.
    async fn again(&mut self, api: &Api) -> Result<bool, Problem> {
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
                return Err(unauthorized("the key has expired or was revoked"));
            }
            self.stood = Instant::now();
        }
        Ok(true)
    }
}

/// Which process is alive.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Heartbeat {
    /// Name of the worker.
    #[schema(min_length = 1, max_length = 200)]
    worker: String,
    /// Seconds that the process may be silent before other workers get what it holds: 1 to 300. If omitted, 30.
    #[serde(default = "lease_seconds")]
    #[schema(minimum = 1, maximum = 300)]
    lease_seconds: f64,
}

/// What the process holds. It may be more than the process knows of, if the answer to a claim was lost.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Held {
    /// Turns that the worker holds.
    turns: Vec<ClaimedTurn>,
    /// Calls that the worker holds.
    calls: Vec<OneCall>,
}

/// Renew the lease of a worker.
///
/// 410 `lease_lost` means that the lease is lost, with everything that was held under it: continue under another name.
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
    let turns = turn::held(&api.kernel, worker_id).await?.into_iter();
    let turns = turns.filter(|turn| turn.fence.project_id() == caller.project_id).map(ClaimedTurn::from).collect();
    let mut calls = call::held(&api.kernel, worker_id).await?;
    calls.retain(|call| call.project_id == caller.project_id);
    let calls = admitted(&api, &caller, calls, true).await?;
    Ok(Json(Held { turns, calls }))
}

/// Which process leaves.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leave {
    /// Name of the worker.
    #[schema(min_length = 1, max_length = 200)]
    worker: String,
}

/// Confirmation that it is done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Done {
    /// Always true.
    done: bool,
}

/// End the lease of a worker in good order.
///
/// Other workers get what the process still holds at once.
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

/// A card to write. The worker mints its id, so that the card can be sent again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CardDraft {
    /// Id of the card, a UUIDv7.
    card_id: CardId,
    /// Type of the card, such as `agent.thought`, `tool.call`, `task.deliverable`.
    #[serde(rename = "type")]
    #[schema(pattern = "^[a-z0-9_.]{1,64}$")]
    card_type: String,
    /// `assistant`, or `tool` for what a tool answered. A worker cannot write what users or the system say.
    role: Role,
    /// Content in the form that the type requires: text, or JSON.
    content: Value,
    /// Call that a `tool.call` makes, or that a `tool.result` answers. If omitted, the card belongs to no call.
    #[serde(default)]
    tool_call_id: Option<ToolCallId>,
    /// Further metadata, which is not hashed.
    #[serde(default)]
    extra: Map<String, Value>,
    /// Seconds until the content expires. If omitted, it does not expire.
    #[serde(default)]
    #[schema(minimum = 1)]
    ttl_seconds: Option<i32>,
}

impl CardDraft {
    fn seal(self, caller: &Caller, step_id: Option<StepId>) -> Result<NewCard, Problem> {
        if !matches!(self.role, Role::Assistant | Role::Tool) {
            return Err(Problem::invalid("a worker may only write cards of the roles `assistant` and `tool`"));
        }
        caller.may_say(&self.content)?;
        let card_type: CardType = self.card_type.parse().map_err(invalid)?;
        let content = Content::read(&card_type, self.content).map_err(invalid)?;
        let metadata = Metadata {
            author_id: Some(caller.actor.clone()),
            step_id,
            extra: self.extra,
            ..Metadata::new(card_type.clone(), self.role)
        };
        let draft = Draft::new(card_type, self.role, content);
        let (card_id, tool_call_id, ttl_seconds) = (self.card_id, self.tool_call_id, self.ttl_seconds);
        Draft { card_id, metadata, tool_call_id, ttl_seconds, ..draft }.seal().map_err(invalid)
    }
}

fn invalid(error: impl std::error::Error) -> Problem {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    Problem::invalid(format!("{error}{cause}"))
}

/// A call that a step makes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallOut {
    /// Id of the call: a UUIDv7 of the present time, which the worker mints.
    tool_call_id: ToolCallId,
    /// Its `tool.call` card, which is one of the cards of the step.
    tool_call_card_id: CardId,
    /// Target that answers the call. `pmo` is the orchestrator.
    target: Target,
    /// Seconds until the call times out.
    #[schema(minimum = 1, maximum = 86400)]
    timeout_seconds: u32,
    /// Whether the call is made at most once: if the worker that claimed it is lost, it is unknown whether it was done, and it is not done again.
    #[serde(default)]
    once: bool,
}

/// What one step wrote. Its id is its idempotency key: a step that is sent again changes nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewStep {
    /// Fence of the turn.
    fence: TurnFence,
    /// Id of the step: a UUIDv7 of the present time.
    step_id: StepId,
    /// Cards that the step writes.
    #[serde(default)]
    #[schema(max_items = 1000)]
    cards: Vec<CardDraft>,
    /// Calls that the step makes.
    #[serde(default)]
    #[schema(max_items = 1000)]
    calls: Vec<CallOut>,
    /// Whether the turn waits for its calls, these and earlier ones.
    #[serde(default)]
    suspend: bool,
    /// Whether the worker has seen content from outside that is not a card of the turn's boxes. What the turn writes is then labelled as external.
    #[serde(default)]
    saw_external: bool,
    /// What the model call of the step used. If omitted, nothing is counted.
    #[serde(default)]
    usage: Option<UsageSaid>,
}

/// What a model call used. It is deducted from what the turn may spend.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UsageSaid {
    /// Provider of the model.
    provider: String,
    /// Name of the model.
    model: String,
    /// Tokens that the model read, cached ones included.
    #[schema(maximum = 2147483647)]
    input_tokens: u32,
    /// How many of these came from the prompt cache.
    #[schema(maximum = 2147483647)]
    cached_tokens: u32,
    /// Tokens that the model wrote.
    #[schema(maximum = 2147483647)]
    output_tokens: u32,
    /// Cost in millionths of a dollar. Counts only if the operator has set no price for this provider and model.
    #[schema(maximum = 2147483647)]
    microdollars: u32,
    /// Duration in milliseconds.
    #[schema(maximum = 2147483647)]
    took_ms: u32,
}

impl UsageSaid {
    fn check(self, prices: &Prices) -> Result<Usage, Problem> {
        let most = i32::MAX.unsigned_abs();
        let said = [self.input_tokens, self.cached_tokens, self.output_tokens, self.microdollars, self.took_ms];
        if said.into_iter().any(|n| n > most) {
            return Err(Problem::invalid(format!("each number of `usage` must be at most {most}")));
        }
        let mut usage = Usage {
            provider: self.provider,
            model: self.model,
            input_tokens: self.input_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            microdollars: self.microdollars.into(),
            took_ms: self.took_ms,
            n_asked: 1,
            asked_again: false,
            cache_miss: None,
            reported: true,
        };
        if let Some(price) = prices.get(&usage.provider).and_then(|models| models.get(&usage.model)) {
            usage.microdollars = price.of(&usage);
        }
        Ok(usage)
    }
}

/// Write a step, under the fence.
///
/// 409 `stale` means that another worker has the turn, or that it is over.
#[utoipa::path(
    post, path = "/turns/{turn}/steps", tag = "worker", request_body = NewStep,
    params(("turn" = TurnId, Path)),
    responses((status = 200, body = Stepped)),
)]
pub(crate) async fn write_step(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Body { value: step, .. }: Body<NewStep>,
) -> Result<Json<Stepped>, Problem> {
    caller.may(&[Scope::Worker])?;
    let step_id = step.step_id;
    not_too_many("cards", &step.cards)?;
    not_too_many("calls", &step.calls)?;
    let cards: Vec<NewCard> =
        step.cards.into_iter().map(|card| card.seal(&caller, Some(step_id))).collect::<Result<_, _>>()?;
    let mut calls = Vec::with_capacity(step.calls.len());
    for call in step.calls {
        if !(1..=86_400).contains(&call.timeout_seconds) {
            return Err(Problem::invalid("`timeout_seconds` must be 1 to 86,400"));
        }
        let is_its_card =
            |card: &NewCard| card.card_id() == call.tool_call_card_id && card.tool_call_id() == Some(call.tool_call_id);
        if !cards.iter().any(is_its_card) {
            let said = format!(
                "call {}: the step has no `tool.call` card {} for it",
                call.tool_call_id, call.tool_call_card_id
            );
            return Err(Problem::invalid(said));
        }
        let timeout = Duration::from_secs(call.timeout_seconds.into());
        let CallOut { tool_call_id, tool_call_card_id, target, once, .. } = call;
        calls.push(Call { tool_call_id, target, tool_call_card_id, timeout, once });
    }
    let usage = step.usage.map(|said| said.check(&api.config.prices)).transpose()?;
    let fence = step.fence.of(&caller, turn);
    if step.saw_external {
        mark(&api, &caller, &fence).await?;
    }
    let step = Step { step_id, cards, calls, suspend: step.suspend, receipt: None, usage };
    let mut work = caller.begin(&api).await?;
    caller.holds(&mut work, &fence).await?;
    let stepped = turn::step(&mut work, &fence, &step).await?;
    work.commit().await?;
    Ok(Json(stepped))
}

/// How the turn ends.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finish {
    /// Fence of the turn.
    fence: TurnFence,
    /// Outcome of the turn.
    status: End,
    /// Id of the last step, if the ending is a step. If omitted, it is not.
    #[serde(default)]
    step_id: Option<StepId>,
    /// Cards to write. The last one is the `task.deliverable`.
    #[schema(min_items = 1, max_items = 1000)]
    cards: Vec<CardDraft>,
    /// Whether the worker has seen content from outside, as in a step.
    #[serde(default)]
    saw_external: bool,
    /// What the last model call used. If omitted, nothing is counted.
    #[serde(default)]
    usage: Option<UsageSaid>,
    /// How many cards of the output box the worker has read. If a caller has steered the turn since, the turn does not end and the answer is 409
    /// `unseen`: read the output box and go on. If omitted, the length that the output box had when the worker wrote its last step.
    #[serde(default)]
    #[schema(minimum = 0)]
    seen: Option<i64>,
}

/// Records that a turn has seen content from outside, if a worker of the caller holds it. In a unit of work of its own: a box is not locked before
/// its turn.
async fn mark(api: &Api, caller: &Caller, fence: &Fence) -> Result<(), Problem> {
    let mut work = caller.begin(api).await?;
    if caller.holds(&mut work, fence).await? {
        let found = turn::show(&mut work, &[fence.agent_turn_id()]).await?.pop();
        if let Some(turn) = found {
            external::mark(&mut work, turn.output_box_id).await?;
            work.commit().await?;
        }
    }
    Ok(())
}

/// Finish a turn: write its deliverable and end it.
///
/// 409 `stale` means that another worker has the turn, or that it is over.
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
        usage: finish.usage.map(|said| said.check(&api.config.prices)).transpose()?,
        seen: finish.seen,
        cards,
    };
    let mut work = caller.begin(&api).await?;
    caller.holds(&mut work, &fence).await?;
    if ending.seen.is_none() && ending.status == End::Success {
        ending.seen = Some(turn::written_upto(&mut work, turn).await?);
    }
    let ended = turn::finish(&mut work, &[ending]).await?;
    work.commit().await?;
    Ok(Json(ended))
}

/// Why the attempt failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GiveBack {
    /// Fence of the turn.
    fence: TurnFence,
    /// Error that ended the attempt.
    #[schema(min_length = 1)]
    error: String,
    /// Seconds to wait before the next attempt, at most 3,600. If omitted, 0.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 3600)]
    backoff_seconds: f64,
}

/// What became of the turn.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GivenBack {
    /// `armed`: it will be tried again. `ended`: it was tried often enough, and has failed. `stale`: another worker has it, or it is over.
    outcome: &'static str,
}

/// Give a turn back after a failed attempt.
///
/// The next attempt goes on from what was written so far.
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

/// A call that the worker is to answer, until its deadline or until it is taken from the worker.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OneCall {
    /// The call.
    tool_call_id: ToolCallId,
    /// Turn that makes the call.
    agent_turn_id: TurnId,
    /// Agent of that turn.
    agent_id: AgentId,
    /// Token of the claim. Send it with the answer.
    claim_token: ClaimToken,
    /// Name of the tool.
    tool_name: Name,
    /// Arguments in the form of the tool's schema: the model's own text.
    arguments: String,
    /// The same for every worker that gets the call, however often: do the work once for each key.
    idempotency_key: ToolCallId,
    /// When the call times out.
    deadline_at: chrono::DateTime<chrono::Utc>,
    /// How often the call was taken from a worker that was lost.
    n_lost_leases: i32,
    /// User for whom the turn was started, if the caller named one.
    on_behalf_of: Option<String>,
}

/// The claimed calls. Empty if there were none.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimedCalls {
    /// Claimed calls.
    calls: Vec<OneCall>,
}

impl OneCall {
    fn new(claimed: &ClaimedCall, tool_name: Name, arguments: String, on_behalf_of: Option<String>) -> OneCall {
        OneCall {
            tool_call_id: claimed.tool_call_id,
            agent_turn_id: claimed.agent_turn_id,
            agent_id: claimed.agent_id,
            claim_token: claimed.claim_token,
            tool_name,
            arguments,
            idempotency_key: claimed.tool_call_id,
            deadline_at: claimed.deadline_at,
            n_lost_leases: claimed.n_lost_leases,
            on_behalf_of,
        }
    }
}

/// Returns the calls that may be made. A call that may not be made is answered here, and for some a person must decide first. `known` means that
/// they may have been let through before.
async fn admitted(api: &Api, caller: &Caller, claimed: Vec<ClaimedCall>, known: bool) -> Result<Vec<OneCall>, Problem> {
    let mut calls = Vec::with_capacity(claimed.len());
    for claimed in claimed {
        let mut work = caller.begin(api).await?;
        if known && call::is_admitted(&mut work, &claimed).await? {
            // The call is in progress, whatever the turn has seen since.
            let Some(asked) = call::asked(&mut work, &claimed).await? else { continue };
            let Ok(tool_name) = asked.tool_name.parse() else { continue };
            calls.push(OneCall::new(&claimed, tool_name, asked.arguments, asked.on_behalf_of));
            continue;
        }
        let verdict = match admit::admit(&mut work, &claimed).await {
            // Another worker has it by now.
            Err(turn::Error::Stale(_)) => continue,
            verdict => verdict?,
        };
        work.commit().await?;
        let admitted = match verdict {
            Verdict::Go(admitted) => admitted,
            Verdict::Asking => continue,
            Verdict::Refused(said) => {
                conclude(&api.kernel, None, &claimed, CardId::new(), said).await?;
                continue;
            }
        };
        calls.push(OneCall::new(&claimed, admitted.tool.name, admitted.said, admitted.on_behalf_of));
    }
    Ok(calls)
}

/// Claim calls of the project that wait for an answer, or wait for some.
#[utoipa::path(
    post, path = "/calls/claim", tag = "worker", request_body = Claim,
    responses((status = 200, body = ClaimedCalls)),
)]
pub(crate) async fn claim_calls(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Body { value: claim, .. }: Body<Claim>,
) -> Result<Json<ClaimedCalls>, Problem> {
    caller.may(&[Scope::Tool, Scope::Worker])?;
    let mut claiming = claim.check(&caller)?;
    let door = Door::of_calls(claim.target.clone());
    let mut waiting = Waiting::new(&api, &caller, &door, claim.wait_seconds);
    loop {
        let mut work = caller.begin(&api).await?;
        let claimed = call::claim_in(&mut work, &mut claiming).await?;
        work.commit().await?;
        let calls = admitted(&api, &caller, claimed, false).await?;
        if !calls.is_empty() || !waiting.again(&api).await? {
            return Ok(Json(ClaimedCalls { calls }));
        }
    }
}

/// The answer to a call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewReport {
    /// Name of the worker that claimed the call.
    #[schema(min_length = 1, max_length = 200)]
    worker: String,
    /// Token of the claim.
    claim_token: ClaimToken,
    /// Id of the `tool.result` card: a UUIDv7 that the worker mints, so that the answer can be sent again.
    card_id: CardId,
    /// Outcome of the call: `success`, `failed`, …
    #[schema(min_length = 1, max_length = 64)]
    status: String,
    /// Result of the call. If it has more tokens than the project's `result_tokens`, it becomes an artifact, and the turn gets its beginning and end.
    result: Value,
    /// What follows the call. If omitted, what the manifest of the tool says.
    #[serde(default)]
    after_execution: Option<After>,
}

/// What follows a call.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum After {
    /// The turn goes on.
    Suspend,
    /// The turn ends with the result.
    Terminate,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneToolCall {
    call: ToolCallId,
}

/// Answer a call.
///
/// The last answer that a turn waits for makes the turn ready again.
#[utoipa::path(
    post, path = "/calls/{call}/report", tag = "worker", request_body = NewReport,
    params(("call" = ToolCallId, Path)),
    responses((status = 200, body = Reported)),
)]
pub(crate) async fn report_call(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneToolCall { call }): Path<OneToolCall>,
    Body { value: said, .. }: Body<NewReport>,
) -> Result<Json<Reported>, Problem> {
    caller.may(&[Scope::Tool, Scope::Worker])?;
    if !(1..=64).contains(&said.status.chars().count()) {
        return Err(Problem::invalid("`status` must have 1 to 64 characters"));
    }
    let worker_id = caller.worker_id(&said.worker)?;
    let mut work = caller.begin(&api).await?;
    let held = call::find(&mut work, worker_id, call, said.claim_token).await?;
    let is_open = held.is_some() || call::is_open(&mut work, call).await?;
    drop(work);
    if let Some(held) = held {
        let after = said.after_execution.map(|after| ("after_execution".to_owned(), serde_json::json!(after)));
        let answer = Said {
            extra: after.into_iter().collect(),
            author_id: Some(caller.actor.clone()),
            ..Said::new(&said.status, said.result)
        };
        let reported = conclude(&api.kernel, api.config.artifacts.as_ref(), &held, said.card_id, answer).await?;
        return Ok(Json(reported));
    }
    if is_open {
        return Err(turn::Error::Stale(call.to_string()).into());
    }
    // The call is over: by this answer, or before it came.
    let mut draft = Draft { card_id: said.card_id, ..Draft::tool_result(call, &said.status, said.result) };
    draft.metadata.author_id = Some(caller.actor.clone());
    let report = Report {
        is_external: true,
        tool_call_id: call,
        claim_token: Some(said.claim_token),
        message_type: MessageType::ToolResult,
        status: said.status,
        card: draft.seal().map_err(invalid)?,
    };
    let mut work = caller.begin(&api).await?;
    let reported = turn::report(&mut work, &report).await?;
    work.commit().await?;
    Ok(Json(reported))
}

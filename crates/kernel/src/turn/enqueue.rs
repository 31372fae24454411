//! Transaction 1: dispatch is one path for all callers (PM-3, L0-2, L0-3, L0-11).

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::types::Json;
use waybill_core::{
    bus::Door,
    card::NewCard,
    id::{AgentId, BatchId, BoxId, CardId, Channel, SessionId, StepId, Target, ToolCallId, TraceId, TurnId},
    metric,
    turn::{Limits, TurnEpoch},
};

use super::{Error, check_cards, check_minted};
use crate::work::{self, Work};

/// A spawn adds one to its parent's depth. Deeper than this is refused, whatever a project's settings allow.
pub const MAX_RECURSION_DEPTH: i32 = 100;

const MOST_HEADER: usize = 512;

/// A turn that is to be dispatched. Its id is its idempotency key: the same request again changes nothing and gets the same answer.
#[derive(Clone, Debug)]
pub struct DispatchRequest {
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    pub channel: Option<Channel>,
    pub profile_box_id: Option<BoxId>,
    /// What the turn may read. Exists already, unless `context_card_ids` says what to make it of.
    pub context_box_id: BoxId,
    /// The cards of a context box that is made here, in order.
    pub context_card_ids: Option<Vec<CardId>>,
    /// What the turn will write. Made here.
    pub output_box_id: BoxId,
    pub query_card_ids: Vec<CardId>,
    pub session_id: Option<SessionId>,
    pub source_agent_id: Option<AgentId>,
    pub parent_agent_turn_id: Option<TurnId>,
    pub parent_step_id: Option<StepId>,
    pub parent_tool_call_id: Option<ToolCallId>,
    pub batch_id: Option<BatchId>,
    pub task_index: Option<i32>,
    pub recursion_depth: i32,
    pub trace_id: Option<TraceId>,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    /// Not dispatched before this time; until then it holds up no other turn.
    pub not_before: Option<DateTime<Utc>>,
    pub emit_state_event: bool,
    /// What it may spend: at most an equal share of what its parent may spend.
    pub limits: Option<Limits>,
    /// Among how many the parent's budget is divided: the turns that are still to be dispatched, and the parent.
    pub shares: Option<i32>,
}

waybill_core::composite!(turn: DispatchRequest => "state.new_turn" {
    turn.agent_turn_id,
    turn.agent_id,
    turn.channel.as_ref(),
    turn.profile_box_id,
    turn.context_box_id,
    turn.context_card_ids.as_deref(),
    turn.output_box_id,
    &turn.query_card_ids[..],
    turn.session_id,
    turn.source_agent_id,
    turn.parent_agent_turn_id,
    turn.parent_step_id,
    turn.parent_tool_call_id,
    turn.batch_id,
    turn.task_index,
    turn.recursion_depth,
    turn.trace_id,
    turn.traceparent.as_deref(),
    turn.tracestate.as_deref(),
    turn.not_before,
    turn.emit_state_event,
    turn.limits.map(Json),
    turn.shares,
});

impl DispatchRequest {
    /// Returns a turn whose context is a box that exists.
    pub fn new(agent_id: AgentId, context_box_id: BoxId) -> DispatchRequest {
        DispatchRequest {
            agent_turn_id: TurnId::new(),
            agent_id,
            channel: None,
            profile_box_id: None,
            context_box_id,
            context_card_ids: None,
            output_box_id: BoxId::new(),
            query_card_ids: Vec::new(),
            session_id: None,
            source_agent_id: None,
            parent_agent_turn_id: None,
            parent_step_id: None,
            parent_tool_call_id: None,
            batch_id: None,
            task_index: None,
            recursion_depth: 0,
            trace_id: None,
            traceparent: None,
            tracestate: None,
            not_before: None,
            emit_state_event: false,
            limits: None,
            shares: None,
        }
    }

    /// Returns a turn that sees one instruction and nothing else.
    pub fn instructed(agent_id: AgentId, instruction: CardId) -> DispatchRequest {
        DispatchRequest {
            context_card_ids: Some(vec![instruction]),
            query_card_ids: vec![instruction],
            ..DispatchRequest::new(agent_id, BoxId::new())
        }
    }
}

/// A turn that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct Dispatched {
    pub agent_turn_id: TurnId,
    /// `None` means that it was queued behind another turn, or for later.
    pub turn_epoch: Option<TurnEpoch>,
    pub duplicate: bool,
}

#[derive(sqlx::FromRow)]
struct DispatchedRow {
    #[sqlx(flatten)]
    dispatched: Dispatched,
    /// `None` for a replay.
    worker_target: Option<Target>,
}

/// Accepts turns, all or none, with the cards they come with. Answers in the order of the requests.
pub async fn enqueue<W: Work>(
    work: &mut W,
    requests: &[DispatchRequest],
    cards: &[NewCard],
) -> Result<Vec<Dispatched>, Error> {
    check_cards(cards)?;
    if let Some(deep) = requests.iter().find(|request| request.recursion_depth > MAX_RECURSION_DEPTH) {
        return Err(Error::RecursionDepthExceeded { depth: deep.recursion_depth, limit: MAX_RECURSION_DEPTH });
    }
    // They go with every event, as headers: one that a broker refuses would hold up the agent's other events.
    let headers = requests.iter().flat_map(|request| [&request.traceparent, &request.tracestate]);
    if headers.flatten().any(|header| header.len() > MOST_HEADER || header.contains(char::is_control)) {
        return Err(Error::Invalid(
            "`traceparent` and `tracestate` must have at most 512 bytes and no control characters",
        ));
    }
    let minted = requests.iter().map(|request| request.agent_turn_id.minted_at());
    check_minted(
        minted,
        "the id of a turn must be a UUIDv7 whose time is not in the future: check this machine's clock",
    )?;
    let rows = match dispatch(work, requests, cards).await {
        // The same request is being written by another transaction: now that it has ended, its answer is known.
        Err(Error::TryAgain(error)) if W::ALONE && error.has_code("23505") => dispatch(work, requests, cards).await?,
        // It may be the same request that filled the queue.
        Err(Error::Busy) if W::ALONE => dispatch(work, requests, cards).await?,
        known => known?,
    };
    let n_new = rows.iter().filter(|row| !row.dispatched.duplicate).count();
    metrics::counter!(metric::TURNS_ENQUEUED).increment(n_new as u64);
    // One that queues behind another is dispatched by the other's end.
    for row in rows.iter().filter(|row| row.dispatched.turn_epoch.is_some()) {
        if let Some(target) = &row.worker_target {
            work.ring(Door::Agent(target.clone()));
        }
    }
    Ok(rows.into_iter().map(|row| row.dispatched).collect())
}

async fn dispatch(
    work: &mut impl Work,
    requests: &[DispatchRequest],
    cards: &[NewCard],
) -> Result<Vec<DispatchedRow>, Error> {
    match requests {
        [] => Ok(Vec::new()),
        [request] => {
            let query = sqlx::query_as(
                "select agent_turn_id, turn_epoch, worker_target, duplicate
                   from state.enqueue(p_project => $1, p_new => $2, p_cards => $3)",
            )
            .bind(work.project_id())
            .bind(request)
            .bind(cards);
            Ok(work::all(work, query).await?)
        }
        many => enqueue_many(work, many, cards).await,
    }
}

async fn enqueue_many(
    work: &mut impl Work,
    requests: &[DispatchRequest],
    cards: &[NewCard],
) -> Result<Vec<DispatchedRow>, Error> {
    let mut agents: Vec<AgentId> = requests.iter().map(|request| request.agent_id).collect();
    agents.sort_unstable();
    agents.dedup();
    let query = sqlx::query_as(
        "select agent_turn_id, turn_epoch, worker_target, duplicate
           from state.enqueue_many(p_project => $1, p_agents => $2, p_turns => $3, p_cards => $4)",
    )
    .bind(work.project_id())
    .bind(agents)
    .bind(requests)
    .bind(cards);
    let mut answers: Vec<DispatchedRow> = work::all(work, query).await?;
    let places: HashMap<TurnId, usize> =
        requests.iter().enumerate().map(|(place, request)| (request.agent_turn_id, place)).collect();
    answers.sort_by_key(|answer| places.get(&answer.dispatched.agent_turn_id).copied());
    Ok(answers)
}

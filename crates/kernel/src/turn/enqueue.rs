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
use crate::{card::bind_cards, work::Work};

/// A spawn adds one to its parent's depth. Deeper than this is refused, whatever a project's settings allow.
pub const MAX_RECURSION_DEPTH: i32 = 100;

const MOST_HEADER: usize = 512;

/// A turn that is to be dispatched. Its id is its idempotency key: the same request again changes nothing and gets the same answer.
#[derive(Clone, Debug, Serialize)]
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
    #[serde(serialize_with = "as_uuid")]
    pub trace_id: Option<TraceId>,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    /// Not dispatched before this time; until then it holds up no other turn.
    pub not_before: Option<DateTime<Utc>>,
    pub emit_state_event: bool,
    /// What it may spend: at most an equal share of what its parent may spend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Among how many the parent's budget is divided: the turns that are still to be dispatched, and the parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<i32>,
}

/// 32 hex digits are a uuid to PostgreSQL too.
fn as_uuid<S: serde::Serializer>(id: &Option<TraceId>, serializer: S) -> Result<S::Ok, S::Error> {
    id.map(|id| id.to_string()).serialize(serializer)
}

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
pub async fn enqueue(
    work: &mut impl Work,
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
    let rows: Vec<DispatchedRow> = match requests {
        [] => Vec::new(),
        [request] => {
            let query = sqlx::query_as(
                "select agent_turn_id, turn_epoch, worker_target, duplicate
                   from state.enqueue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
                                      $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38)",
            )
            .bind(work.project_id())
            .bind(request.agent_turn_id)
            .bind(request.agent_id)
            .bind(&request.channel)
            .bind(request.profile_box_id)
            .bind(request.context_box_id)
            .bind(request.output_box_id)
            .bind(&request.context_card_ids)
            .bind(&request.query_card_ids)
            .bind(request.session_id)
            .bind(request.source_agent_id)
            .bind(request.parent_agent_turn_id)
            .bind(request.parent_step_id)
            .bind(request.parent_tool_call_id)
            .bind(request.batch_id)
            .bind(request.task_index)
            .bind(request.recursion_depth)
            .bind(request.trace_id)
            .bind(&request.traceparent)
            .bind(&request.tracestate)
            .bind(request.not_before)
            .bind(request.emit_state_event)
            .bind(request.limits.map(Json))
            .bind(request.shares);
            bind_cards!(query, cards).fetch_all(work.connection()).await?
        }
        many => enqueue_many(work, many, cards).await?,
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
           from state.enqueue_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
    )
    .bind(work.project_id())
    .bind(agents)
    .bind(Json(requests));
    let mut answers: Vec<DispatchedRow> = bind_cards!(query, cards).fetch_all(work.connection()).await?;
    let places: HashMap<TurnId, usize> =
        requests.iter().enumerate().map(|(place, request)| (request.agent_turn_id, place)).collect();
    answers.sort_by_key(|answer| places.get(&answer.dispatched.agent_turn_id).copied());
    Ok(answers)
}

//! Looking at turns: what each is, trees and edges, for people and for the API. Nothing here is on the path of a turn.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::FromRow;
use waybill_core::{
    card::{Content, Reading},
    id::{AgentId, BatchId, BoxId, CardId, Channel, Name, SessionId, StepId, Target, ToolCallId, TraceId, TurnId},
    label::Labels,
    turn::{InboxStatus, Status, TurnStatus},
};

use super::{Error, interval};
use crate::{card, work::UnitOfWork};

/// A turn: its state, its boxes, and what it has used so far.
#[derive(Clone, Debug, PartialEq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Summary {
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    pub profile_name: Option<Name>,
    /// First line of the instruction, at most 120 characters. `null` if the instruction can no longer be shown, has more than 64 kB, or is no text.
    pub title: Option<String>,
    /// `open` until the turn has ended; then how it ended.
    pub status: TurnStatus,
    /// Why the turn failed, was stopped or timed out, or why it is to stop. `null` if no reason is recorded, or if it can no longer be shown.
    pub reason: Option<String>,
    /// What the turn waits for while it is open. `null` while a worker runs it, and once it has ended.
    #[sqlx(json(nullable))]
    pub waiting_for: Option<WaitingFor>,
    /// State of the turn while it is open. `null` once the turn has ended.
    pub inbox_status: Option<InboxStatus>,
    /// Status of the agent, if this is its current turn: `dispatched`, `running` or `suspended`. Otherwise `null`.
    pub agent_status: Option<Status>,
    /// How often the turn was taken from a worker whose lease had expired or that wrote nothing for too long. A new card of the turn resets it to 0.
    /// `null` once the turn has ended.
    pub n_lost_leases: Option<i32>,
    pub session_id: Option<SessionId>,
    pub channel: Channel,
    /// Labels that its caller gave it.
    #[sqlx(json)]
    pub labels: Labels,
    /// The agent that asked for it. `null` means a person.
    pub source_agent_id: Option<AgentId>,
    pub parent_agent_turn_id: Option<TurnId>,
    /// The turn at the top of its tree: itself, if no turn started it.
    pub root_turn_id: TurnId,
    /// Number of turns below it, counted up to 1,000. `null` for a turn that another turn started.
    pub n_below: Option<i64>,
    /// The step of the parent in which it was asked for.
    pub parent_step_id: Option<StepId>,
    /// The call of the parent that asked for it.
    pub parent_tool_call_id: Option<ToolCallId>,
    pub batch_id: Option<BatchId>,
    pub task_index: Option<i32>,
    pub recursion_depth: i32,
    /// The trace that it belongs to: 32 hex digits.
    #[schema(value_type = Option<String>, pattern = "^[0-9a-f]{32}$")]
    pub trace_id: Option<TraceId>,
    pub profile_box_id: Option<BoxId>,
    pub context_box_id: BoxId,
    pub output_box_id: BoxId,
    pub query_card_ids: Vec<CardId>,
    pub deliverable_card_id: Option<CardId>,
    /// Whether its context or its output has external content.
    pub external: bool,
    /// For a fork, the recorded turn that it runs again.
    pub forked_from: Option<TurnId>,
    /// Caller that started the turn, such as `key:NAME` (API key), `user:SUBJECT` (token of the identity provider) or `cli:USER` (command line). A
    /// child turn has the same caller as its parent.
    pub started_by: Option<String>,
    /// User of the caller's own system for whom the turn was started, if the caller named one.
    pub on_behalf_of: Option<String>,
    /// What it was given to spend. `null` for a turn without limits.
    #[sqlx(json(nullable))]
    pub limits: Option<Given>,
    pub created_at: DateTime<Utc>,
    pub finished_at: Option<DateTime<Utc>>,
    /// Models that its steps used.
    pub models: Vec<String>,
    pub n_steps: i64,
    pub input_tokens: i64,
    pub cached_tokens: i64,
    pub output_tokens: i64,
    pub microdollars: i64,
}

/// What an open turn waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WaitingFor {
    pub kind: WaitKind,
    /// The tool that was called, or for `worker` the target. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub since: DateTime<Utc>,
}

/// What an open turn waits for. `person`: a decision or an answer. `child`: turns that it started. `tool`: the answer of a tool. `retry`: the time of
/// its next attempt, or of its start. `worker`: a worker that claims it. `queue`: another turn of its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WaitKind {
    Person,
    Child,
    Tool,
    Retry,
    Worker,
    Queue,
}

/// What a turn was given to spend when it was started: of what its parent may spend, its share. A field that is omitted sets no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Given {
    /// Model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<i64>,
    /// Tokens, read and written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<i64>,
    /// Cost in millionths of a dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microdollars: Option<i64>,
    /// The time by which it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<DateTime<Utc>>,
}

/// Returns a turn and all turns that it asked for, directly or not, level by level: each after the turn that asked for it. Of more than `most`, the
/// deepest are left out.
pub async fn tree(work: &mut UnitOfWork, turn_id: TurnId, most: i64) -> Result<Vec<Summary>, Error> {
    let project_id = work.project_id();
    let tree = sqlx::query_as("select s.* from state.summaries($1, state.turns_below($1, $2, $3)) s")
        .bind(project_id)
        .bind(turn_id)
        .bind(most)
        .fetch_all(&mut **work)
        .await?;
    Ok(tree)
}

/// Looks up turns, in the order asked for; those that do not exist are left out.
pub async fn show(work: &mut UnitOfWork, turn_ids: &[TurnId]) -> Result<Vec<Summary>, Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as("select s.* from state.summaries($1, $2) s");
    Ok(found.bind(project_id).bind(turn_ids).fetch_all(&mut **work).await?)
}

/// A turn that another asked for, does not wait for, and that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct OpenChild {
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    pub profile_name: Option<String>,
    /// The beginning of what it was asked.
    pub instruction: String,
}

/// Lists the turns that a turn started, does not wait for, and that have not ended.
pub async fn open_children(work: &mut UnitOfWork, turn_id: TurnId, most: i64) -> Result<Vec<OpenChild>, Error> {
    let project_id = work.project_id();
    let children = sqlx::query_as(
        "select t.agent_turn_id, t.agent_id, a.profile_name, coalesce(left(r.content #>> '{}', 200), '') as instruction
           from (select t.*
                   from (select t.*
                           from state.turns t
                          where t.parent_agent_turn_id = $2 and t.project_id = $1 and t.status = 'open' and t.batch_id is null
                         offset 0) t
                  order by t.agent_turn_id
                  limit $3) t
           left join lateral (
                select a.profile_name from resource.project_agents a where a.project_id = $1 and a.agent_id = t.agent_id offset 0) a on true
           left join lateral cardbox.reading($1, t.query_card_ids[1], statement_timestamp()) r on true
          order by t.agent_turn_id",
    )
    .bind(project_id)
    .bind(turn_id)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(children)
}

/// A turn that is ready, or that waits for a call, and no process serves the target.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Unserved {
    pub agent_turn_id: TurnId,
    pub target: Target,
    /// Whether a call of the turn waits, and not the turn itself.
    pub is_call: bool,
}

/// Returns those of the turns that have waited this long for a target that no process serves. An idle process is not known, so `wait` must be
/// longer than the interval at which processes look for work.
pub async fn unserved(work: &mut UnitOfWork, turn_ids: &[TurnId], wait: Duration) -> Result<Vec<Unserved>, Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select w.agent_turn_id, w.target, w.is_call
           from unnest($2::uuid[]) as asked (agent_turn_id)
          cross join lateral (
                select i.agent_turn_id, i.worker_target::text as target, false as is_call
                  from (select i.* from state.agent_inbox i where i.project_id = $1 and i.agent_turn_id = asked.agent_turn_id offset 0) i
                 where i.status = 'pending' and i.armed_at < clock_timestamp() - $3::interval
                 union all
                select c.agent_turn_id, c.target::text, true
                  from (select c.* from state.waiting_calls c where c.agent_turn_id = asked.agent_turn_id and c.project_id = $1 offset 0) c
                 where c.status = 'pending' and c.created_at < clock_timestamp() - $3::interval) w
          where not exists (select from scheduler.serving(array[w.target]))
          order by w.agent_turn_id",
    )
    .bind(project_id)
    .bind(turn_ids)
    .bind(interval(wait))
    .fetch_all(&mut **work)
    .await?;
    Ok(found)
}

/// Returns how many attempts of each of these turns have failed since it last wrote something. Turns without a failed attempt are left out.
pub async fn failing(work: &mut UnitOfWork, turn_ids: &[TurnId]) -> Result<Vec<(TurnId, i32)>, Error> {
    let project_id = work.project_id();
    let failing = sqlx::query_as(
        "select i.agent_turn_id, i.retry_count
           from unnest($2::uuid[]) as asked (agent_turn_id)
          cross join lateral (
                select i.* from state.agent_inbox i where i.project_id = $1 and i.agent_turn_id = asked.agent_turn_id offset 0) i
          where i.retry_count > 0
          order by i.agent_turn_id",
    )
    .bind(project_id)
    .bind(turn_ids)
    .fetch_all(&mut **work)
    .await?;
    Ok(failing)
}

/// Returns what a turn has delivered. `None` means nothing yet, or that it can no longer be shown.
pub async fn delivered(work: &mut UnitOfWork, turn: &Summary) -> Result<Option<Content>, card::Error> {
    let Some(card_id) = turn.deliverable_card_id else { return Ok(None) };
    let found = card::fetch(work, &[card_id], None).await?.found.pop();
    Ok(found.and_then(Reading::into_live).map(|card| card.content))
}

/// One edge of a turn: a recorded request, or the response to it. Examples are the start and the end of the turn, a message from a caller, a call,
/// and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Edge {
    /// The turn, the call, the message, or for a `join` the batch.
    pub correlation_id: uuid::Uuid,
    pub primitive: String,
    pub edge_phase: String,
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    pub source_agent_id: Option<AgentId>,
    pub card_id: Option<CardId>,
    pub status: Option<String>,
    pub recursion_depth: i32,
    pub created_at: DateTime<Utc>,
}

/// Lists the edges of a turn: how it was asked for, which messages it got, what its calls came to, and the batches that its calls became.
pub async fn edges(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Vec<Edge>, Error> {
    let project_id = work.project_id();
    let edges = sqlx::query_as(
        "select e.correlation_id, e.primitive::text, e.edge_phase::text, e.agent_turn_id, e.agent_id, e.source_agent_id, e.card_id,
                e.status, e.recursion_depth, e.created_at
           from (select $2 as correlation_id
                  union all
                 select unnest(t.steer_card_ids) from state.turns t where t.project_id = $1 and t.agent_turn_id = $2
                  union all
                 select made.correlation_id
                   from state.turns t
                  cross join lateral (
                        select b.length from cardbox.boxes b where b.project_id = $1 and b.box_id = t.output_box_id offset 0) b
                  cross join lateral (select p.card_id from cardbox.places($1, t.output_box_id, 1, b.length) p offset 0) p
                  cross join lateral (
                        select c.tool_call_id
                          from cardbox.cards c
                         where c.project_id = $1 and c.card_id = p.card_id and c.type = 'tool.call'
                        offset 0) c
                  cross join lateral (
                        select c.tool_call_id as correlation_id
                         union all
                        (select b.batch_id from state.pmo_batches b where b.project_id = $1 and b.tool_call_id = c.tool_call_id offset 0)) made
                  where t.project_id = $1 and t.agent_turn_id = $2 and c.tool_call_id is not null) asked
          cross join lateral (
                select e.* from state.edges e
                 where e.project_id = $1 and e.correlation_id = asked.correlation_id
                offset 0) e
          order by e.created_at, e.edge_phase",
    )
    .bind(project_id)
    .bind(turn_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(edges)
}

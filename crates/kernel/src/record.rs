//! Recorded calls (RC-1 … RC-4): what agents elsewhere sent to a model provider, as steps of turns that Waybill does not run.
//!
//! A request that begins with all messages of a recorded turn goes on with that turn. One that differs at some message begins a new turn, which has the
//! messages before it by reference. A recorded turn is in no inbox and has no head: no worker can claim it.

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};
use sqlx::{FromRow, types::Json};
use waybill_core::{
    card::NewCard,
    id::{AgentId, BoxId, CardId, StepId, TraceId, TurnId},
    turn::Usage,
};

use crate::work::{DbError, UnitOfWork};

/// What the messages of a request are, up to one of them: a keyed digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark([u8; 16]);

impl Mark {
    pub fn from_bytes(bytes: [u8; 16]) -> Mark {
        Mark(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Serialize for Mark {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_hex())
    }
}

/// A turn that a request goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct Extended {
    pub agent_turn_id: TurnId,
    /// How many messages it has: the first ones of the request.
    pub n_messages: i32,
    pub context_box_id: BoxId,
    pub output_box_id: BoxId,
}

/// A turn that begins as a request does.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Alike {
    pub agent_turn_id: TurnId,
    /// How many messages both have in common, from the first on.
    pub n_common: i32,
    /// How many messages it has itself.
    pub n_messages: i32,
    pub query_card_ids: Vec<CardId>,
    /// Whether only its last answer says that the request goes on from there.
    pub by_answer: bool,
}

/// A recorded turn that begins.
#[derive(Clone, Debug, Serialize)]
pub struct NewRecording {
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    /// What people see as the name of the agent.
    pub profile_name: String,
    pub context_box_id: BoxId,
    pub output_box_id: BoxId,
    pub query_card_ids: Vec<CardId>,
    pub parent_agent_turn_id: Option<TurnId>,
    pub trace_id: Option<TraceId>,
    pub traceparent: Option<String>,
    pub started_by: String,
    /// The mark of its messages up to the first one that is no system prompt.
    pub opening: Mark,
    /// The turn that it has its first messages from.
    pub shares_with: Option<TurnId>,
    /// How many messages it has from there.
    pub n_common: i32,
    /// Whether it departs from that turn: something else was said at a place where that turn has a message.
    pub departs: bool,
    /// When its first call was sent, if it was imported. `None` means now.
    pub at: Option<DateTime<Utc>>,
}

/// A recorded call. The id of its step is its idempotency key.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedCall {
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    pub step_id: StepId,
    pub context_box_id: BoxId,
    pub output_box_id: BoxId,
    /// How many messages the turn had before.
    pub n_before: i32,
    /// The mark of all messages of the request.
    pub tail: Mark,
    /// The mark of the answer. `None` means that the call failed.
    pub answer: Option<Mark>,
    /// The mark of what the provider remembers the call by.
    pub state: Option<Mark>,
    /// The mark of the whole request, by which its answer is replayed. `None` means that the answer is not whole. Of a call that was imported: the mark by
    /// which it is known when it is imported again.
    pub request: Option<Mark>,
    /// How many tools the model called.
    pub n_calls: usize,
    pub receipt: String,
    pub usage: Usage,
    /// When its answer came, if it was imported. `None` means now.
    pub at: Option<DateTime<Utc>>,
}

/// Finds the turn that a request goes on with. `tails` has the marks of the request, from that of all its messages down, each with the mark of the
/// message after it, as of an answer. `state` is the mark of what the provider remembers and the request builds on.
pub async fn to_extend(
    work: &mut UnitOfWork,
    tails: &[(Mark, Option<Mark>)],
    state: Option<Mark>,
) -> Result<Option<Extended>, DbError> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select agent_turn_id, n_messages, context_box_id, output_box_id from state.recording_to_extend($1, $2, $3, $4)",
    )
    .bind(project_id)
    .bind(tails.iter().map(|(tail, _)| tail.0.as_slice()).collect::<Vec<_>>())
    .bind(tails.iter().map(|(_, follows)| follows.as_ref().map(|follows| follows.0.as_slice())).collect::<Vec<_>>())
    .bind(state.as_ref().map(|state| state.0.as_slice()))
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// Finds the turn that has most of the first messages of a request, or else the one whose last answer is the last one of the request. `marks` has the mark
/// of each message of the request, as cards have it.
pub async fn alike(
    work: &mut UnitOfWork,
    opening: Mark,
    marks: &[String],
    answer: Option<Mark>,
) -> Result<Option<Alike>, DbError> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select agent_turn_id, n_common, n_messages, query_card_ids, by_answer from state.recording_alike($1, $2, $3, $4)",
    )
    .bind(project_id)
    .bind(opening.0.as_slice())
    .bind(marks)
    .bind(answer.as_ref().map(|answer| answer.0.as_slice()))
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// Begins a recorded turn. Returns false if it had begun before: then nothing is written.
pub async fn begin(work: &mut UnitOfWork, recording: &NewRecording) -> Result<bool, DbError> {
    let project_id = work.project_id();
    let begun: Option<i32> = sqlx::query_scalar("select state.begin_recording($1, $2)")
        .bind(project_id)
        .bind(Json(recording))
        .fetch_one(&mut **work)
        .await?;
    Ok(begun.is_some())
}

/// Checks whether a call is on record as a step of this turn.
pub async fn is_written(work: &mut UnitOfWork, agent_turn_id: TurnId, step_id: StepId) -> Result<bool, DbError> {
    let project_id = work.project_id();
    let written = sqlx::query_scalar(
        "select exists (
           select from state.agent_steps s where s.project_id = $1 and s.agent_turn_id = $2 and s.step_id = $3)",
    )
    .bind(project_id)
    .bind(agent_turn_id)
    .bind(step_id)
    .fetch_one(&mut **work)
    .await?;
    Ok(written)
}

/// Notes what tool calls of a turn said, so that the conversations that begin with it are found to be those of its sub-agents.
pub async fn note_asks(work: &mut UnitOfWork, turn_id: TurnId, said: &[Mark]) -> Result<(), DbError> {
    if said.is_empty() {
        return Ok(());
    }
    let project_id = work.project_id();
    sqlx::query(
        "insert into state.recorded_asks (project_id, said, agent_turn_id) select $1, unnest($2::bytea[]), $3
             on conflict do nothing",
    )
    .bind(project_id)
    .bind(said.iter().map(|said| said.0.as_slice()).collect::<Vec<_>>())
    .bind(turn_id)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// How deep recorded turns may stand below each other: a job that asks itself the same again and again must not make one tree without end.
const DEEPEST: i32 = 16;

/// Finds the last turn with a tool call that said this, in the hour before `at`; `None` means now.
pub async fn asked_by(work: &mut UnitOfWork, said: Mark, at: Option<DateTime<Utc>>) -> Result<Option<TurnId>, DbError> {
    let project_id = work.project_id();
    let found = sqlx::query_scalar(
        "select t.agent_turn_id
           from (select a.agent_turn_id
                   from state.recorded_asks a
                  where a.project_id = $1 and a.said = $2 and a.agent_turn_id >= state.first_id(now() - interval '1 day')
                  order by a.agent_turn_id desc
                  limit 1) a
           cross join lateral (
                 select t.agent_turn_id, t.finished_at, t.recursion_depth
                   from state.turns t
                  where t.project_id = $1 and t.agent_turn_id = a.agent_turn_id
                 offset 0) t
          where t.finished_at > coalesce($4, now()) - interval '1 hour' and t.recursion_depth < $3",
    )
    .bind(project_id)
    .bind(said.0.as_slice())
    .bind(DEEPEST)
    .bind(at)
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// Checks whether a call was imported before. Until the transaction ends, no other import of this project gets an answer.
pub async fn is_imported(work: &mut UnitOfWork, call: Mark) -> Result<bool, DbError> {
    let project_id = work.project_id();
    sqlx::query("select pg_advisory_xact_lock(uuid_hash_extended($1, 8))")
        .bind(project_id)
        .execute(&mut **work)
        .await?;
    let known = sqlx::query_scalar(
        "select exists (select from state.agent_steps s where s.request = $2 and s.project_id = $1)",
    )
    .bind(project_id)
    .bind(call.0.as_slice())
    .fetch_one(&mut **work)
    .await?;
    Ok(known)
}

/// Returns the turn that a turn stands below.
pub async fn parent_of(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Option<TurnId>, DbError> {
    let project_id = work.project_id();
    let found: Option<Option<TurnId>> = sqlx::query_scalar(
        "select t.parent_agent_turn_id from state.turns t where t.project_id = $1 and t.agent_turn_id = $2",
    )
    .bind(project_id)
    .bind(turn_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(found.flatten())
}

/// Finds the last recorded turn of an agent, of the last day.
pub async fn last_turn(work: &mut UnitOfWork, agent_id: AgentId) -> Result<Option<TurnId>, DbError> {
    let project_id = work.project_id();
    let found = sqlx::query_scalar(
        "select t.agent_turn_id
           from (select t.agent_turn_id, t.recursion_depth
                   from state.turns t
                  where t.agent_id = $2 and t.project_id = $1 and t.agent_turn_id >= state.first_id(now() - interval '1 day')
                  order by t.agent_turn_id desc
                  limit 1) t
          where t.recursion_depth < $3",
    )
    .bind(project_id)
    .bind(agent_id)
    .bind(DEEPEST)
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// A recorded call with a whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct Answered {
    pub agent_turn_id: TurnId,
    pub step_id: StepId,
    /// The card with the answer.
    pub card_id: CardId,
    pub took_ms: i32,
}

/// Finds the first call with this request after another one, in the order in which they were recorded.
pub async fn next_answer(work: &mut UnitOfWork, request: Mark, after: StepId) -> Result<Option<Answered>, DbError> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select s.agent_turn_id, s.step_id, p.card_id, coalesce(s.took_ms, 0) as took_ms
           from (select s.agent_turn_id, s.step_id, s.from_seq, s.took_ms
                   from state.agent_steps s
                  where s.request = $2 and s.project_id = $1 and s.step_id > $3
                  order by s.step_id
                  limit 1) s
          cross join lateral (
                select t.output_box_id from state.turns t where t.project_id = $1 and t.agent_turn_id = s.agent_turn_id offset 0) t
          cross join lateral cardbox.places($1, t.output_box_id, s.from_seq, s.from_seq) p",
    )
    .bind(project_id)
    .bind(request.0.as_slice())
    .bind(after)
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// Lists the last calls of an agent whose answers are whole, the newest first.
pub async fn last_answered(
    work: &mut UnitOfWork,
    agent_id: AgentId,
    most: i64,
) -> Result<Vec<(TurnId, StepId)>, DbError> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select s.agent_turn_id, s.step_id
           from (select t.agent_turn_id
                   from state.turns t
                  where t.agent_id = $2 and t.project_id = $1
                  order by t.agent_turn_id desc
                  limit $3) t
          cross join lateral (
                select s.agent_turn_id, s.step_id
                  from state.agent_steps s
                 where s.project_id = $1 and s.agent_turn_id = t.agent_turn_id and s.request is not null
                 order by s.step_id desc
                 limit $3) s
          order by s.step_id desc
          limit $3",
    )
    .bind(project_id)
    .bind(agent_id)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(found)
}

/// Writes a recorded call. Returns false if the turn has gone on meanwhile, with this call or another one: then nothing is written.
pub async fn write(
    work: &mut UnitOfWork,
    call: &RecordedCall,
    messages: &[NewCard],
    answer: Option<&NewCard>,
) -> Result<bool, DbError> {
    let project_id = work.project_id();
    let written = sqlx::query_scalar("select state.record_call($1, $2, $3, $4)")
        .bind(project_id)
        .bind(Json(call))
        .bind(messages)
        .bind(answer.map_or(&[][..], std::slice::from_ref))
        .fetch_one(&mut **work)
        .await?;
    Ok(written)
}

//! Events as callers that watch get them: as they come, over all projects in one statement, and in pages from the record (UI-10).

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{FromRow, Row, postgres::PgRow};
use waybill_core::{
    bus::EventKind,
    id::{AgentId, CardId, Channel, EventId, ProjectId, StepId, TurnId},
    turn::TurnEpoch,
};

use super::Error;
use crate::work::{Kernel, UnitOfWork};

/// An event of a turn: the `data` of the events `state`, `step`, `request` and `task`.
#[derive(Clone, Debug, PartialEq, Serialize, FromRow, utoipa::ToSchema)]
#[schema(as = TurnEvent)]
pub struct Told {
    pub event: EventKind,
    /// Id of the event. It is the same however often the event is sent; with `event` and `agent_turn_id` it names one event.
    pub event_id: EventId,
    /// Number of the event. Of two events of one turn, the later one has the higher number.
    pub outbox_seq: i64,
    pub agent_turn_id: TurnId,
    /// The turn at the top of its tree: itself, if no turn started it.
    pub root_turn_id: TurnId,
    pub agent_id: AgentId,
    /// How the turn ended, what a step came to, or what the agent does now.
    pub status: String,
    pub turn_epoch: Option<TurnEpoch>,
    pub step_id: Option<StepId>,
    /// For the end of a task, its deliverable; for a request, what is asked or was decided.
    pub card_id: Option<CardId>,
    pub created_at: DateTime<Utc>,
}

/// What one look at the outbox found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// The last number that was drawn before the look.
    pub last_seq: i64,
    /// Every number up to `last_seq` was drawn in a transaction older than this one. `None` means that `last_seq` was known already.
    pub before: Option<i64>,
    /// Every transaction older than this one is over, and the look saw what it wrote.
    pub open_from: i64,
    /// The events, by project and number.
    pub told: Vec<(ProjectId, Told)>,
}

/// Returns up to `most` events of each project after a number, and what tells which numbers are settled. `last` is the `last_seq` of the look
/// before.
pub async fn look(kernel: &Kernel, watched: &[(ProjectId, i64)], last: Option<i64>, most: i32) -> Result<Look, Error> {
    let (projects, after): (Vec<ProjectId>, Vec<i64>) = watched.iter().copied().unzip();
    let rows: Vec<Seen> = sqlx::query_as("select * from scheduler.events_after($1, $2, $3, $4)")
        .bind(projects)
        .bind(after)
        .bind(last)
        .bind(most)
        .fetch_all(&mut *kernel.lease().await?)
        .await?;
    let Some(first) = rows.first() else { return Ok(Look::default()) };
    let (last_seq, before, open_from) = (first.last_seq, first.before, first.open_from);
    Ok(Look { last_seq, before, open_from, told: rows.into_iter().filter_map(|row| row.told).collect() })
}

/// One row of a look: a project without new events has one without an event.
struct Seen {
    last_seq: i64,
    before: Option<i64>,
    open_from: i64,
    told: Option<(ProjectId, Told)>,
}

impl FromRow<'_, PgRow> for Seen {
    fn from_row(row: &PgRow) -> sqlx::Result<Seen> {
        let told = match row.try_get::<Option<ProjectId>, _>("project_id")? {
            Some(project_id) => Some((project_id, Told::from_row(row)?)),
            None => None,
        };
        let (last_seq, before) = (row.try_get("last_seq")?, row.try_get("before")?);
        Ok(Seen { last_seq, before, open_from: row.try_get("open_from")?, told })
    }
}

/// A part of the record: the events with numbers after `after` and up to `upto`, the first `most` of them.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    pub after: i64,
    pub upto: i64,
    pub most: i64,
}

/// Returns events of the project, in order.
pub async fn events(work: &mut UnitOfWork, stretch: Stretch) -> Result<Vec<Told>, Error> {
    let project_id = work.project_id();
    let events = sqlx::query_as(
        "select o.event::text, o.event_id, o.outbox_seq, o.agent_turn_id, coalesce(t.root_turn_id, o.agent_turn_id) as root_turn_id, o.agent_id,
                o.status::text, o.turn_epoch, o.step_id, o.card_id, o.created_at
           from (select o.*
                   from state.outbox o
                  where o.project_id = $1 and o.outbox_seq > $2 and o.outbox_seq <= $3 and o.outbox_seq > 0
                  order by o.outbox_seq
                  limit $4) o
           left join lateral (
                select t.root_turn_id from state.turns t where t.project_id = $1 and t.agent_turn_id = o.agent_turn_id offset 0) t on true
          order by o.outbox_seq",
    );
    let events = events.bind(project_id).bind(stretch.after).bind(stretch.upto).bind(stretch.most);
    Ok(events.fetch_all(&mut **work).await?)
}

/// Returns events of some turns, in order. A writer of events holds the agent's lock, so of one turn none becomes visible before an earlier one.
pub async fn events_of(work: &mut UnitOfWork, turn_ids: &[TurnId], stretch: Stretch) -> Result<Vec<Told>, Error> {
    let project_id = work.project_id();
    let events = sqlx::query_as(
        "select o.event::text, o.event_id, o.outbox_seq, o.agent_turn_id, coalesce(t.root_turn_id, o.agent_turn_id) as root_turn_id, o.agent_id,
                o.status::text, o.turn_epoch, o.step_id, o.card_id, o.created_at
           from unnest($2::uuid[]) as asked (agent_turn_id)
          cross join lateral (
                select o.*
                  from state.outbox o
                 where o.project_id = $1 and o.agent_turn_id = asked.agent_turn_id and o.outbox_seq > $3 and o.outbox_seq <= $4
                 order by o.outbox_seq
                 limit $5) o
           left join lateral (
                select t.root_turn_id from state.turns t where t.project_id = $1 and t.agent_turn_id = asked.agent_turn_id offset 0) t on true
          order by o.outbox_seq
          limit $5",
    );
    let events = events.bind(project_id).bind(turn_ids).bind(stretch.after).bind(stretch.upto).bind(stretch.most);
    Ok(events.fetch_all(&mut **work).await?)
}

/// Returns the number of the last event of a turn that is on record, 0 if there is none.
pub async fn last_event(work: &mut UnitOfWork, turn_id: TurnId) -> Result<i64, Error> {
    let project_id = work.project_id();
    let last = sqlx::query_scalar(
        "select coalesce(max(o.outbox_seq), 0) from state.outbox o where o.project_id = $1 and o.agent_turn_id = $2",
    );
    Ok(last.bind(project_id).bind(turn_id).fetch_one(&mut **work).await?)
}

/// Returns turns of a tree, without its root, in the order of their ids.
pub async fn below(
    work: &mut UnitOfWork,
    root: TurnId,
    after: Option<TurnId>,
    most: i64,
) -> Result<Vec<TurnId>, Error> {
    let project_id = work.project_id();
    let turns = sqlx::query_scalar(
        "select t.agent_turn_id
           from state.turns t
          where t.root_turn_id = $2 and t.project_id = $1 and t.root_turn_id <> t.agent_turn_id and t.agent_turn_id > $3
          order by t.agent_turn_id
          limit $4",
    );
    let turns = turns.bind(project_id).bind(root).bind(after.unwrap_or(TurnId::nil())).bind(most);
    Ok(turns.fetch_all(&mut **work).await?)
}

/// Returns the agent and the channel of a turn. `None` means that there is no such turn.
pub async fn voice(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Option<(AgentId, Channel)>, Error> {
    let project_id = work.project_id();
    let voice = sqlx::query_as(
        "select t.agent_id, t.channel::text from state.turns t where t.project_id = $1 and t.agent_turn_id = $2",
    );
    Ok(voice.bind(project_id).bind(turn_id).fetch_optional(&mut **work).await?)
}

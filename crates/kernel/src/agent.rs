//! Agents on the roster, each with the head row that gates everything it does (L0-4, L0-15).

use serde::Serialize;
use waybill_core::{
    id::{AgentId, Target, TurnId},
    turn::{Status, TurnEpoch},
};

use crate::{
    turn::Error,
    work::{UnitOfWork, Work},
};

/// How many turns may wait behind the one an agent is on.
pub const QUEUE_CAP: i32 = 1_000;

/// What an agent is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct Head {
    pub status: Status,
    pub active_agent_turn_id: Option<TurnId>,
    pub turn_epoch: TurnEpoch,
    pub n_queued: i32,
}

/// Puts agents on the roster. Creating one again changes nothing.
pub async fn create(work: &mut UnitOfWork, agent_ids: &[AgentId], target: &Target) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query(
        "with agent as (
           insert into resource.project_agents (project_id, agent_id, worker_target)
           select $1, agent_id, $3 from unnest($2::uuid[]) as a (agent_id)
               on conflict do nothing
        returning agent_id
         ), edge as (
           insert into state.identity_edges (project_id, agent_id, action)
           select $1, agent_id, 'created' from agent
         )
         insert into state.agent_state_head (project_id, agent_id, worker_target, queue_cap)
         select $1, agent_id, $3, $4 from agent",
    )
    .bind(project_id)
    .bind(agent_ids)
    .bind(target)
    .bind(QUEUE_CAP)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// What an agent is doing, if it is known.
pub async fn find(work: &mut UnitOfWork, agent_id: AgentId) -> Result<Option<Head>, Error> {
    let project_id = work.project_id();
    let head = sqlx::query_as(
        "select status::text, active_agent_turn_id, turn_epoch, n_queued
           from state.agent_state_head
          where project_id = $1 and agent_id = $2",
    )
    .bind(project_id)
    .bind(agent_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(head)
}

/// Makes an agent's lost head row anew, from its inbox, turns, steps and edges. One that is there is left as it is.
pub async fn rebuild(work: &mut impl Work, agent_id: AgentId) -> Result<Head, Error> {
    let project_id = work.project_id();
    let head =
        sqlx::query_as("select status, active_agent_turn_id, turn_epoch, n_queued from state.rebuild_head($1, $2, $3)")
            .bind(project_id)
            .bind(agent_id)
            .bind(QUEUE_CAP)
            .fetch_one(work.connection())
            .await?;
    Ok(head)
}

/// Agents of the roster without a head row, in the order of their ids.
pub async fn without_head(work: &mut UnitOfWork, most: i64) -> Result<Vec<AgentId>, Error> {
    let project_id = work.project_id();
    let lost = sqlx::query_scalar(
        "select a.agent_id
           from resource.project_agents a
          where a.project_id = $1 and a.retired_at is null
            and not exists (select from state.agent_state_head h where h.project_id = $1 and h.agent_id = a.agent_id)
          order by a.agent_id
          limit $2",
    )
    .bind(project_id)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(lost)
}

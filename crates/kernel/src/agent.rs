//! Agents on the roster (PM-1, PM-6), each with the head row that gates everything it does (L0-4, L0-15).
//!
//! A permanent agent remembers its turns. An agent that was made for a task is ephemeral: it has a head row only while it has work,
//! gets a memory only when it is addressed again, and is retired after a day without work. Its identity stays on record.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use waybill_core::{
    id::{AgentId, BoxId, Name, ProjectId, Target, TurnId},
    turn::{Status, TurnEpoch},
};

use crate::{
    handover,
    turn::Error,
    work::{Kernel, UnitOfWork, Work},
};

/// What an agent is doing: its status, its current turn, and how many turns are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, sqlx::FromRow, utoipa::ToSchema)]
pub struct Head {
    pub status: Status,
    pub active_agent_turn_id: Option<TurnId>,
    pub turn_epoch: TurnEpoch,
    pub n_queued: i32,
}

/// An agent that is to be created.
#[derive(Clone, Debug)]
pub struct NewAgent {
    pub agent_id: AgentId,
    pub profile_name: Option<Name>,
    pub worker_target: Target,
    pub cloned_from: Option<AgentId>,
}

impl NewAgent {
    /// Returns an agent without a profile.
    pub fn new(agent_id: AgentId, worker_target: Target) -> NewAgent {
        NewAgent { agent_id, profile_name: None, worker_target, cloned_from: None }
    }

    pub fn of(agent_id: AgentId, profile: &handover::ProfileTarget) -> NewAgent {
        NewAgent { profile_name: Some(profile.name.clone()), ..NewAgent::new(agent_id, profile.worker_target.clone()) }
    }
}

/// How long an agent stays on the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Until it is retired. It remembers from its first turn on.
    Long,
    /// For its turns only.
    Ephemeral,
    /// Until it is retired, and it remembers nothing.
    Plain,
}

/// Puts agents without a profile on the roster. Creating an agent again changes nothing.
pub async fn create(work: &mut UnitOfWork, agent_ids: &[AgentId], target: &Target) -> Result<(), Error> {
    let plain = |agent_id: &AgentId| NewAgent::new(*agent_id, target.clone());
    provision(work, &agent_ids.iter().map(plain).collect::<Vec<_>>(), Stay::Plain, None).await
}

/// Puts agents on the roster, on record. Doing it again changes nothing.
pub async fn provision(
    work: &mut UnitOfWork,
    agents: &[NewAgent],
    stay: Stay,
    by: Option<AgentId>,
) -> Result<(), Error> {
    if agents.is_empty() {
        return Ok(());
    }
    let project_id = work.project_id();
    let column = |field: fn(&NewAgent) -> AgentId| agents.iter().map(field).collect::<Vec<_>>();
    sqlx::query(
        "with agent as (
           insert into resource.project_agents (project_id, agent_id, profile_name, worker_target, memory_box_id, ephemeral, retire_by)
           select $1, a.agent_id, a.profile_name, a.worker_target, a.memory_box_id, $7,
                  case when $7 then now() + interval '1 day' end
             from unnest($2::uuid[], $3::text[], $4::text[], $6::uuid[]) as a (agent_id, profile_name, worker_target, memory_box_id)
               on conflict do nothing
        returning agent_id, worker_target, memory_box_id
         ), edge as (
           insert into state.identity_edges (project_id, agent_id, action, source_agent_id)
           select $1, a.agent_id, case when a.cloned_from is null then 'created' else 'cloned' end, coalesce(a.cloned_from, $8)
             from unnest($2::uuid[], $5::uuid[]) as a (agent_id, cloned_from)
               on conflict do nothing
         ), memory as (
           insert into cardbox.boxes (project_id, box_id, length, agent_id)
           select $1, memory_box_id, 0, agent_id from agent where memory_box_id is not null
         )
         insert into state.agent_state_head (project_id, agent_id, worker_target, ephemeral, memory_box_id)
         select $1, agent_id, worker_target, $7, memory_box_id from agent",
    )
    .bind(project_id)
    .bind(column(|agent| agent.agent_id))
    .bind(agents.iter().map(|agent| agent.profile_name.as_ref().map(Name::as_str)).collect::<Vec<_>>())
    .bind(agents.iter().map(|agent| agent.worker_target.as_str()).collect::<Vec<_>>())
    .bind(agents.iter().map(|agent| agent.cloned_from).collect::<Vec<_>>())
    .bind(agents.iter().map(|_| (stay == Stay::Long).then(BoxId::new)).collect::<Vec<_>>())
    .bind(stay == Stay::Ephemeral)
    .bind(by)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// An agent of the project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, sqlx::FromRow, utoipa::ToSchema)]
#[schema(as = Agent)]
pub struct Listed {
    pub agent_id: AgentId,
    pub profile_name: Option<Name>,
    pub worker_target: Target,
    pub ephemeral: bool,
    pub memory_box_id: Option<BoxId>,
    /// Status of the agent. `null` if the agent was created for a task and has no work now.
    pub status: Option<String>,
    pub created_at: DateTime<Utc>,
    pub retired_at: Option<DateTime<Utc>>,
}

/// Lists the roster in the order of ids. Retired agents are left out.
pub async fn list(work: &mut UnitOfWork, after: Option<AgentId>, most: i64) -> Result<Vec<Listed>, Error> {
    let project_id = work.project_id();
    let listed = sqlx::query_as(
        "select a.agent_id, a.profile_name, a.worker_target::text, a.ephemeral, a.memory_box_id, h.status::text, a.created_at, a.retired_at
           from resource.project_agents a
           left join lateral (
                select h.status from state.agent_state_head h where h.project_id = $1 and h.agent_id = a.agent_id offset 0) h on true
          where a.project_id = $1 and a.agent_id > $2 and a.retired_at is null
          order by a.agent_id
          limit $3",
    )
    .bind(project_id)
    .bind(after.unwrap_or(AgentId::nil()))
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(listed)
}

/// Returns the profiles of those agents that have one and are not retired.
pub async fn profiles(work: &mut UnitOfWork, agent_ids: &[AgentId]) -> Result<HashMap<AgentId, Name>, Error> {
    if agent_ids.is_empty() {
        return Ok(HashMap::new());
    }
    let project_id = work.project_id();
    let profiles: Vec<(AgentId, Name)> = sqlx::query_as(
        "select a.agent_id, a.profile_name
           from unnest($2::uuid[]) as asked (agent_id)
          cross join lateral (
                select a.agent_id, a.profile_name
                  from resource.project_agents a
                 where a.project_id = $1 and a.agent_id = asked.agent_id and a.retired_at is null and a.profile_name is not null
                offset 0) a",
    )
    .bind(project_id)
    .bind(agent_ids)
    .fetch_all(&mut **work)
    .await?;
    Ok(profiles.into_iter().collect())
}

/// What an agent remembers, and what it is writing just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Memory {
    pub agent_id: AgentId,
    pub memory_box_id: BoxId,
    pub output_box_id: Option<BoxId>,
}

/// Returns the memories of agents, in any order. An agent that has none yet gets one, of all that it has done.
pub async fn memories(work: &mut UnitOfWork, agent_ids: &[AgentId]) -> Result<Vec<Memory>, Error> {
    if agent_ids.is_empty() {
        return Ok(Vec::new());
    }
    let project_id = work.project_id();
    let memories = sqlx::query_as("select agent_id, memory_box_id, output_box_id from state.memory_of($1, $2, $3)")
        .bind(project_id)
        .bind(agent_ids)
        .bind(agent_ids.iter().map(|_| BoxId::new()).collect::<Vec<_>>())
        .fetch_all(&mut **work)
        .await?;
    Ok(memories)
}

/// Returns which of these agents wait for `caller`, through any chain of batches: waiting for them would never end (PM-6).
pub async fn waiting_for(work: &mut UnitOfWork, agent_ids: &[AgentId], caller: AgentId) -> Result<Vec<AgentId>, Error> {
    if agent_ids.is_empty() {
        return Ok(Vec::new());
    }
    let project_id = work.project_id();
    let waiting = sqlx::query_scalar("select state.waiting_for($1, $2, $3)")
        .bind(project_id)
        .bind(agent_ids)
        .bind(caller)
        .fetch_one(&mut **work)
        .await?;
    Ok(waiting)
}

/// Retires agents that were made for a task and have no work when their `retire_by` has passed. Returns how many.
pub async fn retire(kernel: &Kernel, most: i32) -> Result<u64, Error> {
    let mut due: Vec<(ProjectId, AgentId)> =
        sqlx::query_as("select project_id, agent_id from scheduler.agents_to_retire($1)")
            .bind(most)
            .fetch_all(&mut *kernel.lease().await?)
            .await?;
    due.sort_unstable();
    let mut retired = 0;
    for part in due.chunk_by(|one, next| one.0 == next.0) {
        let agents: Vec<AgentId> = part.iter().map(|(_, agent_id)| *agent_id).collect();
        let n: i32 = sqlx::query_scalar("select state.retire($1, $2)")
            .bind(part[0].0)
            .bind(agents)
            .fetch_one(&mut *kernel.lease().await?)
            .await?;
        retired += u64::try_from(n).unwrap_or(0);
    }
    Ok(retired)
}

/// Returns what an agent is doing, if it has a head row.
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

/// Rebuilds an agent's lost head row from its inbox, turns, steps and edges. A head row that exists is left as it is.
pub async fn rebuild(work: &mut impl Work, agent_id: AgentId) -> Result<Head, Error> {
    let project_id = work.project_id();
    let head =
        sqlx::query_as("select status, active_agent_turn_id, turn_epoch, n_queued from state.rebuild_head($1, $2)")
            .bind(project_id)
            .bind(agent_id)
            .fetch_one(work.connection())
            .await?;
    Ok(head)
}

/// Lists agents of the roster that should have a head row and have none, in the order of their ids.
pub async fn without_head(work: &mut UnitOfWork, most: i64) -> Result<Vec<AgentId>, Error> {
    let project_id = work.project_id();
    let lost = sqlx::query_scalar(
        "select a.agent_id
           from resource.project_agents a
          where a.project_id = $1 and a.retired_at is null
            and not exists (select from state.agent_state_head h where h.project_id = $1 and h.agent_id = a.agent_id offset 0)
            and (not a.ephemeral
                 or exists (select from state.turns t
                             where t.project_id = $1 and t.agent_id = a.agent_id and t.status = 'open'
                            offset 0))
          order by a.agent_id
          limit $2",
    )
    .bind(project_id)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(lost)
}

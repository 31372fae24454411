//! Who may read which box (SE-3): what was made for an agent, handed to it, granted to it, or written by children it waited for.
//! Every grant, every use of a right and every refusal is on record.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use waybill_core::id::{AgentId, BoxId, GrantId, RefusalId};

use crate::work::{DbError, UnitOfWork, from_driver};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no box {0} in this project")]
    NoBox(BoxId),
    #[error("agent {0} is not on the roster of this project: `waybill agent list` lists the agents that are")]
    NoAgent(AgentId),
    #[error("grant {0} does not exist in this project, or has already been revoked")]
    NotFound(GrantId),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// How far a box may be read, and why.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Readable {
    pub box_id: BoxId,
    pub length: i64,
    /// `None` means that it may not be read.
    pub upto: Option<i64>,
    /// `own`, `handed`, `granted`, `joined`, or `asked` where a person asks.
    pub via: Option<String>,
}

/// Returns how far an agent may read boxes. `None` for the agent means that a person asks. A box that does not exist is not in the answer.
pub async fn readable(
    work: &mut UnitOfWork,
    agent_id: Option<AgentId>,
    box_ids: &[BoxId],
) -> Result<HashMap<BoxId, Readable>, DbError> {
    if box_ids.is_empty() {
        return Ok(HashMap::new());
    }
    let project_id = work.project_id();
    let rows: Vec<Readable> = sqlx::query_as("select box_id, length, upto, via from state.readable($1, $2, $3)")
        .bind(project_id)
        .bind(agent_id)
        .bind(box_ids)
        .fetch_all(&mut **work)
        .await?;
    Ok(rows.into_iter().map(|row| (row.box_id, row)).collect())
}

/// A right to read that was granted outside of any handover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, sqlx::FromRow, utoipa::ToSchema)]
pub struct Grant {
    pub grant_id: GrantId,
    pub agent_id: AgentId,
    pub box_id: BoxId,
    /// How many of its cards may be read. `null` means all of it, including what is appended later.
    pub upto: Option<i64>,
    pub granted_by: String,
    pub reason: String,
    pub created_at: DateTime<Utc>,
    pub revoked_at: Option<DateTime<Utc>>,
}

/// Lets an agent read a box.
pub async fn give(
    work: &mut UnitOfWork,
    agent_id: AgentId,
    box_id: BoxId,
    upto: Option<i64>,
    granted_by: &str,
    reason: &str,
) -> Result<GrantId, Error> {
    let (project_id, grant_id) = (work.project_id(), GrantId::new());
    let (has_box, has_agent): (bool, bool) = sqlx::query_as(
        "with known as materialized (
           select exists (select from cardbox.boxes where project_id = $1 and box_id = $4) as box,
                  exists (select from resource.project_agents where project_id = $1 and agent_id = $3 and retired_at is null) as agent
         ), given as (
           insert into state.grants (project_id, grant_id, agent_id, box_id, upto, granted_by, reason)
           select $1, $2, $3, $4, $5, $6, $7 from known where known.box and known.agent
         )
         select box, agent from known",
    )
    .bind(project_id)
    .bind(grant_id)
    .bind(agent_id)
    .bind(box_id)
    .bind(upto)
    .bind(granted_by)
    .bind(reason)
    .fetch_one(&mut **work)
    .await?;
    match (has_box, has_agent) {
        (true, true) => Ok(grant_id),
        (false, _) => Err(work.refuse(Error::NoBox(box_id))),
        (true, false) => Err(work.refuse(Error::NoAgent(agent_id))),
    }
}

/// Ends a grant. What was handed over by it stays where it is.
pub async fn revoke(work: &mut UnitOfWork, grant_id: GrantId, revoked_by: &str) -> Result<(), Error> {
    let project_id = work.project_id();
    let ended = sqlx::query(
        "update state.grants
            set revoked_at = now(), revoked_by = $3
          where project_id = $1 and grant_id = $2 and revoked_at is null",
    )
    .bind(project_id)
    .bind(grant_id)
    .bind(revoked_by)
    .execute(&mut **work)
    .await?;
    if ended.rows_affected() == 1 { Ok(()) } else { Err(work.refuse(Error::NotFound(grant_id))) }
}

/// Lists grants, the newest first: of an agent, or of all; those before one, if it is given.
pub async fn list(
    work: &mut UnitOfWork,
    agent_id: Option<AgentId>,
    before: Option<GrantId>,
    most: i64,
) -> Result<Vec<Grant>, Error> {
    let project_id = work.project_id();
    let before = before.unwrap_or(GrantId::max());
    let Some(agent_id) = agent_id else {
        let grants = sqlx::query_as(
            "select grant_id, agent_id, box_id, upto, granted_by, reason, created_at, revoked_at
               from state.grants
              where project_id = $1 and grant_id < $2
              order by grant_id desc
              limit $3",
        );
        return Ok(grants.bind(project_id).bind(before).bind(most).fetch_all(&mut **work).await?);
    };
    let grants = sqlx::query_as(
        "select grant_id, agent_id, box_id, upto, granted_by, reason, created_at, revoked_at
           from state.grants
          where agent_id = $2 and project_id = $1 and grant_id < $3
          order by grant_id desc
          limit $4",
    );
    Ok(grants.bind(project_id).bind(agent_id).bind(before).bind(most).fetch_all(&mut **work).await?)
}

/// What was asked for and refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, sqlx::FromRow, utoipa::ToSchema)]
pub struct Refusal {
    pub refusal_id: RefusalId,
    pub agent_id: AgentId,
    pub box_id: BoxId,
    pub tool_suffix: String,
    /// `not_found` or `forbidden`.
    pub why: String,
    pub created_at: DateTime<Utc>,
}

/// Lists refusals, the newest first: those before one, if it is given.
pub async fn refusals(work: &mut UnitOfWork, before: Option<RefusalId>, most: i64) -> Result<Vec<Refusal>, Error> {
    let project_id = work.project_id();
    let refusals = sqlx::query_as(
        "select refusal_id, agent_id, box_id, tool_suffix, why, created_at
           from state.refusals
          where project_id = $1 and refusal_id < $2
          order by refusal_id desc
          limit $3",
    )
    .bind(project_id)
    .bind(before.unwrap_or(RefusalId::max()))
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(refusals)
}

/// Writes refusals in a transaction of their own. Nothing of the unit of work can be committed any more.
pub(crate) async fn record(
    work: &mut UnitOfWork,
    agent_id: AgentId,
    tool_suffix: &str,
    refused: &[(BoxId, &'static str)],
) -> sqlx::Result<()> {
    work.start_over("rollback").await?;
    let project_id = work.project_id();
    sqlx::query(
        "insert into state.refusals (project_id, refusal_id, agent_id, box_id, tool_suffix, why)
         select $1, r.refusal_id, $2, r.box_id, $3, r.why
           from unnest($4::uuid[], $5::uuid[], $6::text[]) as r (refusal_id, box_id, why)",
    )
    .bind(project_id)
    .bind(agent_id)
    .bind(tool_suffix)
    .bind(refused.iter().map(|_| RefusalId::new()).collect::<Vec<_>>())
    .bind(refused.iter().map(|(box_id, _)| *box_id).collect::<Vec<_>>())
    .bind(refused.iter().map(|(_, why)| *why).collect::<Vec<_>>())
    .execute(&mut **work)
    .await?;
    work.start_over("commit").await
}

//! How the whole system is: what `/metrics` and `waybill top` show. Read at most now and then; not on the path of a turn.

use std::time::Duration;

use chrono::{DateTime, Utc};

use serde::Serialize;
use sqlx::FromRow;
use waybill_core::id::{ProjectId, Target, TurnId};

use crate::{
    turn::interval,
    work::{DbError, Kernel, UnitOfWork},
};

/// One value of a metric, by its name.
#[derive(Clone, Debug, Serialize, FromRow)]
pub struct Vital {
    pub vital: String,
    /// Whose: a target, or a table.
    pub target: Option<String>,
    pub status: Option<String>,
    pub value: f64,
}

/// Where the work is.
#[derive(Clone, Debug, Serialize, FromRow)]
pub struct Busy {
    pub project_id: ProjectId,
    /// `None` means that its registry row is gone.
    pub slug: Option<String>,
    /// Ready for a worker.
    pub n_pending: i64,
    pub n_processing: i64,
    /// Behind another turn of its agent, or for its time.
    pub n_waiting: i64,
    /// How long the oldest of those that are ready waits.
    pub oldest_seconds: f64,
}

/// What a project has used lately.
#[derive(Clone, Copy, Debug, Default, Serialize, FromRow)]
pub struct Spent {
    pub n_steps: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub microdollars: i64,
}

/// Reads everything that is counted in the database.
pub async fn read(kernel: &Kernel) -> Result<Vec<Vital>, DbError> {
    Ok(sqlx::query_as("select * from scheduler.vitals()").fetch_all(&mut *kernel.lease().await?).await?)
}

/// Lists projects, the busiest first.
pub async fn busiest(kernel: &Kernel, most: i32) -> Result<Vec<Busy>, DbError> {
    Ok(sqlx::query_as("select * from scheduler.busiest($1)").bind(most).fetch_all(&mut *kernel.lease().await?).await?)
}

/// Ready turns that wait too long.
#[derive(Clone, Debug, FromRow)]
pub struct Late {
    pub project_id: ProjectId,
    pub worker_target: Target,
    pub oldest_seconds: f64,
}

/// Lists the projects that have turns which have been ready for longer than this.
pub async fn late(kernel: &Kernel, wait: Duration) -> Result<Vec<Late>, DbError> {
    let late = sqlx::query_as("select * from scheduler.late_turns($1)").bind(interval(wait));
    Ok(late.fetch_all(&mut *kernel.lease().await?).await?)
}

/// Returns what the turns have used that were asked for since then.
pub async fn spent(work: &mut UnitOfWork, since: DateTime<Utc>) -> Result<Spent, DbError> {
    let project_id = work.project_id();
    let spent = sqlx::query_as(
        "select count(*) as n_steps, coalesce(sum(s.input_tokens), 0)::bigint as input_tokens,
                coalesce(sum(s.output_tokens), 0)::bigint as output_tokens, coalesce(sum(s.microdollars), 0)::bigint as microdollars
           from state.agent_steps s
          where s.project_id = $1 and s.agent_turn_id >= $2",
    )
    .bind(project_id)
    .bind(TurnId::at(since))
    .fetch_one(&mut **work)
    .await?;
    Ok(spent)
}

/// Checks whether the database answers.
pub async fn ping(kernel: &Kernel) -> Result<(), DbError> {
    sqlx::query("select 1").execute(&mut *kernel.lease().await?).await?;
    Ok(())
}

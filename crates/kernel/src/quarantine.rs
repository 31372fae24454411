//! Rows that a sweep could not handle, again and again, and agents whose events the stream refuses: left alone until an operator has looked.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;
use uuid::Uuid;
use waybill_core::id::ProjectId;

use crate::{
    turn::Error,
    work::{Kernel, UnitOfWork},
};

/// Stands in for the name of a sweep: events that could not be published.
pub const EVENTS: &str = "events";

/// One row that failed.
#[derive(Clone, Debug, Serialize, FromRow)]
pub struct Quarantined {
    pub project_id: ProjectId,
    /// Which sweep it was, or `events`.
    pub sweep: String,
    /// The turn, call or batch; of events, the agent.
    pub subject_id: Uuid,
    pub n_failures: i32,
    pub last_error: String,
    pub first_at: DateTime<Utc>,
    pub last_at: DateTime<Utc>,
    /// `None` means that it is still being retried.
    pub quarantined_at: Option<DateTime<Utc>>,
}

/// Notes that a row failed; after `max_failures` it is left alone.
pub(crate) async fn note(
    kernel: &Kernel,
    project_id: ProjectId,
    sweep: &str,
    subject_id: &str,
    error: &str,
    max_failures: i32,
) -> Result<(), Error> {
    let mut work = kernel.begin(project_id).await?;
    sqlx::query(
        "insert into state.quarantine as q (project_id, sweep, subject_id, last_error, quarantined_at)
         values ($1, $2, $3::text::uuid, left($4, 2000), case when $5::int <= 1 then now() end)
             on conflict (project_id, sweep, subject_id) do update
                set n_failures = case when q.last_at < now() - interval '1 hour' then 1 else q.n_failures + 1 end, last_error = excluded.last_error, last_at = now(),
                    quarantined_at = coalesce(q.quarantined_at, case when q.n_failures + 1 >= $5::int then now() end)",
    )
    .bind(project_id)
    .bind(sweep)
    .bind(subject_id)
    .bind(error)
    .bind(max_failures)
    .execute(&mut *work)
    .await?;
    Ok(work.commit().await?)
}

/// Lists the rows that failed last. Crosses projects, through the scheduler's function.
pub async fn list(kernel: &Kernel, most: i32) -> Result<Vec<Quarantined>, Error> {
    let rows = sqlx::query_as("select * from scheduler.list_quarantine($1)")
        .bind(most)
        .fetch_all(&mut *kernel.lease().await?)
        .await?;
    Ok(rows)
}

/// Lets the sweeps, or the relay, retry rows: one subject, or all of the project. Returns how many.
pub async fn retry(work: &mut UnitOfWork, subject_id: Option<Uuid>) -> Result<u64, Error> {
    let project_id = work.project_id();
    let gone =
        sqlx::query("delete from state.quarantine where project_id = $1 and ($2::uuid is null or subject_id = $2)")
            .bind(project_id)
            .bind(subject_id)
            .execute(&mut **work)
            .await?;
    Ok(gone.rows_affected())
}

//! One lease per process, renewed apart from progress (L0-17). What a process holds names it.

use std::time::Duration;

use waybill_core::id::{ProjectId, Target, TurnId, WorkerId};

use crate::{
    turn::{Error, interval},
    work::Kernel,
};

/// How long a process may be out of reach before its turns are given to others.
pub const LEASE: Duration = Duration::from_secs(4);

/// Starts a process: from now on it may claim.
pub async fn start(kernel: &Kernel, target: &Target, lease: Duration) -> Result<WorkerId, Error> {
    let worker_id = WorkerId::new();
    sqlx::query("select scheduler.start_worker($1, $2, $3)")
        .bind(worker_id)
        .bind(target)
        .bind(interval(lease))
        .execute(kernel.pool())
        .await?;
    Ok(worker_id)
}

/// Renews, and tells which of the process's turns are to stop. `LeaseLost`: cancel everything and start anew.
pub async fn renew(kernel: &Kernel, worker_id: WorkerId, lease: Duration) -> Result<Vec<(ProjectId, TurnId)>, Error> {
    let stops: Option<(Vec<ProjectId>, Vec<TurnId>)> =
        sqlx::query_as("select project_ids, agent_turn_ids from scheduler.renew_lease($1, $2)")
            .bind(worker_id)
            .bind(interval(lease))
            .fetch_optional(kernel.pool())
            .await?;
    let (projects, turns) = stops.ok_or(Error::LeaseLost)?;
    Ok(projects.into_iter().zip(turns).collect())
}

/// Ends a process in good order: what it still holds is given to others at once.
pub async fn end(kernel: &Kernel, worker_id: WorkerId) -> Result<(), Error> {
    sqlx::query("select scheduler.end_worker($1)").bind(worker_id).execute(kernel.pool()).await?;
    Ok(())
}

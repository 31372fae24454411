//! One lease per process, renewed apart from progress (L0-17). Whatever a process holds names the process.

use std::time::Duration;

use sqlx::{FromRow, postgres::PgRow};
use waybill_core::id::{Target, WorkerId};

use crate::{
    turn::{Error, interval},
    work::Kernel,
};

/// How long a process may be out of reach before its turns are given to others.
pub const LEASE: Duration = Duration::from_secs(4);

/// Begins a lease under a new name. A claim does the same by itself; this is for a process that holds something else.
pub async fn start(kernel: &Kernel, target: &Target, lease: Duration) -> Result<WorkerId, Error> {
    let worker_id = WorkerId::new();
    sqlx::query("select scheduler.keep_lease($1, $2, $3)")
        .bind(worker_id)
        .bind(target)
        .bind(interval(lease))
        .execute(&mut *kernel.lease().await?)
        .await?;
    Ok(worker_id)
}

/// Renews the lease, and returns what the process holds (turns, or calls) and whether each is to stop. On `LeaseLost`, cancel everything and
/// go on under another name.
pub async fn renew<Id>(kernel: &Kernel, worker_id: WorkerId, lease: Duration) -> Result<Vec<(Id, bool)>, Error>
where
    (Vec<Id>, Vec<bool>): for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    let held: Option<(Vec<Id>, Vec<bool>)> =
        sqlx::query_as("select held_ids, stops from scheduler.renew_lease($1, $2)")
            .bind(worker_id)
            .bind(interval(lease))
            .fetch_optional(&mut *kernel.lease().await?)
            .await?;
    let (ids, stops) = held.ok_or(Error::LeaseLost)?;
    Ok(ids.into_iter().zip(stops).collect())
}

/// Ends the lease of a process that shuts down in good order: what it still holds is given to others at once.
pub async fn end(kernel: &Kernel, worker_id: WorkerId) -> Result<(), Error> {
    sqlx::query("select scheduler.end_worker($1)").bind(worker_id).execute(&mut *kernel.lease().await?).await?;
    Ok(())
}

/// Gives an ended lease to workers that hold something without a lease row, as after a restore that lost rows: the next sweep gives what they hold
/// to others. Returns how many there were.
pub async fn end_missing(kernel: &Kernel) -> Result<i32, Error> {
    Ok(sqlx::query_scalar("select scheduler.end_missing_leases()").fetch_one(&mut *kernel.lease().await?).await?)
}

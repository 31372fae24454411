//! Retention: history is dropped by the week, whole partitions at a time, and none that something live can reach.
//!
//! Partitions are made ahead of their week, by whichever orchestrator gets to it first, and no transaction waits for that. A row whose week has no
//! partition lies in the rest, which no pruning drops: it is counted, and [`empty_rest`] moves it to where it belongs.
//!
//! History is steps, edges, events, receipts, patches and refusals. A turn that has not ended reaches back to its own beginning, and a fork to the
//! beginning of the turn that it does again. Cards, boxes, turns, grants, packages and artifacts are not history: they stay until they are erased or
//! their project is deleted.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row};
use waybill_core::id::TurnId;

use crate::{
    outbox, turn, vitals,
    work::{DbError, Kernel, from_driver},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Turn(#[from] turn::Error),
    /// Nothing is lost: what has no partition goes to the rest.
    #[error("the partitions could not be created, because a dump or a long query uses the tables: try again later")]
    InUse(#[source] DbError),
    #[error("partition {partition} was locked for a minute by other queries: try again when the load is lower")]
    Busy { partition: String, source: DbError },
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// Makes the missing partitions for this week and so many weeks after it, one at a time, each in a transaction of its own. Returns how many.
pub async fn extend(connection: &mut PgConnection, weeks: i32) -> Result<i32, Error> {
    let mut made = 0;
    loop {
        let one = sqlx::query_scalar("select state.extend_partitions($1)").bind(weeks).fetch_one(&mut *connection);
        match one.await {
            Ok(0) => return Ok(made),
            Ok(n) => made += n,
            Err(error) if is_locked(&error) => return Err(Error::InUse(error.into())),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Does the same on a connection of the kernel's.
pub async fn extend_here(kernel: &Kernel, weeks: i32) -> Result<i32, Error> {
    extend(&mut *kernel.lease().await?, weeks).await
}

/// Rows that lie in the rest of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, FromRow)]
pub struct Rest {
    pub parent: String,
    /// `None` means that their ids carry no time that a partition would be made for. They stay.
    pub week: Option<DateTime<Utc>>,
    /// Counted to 100,000 of each table.
    pub n_rows: i64,
}

/// Lists what lies in the rest.
pub async fn rest<'e>(executor: impl sqlx::PgExecutor<'e>) -> Result<Vec<Rest>, DbError> {
    let rest = sqlx::query_as("select parent, week, n_rows from state.rest() order by parent, week");
    Ok(rest.fetch_all(executor).await?)
}

/// Returns for how many weeks after this one history has its partitions.
pub async fn weeks_ahead(kernel: &Kernel) -> Result<i32, DbError> {
    Ok(sqlx::query_scalar("select state.weeks_ahead()").fetch_one(&mut *kernel.lease().await?).await?)
}

/// Moves what lies in the rest into partitions of its weeks, which are made with it, as the owner of the schema. Returns what was moved.
///
/// For as long as the rows of a week take to move, whatever is written to the rest waits, and so does whatever reads that table: reports, the relay.
/// Turns wait where the partition of the present week is missing.
pub async fn empty_rest(owner: &mut PgConnection, mut progress: impl FnMut(&Rest)) -> Result<Vec<Rest>, Error> {
    let mut moved = Vec::new();
    loop {
        let found: Vec<Rest> = rest(&mut *owner).await?.into_iter().filter(|rest| rest.week.is_some()).collect();
        if found.is_empty() {
            return Ok(moved);
        }
        for found in found {
            let Some(week) = found.week else { continue };
            let name = format!("{}, week of {}", found.parent, week.date_naive());
            let sql = format!(
                "select pg_advisory_xact_lock(hashtextextended('waybill.partitions', 0));
                 select state.make_partition('{}', '{}', true)",
                found.parent,
                week.to_rfc3339()
            );
            let n_rows = patiently(owner, &name, &sql).await?.unwrap_or(found.n_rows);
            let found = Rest { n_rows, ..found };
            progress(&found);
            moved.push(found);
        }
    }
}

/// A week of one table.
#[derive(Clone, Debug, Serialize, FromRow)]
pub struct Partition {
    pub partition: String,
    /// When it ends.
    pub ends_at: DateTime<Utc>,
    pub bytes: i64,
    /// As the planner estimates.
    pub n_rows: i64,
}

/// What keeps history that is older than was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Held {
    pub since: DateTime<Utc>,
    pub why: String,
}

/// What would be dropped.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Nothing that began from then on is dropped.
    pub before: DateTime<Utc>,
    /// Why that is earlier than was asked for.
    pub held: Option<Held>,
    pub partitions: Vec<Partition>,
}

/// Plans what can be dropped. Changes nothing. Unpublished events are kept if a relay has ever published, unless they are to be dropped.
pub async fn plan(
    kernel: &Kernel,
    owner: &mut PgConnection,
    older_than: Duration,
    drop_unpublished: bool,
) -> Result<Plan, Error> {
    let age = chrono::Duration::from_std(older_than).unwrap_or(chrono::Duration::MAX);
    let now: DateTime<Utc> = sqlx::query_scalar("select now()").fetch_one(&mut *owner).await?;
    let asked = now.checked_sub_signed(age).unwrap_or(DateTime::UNIX_EPOCH);
    let held = oldest_needed(kernel, drop_unpublished).await?.filter(|held| held.since < asked);
    let before = held.as_ref().map_or(asked, |held| held.since);
    let partitions = sqlx::query_as(
        "select c.oid::regclass::text as partition, p.ends_at, pg_total_relation_size(c.oid) as bytes, greatest(c.reltuples, 0)::bigint as n_rows
           from pg_class c
           join pg_inherits i on i.inhrelid = c.oid
          cross join lateral (
                -- A bound is an id that says its time and nothing else.
                select to_timestamp(('x' || lpad(replace(left(b.upper, 13), '-', ''), 16, '0'))::bit(64)::bigint / 1000.0) as ends_at
                  from (select substring(pg_get_expr(c.relpartbound, c.oid) from $$TO \\('([0-9a-f-]+)'\\)$$) as upper) b) p
          where c.relnamespace = 'parts'::regnamespace and p.ends_at <= $1
          order by p.ends_at, 1",
    )
    .bind(before)
    .fetch_all(owner)
    .await?;
    Ok(Plan { before, held, partitions })
}

/// Returns since when history is needed, over all projects, and by what.
async fn oldest_needed(kernel: &Kernel, drop_unpublished: bool) -> Result<Option<Held>, Error> {
    let mut needed = Vec::new();
    for busy in vitals::busiest(kernel, i32::MAX).await? {
        let mut work = kernel.begin(busy.project_id).await?;
        let oldest: Option<(TurnId, Option<TurnId>)> = sqlx::query_as(
            "select i.agent_turn_id, f.source_turn_id
               from state.agent_inbox i
               left join lateral (
                    select f.source_turn_id from state.forks f where f.project_id = $1 and f.agent_turn_id = i.agent_turn_id offset 0) f on true
              where i.project_id = $1
              order by least(i.agent_turn_id, f.source_turn_id)
              limit 1",
        )
        .bind(busy.project_id)
        .fetch_optional(&mut *work)
        .await?;
        let Some((turn_id, source_turn_id)) = oldest else { continue };
        let project = busy.slug.unwrap_or_else(|| busy.project_id.to_string());
        let (reached, does) = match source_turn_id {
            Some(source) if source < turn_id => (source, format!(" and is a fork of turn {source}")),
            _ => (turn_id, String::new()),
        };
        let why = format!("turn {turn_id} of project {project} has not ended{does}");
        needed.extend(reached.minted_at().map(|since| Held { since, why }));
    }
    if !drop_unpublished {
        // If no relay has ever published, no relay is waited for.
        let oldest: Option<TurnId> =
            sqlx::query_scalar("select scheduler.oldest_unpublished()").fetch_one(&mut *kernel.lease().await?).await?;
        let since = oldest.and_then(|turn_id| turn_id.minted_at());
        needed.extend(
            since.map(|since| Held { since, why: "an event from that time has not been published yet".to_owned() }),
        );
        if outbox::lag(kernel).await?.n_replaying > 0 {
            let why = "all events are being published again, to a new stream".to_owned();
            needed.push(Held { since: DateTime::UNIX_EPOCH, why });
        }
    }
    Ok(needed.into_iter().min_by_key(|held| held.since))
}

/// Drops the partitions that the plan names, one after the other, and reports each. No transaction waits for it longer than a moment.
pub async fn drop(owner: &mut PgConnection, plan: &Plan, mut progress: impl FnMut(&Partition)) -> Result<(), Error> {
    // First: from here on no reader expects that history to be there.
    sqlx::query("update waybill.schema set pruned_before = greatest(pruned_before, $1)")
        .bind(TurnId::at(plan.before))
        .execute(&mut *owner)
        .await?;
    for partition in &plan.partitions {
        // The name comes from the catalogue.
        patiently(owner, &partition.partition, &format!("drop table {}", partition.partition)).await?;
        progress(partition);
    }
    Ok(())
}

/// Runs a statement that may have to wait for a lock. Others queue behind us while we wait, so we wait only for a moment at a time,
/// and not often.
async fn patiently(owner: &mut PgConnection, name: &str, sql: &str) -> Result<Option<i64>, Error> {
    const TRIES: u32 = 60;
    const PAUSE: Duration = Duration::from_secs(1);
    let sql = format!("begin; set local lock_timeout = '100ms'; {sql}; commit");
    let mut tries = 0;
    loop {
        let error = match sqlx::raw_sql(AssertSqlSafe(sql.clone())).fetch_all(&mut *owner).await {
            // The last row of the last statement that has any, where it is a number.
            Ok(rows) => return Ok(rows.last().and_then(|row| row.try_get(0).ok())),
            Err(error) => error,
        };
        sqlx::raw_sql("rollback").execute(&mut *owner).await?;
        tries += 1;
        if !is_locked(&error) {
            return Err(error.into());
        }
        if tries >= TRIES {
            return Err(Error::Busy { partition: name.to_owned(), source: error.into() });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn is_locked(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("55P03"))
}

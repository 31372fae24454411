//! Retention: history is dropped by the week, whole partitions at a time, and none that something live can reach.
//!
//! History is steps, edges, events, receipts, patches and refusals. A turn that has not ended reaches back to its own beginning, and one that does another
//! again to that one's. Cards, boxes, turns, grants, packages and artifacts are no history: they stay until they are erased or their project is deleted.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{AssertSqlSafe, FromRow, PgConnection};
use waybill_core::{id::TurnId, metric};

use crate::{
    outbox, turn, vitals,
    work::{DbError, Kernel},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Turn(#[from] turn::Error),
    #[error("cannot drop {partition}: others have used it for a minute without a pause. Try again at a quieter time")]
    Busy { partition: String, source: DbError },
    #[error("database")]
    Db(#[from] DbError),
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

/// Looks what may go. Changes nothing.
pub async fn plan(kernel: &Kernel, owner: &mut PgConnection, older_than: Duration) -> Result<Plan, Error> {
    let age = chrono::Duration::from_std(older_than).unwrap_or(chrono::Duration::MAX);
    let now: DateTime<Utc> = sqlx::query_scalar("select now()").fetch_one(&mut *owner).await?;
    let asked = now.checked_sub_signed(age).unwrap_or(DateTime::UNIX_EPOCH);
    let held = oldest_needed(kernel).await?.filter(|held| held.since < asked);
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

/// Since when history is needed, of all projects, and by whom.
async fn oldest_needed(kernel: &Kernel) -> Result<Option<Held>, Error> {
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
            Some(source) if source < turn_id => (source, format!(" and does turn {source} again")),
            _ => (turn_id, String::new()),
        };
        let why = format!("turn {turn_id} of project {project} has not ended{does}");
        needed.extend(reached.minted_at().map(|since| Held { since, why }));
    }
    // Without a relay nobody will ever publish them.
    let relays = vitals::read(kernel).await?.into_iter();
    let mut relays = relays.filter(|vital| vital.vital == metric::WORKERS && vital.value > 0.0);
    if relays.any(|vital| vital.target.as_deref() == Some(outbox::RELAY)) {
        let oldest: Option<TurnId> =
            sqlx::query_scalar("select scheduler.oldest_unpublished()").fetch_one(kernel.pool()).await?;
        let since = oldest.and_then(|turn_id| turn_id.minted_at());
        needed.extend(since.map(|since| Held { since, why: "an event of then was not published yet".to_owned() }));
        if outbox::lag(kernel).await?.n_replaying > 0 {
            let why = "everything is being told again, to a stream that is new".to_owned();
            needed.push(Held { since: DateTime::UNIX_EPOCH, why });
        }
    }
    Ok(needed.into_iter().min_by_key(|held| held.since))
}

/// Drops what the plan names, one after the other, and says so. Nobody waits for it longer than a moment.
pub async fn drop(owner: &mut PgConnection, plan: &Plan, mut progress: impl FnMut(&Partition)) -> Result<(), Error> {
    const TRIES: u32 = 60;
    // Whoever comes meanwhile stands behind us: so we stand there for a moment only, and not often.
    const PAUSE: Duration = Duration::from_secs(1);
    // First: from here on nobody expects that history to be there.
    sqlx::query("update waybill.schema set pruned_before = greatest(pruned_before, $1)")
        .bind(TurnId::at(plan.before))
        .execute(&mut *owner)
        .await?;
    for partition in &plan.partitions {
        let mut tries = 0;
        loop {
            // The name comes from the catalogue.
            let sql = format!("begin; set local lock_timeout = '100ms'; drop table {}; commit", partition.partition);
            let Err(error) = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *owner).await else { break };
            sqlx::raw_sql("rollback").execute(&mut *owner).await?;
            let is_locked = error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("55P03"));
            tries += 1;
            if !is_locked {
                return Err(error.into());
            }
            if tries >= TRIES {
                return Err(Error::Busy { partition: partition.partition.clone(), source: error });
            }
            tokio::time::sleep(PAUSE).await;
        }
        progress(partition);
    }
    Ok(())
}

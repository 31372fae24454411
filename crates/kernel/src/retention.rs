//! Retention: history is dropped by whole partitions, and none that something live can reach.
//!
//! A partition covers a day, a week or a month. Partitions are made ahead of their time, by whichever process gets to it first, and no transaction
//! waits for that. There is no default partition: a row for whose time there is none is refused ([`DbError::lacks_partition`]).
//!
//! History is steps, edges, events, receipts, patches and refusals. A turn that has not ended reaches back to its own beginning, and a fork to the
//! beginning of the turn that it does again. A project under a legal hold keeps all of its history, and so the partitions that have it. Cards,
//! boxes, turns, grants, packages and artifacts are not history: they stay until they are erased, their project is deleted, or the retention of
//! their project removes them ([`crate::retain`]).

use std::{str::FromStr, time::Duration};

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection, FromRow, PgConnection};
use waybill_core::id::{ProjectId, TurnId};

use crate::{
    outbox, turn, vitals,
    work::{DbError, Kernel, from_driver},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Turn(#[from] turn::Error),
    #[error("the partitions could not be created, because another session changes the same tables: try again later")]
    InUse(#[source] DbError),
    #[error(
        "partition {partition} was used by other transactions for a minute: run `waybill admin prune` again later, which continues here"
    )]
    Busy { partition: String, source: DbError },
    #[error("nothing was deleted, because history of that time is needed now ({why}): run `waybill admin prune` again")]
    Needed { why: String },
    #[error("partition {partition} was not deleted: it has history of project {project}, which is under a legal hold")]
    Held { partition: String, project: String },
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// How much time a new partition of history covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum Step {
    Day,
    Week,
    Month,
}

impl Step {
    pub const fn as_str(self) -> &'static str {
        match self {
            Step::Day => "day",
            Step::Week => "week",
            Step::Month => "month",
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a step of history: write day, week or month")]
pub struct NotAStep(String);

impl FromStr for Step {
    type Err = NotAStep;

    fn from_str(text: &str) -> Result<Step, NotAStep> {
        let found = [Step::Day, Step::Week, Step::Month].into_iter().find(|step| step.as_str() == text);
        found.ok_or_else(|| NotAStep(text.to_owned()))
    }
}

/// The partitions of history.
#[derive(Clone, Debug, Serialize)]
pub struct History {
    pub step: Step,
    /// For how many whole days from now every table has its partitions.
    pub days_ahead: i64,
    pub tables: Vec<Table>,
}

/// The partitions of one table.
#[derive(Clone, Debug, Serialize, FromRow)]
pub struct Table {
    pub parent: String,
    pub n_partitions: i64,
    pub starts_at: Option<DateTime<Utc>>,
    pub ends_at: Option<DateTime<Utc>>,
    pub bytes: i64,
}

/// Reads which partitions there are.
pub async fn history(kernel: &Kernel) -> Result<History, DbError> {
    let (step, days_ahead): (Step, i64) = sqlx::query_as(
        "select s.history_step, (select floor(min(extract(epoch from state.history_ahead(h.parent))) / 86400)::bigint from state.history() h)
           from waybill.schema s",
    )
    .fetch_one(&mut *kernel.lease().await?)
    .await?;
    let tables = sqlx::query_as(
        "select h.parent, p.n_partitions, p.starts_at, p.ends_at, p.bytes
           from state.history() h
          cross join lateral (
                select count(*) as n_partitions, min(p.starts_at) as starts_at, max(p.ends_at) as ends_at,
                       coalesce(sum(pg_total_relation_size(p.partition)), 0)::bigint as bytes
                  from state.partitions(h.parent) p) p
          order by h.parent",
    )
    .fetch_all(&mut *kernel.lease().await?)
    .await?;
    Ok(History { step, days_ahead, tables })
}

/// Sets how much time new partitions cover, as the owner of the schema. Those that exist stay as they are.
pub async fn set_step(owner: &mut PgConnection, step: Step) -> Result<(), DbError> {
    sqlx::query("update waybill.schema set history_step = $1").bind(step).execute(owner).await?;
    Ok(())
}

/// Makes the missing partitions for the weeks to come, one at a time, each in its own transaction. Returns how many.
pub async fn extend(connection: &mut PgConnection) -> Result<i32, Error> {
    let mut made = 0;
    loop {
        let one = sqlx::query_scalar("select state.extend_partitions()").fetch_one(&mut *connection);
        match one.await {
            Ok(0) => return Ok(made),
            Ok(n) => made += n,
            Err(error) if is_locked(&error) => return Err(Error::InUse(error.into())),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Does the same on a connection of the kernel's.
pub async fn extend_here(kernel: &Kernel) -> Result<i32, Error> {
    extend(&mut *kernel.lease().await?).await
}

/// A partition that can be dropped.
#[derive(Clone, Debug, Serialize, FromRow)]
pub struct Partition {
    pub partition: String,
    /// When it ends. If it is detached already, the time that the plan was made for.
    pub ends_at: DateTime<Utc>,
    pub bytes: i64,
    /// As the planner estimates.
    pub n_rows: i64,
    /// The table that it belongs to. `None` means that an earlier run has detached it.
    #[serde(skip)]
    parent: Option<String>,
    /// An earlier run has begun to detach it.
    #[serde(skip)]
    is_pending: bool,
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
    #[serde(skip)]
    drop_unpublished: bool,
}

/// Ids of steps and calls may be a day old: partitions of the last two days stay, whatever is asked for.
const YOUNGEST: chrono::Duration = chrono::Duration::days(2);

/// Plans what can be dropped, with what an interrupted run has left. Changes nothing. Unpublished events are kept if a relay has ever published,
/// unless they are to be dropped.
pub async fn plan(
    kernel: &Kernel,
    owner: &mut PgConnection,
    older_than: Duration,
    drop_unpublished: bool,
) -> Result<Plan, Error> {
    let age = chrono::Duration::from_std(older_than).unwrap_or(chrono::Duration::MAX);
    let now: DateTime<Utc> = sqlx::query_scalar("select now()").fetch_one(&mut *owner).await?;
    let asked = now.checked_sub_signed(age).unwrap_or(DateTime::UNIX_EPOCH);
    let held = oldest_needed(kernel, asked, drop_unpublished).await?.filter(|held| held.since < asked);
    let before = held.as_ref().map_or(asked, |held| held.since);
    let partitions = sqlx::query_as(
        "select c.oid::regclass::text as partition, coalesce(b.ends_at, $1) as ends_at, pg_total_relation_size(c.oid) as bytes,
                greatest(c.reltuples, 0)::bigint as n_rows, i.inhparent::regclass::text as parent, coalesce(i.inhdetachpending, false) as is_pending
           from pg_class c
           left join pg_inherits i on i.inhrelid = c.oid
          cross join lateral (
                select state.time_of(substring(pg_get_expr(c.relpartbound, c.oid) from $$TO \\('([0-9a-f-]+)'\\)$$)) as ends_at) b
          where c.relnamespace = 'parts'::regnamespace and c.relkind = 'r'
            and (i.inhparent is null or i.inhdetachpending or b.ends_at <= least($1, $2::timestamptz))
            and exists (select from state.history() h where c.relname ~ ('^' || h.parent || '_[0-9]+$'))
          order by 6 desc, 2, 1",
    )
    .bind(before)
    .bind(now - YOUNGEST)
    .fetch_all(owner)
    .await?;
    Ok(Plan { before, held, partitions, drop_unpublished })
}

/// Returns since when history from before a time is needed, over all projects, and by what.
async fn oldest_needed(kernel: &Kernel, before: DateTime<Utc>, drop_unpublished: bool) -> Result<Option<Held>, Error> {
    let mut needed = held_history(kernel, before).await?;
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

/// Returns the projects under a legal hold.
async fn on_hold(kernel: &Kernel) -> Result<Vec<(ProjectId, Option<String>)>, Error> {
    let held = sqlx::query_as("select project_id, slug from scheduler.projects_on_hold()");
    Ok(held.fetch_all(&mut *kernel.lease().await?).await?)
}

/// Returns since when projects under a legal hold have history from before a time.
async fn held_history(kernel: &Kernel, before: DateTime<Utc>) -> Result<Vec<Held>, Error> {
    let mut needed = Vec::new();
    for (project_id, slug) in on_hold(kernel).await? {
        let mut work = kernel.begin(project_id).await?;
        let since: Option<DateTime<Utc>> = sqlx::query_scalar("select state.history_since($1, $2)")
            .bind(project_id)
            .bind(before)
            .fetch_one(&mut *work)
            .await?;
        let project = slug.unwrap_or_else(|| project_id.to_string());
        needed.extend(since.map(|since| Held { since, why: format!("project {project} is under a legal hold") }));
    }
    Ok(needed)
}

/// Drops the partitions that the plan names, one after the other, and reports each. No transaction waits for it. If it is interrupted, the next run
/// continues.
pub async fn drop(
    kernel: &Kernel,
    owner: &mut PgConnection,
    plan: &Plan,
    mut progress: impl FnMut(&Partition),
) -> Result<(), Error> {
    // We wait for others, for a minute at a time; no other session uses what we have locked by then.
    sqlx::raw_sql("set lock_timeout = '60s'").execute(&mut *owner).await?;
    let dropped = drop_all(kernel, owner, plan, &mut progress).await;
    sqlx::raw_sql("reset lock_timeout").execute(&mut *owner).await?;
    dropped
}

async fn drop_all(
    kernel: &Kernel,
    owner: &mut PgConnection,
    plan: &Plan,
    progress: &mut impl FnMut(&Partition),
) -> Result<(), Error> {
    close(kernel, owner, plan).await?;
    for partition in &plan.partitions {
        drop_one(kernel, owner, partition).await?;
        progress(partition);
    }
    Ok(())
}

/// Closes the time before the plan's: from here on no reader expects history of it, and no turn can begin with an id of it. A turn that began since
/// the plan was made is seen after the lock.
async fn close(kernel: &Kernel, owner: &mut PgConnection, plan: &Plan) -> Result<(), Error> {
    let mut closing = owner.begin().await?;
    lock(&mut closing).await?;
    sqlx::query("update waybill.schema set pruned_before = greatest(pruned_before, $1)")
        .bind(TurnId::at(plan.before))
        .execute(&mut *closing)
        .await?;
    let needed = oldest_needed(kernel, plan.before, plan.drop_unpublished).await?;
    if let Some(held) = needed.filter(|held| held.since < plan.before) {
        closing.rollback().await?;
        return Err(Error::Needed { why: held.why });
    }
    closing.commit().await?;
    Ok(())
}

/// Keeps turns of the past, forks and legal holds waiting until the transaction is over: what is found after this stays true.
async fn lock(owner: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('waybill.prune', 0))").execute(owner).await?;
    Ok(())
}

/// Detaches a partition while others read and write its table, and drops it once no session can see it. Not if it has history of a project that has
/// come under a legal hold: what is detached then stays until the hold is lifted.
async fn drop_one(kernel: &Kernel, owner: &mut PgConnection, dropped: &Partition) -> Result<(), Error> {
    let Partition { partition, parent, is_pending, .. } = dropped;
    let busy = |error: sqlx::Error| match is_locked(&error) {
        true => Error::Busy { partition: partition.clone(), source: error.into() },
        false => error.into(),
    };
    // Names come from the catalogue. A statement that detaches in this way is sent alone: it cannot be part of a transaction.
    if let Some(parent) = parent {
        let mut checking = owner.begin().await?;
        lock(&mut checking).await.map_err(busy)?;
        check_held(kernel, &mut checking, partition).await?;
        checking.rollback().await?;
        let way = if *is_pending { "finalize" } else { "concurrently" };
        let detach = format!("alter table {parent} detach partition {partition} {way}");
        sqlx::raw_sql(AssertSqlSafe(detach)).execute(&mut *owner).await.map_err(busy)?;
    }
    let mut dropping = owner.begin().await?;
    lock(&mut dropping).await.map_err(busy)?;
    check_held(kernel, &mut dropping, partition).await?;
    let drop = format!("drop table {partition}");
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut *dropping).await.map_err(busy)?;
    dropping.commit().await?;
    Ok(())
}

/// Checks that a partition has no history of a project under a legal hold.
async fn check_held(kernel: &Kernel, owner: &mut PgConnection, partition: &str) -> Result<(), Error> {
    for (project_id, slug) in on_hold(kernel).await? {
        let has_history = format!("select exists (select from {partition} h where h.project_id = $1)");
        let has_history: bool =
            sqlx::query_scalar(AssertSqlSafe(has_history)).bind(project_id).fetch_one(&mut *owner).await?;
        if has_history {
            let project = slug.unwrap_or_else(|| project_id.to_string());
            return Err(Error::Held { partition: partition.to_owned(), project });
        }
    }
    Ok(())
}

fn is_locked(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("55P03"))
}

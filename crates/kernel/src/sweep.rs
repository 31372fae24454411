//! Watchdogs (L0-14): what nobody else will do, found by index, in bounded portions, each row in a transaction of its own.
//!
//! Any number of processes may sweep at once: every transition is fenced, so the second one finds nothing to do. A row that
//! fails again and again is put into quarantine, where `waybill admin quarantine` shows it; the others go on.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant, SystemTime},
};

use serde::Serialize;
use sqlx::FromRow;
use waybill_core::{
    id::{BatchId, ProjectId, Target, ToolCallId, TurnId},
    turn::{ClaimToken, Fence, MessageType},
};

use crate::{
    batch, call, lease, quarantine,
    turn::{self, Attempts, Error, Loss, Reclaimed, Report, interval},
    work::Kernel,
};

/// How the sweeps go about it.
#[derive(Clone, Debug)]
pub struct Config {
    pub lease: Duration,
    /// How long a turn may go without a step while its worker is alive.
    pub silence: Duration,
    pub attempts: Attempts,
    /// Rows per sweep and tick.
    pub most: i32,
    /// Which of the 16 shards this process looks after. All of them is right for a few processes.
    pub shards: Vec<i16>,
    /// Failures after which a row is left alone.
    pub max_failures: i32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            lease: lease::LEASE,
            silence: Duration::from_secs(1800),
            attempts: Attempts::default(),
            most: 100,
            shards: (0..16).collect(),
            max_failures: 5,
        }
    }
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    pub leases_lapsed: i32,
    /// Turns taken from workers whose lease lapsed.
    pub turns_reclaimed: u64,
    /// Turns taken from workers that fell silent.
    pub turns_silent: u64,
    /// Turns whose time to start, or to be tried again, had come.
    pub turns_released: u64,
    pub calls_reclaimed: u64,
    pub calls_timed_out: u64,
    pub batches_closed: u64,
    pub batches_stopped: u64,
    pub keys_forgotten: i32,
    /// Rows that failed this time.
    pub failures: u64,
    /// Whom to ring: workers with ready turns, and handlers with ready calls. They may know already.
    pub workers: BTreeSet<Target>,
    pub handlers: BTreeSet<Target>,
}

impl Swept {
    /// Whether anything moved or failed. Whoever is to be rung may know already, so that does not count.
    pub fn did_something(&self) -> bool {
        let quiet = Swept { workers: self.workers.clone(), handlers: self.handlers.clone(), ..Swept::default() };
        *self != quiet
    }
}

/// One row of a sweep: whose, and which.
trait Subject {
    fn project_id(&self) -> ProjectId;
    fn subject_id(&self) -> String;
}

#[derive(FromRow)]
struct DueTurn {
    project_id: ProjectId,
    agent_turn_id: TurnId,
}

#[derive(FromRow)]
struct HeldCall {
    project_id: ProjectId,
    tool_call_id: ToolCallId,
    claim_token: ClaimToken,
}

#[derive(FromRow)]
struct DueCall {
    project_id: ProjectId,
    tool_call_id: ToolCallId,
}

#[derive(FromRow)]
struct DueBatch {
    project_id: ProjectId,
    batch_id: BatchId,
}

macro_rules! subjects {
    ($($row:ty: $project:expr, $subject:expr;)*) => {$(
        impl Subject for $row {
            fn project_id(&self) -> ProjectId {
                ($project)(self)
            }

            fn subject_id(&self) -> String {
                ($subject)(self).to_string()
            }
        }
    )*};
}

subjects! {
    Fence: Fence::project_id, Fence::agent_turn_id;
    DueTurn: |row: &DueTurn| row.project_id, |row: &DueTurn| row.agent_turn_id;
    HeldCall: |row: &HeldCall| row.project_id, |row: &HeldCall| row.tool_call_id;
    DueCall: |row: &DueCall| row.project_id, |row: &DueCall| row.tool_call_id;
    DueBatch: |row: &DueBatch| row.project_id, |row: &DueBatch| row.batch_id;
}

/// One tick of everything. The number of statements does not depend on how many agents idle or wait.
pub async fn tick(kernel: &Kernel, config: &Config) -> Result<Swept, Error> {
    // So that of many rows no shard always comes first.
    let mut config = config.clone();
    if let (Ok(now), false) = (SystemTime::UNIX_EPOCH.elapsed(), config.shards.is_empty()) {
        let turned = now.subsec_micros() as usize % config.shards.len();
        config.shards.rotate_left(turned);
    }
    let config = &config;
    let leases_lapsed = lapse(kernel, config).await?;
    let mut swept = Swept { leases_lapsed, ..Swept::default() };

    let abandoned: Vec<Fence> = sqlx::query_as("select * from scheduler.abandoned_turns($1, $2)")
        .bind(&config.shards)
        .bind(config.most)
        .fetch_all(kernel.pool())
        .await?;
    swept.turns_reclaimed = each(kernel, config, "abandoned_turns", abandoned, &mut swept, async |fence: &Fence| {
        reclaim(kernel, config, fence).await
    })
    .await?;

    let silent: Vec<Fence> = sqlx::query_as("select * from scheduler.silent_turns($1, $2)")
        .bind(&config.shards)
        .bind(config.most)
        .fetch_all(kernel.pool())
        .await?;
    swept.turns_silent = each(kernel, config, "silent_turns", silent, &mut swept, async |fence: &Fence| {
        let alive: bool = sqlx::query_scalar("select state.listen($1, $2, $3, $4, $5, $6)")
            .bind(fence.project_id())
            .bind(fence.agent_id())
            .bind(fence.agent_turn_id())
            .bind(fence.turn_epoch())
            .bind(fence.claim_token())
            .bind(interval(config.silence))
            .fetch_one(kernel.pool())
            .await?;
        if alive { Ok(false) } else { reclaim(kernel, config, fence).await }
    })
    .await?;

    let due: Vec<DueTurn> = sqlx::query_as("select * from scheduler.due_turns($1, $2)")
        .bind(&config.shards)
        .bind(config.most)
        .fetch_all(kernel.pool())
        .await?;
    swept.turns_released = each(kernel, config, "due_turns", due, &mut swept, async |row: &DueTurn| {
        turn::release(&mut kernel.alone(row.project_id).await?, row.agent_turn_id).await?;
        Ok(true)
    })
    .await?;

    let held: Vec<HeldCall> = sqlx::query_as("select * from scheduler.abandoned_calls($1, $2)")
        .bind(&config.shards)
        .bind(config.most)
        .fetch_all(kernel.pool())
        .await?;
    swept.calls_reclaimed = each(kernel, config, "abandoned_calls", held, &mut swept, async |row: &HeldCall| {
        let mut work = kernel.alone(row.project_id).await?;
        Ok(call::reclaim(&mut work, row.tool_call_id, row.claim_token).await?.is_some())
    })
    .await?;

    // Before the calls that wait for them: what a batch has is not lost to a timeout.
    let batches: Vec<DueBatch> = sqlx::query_as("select * from scheduler.overdue_batches($1, $2)")
        .bind(&config.shards)
        .bind(config.most)
        .fetch_all(kernel.pool())
        .await?;
    swept.batches_closed = each(kernel, config, "overdue_batches", batches, &mut swept, async |row: &DueBatch| {
        let mut work = kernel.begin(row.project_id).await?;
        batch::join(&mut work, row.batch_id).await?;
        work.commit().await?;
        Ok(true)
    })
    .await?;

    let overdue: Vec<DueCall> = sqlx::query_as("select * from scheduler.overdue_calls($1, $2)")
        .bind(&config.shards)
        .bind(config.most)
        .fetch_all(kernel.pool())
        .await?;
    swept.calls_timed_out = each(kernel, config, "overdue_calls", overdue, &mut swept, async |row: &DueCall| {
        let report = Report {
            tool_call_id: row.tool_call_id,
            claim_token: None,
            message_type: MessageType::Timeout,
            status: "timeout".to_owned(),
            card: call::timeout_card(row.tool_call_id)?,
        };
        let reported = turn::report(&mut kernel.alone(row.project_id).await?, &report).await?;
        Ok(reported.outcome == "applied")
    })
    .await?;

    let stopping: Vec<DueBatch> = sqlx::query_as("select * from scheduler.stopping_batches($1, $2)")
        .bind(&config.shards)
        .bind(config.most)
        .fetch_all(kernel.pool())
        .await?;
    swept.batches_stopped = each(kernel, config, "stopping_batches", stopping, &mut swept, async |row: &DueBatch| {
        batch::stop_children(kernel, row.project_id, row.batch_id).await?;
        Ok(true)
    })
    .await?;

    swept.keys_forgotten =
        sqlx::query_scalar("select scheduler.forget_keys($1)").bind(config.most).fetch_one(kernel.pool()).await?;
    let (workers, handlers): (Vec<Target>, Vec<Target>) =
        sqlx::query_as("select workers, handlers from scheduler.ready_targets()").fetch_one(kernel.pool()).await?;
    swept.workers.extend(workers);
    swept.handlers.extend(handlers);
    Ok(swept)
}

/// Ends lapsed leases, and notes that somebody sweeps.
async fn lapse(kernel: &Kernel, config: &Config) -> Result<i32, Error> {
    let lapsed = sqlx::query_scalar("select scheduler.lapse_leases($1)").bind(interval(config.lease));
    Ok(lapsed.fetch_one(kernel.pool()).await?)
}

/// Nothing about the row: the server was short of something, slow, or gone; or an agent's state is to be rebuilt first.
fn is_transient(error: &Error) -> bool {
    match error {
        Error::HeadLost(_) | Error::Work(_) => true,
        Error::Db(sqlx::Error::Database(refusal)) => {
            refusal.code().is_some_and(|code| ["08", "53", "57"].iter().any(|class| code.starts_with(class)))
        }
        Error::Db(_) => true, // of the connection
        _ => false,
    }
}

/// Makes the partitions of history for the weeks to come; says how many it made.
pub async fn extend_partitions(kernel: &Kernel, weeks: i32) -> Result<i32, Error> {
    Ok(sqlx::query_scalar("select state.extend_partitions($1)").bind(weeks).fetch_one(kernel.pool()).await?)
}

/// A unit of work, since the last task of a batch may end here.
async fn reclaim(kernel: &Kernel, config: &Config, fence: &Fence) -> Result<bool, Error> {
    let mut work = kernel.begin(fence.project_id()).await?;
    let reclaimed = turn::reclaim(&mut work, fence, &Loss::Lease, config.attempts).await?;
    work.commit().await?;
    Ok(reclaimed != Reclaimed::Stale)
}

/// Handles rows one by one. One that fails is noted and does not keep the others from their turn. Says how many moved.
async fn each<R: Subject>(
    kernel: &Kernel,
    config: &Config,
    sweep: &'static str,
    rows: Vec<R>,
    swept: &mut Swept,
    handle: impl AsyncFn(&R) -> Result<bool, Error>,
) -> Result<u64, Error> {
    let mut moved = 0;
    let mut beat = Instant::now();
    for row in rows {
        if beat.elapsed() > config.lease / 4 {
            // A long portion is not an outage of sweeping.
            swept.leases_lapsed += lapse(kernel, config).await?;
            beat = Instant::now();
        }
        match handle(&row).await {
            Ok(did) => moved += u64::from(did),
            Err(Error::TryAgain(_) | Error::Stale(_) | Error::Busy) => {}
            Err(error) if is_transient(&error) => swept.failures += 1,
            Err(error) => {
                swept.failures += 1;
                let error = whole(&error);
                quarantine::note(kernel, row.project_id(), sweep, &row.subject_id(), &error, config.max_failures)
                    .await?;
            }
        }
    }
    Ok(moved)
}

/// An error with its causes, for whoever looks at the quarantine.
fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

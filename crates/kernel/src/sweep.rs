//! Watchdogs (L0-14): work that no other process will do, found by index, in bounded portions, each row in a transaction of its own.
//!
//! Any number of processes may sweep at once: every transition is fenced, so the second one finds nothing to do. A row that
//! fails again and again is put into quarantine, where `waybill admin quarantine` shows it; the others go on.

use std::{
    fmt::Display,
    time::{Duration, Instant, SystemTime},
};

use futures::future::BoxFuture;
use serde::Serialize;
use sqlx::{
    FromRow, Postgres,
    postgres::{PgArguments, PgRow},
    query::QueryAs,
};
use waybill_core::{
    bus::{Bell, Door},
    error::causes,
    id::{ProjectId, Target, ToolCallId},
    turn::{ClaimToken, Fence, MessageType},
};

use crate::{
    batch, call, lease, quarantine, request,
    retry::Transient,
    turn::{self, Attempts, Error, Loss, Reclaimed, Report, ReportOutcome, interval},
    work::Kernel,
};

/// How the sweeps work.
#[derive(Clone, Debug)]
pub struct Config {
    pub lease: Duration,
    /// How long a turn may go without a step while its worker is alive.
    pub silence: Duration,
    pub attempts: Attempts,
    /// Rows of one kind per tick.
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
    /// Turns whose time to start, or to be retried, had come.
    pub turns_released: u64,
    pub calls_reclaimed: u64,
    pub calls_timed_out: u64,
    pub batches_closed: u64,
    pub batches_stopped: u64,
    pub keys_forgotten: i32,
    pub browser_sessions_forgotten: i32,
    /// Marks of queues that were of no use any more.
    pub marks_forgotten: i32,
    /// Rows that failed this time.
    pub failures: u64,
    /// Doors that were rung because work is ready behind them. The processes there may know already.
    pub doors_rung: u64,
    /// Rows that were found and left for the next tick, because this one took long enough.
    pub left_over: u64,
}

impl Swept {
    /// Checks whether anything moved or failed. Rings do not count: the processes may have known already.
    pub fn did_something(&self) -> bool {
        *self != Swept { doors_rung: self.doors_rung, ..Swept::default() }
    }

    fn add(&mut self, other: &Swept) {
        self.leases_lapsed += other.leases_lapsed;
        self.turns_reclaimed += other.turns_reclaimed;
        self.turns_silent += other.turns_silent;
        self.turns_released += other.turns_released;
        self.calls_reclaimed += other.calls_reclaimed;
        self.calls_timed_out += other.calls_timed_out;
        self.batches_closed += other.batches_closed;
        self.batches_stopped += other.batches_stopped;
        self.keys_forgotten += other.keys_forgotten;
        self.browser_sessions_forgotten += other.browser_sessions_forgotten;
        self.marks_forgotten += other.marks_forgotten;
        self.failures += other.failures;
        self.doors_rung += other.doors_rung;
        self.left_over += other.left_over;
    }
}

/// What is swept for. In an orchestrator no sweep waits for another: each has its own interval. [`tick`] runs them one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// What was held by processes that are lost or silent.
    Lost,
    /// Turns whose time has come.
    Due,
    /// Batches and calls past their deadline.
    Overdue,
    /// Children of batches that have ended.
    Stopped,
    /// Rings for everything that is ready; removes what is of no use any more.
    Ready,
}

impl Sweep {
    pub const ALL: [Sweep; 5] = [Sweep::Ready, Sweep::Lost, Sweep::Due, Sweep::Overdue, Sweep::Stopped];

    pub const fn as_str(self) -> &'static str {
        match self {
            Sweep::Lost => "lost",
            Sweep::Due => "due",
            Sweep::Overdue => "overdue",
            Sweep::Stopped => "stopped",
            Sweep::Ready => "ready",
        }
    }
}

/// How long one kind of rows is worked on at a time. What is left comes with the next tick, after the other kinds.
const PORTION: Duration = Duration::from_secs(1);
/// A row whose statements time out is given so many times more attempts than one that fails: the server may be slow for all rows.
const PATIENCE: i32 = 4;

/// One row of a sweep: whose, and which.
trait Subject {
    fn project_id(&self) -> ProjectId;
    fn subject_id(&self) -> String;
}

impl Subject for Fence {
    fn project_id(&self) -> ProjectId {
        Fence::project_id(self)
    }

    fn subject_id(&self) -> String {
        self.agent_turn_id().to_string()
    }
}

impl<Id: Display> Subject for (ProjectId, Id) {
    fn project_id(&self) -> ProjectId {
        self.0
    }

    fn subject_id(&self) -> String {
        self.1.to_string()
    }
}

impl Subject for (ProjectId, ToolCallId, ClaimToken, bool) {
    fn project_id(&self) -> ProjectId {
        self.0
    }

    fn subject_id(&self) -> String {
        self.1.to_string()
    }
}

/// Runs one tick of all sweeps. The number of statements does not depend on how many agents idle or wait.
pub async fn tick(kernel: &Kernel, config: &Config) -> Result<Swept, Error> {
    let mut swept = Swept::default();
    for kind in Sweep::ALL {
        swept.add(&run(kernel, config, kind).await?);
    }
    Ok(swept)
}

/// Runs one tick of one sweep.
pub async fn run(kernel: &Kernel, config: &Config, sweep: Sweep) -> Result<Swept, Error> {
    // So that no shard always comes first when there are many rows.
    let mut config = config.clone();
    if let (Ok(now), false) = (SystemTime::UNIX_EPOCH.elapsed(), config.shards.is_empty()) {
        let turned = now.subsec_micros() as usize % config.shards.len();
        config.shards.rotate_left(turned);
    }
    match sweep {
        Sweep::Lost => lost(kernel, &config).await,
        Sweep::Due => due(kernel, &config).await,
        Sweep::Overdue => overdue(kernel, &config).await,
        Sweep::Stopped => stopped(kernel, &config).await,
        Sweep::Ready => ready(kernel, &config).await,
    }
}

async fn lost(kernel: &Kernel, config: &Config) -> Result<Swept, Error> {
    let leases_lapsed = lapse(kernel, config).await?;
    let mut swept = Swept { leases_lapsed, ..Swept::default() };

    let abandoned = find(kernel, config, sqlx::query_as("select * from scheduler.abandoned_turns($1, $2)")).await?;
    swept.turns_reclaimed = each(kernel, config, "abandoned_turns", abandoned, &mut swept, |fence: Fence| {
        Box::pin(async move { reclaim(kernel, config, &fence).await })
    })
    .await?;

    let silent = find(kernel, config, sqlx::query_as("select * from scheduler.silent_turns($1, $2)")).await?;
    swept.turns_silent = each(kernel, config, "silent_turns", silent, &mut swept, |fence: Fence| {
        Box::pin(async move {
            let alive: bool = sqlx::query_scalar(
                "select state.listen(p_project => $1, p_agent => $2, p_turn => $3, p_epoch => $4, p_token => $5, p_silence => $6)",
            )
                .bind(fence.project_id())
                .bind(fence.agent_id())
                .bind(fence.agent_turn_id())
                .bind(fence.turn_epoch())
                .bind(fence.claim_token())
                .bind(interval(config.silence))
                .fetch_one(&mut *kernel.lease().await?)
                .await?;
            if alive { Ok(false) } else { reclaim(kernel, config, &fence).await }
        })
    })
    .await?;

    let held = find(kernel, config, sqlx::query_as("select * from scheduler.abandoned_calls($1, $2)")).await?;
    swept.calls_reclaimed =
        each(kernel, config, "abandoned_calls", held, &mut swept, |(project_id, tool_call_id, token, once)| {
            Box::pin(async move {
                let mut alone = kernel.alone(project_id).await?;
                if !once {
                    return call::reclaim(&mut alone, tool_call_id, token, false).await;
                }
                // Done or not, it must not be done again (WK-7).
                let report = Report {
                    is_external: false,
                    tool_call_id,
                    claim_token: Some(token),
                    message_type: MessageType::ToolResult,
                    status: "outcome_unknown".to_owned(),
                    card: call::unknown_card(tool_call_id)?,
                };
                Ok(turn::report(&mut alone, &report).await?.outcome == ReportOutcome::Applied)
            })
        })
        .await?;

    Ok(swept)
}

async fn due(kernel: &Kernel, config: &Config) -> Result<Swept, Error> {
    let mut swept = Swept::default();
    let due = find(kernel, config, sqlx::query_as("select * from scheduler.due_turns($1, $2)")).await?;
    swept.turns_released = each(kernel, config, "due_turns", due, &mut swept, |(project_id, turn_id)| {
        Box::pin(async move {
            turn::release(&mut kernel.alone(project_id).await?, turn_id).await?;
            Ok(true)
        })
    })
    .await?;
    Ok(swept)
}

async fn overdue(kernel: &Kernel, config: &Config) -> Result<Swept, Error> {
    let mut swept = Swept::default();
    // Before the calls that wait for them: what a batch has is not lost to a timeout.
    let batches = find(kernel, config, sqlx::query_as("select * from scheduler.overdue_batches($1, $2)")).await?;
    swept.batches_closed = each(kernel, config, "overdue_batches", batches, &mut swept, |(project_id, batch_id)| {
        Box::pin(async move {
            let mut work = kernel.begin(project_id).await?;
            batch::join(&mut work, batch_id).await?;
            work.commit().await?;
            Ok(true)
        })
    })
    .await?;

    let overdue = find(kernel, config, sqlx::query_as("select * from scheduler.overdue_calls($1, $2)")).await?;
    swept.calls_timed_out = each(kernel, config, "overdue_calls", overdue, &mut swept, |(project_id, tool_call_id)| {
        Box::pin(async move {
            let mut work = kernel.begin(project_id).await?;
            if request::expire(&mut work, tool_call_id).await? {
                work.commit().await?;
                return Ok(true);
            }
            let is_unknown = call::is_once_in_hand(&mut work, tool_call_id).await?;
            drop(work);
            let (status, card) = match is_unknown {
                true => ("outcome_unknown", call::unknown_card(tool_call_id)?),
                false => ("timeout", call::timeout_card(tool_call_id)?),
            };
            let report = Report {
                is_external: false,
                tool_call_id,
                claim_token: None,
                message_type: MessageType::Timeout,
                status: status.to_owned(),
                card,
            };
            let reported = turn::report(&mut kernel.alone(project_id).await?, &report).await?;
            Ok(reported.outcome == ReportOutcome::Applied)
        })
    })
    .await?;

    Ok(swept)
}

async fn stopped(kernel: &Kernel, config: &Config) -> Result<Swept, Error> {
    let mut swept = Swept::default();
    let stopping = find(kernel, config, sqlx::query_as("select * from scheduler.stopping_batches($1, $2)")).await?;
    swept.batches_stopped = each(kernel, config, "stopping_batches", stopping, &mut swept, |(project_id, batch_id)| {
        Box::pin(async move {
            batch::stop_children(kernel, project_id, batch_id).await?;
            Ok(true)
        })
    })
    .await?;

    Ok(swept)
}

async fn ready(kernel: &Kernel, config: &Config) -> Result<Swept, Error> {
    let (keys_forgotten, browser_sessions_forgotten): (i32, i32) =
        sqlx::query_as("select scheduler.forget_keys($1), scheduler.forget_browser_sessions($1)")
            .bind(config.most)
            .fetch_one(&mut *kernel.lease().await?)
            .await?;
    let marks_forgotten =
        sqlx::query_scalar("select scheduler.forget_marks()").fetch_one(&mut *kernel.lease().await?).await?;
    let ready: Vec<(ProjectId, Target, bool)> =
        sqlx::query_as("select * from scheduler.ready_doors()").fetch_all(&mut *kernel.lease().await?).await?;
    let doors_rung = ready.len() as u64;
    for (project_id, target, calls) in ready {
        let door = if calls { Door::of_calls(target) } else { Door::Agent(target) };
        kernel.bus().ring(Bell { project_id, door });
    }
    Ok(Swept { keys_forgotten, browser_sessions_forgotten, marks_forgotten, doors_rung, ..Swept::default() })
}

/// Asks one of the scheduler's functions for a portion of rows of our shards.
async fn find<R: for<'r> FromRow<'r, PgRow> + Send + Unpin>(
    kernel: &Kernel,
    config: &Config,
    query: QueryAs<'static, Postgres, R, PgArguments>,
) -> Result<Vec<R>, Error> {
    Ok(query.bind(config.shards.clone()).bind(config.most).fetch_all(&mut *kernel.lease().await?).await?)
}

/// Ends lapsed leases, and writes the heartbeat of sweeping. If that is older than a lease, nothing is reclaimed for one lease.
async fn lapse(kernel: &Kernel, config: &Config) -> Result<i32, Error> {
    let lapsed = sqlx::query_scalar("select scheduler.lapse_leases($1)").bind(interval(config.lease));
    Ok(lapsed.fetch_one(&mut *kernel.lease().await?).await?)
}

/// Reclaims a turn in a unit of work, since the last task of a batch may end here.
async fn reclaim(kernel: &Kernel, config: &Config, fence: &Fence) -> Result<bool, Error> {
    let mut work = kernel.begin(fence.project_id()).await?;
    let reclaimed = turn::reclaim(&mut work, fence, &Loss::Lease, config.attempts).await?;
    work.commit().await?;
    Ok(reclaimed != Reclaimed::Stale)
}

/// Handles rows one by one. A row that fails is noted and does not hold up the others. Returns how many moved.
///
/// Each call begins with another row: a locked or slow row takes the time of a whole portion, and would otherwise come first every time.
async fn each<'a, R: Subject + Copy + Send>(
    kernel: &Kernel,
    config: &Config,
    sweep: &'static str,
    mut rows: Vec<R>,
    swept: &mut Swept,
    handle: impl Fn(R) -> BoxFuture<'a, Result<bool, Error>> + Send,
) -> Result<u64, Error> {
    let (begun, mut moved) = (Instant::now(), 0);
    let mut beat = begun;
    if !rows.is_empty() {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.subsec_micros() as usize);
        let at = at % rows.len();
        rows.rotate_left(at);
    }
    for (n, row) in rows.iter().copied().enumerate() {
        if begun.elapsed() > PORTION {
            swept.left_over += (rows.len() - n) as u64;
            break;
        }
        if beat.elapsed() > config.lease / 4 {
            // Keeps the heartbeat fresh during a long portion.
            swept.leases_lapsed += lapse(kernel, config).await?;
            beat = Instant::now();
        }
        match handle(row).await {
            Ok(did) => moved += u64::from(did),
            Err(Error::TryAgain(_) | Error::Stale(_) | Error::Busy) => {}
            // The agent's state must be rebuilt first, or the error says nothing about the row.
            Err(Error::HeadLost(_)) => swept.failures += 1,
            Err(error) if error.is_transient() && !error.timed_out() => swept.failures += 1,
            Err(error) => {
                swept.failures += 1;
                let patience = if error.timed_out() { PATIENCE } else { 1 };
                let (error, most) = (causes(&error), config.max_failures * patience);
                quarantine::note(kernel, row.project_id(), sweep, &row.subject_id(), &error, most).await?;
            }
        }
    }
    Ok(moved)
}

//! What a project does now, in one answer: what runs, what waits and for whom, what became of the last hour's turns, and which workers are alive.
//! Counts are bounded: the cost does not grow with the project.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use sqlx::FromRow;
use waybill_core::{
    bus::PMO,
    id::{Target, TurnId},
    tool::TOOLS,
};

use crate::{
    turn::WaitKind,
    work::{DbError, UnitOfWork},
};

/// The most open turns, open calls, turns of the last hour, and steps of these, that are counted.
const MOST: i32 = 10_000;
const MOST_STEPS: i32 = 50_000;

/// What a project does now.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct Now {
    pub at: DateTime<Utc>,
    /// Turns that a worker runs.
    pub n_running: i64,
    /// Turns that wait: for the answers to their calls, or for a time.
    pub n_waiting: i64,
    /// Calls that wait for a person.
    pub n_asking: i64,
    /// Turns that a worker can claim.
    pub n_ready: i64,
    /// Turns behind another turn of their agent.
    pub n_queued: i64,
    /// Since when the oldest of the turns waits that a worker can claim. `null` if there is none.
    pub oldest_ready_at: Option<DateTime<Utc>>,
    /// What is waited for. Turns are counted for `retry`, `worker` and `queue`; calls for `person`, `child` and `tool`.
    pub waiting: Vec<Waiting>,
    /// Whether all open turns and calls are counted. If not, 10,000 of each are.
    pub is_all: bool,
    pub last_hour: LastHour,
    /// The targets of the project's profiles and tools, and whether any worker is alive for each.
    pub workers: Vec<Workers>,
}

/// How many wait for the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Waiting {
    pub kind: WaitKind,
    /// For `worker` and `tool`, the target that must take it up.
    pub target: Option<String>,
    pub n: i64,
    pub oldest_at: DateTime<Utc>,
}

/// What became of the turns that were started in the last hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct LastHour {
    pub n_started: i64,
    pub n_success: i64,
    pub n_failed: i64,
    pub n_canceled: i64,
    pub n_timeout: i64,
    /// What they have cost so far, in millionths of a dollar.
    pub microdollars: i64,
    /// Whether all of them are counted. If not, the newest 10,000 turns and the newest 50,000 steps are.
    pub is_all: bool,
}

/// Whether any worker is alive for a target. Workers of a target may serve several projects, so they are not counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
#[schema(as = AliveWorkers)]
pub struct Workers {
    pub worker_target: Target,
    /// Whether at least one worker is alive. It may be at work for other projects only.
    pub alive: bool,
}

#[derive(FromRow)]
struct Open {
    kind: String,
    name: Option<String>,
    n: i64,
    oldest_at: DateTime<Utc>,
    n_seen: i64,
}

#[derive(FromRow)]
struct Lately {
    n_started: i64,
    n_success: i64,
    n_failed: i64,
    n_canceled: i64,
    n_timeout: i64,
    microdollars: i64,
    n_steps: i64,
}

/// Reads what the project does now.
pub async fn read(work: &mut UnitOfWork) -> Result<Now, DbError> {
    let (project_id, at) = (work.project_id(), Utc::now());
    let open: Vec<Open> = sqlx::query_as("select o.* from state.open_work($1, $2) o")
        .bind(project_id)
        .bind(MOST + 1)
        .fetch_all(&mut **work)
        .await?;
    let lately: Lately = sqlx::query_as("select l.* from state.lately($1, $2, $3, $4) l")
        .bind(project_id)
        .bind(TurnId::at(at - TimeDelta::hours(1)))
        .bind(MOST + 1)
        .bind(MOST_STEPS + 1)
        .fetch_one(&mut **work)
        .await?;
    let workers = workers(work).await?;
    let n = |kind: &str| open.iter().filter(|open| open.kind == kind).map(|open| open.n).sum::<i64>();
    let (n_running, n_queued, n_ready, n_asking) = (n("running"), n("queue"), n("worker"), n("person"));
    let n_waiting = n("calls") + n("retry");
    let is_all = open.iter().all(|open| open.n_seen <= i64::from(MOST));
    let oldest_ready_at = open.iter().filter(|open| open.kind == "worker").map(|open| open.oldest_at).min();
    let waiting = open.into_iter().filter_map(Open::waiting).collect();
    let last_hour = lately.counted();
    Ok(Now {
        at,
        n_running,
        n_waiting,
        n_asking,
        n_ready,
        n_queued,
        oldest_ready_at,
        waiting,
        is_all,
        last_hour,
        workers,
    })
}

impl Open {
    fn waiting(self) -> Option<Waiting> {
        let kind = match self.kind.as_str() {
            "person" => WaitKind::Person,
            "child" => WaitKind::Child,
            "tool" => WaitKind::Tool,
            "retry" => WaitKind::Retry,
            "worker" => WaitKind::Worker,
            "queue" => WaitKind::Queue,
            _ => return None,
        };
        Some(Waiting { kind, target: self.name, n: self.n, oldest_at: self.oldest_at })
    }
}

impl Lately {
    fn counted(self) -> LastHour {
        LastHour {
            n_started: self.n_started,
            n_success: self.n_success,
            n_failed: self.n_failed,
            n_canceled: self.n_canceled,
            n_timeout: self.n_timeout,
            microdollars: self.microdollars,
            is_all: self.n_started <= i64::from(MOST) && self.n_steps <= i64::from(MOST_STEPS),
        }
    }
}

/// Finds out for which of the targets that the project uses a worker is alive.
async fn workers(work: &mut UnitOfWork) -> Result<Vec<Workers>, DbError> {
    let project_id = work.project_id();
    let workers = sqlx::query_as(
        "select w.worker_target, w.alive
           from scheduler.workers(array(
                  (select p.worker_target::text from resource.profiles p where p.project_id = $1 limit 1000)
                   union
                  (select t.target::text from resource.tools t where t.project_id = $1 and t.tool_card_id is not null limit 1000)
                   union
                  select unnest($2::text[]))) w
          order by w.worker_target",
    )
    .bind(project_id)
    .bind(vec![PMO, TOOLS])
    .fetch_all(&mut **work)
    .await?;
    Ok(workers)
}

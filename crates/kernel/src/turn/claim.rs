//! Transaction 2: the right to run turns (L0-17). Crosses projects, fairly.

use std::time::{Duration, Instant};

use sqlx::{FromRow, PgConnection, postgres::types::PgInterval};
use waybill_core::{
    id::{BatchId, BoxId, CardId, Channel, ProjectId, SessionId, StepId, Target, TraceId, TurnId, WorkerId},
    metric,
    turn::{Fence, MessageType},
};

use super::Error;
use crate::{
    lease::LEASE,
    work::{Kernel, UnitOfWork},
};

/// Who claims, and how much.
#[derive(Clone, Debug)]
pub struct Claiming {
    /// The name of a process, while its lease is not lost. The lease begins with the first claim.
    pub worker_id: WorkerId,
    pub target: Target,
    /// The project served last; the next one comes first. Every claim moves it on.
    pub after: ProjectId,
    pub most: i32,
    /// How many turns of one project may run at once, over all workers. Two claims at the same instant may each see the
    /// last free place.
    pub in_flight_cap: i32,
    pub lease: Duration,
    /// How long a turn may go without a step before a sweep checks whether it is alive.
    pub silence: Duration,
}

impl Claiming {
    pub fn new(worker_id: WorkerId, target: Target) -> Claiming {
        Claiming {
            worker_id,
            target,
            // A new id is later than every project's, so the walk begins anywhere and wraps.
            after: ProjectId::new(),
            most: 1,
            in_flight_cap: 1_000,
            lease: LEASE,
            silence: Duration::from_secs(1800),
        }
    }
}

/// Returns the worker that holds the turn under this claim. `None` means that no worker does any more.
pub async fn holder(work: &mut UnitOfWork, fence: &Fence) -> Result<Option<WorkerId>, Error> {
    let holder = sqlx::query_scalar(
        "select worker_id from state.agent_inbox where project_id = $1 and agent_turn_id = $2 and claim_token = $3",
    );
    let project_id = work.project_id();
    let holder = holder.bind(project_id).bind(fence.agent_turn_id()).bind(fence.claim_token());
    Ok(holder.fetch_optional(&mut **work).await?.flatten())
}

/// A turn that is ours until it ends, is suspended, or is taken from us.
#[derive(Clone, Debug, FromRow)]
pub struct Claimed {
    #[sqlx(flatten)]
    pub fence: Fence,
    pub message_type: MessageType,
    pub n_lost_leases: i32,
    /// Attempts that failed before this one.
    pub retry_count: i32,
    /// It was asked to stop.
    pub stop_asked: bool,
    pub profile_box_id: Option<BoxId>,
    pub context_box_id: BoxId,
    pub output_box_id: BoxId,
    pub query_card_ids: Vec<CardId>,
    pub session_id: Option<SessionId>,
    pub parent_agent_turn_id: Option<TurnId>,
    pub parent_step_id: Option<StepId>,
    /// A task of this batch: it ends in a unit of work, not alone.
    pub batch_id: Option<BatchId>,
    pub recursion_depth: i32,
    pub trace_id: Option<TraceId>,
    pub channel: Channel,
}

/// Returns the turn that a worker holds under this claim. `None` means that no worker does any more.
pub async fn claimed(work: &mut UnitOfWork, fence: &Fence) -> Result<Option<Claimed>, Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch, i.claim_token, i.message_type::text, i.n_lost_leases, i.retry_count,
                i.stop_asked, t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
                t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel::text
           from state.agent_inbox i
          cross join lateral (
                select t.profile_box_id, t.context_box_id, t.output_box_id, t.query_card_ids, t.session_id, t.parent_agent_turn_id,
                       t.parent_step_id, t.batch_id, t.recursion_depth, t.trace_id, t.channel
                  from state.turns t
                 where t.project_id = $1 and t.agent_turn_id = $2
                offset 0) t
          where i.project_id = $1 and i.agent_turn_id = $2 and i.agent_id = $3 and i.turn_epoch = $4 and i.claim_token = $5
            and i.worker_id is not null",
    )
    .bind(project_id)
    .bind(fence.agent_turn_id())
    .bind(fence.agent_id())
    .bind(fence.turn_epoch())
    .bind(fence.claim_token())
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// Claims up to `most` ready turns: round robin over projects, the oldest of each first. Waits for no lock.
pub async fn claim(kernel: &Kernel, claiming: &mut Claiming) -> Result<Vec<Claimed>, Error> {
    let mut lease = kernel.lease().await?;
    let claimed = claim_ready(&mut lease, claiming).await;
    lease.settle(&claimed);
    Ok(claimed?)
}

/// Does the same on a connection of the caller's.
pub async fn claim_with(connection: &mut PgConnection, claiming: &mut Claiming) -> Result<Vec<Claimed>, Error> {
    Ok(claim_ready(connection, claiming).await?)
}

async fn claim_ready(connection: &mut PgConnection, claiming: &mut Claiming) -> sqlx::Result<Vec<Claimed>> {
    let begun = Instant::now();
    let claimed = match claiming.most {
        ..=1 => claim_one(connection, claiming).await?,
        _ => claim_many(connection, claiming).await?,
    };
    if !claimed.is_empty() {
        metrics::histogram!(metric::CLAIM_SECONDS).record(begun.elapsed());
        metrics::counter!(metric::TURNS_CLAIMED).increment(claimed.len() as u64);
    }
    Ok(claimed)
}

async fn claim_one(connection: &mut PgConnection, claiming: &mut Claiming) -> sqlx::Result<Vec<Claimed>> {
    let claimed: Vec<Claimed> =
        sqlx::query_as(
            "select *
               from scheduler.claim(p_worker => $1, p_target => $2, p_after => $3, p_in_flight_cap => $4, p_silence => $5, p_lease => $6)
              where agent_turn_id is not null",
        )
            .bind(claiming.worker_id)
            .bind(&claiming.target)
            .bind(claiming.after)
            .bind(claiming.in_flight_cap.max(1))
            .bind(interval(claiming.silence))
            .bind(interval(claiming.lease))
            .fetch_all(connection)
            .await?;
    if let Some(last) = claimed.last() {
        claiming.after = last.fence.project_id();
    }
    Ok(claimed)
}

/// Claims turns of the unit of work's own project, and of no other.
pub async fn claim_in(work: &mut UnitOfWork, claiming: &mut Claiming) -> Result<Vec<Claimed>, Error> {
    Ok(claim_many(work, claiming).await?)
}

async fn claim_many(connection: &mut PgConnection, claiming: &mut Claiming) -> sqlx::Result<Vec<Claimed>> {
    let claimed: Vec<Claimed> = sqlx::query_as(
        "select *
           from scheduler.claim_many(p_worker => $1, p_target => $2, p_after => $3, p_in_flight_cap => $4, p_silence => $5, p_lease => $6,
                                     p_most => $7)",
    )
        .bind(claiming.worker_id)
        .bind(&claiming.target)
        .bind(claiming.after)
        .bind(claiming.in_flight_cap.max(1))
        .bind(interval(claiming.silence))
        .bind(interval(claiming.lease))
        .bind(claiming.most)
        .fetch_all(connection)
        .await?;
    if let Some(last) = claimed.last() {
        claiming.after = last.fence.project_id();
    }
    Ok(claimed)
}

/// Returns what a worker holds: more than it knows of, if a claim was committed and its answer was lost.
pub async fn held(kernel: &Kernel, worker_id: WorkerId) -> Result<Vec<Claimed>, Error> {
    let held = sqlx::query_as("select * from scheduler.held_turns($1)").bind(worker_id);
    Ok(held.fetch_all(&mut *kernel.lease().await?).await?)
}

pub(crate) fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}

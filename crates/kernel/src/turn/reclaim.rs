//! Transaction 6: a turn is taken from its worker and given to another, with what it has written (L0-6, L0-17).

use std::time::Duration;

use waybill_core::{
    bus::Door,
    id::{Target, TurnId},
    metric,
    turn::{End, Fence},
};

use super::{
    Error,
    claim::interval,
    ending_card,
    finish::{MaybeEndedRow, joined},
};
use crate::work::{self, Work};

/// Why a worker does not go on with a turn. The two are counted apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its lease lapsed, or it fell silent. Says nothing about the turn.
    Lease,
    /// The worker itself says that the attempt failed, and how long to wait before the next.
    Attempt { error: String, backoff: Duration },
}

/// How often a turn is given out before it ends as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// A turn that takes every worker down with it must end some day.
    pub max_lost_leases: i32,
    pub max_attempts: i32,
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts { max_lost_leases: 20, max_attempts: 3 }
    }
}

/// What taking a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum Reclaimed {
    /// Ready again, now or after the backoff.
    Armed,
    /// It was retried often enough: it has ended as failed.
    Ended,
    /// Another process was faster, or the turn is over.
    Stale,
}

impl Reclaimed {
    pub const fn as_str(self) -> &'static str {
        match self {
            Reclaimed::Armed => "armed",
            Reclaimed::Ended => "ended",
            Reclaimed::Stale => "stale",
        }
    }
}

/// Takes a turn from the worker that holds the fence. From here on that worker can change nothing.
pub async fn reclaim<W: Work>(
    work: &mut W,
    fence: &Fence,
    loss: &Loss,
    attempts: Attempts,
) -> Result<Reclaimed, Error> {
    let (lost, backoff, reason) = match loss {
        Loss::Lease => (true, Duration::ZERO, "the workers that ran the turn were lost too often"),
        Loss::Attempt { error, backoff } => (false, *backoff, error.as_str()),
    };
    let cards = [ending_card(End::Failed, reason)?];
    let query = sqlx::query_as(
        "select outcome, worker_targets, batches,
                batches <> '{}' and state.talks($1, array[$2::uuid]) as talks
           from state.reclaim(p_fence => $3, p_lost => $4, p_backoff => $5, p_max_lost_leases => $6, p_max_attempts => $7,
                              p_alone => $8, p_cards => $9)",
    )
    .bind(fence.project_id())
    .bind(fence.agent_turn_id())
    .bind(fence)
    .bind(lost)
    .bind(interval(backoff))
    .bind(attempts.max_lost_leases)
    .bind(attempts.max_attempts)
    .bind(W::ALONE)
    .bind(&cards[..]);
    let row: MaybeEndedRow<Reclaimed> = work::one(work, query).await?;
    joined(work, row.ended, &[fence.agent_turn_id()]).await?;
    if row.outcome == Reclaimed::Ended {
        metrics::counter!(metric::TURNS_FINISHED, "status" => End::Failed.as_str()).increment(1);
    }
    Ok(row.outcome)
}

/// Lets a turn go on whose time has come: its time to start, or the time of its next attempt.
pub async fn release(work: &mut impl Work, turn_id: TurnId) -> Result<(), Error> {
    let targets: Vec<Target> = sqlx::query_scalar("select worker_targets from state.release($1, $2)")
        .bind(work.project_id())
        .bind(turn_id)
        .fetch_one(work.connection())
        .await?;
    targets.into_iter().for_each(|target| work.ring(Door::Agent(target)));
    Ok(())
}

//! Asking a turn to stop (WK-6). It still delivers.

use waybill_core::{id::TurnId, metric, turn::End};

use super::{
    Error, ending_card,
    finish::{MaybeEndedRow, joined},
};
use crate::work::{self, Work};

/// What a stop came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum Stopped {
    /// No worker ran it: it has ended as `canceled`.
    Ended,
    /// A worker runs it, and is to end it. It finds the reason between its steps and when it renews its lease.
    Asked,
    /// It had its end before.
    Over,
}

impl Stopped {
    pub const fn as_str(self) -> &'static str {
        match self {
            Stopped::Ended => "ended",
            Stopped::Asked => "asked",
            Stopped::Over => "over",
        }
    }
}

/// Stops a turn, wherever it stands. Doing it again changes nothing: the first reason stays.
pub async fn stop<W: Work>(work: &mut W, turn_id: TurnId, reason: &str) -> Result<Stopped, Error> {
    let cards = [ending_card(End::Canceled, reason)?];
    let query = sqlx::query_as(
        "select outcome, worker_targets, batches,
                batches <> '{}' and state.talks($1, array[$2]) as talks
           from state.stop(p_project => $1, p_turn => $2, p_reason => $3, p_alone => $4, p_cards => $5)",
    )
    .bind(work.project_id())
    .bind(turn_id)
    .bind(reason)
    .bind(W::ALONE)
    .bind(&cards[..]);
    let row: MaybeEndedRow<Stopped> = work::one(work, query).await?;
    joined(work, row.ended, &[turn_id]).await?;
    if row.outcome == Stopped::Ended {
        metrics::counter!(metric::TURNS_FINISHED, "status" => End::Canceled.as_str()).increment(1);
    }
    Ok(row.outcome)
}

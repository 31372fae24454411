//! Asking a turn to stop (WK-6). It still delivers.

use waybill_core::{card::NewCard, id::TurnId, metric, turn::End};

use super::{
    Error, ending_card,
    finish::{MaybeEndedRow, joined},
};
use crate::{card::bind_cards, work::Work};

/// What a stop came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
           from state.stop($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)",
    )
    .bind(work.project_id())
    .bind(turn_id)
    .bind(reason)
    .bind(W::ALONE);
    let row: MaybeEndedRow = bind_cards!(query, &cards).fetch_one(work.connection()).await?;
    joined(work, row.ended, &[turn_id]).await?;
    if row.outcome == "ended" {
        metrics::counter!(metric::TURNS_FINISHED, "status" => End::Canceled.as_str()).increment(1);
    }
    Ok(match row.outcome.as_str() {
        "ended" => Stopped::Ended,
        "asked" => Stopped::Asked,
        _ => Stopped::Over,
    })
}

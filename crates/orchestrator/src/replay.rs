//! Replays a call: reads again what it saw and renders it to the same bytes, or says why that is not possible (CX-11, NX-1).

use chrono::DateTime;
use serde::Serialize;
use waybill_context::{
    call::Call,
    receipt::{self, Digest, Found, Receipt, Verdict},
};
use waybill_core::{
    card_box::{Placed, Span, without_repeats},
    error::causes,
    id::{StepId, TurnId},
};
use waybill_kernel::{
    card, card_box,
    receipt::{self as stored, Stored},
    work::{self, UnitOfWork},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{call} has no receipt: it made no model calls, or its receipts were deleted")]
    NotFound { call: String },
    #[error("this version of Waybill cannot read the receipt of the model call")]
    Unreadable(#[from] serde_json::Error),
    #[error(transparent)]
    Render(#[from] receipt::Error),
    #[error(transparent)]
    Card(#[from] card::Error),
    #[error(transparent)]
    CardBox(#[from] card_box::Error),
    #[error(transparent)]
    Work(#[from] work::Error),
}

/// Lists the receipts of a turn, in the order of its steps.
pub async fn list(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Vec<(StepId, Receipt)>, Error> {
    let found = stored::list(work, turn_id).await?;
    found.iter().map(|stored| Ok((stored.step_id, read(stored)?))).collect()
}

/// Returns the step of the first call of a turn. `None` means that it made no call, or that its receipts were deleted.
pub async fn first(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Option<StepId>, Error> {
    Ok(stored::first(work, turn_id).await?.map(|stored| stored.step_id))
}

/// Renders a call again: that of this step, or the last one of the turn.
pub async fn replay(work: &mut UnitOfWork, turn_id: TurnId, step_id: Option<StepId>) -> Result<Call<'static>, Error> {
    recorded(work, turn_id, step_id).await?.render()
}

/// A call with everything that its receipt points to. Rendering it needs no database.
#[derive(Debug)]
pub struct Recorded {
    pub step_id: StepId,
    pub receipt: Receipt,
    found: Found,
}

impl Recorded {
    /// Renders the call again.
    pub fn render(self) -> Result<Call<'static>, Error> {
        Ok(self.receipt.render(self.found)?)
    }

    /// Estimates how many bytes it has.
    pub fn n_bytes(&self) -> usize {
        usize::try_from(self.receipt.n_tokens.get()).unwrap_or_default() * 4
    }
}

/// Whether the request of a call can be composed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RequestVerdict)]
pub enum Composed {
    /// To the same bytes.
    Ok,
    /// To other bytes.
    Mismatch,
    /// It cannot be composed: cards were erased or are missing, or this version of Waybill has another renderer.
    NotRenderable,
}

/// A call that was composed again and compared with its receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = VerifiedCall)]
pub struct Verified {
    /// Step of the model call.
    pub step_id: StepId,
    /// Whether the request can be composed again.
    pub request: Composed,
    /// Whether the cards that the call saw are still what they were.
    pub cards: Verdict,
    /// Cards that were read for the call.
    pub n_cards: usize,
    /// Hash of the request, as its receipt has it.
    pub request_hash: Digest,
    /// Hash of the request that was composed again. `null` if it cannot be composed.
    pub recomputed_hash: Option<Digest>,
    /// Why the same bytes cannot be composed. `null` if they can.
    pub why: Option<String>,
}

impl Recorded {
    /// Composes the call again, and compares it and its cards with the receipt.
    pub fn verify(self) -> Verified {
        let Recorded { step_id, receipt: stored, found } = self;
        let n_cards = found.cards.len() + found.history.len() + found.steps.len();
        let cards = stored.verify_cards(&found);
        let request_hash = stored.request_hash;
        let (request, recomputed_hash, why) = match stored.render(found) {
            Ok(call) => (Composed::Ok, Some(Digest::of(&call.request)), None),
            Err(error) => match &error {
                receipt::Error::Mismatch { rendered, .. } => {
                    (Composed::Mismatch, Some(*rendered), Some(error.to_string()))
                }
                receipt::Error::Changed { rendered, .. } => {
                    let is_same = *rendered == request_hash;
                    (if is_same { Composed::Ok } else { Composed::Mismatch }, Some(*rendered), Some(error.to_string()))
                }
                other => (Composed::NotRenderable, None, Some(causes(other))),
            },
        };
        Verified { step_id, request, cards, n_cards, request_hash, recomputed_hash, why }
    }
}

/// Reads a call: that of this step, or the last one of the turn.
pub async fn recorded(work: &mut UnitOfWork, turn_id: TurnId, step_id: Option<StepId>) -> Result<Recorded, Error> {
    let call = || step_id.map_or(format!("turn {turn_id}"), |step_id| format!("step {step_id} of turn {turn_id}"));
    let stored = stored::find(work, turn_id, step_id).await?.ok_or_else(|| Error::NotFound { call: call() })?;
    record(work, stored.step_id, read(&stored)?).await
}

/// Reads a call, unless it has more bytes than this. Nothing but its receipt is read of one that has.
pub async fn recorded_within(
    work: &mut UnitOfWork,
    turn_id: TurnId,
    step_id: StepId,
    most_bytes: usize,
) -> Result<Option<Recorded>, Error> {
    let Some(stored) = stored::find(work, turn_id, Some(step_id)).await? else { return Ok(None) };
    let receipt = read(&stored)?;
    if usize::try_from(receipt.n_tokens.get()).unwrap_or_default() * 4 > most_bytes {
        return Ok(None);
    }
    record(work, stored.step_id, receipt).await.map(Some)
}

/// Reads the call of a receipt.
pub async fn record(work: &mut UnitOfWork, step_id: StepId, receipt: Receipt) -> Result<Recorded, Error> {
    Ok(Recorded { step_id, found: find(work, &receipt).await?, receipt })
}

fn read(stored: &Stored) -> Result<Receipt, serde_json::Error> {
    serde_json::from_str(stored.receipt.get())
}

/// Reads what a receipt points to, each card as it was before it ended.
async fn find(work: &mut UnitOfWork, receipt: &Receipt) -> Result<Found, Error> {
    let as_of = Some(DateTime::UNIX_EPOCH);
    let cards = card::fetch(work, &receipt.card_ids(), as_of).await?.found;
    let mut history: Vec<Placed> = Vec::new();
    for span in &receipt.history {
        history.extend(card_box::read(work, *span, as_of).await?);
    }
    let history = without_repeats(history);
    let steps = match receipt.output {
        Span { upto: 0, .. } => Vec::new(),
        output => card_box::read(work, output, as_of).await?,
    };
    Ok(Found { cards, history, steps })
}

//! Replays a call: reads again what it saw and renders it to the same bytes, or says why that is not possible (CX-11, NX-1).

use chrono::DateTime;
use waybill_context::{
    call::Call,
    receipt::{self, Found, Receipt},
};
use waybill_core::{
    card_box::{Placed, Span, without_repeats},
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

/// Reads a call: that of this step, or the last one of the turn.
pub async fn recorded(work: &mut UnitOfWork, turn_id: TurnId, step_id: Option<StepId>) -> Result<Recorded, Error> {
    let call = || step_id.map_or(format!("turn {turn_id}"), |step_id| format!("step {step_id} of turn {turn_id}"));
    let stored = stored::find(work, turn_id, step_id).await?.ok_or_else(|| Error::NotFound { call: call() })?;
    record(work, stored.step_id, read(&stored)?).await
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

//! What a worker writes of a turn: each write is one transaction under the turn's fence, and is retried with the same ids until it is known
//! to be written.

use waybill_core::{id::SessionId, turn::Fence};
use waybill_kernel::{
    blackboard::{self, Patch},
    retry::{Transient, retry},
    turn::{self, Attempts, Loss, Step, Stepped},
    work::Kernel,
};

/// Why a step and a patch of the session's memory were not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Turn(#[from] turn::Error),
    /// The patch was refused.
    #[error(transparent)]
    Patch(blackboard::Error),
}

impl Transient for Error {
    fn is_transient(&self) -> bool {
        match self {
            Error::Turn(error) => error.is_transient(),
            Error::Patch(_) => false,
        }
    }
}

/// Writes one step.
pub(crate) async fn step(kernel: &Kernel, fence: &Fence, step: &Step) -> Result<Stepped, turn::Error> {
    retry(|| {
        Box::pin(async {
            let mut alone = kernel.alone(fence.project_id()).await?;
            turn::step(&mut alone, fence, step).await
        })
    })
    .await
}

/// Writes one step together with a patch of the session's memory. If the patch is refused, neither is written.
pub(crate) async fn step_and_patch(
    kernel: &Kernel,
    fence: &Fence,
    step: &Step,
    session_id: SessionId,
    patch: &Patch,
) -> Result<Stepped, Error> {
    retry(|| {
        Box::pin(async {
            let mut work = kernel.begin(fence.project_id()).await.map_err(turn::Error::from)?;
            let stepped = turn::step(&mut work, fence, step).await?;
            match blackboard::patch(&mut work, session_id, step.step_id, patch).await {
                Ok(_) => {}
                Err(blackboard::Error::Db(error) | blackboard::Error::TryAgain(error)) => {
                    return Err(Error::Turn(error.into()));
                }
                Err(other) => return Err(Error::Patch(other)),
            }
            work.commit().await.map_err(turn::Error::from)?;
            Ok(stepped)
        })
    })
    .await
}

/// Gives a turn back after a failed attempt. The worker that claims it next continues from its cards.
pub(crate) async fn give_back(
    kernel: &Kernel,
    fence: &Fence,
    loss: &Loss,
    attempts: Attempts,
) -> Result<(), turn::Error> {
    retry(|| {
        Box::pin(async {
            let mut work = kernel.begin(fence.project_id()).await?;
            turn::reclaim(&mut work, fence, loss, attempts).await?;
            Ok(work.commit().await?)
        })
    })
    .await
}

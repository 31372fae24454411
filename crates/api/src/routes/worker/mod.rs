//! Running turns and answering calls from any language (UI-2): the kernel's own transitions, under the same fence.
//!
//! A worker has a name of its own choosing, which stands for one process and its lease. It claims, renews its lease with heartbeats, writes steps,
//! and finishes. If it gets `lease_lost` or `stale` it stops what it was doing: another worker has it. Steps, endings and answers carry ids that
//! the worker mints, and may be sent again until the worker knows that one has arrived.
//!
//! A worker that asks models may leave the rest of a step to the server: `compose` says what to send, `answer` takes what came back.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waybill_core::{
    id::{AgentId, TurnId},
    turn::{ClaimToken, Fence, TurnEpoch},
};

use crate::caller::Caller;

mod brief;
mod card;

pub(super) mod call;
pub(super) mod claim;
pub(super) mod compose;
pub(super) mod finish;
pub(super) mod lease;
pub(super) mod step;
pub(super) mod token;

/// Proves that the worker holds the turn. Send it with everything that you write to the turn.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct TurnFence {
    /// Agent of the turn.
    agent_id: AgentId,
    /// Epoch of the agent when the worker claimed the turn.
    turn_epoch: TurnEpoch,
    /// Token of the worker's claim of the turn.
    claim_token: ClaimToken,
}

impl TurnFence {
    fn of(self, caller: &Caller, turn_id: TurnId) -> Fence {
        Fence::claimed(caller.asked, self.agent_id, turn_id, self.turn_epoch, self.claim_token)
    }
}

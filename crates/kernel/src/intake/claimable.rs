//! What can be claimed: turns, and calls.

use std::{fmt::Debug, hash::Hash, time::Duration};

use waybill_core::{
    bus::Door,
    id::{Target, ToolCallId, TurnId, WorkerId},
};

use crate::{
    call::{self, ClaimedCall},
    turn::{self, Attempts, Claimed, Claiming, Error, Loss},
    work::Kernel,
};

/// What can be claimed: turns, and calls.
pub trait Claimable: Debug + Send + Sized + 'static {
    type Id: Copy + Debug + Eq + Hash + Send + Sync + 'static;
    /// Their name in metrics.
    const KIND: &'static str;

    fn id(&self) -> Self::Id;
    fn door(target: Target) -> Door;
    fn claim(kernel: &Kernel, claiming: &mut Claiming) -> impl Future<Output = Result<Vec<Self>, Error>> + Send;
    fn held(kernel: &Kernel, worker_id: WorkerId) -> impl Future<Output = Result<Vec<Self>, Error>> + Send;
    /// Gives work back after a failed attempt: the attempt is counted, and the work is retried or ends as failed.
    fn give_back(&self, kernel: &Kernel, why: &str) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The pause between a failed attempt of a turn and the next one.
const BACKOFF: Duration = Duration::from_secs(2);

impl Claimable for Claimed {
    type Id = TurnId;
    const KIND: &'static str = "turns";

    fn id(&self) -> TurnId {
        self.fence.agent_turn_id()
    }

    fn door(target: Target) -> Door {
        Door::Agent(target)
    }

    async fn claim(kernel: &Kernel, claiming: &mut Claiming) -> Result<Vec<Claimed>, Error> {
        turn::claim(kernel, claiming).await
    }

    async fn held(kernel: &Kernel, worker_id: WorkerId) -> Result<Vec<Claimed>, Error> {
        turn::held(kernel, worker_id).await
    }

    async fn give_back(&self, kernel: &Kernel, why: &str) -> Result<(), Error> {
        let mut work = kernel.begin(self.fence.project_id()).await?;
        let loss = Loss::Attempt { error: why.to_owned(), backoff: BACKOFF };
        turn::reclaim(&mut work, &self.fence, &loss, Attempts::default()).await?;
        Ok(work.commit().await?)
    }
}

impl Claimable for ClaimedCall {
    type Id = ToolCallId;
    const KIND: &'static str = "calls";

    fn id(&self) -> ToolCallId {
        self.tool_call_id
    }

    fn door(target: Target) -> Door {
        Door::of_calls(target)
    }

    async fn claim(kernel: &Kernel, claiming: &mut Claiming) -> Result<Vec<ClaimedCall>, Error> {
        call::claim(kernel, claiming).await
    }

    async fn held(kernel: &Kernel, worker_id: WorkerId) -> Result<Vec<ClaimedCall>, Error> {
        call::held(kernel, worker_id).await
    }

    async fn give_back(&self, kernel: &Kernel, why: &str) -> Result<(), Error> {
        call::give_back(kernel, self, why, Attempts::default()).await
    }
}

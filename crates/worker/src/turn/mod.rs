//! One turn, from start to end (WK-1 … WK-7).
//!
//! ```text
//!   claim ─▶ load ────▶ gather ─▶ compact ─▶ compose ─▶ ask the model ─▶ one transaction for what came back ─┬▶ again, from gather
//!                                                                                                            ├▶ suspend, for calls
//!                                                                                                            └▶ finish, with the deliverable
//! ```
//! Everything that matters is in the database between two steps; what the worker keeps only saves reading it again. A turn that another worker left half done continues from its cards. A
//! model call that was in flight when its worker died is repeated with the same idempotency key. A call whose answer was written is never
//! repeated.

use std::time::Duration;

use tokio::time::Instant;
use waybill_context::call;
use waybill_core::{
    card::{CardType, Content, Draft, Invalid, NewCard, Role},
    id::StepId,
    resource::{LlmConfig, Memory},
    turn::{Budget, End, Fence, Limit, Limits},
};
use waybill_kernel::{
    blackboard, fork,
    intake::{Holding, Order},
    retry::{Transient, retry},
    turn::{self, Claimed},
    work::Kernel,
};

use crate::{
    compact,
    gather::{self, Gathered, Setting, gather},
    model,
    serve::Worker,
    toolbox::artifact::Folders,
    write,
};

use reported::{Refused, Reporter};

mod load;

mod budget;
mod think;

mod act;
mod answer;
mod end;

pub mod reported;

/// Why [`run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Finished(End),
    /// It waits for the results of its calls.
    Suspended,
    /// The attempt failed. The turn is retried later, or was given up.
    Failed,
    /// This worker stops; another one continues the turn with its next step.
    Left,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Turn(#[from] turn::Error),
    #[error(transparent)]
    Gather(gather::Error),
    #[error(transparent)]
    Compact(compact::Error),
    #[error(transparent)]
    Blackboard(#[from] blackboard::Error),
    #[error("the response of the model cannot be stored as a card")]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl From<write::Error> for Error {
    fn from(error: write::Error) -> Error {
        match error {
            write::Error::Turn(error) => Error::Turn(error),
            write::Error::Patch(error) => Error::Blackboard(error),
        }
    }
}

/// Runs a turn until it ends, waits or is lost.
pub async fn run(worker: &Worker, holding: &Holding<Claimed>) -> Result<Outcome, Error> {
    match take_steps(worker, holding).await {
        Ok(outcome) => Ok(outcome),
        Err(halt) => end::halt(worker, &holding.claimed, halt).await,
    }
}

/// Takes one step after another until the turn ends or waits.
async fn take_steps(worker: &Worker, holding: &Holding<Claimed>) -> Result<Outcome, Halt> {
    let mut turn = Turn::load(worker, &holding.claimed).await?;
    loop {
        if let Next::Done(outcome) = turn.step(holding).await? {
            return Ok(outcome);
        }
    }
}

/// What follows a step.
enum Next {
    Step,
    /// The turn ended, or waits.
    Done(Outcome),
}

/// Why this worker takes no further step of a turn.
#[derive(Debug, thiserror::Error)]
enum Halt {
    /// A caller stopped the turn. `None` means that the reason is not known yet.
    #[error("the turn was stopped")]
    Stopped { reason: Option<String> },
    #[error("this worker is shutting down")]
    Leaving,
    /// This limit is used up, or the request alone would use more than what is left of it.
    #[error("the turn has used up its limit of {}", .0.as_str())]
    Over(Limit),
    /// No attempt would help.
    #[error("{code}: {why}")]
    GiveUp { code: &'static str, why: String },
    /// No model answered; another attempt may help.
    #[error("no model responded: {error}")]
    Retry { error: model::Error, backoff: Duration },
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<turn::Error> for Halt {
    fn from(error: turn::Error) -> Halt {
        Halt::Failed(Error::Turn(error))
    }
}

impl From<Refused> for Halt {
    fn from(refused: Refused) -> Halt {
        Halt::Failed(Error::Refused(refused))
    }
}

impl From<gather::Error> for Halt {
    fn from(error: gather::Error) -> Halt {
        match error {
            gone @ gather::Error::QueryGone(_) => Halt::GiveUp { code: "unreadable", why: gone.to_string() },
            changed @ gather::Error::Changed(_) => Halt::GiveUp { code: "card_changed", why: changed.to_string() },
            error => Halt::Failed(Error::Gather(error)),
        }
    }
}

impl From<compact::Error> for Halt {
    fn from(error: compact::Error) -> Halt {
        match error {
            compact::Error::Call(error) => error.into(),
            compact::Error::Gather(error) => error.into(),
            error => Halt::Failed(Error::Compact(error)),
        }
    }
}

impl From<call::Error> for Halt {
    fn from(error: call::Error) -> Halt {
        Halt::GiveUp { code: "cannot_compose", why: error.to_string() }
    }
}

impl Transient for Halt {
    fn is_transient(&self) -> bool {
        match self {
            Halt::Failed(Error::Turn(error)) => error.is_transient(),
            _ => false,
        }
    }
}

struct Turn<'w> {
    worker: &'w Worker,
    claimed: &'w Claimed,
    llms: Vec<LlmConfig>,
    /// The models and the prompt of the profile that writes the summaries, if that is another profile.
    summariser: Option<(Vec<LlmConfig>, String)>,
    memory: Memory,
    setting: Setting,
    /// The profile's name, as the author of artifacts.
    author: String,
    /// The worker elsewhere that asks the model. `None` means that this one does.
    reporter: Option<Reporter>,
    folders: Folders,
    budget: Option<Budget>,
    /// When its time is over, by this process's clock.
    expires: Option<Instant>,
    /// The project's limits, which apply where the turn's budget sets none.
    default: Limits,
    /// How many steps and tokens it has used so far.
    n_steps: i64,
    n_tokens: i64,
    stop_asked: bool,
    stop_reason: Option<String>,
    /// An earlier attempt at this step, lost or failed, may already have sent the request that comes next.
    asked_again: bool,
    /// The provider's id of the model's last answer, since this worker has the turn.
    previous_message: Option<String>,
    /// Attempts that failed since the turn last wrote something.
    n_failed: i32,
    gathered: Option<Gathered>,
    /// The length of its output box when `gathered` was read.
    seen: i64,
    /// In a fork: the recorded results, which are returned instead of calling tools again.
    recorded: Option<Vec<fork::Answered>>,
}

impl<'w> Turn<'w> {
    /// Takes one step, or ends the turn if the result of one of its tool calls ends it (`after_execution`, `must_end_with`).
    async fn step(&mut self, holding: &Holding<Claimed>) -> Result<Next, Halt> {
        if let Some(next) = self.begin(holding.order() == Order::Stop).await? {
            return Ok(next);
        }
        let out_of_time = self.out_of_time();
        let thinking = async {
            self.compact().await?;
            self.compose_and_ask().await
        };
        let answered = tokio::select! {
            answered = thinking => answered?,
            // The next check finds what called it off.
            () = stopped(holding) => return Ok(Next::Step),
            Some(()) = out_of_time => return Ok(Next::Step),
        };
        Ok(self.write(answered).await?)
    }

    /// Reads what the next call is made of. If the result of a tool call ends the turn, ends it and returns what follows.
    async fn begin(&mut self, is_stopped: bool) -> Result<Option<Next>, Halt> {
        self.check(is_stopped)?;
        self.gather().await?;
        match self.ending_result() {
            Some(result) => Ok(Some(self.deliver(result).await?)),
            None => Ok(None),
        }
    }

    /// Checks whether another step may begin here.
    fn check(&self, is_stopped: bool) -> Result<(), Halt> {
        if self.stop_asked || is_stopped {
            return Err(Halt::Stopped { reason: self.stop_reason.clone() });
        }
        if let Some(limit) = self.exhausted() {
            return Err(Halt::Over(limit));
        }
        if let Some(why) = self.without_price() {
            return Err(Halt::GiveUp { code: "no_price", why });
        }
        if self.worker.is_leaving() {
            return Err(Halt::Leaving);
        }
        Ok(())
    }

    /// Reads what the next call is made of.
    async fn gather(&mut self) -> Result<(), Halt> {
        let (kernel, claimed, collector) = (self.kernel(), self.claimed, self.worker.collector());
        let (setting, mut before) = (&self.setting, self.gathered.take());
        let gathered = retry(|| Box::pin(gather(kernel, claimed, setting, collector, before.take()))).await?;
        self.seen = gathered.materials.output.upto;
        self.gathered = Some(gathered);
        Ok(())
    }

    fn gathered(&self) -> &Gathered {
        self.gathered.as_ref().expect("it is gathered before every step")
    }

    fn kernel(&self) -> &'w Kernel {
        self.worker.kernel()
    }

    fn fence(&self) -> &'w Fence {
        &self.claimed.fence
    }

    /// Seals a card of this step, with its lineage (L0-10).
    fn seal(&self, step_id: StepId, mut draft: Draft) -> Result<NewCard, Invalid> {
        draft.metadata.trace_id = self.claimed.trace_id;
        draft.metadata.step_id = Some(step_id);
        draft.metadata.parent_step_id = self.claimed.parent_step_id;
        if let Some(reporter) = &self.reporter {
            draft.metadata.author_id = Some(reporter.actor.clone());
        }
        draft.seal()
    }

    /// Makes a card with which the worker reminds the model of something.
    fn remark(&self, step_id: StepId, text: &str) -> Result<NewCard, Invalid> {
        self.seal(step_id, Draft::new(CardType::reminder(), Role::User, Content::Text(text.to_owned())))
    }
}

/// Waits until a caller stops the turn.
async fn stopped(holding: &Holding<Claimed>) {
    if holding.called_off().await == Order::Lost {
        // The turn is lost: the caller drops this future.
        std::future::pending().await
    }
}

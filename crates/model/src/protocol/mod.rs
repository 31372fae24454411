//! The transactions of a turn's life, statement by statement, and the ways to write each of them wrongly.

mod batch;
mod call;
mod mutant;
mod queue;
mod turn;

use crate::db::{Blocked, CALLS, CallStatus, Db, Head, Mark, Row, Set, Status, TURNS, View};

pub(crate) use mutant::{Fault, Mutant, Shows};

/// What a turn does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// One step, then the deliverable.
    Plain,
    /// A step that calls two tools, a wait for both, the deliverable.
    Tools,
    /// A step that forks a batch of two children, a wait for their join, the deliverable.
    Fork,
    /// A child of the batch: its task.
    Child(u8),
}

/// Which agents have which turns, and what the turns do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) agent_of: [u8; TURNS],
    pub(crate) work: [Work; TURNS],
    /// Whether ready turns have places, and claims begin at the mark of the queue.
    pub(crate) marks: bool,
    /// Whether a claim may take many turns at once. Then they may also end together.
    pub(crate) many: bool,
    /// Whether the batch gives its call back to the handler, which answers it.
    pub(crate) resumes: bool,
    /// Whether calls have a deadline. If not, only the protocol ends them.
    pub(crate) deadlines: bool,
}

impl Plan {
    pub(crate) fn agent(&self, turn: u8) -> u8 {
        self.agent_of[turn as usize]
    }

    fn calls(&self, turn: u8) -> std::ops::Range<usize> {
        match self.work[turn as usize] {
            Work::Tools => 0..CALLS,
            Work::Fork => 0..1,
            Work::Plain | Work::Child(_) => 0..0,
        }
    }

    /// Returns the turn that waits for the calls.
    pub(crate) fn caller(&self) -> Option<u8> {
        (0..TURNS as u8).find(|turn| !self.calls(*turn).is_empty())
    }

    fn all_done(&self, db: &Db, turn: u8) -> bool {
        self.calls(turn).all(|call| db.calls[call].status == CallStatus::Done)
    }
}

/// The right to act on one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fence {
    pub(crate) turn: u8,
    pub(crate) epoch: u8,
    pub(crate) token: u8,
}

impl Fence {
    pub(crate) fn holds(self, head: &Head) -> bool {
        head.status == Status::Running && (head.turn, head.epoch, head.token) == (self.turn, self.epoch, self.token)
    }
}

/// The kind of a running transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Enqueue(u8),
    Claim(Set),
    /// A claim that takes nothing and moves the mark.
    Look,
    /// A sweep that resets the mark.
    Forget,
    Step(Fence),
    Suspend(Fence),
    Finish(Fence),
    /// Two turns that end together.
    FinishBoth([Fence; 2]),
    /// A result, or the timeout in place of one.
    Report(u8),
    /// Only for the mutant that resumes in a separate transaction.
    Resume(u8),
    Reclaim(Fence),
    Nudge(u8),
    Stop(u8),
    Fork(u8),
    /// A handler takes the call of a batch, leaves it to the batch, or dies and loses it.
    Take,
    Await,
    GiveBack,
    /// Only for the mutants that finish or join in a separate transaction.
    FinishRest(Fence),
    Join,
}

impl Kind {
    /// Returns the fences that it presents: of two turns, in the order of their agents.
    pub(crate) fn fences(self) -> Vec<Fence> {
        match self {
            Kind::Step(fence) | Kind::Suspend(fence) | Kind::Finish(fence) | Kind::FinishRest(fence) => vec![fence],
            Kind::FinishBoth(fences) => fences.to_vec(),
            _ => Vec::new(),
        }
    }
}

/// What a statement did.
pub(crate) enum Flow {
    Next,
    Commit,
    /// There was nothing to do, or the fence did not hold: stop without effects.
    Abort,
}

/// The correct protocol, or the protocol with one mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    pub(crate) plan: Plan,
    pub(crate) mutant: Option<Mutant>,
}

impl Protocol {
    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Runs statement number `pc` of a transaction.
    pub(crate) fn statement(&self, kind: Kind, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        match kind {
            Kind::Enqueue(turn) => self.enqueue(turn, pc, view),
            Kind::Claim(turns) => self.claim(turns, pc, view),
            Kind::Look => self.mark(pc, view),
            Kind::Forget => view.write(Row::Mark, |db| db.mark = Mark::default()).map(|()| Flow::Commit),
            Kind::Step(fence) => self.step(fence, pc, view),
            Kind::Suspend(fence) => self.suspend(fence, pc, view),
            Kind::Finish(fence) => self.finish(fence, pc, view),
            Kind::FinishBoth(fences) => self.finish_both(fences, pc, view),
            Kind::FinishRest(fence) => self.finish_rest(fence, view),
            Kind::Report(call) => self.report(call, pc, view),
            Kind::Resume(turn) => self.resume(turn, view),
            Kind::Reclaim(fence) => self.reclaim(fence, view),
            Kind::Nudge(turn) => {
                view.write(Row::Inbox(turn), |db| db.inbox[turn as usize].extra = 1).map(|()| Flow::Commit)
            }
            Kind::Stop(turn) => self.stop(turn, pc, view),
            Kind::Fork(turn) => self.fork(turn, pc, view),
            Kind::Take => self.take(view),
            Kind::Await => self.leave_to_batch(pc, view),
            Kind::GiveBack => self.give_back(view),
            Kind::Join => self.join(view).map(|()| Flow::Commit),
        }
    }

    fn fence_holds(&self, fence: Fence, head: &Head) -> bool {
        if self.is(Mutant::NoClaimToken) {
            return head.status == Status::Running && (head.turn, head.epoch) == (fence.turn, fence.epoch);
        }
        fence.holds(head)
    }

    /// Returns a place for a turn that becomes ready or is claimed, drawn by the statement that writes its row.
    fn place(&self, turn: u8, view: &mut View<'_>) -> u8 {
        if self.plan.marks { view.draw() } else { view.fresh().inbox[turn as usize].place }
    }

    /// Locks the head and checks the fence: the first statement of every fenced transaction.
    fn fenced(&self, fence: Fence, view: &mut View<'_>) -> Result<bool, Blocked> {
        let agent = self.plan.agent(fence.turn);
        view.lock(Row::Head(agent))?;
        Ok(self.fence_holds(fence, &view.fresh().heads[agent as usize]))
    }
}

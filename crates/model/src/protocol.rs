//! The transactions of a turn's life, statement by statement, and the ways in which each could be written wrongly.

use crate::db::{
    Batch, Blocked, CALLS, Call, CallStatus, Db, Head, Inbox, InboxRow, NOBODY, Progress, Row, Status, TASKS, TURNS,
    Task, View,
};

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

/// Who has which turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) agent_of: [u8; TURNS],
    pub(crate) work: [Work; TURNS],
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

    /// The turn that waits for the calls.
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

/// A transaction under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Enqueue(u8),
    Claim(u8),
    Step(Fence),
    Suspend(Fence),
    Finish(Fence),
    /// A result, or the timeout that stands in for one.
    Report(u8),
    /// Only of the mutant that resumes in transactions of its own.
    Resume(u8),
    Reclaim(Fence),
    Nudge(u8),
    Stop(u8),
    Fork(u8),
    /// Only of the mutants that finish, or join, in transactions of their own.
    FinishRest(Fence),
    Join,
}

impl Kind {
    pub(crate) fn fence(self) -> Option<Fence> {
        match self {
            Kind::Step(fence) | Kind::Suspend(fence) | Kind::Finish(fence) | Kind::FinishRest(fence) => Some(fence),
            _ => None,
        }
    }
}

/// What a statement did.
pub(crate) enum Flow {
    Next,
    Commit,
    /// Nothing was to be done, or the fence did not hold: stop, no effects.
    Abort,
}

/// One way of writing the protocol wrongly. Each was found in some system, or suggests itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mutant {
    /// The fence does not name the claim.
    NoClaimToken,
    /// A step's insert is fenced by a WHERE, without the head's lock.
    InsertFencedByWhere,
    /// The deliverable is committed before the head is let go.
    FinishInTwoTransactions,
    /// The next turn is looked up in the statement that waits for the head.
    NextTurnInSameStatement,
    /// Finishing leaves the next queued turn to somebody else.
    FinishForgetsNext,
    /// Finishing takes the newest queued turn.
    FinishOvertakes,
    /// Finishing leaves the inbox row.
    FinishKeepsInboxRow,
    /// The deliverable is not gated.
    FinishUnfenced,
    /// A busy agent's head is only looked at.
    EnqueueWithoutLock,
    /// A replay enqueues again.
    EnqueueNotIdempotent,
    /// A nudge inserts another row.
    ResendInserts,
    /// Neither a claim nor a reclaim makes a new fence.
    FenceNeverChanges,
    /// Reclaiming arms the inbox row and leaves the head.
    ReclaimForgetsHead,
    /// Reclaiming leaves the inbox row as it was.
    ReclaimForgetsInbox,
    /// Reclaiming trusts what the sweep saw.
    ReclaimUnfenced,
    /// Suspending does not look for results that came before.
    SuspendIgnoresEarlyResults,
    /// A report does not take the head's lock.
    ReportWithoutHeadLock,
    /// A result is applied whether or not one was before.
    ResultAppliedTwice,
    /// The last result and the resumption are two transactions.
    ResumeInTwoTransactions,
    /// The last waiter is looked for in the statement that waits for the head.
    LastWaiterInSameStatement,
    /// A partial result takes away the deadline of the others.
    PartialResultResetsDeadline,
    /// A call has no deadline.
    NoDeadline,
    /// A claim waits for the head, beside a stop that holds the head and waits for the inbox row.
    ClaimWaitsForHead,
    /// Stopping a queued turn removes it without a deliverable.
    StopWithoutDeliverable,
    /// Stopping a running turn delivers for it.
    StopDelivers,
    /// A batch is closed by whoever sees no task left, without counting.
    BatchClosedByLooking,
    /// The count starts with all slots, also the empty ones.
    BatchCountsEmptySlots,
    /// A batch is forked again when its command is delivered again.
    ForkNotIdempotent,
    /// The child's end and the parent's result are two transactions.
    JoinInTwoTransactions,
    /// A claim locks the head before the inbox row, a finish the inbox row before the head.
    LocksInTwoOrders,
    /// Work is found by its doorbell alone.
    DoorbellOnly,
}

/// Where a mutant shows itself soonest: which scenario, and what has to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    Queue(Fault),
    Tools(Fault),
    Batch(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Crash,
    Pause,
    UnknownCommit,
    Replay,
    Stop,
    LostBell,
}

impl Mutant {
    pub(crate) const ALL: [(Mutant, Shows); 31] = {
        use Mutant::*;
        use Shows::*;
        [
            (NoClaimToken, Batch(Fault::UnknownCommit)),
            (InsertFencedByWhere, Queue(Fault::Pause)),
            (FinishInTwoTransactions, Queue(Fault::Crash)),
            (NextTurnInSameStatement, Queue(Fault::None)),
            (FinishForgetsNext, Queue(Fault::None)),
            (FinishOvertakes, Queue(Fault::None)),
            (FinishKeepsInboxRow, Queue(Fault::None)),
            (FinishUnfenced, Queue(Fault::Pause)),
            (EnqueueWithoutLock, Queue(Fault::None)),
            (EnqueueNotIdempotent, Queue(Fault::Replay)),
            (ResendInserts, Queue(Fault::None)),
            (FenceNeverChanges, Queue(Fault::Pause)),
            (ReclaimForgetsHead, Queue(Fault::Crash)),
            (ReclaimForgetsInbox, Queue(Fault::Crash)),
            (ReclaimUnfenced, Queue(Fault::Pause)),
            (SuspendIgnoresEarlyResults, Tools(Fault::None)),
            (ReportWithoutHeadLock, Tools(Fault::None)),
            (ResultAppliedTwice, Tools(Fault::None)),
            (ResumeInTwoTransactions, Batch(Fault::Crash)),
            (LastWaiterInSameStatement, Tools(Fault::None)),
            (PartialResultResetsDeadline, Tools(Fault::None)),
            (NoDeadline, Tools(Fault::None)),
            (ClaimWaitsForHead, Queue(Fault::Stop)),
            (StopWithoutDeliverable, Queue(Fault::Stop)),
            (StopDelivers, Queue(Fault::Stop)),
            (BatchClosedByLooking, Batch(Fault::None)),
            (BatchCountsEmptySlots, Batch(Fault::None)),
            (ForkNotIdempotent, Batch(Fault::Replay)),
            (JoinInTwoTransactions, Batch(Fault::None)),
            (LocksInTwoOrders, Queue(Fault::Pause)),
            (DoorbellOnly, Queue(Fault::LostBell)),
        ]
    };
}

/// The protocol as it is to be written, or with one thing wrong.
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
            Kind::Claim(turn) => self.claim(turn, pc, view),
            Kind::Step(fence) => self.step(fence, pc, view),
            Kind::Suspend(fence) => self.suspend(fence, pc, view),
            Kind::Finish(fence) => self.finish(fence, pc, view),
            Kind::FinishRest(fence) => self.finish_rest(fence, view),
            Kind::Report(call) => self.report(call, pc, view),
            Kind::Resume(turn) => self.resume(turn, view),
            Kind::Reclaim(fence) => self.reclaim(fence, view),
            Kind::Nudge(turn) => {
                view.write(Row::Inbox(turn), |db| db.inbox[turn as usize].extra = 1).map(|()| Flow::Commit)
            }
            Kind::Stop(turn) => self.stop(turn, pc, view),
            Kind::Fork(turn) => self.fork(turn, pc, view),
            Kind::Join => self.join(view).map(|()| Flow::Commit),
        }
    }

    fn fence_holds(&self, fence: Fence, head: &Head) -> bool {
        if self.is(Mutant::NoClaimToken) {
            return head.status == Status::Running && (head.turn, head.epoch) == (fence.turn, fence.epoch);
        }
        fence.holds(head)
    }

    fn enqueue(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let agent = self.plan.agent(turn);
        if pc == 0 {
            if !self.is(Mutant::EnqueueWithoutLock) {
                view.lock(Row::Head(agent))?;
            }
            return Ok(Flow::Next);
        }
        // insert turn … on conflict do nothing
        view.lock(Row::Turn(turn))?;
        if view.fresh().turns[turn as usize].progress != Progress::None && !self.is(Mutant::EnqueueNotIdempotent) {
            return Ok(Flow::Abort); // a replay: answered from the turn
        }
        view.write(Row::Turn(turn), |db| db.turns[turn as usize].progress = Progress::Queued)?;
        let now = view.fresh();
        let seq = 1
            + (0..TURNS)
                .filter(|other| self.plan.agent_of[*other] == agent)
                .map(|other| now.inbox[other].seq)
                .max()
                .unwrap_or(0);
        if now.heads[agent as usize].status == Status::Idle {
            view.write(Row::Inbox(turn), |db| db.inbox[turn as usize].seq = seq)?;
            self.dispatch(turn, view)?;
        } else {
            let row =
                InboxRow { status: Inbox::Queued, epoch: 0, token: 0, seq, extra: now.inbox[turn as usize].extra };
            view.write(Row::Inbox(turn), |db| db.inbox[turn as usize] = row)?;
        }
        Ok(Flow::Commit)
    }

    /// The head takes a turn. Its lock is ours.
    fn dispatch(&self, turn: u8, view: &mut View<'_>) -> Result<(), Blocked> {
        let agent = self.plan.agent(turn) as usize;
        view.write(Row::Head(agent as u8), |db| {
            let head = &mut db.heads[agent];
            *head = Head { status: Status::Dispatched, turn, epoch: head.epoch + 1, token: head.token };
        })?;
        view.write(Row::Inbox(turn), |db| {
            let row = &mut db.inbox[turn as usize];
            (row.status, row.epoch) = (Inbox::Pending, db.heads[agent].epoch);
        })?;
        view.write(Row::Turn(turn), |db| db.turns[turn as usize].progress = Progress::Active)
    }

    /// One SQL statement; two here, because others may come between its locks. It waits for neither.
    fn claim(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let (agent, t) = (self.plan.agent(turn), turn as usize);
        let head_first = self.is(Mutant::LocksInTwoOrders);
        if pc == 0 {
            if head_first {
                view.lock(Row::Head(agent))?;
                return Ok(Flow::Next);
            }
            let free = view.skip_locked(Row::Inbox(turn)) && view.fresh().inbox[t].status == Inbox::Pending;
            return Ok(if free { Flow::Next } else { Flow::Abort });
        }
        if head_first {
            view.lock(Row::Inbox(turn))?;
        } else if self.is(Mutant::ClaimWaitsForHead) {
            view.lock(Row::Head(agent))?;
        } else if !view.skip_locked(Row::Head(agent)) {
            return Ok(Flow::Abort); // left for the next claim
        }
        let now = view.fresh();
        let (head, row) = (now.heads[agent as usize], now.inbox[t]);
        let ours = head.turn == turn
            && head.epoch == row.epoch
            && matches!(head.status, Status::Dispatched | Status::Suspended);
        if row.status != Inbox::Pending || !ours {
            return Ok(Flow::Abort);
        }
        view.write(Row::Head(agent), |db| {
            let head = &mut db.heads[agent as usize];
            let bump = u8::from(!self.is(Mutant::FenceNeverChanges));
            (head.status, head.turn, head.token) = (Status::Running, turn, head.token + bump);
        })?;
        view.write(Row::Inbox(turn), |db| {
            (db.inbox[t].status, db.inbox[t].token) = (Inbox::Processing, db.heads[agent as usize].token);
        })?;
        Ok(Flow::Commit)
    }

    /// Locks the head under the fence: the first statement of every fenced transaction.
    fn fenced(&self, fence: Fence, view: &mut View<'_>) -> Result<bool, Blocked> {
        let agent = self.plan.agent(fence.turn);
        view.lock(Row::Head(agent))?;
        Ok(self.fence_holds(fence, &view.fresh().heads[agent as usize]))
    }

    /// Cards, and the calls that leave with them.
    fn step(&self, fence: Fence, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        if pc == 0 && !self.is(Mutant::InsertFencedByWhere) {
            return Ok(if self.fenced(fence, view)? { Flow::Next } else { Flow::Abort });
        }
        let agent = self.plan.agent(fence.turn) as usize;
        if self.is(Mutant::InsertFencedByWhere) && !self.fence_holds(fence, &view.fresh().heads[agent]) {
            return Ok(Flow::Abort);
        }
        for call in self.plan.calls(fence.turn) {
            let has_deadline = !self.is(Mutant::NoDeadline);
            view.write(Row::Call(call as u8), |db| {
                db.calls[call] = Call { status: CallStatus::Waiting, applied: 0, has_deadline }
            })?;
        }
        view.write(Row::Turn(fence.turn), |db| db.turns[fence.turn as usize].steps += 1)?;
        Ok(Flow::Commit)
    }

    fn suspend(&self, fence: Fence, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        if pc == 0 {
            return Ok(if self.fenced(fence, view)? { Flow::Next } else { Flow::Abort });
        }
        if view.fresh().stops[fence.turn as usize] {
            return Ok(Flow::Abort); // to be stopped: its worker has it in hand, and ends it
        }
        // A later statement: a report that we waited for is seen.
        if self.plan.all_done(&view.fresh(), fence.turn) && !self.is(Mutant::SuspendIgnoresEarlyResults) {
            return Ok(Flow::Abort); // nothing to wait for: go on
        }
        let agent = self.plan.agent(fence.turn);
        view.write(Row::Head(agent), |db| db.heads[agent as usize].status = Status::Suspended)?;
        view.write(Row::Inbox(fence.turn), |db| db.inbox[fence.turn as usize].status = Inbox::Deferred)?;
        Ok(Flow::Commit)
    }

    fn finish(&self, fence: Fence, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let agent = self.plan.agent(fence.turn);
        match pc {
            0 if self.is(Mutant::LocksInTwoOrders) => {
                view.lock(Row::Inbox(fence.turn))?;
                Ok(Flow::Next)
            }
            0 | 1 if pc == u8::from(self.is(Mutant::LocksInTwoOrders)) => {
                if !self.fenced(fence, view)? && !self.is(Mutant::FinishUnfenced) {
                    return Ok(Flow::Abort);
                }
                if self.is(Mutant::FinishInTwoTransactions) {
                    self.deliver(fence.turn, view)?;
                    return Ok(Flow::Commit);
                }
                view.write(Row::Head(agent), |db| {
                    (db.heads[agent as usize].status, db.heads[agent as usize].turn) = (Status::Idle, NOBODY);
                })?;
                if self.is(Mutant::NextTurnInSameStatement) {
                    let queued = self.next_queued(&view.stale(), agent);
                    self.end_turn(fence.turn, queued, view)?;
                }
                Ok(Flow::Next)
            }
            pc if pc == 1 + u8::from(self.is(Mutant::LocksInTwoOrders)) => {
                if !self.is(Mutant::NextTurnInSameStatement) {
                    let queued = self.next_queued(&view.fresh(), agent);
                    self.end_turn(fence.turn, queued, view)?;
                }
                let is_child = matches!(self.plan.work[fence.turn as usize], Work::Child(_));
                Ok(if is_child { Flow::Next } else { Flow::Commit })
            }
            pc => self.count_down(fence.turn, pc - 2 - u8::from(self.is(Mutant::LocksInTwoOrders)), view),
        }
    }

    fn finish_rest(&self, fence: Fence, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let agent = self.plan.agent(fence.turn);
        if !self.fenced(fence, view)? {
            return Ok(Flow::Abort);
        }
        view.write(Row::Head(agent), |db| {
            (db.heads[agent as usize].status, db.heads[agent as usize].turn) = (Status::Idle, NOBODY);
        })?;
        view.write(Row::Inbox(fence.turn), |db| db.inbox[fence.turn as usize].status = Inbox::Gone)?;
        if let Some(next) = self.next_queued(&view.fresh(), agent) {
            self.dispatch(next, view)?;
        }
        Ok(Flow::Commit)
    }

    fn next_queued(&self, seen: &Db, agent: u8) -> Option<u8> {
        let queued = (0..TURNS as u8)
            .filter(|turn| self.plan.agent(*turn) == agent && seen.inbox[*turn as usize].status == Inbox::Queued);
        match self.mutant {
            Some(Mutant::FinishForgetsNext) => None,
            Some(Mutant::FinishOvertakes) => queued.max_by_key(|turn| seen.inbox[*turn as usize].seq),
            _ => queued.min_by_key(|turn| seen.inbox[*turn as usize].seq),
        }
    }

    fn deliver(&self, turn: u8, view: &mut View<'_>) -> Result<(), Blocked> {
        view.write(Row::Turn(turn), |db| {
            let turn = &mut db.turns[turn as usize];
            (turn.progress, turn.deliverables, turn.events) =
                (Progress::Terminal, turn.deliverables + 1, turn.events + 1);
        })
    }

    /// The turn ends, and the next one of the same agent is dispatched.
    fn end_turn(&self, turn: u8, next: Option<u8>, view: &mut View<'_>) -> Result<(), Blocked> {
        self.deliver(turn, view)?;
        if !self.is(Mutant::FinishKeepsInboxRow) {
            view.write(Row::Inbox(turn), |db| db.inbox[turn as usize].status = Inbox::Gone)?;
        }
        next.map_or(Ok(()), |next| self.dispatch(next, view))
    }

    /// Task, slot, batch, parent: in this order, one lock a statement.
    fn count_down(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let Work::Child(task) = self.plan.work[turn as usize] else { return Ok(Flow::Commit) };
        let i = task as usize;
        match pc {
            0 => {
                view.lock(Row::Task(task))?;
                if view.fresh().tasks[i] != Task::Running {
                    return Ok(Flow::Commit); // counted before
                }
                view.write(Row::Task(task), |db| db.tasks[i] = Task::Done)?;
                Ok(Flow::Next)
            }
            1 if self.is(Mutant::BatchClosedByLooking) => {
                let left = view.fresh().tasks.contains(&Task::Running);
                Ok(if left { Flow::Commit } else { Flow::Next })
            }
            1 => {
                view.lock(Row::Slot(task))?;
                view.write(Row::Slot(task), |db| db.slots[i] = db.slots[i].saturating_sub(1))?;
                Ok(if view.fresh().slots[i] == 0 { Flow::Next } else { Flow::Commit })
            }
            2 => {
                view.lock(Row::Batch)?;
                let looking = self.is(Mutant::BatchClosedByLooking);
                view.write(Row::Batch, |db| {
                    db.batch.open_slots = if looking { 0 } else { db.batch.open_slots.saturating_sub(1) }
                })?;
                if view.fresh().batch.open_slots > 0 {
                    return Ok(Flow::Commit);
                }
                view.write(Row::Batch, |db| db.batch.closed += 1)?;
                Ok(if self.is(Mutant::JoinInTwoTransactions) { Flow::Commit } else { Flow::Next })
            }
            _ => self.join(view).map(|()| Flow::Commit),
        }
    }

    /// The batch's result reaches the parent's call.
    fn join(&self, view: &mut View<'_>) -> Result<(), Blocked> {
        let Some(parent) = self.plan.caller() else { return Ok(()) };
        view.lock(Row::Head(self.plan.agent(parent)))?;
        self.apply(0, view)?;
        self.resume_if_last(parent, &view.fresh(), view)
    }

    /// Applies a result, once.
    fn apply(&self, call: u8, view: &mut View<'_>) -> Result<(), Blocked> {
        let c = call as usize;
        if view.fresh().calls[c].status == CallStatus::Waiting || self.is(Mutant::ResultAppliedTwice) {
            view.write(Row::Call(call), |db| {
                (db.calls[c].status, db.calls[c].applied) = (CallStatus::Done, db.calls[c].applied + 1)
            })?;
        }
        Ok(())
    }

    fn resume_if_last(&self, turn: u8, seen: &Db, view: &mut View<'_>) -> Result<(), Blocked> {
        let now = view.fresh();
        let head = now.heads[self.plan.agent(turn) as usize];
        let deferred = now.inbox[turn as usize].status == Inbox::Deferred;
        if deferred && head.status == Status::Suspended && head.turn == turn && self.plan.all_done(seen, turn) {
            view.write(Row::Inbox(turn), |db| db.inbox[turn as usize].status = Inbox::Pending)?;
        }
        Ok(())
    }

    fn report(&self, call: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let Some(turn) = self.plan.caller() else { return Ok(Flow::Abort) };
        let agent = self.plan.agent(turn);
        match pc {
            0 => {
                if !self.is(Mutant::ReportWithoutHeadLock) {
                    view.lock(Row::Head(agent))?;
                }
                if self.is(Mutant::LastWaiterInSameStatement) {
                    let mut seen = view.stale();
                    seen.calls[call as usize].status = CallStatus::Done;
                    self.apply(call, view)?;
                    self.resume_if_last(turn, &seen, view)?;
                    return Ok(Flow::Commit);
                }
                Ok(Flow::Next)
            }
            1 => {
                view.lock(Row::Call(call))?;
                let waiting = view.fresh().calls[call as usize].status == CallStatus::Waiting;
                if !waiting && !self.is(Mutant::ResultAppliedTwice) {
                    return Ok(Flow::Abort); // late or repeated: recorded and dropped
                }
                self.apply(call, view)?;
                if self.is(Mutant::PartialResultResetsDeadline) {
                    let other = 1 - call;
                    view.write(Row::Call(other), |db| db.calls[other as usize].has_deadline = false)?;
                }
                Ok(if self.is(Mutant::ResumeInTwoTransactions) { Flow::Commit } else { Flow::Next })
            }
            _ => {
                self.resume_if_last(turn, &view.fresh(), view)?;
                Ok(Flow::Commit)
            }
        }
    }

    fn resume(&self, turn: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        view.lock(Row::Head(self.plan.agent(turn)))?;
        self.resume_if_last(turn, &view.fresh(), view)?;
        Ok(Flow::Commit)
    }

    /// The same inbox row is armed again, under a fence of its own.
    fn reclaim(&self, seen: Fence, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let agent = self.plan.agent(seen.turn);
        view.lock(Row::Head(agent))?;
        if !seen.holds(&view.fresh().heads[agent as usize]) && !self.is(Mutant::ReclaimUnfenced) {
            return Ok(Flow::Abort);
        }
        let bump = u8::from(!self.is(Mutant::FenceNeverChanges));
        if self.is(Mutant::ReclaimForgetsHead) {
            view.write(Row::Inbox(seen.turn), |db| db.inbox[seen.turn as usize].status = Inbox::Pending)?;
            return Ok(Flow::Commit);
        }
        view.write(Row::Head(agent), |db| {
            let head = &mut db.heads[agent as usize];
            *head = Head {
                status: Status::Dispatched,
                turn: seen.turn,
                epoch: head.epoch + bump,
                token: head.token + bump,
            };
        })?;
        if !self.is(Mutant::ReclaimForgetsInbox) {
            view.write(Row::Inbox(seen.turn), |db| {
                let row = &mut db.inbox[seen.turn as usize];
                (row.status, row.epoch) = (Inbox::Pending, db.heads[agent as usize].epoch);
            })?;
        }
        Ok(Flow::Commit)
    }

    /// Ends a turn that no worker runs; asks the worker of one that is run.
    fn stop(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let (agent, t) = (self.plan.agent(turn), turn as usize);
        let ended = || if matches!(self.plan.work[t], Work::Child(_)) { Flow::Next } else { Flow::Commit };
        match pc {
            0 => {
                view.lock(Row::Head(agent))?;
                Ok(Flow::Next)
            }
            1 => {
                // A claim may have the row. It waits for nobody, and cannot have the head: it gives the row back.
                view.lock(Row::Inbox(turn))?;
                let now = view.fresh();
                match now.inbox[t].status {
                    Inbox::Gone => return Ok(Flow::Abort),
                    Inbox::Queued => {}
                    Inbox::Pending | Inbox::Deferred => view.write(Row::Head(agent), |db| {
                        (db.heads[agent as usize].status, db.heads[agent as usize].turn) = (Status::Idle, NOBODY);
                    })?,
                    Inbox::Processing => {
                        if self.is(Mutant::StopDelivers) {
                            self.deliver(turn, view)?;
                        }
                        view.write(Row::Stop(turn), |db| db.stops[t] = true)?;
                        return Ok(Flow::Commit);
                    }
                }
                Ok(Flow::Next)
            }
            2 => {
                let now = view.fresh();
                if self.is(Mutant::StopWithoutDeliverable) {
                    view.write(Row::Turn(turn), |db| db.turns[t].progress = Progress::Terminal)?;
                    view.write(Row::Inbox(turn), |db| db.inbox[t].status = Inbox::Gone)?;
                    return Ok(Flow::Commit);
                }
                let idle = now.heads[agent as usize].status == Status::Idle;
                let next = if idle { self.next_queued(&now, agent) } else { None };
                self.end_turn(turn, next, view)?;
                Ok(ended())
            }
            pc => self.count_down(turn, pc - 3, view),
        }
    }

    /// The orchestrator takes the fork's command: the batch, its tasks and its counters.
    fn fork(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        if pc == 0 {
            view.lock(Row::Head(self.plan.agent(turn)))?;
            return Ok(Flow::Next);
        }
        if view.fresh().turns[turn as usize].progress == Progress::Terminal {
            return Ok(Flow::Abort); // the call went with its turn
        }
        view.lock(Row::Batch)?;
        if view.fresh().batch.exists && !self.is(Mutant::ForkNotIdempotent) {
            return Ok(Flow::Abort);
        }
        let open_slots = TASKS as u8 + u8::from(self.is(Mutant::BatchCountsEmptySlots));
        view.write(Row::Batch, |db| db.batch = Batch { exists: true, open_slots, closed: db.batch.closed })?;
        for task in 0..TASKS as u8 {
            view.write(Row::Task(task), |db| db.tasks[task as usize] = Task::Running)?;
            view.write(Row::Slot(task), |db| db.slots[task as usize] += 1)?;
        }
        Ok(Flow::Commit)
    }
}

//! The transactions of a turn's life, statement by statement, and the ways to write each of them wrongly.

use crate::db::{
    Batch, Blocked, CALLS, Call, CallStatus, Db, Head, Inbox, InboxRow, Mark, NOBODY, Progress, Row, Set, Status,
    TASKS, TURNS, Task, View,
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

/// Which agents have which turns, and what the turns do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) agent_of: [u8; TURNS],
    pub(crate) work: [Work; TURNS],
    /// Whether ready turns have places, and claims begin at the mark of the queue and take many at once.
    pub(crate) marks: bool,
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
    /// There was nothing to do, or the fence did not hold: stop without effects.
    Abort,
}

/// One way to write the protocol wrongly. Each was found in some system, or is an obvious mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mutant {
    /// The fence does not name the claim.
    NoClaimToken,
    /// A step's insert is fenced by a WHERE, without the head's lock.
    InsertFencedByWhere,
    /// The deliverable is committed before the head is released.
    FinishInTwoTransactions,
    /// The next turn is looked up in the statement that waits for the head.
    NextTurnInSameStatement,
    /// Finishing does not dispatch the next queued turn.
    FinishForgetsNext,
    /// Finishing takes the newest queued turn.
    FinishOvertakes,
    /// Finishing leaves the inbox row.
    FinishKeepsInboxRow,
    /// The deliverable is written without checking the fence.
    FinishUnfenced,
    /// An enqueue reads the head without locking it.
    EnqueueWithoutLock,
    /// A replay enqueues again.
    EnqueueNotIdempotent,
    /// A nudge inserts another row.
    ResendInserts,
    /// Neither a claim nor a reclaim makes a new fence.
    FenceNeverChanges,
    /// Reclaiming makes the inbox row ready and leaves the head as it was.
    ReclaimForgetsHead,
    /// Reclaiming leaves the inbox row as it was.
    ReclaimForgetsInbox,
    /// Reclaiming trusts what the sweep saw.
    ReclaimUnfenced,
    /// Suspending does not look for results that arrived earlier.
    SuspendIgnoresEarlyResults,
    /// A report does not take the head's lock.
    ReportWithoutHeadLock,
    /// A result is applied even if one was applied before.
    ResultAppliedTwice,
    /// The last result and the resumption are two transactions.
    ResumeInTwoTransactions,
    /// The last waiter is looked for in the statement that waits for the head.
    LastWaiterInSameStatement,
    /// A partial result removes the deadline of the other calls.
    PartialResultResetsDeadline,
    /// A call has no deadline.
    NoDeadline,
    /// A claim waits for the head, while a stop holds the head and waits for the inbox row.
    ClaimWaitsForHead,
    /// Stopping a queued turn removes it without a deliverable.
    StopWithoutDeliverable,
    /// Stopping a running turn delivers for it.
    StopDelivers,
    /// A batch is closed by any transaction that sees no task left, without counting.
    BatchClosedByLooking,
    /// The count starts with all slots, including the empty ones.
    BatchCountsEmptySlots,
    /// A batch is forked again when its command is delivered again.
    ForkNotIdempotent,
    /// The child's end and the parent's result are two transactions.
    JoinInTwoTransactions,
    /// A claim locks the head before the inbox row, a finish the inbox row before the head.
    LocksInTwoOrders,
    /// Work is found by its doorbell alone.
    DoorbellOnly,
    /// A mark is trusted as soon as every transaction below a snapshot's xmax is over. An open transaction may have that id or a later one.
    MarkComparesIds,
    /// A mark is trusted as soon as it is made.
    MarkBelievedAtOnce,
    /// A mark reads the locks first, and then how far places are drawn.
    MarkReadsLocksFirst,
    /// A mark reads the queue first, and then whether the other transactions are over.
    MarkReadsQueueFirst,
    /// A place is drawn before the table is locked.
    PlaceDrawnBeforeLock,
    /// A turn that becomes ready again keeps its place.
    PlaceForLife,
    /// A claim of many takes rows whose head it could not lock.
    ClaimOfManyTakesAll,
    /// A handler checks whether the batch has closed in the statement that waits for the call.
    AwaitInSameStatement,
    /// A batch gives the call back without locking it.
    CloseWithoutCallLock,
    /// A batch that closes leaves its call to the handler, which may have left already.
    CloseForgetsCall,
}

/// Where a mutant is caught soonest: the scenario, and the fault that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    Queue(Fault),
    Tools(Fault),
    Batch(Fault),
    Marks(Fault),
    Resume(Fault),
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
    pub(crate) const ALL: [(Mutant, Shows); 41] = {
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
            (MarkComparesIds, Marks(Fault::None)),
            (MarkBelievedAtOnce, Marks(Fault::None)),
            (MarkReadsLocksFirst, Marks(Fault::None)),
            (MarkReadsQueueFirst, Marks(Fault::None)),
            (PlaceDrawnBeforeLock, Marks(Fault::None)),
            (PlaceForLife, Marks(Fault::Crash)),
            (ClaimOfManyTakesAll, Marks(Fault::Stop)),
            (AwaitInSameStatement, Resume(Fault::None)),
            (CloseWithoutCallLock, Resume(Fault::None)),
            (CloseForgetsCall, Resume(Fault::None)),
        ]
    };
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

    fn enqueue(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let agent = self.plan.agent(turn);
        if pc == 0 {
            if !self.is(Mutant::EnqueueWithoutLock) {
                view.lock(Row::Head(agent))?;
            }
            return Ok(Flow::Next);
        }
        if pc == 1 {
            // insert turn … on conflict do nothing
            view.lock(Row::Turn(turn))?;
            if view.fresh().turns[turn as usize].progress != Progress::None && !self.is(Mutant::EnqueueNotIdempotent) {
                return Ok(Flow::Abort); // a replay: the turn has the answer
            }
            view.write(Row::Turn(turn), |db| db.turns[turn as usize].progress = Progress::Queued)?;
            // The insert locks the table, draws the place and then writes the row. Others may run in between.
            if self.plan.marks {
                view.tx.noted.place = view.draw();
                view.tx.writes_inbox = !self.is(Mutant::PlaceDrawnBeforeLock);
                return Ok(Flow::Next);
            }
        }
        let now = view.fresh();
        let seq = 1
            + (0..TURNS)
                .filter(|other| self.plan.agent_of[*other] == agent)
                .map(|other| now.inbox[other].seq)
                .max()
                .unwrap_or(0);
        let (place, extra) = (view.tx.noted.place, now.inbox[turn as usize].extra);
        if now.heads[agent as usize].status == Status::Idle {
            view.write(Row::Inbox(turn), |db| db.inbox[turn as usize].seq = seq)?;
            self.dispatch(turn, place, view)?;
        } else {
            let row = InboxRow { status: Inbox::Queued, epoch: 0, token: 0, seq, place, extra };
            view.write(Row::Inbox(turn), |db| db.inbox[turn as usize] = row)?;
        }
        Ok(Flow::Commit)
    }

    /// Gives a turn to the head, whose lock this transaction holds.
    fn dispatch(&self, turn: u8, place: u8, view: &mut View<'_>) -> Result<(), Blocked> {
        let agent = self.plan.agent(turn) as usize;
        view.write(Row::Head(agent as u8), |db| {
            let head = &mut db.heads[agent];
            *head = Head { status: Status::Dispatched, turn, epoch: head.epoch + 1, token: head.token };
        })?;
        view.write(Row::Inbox(turn), |db| {
            let row = &mut db.inbox[turn as usize];
            (row.status, row.epoch, row.place) = (Inbox::Pending, db.heads[agent].epoch, place);
        })?;
        view.write(Row::Turn(turn), |db| db.turns[turn as usize].progress = Progress::Active)
    }

    /// Claims turns. It is one SQL statement, but two here, because others may run between its locks. It waits for neither lock, and takes what
    /// it gets.
    fn claim(&self, turns: Set, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let head_first = self.is(Mutant::LocksInTwoOrders);
        let mut got = Set::default();
        if pc == 0 {
            for turn in turns.members() {
                if head_first {
                    view.lock(Row::Head(self.plan.agent(turn)))?;
                } else if !view.skip_locked(Row::Inbox(turn))
                    || view.fresh().inbox[turn as usize].status != Inbox::Pending
                {
                    continue;
                }
                got = got.with(turn);
            }
        } else {
            for turn in view.tx.noted.turns.members() {
                if self.claim_head(turn, head_first, view)? {
                    got = got.with(turn);
                }
            }
        }
        view.tx.noted.turns = got;
        Ok(match pc {
            _ if got.is_empty() => Flow::Abort,
            0 => Flow::Next,
            _ => Flow::Commit,
        })
    }

    fn claim_head(&self, turn: u8, head_first: bool, view: &mut View<'_>) -> Result<bool, Blocked> {
        let (agent, t) = (self.plan.agent(turn), turn as usize);
        if head_first {
            view.lock(Row::Inbox(turn))?;
        } else if self.is(Mutant::ClaimWaitsForHead) {
            view.lock(Row::Head(agent))?;
        } else if !view.skip_locked(Row::Head(agent)) {
            if self.is(Mutant::ClaimOfManyTakesAll) {
                view.write(Row::Inbox(turn), |db| db.inbox[t].status = Inbox::Processing)?;
            }
            return Ok(false); // left for the next claim
        }
        let now = view.fresh();
        let (head, row) = (now.heads[agent as usize], now.inbox[t]);
        let ours = head.turn == turn
            && head.epoch == row.epoch
            && matches!(head.status, Status::Dispatched | Status::Suspended);
        if row.status != Inbox::Pending || !ours {
            return Ok(false);
        }
        view.write(Row::Head(agent), |db| {
            let head = &mut db.heads[agent as usize];
            let bump = u8::from(!self.is(Mutant::FenceNeverChanges));
            (head.status, head.turn, head.token) = (Status::Running, turn, head.token + bump);
        })?;
        let place = self.place(turn, view);
        view.write(Row::Inbox(turn), |db| {
            let row = &mut db.inbox[t];
            (row.status, row.token, row.place) = (Inbox::Processing, db.heads[agent as usize].token, place);
        })?;
        Ok(true)
    }

    /// Moves the mark of the queue. In one transaction it reads how far places are drawn, which transactions write to the inbox, and what is ready.
    pub(crate) fn mark(&self, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let first = |db: &Db| db.ready().first().map(|turn| db.inbox[*turn as usize].place);
        let locks_first = self.is(Mutant::MarkReadsLocksFirst);
        if pc == 0 {
            if !view.skip_locked(Row::Marking) {
                return Ok(Flow::Abort);
            }
            view.tx.noted.mark = view.fresh().mark;
            view.tx.noted.found = first(&view.fresh());
        }
        if pc == u8::from(locks_first) {
            view.tx.noted.place = *view.drawn;
        }
        if pc == u8::from(!locks_first) {
            let mark = &mut view.tx.noted.mark;
            let over = match self.mutant {
                Some(Mutant::MarkComparesIds) => mark.next_xid <= view.xmin,
                Some(Mutant::MarkBelievedAtOnce) => true,
                _ => !mark.open_then.meets(view.writers),
            };
            (mark.open_then, mark.next_xid) = (view.writers, view.xmax);
            if !over {
                return Ok(Flow::Abort);
            }
        }
        if pc < 2 {
            return Ok(Flow::Next);
        }
        if !self.is(Mutant::MarkReadsQueueFirst) {
            view.tx.noted.found = first(&view.fresh());
        }
        let noted = view.tx.noted;
        let bound = if self.is(Mutant::MarkBelievedAtOnce) { noted.place } else { noted.mark.next };
        let upto = noted.found.map_or(bound, |found| found.min(bound));
        view.write(Row::Mark, |db| db.mark = Mark { upto, next: noted.place, ..noted.mark })?;
        Ok(Flow::Commit)
    }

    /// Locks the head and checks the fence: the first statement of every fenced transaction.
    fn fenced(&self, fence: Fence, view: &mut View<'_>) -> Result<bool, Blocked> {
        let agent = self.plan.agent(fence.turn);
        view.lock(Row::Head(agent))?;
        Ok(self.fence_holds(fence, &view.fresh().heads[agent as usize]))
    }

    /// Commits the cards of a step, with the calls that it sends.
    fn step(&self, fence: Fence, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        if pc == 0 && !self.is(Mutant::InsertFencedByWhere) {
            return Ok(if self.fenced(fence, view)? { Flow::Next } else { Flow::Abort });
        }
        let agent = self.plan.agent(fence.turn) as usize;
        if self.is(Mutant::InsertFencedByWhere) && !self.fence_holds(fence, &view.fresh().heads[agent]) {
            return Ok(Flow::Abort);
        }
        for call in self.plan.calls(fence.turn) {
            let has_deadline = self.plan.deadlines && !self.is(Mutant::NoDeadline);
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
            return Ok(Flow::Abort); // to be stopped: its worker still holds it and ends it
        }
        // This is a later statement, so it sees a report that the first one waited for.
        if self.plan.all_done(&view.fresh(), fence.turn) && !self.is(Mutant::SuspendIgnoresEarlyResults) {
            return Ok(Flow::Abort); // nothing to wait for: continue
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
            let place = self.place(next, view);
            self.dispatch(next, place, view)?;
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

    /// Ends the turn and dispatches the next one of the same agent.
    fn end_turn(&self, turn: u8, next: Option<u8>, view: &mut View<'_>) -> Result<(), Blocked> {
        self.deliver(turn, view)?;
        if !self.is(Mutant::FinishKeepsInboxRow) {
            view.write(Row::Inbox(turn), |db| db.inbox[turn as usize].status = Inbox::Gone)?;
        }
        if let Some(next) = next {
            let place = self.place(next, view);
            self.dispatch(next, place, view)?;
        }
        Ok(())
    }

    /// Counts down task, slot, batch and parent, in this order, with one lock per statement.
    fn count_down(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let Work::Child(task) = self.plan.work[turn as usize] else { return Ok(Flow::Commit) };
        let i = task as usize;
        match pc {
            0 => {
                view.lock(Row::Task(task))?;
                if view.fresh().tasks[i] != Task::Running {
                    return Ok(Flow::Commit); // counted already
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

    /// Passes the result of the batch to the parent's call, or to the handler of the call.
    fn join(&self, view: &mut View<'_>) -> Result<(), Blocked> {
        let Some(parent) = self.plan.caller() else { return Ok(()) };
        if self.plan.resumes {
            if !self.is(Mutant::CloseWithoutCallLock) {
                view.lock(Row::Call(0))?;
            }
            if view.fresh().calls[0].status == CallStatus::Awaiting && !self.is(Mutant::CloseForgetsCall) {
                view.write(Row::Call(0), |db| db.calls[0].status = CallStatus::Waiting)?;
            }
            return Ok(());
        }
        view.lock(Row::Head(self.plan.agent(parent)))?;
        self.apply(0, view)?;
        self.resume_if_last(parent, &view.fresh(), view)
    }

    /// Applies a result, once.
    fn apply(&self, call: u8, view: &mut View<'_>) -> Result<(), Blocked> {
        let c = call as usize;
        if view.fresh().calls[c].status.is_open() || self.is(Mutant::ResultAppliedTwice) {
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
            let place = self.place_again(turn, view);
            view.write(Row::Inbox(turn), |db| {
                (db.inbox[turn as usize].status, db.inbox[turn as usize].place) = (Inbox::Pending, place)
            })?;
        }
        Ok(())
    }

    /// Returns a place for a turn that was begun and becomes ready again.
    fn place_again(&self, turn: u8, view: &mut View<'_>) -> u8 {
        let now = view.fresh().inbox[turn as usize].place;
        if self.is(Mutant::PlaceForLife) { now } else { self.place(turn, view) }
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
                let waiting = view.fresh().calls[call as usize].status.is_open();
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

    /// Makes the same inbox row ready again, under a new fence.
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
            let place = self.place_again(seen.turn, view);
            view.write(Row::Inbox(seen.turn), |db| {
                let row = &mut db.inbox[seen.turn as usize];
                (row.status, row.epoch, row.place) = (Inbox::Pending, db.heads[agent as usize].epoch, place);
            })?;
        }
        Ok(Flow::Commit)
    }

    /// Ends a turn that no worker runs. If a worker runs it, requests the stop from that worker.
    fn stop(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let (agent, t) = (self.plan.agent(turn), turn as usize);
        let ended = || if matches!(self.plan.work[t], Work::Child(_)) { Flow::Next } else { Flow::Commit };
        match pc {
            0 => {
                view.lock(Row::Head(agent))?;
                Ok(Flow::Next)
            }
            1 => {
                // A claim may hold the row. It waits for no lock and cannot get the head, so it gives the row back.
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

    /// Handles the fork's command in the orchestrator: creates the batch, its tasks and its counters.
    fn fork(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        if pc == 0 {
            view.lock(Row::Head(self.plan.agent(turn)))?;
            return Ok(Flow::Next);
        }
        if view.fresh().turns[turn as usize].progress == Progress::Terminal {
            return Ok(Flow::Abort); // the call ended with its turn
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

    fn take(&self, view: &mut View<'_>) -> Result<Flow, Blocked> {
        if !view.skip_locked(Row::Call(0)) || view.fresh().calls[0].status != CallStatus::Waiting {
            return Ok(Flow::Abort);
        }
        view.write(Row::Call(0), |db| db.calls[0].status = CallStatus::Handled)?;
        Ok(Flow::Commit)
    }

    /// Makes the call free again, because its handler died.
    fn give_back(&self, view: &mut View<'_>) -> Result<Flow, Blocked> {
        view.lock(Row::Call(0))?;
        if view.fresh().calls[0].status != CallStatus::Handled {
            return Ok(Flow::Abort);
        }
        view.write(Row::Call(0), |db| db.calls[0].status = CallStatus::Waiting)?;
        Ok(Flow::Commit)
    }

    /// Leaves the call to the batch, because all children are dispatched. The batch gives it back when it closes. If it has closed already, the
    /// call is given back here.
    fn leave_to_batch(&self, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let give_back = |view: &mut View<'_>, seen: &Db| {
            if seen.batch.closed > 0 {
                view.write(Row::Call(0), |db| db.calls[0].status = CallStatus::Waiting)?;
            }
            Ok(Flow::Commit)
        };
        if pc > 0 {
            // This is a later statement than the one that waited for the call, so it sees a batch that closed meanwhile.
            let now = view.fresh();
            return give_back(view, &now);
        }
        view.lock(Row::Call(0))?;
        if view.fresh().calls[0].status != CallStatus::Handled {
            return Ok(Flow::Abort);
        }
        view.write(Row::Call(0), |db| db.calls[0].status = CallStatus::Awaiting)?;
        if self.is(Mutant::AwaitInSameStatement) {
            let seen = view.stale();
            return give_back(view, &seen);
        }
        Ok(Flow::Next)
    }
}

//! The ways to write the protocol wrongly, and where the checker catches each of them.

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
    /// Turns that end together end if one of their fences holds.
    FinishBothChecksOne,
    /// Of turns that end together, only the agent of the first begins its next turn.
    FinishBothDispatchesOne,
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
    Ends(Fault),
    Pair(Fault),
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
    pub(crate) const ALL: [(Mutant, Shows); 43] = {
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
            (FinishBothChecksOne, Pair(Fault::UnknownCommit)),
            (FinishBothDispatchesOne, Ends(Fault::None)),
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

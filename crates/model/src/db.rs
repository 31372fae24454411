//! A small database with the rules of PostgreSQL's READ COMMITTED that matter here.
//!
//! * A transaction sees its own writes at once. Others see them at its commit, all together.
//! * A row lock is held until the transaction ends. Another transaction that wants the row waits.
//! * A statement that waited sees the row that it waited for as it is now, and everything else as it was when the statement
//!   began: [`View::stale`]. A later statement sees everything as it is now: [`View::fresh`].

pub(crate) const AGENTS: usize = 3;
pub(crate) const TURNS: usize = 3;
pub(crate) const CALLS: usize = 2;
pub(crate) const TASKS: usize = 2;
pub(crate) const NOBODY: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Status {
    Idle,
    Dispatched,
    Running,
    Suspended,
}

/// One agent's head row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Head {
    pub(crate) status: Status,
    pub(crate) turn: u8,
    pub(crate) epoch: u8,
    pub(crate) token: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Progress {
    /// Not enqueued.
    None,
    Queued,
    Active,
    Terminal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Turn {
    pub(crate) progress: Progress,
    /// Steps whose cards are committed.
    pub(crate) steps: u8,
    pub(crate) deliverables: u8,
    pub(crate) events: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Inbox {
    Gone,
    Queued,
    Pending,
    Processing,
    /// Suspended: waiting for results.
    Deferred,
}

/// The inbox row of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InboxRow {
    pub(crate) status: Inbox,
    pub(crate) epoch: u8,
    pub(crate) token: u8,
    /// The order within the agent.
    pub(crate) seq: u8,
    /// Its place in the queue of ready turns. A new one is drawn each time that the row becomes ready or is claimed.
    pub(crate) place: u8,
    /// Rows of the same turn beyond the first. There must never be one.
    pub(crate) extra: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CallStatus {
    None,
    /// Waits for a tool to answer it, or for a handler to take it.
    Waiting,
    /// A handler has it. Only in a plan whose batch gives its call back.
    Handled,
    /// Left to the batch, which gives it back when it closes.
    Awaiting,
    Done,
}

impl CallStatus {
    pub(crate) fn is_open(self) -> bool {
        matches!(self, CallStatus::Waiting | CallStatus::Handled | CallStatus::Awaiting)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) status: CallStatus,
    /// How many results were applied.
    pub(crate) applied: u8,
    /// Whether the call has a deadline that will pass.
    pub(crate) has_deadline: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Batch {
    pub(crate) exists: bool,
    pub(crate) open_slots: u8,
    pub(crate) closed: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    None,
    Running,
    Done,
}

/// How far the queue of ready turns is processed. A claim begins to look there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Mark {
    pub(crate) upto: u8,
    /// How far it may move once none of these transactions is open.
    pub(crate) next: u8,
    pub(crate) open_then: Set,
    /// Only for the mutant that compares transaction ids.
    pub(crate) next_xid: u8,
}

/// The committed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Db {
    pub(crate) heads: [Head; AGENTS],
    pub(crate) turns: [Turn; TURNS],
    pub(crate) inbox: [InboxRow; TURNS],
    pub(crate) calls: [Call; CALLS],
    pub(crate) tasks: [Task; TASKS],
    pub(crate) slots: [u8; TASKS],
    pub(crate) batch: Batch,
    pub(crate) stops: [bool; TURNS],
    pub(crate) mark: Mark,
}

impl Db {
    pub(crate) fn new() -> Db {
        Db {
            heads: [Head { status: Status::Idle, turn: NOBODY, epoch: 0, token: 0 }; AGENTS],
            turns: [Turn { progress: Progress::None, steps: 0, deliverables: 0, events: 0 }; TURNS],
            inbox: [InboxRow { status: Inbox::Gone, epoch: 0, token: 0, seq: 0, place: 0, extra: 0 }; TURNS],
            calls: [Call { status: CallStatus::None, applied: 0, has_deadline: true }; CALLS],
            tasks: [Task::None; TASKS],
            slots: [0; TASKS],
            batch: Batch { exists: false, open_slots: 0, closed: 0 },
            stops: [false; TURNS],
            mark: Mark::default(),
        }
    }

    /// Returns the ready turns from the mark on, in the order of their places.
    pub(crate) fn ready(&self) -> Vec<u8> {
        let row = |turn: &u8| self.inbox[*turn as usize];
        let mut ready: Vec<u8> = (0..TURNS as u8)
            .filter(|turn| row(turn).status == Inbox::Pending && row(turn).place >= self.mark.upto)
            .collect();
        ready.sort_by_key(|turn| row(turn).place);
        ready
    }

    fn copy_row(&mut self, from: &Db, row: Row) {
        match row {
            Row::Head(i) => self.heads[i as usize] = from.heads[i as usize],
            Row::Turn(i) => self.turns[i as usize] = from.turns[i as usize],
            Row::Inbox(i) => self.inbox[i as usize] = from.inbox[i as usize],
            Row::Call(i) => self.calls[i as usize] = from.calls[i as usize],
            Row::Task(i) => self.tasks[i as usize] = from.tasks[i as usize],
            Row::Slot(i) => self.slots[i as usize] = from.slots[i as usize],
            Row::Stop(i) => self.stops[i as usize] = from.stops[i as usize],
            Row::Batch => self.batch = from.batch,
            Row::Mark => self.mark = from.mark,
            Row::Marking => {}
        }
    }
}

/// The name of a row, which can be locked and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Row {
    Head(u8),
    Turn(u8),
    Inbox(u8),
    Call(u8),
    Task(u8),
    Slot(u8),
    Stop(u8),
    Batch,
    Mark,
    /// The right to move the mark. It is only a lock.
    Marking,
}

impl Row {
    fn bit(self) -> u32 {
        let (table, i) = match self {
            Row::Head(i) => (0, i),
            Row::Turn(i) => (3, i),
            Row::Inbox(i) => (6, i),
            Row::Call(i) => (9, i),
            Row::Task(i) => (11, i),
            Row::Slot(i) => (13, i),
            Row::Stop(i) => (15, i),
            Row::Batch => (18, 0),
            Row::Mark => (19, 0),
            Row::Marking => (20, 0),
        };
        1 << (table + i)
    }

    const ALL: [Row; 20] = [
        Row::Head(0),
        Row::Head(1),
        Row::Head(2),
        Row::Turn(0),
        Row::Turn(1),
        Row::Turn(2),
        Row::Inbox(0),
        Row::Inbox(1),
        Row::Inbox(2),
        Row::Call(0),
        Row::Call(1),
        Row::Task(0),
        Row::Task(1),
        Row::Slot(0),
        Row::Slot(1),
        Row::Stop(0),
        Row::Stop(1),
        Row::Stop(2),
        Row::Batch,
        Row::Mark,
    ];
}

/// A set of small numbers: of turns, or of processes with an open transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Set(u16);

impl Set {
    pub(crate) fn of(members: &[u8]) -> Set {
        members.iter().fold(Set::default(), |set, member| set.with(*member))
    }

    pub(crate) fn has(self, member: u8) -> bool {
        self.0 & 1 << member != 0
    }

    pub(crate) fn with(self, member: u8) -> Set {
        Set(self.0 | 1 << member)
    }

    pub(crate) fn without(self, member: u8) -> Set {
        Set(self.0 & !(1 << member))
    }

    pub(crate) fn meets(self, other: Set) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn members(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |member| self.has(*member))
    }
}

/// A set of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rows(u32);

impl Rows {
    pub(crate) fn has(self, row: Row) -> bool {
        self.0 & row.bit() != 0
    }

    pub(crate) fn add(&mut self, row: Row) {
        self.0 |= row.bit();
    }

    pub(crate) fn union(self, other: Rows) -> Rows {
        Rows(self.0 | other.0)
    }
}

/// An open transaction: its locks and its writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Transaction {
    pub(crate) locks: Rows,
    written: Rows,
    own: Db,
    /// The snapshot of the statement that is now waiting for a lock.
    snapshot: Option<Db>,
    pub(crate) waits_for: Option<Row>,
    /// Whether it holds the lock on the inbox table that every statement takes before it writes there.
    pub(crate) writes_inbox: bool,
    /// The transaction id, only for the mutant that compares them. Zero means that it has none yet.
    pub(crate) xid: u8,
    /// What a statement passes to the next one of the same transaction.
    pub(crate) noted: Noted,
}

/// The variables of a function in the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Noted {
    /// In an enqueue, the place that it drew. In a mark, the last place that any transaction drew.
    pub(crate) place: u8,
    /// The turns that a claim has locked and then taken.
    pub(crate) turns: Set,
    pub(crate) mark: Mark,
    pub(crate) found: Option<u8>,
}

impl Transaction {
    pub(crate) fn begin() -> Transaction {
        Transaction {
            locks: Rows::default(),
            written: Rows::default(),
            own: Db::new(),
            snapshot: None,
            waits_for: None,
            writes_inbox: false,
            xid: 0,
            noted: Noted::default(),
        }
    }

    /// Forgets the name of the transaction of `who`, which is over: the name will not come again.
    pub(crate) fn forget_name(&mut self, who: u8) {
        let snapshot = self.snapshot.as_mut().map(|snapshot| &mut snapshot.mark);
        for mark in [&mut self.own.mark, &mut self.noted.mark].into_iter().chain(snapshot) {
            mark.open_then = mark.open_then.without(who);
        }
    }

    fn over(&self, base: &Db) -> Db {
        let mut seen = *base;
        for row in Row::ALL {
            if self.written.has(row) {
                seen.copy_row(&self.own, row);
            }
        }
        seen
    }

    /// Undoes the writes of the statement that has to wait, because it begins again. The locks stay.
    pub(crate) fn without_writes_since(&self, before: &Transaction) -> Transaction {
        Transaction { written: before.written, own: before.own, noted: before.noted, ..self.clone() }
    }

    /// Makes the writes visible to all transactions.
    pub(crate) fn commit(&self, committed: &mut Db) {
        *committed = self.over(committed);
    }
}

/// The statement has to wait for a lock of another transaction.
pub(crate) struct Blocked;

/// One running statement of a transaction.
pub(crate) struct View<'a> {
    pub(crate) tx: &'a mut Transaction,
    pub(crate) committed: &'a Db,
    pub(crate) others: Rows,
    /// The last place that was drawn. Places are never given back, even by a rollback.
    pub(crate) drawn: &'a mut u8,
    /// The other processes that hold a lock on the inbox table.
    pub(crate) writers: Set,
    /// The transaction ids of a snapshot: the oldest that is open, and the one after the newest that is over. Only for the mutant that compares
    /// them.
    pub(crate) xmin: u8,
    pub(crate) xmax: u8,
}

impl View<'_> {
    /// Returns everything as it is now, with the transaction's own writes.
    pub(crate) fn fresh(&self) -> Db {
        self.tx.over(self.committed)
    }

    /// Returns everything as it was when this statement began, with the transaction's own writes.
    pub(crate) fn stale(&self) -> Db {
        self.tx.over(self.tx.snapshot.as_ref().unwrap_or(self.committed))
    }

    pub(crate) fn lock(&mut self, row: Row) -> Result<(), Blocked> {
        if self.others.has(row) {
            self.tx.snapshot.get_or_insert(*self.committed);
            self.tx.waits_for = Some(row);
            return Err(Blocked);
        }
        self.tx.locks.add(row);
        Ok(())
    }

    /// Locks the row only if no other transaction has it. Returns whether it did.
    pub(crate) fn skip_locked(&mut self, row: Row) -> bool {
        if self.others.has(row) {
            return false;
        }
        self.tx.locks.add(row);
        true
    }

    /// Writes a row. This locks it until the transaction ends.
    pub(crate) fn write(&mut self, row: Row, change: impl FnOnce(&mut Db)) -> Result<(), Blocked> {
        self.lock(row)?;
        self.tx.writes_inbox |= matches!(row, Row::Inbox(_));
        let mut seen = self.fresh();
        change(&mut seen);
        self.tx.own.copy_row(&seen, row);
        self.tx.written.add(row);
        Ok(())
    }

    /// Draws the next place in the queue of ready turns, for a statement that writes to the inbox.
    pub(crate) fn draw(&mut self) -> u8 {
        self.tx.writes_inbox = true;
        *self.drawn += 1;
        *self.drawn
    }

    /// Ends the statement. The next one takes its own snapshot.
    pub(crate) fn end_statement(&mut self) {
        self.tx.snapshot = None;
        self.tx.waits_for = None;
    }
}

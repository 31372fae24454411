//! A small database with the rules of PostgreSQL's READ COMMITTED that matter here.
//!
//! * A transaction's writes are seen by itself at once and by others at its commit, all together.
//! * A row lock is held until the transaction ends; whoever wants the row waits.
//! * A statement that waited sees the row it waited for as it is now, and everything else as it was when the statement
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
    /// Rows of the same turn beyond the first. There must never be one.
    pub(crate) extra: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CallStatus {
    None,
    Waiting,
    Done,
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

/// What is committed.
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
}

impl Db {
    pub(crate) fn new() -> Db {
        Db {
            heads: [Head { status: Status::Idle, turn: NOBODY, epoch: 0, token: 0 }; AGENTS],
            turns: [Turn { progress: Progress::None, steps: 0, deliverables: 0, events: 0 }; TURNS],
            inbox: [InboxRow { status: Inbox::Gone, epoch: 0, token: 0, seq: 0, extra: 0 }; TURNS],
            calls: [Call { status: CallStatus::None, applied: 0, has_deadline: true }; CALLS],
            tasks: [Task::None; TASKS],
            slots: [0; TASKS],
            batch: Batch { exists: false, open_slots: 0, closed: 0 },
            stops: [false; TURNS],
        }
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
        }
    }
}

/// The name of a row: what is locked and written.
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
        };
        1 << (table + i)
    }

    const ALL: [Row; 19] = [
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
    ];
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

/// An open transaction: what it holds and what it has written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Transaction {
    pub(crate) locks: Rows,
    written: Rows,
    own: Db,
    /// What the statement saw that is now waiting for a lock.
    snapshot: Option<Db>,
    pub(crate) waits_for: Option<Row>,
}

impl Transaction {
    pub(crate) fn begin() -> Transaction {
        Transaction {
            locks: Rows::default(),
            written: Rows::default(),
            own: Db::new(),
            snapshot: None,
            waits_for: None,
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

    /// The locks stay, the writes of the statement that has to wait do not: it begins again.
    pub(crate) fn without_writes_since(&self, before: &Transaction) -> Transaction {
        Transaction { written: before.written, own: before.own, ..self.clone() }
    }

    /// Makes the writes everybody's.
    pub(crate) fn commit(&self, committed: &mut Db) {
        *committed = self.over(committed);
    }
}

/// The statement has to wait for somebody else's lock.
pub(crate) struct Blocked;

/// One statement of a transaction at work.
pub(crate) struct View<'a> {
    pub(crate) tx: &'a mut Transaction,
    pub(crate) committed: &'a Db,
    pub(crate) others: Rows,
}

impl View<'_> {
    /// Everything as it is now, and one's own writes.
    pub(crate) fn fresh(&self) -> Db {
        self.tx.over(self.committed)
    }

    /// Everything as it was when this statement began, and one's own writes.
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

    /// Takes the row only if nobody has it.
    pub(crate) fn skip_locked(&mut self, row: Row) -> bool {
        if self.others.has(row) {
            return false;
        }
        self.tx.locks.add(row);
        true
    }

    /// Writes a row, which is locked by that until the transaction ends.
    pub(crate) fn write(&mut self, row: Row, change: impl FnOnce(&mut Db)) -> Result<(), Blocked> {
        self.lock(row)?;
        let mut seen = self.fresh();
        change(&mut seen);
        self.tx.own.copy_row(&seen, row);
        self.tx.written.add(row);
        Ok(())
    }

    /// The statement is through; the next one takes a snapshot of its own.
    pub(crate) fn end_statement(&mut self) {
        self.tx.snapshot = None;
        self.tx.waits_for = None;
    }
}

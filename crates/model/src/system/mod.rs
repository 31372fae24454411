//! The processes that run the protocol, the faults that can occur, and the properties that must still hold.

mod property;
mod run;
mod work;

use stateright::{Model, Property};

use crate::{
    db::{CALLS, Db, Progress, Rows, TURNS, Transaction},
    protocol::{Fence, Kind, Mutant, Protocol},
};

/// A process that can have an open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Who {
    Worker(u8),
    Client(u8),
    Tool(u8),
    Orchestrator,
    Sweeper,
    Stopper,
}

const WORKERS: usize = 2;
/// How many turns a worker takes with one claim.
const MOST: usize = 2;

impl Who {
    const ALL: [Who; 9] = [
        Who::Client(0),
        Who::Client(1),
        Who::Tool(0),
        Who::Tool(1),
        Who::Stopper,
        Who::Orchestrator,
        Who::Worker(0),
        Who::Worker(1),
        Who::Sweeper,
    ];

    /// Returns the name by which a mark knows the transaction of this process.
    fn name(self) -> u8 {
        Who::ALL.iter().position(|who| *who == self).map_or(u8::MAX, |at| at as u8)
    }
}

/// A running transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Running {
    who: Who,
    kind: Kind,
    pc: u8,
    /// All statements are done; only the commit is left.
    done: bool,
    /// The statement number of the mark, if it also looks for its next turn and moves the mark.
    marking: Option<u8>,
    tx: Transaction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Worker {
    owns: [Option<Fence>; MOST],
    /// Paused for longer than its lease. It will wake up without noticing.
    paused: bool,
}

impl Worker {
    fn lets_go(&mut self, fence: Fence) {
        self.owns.iter_mut().filter(|owned| **owned == Some(fence)).for_each(|owned| *owned = None);
    }

    fn is_free(&self) -> bool {
        self.owns.iter().all(Option::is_none)
    }
}

/// How many faults of each kind may still occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    pub(crate) crashes: u8,
    pub(crate) pauses: u8,
    /// Commits whose outcome the worker does not learn.
    pub(crate) unknown: u8,
    pub(crate) replays: u8,
    pub(crate) stops: u8,
    pub(crate) lost_bells: u8,
    /// Marks that a sweep resets.
    pub(crate) forgets: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) db: Db,
    open: Vec<Running>,
    workers: [Worker; WORKERS],
    /// The second transaction of a process that writes one thing in two transactions.
    intends: Vec<(Who, Kind)>,
    /// Results that a tool will still send for each call: none, one or several.
    results: [u8; CALLS],
    bells: [bool; TURNS],
    /// The orchestrator has the call of a batch.
    handles: bool,
    /// The last place that was drawn.
    drawn: u8,
    /// The last transaction id that was given, and the newest that is over. Only for the mutant that compares them.
    xids: (u8, u8),
    faults: Faults,
    /// A write was accepted whose fence did not hold when it was committed.
    stale_write: bool,
    epoch_shrank: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Begin(Who, Kind),
    Statement(Who),
    Commit(Who),
    /// The process does not commit yet, but looks for its next turn in the same transaction.
    LookOn(Who),
    /// The commit is done, and the process does not learn of it.
    CommitUnknown(Who),
    Crash(Who),
    Pause(u8),
    Wake(u8),
    /// The server ends the transaction of a client that has gone silent.
    ServerAborts(u8),
    LoseBell(u8),
}

/// A system to check: the processes, their work, and the faults that may occur.
#[derive(Clone, Debug)]
pub(crate) struct System {
    pub(crate) protocol: Protocol,
    /// Turns that clients enqueue; the others are children.
    pub(crate) roots: Vec<u8>,
    pub(crate) faults: Faults,
    pub(crate) results: [u8; CALLS],
}

impl State {
    fn running(&self, who: Who) -> Option<&Running> {
        self.open.iter().find(|running| running.who == who)
    }

    fn end(&mut self, who: Who) {
        self.xids.1 = self.running(who).map_or(0, |running| running.tx.xid).max(self.xids.1);
        self.open.retain(|running| running.who != who);
        let name = who.name();
        self.db.mark.open_then = self.db.mark.open_then.without(name);
        self.open.iter_mut().for_each(|running| running.tx.forget_name(name));
    }

    fn locked_by_others(&self, who: Who) -> Rows {
        let others = self.open.iter().filter(|running| running.who != who);
        others.fold(Rows::default(), |rows, running| rows.union(running.tx.locks))
    }

    fn is_blocked(&self, running: &Running) -> bool {
        running.tx.waits_for.is_some_and(|row| self.locked_by_others(running.who).has(row))
    }

    /// Checks whether some transactions wait for each other in a ring.
    fn deadlocked(&self) -> bool {
        self.open.iter().any(|first| {
            let mut at = first;
            for _ in 0..self.open.len() {
                let Some(row) = at.tx.waits_for else { return false };
                let Some(holder) = self.open.iter().find(|other| other.who != at.who && other.tx.locks.has(row)) else {
                    return false;
                };
                if holder.who == first.who {
                    return true;
                }
                at = holder;
            }
            false
        })
    }

    fn holder_lives(&self, turn: u8) -> bool {
        let row = self.db.inbox[turn as usize];
        let fence = Fence { turn, epoch: row.epoch, token: row.token };
        self.workers.iter().any(|worker| !worker.paused && worker.owns.contains(&Some(fence)))
    }
}

impl System {
    fn is(&self, mutant: Mutant) -> bool {
        self.protocol.is(mutant)
    }
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            db: Db::new(),
            open: Vec::new(),
            workers: [Worker::default(); WORKERS],
            intends: Vec::new(),
            results: self.results,
            bells: [false; TURNS],
            handles: false,
            drawn: 0,
            xids: (0, 0),
            faults: self.faults,
            stale_write: false,
            epoch_shrank: false,
        };
        // Everything before the batch is the same as in the scenario where the batch answers its call. So this one begins with a parent that waits.
        if let (true, Some(parent)) = (self.protocol.plan.resumes, self.protocol.plan.caller()) {
            self.begin(&mut state, Who::Client(0), Kind::Enqueue(parent));
            while self.goes_on(&mut state, Who::Client(0)) || self.goes_on(&mut state, Who::Worker(0)) {}
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.actions_of_open(state, actions);
        self.actions_that_begin(state, actions);
        if state.faults.lost_bells > 0 {
            actions.extend((0..TURNS as u8).filter(|turn| state.bells[*turn as usize]).map(Action::LoseBell));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(who, kind) => {
                match (who, kind) {
                    (Who::Client(_), Kind::Enqueue(turn))
                        if last.db.turns[turn as usize].progress != Progress::None =>
                    {
                        state.faults.replays -= 1
                    }
                    (Who::Orchestrator, Kind::Fork(_)) if last.db.batch.exists => state.faults.replays -= 1,
                    (Who::Tool(_), Kind::Report(call)) => state.results[call as usize] -= 1,
                    (Who::Stopper, _) => state.faults.stops -= 1,
                    (_, Kind::Forget) => state.faults.forgets -= 1,
                    _ => {}
                }
                self.begin(&mut state, who, kind);
            }
            Action::Statement(who) => self.statement(&mut state, who),
            Action::Commit(who) => self.commit(&mut state, who, true),
            Action::LookOn(who) => {
                let running = state.open.iter_mut().filter(|running| running.who == who);
                running.for_each(|running| (running.done, running.marking) = (false, Some(0)));
            }
            Action::CommitUnknown(who) => {
                state.faults.unknown -= 1;
                self.commit(&mut state, who, false);
            }
            Action::Crash(who) => {
                state.faults.crashes -= 1;
                self.crash(&mut state, who);
            }
            Action::Pause(w) => {
                state.faults.pauses -= 1;
                state.workers[w as usize].paused = true;
            }
            Action::Wake(w) => state.workers[w as usize].paused = false,
            Action::ServerAborts(w) => state.end(Who::Worker(w)),
            Action::LoseBell(turn) => {
                state.faults.lost_bells -= 1;
                state.bells[turn as usize] = false;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<System>> {
        property::all()
    }
}

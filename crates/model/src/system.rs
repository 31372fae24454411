//! Everything that runs the protocol, everything that can go wrong with it, and what must hold all the same.

use stateright::{Model, Property};

use crate::{
    db::{AGENTS, CALLS, CallStatus, Db, Inbox, Progress, Rows, Status, TURNS, Transaction, View},
    protocol::{Fence, Flow, Kind, Mutant, Protocol, Work},
};

/// Who may have a transaction open.
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

/// A transaction under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Running {
    who: Who,
    kind: Kind,
    pc: u8,
    /// All statements are through; only the commit is left.
    done: bool,
    tx: Transaction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Worker {
    owns: Option<Fence>,
    /// Stopped for longer than its lease, and about to wake up as if nothing had happened.
    paused: bool,
}

/// How much may still go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    pub(crate) crashes: u8,
    pub(crate) pauses: u8,
    /// Commits whose outcome the worker does not learn.
    pub(crate) unknown: u8,
    pub(crate) replays: u8,
    pub(crate) stops: u8,
    pub(crate) lost_bells: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) db: Db,
    open: Vec<Running>,
    workers: [Worker; WORKERS],
    /// What a process meant to do next when it wrote one thing in two transactions.
    intends: Vec<(Who, Kind)>,
    /// Results a tool will still send: none, or more than one for the same call.
    results: [u8; CALLS],
    bells: [bool; TURNS],
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
    /// The commit is done and the process does not learn of it.
    CommitUnknown(Who),
    Crash(Who),
    Pause(u8),
    Wake(u8),
    /// The server ends the transaction of a client that has gone silent.
    ServerAborts(u8),
    LoseBell(u8),
}

/// A system to check: who does what, and what may go wrong.
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
        self.open.retain(|running| running.who != who);
    }

    fn locked_by_others(&self, who: Who) -> Rows {
        let others = self.open.iter().filter(|running| running.who != who);
        others.fold(Rows::default(), |rows, running| rows.union(running.tx.locks))
    }

    fn is_blocked(&self, running: &Running) -> bool {
        running.tx.waits_for.is_some_and(|row| self.locked_by_others(running.who).has(row))
    }

    /// Some transactions wait for each other in a ring.
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
        self.workers.iter().any(|worker| !worker.paused && worker.owns == Some(fence))
    }
}

impl System {
    fn is(&self, mutant: Mutant) -> bool {
        self.protocol.is(mutant)
    }

    /// What a worker that owns a turn does next, from what is committed.
    fn decide(&self, db: &Db, fence: Fence) -> Kind {
        let turn = fence.turn as usize;
        let waits = self.protocol.plan.caller() == Some(fence.turn)
            && db.calls.iter().any(|call| call.status == CallStatus::Waiting);
        if db.stops[turn] {
            Kind::Finish(fence)
        } else if db.turns[turn].steps == 0 {
            Kind::Step(fence)
        } else if waits {
            Kind::Suspend(fence)
        } else {
            Kind::Finish(fence)
        }
    }

    /// What a process with no transaction open may begin, faults and chance aside.
    fn work_for(&self, state: &State, who: Who) -> Vec<Kind> {
        if let Some((_, kind)) = state.intends.iter().find(|(intending, _)| *intending == who) {
            return vec![*kind];
        }
        let db = &state.db;
        match who {
            Who::Worker(w) => match state.workers[w as usize].owns {
                Some(fence) => vec![self.decide(db, fence)],
                None => {
                    let found = |turn: &u8| {
                        db.inbox[*turn as usize].status == Inbox::Pending
                            && (!self.is(Mutant::DoorbellOnly) || state.bells[*turn as usize])
                    };
                    (0..TURNS as u8).filter(found).map(Kind::Claim).collect()
                }
            },
            Who::Orchestrator => {
                let Some(parent) = self.protocol.plan.caller() else { return Vec::new() };
                if self.protocol.plan.work[parent as usize] != Work::Fork {
                    return Vec::new();
                }
                if !db.batch.exists {
                    let called = db.calls[0].status == CallStatus::Waiting
                        && db.turns[parent as usize].progress != Progress::Terminal;
                    return if called { vec![Kind::Fork(parent)] } else { Vec::new() };
                }
                let child =
                    |turn: &u8| !self.roots.contains(turn) && db.turns[*turn as usize].progress == Progress::None;
                (0..TURNS as u8).filter(child).map(Kind::Enqueue).take(1).collect()
            }
            Who::Sweeper => {
                let lapsed = (0..TURNS as u8)
                    .filter(|turn| db.inbox[*turn as usize].status == Inbox::Processing && !state.holder_lives(*turn));
                lapsed
                    .map(|turn| {
                        let row = db.inbox[turn as usize];
                        Kind::Reclaim(Fence { turn, epoch: row.epoch, token: row.token })
                    })
                    .collect()
            }
            Who::Client(_) | Who::Tool(_) | Who::Stopper => Vec::new(),
        }
    }

    /// Calls whose deadline may pass.
    fn overdue(&self, db: &Db) -> Vec<Kind> {
        let late =
            |call: &u8| db.calls[*call as usize].status == CallStatus::Waiting && db.calls[*call as usize].has_deadline;
        (0..CALLS as u8).filter(late).map(Kind::Report).collect()
    }

    fn statement(&self, state: &mut State, who: Who) {
        let others = state.locked_by_others(who);
        let Some(at) = state.open.iter().position(|running| running.who == who) else { return };
        let mut running = state.open[at].clone();
        let before = running.tx.clone();
        let mut view = View { tx: &mut running.tx, committed: &state.db, others };
        match self.protocol.statement(running.kind, running.pc, &mut view) {
            Err(_) => running.tx = running.tx.without_writes_since(&before),
            Ok(flow) => {
                view.end_statement();
                match flow {
                    Flow::Next => running.pc += 1,
                    Flow::Commit => running.done = true,
                    Flow::Abort => {
                        // The first statement of a fenced transaction found that the fence does not hold: stop.
                        if let (Who::Worker(w), Some(_), 0) = (who, running.kind.fence(), running.pc) {
                            state.workers[w as usize].owns = None;
                        }
                        state.intends.retain(|(intending, _)| *intending != who);
                        state.end(who);
                        return;
                    }
                }
            }
        }
        state.open[at] = running;
    }

    fn commit(&self, state: &mut State, who: Who, learns: bool) {
        let Some(running) = state.running(who).cloned() else { return };
        let before = state.db;
        if let Some(fence) = running.kind.fence() {
            let head = before.heads[self.protocol.plan.agent(fence.turn) as usize];
            state.stale_write |= !fence.holds(&head);
        }
        running.tx.commit(&mut state.db);
        state.epoch_shrank |= (0..AGENTS).any(|agent| state.db.heads[agent].epoch < before.heads[agent].epoch);
        state.end(who);
        state.intends.retain(|(intending, _)| *intending != who);
        if self.is(Mutant::DoorbellOnly) {
            for turn in 0..TURNS {
                let rings =
                    state.db.inbox[turn].status == Inbox::Pending && before.inbox[turn].status != Inbox::Pending;
                state.bells[turn] = rings || state.bells[turn] && state.db.inbox[turn].status == Inbox::Pending;
            }
        }
        if !learns {
            return;
        }
        let after = match (self.protocol.mutant, running.kind) {
            (Some(Mutant::FinishInTwoTransactions), Kind::Finish(fence)) => Some(Kind::FinishRest(fence)),
            (Some(Mutant::ResumeInTwoTransactions), Kind::Report(_)) => self.protocol.plan.caller().map(Kind::Resume),
            (Some(Mutant::JoinInTwoTransactions), Kind::Finish(_)) if state.db.batch.closed > before.batch.closed => {
                Some(Kind::Join)
            }
            _ => None,
        };
        state.intends.extend(after.map(|kind| (who, kind)));
        if let Who::Worker(w) = who {
            let owns = &mut state.workers[w as usize].owns;
            match running.kind {
                Kind::Claim(turn) => {
                    let head = state.db.heads[self.protocol.plan.agent(turn) as usize];
                    *owns = Some(Fence { turn, epoch: head.epoch, token: head.token });
                }
                Kind::Suspend(_) | Kind::Finish(_) | Kind::FinishRest(_) if after.is_none() => *owns = None,
                _ => {}
            }
        }
    }

    fn begin(&self, state: &mut State, who: Who, kind: Kind) {
        state.open.push(Running { who, kind, pc: 0, done: false, tx: Transaction::begin() });
        state.open.sort_by_key(|running| running.who);
    }

    fn crash(&self, state: &mut State, who: Who) {
        state.end(who);
        state.intends.retain(|(intending, _)| *intending != who);
        if let Who::Worker(w) = who {
            state.workers[w as usize] = Worker::default();
        }
    }

    /// From here on nothing goes wrong: crashed and paused workers are replaced, tools stay silent, everybody else goes
    /// on in turn. Everything that was accepted must end.
    pub(crate) fn settles(&self, state: &State) -> bool {
        let mut state = state.clone();
        for w in 0..WORKERS as u8 {
            if state.workers[w as usize].paused {
                self.crash(&mut state, Who::Worker(w));
            }
        }
        const EVERYBODY: [Who; 9] = [
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
        for _ in 0..400 {
            let mut moved = false;
            for who in EVERYBODY {
                match state.running(who) {
                    Some(running) if running.done => self.commit(&mut state, who, true),
                    Some(running) if state.is_blocked(running) => continue,
                    Some(_) => self.statement(&mut state, who),
                    None => match self.work_for(&state, who).first() {
                        Some(kind) => self.begin(&mut state, who, *kind),
                        None => continue,
                    },
                }
                moved = true;
            }
            if !moved {
                // All is quiet: now the deadlines pass.
                match self.overdue(&state.db).first() {
                    Some(kind) => self.begin(&mut state, Who::Sweeper, *kind),
                    None => break,
                }
            }
        }
        let db = &state.db;
        let ended = db.turns.iter().all(|turn| matches!(turn.progress, Progress::None | Progress::Terminal));
        let drained = db.inbox.iter().all(|row| row.status == Inbox::Gone && row.extra == 0);
        let joined = !db.batch.exists || db.batch.closed == 1;
        ended && drained && joined && state.open.is_empty()
    }
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            db: Db::new(),
            open: Vec::new(),
            workers: [Worker::default(); WORKERS],
            intends: Vec::new(),
            results: self.results,
            bells: [false; TURNS],
            faults: self.faults,
            stale_write: false,
            epoch_shrank: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let faults = state.faults;
        for running in &state.open {
            let who = running.who;
            if let Who::Worker(w) = who
                && state.workers[w as usize].paused
            {
                actions.push(Action::ServerAborts(w));
                continue;
            }
            if running.done {
                actions.push(Action::Commit(who));
                if faults.unknown > 0 && matches!(who, Who::Worker(_)) {
                    actions.push(Action::CommitUnknown(who));
                }
            } else if !state.is_blocked(running) {
                actions.push(Action::Statement(who));
            }
            if faults.crashes > 0 {
                actions.push(Action::Crash(who));
            }
        }
        for (who, _) in state.intends.iter().filter(|(who, _)| state.running(*who).is_none()) {
            if faults.crashes > 0 {
                actions.push(Action::Crash(*who));
            }
        }
        for w in 0..WORKERS as u8 {
            let (who, worker) = (Who::Worker(w), state.workers[w as usize]);
            if worker.paused {
                actions.push(Action::Wake(w));
                continue;
            }
            if worker.owns.is_some() && faults.pauses > 0 {
                actions.push(Action::Pause(w));
            }
            if worker.owns.is_some() && faults.crashes > 0 && state.running(who).is_none() {
                actions.push(Action::Crash(who));
            }
        }
        let mut may = |who: Who, kinds: Vec<Kind>| {
            if state.running(who).is_none() {
                actions.extend(kinds.into_iter().map(|kind| Action::Begin(who, kind)));
            }
        };
        for w in 0..WORKERS as u8 {
            if !state.workers[w as usize].paused {
                may(Who::Worker(w), self.work_for(state, Who::Worker(w)));
            }
        }
        for c in 0..2 {
            let new = |turn: &&u8| state.db.turns[**turn as usize].progress == Progress::None;
            let again = |turn: &&u8| state.db.turns[**turn as usize].progress != Progress::None && faults.replays > 0;
            may(
                Who::Client(c),
                self.roots
                    .iter()
                    .filter(new)
                    .chain(self.roots.iter().filter(again))
                    .map(|t| Kind::Enqueue(*t))
                    .collect(),
            );
        }
        for call in 0..CALLS as u8 {
            let expected = state.db.calls[call as usize].status != CallStatus::None && state.results[call as usize] > 0;
            if let Some((_, kind)) = state.intends.iter().find(|(who, _)| *who == Who::Tool(call)) {
                may(Who::Tool(call), vec![*kind]);
            } else if expected {
                may(Who::Tool(call), vec![Kind::Report(call)]);
            }
        }
        let mut orchestrated = self.work_for(state, Who::Orchestrator);
        if faults.replays > 0 && state.db.batch.exists {
            orchestrated.extend(self.protocol.plan.caller().map(Kind::Fork));
        }
        may(Who::Orchestrator, orchestrated);
        let mut swept = self.work_for(state, Who::Sweeper);
        if !state.intends.iter().any(|(who, _)| *who == Who::Sweeper) {
            swept.extend(self.overdue(&state.db));
            if self.is(Mutant::ResendInserts) {
                let pending = |turn: &u8| {
                    state.db.inbox[*turn as usize].status == Inbox::Pending && state.db.inbox[*turn as usize].extra == 0
                };
                swept.extend((0..TURNS as u8).filter(pending).map(Kind::Nudge));
            }
        }
        may(Who::Sweeper, swept);
        if faults.stops > 0 {
            let live =
                |turn: &u8| matches!(state.db.turns[*turn as usize].progress, Progress::Queued | Progress::Active);
            may(Who::Stopper, (0..TURNS as u8).filter(live).map(Kind::Stop).collect());
        }
        if faults.lost_bells > 0 {
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
                    _ => {}
                }
                self.begin(&mut state, who, kind);
            }
            Action::Statement(who) => self.statement(&mut state, who),
            Action::Commit(who) => self.commit(&mut state, who, true),
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
        vec![
            Property::always("a stale write is never accepted", |_, state: &State| !state.stale_write),
            Property::always("a turn has one owner", |system: &System, state: &State| {
                let [one, other] = state.workers.map(|worker| worker.owns);
                let holds =
                    |fence: Fence| fence.holds(&state.db.heads[system.protocol.plan.agent(fence.turn) as usize]);
                one.is_none() || one != other || !one.is_some_and(holds)
            }),
            Property::always("epochs only grow", |_, state: &State| !state.epoch_shrank),
            Property::always("at most one deliverable and one event per turn, together", |_, state: &State| {
                state.db.turns.iter().all(|turn| turn.deliverables <= 1 && turn.events == turn.deliverables)
            }),
            Property::always("terminal means delivered", |_, state: &State| {
                state.db.turns.iter().all(|turn| (turn.progress == Progress::Terminal) == (turn.deliverables > 0))
            }),
            Property::always("an agent is idle if and only if it has no turn", |_, state: &State| {
                state.db.heads.iter().all(|head| (head.status == Status::Idle) == (head.turn as usize >= TURNS))
            }),
            Property::always("no turn waits on an idle agent", |system: &System, state: &State| {
                let plan = &system.protocol.plan;
                (0..TURNS as u8).all(|turn| {
                    let idle = state.db.heads[plan.agent(turn) as usize].status == Status::Idle;
                    !(idle && state.db.inbox[turn as usize].status == Inbox::Queued)
                })
            }),
            Property::always("turns of an agent are taken in order", |system: &System, state: &State| {
                let plan = &system.protocol.plan;
                state.db.heads.iter().enumerate().filter(|(_, head)| head.status != Status::Idle).all(
                    |(agent, head)| {
                        let taken = state.db.inbox[head.turn as usize].seq;
                        (0..TURNS).all(|turn| {
                            let row = state.db.inbox[turn];
                            plan.agent_of[turn] as usize != agent || row.status != Inbox::Queued || row.seq > taken
                        })
                    },
                )
            }),
            Property::always("a result is applied once", |_, state: &State| {
                state.db.calls.iter().all(|call| call.applied <= 1)
            }),
            Property::always("a batch closes once", |_, state: &State| state.db.batch.closed <= 1),
            Property::always("a closed batch has reported", |_, state: &State| {
                state.db.batch.closed == 0 || state.db.calls[0].status == CallStatus::Done
            }),
            Property::always("no deadlock", |_, state: &State| !state.deadlocked()),
            Property::always("from here everything that was accepted can end", |system: &System, state: &State| {
                system.settles(state)
            }),
        ]
    }
}

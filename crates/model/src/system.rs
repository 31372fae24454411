//! The processes that run the protocol, the faults that can occur, and the properties that must still hold.

use stateright::{Model, Property};

use crate::{
    db::{AGENTS, CALLS, CallStatus, Db, Inbox, Progress, Rows, Set, Status, TURNS, Transaction, View},
    protocol::{Fence, Flow, Kind, Mutant, Protocol, Work},
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

    /// Returns what a worker that owns a turn does next, given the committed state.
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

    /// Returns what a process without an open transaction may begin, apart from faults and chance.
    fn work_for(&self, state: &State, who: Who) -> Vec<Kind> {
        if let Some((_, kind)) = state.intends.iter().find(|(intending, _)| *intending == who) {
            return vec![*kind];
        }
        let db = &state.db;
        match who {
            Who::Worker(w) => {
                let worker = state.workers[w as usize];
                if !worker.is_free() {
                    return worker.owns.into_iter().flatten().map(|fence| self.decide(db, fence)).collect();
                }
                let mut ready = db.ready();
                ready.retain(|turn| !self.is(Mutant::DoorbellOnly) || state.bells[*turn as usize]);
                let many = (self.protocol.plan.marks && ready.len() >= MOST).then(|| Set::of(&ready[..MOST]));
                many.into_iter().chain(ready.iter().map(|turn| Set::of(&[*turn]))).map(Kind::Claim).collect()
            }
            Who::Orchestrator => {
                let Some(parent) = self.protocol.plan.caller() else { return Vec::new() };
                if self.protocol.plan.work[parent as usize] != Work::Fork {
                    return Vec::new();
                }
                let missing = (0..TURNS as u8)
                    .find(|turn| !self.roots.contains(turn) && db.turns[*turn as usize].progress == Progress::None);
                if self.protocol.plan.resumes && db.calls[0].status.is_open() && !state.handles {
                    let over = db.turns[parent as usize].progress == Progress::Terminal;
                    let free = db.calls[0].status == CallStatus::Waiting && !over;
                    return if free { vec![Kind::Take] } else { Vec::new() };
                }
                if !db.batch.exists {
                    let called =
                        db.calls[0].status.is_open() && db.turns[parent as usize].progress != Progress::Terminal;
                    return if called { vec![Kind::Fork(parent)] } else { Vec::new() };
                }
                match missing {
                    Some(child) => vec![Kind::Enqueue(child)],
                    None if state.handles && db.batch.closed > 0 => vec![Kind::Report(0)],
                    None if state.handles => vec![Kind::Await],
                    None => Vec::new(),
                }
            }
            Who::Sweeper => {
                let lapsed = (0..TURNS as u8)
                    .filter(|turn| db.inbox[*turn as usize].status == Inbox::Processing && !state.holder_lives(*turn));
                let left = db.calls[0].status == CallStatus::Handled && !state.handles;
                lapsed
                    .map(|turn| {
                        let row = db.inbox[turn as usize];
                        Kind::Reclaim(Fence { turn, epoch: row.epoch, token: row.token })
                    })
                    .chain(left.then_some(Kind::GiveBack))
                    .collect()
            }
            Who::Client(_) | Who::Tool(_) | Who::Stopper => Vec::new(),
        }
    }

    /// Returns the reports of calls whose deadline may pass.
    fn overdue(&self, db: &Db) -> Vec<Kind> {
        let late = |call: &u8| db.calls[*call as usize].status.is_open() && db.calls[*call as usize].has_deadline;
        (0..CALLS as u8).filter(late).map(Kind::Report).collect()
    }

    fn statement(&self, state: &mut State, who: Who) {
        let others = state.locked_by_others(who);
        let Some(at) = state.open.iter().position(|running| running.who == who) else { return };
        let mut running = state.open[at].clone();
        let before = running.tx.clone();
        let ids = || state.open.iter().map(|running| running.tx.xid).filter(|xid| *xid > 0);
        let xmax = state.xids.1 + 1;
        let xmin = ids().min().unwrap_or(xmax);
        let writers = state.open.iter().filter(|other| other.who != who && other.tx.writes_inbox);
        let writers = Set::of(&writers.map(|other| other.who.name()).collect::<Vec<_>>());
        let mut view =
            View { tx: &mut running.tx, committed: &state.db, others, drawn: &mut state.drawn, writers, xmin, xmax };
        let flow = match running.marking {
            // What was done before is committed whether or not the mark moves.
            Some(pc) => self.protocol.mark(pc, &mut view).map(|flow| match flow {
                Flow::Next => Flow::Next,
                Flow::Commit | Flow::Abort => Flow::Commit,
            }),
            None => self.protocol.statement(running.kind, running.pc, &mut view),
        };
        if self.is(Mutant::MarkComparesIds) && view.tx.xid == 0 {
            state.xids.0 += 1;
            view.tx.xid = state.xids.0;
        }
        match flow {
            Err(_) => running.tx = running.tx.without_writes_since(&before),
            Ok(flow) => {
                view.end_statement();
                match flow {
                    Flow::Next => *running.marking.as_mut().unwrap_or(&mut running.pc) += 1,
                    Flow::Commit => running.done = true,
                    Flow::Abort => {
                        // The first statement of a fenced transaction found that the fence does not hold: stop.
                        if let (Who::Worker(w), Some(fence), 0) = (who, running.kind.fence(), running.pc) {
                            state.workers[w as usize].lets_go(fence);
                        }
                        if who == Who::Orchestrator && matches!(running.kind, Kind::Await | Kind::Report(_)) {
                            state.handles = false;
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
        match (who, running.kind) {
            (Who::Worker(w), Kind::Claim(_)) => {
                let turns = running.tx.noted.turns.members();
                for (owned, turn) in state.workers[w as usize].owns.iter_mut().zip(turns) {
                    let head = state.db.heads[self.protocol.plan.agent(turn) as usize];
                    *owned = Some(Fence { turn, epoch: head.epoch, token: head.token });
                }
            }
            (Who::Worker(w), Kind::Suspend(fence) | Kind::Finish(fence) | Kind::FinishRest(fence))
                if after.is_none() =>
            {
                state.workers[w as usize].lets_go(fence)
            }
            (Who::Orchestrator, Kind::Take) => state.handles = true,
            (Who::Orchestrator, Kind::Await | Kind::Report(_)) => state.handles = false,
            _ => {}
        }
    }

    fn begin(&self, state: &mut State, who: Who, kind: Kind) {
        state.open.push(Running { who, kind, pc: 0, done: false, marking: None, tx: Transaction::begin() });
        state.open.sort_by_key(|running| running.who);
    }

    fn crash(&self, state: &mut State, who: Who) {
        state.end(who);
        state.intends.retain(|(intending, _)| *intending != who);
        if let Who::Worker(w) = who {
            state.workers[w as usize] = Worker::default();
        }
        state.handles &= who != Who::Orchestrator;
    }

    /// Runs the next action of a process. Returns false if there is none, or if it has to wait.
    fn goes_on(&self, state: &mut State, who: Who) -> bool {
        match state.running(who) {
            Some(running) if running.done => self.commit(state, who, true),
            Some(running) if state.is_blocked(running) => return false,
            Some(_) => self.statement(state, who),
            None => match self.work_for(state, who).first() {
                Some(kind) => self.begin(state, who, *kind),
                None => return false,
            },
        }
        true
    }

    /// Checks that everything that was accepted ends if no more faults occur: crashed and paused workers are replaced, tools stay silent, and all
    /// other processes run in turn.
    pub(crate) fn settles(&self, state: &State) -> bool {
        let mut state = state.clone();
        for w in 0..WORKERS as u8 {
            if state.workers[w as usize].paused {
                self.crash(&mut state, Who::Worker(w));
            }
        }
        for _ in 0..400 {
            let moved = Who::ALL.into_iter().filter(|who| self.goes_on(&mut state, *who)).count() > 0;
            if !moved {
                // No process can move: now the deadlines pass.
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
                let looks_on = matches!(running.kind, Kind::Finish(_)) && running.marking.is_none();
                if self.protocol.plan.marks && looks_on {
                    actions.push(Action::LookOn(who));
                }
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
            if !worker.is_free() && faults.pauses > 0 {
                actions.push(Action::Pause(w));
            }
            if !worker.is_free() && faults.crashes > 0 && state.running(who).is_none() {
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
                let mut work = self.work_for(state, Who::Worker(w));
                let mark = &state.db.mark;
                if self.protocol.plan.marks
                    && state.workers[w as usize].is_free()
                    && (mark.upto < mark.next || mark.next < state.drawn)
                {
                    work.push(Kind::Look);
                }
                may(Who::Worker(w), work);
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
            swept.extend((faults.forgets > 0 && state.db.mark.upto > 0).then_some(Kind::Forget));
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
        vec![
            Property::always("a stale write is never accepted", |_, state: &State| !state.stale_write),
            Property::always("a turn has one owner", |system: &System, state: &State| {
                let holds =
                    |fence: Fence| fence.holds(&state.db.heads[system.protocol.plan.agent(fence.turn) as usize]);
                let [one, other] = &state.workers;
                one.owns.iter().flatten().all(|fence| !other.owns.contains(&Some(*fence)) || !holds(*fence))
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
            Property::always("a closed batch has reported", |system: &System, state: &State| {
                let status = state.db.calls[0].status;
                let told =
                    if system.protocol.plan.resumes { status != CallStatus::Awaiting } else { !status.is_open() };
                state.db.batch.closed == 0 || told
            }),
            Property::always("no turn is ready before the mark of its queue", |_, state: &State| {
                state.db.inbox.iter().all(|row| row.status != Inbox::Pending || row.place >= state.db.mark.upto)
            }),
            Property::always("no deadlock", |_, state: &State| !state.deadlocked()),
            Property::always("from here everything that was accepted can end", |system: &System, state: &State| {
                system.settles(state)
            }),
        ]
    }
}

//! What each process may begin, and which actions are possible in a state.

use super::{Action, MOST, State, System, WORKERS, Who};
use crate::{
    db::{CALLS, CallStatus, Db, Inbox, Progress, Set, TURNS},
    protocol::{Fence, Kind, Mutant, Work},
};

impl System {
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
    pub(super) fn work_for(&self, state: &State, who: Who) -> Vec<Kind> {
        if let Some((_, kind)) = state.intends.iter().find(|(intending, _)| *intending == who) {
            return vec![*kind];
        }
        let db = &state.db;
        match who {
            Who::Worker(w) => {
                let worker = state.workers[w as usize];
                if !worker.is_free() {
                    let mut work: Vec<Kind> =
                        worker.owns.into_iter().flatten().map(|fence| self.decide(db, fence)).collect();
                    if let [Kind::Finish(one), Kind::Finish(other)] = work[..] {
                        let mut both = [one, other];
                        both.sort_by_key(|fence| self.protocol.plan.agent(fence.turn));
                        work.push(Kind::FinishBoth(both));
                    }
                    return work;
                }
                let mut ready = db.ready();
                ready.retain(|turn| !self.is(Mutant::DoorbellOnly) || state.bells[*turn as usize]);
                let many = (self.protocol.plan.many && ready.len() >= MOST).then(|| Set::of(&ready[..MOST]));
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
    pub(super) fn overdue(&self, db: &Db) -> Vec<Kind> {
        let late = |call: &u8| db.calls[*call as usize].status.is_open() && db.calls[*call as usize].has_deadline;
        (0..CALLS as u8).filter(late).map(Kind::Report).collect()
    }

    /// Adds the actions of open transactions, and what can happen to workers between transactions.
    pub(super) fn actions_of_open(&self, state: &State, actions: &mut Vec<Action>) {
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
                let looks_on =
                    matches!(running.kind, Kind::Finish(_) | Kind::FinishBoth(_)) && running.marking.is_none();
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
    }

    /// Adds the transactions that processes may begin.
    pub(super) fn actions_that_begin(&self, state: &State, actions: &mut Vec<Action>) {
        let faults = state.faults;
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
    }
}

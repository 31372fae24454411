//! Runs the statements, commits and crashes of the processes.

use super::{Running, State, System, WORKERS, Who, Worker};
use crate::{
    db::{AGENTS, Inbox, Progress, Set, TURNS, Transaction, View},
    protocol::{Fence, Flow, Kind, Mutant},
};

impl System {
    pub(super) fn statement(&self, state: &mut State, who: Who) {
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
                        // The first statement of a fenced transaction found that a fence does not hold: stop with that turn.
                        if let (Who::Worker(w), 0) = (who, running.pc) {
                            for fence in running.kind.fences() {
                                if !self.holds(state, fence) {
                                    state.workers[w as usize].lets_go(fence);
                                }
                            }
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

    pub(super) fn commit(&self, state: &mut State, who: Who, learns: bool) {
        let Some(running) = state.running(who).cloned() else { return };
        let before = state.db;
        state.stale_write |= running.kind.fences().into_iter().any(|fence| !self.holds(state, fence));
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
            (Who::Worker(w), Kind::FinishBoth(fences)) => {
                fences.into_iter().for_each(|fence| state.workers[w as usize].lets_go(fence))
            }
            (Who::Orchestrator, Kind::Take) => state.handles = true,
            (Who::Orchestrator, Kind::Await | Kind::Report(_)) => state.handles = false,
            _ => {}
        }
    }

    fn holds(&self, state: &State, fence: Fence) -> bool {
        fence.holds(&state.db.heads[self.protocol.plan.agent(fence.turn) as usize])
    }

    pub(super) fn begin(&self, state: &mut State, who: Who, kind: Kind) {
        state.open.push(Running { who, kind, pc: 0, done: false, marking: None, tx: Transaction::begin() });
        state.open.sort_by_key(|running| running.who);
    }

    pub(super) fn crash(&self, state: &mut State, who: Who) {
        state.end(who);
        state.intends.retain(|(intending, _)| *intending != who);
        if let Who::Worker(w) = who {
            state.workers[w as usize] = Worker::default();
        }
        state.handles &= who != Who::Orchestrator;
    }

    /// Runs the next action of a process. Returns false if there is none, or if it has to wait.
    pub(super) fn goes_on(&self, state: &mut State, who: Who) -> bool {
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

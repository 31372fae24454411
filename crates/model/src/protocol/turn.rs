//! What the owner of a turn commits: steps, suspensions and the deliverable. And stopping a turn.

use super::{Fence, Flow, Mutant, Protocol, Work};
use crate::db::{Blocked, Call, CallStatus, Db, Inbox, NOBODY, Progress, Row, Status, TURNS, View};

impl Protocol {
    /// Commits the cards of a step, with the calls that it sends.
    pub(super) fn step(&self, fence: Fence, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
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

    pub(super) fn suspend(&self, fence: Fence, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
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

    pub(super) fn finish(&self, fence: Fence, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
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

    /// Ends two turns in one transaction: both, or neither.
    pub(super) fn finish_both(&self, fences: [Fence; 2], pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        if pc == 0 {
            let mut n_held = 0;
            for fence in fences {
                n_held += usize::from(self.fenced(fence, view)?);
            }
            let enough = if self.is(Mutant::FinishBothChecksOne) { 1 } else { fences.len() };
            if n_held < enough {
                return Ok(Flow::Abort);
            }
            for fence in fences {
                let agent = self.plan.agent(fence.turn);
                view.write(Row::Head(agent), |db| {
                    (db.heads[agent as usize].status, db.heads[agent as usize].turn) = (Status::Idle, NOBODY);
                })?;
            }
            return Ok(Flow::Next);
        }
        for fence in fences {
            let next = self.next_queued(&view.fresh(), self.plan.agent(fence.turn));
            let is_forgotten = self.is(Mutant::FinishBothDispatchesOne) && fence == fences[1];
            self.end_turn(fence.turn, next.filter(|_| !is_forgotten), view)?;
        }
        Ok(Flow::Commit)
    }

    pub(super) fn finish_rest(&self, fence: Fence, view: &mut View<'_>) -> Result<Flow, Blocked> {
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

    /// Ends a turn that no worker runs. If a worker runs it, requests the stop from that worker.
    pub(super) fn stop(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
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
}

//! Reporting the results of calls, and resuming the turn that waits for them.

use super::{Flow, Mutant, Protocol};
use crate::db::{Blocked, CallStatus, Db, Inbox, Row, Status, View};

impl Protocol {
    pub(super) fn report(&self, call: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
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

    pub(super) fn resume(&self, turn: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        view.lock(Row::Head(self.plan.agent(turn)))?;
        self.resume_if_last(turn, &view.fresh(), view)?;
        Ok(Flow::Commit)
    }

    /// Applies a result, once.
    pub(super) fn apply(&self, call: u8, view: &mut View<'_>) -> Result<(), Blocked> {
        let c = call as usize;
        if view.fresh().calls[c].status.is_open() || self.is(Mutant::ResultAppliedTwice) {
            view.write(Row::Call(call), |db| {
                (db.calls[c].status, db.calls[c].applied) = (CallStatus::Done, db.calls[c].applied + 1)
            })?;
        }
        Ok(())
    }

    pub(super) fn resume_if_last(&self, turn: u8, seen: &Db, view: &mut View<'_>) -> Result<(), Blocked> {
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
    pub(super) fn place_again(&self, turn: u8, view: &mut View<'_>) -> u8 {
        let now = view.fresh().inbox[turn as usize].place;
        if self.is(Mutant::PlaceForLife) { now } else { self.place(turn, view) }
    }
}

//! Forking a batch, counting down its tasks, joining it, and the handler of its call.

use super::{Flow, Mutant, Protocol, Work};
use crate::db::{Batch, Blocked, CallStatus, Db, Progress, Row, TASKS, Task, View};

impl Protocol {
    /// Handles the fork's command in the orchestrator: creates the batch, its tasks and its counters.
    pub(super) fn fork(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        if pc == 0 {
            view.lock(Row::Head(self.plan.agent(turn)))?;
            return Ok(Flow::Next);
        }
        if view.fresh().turns[turn as usize].progress == Progress::Terminal {
            return Ok(Flow::Abort); // the call ended with its turn
        }
        view.lock(Row::Batch)?;
        if view.fresh().batch.exists && !self.is(Mutant::ForkNotIdempotent) {
            return Ok(Flow::Abort);
        }
        let open_slots = TASKS as u8 + u8::from(self.is(Mutant::BatchCountsEmptySlots));
        view.write(Row::Batch, |db| db.batch = Batch { exists: true, open_slots, closed: db.batch.closed })?;
        for task in 0..TASKS as u8 {
            view.write(Row::Task(task), |db| db.tasks[task as usize] = Task::Running)?;
            view.write(Row::Slot(task), |db| db.slots[task as usize] += 1)?;
        }
        Ok(Flow::Commit)
    }

    /// Counts down task, slot, batch and parent, in this order, with one lock per statement.
    pub(super) fn count_down(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let Work::Child(task) = self.plan.work[turn as usize] else { return Ok(Flow::Commit) };
        let i = task as usize;
        match pc {
            0 => {
                view.lock(Row::Task(task))?;
                if view.fresh().tasks[i] != Task::Running {
                    return Ok(Flow::Commit); // counted already
                }
                view.write(Row::Task(task), |db| db.tasks[i] = Task::Done)?;
                Ok(Flow::Next)
            }
            1 if self.is(Mutant::BatchClosedByLooking) => {
                let left = view.fresh().tasks.contains(&Task::Running);
                Ok(if left { Flow::Commit } else { Flow::Next })
            }
            1 => {
                view.lock(Row::Slot(task))?;
                view.write(Row::Slot(task), |db| db.slots[i] = db.slots[i].saturating_sub(1))?;
                Ok(if view.fresh().slots[i] == 0 { Flow::Next } else { Flow::Commit })
            }
            2 => {
                view.lock(Row::Batch)?;
                let looking = self.is(Mutant::BatchClosedByLooking);
                view.write(Row::Batch, |db| {
                    db.batch.open_slots = if looking { 0 } else { db.batch.open_slots.saturating_sub(1) }
                })?;
                if view.fresh().batch.open_slots > 0 {
                    return Ok(Flow::Commit);
                }
                view.write(Row::Batch, |db| db.batch.closed += 1)?;
                Ok(if self.is(Mutant::JoinInTwoTransactions) { Flow::Commit } else { Flow::Next })
            }
            _ => self.join(view).map(|()| Flow::Commit),
        }
    }

    /// Passes the result of the batch to the parent's call, or to the handler of the call.
    pub(super) fn join(&self, view: &mut View<'_>) -> Result<(), Blocked> {
        let Some(parent) = self.plan.caller() else { return Ok(()) };
        if self.plan.resumes {
            if !self.is(Mutant::CloseWithoutCallLock) {
                view.lock(Row::Call(0))?;
            }
            if view.fresh().calls[0].status == CallStatus::Awaiting && !self.is(Mutant::CloseForgetsCall) {
                view.write(Row::Call(0), |db| db.calls[0].status = CallStatus::Waiting)?;
            }
            return Ok(());
        }
        view.lock(Row::Head(self.plan.agent(parent)))?;
        self.apply(0, view)?;
        self.resume_if_last(parent, &view.fresh(), view)
    }

    pub(super) fn take(&self, view: &mut View<'_>) -> Result<Flow, Blocked> {
        if !view.skip_locked(Row::Call(0)) || view.fresh().calls[0].status != CallStatus::Waiting {
            return Ok(Flow::Abort);
        }
        view.write(Row::Call(0), |db| db.calls[0].status = CallStatus::Handled)?;
        Ok(Flow::Commit)
    }

    /// Makes the call free again, because its handler died.
    pub(super) fn give_back(&self, view: &mut View<'_>) -> Result<Flow, Blocked> {
        view.lock(Row::Call(0))?;
        if view.fresh().calls[0].status != CallStatus::Handled {
            return Ok(Flow::Abort);
        }
        view.write(Row::Call(0), |db| db.calls[0].status = CallStatus::Waiting)?;
        Ok(Flow::Commit)
    }

    /// Leaves the call to the batch, because all children are dispatched. The batch gives it back when it closes. If it has closed already, the
    /// call is given back here.
    pub(super) fn leave_to_batch(&self, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let give_back = |view: &mut View<'_>, seen: &Db| {
            if seen.batch.closed > 0 {
                view.write(Row::Call(0), |db| db.calls[0].status = CallStatus::Waiting)?;
            }
            Ok(Flow::Commit)
        };
        if pc > 0 {
            // This is a later statement than the one that waited for the call, so it sees a batch that closed meanwhile.
            let now = view.fresh();
            return give_back(view, &now);
        }
        view.lock(Row::Call(0))?;
        if view.fresh().calls[0].status != CallStatus::Handled {
            return Ok(Flow::Abort);
        }
        view.write(Row::Call(0), |db| db.calls[0].status = CallStatus::Awaiting)?;
        if self.is(Mutant::AwaitInSameStatement) {
            let seen = view.stale();
            return give_back(view, &seen);
        }
        Ok(Flow::Next)
    }
}

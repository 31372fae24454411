//! Enqueueing, dispatching, claiming and reclaiming turns, and the mark of the queue.

use super::{Fence, Flow, Mutant, Protocol};
use crate::db::{Blocked, Db, Head, Inbox, InboxRow, Mark, Progress, Row, Set, Status, TURNS, View};

impl Protocol {
    pub(super) fn enqueue(&self, turn: u8, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let agent = self.plan.agent(turn);
        if pc == 0 {
            if !self.is(Mutant::EnqueueWithoutLock) {
                view.lock(Row::Head(agent))?;
            }
            return Ok(Flow::Next);
        }
        if pc == 1 {
            // A look at the turn, and its insert, which fails if another transaction wrote it meanwhile.
            view.lock(Row::Turn(turn))?;
            if view.fresh().turns[turn as usize].progress != Progress::None && !self.is(Mutant::EnqueueNotIdempotent) {
                return Ok(Flow::Abort); // a replay: the turn has the answer
            }
            view.write(Row::Turn(turn), |db| db.turns[turn as usize].progress = Progress::Queued)?;
            // The insert locks the table, draws the place and then writes the row. Others may run in between.
            if self.plan.marks {
                view.tx.noted.place = view.draw();
                view.tx.writes_inbox = !self.is(Mutant::PlaceDrawnBeforeLock);
                return Ok(Flow::Next);
            }
        }
        let now = view.fresh();
        let seq = 1
            + (0..TURNS)
                .filter(|other| self.plan.agent_of[*other] == agent)
                .map(|other| now.inbox[other].seq)
                .max()
                .unwrap_or(0);
        let (place, extra) = (view.tx.noted.place, now.inbox[turn as usize].extra);
        if now.heads[agent as usize].status == Status::Idle {
            view.write(Row::Inbox(turn), |db| db.inbox[turn as usize].seq = seq)?;
            self.dispatch(turn, place, view)?;
        } else {
            let row = InboxRow { status: Inbox::Queued, epoch: 0, token: 0, seq, place, extra };
            view.write(Row::Inbox(turn), |db| db.inbox[turn as usize] = row)?;
        }
        Ok(Flow::Commit)
    }

    /// Gives a turn to the head, whose lock this transaction holds.
    pub(super) fn dispatch(&self, turn: u8, place: u8, view: &mut View<'_>) -> Result<(), Blocked> {
        let agent = self.plan.agent(turn) as usize;
        view.write(Row::Head(agent as u8), |db| {
            let head = &mut db.heads[agent];
            *head = Head { status: Status::Dispatched, turn, epoch: head.epoch + 1, token: head.token };
        })?;
        view.write(Row::Inbox(turn), |db| {
            let row = &mut db.inbox[turn as usize];
            (row.status, row.epoch, row.place) = (Inbox::Pending, db.heads[agent].epoch, place);
        })?;
        view.write(Row::Turn(turn), |db| db.turns[turn as usize].progress = Progress::Active)
    }

    /// Claims turns. It is one SQL statement, but two here, because others may run between its locks. It waits for neither lock, and takes what
    /// it gets.
    pub(super) fn claim(&self, turns: Set, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let head_first = self.is(Mutant::LocksInTwoOrders);
        let mut got = Set::default();
        if pc == 0 {
            for turn in turns.members() {
                if head_first {
                    view.lock(Row::Head(self.plan.agent(turn)))?;
                } else if !view.skip_locked(Row::Inbox(turn))
                    || view.fresh().inbox[turn as usize].status != Inbox::Pending
                {
                    continue;
                }
                got = got.with(turn);
            }
        } else {
            for turn in view.tx.noted.turns.members() {
                if self.claim_head(turn, head_first, view)? {
                    got = got.with(turn);
                }
            }
        }
        view.tx.noted.turns = got;
        Ok(match pc {
            _ if got.is_empty() => Flow::Abort,
            0 => Flow::Next,
            _ => Flow::Commit,
        })
    }

    fn claim_head(&self, turn: u8, head_first: bool, view: &mut View<'_>) -> Result<bool, Blocked> {
        let (agent, t) = (self.plan.agent(turn), turn as usize);
        if head_first {
            view.lock(Row::Inbox(turn))?;
        } else if self.is(Mutant::ClaimWaitsForHead) {
            view.lock(Row::Head(agent))?;
        } else if !view.skip_locked(Row::Head(agent)) {
            if self.is(Mutant::ClaimOfManyTakesAll) {
                view.write(Row::Inbox(turn), |db| db.inbox[t].status = Inbox::Processing)?;
            }
            return Ok(false); // left for the next claim
        }
        let now = view.fresh();
        let (head, row) = (now.heads[agent as usize], now.inbox[t]);
        let ours = head.turn == turn
            && head.epoch == row.epoch
            && matches!(head.status, Status::Dispatched | Status::Suspended);
        if row.status != Inbox::Pending || !ours {
            return Ok(false);
        }
        view.write(Row::Head(agent), |db| {
            let head = &mut db.heads[agent as usize];
            let bump = u8::from(!self.is(Mutant::FenceNeverChanges));
            (head.status, head.turn, head.token) = (Status::Running, turn, head.token + bump);
        })?;
        let place = self.place(turn, view);
        view.write(Row::Inbox(turn), |db| {
            let row = &mut db.inbox[t];
            (row.status, row.token, row.place) = (Inbox::Processing, db.heads[agent as usize].token, place);
        })?;
        Ok(true)
    }

    /// Moves the mark of the queue. In one transaction it reads how far places are drawn, which transactions write to the inbox, and what is ready.
    pub(crate) fn mark(&self, pc: u8, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let first = |db: &Db| db.ready().first().map(|turn| db.inbox[*turn as usize].place);
        let locks_first = self.is(Mutant::MarkReadsLocksFirst);
        if pc == 0 {
            if !view.skip_locked(Row::Marking) {
                return Ok(Flow::Abort);
            }
            view.tx.noted.mark = view.fresh().mark;
            view.tx.noted.found = first(&view.fresh());
        }
        if pc == u8::from(locks_first) {
            view.tx.noted.place = *view.drawn;
        }
        if pc == u8::from(!locks_first) {
            let mark = &mut view.tx.noted.mark;
            let over = match self.mutant {
                Some(Mutant::MarkComparesIds) => mark.next_xid <= view.xmin,
                Some(Mutant::MarkBelievedAtOnce) => true,
                _ => !mark.open_then.meets(view.writers),
            };
            (mark.open_then, mark.next_xid) = (view.writers, view.xmax);
            if !over {
                return Ok(Flow::Abort);
            }
        }
        if pc < 2 {
            return Ok(Flow::Next);
        }
        if !self.is(Mutant::MarkReadsQueueFirst) {
            view.tx.noted.found = first(&view.fresh());
        }
        let noted = view.tx.noted;
        let bound = if self.is(Mutant::MarkBelievedAtOnce) { noted.place } else { noted.mark.next };
        let upto = noted.found.map_or(bound, |found| found.min(bound));
        view.write(Row::Mark, |db| db.mark = Mark { upto, next: noted.place, ..noted.mark })?;
        Ok(Flow::Commit)
    }

    /// Makes the same inbox row ready again, under a new fence.
    pub(super) fn reclaim(&self, seen: Fence, view: &mut View<'_>) -> Result<Flow, Blocked> {
        let agent = self.plan.agent(seen.turn);
        view.lock(Row::Head(agent))?;
        if !seen.holds(&view.fresh().heads[agent as usize]) && !self.is(Mutant::ReclaimUnfenced) {
            return Ok(Flow::Abort);
        }
        let bump = u8::from(!self.is(Mutant::FenceNeverChanges));
        if self.is(Mutant::ReclaimForgetsHead) {
            view.write(Row::Inbox(seen.turn), |db| db.inbox[seen.turn as usize].status = Inbox::Pending)?;
            return Ok(Flow::Commit);
        }
        view.write(Row::Head(agent), |db| {
            let head = &mut db.heads[agent as usize];
            *head = Head {
                status: Status::Dispatched,
                turn: seen.turn,
                epoch: head.epoch + bump,
                token: head.token + bump,
            };
        })?;
        if !self.is(Mutant::ReclaimForgetsInbox) {
            let place = self.place_again(seen.turn, view);
            view.write(Row::Inbox(seen.turn), |db| {
                let row = &mut db.inbox[seen.turn as usize];
                (row.status, row.epoch, row.place) = (Inbox::Pending, db.heads[agent as usize].epoch, place);
            })?;
        }
        Ok(Flow::Commit)
    }
}

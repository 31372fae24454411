//! Polling: how a process finds work, claims it and hands it out.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};
use waybill_core::{bus::Bell, id::WorkerId};

use super::{Claimable, Config, Holding, holding::HeldWork, jittered};
use crate::{
    retry::Transient,
    turn::{Claiming, Error},
    work::{DbError, Kernel},
};

/// The task that polls for work. It ends when the intake is closed.
pub(super) struct Poller<T: Claimable> {
    kernel: Kernel,
    config: Config,
    claiming: Claiming,
    held_work: Arc<HeldWork<T>>,
    /// `None` while it does not listen.
    bells: Option<BoxStream<'static, ()>>,
    trusts: bool,
    /// Since when it waits for the next poll. `None` means that it is to poll now.
    waiting: Option<Waiting>,
    /// It is unknown whether the last claim was written.
    in_doubt: bool,
    /// When that claim was given up before it had answered.
    given_up: Option<Instant>,
    hand: mpsc::UnboundedSender<Holding<T>>,
}

/// How long a statement of ours may run on after we have given it up: the service's `statement_timeout`, and some.
const LONGEST_STATEMENT: Duration = Duration::from_secs(6);

/// Since when it waits, and how long: while rings are not trusted, and while they are.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Instant,
    poll_interval: Duration,
    poll_interval_with_bus: Duration,
}

/// Why it polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollReason {
    Rung,
    /// No ring came, for long enough.
    Unrung,
    /// It has just begun, or has room again.
    Anyhow,
}

impl<T: Claimable> Poller<T> {
    /// Starts with trust in rings, and is to poll at once.
    pub(super) fn new(
        kernel: Kernel,
        config: Config,
        claiming: Claiming,
        held_work: Arc<HeldWork<T>>,
        hand: mpsc::UnboundedSender<Holding<T>>,
    ) -> Poller<T> {
        Poller {
            kernel,
            config,
            claiming,
            held_work,
            bells: None,
            trusts: true,
            waiting: None,
            in_doubt: false,
            given_up: None,
            hand,
        }
    }

    pub(super) async fn run(mut self) {
        let door = T::door(self.claiming.target.clone());
        let mut why = PollReason::Anyhow;
        loop {
            let (closed, room, is_missing_some) = {
                let state = self.held_work.state();
                let room = self.config.most.saturating_sub(state.held.len());
                (state.closed, room, state.n_unknown_claims > 0 || self.in_doubt)
            };
            if closed {
                return;
            }
            if room == 0 {
                self.bells = None;
                self.held_work.freed.notified().await;
                (why, self.waiting) = (PollReason::Anyhow, None);
                continue;
            }
            if self.bells.is_none() {
                self.bells = Some(self.kernel.bus().hear(&door));
            }
            if self.waiting.is_some() && !is_missing_some {
                why = self.wait().await;
                self.waiting = None;
                continue;
            }
            let looked = if is_missing_some { self.find(room).await } else { self.claim(room).await };
            match looked {
                // Still in doubt: once more, a little later.
                Ok(_) if self.in_doubt => sleep(jittered(Duration::from_millis(250))).await,
                Ok(_) if is_missing_some => {}
                Ok(0) => {
                    self.waiting = Some(Waiting {
                        since: Instant::now(),
                        poll_interval: jittered(self.config.poll_interval),
                        poll_interval_with_bus: jittered(self.config.poll_interval_with_bus),
                    });
                }
                Ok(n) => {
                    match why {
                        PollReason::Rung => self.trusts = true,
                        PollReason::Unrung => self.trusts = false,
                        PollReason::Anyhow => {}
                    }
                    if n >= room {
                        // We are full and there may be more: wake another process. A bell must name some project.
                        self.bells = None;
                        let project_id = self.claiming.after;
                        self.kernel.bus().ring(Bell { project_id, door: door.clone() });
                    }
                }
                Err(Error::LeaseLost) => self.held_work.lose(self.claiming.worker_id),
                Err(error) => {
                    tracing::debug!(%error, "a look for work failed");
                    sleep(jittered(Duration::from_millis(500))).await;
                }
            }
        }
    }

    /// Claims as much as there is room for. Returns how much it got.
    async fn claim(&mut self, room: usize) -> Result<usize, Error> {
        let begun = Instant::now();
        let (worker_id, lapsed) = {
            let state = self.held_work.state();
            (state.worker_id, state.renewed.is_some_and(|at| at.elapsed() > self.config.lease))
        };
        if lapsed {
            // We slept through it: what was held under that name is with another process, or will be.
            self.held_work.lose(worker_id);
        }
        self.claiming.worker_id = {
            let mut state = self.held_work.state();
            let fresh = state.renewed.is_some_and(|at| at.elapsed() < self.config.lease / 2);
            if state.held.is_empty() && !fresh {
                // An idle process lets its lease lapse, and takes a new id for its next claim.
                state.worker_id = WorkerId::new();
                state.renewed = None;
            }
            state.claiming = true;
            state.worker_id
        };
        self.claiming.most = i32::try_from(room).unwrap_or(i32::MAX);
        let found = timeout(self.config.lease, T::claim(&self.kernel, &mut self.claiming)).await;
        self.given_up = found.is_err().then(Instant::now);
        let found = found.unwrap_or_else(|_| Err(Error::TryAgain(DbError::no_answer())));
        self.in_doubt = found.as_ref().is_err_and(Error::is_transient);
        let settled = {
            let mut state = self.held_work.state();
            state.claiming = false;
            if state.worker_id != self.claiming.worker_id {
                self.in_doubt = false;
                found.map(|_| Vec::new()) // lost meanwhile
            } else {
                // An error of the server may hide a claim that was written. The renewals keep its lease until we have found out.
                if self.in_doubt || found.as_ref().is_ok_and(|found| !found.is_empty()) {
                    state.renewed.get_or_insert(begun);
                    state.busy = Instant::now();
                }
                found.map(|found| found.into_iter().map(|claimed| state.hold(claimed, &self.held_work)).collect())
            }
        };
        self.held_work.taken.notify_one();
        settled.map(|holdings| self.hand_out(holdings))
    }

    /// Hands work out. A closed intake drops it at once.
    fn hand_out(&self, holdings: Vec<Holding<T>>) -> usize {
        let n = holdings.len();
        for holding in holdings {
            let _ = self.hand.send(holding);
        }
        n
    }

    /// Takes up what we hold without knowing of it, as far as there is room. Returns how much.
    async fn find(&mut self, room: usize) -> Result<usize, Error> {
        // Read before we ask: work that ends during the query may still be in the answer, and must not be taken up again.
        let (worker_id, known) = {
            let state = self.held_work.state();
            (state.worker_id, state.held.keys().copied().collect::<HashSet<_>>())
        };
        let asked = Instant::now();
        let held = timeout(self.config.lease, T::held(&self.kernel, worker_id)).await;
        let held = held.unwrap_or_else(|_| Err(Error::TryAgain(DbError::no_answer())))?;
        // A claim that we gave up may still run, for as long as the server lets a statement.
        self.in_doubt = self.in_doubt && self.given_up.is_some_and(|since| asked < since + LONGEST_STATEMENT);
        let mut state = self.held_work.state();
        if state.worker_id != worker_id {
            return Ok(0); // lost meanwhile
        }
        let is_unknown = |claimed: &T| !known.contains(&claimed.id()) && !state.held.contains_key(&claimed.id());
        let mut unknown_claims: Vec<T> = held.into_iter().filter(is_unknown).collect();
        state.n_unknown_claims = unknown_claims.len().saturating_sub(room);
        unknown_claims.truncate(room);
        let holdings: Vec<_> = unknown_claims.into_iter().map(|claimed| state.hold(claimed, &self.held_work)).collect();
        if !holdings.is_empty() {
            state.busy = Instant::now();
        }
        drop(state);
        self.held_work.taken.notify_one();
        Ok(self.hand_out(holdings))
    }

    /// Waits for a ring, or for the time of the next poll.
    async fn wait(&mut self) -> PollReason {
        let Some(Waiting { since, poll_interval, poll_interval_with_bus }) = self.waiting else {
            return PollReason::Anyhow;
        };
        let Some(bells) = self.bells.as_mut() else { return PollReason::Anyhow };
        loop {
            let is_trusted = self.trusts && self.kernel.bus().is_up();
            let until = since + if is_trusted { poll_interval_with_bus } else { poll_interval };
            // Also to see whether the bus is still up.
            let tick = until.min(Instant::now() + poll_interval / 2);
            tokio::select! {
                heard = bells.next() => {
                    while bells.next().now_or_never().is_some_and(|more| more.is_some()) {}
                    if heard.is_some() {
                        return PollReason::Rung;
                    }
                    sleep(poll_interval).await;
                    self.bells = None;
                    return PollReason::Unrung;
                }
                () = self.held_work.freed.notified() => {
                    let state = self.held_work.state();
                    if state.n_unknown_claims > 0 || state.closed {
                        return PollReason::Anyhow;
                    }
                }
                () = sleep_until(tick) => {
                    if Instant::now() >= until {
                        return PollReason::Unrung;
                    }
                }
            }
        }
    }
}

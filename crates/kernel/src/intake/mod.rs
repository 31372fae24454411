//! How a process gets its work (L0-16, L0-17): it listens at its door, polls, claims, and keeps its lease while it holds something.
//!
//! ```text
//!   full ──▶ deaf: it does not listen, so a ring wakes a process that has room
//!   room ──▶ listen, poll, and if there is nothing wait for a ring or for the next poll
//! ```
//! * Polling, renewing and handing out are tasks apart. A claim that was sent is always waited for, so its rows reach the process whatever
//!   its caller is doing. [`Intake::serve`] is the one loop that runs turns, tool calls and commands.
//! * A process never holds more than [`Config::most`].
//! * Rings are trusted while the bus is up: then polls are rare, since the sweeps ring again for everything that is ready. A poll that finds
//!   something without a ring ends the trust until the next ring; without trust, polls come about once a second.
//! * A process that got as much as it asked for rings on: there may be more, for others.
//! * An idle process has no lease and asks nothing but its rare polls.
//! * What the database lists under our name twice in a row, and we do not know of, is ours: a claim whose answer was lost, or work that was
//!   silently dropped. It is taken up as soon as there is room, before anything new.
//! * A handler that gives up, or panics, is a failed attempt: it is counted, and the work is retried or ends.

use std::{
    any::Any,
    hash::{BuildHasher, RandomState},
    panic::AssertUnwindSafe,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use sqlx::{FromRow, postgres::PgRow};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use waybill_core::id::{Target, WorkerId};

use crate::{
    lease,
    retry::retry,
    turn::{Claiming, Error},
    work::Kernel,
};

mod claimable;
mod holding;
mod poll;
mod renew;

use holding::HeldWork;
use poll::Poller;
use renew::renew;

pub use claimable::Claimable;
pub use holding::{Holding, Order};

/// How a process gets its work.
#[derive(Clone, Debug)]
pub struct Config {
    pub lease: Duration,
    /// How much it may hold at once.
    pub most: usize,
    /// How many turns, or calls, of one project may run at once, over all processes.
    pub in_flight_cap: i32,
    /// How long a turn may go without a step before a sweep checks whether it is alive.
    pub silence: Duration,
    /// The longest time between two polls while rings are not trusted; the shortest is half of it.
    pub poll_interval: Duration,
    /// The same while rings are trusted and the bus is up.
    pub poll_interval_with_bus: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            lease: lease::LEASE,
            most: 8,
            in_flight_cap: 1_000,
            silence: Duration::from_secs(1800),
            poll_interval: Duration::from_millis(1500),
            poll_interval_with_bus: Duration::from_secs(40),
        }
    }
}

/// One process's intake of one kind of work. Dropped, it claims no more; what is held stays held, and its lease is kept, until the last of
/// it is dropped.
#[derive(Debug)]
pub struct Intake<T: Claimable> {
    kernel: Kernel,
    held_work: Arc<HeldWork<T>>,
    claimed: mpsc::UnboundedReceiver<Holding<T>>,
    renewals: JoinHandle<()>,
}

impl<T: Claimable> Drop for Intake<T> {
    fn drop(&mut self) {
        self.held_work.close();
    }
}

impl<T: Claimable + Sync> Intake<T>
where
    (Vec<T::Id>, Vec<bool>): for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    /// Begins to poll for work, and to claim it as long as there is room.
    pub fn open(kernel: &Kernel, target: Target, config: Config) -> Intake<T> {
        let worker_id = WorkerId::new();
        let held_work = Arc::new(HeldWork::<T>::new(worker_id));
        let claiming = Claiming {
            in_flight_cap: config.in_flight_cap,
            lease: config.lease,
            silence: config.silence,
            ..Claiming::new(worker_id, target)
        };
        let renewals = tokio::spawn(renew(kernel.clone(), held_work.clone(), config.lease));
        let (hand, claimed) = mpsc::unbounded_channel();
        tokio::spawn(Poller::new(kernel.clone(), config, claiming, held_work.clone(), hand).run());
        Intake { kernel: kernel.clone(), held_work, claimed, renewals }
    }

    /// Returns the next piece of work, however long that takes. A caller may stop waiting and ask again: nothing is lost.
    pub async fn next(&mut self) -> Holding<T> {
        loop {
            match self.claimed.recv().await {
                Some(holding) if holding.order() == Order::Lost => {}
                Some(holding) => return holding,
                // The process is ending.
                None => std::future::pending().await,
            }
        }
    }

    /// Handles each piece of work in a task of its own until `end` comes. Then claims no more, waits for what is under way, `grace` at most,
    /// and gives the lease up, so that others get at once what was not done.
    pub async fn serve<F>(
        mut self,
        end: impl Future<Output = ()>,
        grace: Duration,
        handle: impl Fn(Arc<Holding<T>>) -> F,
    ) where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        let mut end = pin!(end);
        loop {
            tokio::select! {
                holding = self.next() => {
                    let holding = Arc::new(holding);
                    let handled = handle(holding.clone());
                    tasks.spawn(hold(self.kernel.clone(), holding, handled));
                }
                Some(_) = tasks.join_next() => {}
                () = &mut end => break,
            }
        }
        self.held_work.close();
        self.claimed.close();
        while let Ok(unbegun) = self.claimed.try_recv() {
            drop(unbegun);
        }
        let ended = async { while tasks.join_next().await.is_some() {} };
        if timeout(grace, ended).await.is_err() {
            tracing::warn!(kind = T::KIND, n = tasks.len(), "unfinished work was cancelled at shutdown");
            tasks.shutdown().await;
        }
        // Bounded by its own time-outs. Where it fails, the lease lapses.
        let _ = (&mut self.renewals).await;
    }
}

/// Handles a piece of work while it is ours. `Err`, or a panic, is an attempt that failed; what `Err` says may be read by the tenant.
async fn hold<T: Claimable + Sync>(
    kernel: Kernel,
    holding: Arc<Holding<T>>,
    handled: impl Future<Output = Result<(), String>>,
) {
    let id = holding.claimed.id();
    let outcome = tokio::select! {
        outcome = AssertUnwindSafe(handled).catch_unwind() => outcome,
        () = holding.lost() => {
            tracing::debug!(?id, "work was lost to another process");
            return;
        }
    };
    let why = match outcome {
        Ok(Ok(())) => return,
        Ok(Err(why)) => why,
        Err(panic) => {
            tracing::error!(?id, panic = panic_message(&*panic), "the code that handles a turn or call panicked");
            "the handler panicked".to_owned()
        }
    };
    tracing::warn!(?id, kind = T::KIND, why, "a turn or call failed; it is retried, unless it has failed too often");
    match retry(|| Box::pin(holding.claimed.give_back(&kernel, &why))).await {
        Ok(()) | Err(Error::Stale(_)) => {}
        Err(error) => {
            tracing::error!(?id, %error, "a turn or call could not be given back: this process takes it up again after it has renewed its lease");
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let said = panic.downcast_ref::<&str>().copied();
    said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// Returns a time between half of it and all of it, so that many processes do not ask at once.
pub fn jittered(most: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    most.mul_f64(0.5 + random / 2.0)
}

//! How a process comes to its work (L0-16, L0-17): it listens at its door, looks, claims, and keeps its lease while it holds something.
//!
//! ```text
//!   full ──▶ deaf: it does not listen, so a ring wakes somebody who has room
//!   room ──▶ listen, look, and if there is nothing wait for a ring or for the next look
//! ```
//! * Rings are trusted while the bus is up: then looks are rare, since whatever is ready is rung for again by the sweeps. A look that finds
//!   something nobody rang for ends the trust until the next ring; without trust looks come about once a second.
//! * Whoever got as much as it asked for rings on: there may be more, for others.
//! * An idle process has no lease and asks nothing but its rare looks.
//! * What the database says we hold and we do not know of, twice in a row, is ours: a claim that was committed without our learning of
//!   it, or something that was given up without a word.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt::Debug,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use sqlx::{FromRow, postgres::PgRow};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use waybill_core::{
    bus::{Bell, Door},
    id::{Target, ToolCallId, TurnId, WorkerId},
};

use crate::{
    call::{self, ClaimedCall},
    lease,
    turn::{self, Claimed, Claiming, Error},
    work::Kernel,
};

/// How a process goes about it.
#[derive(Clone, Debug)]
pub struct Config {
    pub lease: Duration,
    /// How much it may hold at once.
    pub most: usize,
    /// How many turns, or calls, of one project may run at once, over all processes.
    pub in_flight_cap: i32,
    /// How long a turn may go without a step before somebody looks whether it is alive.
    pub silence: Duration,
    /// Between two looks, at most; at least half of it. While rings are trusted, and while they are not.
    pub trusting: Duration,
    pub wary: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            lease: lease::LEASE,
            most: 8,
            in_flight_cap: 1_000,
            silence: Duration::from_secs(1800),
            trusting: Duration::from_secs(40),
            wary: Duration::from_millis(1500),
        }
    }
}

/// What can be claimed: turns, and calls.
pub trait Claimable: Debug + Send + Sized + 'static {
    type Id: Copy + Debug + Eq + Hash + Send + Sync + 'static;

    fn id(&self) -> Self::Id;
    fn door(target: Target) -> Door;
    fn claim(kernel: &Kernel, claiming: &mut Claiming) -> impl Future<Output = Result<Vec<Self>, Error>> + Send;
    fn held(kernel: &Kernel, worker_id: WorkerId) -> impl Future<Output = Result<Vec<Self>, Error>> + Send;
}

impl Claimable for Claimed {
    type Id = TurnId;

    fn id(&self) -> TurnId {
        self.fence.agent_turn_id()
    }

    fn door(target: Target) -> Door {
        Door::Agent(target)
    }

    async fn claim(kernel: &Kernel, claiming: &mut Claiming) -> Result<Vec<Claimed>, Error> {
        turn::claim(kernel.pool(), claiming).await
    }

    async fn held(kernel: &Kernel, worker_id: WorkerId) -> Result<Vec<Claimed>, Error> {
        turn::held(kernel, worker_id).await
    }
}

impl Claimable for ClaimedCall {
    type Id = ToolCallId;

    fn id(&self) -> ToolCallId {
        self.tool_call_id
    }

    fn door(target: Target) -> Door {
        Door::of_calls(target)
    }

    async fn claim(kernel: &Kernel, claiming: &mut Claiming) -> Result<Vec<ClaimedCall>, Error> {
        call::claim(kernel, claiming).await
    }

    async fn held(kernel: &Kernel, worker_id: WorkerId) -> Result<Vec<ClaimedCall>, Error> {
        call::held(kernel, worker_id).await
    }
}

/// What the holder of something is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Go,
    /// Somebody wants it to end: end it.
    Stop,
    /// It is somebody else's now, or soon will be: drop everything.
    Lost,
}

/// Something claimed, held until this is dropped. Drop it when its end is known to be written, or when it is lost.
#[derive(Debug)]
pub struct Holding<T: Claimable> {
    pub claimed: T,
    order: watch::Receiver<Order>,
    desk: Arc<Desk<T>>,
}

impl<T: Claimable> Holding<T> {
    pub fn order(&self) -> Order {
        *self.order.borrow()
    }

    /// Waits until it is to be ended, or is lost.
    pub async fn called_off(&self) -> Order {
        let mut order = self.order.clone();
        // The sender lives on the desk as long as this is held.
        order.wait_for(|order| *order != Order::Go).await.map_or(Order::Lost, |order| *order)
    }

    /// Waits until it is lost, whatever else is wanted of it.
    pub async fn lost(&self) {
        let mut order = self.order.clone();
        let _ = order.wait_for(|order| *order == Order::Lost).await;
    }
}

impl<T: Claimable> Drop for Holding<T> {
    fn drop(&mut self) {
        let mut state = self.desk.state();
        // What was lost may be held again by now.
        if self.order() != Order::Lost {
            state.held.remove(&self.claimed.id());
        }
        state.busy = Instant::now();
        let last = state.closed && state.held.is_empty();
        drop(state);
        self.desk.freed.notify_one();
        if last {
            self.desk.taken.notify_one();
        }
    }
}

/// What one process holds, shared between the intake, its renewals and the holders.
#[derive(Debug)]
struct Desk<T: Claimable> {
    state: Mutex<State<T>>,
    /// For the renewals: something was taken, or may have been.
    taken: Notify,
    /// For the intake: something was given back, or is to be adopted.
    freed: Notify,
}

#[derive(Debug)]
struct State<T: Claimable> {
    worker_id: WorkerId,
    /// When the lease was last known to hold, as of the asking. None: there is none.
    renewed: Option<Instant>,
    /// When something was last held, or may have been.
    busy: Instant,
    /// The intake is gone: when nothing is held any more, the lease is given up.
    closed: bool,
    held: HashMap<T::Id, watch::Sender<Order>>,
    /// The database says that we hold what we do not know of.
    strays: bool,
}

impl<T: Claimable> Desk<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything held is lost; the process goes on under another name.
    fn lose(&self, worker_id: WorkerId) {
        let mut state = self.state();
        if state.worker_id == worker_id {
            state.worker_id = WorkerId::new();
            state.renewed = None;
            state.strays = false;
            for (_, order) in state.held.drain() {
                order.send_replace(Order::Lost);
            }
        }
        drop(state);
        self.freed.notify_one();
    }
}

/// One process's intake of one kind of work.
#[derive(Debug)]
pub struct Intake<T: Claimable> {
    kernel: Kernel,
    config: Config,
    claiming: Claiming,
    desk: Arc<Desk<T>>,
    bells: Bells,
    trusts: bool,
    /// Since when it waits for the next look; none: it is to look.
    waiting: Option<Waiting>,
    /// Claimed, not yet handed out.
    ready: VecDeque<Holding<T>>,
}

/// Since when, and how long where bells are trusted, and where they are not.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Instant,
    trusting: Duration,
    wary: Duration,
}

/// Why it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Somebody rang.
    Rung,
    /// Nobody did, for long enough.
    Unrung,
    /// It has just begun, or has room again.
    Anyhow,
}

struct Bells(Option<BoxStream<'static, ()>>);

impl Debug for Bells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "listening" } else { "deaf" })
    }
}

/// What is still held stays held, and its lease is kept, until the last of it is dropped.
impl<T: Claimable> Drop for Intake<T> {
    fn drop(&mut self) {
        self.desk.state().closed = true;
        self.desk.taken.notify_one();
    }
}

/// A claim is under way. Given up in the middle it may still be written: the renewals find out, so there must be some.
struct InDoubt<'d, T: Claimable> {
    desk: &'d Desk<T>,
    worker_id: WorkerId,
    begun: Instant,
    settled: bool,
}

impl<T: Claimable> Drop for InDoubt<'_, T> {
    fn drop(&mut self) {
        let mut state = self.desk.state();
        if !self.settled && state.worker_id == self.worker_id {
            state.renewed.get_or_insert(self.begun);
            state.busy = Instant::now();
            self.desk.taken.notify_one();
        }
    }
}

impl<T: Claimable> Intake<T>
where
    (Vec<T::Id>, Vec<bool>): for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    pub fn open(kernel: &Kernel, target: Target, config: Config) -> Intake<T> {
        let worker_id = WorkerId::new();
        let state = State {
            worker_id,
            renewed: None,
            busy: Instant::now(),
            closed: false,
            held: HashMap::new(),
            strays: false,
        };
        let desk = Arc::new(Desk { state: Mutex::new(state), taken: Notify::new(), freed: Notify::new() });
        let claiming = Claiming {
            in_flight_cap: config.in_flight_cap,
            lease: config.lease,
            silence: config.silence,
            ..Claiming::new(worker_id, target)
        };
        tokio::spawn(renew(kernel.clone(), desk.clone(), config.lease));
        Intake {
            kernel: kernel.clone(),
            config,
            claiming,
            desk,
            bells: Bells(None),
            trusts: true,
            waiting: None,
            ready: VecDeque::new(),
        }
    }

    /// The next piece of work, however long that takes. Trouble with the database is waited out. May be given up and called again.
    pub async fn next(&mut self) -> Holding<T> {
        let door = T::door(self.claiming.target.clone());
        let mut why = Look::Anyhow;
        loop {
            if let Some(holding) = self.ready.pop_front() {
                if holding.order() == Order::Lost {
                    continue;
                }
                return holding;
            }
            let (room, strays) = {
                let state = self.desk.state();
                (self.config.most.saturating_sub(state.held.len()), state.strays)
            };
            if room == 0 && !strays {
                self.bells.0 = None;
                self.desk.freed.notified().await;
                (why, self.waiting) = (Look::Anyhow, None);
                continue;
            }
            if self.bells.0.is_none() {
                self.bells.0 = Some(self.kernel.bus().hear(&door));
            }
            if self.waiting.is_some() && !strays {
                why = self.wait().await;
                self.waiting = None;
            }
            match self.take(room, strays).await {
                Ok(0) => {
                    let (trusting, wary) = (jittered(self.config.trusting), jittered(self.config.wary));
                    self.waiting = Some(Waiting { since: Instant::now(), trusting, wary });
                }
                Ok(n) => {
                    match why {
                        Look::Rung => self.trusts = true,
                        Look::Unrung => self.trusts = false,
                        Look::Anyhow => {}
                    }
                    if n >= room {
                        self.bells.0 = None;
                        let project_id = self.claiming.after;
                        self.kernel.bus().ring(Bell { project_id, door: door.clone() });
                    }
                }
                Err(Error::LeaseLost) => self.desk.lose(self.claiming.worker_id),
                Err(error) => {
                    tracing::debug!(%error, "a look for work failed");
                    sleep(jittered(Duration::from_millis(500))).await;
                }
            }
        }
    }

    /// Claims, or finds what we hold without knowing of it. Says how much.
    async fn take(&mut self, room: usize, strays: bool) -> Result<usize, Error> {
        let begun = Instant::now();
        let (worker_id, lapsed) = {
            let state = self.desk.state();
            (state.worker_id, state.renewed.is_some_and(|at| at.elapsed() > self.config.lease))
        };
        if lapsed {
            // We slept through it: whatever was held under that name is somebody else's, or will be.
            self.desk.lose(worker_id);
        }
        self.claiming.worker_id = {
            let mut state = self.desk.state();
            let fresh = state.renewed.is_some_and(|at| at.elapsed() < self.config.lease / 2);
            if state.held.is_empty() && !strays && !fresh {
                // The lease of an idle process lapses. It begins again with what is claimed under another name.
                state.worker_id = WorkerId::new();
                state.renewed = None;
            }
            state.worker_id
        };
        self.claiming.most = i32::try_from(room).unwrap_or(i32::MAX);
        let mut doubt = InDoubt { desk: &self.desk, worker_id: self.claiming.worker_id, begun, settled: false };
        let found = if strays {
            timeout(self.config.lease, T::held(&self.kernel, self.claiming.worker_id)).await
        } else {
            timeout(self.config.lease, T::claim(&self.kernel, &mut self.claiming)).await
        };
        let found = found.unwrap_or_else(|_| Err(Error::TryAgain(sqlx::Error::PoolTimedOut)));
        doubt.settled = !found.as_ref().is_err_and(Error::is_of_the_server);
        drop(doubt);
        let found = found?;
        let n = found.len();
        let mut state = self.desk.state();
        if state.worker_id != self.claiming.worker_id {
            return Ok(0); // lost meanwhile
        }
        if strays {
            state.strays = false;
        } else if n > 0 && state.renewed.is_none() {
            state.renewed = Some(begun);
        }
        for claimed in found {
            if strays && state.held.contains_key(&claimed.id()) {
                continue;
            }
            let (sender, order) = watch::channel(Order::Go);
            if let Some(before) = state.held.insert(claimed.id(), sender) {
                // Claimed anew: whoever still holds the old claim has lost it.
                before.send_replace(Order::Lost);
            }
            self.ready.push_back(Holding { claimed, order, desk: self.desk.clone() });
        }
        if n > 0 {
            state.busy = Instant::now();
            drop(state);
            self.desk.taken.notify_one();
        }
        Ok(n)
    }

    /// Waits for a ring, or for the time of the next look.
    async fn wait(&mut self) -> Look {
        let Some(Waiting { since, trusting, wary }) = self.waiting else { return Look::Anyhow };
        let Some(bells) = self.bells.0.as_mut() else { return Look::Anyhow };
        loop {
            let until = since + if self.trusts && self.kernel.bus().is_up() { trusting } else { wary };
            // Also to see whether the bus is still up.
            let tick = until.min(Instant::now() + wary / 2);
            tokio::select! {
                heard = bells.next() => {
                    while bells.next().now_or_never().is_some_and(|more| more.is_some()) {}
                    if heard.is_some() {
                        return Look::Rung;
                    }
                    sleep(wary).await;
                    self.bells.0 = None;
                    return Look::Unrung;
                }
                () = self.desk.freed.notified() => {
                    if self.desk.state().strays {
                        return Look::Anyhow;
                    }
                }
                () = sleep_until(tick) => {
                    if Instant::now() >= until {
                        return Look::Unrung;
                    }
                }
            }
        }
    }
}

/// Keeps the lease while something is held, and passes on what the database says of it.
async fn renew<T: Claimable>(kernel: Kernel, desk: Arc<Desk<T>>, lease: Duration)
where
    (Vec<T::Id>, Vec<bool>): for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    // What the database says we hold and we do not know of, and the other way round.
    let (mut unknown, mut absent): (HashSet<T::Id>, HashSet<T::Id>) = (HashSet::new(), HashSet::new());
    loop {
        let (worker_id, renewed, over) = {
            let mut state = desk.state();
            let idle = state.held.is_empty() && unknown.is_empty() && !state.strays;
            if idle && state.busy.elapsed() > lease * 3 / 4 {
                // Long enough for a claim that was under way to show. From here on the lease may lapse.
                state.renewed = None;
            }
            (state.worker_id, state.renewed, state.closed && state.held.is_empty())
        };
        if over {
            if renewed.is_some() {
                // Not heard: it lapses.
                let _ = timeout(lease / 2, lease::end(&kernel, worker_id)).await;
            }
            return;
        }
        let Some(renewed) = renewed else {
            unknown.clear();
            desk.taken.notified().await;
            continue;
        };
        tokio::select! {
            () = sleep_until(renewed + lease / 4) => {}
            () = desk.taken.notified() => continue, // also when the intake is gone
        }
        let asked = Instant::now();
        let answer = timeout(lease / 2, lease::renew::<T::Id>(&kernel, worker_id, lease)).await;
        match answer {
            Ok(Ok(held)) => {
                let mut state = desk.state();
                if state.worker_id != worker_id {
                    continue;
                }
                state.renewed = Some(asked);
                let strange: HashSet<T::Id> =
                    held.iter().map(|(id, _)| *id).filter(|id| !state.held.contains_key(id)).collect();
                if strange.intersection(&unknown).next().is_some() && !state.closed {
                    state.strays = true;
                }
                let listed: HashSet<T::Id> = held.iter().map(|(id, _)| *id).collect();
                let missing: HashSet<T::Id> = state.held.keys().filter(|id| !listed.contains(id)).copied().collect();
                for id in missing.intersection(&absent) {
                    // Over, or taken from us: twice in a row is no accident.
                    if let Some(order) = state.held.remove(id) {
                        order.send_replace(Order::Lost);
                    }
                }
                for (id, _) in held.iter().filter(|(_, stop)| *stop) {
                    if let Some(order) = state.held.get(id) {
                        order.send_if_modified(|order| {
                            *order == Order::Go && {
                                *order = Order::Stop;
                                true
                            }
                        });
                    }
                }
                let strays = state.strays;
                drop(state);
                (unknown, absent) = (strange, missing);
                if strays {
                    desk.freed.notify_one();
                }
            }
            Ok(Err(Error::LeaseLost)) => {
                tracing::warn!(%worker_id, "the lease was lost");
                desk.lose(worker_id);
                unknown.clear();
            }
            trouble => {
                tracing::debug!(?trouble, "the lease was not renewed");
                // By our own clock, counted from the asking, so never later than the database sees it.
                if renewed.elapsed() > lease {
                    desk.lose(worker_id);
                    unknown.clear();
                } else {
                    sleep(lease / 16).await;
                }
            }
        }
    }
}

/// Between half of it and all of it, so that many do not ask at once.
pub fn jittered(most: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    most.mul_f64(0.5 + random / 2.0)
}

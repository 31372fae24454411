//! How a process gets its work (L0-16, L0-17): it listens at its door, looks, claims, and keeps its lease while it holds something.
//!
//! ```text
//!   full ──▶ deaf: it does not listen, so a ring wakes a process that has room
//!   room ──▶ listen, look, and if there is nothing wait for a ring or for the next look
//! ```
//! * Looking, renewing and handing out are tasks apart. A claim that was sent is always waited for, so its rows reach the process whatever
//!   its caller is doing. [`Intake::serve`] is the one loop that runs turns, tool calls and commands.
//! * A process never holds more than [`Config::most`].
//! * Rings are trusted while the bus is up: then looks are rare, since the sweeps ring again for everything that is ready. A look that finds
//!   something without a ring ends the trust until the next ring; without trust, looks come about once a second.
//! * A process that got as much as it asked for rings on: there may be more, for others.
//! * An idle process has no lease and asks nothing but its rare looks.
//! * What the database lists under our name twice in a row, and we do not know of, is ours: a claim whose answer was lost, or work that was
//!   silently dropped. It is taken up as soon as there is room, before anything new.
//! * A handler that gives up, or panics, is a failed attempt: it is counted, and the work is retried or ends.

use std::{
    any::Any,
    collections::{HashMap, HashSet},
    fmt::Debug,
    hash::{BuildHasher, Hash, RandomState},
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use sqlx::{FromRow, postgres::PgRow};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until, timeout},
};
use waybill_core::{
    bus::{Bell, Door},
    id::{Target, ToolCallId, TurnId, WorkerId},
    metric,
};

use crate::{
    call::{self, ClaimedCall},
    lease,
    turn::{self, Attempts, Claimed, Claiming, Error, Loss},
    work::Kernel,
};

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
    /// The longest time between two looks; the shortest is half of it. `trusting` while rings are trusted, `wary` while they are not.
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
    /// Their name in metrics.
    const KIND: &'static str;

    fn id(&self) -> Self::Id;
    fn door(target: Target) -> Door;
    fn claim(kernel: &Kernel, claiming: &mut Claiming) -> impl Future<Output = Result<Vec<Self>, Error>> + Send;
    fn held(kernel: &Kernel, worker_id: WorkerId) -> impl Future<Output = Result<Vec<Self>, Error>> + Send;
    /// Gives work back after a failed attempt: the attempt is counted, and the work is retried or ends as failed.
    fn give_back(&self, kernel: &Kernel, why: &str) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The pause between a failed attempt of a turn and the next one.
const BACKOFF: Duration = Duration::from_secs(2);

impl Claimable for Claimed {
    type Id = TurnId;
    const KIND: &'static str = "turns";

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

    async fn give_back(&self, kernel: &Kernel, why: &str) -> Result<(), Error> {
        let mut work = kernel.begin(self.fence.project_id()).await?;
        let loss = Loss::Attempt { error: why.to_owned(), backoff: BACKOFF };
        turn::reclaim(&mut work, &self.fence, &loss, Attempts::default()).await?;
        Ok(work.commit().await?)
    }
}

impl Claimable for ClaimedCall {
    type Id = ToolCallId;
    const KIND: &'static str = "calls";

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

    async fn give_back(&self, kernel: &Kernel, why: &str) -> Result<(), Error> {
        call::give_back(kernel, self, why, Attempts::default()).await
    }
}

/// What the holder of claimed work is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Go,
    /// It was asked to stop: end it.
    Stop,
    /// Another process has it now, or soon will: drop everything.
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

    /// Waits until it is to stop, or is lost.
    pub async fn called_off(&self) -> Order {
        let mut order = self.order.clone();
        // The sender lives on the desk as long as this is held.
        order.wait_for(|order| *order != Order::Go).await.map_or(Order::Lost, |order| *order)
    }

    /// Waits until it is lost, whether or not it is to stop.
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
            state.let_go(self.claimed.id());
        }
        state.busy = Instant::now();
        let last = state.is_over();
        drop(state);
        self.desk.freed.notify_one();
        if last {
            self.desk.taken.notify_one();
        }
    }
}

/// What one process holds, shared between the looks, the renewals and the holders.
#[derive(Debug)]
struct Desk<T: Claimable> {
    state: Mutex<State<T>>,
    /// For the renewals: something was taken, or may have been; or the intake is closed.
    taken: Notify,
    /// For the looks: something was given back, or is to be taken up; or the intake is closed.
    freed: Notify,
}

#[derive(Debug)]
struct State<T: Claimable> {
    worker_id: WorkerId,
    /// When the lease was last known to hold, counted from the request. `None` means that there is no lease.
    renewed: Option<Instant>,
    /// When something was last held, or may have been.
    busy: Instant,
    /// No more is claimed: when nothing is held any more, the lease is given up.
    closed: bool,
    /// A claim is under way.
    claiming: bool,
    held: HashMap<T::Id, watch::Sender<Order>>,
    /// How many more the database says are ours, without our knowing of them.
    n_strays: usize,
}

impl<T: Claimable> State<T> {
    fn hold(&mut self, claimed: T, desk: &Arc<Desk<T>>) -> Holding<T> {
        let (sender, order) = watch::channel(Order::Go);
        match self.held.insert(claimed.id(), sender) {
            // Claimed again: the holder of the old claim has lost it.
            Some(before) => drop(before.send_replace(Order::Lost)),
            None => metrics::gauge!(metric::HELD, "kind" => T::KIND).increment(1.0),
        }
        Holding { claimed, order, desk: desk.clone() }
    }

    fn let_go(&mut self, id: T::Id) -> Option<watch::Sender<Order>> {
        let gone = self.held.remove(&id);
        if gone.is_some() {
            metrics::gauge!(metric::HELD, "kind" => T::KIND).decrement(1.0);
        }
        gone
    }

    /// Closed, nothing is held, and no claim under way can change that.
    fn is_over(&self) -> bool {
        self.closed && !self.claiming && self.held.is_empty()
    }
}

impl<T: Claimable> Desk<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks everything held as lost; the process goes on under another name.
    fn lose(&self, worker_id: WorkerId) {
        let mut state = self.state();
        if state.worker_id == worker_id {
            state.worker_id = WorkerId::new();
            state.renewed = None;
            state.n_strays = 0;
            let held: Vec<T::Id> = state.held.keys().copied().collect();
            for order in held.into_iter().filter_map(|id| state.let_go(id)) {
                order.send_replace(Order::Lost);
            }
        }
        drop(state);
        self.freed.notify_one();
    }

    fn close(&self) {
        self.state().closed = true;
        self.taken.notify_one();
        self.freed.notify_one();
    }
}

/// One process's intake of one kind of work. Dropped, it claims no more; what is held stays held, and its lease is kept, until the last of
/// it is dropped.
#[derive(Debug)]
pub struct Intake<T: Claimable> {
    kernel: Kernel,
    desk: Arc<Desk<T>>,
    claimed: mpsc::UnboundedReceiver<Holding<T>>,
    renewals: JoinHandle<()>,
}

impl<T: Claimable> Drop for Intake<T> {
    fn drop(&mut self) {
        self.desk.close();
    }
}

impl<T: Claimable + Sync> Intake<T>
where
    (Vec<T::Id>, Vec<bool>): for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    /// Begins to look for work, and to claim it as long as there is room.
    pub fn open(kernel: &Kernel, target: Target, config: Config) -> Intake<T> {
        let worker_id = WorkerId::new();
        let state = State {
            worker_id,
            renewed: None,
            busy: Instant::now(),
            closed: false,
            claiming: false,
            held: HashMap::new(),
            n_strays: 0,
        };
        let desk = Arc::new(Desk { state: Mutex::new(state), taken: Notify::new(), freed: Notify::new() });
        let claiming = Claiming {
            in_flight_cap: config.in_flight_cap,
            lease: config.lease,
            silence: config.silence,
            ..Claiming::new(worker_id, target)
        };
        let renewals = tokio::spawn(renew(kernel.clone(), desk.clone(), config.lease));
        let (hand, claimed) = mpsc::unbounded_channel();
        let looks = Looks {
            kernel: kernel.clone(),
            config,
            claiming,
            desk: desk.clone(),
            bells: None,
            trusts: true,
            waiting: None,
            in_doubt: false,
            given_up: None,
            hand,
        };
        tokio::spawn(looks.run());
        Intake { kernel: kernel.clone(), desk, claimed, renewals }
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
        self.desk.close();
        self.claimed.close();
        while let Ok(unbegun) = self.claimed.try_recv() {
            drop(unbegun);
        }
        let ended = async { while tasks.join_next().await.is_some() {} };
        if timeout(grace, ended).await.is_err() {
            tracing::warn!(kind = T::KIND, n = tasks.len(), "work that was under way is given up");
            tasks.shutdown().await;
        }
        // Bounded by its own time-outs. Where it fails, the lease lapses.
        let _ = (&mut self.renewals).await;
    }
}

/// Tries to give work back after a failed attempt.
const GIVE_BACK_TRIES: u32 = 8;

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
            tracing::error!(?id, panic = panic_message(&*panic), "a handler panicked");
            "the handler panicked".to_owned()
        }
    };
    tracing::warn!(?id, kind = T::KIND, why, "an attempt failed");
    let mut pause = Duration::from_millis(20);
    for _ in 0..GIVE_BACK_TRIES {
        match holding.claimed.give_back(&kernel, &why).await {
            Err(error) if error.is_transient() => sleep(pause).await,
            Ok(()) | Err(Error::Stale(_)) => return,
            Err(error) => {
                tracing::error!(?id, %error, "work could not be given back: it is taken up again with the lease");
                return;
            }
        }
        pause *= 2;
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let said = panic.downcast_ref::<&str>().copied();
    said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// The task that looks for work. It ends when the intake is closed.
struct Looks<T: Claimable> {
    kernel: Kernel,
    config: Config,
    claiming: Claiming,
    desk: Arc<Desk<T>>,
    /// `None` while it does not listen.
    bells: Option<BoxStream<'static, ()>>,
    trusts: bool,
    /// Since when it waits for the next look. `None` means that it is to look now.
    waiting: Option<Waiting>,
    /// It is unknown whether the last claim was written.
    in_doubt: bool,
    /// When that claim was given up before it had answered.
    given_up: Option<Instant>,
    hand: mpsc::UnboundedSender<Holding<T>>,
}

/// How long a statement of ours may run on after we have given it up: the service's `statement_timeout`, and some.
const LONGEST_STATEMENT: Duration = Duration::from_secs(6);

/// Since when it waits, and how long: while bells are trusted, and while they are not.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Instant,
    trusting: Duration,
    wary: Duration,
}

/// Why it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Rung,
    /// No ring came, for long enough.
    Unrung,
    /// It has just begun, or has room again.
    Anyhow,
}

impl<T: Claimable> Looks<T> {
    async fn run(mut self) {
        let door = T::door(self.claiming.target.clone());
        let mut why = Look::Anyhow;
        loop {
            let (closed, room, is_missing_some) = {
                let state = self.desk.state();
                let room = self.config.most.saturating_sub(state.held.len());
                (state.closed, room, state.n_strays > 0 || self.in_doubt)
            };
            if closed {
                return;
            }
            if room == 0 {
                self.bells = None;
                self.desk.freed.notified().await;
                (why, self.waiting) = (Look::Anyhow, None);
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
                        self.bells = None;
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

    /// Claims as much as there is room for. Returns how much it got.
    async fn claim(&mut self, room: usize) -> Result<usize, Error> {
        let begun = Instant::now();
        let (worker_id, lapsed) = {
            let state = self.desk.state();
            (state.worker_id, state.renewed.is_some_and(|at| at.elapsed() > self.config.lease))
        };
        if lapsed {
            // We slept through it: what was held under that name is with another process, or will be.
            self.desk.lose(worker_id);
        }
        self.claiming.worker_id = {
            let mut state = self.desk.state();
            let fresh = state.renewed.is_some_and(|at| at.elapsed() < self.config.lease / 2);
            if state.held.is_empty() && !fresh {
                // The lease of an idle process lapses. It begins again with what is claimed under another name.
                state.worker_id = WorkerId::new();
                state.renewed = None;
            }
            state.claiming = true;
            state.worker_id
        };
        self.claiming.most = i32::try_from(room).unwrap_or(i32::MAX);
        let found = timeout(self.config.lease, T::claim(&self.kernel, &mut self.claiming)).await;
        self.given_up = found.is_err().then(Instant::now);
        let found = found.unwrap_or_else(|_| Err(Error::TryAgain(sqlx::Error::PoolTimedOut)));
        self.in_doubt = found.as_ref().is_err_and(Error::is_transient);
        let settled = {
            let mut state = self.desk.state();
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
                found.map(|found| found.into_iter().map(|claimed| state.hold(claimed, &self.desk)).collect())
            }
        };
        self.desk.taken.notify_one();
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
        // What we know of before the database is asked: of what ends meanwhile it may still say that we hold it.
        let (worker_id, known) = {
            let state = self.desk.state();
            (state.worker_id, state.held.keys().copied().collect::<HashSet<_>>())
        };
        let asked = Instant::now();
        let held = timeout(self.config.lease, T::held(&self.kernel, worker_id)).await;
        let held = held.unwrap_or_else(|_| Err(Error::TryAgain(sqlx::Error::PoolTimedOut)))?;
        // A claim that we gave up may still run, for as long as the server lets a statement.
        self.in_doubt = self.in_doubt && self.given_up.is_some_and(|since| asked < since + LONGEST_STATEMENT);
        let mut state = self.desk.state();
        if state.worker_id != worker_id {
            return Ok(0); // lost meanwhile
        }
        let is_stray = |claimed: &T| !known.contains(&claimed.id()) && !state.held.contains_key(&claimed.id());
        let mut strays: Vec<T> = held.into_iter().filter(is_stray).collect();
        state.n_strays = strays.len().saturating_sub(room);
        strays.truncate(room);
        let holdings: Vec<_> = strays.into_iter().map(|claimed| state.hold(claimed, &self.desk)).collect();
        if !holdings.is_empty() {
            state.busy = Instant::now();
        }
        drop(state);
        self.desk.taken.notify_one();
        Ok(self.hand_out(holdings))
    }

    /// Waits for a ring, or for the time of the next look.
    async fn wait(&mut self) -> Look {
        let Some(Waiting { since, trusting, wary }) = self.waiting else { return Look::Anyhow };
        let Some(bells) = self.bells.as_mut() else { return Look::Anyhow };
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
                    self.bells = None;
                    return Look::Unrung;
                }
                () = self.desk.freed.notified() => {
                    let state = self.desk.state();
                    if state.n_strays > 0 || state.closed {
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
            let idle = state.held.is_empty() && !state.claiming && unknown.is_empty() && state.n_strays == 0;
            if idle && state.busy.elapsed() > lease * 3 / 4 {
                // Long enough for a claim that was under way to show. From here on the lease may lapse.
                state.renewed = None;
            }
            (state.worker_id, state.renewed, state.is_over())
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
                state.n_strays = if state.closed { 0 } else { strange.intersection(&unknown).count() };
                let listed: HashSet<T::Id> = held.iter().map(|(id, _)| *id).collect();
                let missing: HashSet<T::Id> = state.held.keys().filter(|id| !listed.contains(id)).copied().collect();
                for id in missing.intersection(&absent) {
                    // Over, or taken from us: twice in a row is no accident.
                    if let Some(order) = state.let_go(*id) {
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
                let (strays, lost) = (state.n_strays > 0, missing.intersection(&absent).next().is_some());
                drop(state);
                (unknown, absent) = (strange, missing);
                if strays || lost {
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

/// Returns a time between half of it and all of it, so that many processes do not ask at once.
pub fn jittered(most: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    most.mul_f64(0.5 + random / 2.0)
}

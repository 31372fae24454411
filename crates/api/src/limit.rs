//! Limits on what the server takes at once, and from which caller: connections, requests per key and second, requests in progress, long polls,
//! event streams, uploads.
//!
//! No project can use up a limit alone. Few requests are served at the same time; those that wait for a slot get one project by project, in turn.
//! Of everything else a project may take one more place while it has fewer than are free: alone it gets half, beside another project a third, and
//! some are always left.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::Response,
};
use tokio::sync::oneshot;
use waybill_core::{
    id::{KeyId, ProjectId, Target},
    metric,
};
use waybill_kernel::{vitals, work::Kernel};

use crate::{cached::Cached, problem::Problem};

/// Limits of one process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes in the body of a request.
    pub most_bytes: usize,
    /// Requests of one key per second; twice as many in a burst.
    pub per_second: f64,
    /// Requests in progress at a time, being answered or waiting for a slot.
    pub most_at_once: usize,
    /// Long polls for work at a time; and as many event streams.
    pub most_polls: usize,
    /// Uploads at a time.
    pub most_uploads: usize,
    /// Bytes of all request bodies at a time, without uploads.
    pub most_bodies: usize,
    /// Connections at a time.
    pub most_connections: usize,
    /// The longest that a client may take to send the head of a request, or may send nothing at all on a connection.
    pub head_timeout: Duration,
    /// The longest that a body may take to arrive. For an upload, the longest pause between two pieces.
    pub body_timeout: Duration,
    /// Back-pressure: while a project's oldest ready turn for a target has waited longer than this, the project may start no more turns for it.
    pub most_backlog: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            most_bytes: 4 << 20,
            per_second: 500.0,
            most_at_once: 1_024,
            most_polls: 1_024,
            most_uploads: 32,
            most_bodies: 64 << 20,
            most_connections: 8_192,
            // Longer than proxies keep an idle connection.
            head_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            most_backlog: Duration::from_secs(300),
        }
    }
}

/// The project and key that a request belongs to. Requests queue by project; counts are kept by project and by key. All keys that are not known
/// yet share one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) project_id: ProjectId,
    pub(crate) key_id: KeyId,
}

impl Lane {
    pub(crate) const STRANGERS: Lane = Lane { project_id: ProjectId::nil(), key_id: KeyId::nil() };
}

/// What is left of the limits.
#[derive(Debug)]
pub(crate) struct Gate {
    requests: Arc<Fair>,
    pub(crate) waits: Arc<Places>,
    pub(crate) streams: Arc<Places>,
    pub(crate) uploads: Arc<Places>,
    /// Bodies that are being read or worked on, in KiB.
    pub(crate) bodies: Arc<Places>,
    per_key: Rate<KeyId>,
    /// Rate of one address, for keys that are not known to be valid.
    strangers: Rate<IpAddr>,
    /// Keys and browser sessions that were valid when they were last used, by their hash: such a caller waits in its own lane before it is looked up.
    known: Mutex<HashMap<[u8; 32], (Lane, String)>>,
}

/// Entries that a map holds before some are dropped.
const MOST_COUNTED: usize = 10_000;
/// Requests with unknown keys from one address, per second.
const STRANGERS_PER_SECOND: f64 = 50.0;

impl Gate {
    /// `answered` is the number of requests that are served at a time.
    pub(crate) fn new(limits: &Limits, answered: usize) -> Gate {
        Gate {
            requests: Fair::new(answered, limits.most_at_once),
            waits: Places::new(limits.most_polls),
            streams: Places::new(limits.most_polls),
            uploads: Places::new(limits.most_uploads),
            bodies: Places::new(limits.most_bodies >> 10),
            per_key: Rate::new(limits.per_second),
            strangers: Rate::new(STRANGERS_PER_SECOND),
            known: Mutex::default(),
        }
    }

    /// Waits for a slot among the requests that are being served, and returns it.
    pub(crate) async fn enter(&self, lane: Lane) -> Result<Answered, Problem> {
        self.requests.enter(lane).await
    }

    /// Returns the lane and the actor of a key or browser session, as of its last use.
    pub(crate) fn known(&self, hash: &[u8; 32]) -> Option<(Lane, String)> {
        lock(&self.known).get(hash).cloned()
    }

    pub(crate) fn remember(&self, hash: [u8; 32], lane: Lane, actor: String) {
        let mut known = lock(&self.known);
        if known.len() >= MOST_COUNTED {
            // Any of them, at least a sixteenth: a hash says nothing about its key, and the next one drops others.
            let (some, n) = (hash[0] & 15, known.len());
            known.retain(|known, _| known[0] & 15 != some);
            if known.len() == n {
                known.clear();
            }
        }
        known.insert(hash, (lane, actor));
    }

    pub(crate) fn forget(&self, hash: &[u8; 32]) {
        lock(&self.known).remove(hash);
    }

    /// Counts one request against the rate of its key.
    pub(crate) fn pass(&self, key_id: KeyId) -> Result<(), Problem> {
        match self.per_key.take(key_id) {
            true => Ok(()),
            false => Err(Problem::busy(
                "rate_limited",
                "this API key sends too many requests per second: send fewer, then retry",
                1,
            )),
        }
    }

    /// Counts one request with an unknown key against the rate of its address.
    pub(crate) fn pass_stranger(&self, address: Option<IpAddr>) -> Result<(), Problem> {
        match address.is_none_or(|address| self.strangers.take(one_house(address))) {
            true => Ok(()),
            false => {
                let said =
                    "too many requests with invalid API keys came from this address: use a valid key, then retry";
                Err(Problem::busy("rate_limited", said, 1))
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rate limit for each `K`: so many per second, twice as many in a burst.
#[derive(Debug)]
struct Rate<K> {
    per_second: f64,
    left: Mutex<HashMap<K, (f64, Instant)>>,
}

impl<K: Hash + Eq> Rate<K> {
    fn new(per_second: f64) -> Rate<K> {
        Rate { per_second, left: Mutex::default() }
    }

    fn take(&self, of: K) -> bool {
        let (most, now) = (self.per_second * 2.0, Instant::now());
        let mut counted = lock(&self.left);
        let refilled = |left: f64, at: Instant| (left + (now - at).as_secs_f64() * self.per_second).min(most);
        if counted.len() >= MOST_COUNTED {
            counted.retain(|_, (left, at)| refilled(*left, *at) < most);
        }
        let (left, at) = counted.entry(of).or_insert((most, now));
        (*left, *at) = (refilled(*left, *at), now);
        if *left < 1.0 {
            return false;
        }
        *left -= 1.0;
        true
    }
}

/// Places of one kind. A project may take one more while it has fewer than are free; a key, while it has fewer than half of those.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of_project: HashMap<ProjectId, usize>,
    of_key: HashMap<KeyId, usize>,
}

/// Places that a caller holds until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    lane: Lane,
    n: usize,
}

impl Places {
    fn new(most: usize) -> Arc<Places> {
        Arc::new(Places { most, taken: Mutex::default() })
    }

    /// Takes `n` places for a lane.
    pub(crate) fn take(self: &Arc<Places>, lane: Lane, n: usize) -> Result<Place, Problem> {
        if !lock(&self.taken).take(lane, n, self.most) {
            return Err(overloaded());
        }
        Ok(Place { places: self.clone(), lane, n })
    }
}

impl Taken {
    fn take(&mut self, Lane { project_id, key_id }: Lane, n: usize, most: usize) -> bool {
        let free = most.saturating_sub(self.all);
        let of_project = self.of_project.get(&project_id).copied().unwrap_or_default();
        let of_key = self.of_key.get(&key_id).copied().unwrap_or_default();
        if of_project + n > free || (of_key + n) * 2 > free + n {
            return false;
        }
        self.all += n;
        *self.of_project.entry(project_id).or_default() += n;
        *self.of_key.entry(key_id).or_default() += n;
        true
    }

    fn give(&mut self, Lane { project_id, key_id }: Lane, n: usize) {
        self.all -= n;
        less(&mut self.of_project, project_id, n);
        less(&mut self.of_key, key_id, n);
    }
}

fn less<K: Hash + Eq>(counted: &mut HashMap<K, usize>, of: K, by: usize) {
    if let Some(n) = counted.get_mut(&of) {
        *n -= by;
        if *n == 0 {
            counted.remove(&of);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places.taken).give(self.lane, self.n);
    }
}

/// Open connections. An address may open one more while it has fewer than are free.
#[derive(Debug)]
pub(crate) struct Connections {
    most: usize,
    open: Mutex<(usize, HashMap<IpAddr, usize>)>,
}

/// One open connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    of: Arc<Connections>,
    address: IpAddr,
}

impl Connections {
    pub(crate) fn new(most: usize) -> Arc<Connections> {
        Arc::new(Connections { most, open: Mutex::default() })
    }

    pub(crate) fn take(self: &Arc<Connections>, address: IpAddr) -> Option<Connection> {
        let address = one_house(address);
        let mut open = lock(&self.open);
        let (all, of_address) = &mut *open;
        if of_address.get(&address).copied().unwrap_or_default() >= self.most.saturating_sub(*all) {
            return None;
        }
        *of_address.entry(address).or_default() += 1;
        *all += 1;
        Some(Connection { of: self.clone(), address })
    }
}

/// Returns the address to count by. The owner of one IPv6 address has 2^64 of them, so a whole /64 network counts as one.
fn one_house(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = lock(&self.of.open);
        open.0 -= 1;
        less(&mut open.1, self.address, 1);
    }
}

fn overloaded() -> Problem {
    Problem::busy("overloaded", "too many requests are in progress: retry in a second", 1)
}

/// Few slots for many requests: those that wait get one project by project, in turn.
#[derive(Debug)]
struct Fair {
    most: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    free: usize,
    /// The most slots that one project may have at a time.
    most_of_one: usize,
    /// Slots that each project has.
    held: HashMap<ProjectId, usize>,
    /// Requests that are being answered or wait.
    taken: Taken,
    /// The projects that have requests waiting, the next one first.
    turns: VecDeque<ProjectId>,
    waiting: HashMap<ProjectId, VecDeque<oneshot::Sender<Slot>>>,
}

/// A slot among the requests that are being served, until it is dropped.
#[derive(Debug)]
pub(crate) struct Answered {
    _slot: Slot,
    _counted: Counted,
}

/// Passed to the next request when it is dropped, unless it is empty.
#[derive(Debug)]
struct Slot(Option<(Arc<Fair>, ProjectId)>);

#[derive(Debug)]
struct Counted {
    fair: Arc<Fair>,
    lane: Lane,
}

impl Fair {
    fn new(answered: usize, most: usize) -> Arc<Fair> {
        let free = answered.clamp(1, most.max(1));
        // The last quarter is for other projects: one that has all the rest waits for its own requests.
        let most_of_one = free - free / 4;
        Arc::new(Fair { most, queue: Mutex::new(Queue { free, most_of_one, ..Queue::default() }) })
    }

    async fn enter(self: &Arc<Fair>, lane: Lane) -> Result<Answered, Problem> {
        let (counted, waits) = {
            let mut queue = lock(&self.queue);
            if !queue.taken.take(lane, 1, self.most) {
                return Err(overloaded());
            }
            let counted = Counted { fair: self.clone(), lane };
            if queue.free > 0 && queue.has_room(lane.project_id) {
                queue.free -= 1;
                *queue.held.entry(lane.project_id).or_default() += 1;
                return Ok(Answered { _slot: Slot(Some((self.clone(), lane.project_id))), _counted: counted });
            }
            let (send, waits) = oneshot::channel();
            let waiting = queue.waiting.entry(lane.project_id).or_default();
            waiting.push_back(send);
            if waiting.len() == 1 {
                queue.turns.push_back(lane.project_id);
            }
            (counted, waits)
        };
        // If the caller gives up meanwhile, both are given back.
        Ok(Answered { _slot: waits.await.map_err(|_| overloaded())?, _counted: counted })
    }
}

impl Queue {
    fn has_room(&self, project_id: ProjectId) -> bool {
        self.held.get(&project_id).copied().unwrap_or_default() < self.most_of_one
    }

    /// Takes the next waiting request, of the next project that may have another slot.
    fn next(&mut self) -> Option<(ProjectId, oneshot::Sender<Slot>)> {
        let at = self.turns.iter().position(|project_id| self.has_room(*project_id))?;
        let project_id = self.turns.remove(at)?;
        let waiting = self.waiting.get_mut(&project_id)?;
        let next = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&project_id);
        } else {
            self.turns.push_back(project_id);
        }
        next.map(|next| (project_id, next))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some((fair, project_id)) = self.0.take() else { return };
        let mut queue = lock(&fair.queue);
        less(&mut queue.held, project_id, 1);
        while let Some((project_id, next)) = queue.next() {
            match next.send(Slot(Some((fair.clone(), project_id)))) {
                Ok(()) => {
                    *queue.held.entry(project_id).or_default() += 1;
                    return;
                }
                // That request is gone; its slot is still ours to give.
                Err(mut slot) => slot.0 = None,
            }
        }
        queue.free += 1;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        lock(&self.fair.queue).taken.give(self.lane, 1);
    }
}

/// Which projects start more turns for a target than its workers handle, as of a moment ago.
#[derive(Debug)]
pub(crate) struct Backlog {
    most_backlog: Duration,
    late: Cached<Late>,
}

/// How many seconds the oldest ready turn has waited, for each project and target where that is too long.
#[derive(Debug, Default)]
pub(crate) struct Late(HashMap<(ProjectId, Target), f64>);

/// However many turns are started, the queues are read no more often than this.
const BACKLOG_FRESH: Duration = Duration::from_secs(1);

impl Backlog {
    pub(crate) fn new(limits: &Limits) -> Backlog {
        Backlog { most_backlog: limits.most_backlog, late: Cached::new(Late::default()) }
    }

    /// Returns the backlog as of a moment ago. A request that finds another one reading the queues does not wait for it, and a read that fails
    /// changes nothing.
    pub(crate) async fn late(&self, kernel: &Kernel) -> Arc<Late> {
        let look = async {
            let late = vitals::late(kernel, self.most_backlog).await;
            let late =
                late.inspect_err(|error| tracing::warn!(%error, "the backlog of turns could not be read")).ok()?;
            let late = late.into_iter().map(|late| ((late.project_id, late.worker_target), late.oldest_seconds));
            Some(Late(late.collect()))
        };
        self.late.renew(BACKLOG_FRESH, false, look).await;
        self.late.answer()
    }
}

impl Late {
    /// Checks whether a project may start another turn for a target. Accepted turns are done; one that would only wait is refused.
    pub(crate) fn room(&self, project_id: ProjectId, target: &Target) -> Result<(), Problem> {
        let Some(seconds) = self.0.get(&(project_id, target.clone())) else { return Ok(()) };
        let said = format!(
            "a turn of this project has been waiting for {seconds:.0} s for a worker of target `{target}`: retry later, or run more workers"
        );
        Err(Problem::busy("backlog", said, 5))
    }
}

/// Counts a request in the metrics.
pub(crate) async fn count(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned()).unwrap_or_default();
    let method = request.method().as_str().to_owned();
    let response = next.run(request).await;
    let status = response.status().as_str().to_owned();
    metrics::histogram!(metric::REQUEST_SECONDS, "path" => path.clone()).record(begun.elapsed());
    metrics::counter!(metric::REQUESTS, "method" => method, "path" => path, "status" => status).increment(1);
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn lane(project_id: ProjectId) -> Lane {
        Lane { project_id, key_id: KeyId::new() }
    }

    #[test]
    fn a_project_takes_half_and_leaves_some_to_the_others() {
        let places = Places::new(64);
        let take_all = |project_id| std::iter::from_fn(|| places.take(lane(project_id), 1).ok()).collect::<Vec<_>>();
        let (first, second, third) = (ProjectId::new(), ProjectId::new(), ProjectId::new());
        let of_first = take_all(first);
        assert_eq!(of_first.len(), 32);
        let of_second = take_all(second);
        assert_eq!(of_second.len(), 16);
        assert_eq!(take_all(third).len(), 8);
        drop((of_first, of_second));
        assert_eq!(take_all(third).len(), 32, "what was given back is free");
        let key = lane(first);
        let of_key: Vec<Place> = std::iter::from_fn(|| places.take(key, 1).ok()).collect();
        assert_eq!(of_key.len(), 22, "one key takes a third");
    }

    #[tokio::test]
    async fn whoever_waits_is_let_in_one_project_after_the_other() {
        let fair = Fair::new(1, 1_000);
        let (hog, other) = (ProjectId::new(), ProjectId::new());
        let held = fair.enter(lane(hog)).await.unwrap();
        let mut order = Vec::new();
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        for n in 0..20 {
            let (fair, told) = (fair.clone(), told.clone());
            tokio::spawn(async move {
                let place = fair.enter(lane(if n == 19 { other } else { hog })).await.unwrap();
                told.send(n).unwrap();
                drop(place);
            });
            tokio::task::yield_now().await;
        }
        drop((held, told));
        while let Some(n) = heard.recv().await {
            order.push(n);
        }
        assert_eq!(order.len(), 20);
        assert!(order[..2].contains(&19), "{order:?}");
    }

    #[tokio::test]
    async fn whoever_goes_away_while_waiting_takes_nothing_with_it() {
        let fair = Fair::new(1, 8);
        let project_id = ProjectId::new();
        let held = fair.enter(lane(project_id)).await.unwrap();
        for _ in 0..100 {
            let waits = fair.enter(lane(project_id));
            let waited = tokio::time::timeout(Duration::from_millis(1), waits).await;
            assert!(waited.is_err(), "another request has the only slot");
        }
        drop(held);
        fair.enter(lane(project_id)).await.unwrap();
        assert_eq!(lock(&fair.queue).taken.all, 0);
    }
}

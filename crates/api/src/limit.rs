//! How much is taken at once, and from whom: connections, requests of a key in a second, requests under way, those that wait or watch, uploads.
//!
//! No project can take all of anything. Requests that are being answered are few, and whoever waits for a place among them gets one project after the
//! other. Of the rest a project may take one more while it has fewer than are free: alone it gets half, beside another a third, and some are always left.

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

use crate::{kept::Kept, problem::Problem};

/// Of one process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of the body of a request.
    pub most_bytes: usize,
    /// Of one key, in a second; twice as many in a burst.
    pub per_second: f64,
    /// Requests at a time, answered or waiting for their turn.
    pub most_at_once: usize,
    /// Of those that wait for work, and of those that watch a turn, at a time.
    pub most_waiting: usize,
    /// Uploads at a time.
    pub most_uploads: usize,
    /// Bytes of all bodies at a time, uploads aside.
    pub most_bodies: usize,
    /// Connections at a time.
    pub most_connections: usize,
    /// The longest that the head of a request may take, or a connection say nothing at all.
    pub head_timeout: Duration,
    /// The longest that a body may take; of an upload, the longest between two pieces of it.
    pub body_timeout: Duration,
    /// While a project's oldest ready turn for a target waits longer than this, it may start no more for it.
    pub most_wait: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            most_bytes: 4 << 20,
            per_second: 500.0,
            most_at_once: 1_024,
            most_waiting: 1_024,
            most_uploads: 32,
            most_bodies: 64 << 20,
            most_connections: 8_192,
            // Longer than proxies keep a connection that says nothing.
            head_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            most_wait: Duration::from_secs(300),
        }
    }
}

/// Whose request it is: those of one lane wait for each other. A key that nobody knows yet has the lane of all such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) project_id: ProjectId,
    pub(crate) key_id: KeyId,
}

impl Lane {
    pub(crate) const STRANGERS: Lane = Lane { project_id: ProjectId::nil(), key_id: KeyId::nil() };
}

/// What is left of them.
#[derive(Debug)]
pub(crate) struct Gate {
    requests: Arc<Fair>,
    pub(crate) waits: Arc<Places>,
    pub(crate) streams: Arc<Places>,
    pub(crate) uploads: Arc<Places>,
    /// Of bodies that are read or worked with, in KiB.
    pub(crate) bodies: Arc<Places>,
    per_key: Rate<KeyId>,
    /// Of one address, for keys that were not good lately.
    strangers: Rate<IpAddr>,
    /// Keys that were good when they were last shown, by their hash: whose they are, so that they wait in their own lane before they are looked up.
    known: Mutex<HashMap<[u8; 32], Lane>>,
}

/// Things that are remembered before some are forgotten.
const MOST_COUNTED: usize = 10_000;
/// Keys that nobody knows, of one address in a second.
const STRANGERS_PER_SECOND: f64 = 50.0;

impl Gate {
    /// `answered`: requests that are answered at a time.
    pub(crate) fn new(limits: &Limits, answered: usize) -> Gate {
        Gate {
            requests: Fair::new(answered, limits.most_at_once),
            waits: Places::new(limits.most_waiting),
            streams: Places::new(limits.most_waiting),
            uploads: Places::new(limits.most_uploads),
            bodies: Places::new(limits.most_bodies >> 10),
            per_key: Rate::new(limits.per_second),
            strangers: Rate::new(STRANGERS_PER_SECOND),
            known: Mutex::default(),
        }
    }

    /// A place among those that are answered, once it is this one's turn.
    pub(crate) async fn enter(&self, lane: Lane) -> Result<Answered, Problem> {
        self.requests.enter(lane).await
    }

    /// Whose key this was when it was last shown.
    pub(crate) fn known(&self, hash: &[u8; 32]) -> Option<Lane> {
        lock(&self.known).get(hash).copied()
    }

    pub(crate) fn remember(&self, hash: [u8; 32], lane: Lane) {
        let mut known = lock(&self.known);
        if known.len() >= MOST_COUNTED {
            // Any of them: a hash says nothing.
            known.retain(|hash, _| hash[0] & 15 != 0);
        }
        known.insert(hash, lane);
    }

    pub(crate) fn forget(&self, hash: &[u8; 32]) {
        lock(&self.known).remove(hash);
    }

    /// Takes one request of a key.
    pub(crate) fn pass(&self, key_id: KeyId) -> Result<(), Problem> {
        match self.per_key.take(key_id) {
            true => Ok(()),
            false => Err(Problem::busy("rate_limited", "this key asks too often: slow down", 1)),
        }
    }

    /// Takes one request with a key that nobody knows yet.
    pub(crate) fn pass_stranger(&self, address: Option<IpAddr>) -> Result<(), Problem> {
        match address.is_none_or(|address| self.strangers.take(one_house(address))) {
            true => Ok(()),
            false => {
                let said = "too many unknown keys came from this address: slow down";
                Err(Problem::busy("rate_limited", said, 1))
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many in a second, of each; twice as many in a burst.
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

/// Places of one kind. A project may take one more while it has fewer than are free, a key while it has fewer than half of them.
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

/// Places that somebody has, until this is dropped.
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

    /// So many of them.
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

/// Connections. An address may have one more while it has fewer than are free.
#[derive(Debug)]
pub(crate) struct Connections {
    most: usize,
    open: Mutex<(usize, HashMap<IpAddr, usize>)>,
}

/// One of them, until it is dropped.
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

/// Whoever has one address of version 6 has 2^64 of them.
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
    Problem::busy("overloaded", "too many requests are under way: ask again soon", 1)
}

/// Few places, and many who want one: whoever waits is let in one project after the other.
#[derive(Debug)]
struct Fair {
    most: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    free: usize,
    /// Of one project at a time.
    most_of_one: usize,
    /// Places of each project.
    held: HashMap<ProjectId, usize>,
    /// By those that are answered and those that wait.
    taken: Taken,
    /// The projects that have somebody waiting, the next one first.
    turns: VecDeque<ProjectId>,
    waiting: HashMap<ProjectId, VecDeque<oneshot::Sender<Slot>>>,
}

/// A place among those that are answered, until it is dropped.
#[derive(Debug)]
pub(crate) struct Answered {
    _slot: Slot,
    _counted: Counted,
}

/// Passed on when it is dropped, unless it has nothing to pass on.
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
        // The last quarter is for others: whoever has all the rest may wait for itself.
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
        // Given up meanwhile, both are given back.
        Ok(Answered { _slot: waits.await.map_err(|_| overloaded())?, _counted: counted })
    }
}

impl Queue {
    fn has_room(&self, project_id: ProjectId) -> bool {
        self.held.get(&project_id).copied().unwrap_or_default() < self.most_of_one
    }

    /// Whoever is next, of the project that is next and does not have enough.
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
                // It has gone, and the place is still ours to give.
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

/// Who has more to do than is done, as of a moment ago: a project's turns for one target.
#[derive(Debug)]
pub(crate) struct Backlog {
    most_wait: Duration,
    late: Kept<Late>,
}

/// How long the oldest ready turn waits.
#[derive(Debug, Default)]
pub(crate) struct Late(HashMap<(ProjectId, Target), f64>);

/// However much is started, the queues are looked at no oftener.
const BACKLOG_FRESH: Duration = Duration::from_secs(1);

impl Backlog {
    pub(crate) fn new(limits: &Limits) -> Backlog {
        Backlog { most_wait: limits.most_wait, late: Kept::new(Late::default()) }
    }

    /// As it was a moment ago. Whoever finds somebody else looking does not wait for them, and a look that fails changes nothing.
    pub(crate) async fn late(&self, kernel: &Kernel) -> Arc<Late> {
        let look = async {
            let late = vitals::late(kernel, self.most_wait).await;
            let late = late.inspect_err(|error| tracing::warn!(%error, "the queues could not be looked at")).ok()?;
            let late = late.into_iter().map(|late| ((late.project_id, late.worker_target), late.oldest_seconds));
            Some(Late(late.collect()))
        };
        self.late.renew(BACKLOG_FRESH, false, look).await;
        self.late.answer()
    }
}

impl Late {
    /// Whether a project may start another turn for a target. What was accepted is done; what would only wait is not accepted.
    pub(crate) fn room(&self, project_id: ProjectId, target: &Target) -> Result<(), Problem> {
        let Some(seconds) = self.0.get(&(project_id, target.clone())) else { return Ok(()) };
        let said = format!(
            "a turn of this project for `{target}` has been ready for {seconds:.0} s: more is asked for than its workers do. Ask again later, or run more workers"
        );
        Err(Problem::busy("backlog", said, 5))
    }
}

/// Counts a request.
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
            assert!(waited.is_err(), "somebody has the only place");
        }
        drop(held);
        fair.enter(lane(project_id)).await.unwrap();
        assert_eq!(lock(&fair.queue).taken.all, 0);
    }
}

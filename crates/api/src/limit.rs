//! How much is taken at once: bytes of a request, requests of a key in a second, requests at a time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use waybill_core::{
    id::{KeyId, ProjectId, Target},
    metric,
};
use waybill_kernel::{vitals, work::Kernel};

use crate::{Api, kept::Kept, problem::Problem};

/// Of one process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of the body of a request.
    pub most_bytes: usize,
    /// Of one key, in a second; twice as many in a burst.
    pub per_second: f64,
    /// Requests at a time. Whoever watches or waits for work counts too.
    pub most_at_once: usize,
    /// While a project's oldest ready turn for a target waits longer than this, it may start no more for it.
    pub most_wait: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { most_bytes: 4 << 20, per_second: 500.0, most_at_once: 1_024, most_wait: Duration::from_secs(300) }
    }
}

/// What is left of them.
#[derive(Debug)]
pub(crate) struct Gate {
    room: Arc<Semaphore>,
    per_second: f64,
    left: Mutex<HashMap<KeyId, (f64, Instant)>>,
}

/// Keys that are counted, before those that are long full again are forgotten.
const MOST_COUNTED: usize = 10_000;

impl Gate {
    pub(crate) fn new(limits: &Limits) -> Gate {
        Gate {
            room: Arc::new(Semaphore::new(limits.most_at_once)),
            per_second: limits.per_second,
            left: Mutex::default(),
        }
    }

    /// The place of a stream, which it has until it ends.
    pub(crate) fn place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let place = self.room.clone().try_acquire_owned();
        place.map_err(|_| Problem::busy("overloaded", "too many requests are under way: ask again soon", 1))
    }

    /// Takes one request of a key.
    pub(crate) fn pass(&self, key_id: KeyId) -> Result<(), Problem> {
        let (most, now) = (self.per_second * 2.0, Instant::now());
        let mut counted = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let refilled = |left: f64, at: Instant| (left + (now - at).as_secs_f64() * self.per_second).min(most);
        if counted.len() >= MOST_COUNTED {
            counted.retain(|_, (left, at)| refilled(*left, *at) < most);
        }
        let (left, at) = counted.entry(key_id).or_insert((most, now));
        (*left, *at) = (refilled(*left, *at), now);
        if *left < 1.0 {
            return Err(Problem::busy("rate_limited", "this key asks too often: slow down", 1));
        }
        *left -= 1.0;
        Ok(())
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

/// Lets a request in while there is room, and counts it.
pub(crate) async fn admit(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned()).unwrap_or_default();
    let method = request.method().as_str().to_owned();
    let response = match api.gate.place() {
        Ok(_place) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let status = response.status().as_str().to_owned();
    metrics::histogram!(metric::REQUEST_SECONDS, "path" => path.clone()).record(begun.elapsed());
    metrics::counter!(metric::REQUESTS, "method" => method, "path" => path, "status" => status).increment(1);
    response
}

//! How much is taken at once: bytes of a request, requests of a key in a second, requests at a time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use waybill_core::id::KeyId;

use crate::{Api, problem::Problem};

/// Of one process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of the body of a request.
    pub most_bytes: usize,
    /// Of one key, in a second; twice as many in a burst.
    pub per_second: f64,
    /// Requests at a time. Whoever watches or waits for work counts too.
    pub most_at_once: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { most_bytes: 4 << 20, per_second: 500.0, most_at_once: 1_024 }
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

/// Lets a request in while there is room.
pub(crate) async fn admit(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    match api.gate.place() {
        Ok(_place) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

//! A cached answer for many requests: now and then one of them refreshes it.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

#[derive(Debug)]
pub(crate) struct Cached<T> {
    answer: RwLock<Arc<T>>,
    /// Held by the one request that refreshes the answer; says when that last happened.
    asking: Mutex<Option<Instant>>,
}

impl<T> Cached<T> {
    pub(crate) fn new(answer: T) -> Cached<T> {
        Cached { answer: RwLock::new(Arc::new(answer)), asking: Mutex::default() }
    }

    pub(crate) fn answer(&self) -> Arc<T> {
        self.answer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refreshes the answer if the last refresh is at least `pause` ago. A caller that finds another one refreshing waits for it if `waits` is set;
    /// otherwise it goes on with the cached answer. If `ask` returns `None`, the cached answer stays.
    pub(crate) async fn renew(&self, pause: Duration, waits: bool, ask: impl Future<Output = Option<T>>) {
        let asking = match waits {
            true => Some(self.asking.lock().await),
            false => self.asking.try_lock().ok(),
        };
        let Some(mut asked) = asking else { return };
        if asked.is_some_and(|at| at.elapsed() < pause) {
            return;
        }
        *asked = Some(Instant::now());
        if let Some(answer) = ask.await {
            *self.answer.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(answer);
        }
    }
}

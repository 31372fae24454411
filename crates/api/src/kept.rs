//! An answer of a moment ago, for many who ask: one of them has it anew now and then.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

#[derive(Debug)]
pub(crate) struct Kept<T> {
    answer: RwLock<Arc<T>>,
    /// One asks at a time; and when somebody last did.
    asking: Mutex<Option<Instant>>,
}

impl<T> Kept<T> {
    pub(crate) fn new(answer: T) -> Kept<T> {
        Kept { answer: RwLock::new(Arc::new(answer)), asking: Mutex::default() }
    }

    pub(crate) fn answer(&self) -> Arc<T> {
        self.answer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has it anew where nobody has asked for so long. Whoever finds somebody else asking waits for them, or goes on with what there is. No new answer changes nothing.
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

//! Retrying a transaction that failed through no fault of its own.

use std::time::Duration;

use futures::future::BoxFuture;

const MOST_TRIES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// An error of which some cases say nothing about the request: the server was short of something, slow, or gone.
pub trait Transient: std::error::Error {
    /// Checks whether the same request may succeed if it is sent again.
    fn is_transient(&self) -> bool;
}

/// Retries with the same ids while the error is transient: a write that ended in such an error may have been committed.
pub async fn retry<'a, T, E: Transient>(mut attempt: impl FnMut() -> BoxFuture<'a, Result<T, E>>) -> Result<T, E> {
    let mut pause = FIRST_PAUSE;
    for _ in 0..MOST_TRIES {
        match attempt().await {
            Err(error) if error.is_transient() => {
                tracing::debug!(%error, "tried again");
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            known => return known,
        }
    }
    attempt().await
}

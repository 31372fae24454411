//! Heavy work for the processor, away from the threads that answer everybody: decoding a page of large cards, writing it as JSON, checking a package.

use std::{num::NonZero, panic::resume_unwind, sync::LazyLock, thread::available_parallelism};

use sqlx::{FromRow, Row, postgres::PgRow};
use tokio::{sync::Semaphore, task::spawn_blocking};

/// From this many bytes on, work is heavy.
const HEAVY: usize = 64 << 10;

/// One core is left to everybody else.
static PLACES: LazyLock<Semaphore> = LazyLock::new(|| {
    let n = available_parallelism().map_or(1, NonZero::get);
    Semaphore::new(n.saturating_sub(1).max(1))
});

/// Runs `work` on a thread of its own once there is room, or here and now where it has few bytes to do.
pub async fn run<T: Send + 'static>(n_bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if n_bytes < HEAVY {
        return work();
    }
    // The semaphore is never closed.
    let _place = PLACES.acquire().await;
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => resume_unwind(error.into_panic()),
    }
}

/// Decodes rows.
pub(crate) async fn decode<T>(rows: Vec<PgRow>) -> sqlx::Result<Vec<T>>
where
    T: for<'r> FromRow<'r, PgRow> + Send + 'static,
{
    let n_bytes = rows.iter().map(size).sum();
    run(n_bytes, move || rows.iter().map(T::from_row).collect()).await
}

fn size(row: &PgRow) -> usize {
    let value = |n| row.try_get_raw(n).ok()?.as_bytes().ok().map(<[u8]>::len);
    (0..row.len()).filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn heavy_work_leaves_the_thread_it_came_from() {
        let here = std::thread::current().id();
        let thread = || std::thread::current().id();
        assert_eq!(run(10, thread).await, here);
        assert_ne!(run(HEAVY, thread).await, here);
    }
}

//! CPU-heavy work, away from the threads that answer requests: decoding a page of large cards, writing it as JSON, reading a large body.

use std::{num::NonZero, panic::resume_unwind, sync::LazyLock, thread::available_parallelism};

use sqlx::{FromRow, Row, postgres::PgRow};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::spawn_blocking,
};

/// From this many bytes on, work is heavy.
const HEAVY: usize = 64 << 10;

/// One core is left for everything else.
static PLACES: LazyLock<Semaphore> = LazyLock::new(|| {
    let n = available_parallelism().map_or(1, NonZero::get);
    Semaphore::new(n.saturating_sub(1).max(1))
});

/// Runs `work` on a thread of its own once there is room, or on this thread at once if it has few bytes. `work` keeps what it holds, and its place,
/// until it is done, even if its caller has gone away.
pub async fn run<T: Send + 'static>(n_bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if n_bytes < HEAVY {
        return work();
    }
    let places: &'static Semaphore = &PLACES;
    let place = places.acquire().await.ok();
    elsewhere(place, work).await
}

async fn elsewhere<T: Send + 'static>(
    place: Option<SemaphorePermit<'static>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let done = spawn_blocking(move || {
        let done = work();
        drop(place);
        done
    });
    match done.await {
        Ok(done) => done,
        Err(error) => resume_unwind(error.into_panic()),
    }
}

/// Decodes rows. Does not wait for a place: a transaction is open meanwhile, and there are no more of those than connections.
pub(crate) async fn decode<T>(rows: Vec<PgRow>) -> sqlx::Result<Vec<T>>
where
    T: for<'r> FromRow<'r, PgRow> + Send + 'static,
{
    let decode = move |rows: Vec<PgRow>| rows.iter().map(T::from_row).collect();
    match rows.iter().map(size).sum::<usize>() < HEAVY {
        true => decode(rows),
        false => elsewhere(None, move || decode(rows)).await,
    }
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

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_keeps_its_place() {
        let most = PLACES.available_permits();
        let slow = run(HEAVY, || std::thread::sleep(std::time::Duration::from_millis(300)));
        assert!(tokio::time::timeout(std::time::Duration::from_millis(50), slow).await.is_err());
        assert_eq!(PLACES.available_permits(), most - 1);
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        assert_eq!(PLACES.available_permits(), most);
    }
}

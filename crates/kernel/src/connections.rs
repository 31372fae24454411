//! The connections of a process: a bounded number, each used by one caller at a time.
//!
//! The driver's own pool asks the server after every use whether it is still there, twice. Here a connection whose last statement came to its
//! end goes back without a question; one that was given up in the middle, or that was not used for a while, is asked before it is used again.

use std::{
    fmt,
    io::ErrorKind,
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sqlx::{
    Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use waybill_core::metric;

use crate::work::DbError;

/// How long a caller waits for a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// A connection that was not used for so long may have lost its server.
const RESTED: Duration = Duration::from_millis(500);
/// After so long without use, or at such an age, a connection is closed.
const MOST_IDLE: Duration = Duration::from_secs(600);
const MOST_AGE: Duration = Duration::from_secs(1800);
const PING_TIMEOUT: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// The connections that are free, and room for those in use.
pub(crate) struct Connections {
    options: PgConnectOptions,
    most: u32,
    room: Arc<Semaphore>,
    /// The one that was used last is used next: the others may rest, and end.
    free: Mutex<Vec<Free>>,
    servers: Servers,
    apart: OnceLock<PgPool>,
}

/// How many connections are in use, how many are free, and how many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub used: usize,
    pub free: usize,
    pub most: usize,
}

struct Free {
    connection: PgConnection,
    made_at: Instant,
    since: Instant,
}

impl Connections {
    pub(crate) fn new(options: PgConnectOptions, most: u32) -> Connections {
        let servers = Servers { begun: Instant::now(), asked_next: 0.into(), doubted_until: 0.into() };
        let room = Arc::new(Semaphore::new(most as usize));
        Connections { options, most, room, free: Mutex::default(), servers, apart: OnceLock::new() }
    }

    /// Returns a connection that answers, as far as can be known without asking every time.
    pub(crate) async fn lease(self: &Arc<Self>) -> sqlx::Result<Lease> {
        let begun = Instant::now();
        let leased = timeout(PATIENCE, self.find()).await;
        metrics::histogram!(metric::POOL_SECONDS).record(begun.elapsed());
        leased.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    async fn find(self: &Arc<Self>) -> sqlx::Result<Lease> {
        let room = self.room.clone().acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
        while let Some(Free { mut connection, made_at, since }) = self.take() {
            if made_at.elapsed() > MOST_AGE || since.elapsed() > MOST_IDLE {
                close(connection);
                continue;
            }
            let is_fit = if self.servers.are_asked() {
                matches!(self.servers.takes_writes(&mut connection).await, Ok(true))
            } else {
                since.elapsed() < RESTED || ping(&mut connection).await.is_ok()
            };
            if is_fit {
                return Ok(self.leased(connection, made_at, room));
            }
            // The others have rested for longer: to ask each of them would take half a second each.
            self.forget();
        }
        Ok(self.leased(self.connect().await?, Instant::now(), room))
    }

    fn leased(self: &Arc<Self>, connection: PgConnection, made_at: Instant, room: OwnedSemaphorePermit) -> Lease {
        Lease { connection: Some(connection), made_at, home: self.clone(), room: Some(room), is_settled: false }
    }

    /// Connects, and goes on trying while the server is not there yet: it is being started, or another takes its place.
    async fn connect(&self) -> sqlx::Result<PgConnection> {
        let mut pause = FIRST_PAUSE;
        loop {
            match PgConnection::connect_with(&self.options).await {
                // The address may still lead to the server that became a standby.
                Ok(mut connection) if self.servers.are_doubted() => {
                    if self.servers.takes_writes(&mut connection).await? {
                        return Ok(connection);
                    }
                }
                Err(sqlx::Error::Io(error)) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(sqlx::Error::Database(error)) if error.is_transient_in_connect_phase() => {}
                known => return known,
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Closes what is free.
    fn forget(&self) {
        let free = std::mem::take(&mut *self.free());
        free.into_iter().for_each(|free| close(free.connection));
    }

    fn take(&self) -> Option<Free> {
        self.free().pop()
    }

    fn free(&self) -> MutexGuard<'_, Vec<Free>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, connection: PgConnection, made_at: Instant) {
        let mut free = self.free();
        free.push(Free { connection, made_at, since: Instant::now() });
        let ended = if free[0].since.elapsed() > MOST_IDLE { Some(free.remove(0)) } else { None };
        drop(free);
        ended.into_iter().for_each(|ended| close(ended.connection));
    }

    /// Closes those that are free, and waits until the server knows.
    pub(crate) async fn close(&self) {
        while let Some(free) = self.take() {
            let _ = timeout(PING_TIMEOUT, free.connection.close()).await;
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let most = self.most as usize;
        Counts { used: most - self.room.available_permits(), free: self.free().len(), most }
    }

    /// Returns a pool of the driver's own beside these connections.
    pub(crate) fn apart(&self) -> &PgPool {
        self.apart.get_or_init(|| {
            PgPoolOptions::new()
                .max_connections(self.most)
                .acquire_timeout(PATIENCE)
                .connect_lazy_with(self.options.clone())
        })
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connections").field(&self.counts()).finish()
    }
}

/// A connection in use. Dropped, it goes back.
#[derive(Debug)]
pub(crate) struct Lease {
    connection: Option<PgConnection>,
    made_at: Instant,
    home: Arc<Connections>,
    room: Option<OwnedSemaphorePermit>,
    is_settled: bool,
}

impl Lease {
    /// Notes whether the last statement came to its end, so that nothing of it is left on the connection.
    pub(crate) fn settle<T>(&mut self, answer: &sqlx::Result<T>) {
        self.is_settled = match answer {
            Ok(_) | Err(sqlx::Error::RowNotFound) => true,
            // A server that is leaving, or that only reads now, says so with an error too.
            Err(sqlx::Error::Database(refusal)) => refusal
                .code()
                .is_some_and(|code| !["08", "25", "53", "57"].contains(&code.get(..2).unwrap_or_default())),
            Err(_) => false,
        };
    }

    /// Closes the connection instead of giving it back.
    pub(crate) fn discard(mut self) {
        self.connection = None;
    }
}

impl Deref for Lease {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("a lease has its connection until it ends")
    }
}

impl DerefMut for Lease {
    /// From here on it is not known what is left on the connection.
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.is_settled = false;
        self.connection.as_mut().expect("a lease has its connection until it ends")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (Some(mut connection), home, made_at) = (self.connection.take(), self.home.clone(), self.made_at) else {
            return;
        };
        if self.is_settled {
            return home.put(connection, made_at);
        }
        let room = self.room.take();
        // Outside of a runtime the connection ends with its socket.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if ping(&mut connection).await.is_ok() {
                    home.put(connection, made_at);
                }
                drop(room);
            });
        }
    }
}

/// Says goodbye to the server, without waiting for it. Outside of a runtime the connection ends with its socket.
fn close(connection: PgConnection) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { timeout(PING_TIMEOUT, connection.close()).await });
    }
}

async fn ping(connection: &mut PgConnection) -> sqlx::Result<()> {
    timeout(PING_TIMEOUT, connection.ping()).await.unwrap_or_else(|_| Err(DbError::no_answer().0))
}

/// Whether the servers behind the connections still take writes. One that became a standby keeps its connections, answers reads and refuses
/// every transition: connections to it are closed, and the next ones go where the address leads now.
#[derive(Debug)]
struct Servers {
    begun: Instant,
    /// In milliseconds.
    asked_next: AtomicU64,
    doubted_until: AtomicU64,
}

const ASKED_EVERY: Duration = Duration::from_millis(250);
const DOUBTED_FOR: Duration = Duration::from_secs(60);

impl Servers {
    /// Checks whether a connection is to be asked before it is used: one now and then, and every one for a while after a standby was found.
    fn are_asked(&self) -> bool {
        let (now, next) = (self.now(), self.asked_next.load(Ordering::Relaxed));
        let is_next = || {
            let after = now + ASKED_EVERY.as_millis() as u64;
            now >= next && self.asked_next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        self.are_doubted() || is_next()
    }

    /// Checks whether a standby was found a while ago.
    fn are_doubted(&self) -> bool {
        self.now() < self.doubted_until.load(Ordering::Relaxed)
    }

    async fn takes_writes(&self, connection: &mut PgConnection) -> sqlx::Result<bool> {
        let asked =
            sqlx::query_scalar("select current_setting('transaction_read_only')::boolean").fetch_one(connection);
        let is_read_only: bool = timeout(PING_TIMEOUT, asked).await.unwrap_or_else(|_| Err(DbError::no_answer().0))?;
        if is_read_only {
            self.doubted_until.store(self.now() + DOUBTED_FOR.as_millis() as u64, Ordering::Relaxed);
        }
        Ok(!is_read_only)
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }
}

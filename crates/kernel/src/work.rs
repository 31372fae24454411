//! The connection to the truth: [`Kernel`], and [`UnitOfWork`], one transaction in one project.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use waybill_core::{
    bus::{Bell, Bus, Door, Silent},
    id::{AuditId, ProjectId},
    metric,
};

use crate::check;

/// How to reach the database.
#[derive(Clone, Debug)]
pub struct Config {
    /// A URL of one of the logins of [`check::LOGINS`]. Never printed.
    pub database_url: SecretString,
    /// Two to four per core of the database server, over all processes, is plenty.
    pub max_connections: u32,
}

impl Config {
    pub fn new(database_url: impl Into<String>) -> Config {
        Config { database_url: SecretString::from(database_url.into()), max_connections: 8 }
    }
}

/// The driver's error, for callers that pass it on.
pub type DbError = sqlx::Error;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the database URL is not valid: write postgres://USER:PASSWORD@HOST:PORT/DATABASE")]
    Url,
    #[error("cannot connect to the database at {place}")]
    Unreachable { place: String, source: sqlx::Error },
    #[error(transparent)]
    Unfit(#[from] check::Unfit),
    #[error("a change in this unit of work was refused, so none of its changes were written")]
    Refused,
    #[error("the database request failed")]
    Db(#[from] sqlx::Error),
}

/// The service's connections, and the bus that it rings on. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kernel {
    pool: PgPool,
    bus: Arc<dyn Bus>,
}

impl Kernel {
    /// Connects, and refuses a database that is not safe to serve from: a pooler that mixes answers,
    /// a role that could step over the walls, or a schema from another version.
    pub async fn connect(config: &Config) -> Result<Kernel, Error> {
        let kernel = Kernel::connect_unchecked(config).await?;
        check::fit_to_serve(&kernel).await?;
        Ok(kernel)
    }

    /// Connects without any check: for callers that report what is wrong.
    pub async fn connect_unchecked(config: &Config) -> Result<Kernel, Error> {
        let (options, place) = connect_options(&config.database_url)?;
        // Tried once by hand: a pool would go on trying a server that is not there until its timeout.
        let first = PgConnection::connect_with(&options).await;
        first.map_err(|source| Error::Unreachable { place, source })?;
        let servers = Arc::new(Servers { begun: Instant::now(), asked_next: 0.into(), doubted_until: 0.into() });
        let pool = PgPoolOptions::new()
            .max_connections(config.max_connections)
            .acquire_timeout(Duration::from_secs(10))
            // A ping before each use doubles the cost of a short statement. But an idle connection may have lost its server:
            // a caller that asks rarely would otherwise meet every dead connection of the pool, one after the other.
            .test_before_acquire(false)
            .before_acquire(|connection, rested| {
                Box::pin(async move {
                    if rested.idle_for < RESTED {
                        return Ok(true);
                    }
                    ping(connection).await.map(|()| true)
                })
            })
            // A connection may come back in the middle of a statement that was given up, or with no server at its other end. The pool
            // would wait for ever for its ping.
            .after_release(move |connection, _| {
                let servers = servers.clone();
                Box::pin(async move {
                    if servers.are_asked() {
                        return servers.takes_writes(connection).await;
                    }
                    ping(connection).await.map(|()| true)
                })
            })
            .connect_lazy_with(options);
        Ok(Kernel { pool, bus: Arc::new(Silent) })
    }

    /// Returns the same kernel with a bus to ring on. Without one no process is rung, and work is found by looking.
    pub fn on(self, bus: Arc<dyn Bus>) -> Kernel {
        Kernel { bus, ..self }
    }

    pub fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    /// Opens a transaction that sees one project and no other. One round trip.
    pub async fn begin(&self, project_id: ProjectId) -> sqlx::Result<UnitOfWork> {
        self.begin_with(project_id, begin(project_id)).await
    }

    async fn begin_with(&self, project_id: ProjectId, sql: String) -> sqlx::Result<UnitOfWork> {
        let connection = Some(self.acquire().await?);
        // Before the statement: given up in the middle of it, the transaction is rolled back like any other.
        let mut work = UnitOfWork {
            connection,
            project_id,
            refused: false,
            bus: self.bus.clone(),
            rings: BTreeSet::new(),
            recorded: Vec::new(),
        };
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *work).await?;
        Ok(work)
    }

    /// Does the same, and what is done in it is on record as this actor's.
    pub async fn begin_as(&self, project_id: ProjectId, actor: &Actor) -> sqlx::Result<UnitOfWork> {
        self.begin_with(project_id, begin(project_id) + &actor.enters()).await
    }

    /// Opens a transaction that sees one project and whose statements ask for another: so that a test can check that the database alone keeps
    /// projects apart.
    #[cfg(debug_assertions)]
    pub async fn begin_mistaken(&self, project_id: ProjectId, asked: ProjectId) -> sqlx::Result<UnitOfWork> {
        let mut work = self.begin(project_id).await?;
        work.project_id = asked;
        Ok(work)
    }

    /// Returns a connection on which every transition is a transaction of its own, in one round trip.
    pub async fn alone(&self, project_id: ProjectId) -> sqlx::Result<Alone> {
        Ok(Alone { connection: self.acquire().await?, project_id, bus: self.bus.clone() })
    }

    async fn acquire(&self) -> sqlx::Result<PoolConnection<Postgres>> {
        let begun = Instant::now();
        let connection = self.pool.acquire().await;
        metrics::histogram!(metric::POOL_SECONDS).record(begun.elapsed());
        connection
    }

    /// Returns the pool, for what belongs to no project: the scheduler's functions and the checks.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
}

/// Whether the servers behind the pool still take writes. One that became a standby keeps its connections, answers reads and refuses every
/// transition: connections to it are closed, and the next ones go where the address leads now.
#[derive(Debug)]
struct Servers {
    begun: Instant,
    /// In milliseconds.
    asked_next: AtomicU64,
    doubted_until: AtomicU64,
}

impl Servers {
    /// Checks whether a connection that comes back is to be asked: one now and then, and every one for a while after a standby was found.
    fn are_asked(&self) -> bool {
        let (now, next) = (self.now(), self.asked_next.load(Ordering::Relaxed));
        let is_next = || {
            let after = now + ASKED_EVERY.as_millis() as u64;
            now >= next && self.asked_next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        now < self.doubted_until.load(Ordering::Relaxed) || is_next()
    }

    async fn takes_writes(&self, connection: &mut PgConnection) -> sqlx::Result<bool> {
        let asked =
            sqlx::query_scalar("select current_setting('transaction_read_only')::boolean").fetch_one(connection);
        let is_read_only: bool = match tokio::time::timeout(PING_TIMEOUT, asked).await {
            Ok(answer) => answer?,
            Err(_) => return Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        };
        if is_read_only {
            self.doubted_until.store(self.now() + DOUBTED_FOR.as_millis() as u64, Ordering::Relaxed);
        }
        Ok(!is_read_only)
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }
}

/// SET takes no parameters; a project id prints as hex digits and dashes, nothing else.
fn begin(project_id: ProjectId) -> String {
    format!("begin; set local waybill.project = '{project_id}'")
}

/// Who does something, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// `key:NAME`, `user:SUBJECT`, `cli:USER`.
    pub name: String,
    /// `None` means the database's own view of who is connected.
    pub address: Option<IpAddr>,
}

impl Actor {
    /// A name may hold anything, so it goes as hex digits.
    fn enters(&self) -> String {
        let name: String = self.name.bytes().map(|byte| format!("{byte:02x}")).collect();
        let address = self.address.map(|address| address.to_string()).unwrap_or_default();
        format!(
            "; select set_config('waybill.actor', convert_from(decode('{name}', 'hex'), 'UTF8'), true), set_config('waybill.address', '{address}', true)"
        )
    }
}

/// Sets the user of the caller on whose behalf turns are started from here on in this unit of work.
pub async fn on_behalf_of(work: &mut UnitOfWork, user: &str) -> sqlx::Result<()> {
    sqlx::query("select set_config('waybill.on_behalf_of', $1, true)").bind(user).execute(&mut **work).await?;
    Ok(())
}

const RESTED: Duration = Duration::from_millis(500);
const PING_TIMEOUT: Duration = Duration::from_millis(500);
const ASKED_EVERY: Duration = Duration::from_millis(250);
const DOUBTED_FOR: Duration = Duration::from_secs(60);

async fn ping(connection: &mut PgConnection) -> sqlx::Result<()> {
    let answer = tokio::time::timeout(PING_TIMEOUT, connection.ping()).await;
    answer.unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))
}

/// Reads a URL without letting its password out, and returns where it points.
pub(crate) fn connect_options(url: &SecretString) -> Result<(PgConnectOptions, String), Error> {
    let options: PgConnectOptions = url.expose_secret().parse().map_err(|_| Error::Url)?;
    let place = format!("{}:{}/{}", options.get_host(), options.get_port(), options.get_database().unwrap_or_default());
    Ok((options, place))
}

/// Where a transition runs: beside others in a [`UnitOfWork`], or [`Alone`].
///
/// A transition is one statement that calls a function in the database, so that alone it is a whole transaction. What it
/// refuses it raises, so that in a unit of work nothing of it, or of what was written before, can be committed.
pub trait Work: Send {
    /// Whether the transition is the whole transaction.
    const ALONE: bool;

    fn project_id(&self) -> ProjectId;

    fn connection(&mut self) -> &mut PgConnection;

    /// Rings once what was written is true: at once where it is, else after the commit.
    fn ring(&mut self, door: Door);
}

/// A connection whose every transition is a transaction of its own.
#[derive(Debug)]
pub struct Alone {
    connection: PoolConnection<Postgres>,
    project_id: ProjectId,
    bus: Arc<dyn Bus>,
}

impl Work for Alone {
    const ALONE: bool = true;

    fn project_id(&self) -> ProjectId {
        self.project_id
    }

    fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    fn ring(&mut self, door: Door) {
        self.bus.ring(Bell { project_id: self.project_id, door });
    }
}

impl Work for UnitOfWork {
    const ALONE: bool = false;

    fn project_id(&self) -> ProjectId {
        self.project_id
    }

    fn connection(&mut self) -> &mut PgConnection {
        self
    }

    fn ring(&mut self, door: Door) {
        self.rings.insert(door);
    }
}

/// One transaction in one project, and the doors to ring once it has committed. Dropped without `commit`, it rolls back and
/// rings no door.
#[derive(Debug)]
pub struct UnitOfWork {
    /// Present until the transaction has ended.
    connection: Option<PoolConnection<Postgres>>,
    project_id: ProjectId,
    refused: bool,
    bus: Arc<dyn Bus>,
    rings: BTreeSet<Door>,
    /// What it wrote to the audit. Logged once it has committed.
    pub(crate) recorded: Vec<Recorded>,
}

/// One audit entry, as it is logged.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub audit_id: AuditId,
    pub actor: String,
    pub action: String,
    pub subject: String,
}

impl UnitOfWork {
    pub fn project_id(&self) -> ProjectId {
        self.project_id
    }

    /// Commits everything, or returns an error and nothing is written: also if an error on the way was ignored.
    pub async fn commit(mut self) -> Result<(), Error> {
        if self.refused {
            return Err(Error::Refused);
        }
        // PostgreSQL answers COMMIT of a failed transaction with a quiet ROLLBACK. The empty select before it does not.
        let committed = sqlx::raw_sql("select; commit").execute(&mut *self).await;
        if committed.is_ok() {
            self.connection = None;
        }
        // Also if we cannot know whether it was committed: a ring too many costs one look.
        for door in std::mem::take(&mut self.rings) {
            self.bus.ring(Bell { project_id: self.project_id, door });
        }
        // A command's own output says what it did.
        let recorded = std::mem::take(&mut self.recorded);
        for Recorded { audit_id, actor, action, subject } in
            recorded.into_iter().filter(|one| !one.actor.starts_with("cli:"))
        {
            let certain = committed.is_ok();
            tracing::info!(target: "waybill::audit", %audit_id, project = %self.project_id, actor, action, subject, certain, "recorded in the audit");
        }
        committed?;
        Ok(())
    }

    /// Ends the transaction, by `commit` or `rollback`, and opens another that cannot be committed: so that a refusal can be written down in a
    /// transaction of its own.
    pub(crate) async fn start_over(&mut self, end: &str) -> sqlx::Result<()> {
        self.refused = true;
        let sql = format!("{end}; {}", begin(self.project_id));
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **self).await?;
        Ok(())
    }

    /// Passes an error on, and keeps what was written before it from being committed.
    pub(crate) fn refuse<E>(&mut self, error: E) -> E {
        self.refused = true;
        error
    }
}

impl Drop for UnitOfWork {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                let rolled_back =
                    tokio::time::timeout(PING_TIMEOUT, sqlx::raw_sql("rollback").execute(&mut *connection));
                if !matches!(rolled_back.await, Ok(Ok(_))) {
                    connection.close_on_drop();
                }
            })),
            Err(_) => connection.close_on_drop(),
        }
    }
}

impl Deref for UnitOfWork {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("the transaction is open until commit takes the value")
    }
}

impl DerefMut for UnitOfWork {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("the transaction is open until commit takes the value")
    }
}

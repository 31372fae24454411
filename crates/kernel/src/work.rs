//! The connection to the truth: [`Kernel`], and [`UnitOfWork`], one transaction in one project.

use std::{
    collections::BTreeSet,
    fmt,
    net::IpAddr,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    AssertSqlSafe, Connection, FromRow, PgConnection, PgPool, Postgres,
    postgres::{PgArguments, PgConnectOptions, PgDatabaseError, PgRow},
    query::QueryAs,
};
use waybill_core::{
    bus::{Bell, Bus, Door, Silent},
    id::{AuditId, ProjectId},
};

use crate::{
    check,
    connections::{Connections, Lease},
    retry::Transient,
};

pub use crate::connections::Counts;

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

/// A request to the database that failed: what the server or the connection said.
#[derive(Debug)]
pub struct DbError(pub(crate) sqlx::Error);

impl From<sqlx::Error> for DbError {
    fn from(error: sqlx::Error) -> DbError {
        DbError(error)
    }
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lacks_partition() {
            return f.write_str(
                "history has no partition for this row: run `waybill admin extend-partitions`, and keep an orchestrator running; history \
                 from before the oldest partition cannot be written",
            );
        }
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for DbError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.0)
    }
}

impl DbError {
    /// Checks whether a row of history found no partition: none was made for its time, or it was dropped. A retry does not help.
    pub fn lacks_partition(&self) -> bool {
        let refusal = self.0.as_database_error().and_then(|refusal| refusal.try_downcast_ref::<PgDatabaseError>());
        // The server's text depends on its language; the place in its source does not.
        refusal.is_some_and(|refusal| refusal.code() == "23514" && refusal.routine() == Some("ExecFindPartition"))
    }

    /// Checks whether the database accepts no connections at the moment: `allow_connections` is off, as during maintenance.
    fn is_closed(&self) -> bool {
        let refusal = self.0.as_database_error().and_then(|refusal| refusal.try_downcast_ref::<PgDatabaseError>());
        refusal.is_some_and(|refusal| refusal.code() == "55000" && refusal.routine() == Some("CheckMyDatabase"))
    }

    /// Returns the error of a request that got no answer in time.
    pub fn no_answer() -> DbError {
        DbError(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))
    }

    /// Checks whether a statement took longer than the server allows. The server or the statement may be at fault: it is retried, but not for ever.
    pub fn timed_out(&self) -> bool {
        self.has_code("57014")
    }

    /// Checks whether a value cannot be stored: a text with U+0000, or a number beyond its column.
    pub fn is_invalid_value(&self) -> bool {
        self.has_code("22")
    }

    /// Returns what to do where no connection could be made.
    fn advice(&self) -> &'static str {
        use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
        match &self.0 {
            sqlx::Error::Io(error) => match error.kind() {
                ConnectionRefused => {
                    "no server listens there. Start PostgreSQL, or correct the host and the port in the URL"
                }
                TimedOut | HostUnreachable | NetworkUnreachable => {
                    "the host does not answer. Check the network, or correct the host in the URL"
                }
                _ => "the host cannot be reached. Correct the host and the port in the URL",
            },
            sqlx::Error::Tls(_) => "TLS failed. Check the certificate of the server, and `sslmode` in the URL",
            sqlx::Error::Database(_) if self.has_code("28P01") => {
                "the password is wrong. Correct it in the URL, or set it with `alter role LOGIN password '…'`"
            }
            sqlx::Error::Database(_) if self.has_code("28") => {
                "the server does not accept this login. Correct the login in the URL, or allow it in pg_hba.conf; `waybill migrate` creates the \
                 logins of Waybill"
            }
            sqlx::Error::Database(_) if self.has_code("3D000") => {
                "the server has no such database. Correct its name in the URL, or create it with `createdb` and run `waybill migrate`"
            }
            sqlx::Error::Database(_) if self.has_code("42501") => {
                "the login may not connect to this database. Use the login that Waybill has for this process"
            }
            sqlx::Error::Database(_) if self.has_code("53300") => {
                "the server has no free connection. End other programs, or raise `max_connections`"
            }
            sqlx::Error::Database(_) if self.has_code("57P03") => "the server is starting or stopping. Try again soon",
            _ => "check the URL and the log of the server",
        }
    }

    /// Checks whether another transaction was in the way: a lock that was not to be had in time, a deadlock, or a conflict.
    pub fn is_contended(&self) -> bool {
        ["55P03", "40P01", "40001"].iter().any(|code| self.has_code(code))
    }

    /// Checks whether the server answered with this SQLSTATE, or with one that begins so.
    pub(crate) fn has_code(&self, code: &str) -> bool {
        let refusal = self.0.as_database_error();
        refusal.and_then(|refusal| refusal.code()).is_some_and(|found| found.starts_with(code))
    }
}

impl Transient for DbError {
    fn is_transient(&self) -> bool {
        match &self.0 {
            // Connections, resources, the operator; 25006: a server that only reads since a failover; and 25P03: we slept in a transaction, and
            // the server ended it.
            sqlx::Error::Database(_) => {
                let codes = ["08", "53", "57", "25006", "25P03"];
                codes.iter().any(|code| self.has_code(code)) || self.is_closed()
            }
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => true,
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => true,
            _ => false,
        }
    }
}

/// Lets `?` turn an error of the driver into the error of a module that holds a [`DbError`].
macro_rules! from_driver {
    ($error:ty) => {
        impl From<sqlx::Error> for $error {
            fn from(error: sqlx::Error) -> $error {
                $crate::work::DbError::from(error).into()
            }
        }
    };
}
pub(crate) use from_driver;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the database URL is not valid: write postgres://USER:PASSWORD@HOST:PORT/DATABASE")]
    Url,
    #[error("cannot connect to the database at {place}: {}", .source.advice())]
    Unreachable { place: String, source: DbError },
    #[error(transparent)]
    Unfit(#[from] check::Unfit),
    #[error("an earlier change in the same transaction was refused, so nothing was written")]
    Refused,
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// The service's connections, and the bus that it rings on. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kernel {
    connections: Arc<Connections>,
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
        // Tried once by hand: a lease goes on trying a server that is not there.
        let first = PgConnection::connect_with(&options).await;
        first.map_err(|source| Error::Unreachable { place, source: source.into() })?;
        let connections = Arc::new(Connections::new(options, config.max_connections));
        Ok(Kernel { connections, bus: Arc::new(Silent) })
    }

    /// Returns the same kernel with a bus to ring on. Without one no process is rung, and work is found by looking.
    pub fn on(self, bus: Arc<dyn Bus>) -> Kernel {
        Kernel { bus, ..self }
    }

    pub fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    /// Opens a transaction that sees one project and no other. One round trip.
    pub async fn begin(&self, project_id: ProjectId) -> Result<UnitOfWork, DbError> {
        self.begin_with(project_id, begin(project_id)).await
    }

    async fn begin_with(&self, project_id: ProjectId, sql: String) -> Result<UnitOfWork, DbError> {
        let connection = Some(self.lease().await?);
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
    pub async fn begin_as(&self, project_id: ProjectId, actor: &Actor) -> Result<UnitOfWork, DbError> {
        self.begin_with(project_id, begin(project_id) + &actor.enters()).await
    }

    /// Opens a transaction that sees one project and whose statements ask for another: so that a test can check that the database alone keeps
    /// projects apart.
    #[cfg(debug_assertions)]
    pub async fn begin_mistaken(&self, project_id: ProjectId, asked: ProjectId) -> Result<UnitOfWork, DbError> {
        let mut work = self.begin(project_id).await?;
        work.project_id = asked;
        Ok(work)
    }

    /// Returns a connection on which every transition is a transaction of its own, in one round trip.
    pub async fn alone(&self, project_id: ProjectId) -> Result<Alone, DbError> {
        Ok(Alone { connection: self.lease().await?, project_id, bus: self.bus.clone() })
    }

    /// Returns a connection for statements that belong to no project: the scheduler's functions and the checks.
    pub(crate) async fn lease(&self) -> sqlx::Result<Lease> {
        self.connections.lease().await
    }

    /// Closes the connections that are free.
    pub async fn close(&self) {
        self.connections.close().await;
    }

    pub fn connections(&self) -> Counts {
        self.connections.counts()
    }

    /// Returns a pool beside the kernel's own connections, for the SQL of tests and of the laboratory.
    pub fn pool(&self) -> &PgPool {
        self.connections.apart()
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
pub async fn on_behalf_of(work: &mut UnitOfWork, user: &str) -> Result<(), DbError> {
    sqlx::query("select set_config('waybill.on_behalf_of', $1, true)").bind(user).execute(&mut **work).await?;
    Ok(())
}

/// How long a rollback may take before its connection is closed.
const ROLLBACK_TIMEOUT: Duration = Duration::from_millis(500);

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

    /// Notes whether the statement of a transition came to its end: then its connection can serve others without a question.
    fn settle<T>(&mut self, _answer: &sqlx::Result<T>) {}

    /// Rings once what was written is true: at once where it is, else after the commit.
    fn ring(&mut self, door: Door);
}

/// Runs the statement of a transition, which answers with one row.
pub(crate) async fn one<T>(work: &mut impl Work, statement: Statement<'_, T>) -> sqlx::Result<T>
where
    T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    let answer = statement.fetch_one(work.connection()).await;
    work.settle(&answer);
    answer
}

/// Runs the statement of a transition, which answers with any number of rows.
pub(crate) async fn all<T>(work: &mut impl Work, statement: Statement<'_, T>) -> sqlx::Result<Vec<T>>
where
    T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    let answer = statement.fetch_all(work.connection()).await;
    work.settle(&answer);
    answer
}

type Statement<'q, T> = QueryAs<'q, Postgres, T, PgArguments>;

/// A connection whose every transition is a transaction of its own.
#[derive(Debug)]
pub struct Alone {
    connection: Lease,
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

    fn settle<T>(&mut self, answer: &sqlx::Result<T>) {
        self.connection.settle(answer);
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
    connection: Option<Lease>,
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
        if committed.is_ok()
            && let Some(mut lease) = self.connection.take()
        {
            lease.settle(&committed);
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
                let rollback = sqlx::raw_sql("rollback").execute(&mut *connection);
                match tokio::time::timeout(ROLLBACK_TIMEOUT, rollback).await {
                    Ok(rolled_back @ Ok(_)) => connection.settle(&rolled_back),
                    _ => connection.discard(),
                }
            })),
            Err(_) => connection.discard(),
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

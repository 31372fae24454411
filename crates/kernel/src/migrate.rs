//! Migrations: forward only, run as the owner of the database, never as the service.

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use secrecy::SecretString;
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Row, SqlSafeStr,
    migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator},
};

use waybill_core::error::causes;

use crate::{
    check, retention,
    work::{self, DbError, connect_options, from_driver},
};

const MIGRATIONS: [(i64, &str, &str); 11] = [
    (1, "roles", include_str!("../migrations/0001_roles.sql")),
    (2, "cardbox", include_str!("../migrations/0002_cardbox.sql")),
    (3, "resource", include_str!("../migrations/0003_resource.sql")),
    (4, "state", include_str!("../migrations/0004_state.sql")),
    (5, "registry", include_str!("../migrations/0005_registry.sql")),
    (6, "handover", include_str!("../migrations/0006_handover.sql")),
    (7, "keys", include_str!("../migrations/0007_keys.sql")),
    (8, "artifacts", include_str!("../migrations/0008_artifacts.sql")),
    (9, "sources", include_str!("../migrations/0009_sources.sql")),
    (10, "watching", include_str!("../migrations/0010_watching.sql")),
    (11, "recording", include_str!("../migrations/0011_recording.sql")),
];

/// The transitions: functions, each beside the Rust that calls it. Created again by every migration.
pub const FUNCTIONS: [&str; 33] = [
    include_str!("work.sql"),
    include_str!("external.sql"),
    include_str!("card.sql"),
    include_str!("artifact.sql"),
    include_str!("outbox.sql"),
    include_str!("blackboard.sql"),
    include_str!("handover.sql"),
    include_str!("budget.sql"),
    include_str!("batch.sql"),
    include_str!("turn/enqueue.sql"),
    include_str!("turn/claim.sql"),
    include_str!("turn/step.sql"),
    include_str!("turn/report.sql"),
    include_str!("turn/finish.sql"),
    include_str!("turn/steer.sql"),
    include_str!("turn/stop.sql"),
    include_str!("turn/reclaim.sql"),
    include_str!("call.sql"),
    include_str!("request.sql"),
    include_str!("lease.sql"),
    include_str!("key.sql"),
    include_str!("knowledge.sql"),
    include_str!("turn/look.sql"),
    include_str!("session.sql"),
    include_str!("record.sql"),
    include_str!("sweep.sql"),
    include_str!("retention.sql"),
    include_str!("retain.sql"),
    include_str!("turn/list.sql"),
    include_str!("turn/graph.sql"),
    include_str!("now.sql"),
    include_str!("vitals.sql"),
    include_str!("grants.sql"),
];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Connect(#[from] work::Error),
    #[error(
        "{place} is a pooler in transaction mode, and the owner's commands need a session: set WAYBILL_OWNER_URL to the server itself, or \
         to a pooler in session mode"
    )]
    Pooled { place: String },
    /// What is missing, and the statements with which an administrator adds it.
    #[error("{0}")]
    Roles(String),
    #[error("the migration failed and was rolled back")]
    Migrate(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("a table was locked for five minutes: end the dump or long query that uses it, or try again later")]
    Busy(#[source] Box<Error>),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

impl Error {
    /// Checks whether the database has migrations that this build does not have, or has in another form.
    pub fn is_of_another_build(&self) -> bool {
        use MigrateError::{VersionMismatch, VersionMissing, VersionTooNew, VersionTooOld};
        let Error::Migrate(source) = self else { return false };
        let found = source.downcast_ref::<MigrateError>();
        matches!(found, Some(VersionMismatch(_) | VersionMissing(_) | VersionTooNew(..) | VersionTooOld(..)))
    }
}

/// One migration, for people.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Applied {
    pub version: i64,
    pub name: String,
}

/// Returns the fingerprint of the migrated schema: it changes whenever a migration does.
pub fn fingerprint() -> String {
    let functions = migration(0, "functions", FUNCTIONS.concat());
    let mut hasher = DefaultHasher::new();
    migrator().iter().chain([&functions]).for_each(|migration| migration.checksum.hash(&mut hasher));
    format!("{:016x}", hasher.finish())
}

/// Returns the version that a database must be at to be served by this binary.
pub fn newest() -> i64 {
    MIGRATIONS[MIGRATIONS.len() - 1].0
}

/// The oldest version whose processes may go on with this version's schema: a rolling upgrade begins with `waybill migrate`. Until the first
/// release it is the newest: the migrations themselves are changed.
pub const OLDEST: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// Connects as the owner: for migrations and the few operations beyond the service's rights. These hold locks and settings from one transaction to
/// the next, so a pooler that changes the server's session between them is refused.
pub async fn connect_owner(owner_url: &SecretString) -> Result<PgConnection, Error> {
    let (options, place) = connect_options(owner_url)?;
    let connect = async || {
        let made = PgConnection::connect_with(&options).await;
        made.map_err(|source| work::Error::Unreachable { place: place.clone(), source: source.into() })
    };
    let (mut owner, mut other) = (connect().await?, connect().await?);
    if shares_sessions(&mut owner, &mut other).await? {
        return Err(Error::Pooled { place });
    }
    other.close().await?;
    Ok(owner)
}

/// Checks whether two connections get sessions of the server in turn, as a pooler in transaction mode gives them. While the one is in a transaction,
/// the other has another session than before, or its session is the one's.
async fn shares_sessions(owner: &mut PgConnection, other: &mut PgConnection) -> sqlx::Result<bool> {
    // More than once: other clients of the pooler take and give back sessions too.
    for _ in 0..5 {
        let before = session(owner, "select pg_backend_pid()").await?;
        if session(other, "begin; select pg_backend_pid()").await? == before
            || session(owner, "select pg_backend_pid()").await? != before
        {
            return Ok(true);
        }
        sqlx::raw_sql("rollback").execute(&mut *other).await?;
    }
    Ok(false)
}

/// Returns the process of the server that answers. As plain text: a pooler may not know prepared statements.
async fn session(connection: &mut PgConnection, sql: &'static str) -> sqlx::Result<i32> {
    sqlx::raw_sql(sql).fetch_one(connection).await?.try_get(0)
}

/// Turns wait behind a migration that waits for a table: so it waits only for a moment, and retries.
const LOCK_TIMEOUT: &str = "set lock_timeout = '250ms'";
const PAUSE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(300);

/// Brings the schema up to date and returns what it did. Doing it twice changes nothing. A table that is in use is retried for five minutes.
pub async fn run(owner: &mut PgConnection, mut progress: impl FnMut(&Applied)) -> Result<Vec<Applied>, Error> {
    sqlx::raw_sql(LOCK_TIMEOUT).execute(&mut *owner).await?;
    let begun = Instant::now();
    let mut done = Vec::new();
    loop {
        match try_run(owner, &mut done, &mut progress).await {
            Ok(()) => break,
            Err(error) if !is_locked(&error) => return Err(error),
            Err(error) if begun.elapsed() > PATIENCE => return Err(Error::Busy(Box::new(error))),
            Err(error) => tracing::warn!(cause = causes(&error), "a table is in use: trying again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    sqlx::raw_sql("reset lock_timeout").execute(&mut *owner).await?;
    // Where a table is in use, the orchestrator makes its partitions later.
    match retention::extend(&mut *owner).await {
        Err(retention::Error::InUse(_)) | Ok(_) => Ok(done),
        Err(retention::Error::Db(error)) => Err(error.into()),
        Err(error) => unreachable!("extending only asks the database: {error}"),
    }
}

async fn try_run(
    owner: &mut PgConnection,
    done: &mut Vec<Applied>,
    progress: &mut impl FnMut(&Applied),
) -> Result<(), Error> {
    let migrator = migrator();
    let known = applied(owner).await;
    for migration in migrator.iter().filter(|m| !known.contains(&m.version)) {
        let applied = Applied { version: migration.version, name: migration.description.to_string() };
        progress(&applied);
        migrator.run_to(migration.version, &mut *owner).await.map_err(failed)?;
        done.push(applied);
    }
    migrator.run(&mut *owner).await.map_err(failed)?; // verifies the checksums of what was there before
    let functions = async {
        sqlx::raw_sql(AssertSqlSafe(format!("begin; {}", FUNCTIONS.concat()))).execute(&mut *owner).await?;
        stamp(owner, newest(), OLDEST).await
    };
    let installed = functions.await;
    let end = if installed.is_ok() { "commit" } else { "rollback" };
    sqlx::raw_sql(end).execute(&mut *owner).await?;
    installed
}

fn failed(error: MigrateError) -> Error {
    let refusal = match &error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.as_database_error(),
        _ => None,
    };
    match refusal {
        // Without what the driver writes around it, since people copy the statements.
        Some(refusal) if refusal.code().as_deref() == Some("42501") && refusal.message().contains('\n') => {
            Error::Roles(refusal.message().to_owned())
        }
        _ => Error::Migrate(error.into()),
    }
}

/// Checks whether a lock could not be had in time.
fn is_locked(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let driver = error.downcast_ref::<DbError>().map(|error| &error.0).or_else(|| error.downcast_ref());
        let refusal = driver.and_then(|error| error.as_database_error());
        if refusal.is_some_and(|refusal| refusal.code().as_deref() == Some("55P03")) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Records the schema's version, the oldest version whose processes it serves, and the digest of its walls.
#[doc(hidden)]
pub async fn stamp(owner: &mut PgConnection, version: i64, oldest: i64) -> Result<(), Error> {
    sqlx::query(
        "insert into waybill.schema (version, oldest, walls) values ($1, $2, $3)
             on conflict (singleton) do update set version = excluded.version, oldest = excluded.oldest, walls = excluded.walls",
    )
    .bind(version)
    .bind(oldest)
    .bind(check::walls(&mut *owner).await?)
    .execute(&mut *owner)
    .await?;
    Ok(())
}

/// A database that was never migrated has no such table; the migrator makes it.
async fn applied(owner: &mut PgConnection) -> Vec<i64> {
    let listed = owner.list_applied_migrations("waybill.migrations").await;
    listed.map(|list| list.into_iter().map(|m| m.version).collect()).unwrap_or_default()
}

fn migrator() -> Migrator {
    let migrations = MIGRATIONS.map(|(version, name, sql)| migration(version, name, sql.to_owned())).to_vec();
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.create_schema("waybill");
    migrator.dangerous_set_table_name("waybill.migrations");
    migrator
}

fn migration(version: i64, name: &'static str, sql: String) -> Migration {
    Migration::new(version, Cow::Borrowed(name), MigrationType::Simple, AssertSqlSafe(sql).into_sql_str(), false)
}

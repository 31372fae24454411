//! For tests only: a fresh database for each test, cloned from a migrated template.
//!
//! Nothing is dropped when a test ends, so that a failure can be looked at; databases older than an hour are swept
//! by whoever comes next. Tests that run many small programs use one database and a project for each.

use std::time::{Duration, SystemTime};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;
use waybill_core::id::ProjectId;
use waybill_kernel::{
    migrate,
    work::{Config, Kernel, UnitOfWork},
};
use waybill_lab::services::{Server, Shared};

const KEPT: Duration = Duration::from_secs(3600);

/// One test's own database.
#[derive(Debug)]
pub struct TestDb {
    pub kernel: Kernel,
    pub server: Server,
    pub name: String,
    /// A project to work in. Others are a `ProjectId::new()` away.
    pub project_id: ProjectId,
}

impl TestDb {
    /// As the owner of the schema, who may migrate and erase.
    pub async fn owner(&self) -> PgConnection {
        PgConnection::connect(&self.server.owner_url(&self.name)).await.expect("the owner can connect")
    }

    /// As the administrator of the server, whom nothing but the triggers stops.
    pub async fn admin(&self) -> PgConnection {
        PgConnection::connect(&self.server.admin_url(&self.name)).await.expect("the administrator can connect")
    }

    /// A unit of work in the test's own project.
    pub async fn begin(&self) -> UnitOfWork {
        self.kernel.begin(self.project_id).await.expect("the service can begin")
    }
}

/// A migrated database that no other test sees.
pub async fn fresh_db() -> TestDb {
    let server = Shared::get().await.expect("the shared services run").postgres;
    let template = ensure_template(&server).await.expect("the template is migrated");
    let name = format!("test_{}", Uuid::now_v7().simple());
    let mut admin = server.admin().await.expect("the administrator can connect");
    let sql = format!("create database {name} template {template} owner {:?}", server.owner());
    sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await.expect("a database can be cloned");
    let kernel =
        Kernel::connect_unchecked(&Config::new(server.service_url(&name))).await.expect("the service can connect");
    TestDb { kernel, server, name, project_id: ProjectId::new() }
}

/// An empty database, for tests of the migrations themselves.
pub async fn empty_db() -> (Server, String) {
    let server = Shared::get().await.expect("the shared services run").postgres;
    let name = format!("test_{}", Uuid::now_v7().simple());
    server.create_database(&name).await.expect("a database can be made");
    (server, name)
}

async fn ensure_template(server: &Server) -> sqlx::Result<String> {
    let name = format!("waybill_template_{}", migrate::fingerprint());
    let mut admin = server.admin().await.expect("the administrator can connect");
    // Test processes run side by side: one makes the template, the others wait.
    sqlx::query("select pg_advisory_lock(20260001)").execute(&mut admin).await?;
    let exists: bool =
        sqlx::query_scalar("select exists (select from pg_database where datname = $1 and datistemplate)")
            .bind(&name)
            .fetch_one(&mut admin)
            .await?;
    if !exists {
        sweep(&mut admin, &name).await?;
        server.create_database(&name).await.expect("a database can be made");
        let mut owner = PgConnection::connect(&server.owner_url(&name)).await?;
        migrate::run(&mut owner, |_| ()).await.expect("the migrations run");
        owner.close().await?;
        server.open_service_login().await.expect("the service can log in");
        let sql = format!("alter database {name} is_template true");
        sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await?;
    }
    sweep(&mut admin, "").await?;
    admin.close().await?; // gives the lock back
    Ok(name)
}

/// Drops test databases older than an hour, and one by name: a template whose making was cut off.
async fn sweep(admin: &mut PgConnection, broken: &str) -> sqlx::Result<()> {
    let names: Vec<String> =
        sqlx::query_scalar("select datname from pg_database where datname like 'test\\_%' or datname = $1")
            .bind(broken)
            .fetch_all(&mut *admin)
            .await?;
    for name in names.into_iter().filter(|name| name == broken || is_old(name)) {
        let sql = format!("drop database if exists {name} with (force)");
        sqlx::query(AssertSqlSafe(sql)).execute(&mut *admin).await?;
    }
    Ok(())
}

fn is_old(name: &str) -> bool {
    let made = name.strip_prefix("test_").and_then(|id| Uuid::parse_str(id).ok()).and_then(|id| id.get_timestamp());
    let Some((seconds, _)) = made.map(|timestamp| timestamp.to_unix()) else { return false };
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    age.is_ok_and(|age| age > KEPT)
}

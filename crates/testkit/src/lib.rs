//! For tests only: a fresh database for each test, cloned from a migrated template, and a bus that records the doors that were rung.
//!
//! Nothing is dropped when a test ends, so that a failure can be examined. A later test sweeps databases older than an hour.
//! Tests that run many small programs use one database and a project for each program.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use futures::stream::{self, BoxStream};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;
use waybill_core::{
    bus::{Bell, Bus, Chunk, Door},
    id::{AgentId, BoxId, ProjectId, StepId, TurnId},
    turn::Usage,
};
use waybill_kernel::{
    migrate,
    record::{Mark, NewRecording, RecordedCall},
    work::{Config, Kernel, UnitOfWork},
};
use waybill_services::{Server, Shared};

pub mod pooler;

const KEPT: Duration = Duration::from_secs(3600);

/// The database of one test.
#[derive(Debug)]
pub struct TestDb {
    pub kernel: Kernel,
    /// The bus that the kernel uses.
    pub bus: Arc<Recording>,
    pub server: Server,
    pub name: String,
    /// A project to work in. `ProjectId::new()` gives another.
    pub project_id: ProjectId,
}

impl TestDb {
    /// Looks through all rows of all tables: returns how many there are, and the tables in which a regular expression is found.
    pub async fn search(&self, pattern: &str) -> (i64, Vec<String>) {
        let mut admin = self.admin().await;
        let tables: Vec<String> = sqlx::query_scalar(
            "select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname in ('cardbox', 'resource', 'state') and c.relkind in ('r', 'p') order by 1",
        )
        .fetch_all(&mut admin)
        .await
        .expect("the catalog can be read");
        let (mut n_rows, mut found) = (0, Vec::new());
        for table in tables {
            let sql = format!("select count(*), count(*) filter (where t::text ~ $1) from {table} t");
            let query = sqlx::query_as::<_, (i64, i64)>(AssertSqlSafe(sql)).bind(pattern);
            let (n, n_found) = query.fetch_one(&mut admin).await.expect("a table can be read");
            n_rows += n;
            if n_found > 0 {
                found.push(table);
            }
        }
        (n_rows, found)
    }

    /// Connects as the owner of the schema, who may migrate and erase.
    pub async fn owner(&self) -> PgConnection {
        PgConnection::connect(&self.server.owner_url(&self.name)).await.expect("the owner can connect")
    }

    /// Connects as the administrator of the server. Only the triggers limit it.
    pub async fn admin(&self) -> PgConnection {
        PgConnection::connect(&self.server.admin_url(&self.name)).await.expect("the administrator can connect")
    }

    /// Arms the fail points (marks `--! name` between the statements of the transitions): from here on [`TestDb::fail_at`] and
    /// [`TestDb::pause_at`] work in this database. In other databases the marks are comments.
    pub async fn arm_fail_points(&self) {
        let armed: String = migrate::FUNCTIONS
            .concat()
            .lines()
            .map(|line| match line.trim().strip_prefix("--! ") {
                Some(name) => format!("perform waybill.fail_point('{name}');\n"),
                None => format!("{line}\n"),
            })
            .collect();
        let mut admin = self.admin().await;
        sqlx::raw_sql(include_str!("fail_point.sql")).execute(&mut admin).await.expect("fail points can be made");
        sqlx::raw_sql(AssertSqlSafe(armed)).execute(&mut self.owner().await).await.expect("the functions can be armed");
    }

    /// Returns the names of all fail points.
    pub fn fail_points() -> Vec<&'static str> {
        migrate::FUNCTIONS.iter().flat_map(|sql| sql.lines()).filter_map(|l| l.trim().strip_prefix("--! ")).collect()
    }

    /// Makes every connection that reaches this fail point break there. `None` means no fail point.
    pub async fn fail_at(&self, name: Option<&str>) {
        self.set_fail_point(name.map(|name| (name, "fail"))).await;
    }

    /// Makes every connection that reaches this fail point wait there until [`Paused::resume`].
    pub async fn pause_at(&self, name: &str) -> Paused<'_> {
        let mut gate = self.admin().await;
        sqlx::query("select pg_advisory_lock(4711)").execute(&mut gate).await.expect("no other connection has it");
        self.set_fail_point(Some((name, "pause"))).await;
        Paused { t: self, gate }
    }

    async fn set_fail_point(&self, point: Option<(&str, &str)>) {
        let (name, action) = point.unzip();
        sqlx::query("update waybill.fail_points set name = $1, action = $2")
            .bind(name)
            .bind(action)
            .execute(&mut self.admin().await)
            .await
            .expect("fail points are armed");
    }

    /// Waits until `n` connections of this database wait for a lock.
    pub async fn until_blocked(&self, n: i64) {
        let mut admin = self.admin().await;
        let blocked =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        for _ in 0..400 {
            if sqlx::query_scalar::<_, i64>(blocked).fetch_one(&mut admin).await.expect("it can be asked") >= n {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("fewer than {n} connections wait for a lock");
    }

    /// Returns the number that a query gives the administrator, who sees all projects.
    pub async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&mut self.admin().await).await.expect("it can be counted")
    }

    /// Begins a unit of work in the test's own project.
    pub async fn begin(&self) -> UnitOfWork {
        self.kernel.begin(self.project_id).await.expect("the service can begin")
    }
}

/// A bus without listeners that records the doors that were rung.
#[derive(Debug, Default)]
pub struct Recording(Mutex<Vec<Bell>>);

impl Recording {
    /// Returns the doors that were rung since the last call.
    pub fn rung(&self) -> Vec<Door> {
        let bells = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        bells.into_iter().map(|bell| bell.door).collect()
    }
}

impl Bus for Recording {
    fn ring(&self, bell: Bell) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(bell);
    }

    fn hear(&self, _: &Door) -> BoxStream<'static, ()> {
        Box::pin(stream::pending())
    }

    fn is_up(&self) -> bool {
        true
    }

    fn send(&self, _: Chunk) {}

    fn watch(&self, _: ProjectId, _: AgentId) -> BoxStream<'static, Vec<u8>> {
        Box::pin(stream::pending())
    }
}

/// A fail point where connections wait.
#[derive(Debug)]
pub struct Paused<'t> {
    t: &'t TestDb,
    gate: PgConnection,
}

impl Paused<'_> {
    /// Waits until a connection has reached the fail point. Later ones pass it without waiting.
    pub async fn reached(&self) {
        self.t.until_blocked(1).await;
        self.t.set_fail_point(None).await;
    }

    /// Lets the waiting connection continue.
    pub async fn resume(self) {
        self.gate.close().await.expect("the gate opens");
    }
}

/// Creates a migrated database that no other test sees.
pub async fn fresh_db() -> TestDb {
    let server = Shared::get().await.expect("the shared services run").postgres;
    let template = ensure_template(&server).await.expect("the template is migrated");
    let name = format!("test_{}", Uuid::now_v7().simple());
    let mut admin = server.admin().await.expect("the administrator can connect");
    let sql = format!("create database {name} template {template} owner {:?}", server.owner());
    sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await.expect("a database can be cloned");
    let kernel =
        Kernel::connect_unchecked(&Config::new(server.service_url(&name))).await.expect("the service can connect");
    let bus = Arc::new(Recording::default());
    TestDb { kernel: kernel.on(bus.clone()), bus, server, name, project_id: ProjectId::new() }
}

/// Creates an empty database, for tests of the migrations themselves.
pub async fn empty_db() -> (Server, String) {
    let server = Shared::get().await.expect("the shared services run").postgres;
    let name = format!("test_{}", Uuid::now_v7().simple());
    server.create_database(&name).await.expect("a database can be made");
    (server, name)
}

async fn ensure_template(server: &Server) -> sqlx::Result<String> {
    let name = format!("waybill_template_{}", migrate::fingerprint());
    let mut admin = server.admin().await.expect("the administrator can connect");
    // Test processes run in parallel: one makes the template, the others wait.
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
        server.open_logins().await.expect("the service can log in");
        let sql = format!("alter database {name} is_template true");
        sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await?;
    }
    sweep(&mut admin, "").await?;
    admin.close().await?; // releases the lock
    Ok(name)
}

/// Drops test databases older than an hour, and one by name: a template that was not completed.
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

/// Returns a call of an agent elsewhere, ready to be written: of one message, in a turn of its own. Without an answer, it had failed.
pub fn recorded_call(answer: Option<u8>) -> (NewRecording, RecordedCall) {
    let mark = |n: u8| Mark::from_bytes([n; 16]);
    let recording = NewRecording {
        agent_turn_id: TurnId::new(),
        agent_id: AgentId::new(),
        profile_name: "elsewhere".to_owned(),
        context_box_id: BoxId::new(),
        output_box_id: BoxId::new(),
        query_card_ids: Vec::new(),
        parent_agent_turn_id: None,
        trace_id: None,
        traceparent: None,
        started_by: "key:recorder".to_owned(),
        opening: mark(1),
        shares_with: None,
        n_common: 0,
        departs: false,
        at: None,
    };
    let call = RecordedCall {
        agent_turn_id: recording.agent_turn_id,
        agent_id: recording.agent_id,
        step_id: StepId::new(),
        context_box_id: recording.context_box_id,
        output_box_id: recording.output_box_id,
        n_before: 0,
        tail: mark(2),
        answer: answer.map(mark),
        state: None,
        request: None,
        n_calls: 0,
        receipt: "{}".to_owned(),
        usage: Usage::default(),
        at: None,
    };
    (recording, call)
}

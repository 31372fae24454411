//! An operator's day: every part is a separate process. Under load each is killed and restarted, then all are replaced in an orderly way while
//! the schema is one version ahead. A backup taken under load and one taken after it are restored and checked with `doctor --deep`; the second
//! equals the database, row by row.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::{task::JoinSet, time::sleep};
use waybill_core::{id::TurnId, resource::Manifest};
use waybill_kernel::migrate;
use waybill_services::{ChildProcess, Home, Private, Server, nats, postgres::binaries};

use crate::{
    bench::{api::found, fresh_database, progress},
    figure::{Bar, Figure},
    storm::{dice::Dice, verdict},
};

/// How many turns, and how many kills.
#[derive(Clone, Debug)]
pub struct Options {
    /// `waybill` itself.
    pub program: PathBuf,
    /// Turns that clients start over HTTP. Each has two children.
    pub turns: usize,
    pub kills: usize,
    pub seed: u64,
}

const DATABASE: &str = "waybill_day";
const CLIENTS: usize = 4;
/// The processes that run: one API, and two of everything else.
const PARTS: [&str; 5] = ["serve", "orchestrator", "orchestrator", "worker", "worker"];
const PATIENCE: Duration = Duration::from_secs(240);

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    eprintln!("chaos day: seed {}", options.seed);
    let private = Private::to_be_killed().await?;
    let mut nats = nats::Private::new()?;
    nats.start()?;
    let (kernel, admin) = fresh_database(&private.server, DATABASE).await?;
    drop(admin);
    let (_, key) = found(&kernel, "day", &team()?).await?;
    drop(kernel);

    let folder = Home::find()?.path("day");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let site = Site {
        program: options.program.clone(),
        folder: folder.clone(),
        server: private.server.clone(),
        nats_url: nats.url(),
        port,
    };
    let mut parts = (0..PARTS.len()).map(|n| site.hire(n)).collect::<Result<Vec<_>>>()?;
    let clients = Arc::new(Clients {
        http: reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?,
        url: format!("http://127.0.0.1:{port}/v1/projects/day/turns"),
        key: key.expose().to_owned(),
        left: AtomicUsize::new(options.turns),
        accepted: Mutex::default(),
        answered_otherwise: AtomicUsize::new(0),
    });
    let mut asking = JoinSet::new();
    for client in 0..CLIENTS {
        asking.spawn(clients.clone().ask(client));
    }

    kill_each(options, &site, &mut parts, &private, &mut nats).await?;

    // Installs the next version's schema under the processes of this version; then replaces each process in an orderly way.
    install_next_schema(&private).await?;
    let beside = backup(&private, &folder, "beside").await?;
    let mut slowest = Duration::ZERO;
    for (n, part) in parts.iter_mut().enumerate() {
        sleep(Duration::from_millis(500)).await;
        slowest = slowest.max(part.leave().await?);
        *part = site.hire(n)?;
    }
    while let Some(client) = asking.join_next().await {
        client??;
    }
    let mut admin = PgConnection::connect(&private.server.admin_url(DATABASE)).await?;
    settle(&mut admin).await?;
    for part in &mut parts {
        slowest = slowest.max(part.leave().await?);
    }

    let after = backup(&private, &folder, "after").await?;
    let unsound = restore_and_check(&private, &site, [&beside, &after]).await?;
    let sound = site.is_sound(&private.server.service_url(DATABASE))?;
    let mut copy = PgConnection::connect(&private.server.admin_url("waybill_day_after")).await?;
    let (tables, copied) = (digests(&mut admin).await?, digests(&mut copy).await?);
    let differ = tables.iter().filter(|(table, digest)| copied.get(*table) != Some(digest)).count();
    let differing = clients.accepted().symmetric_difference(&root_turns(&mut admin).await?).count();
    let none = Bar::AtMost(0.0);
    let mut figures = vec![
        Figure::new("parts killed and restarted", options.kills as f64, "", Bar::AtLeast(1.0)),
        Figure::new("turns accepted over HTTP, against those that are there", differing as f64, "turns", none),
        Figure::new(
            "requests whose repetition was answered otherwise",
            clients.answered_otherwise.load(Relaxed) as f64,
            "requests",
            none,
        ),
        Figure::new(
            "from the request to end to the end of a process, at most",
            slowest.as_secs_f64(),
            "s",
            Bar::AtMost(15.0),
        ),
        Figure::new("databases that `waybill doctor --deep` finds fault with", f64::from(u8::from(!sound)), "", none),
        Figure::new("restored backups that `waybill doctor --deep` finds fault with", unsound as f64, "of 2", none),
        Figure::new("tables that differ between the database and its backup", differ as f64, "tables", none),
        Figure::new("tables compared", tables.len() as f64, "tables", Bar::AtLeast(30.0)),
    ];
    figures.extend(verdict::of_the_database(&mut admin, options.turns * 3).await?);
    Ok(figures)
}

/// Kills each part in turn, and the database and NATS too. Restarts each at once.
async fn kill_each(
    options: &Options,
    site: &Site,
    parts: &mut [Part],
    private: &Private,
    nats: &mut nats::Private,
) -> Result<()> {
    let bar = progress("killed and restarted", options.kills as u64);
    let mut dice = Dice::new(options.seed);
    for n in 0..options.kills {
        sleep(dice.between(Duration::from_millis(300), Duration::from_millis(1_200))).await;
        match n % (PARTS.len() + 2) {
            victim if victim < PARTS.len() => {
                parts[victim].process.kill();
                parts[victim] = site.hire(victim)?;
            }
            victim if victim == PARTS.len() => {
                private.kill();
                private.restart().await?;
            }
            _ => {
                nats.kill();
                nats.start()?;
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Installs a schema that is one version ahead.
async fn install_next_schema(private: &Private) -> Result<()> {
    let mut owner = PgConnection::connect(&private.server.owner_url(DATABASE)).await?;
    let next = "alter table state.turns add column of_the_next_version text;
                create function state.of_the_next_version() returns integer language sql as 'select 1';
                revoke execute on function state.of_the_next_version() from public";
    sqlx::raw_sql(next).execute(&mut owner).await?;
    migrate::stamp(&mut owner, migrate::newest() + 1, migrate::newest()).await?;
    Ok(())
}

/// Returns a lead that forks two helpers, on a model that needs neither key nor network.
fn team() -> Result<Vec<Manifest>> {
    let task = |what: &str| json!({ "target_strategy": "new", "target_ref": "helper", "instruction": what });
    let lead = json!({ "profile": {
        "name": "lead", "worker_target": "llm", "system_prompt_template": "You lead.",
        "allowed_internal_tools": ["fork_join"], "delegation_policy": { "target_profiles": ["helper"] },
        "llm_config": { "provider": "demo", "model": "demo", "params": { "script": [
            { "say": "I ask two.", "call": { "fork_join": { "tasks": [task("the first half"), task("the second half")] } } },
            { "say": "Both are done." },
        ] } },
    } });
    let helper = json!({ "profile": {
        "name": "helper", "worker_target": "llm", "system_prompt_template": "You help.",
        "llm_config": { "provider": "demo", "model": "demo", "params": { "script": [{ "say": "Done.", "after_ms": 50 }] } },
    } });
    Ok(vec![serde_json::from_value(lead)?, serde_json::from_value(helper)?])
}

/// Where processes are started.
struct Site {
    program: PathBuf,
    folder: PathBuf,
    server: Server,
    nats_url: String,
    port: u16,
}

impl Site {
    fn hire(&self, n: usize) -> Result<Part> {
        let part = PARTS[n];
        let log = fs::File::options().create(true).append(true).open(self.folder.join(format!("{part}-{n}.log")))?;
        let mut command = Command::new(&self.program);
        command.arg(part);
        match part {
            "serve" => command.args(["--listen", &format!("127.0.0.1:{}", self.port), "--per-second", "100000"]),
            "worker" => command.args(["--lease", "2", "--tools", "0", "--look", "0.5", "--with-parent"]),
            _ => command.args(["--lease", "2"]),
        };
        command.env("WAYBILL_DATABASE_URL", self.server.url_of(part, DATABASE)).env("WAYBILL_NATS_URL", &self.nats_url);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        // The database may still be starting, and the process may end. `Part` keeps the command to start it again, as a supervisor would.
        Ok(Part { process: ChildProcess(command.spawn().context("a process cannot be started")?), command })
    }

    /// Checks whether `waybill doctor --deep` finds no fault.
    fn is_sound(&self, database_url: &str) -> Result<bool> {
        let asked = Command::new(&self.program)
            .args(["doctor", "--deep", "--json"])
            .env("WAYBILL_DATABASE_URL", database_url)
            .env_remove("WAYBILL_NATS_URL")
            .output()?;
        if !asked.status.success() {
            eprintln!("{}{}", String::from_utf8_lossy(&asked.stdout), String::from_utf8_lossy(&asked.stderr));
        }
        Ok(asked.status.success())
    }
}

/// A process, and the command to start it again if it ended at start.
struct Part {
    process: ChildProcess,
    command: Command,
}

impl Part {
    /// Sends SIGTERM, and returns how long the process took to end.
    async fn leave(&mut self) -> Result<Duration> {
        // A process that found no database at start has ended already.
        if self.process.0.try_wait()?.is_some() {
            self.process = ChildProcess(self.command.spawn()?);
            sleep(Duration::from_secs(1)).await;
        }
        let begun = Instant::now();
        if let Some(pid) = i32::try_from(self.process.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        while self.process.0.try_wait()?.is_none() {
            ensure!(begun.elapsed() < Duration::from_secs(60), "a process did not end within a minute");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(begun.elapsed())
    }
}

/// Clients that start turns over HTTP, and retry each until it is known to be accepted.
struct Clients {
    http: reqwest::Client,
    url: String,
    key: String,
    left: AtomicUsize,
    accepted: Mutex<HashSet<TurnId>>,
    answered_otherwise: AtomicUsize,
}

impl Clients {
    fn accepted(&self) -> HashSet<TurnId> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn ask(self: Arc<Self>, client: usize) -> Result<()> {
        let mut n = 0;
        while self.left.try_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            n += 1;
            let key = format!("{client}-{n}");
            let first = self.until_known(&key).await?;
            self.accepted.lock().unwrap_or_else(PoisonError::into_inner).insert(first);
            // Repeats every fifth request, as a client that got no answer would.
            if n % 5 == 0 && self.until_known(&key).await? != first {
                self.answered_otherwise.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }

    async fn until_known(&self, key: &str) -> Result<TurnId> {
        let begun = Instant::now();
        loop {
            let body = json!({ "profile_name": "lead", "instruction": key }).to_string();
            let request = self.http.post(&self.url).bearer_auth(&self.key).header("content-type", "application/json");
            let answer = request.header("idempotency-key", key).body(body).send().await;
            if let Ok(response) = answer {
                let status = response.status();
                let text = response.text().await.unwrap_or_default();
                if status.is_success() {
                    let said: Value = serde_json::from_str(&text)?;
                    return said["agent_turn_id"]
                        .as_str()
                        .context("accepted without an id")?
                        .parse()
                        .map_err(Into::into);
                }
                ensure!(status.is_server_error() || status.as_u16() == 429, "{status}: {text}");
            }
            ensure!(begun.elapsed() < PATIENCE, "a request was not accepted within {PATIENCE:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Waits until every turn and every waiting call has ended.
async fn settle(admin: &mut PgConnection) -> Result<()> {
    let begun = Instant::now();
    loop {
        let left: i64 = sqlx::query_scalar(
            "select (select count(*) from state.agent_inbox) + (select count(*) from state.waiting_calls)",
        )
        .fetch_one(&mut *admin)
        .await?;
        if left == 0 {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "{left} turns and calls were not done within {PATIENCE:?}");
        sleep(Duration::from_millis(200)).await;
    }
}

async fn backup(private: &Private, folder: &Path, name: &str) -> Result<PathBuf> {
    let file = folder.join(format!("{name}.dump"));
    let mut command = tokio::process::Command::new(binaries()?.join("pg_dump"));
    let dumped = command.args(["-Fc", "-f"]).arg(&file).arg(private.server.admin_url(DATABASE)).output().await?;
    ensure!(dumped.status.success(), "pg_dump failed: {}", String::from_utf8_lossy(&dumped.stderr));
    Ok(file)
}

async fn restore(private: &Private, name: &str, file: &Path) -> Result<()> {
    private.server.create_database(name).await?;
    let mut command = tokio::process::Command::new(binaries()?.join("pg_restore"));
    let restored = command.args(["--exit-on-error", "-d", &private.server.admin_url(name)]).arg(file).output().await?;
    ensure!(restored.status.success(), "pg_restore failed: {}", String::from_utf8_lossy(&restored.stderr));
    Ok(())
}

/// Restores the backup taken under load and the one taken after it. Returns the number of copies that `waybill doctor --deep` finds fault with.
async fn restore_and_check(private: &Private, site: &Site, [beside, after]: [&Path; 2]) -> Result<usize> {
    let mut unsound = 0;
    for (name, file) in [("waybill_day_beside", beside), ("waybill_day_after", after)] {
        restore(private, name, file).await?;
        unsound += usize::from(!site.is_sound(&private.server.service_url(name))?);
    }
    Ok(unsound)
}

/// Returns the turns that clients have started.
async fn root_turns(admin: &mut PgConnection) -> Result<HashSet<TurnId>> {
    let there: Vec<TurnId> =
        sqlx::query_scalar("select agent_turn_id from state.turns where parent_agent_turn_id is null")
            .fetch_all(admin)
            .await?;
    Ok(there.into_iter().collect())
}

/// Returns the number of rows of every table, and a hash of all its rows.
async fn digests(admin: &mut PgConnection) -> Result<BTreeMap<String, (i64, String)>> {
    let tables: Vec<String> = sqlx::query_scalar(
        "select c.oid::regclass::text from pg_class c
          where c.relkind in ('r', 'p') and not c.relispartition
            and c.relnamespace = any (array['cardbox', 'resource', 'state']::regnamespace[])
          order by 1",
    )
    .fetch_all(&mut *admin)
    .await?;
    let mut digests = BTreeMap::new();
    for table in tables {
        let sql =
            format!("select count(*), coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text from {table} t");
        digests.insert(table, sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&mut *admin).await?);
    }
    Ok(digests)
}

//! Faults of the environment: clocks that are an hour off, a full disk, a process that is killed for its memory. No turn is reclaimed early,
//! no data is corrupt, and no operator has to act.

use std::{
    fs,
    io::ErrorKind,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::time::sleep;
use waybill_core::id::{ProjectId, TurnId};
use waybill_kernel::{
    project, resource, sweep, turn,
    work::{Config, Kernel},
};
use waybill_orchestrator::{
    launch::{Launch, launch},
    watch,
};

use super::writers::Writers;
use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
};
use waybill_services::{
    ChildProcess, Home, Private,
    postgres::{binaries, install_debian},
};

/// How many turns and kills, and how long the disk is full.
#[derive(Clone, Debug)]
pub struct Options {
    /// `waybill` itself.
    pub program: PathBuf,
    pub turns: usize,
    /// How often each process is killed for its memory.
    pub kills: usize,
    /// How long the disk is full.
    pub full: Duration,
}

const LEASE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(180);

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    let mut figures = clocks(options).await?;
    figures.extend(memory(options).await?);
    figures.extend(disk(options).await?);
    Ok(figures)
}

/// A database, a project with a profile whose model takes longer than a lease, and the watch task that sweeps it.
struct Shop {
    private: Private,
    database: &'static str,
    kernel: Kernel,
    admin: PgConnection,
    project_id: ProjectId,
    watching: tokio::task::JoinHandle<()>,
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Shop {
    async fn open(database: &'static str) -> Result<Shop> {
        let private = Private::start().await?;
        let (kernel, admin) = fresh_database(&private.server, database).await?;
        let project_id = ProjectId::new();
        let mut work = kernel.begin(project_id).await?;
        project::create(&mut work, "faults").await?;
        let slow = LEASE.as_millis() * 3 / 2;
        let profile = json!({ "profile": {
            "name": "slow", "worker_target": "llm", "system_prompt_template": "You take your time.",
            "llm_config": { "provider": "demo", "model": "demo", "params": { "script": [{ "say": "Done.", "after_ms": slow }] } },
        } });
        resource::apply(&mut work, &[serde_json::from_value(profile)?]).await?;
        work.commit().await?;
        let sweep = sweep::Config { lease: LEASE, ..sweep::Config::default() };
        let config = watch::Config { sweep, artifacts: None };
        let watched = kernel.clone();
        let watching = tokio::spawn(async move {
            watch::run(&watched, &config).await;
        });
        Ok(Shop { private, database, kernel, admin, project_id, watching })
    }

    async fn launch(&self, n: usize, instruction: &str) -> Result<Vec<TurnId>> {
        let mut launched = Vec::new();
        for _ in 0..n {
            let mut work = self.kernel.begin(self.project_id).await?;
            launched.push(launch(&mut work, &Launch::new("slow".parse()?, instruction)).await?.agent_turn_id);
            work.commit().await?;
        }
        Ok(launched)
    }

    fn hire(&self, options: &Options, group: Option<&Group>, environment: &[(&str, &str)]) -> Result<ChildProcess> {
        let log = Home::find()?.path("faults.log");
        let log = fs::File::options().create(true).append(true).open(log)?;
        let mut command = match group {
            None => Command::new(&options.program),
            Some(group) => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(&group.0).arg(&options.program);
                command
            }
        };
        command.args(["worker", "--with-parent", "--tools", "0", "--most", "4", "--look", "0.2"]);
        command.args(["--lease", &LEASE.as_secs().to_string()]);
        command.env("WAYBILL_DATABASE_URL", self.private.server.url_of("worker", self.database));
        command.envs(environment.iter().copied()).env_remove("WAYBILL_NATS_URL");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        Ok(ChildProcess(command.spawn().context("a worker cannot be started")?))
    }

    /// Waits until all of them have ended.
    async fn done(&self, turns: &[TurnId]) -> Result<()> {
        let begun = Instant::now();
        loop {
            let mut work = self.kernel.begin(self.project_id).await?;
            let open = turn::show(&mut work, turns).await?.iter().filter(|turn| turn.status.is_open()).count();
            if open == 0 {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "{open} turns were not done within {PATIENCE:?}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn count(&mut self, sql: &'static str) -> Result<f64> {
        let n: i64 = sqlx::query_scalar(sql).fetch_one(&mut self.admin).await?;
        Ok(n as f64)
    }
}

const NOT_DONE: &str = "select count(*) from state.turns where status <> 'success'";
const RECLAIMED: &str = "select count(*) from state.turns where turn_epoch > 1";

/// Runs workers whose clocks are an hour behind, right, and an hour ahead.
async fn clocks(options: &Options) -> Result<Vec<Figure>> {
    let library = faketime()?;
    let library = library.to_string_lossy();
    let mut shop = Shop::open("waybill_clocks").await?;
    let bar = progress("clocks an hour off", options.turns as u64);
    let mut processes = Vec::new();
    for offset in ["-1h", "+0", "+1h"] {
        let fake = [("LD_PRELOAD", &*library), ("FAKETIME", offset), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
        processes.push(shop.hire(options, None, &fake)?);
    }
    let turns = shop.launch(options.turns, "Do it.").await?;
    shop.done(&turns).await?;
    bar.finish_and_clear();
    let off = "select count(*) from state.agent_steps s where abs(extract(epoch from s.created_at
                 - to_timestamp(('x' || lpad(replace(left(s.step_id::text, 13), '-', ''), 16, '0'))::bit(64)::bigint / 1000.0))) > 3000";
    Ok(vec![
        Figure::new(
            "turns by workers whose clocks are an hour off",
            shop.count(off).await?,
            "turns",
            Bar::AtLeast(1.0),
        ),
        Figure::new(
            "turns reclaimed early because of a clock",
            shop.count(RECLAIMED).await?,
            "turns",
            Bar::AtMost(0.0),
        ),
        Figure::new("turns not done because of a clock", shop.count(NOT_DONE).await?, "turns", Bar::AtMost(0.0)),
    ])
}

/// Returns the path of libfaketime, and installs it if it is missing.
fn faketime() -> Result<PathBuf> {
    let find = || {
        let folders =
            fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path().join("faketime"));
        folders.map(|folder| folder.join("libfaketime.so.1")).find(|file| file.exists())
    };
    if find().is_none() {
        install_debian("libfaketime")?;
    }
    find().context("libfaketime was installed, but is not there")
}

/// A cgroup: its processes' memory is counted together, and may be limited.
struct Group(PathBuf);

impl Group {
    fn new(n: usize) -> Result<Group> {
        let root = Path::new("/sys/fs/cgroup");
        let root = if root.join("memory").is_dir() { root.join("memory") } else { root.to_owned() };
        let folder = root.join(format!("waybill-{}-{n}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("{}: no group for memory can be made", folder.display()))?;
        Ok(Group(folder))
    }

    /// Limits its memory to what it uses now, and next to nothing more.
    fn limit(&self) -> Result<()> {
        let (used, most) = match self.0.join("memory.usage_in_bytes").exists() {
            true => ("memory.usage_in_bytes", "memory.limit_in_bytes"),
            false => ("memory.current", "memory.max"),
        };
        for _ in 0..100 {
            let used: u64 = fs::read_to_string(self.0.join(used))?.trim().parse()?;
            match fs::write(self.0.join(most), (used + 128 * 1024).to_string()) {
                // It has grown beyond that limit meanwhile.
                Err(error) if error.kind() == ErrorKind::ResourceBusy => continue,
                written => return written.context("its memory cannot be limited"),
            }
        }
        bail!("its memory cannot be limited: it grows too fast")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Runs workers that reach their memory limit in the middle of a turn, and starts a new one after each kill.
async fn memory(options: &Options) -> Result<Vec<Figure>> {
    let mut shop = Shop::open("waybill_memory").await?;
    let bar = progress("killed for memory", options.kills as u64);
    let other = shop.hire(options, None, &[])?;
    let mut turns = shop.launch(options.turns, "Do it.").await?;
    let large = "Do what is written here. ".repeat(8_000);
    let mut killed = 0;
    for n in 0..options.kills {
        let group = Group::new(n)?;
        let mut process = shop.hire(options, Some(&group), &[])?;
        sleep(LEASE).await;
        group.limit()?;
        let begun = Instant::now();
        // Earlier turns run first, so large turns are launched until the worker is killed.
        while process.0.try_wait()?.is_none() && begun.elapsed() < PATIENCE {
            turns.extend(shop.launch(1, &large).await?);
            sleep(Duration::from_millis(500)).await;
        }
        killed += usize::from(process.0.try_wait()?.is_some_and(|status| status.signal() == Some(9)));
        drop(process);
        bar.inc(1);
    }
    shop.done(&turns).await?;
    drop(other);
    bar.finish_and_clear();
    let twice = "select count(*) from (select from state.agent_steps group by agent_turn_id having count(*) filter (where outcome = 'finished') <> 1) s";
    let wanted = Bar::AtLeast(options.kills as f64);
    Ok(vec![
        Figure::new("workers that were killed for their memory", killed as f64, "workers", wanted),
        Figure::new("turns not done because of memory", shop.count(NOT_DONE).await?, "turns", Bar::AtMost(0.0)),
        Figure::new("turns ended otherwise than once", shop.count(twice).await?, "turns", Bar::AtMost(0.0)),
    ])
}

/// A mounted folder of limited size.
struct Small(PathBuf);

impl Small {
    fn mount(megabytes: u32) -> Result<Small> {
        let folder = Home::find()?.path(&format!("small-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let size = format!("size={megabytes}m,mode=0777");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "waybill"]).arg(&folder).output()?;
        ensure!(
            mounted.status.success(),
            "a small disk cannot be mounted: {}",
            String::from_utf8_lossy(&mounted.stderr)
        );
        Ok(Small(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

/// Runs PostgreSQL on a disk that fills up under writers and then has room again.
async fn disk(options: &Options) -> Result<Vec<Figure>> {
    const DATABASE: &str = "waybill_disk";
    let small = Small::mount(1_200)?;
    let private = Private::in_folder(&small.0.join("server")).await?;
    let (kernel, admin) = fresh_database(&private.server, DATABASE).await?;
    drop((kernel, admin));
    let kernel = Kernel::connect(&Config::new(private.server.service_url(DATABASE))).await?;
    let writers = Writers::start(&kernel).await?;
    sleep(Duration::from_secs(2)).await;
    let bar = progress("a full disk", 1);
    let ballast = small.0.join("ballast");
    let (filled_at, mut still_since) = (Instant::now(), None::<Instant>);
    // The server first uses up space that it has already reserved.
    while still_since.is_none_or(|since| since.elapsed() < options.full) {
        ensure!(filled_at.elapsed() < Duration::from_secs(180), "the disk was full, and writes went on");
        // Fills the disk repeatedly, to take the space that the server frees too.
        fill(&ballast);
        match writers.known.since(Instant::now() - Duration::from_secs(1)) {
            None => drop(still_since.get_or_insert_with(Instant::now)),
            Some(_) => still_since = None,
        }
        sleep(Duration::from_millis(100)).await;
    }
    fs::remove_file(&ballast)?;
    let freed_at = Instant::now();
    // Restarts the server, as a supervisor would.
    if private.is_gone() {
        private.restart().await?;
    }
    let back = loop {
        if let Some(after) = writers.known.since(freed_at) {
            break after.as_secs_f64();
        }
        if private.is_gone() {
            private.restart().await?;
        }
        ensure!(freed_at.elapsed() < Duration::from_secs(80), "no write came back after there was room again");
        sleep(Duration::from_millis(50)).await;
    };
    sleep(Duration::from_secs(1)).await;
    bar.finish_and_clear();
    let mut admin = PgConnection::connect(&private.server.admin_url(DATABASE)).await?;
    let mut figures = vec![
        Figure::new(
            "how long writes stood still because the disk was full",
            still_since.map_or(0.0, |since| (freed_at - since).as_secs_f64()),
            "s",
            Bar::AtLeast(options.full.as_secs_f64()),
        ),
        Figure::new("from room on the disk to the next acknowledged write", back, "s", Bar::AtMost(30.0)),
    ];
    figures.extend(writers.account(&mut admin).await?);
    sqlx::query("create extension if not exists amcheck").execute(&mut admin).await?;
    let checked = Command::new(binaries()?.join("pg_amcheck"))
        .args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "--heapallindexed",
            "-p",
            &private.server.port().to_string(),
            DATABASE,
        ])
        .output()?;
    let said = String::from_utf8_lossy(&checked.stdout);
    if !checked.status.success() {
        eprintln!("{said}{}", String::from_utf8_lossy(&checked.stderr));
    }
    let corrupt = if checked.status.success() { 0.0 } else { said.lines().count().max(1) as f64 };
    figures.push(Figure::new("what pg_amcheck complains of after a full disk", corrupt, "lines", Bar::AtMost(0.0)));
    Ok(figures)
}

/// Fills the remaining space.
fn fill(ballast: &Path) {
    use std::io::Write;
    let Ok(mut file) = fs::File::options().create(true).append(true).open(ballast) else { return };
    let block = vec![0; 1 << 20];
    while file.write_all(&block).is_ok() {}
    while file.write_all(&block[..4096]).is_ok() {}
}

//! What `waybill worker` does as a process: it holds no more turns than it may, knows every turn that it holds, and turns end about as soon
//! under load as without.
//!
//! The workers are the real processes, PostgreSQL and NATS are real, the model is the demo's and thinks for 300 ms.

use std::{
    collections::HashMap,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::json;
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use uuid::Uuid;
use waybill_bus::nats::Nats;
use waybill_core::{id::ProjectId, metric};
use waybill_kernel::{project, resource, work::Kernel};
use waybill_orchestrator::{
    launch::{Launch, launch},
    watch,
};

use super::{fresh_database, progress};
use crate::{
    figure::{Bar, Figure},
    storm::verdict::percentile,
};
use waybill_services::{Home, Private, free_port, nats};

/// How many turns, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// `waybill` itself.
    pub program: PathBuf,
    /// Turns that wait when the workers start.
    pub backlog: usize,
    /// How long turns are started at each load.
    pub window: Duration,
}

const DATABASE: &str = "waybill_bench_serve";
const PROCESSES: usize = 2;
/// Turns that one process holds at a time: few enough that the machine keeps up with all of them, so that the loop is measured, not the
/// machine.
const MOST: i64 = 16;
const THINKING: Duration = Duration::from_millis(300);
/// Time between two samples of which process holds which turns.
const SAMPLE: Duration = Duration::from_millis(50);
/// A turn that its worker does not know of stays unknown for longer than this.
const APART: Duration = Duration::from_millis(500);

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let mut nats = nats::Private::new()?;
    nats.start()?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let kernel = kernel.on(Arc::new(Nats::connect(&nats.url()).await?));
    let pool = PgPoolOptions::new().max_connections(2).connect(&private.server.admin_url(DATABASE)).await?;
    let mut crew = JoinSet::new();
    let sweeps = kernel.clone();
    crew.spawn(async move { match watch::run(&sweeps, &watch::Config::default()).await {} });
    let callers = Callers::new(kernel, THINKING).await?;

    callers.ask(options.backlog).await?;
    let most = MOST.to_string();
    let database_url = private.server.url_of("worker", DATABASE);
    let mut hands = Hands::hire(&options.program, &database_url, &nats.url(), PROCESSES, &["--most", &most])?;
    let samples = Samples::begin(pool, hands.addresses.clone());
    let per_second = drain(&mut admin, options.backlog, &mut hands).await?;
    let capacity = (PROCESSES as f64 * MOST as f64 / THINKING.as_secs_f64()).min(per_second);
    // The busy part runs between two calm parts, so that machine noise affects both alike.
    let mut latencies = Vec::new();
    for load in [0.1, 0.8, 0.1] {
        let name = format!("turns at {:.0} % of what it can do", load * 100.0);
        latencies.push(callers.pace(&name, load * capacity, options.window, &mut admin, &mut hands).await?);
    }
    let samples = samples.end().await?;
    let calm = percentile([latencies[0].clone(), latencies[2].clone()].concat(), 0.99);
    let busy = percentile(latencies[1].clone(), 0.99);
    let none = Bar::AtMost(0.0);
    Ok(vec![
        Figure::new("turns done of the backlog", options.backlog as f64, "turns", Bar::AtLeast(1.0)),
        Figure::new("turns a second in the backlog", per_second, "turns/s", Bar::None),
        Figure::new("samples of who holds what", samples.n as f64, "samples", Bar::AtLeast(20.0)),
        Figure::new("turns held by a process at once, most", samples.most as f64, "turns", Bar::AtLeast(1.0)),
        Figure::new("turns held beyond --most", (samples.most - MOST).max(0) as f64, "turns", none),
        Figure::new("turns that a worker runs and does not know of", samples.unknown as f64, "turns", none),
        Figure::new("created to finished, p99, at 10 % of what it can do", calm, "s", Bar::None),
        Figure::new("created to finished, p99, at 80 % of what it can do", busy, "s", Bar::None),
        Figure::new("created to finished, p99, at 80 % ÷ at 10 %", busy / calm, "ratio", Bar::AtMost(2.0)),
    ])
}

/// Who starts turns of one profile, in one project.
#[derive(Clone)]
pub(super) struct Callers {
    kernel: Kernel,
    project_id: ProjectId,
}

const PROFILE: &str = "slow";

impl Callers {
    /// Makes a project with a profile whose model answers after so long.
    pub(super) async fn new(kernel: Kernel, thinking: Duration) -> Result<Callers> {
        let project_id = ProjectId::new();
        let mut work = kernel.begin(project_id).await?;
        project::create(&mut work, "bench").await?;
        let script = json!([{ "say": "Done.", "after_ms": thinking.as_millis() as u64 }]);
        let profile = json!({ "profile": {
            "name": PROFILE, "worker_target": "llm", "system_prompt_template": "You take your time.",
            "llm_config": { "provider": "demo", "model": "demo", "params": { "script": script } } } });
        resource::apply(&mut work, &[serde_json::from_value(profile)?]).await?;
        work.commit().await?;
        Ok(Callers { kernel, project_id })
    }

    pub(super) async fn launch(self) -> Result<()> {
        let mut work = self.kernel.begin(self.project_id).await?;
        launch(&mut work, &Launch::new(PROFILE.parse()?, "Take your time.")).await?;
        Ok(work.commit().await?)
    }

    /// Starts `n` turns, a few at a time.
    pub(super) async fn ask(&self, n: usize) -> Result<()> {
        let bar = progress("turns asked for", n as u64);
        let mut asking = JoinSet::new();
        for _ in 0..n {
            if asking.len() >= 8
                && let Some(asked) = asking.join_next().await
            {
                asked??;
            }
            asking.spawn(self.clone().launch());
            bar.inc(1);
        }
        while let Some(asked) = asking.join_next().await {
            asked??;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Starts `per_second` turns a second. Returns how long each took from its creation to its end.
    pub(super) async fn pace(
        &self,
        what: &str,
        per_second: f64,
        lasts: Duration,
        admin: &mut PgConnection,
        hands: &mut Hands,
    ) -> Result<Vec<f64>> {
        let from: chrono::DateTime<chrono::Utc> = sqlx::query_scalar("select now()").fetch_one(&mut *admin).await?;
        let bar = progress(what, lasts.as_secs());
        let mut ticks = interval(Duration::from_secs_f64(1.0 / per_second));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (begun, mut asking) = (Instant::now(), JoinSet::new());
        while begun.elapsed() < lasts {
            ticks.tick().await;
            asking.spawn(self.clone().launch());
            while let Some(asked) = asking.try_join_next() {
                asked??;
            }
            bar.set_position(begun.elapsed().as_secs());
        }
        while let Some(asked) = asking.join_next().await {
            asked??;
        }
        bar.finish_and_clear();
        wait_until_done(admin, hands).await?;
        let took = "select extract(epoch from finished_at - created_at)::float8 from state.turns where created_at > $1";
        Ok(sqlx::query_scalar(took).bind(from).fetch_all(admin).await?)
    }
}

/// Waits until the backlog is done. Returns turns per second, without the first and last tenth.
async fn drain(admin: &mut PgConnection, backlog: usize, hands: &mut Hands) -> Result<f64> {
    let bar = progress("the backlog", backlog as u64);
    let (mut from, mut to) = (None, None);
    loop {
        hands.are_alive()?;
        let sql = "select count(*) from state.turns where status = 'open'";
        let open: i64 = sqlx::query_scalar(sql).fetch_one(&mut *admin).await?;
        let done = backlog.saturating_sub(usize::try_from(open)?);
        bar.set_position(done as u64);
        if done * 10 >= backlog && from.is_none() {
            from = Some((done, Instant::now()));
        }
        if done * 10 >= backlog * 9 && to.is_none() {
            to = Some((done, Instant::now()));
        }
        if open == 0 {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    bar.finish_and_clear();
    let ((n_from, from), (n_to, to)) = from.zip(to).context("the backlog was done before it was looked at")?;
    Ok((n_to - n_from) as f64 / to.duration_since(from).as_secs_f64().max(0.1))
}

pub(super) async fn wait_until_done(admin: &mut PgConnection, hands: &mut Hands) -> Result<()> {
    let begun = Instant::now();
    let sql = "select count(*) from state.turns where status = 'open'";
    while sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut *admin).await? > 0 {
        hands.are_alive()?;
        if begun.elapsed() > Duration::from_secs(60) {
            bail!("turns were still open a minute after the last was asked for");
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// The worker processes.
pub(super) struct Hands {
    children: Vec<Child>,
    /// Addresses of their metrics.
    addresses: Vec<String>,
    log: PathBuf,
}

impl Hands {
    pub(super) fn hire(
        program: &PathBuf,
        database_url: &str,
        nats_url: &str,
        processes: usize,
        arguments: &[&str],
    ) -> Result<Hands> {
        let folder = Home::find()?.path("serve");
        std::fs::create_dir_all(&folder)?;
        let log = folder.join("worker.log");
        let mut hands = Hands { children: Vec::new(), addresses: Vec::new(), log };
        for _ in 0..processes {
            let address = format!("127.0.0.1:{}", free_port()?);
            let log = std::fs::File::options().create(true).append(true).open(&hands.log)?;
            let child = Command::new(program)
                .args(["worker", "--metrics-listen", &address])
                .args(arguments)
                .env("WAYBILL_DATABASE_URL", database_url)
                .env("WAYBILL_NATS_URL", nats_url)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .context("a worker cannot be started")?;
            hands.children.push(child);
            hands.addresses.push(address);
        }
        Ok(hands)
    }

    pub(super) fn are_alive(&mut self) -> Result<()> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait()? {
                bail!("a worker has ended: {status}; its log is in {}", self.log.display());
            }
        }
        Ok(())
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What was measured while the workers ran.
#[derive(Debug, Default)]
struct Samples {
    n: usize,
    /// The most turns that one process held at once, according to the database.
    most: i64,
    /// Turns that the database calls running and that no worker counts as held, twice in a row.
    unknown: i64,
}

struct Sampling {
    over: Arc<AtomicBool>,
    tasks: JoinSet<Result<Samples>>,
}

impl Samples {
    fn begin(pool: PgPool, addresses: Vec<String>) -> Sampling {
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        tasks.spawn(held_most(pool.clone(), over.clone()));
        tasks.spawn(unknown(pool, addresses, over.clone()));
        Sampling { over, tasks }
    }
}

impl Sampling {
    async fn end(mut self) -> Result<Samples> {
        self.over.store(true, Relaxed);
        let mut sum = Samples::default();
        while let Some(samples) = self.tasks.join_next().await {
            let Samples { n, most, unknown } = samples??;
            sum = Samples { n: sum.n + n, most: sum.most.max(most), unknown: sum.unknown.max(unknown) };
        }
        Ok(sum)
    }
}

async fn held_most(pool: PgPool, over: Arc<AtomicBool>) -> Result<Samples> {
    let mut samples = Samples::default();
    let mut ticks = interval(SAMPLE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !over.load(Relaxed) {
        ticks.tick().await;
        let sql = "select worker_id, count(*) from state.agent_inbox where status = 'processing' group by worker_id";
        let held: HashMap<Uuid, i64> = sqlx::query_as(sql).fetch_all(&pool).await?.into_iter().collect();
        samples.n += 1;
        samples.most = held.into_values().fold(samples.most, i64::max);
    }
    Ok(samples)
}

/// Compares what the database calls running with what the workers count as held, and again half a second later. A claim whose answer is in
/// flight is not counted yet; one that a worker lost stays uncounted for seconds.
async fn unknown(pool: PgPool, addresses: Vec<String>, over: Arc<AtomicBool>) -> Result<Samples> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let (mut samples, mut before) = (Samples::default(), 0);
    while !over.load(Relaxed) {
        let mut least = i64::MAX;
        // Claims are in flight only briefly: the smallest of several samples is what stays uncounted.
        for _ in 0..5 {
            let running = "select count(*) from state.agent_inbox where status = 'processing'";
            let running: i64 = sqlx::query_scalar(running).fetch_one(&pool).await?;
            let mut known = 0;
            for address in &addresses {
                known += held(&http, address).await?;
            }
            least = least.min(running - known);
            sleep(Duration::from_millis(10)).await;
        }
        samples.unknown = samples.unknown.max(least.min(before));
        before = least;
        sleep(APART).await;
    }
    Ok(samples)
}

/// Reads a worker's own gauge. A worker that does not answer yet holds nothing.
async fn held(http: &reqwest::Client, address: &str) -> Result<i64> {
    let Ok(answer) = http.get(format!("http://{address}/metrics")).send().await else { return Ok(0) };
    let text = answer.text().await?;
    let prefix = format!("{}{{kind=\"turns\"}} ", metric::HELD);
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    Ok(line.map_or(Ok(0.0), str::parse::<f64>)? as i64)
}

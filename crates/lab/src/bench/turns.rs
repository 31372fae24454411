//! What a turn costs through the kernel, compared with the same rows written by pgbench in the fastest way we know.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};
use sqlx::{Connection, PgConnection};
use tokio::{
    sync::{
        mpsc::{UnboundedSender, unbounded_channel},
        watch,
    },
    task::JoinSet,
};
use waybill_core::{
    card::{CardType, NewCard, Role},
    id::{AgentId, ProjectId, StepId, Target, WorkerId},
    turn::End,
};
use waybill_kernel::{
    agent, lease,
    turn::{self, Claiming, DispatchRequest, Ending},
    work::{Config, Kernel, Work},
};

use super::{CARD_TOKENS, fresh_database, median, new_card, progress};
use crate::{
    figure::{Bar, Figure},
    storm::verdict::percentile,
};
use waybill_services::{Private, Server, postgres};

/// How large the database is, and how long the windows are.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Agents with history in the large database.
    pub agents: u32,
    /// How long each side runs before the other one does.
    pub window: Duration,
    /// How often each pair is measured.
    pub rounds: usize,
    /// The bar for turns/s compared with pgbench. A debug build, or a few short windows, cannot be held to one.
    pub beside_pgbench: Bar,
    /// Turns whose log is counted.
    pub logged: usize,
    /// The bars for WAL records and bytes per turn.
    pub log_bars: [Bar; 2],
}

const FEW_AGENTS: u32 = 1_000;
const BATCH: usize = 50;
const LONG: Duration = Duration::from_secs(3600);
/// How long a turn keeps a worker busy when fairness is measured.
const SERVICE: Duration = Duration::from_millis(5);

/// Measures everything, on a private server with durability on, or the one named by `DATABASE_URL`.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let small = Bench::prepare(options, &private.server, "waybill_bench", FEW_AGENTS).await?;
    let mut figures = Vec::new();
    small.log(&mut figures).await?;
    for clients in [1, 8, 32] {
        small.beside_pgbench(clients, &mut figures).await?;
    }
    small.batched(&mut figures).await?;
    small.fairness(&mut figures).await?;
    let large = Bench::prepare(options, &private.server, "waybill_bench_large", options.agents).await?;
    small.growth(&large, &mut figures).await?;
    Ok(figures)
}

/// One of two sides that run alternately in short windows, so that machine noise affects both alike.
pub(super) enum Side {
    Kernel { gate: watch::Sender<bool>, done: Arc<AtomicU64>, clients: JoinSet<Result<()>> },
    Pgbench { child: Child, watch: PgConnection, script: PathBuf },
}

impl Side {
    /// Runs this side for one window and returns turns per second. The other side rests meanwhile.
    pub(super) async fn run(&mut self, window: Duration) -> Result<f64> {
        match self {
            Side::Kernel { gate, done, clients } => {
                let before = done.load(Relaxed);
                gate.send(true)?;
                let begun = Instant::now();
                tokio::time::sleep(window).await;
                let rate = (done.load(Relaxed) - before) as f64 / begun.elapsed().as_secs_f64();
                gate.send(false)?;
                if let Some(ended) = clients.try_join_next() {
                    ended??; // a client ends only when it fails
                }
                Ok(rate)
            }
            Side::Pgbench { child, watch, .. } => {
                ensure!(child.try_wait()?.is_none(), "pgbench has ended");
                let before = events(watch).await?;
                signal(child, Signal::CONT)?;
                let begun = Instant::now();
                tokio::time::sleep(window).await;
                signal(child, Signal::STOP)?;
                let seconds = begun.elapsed().as_secs_f64();
                Ok((events(watch).await? - before) as f64 / seconds)
            }
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Side::Pgbench { child, script, .. } = self {
            let _ = child.kill();
            let _ = child.wait();
            let _ = std::fs::remove_file(script);
        }
    }
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    Ok(rustix::process::kill_process(Pid::from_child(child), signal)?)
}

/// Returns the median of rate ÷ rate over pairs of neighbouring windows, and the median rates.
pub(super) async fn compare(what: &str, rounds: usize, window: Duration, mut a: Side, mut b: Side) -> Result<[f64; 3]> {
    const SETTLE: Duration = Duration::from_millis(30);
    a.run(Duration::from_secs(1)).await?; // warms up connections and plans
    b.run(Duration::from_secs(1)).await?;
    let bar = progress(what, rounds as u64);
    let (mut ratios, mut rates_a, mut rates_b) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        tokio::time::sleep(SETTLE).await;
        let rate_a = a.run(window).await?;
        tokio::time::sleep(SETTLE).await;
        let rate_b = b.run(window).await?;
        ratios.push(rate_a / rate_b);
        rates_a.push(rate_a);
        rates_b.push(rate_b);
        bar.inc(1);
    }
    bar.finish_and_clear();
    // Lets clients end the turns that they have begun.
    tokio::time::sleep(SETTLE * 10).await;
    Ok([median(ratios), median(rates_a), median(rates_b)])
}

struct Bench {
    options: Options,
    server: Server,
    database: &'static str,
    kernel: Kernel,
    project_id: ProjectId,
    agents: Arc<Vec<AgentId>>,
    worker: WorkerId,
}

fn llm() -> Target {
    "llm".parse().expect("a target")
}

impl Bench {
    async fn prepare(options: Options, server: &Server, database: &'static str, n: u32) -> Result<Bench> {
        let (kernel, mut admin) = fresh_database(server, database).await?;
        sqlx::raw_sql(include_str!("bare_turn.sql")).execute(&mut admin).await?;
        let project_id = ProjectId::new();
        let bar = progress("agents with history", u64::from(n));
        let mut agents = Vec::new();
        for from in (1..=n).step_by(50_000) {
            let upto = n.min(from + 49_999);
            let made: Vec<AgentId> = sqlx::query_scalar(HISTORY)
                .bind(project_id)
                .bind(i32::try_from(from)?)
                .bind(i32::try_from(upto)?)
                .bind(CARD_TOKENS)
                .fetch_all(&mut admin)
                .await?;
            agents.extend(made);
            bar.inc(u64::from(upto - from + 1));
        }
        bar.finish_and_clear();
        sqlx::query("vacuum analyze").execute(&mut admin).await?;
        sqlx::query("checkpoint").execute(&mut admin).await?;
        let worker = lease::start(&kernel, &llm(), LONG).await?;
        Ok(Bench { options, server: server.clone(), database, kernel, project_id, agents: Arc::new(agents), worker })
    }

    /// Starts `clients` that enqueue, claim and finish `batch` turns at a time, each on its own connection.
    fn crew(&self, clients: usize, batch: usize) -> Result<Side> {
        let (gate, open) = watch::channel(false);
        let done = Arc::new(AtomicU64::new(0));
        let mut clients_at_work = JoinSet::new();
        for client in 0..clients {
            let (kernel, project_id, agents) = (self.kernel.clone(), self.project_id, self.agents.clone());
            let (mut open, done) = (open.clone(), done.clone());
            let most = i32::try_from(batch)?;
            let mut claiming = Claiming { most, ..Claiming::new(self.worker, llm()) };
            clients_at_work.spawn(async move {
                let mut at = client * 7_919 * batch;
                let mut alone = kernel.alone(project_id).await?;
                while open.wait_for(|open| *open).await.is_ok() {
                    let (mut requests, mut cards) = (Vec::new(), Vec::new());
                    for _ in 0..batch {
                        at = (at + 104_729) % agents.len();
                        let card = new_card(CardType::instruction(), Role::User);
                        requests.push(DispatchRequest::instructed(agents[at], card.card_id()));
                        cards.push(card);
                    }
                    while patient(turn::enqueue(&mut alone, &requests, &cards).await)?.is_none() {}
                    let claimed = turn::claim_with(alone.connection(), &mut claiming).await?;
                    let endings: Vec<Ending> = claimed.into_iter().map(|claimed| ending(claimed.fence)).collect();
                    while patient(turn::finish(&mut alone, &endings).await)?.is_none() {}
                    done.fetch_add(endings.len() as u64, Relaxed);
                }
                anyhow::Ok(())
            });
        }
        Ok(Side::Kernel { gate, done, clients: clients_at_work })
    }

    /// Starts pgbench, which writes the same rows as the same role to the same tables. Turns are counted by the events that they leave.
    async fn pgbench(&self, clients: usize) -> Result<Side> {
        let script = std::env::temp_dir().join(format!("waybill-turn-{}.sql", std::process::id()));
        let text = format!(
            "\\set n random(1, {})\n\
             select bench.enqueue(project_id, agent_id) from bench.agents where n = :n;\n\
             select coalesce(p::text, '') p, coalesce(a::text, '') a, coalesce(t::text, '') t, coalesce(ep, 0) ep,
               coalesce(tok, 0) tok from bench.claim('{}') \\gset\n\
             \\if :tok\nselect bench.finish(:p, :a, :t, :ep, :tok);\n\\endif\n",
            self.agents.len(),
            self.worker,
        );
        std::fs::write(&script, text)?;
        let child = Command::new(postgres::binaries()?.join("pgbench"))
            .args(["-n", "-M", "prepared", "-j", "2", "-c", &clients.to_string(), "-T", "3600", "-f"])
            .arg(&script)
            .arg(self.server.service_url(self.database))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("pgbench comes with PostgreSQL")?;
        let watch = PgConnection::connect(&self.server.admin_url(self.database)).await?;
        let mut side = Side::Pgbench { child, watch, script };
        side.run(Duration::from_secs(1)).await?;
        Ok(side)
    }

    async fn compare(&self, what: &str, a: Side, b: Side) -> Result<[f64; 3]> {
        compare(what, self.options.rounds, self.options.window, a, b).await
    }

    /// Counts what a turn writes to the log.
    async fn log(&self, figures: &mut Vec<Figure>) -> Result<()> {
        let mut watch = PgConnection::connect(&self.server.admin_url(self.database)).await?;
        // After a checkpoint the first change of a page writes the page whole: these turns do so for the pages that all turns change.
        self.one_by_one(self.options.logged / 4).await?;
        let before = logged(&mut watch).await?;
        self.one_by_one(self.options.logged).await?;
        let after = logged(&mut watch).await?;
        let per_turn = |of: usize| (after[of] - before[of]) / self.options.logged as f64;
        let [records, bytes] = self.options.log_bars;
        figures.push(Figure::new("WAL records per turn", per_turn(0), "records", records));
        figures.push(Figure::new("WAL bytes per turn", per_turn(1), "bytes", bytes));
        figures.push(Figure::new("pages written whole to the WAL, per turn", per_turn(2), "pages", Bar::None));
        Ok(())
    }

    /// Runs turns one after the other, on connections of their own: the server counts what a connection wrote when it ends.
    async fn one_by_one(&self, turns: usize) -> Result<()> {
        let config = Config { max_connections: 2, ..Config::new(self.server.service_url(self.database)) };
        let kernel = Kernel::connect_unchecked(&config).await?;
        let mut alone = kernel.alone(self.project_id).await?;
        let mut claiming = Claiming::new(self.worker, llm());
        for n in 0..turns {
            let card = new_card(CardType::instruction(), Role::User);
            let request = DispatchRequest::instructed(self.agents[n % self.agents.len()], card.card_id());
            turn::enqueue(&mut alone, &[request], &[card]).await?;
            let claimed = turn::claim(&kernel, &mut claiming).await?;
            let endings: Vec<Ending> = claimed.into_iter().map(|claimed| ending(claimed.fence)).collect();
            turn::finish(&mut alone, &endings).await?;
        }
        drop(alone);
        kernel.close().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    }

    async fn beside_pgbench(&self, clients: usize, figures: &mut Vec<Figure>) -> Result<()> {
        let what = format!("turns, {clients} clients");
        let bare = self.pgbench(clients).await?;
        let [ratio, ours, bare] = self.compare(&what, self.crew(clients, 1)?, bare).await?;
        figures.push(Figure::new(
            format!("turns/s through the kernel ÷ the same rows by pgbench, {clients} clients"),
            ratio,
            "ratio",
            self.options.beside_pgbench,
        ));
        figures.push(Figure::new(format!("turns/s through the kernel, {clients} clients"), ours, "turns/s", Bar::None));
        figures.push(Figure::new(format!("turns/s by pgbench, {clients} clients"), bare, "turns/s", Bar::None));
        Ok(())
    }

    async fn batched(&self, figures: &mut Vec<Figure>) -> Result<()> {
        let what = "turns in batches of 50";
        let [ratio, batched, _] = self.compare(what, self.crew(8, BATCH)?, self.crew(8, 1)?).await?;
        figures.push(Figure::new(
            "turns/s in batches of 50 ÷ one by one, 8 clients",
            ratio,
            "ratio",
            Bar::AtLeast(2.0),
        ));
        figures.push(Figure::new("turns/s in batches of 50, 8 clients", batched, "turns/s", Bar::None));
        Ok(())
    }

    async fn growth(&self, large: &Bench, figures: &mut Vec<Figure>) -> Result<()> {
        let what = "turns, many agents and few";
        let [ratio, ..] = self.compare(what, large.crew(8, 1)?, self.crew(8, 1)?).await?;
        figures.push(Figure::new(
            format!("turns/s with {} agents ÷ with {}, 8 clients", large.agents.len(), self.agents.len()),
            ratio,
            "ratio",
            Bar::AtLeast(0.8),
        ));
        Ok(())
    }

    /// Measures how long a project's single turn waits for a worker: alone, beside ten ready turns of another project, and beside 10,000. There
    /// are four workers; each turn keeps one busy for five milliseconds, and a worker that finds nothing looks again after five. When a turn of
    /// the other project is finished, a new one is enqueued, so ten and 10,000 keep the workers equally busy, and differ only in number.
    async fn fairness(&self, figures: &mut Vec<Figure>) -> Result<()> {
        const FEW: usize = 10;
        const FLOOD: usize = 10_000;
        let fair: Target = "fair".parse()?;
        let samples = self.options.rounds * 6;
        let guest = ProjectId::new();
        let mut work = self.kernel.begin(guest).await?;
        let guest_agent = AgentId::new();
        agent::create(&mut work, &[guest_agent], &fair).await?;
        work.commit().await?;
        let crowd: Vec<AgentId> = (0..FLOOD).map(|_| AgentId::new()).collect();
        let host = ProjectId::new();
        let mut work = self.kernel.begin(host).await?;
        agent::create(&mut work, &crowd, &fair).await?;
        work.commit().await?;

        let over = Arc::new(AtomicBool::new(false));
        let (heard, mut hears) = unbounded_channel::<Instant>();
        let mut set = JoinSet::new();
        for _ in 0..4 {
            let (kernel, over, heard) = (self.kernel.clone(), over.clone(), heard.clone());
            let mut claiming = Claiming::new(self.worker, fair.clone());
            set.spawn(async move {
                while !over.load(Relaxed) {
                    serve_fairly(&kernel, &mut claiming, [host, guest], &heard).await?;
                }
                anyhow::Ok(())
            });
        }
        let (mut medians, mut latest) = (Vec::new(), Vec::new());
        let mut ready = 0;
        for (beside, what) in [(0, "waiting alone"), (FEW, "waiting beside a few"), (FLOOD, "waiting beside a flood")] {
            let bar = progress(what, samples as u64);
            for part in crowd[ready..beside].chunks(500) {
                enqueue(&self.kernel, host, part).await?;
            }
            ready = beside;
            let mut waits = Vec::new();
            for _ in 0..samples {
                enqueue(&self.kernel, guest, &[guest_agent]).await?;
                let enqueued_at = Instant::now();
                let claimed_at = hears.recv().await.context("the workers have ended")?;
                waits.push(claimed_at.saturating_duration_since(enqueued_at).as_secs_f64());
                // Keeps the samples from falling into step with the workers.
                tokio::time::sleep(SERVICE * 3 / 2).await;
                bar.inc(1);
            }
            bar.finish_and_clear();
            latest.push(percentile(waits.clone(), 0.99));
            medians.push(median(waits));
        }
        over.store(true, Relaxed);
        while let Some(worker) = set.join_next().await {
            worker??;
        }
        figures.push(Figure::new(
            "wait of a project's only turn beside another's 10,000 ready ones ÷ beside 10, p50",
            medians[2] / medians[1],
            "ratio",
            Bar::AtMost(2.0),
        ));
        figures.push(Figure::new(
            "the same, p99",
            latest[2] / latest[1],
            "ratio",
            if matches!(self.options.beside_pgbench, Bar::None) { Bar::None } else { Bar::AtMost(3.0) },
        ));
        // This also depends on the machine: a debug build on a shared machine misses the bar for that reason alone.
        let alone = if matches!(self.options.beside_pgbench, Bar::None) { Bar::None } else { Bar::AtMost(2.0) };
        figures.push(Figure::new(
            "wait of a project's only turn beside another's 10,000 ready ones ÷ alone, p50",
            medians[2] / medians[0],
            "ratio",
            alone,
        ));
        let mut watch = PgConnection::connect(&self.server.admin_url(self.database)).await?;
        let left: i64 = sqlx::query_scalar("select count(*) from state.agent_inbox where project_id = $1")
            .bind(host)
            .fetch_one(&mut watch)
            .await?;
        figures.push(Figure::new(
            "ready turns left of the 10,000 at the end",
            left as f64,
            "turns",
            Bar::AtLeast(9_990.0),
        ));
        Ok(())
    }
}

/// Claims turns and keeps busy with them for a moment. Sends the time at which it claimed a turn of the guest, and replaces turns of the host.
async fn serve_fairly(
    kernel: &Kernel,
    claiming: &mut Claiming,
    [host, guest]: [ProjectId; 2],
    heard: &UnboundedSender<Instant>,
) -> Result<()> {
    let claimed = turn::claim(kernel, claiming).await?;
    let claimed_at = Instant::now();
    tokio::time::sleep(SERVICE).await;
    for claimed in claimed {
        let (project_id, agent_id) = (claimed.fence.project_id(), claimed.fence.agent_id());
        if project_id == guest {
            heard.send(claimed_at)?;
        }
        turn::finish(&mut kernel.alone(project_id).await?, &[ending(claimed.fence)]).await?;
        if project_id == host {
            enqueue(kernel, host, &[agent_id]).await?;
        }
    }
    Ok(())
}

async fn enqueue(kernel: &Kernel, project_id: ProjectId, agents: &[AgentId]) -> Result<()> {
    let cards: Vec<NewCard> = agents.iter().map(|_| new_card(CardType::instruction(), Role::User)).collect();
    let instructed = |(agent_id, card): (&AgentId, &NewCard)| DispatchRequest::instructed(*agent_id, card.card_id());
    let requests: Vec<DispatchRequest> = agents.iter().zip(&cards).map(instructed).collect();
    turn::enqueue(&mut kernel.alone(project_id).await?, &requests, &cards).await?;
    Ok(())
}

/// Returns `None` if another transaction held a lock for a second, which happens on a machine that stalls at times. The caller retries.
pub(super) fn patient<T>(outcome: Result<T, turn::Error>) -> Result<Option<T>, turn::Error> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(turn::Error::TryAgain(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes agents that have each had a turn: they are set-up, and are not measured.
const HISTORY: &str = "
  with agent as materialized (
    select n, bench.id() as agent_id, bench.id() as turn_id, bench.id() as context_id, bench.id() as output_id,
           array[bench.id(), bench.id(), bench.id()] as cards, bench.id() as step_id
      from generate_series($2, $3) n
  ), known as (
    insert into bench.agents (n, project_id, agent_id) select n, $1, agent_id from agent
  ), roster as (
    insert into resource.project_agents (project_id, agent_id, worker_target) select $1, agent_id, 'llm' from agent
  ), head as (
    insert into state.agent_state_head (project_id, agent_id, worker_target, turn_epoch, claim_token)
    select $1, agent_id, 'llm', 1, 1 from agent
  ), card as (
    insert into cardbox.cards (project_id, card_id, n_tokens, type, role, hash, salt, content)
    select $1, c, $4, 'agent.thought', 'assistant', decode(md5(c::text) || md5(c::text), 'hex'), decode(md5(c::text), 'hex'),
           to_json(repeat(md5(c::text), 21))
      from agent, unnest(cards) c
  ), box as (
    insert into cardbox.boxes (project_id, box_id, length)
    select $1, context_id, 1 from agent union all select $1, output_id, 2 from agent
  ), entry as (
    insert into cardbox.box_entries (project_id, box_id, seq, card_id)
    select $1, context_id, 1, cards[1] from agent
     union all select $1, output_id, 1, cards[2] from agent union all select $1, output_id, 2, cards[3] from agent
  ), turn as (
    insert into state.turns (project_id, agent_turn_id, agent_id, context_box_id, output_box_id, status, finished_at, deliverable_card_id,
                             turn_epoch, claim_token, root_turn_id)
    select $1, turn_id, agent_id, context_id, output_id, 'success', now(), cards[3], 1, 1, turn_id from agent
  ), step as (
    insert into state.agent_steps (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq)
    select $1, turn_id, step_id, agent_id, 1, 1, 'finished', 1, 2 from agent
  ), event as (
    insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, published_at)
    select $1, turn_id, 'task', turn_id, agent_id, 'success', now() from agent
  )
  select agent_id from agent";

/// Returns the records, bytes and whole pages that the server has written to its log.
async fn logged(watch: &mut PgConnection) -> Result<[f64; 3]> {
    let sql = "select array[wal_records, wal_bytes, wal_fpi]::float8[] from pg_stat_wal";
    let logged: Vec<f64> = sqlx::query_scalar(sql).fetch_one(watch).await?;
    Ok([logged[0], logged[1], logged[2]])
}

async fn events(watch: &mut PgConnection) -> Result<i64> {
    Ok(sqlx::query_scalar("select last_value from state.outbox_seq").fetch_one(watch).await?)
}

pub(crate) fn ending(fence: waybill_core::turn::Fence) -> Ending {
    let cards =
        vec![new_card(CardType::thought(), Role::Assistant), new_card(CardType::deliverable(), Role::Assistant)];
    Ending { fence, status: End::Success, step_id: Some(StepId::new()), receipt: None, usage: None, seen: None, cards }
}

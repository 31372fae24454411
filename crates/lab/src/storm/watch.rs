//! Many callers watch many trees over HTTP while their turns run, and are cut off at random (UI-10).
//!
//! Each watcher continues where it was cut off, by `Last-Event-ID`. In the end each must have every event of its tree once, those of one turn in
//! their order; and the server must ask the database no more often for all of them than for one. Some transactions stay open for a while after they
//! have drawn the number of an event, so that numbers appear out of order.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use futures::StreamExt;
use reqwest::Client;
use serde::Deserialize;
use sqlx::PgConnection;
use tokio::{
    net::TcpListener,
    sync::Notify,
    task::JoinSet,
    time::{interval, sleep},
};
use waybill_core::{
    card::{CardType, Role},
    id::{AgentId, ProjectId, StepId, Target, TurnId, WorkerId},
    key::{ApiKey, Bounds, Scope},
    turn::End,
};
use waybill_kernel::{
    agent, key, project,
    turn::{self, Claiming, DispatchRequest, Ending, Step},
    work::Kernel,
};
use waybill_services::{ChildProcess, Private, Server};

use super::dice::Dice;
use crate::{
    bench::{fresh_database, new_card, progress},
    figure::{Bar, Figure},
    serving::serve,
};

#[derive(Clone, Debug)]
pub struct Options {
    pub program: PathBuf,
    pub seed: u64,
    pub watchers: usize,
    pub trees: usize,
    pub cuts: usize,
    /// Turns per second. Each has five events.
    pub pace: f64,
    /// How long the statements are counted, with one watcher and with all.
    pub window: Duration,
}

const DATABASE: &str = "waybill_watch";
const WRITERS: usize = 8;
const AGENTS: usize = 16;
/// One key may have a third of all streams.
const KEYS: usize = 2;
/// Cuts per second.
const CUTS: f64 = 20.0;
/// A process polls up to nine times a second while events are not settled yet, which takes longer on a busy machine, and looks up each key every three
/// seconds: however many watch.
const MOST_STATEMENTS: Bar = Bar::AtMost(12.0);
/// How long after the last event it may take until every watcher has it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures the shipped program on a private PostgreSQL.
pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    eprintln!("chaos watch: seed {}", options.seed);
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    // So that the server counts calls of functions: every statement for watchers calls one.
    sqlx::raw_sql("alter system set track_functions = 'all'").execute(&mut admin).await?;
    sqlx::raw_sql("select pg_reload_conf()").execute(&mut admin).await?;
    let house = House::open(options, &private.server, &kernel).await?;
    let over = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for n in 0..WRITERS {
        let writer = Writer { kernel: kernel.clone(), project_id: house.project_id, n, trees: house.trees.clone() };
        writers.spawn(writer.write(options.pace / WRITERS as f64, options.seed, over.clone()));
    }
    let bar = progress("cuts", options.cuts as u64);
    let begun = Instant::now();

    let first = house.watch(1);
    sleep(Duration::from_secs(3)).await;
    let with_one = house.statements(&mut admin, options.window).await?;
    drop(first);
    let crowd = house.watch(options.watchers);
    sleep(Duration::from_secs(5)).await;
    let with_all = house.statements(&mut admin, options.window).await?;
    let mut dice = Dice::new(options.seed);
    let mut ticks = interval(Duration::from_secs_f64(1.0 / CUTS));
    for _ in 0..options.cuts {
        ticks.tick().await;
        crowd.watchers[dice.one_of(crowd.watchers.len())].cut.notify_one();
        bar.inc(1);
    }
    bar.finish_and_clear();
    over.store(true, Relaxed);
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    let lasted = begun.elapsed().as_secs_f64();

    let truth = house.truth(&mut admin).await?;
    let n_events = truth.values().map(BTreeSet::len).sum::<usize>();
    let waits = Instant::now();
    while !crowd.watchers.iter().all(|watcher| watcher.n_seen() >= truth[&watcher.tree].len())
        && waits.elapsed() < PATIENCE
    {
        sleep(Duration::from_millis(200)).await;
    }
    // What would come twice comes now.
    sleep(Duration::from_secs(2)).await;
    let faults = crowd.faults(&truth);
    let none = Bar::AtMost(0.0);
    Ok(vec![
        Figure::new("watchers", crowd.watchers.len() as f64, "streams", Bar::AtLeast(1.0)),
        Figure::new("events of their trees", n_events as f64, "events", Bar::AtLeast(1.0)),
        Figure::new("events per second", n_events as f64 / lasted, "events/s", Bar::None),
        Figure::new("streams cut", faults.cuts as f64, "cuts", Bar::AtLeast(options.cuts as f64 * 0.9)),
        Figure::new("events lost", faults.lost as f64, "events", none),
        Figure::new("events twice", faults.twice as f64, "events", none),
        Figure::new("events out of order in their turn", faults.disordered as f64, "events", none),
        Figure::new("statements per second with one watcher", with_one, "statements/s", Bar::None),
        Figure::new("statements per second with all watchers", with_all, "statements/s", MOST_STATEMENTS),
    ])
}

/// A server, and a project with trees of turns.
struct House {
    url: String,
    project_id: ProjectId,
    keys: Vec<String>,
    trees: Vec<TurnId>,
    _process: ChildProcess,
}

impl House {
    async fn open(options: &Options, server: &Server, kernel: &Kernel) -> Result<House> {
        let mut work = kernel.begin(ProjectId::new()).await?;
        let project_id = work.project_id();
        project::create(&mut work, "watched").await?;
        let mut keys = Vec::new();
        for n in 0..KEYS {
            let made = ApiKey::mint("test");
            key::create(&mut work, &made, &format!("k{n}").parse()?, Scope::Reader, &Bounds::default(), None).await?;
            keys.push(made.expose().to_owned());
        }
        let mut trees = Vec::new();
        for _ in 0..options.trees {
            let (agent_id, card) = (AgentId::new(), new_card(CardType::instruction(), Role::User));
            agent::create(&mut work, &[agent_id], &"nobody".parse()?).await?;
            let request = DispatchRequest::instructed(agent_id, card.card_id());
            turn::enqueue(&mut work, std::slice::from_ref(&request), &[card]).await?;
            trees.push(request.agent_turn_id);
        }
        work.commit().await?;
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let process = serve(&options.program, &address, &server.service_url(DATABASE), &[]).await?;
        Ok(House { url: format!("http://{address}"), project_id, keys, trees, _process: process })
    }

    /// Starts watchers, which watch until the value is dropped.
    fn watch(&self, n: usize) -> Crowd {
        let mut crowd = Crowd { watchers: Vec::new(), at_work: JoinSet::new() };
        for n in 0..n {
            let tree = self.trees[n % self.trees.len()];
            let watcher = Arc::new(Watcher { tree, cut: Notify::new(), seen: Mutex::default() });
            let url = format!("{}/v1/projects/watched/events?root={tree}", self.url);
            crowd.at_work.spawn(watcher.clone().watch(url, self.keys[n % KEYS].clone()));
            crowd.watchers.push(watcher);
        }
        crowd
    }

    /// Returns how many statements per second the server sends for those who watch.
    async fn statements(&self, admin: &mut PgConnection, window: Duration) -> Result<f64> {
        let (before, begun) = (calls(admin).await?, Instant::now());
        sleep(window).await;
        Ok((calls(admin).await? - before) as f64 / begun.elapsed().as_secs_f64())
    }

    /// Returns the events of each tree.
    async fn truth(&self, admin: &mut PgConnection) -> Result<BTreeMap<TurnId, BTreeSet<i64>>> {
        let rows: Vec<(TurnId, i64)> = sqlx::query_as(
            "select t.root_turn_id, o.outbox_seq
               from state.outbox o
               join state.turns t on t.project_id = o.project_id and t.agent_turn_id = o.agent_turn_id
              where o.project_id = $1",
        )
        .bind(self.project_id)
        .fetch_all(admin)
        .await?;
        let mut truth: BTreeMap<TurnId, BTreeSet<i64>> =
            self.trees.iter().map(|tree| (*tree, BTreeSet::new())).collect();
        for (root, seq) in rows {
            truth.entry(root).or_default().insert(seq);
        }
        Ok(truth)
    }
}

/// Returns how often the functions were called that watching calls: the reader's, and the one that looks up a key.
async fn calls(admin: &mut PgConnection) -> Result<i64> {
    let sql = "select coalesce(sum(calls), 0)::bigint from pg_stat_user_functions where funcname in ('events_after', 'find_key')";
    Ok(sqlx::query_scalar(sql).fetch_one(admin).await?)
}

struct Crowd {
    watchers: Vec<Arc<Watcher>>,
    at_work: JoinSet<()>,
}

/// What was wrong with what the watchers got.
#[derive(Debug, Default)]
struct Faults {
    lost: usize,
    twice: usize,
    disordered: usize,
    cuts: usize,
}

impl Crowd {
    fn faults(&self, truth: &BTreeMap<TurnId, BTreeSet<i64>>) -> Faults {
        let mut faults = Faults::default();
        for watcher in &self.watchers {
            let seen = watcher.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let once: BTreeSet<i64> = seen.events.iter().map(|(_, seq)| *seq).collect();
            faults.lost += truth[&watcher.tree].difference(&once).count();
            faults.twice += seen.events.len() - once.len();
            faults.cuts += seen.cuts;
            let mut last: BTreeMap<TurnId, i64> = BTreeMap::new();
            for (turn_id, seq) in &seen.events {
                let before = last.insert(*turn_id, *seq);
                faults.disordered += usize::from(before.is_some_and(|before| before > *seq));
            }
        }
        faults
    }
}

/// One caller that watches a tree.
struct Watcher {
    tree: TurnId,
    cut: Notify,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// In the order in which they came.
    events: Vec<(TurnId, i64)>,
    cuts: usize,
}

#[derive(Deserialize)]
struct Told {
    agent_turn_id: TurnId,
    outbox_seq: i64,
}

impl Watcher {
    fn n_seen(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).events.len()
    }

    /// Watches from the beginning, and continues after each cut.
    async fn watch(self: Arc<Watcher>, url: String, key: String) {
        let Ok(http) = Client::builder().no_proxy().build() else { return };
        let mut last = "0".to_owned();
        loop {
            let asked = http.get(&url).bearer_auth(&key).header("last-event-id", &last).send().await;
            let Some(answer) = asked.ok().filter(|answer| answer.status().is_success()) else {
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (mut pieces, mut text) = (answer.bytes_stream(), String::new());
            loop {
                let piece = tokio::select! {
                    piece = pieces.next() => piece,
                    () = self.cut.notified() => {
                        self.seen.lock().unwrap_or_else(PoisonError::into_inner).cuts += 1;
                        break;
                    }
                };
                let Some(Ok(piece)) = piece else { break };
                text.push_str(&String::from_utf8_lossy(&piece));
                while let Some((event, rest)) = text.split_once("\n\n") {
                    let field = |name: &'static str| event.lines().find_map(|line| line.strip_prefix(name));
                    if let Some(id) = field("id:") {
                        last = id.trim().to_owned();
                    }
                    if let Some(told) = field("data:").and_then(|data| serde_json::from_str::<Told>(data).ok()) {
                        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                        seen.events.push((told.agent_turn_id, told.outbox_seq));
                    }
                    text = rest.to_owned();
                }
            }
        }
    }
}

/// Runs turns below the roots of the trees, one after the other.
struct Writer {
    kernel: Kernel,
    project_id: ProjectId,
    n: usize,
    trees: Vec<TurnId>,
}

impl Writer {
    async fn write(self, pace: f64, seed: u64, over: Arc<AtomicBool>) -> Result<()> {
        let mut dice = Dice::of(&format!("{seed} {}", self.n));
        let target: Target = format!("writer-{}", self.n).parse()?;
        let agents: Vec<AgentId> = (0..AGENTS).map(|_| AgentId::new()).collect();
        let mut work = self.kernel.begin(self.project_id).await?;
        agent::create(&mut work, &agents, &target).await?;
        work.commit().await?;
        let mut claiming = Claiming::new(WorkerId::new(), target);
        let mut ticks = interval(Duration::from_secs_f64(1.0 / pace));
        while !over.load(Relaxed) {
            ticks.tick().await;
            let card = new_card(CardType::instruction(), Role::User);
            let request = DispatchRequest {
                parent_agent_turn_id: Some(self.trees[dice.one_of(self.trees.len())]),
                emit_state_event: true,
                ..DispatchRequest::instructed(agents[dice.one_of(AGENTS)], card.card_id())
            };
            let mut work = self.kernel.begin(self.project_id).await?;
            turn::enqueue(&mut work, std::slice::from_ref(&request), &[card]).await?;
            if dice.chance(0.1) {
                sleep(dice.between(Duration::ZERO, Duration::from_millis(150))).await;
            }
            work.commit().await?;
            for claimed in turn::claim(&self.kernel, &mut claiming).await? {
                let step = Step {
                    step_id: StepId::new(),
                    cards: vec![new_card(CardType::thought(), Role::Assistant)],
                    calls: Vec::new(),
                    suspend: false,
                    receipt: None,
                    usage: None,
                };
                let ending = Ending {
                    fence: claimed.fence,
                    status: End::Success,
                    step_id: None,
                    receipt: None,
                    usage: None,
                    seen: None,
                    cards: vec![new_card(CardType::deliverable(), Role::Assistant)],
                };
                let mut alone = self.kernel.alone(self.project_id).await?;
                turn::step(&mut alone, &ending.fence, &step).await?;
                turn::finish(&mut alone, &[ending]).await?;
            }
        }
        Ok(())
    }
}

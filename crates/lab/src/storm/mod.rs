//! The storm: real processes on a real database and a real bus, killed, frozen, cut off, and then held to account.
//!
//! ```text
//!   asker ──▶ PostgreSQL ◀── proxy ◀── worker ×4, tool ×2, orchestrator ×2, sweep ×3, relay ×2   each killed and started again
//!                 │                        │ what it did
//!                 ▼                        ▼
//!              verdict  ◀───────────── ledger (never killed)
//! ```

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::{task::JoinSet, time::sleep};
use waybill_bus::{
    feed::{Config as FeedConfig, NatsFeed},
    nats::Nats,
};
use waybill_core::{
    card::Draft,
    id::{AgentId, BoxId, Name, ProjectId, TurnId},
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    handover, migrate, outbox, resource,
    retry::Transient,
    turn::{self, DispatchRequest},
    work::{self, Kernel},
};
use waybill_services::{Home, nats, postgres};

use crate::{
    bench::progress,
    figure::{Bar, Figure},
};

pub mod changed;
pub mod dice;
pub mod ledger;
pub mod mutant;
pub mod process;
pub mod proxy;
pub mod record;
pub mod runaway;
pub mod schedule;
pub mod script;
pub mod watch;

mod crew;
pub(crate) mod verdict;
mod witness;

use crew::{Crew, LedgerKeeper, Place};
use dice::Dice;
use ledger::{Entry, Ledger};
use mutant::Mutant;
use process::{PROFILE, Role};
use proxy::{Mode, Proxy, SLOW};
use schedule::{Fault, Plan, strength};
use script::Script;
use witness::Witness;

const PROJECTS: usize = 8;
const AGENTS: usize = 40;
const DATABASE: &str = "storm";

/// Runs a storm and returns its figures.
pub async fn run(plan: &Plan, mutant: Option<Mutant>) -> Result<Vec<Figure>> {
    eprintln!("{}: seed {}", plan.name, plan.seed);
    let storm = Storm::brew(plan, mutant).await?;
    let figures = storm.rage().await?;
    if figures.iter().all(|figure| figure.ok) {
        let _ = std::fs::remove_dir_all(&storm.folder);
    } else {
        eprintln!("the logs of its processes are in {}", storm.folder.display());
    }
    Ok(figures)
}

#[derive(Debug, Default)]
struct Counts {
    kills: AtomicU64,
    freezes: AtomicU64,
    partitions: AtomicU64,
    nats_kills: AtomicU64,
    postgres_kills: AtomicU64,
    /// Seconds from each kill of PostgreSQL until it answered again.
    outages: Mutex<Vec<f64>>,
    streams_lost: AtomicU64,
    /// Enqueues that were delayed before their commit.
    slow: AtomicU64,
}

struct Storm {
    plan: Plan,
    folder: PathBuf,
    // Fields are dropped in this order.
    crew: Arc<Crew>,
    ledger: Arc<Ledger>,
    _keeper: LedgerKeeper,
    nats: Arc<Mutex<nats::Private>>,
    postgres: Arc<postgres::Private>,
    restarting: Arc<tokio::sync::Mutex<()>>,
    kernel: Kernel,
    houses: Arc<Vec<Project>>,
    counts: Arc<Counts>,
    _bells: Proxy,
}

struct Project {
    project_id: ProjectId,
    agents: Vec<AgentId>,
    /// Agents whose turns are enqueued slowly. The agent's head is locked meanwhile; on shared agents, that would keep other turns from being
    /// taken over in time.
    late: Vec<AgentId>,
    children: Vec<AgentId>,
    profile_box_id: BoxId,
}

impl Storm {
    async fn brew(plan: &Plan, mutant: Option<Mutant>) -> Result<Storm> {
        let folder = Home::find()?.path(&format!("storm-{}-{}", std::process::id(), uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&folder)?;
        let postgres = postgres::Private::to_be_killed().await?;
        let mut nats = nats::Private::new()?;
        if !plan.without_nats {
            nats.start()?;
        }
        let server = &postgres.server;
        server.create_database(DATABASE).await?;
        let mut owner = PgConnection::connect(&server.owner_url(DATABASE)).await?;
        migrate::run(&mut owner, |_| ()).await?;
        if let Some(mutant) = mutant {
            mutant.install(&mut owner).await?;
        }
        // Every look at a queue counts as long and leaves a mark, so that the marking of queues is tested too.
        let marks = format!("alter database {DATABASE} set waybill.long_look = '0'");
        sqlx::query(AssertSqlSafe(marks)).execute(&mut server.admin().await?).await?;
        server.open_logins().await?;
        let kernel = Kernel::connect_unchecked(&work::Config::new(server.service_url(DATABASE))).await?;
        // The process that asks for turns rings doorbells too, and they go through a proxy like those of the other processes.
        let bells = Proxy::start(nats.port(), plan.bells, plan.seed).await?;
        let kernel = kernel.on(Arc::new(Nats::connect(&format!("nats://127.0.0.1:{}", bells.port)).await?));
        let mut houses = Vec::new();
        for _ in 0..PROJECTS {
            let project_id = ProjectId::new();
            let mut work = kernel.begin(project_id).await?;
            let make = || (0..AGENTS).map(|_| AgentId::new()).collect::<Vec<_>>();
            let (agents, late, children) = (make(), make(), make());
            let profile = serde_json::json!({ "profile": {
                "name": PROFILE, "worker_target": "llm", "system_prompt_template": "",
                "allowed_internal_tools": ["fork_join"], "delegation_policy": { "target_profiles": [PROFILE] },
                "llm_config": { "provider": "openai_chat", "model": "m" } } });
            resource::apply(&mut work, &[serde_json::from_value(profile)?]).await?;
            let profile_name: Name = PROFILE.parse()?;
            let profile = handover::target(&mut work, &profile_name).await?;
            let profile_box_id = profile.profile_box_id;
            let of_profile = |agent_id: &AgentId| NewAgent::of(*agent_id, &profile);
            let roster: Vec<NewAgent> = agents.iter().chain(&late).chain(&children).map(of_profile).collect();
            agent::provision(&mut work, &roster, Stay::Plain, None).await?;
            work.commit().await?;
            houses.push(Project { project_id, agents, late, children, profile_box_id });
        }
        let keeper = LedgerKeeper::start(&folder.join("ledger"))?;
        let mut places = Vec::new();
        for role in Role::ALL {
            for number in 0..strength(role) {
                let seed = plan.seed ^ (places.len() as u64) << 32;
                let database = Proxy::start(server.port(), plan.calm(role), seed).await?;
                // Relays publish events on their connections, and events are not doorbells.
                let bells = if role == Role::Relay { Mode::Pass } else { plan.bells };
                let bus = Proxy::start(nats.port(), bells, seed).await?;
                places.push(Place::new(role, number, database, bus));
            }
        }
        let crew = Crew::new(&folder, DATABASE, keeper.port, plan.lease, places)?;
        for (role, number) in crew.places.keys() {
            crew.start(*role, *number)?;
        }
        Ok(Storm {
            plan: plan.clone(),
            folder,
            crew: Arc::new(crew),
            ledger: Arc::new(Ledger::connect(keeper.port)?),
            _keeper: keeper,
            nats: Arc::new(Mutex::new(nats)),
            postgres: Arc::new(postgres),
            restarting: Arc::default(),
            kernel,
            houses: Arc::new(houses),
            counts: Arc::default(),
            _bells: bells,
        })
    }

    async fn rage(&self) -> Result<Vec<Figure>> {
        let begun = Instant::now();
        let asking = tokio::spawn(ask(
            self.plan.clone(),
            self.kernel.clone(),
            self.houses.clone(),
            self.ledger.clone(),
            self.counts.clone(),
        ));
        let witness = Witness::begin(self.postgres.server.admin_url(DATABASE), self.kernel.clone());
        let bar = progress(self.plan.name, self.plan.duration.as_secs());
        let mut faults = JoinSet::new();
        for (at, fault) in self.plan.schedule() {
            while begun.elapsed() < at {
                sleep((at - begun.elapsed()).min(Duration::from_millis(500))).await;
                bar.set_position(begun.elapsed().as_secs());
            }
            faults.spawn(self.strike(fault));
            while let Some(ended) = faults.try_join_next() {
                ended??;
            }
        }
        while let Some(ended) = faults.join_next().await {
            ended??;
        }
        asking.await??;
        bar.finish_and_clear();

        // From here on there is neither new work nor a new fault.
        let settled = self.settle(Instant::now()).await;
        let seen = witness.end(&self.plan).await?;
        let published = if self.plan.without_nats { Vec::new() } else { self.published().await? };
        sleep(Duration::from_millis(600)).await; // the ledger writes what it has heard
        let lines = ledger::read(&self.folder.join("ledger"))?;
        let mut admin = PgConnection::connect(&self.postgres.server.admin_url(DATABASE)).await?;
        let mut figures = verdict::of_the_database(&mut admin, self.plan.turns).await?;
        figures.extend(verdict::of_the_ledger(&mut admin, &lines, self.plan.turns).await?);
        figures.extend(seen);
        figures.extend(published);
        let ends = verdict::ends(&mut admin).await?;
        self.report(settled, &lines, &ends, &mut figures);
        Ok(figures)
    }

    fn report(
        &self,
        settled: Duration,
        lines: &[ledger::Line],
        ends: &HashMap<TurnId, verdict::End>,
        figures: &mut Vec<Figure>,
    ) {
        let plan = &self.plan;
        let mut count = |what: &str, n: &AtomicU64, least: usize| {
            if least > 0 {
                figures.push(Figure::new(what, n.load(Relaxed) as f64, "faults", Bar::AtLeast(least as f64)));
            }
        };
        count("kills of workers, tools, orchestrators, sweeps and relays", &self.counts.kills, plan.kills * 2 / 3);
        count("processes frozen for longer than their lease", &self.counts.freezes, plan.freezes * 2 / 3);
        count("partitions for longer than the lease", &self.counts.partitions, plan.partitions * 2 / 3);
        count("kills of NATS", &self.counts.nats_kills, plan.nats_kills);
        count("kills of PostgreSQL", &self.counts.postgres_kills, plan.postgres_kills);
        count("streams deleted", &self.counts.streams_lost, plan.streams_lost);
        if plan.slow > 0.0 {
            let enqueues = self.counts.slow.load(Relaxed);
            let others =
                self.crew.places.values().map(|place| place.database.counts.slow_commits.load(Relaxed)).sum::<u64>();
            let least = Bar::AtLeast((plan.turns as f64 * plan.slow / 2.0).floor());
            figures.push(Figure::new(
                "enqueues held up for 0.5 to 4 s, then committed",
                enqueues as f64,
                "transactions",
                least,
            ));
            figures.push(Figure::new(
                "other transactions held up, then committed",
                others as f64,
                "transactions",
                Bar::AtLeast(1.0),
            ));
        }
        let outages = self.counts.outages.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !outages.is_empty() {
            figures.push(Figure::new("PostgreSQL away, longest", verdict::percentile(outages, 1.0), "s", Bar::None));
        }
        if matches!(plan.bells, Mode::Bells { .. }) {
            let sum = |of: fn(&proxy::Counts) -> &AtomicU64| {
                self.crew.places.values().map(|place| of(&place.bus.counts).load(Relaxed)).sum::<u64>() as f64
            };
            let sent = sum(|counts| &counts.sent).max(1.0);
            figures.push(Figure::new(
                "doorbells dropped",
                sum(|counts| &counts.dropped) / sent,
                "share",
                Bar::AtLeast(0.25),
            ));
            figures.push(Figure::new(
                "doorbells doubled",
                sum(|counts| &counts.doubled) / sent,
                "share",
                Bar::AtLeast(0.25),
            ));
        }
        let (died, complaints) = self.crew.complaints();
        figures.push(Figure::new("processes that ended by themselves", died as f64, "processes", Bar::AtMost(0.0)));
        figures.push(Figure::new("turns and calls given up, panics", complaints as f64, "lines", Bar::AtMost(0.0)));
        figures.push(Figure::new("last fault to last end", settled.as_secs_f64(), "s", Bar::AtMost(30.0)));
        let resumed = verdict::kill_to_resumed(lines, ends, plan.lease);
        if plan.kills > 0 {
            let most = plan.lease.as_secs_f64() * 2.0 + 2.0;
            figures.push(Figure::new(
                "turns held by a process that was killed",
                resumed.len() as f64,
                "turns",
                Bar::AtLeast(1.0),
            ));
            figures.push(Figure::new(
                "kill to resumed, p50",
                verdict::percentile(resumed.clone(), 0.5),
                "s",
                Bar::None,
            ));
            figures.push(Figure::new(
                "kill to resumed, p99",
                verdict::percentile(resumed, 0.99),
                "s",
                Bar::AtMost(most),
            ));
        }
        let claimed = verdict::accepted_to_claimed(lines);
        let prompt = if plan.prompt { Bar::AtMost(2.0) } else { Bar::None };
        figures.push(Figure::new(
            "accepted to claimed, p50",
            verdict::percentile(claimed.clone(), 0.5),
            "s",
            Bar::None,
        ));
        figures.push(Figure::new("accepted to claimed, p99", verdict::percentile(claimed, 0.99), "s", prompt));
    }

    /// Causes one fault and ends it.
    fn strike(&self, fault: Fault) -> impl Future<Output = Result<()>> + Send + 'static {
        let (crew, ledger, counts) = (self.crew.clone(), self.ledger.clone(), self.counts.clone());
        let (nats, postgres, restarting) = (self.nats.clone(), self.postgres.clone(), self.restarting.clone());
        let plan = self.plan.clone();
        async move {
            match fault {
                Fault::Kill(role, number) => {
                    if let Some(by) = crew.kill(role, number) {
                        ledger.note(&Entry::Killed { by });
                        counts.kills.fetch_add(1, Relaxed);
                        sleep(Duration::from_millis(200)).await;
                        crew.start(role, number)?;
                    }
                }
                Fault::Freeze(role, number, for_so_long) => {
                    if let Some(incarnation) = crew.freeze(role, number) {
                        sleep(for_so_long).await;
                        let whole = crew.thaw(role, number, incarnation);
                        counts.freezes.fetch_add(u64::from(whole), Relaxed);
                    }
                }
                Fault::Partition(role, number, mode, for_so_long) => {
                    if crew.cut_off(role, number) {
                        let proxy = &crew.places[&(role, number)].database;
                        proxy.set(mode);
                        sleep(for_so_long).await;
                        proxy.set(plan.calm(role));
                        crew.reconnect(role, number);
                        counts.partitions.fetch_add(1, Relaxed);
                    }
                }
                Fault::KillNats(pause) => {
                    let lock = || nats.lock().unwrap_or_else(PoisonError::into_inner);
                    lock().kill();
                    counts.nats_kills.fetch_add(1, Relaxed);
                    sleep(pause).await;
                    tokio::task::block_in_place(|| lock().start())?;
                }
                Fault::KillPostgres(pause) => {
                    let _one_at_a_time = restarting.lock().await;
                    let begun = Instant::now();
                    postgres.kill();
                    counts.postgres_kills.fetch_add(1, Relaxed);
                    sleep(pause).await;
                    let outage = begun.elapsed() + postgres.restart().await?;
                    ledger.note(&Entry::Back { after_seconds: outage.as_secs_f64() });
                    counts.outages.lock().unwrap_or_else(PoisonError::into_inner).push(outage.as_secs_f64());
                }
                Fault::LoseStream => {
                    let url = nats.lock().unwrap_or_else(PoisonError::into_inner).url();
                    let feed = NatsFeed::new(&Nats::connect(&url).await?, FeedConfig::default());
                    // A stream that was deleted a moment ago may not be back yet.
                    for attempt in 0.. {
                        match feed.delete().await {
                            Ok(()) => break,
                            Err(error) if attempt > 100 => return Err(error.into()),
                            Err(_) => sleep(Duration::from_millis(100)).await,
                        }
                    }
                    counts.streams_lost.fetch_add(1, Relaxed);
                }
            }
            Ok(())
        }
    }

    /// Waits until every turn has ended. Returns the time since the last fault.
    async fn settle(&self, last_fault: Instant) -> Duration {
        loop {
            let open = async {
                let mut admin = PgConnection::connect(&self.postgres.server.admin_url(DATABASE)).await?;
                sqlx::query_scalar::<_, bool>(
                    "select exists (select from state.turns where status = 'open') or exists (select from state.pmo_batches where stopping)",
                )
                    .fetch_one(&mut admin)
                    .await
            };
            if matches!(open.await, Ok(false)) || last_fault.elapsed() > self.plan.patience {
                return last_fault.elapsed();
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the outbox is empty, and compares the stream with it.
    async fn published(&self) -> Result<Vec<Figure>> {
        let begun = Instant::now();
        loop {
            let lag = outbox::lag(&self.kernel).await;
            let empty = lag.is_ok_and(|lag| lag.n_unpublished == 0 && lag.n_replaying == 0);
            if empty || begun.elapsed() > self.plan.patience {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        let url = self.nats.lock().unwrap_or_else(PoisonError::into_inner).url();
        let feed = NatsFeed::new(&Nats::connect(&url).await?, FeedConfig::default());
        let events = feed.read_all().await?;
        let told: HashSet<String> = events.iter().map(|(_, event)| event.message_id()).collect();
        let mut admin = PgConnection::connect(&self.postgres.server.admin_url(DATABASE)).await?;
        let written: Vec<String> =
            sqlx::query_scalar("select agent_turn_id || '.' || event || '.' || event_id from state.outbox")
                .fetch_all(&mut admin)
                .await?;
        let missing = written.iter().filter(|id| !told.contains(*id)).count();
        let mut figures = vec![Figure::new(
            "events of the outbox that are not in the stream",
            missing as f64,
            "events",
            Bar::AtMost(0.0),
        )];
        // After a stream was deleted, events in flight may come before events that are published again.
        if self.plan.streams_lost == 0 {
            let (mut seen, mut last, mut behind) = (HashSet::new(), HashMap::new(), 0);
            for (_, event) in events.iter().filter(|(_, event)| seen.insert(event.message_id())) {
                let last = last.entry(event.agent_id).or_insert(0);
                behind += u64::from(event.outbox_seq < *last);
                *last = event.outbox_seq.max(*last);
            }
            figures.push(Figure::new(
                "events behind a later one of their agent",
                behind as f64,
                "events",
                Bar::AtMost(0.0),
            ));
        }
        Ok(figures)
    }
}

/// Asks for turns, evenly over the time of the storm, and retries until each is known to be accepted.
async fn ask(
    plan: Plan,
    kernel: Kernel,
    houses: Arc<Vec<Project>>,
    ledger: Arc<Ledger>,
    counts: Arc<Counts>,
) -> Result<()> {
    let mut dice = Dice::new(plan.seed.rotate_left(17));
    let begun = Instant::now();
    let mut asked = 0;
    let mut asking = JoinSet::new();
    let failed = Arc::new(AtomicBool::new(false));
    while asked < plan.turns {
        let due = (plan.turns as f64 * begun.elapsed().as_secs_f64() / plan.duration.as_secs_f64()) as usize + 1;
        while asked < due.min(plan.turns) && asking.len() < 64 {
            asked += 1;
            let house = &houses[dice.one_of(houses.len())];
            let script = Script::any(&mut dice, &house.children);
            let card = Draft::instruction(&serde_json::to_string(&script)?).seal()?;
            let held_up = dice.chance(plan.slow).then(|| dice.between(SLOW.0, SLOW.1));
            let agent_id = match held_up {
                Some(_) => house.late[asked % AGENTS],
                None => house.agents[dice.one_of(AGENTS)],
            };
            let request = DispatchRequest {
                emit_state_event: dice.chance(0.1),
                profile_box_id: Some(house.profile_box_id),
                ..DispatchRequest::instructed(agent_id, card.card_id())
            };
            let (kernel, ledger, project_id) = (kernel.clone(), ledger.clone(), house.project_id);
            let (failed, counts) = (failed.clone(), counts.clone());
            asking.spawn(async move {
                loop {
                    let (requests, cards) = (std::slice::from_ref(&request), std::slice::from_ref(&card));
                    let accepted = async {
                        let Some(pause) = held_up else {
                            return turn::enqueue(&mut kernel.alone(project_id).await?, requests, cards).await;
                        };
                        let mut work = kernel.begin(project_id).await?;
                        let accepted = turn::enqueue(&mut work, requests, cards).await?;
                        sleep(pause).await;
                        work.commit().await?;
                        Ok(accepted)
                    };
                    match accepted.await {
                        Ok(accepted) => {
                            counts.slow.fetch_add(u64::from(held_up.is_some()), Relaxed);
                            let ready = accepted[0].turn_epoch.is_some() && !accepted[0].duplicate;
                            ledger.note(&Entry::Accepted { turn_id: request.agent_turn_id, ready });
                            return;
                        }
                        Err(error) if error.is_transient() => sleep(Duration::from_millis(500)).await,
                        Err(turn::Error::Busy) => sleep(Duration::from_millis(500)).await,
                        Err(error) => {
                            tracing::error!(%error, "a turn could not be enqueued");
                            failed.store(true, Relaxed);
                            return;
                        }
                    }
                }
            });
        }
        while asking.try_join_next().is_some() {}
        sleep(Duration::from_millis(10)).await;
    }
    asking.join_all().await;
    anyhow::ensure!(!failed.load(Relaxed), "a turn was refused");
    Ok(())
}

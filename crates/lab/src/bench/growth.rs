//! A year of turns in ten thousand projects, one of which holds a third of everything, compared with a hundredth of it: turns a second, what
//! transitions take and lock, turns beside a vacuum that freezes all cards, and turns beside the retention of the large project.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, postgres::PgQueryResult};
use tokio::{
    sync::watch as gate,
    task::{JoinHandle, JoinSet},
    time::sleep,
};
use waybill_core::{
    card::{CardType, NewCard, Role},
    handover::{Handover, TargetProfile},
    id::{AgentId, BoxId, ProjectId, Target, TurnId, WorkerId},
    tokens::Tokens,
};
use waybill_kernel::{
    agent, card,
    card_box::{self, Window},
    handover::{Pack, Packing, pack_context},
    lease, resource,
    retain::{self, Kept, Portion},
    turn::{self, Claiming, DispatchRequest},
    work::{Kernel, Work},
};
use waybill_orchestrator::watch;

use super::{
    fill::{self, BYTES_EACH, CARDS_EACH, Filled},
    fresh_database, median, new_card, progress,
    turns::{Side, compare, ending, patient},
};
use crate::figure::{Bar, Figure};
use waybill_services::{Home, Private, Server};

/// How many turns, and how long each window is.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Turns of the larger database. `None` means as many as the disk has room for, up to five million.
    pub turns: Option<u64>,
    pub window: Duration,
    pub rounds: usize,
    /// How long turns run beside a vacuum, and beside a walk of retention, at most.
    pub beside: Duration,
    /// The bar for what the larger database does ÷ what the smaller one does.
    pub growth: Bar,
    /// The bar for turns/s beside a vacuum ÷ without it, and beside a walk of retention ÷ without it.
    pub beside_work: Bar,
    /// The bar for relations that a transition locks.
    pub locks: Bar,
}

const MOST_TURNS: u64 = 5_000_000;
/// What the log of the server takes beside the tables.
const LOG_BYTES: u64 = 6_000_000_000;
const TURNS_PER_PROJECT: u64 = 500;
const CLIENTS: usize = 8;
/// Places where turns are run: agents of the large project, and twice as many of up to 64 others.
const PLACES: usize = 256;
const ALONE: usize = 64;
const CONTEXT: usize = 100;
const LONG: Duration = Duration::from_secs(7200);
/// How long the large project keeps its turns, once that is measured, and how many rows are looked at where nothing is measured.
const MONTHS: i32 = 6;
const PORTION: i32 = 5_000;

pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let turns = match options.turns {
        Some(turns) => turns,
        None => room()?,
    };
    ensure!(turns >= 2_000, "{turns} turns: must be at least 2,000");
    let private = Private::start().await?;
    let mut small = Year::prepare(&private.server, "waybill_growth_small", turns / 100).await?;
    let mut large = Year::prepare(&private.server, "waybill_growth_large", turns).await?;
    let mut figures = vec![
        Figure::new("turns of the larger database", turns as f64, "turns", Bar::None),
        Figure::new("cards of the larger database", (turns * CARDS_EACH) as f64, "cards", Bar::None),
        Figure::new(
            "bytes per turn with six cards, all tables and indexes",
            large.bytes_per_turn().await?,
            "bytes",
            Bar::None,
        ),
    ];
    let [ratio, at_large, _] =
        compare("turns, large and small", options.rounds, options.window, large.crew(), small.crew()).await?;
    figures.push(Figure::new("turns/s at full size ÷ at 1 %, 8 clients", ratio, "ratio", options.growth));
    figures.push(Figure::new("turns/s at full size, 8 clients", at_large, "turns/s", Bar::None));
    transitions(options, &mut large, &mut small, &mut figures).await?;
    for (what, locks) in large.locks().await? {
        figures.push(Figure::new(format!("relations that {what} locks"), locks, "relations", options.locks));
    }
    figures.extend(large.widths().await?);
    figures.push(large.beside_vacuum(options).await?);
    figures.extend(large.beside_retention(options).await?);
    Ok(figures)
}

/// Returns how many turns fit on the disk with 30 % of it to spare.
fn room() -> Result<u64> {
    let disk = rustix::fs::statvfs(Home::find()?.path("."))?;
    let free = disk.f_bavail * disk.f_frsize;
    let fit = (free / 10 * 7).saturating_sub(LOG_BYTES) / BYTES_EACH;
    let turns = fit.min(MOST_TURNS) / 1_000 * 1_000;
    eprintln!("{} GB of the disk are free: {turns} turns", free / 1_000_000_000);
    Ok(turns)
}

/// Measures transitions of both sides alternately.
async fn transitions(options: Options, large: &mut Year, small: &mut Year, figures: &mut Vec<Figure>) -> Result<()> {
    let (mut at_large, mut at_small) = (Times::new(), Times::new());
    let rounds = options.rounds * 4;
    let bar = progress("transitions, large and small", rounds as u64);
    for round in 0..rounds + 20 {
        // The first rounds warm up: PostgreSQL makes a new plan for the first five times that a connection runs a statement.
        if round == 20 {
            (at_large, at_small) = (Times::new(), Times::new());
        }
        large.round(&mut at_large).await?;
        small.round(&mut at_small).await?;
        bar.inc(u64::from(round >= 20));
    }
    bar.finish_and_clear();
    for (what, times) in at_large {
        let beside = at_small.remove(what).context("both do the same")?;
        // Old contexts are not in memory where the database is larger than it.
        let judged = if what == OLD { Bar::None } else { options.growth };
        let name = format!("{what}: speed at full size ÷ at 1 %");
        figures.push(Figure::new(name, median(beside) / median(times), "ratio", judged));
    }
    Ok(())
}

type Times = BTreeMap<&'static str, Vec<f64>>;

const OLD: &str = "load of a turn of the past year";

async fn time<T>(times: &mut Times, what: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let begun = Instant::now();
    let done = work.await?;
    times.entry(what).or_default().push(begun.elapsed().as_secs_f64());
    Ok(done)
}

fn llm() -> Target {
    "llm".parse().expect("a target")
}

/// A database with a year of turns.
struct Year {
    server: Server,
    database: &'static str,
    turns: u64,
    kernel: Kernel,
    /// The project that holds a third of everything.
    project_id: ProjectId,
    places: Arc<Vec<(ProjectId, AgentId)>>,
    /// Agents of the large project for turns that run alone.
    agents: Vec<AgentId>,
    at: usize,
    worker: WorkerId,
    /// Holds the cards that are loaded and handed over.
    context_id: BoxId,
    /// Takes what is appended.
    grows_id: BoxId,
    old: Vec<BoxId>,
    /// Ids of the fill are before this one, those of the product after it.
    cut: TurnId,
}

impl Year {
    async fn prepare(server: &Server, database: &'static str, turns: u64) -> Result<Year> {
        let (kernel, _) = fresh_database(server, database).await?;
        let n = (turns / TURNS_PER_PROJECT).clamp(4, 10_000);
        // Every third turn is one of the first project.
        let project_of =
            |turn: u64, noise: u64| if turn.is_multiple_of(3) { 0 } else { (1 + noise % (n - 1)) as usize };
        let Filled { projects, boxes } = fill::fill(server, database, turns, n as usize, project_of).await?;
        let cut = TurnId::new();
        let project_id = projects[0];
        let mut places = Vec::new();
        for (share, others) in [(PLACES, &projects[..1]), (2 * PLACES, &projects[1..projects.len().min(65)])] {
            let each = share / others.len();
            for other in others {
                let agents: Vec<AgentId> = (0..each).map(|_| AgentId::new()).collect();
                let mut work = kernel.begin(*other).await?;
                agent::create(&mut work, &agents, &llm()).await?;
                work.commit().await?;
                places.extend(agents.into_iter().map(|agent_id| (*other, agent_id)));
            }
        }
        let agents: Vec<AgentId> = (0..ALONE).map(|_| AgentId::new()).collect();
        let mut work = kernel.begin(project_id).await?;
        agent::create(&mut work, &agents, &llm()).await?;
        let profile = json!({ "profile": { "name": "child", "worker_target": "llm", "system_prompt_template": "",
                                           "llm_config": { "provider": "openai_chat", "model": "m" } } });
        resource::apply(&mut work, &[serde_json::from_value(profile)?]).await?;
        let cards: Vec<NewCard> = (0..CONTEXT).map(|_| new_card(CardType::thought(), Role::Assistant)).collect();
        card::insert(&mut work, &cards).await?;
        let (context_id, grows_id) = (BoxId::new(), BoxId::new());
        card_box::create(&mut work, &[context_id, grows_id]).await?;
        card_box::append(&mut work, context_id, &cards.iter().map(NewCard::card_id).collect::<Vec<_>>()).await?;
        work.commit().await?;
        let worker = lease::start(&kernel, &llm(), LONG).await?;
        Ok(Year {
            server: server.clone(),
            database,
            turns,
            kernel,
            project_id,
            places: Arc::new(places),
            agents,
            at: 0,
            worker,
            context_id,
            grows_id,
            old: boxes,
            cut,
        })
    }

    /// Starts clients that enqueue a turn, claim one and end it, a third of them in the large project.
    fn crew(&self) -> Side {
        let (gate, open) = gate::channel(false);
        let done = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (kernel, places) = (self.kernel.clone(), self.places.clone());
            let (mut open, done) = (open.clone(), done.clone());
            let mut claiming = Claiming::new(self.worker, llm());
            clients.spawn(async move {
                let mut at = client * 97;
                while open.wait_for(|open| *open).await.is_ok() {
                    at = (at + 7_919) % places.len();
                    let (project_id, agent_id) = places[at];
                    let (requests, cards) = instructed(agent_id);
                    let mut alone = kernel.alone(project_id).await?;
                    while patient(turn::enqueue(&mut alone, &requests, &cards).await)?.is_none() {}
                    drop(alone);
                    for claimed in turn::claim(&kernel, &mut claiming).await? {
                        let mut alone = kernel.alone(claimed.fence.project_id()).await?;
                        let ended = [ending(claimed.fence)];
                        while patient(turn::finish(&mut alone, &ended).await)?.is_none() {}
                        done.fetch_add(1, Relaxed);
                    }
                }
                anyhow::Ok(())
            });
        }
        Side::Kernel { gate, done, clients }
    }

    /// Runs a turn of the large project, and loads, appends and packs there.
    async fn round(&mut self, times: &mut Times) -> Result<()> {
        self.at += 1;
        let agent_id = self.agents[self.at % ALONE];
        let (requests, cards) = instructed(agent_id);
        turn::enqueue(&mut self.kernel.alone(self.project_id).await?, &requests, &cards).await?;
        let mut claiming = Claiming::new(self.worker, llm());
        let claimed = time(times, "claim", async { Ok(turn::claim(&self.kernel, &mut claiming).await?) }).await?;
        for claimed in claimed {
            let mut alone = self.kernel.alone(claimed.fence.project_id()).await?;
            turn::finish(&mut alone, &[ending(claimed.fence)]).await?;
        }
        let loaded = time(times, "load of a context of 100 cards", self.load(self.context_id)).await?;
        ensure!(loaded == CONTEXT, "{loaded} cards were read");
        time(times, OLD, self.load(self.old[self.at * 61 % self.old.len()])).await?;
        time(times, "append", self.append()).await?;
        time(times, "pack", self.pack(agent_id)).await
    }

    async fn load(&self, box_id: BoxId) -> Result<usize> {
        let mut work = self.kernel.begin(self.project_id).await?;
        let window = Window { pinned: 1, budget: Tokens::new(1_000_000).context("positive")?, as_of: None };
        let hydrated = card_box::hydrate(&mut work, box_id, None, window).await?;
        work.commit().await?;
        Ok(hydrated.cards.len())
    }

    async fn append(&self) -> Result<()> {
        let card = new_card(CardType::thought(), Role::Assistant);
        let mut work = self.kernel.begin(self.project_id).await?;
        card::insert(&mut work, std::slice::from_ref(&card)).await?;
        card_box::append(&mut work, self.grows_id, &[card.card_id()]).await?;
        Ok(work.commit().await?)
    }

    async fn pack(&self, agent_id: AgentId) -> Result<()> {
        let handover = Handover {
            target_profile_config: TargetProfile { profile_name: Some("child".parse()?) },
            ..Handover::instruction()
        };
        let arguments = json!({ "instruction": "do it", "input_box_ids": self.context_id });
        let arguments: Map<String, Value> = serde_json::from_value(arguments)?;
        let packs = [Pack::new(agent_id, TurnId::new(), arguments)];
        let mut work = self.kernel.begin(self.project_id).await?;
        pack_context(&mut work, Packing::new("x", None, &handover), &packs).await?;
        Ok(work.commit().await?)
    }

    /// Returns how many relations each transition of a turn has locked when it commits. PostgreSQL has 16 places for them that cost next to
    /// nothing (64 from version 18 on); a relation takes one, whatever is done with it.
    async fn locks(&self) -> Result<Vec<(&'static str, f64)>> {
        let mut locks = BTreeMap::<&'static str, Vec<f64>>::new();
        // Most of the nine have their plans already.
        for agent_id in &self.agents[..9] {
            let (requests, cards) = instructed(*agent_id);
            let mut work = self.kernel.begin(self.project_id).await?;
            turn::enqueue(&mut work, &requests, &cards).await?;
            locks.entry("an enqueue").or_default().push(relations_locked(work.connection()).await?);
            work.commit().await?;
            let mut work = self.kernel.begin(self.project_id).await?;
            let mut claiming = Claiming::new(self.worker, llm());
            let claimed = turn::claim_with(work.connection(), &mut claiming).await?;
            locks.entry("a claim").or_default().push(relations_locked(work.connection()).await?);
            work.commit().await?;
            for claimed in claimed {
                let mut work = self.kernel.begin(claimed.fence.project_id()).await?;
                turn::finish(&mut work, &[ending(claimed.fence)]).await?;
                locks.entry("a finish").or_default().push(relations_locked(work.connection()).await?);
                work.commit().await?;
            }
        }
        Ok(locks.into_iter().map(|(what, locks)| (what, median(locks))).collect())
    }

    async fn admin(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect(&self.server.admin_url(self.database)).await?)
    }

    async fn bytes_per_turn(&self) -> Result<f64> {
        let bytes: i64 = sqlx::query_scalar(
            "select sum(pg_total_relation_size(c.oid))::bigint
               from pg_class c
              where c.relkind = 'r' and c.relnamespace = any (array['cardbox', 'resource', 'state', 'parts']::regnamespace[])",
        )
        .fetch_one(&mut self.admin().await?)
        .await?;
        Ok(bytes as f64 / self.turns as f64)
    }

    /// Compares the widths of rows that were filled in with those of rows that the kernel wrote since: the fill must be like the product.
    async fn widths(&self) -> Result<Vec<Figure>> {
        let mut admin = self.admin().await?;
        let mut figures = Vec::new();
        for (table, id) in [
            ("cardbox.cards", "card_id"),
            ("cardbox.boxes", "box_id"),
            ("cardbox.box_entries", "box_id"),
            ("state.turns", "agent_turn_id"),
            ("state.agent_steps", "agent_turn_id"),
            ("state.outbox", "agent_turn_id"),
        ] {
            // Contexts that were packed are of ranges, and belong to no turn: they are not of the kind that is filled in.
            let plain = if table == "cardbox.boxes" { "agent_turn_id is not null" } else { "true" };
            let plain = if table == "cardbox.box_entries" { "card_id is not null" } else { plain };
            let width = |side: &str| {
                format!(
                    "(select avg(pg_column_size(r)) from (select * from {table} where project_id = $1 and {id} {side} $2 and {plain} limit 2000) r)"
                )
            };
            let sql = format!("select ({} / {})::float8", width("<"), width(">="));
            let ratio: Option<f64> = sqlx::query_scalar(AssertSqlSafe(sql))
                .bind(self.project_id)
                .bind(self.cut)
                .fetch_one(&mut admin)
                .await?;
            let off = (ratio.with_context(|| format!("{table} has no rows of both kinds"))? - 1.0).abs();
            let name = format!("{table}: how far the average width of filled rows is from the kernel's");
            figures.push(Figure::new(name, off * 100.0, "%", Bar::AtMost(10.0)));
        }
        Ok(figures)
    }

    /// Runs turns while another connection freezes all cards, at the pace of autovacuum.
    async fn beside_vacuum(&self, options: Options) -> Result<Figure> {
        let mut vacuuming = self.admin().await?;
        sqlx::raw_sql("set vacuum_cost_delay = '2ms'").execute(&mut vacuuming).await?;
        let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut vacuuming).await?;
        let freeze = async move { Ok(sqlx::raw_sql("vacuum (freeze) cardbox.cards").execute(&mut vacuuming).await?) };
        let stop = async |vacuum: JoinHandle<Result<PgQueryResult>>| {
            if vacuum.is_finished() {
                vacuum.await??;
            } else {
                // Long enough: it fails with this, as it should.
                let stop = sqlx::query("select pg_cancel_backend($1)").bind(pid);
                stop.execute(&mut self.admin().await?).await?;
                let _ = vacuum.await?;
            }
            Ok(())
        };
        let ratio = self.beside("a vacuum that freezes cards", options, freeze, stop).await?;
        let name = "turns/s beside a vacuum that freezes all cards ÷ without it";
        Ok(Figure::new(name, ratio, "ratio", options.beside_work))
    }

    /// Runs turns while the orchestrator removes what the large project no longer keeps: turns that ended more than half a year ago.
    async fn beside_retention(&self, options: Options) -> Result<Vec<Figure>> {
        let [_, old] = self.turns_kept().await?;
        let before = self.bytes_kept().await?;
        let mut work = self.kernel.begin(self.project_id).await?;
        retain::set(&mut work, Kept { content_months: Some(MONTHS), record_months: Some(MONTHS) }).await?;
        work.commit().await?;
        // It takes effect now, not in seven days.
        let sql =
            "update resource.retention set next_at = now(), next_by = null, walk_at = now() where project_id = $1";
        sqlx::query(sql).bind(self.project_id).execute(&mut self.admin().await?).await?;
        let kernel = self.kernel.clone();
        let orchestrate = async move { match watch::run(&kernel, &watch::Config::default()).await {} };
        let stop = async |orchestrator: JoinHandle<Result<()>>| {
            orchestrator.abort();
            let _ = orchestrator.await;
            Ok(())
        };
        let ratio = self.beside("a walk of retention", options, orchestrate, stop).await?;
        let [_, left] = self.turns_kept().await?;
        let beside = old - left;
        // The rest of it at once. A lock of the walk that was cut off ends with its connection.
        let bar = progress("turns removed", left as u64);
        loop {
            match retain::portion(&self.kernel, self.project_id, PORTION).await? {
                Some(Portion { removed, is_over }) => {
                    bar.inc(removed.get("turns").copied().unwrap_or_default().unsigned_abs());
                    if is_over {
                        break;
                    }
                }
                None => sleep(Duration::from_millis(100)).await,
            }
        }
        bar.finish_and_clear();
        let [_, stayed] = self.turns_kept().await?;
        let after = self.bytes_kept().await?;
        let share = |bytes: i64| bytes as f64 / before.turns as f64;
        Ok(vec![
            Figure::new(
                "turns/s beside the retention of the large project ÷ without it",
                ratio,
                "ratio",
                options.beside_work,
            ),
            Figure::new("turns that retention removed beside them", beside as f64, "turns", Bar::AtLeast(1.0)),
            Figure::new("turns of more than half a year that stayed", stayed as f64, "turns", Bar::AtMost(0.0)),
            Figure::new(
                "bytes of rows per turn of the large project, before retention",
                share(before.bytes),
                "bytes",
                Bar::None,
            ),
            Figure::new("the same after retention, per turn that it ever had", share(after.bytes), "bytes", Bar::None),
            Figure::new(
                "bytes per turn that it still has, after retention ÷ before",
                after.bytes as f64 / after.turns as f64 / share(before.bytes),
                "ratio",
                Bar::AtMost(1.1),
            ),
        ])
    }

    /// Compares turns/s beside this work with turns/s before it and after it was stopped.
    async fn beside<T: Send + 'static>(
        &self,
        what: &str,
        options: Options,
        work: impl Future<Output = Result<T>> + Send + 'static,
        stop: impl AsyncFnOnce(JoinHandle<Result<T>>) -> Result<()>,
    ) -> Result<f64> {
        let mut crew = self.crew();
        crew.run(Duration::from_secs(1)).await?;
        let (mut without, mut during) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            without.push(crew.run(options.window).await?);
        }
        let begun = Instant::now();
        let work = tokio::spawn(work);
        while during.is_empty() || !work.is_finished() && begun.elapsed() < options.beside {
            during.push(crew.run(options.window).await?);
        }
        stop(work).await?;
        for _ in 0..options.rounds {
            without.push(crew.run(options.window).await?);
        }
        eprintln!("{} windows beside {what}", during.len());
        Ok(median(during) / median(without))
    }

    /// Counts the turns of the large project, and those that ended more than half a year ago.
    async fn turns_kept(&self) -> Result<[i64; 2]> {
        let sql = "select count(*), count(*) filter (where finished_at < now() - make_interval(months => $2)) from state.turns where project_id = $1";
        let (all, old) =
            sqlx::query_as(sql).bind(self.project_id).bind(MONTHS).fetch_one(&mut self.admin().await?).await?;
        Ok([all, old])
    }

    /// Adds up the rows of the large project: what its turns left.
    async fn bytes_kept(&self) -> Result<Stored> {
        let mut admin = self.admin().await?;
        let mut bytes = 0;
        for table in [
            "cardbox.cards",
            "cardbox.boxes",
            "cardbox.box_entries",
            "state.turns",
            "state.agent_steps",
            "state.outbox",
        ] {
            let sql =
                format!("select coalesce(sum(pg_column_size(r.*)), 0)::bigint from {table} r where project_id = $1");
            let sum: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).bind(self.project_id).fetch_one(&mut admin).await?;
            bytes += sum;
        }
        let [turns, _] = self.turns_kept().await?;
        Ok(Stored { bytes, turns })
    }
}

/// What the large project has.
struct Stored {
    bytes: i64,
    turns: i64,
}

fn instructed(agent_id: AgentId) -> ([DispatchRequest; 1], [NewCard; 1]) {
    let card = new_card(CardType::instruction(), Role::User);
    ([DispatchRequest::instructed(agent_id, card.card_id())], [card])
}

async fn relations_locked(connection: &mut PgConnection) -> Result<f64> {
    let sql = "select count(distinct relation)
                 from pg_locks
                where pid = pg_backend_pid() and locktype = 'relation' and relation <> 'pg_locks'::regclass";
    let locked: i64 = sqlx::query_scalar(sql).fetch_one(connection).await?;
    Ok(locked as f64)
}

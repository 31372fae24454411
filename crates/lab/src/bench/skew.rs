//! A large project among thousands of small ones, with fresh, stale or absent statistics: how long each transition takes, compared with a
//! database that holds only small projects, and how many rows its statements read.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use chrono::{TimeDelta, Utc};
use serde_json::{Map, Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use waybill_core::{
    bus::PMO,
    card::{CallContent, CardType, Content, Draft, NewCard, Role},
    handover::{Handover, TargetProfile},
    id::{AgentId, BatchId, BoxId, ProjectId, StepId, Target, ToolCallId, TurnId, WorkerId},
    tokens::Tokens,
};
use waybill_kernel::{
    batch, call, card,
    card_box::{self, Window},
    handover::{Pack, Packing, pack_context},
    lease, project, resource, sweep,
    turn::{self, Call, Claimed, Claiming, DispatchRequest, Step},
    work::{Config, Kernel},
};

use super::{fresh_database, median, new_card, progress, turns::ending};
use crate::figure::{Bar, Figure};
use waybill_services::{Private, Server};

/// How large the databases are, and how many rounds.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Agents of the large project.
    pub agents: i32,
    /// Projects with one agent each beside it.
    pub projects: i32,
    pub rounds: usize,
}

const CARDS_EACH: i32 = 5;
/// Agents of the measured project in the database of small projects: as many as the largest portion needs, and a few more.
const FEW_AGENTS: i32 = 600;
const MANY: usize = 500;
const BATCH: usize = 50;
const CONTEXT: usize = 100;
const DUE: usize = 8;
/// PostgreSQL makes a new plan for a prepared statement the first five times that a connection runs it, and a pool hands out its
/// few connections in turn.
const WARM_UPS: usize = 20;
const LONG: Duration = Duration::from_secs(3600);

pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let log = private.log().context("what statements read is in the server's log: unset DATABASE_URL")?;
    let mut small = Side::prepare(&private.server, "waybill_skew_small", options.projects, FEW_AGENTS, "fresh").await?;
    let mut figures = Vec::new();
    for (statistics, database) in
        [("fresh", "waybill_skew_fresh"), ("stale", "waybill_skew_stale"), ("absent", "waybill_skew_absent")]
    {
        let mut large = Side::prepare(&private.server, database, options.projects, options.agents, statistics).await?;
        let bar = progress(&format!("statistics {statistics}"), options.rounds as u64);
        let (mut of_small, mut of_large) = (Meter::default(), Meter::default());
        for _ in 0..WARM_UPS {
            small.warm_up().await?;
            large.warm_up().await?;
        }
        // The first round is not counted: it warms up the larger operations.
        for round in 0..=options.rounds {
            if round == 1 {
                (of_small, of_large) = (Meter::default(), Meter::default());
            }
            // The sides alternate, so that machine noise affects both alike.
            for part in PARTS {
                small.work(part, &mut of_small).await?;
                large.work(part, &mut of_large).await?;
            }
            bar.inc(u64::from(round > 0));
        }
        bar.finish_and_clear();
        for (what, times) in of_large.times {
            let beside = of_small.times.remove(what).context("both do the same")?;
            figures.push(Figure::new(
                format!("{what} in a large project ÷ where all are small, statistics {statistics}"),
                median(times) / median(beside),
                "ratio",
                Bar::AtMost(1.5),
            ));
        }
        let mut reading = Meter { log: Some(log.clone()), ..Meter::default() };
        let mut explained = large.explained(&private.server).await?;
        let mut beside = Meter { log: Some(log.clone()), ..Meter::default() };
        let mut explained_small = small.explained(&private.server).await?;
        for part in PARTS {
            explained.work(part, &mut reading).await?;
            explained_small.work(part, &mut beside).await?;
        }
        small.explains_no_more(&private.server).await?;
        for (what, pages) in reading.pages {
            let beside = beside.pages.remove(what).context("both do the same")?;
            figures.push(Figure::new(
                format!("{what}: pages touched in a large project ÷ where all are small, statistics {statistics}"),
                pages / beside,
                "ratio",
                Bar::AtMost(2.0),
            ));
        }
        let (share, worst) = reading.worst.context("the server logged no plan")?;
        eprintln!("statistics {statistics}: {} plans, the most was read by {worst}", reading.n_plans);
        figures.push(Figure::new(
            format!("rows read by a node ÷ (4 × portion + 64), the most of all, statistics {statistics}"),
            share,
            "ratio",
            Bar::AtMost(1.0),
        ));
    }
    Ok(figures)
}

/// A part of a round.
#[derive(Clone, Copy, Debug)]
enum Part {
    One,
    Many,
    Read,
    Fork,
    Sweep,
}

const PARTS: [Part; 14] = {
    use Part::*;
    [One, Read, One, Read, Many, One, Read, Sweep, One, Read, Fork, One, Read, Sweep]
};

/// Measures times; or, given the server's log, what the statements read.
#[derive(Default)]
struct Meter {
    times: BTreeMap<&'static str, Vec<f64>>,
    log: Option<PathBuf>,
    n_plans: usize,
    pages: BTreeMap<&'static str, f64>,
    /// The largest number of rows read, as a share of what a node may read, and the node and query.
    worst: Option<(f64, String)>,
}

impl Meter {
    async fn time<T>(
        &mut self,
        what: &'static str,
        portion: usize,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let end = self.log.as_ref().map(|log| anyhow::Ok(log.metadata()?.len())).transpose()?;
        let begun = Instant::now();
        let done = work.await?;
        self.times.entry(what).or_default().push(begun.elapsed().as_secs_f64());
        if let (Some(log), Some(end)) = (&self.log, end) {
            let mut text = String::new();
            let mut log = File::open(log)?;
            log.seek(SeekFrom::Start(end))?;
            log.read_to_string(&mut text)?;
            for plan in text.split("  plan:\n").skip(1) {
                let Some(plan) = serde_json::Deserializer::from_str(plan).into_iter::<Value>().next() else { continue };
                let plan = plan.context("a plan is JSON")?;
                self.n_plans += 1;
                // Nested statements count as part of their caller and appear in the log on their own too. This is the same for both sides.
                let touched = ["Shared Hit Blocks", "Shared Read Blocks"].map(|key| plan["Plan"][key].as_f64());
                *self.pages.entry(what).or_default() += touched.iter().flatten().sum::<f64>();
                let (rows, node) = most_read(&plan["Plan"]);
                let share = rows / (4 * portion + 64) as f64;
                if self.worst.as_ref().is_none_or(|(worst, _)| share > *worst) {
                    let query = plan["Query Text"].as_str().unwrap_or_default();
                    let query: Vec<&str> = query.split_whitespace().take(12).collect();
                    self.worst = Some((share, format!("{what}: {rows} rows, {node}, in {}", query.join(" "))));
                }
            }
        }
        Ok(done)
    }
}

/// Returns the node that read the most rows, including rows that it discarded.
fn most_read(node: &Value) -> (f64, String) {
    let number = |key: &str| node[key].as_f64().unwrap_or_default();
    let thrown = ["Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck"];
    let rows = (number("Actual Rows") + thrown.iter().map(|key| number(key)).sum::<f64>()) * number("Actual Loops");
    let name = ["Node Type", "Relation Name", "Index Name", "CTE Name", "Function Name"];
    let name: Vec<&str> = name.iter().filter_map(|key| node[*key].as_str()).collect();
    let below = node["Plans"].as_array().into_iter().flatten().map(most_read);
    below.fold((rows, name.join(" ")), |most, read| if read.0 > most.0 { read } else { most })
}

/// A database, and the project in it that is measured.
struct Side {
    database: &'static str,
    kernel: Kernel,
    project_id: ProjectId,
    agents: Vec<AgentId>,
    at: usize,
    worker: WorkerId,
    /// Holds the cards that are hydrated and handed over.
    box_id: BoxId,
}

fn llm() -> Target {
    "llm".parse().expect("a target")
}

impl Side {
    /// Builds a database. `statistics` is `fresh` (of all rows), `stale` (from before the large project was loaded) or `absent`.
    async fn prepare(
        server: &Server,
        database: &'static str,
        projects: i32,
        agents: i32,
        statistics: &str,
    ) -> Result<Side> {
        let (kernel, mut admin) = fresh_database(server, database).await?;
        sqlx::raw_sql(IDS).execute(&mut admin).await?;
        sqlx::raw_sql(STILL).execute(&mut admin).await?;
        sqlx::raw_sql("set session_replication_role = replica").execute(&mut admin).await?;
        load(&mut admin, None, projects).await?;
        if statistics == "stale" {
            sqlx::raw_sql("analyze").execute(&mut admin).await?;
        }
        let project_id = ProjectId::new();
        let agents = load(&mut admin, Some(project_id), agents).await?;
        if statistics == "fresh" {
            sqlx::raw_sql("analyze").execute(&mut admin).await?;
        }
        // The first reader of new rows marks them as committed (hint bits). This read does so now, so that it is not measured.
        sqlx::raw_sql(LOOK_AT_ALL).execute(&mut admin).await?;
        sqlx::raw_sql("checkpoint").execute(&mut admin).await?;

        let mut work = kernel.begin(project_id).await?;
        project::create(&mut work, "large").await?;
        let profile = json!({ "profile": { "name": "child", "worker_target": "llm", "system_prompt_template": "",
                                           "llm_config": { "provider": "openai_chat", "model": "m" } } });
        resource::apply(&mut work, &[serde_json::from_value(profile)?]).await?;
        let cards: Vec<NewCard> = (0..CONTEXT).map(|_| new_card(CardType::thought(), Role::Assistant)).collect();
        card::insert(&mut work, &cards).await?;
        let box_id = BoxId::new();
        card_box::create(&mut work, &[box_id]).await?;
        card_box::append(&mut work, box_id, &cards.iter().map(NewCard::card_id).collect::<Vec<_>>()).await?;
        work.commit().await?;
        let worker = lease::start(&kernel, &llm(), LONG).await?;
        Ok(Side { database, kernel, project_id, agents, at: 0, worker, box_id })
    }

    /// Returns the same side on connections for which the server logs the plan of every statement and what it read.
    async fn explained(&self, server: &Server) -> Result<Side> {
        let mut admin = PgConnection::connect(&server.admin_url(self.database)).await?;
        for setting in [
            "session_preload_libraries = 'auto_explain'",
            "auto_explain.log_min_duration = 0",
            "auto_explain.log_analyze = on",
            "auto_explain.log_timing = off",
            "auto_explain.log_buffers = on",
            "auto_explain.log_nested_statements = on",
            "auto_explain.log_format = json",
        ] {
            let load = format!("load 'auto_explain'; alter database {} set {setting}", self.database);
            sqlx::raw_sql(AssertSqlSafe(load)).execute(&mut admin).await?;
        }
        let config = Config { max_connections: 8, ..Config::new(server.service_url(self.database)) };
        let kernel = Kernel::connect(&config).await?;
        Ok(Side { database: self.database, kernel, agents: self.agents.clone(), ..*self })
    }

    async fn explains_no_more(&self, server: &Server) -> Result<()> {
        let reset = format!("alter database {} reset session_preload_libraries", self.database);
        sqlx::query(AssertSqlSafe(reset)).execute(&mut server.admin().await?).await?;
        Ok(())
    }

    /// Returns agents without a turn, spread over the project.
    fn some(&mut self, n: usize) -> Vec<AgentId> {
        let step = (0..n).map(|_| {
            self.at = (self.at + 104_729) % self.agents.len();
            self.agents[self.at]
        });
        step.collect()
    }

    async fn work(&mut self, part: Part, meter: &mut Meter) -> Result<()> {
        match part {
            Part::One => self.one(meter).await,
            Part::Many => self.many(meter).await,
            Part::Read => self.read(meter).await,
            Part::Fork => self.fork(meter).await,
            Part::Sweep => self.sweep(meter).await,
        }
    }

    /// Runs the small operations, so that every connection of the pool has its plans.
    async fn warm_up(&mut self) -> Result<()> {
        let mut unmeasured = Meter::default();
        self.one(&mut unmeasured).await?;
        self.read(&mut unmeasured).await?;
        sweep::tick(&self.kernel, &sweep::Config::default()).await?;
        Ok(())
    }

    /// Runs a turn with one step more than it needs.
    async fn one(&mut self, meter: &mut Meter) -> Result<()> {
        let mut alone = self.kernel.alone(self.project_id).await?;
        let (requests, cards) = instructed(&self.some(1));
        meter.time("enqueue of 1", 1, async { Ok(turn::enqueue(&mut alone, &requests, &cards).await?) }).await?;
        let claimed = meter.time("claim of 1", 1, self.claim(1)).await?.pop().context("a turn is ready")?;
        let card = new_card(CardType::thought(), Role::Assistant);
        let step = Step {
            step_id: StepId::new(),
            cards: vec![card],
            calls: Vec::new(),
            suspend: false,
            receipt: None,
            usage: None,
        };
        meter.time("step", 1, async { Ok(turn::step(&mut alone, &claimed.fence, &step).await?) }).await?;
        let ended = [ending(claimed.fence)];
        meter.time("finish of 1", 1, async { Ok(turn::finish(&mut alone, &ended).await?) }).await?;
        Ok(())
    }

    async fn many(&mut self, meter: &mut Meter) -> Result<()> {
        let mut alone = self.kernel.alone(self.project_id).await?;
        let (requests, cards) = instructed(&self.some(MANY));
        meter.time("enqueue of 500", MANY, async { Ok(turn::enqueue(&mut alone, &requests, &cards).await?) }).await?;
        for _ in 0..MANY / BATCH {
            let claimed = meter.time("claim of 50", BATCH, self.claim(BATCH)).await?;
            let ended: Vec<_> = claimed.into_iter().map(|claimed| ending(claimed.fence)).collect();
            ensure!(ended.len() == BATCH, "{} turns were ready", ended.len());
            meter.time("finish of 50", BATCH, async { Ok(turn::finish(&mut alone, &ended).await?) }).await?;
        }
        Ok(())
    }

    async fn read(&mut self, meter: &mut Meter) -> Result<()> {
        let mut work = self.kernel.begin(self.project_id).await?;
        let window = Window { pinned: 1, budget: Tokens::new(1_000_000).context("positive")?, as_of: None };
        let hydrated = async { Ok(card_box::hydrate(&mut work, self.box_id, None, window).await?) };
        let hydrated = meter.time("hydrate", CONTEXT, hydrated).await?;
        ensure!(hydrated.cards.len() == CONTEXT, "{} cards were read", hydrated.cards.len());
        let handover = Handover {
            target_profile_config: TargetProfile { profile_name: Some("child".parse()?) },
            ..Handover::instruction()
        };
        let arguments = json!({ "instruction": "do it", "input_box_ids": self.box_id });
        let arguments: Map<String, Value> = serde_json::from_value(arguments)?;
        let packs = [Pack::new(self.some(1)[0], TurnId::new(), arguments)];
        let packing = Packing::new("x", None, &handover);
        meter.time("pack", 1, async { Ok(pack_context(&mut work, packing, &packs).await?) }).await?;
        work.commit().await?;
        Ok(())
    }

    /// Runs a call that becomes a batch, and the children that it waits for. They end, and then the parent's turn ends.
    async fn fork(&mut self, meter: &mut Meter) -> Result<()> {
        let mut alone = self.kernel.alone(self.project_id).await?;
        let agents = self.some(MANY + 1);
        let (requests, cards) = instructed(&agents[..1]);
        turn::enqueue(&mut alone, &requests, &cards).await?;
        let parent = self.claim(1).await?.pop().context("the parent is ready")?;
        let content = CallContent { tool_name: "fork_join".into(), arguments: "{}".into(), extra: Map::new() };
        let card = Draft::new(CardType::tool_call(), Role::Assistant, Content::ToolCall(content)).seal()?;
        let asked = Call {
            tool_call_id: ToolCallId::new(),
            target: PMO.parse()?,
            tool_call_card_id: card.card_id(),
            timeout: LONG,
            once: false,
        };
        let step = Step {
            step_id: StepId::new(),
            cards: vec![card],
            calls: vec![asked],
            suspend: true,
            receipt: None,
            usage: None,
        };
        turn::step(&mut alone, &parent.fence, &step).await?;
        let mut claiming = Claiming::new(self.worker, PMO.parse()?);
        let asked = call::claim(&self.kernel, &mut claiming).await?.pop().context("the call is ready")?;
        let (mut children, cards) = instructed(&agents[1..]);
        let batch_id = BatchId::new();
        for (n, child) in children.iter_mut().enumerate() {
            child.batch_id = Some(batch_id);
            child.task_index = Some(i32::try_from(n)?);
            child.recursion_depth = 1;
        }
        let task =
            |child: &DispatchRequest| batch::Task { agent_id: child.agent_id, agent_turn_id: child.agent_turn_id };
        let fork = batch::Fork {
            batch_id,
            stage: 0,
            joins_as: batch::JoinsAs::List,
            fail_fast: false,
            timeout: LONG,
            tasks: children.iter().map(task).collect(),
        };
        let forked = async {
            batch::open(&mut alone, asked.tool_call_id, asked.claim_token, &fork).await?;
            turn::enqueue(&mut alone, &children, &cards).await?;
            Ok(batch::dispatched(&mut alone, asked.tool_call_id, asked.claim_token).await?)
        };
        ensure!(meter.time("fork of 500", MANY, forked).await?, "the call is ours");
        for _ in 0..MANY / BATCH {
            let ended: Vec<_> = self.claim(BATCH).await?.into_iter().map(|child| ending(child.fence)).collect();
            let mut work = self.kernel.begin(self.project_id).await?;
            turn::finish(&mut work, &ended).await?;
            work.commit().await?;
        }
        let parent = self.claim(1).await?.pop().context("the parent is ready again")?;
        turn::finish(&mut alone, &[ending(parent.fence)]).await?;
        Ok(())
    }

    /// Measures a sweep that releases turns whose `not_before` has passed.
    async fn sweep(&mut self, meter: &mut Meter) -> Result<()> {
        let mut alone = self.kernel.alone(self.project_id).await?;
        let (mut requests, cards) = instructed(&self.some(DUE));
        for request in &mut requests {
            request.not_before = Some(Utc::now() + TimeDelta::milliseconds(400));
        }
        turn::enqueue(&mut alone, &requests, &cards).await?;
        tokio::time::sleep(Duration::from_millis(450)).await;
        let swept = async { Ok(sweep::tick(&self.kernel, &sweep::Config::default()).await?) };
        let swept = meter.time("sweep", DUE, swept).await?;
        ensure!(swept.turns_released == DUE as u64, "{swept:?}");
        let ended: Vec<_> = self.claim(DUE).await?.into_iter().map(|claimed| ending(claimed.fence)).collect();
        turn::finish(&mut alone, &ended).await?;
        Ok(())
    }

    async fn claim(&self, n: usize) -> Result<Vec<Claimed>> {
        let mut claiming = Claiming { most: i32::try_from(n)?, ..Claiming::new(self.worker, llm()) };
        let claimed = turn::claim(&self.kernel, &mut claiming).await?;
        ensure!(claimed.len() == n, "{} of {n} turns were ready", claimed.len());
        Ok(claimed)
    }
}

fn instructed(agents: &[AgentId]) -> (Vec<DispatchRequest>, Vec<NewCard>) {
    let each = agents.iter().map(|agent_id| {
        let card = new_card(CardType::instruction(), Role::User);
        (DispatchRequest::instructed(*agent_id, card.card_id()), card)
    });
    each.unzip()
}

async fn load(admin: &mut PgConnection, project_id: Option<ProjectId>, agents: i32) -> Result<Vec<AgentId>> {
    let bar = progress("agents with history", agents.unsigned_abs().into());
    let mut made = Vec::new();
    while made.len() < agents as usize {
        let n = (agents - i32::try_from(made.len())?).min(20_000);
        let part: Vec<AgentId> = sqlx::query_scalar(include_str!("skew.sql"))
            .bind(project_id)
            .bind(n)
            .bind(CARDS_EACH)
            .fetch_all(&mut *admin)
            .await?;
        bar.inc(part.len() as u64);
        made.extend(part);
    }
    bar.finish_and_clear();
    Ok(made)
}

/// Makes time-ordered ids, as the kernel does.
const IDS: &str = "
  create schema bench;
  create sequence bench.ids;
  create function bench.id() returns uuid language sql volatile as $$
    select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '70008'
            || lpad(to_hex(nextval('bench.ids')), 15, '0'))::uuid
  $$";

/// Turns autovacuum off, so that it does not refresh the statistics.
const STILL: &str = "
  do $$
  declare
    t regclass;
  begin
    for t in select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname in ('state', 'cardbox', 'resource', 'parts') and c.relkind = 'r' loop
      execute format('alter table %s set (autovacuum_enabled = off)', t);
    end loop;
  end $$";

const LOOK_AT_ALL: &str = "
  do $$
  declare
    t regclass;
    n bigint;
  begin
    for t in select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname in ('state', 'cardbox', 'resource', 'parts') and c.relkind = 'r' loop
      execute format('select count(*) from %s', t) into n;
    end loop;
  end $$";

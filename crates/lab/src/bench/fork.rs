//! What a fork costs: commits and rows per child, growth with the number of children, and fairness between batches.
//!
//! The orchestrator and its handlers are the real ones; so are PostgreSQL and NATS. Workers follow a script: they read their context and
//! deliver.

use std::{
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::task::JoinSet;
use waybill_bus::nats::Nats;
use waybill_core::{
    bus::PMO,
    card::{CallContent, CardType, Content, Draft, Role},
    id::{AgentId, BoxId, ProjectId, StepId, ToolCallId},
    tokens::Tokens,
    turn::End,
};
use waybill_kernel::{
    agent, card,
    card_box::{self, Window},
    grant,
    intake::{Config, Intake},
    project, resource,
    retry::Transient,
    turn::{self, Call, Claimed, DispatchRequest, Ending, Step},
    work::Kernel,
};
use waybill_orchestrator::{command, watch};

use super::{BOOKS_LATE, fresh_database, median, new_card, progress, transactions};
use crate::figure::{Bar, Figure};
use waybill_services::{Private, Server, nats};

/// How many children, and how many rounds.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Children of the largest fork.
    pub children: usize,
    pub rounds: usize,
}

const DATABASE: &str = "waybill_bench_fork";
const FEW: usize = 100;
const SOME: usize = 1_000;
const HISTORY: usize = 10_000;
const BATCHES: usize = 8;
const WORKERS: usize = 2;
/// Children per second of the Python system that this design comes from, on a similar machine.
const REFERENCE: f64 = 15.0;

/// Measures on a private PostgreSQL with durability on, and a private NATS.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let mut nats = nats::Private::new()?;
    nats.start()?;
    let (kernel, admin) = fresh_database(&private.server, DATABASE).await?;
    let mut house = House::open(&kernel, &nats.url(), admin).await?;
    let mut figures = Vec::new();
    house.fork(FEW, None).await?; // warms up connections and plans
    house.growth(options, &mut figures).await?;
    house.commits(&private.server, &mut figures).await?;
    house.rows(&mut figures).await?;
    house.fairness(options, &mut figures).await?;
    Ok(figures)
}

/// A lead that forks, and the workers and the orchestrator that do the work.
struct House {
    kernel: Kernel,
    admin: PgConnection,
    project_id: ProjectId,
    profile_box_id: BoxId,
    /// Claims the lead's turns, both when they begin and when they are ready again.
    leads: Intake<Claimed>,
    _crew: JoinSet<()>,
}

impl House {
    async fn open(kernel: &Kernel, nats_url: &str, admin: PgConnection) -> Result<House> {
        let project_id = ProjectId::new();
        let mut work = kernel.begin(project_id).await?;
        project::create(&mut work, "bench").await?;
        let profile = |name: &str, more: Value| -> Result<_> {
            let mut profile = json!({
                "name": name, "worker_target": name, "system_prompt_template": "",
                "llm_config": { "provider": "openai_chat", "model": "m" } });
            profile.as_object_mut().context("an object")?.extend(more.as_object().context("an object")?.clone());
            Ok(serde_json::from_value(json!({ "profile": profile }))?)
        };
        let lead =
            json!({ "allowed_internal_tools": ["fork_join"], "delegation_policy": { "target_profiles": ["child"] } });
        resource::apply(&mut work, &[profile("lead", lead)?, profile("child", json!({}))?]).await?;
        let profile_box_id = resource::profile(&mut work, &"lead".parse()?).await?.profile_box_id;
        work.commit().await?;

        let mut crew = JoinSet::new();
        for _ in 0..WORKERS {
            let kernel = kernel.clone().on(Arc::new(Nats::connect(nats_url).await?));
            let config = Config { most: 16, ..Config::default() };
            let intake = Intake::<Claimed>::open(&kernel, "child".parse()?, config);
            crew.spawn(intake.serve(pending(), Duration::ZERO, move |holding| {
                let kernel = kernel.clone();
                async move { work_on(&kernel, &holding.claimed).await.map_err(|error| format!("{error:#}")) }
            }));
        }
        let kernel = kernel.clone().on(Arc::new(Nats::connect(nats_url).await?));
        let (commands, sweeps) = (kernel.clone(), kernel.clone());
        crew.spawn(async move { match command::run(&commands, &command::Config::default()).await {} });
        crew.spawn(async move { match watch::run(&sweeps, &watch::Config::default()).await {} });
        let leads = Intake::open(&kernel, "lead".parse()?, Config { most: 64, ..Config::default() });
        Ok(House { kernel, admin, project_id, profile_box_id, leads, _crew: crew })
    }

    /// Runs one fork of `n` children. Returns the time from the call until the parent is ready again.
    async fn fork(&mut self, n: usize, context_box_id: Option<BoxId>) -> Result<Duration> {
        Ok(self.forks(1, n, context_box_id).await?.remove(0))
    }

    /// Runs several forks at once. Returns how long each took.
    async fn forks(&mut self, batches: usize, n: usize, context_box_id: Option<BoxId>) -> Result<Vec<Duration>> {
        let agents: Vec<AgentId> = (0..batches).map(|_| AgentId::new()).collect();
        let mut work = self.kernel.begin(self.project_id).await?;
        agent::create(&mut work, &agents, &"lead".parse()?).await?;
        for agent_id in &agents {
            if let Some(box_id) = context_box_id {
                grant::give(&mut work, *agent_id, box_id, None, "bench", "to hand it on").await?;
            }
            let card = Draft::instruction("lead").seal()?;
            let request = DispatchRequest {
                profile_box_id: Some(self.profile_box_id),
                ..DispatchRequest::instructed(*agent_id, card.card_id())
            };
            turn::enqueue(&mut work, &[request], &[card]).await?;
        }
        work.commit().await?;
        let mut holdings = Vec::new();
        for _ in 0..batches {
            holdings.push(self.leads.next().await);
        }
        let tasks: Vec<Value> = (0..n)
            .map(|n| {
                let mut task = json!({ "target_ref": "child", "instruction": format!("part {n}") });
                if let Some(box_id) = context_box_id {
                    task["context_box_id"] = json!(box_id);
                }
                task
            })
            .collect();
        let arguments = json!({ "tasks": tasks }).to_string();
        let mut begun = Vec::new();
        for holding in &holdings {
            let content =
                CallContent { tool_name: "fork_join".into(), arguments: arguments.clone(), extra: Map::new() };
            let card = Draft::new(CardType::tool_call(), Role::Assistant, Content::ToolCall(content));
            let card = card.seal_counted(Tokens::ZERO)?;
            let call = Call {
                tool_call_id: ToolCallId::new(),
                target: PMO.parse()?,
                tool_call_card_id: card.card_id(),
                timeout: Duration::from_secs(600),
                once: false,
            };
            let step = Step {
                step_id: StepId::new(),
                cards: vec![card],
                calls: vec![call],
                suspend: true,
                receipt: None,
                usage: None,
            };
            begun.push((holding.claimed.fence.agent_turn_id(), Instant::now()));
            turn::step(&mut self.kernel.alone(self.project_id).await?, &holding.claimed.fence, &step).await?;
        }
        drop(holdings);
        let mut times = Vec::new();
        for _ in 0..batches {
            let holding = self.leads.next().await;
            let turn_id = holding.claimed.fence.agent_turn_id();
            let (_, at) = begun.iter().find(|(begun, _)| *begun == turn_id).context("a lead of this round")?;
            times.push(at.elapsed());
            finish(&self.kernel, &holding.claimed).await?;
        }
        Ok(times)
    }

    async fn growth(&mut self, options: Options, figures: &mut Vec<Figure>) -> Result<()> {
        let bar = progress("forks", (options.rounds * (SOME + options.children)) as u64);
        let sizes = [FEW, SOME.min(options.children), options.children];
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..options.rounds {
            for (size, times) in sizes.iter().zip(&mut times) {
                // Small forks run several times, so that machine noise affects each size about equally.
                for _ in 0..(SOME / size).max(1) {
                    times.push(self.fork(*size, None).await?.as_secs_f64() / *size as f64);
                    bar.inc(*size as u64);
                }
            }
        }
        bar.finish_and_clear();
        let [few, some, many] = times.map(median);
        for (size, time) in [(FEW, few), (sizes[1], some), (sizes[2], many)] {
            figures.push(Figure::new(format!("fork of {size}: children a second"), 1.0 / time, "1/s", Bar::None));
        }
        let times = 1.0 / many / REFERENCE;
        figures.push(Figure::new(format!("fork of {}: × 15 children a second", sizes[2]), times, "ratio", Bar::None));
        let name = format!("fork: time per child at {} ÷ at {FEW}", sizes[2]);
        figures.push(Figure::new(name, many / few, "ratio", Bar::AtMost(1.3)));
        Ok(())
    }

    async fn commits(&mut self, server: &Server, figures: &mut Vec<Figure>) -> Result<()> {
        let mut admin = server.admin().await?;
        tokio::time::sleep(BOOKS_LATE).await;
        let (before, written_before) = (transactions(&mut admin, DATABASE).await?, written(&mut self.admin).await?);
        self.fork(SOME, None).await?;
        let written = written(&mut self.admin).await? - written_before;
        tokio::time::sleep(BOOKS_LATE).await;
        let all = transactions(&mut admin, DATABASE).await? - before;
        let per_child = |n: i64| n as f64 / SOME as f64;
        figures.push(Figure::new("fork of 1000: commits per child", per_child(all), "1/child", Bar::AtMost(6.0)));
        figures.push(Figure::new(
            "fork of 1000: commits per child that wrote",
            per_child(written),
            "1/child",
            Bar::None,
        ));
        Ok(())
    }

    async fn rows(&mut self, figures: &mut Vec<Figure>) -> Result<()> {
        let history = BoxId::new();
        let mut work = self.kernel.begin(self.project_id).await?;
        card_box::create(&mut work, &[history]).await?;
        for _ in 0..HISTORY / 1_000 {
            let cards: Vec<_> = (0..1_000).map(|_| new_card(CardType::thought(), Role::Assistant)).collect();
            card::insert(&mut work, &cards).await?;
            let ids: Vec<_> = cards.iter().map(|card| card.card_id()).collect();
            card_box::append(&mut work, history, &ids).await?;
        }
        work.commit().await?;
        let mut with = Vec::new();
        for context_box_id in [None, Some(history)] {
            let before = self.count_rows().await?;
            self.fork(SOME, context_box_id).await?;
            with.push((self.count_rows().await? - before) as f64 / SOME as f64);
        }
        figures.push(Figure::new("fork of 1000: rows per child", with[0], "rows/child", Bar::None));
        let name = "fork of 1000: rows per child with 10,000 cards of history, less without";
        figures.push(Figure::new(name, with[1] - with[0], "rows/child", Bar::AtMost(2.0)));
        Ok(())
    }

    async fn fairness(&mut self, options: Options, figures: &mut Vec<Figure>) -> Result<()> {
        let bar = progress("batches side by side", options.rounds as u64);
        let mut ratios = Vec::new();
        for _ in 0..options.rounds {
            let times: Vec<f64> =
                self.forks(BATCHES, FEW, None).await?.into_iter().map(|time| time.as_secs_f64()).collect();
            let slowest = times.iter().copied().fold(0.0, f64::max);
            ratios.push(slowest / median(times));
            bar.inc(1);
        }
        bar.finish_and_clear();
        let name = "8 batches of 100 at once: slowest ÷ median";
        figures.push(Figure::new(name, median(ratios), "ratio", Bar::AtMost(2.0)));
        Ok(())
    }

    /// Counts the rows of all tables that belong to projects.
    async fn count_rows(&mut self) -> Result<i64> {
        let tables: Vec<String> = sqlx::query_scalar(
            "select c.oid::regclass::text
               from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where n.nspname in ('cardbox', 'resource', 'state') and c.relkind in ('r', 'p')",
        )
        .fetch_all(&mut self.admin)
        .await?;
        let mut rows = 0;
        for table in tables {
            let sql = format!("select count(*) from {table}");
            rows += sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql)).fetch_one(&mut self.admin).await?;
        }
        Ok(rows)
    }
}

/// Does a child's work: reads its context and delivers.
async fn work_on(kernel: &Kernel, claimed: &Claimed) -> Result<()> {
    let mut work = kernel.begin(claimed.fence.project_id()).await?;
    let window = Window { pinned: 1, budget: Tokens::new(2_000).context("positive")?, as_of: None };
    card_box::hydrate(&mut work, claimed.context_box_id, None, window).await?;
    work.commit().await?;
    finish(kernel, claimed).await
}

async fn finish(kernel: &Kernel, claimed: &Claimed) -> Result<()> {
    let cards = vec![turn::ending_card(End::Success, "done")?];
    let ending = Ending {
        fence: claimed.fence,
        status: End::Success,
        step_id: Some(StepId::new()),
        receipt: None,
        usage: None,
        seen: None,
        cards,
    };
    loop {
        let mut work = kernel.begin(claimed.fence.project_id()).await?;
        match turn::finish(&mut work, std::slice::from_ref(&ending)).await {
            Err(error) if error.is_transient() => continue,
            outcome => drop(outcome?),
        }
        return Ok(work.commit().await?);
    }
}

/// Returns the number of transactions of the whole server that wrote something, without the delay of the server's statistics.
async fn written(admin: &mut PgConnection) -> Result<i64> {
    let sql = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    Ok(sqlx::query_scalar(sql).fetch_one(admin).await?)
}

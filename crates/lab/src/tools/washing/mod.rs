//! Ways to wash a label off: content from outside takes every path through a project, and at the end a turn that has seen it pays. `pay` needs an
//! approval for turns that have seen content from outside, and nothing is approved. So no payment may be made, and each must have asked for approval.

mod ways;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::time::sleep;
use waybill_artifact::{Artifacts, Put, Store};
use waybill_bus::local::Local;
use waybill_core::{
    id::{AgentId, ProjectId, SessionId, TurnId},
    turn::TurnStatus,
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    handover, project, resource, turn,
    work::Kernel,
};
use waybill_orchestrator::fork::{self, Change};
use waybill_orchestrator::{
    knowledge::{Applied, apply, publish},
    launch::{Launch, launch},
};

use self::ways::{How, PLAIN, Stage, call, plan, ways, word};
use super::{Outside, crew, installation, parameters, pin, with};
use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    model::{Asked, Reply, Server},
};
use waybill_services::{Home, Private};

const DATABASE: &str = "waybill_washing";
/// A turn that has neither paid nor asked for approval by then never will.
const PATIENCE: Duration = Duration::from_secs(30);

/// Follows the plan in its question. `payer` pays first, whatever its question says.
fn script(asked: &Asked) -> Reply {
    let since = asked.messages.iter().rposition(|said| said.text.contains("PLAN ")).unwrap_or_default();
    let question = asked.messages.get(since).and_then(|said| Some(said.text.split_once("PLAN ")?.1));
    let steps: Vec<Value> = question
        .and_then(|text| serde_json::Deserializer::from_str(text).into_iter::<Vec<Value>>().next()?.ok())
        .unwrap_or_default();
    let n_done = asked.messages[since..].iter().map(|said| said.calls.len()).sum::<usize>();
    if asked.model == "payer" && n_done == 0 {
        let n = steps.first().map_or(0, |step| step["arguments"]["n"].as_i64().unwrap_or_default());
        return Reply::call("pay", &json!({ "n": n }));
    }
    match steps.get(n_done) {
        Some(step) => Reply::call(step["tool"].as_str().unwrap_or_default(), &step["arguments"]),
        None => Reply::say(question.and_then(|text| text.rsplit(' ').next()).unwrap_or_default()),
    }
}

fn manifests(outside: &Outside, n: usize) -> Result<Vec<waybill_core::resource::Manifest>> {
    let tool = |name: &str, how: Value| {
        let tool = json!({
            "name": name, "description": "Does it.", "parameters": parameters(), "effect": "idempotent", "timeout_seconds": 20,
        });
        json!({ "tool": with(tool, &how) })
    };
    let folders: Vec<String> = (0..n).map(|n| format!("w{n}")).collect();
    let profile = |name: &str, more: Value| {
        let profile = json!({
            "name": name, "worker_target": "llm", "system_prompt_template": "You do as you are told.",
            "allowed_tools": ["http_do", "mcp_do", "pay", "own_do"],
            "allowed_internal_tools": ["fork_join", "delegate_async", "launch_principal", "ask_expert", "send_handoff", "update_todo",
                "list_artifacts", "plan_reading", "read_artifact", "search_artifacts", "write_artifact", "search_knowledge"],
            "readable_artifacts": folders, "writable_artifacts": folders,
            "knowledge": { "folders": folders }, "experience": { "folders": folders },
            "delegation_policy": { "target_profiles": ["reader", "doer"] },
            "llm_config": { "provider": "scripted", "model": name },
        });
        json!({ "profile": with(profile, &more) })
    };
    let shelf = json!({ "folders": folders, "block_tokens": 2000 });
    let manifests = [
        json!({ "settings": { "egress_hosts": [outside.host()], "result_tokens": 2000 } }),
        tool("http_do", json!({ "http": { "url": outside.url("/do/http_do") } })),
        tool("mcp_do", json!({ "mcp": { "server": "web", "tool": "do", "schema_hash": pin("do") } })),
        tool("own_do", json!({ "http": { "url": outside.url("/do/own_do") }, "trusted": true })),
        tool("pay", json!({ "http": { "url": outside.url("/do/pay") }, "effect": "once", "approval": "external" })),
        profile("doer", json!({})),
        profile("reader", json!({})),
        profile("payer", json!({})),
        profile("shown", json!({ "knowledge": shelf, "experience": shelf })),
        profile(
            "small",
            json!({ "memory": { "budget": 3000, "compaction": { "at_percent": 10, "keep": 1, "least": 1 } } }),
        ),
    ];
    Ok(manifests.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?)
}

/// The outcome of a way.
enum Outcome {
    Asked,
    Paid,
    /// No turn tried to pay: the way leads nowhere, and proves nothing.
    Nowhere,
}

struct Road {
    kernel: Kernel,
    artifacts: Artifacts,
    outside: Outside,
    project_id: ProjectId,
}

pub async fn run() -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let outside = Outside::start(Duration::from_millis(1)).await?;
    let model = Server::start(script).await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let kernel = kernel.on(Arc::new(Local::default()));
    let n = ways(0, AgentId::nil()).len();
    let project_id = ProjectId::new();
    let mut work = kernel.begin(project_id).await?;
    project::create(&mut work, "washing").await?;
    resource::apply(&mut work, &manifests(&outside, n + 1)?).await?;
    let mut agents = Vec::new();
    for _ in 0..=n {
        let made = NewAgent::of(AgentId::new(), &handover::target(&mut work, &"doer".parse()?).await?);
        agent::provision(&mut work, std::slice::from_ref(&made), Stay::Long, None).await?;
        agents.push(made.agent_id);
    }
    work.commit().await?;
    let folder = Home::find()?.path("washing");
    let _ = std::fs::remove_dir_all(&folder);
    let artifacts = Artifacts::new(kernel.clone(), Store::in_folder(folder.display().to_string())?);
    let road = Road { kernel, artifacts, outside, project_id };
    let crew = crew(&road.kernel, &installation(&road.outside, &model)?, &road.artifacts);

    let bar = progress("ways to wash a label", n as u64);
    let (mut paid, mut nowhere) = (0, 0);
    for (n, agent_id) in agents[..n].iter().enumerate() {
        let (name, stages) = ways(n, *agent_id).swap_remove(n);
        match road.take(&mut admin, n, *agent_id, stages).await.with_context(|| format!("the way `{name}`"))? {
            Outcome::Asked => {}
            Outcome::Paid => {
                paid += 1;
                eprintln!("chaos tools: a payment was made without an approval: {name}");
            }
            Outcome::Nowhere => {
                nowhere += 1;
                eprintln!("chaos tools: no turn tried to pay: {name}");
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    // A turn that has seen nothing from outside pays without approval: only the label causes the question.
    let clean = vec![Stage::Pays(vec![call("pay", json!({ "n": n }))], PLAIN)];
    let pays = matches!(road.take(&mut admin, n, agents[n], clean).await?, Outcome::Paid);
    drop(crew);
    Ok(vec![
        Figure::new("ways to wash a label", n as f64, "ways", Bar::AtLeast(30.0)),
        Figure::new("payments without an approval at their end", f64::from(paid), "payments", Bar::AtMost(0.0)),
        Figure::new("ways at whose end no turn tried to pay", f64::from(nowhere), "ways", Bar::AtMost(0.0)),
        Figure::new("payments of a turn that saw nothing from outside", f64::from(pays), "payments", Bar::AtLeast(1.0)),
    ])
}

impl Road {
    async fn take(&self, admin: &mut PgConnection, n: usize, agent_id: AgentId, stages: Vec<Stage>) -> Result<Outcome> {
        let session_id = SessionId::new();
        let mut last: Option<TurnId> = None;
        for stage in stages {
            match stage {
                Stage::Put(path, media_type, is_external) => {
                    let path = path.parse()?;
                    let put = Put { media_type: Some(media_type), is_external, ..Put::new(&path) };
                    let text = format!("# {}\n", word(n));
                    self.artifacts.put_bytes(self.project_id, put, text.into_bytes().into()).await?;
                }
                Stage::Know(path, title, is_external) => {
                    let (path, text) = (path.parse()?, word(n));
                    let mut work = self.kernel.begin(self.project_id).await?;
                    apply(&mut work, Applied { path: &path, title, text: &text, is_external }, "cli:lab").await?;
                    work.commit().await?;
                }
                Stage::Publish(path) => {
                    let mut work = self.kernel.begin(self.project_id).await?;
                    let turn_id = last.context("a turn to publish")?;
                    publish(&mut work, turn_id, &path.parse()?, (&word(n), false), "cli:lab").await?;
                    work.commit().await?;
                }
                Stage::Run(steps, how) => {
                    let turn_id = self.start(n, &steps, how, (session_id, agent_id), last).await?;
                    self.end(turn_id).await?;
                    last = Some(turn_id);
                }
                Stage::Fork => {
                    let mut work = self.kernel.begin(self.project_id).await?;
                    let change = Change { profile_name: Some("payer".parse()?), ..Change::default() };
                    let turn_id = last.context("a turn to fork")?;
                    let wanted = fork::Wanted {
                        turn_id,
                        step_id: None,
                        change,
                        live_tools: true,
                        may_widen: true,
                        external: false,
                    };
                    let forked = fork::fork(&mut work, &wanted).await?;
                    work.commit().await?;
                    return self.paid(admin, n, forked.agent_turn_id).await;
                }
                Stage::Pays(steps, how) => {
                    let turn_id = self.start(n, &steps, how, (session_id, agent_id), last).await?;
                    return self.paid(admin, n, turn_id).await;
                }
            }
        }
        bail!("a way ends with a turn that pays")
    }

    async fn start(
        &self,
        n: usize,
        steps: &[Value],
        how: How,
        of_way: (SessionId, AgentId),
        last: Option<TurnId>,
    ) -> Result<TurnId> {
        let mut work = self.kernel.begin(self.project_id).await?;
        let mut wanted = Launch::new(how.profile.unwrap_or("doer").parse()?, plan(n, steps));
        wanted.external = how.external;
        wanted.session_id = how.in_session.then_some(of_way.0);
        wanted.agent_id = how.by_agent.then_some(of_way.1);
        if how.sees_last {
            let turn_id = last.context("a turn to see")?;
            let seen = turn::show(&mut work, &[turn_id]).await?.pop().context("it is there")?;
            wanted.context_box_ids.push(seen.output_box_id);
        }
        let turn_id = launch(&mut work, &wanted).await?.agent_turn_id;
        work.commit().await?;
        Ok(turn_id)
    }

    async fn status(&self, turn_id: TurnId) -> Result<TurnStatus> {
        let found = turn::show(&mut self.kernel.begin(self.project_id).await?, &[turn_id]).await?.pop();
        Ok(found.context("the turn is there")?.status)
    }

    async fn end(&self, turn_id: TurnId) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.status(turn_id).await? {
                TurnStatus::Success => return Ok(()),
                TurnStatus::Open if begun.elapsed() < PATIENCE => sleep(Duration::from_millis(20)).await,
                other => bail!("turn {turn_id} is {}", other.as_str()),
            }
        }
    }

    /// Waits until a turn has paid or has asked for approval; or until the turn is over without either.
    async fn paid(&self, admin: &mut PgConnection, n: usize, turn_id: TurnId) -> Result<Outcome> {
        let begun = Instant::now();
        let mut over: Option<Instant> = None;
        loop {
            if self.outside.got().iter().any(|got| got.tool == "pay" && usize::try_from(got.n) == Ok(n)) {
                return Ok(Outcome::Paid);
            }
            let asked: bool = sqlx::query_scalar(
                "select exists (select from cardbox.cards c join cardbox.cards r on r.tool_call_id = c.tool_call_id and r.type = 'request'
                                 where c.type = 'tool.call' and c.content ->> 'tool_name' = 'pay'
                                   and (c.content ->> 'arguments')::json ->> 'n' = $1)",
            )
            .bind(n.to_string())
            .fetch_one(&mut *admin)
            .await?;
            if asked {
                return Ok(Outcome::Asked);
            }
            // Agents that it asked without waiting for them may still be running.
            if begun.elapsed() > PATIENCE || over.is_some_and(|over| over.elapsed() > PATIENCE / 3) {
                return Ok(Outcome::Nowhere);
            }
            if over.is_none() && !self.status(turn_id).await?.is_open() {
                over = Some(Instant::now());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

//! Tools of every kind, while the workers that call them and the service that serves one of them are killed: each call takes effect
//! once, and each result is applied once.

use std::{
    collections::{HashMap, HashSet},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};
use waybill_bus::nats::Nats;
use waybill_core::{
    id::{ProjectId, TurnId},
    turn::TurnStatus,
};
use waybill_kernel::{project, resource, sweep, turn, work::Kernel};
use waybill_orchestrator::{
    command,
    launch::{Launch, launch},
    watch,
};

use super::{Ledger, Outside, parameters, pin, with};
use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    model::{Asked, Reply, Server},
    storm::dice::Dice,
};
use waybill_services::{ChildProcess, Home, Private, nats};

/// How many turns and kills.
#[derive(Clone, Debug)]
pub struct Options {
    /// `waybill` itself.
    pub program: PathBuf,
    pub turns: usize,
    pub kills: usize,
    pub seed: u64,
}

/// A tool service in another language.
const PYTHON: &str = include_str!("../../../../examples/python-worker/worker.py");
const DATABASE: &str = "waybill_tools";
const LEASE: Duration = Duration::from_secs(1);
const PROCESSES: usize = 2;
/// The kinds of tools that each turn calls.
pub const KINDS: [&str; 4] = ["http_do", "mcp_http_do", "mcp_stdio_do", "python_do"];
/// How long each call takes: long enough for a kill in the middle.
pub const PACE: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(180);

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    eprintln!("chaos tools: seed {}", options.seed);
    let private = Private::start().await?;
    let mut nats = nats::Private::new()?;
    nats.start()?;
    let outside = Outside::start(PACE).await?;
    let model = Server::start(script).await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let kernel = kernel.on(Arc::new(Nats::connect(&nats.url()).await?));
    let project_id = ProjectId::new();
    let mut work = kernel.begin(project_id).await?;
    project::create(&mut work, "tools").await?;
    resource::apply(&mut work, &manifests(&outside)?).await?;
    work.commit().await?;

    let folder = Home::find()?.path("tools");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    let ledgers = ["stdio", "python"].map(|name| Ledger::at(folder.join(name)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let api_url = format!("http://{}", listener.local_addr()?);
    let crew = crew(&kernel, listener);
    let world = json!([
        { "provider": { "name": "scripted", "adapter": "openai_chat", "base_url": model.url() } },
        { "mcp_server": { "name": "program", "command": [std::env::current_exe()?, "process", "mcp", "--ledger", folder.join("stdio")], "projects": "*" } },
        { "mcp_server": { "name": "web", "url": outside.url("/mcp"), "projects": "*" } },
        { "egress": { "private_hosts": [outside.host()] } },
    ]);
    let documents: Vec<String> = world.as_array().into_iter().flatten().map(Value::to_string).collect();
    std::fs::write(folder.join("world.yaml"), documents.join("\n---\n"))?;
    std::fs::write(folder.join("worker.py"), PYTHON)?;

    let (worker_url, nats_url) = (private.server.url_of("worker", DATABASE), nats.url());
    let hire = |n: usize| -> Result<ChildProcess> {
        let log = std::fs::File::options().create(true).append(true).open(folder.join(format!("process-{n}.log")))?;
        let mut command = if n < PROCESSES {
            let mut command = Command::new(&options.program);
            command.args(["worker", "--with-parent", "--lease", "1", "--providers"]).arg(folder.join("world.yaml"));
            command.env("WAYBILL_DATABASE_URL", &worker_url).env("WAYBILL_NATS_URL", &nats_url);
            command
        } else {
            let mut command = Command::new("python3");
            command
                .arg(folder.join("worker.py"))
                .args(["--tool", "--target", "python", "--lease", "1", "--slow", "0.4"]);
            command.args(["--project", "tools", "--url", &api_url, "--ledger"]).arg(folder.join("python"));
            command
        };
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        Ok(ChildProcess(command.spawn().context("a process cannot be started")?))
    };
    let mut processes = (0..2 * PROCESSES).map(hire).collect::<Result<Vec<_>>>()?;

    let bar = progress("tools, while processes are killed", options.turns as u64);
    let mut dice = Dice::new(options.seed);
    let (mut launched, begun) = (Vec::new(), Instant::now());
    let mut kills = 0;
    // Few kills may all miss: then there are more, until one meets a worker in the middle of a call.
    while kills < options.kills || kills < 4 * options.kills && repeated(&outside) == 0 {
        kills += 1;
        while launched.len() < options.turns * kills / options.kills {
            let mut work = kernel.begin(project_id).await?;
            let asked = Launch::new("doer".parse()?, format!("Do {}", launched.len()));
            launched.push(launch(&mut work, &asked).await?.agent_turn_id);
            work.commit().await?;
            bar.inc(1);
        }
        // While their calls are under way.
        sleep(dice.between(Duration::from_millis(50), Duration::from_millis(900))).await;
        let victim = kills % processes.len();
        processes[victim].kill();
        processes[victim] = hire(victim)?;
    }
    bar.finish_and_clear();
    let ended = wait(&kernel, project_id, &launched, begun).await;
    drop((processes, crew));
    ended?;
    account(kills, &mut admin, &outside, &ledgers, launched.len()).await
}

fn crew(kernel: &Kernel, listener: TcpListener) -> JoinSet<()> {
    let mut crew = JoinSet::new();
    let (commands, sweeps, serving) = (kernel.clone(), kernel.clone(), kernel.clone());
    crew.spawn(async move {
        match command::run(&commands, &command::Config { lease: LEASE, ..command::Config::default() }).await {}
    });
    crew.spawn(async move {
        let sweep = sweep::Config { lease: LEASE, ..sweep::Config::default() };
        match watch::run(&sweeps, &watch::Config { sweep, artifacts: None }).await {}
    });
    crew.spawn(async move {
        let config = waybill_api::Config { access: waybill_api::Access::Loopback, ..waybill_api::Config::default() };
        let _ = waybill_api::serve(listener, serving, config, std::future::pending(), Duration::ZERO).await;
    });
    crew
}

fn manifests(outside: &Outside) -> Result<Vec<waybill_core::resource::Manifest>> {
    let tool = |name: &str, how: Value| {
        let tool = json!({
            "name": name, "description": "Does it.", "parameters": parameters(), "effect": "idempotent", "timeout_seconds": 120,
        });
        json!({ "tool": with(tool, &how) })
    };
    let manifests = [
        json!({ "settings": { "egress_hosts": [outside.host()] } }),
        tool("http_do", json!({ "http": { "url": outside.url("/do/http") } })),
        tool("mcp_http_do", json!({ "mcp": { "server": "web", "tool": "do", "schema_hash": pin("do") } })),
        tool("mcp_stdio_do", json!({ "mcp": { "server": "program", "tool": "do", "schema_hash": pin("do") } })),
        tool("python_do", json!({ "target": "python" })),
        json!({ "profile": {
            "name": "doer", "worker_target": "llm", "system_prompt_template": "You do.", "allowed_tools": KINDS,
            "llm_config": { "provider": "scripted", "model": "doer" },
        } }),
    ];
    Ok(manifests.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?)
}

/// Calls every tool once, then answers with the results.
fn script(asked: &Asked) -> Reply {
    let results: Vec<&str> = asked.results().map(|said| said.text.as_str()).collect();
    if !results.is_empty() {
        return Reply::say(results.join("\n"));
    }
    let n: i64 = asked.last().rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or_default();
    KINDS
        .iter()
        .fold(Reply::default(), |reply, tool| reply.and_call(tool, &json!({ "n": n, "text": format!("turn {n}") })))
}

async fn wait(kernel: &Kernel, project_id: ProjectId, turns: &[TurnId], begun: Instant) -> Result<()> {
    for turn_id in turns {
        loop {
            let found =
                turn::show(&mut kernel.begin(project_id).await?, &[*turn_id]).await?.pop().context("the turn")?;
            match found.status {
                TurnStatus::Open => {}
                TurnStatus::Success => break,
                other => bail!("turn {turn_id} ended as {}", other.as_str()),
            }
            if begun.elapsed() > PATIENCE + Duration::from_secs(turns.len() as u64) {
                bail!("turn {turn_id} did not end");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// Returns how many requests had a key that the server had seen before.
fn repeated(outside: &Outside) -> usize {
    let asked: Vec<String> = outside.got().into_iter().map(|got| got.key).collect();
    asked.len() - asked.iter().collect::<HashSet<_>>().len()
}

async fn account(
    kills: usize,
    admin: &mut PgConnection,
    outside: &Outside,
    ledgers: &[Ledger; 2],
    turns: usize,
) -> Result<Vec<Figure>> {
    // Every call, its tool, and how often it was answered.
    let calls: Vec<(uuid::Uuid, String, i64, i64)> = sqlx::query_as(
        "select c.tool_call_id, c.content ->> 'tool_name',
                (select count(*) from cardbox.cards r where r.tool_call_id = c.tool_call_id and r.type = 'tool.result'),
                (select count(*) from state.execution_edges e
                  where e.correlation_id = c.tool_call_id and e.primitive = 'report' and e.edge_phase = 'response')
           from cardbox.cards c
          where c.type = 'tool.call'",
    )
    .fetch_all(&mut *admin)
    .await?;
    let failed: i64 = sqlx::query_scalar(
        "select count(*) from cardbox.cards where type = 'tool.result' and content ->> 'status' <> 'success'",
    )
    .fetch_one(&mut *admin)
    .await?;
    let reclaimed: i64 = sqlx::query_scalar("select count(*) from state.execution_edges where edge_phase = 'dropped'")
        .fetch_one(&mut *admin)
        .await?;
    let mut done: HashMap<String, u32> = outside.effects();
    let [stdio, python] = [ledgers[0].keys()?, ledgers[1].keys()?];
    for key in stdio.iter().chain(&python) {
        *done.entry(key.clone()).or_default() += 1;
    }
    let again = repeated(outside);
    let keys: HashSet<String> = calls.iter().map(|(id, ..)| id.to_string()).collect();
    let not_once = calls.iter().filter(|(id, ..)| done.get(&id.to_string()) != Some(&1)).count();
    let unknown = done.keys().filter(|key| !keys.contains(*key)).count();
    let not_answered_once = calls.iter().filter(|(_, _, cards, edges)| (*cards, *edges) != (1, 1)).count();
    let each = KINDS.map(|kind| calls.iter().filter(|(_, tool, ..)| tool == kind).count());
    let whole = |what: &str, value: usize, bar| Figure::new(what, value as f64, "", bar);
    Ok(vec![
        whole("kill -9 of workers and of the tool service", kills, Bar::None),
        whole("turns that called all four kinds of tools", turns, Bar::None),
        whole("calls of the kind that was called least", *each.iter().min().unwrap_or(&0), Bar::AtLeast(turns as f64)),
        whole("calls that were made again after a kill, with the same key", again, Bar::AtLeast(1.0)),
        whole("reports that came too late and changed nothing", reclaimed as usize, Bar::None),
        whole("calls that were not done exactly once", not_once, Bar::AtMost(0.0)),
        whole("effects without a call", unknown, Bar::AtMost(0.0)),
        whole("calls that were not answered exactly once", not_answered_once, Bar::AtMost(0.0)),
        whole("answers that are no success", failed as usize, Bar::AtMost(0.0)),
    ])
}

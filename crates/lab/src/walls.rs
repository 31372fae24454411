//! Whether one project can reach another over HTTP (SE-1, SE-2).
//!
//! A victim has a team that worked, and work under way; a neighbour has valid keys of every scope, and knows every id of the victim, its fences and
//! the tokens of its claims. It asks for the victim's data: in paths, queries and bodies, in streams and claims, in its own name and in the
//! victim's. Each attempt is made twice: with ids of the victim, and with ids that never existed. The two answers must be the same, no answer may
//! contain anything of the victim's that was not in the request, and nothing of the victim's may change.
//!
//! There are two walls, and each must hold alone. In one run the API trusts the caller's choice of project, and only the database's row security
//! protects; in another, row security is off, and only the API's own checks protect. With both off, the same attack must find something.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use waybill_api::{Config, Limits};
use waybill_artifact::{Artifacts, Put, Store};
use waybill_bus::local::Local;
use waybill_context::framework::Framework;
use waybill_core::{
    guard::{self, Guard},
    id::{AgentId, Name, ProjectId, SessionId},
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    audit, blackboard, call, handover, key, lease, project, resource,
    turn::{self, Claiming},
    work::Kernel,
};
use waybill_orchestrator::{
    command,
    knowledge::{Applied, apply},
    launch::{Launch, launch},
};
use waybill_services::{Home, Private, Server};
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{Config as WorkerConfig, Worker},
};

use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    storm::dice::Dice,
};

/// `attempts` is the number with both walls up; each wall alone gets a fifth as many.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub attempts: u64,
}

const DATABASE: &str = "waybill_walls";
const CLIENTS: usize = 8;
/// A text that is in everything that the victim writes.
pub(crate) const CANARY: &str = "canary-7f3a";

/// Which walls stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walls {
    Both,
    /// The API trusts the caller's choice of project.
    RowSecurity,
    /// The database lets everything through.
    Api,
    /// Shows that the attack would find something.
    None,
}

impl Walls {
    fn api_trusts(self) -> bool {
        matches!(self, Walls::RowSecurity | Walls::None)
    }

    fn rows_are_open(self) -> bool {
        matches!(self, Walls::Api | Walls::None)
    }

    fn name(self) -> &'static str {
        match self {
            Walls::Both => "both walls",
            Walls::RowSecurity => "row security alone",
            Walls::Api => "the API's checks alone",
            Walls::None => "no wall",
        }
    }
}

/// Makes the attempts and returns the figures.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    eprintln!("chaos walls: seed {}", options.seed);
    let private = Private::start().await?;
    let mut figures = Vec::new();
    for (walls, attempts) in [
        (Walls::Both, options.attempts),
        (Walls::RowSecurity, options.attempts / 5),
        (Walls::Api, options.attempts / 5),
        (Walls::None, options.attempts / 20),
    ] {
        if walls.api_trusts() && !cfg!(debug_assertions) {
            eprintln!("chaos walls: guards are taken away in a build with debug assertions only");
            continue;
        }
        figures.extend(attack(&private.server, walls, attempts, options.seed).await?);
    }
    Ok(figures)
}

async fn attack(server: &Server, walls: Walls, attempts: u64, seed: u64) -> Result<Vec<Figure>> {
    let (kernel, mut admin) = fresh_database(server, DATABASE).await?;
    let kernel = kernel.on(Arc::new(Local::default()));
    let folder = Home::find()?.path("walls-artifacts");
    let _ = std::fs::remove_dir_all(&folder);
    let artifacts = Artifacts::new(kernel.clone(), Store::in_folder(folder)?);
    let victim = settle(&kernel, &artifacts, "victim", true).await?;
    let neighbour = settle(&kernel, &artifacts, "neighbour", false).await?;
    let loot = Loot::of(&mut admin, victim.project_id).await?;
    if walls.rows_are_open() {
        let mut owner = PgConnection::connect(&server.owner_url(DATABASE)).await?;
        let off = "select format('alter table %s no force row level security; alter table %1$s disable row level security', c.oid::regclass)
                     from pg_class c where c.relrowsecurity";
        let off: Vec<String> = sqlx::query_scalar(off).fetch_all(&mut owner).await?;
        sqlx::raw_sql(AssertSqlSafe(off.join(";"))).execute(&mut owner).await?;
    }
    let before = books(&mut admin, victim.project_id).await?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let base = format!("http://{}/v1/projects", listener.local_addr()?);
    let (end, mut ended) = watch::channel(false);
    let limits = Limits { per_second: 1e9, ..Limits::default() };
    let config = Config { limits, artifacts: Some(artifacts), ..Config::default() };
    guard::take_away(walls.api_trusts().then_some(Guard::Project));
    let until = async move {
        let _ = ended.wait_for(|ended| *ended).await;
    };
    let serving = tokio::spawn(waybill_api::serve(listener, kernel.clone(), config, until, Duration::from_secs(2)));

    let shared = Arc::new(Attack {
        http: Client::builder().no_proxy().build()?,
        base,
        loot,
        victim,
        neighbour,
        walls,
        n_left: AtomicU64::new(attempts),
        bar: progress(walls.name(), attempts),
    });
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let (attack, dice) = (shared.clone(), Dice::new(seed.rotate_left(n as u32) ^ n as u64));
        clients.spawn(async move { attack.go_on(dice).await });
    }
    let mut account = Account::default();
    while let Some(done) = clients.join_next().await {
        account.add(done??);
    }
    shared.bar.finish_and_clear();
    let after = books(&mut admin, shared.victim.project_id).await?;
    let changed = before.iter().filter(|(table, rows)| after.get(*table) != Some(rows)).count();
    for (table, rows) in before.iter().filter(|(table, rows)| walls != Walls::None && after.get(*table) != Some(*rows))
    {
        eprintln!("{}: {table} of the victim: {rows:?} before, {:?} after", walls.name(), after.get(table));
    }
    let _ = end.send(true);
    serving.await??;
    let figure =
        |what: &str, value: u64, bar| Figure::new(format!("{}: {what}", walls.name()), value as f64, "answers", bar);
    if walls == Walls::None {
        let found = figure("answers that hold something of the victim's", account.leaks, Bar::AtLeast(1.0));
        return Ok(vec![found, figure("tables of the victim that have changed", changed as u64, Bar::AtLeast(1.0))]);
    }
    let mut figures = vec![
        figure("attempts", account.attempts, Bar::AtLeast(attempts as f64)),
        figure("answers that hold something of the victim's", account.leaks, Bar::AtMost(0.0)),
        figure("tables of the victim that have changed", changed as u64, Bar::AtMost(0.0)),
    ];
    // An API that trusts every caller answers with a server error when the database refuses a write.
    if !walls.api_trusts() {
        figures.push(figure("answers that differ between foreign and missing", account.differences, Bar::AtMost(0.0)));
        figures.push(figure("answers that are a fault of the server", account.faults, Bar::AtMost(0.0)));
    }
    Ok(figures)
}

/// A project that has worked, and has work under way.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) project_id: ProjectId,
    pub(crate) slug: &'static str,
    pub(crate) keys: Vec<(Scope, String)>,
}

pub(crate) async fn settle(
    kernel: &Kernel,
    artifacts: &Artifacts,
    slug: &'static str,
    is_victim: bool,
) -> Result<Settled> {
    let says = if is_victim { CANARY } else { "nothing much" };
    let mut work = kernel.begin(ProjectId::new()).await?;
    let project_id = work.project_id();
    project::create(&mut work, slug).await?;
    let profile = |name: &str, target: &str, script: Value, may: Value| {
        json!({ "profile": {
            "name": name, "worker_target": target, "system_prompt_template": format!("You say {says}."),
            "allowed_internal_tools": ["fork_join"], "delegation_policy": { "target_profiles": may },
            "llm_config": { "provider": "demo", "model": "demo", "params": { "script": script } },
        } })
    };
    let tasks = json!([{ "target_ref": "hand", "instruction": says, "target_strategy": "new" }]);
    let fork = json!([{ "say": says, "call": { "fork_join": { "tasks": tasks } } }, { "say": says }]);
    let own = if is_victim { CANARY } else { "own" };
    let documents = vec![
        profile("lead", "llm", fork.clone(), json!(["hand"])),
        profile("hand", "llm", json!([{ "say": says }]), json!([])),
        profile("held", "held", json!([]), json!([])),
        profile("stuck", "stuck", fork, json!(["hand"])),
        profile(own, "llm", json!([{ "say": says }]), json!([])),
    ];
    let documents: Vec<_> = documents.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?;
    let applied = resource::apply(&mut work, &documents).await?;
    audit::applied(&mut work, says, &applied).await?;
    let session_id = SessionId::new();
    blackboard::open(&mut work, Some("key:somebody-else"), &[session_id]).await?;
    let made = NewAgent::of(AgentId::new(), &handover::target(&mut work, &"lead".parse()?).await?);
    agent::provision(&mut work, std::slice::from_ref(&made), Stay::Long, None).await?;
    let mut keys = Vec::new();
    for (n, scope) in Scope::ALL.into_iter().enumerate() {
        let key = ApiKey::mint("test");
        let name: Name = format!("{says}-{n}").replace(' ', "-").parse()?;
        let bounds = Bounds {
            targets: ["llm", "held", "stuck", "slow", "python"]
                .map(|target| target.parse())
                .into_iter()
                .collect::<Result<_, _>>()?,
            ..Bounds::default()
        };
        key::create(&mut work, &key, &name, scope, &bounds, None).await?;
        keys.push((scope, key.expose().to_owned()));
    }
    work.commit().await?;

    let path = own.parse()?;
    artifacts.put_bytes(project_id, Put::new(&path), format!("we say {says}").into_bytes().into()).await?;
    let mut work = kernel.begin(project_id).await?;
    let applied = Applied { path: &path, title: says, text: &format!("we know {says} {own}"), is_external: false };
    apply(&mut work, applied, says).await?;
    work.commit().await?;

    // A run that has ended, in a session: a lead, a fork, a hand.
    let launched = start(kernel, project_id, "lead", says, Some(session_id)).await?;
    let worker = Worker::new(
        kernel.clone(),
        Models::new(Vec::new(), Secrets::new(None, [])),
        Collector::new(Framework::builtin()),
    );
    let config = WorkerConfig::new("llm".parse()?);
    let finished = async {
        loop {
            let found = turn::show(&mut kernel.begin(project_id).await?, &[launched]).await?;
            if found.first().is_some_and(|turn| turn.status != "open") {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let commands = command::Config::default();
    let ran = async {
        tokio::select! {
            ran = finished => ran,
            _ = command::run(kernel, &commands) => anyhow::bail!("the orchestrator has ended"),
        }
    };
    let mut outcome = Ok(());
    worker.serve(&config, async { outcome = ran.await }).await;
    outcome?;

    // One turn that a worker holds, one that waits for a call that a worker holds, and, for the victim only, one that is ready.
    let hour = Duration::from_secs(3600);
    for name in ["held", "stuck"] {
        start(kernel, project_id, name, says, None).await?;
        let target = name.parse()?;
        let worker_id = lease::start(kernel, &target, hour).await?;
        let mut work = kernel.begin(project_id).await?;
        let mut claiming = Claiming { lease: hour, ..Claiming::new(worker_id, target) };
        let claimed = turn::claim_in(&mut work, &mut claiming).await?;
        work.commit().await?;
        ensure!(claimed.len() == 1, "it can be claimed");
        if name == "stuck" {
            suspend(kernel, &claimed[0].fence, says).await?;
            let mut work = kernel.begin(project_id).await?;
            let held =
                call::claim_in(&mut work, &mut Claiming { lease: hour, ..Claiming::new(worker_id, "slow".parse()?) })
                    .await?;
            work.commit().await?;
            ensure!(held.len() == 1, "its call can be claimed");
        }
    }
    if is_victim {
        start(kernel, project_id, "held", says, None).await?;
    }
    Ok(Settled { project_id, slug, keys })
}

async fn suspend(kernel: &Kernel, fence: &waybill_core::turn::Fence, says: &str) -> Result<()> {
    use waybill_core::{
        card::{CallContent, CardType, Content, Draft, Role},
        id::{StepId, ToolCallId},
    };
    let tool_call_id = ToolCallId::new();
    let content = CallContent {
        tool_name: "slow".into(),
        arguments: json!({ "says": says }).to_string(),
        extra: Default::default(),
    };
    let draft = Draft::new(CardType::tool_call(), Role::Assistant, Content::ToolCall(content));
    let card = Draft { tool_call_id: Some(tool_call_id), ..draft }.seal()?;
    let call = turn::Call {
        tool_call_id,
        target: "slow".parse()?,
        tool_call_card_id: card.card_id(),
        timeout: Duration::from_secs(3600),
        once: false,
    };
    let step = turn::Step {
        step_id: StepId::new(),
        cards: vec![card],
        calls: vec![call],
        suspend: true,
        receipt: None,
        usage: None,
    };
    turn::step(&mut kernel.alone(fence.project_id()).await?, fence, &step).await?;
    Ok(())
}

async fn start(
    kernel: &Kernel,
    project_id: ProjectId,
    profile: &str,
    says: &str,
    session_id: Option<SessionId>,
) -> Result<waybill_core::id::TurnId> {
    let mut work = kernel.begin(project_id).await?;
    let launched = launch(&mut work, &Launch { session_id, ..Launch::new(profile.parse()?, says) }).await?;
    work.commit().await?;
    Ok(launched.agent_turn_id)
}

/// Returns the number of rows of a project, and a hash of them, for every table.
pub(crate) async fn books(admin: &mut PgConnection, project_id: ProjectId) -> Result<BTreeMap<String, (i64, String)>> {
    let tables = "select c.oid::regclass::text from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'project_id'
                   where c.relkind in ('r', 'p') and not c.relispartition
                     and c.relnamespace = any (array['cardbox', 'resource', 'state']::regnamespace[])";
    let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut *admin).await?;
    let mut books = BTreeMap::new();
    for table in tables {
        let sql = format!(
            "select count(*), coalesce(md5(string_agg(t::text, ',' order by t::text)), '') from {table} t where project_id = $1"
        );
        let sql = if table == "state.audit" { format!("{sql} and action <> '{}'", audit::REFUSED) } else { sql };
        books.insert(table, sqlx::query_as(AssertSqlSafe(sql)).bind(project_id).fetch_one(&mut *admin).await?);
    }
    Ok(books)
}

/// Everything that the victim has, by its placeholder in a request.
#[derive(Debug)]
pub(crate) struct Loot {
    pub(crate) ids: BTreeMap<&'static str, Vec<String>>,
    /// Of turns that a worker holds: turn, agent, epoch, token.
    pub(crate) fences: Vec<[String; 4]>,
    /// Of calls that a worker holds: call, token.
    pub(crate) calls: Vec<[String; 2]>,
    /// Every id, to search for in answers.
    all: HashSet<String>,
}

impl Loot {
    pub(crate) async fn of(admin: &mut PgConnection, project_id: ProjectId) -> Result<Loot> {
        let mut ids = BTreeMap::new();
        for (what, sql) in [
            ("{turn}", "select agent_turn_id::text from state.turns where project_id = $1"),
            ("{step}", "select step_id::text from state.agent_steps where project_id = $1"),
            ("{card}", "select card_id::text from cardbox.cards where project_id = $1"),
            ("{box}", "select box_id::text from cardbox.boxes where project_id = $1"),
            ("{batch}", "select batch_id::text from state.pmo_batches where project_id = $1"),
            ("{agent}", "select agent_id::text from resource.project_agents where project_id = $1"),
            ("{session}", "select session_id::text from state.blackboards where project_id = $1"),
            ("{key}", "select key_id::text from resource.api_keys where project_id = $1"),
            ("{audit}", "select audit_id::text from state.audit where project_id = $1"),
            ("{call}", "select tool_call_id::text from state.waiting_calls where project_id = $1"),
        ] {
            let found: Vec<String> = sqlx::query_scalar(sql).bind(project_id).fetch_all(&mut *admin).await?;
            ensure!(!found.is_empty(), "the victim has {what}");
            ids.insert(what, found);
        }
        let all = ids.values().flatten().cloned().collect();
        let fences = "select i.agent_turn_id::text, i.agent_id::text, i.turn_epoch::text, i.claim_token::text
                        from state.agent_inbox i where i.project_id = $1 and i.status = 'processing'";
        let fences = sqlx::query(fences).bind(project_id).fetch_all(&mut *admin).await?;
        let fences = fences.iter().map(|row| [row.get(0), row.get(1), row.get(2), row.get(3)]).collect();
        let calls = "select tool_call_id::text, claim_token::text from state.waiting_calls where project_id = $1 and status = 'processing'";
        let calls = sqlx::query(calls).bind(project_id).fetch_all(&mut *admin).await?;
        let calls = calls.iter().map(|row| [row.get(0), row.get(1)]).collect();
        Ok(Loot { ids, fences, calls, all })
    }
}

/// The paths of reads, with placeholders for the victim's ids.
const READS: [&str; 31] = [
    "/",
    "/turns/{turn}",
    "/turns/{turn}/tree",
    "/turns/{turn}/edges",
    "/turns/{turn}/events",
    "/turns/{turn}/receipts",
    "/turns/{turn}/context",
    "/turns/{turn}/context?step_id={step}",
    "/turns/{turn}/why/{card}",
    "/context/diff?left={turn}&right={turn}",
    "/batches/{batch}",
    "/boxes/{box}",
    "/boxes/{box}/cards",
    "/cards/{card}",
    "/agents/{agent}",
    "/turns?after={turn}",
    "/turns?open=true&after={turn}",
    "/agents?after={agent}",
    "/keys?after={key}",
    "/audit?after={audit}",
    "/profiles/{name}",
    "/resources",
    "/settings",
    "/artifacts",
    "/artifacts?prefix={name}",
    "/artifacts/versions?path={name}",
    "/artifacts/content?path={name}",
    "/handoff-types/{name}/schema",
    "/requests",
    "/knowledge?kind=knowledge",
    "/knowledge?kind=knowledge&after={name}",
];

fn writes() -> Vec<(Method, &'static str, Value)> {
    let fence = json!({ "agent_id": "{fence_agent}", "turn_epoch": "{epoch}", "claim_token": "{token}" });
    let card = json!({ "card_id": "{fresh}", "type": "agent.thought", "role": "assistant", "content": "x" });
    let deliverable = json!({ "card_id": "{fresh}", "type": "task.deliverable", "role": "assistant", "content": "x" });
    let claim = json!({ "worker": "w", "target": "llm", "most": 10 });
    let with_target = |target: &str| {
        let mut claim = claim.clone();
        claim["target"] = target.into();
        claim
    };
    vec![
        (Method::POST, "/cards/batch", json!({ "card_ids": ["{card}", "{card}"] })),
        (Method::POST, "/boxes/batch", json!({ "box_ids": ["{box}"] })),
        (Method::POST, "/turns", json!({ "profile_name": "hand", "instruction": "x", "agent_id": "{agent}" })),
        (Method::POST, "/turns", json!({ "profile_name": "{name}", "instruction": "x" })),
        (Method::POST, "/agents", json!({ "profile_name": "{name}" })),
        (Method::POST, "/turns/{turn}/stop", json!({ "reason": "x" })),
        (Method::POST, "/turns/{turn}/fork", json!({})),
        (Method::POST, "/turns/{turn}/fork", json!({ "cards": [{ "card_id": "{card}", "content": "x" }] })),
        (Method::DELETE, "/keys/{key}", Value::Null),
        (Method::DELETE, "/artifacts?path={name}", Value::Null),
        (Method::DELETE, "/knowledge?kind=knowledge&path={name}", Value::Null),
        (Method::POST, "/knowledge/search", json!({ "question": "{name}", "folders": ["{name}"] })),
        (Method::POST, "/turns/{turn}/publish", json!({ "path": "{name}" })),
        (Method::POST, "/requests/{call}", json!({ "decision": "approved" })),
        (Method::POST, "/handoffs", package("{name}")),
        (Method::POST, "/turns/{fence_turn}/steps", json!({ "fence": fence, "step_id": "{fresh}", "cards": [card] })),
        (
            Method::POST,
            "/turns/{fence_turn}/finish",
            json!({ "fence": fence, "status": "success", "cards": [deliverable] }),
        ),
        (Method::POST, "/turns/{fence_turn}/give-back", json!({ "fence": fence, "error": "x" })),
        (
            Method::POST,
            "/calls/{held_call}/report",
            json!({ "worker": "w", "claim_token": "{call_token}", "card_id": "{fresh}", "status": "success", "result": 1 }),
        ),
        (Method::POST, "/worker/claim", with_target("held")),
        (Method::POST, "/calls/claim", with_target("slow")),
        (Method::POST, "/worker/heartbeat", json!({ "worker": "w" })),
        (Method::POST, "/worker/leave", json!({ "worker": "w" })),
    ]
}

/// Returns a handoff package that names an artifact.
pub(crate) fn package(path: &str) -> Value {
    json!({ "profile_name": "hand", "package": {
        "version": "2.0", "handoff_type": "init_to_execute", "timestamp": "2026-01-04T10:30:00", "user_requirement": "x",
        "design_artifacts": { "x": path },
    } })
}

struct Attack {
    http: Client,
    base: String,
    loot: Loot,
    victim: Settled,
    neighbour: Settled,
    walls: Walls,
    n_left: AtomicU64,
    bar: indicatif::ProgressBar,
}

#[derive(Debug, Default)]
struct Account {
    attempts: u64,
    leaks: u64,
    differences: u64,
    faults: u64,
}

impl Account {
    fn add(&mut self, other: Account) {
        self.attempts += other.attempts;
        self.leaks += other.leaks;
        self.differences += other.differences;
        self.faults += other.faults;
    }
}

/// A request before its placeholders are filled.
struct Attempt {
    method: Method,
    project: &'static str,
    path: String,
    body: Value,
    key: String,
}

impl Attack {
    async fn go_on(&self, mut dice: Dice) -> Result<Account> {
        let (mut account, writes) = (Account::default(), writes());
        while self.n_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            let attempt = self.think_of(&mut dice, &writes);
            let mut missing = dice.clone();
            let foreign = self.ask(&attempt, &mut dice, true).await?;
            let never = self.ask(&attempt, &mut missing, false).await?;
            account.attempts += 1;
            self.bar.inc(1);
            if foreign.leaks {
                account.leaks += 1;
            }
            let Attempt { method, project, path, .. } = &attempt;
            let told = format!("{}: {method} {project} {path}: {} {}", self.walls.name(), foreign.status, foreign.body);
            if foreign.leaks && self.walls != Walls::None {
                eprintln!("{told}");
            }
            if (foreign.status, &foreign.body) != (never.status, &never.body) {
                account.differences += 1;
                if account.differences < 5 && !self.walls.api_trusts() {
                    eprintln!("{told}\n  and never was: {} {}", never.status, never.body);
                }
            }
            account.faults += u64::from(foreign.status.is_server_error());
            if foreign.status.is_server_error() && !self.walls.api_trusts() {
                eprintln!("{told}");
            }
        }
        Ok(account)
    }

    fn think_of(&self, dice: &mut Dice, writes: &[(Method, &'static str, Value)]) -> Attempt {
        // Mostly in the neighbour's own project, since requests for the victim's project are refused at once.
        let project = match dice.one_of(if self.walls.api_trusts() { 2 } else { 6 }) {
            0 => "{victim}",
            1 => "{victim_id}",
            _ => "{own}",
        };
        let key = self.neighbour.keys[dice.one_of(self.neighbour.keys.len())].1.clone();
        // Admins get furthest.
        let key = if dice.chance(0.5) { self.neighbour.keys[0].1.clone() } else { key };
        if dice.chance(0.5) {
            let path = READS[dice.one_of(READS.len())].to_owned();
            return Attempt { method: Method::GET, project, path, body: Value::Null, key };
        }
        let (method, path, body) = &writes[dice.one_of(writes.len())];
        Attempt { method: method.clone(), project, path: (*path).to_owned(), body: body.clone(), key }
    }

    async fn ask(&self, attempt: &Attempt, dice: &mut Dice, foreign: bool) -> Result<Answered> {
        let mut used: Vec<String> = Vec::new();
        let project = self.fill(attempt.project, dice, foreign, &mut used);
        let path = self.fill(&attempt.path, dice, foreign, &mut used);
        let path = if path == "/" { String::new() } else { path };
        let mut request = self
            .http
            .request(attempt.method.clone(), format!("{}/{project}{path}", self.base))
            .bearer_auth(&attempt.key);
        if !attempt.body.is_null() {
            let body = self.fill(&attempt.body.to_string(), dice, foreign, &mut used);
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await.context("the server answers")?;
        let status = response.status();
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        // The stream of a turn under way does not end by itself: its existence is enough.
        let is_stream = kind.starts_with("text/event-stream");
        let body = if is_stream { "a stream".to_owned() } else { response.text().await? };
        let leaks = is_stream || self.leaks(&body, &used);
        // The answer may repeat ids of the request: they are masked.
        let mut said = body;
        for text in used {
            said = said.replace(&text, "…");
        }
        Ok(Answered { status, body: without_ids(&said), leaks })
    }

    /// Checks whether an answer contains something of the victim's that was not in the request.
    fn leaks(&self, body: &str, used: &[String]) -> bool {
        let mut body = body.to_owned();
        for text in used {
            body = body.replace(text, "");
        }
        body.contains(CANARY) || ids(&body).any(|id| self.loot.all.contains(id))
    }

    /// Fills the placeholders of a request with ids of the victim, or with ids that never existed. Both cases use the same throws of the dice.
    fn fill(&self, text: &str, dice: &mut Dice, foreign: bool, used: &mut Vec<String>) -> String {
        let never = || uuid::Uuid::now_v7().to_string();
        let mut filled = text.to_owned();
        let mut put = |filled: &mut String, place: &str, value: String| {
            *filled = filled.replace(
                &format!("\"{place}\""),
                &if place == "{epoch}" { value.clone() } else { format!("\"{value}\"") },
            );
            *filled = filled.replace(place, &value);
            if value.len() > 4 {
                used.push(value);
            }
        };
        put(&mut filled, "{own}", self.neighbour.slug.to_owned());
        put(&mut filled, "{victim}", if foreign { self.victim.slug.to_owned() } else { "no-such-project".to_owned() });
        put(&mut filled, "{victim_id}", if foreign { self.victim.project_id.to_string() } else { never() });
        put(&mut filled, "{name}", if foreign { CANARY.to_owned() } else { "no-such-7f3a".to_owned() });
        let fence = &self.loot.fences[dice.one_of(self.loot.fences.len())];
        let call = &self.loot.calls[dice.one_of(self.loot.calls.len())];
        for (place, value) in [("{fence_turn}", &fence[0]), ("{fence_agent}", &fence[1]), ("{held_call}", &call[0])] {
            put(&mut filled, place, if foreign { value.clone() } else { never() });
        }
        for (place, value) in [("{epoch}", &fence[2]), ("{token}", &fence[3]), ("{call_token}", &call[1])] {
            put(&mut filled, place, value.clone());
        }
        for (place, known) in &self.loot.ids {
            while filled.contains(place) {
                let value = known[dice.one_of(known.len())].clone();
                let value = if foreign { value } else { almost(&value) };
                filled = filled.replacen(place, &value, 1);
                used.push(value);
            }
        }
        while filled.contains("{fresh}") {
            filled = filled.replacen("{fresh}", &never(), 1);
        }
        filled
    }
}

struct Answered {
    status: StatusCode,
    /// Without ids.
    body: String,
    leaks: bool,
}

/// Returns an id with the same timestamp that never existed.
fn almost(id: &str) -> String {
    let (rest, last) = id.split_at(id.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
}

/// Returns the UUIDs in a text.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_hexdigit() && c != '-').filter(|word| word.len() == 36)
}

fn without_ids(text: &str) -> String {
    let mut text = text.to_owned();
    let found: Vec<String> = ids(&text).map(str::to_owned).collect();
    for id in found {
        text = text.replace(&id, "…");
    }
    // Also removes the times of what the neighbour itself did a moment ago.
    text.split(',').filter(|part| !part.contains("_at\":")).collect::<Vec<_>>().join(",")
}

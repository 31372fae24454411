//! `examples/research-team`, applied and run on every provider's format: a principal forks associates, asks an expert, and delivers. The models
//! are scripted, over HTTP. Everything else is real: the binary, its workers and orchestrators, PostgreSQL and NATS.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Child, Command, Output},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use waybill_bus::nats::Nats;
use waybill_context::compose::without_blocks;
use waybill_core::{
    card::{Card, CardType, Content, Draft},
    card_box::Span,
    id::{AgentId, BoxId, CardId, ProjectId, TurnId},
    turn::MessageType,
};
use waybill_kernel::{
    call::ClaimedCall,
    card_box,
    intake::{Config, Intake},
    turn::{self, Report},
    work::Kernel,
};
use waybill_lab::{
    model::{Asked, Reply, Server},
    team::ADAPTERS,
};
use waybill_services::Shared;
use waybill_testkit::{TestDb, fresh_db};

use crate::cli::{json as printed, text, waybill};

/// Returns the reply of each agent, given its prompt and its results so far.
fn script(asked: &Asked) -> Reply {
    let n_results = asked.messages.iter().filter(|said| said.result_of.is_some()).count();
    let is = |prompt: &str| asked.messages.iter().any(|said| said.text.contains(prompt));
    if is("You are asked where sources disagree") {
        return Reply::say("← ask_expert").with_usage(50, 0, 5);
    }
    if is("You look into one question") {
        let question = asked.messages.iter().find(|said| said.text.contains("Look into"));
        let question = question.map(|said| without_blocks(&said.text).to_owned());
        return match n_results {
            0 => Reply::call("search", &json!({ "query": question })),
            _ => Reply::say(format!("found: {}", question.unwrap_or_default().trim())),
        }
        .with_usage(40, 10, 5);
    }
    match n_results {
        0 => {
            let part = |part: &str| json!({ "target_ref": "associate", "instruction": format!("Look into {part}.") });
            let tasks = ["rivers", "lakes", "seas"].map(part);
            Reply::call("fork_join", &json!({ "tasks": tasks, "deadline_seconds": 60 }))
        }
        1 => {
            let question = "Whom do you believe?";
            let arguments = json!({ "expert_profile": "expert", "question": question, "include_history": true });
            Reply::call("ask_expert", &arguments)
        }
        _ => Reply::call("submit_result", &json!({ "answer": "water" })),
    }
    .with_usage(100, 60, 10)
}

fn said(card: &Card) -> String {
    match &card.content {
        Content::Text(text) => text.clone(),
        other => serde_json::to_string(other).unwrap(),
    }
}

async fn cards(kernel: &Kernel, project_id: ProjectId, box_id: BoxId) -> Vec<Card> {
    let mut work = kernel.begin(project_id).await.unwrap();
    let read = card_box::read(&mut work, Span::whole(box_id), None).await.unwrap();
    read.into_iter().filter_map(|placed| placed.reading.into_live()).collect()
}

async fn look_up(kernel: Kernel, call: ClaimedCall) {
    let report = Report {
        is_external: false,
        tool_call_id: call.tool_call_id,
        claim_token: Some(call.claim_token),
        message_type: MessageType::ToolResult,
        status: "success".into(),
        card: Draft::tool_result(call.tool_call_id, "success", json!(["a page"])).seal().unwrap(),
    };
    turn::report(&mut kernel.alone(call.project_id).await.unwrap(), &report).await.unwrap();
}

struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// PM-1, PM-3, PM-7 … PM-9, PM-12, WK-1 … WK-5
#[tokio::test]
async fn a_research_team_answers_a_question() {
    for adapter in ADAPTERS {
        run_on(adapter).await;
    }
}

async fn run_on(adapter: &str) {
    let t = fresh_db().await;
    let nats_url = Shared::get().await.unwrap().nats_url;
    let service = t.server.service_url(&t.name);
    let key = "sk-canary-of-the-team";
    let urls = [
        ("WAYBILL_DATABASE_URL", service.as_str()),
        ("WAYBILL_NATS_URL", nats_url.as_str()),
        ("WAYBILL_SECRET_OPENAI", key),
        ("WAYBILL_SECRET_ANTHROPIC", key),
    ];
    let made = waybill(&["project", "create", "acme", "--json"], &urls);
    let project_id: ProjectId = printed(&made)[0]["project_id"].as_str().unwrap().parse().unwrap();
    let team = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/research-team");
    let applied = waybill(&["apply", "-f", team, "--project", "acme"], &urls);
    assert!(applied.status.success(), "{applied:?}");
    let server = Server::start(script).await.unwrap();
    let providers = write_providers(adapter, &server, &t.name);
    // Start two of each: either may get a doorbell.
    let start =
        |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_waybill")).args(arguments).envs(urls).spawn().unwrap();
    let worker = ["worker", "--providers", providers.to_str().unwrap()];
    let _running = Running(vec![start(&["orchestrator"]), start(&["orchestrator"]), start(&worker), start(&worker)]);

    let kernel = t.kernel.clone().on(Arc::new(Nats::connect(&nats_url).await.unwrap()));
    let mut crew = JoinSet::new();
    let tools = kernel.clone();
    crew.spawn(async move {
        let mut intake = Intake::<ClaimedCall>::open(&tools, "web".parse().unwrap(), Config::default());
        loop {
            let holding = intake.next().await;
            look_up(tools.clone(), holding.claimed.clone()).await;
        }
    });

    let started = start_run(urls).await;
    assert!(started.status.success(), "{adapter}: {started:?}");
    // UI-14: what happened was shown while it ran.
    let watched = text(&started.stderr);
    let told = [
        "principal  started",
        "→ fork_join",
        "associate  started",
        "→ search",
        "found: Look into lakes.",
        "← fork_join ",
    ];
    assert!(told.iter().all(|part| watched.contains(part)), "{adapter}: {watched}");
    let delivered = printed(&started);
    assert_eq!(delivered["deliverable"], json!({ "answer": "water" }), "{adapter}");
    let turn_id: TurnId = delivered["turn"]["agent_turn_id"].as_str().unwrap().parse().unwrap();
    let principal: AgentId = sqlx::query_scalar("select agent_id from state.turns where agent_turn_id = $1")
        .bind(turn_id)
        .fetch_one(&mut t.admin().await)
        .await
        .unwrap();
    crew.shutdown().await;
    assert_eq!((server.n_asked(), server.repeats()), (10, 0), "{adapter}");

    check_steps(&t, turn_id, &urls).await;
    let children = check_contexts(&kernel, project_id).await;
    let agents = check_sight(&children, principal, &urls);
    check_grants(&agents, children.expert().1, &urls);
}

/// Writes the file of providers. Every provider that the profiles name uses this format, and is served here.
fn write_providers(adapter: &str, server: &Server, name: &str) -> PathBuf {
    let price = json!({ "input": 1.0, "cached": 0.1, "output": 10.0 });
    let provider = |name: &str| {
        let prices = json!({ "gpt-5": price });
        json!({ "provider": { "name": name, "adapter": adapter, "base_url": server.url(), "prices": prices, "secrets": ["openai", "anthropic"] } })
            .to_string()
    };
    let providers = std::env::temp_dir().join(format!("waybill-providers-{name}.yaml"));
    std::fs::write(&providers, ["openai_chat", "anthropic_messages"].map(provider).join("\n---\n")).unwrap();
    providers
}

async fn start_run(urls: [(&str, &str); 4]) -> Output {
    let fields = json!([{ "name": "answer", "description": "one word" }]).to_string();
    let start = [
        "run",
        "principal",
        "Where is the water?",
        "--watch",
        "--result-fields",
        &fields,
        "--project",
        "acme",
        "--json",
    ];
    let started = tokio::task::spawn_blocking({
        let (start, urls) = (start.map(str::to_owned), urls.map(|(name, value)| (name.to_owned(), value.to_owned())));
        move || {
            let start: Vec<&str> = start.iter().map(String::as_str).collect();
            let urls: Vec<(&str, &str)> = urls.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            waybill(&start, &urls)
        }
    });
    tokio::time::timeout(Duration::from_secs(60), started).await.expect("it ends").unwrap()
}

/// Checks the tokens and cost of each step, and that every call can be rendered again.
async fn check_steps(t: &TestDb, turn_id: TurnId, urls: &[(&str, &str)]) {
    let place = ["--project", "acme"];
    let shown = printed(&waybill(&[&["turn", "show", &turn_id.to_string(), "--json"], &place[..]].concat(), urls));
    let used: Vec<Option<i64>> =
        shown["steps"].as_array().unwrap().iter().map(|step| step["microdollars"].as_i64()).collect();
    assert_eq!(used, [Some(146); 3], "{shown}");
    let table = text(&waybill(&[&["turn", "show", &turn_id.to_string()], &place[..]].concat(), urls).stdout);
    assert!(table.contains("success: 3 steps, 330 tokens, $0.000438"), "{table}");
    // UI-14: a conversation, in its order.
    let mut rest = table.as_str();
    for part in [
        "instruction",
        "Where is the water?",
        "step 1",
        "→ fork_join {",
        "← fork_join ",
        "step 2",
        "→ ask_expert",
        "← ask_expert",
        "deliverable",
        "water",
    ] {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("{part}: {table}")).1;
    }
    let verified = waybill(&[&["context", "show", &turn_id.to_string()], &place[..]].concat(), urls);
    assert!(verified.status.success(), "{verified:?}");
    let leaked = t.count("select count(*) from cardbox.cards c where c::text like '%canary%'").await;
    assert_eq!(leaked, 0);
}

/// The turns that the principal started, and the card of what they found.
struct Children {
    /// Turn, context box and depth of each. The expert is the last.
    turns: Vec<(TurnId, BoxId, i32)>,
    joined: CardId,
}

impl Children {
    fn expert(&self) -> (TurnId, BoxId) {
        let (turn_id, box_id, _) = self.turns.last().unwrap();
        (*turn_id, *box_id)
    }
}

/// Checks that each associate saw its instruction and its sender, and nothing else, and that the expert also saw what the principal had written.
async fn check_contexts(kernel: &Kernel, project_id: ProjectId) -> Children {
    let mut unit = kernel.begin(project_id).await.unwrap();
    let children: Vec<(TurnId, BoxId, i32)> = sqlx::query_as(
        "select agent_turn_id, context_box_id, recursion_depth from state.turns where parent_agent_turn_id is not null order by agent_turn_id",
    )
    .fetch_all(&mut *unit)
    .await
    .unwrap();
    drop(unit);
    assert_eq!(children.len(), 4);
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (_, context_box_id, depth) in &children {
        let context = cards(kernel, project_id, *context_box_id).await;
        assert_eq!(*depth, 1);
        seen.insert(said(&context[0]), context.len());
    }
    // The expert saw its question and its sender, and the principal's two calls and one result.
    assert_eq!(seen.values().copied().collect::<Vec<_>>(), [2, 2, 2, 5], "{seen:?}");
    let (_, expert_box, _) = children.last().unwrap();
    let results = cards(kernel, project_id, *expert_box).await;
    let joined = results.iter().find(|card| card.metadata.card_type == CardType::tool_result()).unwrap();
    let told = serde_json::to_value(&joined.content).unwrap();
    assert_eq!(told["result"]["results"][1]["summary"], "found: Look into lakes.");
    Children { joined: joined.card_id, turns: children }
}

/// Checks why the expert has that card, and which agents could see it. Returns the agents of the project.
fn check_sight(children: &Children, principal: AgentId, urls: &[(&str, &str)]) -> Vec<Value> {
    let card_id = children.joined.to_string();
    let why =
        waybill(&["context", "why", &card_id, "--turn", &children.expert().0.to_string(), "--project", "acme"], urls);
    let why = text(&why.stdout);
    assert!(why.contains("box") && why.contains("ask_expert") && why.contains(&principal.to_string()), "{why}");
    let not =
        waybill(&["context", "why", &card_id, "--turn", &children.turns[0].0.to_string(), "--project", "acme"], urls);
    assert!(!not.status.success() && text(&not.stdout).contains("does not have"), "{not:?}");
    let sight = printed(&waybill(&["card", "sight", &card_id, "--project", "acme", "--json"], urls));
    let rights: Vec<&str> = sight.as_array().unwrap().iter().map(|s| s["via"].as_str().unwrap()).collect();
    assert!(rights.contains(&"own") && rights.contains(&"handed"), "{sight}");
    let listed = printed(&waybill(&["agent", "list", "--project", "acme", "--json"], urls));
    let agents = listed.as_array().unwrap();
    assert_eq!(agents.len(), 5);
    assert_eq!(
        agents.iter().filter(|agent| agent["status"].is_null()).count(),
        5,
        "who was here for a task has no head"
    );
    agents.clone()
}

/// Checks a grant, its revocation, and refused requests.
fn check_grants(agents: &[Value], expert_box: BoxId, urls: &[(&str, &str)]) {
    let place = ["--project", "acme", "--json"];
    let agent_id = agents.iter().find(|agent| agent["ephemeral"] == true).unwrap()["agent_id"].as_str().unwrap();
    let give = ["grant", "give", "--agent", agent_id, "--box", &expert_box.to_string(), "--reason", "a look"];
    let given = printed(&waybill(&[&give[..], &place].concat(), urls));
    let grant_id = given["grant_id"].as_str().unwrap();
    assert!(waybill(&["grant", "revoke", grant_id, "--project", "acme"], urls).status.success());
    let grants = printed(&waybill(&[&["grant", "list"], &place[..]].concat(), urls));
    assert_eq!((&grants[0]["reason"], grants[0]["revoked_at"].is_null()), (&json!("a look"), false));
    assert_eq!(printed(&waybill(&[&["grant", "refusals"], &place[..]].concat(), urls)), json!([]));
    let provisioned = printed(&waybill(&[&["agent", "provision", "expert"], &place[..]].concat(), urls));
    assert!(provisioned["agent_id"].is_string());
}

//! `examples/research-team`, applied and run: a principal forks associates, asks an expert, and delivers. Its models are scripted; all else is real:
//! the binary, its orchestrators, PostgreSQL and NATS.

use std::{
    collections::BTreeMap,
    process::{Child, Command},
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use waybill_bus::nats::Nats;
use waybill_core::{
    bus::PMO,
    card::{CallContent, Card, CardType, Content, Draft, Role},
    card_box::Span,
    handover::Handover,
    id::{AgentId, BoxId, ProjectId, StepId, ToolCallId, TurnId},
    resource::Profile,
    turn::{End, MessageType},
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    call::ClaimedCall,
    card, card_box,
    handover::{Pack, Packing, pack_context},
    intake::{Config, Intake},
    turn::{self, Call, Claimed, DispatchRequest, Ending, Report, Step},
    work::Kernel,
};
use waybill_lab::services::Shared;
use waybill_testkit::fresh_db;

use crate::cli::{json as printed, text, waybill};

/// What a model would say next.
enum Next {
    Call(&'static str, Value),
    Deliver(Content),
}

/// What each of them does, from what it is told and what it has done.
fn script(profile: &Profile, context: &[Card], output: &[Card]) -> Next {
    let told = |card_type: &CardType| output.iter().filter(|card| card.metadata.card_type == *card_type).count();
    match (profile.name.as_str(), told(&CardType::tool_result())) {
        ("principal", 0) => {
            let part = |part: &str| json!({ "target_ref": "associate", "instruction": format!("Look into {part}.") });
            let tasks = ["rivers", "lakes", "seas"].map(part);
            Next::Call("fork_join", json!({ "tasks": tasks, "deadline_seconds": 60 }))
        }
        ("principal", 1) => Next::Call(
            "ask_expert",
            json!({ "expert_profile": "expert", "question": "Whom do you believe?", "include_history": true }),
        ),
        ("principal", _) => Next::Deliver(Content::Json(json!({ "answer": "water" }))),
        ("associate", 0) => Next::Call("search", json!({ "query": said(&context[0]) })),
        ("associate", _) => Next::Deliver(Content::Text(format!("found: {}", said(&context[0])))),
        _ => Next::Deliver(Content::Text(format!("I believe what {} cards say.", context.len()))),
    }
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

async fn work(kernel: Kernel, claimed: Claimed) {
    let fence = claimed.fence;
    let context = cards(&kernel, fence.project_id(), claimed.context_box_id).await;
    let output = cards(&kernel, fence.project_id(), claimed.output_box_id).await;
    let profile = cards(&kernel, fence.project_id(), claimed.profile_box_id.unwrap()).await.remove(0);
    let profile: Profile = profile.read_as().unwrap();
    match script(&profile, &context, &output) {
        Next::Call(tool, arguments) => {
            let content = CallContent { tool_name: tool.into(), arguments: arguments.to_string(), extra: Map::new() };
            let card = Draft::new(CardType::tool_call(), Role::Assistant, Content::ToolCall(content)).seal().unwrap();
            let call = Call {
                tool_call_id: ToolCallId::new(),
                target: if tool == "search" { "web" } else { PMO }.parse().unwrap(),
                tool_call_card_id: card.card_id(),
                timeout: Duration::from_secs(60),
            };
            let step =
                Step { step_id: StepId::new(), cards: vec![card], calls: vec![call], suspend: true, receipt: None };
            let mut alone = kernel.alone(fence.project_id()).await.unwrap();
            turn::step(&mut alone, &fence, &step).await.unwrap();
        }
        Next::Deliver(content) => {
            let cards = vec![Draft::new(CardType::deliverable(), Role::Assistant, content).seal().unwrap()];
            let ending = Ending { fence, status: End::Success, step_id: Some(StepId::new()), receipt: None, cards };
            let mut work = kernel.begin(fence.project_id()).await.unwrap();
            turn::finish(&mut work, &[ending]).await.unwrap();
            work.commit().await.unwrap();
        }
    }
}

async fn look_up(kernel: Kernel, call: ClaimedCall) {
    let report = Report {
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

/// PM-1, PM-3, PM-7 … PM-9, PM-12
#[tokio::test]
async fn a_research_team_answers_a_question() {
    let t = fresh_db().await;
    let nats_url = Shared::get().await.unwrap().nats_url;
    let service = t.server.service_url(&t.name);
    let urls = [("WAYBILL_DATABASE_URL", service.as_str()), ("WAYBILL_NATS_URL", nats_url.as_str())];
    let made = waybill(&["project", "create", "acme", "--json"], &urls);
    let project_id: ProjectId = printed(&made)[0]["project_id"].as_str().unwrap().parse().unwrap();
    let team = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/research-team");
    let applied = waybill(&["apply", "-f", team, "--project", "acme"], &urls);
    assert!(applied.status.success(), "{applied:?}");
    // Two of them: whoever is rung answers.
    let orchestrator = || Command::new(env!("CARGO_BIN_EXE_waybill")).arg("orchestrator").envs(urls).spawn().unwrap();
    let _running = Running(vec![orchestrator(), orchestrator()]);

    let kernel = t.kernel.clone().on(Arc::new(Nats::connect(&nats_url).await.unwrap()));
    let mut crew = JoinSet::new();
    let (hands, tools) = (kernel.clone(), kernel.clone());
    crew.spawn(async move {
        let mut intake = Intake::<Claimed>::open(&hands, "llm".parse().unwrap(), Config::default());
        loop {
            let holding = intake.next().await;
            work(hands.clone(), holding.claimed.clone()).await;
        }
    });
    crew.spawn(async move {
        let mut intake = Intake::<ClaimedCall>::open(&tools, "web".parse().unwrap(), Config::default());
        loop {
            let holding = intake.next().await;
            look_up(tools.clone(), holding.claimed.clone()).await;
        }
    });

    let (principal, turn_id) = (AgentId::new(), TurnId::new());
    let mut unit = kernel.begin(project_id).await.unwrap();
    let made = NewAgent {
        agent_id: principal,
        profile_name: Some("principal".parse().unwrap()),
        worker_target: "llm".parse().unwrap(),
        cloned_from: None,
    };
    agent::provision(&mut unit, &[made], Stay::Long, None).await.unwrap();
    let arguments = json!({ "profile_name": "principal", "instruction": "Where is the water?" });
    let pack = Pack::new(principal, turn_id, arguments.as_object().unwrap().clone());
    let handover = Handover::instruction();
    let packed = pack_context(&mut unit, Packing::new("run", None, &handover), &[pack]).await.unwrap().remove(0);
    let request = DispatchRequest {
        agent_turn_id: turn_id,
        profile_box_id: Some(packed.target_profile_box_id),
        query_card_ids: packed.query_card_ids.clone(),
        ..DispatchRequest::new(principal, packed.context_box_id)
    };
    turn::enqueue(&mut unit, &[request], &[]).await.unwrap();
    unit.commit().await.unwrap();

    let mut delivered = None;
    for _ in 0..600 {
        let mut unit = kernel.begin(project_id).await.unwrap();
        delivered = turn::find(&mut unit, &[turn_id]).await.unwrap().remove(0).deliverable_card_id;
        if let Some(card_id) = delivered {
            let found = card::fetch(&mut unit, &[card_id], None).await.unwrap().found.remove(0).into_live().unwrap();
            assert_eq!(serde_json::to_value(&found.content).unwrap(), json!({ "answer": "water" }));
            break;
        }
        assert!(crew.try_join_next().is_none(), "the crew is at work");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    delivered.expect("the principal has delivered");
    crew.shutdown().await;

    // Each associate saw its instruction and who sent it, and nothing else; the expert also what the principal had written.
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
        let context = cards(&kernel, project_id, *context_box_id).await;
        assert_eq!(*depth, 1);
        seen.insert(said(&context[0]), context.len());
    }
    assert_eq!(seen.values().copied().collect::<Vec<_>>(), [2, 2, 2, 5], "{seen:?}");
    let (expert, expert_box, _) = children.last().unwrap();
    let results = cards(&kernel, project_id, *expert_box).await;
    let joined = results.iter().find(|card| card.metadata.card_type == CardType::tool_result()).unwrap();
    let told = serde_json::to_value(&joined.content).unwrap();
    assert_eq!(told["result"]["results"][1]["summary"], "found: Look into lakes.");

    // Why the expert has that card, and who could see it.
    let card_id = joined.card_id.to_string();
    let why = waybill(&["context", "why", &card_id, "--turn", &expert.to_string(), "--project", "acme"], &urls);
    let why = text(&why.stdout);
    assert!(why.contains("box") && why.contains("ask_expert") && why.contains(&principal.to_string()), "{why}");
    let not = waybill(&["context", "why", &card_id, "--turn", &children[0].0.to_string(), "--project", "acme"], &urls);
    assert!(!not.status.success() && text(&not.stdout).contains("does not have"), "{not:?}");
    let sight = printed(&waybill(&["card", "sight", &card_id, "--project", "acme", "--json"], &urls));
    let rights: Vec<&str> = sight.as_array().unwrap().iter().map(|s| s["via"].as_str().unwrap()).collect();
    assert!(rights.contains(&"own") && rights.contains(&"handed"), "{sight}");
    let listed = printed(&waybill(&["agent", "list", "--project", "acme", "--json"], &urls));
    let agents = listed.as_array().unwrap();
    assert_eq!(agents.len(), 5);
    assert_eq!(
        agents.iter().filter(|agent| agent["status"].is_null()).count(),
        4,
        "who was here for a task has no head"
    );

    // A grant, its end, and what was refused.
    let place = ["--project", "acme", "--json"];
    let agent_id = agents.iter().find(|agent| agent["ephemeral"] == true).unwrap()["agent_id"].as_str().unwrap();
    let give = ["grant", "give", "--agent", agent_id, "--box", &expert_box.to_string(), "--reason", "a look"];
    let given = printed(&waybill(&[&give[..], &place].concat(), &urls));
    let grant_id = given["grant_id"].as_str().unwrap();
    assert!(waybill(&["grant", "revoke", grant_id, "--project", "acme"], &urls).status.success());
    let grants = printed(&waybill(&[&["grant", "list"], &place[..]].concat(), &urls));
    assert_eq!((&grants[0]["reason"], grants[0]["revoked_at"].is_null()), (&json!("a look"), false));
    assert_eq!(printed(&waybill(&[&["grant", "refusals"], &place[..]].concat(), &urls)), json!([]));
    let provisioned = printed(&waybill(&[&["agent", "provision", "expert"], &place[..]].concat(), &urls));
    assert!(provisioned["agent_id"].is_string());
}

//! The commands of agents (PM-2, PM-3, PM-6 … PM-11): delegate, ask, fork, map and reduce.

use std::{collections::HashMap, time::Duration};

use serde_json::{Map, Value, json};
use waybill_core::{
    bus::PMO,
    card::{CallContent, Card, CardType, Content, Draft, NewCard, Role},
    card_box::Span,
    id::{AgentId, BoxId, Name, SessionId, StepId, Target, ToolCallId, WorkerId},
    turn::End,
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    batch, blackboard,
    call::{self, ClaimedCall},
    card, card_box, handover, lease, project, resource, sweep,
    turn::{self, Call, Claimed, Claiming, DispatchRequest, Ending, Step},
    work::Kernel,
};
use waybill_orchestrator::command::{Answer, Error, Handler, deliver, handlers};
use waybill_testkit::{TestDb, fresh_db};

const LONG: Duration = Duration::from_secs(600);
const ALL: [&str; 8] = [
    "delegate_async",
    "launch_principal",
    "ask_expert",
    "fork_join",
    "map_reduce",
    "provision_agent",
    "send_handoff",
    "ask_person",
];

/// A project with profiles, and a worker that runs turns.
pub(crate) struct Team {
    pub(crate) t: TestDb,
    worker: WorkerId,
    pub(crate) handlers: Vec<Box<dyn Handler>>,
}

fn target(name: &str) -> Target {
    name.parse().unwrap()
}

fn deliverable(content: Content) -> NewCard {
    Draft::new(CardType::deliverable(), Role::Assistant, content).seal().unwrap()
}

impl Team {
    /// `lead` may delegate to `helper`, to profiles tagged `research`, and to itself; `loner` may not delegate.
    pub(crate) async fn new() -> Team {
        let t = fresh_db().await;
        let mut work = t.begin().await;
        project::create(&mut work, "acme").await.unwrap();
        let profile = |name: &str, more: Value| {
            let mut profile = json!({
                "name": name, "worker_target": "llm", "system_prompt_template": "", "allowed_internal_tools": ALL,
                "llm_config": { "provider": "openai_chat", "model": "m" } });
            profile.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(json!({ "profile": profile })).unwrap()
        };
        let policy = json!({ "target_tags": ["research"], "target_profiles": ["helper", "lead"] });
        let profiles = [
            profile(
                "lead",
                json!({ "delegation_policy": policy, "readable_artifacts": ["scenarios"], "writable_artifacts": ["drafts"] }),
            ),
            profile("helper", json!({ "delegation_policy": policy })),
            profile("associate", json!({ "tags": ["research"] })),
            profile("mapper", json!({ "tags": ["research"], "process": "mapreduce_worker" })),
            profile("stranger", json!({})),
            profile("loner", json!({})),
            profile("mute", json!({ "delegation_policy": policy, "allowed_internal_tools": ["submit_result"] })),
        ];
        resource::apply(&mut work, &profiles).await.unwrap();
        work.commit().await.unwrap();
        let worker = lease::start(&t.kernel, &target("llm"), LONG).await.unwrap();
        Team { t, worker, handlers: handlers(None) }
    }

    fn kernel(&self) -> &Kernel {
        &self.t.kernel
    }

    /// Makes a permanent agent.
    pub(crate) async fn resident(&self, profile: &str) -> AgentId {
        let agent_id = AgentId::new();
        let mut work = self.t.begin().await;
        let made = NewAgent::of(agent_id, &handover::target(&mut work, &profile.parse().unwrap()).await.unwrap());
        agent::provision(&mut work, &[made], Stay::Long, None).await.unwrap();
        work.commit().await.unwrap();
        agent_id
    }

    /// Starts and claims a turn of an agent with its profile.
    pub(crate) async fn turn(
        &self,
        agent_id: AgentId,
        profile: &str,
        depth: i32,
        session_id: Option<SessionId>,
    ) -> Claimed {
        let card = Draft::instruction("lead").seal().unwrap();
        let mut work = self.t.begin().await;
        let name: Name = profile.parse().unwrap();
        let found = resource::profile(&mut work, &name).await.unwrap();
        let request = DispatchRequest {
            profile_box_id: Some(found.profile_box_id),
            recursion_depth: depth,
            session_id,
            ..DispatchRequest::instructed(agent_id, card.card_id())
        };
        turn::enqueue(&mut work, std::slice::from_ref(&request), &[card]).await.unwrap();
        work.commit().await.unwrap();
        let claimed = self.claim().await.unwrap();
        assert_eq!(claimed.fence.agent_turn_id(), request.agent_turn_id);
        claimed
    }

    pub(crate) async fn lead(&self) -> Claimed {
        self.turn(self.resident("lead").await, "lead", 0, None).await
    }

    pub(crate) async fn claim(&self) -> Option<Claimed> {
        turn::claim(self.kernel(), &mut Claiming::new(self.worker, target("llm"))).await.unwrap().pop()
    }

    /// Lets a running turn call, and wait; gives the call, claimed.
    pub(crate) async fn ask(&self, turn: &Claimed, tool: &str, arguments: Value) -> ClaimedCall {
        let content = CallContent { tool_name: tool.into(), arguments: arguments.to_string(), extra: Map::new() };
        let card = Draft::new(CardType::tool_call(), Role::Assistant, Content::ToolCall(content)).seal().unwrap();
        let calls = vec![Call {
            tool_call_id: ToolCallId::new(),
            target: target(PMO),
            tool_call_card_id: card.card_id(),
            timeout: LONG,
            once: false,
        }];
        let step = Step { step_id: StepId::new(), cards: vec![card], calls, suspend: true, receipt: None, usage: None };
        let mut alone = self.kernel().alone(self.t.project_id).await.unwrap();
        assert!(turn::step(&mut alone, &turn.fence, &step).await.unwrap().suspended);
        self.claim_call().await.unwrap()
    }

    pub(crate) async fn claim_call(&self) -> Option<ClaimedCall> {
        call::claim(self.kernel(), &mut Claiming::new(self.worker, target(PMO))).await.unwrap().pop()
    }

    pub(crate) async fn deliver(&self, call: &ClaimedCall) -> Result<Answer, Error> {
        deliver(self.kernel(), &self.handlers, call).await
    }

    /// Asks, and is answered at once: the content of the result.
    pub(crate) async fn answered(&self, turn: &Claimed, tool: &str, arguments: Value) -> Value {
        let call = self.ask(turn, tool, arguments).await;
        let Answer::Answered(card_id) = self.deliver(&call).await.unwrap() else { panic!("it waits") };
        let mut work = self.t.begin().await;
        let card = card::fetch(&mut work, &[card_id], None).await.unwrap().found.remove(0).into_live().unwrap();
        serde_json::to_value(&card.content).unwrap()
    }

    /// Claims a turn that is ready again after its call was answered.
    pub(crate) async fn resumed(&self, turn: &Claimed) -> (Claimed, Value) {
        let again = self.claim().await.expect("it is ready again");
        assert_eq!(again.fence.agent_turn_id(), turn.fence.agent_turn_id());
        let told = self.cards(again.output_box_id).await.pop().unwrap();
        (again, serde_json::to_value(&told.content).unwrap())
    }

    /// Asks, and is refused with this code; the turn goes on.
    pub(crate) async fn refused(&self, profile: &str, tool: &str, arguments: Value, code: &str) {
        let turn = self.turn(self.resident(profile).await, profile, 0, None).await;
        let told = self.answered(&turn, tool, arguments.clone()).await;
        assert_eq!(told["status"], "rejected", "{tool} {arguments}: {told}");
        assert_eq!(told["result"]["error"]["code"], code, "{tool} {arguments}: {told}");
        let (again, _) = self.resumed(&turn).await;
        self.finish(&again, End::Success, Content::Text("well".into())).await;
    }

    pub(crate) async fn cards(&self, box_id: BoxId) -> Vec<Card> {
        let mut work = self.t.begin().await;
        let read = card_box::read(&mut work, Span::whole(box_id), None).await.unwrap();
        read.into_iter().filter_map(|placed| placed.reading.into_live()).collect()
    }

    pub(crate) async fn texts(&self, box_id: BoxId) -> Vec<String> {
        let text = |card: Card| match card.content {
            Content::Text(text) => text,
            other => format!("{}: {}", card.metadata.card_type, serde_json::to_value(&other).unwrap()),
        };
        self.cards(box_id).await.into_iter().map(text).collect()
    }

    pub(crate) async fn finish(&self, claimed: &Claimed, status: End, content: Content) {
        let cards = vec![deliverable(content)];
        let ending = Ending {
            fence: claimed.fence,
            status,
            step_id: Some(StepId::new()),
            receipt: None,
            usage: None,
            seen: None,
            cards,
        };
        let mut work = self.kernel().begin(self.t.project_id).await.unwrap();
        turn::finish(&mut work, &[ending]).await.unwrap();
        work.commit().await.unwrap();
    }

    pub(crate) async fn sweep(&self) {
        sweep::tick(self.kernel(), &sweep::Config { lease: Duration::ZERO, ..Default::default() }).await.unwrap();
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        self.t.count(sql).await
    }

    pub(crate) async fn meddle(&self, sql: &'static str) {
        sqlx::query(sql).execute(&mut self.t.admin().await).await.unwrap();
    }
}

fn text(text: &str) -> Content {
    Content::Text(text.to_owned())
}

/// PM-3, PM-5, PM-6: `new` makes an agent from a profile; it gets the instruction and its sender, and nothing else. It is gone when its turn
/// is over. The caller continues at once.
#[tokio::test]
async fn a_task_is_delegated_to_somebody_new() {
    let team = Team::new().await;
    let turn = team.lead().await;
    let told = team.answered(&turn, "delegate_async", json!({ "target_ref": "helper", "instruction": "look" })).await;
    assert_eq!((told["status"].as_str(), told["result"]["status"].as_str()), (Some("success"), Some("accepted")));
    let (again, _) = team.resumed(&turn).await;
    {
        let child = team.claim().await.unwrap();
        assert_eq!(child.fence.agent_id().to_string(), told["result"]["agent_id"]);
        assert_eq!(child.fence.agent_turn_id().to_string(), told["result"]["agent_turn_id"]);
        assert_eq!((child.recursion_depth, child.batch_id), (1, None));
        let pointer = format!("meta.parent_pointer: {}", json!({ "parent_agent_id": turn.fence.agent_id() }));
        assert_eq!(team.texts(child.context_box_id).await, ["look", &pointer]);
        assert_eq!(child.query_card_ids.len(), 1);
        team.finish(&child, End::Success, text("seen")).await;
    }
    assert_eq!(team.count("select count(*) from state.agent_state_head").await, 1, "only the lead's");
    assert_eq!(team.count("select count(*) from state.identity_edges where source_agent_id is not null").await, 1);
    team.finish(&again, End::Success, text("done")).await;
}

/// PM-6: `reuse` addresses an agent with its memory, in the order of its queue; `clone` makes an agent with what another one remembers and
/// is writing.
#[tokio::test]
async fn somebody_is_reused_or_cloned_with_what_it_remembers() {
    let team = Team::new().await;
    let helper = team.resident("helper").await;
    let first = team.turn(helper, "helper", 0, None).await;
    team.finish(&first, End::Success, text("first")).await;
    let turn = team.lead().await;
    let reuse = json!({ "target_strategy": "reuse", "target_ref": helper.to_string(), "instruction": "again" });
    let told = team.answered(&turn, "delegate_async", reuse).await;
    assert_eq!(told["result"]["agent_id"], helper.to_string());
    let (again, _) = team.resumed(&turn).await;
    let child = team.claim().await.unwrap();
    let texts = team.texts(child.context_box_id).await;
    assert_eq!(texts[..3], ["again", "lead", "first"], "the question, then what it remembers");
    // It is running, and has written something, when it is cloned.
    let thought = Draft::new(CardType::thought(), Role::Assistant, text("hm")).seal().unwrap();
    let step = Step {
        step_id: StepId::new(),
        cards: vec![thought],
        calls: Vec::new(),
        suspend: false,
        receipt: None,
        usage: None,
    };
    let mut alone = team.kernel().alone(team.t.project_id).await.unwrap();
    turn::step(&mut alone, &child.fence, &step).await.unwrap();
    let clone = json!({ "target_strategy": "clone", "target_ref": helper.to_string(), "instruction": "other" });
    let told = team.answered(&again, "delegate_async", clone).await;
    let (again, _) = team.resumed(&turn).await;
    let twin = team.claim().await.unwrap();
    assert_ne!(twin.fence.agent_id(), helper);
    assert_eq!(team.texts(twin.context_box_id).await[..4], ["other", "lead", "first", "hm"]);
    assert_eq!(team.count("select count(*) from state.identity_edges where action = 'cloned'").await, 1);
    // The twin is over, and asked for again: it remembers.
    team.finish(&twin, End::Success, text("twice")).await;
    let twin_id = told["result"]["agent_id"].clone();
    team.answered(
        &again,
        "delegate_async",
        json!({ "target_strategy": "reuse", "target_ref": twin_id, "instruction": "and?" }),
    )
    .await;
    team.resumed(&turn).await;
    let back = team.claim().await.unwrap();
    let texts = team.texts(back.context_box_id).await;
    assert_eq!(texts[1..4], ["lead", "first", "hm"], "what it was cloned with");
    assert_eq!(texts[4..6], ["other", "twice"], "and what it did itself");
    let remembered = team.cards(back.context_box_id).await[1].card_id;
    let mut work = team.t.begin().await;
    let why = handover::why(&mut work, remembered, back.fence.agent_turn_id()).await.unwrap();
    assert_eq!(why[0].rule, "memory");
}

/// PM-7, LESSONS: the expert's answer comes back; what the caller has written is included if it says so.
#[tokio::test]
async fn an_expert_answers() {
    let team = Team::new().await;
    let turn = team.lead().await;
    for include_history in [false, true] {
        let turn = if include_history { team.lead().await } else { turn.clone() };
        let asked = json!({ "expert_profile": "associate", "question": "why?", "include_history": include_history });
        let call = team.ask(&turn, "ask_expert", asked).await;
        assert!(matches!(team.deliver(&call).await.unwrap(), Answer::Awaiting(_)));
        let expert = team.claim().await.unwrap();
        let texts = team.texts(expert.context_box_id).await;
        assert_eq!((texts[0].as_str(), texts.len()), ("why?", if include_history { 3 } else { 2 }));
        assert_eq!(texts.iter().any(|text| text.starts_with("tool.call")), include_history);
        team.finish(&expert, End::Success, Content::Json(json!({ "answer": 42 }))).await;
        let (again, told) = team.resumed(&turn).await;
        assert_eq!(told["status"], "success");
        assert_eq!(told["result"]["deliverable"], json!({ "answer": 42 }));
        assert_eq!(told["result"]["output_box_id"], expert.output_box_id.to_string());
        team.finish(&again, End::Success, text("done")).await;
    }
    // Delegated with `wait`, the same; a failure is one.
    let turn = team.lead().await;
    let asked = json!({ "target_ref": "helper", "instruction": "look", "wait": true, "deadline_seconds": 60 });
    let call = team.ask(&turn, "delegate_async", asked).await;
    team.deliver(&call).await.unwrap();
    let child = team.claim().await.unwrap();
    team.finish(&child, End::Failed, Content::Json(json!({ "status": "failed", "reason": "no light" }))).await;
    let (_, told) = team.resumed(&turn).await;
    assert_eq!(
        (told["status"].as_str(), told["result"]["deliverable"]["reason"].as_str()),
        (Some("failed"), Some("no light"))
    );
    // An agent is launched, and the caller does not wait.
    let turn = team.lead().await;
    let told = team.answered(&turn, "launch_principal", json!({ "profile_name": "lead", "instruction": "go" })).await;
    assert_eq!(told["result"]["status"], "accepted");
}

/// PM-2, L0-3: a command that is delivered five times acts once and is answered five times alike.
#[tokio::test]
async fn a_command_acts_once() {
    let team = Team::new().await;
    let helper = team.resident("helper").await;
    let rows = "select (select count(*) from state.turns) + (select count(*) from cardbox.boxes) + (select count(*) from cardbox.cards)
                     + (select count(*) from resource.project_agents) + (select count(*) from state.handovers)";
    let fork: Vec<Value> = (0..3).map(|n| json!({ "target_ref": "associate", "instruction": n.to_string() })).collect();
    for (tool, arguments) in [
        ("delegate_async", json!({ "target_ref": "helper", "instruction": "x" })),
        ("delegate_async", json!({ "target_strategy": "reuse", "target_ref": helper.to_string(), "instruction": "x" })),
        ("provision_agent", json!({ "profile_name": "associate" })),
        ("delegate_async", json!({ "target_ref": "stranger", "instruction": "x" })),
        ("delegate_async", json!({ "target_ref": "helper", "instruction": "x", "wait": true })),
        ("fork_join", json!({ "tasks": fork })),
    ] {
        let turn = team.lead().await;
        let call = team.ask(&turn, tool, arguments).await;
        let first = team.deliver(&call).await.unwrap();
        let written = team.count(rows).await;
        for _ in 0..4 {
            assert_eq!(team.deliver(&call).await.unwrap(), first, "{tool}");
        }
        assert_eq!(team.count(rows).await, written, "{tool}");
        while let Some(next) = team.claim().await {
            team.finish(&next, End::Success, text("done")).await;
        }
        // Its answer is the same afterwards.
        if let Answer::Answered(_) = first {
            assert_eq!(team.deliver(&call).await.unwrap(), first, "{tool}");
        }
    }
    assert_eq!(team.count("select count(*) from state.turns where status = 'open'").await, 0);
}

/// PM-8, PM-9: tasks side by side, each its own context; one result in task order, with what each came to.
#[tokio::test]
async fn a_fork_joins() {
    let team = Team::new().await;
    let turn = team.lead().await;
    let history = team.turn(team.resident("lead").await, "lead", 0, None).await;
    team.finish(&history, End::Success, text("before")).await;
    let helper = team.resident("helper").await;
    let tasks = json!([
        { "target_ref": "associate", "instruction": "a", "context_box_id": turn.context_box_id.to_string() },
        { "target_strategy": "reuse", "target_ref": helper.to_string(), "instruction": "b" },
        { "target_strategy": "clone", "target_ref": helper.to_string(), "instruction": "c" },
    ]);
    let call = team.ask(&turn, "fork_join", json!({ "tasks": tasks, "deadline_seconds": 120 })).await;
    let Answer::Awaiting(batch_id) = team.deliver(&call).await.unwrap() else { panic!("it is answered") };
    assert_eq!(
        team.count("select count(*) from state.execution_edges where primitive = 'join' and edge_phase = 'request'")
            .await,
        1
    );
    let mut children: Vec<Claimed> = Vec::new();
    while let Some(child) = team.claim().await {
        assert_eq!((child.batch_id, child.recursion_depth), (Some(batch_id), 1));
        children.push(child);
    }
    let said: HashMap<String, usize> = HashMap::from([("a".to_owned(), 0), ("b".to_owned(), 1), ("c".to_owned(), 2)]);
    assert_eq!(children.len(), 3);
    for child in children.iter().rev() {
        let told = team.texts(child.context_box_id).await;
        let place = said[&told[0]];
        assert_eq!(told.len(), if place == 0 { 3 } else { 2 }, "{told:?}");
        let status = if place == 1 { End::Failed } else { End::Success };
        let content = if place == 1 { Content::Json(json!({ "reason": "no" })) } else { text(&told[0].repeat(600)) };
        team.finish(child, status, content).await;
    }
    let (again, told) = team.resumed(&turn).await;
    let told = &told["result"];
    assert_eq!(told["status"], "partial");
    let results = told["results"].as_array().unwrap();
    let seen: Vec<_> =
        results.iter().map(|r| (r["task_index"].as_u64().unwrap(), r["status"].as_str().unwrap())).collect();
    assert_eq!(seen, [(0, "success"), (1, "failed"), (2, "success")]);
    assert_eq!(results[0]["summary"].as_str().unwrap(), "a".repeat(500), "a few words of it");
    assert_eq!(results[1]["error"], "no");
    assert_eq!(team.count("select count(*) from state.execution_edges where primitive = 'join'").await, 2);
    // LESSONS: the parent may hand on what its children wrote.
    let output = results[2]["output_box_id"].clone();
    let told = team
        .answered(
            &again,
            "delegate_async",
            json!({ "target_ref": "helper", "instruction": "read", "context_box_id": output }),
        )
        .await;
    assert_eq!(told["result"]["status"], "accepted", "{told}");
    team.resumed(&turn).await;
    let reader = team.claim().await.unwrap();
    assert_eq!(team.texts(reader.context_box_id).await[1], "c".repeat(600));
}

/// PM-9: above 64 tasks the result is counts, the first failures, and a box with all of it in task order, which the parent may read.
#[tokio::test]
async fn many_results_come_in_a_box() {
    let team = Team::new().await;
    let turn = team.lead().await;
    let tasks: Vec<Value> =
        (0..250).map(|n| json!({ "target_ref": "associate", "instruction": format!("{n:03}") })).collect();
    let call = team.ask(&turn, "fork_join", json!({ "tasks": tasks })).await;
    team.deliver(&call).await.unwrap();
    let mut claiming = Claiming { most: 250, ..Claiming::new(team.worker, target("llm")) };
    let mut claimed = turn::claim(team.kernel(), &mut claiming).await.unwrap();
    assert_eq!(claimed.len(), 250, "dispatched in portions, all of them");
    claimed.reverse();
    for child in &claimed {
        let said = team.texts(child.context_box_id).await.remove(0);
        let status = if said.ends_with('7') { End::Failed } else { End::Success };
        team.finish(child, status, text(&said)).await;
    }
    let (again, told) = team.resumed(&turn).await;
    let told = &told["result"];
    assert_eq!((told["status"].as_str(), &told["counts"]), (Some("partial"), &json!({ "success": 225, "failed": 25 })));
    let failed = told["failed"].as_array().unwrap();
    assert_eq!((failed.len(), failed[0]["error"].as_str()), (20, Some("007")));
    let results: BoxId = told["results_box_id"].as_str().unwrap().parse().unwrap();
    let all: Vec<String> = (0..250).map(|n| format!("{n:03}")).collect();
    assert_eq!(team.texts(results).await, all, "complete and in task order");
    let asked = json!({ "target_ref": "helper", "instruction": "sum", "context_box_id": results.to_string() });
    assert_eq!(team.answered(&again, "delegate_async", asked).await["result"]["status"], "accepted");
}

/// PM-8, PM-10, LESSONS: what is wrong is refused with a code, as a failure, before anything is written; the turn goes on.
#[tokio::test]
async fn what_is_wrong_is_refused() {
    let team = Team::new().await;
    let helper = team.resident("helper").await;
    let reuse = json!({ "target_strategy": "reuse", "target_ref": helper.to_string(), "instruction": "x" });
    let new = |name: &str| json!({ "target_ref": name, "instruction": "x" });
    team.refused("lead", "delegate_async", json!({ "target_ref": "helper" }), "bad_request").await;
    team.refused("lead", "delegate_async", json!([1]), "bad_request").await;
    team.refused(
        "lead",
        "delegate_async",
        json!({ "target_ref": "helper", "instruction": "x", "more": 1 }),
        "bad_request",
    )
    .await;
    team.refused(
        "lead",
        "delegate_async",
        json!({ "target_strategy": "fly", "target_ref": "helper", "instruction": "x" }),
        "bad_request",
    )
    .await;
    team.refused("lead", "delegate_async", new("nobody"), "not_found").await;
    team.refused("lead", "delegate_async", new("Not A Name"), "bad_request").await;
    let ghost = json!({ "target_strategy": "reuse", "target_ref": AgentId::new().to_string(), "instruction": "x" });
    team.refused("lead", "delegate_async", ghost, "not_found").await;
    team.refused("lead", "fork_join", json!({ "tasks": [] }), "bad_request").await;
    team.refused("lead", "fork_join", json!({ "tasks": [reuse, reuse] }), "bad_request").await;
    team.refused("lead", "fork_join", json!({ "tasks": [new("helper")], "retries": 3 }), "bad_request").await;
    team.refused(
        "lead",
        "fork_join",
        json!({ "tasks": [{ "target_ref": "helper", "instruction": "x", "box": 1 }] }),
        "bad_request",
    )
    .await;
    team.refused("lead", "fork_join", json!({ "tasks": [new("helper")], "deadline_seconds": 0 }), "bad_request").await;
    team.refused("lead", "fork_join", json!({ "tasks": [new("helper"), new("stranger")] }), "forbidden").await;
    team.refused("lead", "no_such_tool", json!({}), "not_found").await;
    // PM-10: by tag and by name; without a policy, no agent. And a tool that the profile does not allow.
    team.refused("lead", "delegate_async", new("stranger"), "forbidden").await;
    team.refused("loner", "delegate_async", new("helper"), "forbidden").await;
    team.refused("loner", "provision_agent", json!({ "profile_name": "helper" }), "forbidden").await;
    team.refused("mute", "delegate_async", new("helper"), "forbidden").await;
    // SE-3: another agent's box, for one of two tasks: nothing is dispatched, and the attempt is on record.
    let other = team.lead().await;
    let theirs =
        json!({ "target_ref": "helper", "instruction": "x", "context_box_id": other.output_box_id.to_string() });
    let turns = team.count("select count(*) from state.turns where parent_agent_turn_id is not null").await;
    team.refused("lead", "fork_join", json!({ "tasks": [new("helper"), theirs] }), "forbidden").await;
    team.refused("lead", "delegate_async", theirs.clone(), "forbidden").await;
    assert_eq!(team.count("select count(*) from state.turns where parent_agent_turn_id is not null").await, turns);
    assert_eq!(team.count("select count(*) from state.refusals where why = 'forbidden'").await, 2);
    assert_eq!(team.count("select count(*) from state.pmo_batches").await, 0);
}

/// PM-6: waiting for an agent that waits for the caller, through any batches, would never end.
#[tokio::test]
async fn a_wait_that_would_never_end_is_refused() {
    let team = Team::new().await;
    let (first, second) = (team.resident("lead").await, team.resident("helper").await);
    let wait = |agent_id: AgentId| json!({ "target_strategy": "reuse", "target_ref": agent_id.to_string(), "instruction": "x", "wait": true });
    let turn = team.turn(first, "lead", 0, None).await;
    let told = team.answered(&turn, "delegate_async", wait(first)).await;
    assert_eq!(told["result"]["error"]["code"], "would_deadlock", "for itself");
    let (turn, _) = team.resumed(&turn).await;
    let call = team.ask(&turn, "delegate_async", wait(second)).await;
    team.deliver(&call).await.unwrap();
    let child = team.claim().await.unwrap();
    // The child forks; a grandchild wants the first.
    let call =
        team.ask(&child, "fork_join", json!({ "tasks": [{ "target_ref": "helper", "instruction": "x" }] })).await;
    team.deliver(&call).await.unwrap();
    let grandchild = team.claim().await.unwrap();
    let mut grandchild = grandchild;
    for agent_id in [first, second] {
        let told = team.answered(&grandchild, "delegate_async", wait(agent_id)).await;
        assert_eq!(told["result"]["error"]["code"], "would_deadlock");
        grandchild = team.resumed(&grandchild).await.0;
    }
    // Without waiting it is queued, and no agent is stuck.
    let queued = json!({ "target_strategy": "reuse", "target_ref": first.to_string(), "instruction": "later" });
    let told = team.answered(&grandchild, "delegate_async", queued).await;
    assert_eq!((told["result"]["status"].as_str(), &told["result"]["turn_epoch"]), (Some("accepted"), &Value::Null));
}

/// L0-11: a spawn is one deeper; at the project's limit it is refused.
#[tokio::test]
async fn a_spawn_too_deep_is_refused() {
    let team = Team::new().await;
    let mut work = team.t.begin().await;
    let settings = serde_json::from_value(json!({ "settings": { "max_recursion_depth": 2 } })).unwrap();
    resource::apply(&mut work, &[settings]).await.unwrap();
    work.commit().await.unwrap();
    let task = json!({ "target_ref": "helper", "instruction": "x" });
    let turn = team.turn(team.resident("lead").await, "lead", 1, None).await;
    assert_eq!(team.answered(&turn, "delegate_async", task.clone()).await["result"]["status"], "accepted");
    team.resumed(&turn).await;
    let child = team.claim().await.unwrap();
    assert_eq!(child.recursion_depth, 2);
    for (tool, arguments) in [("delegate_async", task.clone()), ("fork_join", json!({ "tasks": [task] }))] {
        let child = team.turn(team.resident("helper").await, "helper", 2, None).await;
        let told = team.answered(&child, tool, arguments).await;
        assert_eq!(told["result"]["error"]["code"], "recursion_depth_exceeded", "{told}");
        let (again, _) = team.resumed(&child).await;
        team.finish(&again, End::Success, text("well")).await;
    }
}

/// PM-8, LESSONS: an agent whose queue is full is tried again, and then its task fails with a code; the others do not wait for it.
#[tokio::test]
async fn a_busy_agent_is_a_failure_of_its_task() {
    let team = Team::new().await;
    let helper = team.resident("helper").await;
    let busy = team.turn(helper, "helper", 0, None).await;
    team.meddle("update state.agent_state_head set queue_cap = 0").await;
    let turn = team.lead().await;
    let reuse = json!({ "target_strategy": "reuse", "target_ref": helper.to_string(), "instruction": "x" });
    let told = team.answered(&turn, "delegate_async", reuse.clone()).await;
    assert_eq!((told["status"].as_str(), told["result"]["error"]["code"].as_str()), (Some("busy"), Some("busy")));
    let (turn, _) = team.resumed(&turn).await;
    let tasks = json!([reuse, { "target_ref": "associate", "instruction": "y" }]);
    let call = team.ask(&turn, "fork_join", json!({ "tasks": tasks })).await;
    team.deliver(&call).await.unwrap();
    let child = team.claim().await.unwrap();
    team.finish(&child, End::Success, text("done")).await;
    let (_, told) = team.resumed(&turn).await;
    let told = &told["result"];
    assert_eq!((told["status"].as_str(), told["results"][0]["error"].as_str()), (Some("partial"), Some("busy")));
    team.finish(&busy, End::Success, text("done")).await;
    // With room again in time, it is dispatched.
    let turn = team.lead().await;
    let busy = team.turn(helper, "helper", 0, None).await;
    let call = team.ask(&turn, "fork_join", json!({ "tasks": [reuse] })).await;
    let (answer, ()) = tokio::join!(team.deliver(&call), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        team.meddle("update state.agent_state_head set queue_cap = 5").await;
    });
    answer.unwrap();
    team.finish(&busy, End::Success, text("done")).await;
    let child = team.claim().await.unwrap();
    team.finish(&child, End::Success, text("done")).await;
    assert_eq!(team.resumed(&turn).await.1["result"]["status"], "success");
}

/// PM-2, LESSONS: a handler that dies in the middle leaves the fork to another, which dispatches the rest, each once.
#[tokio::test]
async fn a_fork_is_taken_over_in_the_middle() {
    let team = Team::new().await;
    let turn = team.lead().await;
    let tasks: Vec<Value> =
        (0..450).map(|n| json!({ "target_ref": "associate", "instruction": n.to_string() })).collect();
    let call = team.ask(&turn, "fork_join", json!({ "tasks": tasks })).await;
    // It dies when some are dispatched.
    let dispatched = async {
        while team.count("select count(*) from state.turns where batch_id is not null").await == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        _ = team.deliver(&call) => {}
        () = dispatched => {}
    }
    let mut alone = team.kernel().alone(team.t.project_id).await.unwrap();
    call::reclaim(&mut alone, call.tool_call_id, call.claim_token, false).await.unwrap();
    if let Some(again) = team.claim_call().await {
        team.deliver(&again).await.unwrap();
        // The process that was thought dead comes back: it changes nothing.
        let _ = team.deliver(&call).await;
    }
    assert_eq!(team.count("select count(*) from state.turns where batch_id is not null").await, 450);
    let mut claiming = Claiming { most: 500, ..Claiming::new(team.worker, target("llm")) };
    let claimed = turn::claim(team.kernel(), &mut claiming).await.unwrap();
    assert_eq!(claimed.len(), 450);
    for child in &claimed {
        team.finish(child, End::Success, text("x")).await;
    }
    assert_eq!(team.resumed(&turn).await.1["result"]["counts"], json!({ "success": 450 }));
    assert_eq!(team.count("select count(*) from state.agent_state_head").await, 1, "of the children none is left");
}

/// PM-9, LESSONS: the first failure really stops the others, also those that are running and those that wait; each ends as `canceled`.
#[tokio::test]
async fn fail_fast_reaches_every_child() {
    let team = Team::new().await;
    let resident = team.resident("helper").await;
    let busy = team.turn(resident, "helper", 0, None).await;
    let turn = team.lead().await;
    let mut tasks: Vec<Value> =
        (0..4).map(|n| json!({ "target_ref": "helper", "instruction": n.to_string() })).collect();
    // One of them queues up behind another turn of its agent.
    tasks.push(json!({ "target_strategy": "reuse", "target_ref": resident.to_string(), "instruction": "later" }));
    let call = team.ask(&turn, "fork_join", json!({ "tasks": tasks, "fail_fast": true })).await;
    team.deliver(&call).await.unwrap();
    let (fails, runs, waits) = (team.claim().await.unwrap(), team.claim().await.unwrap(), team.claim().await.unwrap());
    let asked = json!({ "target_ref": "helper", "instruction": "deep", "wait": true });
    let deep = team.ask(&waits, "delegate_async", asked).await;
    team.deliver(&deep).await.unwrap();
    team.finish(&fails, End::Failed, text("no")).await;
    let (_, told) = team.resumed(&turn).await;
    assert_eq!(told["result"]["status"], "failed");
    for _ in 0..3 {
        team.sweep().await;
    }
    let mut alone = team.kernel().alone(team.t.project_id).await.unwrap();
    let step = Step {
        step_id: StepId::new(),
        cards: Vec::new(),
        calls: Vec::new(),
        suspend: false,
        receipt: None,
        usage: None,
    };
    assert!(turn::step(&mut alone, &runs.fence, &step).await.unwrap().stop_reason.is_some());
    team.finish(&runs, End::Canceled, text("stopped")).await;
    let open = "select count(*) from state.turns where status = 'open'";
    assert_eq!(team.count(open).await, 2, "the parent's, and what the busy one was at before");
    assert_eq!(team.count("select count(*) from state.turns where status = 'canceled'").await, 5, "and the grandchild");
    team.finish(&busy, End::Success, text("done")).await;
    assert!(team.claim().await.is_none(), "what was queued has ended");
}

/// PM-11, CX-7, CX-9: a flow of three batches: one agent plans, many work and see no session, one combines; the results are added to the
/// session's. Handlers keep no state between the stages.
#[tokio::test]
async fn a_plan_is_mapped_and_reduced() {
    let team = Team::new().await;
    let session_id = SessionId::new();
    let mut work = team.t.begin().await;
    blackboard::open(&mut work, None, &[session_id]).await.unwrap();
    work.commit().await.unwrap();
    let turn = team.turn(team.resident("lead").await, "lead", 0, Some(session_id)).await;
    let asked = json!({ "planner_profile": "helper", "worker_profile": "mapper", "reducer_profile": "helper", "instruction": "count" });
    let call = team.ask(&turn, "map_reduce", asked.clone()).await;
    team.deliver(&call).await.unwrap();
    let planner = team.claim().await.unwrap();
    assert_eq!(team.texts(planner.context_box_id).await[0], "count");
    assert!(team.claim_call().await.is_none(), "the call waits for the planner");
    team.finish(&planner, End::Success, text("[\"a\", {\"b\": 1}, \"c\"]")).await;
    let call = team.claim_call().await.expect("the call is back");
    team.deliver(&call).await.unwrap();
    let mut workers = Vec::new();
    while let Some(worker) = team.claim().await {
        let told = team.texts(worker.context_box_id).await;
        assert_eq!((told[0].as_str(), told.len(), worker.session_id), ("count", 3, None));
        workers.push((told[1].clone(), worker));
    }
    assert_eq!(workers.len(), 3);
    // It is given back while its handler is still about to leave it: it comes back all the same.
    for (part, worker) in workers.iter().rev() {
        let status = if part == "c" { End::Failed } else { End::Success };
        team.finish(worker, status, text(&format!("found {part}"))).await;
    }
    let call = team.claim_call().await.expect("the call is back");
    assert!(matches!(team.deliver(&call).await.unwrap(), Answer::Awaiting(_)));
    let reducer = team.claim().await.unwrap();
    let told = team.texts(reducer.context_box_id).await;
    assert_eq!((told[0].as_str(), told[1].as_str(), told[3].as_str()), ("count", "found a", "found c"));
    team.finish(&reducer, End::Success, text("three")).await;
    let (again, told) = team.resumed(&turn).await;
    assert_eq!((told["status"].as_str(), told["result"]["deliverable"].as_str()), (Some("success"), Some("three")));
    let mut work = team.t.begin().await;
    assert_eq!(batch::of_call(&mut work, call.tool_call_id).await.unwrap().len(), 3);
    let board = blackboard::find(&mut work, session_id).await.unwrap().unwrap();
    drop(work);
    assert_eq!(team.texts(board.mapreduce_results_box_id).await.len(), 3);
    team.finish(&again, End::Success, text("done")).await;

    // A plan that is none is a failure with a code.
    let turn = team.lead().await;
    let call = team.ask(&turn, "map_reduce", asked).await;
    team.deliver(&call).await.unwrap();
    let planner = team.claim().await.unwrap();
    team.finish(&planner, End::Success, text("I would rather not")).await;
    let call = team.claim_call().await.unwrap();
    team.deliver(&call).await.unwrap();
    assert_eq!(team.resumed(&turn).await.1["result"]["error"]["code"], "no_plan");
}

/// PM-6, CX-13: a task that waited behind another of the same agent remembers that one too.
#[tokio::test]
async fn a_queued_task_remembers_what_came_before_it() {
    let team = Team::new().await;
    let helper = team.resident("helper").await;
    let busy = team.turn(helper, "helper", 0, None).await;
    let turn = team.lead().await;
    let reuse = json!({ "target_strategy": "reuse", "target_ref": helper.to_string(), "instruction": "next" });
    let told = team.answered(&turn, "delegate_async", reuse).await;
    assert_eq!(told["result"]["turn_epoch"], Value::Null, "it is queued");
    team.resumed(&turn).await;
    team.finish(&busy, End::Success, text("meanwhile")).await;
    let next = team.claim().await.unwrap();
    let texts = team.texts(next.context_box_id).await;
    assert_eq!((texts[0].as_str(), &texts[2..]), ("next", &["lead".to_owned(), "meanwhile".to_owned()][..]));
    let card_id = team.cards(next.context_box_id).await[3].card_id;
    let why = handover::why(&mut team.t.begin().await, card_id, next.fence.agent_turn_id()).await.unwrap();
    assert_eq!((why[0].rule.as_str(), why[0].via.as_deref()), ("memory", Some("own")));
}

/// PM-6: two that would wait for each other, at the same moment: not both do.
#[tokio::test]
async fn two_never_wait_for_each_other() {
    let team = Team::new().await;
    for round in 0..8 {
        let (a, b) = (team.resident("lead").await, team.resident("lead").await);
        let wait = |agent_id: AgentId| json!({ "target_strategy": "reuse", "target_ref": agent_id.to_string(), "instruction": "x", "wait": true, "deadline_seconds": 600 });
        let (first, second) = (team.turn(a, "lead", 0, None).await, team.turn(b, "lead", 0, None).await);
        let one = team.ask(&first, "delegate_async", wait(b)).await;
        let two = team.ask(&second, "delegate_async", wait(a)).await;
        let (one, two) = tokio::join!(team.deliver(&one), team.deliver(&two));
        assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
        while let Some(ready) = team.claim().await {
            team.finish(&ready, End::Success, text("done")).await;
        }
        assert_eq!(team.count("select count(*) from state.turns where status = 'open'").await, 0, "round {round}");
    }
}

/// LESSONS: a join never fails because of a deliverable: text that cannot be cut anywhere, JSON as deep as allowed.
#[tokio::test]
async fn whatever_is_delivered_the_batch_is_joined() {
    let team = Team::new().await;
    let turn = team.lead().await;
    let tasks = json!([{ "target_ref": "helper", "instruction": "a" }, { "target_ref": "helper", "instruction": "b" }]);
    let call = team.ask(&turn, "fork_join", json!({ "tasks": tasks })).await;
    team.deliver(&call).await.unwrap();
    let escapes = waybill_core::json::text(&format!("a{}", "\u{241b}".repeat(300))).into_owned();
    let zeros = waybill_core::json::text(&format!("ab{}", "\0".repeat(300))).into_owned();
    for said in [escapes, zeros] {
        let child = team.claim().await.unwrap();
        team.finish(&child, End::Success, Content::Text(said)).await;
    }
    assert_eq!(team.resumed(&turn).await.1["result"]["status"], "success");
    let mut deep = json!(1);
    while waybill_core::json::check(&json!([deep.clone()])).is_ok() {
        deep = json!([deep]);
    }
    let turn = team.lead().await;
    let call = team.ask(&turn, "ask_expert", json!({ "expert_profile": "associate", "question": "how deep?" })).await;
    team.deliver(&call).await.unwrap();
    let child = team.claim().await.unwrap();
    team.finish(&child, End::Success, Content::Json(deep)).await;
    let (_, told) = team.resumed(&turn).await;
    assert_eq!(told["status"], "success");
    assert!(told["result"]["deliverable_card_id"].is_string(), "only pointed out: {told}");
}

/// LESSONS: one part that cannot be a card fails alone.
#[tokio::test]
async fn a_bad_part_fails_alone() {
    let team = Team::new().await;
    let turn = team.lead().await;
    let asked = json!({ "planner_profile": "helper", "worker_profile": "mapper", "reducer_profile": "helper", "instruction": "count" });
    let call = team.ask(&turn, "map_reduce", asked).await;
    team.deliver(&call).await.unwrap();
    let planner = team.claim().await.unwrap();
    // As JSON content each part is fine; as an argument beside the others, one is too deep.
    let mut deep = json!(1);
    while waybill_core::json::check(&json!([[deep.clone()]])).is_ok() {
        deep = json!([deep]);
    }
    team.finish(&planner, End::Success, Content::Json(json!(["a", deep, "c"]))).await;
    let call = team.claim_call().await.unwrap();
    team.deliver(&call).await.unwrap();
    let mut n = 0;
    while let Some(worker) = team.claim().await {
        team.finish(&worker, End::Success, text("x")).await;
        n += 1;
    }
    assert!(n >= 2, "{n} parts were worked on");
    assert!(team.claim_call().await.is_some(), "and the call is back");
}

//! Turns over HTTP: started, watched, run by a worker in another language, stopped.

use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use waybill_api::Limits;
use waybill_context::framework::Framework;
use waybill_core::{
    id::{CardId, StepId, ToolCallId},
    key::Scope,
};
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{Config, Worker},
};

use crate::{House, narrow};

fn id() -> String {
    CardId::new().to_string()
}

/// UI-1: state and steps from the database, by event id; tokens live.
#[tokio::test]
async fn a_turn_is_started_watched_and_looked_at() {
    let house = House::open().await;
    let started = house.post("/turns", json!({ "profile_name": "echo", "instruction": "good morning" })).await;
    let turn_id = started["agent_turn_id"].as_str().unwrap();
    let path = format!("/turns/{turn_id}/events?tokens=true");
    let watched = events(&house, &path, None);
    let work = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let models = Models::new(Vec::new(), Secrets::new(None, []));
        let worker = Worker::new(house.kernel.clone(), models, Collector::new(Framework::builtin()));
        worker.serve(&Config::new("llm".parse().unwrap()), tokio::time::sleep(Duration::from_secs(3))).await;
    };
    let (watched, ()) = tokio::join!(watched, work);
    // Pieces come as they are written, whichever events of the turn were sent by then.
    let (tokens, told): (Vec<Heard>, Vec<Heard>) = watched.into_iter().partition(|event| event.kind == "token");
    assert!(tokens[0].data["text"].as_str().unwrap().contains("good morning") && tokens[0].id.is_none(), "{tokens:?}");
    let kinds: Vec<(&str, &str)> =
        told.iter().map(|event| (event.kind.as_str(), event.data["status"].as_str().unwrap())).collect();
    assert_eq!(kinds, [("state", "dispatched"), ("state", "running"), ("task", "success")]);

    // Once more, from the middle.
    let again = events(&house, &format!("/turns/{turn_id}/events"), told[0].id.as_deref()).await;
    assert_eq!(again, told[1..]);
    // A caller that already has the last event, such as a browser that reconnects by itself, is not kept waiting.
    let path = format!("/turns/{turn_id}/events");
    let last = events(&house, &path, told[2].id.as_deref());
    let last = tokio::time::timeout(Duration::from_secs(5), last).await.expect("it ends");
    assert!(last.iter().all(|event| event.data["status"] == "idle"), "{last:?}");

    let shown = house.get(&format!("/turns/{turn_id}")).await;
    assert_eq!(shown["deliverable"], "You said good morning");
    assert_eq!((&shown["turn"]["status"], &shown["turn"]["n_steps"]), (&json!("success"), &json!(1)));
    let tree = house.get(&format!("/turns/{turn_id}/tree")).await;
    assert_eq!((tree["turns"].as_array().unwrap().len(), &tree["truncated"]), (1, &json!(false)));
    let receipts = house.get(&format!("/turns/{turn_id}/receipts")).await;
    let seen = house.get(&format!("/turns/{turn_id}/context")).await;
    assert_eq!(seen["receipt"]["request_hash"], receipts[0]["receipt"]["request_hash"]);
    assert!(seen["messages"].to_string().contains("good morning"));
    let card_id = shown["turn"]["query_card_ids"][0].as_str().unwrap();
    let why = house.get(&format!("/turns/{turn_id}/why/{card_id}")).await;
    assert_eq!(why[0]["rule"], "argument");
    assert_eq!(house.get(&format!("/cards/{card_id}")).await["content"], "good morning");
    let same = house.get(&format!("/context/diff?left={turn_id}&right={turn_id}")).await;
    assert_eq!((&same["only_left"], &same["only_right"]), (&json!([]), &json!([])));
}

/// UI-7: a caller can wait for the end of a turn, with its start or later, and is answered as soon as the turn has ended.
#[tokio::test]
async fn a_caller_can_wait_for_the_end_of_a_turn() {
    let house = House::open().await;
    let start = || json!({ "profile_name": "echo", "instruction": "good morning" });
    let begun = Instant::now();
    let waited = house.post("/turns?wait_seconds=0.5", start()).await;
    assert!(begun.elapsed() >= Duration::from_millis(500), "there is no worker yet");
    assert_eq!(
        (&waited["status"], &waited["turn"]["turn"]["status"]),
        (&json!("accepted"), &json!("open")),
        "{waited}"
    );
    assert!(house.post("/turns", start()).await.get("turn").is_none());
    let path = format!("/turns/{}", waited["agent_turn_id"].as_str().unwrap());
    let models = Models::new(Vec::new(), Secrets::new(None, []));
    let worker = Worker::new(house.kernel.clone(), models, Collector::new(Framework::builtin()));
    let over = async {
        let shown = house.get(&format!("{path}?wait_seconds=30")).await;
        assert_eq!(shown["deliverable"], "You said good morning");
        let next = house.post("/turns?wait_seconds=30", start()).await;
        assert_eq!(
            (&next["turn"]["turn"]["status"], &next["turn"]["deliverable"]),
            (&json!("success"), &shown["deliverable"])
        );
        assert_eq!(house.get(&format!("{path}?wait_seconds=30")).await, shown, "it is over");
    };
    worker.serve(&Config::new("llm".parse().unwrap()), over).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "no request has waited to the end of its time");
    for wrong in ["-1", "31", "NaN", "x"] {
        let path = format!("{path}?wait_seconds={wrong}");
        assert_eq!(
            house.refused(Method::GET, &path, Some(&house.admin), None).await,
            (400, "invalid".to_owned()),
            "{wrong}"
        );
    }
}

/// NX-6: one card changed; the recorded turn stays as it was.
#[tokio::test]
async fn a_recorded_turn_is_done_again_with_a_card_changed() {
    let house = House::open().await;
    let started = house.post("/turns", json!({ "profile_name": "echo", "instruction": "bread" })).await;
    let turn_id = started["agent_turn_id"].as_str().unwrap().to_owned();
    let models = Models::new(Vec::new(), Secrets::new(None, []));
    let worker = Worker::new(house.kernel.clone(), models, Collector::new(Framework::builtin()));
    let config = Config::new("llm".parse().unwrap());
    let acting = async {
        ended(&house, &turn_id).await;
        let before = house.get(&format!("/turns/{turn_id}")).await;
        let card_id = before["turn"]["query_card_ids"][0].clone();
        let forked = house
            .post(&format!("/turns/{turn_id}/fork"), json!({ "cards": [{ "card_id": card_id, "content": "beer" }] }))
            .await;
        let fork_id = forked["agent_turn_id"].as_str().unwrap().to_owned();
        ended(&house, &fork_id).await;
        let shown = house.get(&format!("/turns/{fork_id}")).await;
        assert_eq!((&shown["deliverable"], &shown["turn"]["forked_from"]), (&json!("You said beer"), &json!(turn_id)));
        assert_eq!(house.get(&format!("/turns/{turn_id}")).await, before);
        // The two calls differ in the one card, and in nothing else.
        let diff = house.get(&format!("/context/diff?left={turn_id}&right={fork_id}")).await;
        assert_eq!(
            (diff["only_left"].as_array().unwrap().len(), diff["only_right"].as_array().unwrap().len()),
            (1, 1),
            "{diff}"
        );
        let patched = json!({ "profile_patch": { "llm_config": { "params": { "script": [{ "say": "no" }] } } } });
        let patched = house.post(&format!("/turns/{turn_id}/fork"), patched).await;
        let patched = patched["agent_turn_id"].as_str().unwrap().to_owned();
        ended(&house, &patched).await;
        assert_eq!(house.get(&format!("/turns/{patched}")).await["deliverable"], "no");
        // SE-7: an operator's patch changes the prompt and takes rights away; it adds none.
        let operator = house.key("op", Scope::Operator).await;
        let fork = format!("/turns/{turn_id}/fork");
        for widens in [
            json!({ "allowed_tools": ["drop_db"] }),
            json!({ "allowed_internal_tools": ["fork_join"] }),
            json!({ "llm_config": { "api_key": { "secret": "github" } } }),
            json!({ "llm_config": { "provider": "other" } }),
            json!({ "delegation_policy": { "target_profiles": ["hand"] } }),
            json!({ "readable_artifacts": ["payroll"] }),
            json!({ "worker_target": "python" }),
        ] {
            let body = json!({ "profile_patch": widens });
            let refused = house.refused(Method::POST, &fork, Some(&operator), Some(body.clone())).await;
            assert_eq!(refused, (403, "forbidden".to_owned()), "{body}");
        }
        let words = json!({ "system_prompt_template": "You repeat everything.", "limits": { "steps": 3 } });
        let live = json!({ "profile_patch": words, "live_tools": true });
        assert_eq!(house.refused(Method::POST, &fork, Some(&operator), Some(live)).await.0, 403);
        let (status, forked) =
            house.ask(Method::POST, &fork, Some(&operator), Some(json!({ "profile_patch": words }))).await;
        assert_eq!(status, 200, "{forked}");
        let entry = house.get("/audit").await["items"][0].clone();
        assert_eq!((&entry["action"], &entry["actor"]), (&json!("turn.fork"), &json!("key:op")));
        assert_eq!(entry["subject"], forked["agent_turn_id"]);
        let nonsense = json!({ "profile_patch": { "llm_config": null } });
        let refused =
            house.refused(Method::POST, &format!("/turns/{turn_id}/fork"), Some(&house.admin), Some(nonsense)).await;
        assert_eq!(refused, (422, "cannot_fork".to_owned()));
    };
    worker.serve(&config, acting).await;
}

/// While a ready turn waits too long, no more turns are accepted for its workers; a request that was accepted before gets the same answer.
#[tokio::test]
async fn more_than_is_done_is_not_accepted() {
    let limits = Limits { most_backlog: Duration::from_millis(100), ..Limits::default() };
    let house = House::open_with(narrow(limits)).await;
    let start = |profile: &str| json!({ "profile_name": profile, "instruction": "bread" });
    let done = house.post("/turns", start("echo")).await["agent_turn_id"].as_str().unwrap().to_owned();
    let models = Models::new(Vec::new(), Secrets::new(None, []));
    let worker = Worker::new(house.kernel.clone(), models, Collector::new(Framework::builtin()));
    worker.serve(&Config::new("llm".parse().unwrap()), ended(&house, &done)).await;

    let once =
        async |key| house.ask_once(Method::POST, "/turns", Some(&house.admin), Some(start("echo")), Some(key)).await;
    let (status, waits) = once("first").await;
    assert_eq!(status, 200, "{waits}");
    // Longer than a turn may wait, and than the backlog is cached.
    tokio::time::sleep(Duration::from_millis(1_300)).await;
    let fork = format!("/turns/{done}/fork");
    for (path, body) in [("/turns", start("echo")), (&fork, json!({}))] {
        let refused = house.refused(Method::POST, path, Some(&house.admin), Some(body)).await;
        assert_eq!(refused, (429, "backlog".to_owned()), "{path}");
    }
    assert_eq!(once("first").await, (StatusCode::OK, waits));
    house.post("/turns", start("hand")).await;
    let turns = house.get("/turns").await;
    assert_eq!(turns["items"].as_array().unwrap().len(), 3, "what was refused has left nothing: {turns}");
}

async fn ended(house: &House, turn_id: &str) {
    for _ in 0..200 {
        if house.get(&format!("/turns/{turn_id}")).await["turn"]["status"] != "open" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("turn {turn_id} does not end");
}

/// UI-2: a worker and a tool that have nothing but HTTP.
#[tokio::test]
async fn a_turn_is_run_over_http_under_its_fence() {
    let house = House::open().await;
    let (worker, tool) = (house.key("w", Scope::Worker).await, house.key("t", Scope::Tool).await);
    let ask = async |path: &str, key: &str, body: Value| house.ask(Method::POST, path, Some(key), Some(body)).await;
    house.allow("add", "sums").await;
    let claim = json!({ "worker": "w1", "target": "python", "wait_seconds": 5, "lease_seconds": 60 });
    // Nothing is there yet: it waits, and is woken.
    let (claimed, started) = tokio::join!(ask("/worker/claim", &worker, claim.clone()), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        house.post("/turns", json!({ "profile_name": "hand", "instruction": "count" })).await
    });
    let turn = claimed.1["turns"][0].clone();
    let turn_id = turn["agent_turn_id"].as_str().unwrap();
    assert_eq!(json!(turn_id), started["agent_turn_id"]);
    let held = ask("/worker/heartbeat", &worker, json!({ "worker": "w1", "lease_seconds": 60 })).await.1;
    assert_eq!(held["turns"][0], turn);
    // A worker that claims and gets nothing has no lease to lose.
    let idle = json!({ "worker": "w3", "target": "python", "lease_seconds": 60 });
    assert_eq!(ask("/worker/claim", &worker, idle).await.1, json!({ "turns": [] }));
    assert_eq!(house.t.count("select count(*) from state.worker_leases").await, 1);
    // Another worker holds nothing, and has no lease.
    assert_eq!(ask("/worker/heartbeat", &worker, json!({ "worker": "w2" })).await.1["code"], "lease_lost");

    // A step with a call, and then it waits.
    let (step_id, call_id, card_id) = (StepId::new(), ToolCallId::new(), id());
    let step = json!({
        "fence": turn["fence"], "step_id": step_id, "suspend": true,
        "cards": [{ "card_id": card_id, "type": "tool.call", "role": "assistant", "tool_call_id": call_id,
                    "content": { "tool_name": "add", "arguments": "{\"a\": 1}" } }],
        "calls": [{ "tool_call_id": call_id, "tool_call_card_id": card_id, "target": "sums", "timeout_seconds": 60 }],
        "usage": { "provider": "mine", "model": "m", "input_tokens": 5, "output_tokens": 2 },
    });
    let steps = format!("/turns/{turn_id}/steps");
    // History is dropped by the time that ids carry: an id of next month, or without a time, would keep a week of all projects from being dropped.
    let next_month = (Utc::now() + TimeDelta::days(42)).timestamp_millis();
    let ahead = format!("{:08x}-{:04x}-7abc-8abc-123456789abc", next_month >> 16, next_month & 0xffff);
    for bad in [ahead.as_str(), "1b4e28ba-2fa1-41d2-883f-0016d3cca427"] {
        let mut of_call = step.clone();
        of_call["cards"][0]["tool_call_id"] = json!(bad);
        of_call["calls"][0]["tool_call_id"] = json!(bad);
        let mut of_step = step.clone();
        of_step["step_id"] = json!(bad);
        for refused in [of_call, of_step] {
            let (status, problem) = ask(&steps, &worker, refused).await;
            assert_eq!((status.as_u16(), &problem["code"]), (400, &json!("invalid")), "{problem}");
            assert!(problem.to_string().contains("a UUIDv7 that was generated within the last day"), "{problem}");
        }
    }
    assert_eq!(
        ask(&steps, &worker, step.clone()).await.1,
        json!({ "suspended": true, "stop_reason": null, "duplicate": false, "budget": null })
    );
    assert_eq!(ask(&steps, &worker, step.clone()).await.1["duplicate"], true, "sent again, it is known");
    let mut other = step;
    other["step_id"] = json!(StepId::new());
    assert_eq!(ask(&steps, &worker, other).await.1["code"], "stale", "the turn was given up with the step");

    let calls = ask("/calls/claim", &tool, json!({ "worker": "t1", "target": "sums", "lease_seconds": 60 })).await.1;
    let call = &calls["calls"][0];
    assert_eq!((&call["tool_name"], &call["arguments"]), (&json!("add"), &json!("{\"a\": 1}")));
    let report = json!({
        "worker": "t1", "claim_token": call["claim_token"], "card_id": id(), "status": "success", "result": 2,
    });
    let mut forged = report.clone();
    forged["worker"] = json!("t2");
    assert_eq!(ask(&format!("/calls/{call_id}/report"), &tool, forged).await.1["code"], "stale", "it is not t2's");
    let reported = ask(&format!("/calls/{call_id}/report"), &tool, report.clone()).await.1;
    assert_eq!((&reported["outcome"], &reported["resumed"]), (&json!("applied"), &json!(true)));
    assert_eq!(ask(&format!("/calls/{call_id}/report"), &tool, report).await.1["outcome"], "duplicate");

    // It is ready again, with the answer in its output.
    let turn = ask("/worker/claim", &worker, claim).await.1["turns"][0].clone();
    assert_eq!(turn["message_type"], "tool_result");
    let output = house.get(&format!("/boxes/{}/cards", turn["output_box_id"].as_str().unwrap())).await;
    assert_eq!(output["items"][1]["reading"]["content"]["result"], 2);
    let ending = json!({
        "fence": turn["fence"], "status": "success",
        "cards": [{ "card_id": id(), "type": "task.deliverable", "role": "assistant", "content": "2" }],
    });
    let finish = format!("/turns/{turn_id}/finish");
    // Ids that were used before, for something else.
    let mut taken = ending.clone();
    taken["step_id"] = json!(step_id);
    assert_eq!(ask(&finish, &worker, taken).await.1["code"], "conflict");
    let mut nul = ending.clone();
    (nul["step_id"], nul["usage"]) = (json!(StepId::new()), json!({ "provider": "\u{0}" }));
    assert_eq!(ask(&finish, &worker, nul).await.1["code"], "invalid");
    let mut stale = ending.clone();
    stale["fence"]["claim_token"] = json!("1");
    assert_eq!(ask(&finish, &worker, stale).await.1["code"], "stale");
    assert_eq!(ask(&finish, &worker, ending.clone()).await.1, json!({ "duplicate": false }));
    assert_eq!(ask(&finish, &worker, ending).await.1, json!({ "duplicate": true }));
    let shown = house.get(&format!("/turns/{turn_id}")).await;
    assert_eq!((&shown["deliverable"], &shown["turn"]["input_tokens"]), (&json!("2"), &json!(5)));
    let edges = house.get(&format!("/turns/{turn_id}/edges")).await;
    assert!(edges.as_array().unwrap().iter().any(|edge| edge["primitive"] == "report"), "{edges}");
}

/// SE-5 over HTTP: a call that was let through before the turn saw content from outside goes on; a later one waits for a person.
#[tokio::test]
async fn a_call_is_let_through_once() {
    let house = House::open().await;
    let tool = |name: &str, approval: &str| json!({ "tool": { "name": name, "description": "d", "target": name, "approval": approval, "effect": "once" } });
    let mut hand = crate::profile("hand", "python");
    hand["profile"]["allowed_tools"] = json!(["web", "pay"]);
    let manifests = [tool("web", "never"), tool("pay", "external"), hand];
    house.post("/resources", json!({ "manifests": manifests })).await;
    house.post("/turns", json!({ "profile_name": "hand", "instruction": "x" })).await;
    let claim = json!({ "worker": "w", "target": "python", "wait_seconds": 5, "lease_seconds": 60 });
    let calling = async |turn: &Value, tools: &[&str]| {
        let (mut cards, mut calls) = (Vec::new(), Vec::new());
        for tool in tools {
            let (call_id, card_id) = (ToolCallId::new(), id());
            let content = json!({ "tool_name": tool, "arguments": "{}" });
            cards.push(json!({ "card_id": card_id, "type": "tool.call", "role": "assistant", "tool_call_id": call_id, "content": content }));
            calls.push(
                json!({ "tool_call_id": call_id, "tool_call_card_id": card_id, "target": tool, "timeout_seconds": 60 }),
            );
        }
        let step = json!({ "fence": turn["fence"], "step_id": StepId::new(), "suspend": true, "cards": cards, "calls": calls });
        house.post(&format!("/turns/{}/steps", turn["agent_turn_id"].as_str().unwrap()), step).await;
    };
    let claimed = async |worker: &str, target: &str| {
        let claim = json!({ "worker": worker, "target": target, "lease_seconds": 60 });
        house.post("/calls/claim", claim).await["calls"].clone()
    };
    let report = async |worker: &str, call: &Value| {
        let body = json!({
            "worker": worker, "claim_token": call["claim_token"], "card_id": id(), "status": "success", "result": "done",
        });
        house.post(&format!("/calls/{}/report", call["tool_call_id"].as_str().unwrap()), body).await["outcome"].clone()
    };
    let turn = house.post("/worker/claim", claim.clone()).await["turns"][0].clone();
    calling(&turn, &["web", "pay"]).await;
    let pay = claimed("p", "pay").await[0].clone();
    assert_eq!(pay["tool_name"], "pay", "nothing from outside was seen yet");
    let web = claimed("s", "web").await[0].clone();
    assert_eq!(report("s", &web).await, "applied");
    let held = house.post("/worker/heartbeat", json!({ "worker": "p", "lease_seconds": 60 })).await;
    assert_eq!(held["calls"][0]["tool_call_id"], pay["tool_call_id"], "it is still theirs");
    assert_eq!(house.get("/requests").await["items"], json!([]));
    assert_eq!(report("p", &pay).await, "applied");

    let turn = house.post("/worker/claim", claim).await["turns"][0].clone();
    calling(&turn, &["pay"]).await;
    assert_eq!(claimed("p", "pay").await, json!([]), "now a person must approve it");
    let asked = house.get("/requests").await["items"][0].clone();
    assert_eq!(asked["request"]["about"]["tool_name"], "pay");
    house
        .post(&format!("/requests/{}", asked["tool_call_id"].as_str().unwrap()), json!({ "decision": "approved" }))
        .await;
    assert_eq!(claimed("p", "pay").await[0]["tool_call_id"], asked["tool_call_id"]);
}

/// WK-6, L0-6 over HTTP.
#[tokio::test]
async fn a_turn_is_stopped_and_one_is_given_back() {
    let house = House::open().await;
    let worker = house.key("w", Scope::Worker).await;
    let start = json!({ "profile_name": "hand", "instruction": "x" });
    let waiting = house.post("/turns", start.clone()).await;
    let stop = format!("/turns/{}/stop", waiting["agent_turn_id"].as_str().unwrap());
    assert_eq!(house.post(&stop, json!({ "reason": "enough" })).await["stopped"], "ended");
    assert_eq!(house.post(&stop, json!({ "reason": "enough" })).await["stopped"], "over");

    house.post("/turns", start).await;
    let ask = async |path: &str, body: Value| house.ask(Method::POST, path, Some(&worker), Some(body)).await.1;
    let claim = json!({ "worker": "w1", "target": "python", "lease_seconds": 60 });
    let first = ask("/worker/claim", claim.clone()).await["turns"][0].clone();
    let turn_id = first["agent_turn_id"].as_str().unwrap();
    let back = json!({ "fence": first["fence"], "error": "no luck" });
    assert_eq!(ask(&format!("/turns/{turn_id}/give-back"), back.clone()).await["outcome"], "armed");
    assert_eq!(ask(&format!("/turns/{turn_id}/give-back"), back).await["outcome"], "stale");
    let second = ask("/worker/claim", claim.clone()).await["turns"][0].clone();
    assert_eq!((&second["agent_turn_id"], &second["retry_count"]), (&first["agent_turn_id"], &json!(1)));
    assert_eq!(house.post(&format!("/turns/{turn_id}/stop"), json!({ "reason": "enough" })).await["stopped"], "asked");
    assert_eq!(ask("/worker/heartbeat", json!({ "worker": "w1" })).await["turns"][0]["stop_asked"], true);
    // It leaves in good order: another worker can have the turn at once.
    ask("/worker/leave", json!({ "worker": "w1" })).await;
    assert_eq!(ask("/worker/heartbeat", json!({ "worker": "w1" })).await["code"], "lease_lost");
}

#[derive(Clone, Debug, PartialEq)]
struct Heard {
    kind: String,
    id: Option<String>,
    data: Value,
}

/// Everything until the stream ends.
async fn events(house: &House, path: &str, last: Option<&str>) -> Vec<Heard> {
    let mut request = house.http.get(format!("{}/v1/projects/acme{path}", house.base)).bearer_auth(&house.admin);
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut stream = response.bytes_stream();
    let mut text = String::new();
    while let Some(piece) = stream.next().await {
        text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
    }
    let line = |event: &str, name: &str| {
        event.lines().find_map(|line| line.strip_prefix(name).map(|said| said.trim().to_owned()))
    };
    let heard = text.split("\n\n").filter_map(|event| {
        let data = line(event, "data:")?;
        Some(Heard { kind: line(event, "event:")?, id: line(event, "id:"), data: serde_json::from_str(&data).unwrap() })
    });
    heard.collect()
}

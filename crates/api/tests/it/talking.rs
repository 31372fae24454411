//! Sessions over HTTP: whose they are, what is said in them, and what becomes of a message while a turn runs.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use waybill_context::framework::Framework;
use waybill_core::{id::SessionId, key::Scope};
use waybill_kernel::resource;
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{Config, Worker},
};

use crate::{House, profile};

impl House {
    /// A profile that says these lines, one in each step, each after so many milliseconds.
    async fn speaker(&self, name: &str, script: Value) {
        let mut speaker = profile(name, "llm");
        speaker["profile"]["llm_config"]["params"] = json!({ "script": script });
        let mut work = self.kernel.begin(self.t.project_id).await.unwrap();
        resource::apply(&mut work, &[serde_json::from_value(speaker).unwrap()]).await.unwrap();
        work.commit().await.unwrap();
    }

    fn hire(&self) -> tokio::task::JoinHandle<()> {
        let kernel = self.kernel.clone();
        tokio::spawn(async move {
            let models = Models::new(Vec::new(), Secrets::new(None, []));
            let worker = Worker::new(kernel, models, Collector::new(Framework::builtin()));
            worker.serve(&Config::new("llm".parse().unwrap()), std::future::pending()).await;
        })
    }

    async fn said(&self, session: &str) -> Vec<String> {
        let messages = self.get(&format!("/sessions/{session}/messages")).await;
        let text = |placed: &Value| match &placed["reading"]["content"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        messages["items"].as_array().unwrap().iter().map(text).collect()
    }

    async fn until_said(&self, session: &str, n: usize) -> Vec<String> {
        for _ in 0..400 {
            let said = self.said(session).await;
            if said.len() >= n {
                return said;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{n} messages were to come: {:?}", self.said(session).await);
    }
}

/// CX-14: a session belongs to the key that opened it. Another key gets the same answer as for a session that never existed.
#[tokio::test]
async fn a_session_is_its_keys_own() {
    let house = House::open().await;
    let (ann, ben) = (house.key("ann", Scope::Operator).await, house.key("ben", Scope::Operator).await);
    let (status, opened) =
        house.ask(Method::POST, "/sessions", Some(&ann), Some(json!({ "title": "Mine", "labels": ["a"] }))).await;
    assert_eq!((status, &opened["owner"], &opened["title"]), (StatusCode::OK, &json!("key:ann"), &json!("Mine")));
    let session = opened["session_id"].as_str().unwrap().to_owned();
    let start = |session: &str| json!({ "profile_name": "echo", "instruction": "hello", "session_id": session });
    let never = SessionId::new().to_string();
    for path in ["", "/messages", "/turns", "/changes"] {
        let (status, theirs) = house.ask(Method::GET, &format!("/sessions/{session}{path}"), Some(&ben), None).await;
        let (_, missing) = house.ask(Method::GET, &format!("/sessions/{never}{path}"), Some(&ben), None).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}: {theirs}");
        let said = |problem: &Value| problem["detail"].as_str().unwrap().replace(&session, "S").replace(&never, "S");
        assert_eq!(said(&theirs), said(&missing), "{path}");
    }
    for (method, path) in [(Method::POST, "/end"), (Method::DELETE, "")] {
        let (status, _) = house.ask(method, &format!("/sessions/{session}{path}"), Some(&ben), None).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    let (status, _) = house.ask(Method::POST, "/turns", Some(&ben), Some(start(&session))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (_, listed) = house.ask(Method::GET, "/sessions", Some(&ben), None).await;
    assert_eq!(listed["items"], json!([]));
    // The first use opens one, for the key that uses it.
    let (status, started) = house.ask(Method::POST, "/turns", Some(&ben), Some(start(&never))).await;
    assert_eq!(
        (status, &started["status"], &started["session_id"]),
        (StatusCode::OK, &json!("accepted"), &json!(never))
    );
    assert!(started["trace_id"].as_str().unwrap().len() == 32 && started["turn_epoch"] == 1, "{started}");
    let (_, listed) = house.ask(Method::GET, "/sessions", Some(&ben), None).await;
    assert_eq!(listed["items"][0]["session_id"], never);
    assert_eq!(house.get("/sessions").await["items"].as_array().unwrap().len(), 2, "an admin sees all");

    let path = format!("/sessions/{session}");
    let (_, named) = house.ask(Method::PATCH, &path, Some(&ann), Some(json!({ "title": "Ours" }))).await;
    assert_eq!((&named["title"], &named["labels"]), (&json!("Ours"), &json!(["a"])));
    let (_, ended) = house.ask(Method::POST, &format!("{path}/end"), Some(&ann), None).await;
    assert!(ended["ended_at"].is_string());
    let (status, late) = house.ask(Method::POST, "/turns", Some(&ann), Some(start(&session))).await;
    assert_eq!((status, &late["code"]), (StatusCode::CONFLICT, &json!("session_ended")));
    let (status, _) = house.ask(Method::DELETE, &path, Some(&ann), None).await;
    assert_eq!(status, StatusCode::OK);
    let (status, _) = house.ask(Method::GET, &path, Some(&ann), None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    // It is gone for good: no other key can open it again and get what its turns still say.
    let (status, _) = house.ask(Method::POST, "/turns", Some(&ben), Some(start(&session))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

/// CX-9: the changes of a session's memory are listed in pages, and none is left out.
#[tokio::test]
async fn changes_come_in_pages() {
    let house = House::open().await;
    let add = |text: &str| json!({ "call": { "update_todo": { "changes": [{ "change": "add", "text": text }] } } });
    let mut planner = profile("planner", "llm");
    planner["profile"]["allowed_internal_tools"] = json!(["update_todo"]);
    planner["profile"]["llm_config"]["params"] = json!({ "script": [add("knead"), add("bake"), { "say": "done" }] });
    house.post("/resources", json!({ "manifests": [planner] })).await;
    let _worker = house.hire();
    let session = SessionId::new().to_string();
    let start = json!({ "profile_name": "planner", "instruction": "plan", "session_id": session });
    house.post("/turns", start).await;
    house.until_said(&session, 2).await;
    let path = format!("/sessions/{session}/changes");
    let all = house.get(&path).await;
    let (mut pages, mut next) = (Vec::new(), String::new());
    loop {
        let page = house.get(&format!("{path}?most=1{next}")).await;
        pages.extend(page["items"].as_array().unwrap().iter().cloned());
        let Some(after) = page["next"].as_str() else { break };
        next = format!("&after={after}");
    }
    assert!(pages.len() >= 2 && all["next"].is_null(), "{all}");
    assert_eq!(json!(pages), all["items"]);
}

/// CX-14: a turn that ends with a tool does not end either before it has seen a caller's message: neither if it submits meanwhile, nor if it waits
/// for a call that would end it.
#[tokio::test]
async fn a_turn_that_submits_is_steered_too() {
    let house = House::open().await;
    let submit = |result: &str| json!({ "submit_result": { "result": result } });
    let mut slow = profile("slow", "llm");
    slow["profile"]["allowed_internal_tools"] = json!(["submit_result"]);
    slow["profile"]["must_end_with"] = json!(["submit_result"]);
    slow["profile"]["llm_config"]["params"] =
        json!({ "script": [{ "call": submit("first"), "after_ms": 800 }, { "call": submit("second") }] });
    let mut waits = profile("waits", "llm");
    waits["profile"]["allowed_tools"] = json!(["ring"]);
    waits["profile"]["must_end_with"] = json!(["ring"]);
    waits["profile"]["llm_config"]["params"] =
        json!({ "script": [{ "call": { "ring": { "n": 1 } } }, { "call": { "ring": { "n": 2 } } }] });
    let ring = json!({ "tool": { "name": "ring", "description": "d", "target": "bells" } });
    house.post("/resources", json!({ "manifests": [slow, ring, waits] })).await;
    let _worker = house.hire();
    let session = SessionId::new().to_string();
    let say = |profile: &str, text: &str, how: &str| json!({ "profile_name": profile, "instruction": text, "session_id": session, "while_running": how });
    house.post("/turns", say("slow", "begin", "start")).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(house.post("/turns", say("slow", "and hurry", "steer")).await["status"], "steered");
    assert_eq!(house.until_said(&session, 3).await, ["begin", "and hurry", "second"]);

    house.post("/turns", say("waits", "begin", "start")).await;
    let answer = async |n: u64| {
        let claim = json!({ "worker": "w", "target": "bells", "wait_seconds": 10, "lease_seconds": 60 });
        let call = house.post("/calls/claim", claim).await["calls"][0].clone();
        assert!(call["arguments"].as_str().unwrap().contains(&n.to_string()), "{call}");
        call
    };
    let report = async |call: &Value, result: &str| {
        let card_id = waybill_core::id::CardId::new();
        let body = json!({ "worker": "w", "claim_token": call["claim_token"], "card_id": card_id, "status": "success", "result": result });
        house.post(&format!("/calls/{}/report", call["tool_call_id"].as_str().unwrap()), body).await;
    };
    let call = answer(1).await;
    assert_eq!(house.post("/turns", say("waits", "one more", "steer")).await["status"], "steered");
    report(&call, "rung once").await;
    let call = answer(2).await;
    report(&call, "rung twice").await;
    let said = house.until_said(&session, 6).await;
    assert!(said[5].contains("rung twice"), "{said:?}");
    // Fields that only a new turn can use are refused, not dropped silently.
    house.post("/turns", say("slow", "again", "start")).await;
    let mut more = say("slow", "x", "steer");
    more["limits"] = json!({ "steps": 1 });
    let (status, problem) = house.ask(Method::POST, "/turns", Some(&house.admin), Some(more)).await;
    assert!(
        status == StatusCode::UNPROCESSABLE_ENTITY && problem["detail"].as_str().unwrap().contains("limits"),
        "{problem}"
    );
}

/// CX-14: a running turn sees a caller's message at its next step, and does not end before it has seen it. The message is in the session and in the
/// receipt.
#[tokio::test]
async fn a_running_turn_can_be_steered() {
    let house = House::open().await;
    house.speaker("slow", json!([{ "say": "first", "after_ms": 800 }, { "say": "then: {{query}}" }])).await;
    let _worker = house.hire();
    let session = SessionId::new().to_string();
    let say = |text: &str, how: &str| json!({ "profile_name": "slow", "instruction": text, "session_id": session, "while_running": how });
    let started = house.post("/turns", say("begin", "start")).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let steered = house.post("/turns", say("and hurry", "steer")).await;
    assert_eq!((&steered["status"], &steered["agent_turn_id"]), (&json!("steered"), &started["agent_turn_id"]));
    let said = house.until_said(&session, 3).await;
    assert_eq!(said[..2], ["begin", "and hurry"]);
    assert!(said[2].starts_with("then: "), "{said:?}");
    let turn = started["agent_turn_id"].as_str().unwrap();
    let edges = house.get(&format!("/turns/{turn}/edges")).await;
    assert!(edges.as_array().unwrap().iter().any(|edge| edge["primitive"] == "steer"), "{edges}");
    let receipts = house.get(&format!("/turns/{turn}/receipts")).await;
    assert_eq!(receipts.as_array().unwrap().len(), 2, "{receipts}");
    // Nothing runs: the message starts a turn.
    let next = house.post("/turns", say("again", "steer")).await;
    assert_eq!(next["status"], "accepted");
    house.until_said(&session, 5).await;
}

/// CX-14: the message starts the next turn of the same agent, which sees the result of the one before.
#[tokio::test]
async fn a_message_can_wait_for_the_turn_that_runs() {
    let house = House::open().await;
    house.speaker("slow", json!([{ "say": "done: {{query}}", "after_ms": 500 }])).await;
    house.speaker("other", json!([{ "say": "no" }])).await;
    let _worker = house.hire();
    let session = SessionId::new().to_string();
    let say = |profile: &str, text: &str| json!({ "profile_name": profile, "instruction": text, "session_id": session, "while_running": "queue" });
    let first = house.post("/turns", say("slow", "one")).await;
    let second = house.post("/turns", say("slow", "two")).await;
    assert_eq!((&first["status"], &second["status"]), (&json!("accepted"), &json!("queued")));
    assert_eq!(first["agent_id"], second["agent_id"]);
    let (status, refused) = house.ask(Method::POST, "/turns", Some(&house.admin), Some(say("other", "three"))).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{refused}");
    let said = house.until_said(&session, 4).await;
    assert_eq!(said, ["one", "done: one", "two", "done: two"]);
    let turn = house.get(&format!("/turns/{}", second["agent_turn_id"].as_str().unwrap())).await;
    let seen = house.get(&format!("/boxes/{}/cards", turn["turn"]["context_box_id"].as_str().unwrap())).await;
    let texts: Vec<&Value> =
        seen["items"].as_array().unwrap().iter().map(|placed| &placed["reading"]["content"]).collect();
    assert!(texts.contains(&&json!("one")) && texts.contains(&&json!("done: one")), "{texts:?}");
}

/// A turn on a box that exists already.
#[tokio::test]
async fn a_turn_can_be_started_on_a_box() {
    let house = House::open().await;
    let _worker = house.hire();
    let session = SessionId::new().to_string();
    let first = json!({ "profile_name": "echo", "instruction": "look at this", "session_id": session });
    let first = house.post("/turns", first).await;
    house.until_said(&session, 2).await;
    let turn = house.get(&format!("/turns/{}", first["agent_turn_id"].as_str().unwrap())).await;
    let output = turn["turn"]["output_box_id"].as_str().unwrap();
    let second = json!({ "profile_name": "echo", "instruction": "well?", "context_box_ids": [output] });
    let second = house.post("/turns", second).await;
    let turn = house.get(&format!("/turns/{}", second["agent_turn_id"].as_str().unwrap())).await;
    let seen = house.get(&format!("/boxes/{}/cards", turn["turn"]["context_box_id"].as_str().unwrap())).await;
    let texts: Vec<&Value> =
        seen["items"].as_array().unwrap().iter().map(|placed| &placed["reading"]["content"]).collect();
    assert_eq!(texts[..2], [&json!("well?"), &json!("You said look at this")], "{seen}");
}

/// L0-11: if the caller sets no limit, the project's settings do, however the turn was started.
#[tokio::test]
async fn a_turn_without_limits_ends() {
    let house = House::open().await;
    let settings = json!({ "settings": { "max_steps": 7 } });
    let mut work = house.kernel.begin(house.t.project_id).await.unwrap();
    resource::apply(&mut work, &[serde_json::from_value(settings).unwrap()]).await.unwrap();
    work.commit().await.unwrap();
    let mut runaway = profile("runaway", "llm");
    runaway["profile"]["allowed_internal_tools"] = json!(["list_artifacts"]);
    runaway["profile"]["llm_config"]["params"] =
        json!({ "script": [{ "say": "on", "call": { "list_artifacts": {} } }] });
    let mut work = house.kernel.begin(house.t.project_id).await.unwrap();
    resource::apply(&mut work, &[serde_json::from_value(runaway).unwrap()]).await.unwrap();
    work.commit().await.unwrap();
    let _worker = house.hire();
    let session = SessionId::new().to_string();
    let start = json!({ "profile_name": "runaway", "instruction": "go", "session_id": session });
    let started = house.post("/turns", start).await;
    house.until_said(&session, 2).await;
    let shown = house.get(&format!("/turns/{}", started["agent_turn_id"].as_str().unwrap())).await;
    assert_eq!(
        (&shown["turn"]["status"], &shown["deliverable"]["reason"]),
        (&json!("failed"), &json!("limit_reached"))
    );
    assert_eq!(shown["turn"]["n_steps"], 7, "{shown}");
    // Run again, it ends too.
    let fork = format!("/turns/{}/fork", started["agent_turn_id"].as_str().unwrap());
    let forked = house.post(&fork, json!({ "live_tools": true })).await;
    let forked = format!("/turns/{}", forked["agent_turn_id"].as_str().unwrap());
    for _ in 0..200 {
        if house.get(&forked).await["turn"]["status"] != "open" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!(house.get(&forked).await["deliverable"]["reason"], "limit_reached");
    assert_eq!(house.said(&session).await.len(), 2, "a fork says nothing in the session that it came from");
}

/// CX-14: pairs of turns of one session at the same time: each sees a prefix of it, a question and its answer stand together, in the order in which
/// the turns ended, and nothing is lost. `WAYBILL_CASES=1000` is the long run.
#[tokio::test(flavor = "multi_thread")]
async fn two_turns_of_a_session_may_run_at_once() {
    let pairs: usize = std::env::var("WAYBILL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20);
    let house = House::open().await;
    let _workers = [house.hire(), house.hire()];
    let session = SessionId::new().to_string();
    let mut turns = Vec::new();
    for pair in 0..pairs {
        let say =
            |n: usize| json!({ "profile_name": "echo", "instruction": format!("{pair}.{n}"), "session_id": session });
        let (one, two) = tokio::join!(house.post("/turns", say(1)), house.post("/turns", say(2)));
        turns.extend([one, two].map(|started| started["agent_turn_id"].as_str().unwrap().to_owned()));
        // Now and then they catch up.
        if pair % 3 == 0 {
            let mut n = 0;
            while n < turns.len() {
                let listed = house.get(&format!("/sessions/{session}/turns?most=1000")).await;
                n = listed["items"].as_array().unwrap().iter().filter(|turn| turn["status"] == "success").count();
                if turns.len() > 1000 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    let (mut said, mut after): (Vec<(String, String)>, i64) = (Vec::new(), 0);
    for _ in 0..400 {
        said.clear();
        after = 0;
        loop {
            let page = house.get(&format!("/sessions/{session}/messages?most=1000&after={after}")).await;
            for placed in page["items"].as_array().unwrap() {
                let reading = &placed["reading"];
                said.push((
                    reading["card_id"].as_str().unwrap().to_owned(),
                    reading["content"].as_str().unwrap().to_owned(),
                ));
            }
            match page["next"].as_str() {
                Some(next) => after = next.parse().unwrap(),
                None => break,
            }
        }
        if said.len() >= 4 * pairs {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!(said.len(), 4 * pairs, "none lost, none twice");
    for talk in said.chunks(2) {
        assert_eq!(talk[1].1, format!("You said {}", talk[0].1), "a question and its answer stand together");
    }
    let ids: Vec<&str> = said.iter().map(|(card_id, _)| card_id.as_str()).collect();
    for turn in &turns {
        let turn = house.get(&format!("/turns/{turn}")).await;
        let (box_id, own) = (&turn["turn"]["context_box_id"], &turn["turn"]["query_card_ids"][0]);
        let seen = house.get(&format!("/boxes/{}/cards?most=1000", box_id.as_str().unwrap())).await;
        let seen =
            seen["items"].as_array().unwrap().iter().map(|placed| placed["reading"]["card_id"].as_str().unwrap());
        let seen: Vec<&str> = seen.filter(|card_id| own != card_id).collect();
        assert_eq!(seen[..], ids[..seen.len()], "a prefix");
    }
    let _ = after;
}

//! The record says who did what (SE-9): every operation of the document that changes something records its actor, once; refusals are counted.

use std::{collections::BTreeSet, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use waybill_api::Config;
use waybill_context::framework::Framework;
use waybill_core::{
    guard,
    id::StepId,
    key::Scope,
    turn::{Price, Prices},
};
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{Config as WorkerConfig, Worker},
};

use crate::{House, bulk::Shelf, profile};

fn id() -> String {
    uuid::Uuid::now_v7().to_string()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Operations that change nothing, whatever their method.
const READS: [&str; 5] = ["show_cards", "show_boxes", "check_handoff", "search_knowledge", "keep_lease"];

/// Sends requests over HTTP, and notes which operations it has done.
struct Scribe<'a> {
    house: &'a House,
    done: BTreeSet<&'static str>,
}

impl Scribe<'_> {
    async fn entries(&self) -> i64 {
        self.house.t.count("select count(*) from state.audit").await
    }

    async fn ask(&mut self, name: &'static str, key: &str, path: &str, body: Value) -> Value {
        let method = match name {
            "describe_session" => Method::PATCH,
            "forget_session" | "revoke_key" | "remove_artifact" | "remove_document" | "delete_card"
            | "revoke_grant" | "lift_hold" => Method::DELETE,
            "put_artifact" | "apply_document" | "set_retention" | "place_hold" => Method::PUT,
            _ => Method::POST,
        };
        let mut request = self.house.http.request(method, format!("{}/v1/projects/acme{path}", self.house.base));
        request = match &body {
            Value::Null => request,
            Value::String(text) => request.body(text.clone()),
            body => request.header("content-type", "application/json").body(body.to_string()),
        };
        let response = request.bearer_auth(key).send().await.unwrap();
        let status = response.status();
        let answer = response.text().await.unwrap();
        assert!(status.is_success(), "{name}: {status} {answer}");
        self.done.insert(name);
        serde_json::from_str(&answer).unwrap()
    }

    /// Does an operation that leaves one audit entry, with its actor.
    async fn manage(&mut self, name: &'static str, action: &str, path: &str, body: Value) -> Value {
        let (before, admin) = (self.entries().await, self.house.admin.clone());
        let answer = self.ask(name, &admin, path, body).await;
        assert_eq!(self.entries().await, before + 1, "{name}");
        let entry = self.house.get("/audit?most=1").await["items"][0].clone();
        assert_eq!((&entry["actor"], &entry["action"]), (&json!("key:admin"), &json!(action)), "{name}");
        answer
    }

    /// Does an operation that records its actor in a column, and leaves no audit entry.
    async fn write(&mut self, name: &'static str, key: &str, path: &str, body: Value) -> Value {
        let before = self.entries().await;
        let answer = self.ask(name, key, path, body).await;
        assert_eq!(self.entries().await, before, "{name}");
        answer
    }

    async fn author(&self, card_id: &str) -> Value {
        self.house.get(&format!("/cards/{card_id}")).await["metadata"]["author_id"].clone()
    }
}

/// SE-9
#[tokio::test]
async fn every_operation_leaves_its_actor() {
    let shelf = Shelf::open().await;
    let house = &shelf.house;
    let mut scribe = Scribe { house, done: BTreeSet::new() };
    let admin = house.admin.clone();

    let session = scribe.manage("open_session", "session.open", "/sessions", json!({})).await;
    let session = format!("/sessions/{}", text(&session["session_id"]));
    scribe.manage("describe_session", "session.describe", &session, json!({ "title": "x" })).await;
    scribe.manage("end_session", "session.end", &format!("{session}/end"), Value::Null).await;
    scribe.manage("forget_session", "session.forget", &session, Value::Null).await;
    let agent = scribe.manage("provision_agent", "agent.provision", "/agents", json!({ "profile_name": "echo" })).await;
    let mut hand = profile("hand", "python");
    hand["profile"]["allowed_tools"] = json!(["pay"]);
    let tool = json!({ "tool": { "name": "pay", "description": "d", "target": "sums", "approval": "always" } });
    let apply = |manifest: &Value| json!({ "manifests": [manifest] });
    scribe.manage("apply_resources", "resource.apply", "/resources", apply(&tool)).await;
    scribe.manage("apply_resources", "resource.apply", "/resources", apply(&hand)).await;
    scribe.write("apply_resources", &admin, "/resources", apply(&hand)).await;
    let key = json!({ "name": "k", "scope": "reader" });
    let key = scribe.manage("create_key", "key.create", "/keys", key).await;
    let key = format!("/keys/{}", text(&key["key_id"]));
    scribe.manage("revoke_key", "key.revoke", &key, Value::Null).await;
    let kept = json!({ "content_months": 6, "record_months": 36 });
    scribe.manage("set_retention", "retention.set", "/retention", kept.clone()).await;
    scribe.write("set_retention", &admin, "/retention", kept).await;
    scribe.manage("place_hold", "retention.hold", "/retention/hold", json!({ "reason": "case 17" })).await;
    scribe.manage("lift_hold", "retention.lift", "/retention/hold?reason=settled", Value::Null).await;

    // A turn by Waybill's own worker, run again, published and stopped.
    let start = |profile: &str| json!({ "profile_name": profile, "instruction": "x" });
    let started = scribe.write("start_turn", &admin, "/turns", start("echo")).await;
    let turn = format!("/turns/{}", text(&started["agent_turn_id"]));
    assert_eq!(house.get(&turn).await["turn"]["started_by"], "key:admin");
    let models = Models::new(Vec::new(), Secrets::new(None, []));
    let worker = Worker::new(house.kernel.clone(), models, Collector::new(Framework::builtin()));
    let over = async {
        while house.get(&turn).await["turn"]["status"] == "open" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    worker.serve(&WorkerConfig::new("llm".parse().unwrap()), over).await;
    let forked = scribe.manage("fork_turn", "turn.fork", &format!("{turn}/fork"), json!({})).await;
    let forked = format!("/turns/{}", text(&forked["agent_turn_id"]));
    assert_eq!(house.get(&forked).await["turn"]["started_by"], "key:admin");
    scribe.manage("stop_turn", "turn.stop", &format!("{forked}/stop"), json!({ "reason": "x" })).await;
    let publish = json!({ "path": "answers/1", "title": "t" });
    scribe.manage("publish_turn", "knowledge.publish", &format!("{turn}/publish"), publish).await;
    let box_id = house.get(&turn).await["turn"]["output_box_id"].clone();
    let give = json!({ "agent_id": agent["agent_id"], "box_id": box_id, "reason": "for the review" });
    let grant = scribe.manage("give_grant", "grant.give", "/grants", give).await;
    let grant = format!("/grants/{}", text(&grant["grant_id"]));
    scribe.manage("revoke_grant", "grant.revoke", &grant, Value::Null).await;
    let card = house.get(&turn).await["turn"]["deliverable_card_id"].clone();
    let card = format!("/cards/{}", text(&card));
    scribe.manage("expire_card", "card.expire", &format!("{card}/expire"), json!({ "ttl_seconds": 3600 })).await;
    assert!(house.get(&card).await["expires_at"].is_string());
    scribe.manage("delete_card", "card.delete", &format!("{card}?reason=wrong"), Value::Null).await;
    assert_eq!(house.get(&card).await["reason"], "wrong");
    let known = "/knowledge?path=facts/1&title=t";
    scribe.manage("apply_document", "knowledge.apply", known, json!("bread is food")).await;
    let known = "/knowledge?kind=knowledge&path=facts/1";
    scribe.manage("remove_document", "knowledge.remove", known, Value::Null).await;

    let stored = scribe.write("put_artifact", &admin, "/artifacts?path=design/rules.md", json!("# Rules")).await;
    assert_eq!(stored["author_id"], "key:admin");
    let package = json!({
        "version": "2.0", "handoff_type": "init_to_execute", "timestamp": "2026-01-04T10:30:00", "user_requirement": "samples",
        "design_artifacts": { "rules": "design/rules.md" },
    });
    let send = json!({ "profile_name": "echo", "package": package });
    let sent = scribe.manage("send_handoff", "handoff.send", "/handoffs", send).await;
    let sent = format!("/turns/{}", text(&sent["agent_turn_id"]));
    assert_eq!(house.get(&sent).await["turn"]["started_by"], "key:admin");
    scribe.manage("remove_artifact", "artifact.remove", "/artifacts?path=design/rules.md", Value::Null).await;

    worker_writes(&mut scribe).await;

    let document = serde_json::to_value(waybill_api::document()).unwrap();
    let operations = document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap());
    for (method, operation) in operations.filter(|(method, _)| *method != "get") {
        let name = text(&operation["operationId"]);
        assert!(READS.contains(&name) || scribe.done.contains(name), "{method} {name}: who did it is not looked at");
    }
}

/// A worker over HTTP: its key is the author of what it writes.
async fn worker_writes(scribe: &mut Scribe<'_>) {
    let house = scribe.house;
    let worker = house.key("w", Scope::Worker).await;
    for _ in 0..2 {
        house.post("/turns", json!({ "profile_name": "hand", "instruction": "x" })).await;
    }
    let claim = json!({ "worker": "w", "target": "python", "most": 2, "lease_seconds": 60 });
    let claimed = scribe.write("claim_turns", &worker, "/worker/claim", claim).await;
    let [turn, other] = [0, 1].map(|n| claimed["turns"][n].clone());
    let path = |turn: &Value, what: &str| format!("/turns/{}/{what}", text(&turn["agent_turn_id"]));
    let (call_id, card_id) = (id(), id());
    let step = json!({
        "fence": turn["fence"], "step_id": StepId::new(), "suspend": true,
        "cards": [{ "card_id": card_id, "type": "tool.call", "role": "assistant", "tool_call_id": call_id,
                    "content": { "tool_name": "pay", "arguments": "{}" } }],
        "calls": [{ "tool_call_id": call_id, "tool_call_card_id": card_id, "target": "sums", "timeout_seconds": 60 }],
    });
    scribe.write("write_step", &worker, &path(&turn, "steps"), step).await;
    assert_eq!(scribe.author(&card_id).await, "key:w");
    let claim = json!({ "worker": "w", "target": "sums", "lease_seconds": 60 });
    scribe.write("claim_calls", &worker, "/calls/claim", claim.clone()).await;
    let decide = format!("/requests/{call_id}");
    scribe.manage("decide_request", "request.decide", &decide, json!({ "decision": "approved" })).await;
    let call = scribe.write("claim_calls", &worker, "/calls/claim", claim).await["calls"][0].clone();
    let answer = id();
    let report = json!({ "worker": "w", "claim_token": call["claim_token"], "card_id": answer, "status": "success", "result": 1 });
    scribe.write("report_call", &worker, &format!("/calls/{call_id}/report"), report).await;
    assert_eq!(scribe.author(&answer).await, "key:w");
    let card = json!({ "card_id": id(), "type": "task.deliverable", "role": "assistant", "content": "done" });
    let finish = json!({ "fence": other["fence"], "status": "success", "cards": [card] });
    scribe.write("finish_turn", &worker, &path(&other, "finish"), finish).await;
    assert_eq!(scribe.author(text(&card["card_id"])).await, "key:w");
    let claim = json!({ "worker": "w", "target": "python", "lease_seconds": 60, "wait_seconds": 5 });
    let turn = scribe.write("claim_turns", &worker, "/worker/claim", claim).await["turns"][0].clone();
    let back = json!({ "fence": turn["fence"], "error": "x" });
    scribe.write("give_back_turn", &worker, &path(&turn, "give-back"), back).await;
    scribe.write("leave", &worker, "/worker/leave", json!({ "worker": "w" })).await;
}

/// SE-9: refusals of a key are one audit entry per code, with their number. Unknown keys leave none.
#[tokio::test]
async fn refusals_are_counted() {
    let house = House::open_with(Config { refusals_every: Duration::from_millis(300), ..Config::default() }).await;
    let reader = house.key("r", Scope::Reader).await;
    for _ in 0..7 {
        let start = json!({ "profile_name": "echo", "instruction": "x" });
        assert_eq!(house.refused(Method::POST, "/turns", Some(&reader), Some(start)).await.0, 403);
    }
    assert_eq!(house.refused(Method::GET, "/v1/projects/other/turns", Some(&reader), None).await.0, 404);
    let unknown = waybill_core::key::ApiKey::mint("test");
    assert_eq!(house.refused(Method::GET, "/turns", Some(unknown.expose()), None).await.0, 401);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let entries = house.get("/audit").await["items"].as_array().unwrap().clone();
    let refused = entries.iter().filter(|entry| entry["action"] == "request.refused");
    let mut counted: Vec<_> = refused
        .map(|entry| (text(&entry["actor"]), text(&entry["subject"]), entry["detail"]["n"].as_i64().unwrap()))
        .collect();
    counted.sort_unstable();
    // They may have been written in the middle, as several entries.
    let of = |code: &str| counted.iter().filter(|(_, subject, _)| *subject == code).map(|(_, _, n)| n).sum::<i64>();
    assert_eq!((of("forbidden"), of("not_found"), of("unauthorized")), (7, 1, 0), "{counted:?}");
    assert!(counted.iter().all(|(actor, _, _)| *actor == "key:r"), "{counted:?}");
    assert_eq!(entries.iter().find(|entry| entry["action"] == "request.refused").unwrap()["address"], "127.0.0.1");
}

/// SE-10: more than a project's settings allow is refused, with the time to wait before a retry.
#[tokio::test]
async fn a_project_has_its_quotas() {
    let house = House::open().await;
    let settings = |settings: Value| json!({ "manifests": [{ "settings": settings }] });
    house.post("/resources", settings(json!({ "max_open_turns": 2, "max_running_turns": 1 }))).await;
    let start = || Some(json!({ "profile_name": "hand", "instruction": "x" }));
    for _ in 0..2 {
        assert_eq!(house.ask(Method::POST, "/turns", Some(&house.admin), start()).await.0, 200);
    }
    let (status, refused) = house.ask(Method::POST, "/turns", Some(&house.admin), start()).await;
    assert_eq!((status.as_u16(), &refused["code"], &refused["retry_after"]), (429, &json!("quota"), &json!(5)));
    assert!(text(&refused["detail"]).contains("2 open turns and may have 2"), "{refused}");

    // One runs; the other waits until it has ended.
    let worker = house.key("w", Scope::Worker).await;
    let claim = || Some(json!({ "worker": "w", "target": "python", "most": 5, "lease_seconds": 60 }));
    let turns = house.ask(Method::POST, "/worker/claim", Some(&worker), claim()).await.1["turns"].clone();
    assert_eq!(turns.as_array().unwrap().len(), 1);
    let none = house.ask(Method::POST, "/worker/claim", Some(&worker), claim()).await.1;
    assert_eq!(none["turns"], json!([]));
    let card = json!({ "card_id": id(), "type": "task.deliverable", "role": "assistant", "content": "done" });
    let usage =
        json!({ "provider": "p", "model": "m", "input_tokens": 1, "output_tokens": 1, "microdollars": 900_000 });
    let finish = json!({ "fence": turns[0]["fence"], "status": "success", "cards": [card], "usage": usage, "step_id": StepId::new() });
    let path = format!("/turns/{}/finish", text(&turns[0]["agent_turn_id"]));
    let (status, said) = house.ask(Method::POST, &path, Some(&worker), Some(finish)).await;
    assert_eq!(status, 200, "{said}");
    let turns = house.ask(Method::POST, "/worker/claim", Some(&worker), claim()).await.1["turns"].clone();
    assert_eq!(turns.as_array().unwrap().len(), 1);

    // The project has spent more this month than it may.
    house.post("/resources", settings(json!({ "max_microdollars_per_month": 800_000 }))).await;
    let (status, refused) = house.ask(Method::POST, "/turns", Some(&house.admin), start()).await;
    assert_eq!((status.as_u16(), &refused["code"]), (429, &json!("quota")), "{refused}");
    assert!(text(&refused["detail"]).contains("spent $0.90 this month and may spend $0.80"), "{refused}");
    assert!(refused["retry_after"].as_i64().unwrap() <= 31 * 86_400);
    house.post("/resources", settings(json!({}))).await;
    assert_eq!(house.ask(Method::POST, "/turns", Some(&house.admin), start()).await.0, 200);
}

/// WK-5: what a worker reports is marked so, and costs what the operator's prices say. A model without a price costs what the worker says.
#[tokio::test]
async fn usage_that_a_worker_reports_is_priced_by_the_operator() {
    let price = Price { input: 2.0, cached: Some(0.5), output: 10.0 };
    let prices = Prices::from([("p".to_owned(), [("m".to_owned(), price)].into())]);
    let house = House::open_with(Config { prices, ..Config::default() }).await;
    let worker = house.key("w", Scope::Worker).await;
    for (model, cost) in [("m", 6 * 2 + 2 + 30), ("another", 7)] {
        let started = house.post("/turns", json!({ "profile_name": "hand", "instruction": "x" })).await;
        let claim = json!({ "worker": "w", "target": "python", "most": 1, "lease_seconds": 60 });
        let turns = house.ask(Method::POST, "/worker/claim", Some(&worker), Some(claim)).await.1["turns"].clone();
        let card = json!({ "card_id": id(), "type": "task.deliverable", "role": "assistant", "content": "done" });
        let usage = json!({
            "provider": "p", "model": model, "input_tokens": 10, "cached_tokens": 4, "output_tokens": 3, "microdollars": 7
        });
        let finish = json!({ "fence": turns[0]["fence"], "status": "success", "cards": [card], "usage": usage, "step_id": StepId::new() });
        let turn = text(&started["agent_turn_id"]);
        house.ask(Method::POST, &format!("/turns/{turn}/finish"), Some(&worker), Some(finish)).await;
        let steps = house.get(&format!("/turns/{turn}")).await;
        assert_eq!(
            (&steps["steps"][0]["microdollars"], &steps["steps"][0]["reported"]),
            (&json!(cost), &json!(true)),
            "{steps}"
        );
    }
}

/// Without the guard the attack succeeds: the caller that started a turn decides its request. `chaos roles` does the same for the other guards.
#[tokio::test]
async fn without_four_eyes_one_pair_is_enough() {
    let house = House::open().await;
    let (decide, one) = crate::roles::waits_for_four_eyes(&house).await;
    let yes = Some(json!({ "decision": "approved" }));
    assert_eq!(house.refused(Method::POST, &decide, Some(&one), yes.clone()).await, (403, "forbidden".to_owned()));
    assert!(guard::take_away(Some(guard::Guard::FourEyes)), "tests are built with debug assertions");
    let decided = house.ask(Method::POST, &decide, Some(&one), yes).await;
    guard::take_away(None);
    assert_eq!(decided.0, 200, "{}", decided.1);
}

//! The record says who did what (SE-9): every operation of the document that changes something records its actor, once; refusals are counted.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use waybill_api::Config;
use waybill_context::framework::Framework;
use waybill_core::{guard, id::StepId, key::Scope};
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{Config as WorkerConfig, Worker},
};

use crate::{House, bulk::Shelf, examples::Example, profile};

fn id() -> String {
    uuid::Uuid::now_v7().to_string()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Operations that change nothing, whatever their method.
const READS: [&str; 7] =
    ["show_cards", "show_boxes", "check_handoff", "search_knowledge", "keep_lease", "verify_context", "send_tokens"];

/// Sends requests over HTTP, and keeps them as examples of their operations.
pub(crate) struct Scribe<'a> {
    pub(crate) house: &'a House,
    /// By operation.
    pub(crate) examples: BTreeMap<String, Example>,
}

impl<'a> Scribe<'a> {
    pub(crate) fn new(house: &'a House) -> Scribe<'a> {
        Scribe { house, examples: BTreeMap::new() }
    }

    async fn entries(&self) -> i64 {
        self.house.t.count("select count(*) from state.audit").await
    }

    pub(crate) async fn ask(&mut self, name: &'static str, key: &str, path: &str, body: Value) -> Value {
        let method = match name {
            "describe_session" => Method::PATCH,
            "forget_session" | "revoke_key" | "remove_artifact" | "remove_document" | "delete_card"
            | "revoke_grant" | "lift_hold" | "remove_tool" | "remove_profile" => Method::DELETE,
            "put_artifact" | "apply_document" | "set_retention" | "place_hold" | "register_tool" => Method::PUT,
            _ => Method::POST,
        };
        let path = format!("/v1/projects/acme{path}");
        let mut request = self.house.http.request(method, format!("{}{path}", self.house.base));
        request = match &body {
            Value::Null => request,
            Value::String(text) => request.body(text.clone()),
            body => request.header("content-type", "application/json").body(body.to_string()),
        };
        let response = request.bearer_auth(key).send().await.unwrap();
        let status = response.status();
        let answer = response.text().await.unwrap();
        assert!(status.is_success(), "{name}: {status} {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let (scopes, status, response) = (Vec::new(), status.as_u16(), answer.clone());
        self.note(name, Example { scopes, path, request: body, status, response });
        answer
    }

    /// Keeps an example. Of several, it keeps the one with the longest answer.
    pub(crate) fn note(&mut self, name: &str, example: Example) {
        let length = |example: &Example| example.response.to_string().len();
        if self.examples.get(name).is_none_or(|known| length(known) < length(&example)) {
            self.examples.insert(name.to_owned(), example);
        }
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
    let mut scribe = Scribe::new(&shelf.house);
    walk(&mut scribe).await;
    let document = serde_json::to_value(waybill_api::document()).unwrap();
    let operations = document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap());
    for (method, operation) in operations.filter(|(method, _)| *method != "get") {
        let name = text(&operation["operationId"]);
        // The last one is done where no key is needed, and has its own test.
        let is_known = READS.contains(&name) || scribe.examples.contains_key(name) || name == "create_project";
        assert!(is_known, "{method} {name}: who did it is not looked at");
    }
}

/// Does every operation that changes something.
pub(crate) async fn walk(scribe: &mut Scribe<'_>) {
    let house = scribe.house;
    let admin = house.admin.clone();

    let session = scribe.manage("open_session", "session.open", "/sessions", json!({})).await;
    let session = format!("/sessions/{}", text(&session["session_id"]));
    scribe.manage("describe_session", "session.describe", &session, json!({ "title": "Bread" })).await;
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
    let own = json!({ "name": "own", "description": "d", "target": "sums" });
    scribe.manage("register_tool", "resource.apply", "/tools/own", own.clone()).await;
    scribe.write("register_tool", &admin, "/tools/own", own).await;
    scribe.manage("remove_tool", "resource.remove", "/tools/own", Value::Null).await;
    scribe.manage("apply_resources", "resource.apply", "/resources", apply(&profile("spare", "python"))).await;
    scribe.manage("remove_profile", "resource.remove", "/profiles/spare", Value::Null).await;
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
    let start = |profile: &str| json!({ "profile_name": profile, "instruction": "How is bread made?" });
    let started = scribe.write("start_turn", &admin, "/turns", start("echo")).await;
    let turn = format!("/turns/{}", text(&started["agent_turn_id"]));
    assert_eq!(house.get(&turn).await["turn"]["started_by"], "key:admin");
    let all = json!({ "starts": [{ "key": "one", "start": start("echo") }] });
    let all = scribe.write("start_turns", &admin, "/turns/batch", all).await;
    let other = house.get(&format!("/turns/{}", text(&all["outcomes"][0]["agent_turn_id"]))).await;
    assert_eq!(other["turn"]["started_by"], "key:admin");
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
    scribe.manage("stop_turn", "turn.stop", &format!("{forked}/stop"), json!({ "reason": "asked twice" })).await;
    scribe.manage("start_forks", "turn.fork", &format!("{turn}/forks"), json!({ "variants": [{}] })).await;
    let publish = json!({ "path": "answers/bread", "title": "How bread is made" });
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

    browses(scribe).await;
    worker_writes(scribe).await;
}

/// A browser logs in with a key and out again: both are on record.
async fn browses(scribe: &mut Scribe<'_>) {
    let (house, url) = (scribe.house, format!("{}/ui/session", scribe.house.base));
    let key = json!({ "key": house.admin }).to_string();
    let entered = house.http.post(&url).header("content-type", "application/json").body(key).send().await.unwrap();
    let cookie = entered.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let shown = house.http.get(&url).header("cookie", &cookie).send().await.unwrap();
    let left = house.http.delete(&url).header("cookie", cookie).header("sec-fetch-site", "same-origin");
    let left = left.send().await.unwrap();
    let entries = house.get("/audit?most=2").await["items"].clone();
    for (n, action) in ["browser.logout", "browser.login"].into_iter().enumerate() {
        assert_eq!((&entries[n]["actor"], &entries[n]["action"]), (&json!("key:admin"), &json!(action)));
    }
    let asked = json!({ "key": "wb_test_ID_SECRET_CHECKSUM" });
    let answers = [("log_in", asked, entered), ("show_login", Value::Null, shown), ("log_out", Value::Null, left)];
    for (name, request, response) in answers {
        let status = response.status().as_u16();
        assert_eq!(status, 200, "{name}");
        let response = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        scribe.note(name, Example { scopes: Vec::new(), path: "/ui/session".to_owned(), request, status, response });
    }
}

/// A worker over HTTP: its key is the author of what it writes.
async fn worker_writes(scribe: &mut Scribe<'_>) {
    let house = scribe.house;
    let worker = house.key("w", Scope::Worker).await;
    for _ in 0..3 {
        house.post("/turns", json!({ "profile_name": "hand", "instruction": "x" })).await;
    }
    let claim = json!({ "worker": "w", "target": "python", "most": 3, "lease_seconds": 60 });
    let claimed = scribe.write("claim_turns", &worker, "/worker/claim", claim).await;
    let [turn, other, asking] = [0, 1, 2].map(|n| claimed["turns"][n].clone());
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
    let fence = &asking["fence"];
    let piece = json!({ "fence": fence, "step_id": id(), "attempt": 1, "text": "Bread is " });
    scribe.write("send_tokens", &worker, &path(&asking, "tokens"), piece).await;
    let composed = scribe.write("compose_turn", &worker, &path(&asking, "compose"), json!({ "fence": fence })).await;
    let response = json!({ "choices": [{ "message": { "content": "done" }, "finish_reason": "stop" }] });
    let [step_id, receipt, seal] = ["step_id", "receipt", "seal"].map(|key| &composed[key]);
    let said = json!({ "fence": fence, "step_id": step_id, "receipt": receipt, "seal": seal, "response": response });
    let taken = scribe.write("answer_turn", &worker, &path(&asking, "answer"), said).await;
    assert_eq!(taken["next"], "ended", "{taken}");
    let shown = house.get(&format!("/turns/{}", text(&asking["agent_turn_id"]))).await;
    assert_eq!(scribe.author(text(&shown["turn"]["deliverable_card_id"])).await, "key:w");
    let claim = json!({ "worker": "w", "target": "python", "lease_seconds": 60, "wait_seconds": 5 });
    let turn = scribe.write("claim_turns", &worker, "/worker/claim", claim).await["turns"][0].clone();
    let back = json!({ "fence": turn["fence"], "error": "the worker is shut down" });
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
    let prices = json!({ "m": { "input": 2.0, "cached": 0.5, "output": 10.0 } });
    let provider = json!({ "name": "p", "adapter": "openai_chat", "base_url": "http://127.0.0.1:1", "prices": prices });
    let models = Models::new(vec![serde_json::from_value(provider).unwrap()], Secrets::default());
    let house = House::open_with(Config { models, ..Config::default() }).await;
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

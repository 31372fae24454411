//! Inside one project every key does only what it is for (SE-1, SE-6, SE-7, SE-9), and no project takes the API from the others (SE-8).

use std::time::{Duration, Instant};

use futures::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use waybill_api::{Config, Limits};
use waybill_core::{
    id::{StepId, TurnId},
    key::{Bounds, Scope},
};
use waybill_kernel::{key, project};

use crate::{House, bulk::Shelf, profile};

fn id() -> String {
    uuid::Uuid::now_v7().to_string()
}

fn targets(names: &[&str]) -> Bounds {
    Bounds { targets: names.iter().map(|name| name.parse().unwrap()).collect(), ..Bounds::default() }
}

/// A turn of `hand`, claimed with this key.
async fn claimed(house: &House, key: &str, worker: &str) -> Value {
    house.post("/turns", json!({ "profile_name": "hand", "instruction": "x" })).await;
    let claim = json!({ "worker": worker, "target": "python", "wait_seconds": 5, "lease_seconds": 60 });
    let answer = house.ask(Method::POST, "/worker/claim", Some(key), Some(claim)).await.1;
    answer["turns"][0].clone()
}

fn ending(fence: &Value) -> Value {
    let card = json!({ "card_id": id(), "type": "task.deliverable", "role": "assistant", "content": "done" });
    json!({ "fence": fence, "status": "success", "cards": [card] })
}

/// SE-6: a claim belongs to its worker: neither another key nor a caller that guesses its token writes, ends, gives back or marks the turn.
#[tokio::test]
async fn a_turn_is_written_by_whoever_claimed_it() {
    let house = House::open().await;
    let (owner, thief) = (house.key("owner", Scope::Worker).await, house.key("thief", Scope::Worker).await);
    let turn = claimed(&house, &owner, "w").await;
    let turn_id = turn["agent_turn_id"].as_str().unwrap();
    assert!(turn["fence"]["claim_token"].as_str().unwrap().parse::<i64>().unwrap() > 1_000, "{turn}");
    let mut guessed = turn["fence"].clone();
    guessed["claim_token"] = json!("1");
    for fence in [&turn["fence"], &guessed] {
        for (what, body) in [
            ("finish", ending(fence)),
            ("steps", json!({ "fence": fence, "step_id": StepId::new(), "saw_external": true })),
        ] {
            let refused =
                house.refused(Method::POST, &format!("/turns/{turn_id}/{what}"), Some(&thief), Some(body)).await;
            assert_eq!(refused, (409, "stale".to_owned()), "{what} {fence}");
        }
        let back = json!({ "fence": fence, "error": "x" });
        let (_, answer) =
            house.ask(Method::POST, &format!("/turns/{turn_id}/give-back"), Some(&thief), Some(back)).await;
        assert!(answer["code"] == "stale" || answer["outcome"] == "stale", "{answer}");
    }
    // Under the same name another key is another worker.
    let beat = json!({ "worker": "w" });
    assert_eq!(
        house.refused(Method::POST, "/worker/heartbeat", Some(&thief), Some(beat.clone())).await.1,
        "lease_lost"
    );
    house.ask(Method::POST, "/worker/leave", Some(&thief), Some(beat.clone())).await;
    let held = house.ask(Method::POST, "/worker/heartbeat", Some(&owner), Some(beat)).await.1;
    assert_eq!(held["turns"][0]["agent_turn_id"], turn_id);
    assert_eq!(house.t.count("select count(*) from cardbox.boxes where has_external").await, 0, "it is not marked");
    // A writer cannot choose its author, nor write for users or the system.
    let card = |role: &str| json!({ "card_id": id(), "type": "agent.thought", "role": role, "content": "x" });
    let step = |card: Value| json!({ "fence": turn["fence"], "step_id": StepId::new(), "cards": [card] });
    for role in ["user", "system"] {
        let said = Some(step(card(role)));
        let refused = house.refused(Method::POST, &format!("/turns/{turn_id}/steps"), Some(&owner), said).await;
        assert_eq!(refused, (400, "invalid".to_owned()));
    }
    let mut signed = card("assistant");
    signed["author_id"] = json!("ceo");
    let refused =
        house.refused(Method::POST, &format!("/turns/{turn_id}/steps"), Some(&owner), Some(step(signed))).await;
    assert_eq!(refused, (400, "invalid".to_owned()));
    let finish = format!("/turns/{turn_id}/finish");
    assert_eq!(house.ask(Method::POST, &finish, Some(&owner), Some(ending(&turn["fence"]))).await.0, 200);
    let delivered = house.get(&format!("/turns/{turn_id}")).await["turn"]["deliverable_card_id"].clone();
    let card = house.get(&format!("/cards/{}", delivered.as_str().unwrap())).await;
    assert_eq!(card["metadata"]["author_id"], "key:owner", "{card}");
}

/// SE-7: a key claims from the targets that it names, and no key claims from the orchestrator.
#[tokio::test]
async fn a_key_claims_from_its_own_targets() {
    let house = House::open().await;
    house.allow("add", "sums").await;
    let tool = house.key_for("t", Scope::Tool, targets(&["other"])).await;
    let worker = house.key_for("w", Scope::Worker, targets(&["other"])).await;
    let claim = |target: &str| Some(json!({ "worker": "x", "target": target }));
    for (key, path) in [(&tool, "/calls/claim"), (&worker, "/calls/claim"), (&worker, "/worker/claim")] {
        for target in ["sums", "python", "pmo", "tools"] {
            let refused = house.refused(Method::POST, path, Some(key), claim(target)).await;
            assert_eq!(refused, (403, "forbidden".to_owned()), "{path} {target}");
        }
        assert_eq!(house.ask(Method::POST, path, Some(key), claim("other")).await.0, 200);
    }
    for path in ["/calls/claim", "/worker/claim"] {
        assert_eq!(house.refused(Method::POST, path, Some(&house.admin), claim("pmo")).await.0, 403);
    }
    // A key that runs turns or answers calls must name its targets; no key is for the orchestrator.
    for (scope, bounds) in [
        ("worker", json!({})),
        ("tool", json!({})),
        ("developer", json!({})),
        ("worker", json!({ "targets": ["pmo"] })),
    ] {
        let body = json!({ "name": "k", "scope": scope, "bounds": bounds });
        assert_eq!(
            house.refused(Method::POST, "/keys", Some(&house.admin), Some(body)).await,
            (400, "invalid".to_owned())
        );
    }
    let body =
        json!({ "name": "k", "scope": "tool", "bounds": { "targets": ["sums"], "paths": ["sums"], "external": true } });
    let made = house.post("/keys", body).await;
    assert_eq!(made["bounds"], json!({ "targets": ["sums"], "paths": ["sums"], "external": true }));
    assert_eq!(house.get("/audit").await["items"][0]["detail"]["bounds"], made["bounds"]);
}

/// SE-7, SE-5: a tool uses only the artifacts below its paths, and what it stores counts as content from outside, whatever it says.
#[tokio::test]
async fn a_tool_touches_its_own_artifacts() {
    let shelf = Shelf::open().await;
    let house = &shelf.house;
    let bounds = Bounds { paths: vec!["results/sums".parse().unwrap()], ..targets(&["sums"]) };
    let (tool, bare) = (house.key_for("t", Scope::Tool, bounds).await, house.key("bare", Scope::Tool).await);
    let put = async |key: &str, path: &str, more: &str| {
        let url = format!("{}/v1/projects/acme/artifacts?path={path}{more}", house.base);
        let response = house.http.put(url).bearer_auth(key).body("same").send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    assert_eq!(put(&house.admin, "contracts/payroll.txt", "").await.0, 200);
    for (key, path) in [(&tool, "contracts/payroll.txt"), (&tool, "results/sums2/x"), (&bare, "results/x")] {
        assert_eq!(put(key, path, "").await.0, 403, "{path}");
        let read = format!("/artifacts/content?path={path}");
        assert_eq!(house.refused(Method::GET, &read, Some(key), None).await.0, 403, "{path}");
    }
    let (status, stored) = put(&tool, "results/sums/1.txt", "&external=false").await;
    assert_eq!((status, &stored["is_external"], &stored["author_id"]), (200, &json!(true), &json!("key:t")));
    // A label can be added later; storing the same content again does not remove it.
    let plain = put(&house.admin, "mail/1.txt", "").await.1;
    assert_eq!((&plain["version"], &plain["is_external"]), (&json!(1), &json!(false)));
    let labelled = put(&house.admin, "mail/1.txt", "&external=true").await.1;
    assert_eq!((&labelled["version"], &labelled["is_external"]), (&json!(2), &json!(true)));
    let again = put(&house.admin, "mail/1.txt", "").await.1;
    assert_eq!((&again["version"], &again["is_external"]), (&json!(2), &json!(true)));
    // Listing is bound too.
    let bounds = Bounds { paths: vec!["mail".parse().unwrap()], ..Bounds::default() };
    let reader = house.key_for("r", Scope::Reader, bounds).await;
    assert_eq!(house.refused(Method::GET, "/artifacts", Some(&reader), None).await.0, 403);
    assert_eq!(house.refused(Method::GET, "/artifacts?prefix=mai", Some(&reader), None).await.0, 403);
    let listed = house.ask(Method::GET, "/artifacts?prefix=mail/", Some(&reader), None).await.1;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
}

/// SE-5: what starts a turn may have come from outside, because the caller says so or because its key is for that.
#[tokio::test]
async fn a_start_may_come_from_outside() {
    let house = House::open().await;
    let bounds = Bounds { external: true, profiles: vec!["echo".parse().unwrap()], ..Bounds::default() };
    let mail = house.key_for("mail", Scope::Operator, bounds).await;
    let start = |profile: &str, external: bool| {
        Some(json!({ "profile_name": profile, "instruction": "x", "external": external, "on_behalf_of": "ada@corp" }))
    };
    for (key, external, wanted) in
        [(&house.admin, true, "external"), (&house.admin, false, "user"), (&mail, false, "external")]
    {
        let (status, started) = house.ask(Method::POST, "/turns", Some(key), start("echo", external)).await;
        assert_eq!(status, 200, "{started}");
        let turn = house.get(&format!("/turns/{}", started["agent_turn_id"].as_str().unwrap())).await["turn"].clone();
        let card = house.get(&format!("/cards/{}", turn["query_card_ids"][0].as_str().unwrap())).await;
        assert_eq!(card["origin"], wanted, "{card}");
        assert_eq!(turn["on_behalf_of"], "ada@corp");
        assert_eq!(turn["started_by"], if key == &mail { "key:mail" } else { "key:admin" });
    }
    assert_eq!(
        house.refused(Method::POST, "/turns", Some(&mail), start("hand", false)).await,
        (403, "forbidden".to_owned())
    );
    let body = Some(json!({ "profile_name": "hand" }));
    assert_eq!(house.refused(Method::POST, "/agents", Some(&mail), body).await, (403, "forbidden".to_owned()));
}

/// WK-6: a start may narrow what the profile allows; to widen it needs an admin.
#[tokio::test]
async fn a_start_does_not_widen_a_limit() {
    let house = House::open().await;
    let mut tight = profile("tight", "llm");
    tight["profile"]["limits"] = json!({ "steps": 5, "microdollars": 10 });
    house.post("/resources", json!({ "manifests": [tight] })).await;
    let operator = house.key("op", Scope::Operator).await;
    let start = json!({ "profile_name": "tight", "instruction": "x", "limits": { "steps": 50, "tokens": 7 } });
    for (key, steps, microdollars) in [(&operator, 5, 10), (&house.admin, 50, 0)] {
        let started = house.ask(Method::POST, "/turns", Some(key), Some(start.clone())).await.1;
        let sql = format!(
            "select coalesce(steps_left, 0) * 1000000 + coalesce(tokens_left, 0) * 1000 + coalesce(microdollars_left, 0)
               from state.budgets where agent_turn_id = '{}'",
            started["agent_turn_id"].as_str().unwrap()
        );
        assert_eq!(house.t.count(sql.leak()).await, steps * 1_000_000 + 7_000 + microdollars);
    }
}

/// SE-1: every key can find out whose it is and what it may do; without a key there is no answer.
#[tokio::test]
async fn a_key_knows_what_it_is() {
    let house = House::open().await;
    let created = json!({ "name": "short", "scope": "reader", "expires_in_seconds": 60 });
    let created = house.post("/keys", created).await;
    let (status, me) = house.ask(Method::GET, "/v1/me", created["key"].as_str(), None).await;
    assert_eq!((status.as_u16(), &me["actor"], &me["scope"]), (200, &json!("key:short"), &json!("reader")), "{me}");
    assert_eq!((&me["project"]["slug"], &me["expires_at"]), (&json!("acme"), &created["expires_at"]));
    let tool = house.key("t", Scope::Tool).await;
    let me = house.ask(Method::GET, "/v1/me", Some(&tool), None).await.1;
    assert_eq!((&me["bounds"]["targets"][0], &me["expires_at"]), (&json!("llm"), &Value::Null), "{me}");
    assert_eq!(house.refused(Method::GET, "/v1/me", None, None).await, (401, "unauthorized".to_owned()));
    let open = House::open_with(crate::open_house()).await;
    assert_eq!(open.refused(Method::GET, "/v1/me", None, None).await.0, 401, "without a key there is no project");
}

/// SE-1: an approver does nothing but decide, an auditor reads no content, a developer applies only what is its own.
#[tokio::test]
async fn narrow_scopes_are_narrow() {
    let house = House::open().await;
    let started = house.post("/turns", json!({ "profile_name": "echo", "instruction": "secret words" })).await;
    let turn_id = started["agent_turn_id"].as_str().unwrap();
    let turn = house.get(&format!("/turns/{turn_id}")).await["turn"].clone();
    let (approver, auditor) = (house.key("ap", Scope::Approver).await, house.key("au", Scope::Auditor).await);
    for path in [
        "/requests",
        "/turns",
        "/turns/{turn}/tree",
        "/audit",
        "/keys",
        "/agents",
        "/resources",
        "/cards/{card}",
        "/turns/{turn}",
    ] {
        let path = path.replace("{turn}", turn_id).replace("{card}", turn["query_card_ids"][0].as_str().unwrap());
        let may = |key: String| {
            let (house, path) = (&house, path.clone());
            async move { house.ask(Method::GET, &path, Some(&key), None).await }
        };
        let (decides, audits) = (may(approver.clone()).await, may(auditor.clone()).await);
        assert_eq!(decides.0 == 200, path == "/requests", "{path} {}", decides.1);
        let is_content = path.contains("/cards/") || path == format!("/turns/{turn_id}") || path == "/requests";
        assert_eq!(audits.0 == 200, !is_content, "{path} {}", audits.1);
        assert!(!audits.1.to_string().contains("secret words"), "{path}");
    }
    let developer = house.key_for("dev", Scope::Developer, targets(&["web"])).await;
    let tool = |name: &str, target: &str| json!({ "tool": { "name": name, "description": "d", "target": target } });
    house.post("/resources", json!({ "manifests": [tool("theirs", "ledger")] })).await;
    let apply = async |manifest: Value| {
        house
            .ask(Method::POST, "/resources", Some(&developer), Some(json!({ "manifests": [manifest] })))
            .await
            .0
            .as_u16()
    };
    assert_eq!(apply(tool("mine", "web")).await, 200);
    assert_eq!(apply(profile("mine", "web")).await, 200);
    assert_eq!(apply(profile("mine", "llm")).await, 403, "another's workers");
    let mut trusted = tool("mine", "web");
    trusted["tool"]["trusted"] = json!(true);
    assert_eq!(apply(trusted).await, 403, "only an admin declares a tool trusted");
    let mut gated = tool("mine", "web");
    gated["tool"]["approval"] = json!("always");
    house.post("/resources", json!({ "manifests": [gated] })).await;
    assert_eq!(apply(tool("mine", "web")).await, 403, "only an admin takes an approval away");
    assert_eq!(apply(tool("other", "ledger")).await, 403, "another's target");
    assert_eq!(apply(tool("theirs", "web")).await, 403, "another's tool");
    assert_eq!(apply(json!({ "settings": {} })).await, 403);
}

/// Makes a call that waits for a decision, which the caller that had its turn started may not make. Returns where to decide, and the key of that
/// caller.
pub(crate) async fn waits_for_four_eyes(house: &House) -> (String, String) {
    let tool = json!({ "tool": { "name": "pay", "description": "d", "target": "sums", "approval": "always", "four_eyes": true } });
    let mut hand = profile("hand", "python");
    hand["profile"]["allowed_tools"] = json!(["pay"]);
    house.post("/resources", json!({ "manifests": [tool, hand] })).await;
    let (one, worker) = (house.key("one", Scope::Operator).await, house.key("w", Scope::Worker).await);
    let start = json!({ "profile_name": "hand", "instruction": "x", "on_behalf_of": "ada" });
    house.ask(Method::POST, "/turns", Some(&one), Some(start)).await;
    let claim = json!({ "worker": "w", "target": "python", "wait_seconds": 5, "lease_seconds": 60 });
    let turn = house.ask(Method::POST, "/worker/claim", Some(&worker), Some(claim)).await.1["turns"][0].clone();
    let (call_id, card_id) = (id(), id());
    let step = json!({
        "fence": turn["fence"], "step_id": StepId::new(), "suspend": true,
        "cards": [{ "card_id": card_id, "type": "tool.call", "role": "assistant", "tool_call_id": call_id,
                    "content": { "tool_name": "pay", "arguments": "{}" } }],
        "calls": [{ "tool_call_id": call_id, "tool_call_card_id": card_id, "target": "sums", "timeout_seconds": 60 }],
    });
    let steps = format!("/turns/{}/steps", turn["agent_turn_id"].as_str().unwrap());
    assert_eq!(house.ask(Method::POST, &steps, Some(&worker), Some(step)).await.0, 200);
    let claim = json!({ "worker": "w", "target": "sums", "lease_seconds": 60 });
    house.ask(Method::POST, "/calls/claim", Some(&worker), Some(claim)).await;
    (format!("/requests/{call_id}"), one)
}

/// HO-7: if a tool asks for four eyes, the caller that had the turn started does not decide.
#[tokio::test]
async fn who_started_does_not_decide() {
    let house = House::open().await;
    let (decide, one) = waits_for_four_eyes(&house).await;
    let (other, worker) = (house.key("other", Scope::Approver).await, house.key("w", Scope::Worker).await);
    let yes = Some(json!({ "decision": "approved" }));
    assert_eq!(house.refused(Method::POST, &decide, Some(&one), yes.clone()).await, (403, "forbidden".to_owned()));
    assert_eq!(house.ask(Method::POST, &decide, Some(&other), yes).await.0, 200);
    let claim = json!({ "worker": "w", "target": "sums", "lease_seconds": 60 });
    let calls = house.ask(Method::POST, "/calls/claim", Some(&worker), Some(claim)).await.1;
    assert_eq!(calls["calls"][0]["on_behalf_of"], "ada", "the worker that answers sees for whom it is");
}

/// C6 of the review: a schema that takes hours to check is refused quickly when it is applied.
#[tokio::test]
async fn a_schema_that_takes_hours_is_refused() {
    let house = House::open().await;
    let mut parts = serde_json::Map::from_iter([("p40".to_owned(), json!({ "type": "object" }))]);
    for n in 0..40 {
        let next = json!({ "$ref": format!("#/$defs/p{}", n + 1) });
        parts.insert(format!("p{n}"), json!({ "allOf": [next, next] }));
    }
    let parameters = json!({ "type": "object", "$defs": parts, "$ref": "#/$defs/p0" });
    let tool = json!({ "tool": { "name": "bomb", "description": "d", "target": "sums", "parameters": parameters } });
    let begun = Instant::now();
    let body = Some(json!({ "manifests": [tool] }));
    assert_eq!(house.refused(Method::POST, "/resources", Some(&house.admin), body).await.0, 400);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// C7 of the review: an answer has a limited number of bytes, whatever it holds.
#[tokio::test]
async fn a_page_has_so_many_bytes() {
    let house = House::open().await;
    let worker = house.key("w", Scope::Worker).await;
    let turn = claimed(&house, &worker, "w").await;
    let mut cards = Vec::new();
    for _ in 0..4 {
        let card_id = id();
        let card = json!({ "card_id": card_id, "type": "agent.thought", "role": "assistant", "content": "x ".repeat(900_000) });
        let step = json!({ "fence": turn["fence"], "step_id": StepId::new(), "cards": [card] });
        let steps = format!("/turns/{}/steps", turn["agent_turn_id"].as_str().unwrap());
        assert_eq!(house.ask(Method::POST, &steps, Some(&worker), Some(step)).await.0, 200);
        cards.push(card_id);
    }
    let batch = house.post("/cards/batch", json!({ "card_ids": cards })).await;
    assert_eq!((batch["found"].as_array().unwrap().len(), &batch["left_card_ids"]), (2, &json!(cards[2..])));
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = house.get(&format!("/boxes/{}/cards{after}", turn["output_box_id"].as_str().unwrap())).await;
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        seen.extend(items.iter().map(|item| item["reading"]["card_id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("?after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, cards);
}

/// C9 of the review: a key that was revoked gets no more events, and its long poll ends.
#[tokio::test]
async fn a_revoked_key_is_let_go() {
    let house = House::open().await;
    let reader = house.key("r", Scope::Reader).await;
    let worker = house.key("w", Scope::Worker).await;
    let started = house.post("/turns", json!({ "profile_name": "hand", "instruction": "x" })).await;
    let url = format!("{}/v1/projects/acme/turns/{}/events", house.base, started["agent_turn_id"].as_str().unwrap());
    let response = house.http.get(url).bearer_auth(&reader).send().await.unwrap();
    let mut events = response.bytes_stream();
    assert!(events.next().await.is_some(), "it hears what there was");
    let claim = json!({ "worker": "w", "target": "none", "wait_seconds": 30 });
    let waits = house.ask(Method::POST, "/worker/claim", Some(&worker), Some(claim));
    let revoked = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        for key in house.get("/keys").await["items"].as_array().unwrap() {
            if key["name"] != "admin" {
                let path = format!("/keys/{}", key["key_id"].as_str().unwrap());
                house.ask(Method::DELETE, &path, Some(&house.admin), None).await;
            }
        }
        Instant::now()
    };
    let (waited, at) = tokio::join!(waits, revoked);
    assert_eq!(waited.0, 401, "{}", waited.1);
    assert!(at.elapsed() < Duration::from_secs(5), "{:?}", at.elapsed());
    let ended = async { while events.next().await.is_some() {} };
    tokio::time::timeout(Duration::from_secs(6), ended).await.expect("the stream ends");
}

/// C5 of the review: one project that waits, watches and uploads all it can leaves room for another.
#[tokio::test]
async fn nobody_takes_the_api_from_the_others() {
    let limits = Limits {
        most_polls: 20,
        most_uploads: 4,
        most_at_once: 200,
        per_second: 1e9,
        head_timeout: Duration::from_secs(1),
        body_timeout: Duration::from_secs(4),
        ..Limits::default()
    };
    let config = Config { limits, ..Config::default() };
    let shelf = Shelf::open_with(config).await;
    let house = &shelf.house;
    let tool =
        house.key_for("t", Scope::Tool, Bounds { paths: vec!["t".parse().unwrap()], ..targets(&["sums"]) }).await;
    let other = waybill_core::id::ProjectId::new();
    let mut work = house.kernel.begin(other).await.unwrap();
    project::create(&mut work, "victim").await.unwrap();
    let victim = waybill_core::key::ApiKey::mint("test");
    let bounds = targets(&["sums"]);
    key::create(&mut work, &victim, &"v".parse().unwrap(), Scope::Admin, &bounds, None).await.unwrap();
    work.commit().await.unwrap();

    // Long polls: some get no place, the victim does.
    let claim = |n: usize| json!({ "worker": n.to_string(), "target": "sums", "wait_seconds": 3 });
    let polls = futures::future::join_all(
        (0..40).map(|n| house.ask(Method::POST, "/calls/claim", Some(&tool), Some(claim(n)))),
    );
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let path = "/v1/projects/victim/calls/claim";
        let wait = json!({ "worker": "v", "target": "sums", "wait_seconds": 0.2 });
        let waited = house.ask(Method::POST, path, Some(victim.expose()), Some(wait)).await;
        assert_eq!(waited.0, 200, "{}", waited.1);
        assert_eq!(house.ask(Method::GET, "/v1/projects/victim/turns", Some(victim.expose()), None).await.0, 200);
    };
    let (polled, ()) = tokio::join!(polls, meanwhile);
    let refused = polled.iter().filter(|(status, _)| *status == 503).count();
    assert!((20..40).contains(&refused), "{refused}");

    // Uploads that stop after a byte: the victim's goes through, and in time the others are dropped.
    let address = house.base.trim_start_matches("http://").to_owned();
    let mut idle = Vec::new();
    for n in 0..4 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let head = format!(
            "PUT /v1/projects/acme/artifacts?path=t/{n} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {tool}\r\ncontent-length: 100\r\n\r\nx"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        idle.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let url = format!("{}/v1/projects/victim/artifacts?path=v", house.base);
    let put = house.http.put(url).bearer_auth(victim.expose()).body("mine").send();
    let put = tokio::time::timeout(Duration::from_secs(2), put).await.expect("it is not held up").unwrap();
    assert_eq!(put.status(), 200);
    for mut stream in idle {
        let mut answer = Vec::new();
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await.expect("let go").unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 "), "{}", String::from_utf8_lossy(&answer));
    }

    // Half a head, and a head without its body.
    let mut half = TcpStream::connect(&address).await.unwrap();
    half.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nx-half").await.unwrap();
    let mut bodiless = TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "POST /v1/projects/acme/calls/claim HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {tool}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    );
    bodiless.write_all(head.as_bytes()).await.unwrap();
    for (mut stream, said) in [(half, ""), (bodiless, "408")] {
        let mut answer = Vec::new();
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await.expect("let go").unwrap();
        assert!(String::from_utf8_lossy(&answer).contains(said), "{}", String::from_utf8_lossy(&answer));
    }
}

/// SE-9: the audit says who did what, and as which database role; and a turn says who had it started.
#[tokio::test]
async fn the_record_says_who() {
    let house = House::open().await;
    house.post("/agents", json!({ "profile_name": "echo" })).await;
    let entry = house.get("/audit").await["items"][0].clone();
    assert_eq!((&entry["actor"], &entry["address"]), (&json!("key:admin"), &json!("127.0.0.1")));
    assert_eq!(entry["db_role"], "waybill_service", "{entry}");
    let started = house.post("/turns", json!({ "profile_name": "echo", "instruction": "x" })).await;
    let turn: TurnId = started["agent_turn_id"].as_str().unwrap().parse().unwrap();
    assert_eq!(house.get(&format!("/turns/{turn}")).await["turn"]["started_by"], "key:admin");
}

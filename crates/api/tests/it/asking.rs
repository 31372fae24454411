//! Who may call the API, which answers they get, and that a write is done once.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use waybill_api::Limits;
use waybill_core::{
    id::TurnId,
    key::{Bounds, Scope},
};
use waybill_kernel::{key, project};

use crate::{House, narrow, open_house};

/// SE-1
#[tokio::test]
async fn nothing_is_told_without_a_key_that_works() {
    let house = House::open().await;
    let unauthorized = (401, "unauthorized".to_owned());
    assert_eq!(house.refused(Method::GET, "/turns", None, None).await, unauthorized);
    for wrong in ["", "abc", "wb_test_1_2_3", &house.admin[..house.admin.len() - 1], &format!("{}0", house.admin)] {
        assert_eq!(house.refused(Method::GET, "/turns", Some(wrong), None).await, unauthorized, "{wrong}");
    }
    house.get("/turns").await;
    let made = house.post("/keys", json!({ "name": "late", "scope": "reader", "expires_in_seconds": 1 })).await;
    let late = made["key"].as_str().unwrap();
    assert_eq!(house.ask(Method::GET, "/turns", Some(late), None).await.0, 200);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(house.refused(Method::GET, "/turns", Some(late), None).await, unauthorized);

    let made = house.post("/keys", json!({ "name": "gone", "scope": "admin" })).await;
    let (key_id, gone) = (made["key_id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert_eq!(house.ask(Method::DELETE, &format!("/keys/{key_id}"), Some(gone), None).await.0, 200);
    assert_eq!(house.refused(Method::GET, "/turns", Some(gone), None).await, unauthorized);

    // The key itself is not stored: only its hash, which no caller sees.
    let sql = format!(
        "select count(*) from resource.api_keys k where k::text like '%{}%'",
        house.admin.split('_').nth(3).unwrap()
    );
    assert_eq!(house.t.count(sql.leak()).await, 0);
    assert!(!house.get("/keys").await.to_string().contains("hash"));
}

/// SE-1: scopes.
#[tokio::test]
async fn a_key_may_do_what_its_scope_says() {
    let house = House::open().await;
    let claim = json!({ "worker": "w", "target": "none" });
    let record: &[Scope] =
        &[Scope::Admin, Scope::Operator, Scope::Worker, Scope::Reader, Scope::Developer, Scope::Auditor];
    let asked: [(Method, &str, Option<Value>, &[Scope]); 12] = [
        (Method::GET, "/turns", None, record),
        (Method::GET, "/resources", None, record),
        (Method::GET, "/keys", None, &[Scope::Admin, Scope::Auditor]),
        (Method::GET, "/audit", None, &[Scope::Admin, Scope::Auditor]),
        (Method::GET, "/retention", None, &[Scope::Admin, Scope::Auditor]),
        (Method::GET, "/retention/plan?content_months=6", None, &[Scope::Admin, Scope::Auditor]),
        (Method::PUT, "/retention", Some(json!({ "content_months": 6, "record_months": 36 })), &[Scope::Admin]),
        (Method::POST, "/resources", Some(json!({ "manifests": [] })), &[Scope::Admin, Scope::Developer]),
        (
            Method::POST,
            "/turns",
            Some(json!({ "profile_name": "echo", "instruction": "x" })),
            &[Scope::Admin, Scope::Operator],
        ),
        (Method::POST, "/agents", Some(json!({ "profile_name": "echo" })), &[Scope::Admin, Scope::Operator]),
        (Method::POST, "/worker/claim", Some(claim.clone()), &[Scope::Admin, Scope::Worker]),
        (Method::POST, "/calls/claim", Some(claim), &[Scope::Admin, Scope::Worker, Scope::Tool]),
    ];
    for scope in Scope::ALL {
        let key = house.key(scope.as_str(), scope).await;
        for (method, path, body, may) in &asked {
            let (status, answer) = house.ask(method.clone(), path, Some(&key), body.clone()).await;
            let wanted = if may.contains(&scope) { StatusCode::OK } else { StatusCode::FORBIDDEN };
            assert_eq!(status, wanted, "{scope:?} {method} {path}: {answer}");
        }
    }
}

/// SE-1: two keys of a name at a time, so that one can replace the other; and it is on record.
#[tokio::test]
async fn a_key_can_be_changed_for_another() {
    let house = House::open().await;
    let first = house.post("/keys", json!({ "name": "ci", "scope": "reader" })).await;
    let second = house.post("/keys", json!({ "name": "ci", "scope": "reader" })).await;
    let third = json!({ "name": "ci", "scope": "reader" });
    let refused = house.refused(Method::POST, "/keys", Some(&house.admin), Some(third.clone())).await;
    assert_eq!(refused, (409, "enough_keys".to_owned()));
    let path = format!("/keys/{}?after_seconds=60", first["key_id"].as_str().unwrap());
    let ends = house.ask(Method::DELETE, &path, Some(&house.admin), None).await.1;
    assert_eq!(ends["revoked_at"], Value::Null);
    for key in [&first, &second] {
        assert_eq!(house.ask(Method::GET, "/turns", key["key"].as_str(), None).await.0, 200);
    }
    let path = format!("/keys/{}", first["key_id"].as_str().unwrap());
    house.ask(Method::DELETE, &path, Some(&house.admin), None).await;
    assert_eq!(house.refused(Method::DELETE, &path, Some(&house.admin), None).await, (404, "not_found".to_owned()));
    house.post("/keys", third).await;
    let audit = house.get("/audit").await;
    let done: Vec<&str> =
        audit["items"].as_array().unwrap().iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(done, ["key.create", "key.revoke", "key.revoke", "key.create", "key.create"]);
    assert!(audit["items"].as_array().unwrap().iter().all(|entry| entry["actor"] == "key:admin"));
}

/// Without a key: only on this machine, if the configuration allows that, and not on behalf of a page in a browser.
#[tokio::test]
async fn a_house_that_is_open_is_open_to_this_machine_alone() {
    let house = House::open_with(open_house()).await;
    assert_eq!(house.ask(Method::GET, "/turns", None, None).await.0, 200);
    assert_eq!(house.refused(Method::GET, "/v1/projects/nobody/turns", None, None).await.0, 404);
    let elsewhere = format!("/v1/projects/{}/turns", waybill_core::id::ProjectId::new());
    assert_eq!(house.refused(Method::GET, &elsewhere, None, None).await.0, 404);
    for (name, value) in
        [("origin", "https://evil.example"), ("host", "evil.example"), ("host", "127.0.0.1.evil.example:80")]
    {
        let request = house.http.get(format!("{}/v1/projects/acme/turns", house.base)).header(name, value);
        assert_eq!(request.send().await.unwrap().status(), 401, "{name}: {value}");
    }
    // A key that does not work is refused, although no key would do.
    assert_eq!(house.refused(Method::GET, "/turns", Some("wb_x"), None).await.0, 401);
}

/// CB-4: a request that is sent again gets the same answer; another request needs another idempotency key.
#[tokio::test]
async fn a_write_with_a_key_of_the_callers_own_is_done_once() {
    let house = House::open().await;
    let start = |text: &str| Some(json!({ "profile_name": "echo", "instruction": text }));
    let ask = |text: &str, once: &str| {
        let (house, start, once) = (&house, start(text), once.to_owned());
        async move { house.ask_once(Method::POST, "/turns", Some(&house.admin), start, Some(&once)).await }
    };
    let (first, again) = tokio::join!(ask("one", "k1"), ask("one", "k1"));
    assert_eq!(first, again);
    assert_eq!(first.0, 200);
    assert_eq!(house.t.count("select count(*) from state.turns").await, 1);
    let (status, answer) = ask("two", "k1").await;
    assert_eq!((status.as_u16(), &answer["code"]), (409, &json!("idempotency_mismatch")));
    assert_ne!(ask("two", "k2").await.1, first.1);
    // A request that was refused has not used up its idempotency key.
    let refused = house
        .ask_once(
            Method::POST,
            "/turns",
            Some(&house.admin),
            Some(json!({ "profile_name": "nobody", "instruction": "x" })),
            Some("k3"),
        )
        .await;
    assert_eq!(refused.0, 404);
    assert_eq!(ask("three", "k3").await.0, 200);
    let kept = house
        .ask_once(
            Method::POST,
            "/keys",
            Some(&house.admin),
            Some(json!({ "name": "x", "scope": "reader" })),
            Some("k4"),
        )
        .await;
    assert_eq!(kept.0, 400);
    assert_eq!(house.t.count("select count(*) from resource.api_keys where name = 'x'").await, 0);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_in_one_shape() {
    let house = House::open_with(narrow(Limits { most_bytes: 2_000, ..Limits::default() })).await;
    let admin = Some(house.admin.as_str());
    let start = |body: Value| (Method::POST, "/turns", Some(body));
    for ((method, path, body), wanted) in [
        (start(json!({})), (400, "invalid")),
        (start(json!({ "profile_name": "Echo!", "instruction": "x" })), (400, "invalid")),
        (start(json!({ "profile_name": "echo", "instruction": "x", "colour": "red" })), (400, "invalid")),
        (start(json!({ "profile_name": "nobody", "instruction": "x" })), (404, "not_found")),
        (start(json!({ "profile_name": "echo", "instruction": "x".repeat(3_000) })), (413, "too_large")),
        (start(json!({ "profile_name": "echo", "instruction": "x", "agent_id": TurnId::new() })), (404, "not_found")),
        ((Method::GET, "/turns/abc", None), (404, "not_found")),
        (start(json!({ "profile_name": "echo", "instruction": "" })), (400, "invalid")),
        (
            start(
                json!({ "profile_name": "echo", "instruction": "x", "limits": { "steps": u32::MAX, "seconds": u32::MAX } }),
            ),
            (400, "invalid"),
        ),
        ((Method::GET, "/turns?most=x", None), (400, "invalid")),
        ((Method::GET, "/turns?most=0", None), (400, "invalid")),
        ((Method::GET, "/turns?most=1001", None), (400, "invalid")),
        ((Method::GET, "/turns/00000000-0000-7000-8000-000000000000/tree?most=10001", None), (400, "invalid")),
        ((Method::GET, "/nowhere", None), (404, "not_found")),
        ((Method::PUT, "/turns", None), (405, "method_not_allowed")),
        ((Method::GET, "/v1/nowhere", None), (404, "not_found")),
    ] {
        let refused = house.refused(method.clone(), path, admin, body.clone()).await;
        assert_eq!(refused, (wanted.0, wanted.1.to_owned()), "{method} {path} {body:?}");
    }
    let request =
        house.http.post(format!("{}/v1/projects/acme/turns", house.base)).bearer_auth(&house.admin).body("{}");
    assert_eq!(request.send().await.unwrap().status(), 415);
}

#[tokio::test]
async fn a_key_that_asks_too_often_is_told_when_to_come_back() {
    let house = House::open_with(narrow(Limits { per_second: 2.0, ..Limits::default() })).await;
    for _ in 0..4 {
        house.get("/turns").await;
    }
    let request = house.http.get(format!("{}/v1/projects/acme/turns", house.base)).bearer_auth(&house.admin);
    let response = request.send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    // Another key has its own share.
    let other = house.key("other", Scope::Reader).await;
    assert_eq!(house.ask(Method::GET, "/turns", Some(&other), None).await.0, 200);
    tokio::time::sleep(Duration::from_millis(600)).await;
    house.get("/turns").await;
}

#[tokio::test]
async fn lists_come_in_pages() {
    let house = House::open().await;
    for n in 0..5 {
        house.post("/turns", json!({ "profile_name": "echo", "instruction": n.to_string() })).await;
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = house.get(&format!("/turns?most=2{after}")).await;
        seen.extend(
            page["items"].as_array().unwrap().iter().map(|turn| turn["agent_turn_id"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.windows(2).all(|pair| pair[0] > pair[1]), "newest first: {seen:?}");
    let box_id = house.get(&format!("/turns/{}", seen[0])).await["turn"]["context_box_id"].as_str().unwrap().to_owned();
    let cards = house.get(&format!("/boxes/{box_id}/cards?most=1")).await;
    assert_eq!(cards["items"][0]["reading"]["content"], "4");
    assert_eq!(cards["next"], Value::Null);
}

/// SE-2: an id of another project gets the same answer as one that never existed.
#[tokio::test]
async fn what_is_another_projects_is_not_there() {
    let house = House::open().await;
    let started = house.post("/turns", json!({ "profile_name": "echo", "instruction": "x" })).await;
    let other = waybill_core::id::ProjectId::new();
    let mut work = house.kernel.begin(other).await.unwrap();
    project::create(&mut work, "other").await.unwrap();
    let key = waybill_core::key::ApiKey::mint("test");
    key::create(&mut work, &key, &"k".parse().unwrap(), Scope::Admin, &Bounds::default(), None).await.unwrap();
    work.commit().await.unwrap();
    let turn_id = started["agent_turn_id"].as_str().unwrap();
    let never = TurnId::new().to_string();
    for path in ["/v1/projects/other/turns/{}", "/v1/projects/acme/turns/{}", "/v1/projects/other/turns/{}/events"] {
        let ask = async |id: &str| house.ask(Method::GET, &path.replace("{}", id), Some(key.expose()), None).await;
        let ((status, foreign), (_, missing)) = (ask(turn_id).await, ask(&never).await);
        assert_eq!(status, 404, "{path}");
        assert_eq!(foreign.to_string().replace(turn_id, "…"), missing.to_string().replace(&never, "…"), "{path}");
    }
}

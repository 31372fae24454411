//! Tools that the key of their own service registers, and profiles that are removed.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use waybill_core::key::{Bounds, Scope};

use crate::{House, profile};

fn tool(name: &str, target: &str, more: Value) -> Value {
    let mut tool = json!({ "name": name, "description": "Adds.", "target": target, "effect": "pure" });
    tool.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    tool
}

/// SE-7, PM-1: a key registers tools of its own targets, and nothing else.
#[tokio::test]
async fn a_tool_is_registered_by_the_key_that_answers_its_calls() {
    let house = House::open().await;
    let bound = |target: &str| Bounds { targets: vec![target.parse().unwrap()], ..Bounds::default() };
    let own = house.key_for("own", Scope::Tool, bound("sums")).await;
    let other = house.key_for("other", Scope::Tool, bound("bells")).await;
    let reader = house.key("r", Scope::Reader).await;
    let put = async |key: &str, name: &str, tool: Value| {
        let (status, answer) = house.ask(Method::PUT, &format!("/tools/{name}"), Some(key), Some(tool)).await;
        (status, answer["code"].as_str().or(answer["change"].as_str()).unwrap().to_owned())
    };
    let plain = json!({});
    let is = |status: StatusCode, said: &str| (status, said.to_owned());
    assert_eq!(put(&own, "add", tool("add", "sums", plain.clone())).await, is(StatusCode::OK, "created"));
    assert_eq!(put(&own, "add", tool("add", "sums", plain.clone())).await, is(StatusCode::OK, "unchanged"));
    let slower = tool("add", "sums", json!({ "timeout_seconds": 90, "approval": "always" }));
    assert_eq!(put(&own, "add", slower).await, is(StatusCode::OK, "changed"));
    let entry = house.get("/audit?most=1").await["items"][0].clone();
    assert_eq!((&entry["actor"], &entry["subject"]), (&json!("key:own"), &json!("tool/add")));

    let forbidden = is(StatusCode::FORBIDDEN, "forbidden");
    assert_eq!(put(&reader, "add", tool("add", "sums", plain.clone())).await, forbidden);
    assert_eq!(put(&own, "ring", tool("ring", "bells", plain.clone())).await, forbidden, "the target of another key");
    assert_eq!(put(&own, "add", tool("add", "sums", plain.clone())).await, forbidden, "no approval any more");
    assert_eq!(put(&own, "sub", tool("sub", "sums", json!({ "trusted": true }))).await, forbidden);
    let http = json!({ "http": { "method": "GET", "url": "https://example.com/" } });
    assert_eq!(put(&own, "sub", tool("sub", "sums", http)).await, forbidden);
    assert_eq!(put(&own, "sub", tool("mul", "sums", plain.clone())).await, is(StatusCode::BAD_REQUEST, "invalid"));
    let conflict = is(StatusCode::CONFLICT, "conflict");
    let theirs = tool("add", "bells", json!({ "approval": "always" }));
    assert_eq!(put(&other, "add", theirs).await, conflict, "the name of another target");

    // What was applied is the admin's.
    assert_eq!(put(&house.admin, "pay", tool("pay", "sums", plain.clone())).await, is(StatusCode::OK, "created"));
    assert_eq!(put(&own, "pay", tool("pay", "sums", json!({ "timeout_seconds": 5 }))).await, conflict);
    assert_eq!(put(&own, "pay", tool("pay", "sums", plain.clone())).await, is(StatusCode::OK, "unchanged"));

    // It sees its own tools, and no others.
    let see = async |key: &str, name: &str| house.ask(Method::GET, &format!("/tools/{name}"), Some(key), None).await;
    assert_eq!(see(&own, "add").await.1["timeout_seconds"], 90);
    assert_eq!(see(&other, "add").await.0, StatusCode::NOT_FOUND);
}

/// SE-7: a tool is removed by a key of its target, once no profile may call it.
#[tokio::test]
async fn a_tool_is_removed_once_no_profile_may_call_it() {
    let house = House::open().await;
    let own = house.key("t", Scope::Tool).await;
    let remove = async |key: &str, name: &str| {
        let (status, answer) = house.ask(Method::DELETE, &format!("/tools/{name}"), Some(key), None).await;
        (status.as_u16(), answer["code"].as_str().unwrap_or("removed").to_owned())
    };
    let mine = tool("add", "sums", json!({}));
    let (status, _) = house.ask(Method::PUT, "/tools/add", Some(&own), Some(mine)).await;
    assert_eq!(status, StatusCode::OK);
    let mut hand = profile("hand", "python");
    hand["profile"]["allowed_tools"] = json!(["add"]);
    house.post("/resources", json!({ "manifests": [hand, { "tool": tool("pay", "sums", json!({})) }] })).await;
    assert_eq!(remove(&own, "add").await, (409, "conflict".to_owned()), "a profile may call it");
    assert_eq!(remove(&own, "pay").await, (409, "conflict".to_owned()), "it was applied");
    assert_eq!(remove(&own, "none").await, (404, "not_found".to_owned()));
    house.post("/resources", json!({ "manifests": [profile("hand", "python")] })).await;
    assert_eq!(remove(&own, "add").await, (200, "removed".to_owned()));
    assert_eq!(remove(&house.admin, "pay").await, (200, "removed".to_owned()));
    assert_eq!(house.t.count("select count(tool_card_id) from resource.tools").await, 0);
    assert_eq!(remove(&own, "add").await, (404, "not_found".to_owned()));
    assert_eq!(house.ask(Method::GET, "/tools/add", Some(&house.admin), None).await.0, StatusCode::NOT_FOUND);

    // The name stays with its target, unless an admin gives it to another.
    let bells = Bounds { targets: vec!["bells".parse().unwrap()], ..Bounds::default() };
    let other = house.key_for("other", Scope::Tool, bells).await;
    let put = async |key: &str, target: &str| {
        let tool = Some(tool("add", target, json!({})));
        house.ask(Method::PUT, "/tools/add", Some(key), tool).await.0.as_u16()
    };
    assert_eq!((put(&other, "bells").await, put(&own, "sums").await), (409, 200));
    assert_eq!(remove(&own, "add").await.0, 200);
    assert_eq!(put(&house.admin, "bells").await, 200);
}

/// SE-5, SE-7: a turn that is shown a tool which a key registered has seen content from outside. What was applied is not from outside.
#[tokio::test]
async fn what_a_key_says_of_its_tool_comes_from_outside() {
    let house = House::open().await;
    let own = house.key("t", Scope::Tool).await;
    let worker = house.key("w", Scope::Worker).await;
    let marked =
        "select count(*) from state.turns t join cardbox.boxes b on b.box_id = t.output_box_id where b.has_external";
    let mut hand = profile("hand", "python");
    hand["profile"]["allowed_tools"] = json!(["add"]);
    for key in [&own, &house.admin] {
        let (status, _) = house.ask(Method::PUT, "/tools/add", Some(key), Some(tool("add", "sums", json!({})))).await;
        assert_eq!(status, StatusCode::OK);
        house.post("/resources", json!({ "manifests": [hand] })).await;
        house.post("/turns", json!({ "profile_name": "hand", "instruction": "Add." })).await;
        let claim = json!({
            "worker": "w", "target": "python", "wait_seconds": 5, "lease_seconds": 60, "include": ["profile"],
        });
        let claimed = house.ask(Method::POST, "/worker/claim", Some(&worker), Some(claim)).await.1;
        assert_eq!(claimed["turns"][0]["profile"]["tools"][0]["name"], "add", "{claimed}");
        assert_eq!(house.t.count(marked).await, 1, "only the turn with the registered tool");
    }
}

/// PM-1, SE-7: a profile is removed once no other profile names it and it has no open turn, by a key whose targets have its worker target.
#[tokio::test]
async fn a_profile_is_removed_once_it_is_not_in_use() {
    let house = House::open().await;
    let developer = house.key("d", Scope::Developer).await;
    let bound = Bounds { targets: vec!["bells".parse().unwrap()], ..Bounds::default() };
    let stranger = house.key_for("s", Scope::Developer, bound).await;
    let remove = async |key: &str, name: &str| {
        let (status, answer) = house.ask(Method::DELETE, &format!("/profiles/{name}"), Some(key), None).await;
        (status.as_u16(), answer["detail"].as_str().unwrap_or("removed").to_owned())
    };
    let mut lead = profile("lead", "python");
    lead["profile"]["delegation_policy"] = json!({ "target_profiles": ["hand"] });
    let mut clerk = profile("clerk", "python");
    clerk["profile"]["summariser"] = json!("hand");
    house.post("/resources", json!({ "manifests": [profile("hand", "python"), lead, clerk] })).await;
    assert_eq!(remove(&stranger, "hand").await.0, 403, "its target is not among the key's");
    for user in ["clerk", "lead"] {
        let (status, said) = remove(&developer, "hand").await;
        assert!(status == 409 && said.contains(&format!("profile `{user}` names profile `hand`")), "{status} {said}");
        assert_eq!(remove(&developer, user).await.0, 200);
    }
    let started = house.post("/turns", json!({ "profile_name": "hand", "instruction": "wait" })).await;
    let turn = started["agent_turn_id"].as_str().unwrap();
    let (status, said) = remove(&developer, "hand").await;
    assert!(status == 409 && said.contains(turn), "{status} {said}");
    house.post(&format!("/turns/{turn}/stop"), json!({ "reason": "enough" })).await;
    assert_eq!(remove(&developer, "hand").await.0, 200);
    assert_eq!(remove(&developer, "hand").await.0, 404);
    let entry = house.get("/audit?most=1").await["items"][0].clone();
    assert_eq!(
        (&entry["actor"], &entry["action"], &entry["subject"]),
        (&json!("key:d"), &json!("resource.remove"), &json!("profile/hand"))
    );
    assert_eq!(house.get(&format!("/turns/{turn}")).await["turn"]["profile_name"], "hand", "the record keeps its name");
}

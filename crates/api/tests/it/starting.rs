//! Turns that are started with a form for their result, many at a time, and claimed with all that a worker needs.

use std::collections::BTreeSet;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use waybill_core::key::{Bounds, Scope};

use crate::House;

fn start(more: Value) -> Value {
    let mut start = json!({ "profile_name": "hand", "instruction": "count" });
    start.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    start
}

/// UI-2, WK-4: a claim brings what the worker needs, and what the result must be.
#[tokio::test]
async fn a_claim_brings_what_was_asked_for() {
    let house = House::open().await;
    house.allow("add", "sums").await;
    let schema = json!({ "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } });
    let more = json!({ "result_schema": schema, "limits": { "steps": 3 } });
    house.post("/turns", start(more)).await;
    house.post("/turns", start(json!({ "instruction": "sing" }))).await;
    let include = json!(["query", "profile", "limits"]);
    let claim = json!({ "worker": "w", "target": "python", "most": 2, "lease_seconds": 60, "include": include });
    let turns = house.post("/worker/claim", claim).await["turns"].clone();
    assert_eq!(turns.as_array().unwrap().len(), 2);
    let counts = turns.as_array().unwrap().iter().find(|turn| turn["query"][0]["content"] == "count").unwrap();
    assert_eq!(counts["query"][0]["card_id"], counts["query_card_ids"][0]);
    assert_eq!(counts["query"][1]["metadata"]["type"], "task.result_schema");
    assert_eq!(counts["query"][1]["content"], schema);
    assert_eq!((&counts["limits"]["steps"], &counts["profile_name"]), (&json!(3), &json!("hand")));
    let other = turns.as_array().unwrap().iter().find(|turn| turn["query"][0]["content"] == "sing").unwrap();
    assert_eq!((other["query"].as_array().unwrap().len(), other.get("limits")), (1, None), "{other}");
    for turn in [counts, other] {
        assert_eq!((&turn["profile"]["name"], &turn["profile"]["tools"][0]["name"]), (&json!("hand"), &json!("add")));
        assert!(turn["profile"]["tools"][0]["parameters"].is_object(), "{turn}");
    }

    // What the worker holds names the profile; nothing else is read again.
    let held = house.post("/worker/heartbeat", json!({ "worker": "w", "lease_seconds": 60 })).await;
    assert_eq!(held["turns"][0]["profile_name"], "hand");
    assert_eq!((held["turns"][0].get("query"), held["turns"][0].get("profile")), (None, None));
    let unknown = json!({ "worker": "w", "target": "python", "include": ["secrets"] });
    let refused = house.refused(Method::POST, "/worker/claim", Some(&house.admin), Some(unknown)).await;
    assert_eq!(refused, (400, "invalid".to_owned()));
}

/// WK-4: a form that cannot be held to is refused with the start.
#[tokio::test]
async fn a_result_has_one_form_that_can_be_checked() {
    let house = House::open().await;
    let fields = json!([{ "name": "n", "description": "a number" }]);
    for (more, said) in [
        (json!({ "result_schema": { "type": "array" } }), "object"),
        (json!({ "result_schema": { "type": "object", "$ref": "https://example.com/x" } }), "same schema"),
        (json!({ "result_schema": { "type": "object", "title": "x".repeat(70_000) } }), "bytes"),
        (json!({ "result_schema": { "type": "object" }, "result_fields": fields }), "not both"),
    ] {
        let (status, answer) = house.ask(Method::POST, "/turns", Some(&house.admin), Some(start(more))).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(said), "{answer}");
    }
    assert_eq!(house.get("/turns").await["items"], json!([]));
}

/// UI-1: each start has its own key and its own outcome.
#[tokio::test]
async fn many_turns_are_started_each_once() {
    let house = House::open().await;
    let keyed = |key: &str, more: Value| json!({ "key": key, "start": start(more) });
    let all =
        async |starts: &[Value]| house.post("/turns/batch", json!({ "starts": starts })).await["outcomes"].clone();
    let mut starts: Vec<Value> = (0..120).map(|n| keyed(&format!("k{n}"), json!({}))).collect();
    starts[3] = keyed("k3", json!({ "profile_name": "no-such-profile" }));
    starts[7] = keyed("k7", json!({ "instruction": "" }));
    starts[9] = keyed("k9", json!({ "on_behalf_of": "ann" }));
    starts[60] = keyed("k60", json!({ "colour": "red" }));
    starts[61] = keyed("k0", json!({}));
    starts[62] = keyed("k0", json!({ "instruction": "other" }));
    let outcomes = all(&starts).await;
    let code = |n: usize| outcomes[n]["problem"]["code"].as_str().unwrap_or("-").to_owned();
    assert_eq!(outcomes.as_array().unwrap().len(), 120);
    assert_eq!((code(3).as_str(), code(7).as_str(), code(60).as_str()), ("not_found", "invalid", "invalid"));
    assert_eq!(outcomes[61]["agent_turn_id"], outcomes[0]["agent_turn_id"]);
    assert_eq!(code(62), "idempotency_mismatch");
    let ids: BTreeSet<&str> =
        outcomes.as_array().unwrap().iter().filter_map(|one| one["agent_turn_id"].as_str()).collect();
    assert_eq!(ids.len(), 115, "five have none or that of another");
    assert_eq!(house.t.count("select count(*) from state.turns").await, 115);
    for (n, one) in outcomes.as_array().unwrap().iter().enumerate().filter(|(n, _)| *n != 61 && *n != 62) {
        assert_eq!(one["key"], format!("k{n}"));
    }
    let user = async |n: usize| {
        let turn = outcomes[n]["agent_turn_id"].as_str().unwrap().to_owned();
        house.get(&format!("/turns/{turn}")).await["turn"]["on_behalf_of"].clone()
    };
    assert_eq!(
        (user(9).await, user(10).await),
        (json!("ann"), Value::Null),
        "a start's user is not that of the next one"
    );

    // Again: the same turns, and what was refused is refused again.
    let again = all(&starts).await;
    assert_eq!(again, outcomes);
    assert_eq!(house.t.count("select count(*) from state.turns").await, 115);
}

/// SE-7: what a key may not start, it may not start in a batch; and the request itself has bounds.
#[tokio::test]
async fn a_batch_is_held_to_the_bounds_of_its_key() {
    let house = House::open().await;
    let bounds = Bounds { profiles: vec!["echo".parse().unwrap()], ..Bounds::default() };
    let (bound, reader) = (house.key_for("b", Scope::Operator, bounds).await, house.key("r", Scope::Reader).await);
    let one = |profile: &str| json!({ "key": profile, "start": start(json!({ "profile_name": profile })) });
    let body = |starts: Value| Some(json!({ "starts": starts }));
    let ask = async |key: &str, starts: Value| house.ask(Method::POST, "/turns/batch", Some(key), body(starts)).await;
    assert_eq!(ask(&reader, json!([one("echo")])).await.0, StatusCode::FORBIDDEN);
    assert_eq!(ask(&bound, json!([one("hand")])).await.1["code"], "forbidden");
    let (status, mixed) = ask(&bound, json!([one("hand"), one("echo")])).await;
    assert_eq!((status, &mixed["outcomes"][0]["problem"]["code"]), (StatusCode::OK, &json!("forbidden")));
    assert_eq!(mixed["outcomes"][1]["status"], "accepted");
    assert_eq!(house.t.count("select count(*) from state.turns").await, 1);
    assert_eq!(ask(&bound, json!([])).await.1["code"], "invalid");
    assert_eq!(ask(&bound, Value::Array(vec![one("echo"); 1_001])).await.1["code"], "invalid");
    let (bound, starts) = (Some(bound.as_str()), body(json!([one("echo")])));
    let headed = house.ask_once(Method::POST, "/turns/batch", bound, starts, Some("k")).await;
    assert_eq!(headed.1["code"], "invalid");
}

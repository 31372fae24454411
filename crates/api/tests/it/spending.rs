//! What turns were given to spend and what they have spent, over HTTP.

use chrono::{SecondsFormat, TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use waybill_core::{id::StepId, key::Scope};

use crate::House;

/// Starts a turn with limits that a worker over HTTP has in hand. Returns its path and its fence.
async fn limited(house: &House, worker: &str) -> (String, Value) {
    let limits = json!({ "steps": 5, "tokens": 1_000 });
    let start = json!({ "profile_name": "hand", "instruction": "x", "limits": limits });
    let started = house.post("/turns", start).await;
    let claim = json!({ "worker": "w", "target": "python", "most": 1, "lease_seconds": 60 });
    let claimed = house.ask(Method::POST, "/worker/claim", Some(worker), Some(claim)).await.1;
    (format!("/turns/{}", started["agent_turn_id"].as_str().unwrap()), claimed["turns"][0]["fence"].clone())
}

fn usage() -> Value {
    json!({ "provider": "p", "model": "m", "input_tokens": 10, "cached_tokens": 4, "output_tokens": 3, "microdollars": 7 })
}

/// WK-8: what a turn was given, what is left and what it has spent can be read, also once it has ended.
#[tokio::test]
async fn a_turn_shows_its_budget() {
    let house = House::open().await;
    let worker = house.key("w", Scope::Worker).await;
    let (turn, fence) = limited(&house, &worker).await;
    let card =
        |kind: &str| json!({ "card_id": uuid::Uuid::now_v7(), "type": kind, "role": "assistant", "content": "x" });
    let step = json!({ "fence": fence, "step_id": StepId::new(), "cards": [card("agent.thought")], "usage": usage() });
    let stepped = house.ask(Method::POST, &format!("{turn}/steps"), Some(&worker), Some(step)).await;
    assert_eq!(stepped.0, 200, "{}", stepped.1);
    let budget = house.get(&format!("{turn}/budget")).await;
    assert_eq!(budget["given"], json!({ "steps": 5, "tokens": 1_000 }), "{budget}");
    assert_eq!(budget["left"], json!({ "steps": 4, "tokens": 987, "microdollars": null }));
    assert_eq!(budget["spent"], json!({ "steps": 1, "tokens": 13, "microdollars": 7 }));
    assert_eq!(budget["lent"], json!({ "steps": 0, "tokens": 0, "microdollars": null }));
    assert_eq!((&budget["children"], &budget["truncated"]), (&json!([]), &json!(false)));

    let finish = json!({ "fence": fence, "status": "success", "cards": [card("task.deliverable")] });
    let finished = house.ask(Method::POST, &format!("{turn}/finish"), Some(&worker), Some(finish)).await;
    assert_eq!(finished.0, 200, "{}", finished.1);
    let after = house.get(&format!("{turn}/budget")).await;
    assert_eq!((&after["left"], &after["given"], &after["spent"]), (&Value::Null, &budget["given"], &budget["spent"]));
    let unknown = format!("/turns/{}/budget", uuid::Uuid::now_v7());
    assert_eq!(house.refused(Method::GET, &unknown, Some(&house.admin), None).await, (404, "not_found".to_owned()));
}

/// WK-5: what a project has spent is added up by time, profile, model, agent and session, of the turns that began in a span.
#[tokio::test]
async fn spending_is_added_up() {
    let house = House::open().await;
    let worker = house.key("w", Scope::Worker).await;
    let mut agents = Vec::new();
    for _ in 0..2 {
        let (turn, fence) = limited(&house, &worker).await;
        let card =
            json!({ "card_id": uuid::Uuid::now_v7(), "type": "task.deliverable", "role": "assistant", "content": "x" });
        let usage = json!({ "usage": usage(), "step_id": StepId::new() });
        let mut finish = json!({ "fence": fence, "status": "success", "cards": [card] });
        finish.as_object_mut().unwrap().extend(usage.as_object().cloned().unwrap());
        let finished = house.ask(Method::POST, &format!("{turn}/finish"), Some(&worker), Some(finish)).await;
        assert_eq!(finished.0, 200, "{}", finished.1);
        agents.push(house.get(&turn).await["turn"]["agent_id"].clone());
    }
    let whole = json!({
        "n_turns": 2, "n_steps": 2, "input": 20, "cached": 8, "output": 6, "microdollars": 14, "asked_again": 0,
    });
    let amounts = |row: &Value| {
        let mut row = row.clone();
        ["key", "at"].iter().for_each(|field| drop(row.as_object_mut().unwrap().remove(*field)));
        row
    };
    for (by, key) in [("profile", json!("hand")), ("model", json!("p/m")), ("session", Value::Null)] {
        let spent = house.get(&format!("/spend?by={by}")).await;
        let rows = spent["rows"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0]["key"], amounts(&rows[0])), (1, &key, whole.clone()), "{spent}");
        assert_eq!((&spent["complete_until"], &spent["more_rows"]), (&Value::Null, &json!(false)));
    }
    let by_agent = house.get("/spend?by=agent").await;
    let keys: Vec<&Value> = by_agent["rows"].as_array().unwrap().iter().map(|row| &row["key"]).collect();
    assert!(keys.len() == 2 && agents.iter().all(|agent| keys.contains(&agent)), "{by_agent}");
    for by in ["hour", "day"] {
        let spent = house.get(&format!("/spend?by={by}")).await;
        let rows = spent["rows"].as_array().unwrap();
        let n: i64 = rows.iter().map(|row| row["n_turns"].as_i64().unwrap()).sum();
        assert!(n == 2 && rows.iter().all(|row| row["at"].is_string() && row["key"].is_string()), "{spent}");
    }
    let time = |hours: i64| (Utc::now() + TimeDelta::hours(hours)).to_rfc3339_opts(SecondsFormat::Millis, true);
    for span in [format!("since={}", time(1)), format!("until={}", time(-1))] {
        assert_eq!(house.get(&format!("/spend?by=day&{span}")).await["rows"], json!([]), "{span}");
    }
    for wrong in ["/spend?by=colour", "/spend?since=yesterday"] {
        assert_eq!(house.refused(Method::GET, wrong, Some(&house.admin), None).await.0, 400, "{wrong}");
    }
}

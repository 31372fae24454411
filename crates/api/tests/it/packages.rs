//! A key that is bound to paths names no artifact beyond them, wherever an artifact can be named (SE-7).

use reqwest::Method;
use serde_json::{Value, json};
use waybill_core::{
    id::StepId,
    key::{Bounds, Scope},
};

use crate::bulk::Shelf;

fn package(path: &str) -> Value {
    json!({
        "version": "2.0", "handoff_type": "init_to_execute", "timestamp": "2026-01-04T10:30:00", "user_requirement": "samples",
        "design_artifacts": { "rules": path },
    })
}

#[tokio::test]
async fn a_key_names_artifacts_at_its_own_paths() {
    let shelf = Shelf::open().await;
    let house = &shelf.house;
    let mut hashes = Vec::new();
    for path in ["payroll/rules.md", "mail/rules.md"] {
        let url = format!("{}/v1/projects/acme/artifacts?path={path}", house.base);
        let stored = house.http.put(url).bearer_auth(&house.admin).body("# Rules").send().await.unwrap();
        hashes.push(stored.json::<Value>().await.unwrap()["hash"].clone());
    }
    let bounds = |targets: &[&str]| Bounds {
        targets: targets.iter().map(|target| target.parse().unwrap()).collect(),
        paths: vec!["mail".parse().unwrap()],
        ..Bounds::default()
    };
    let operator = house.key_for("op", Scope::Operator, bounds(&[])).await;

    // What lies beyond its paths is not there, word for word.
    let mut said = Vec::new();
    for path in ["payroll/rules.md", "payroll/other.md"] {
        let body = Some(json!({ "package": package(path) }));
        let (status, verdict) = house.ask(Method::POST, "/handoffs/check", Some(&operator), body).await;
        assert_eq!((status.as_u16(), &verdict["ok"]), (200, &json!(false)), "{verdict}");
        said.push(verdict.to_string().replace(path, "PATH"));
    }
    assert_eq!(said[0], said[1]);
    let send = |path: &str| Some(json!({ "profile_name": "echo", "package": package(path) }));
    let refused = house.refused(Method::POST, "/handoffs", Some(&operator), send("payroll/rules.md")).await;
    assert_eq!(refused, (422, "invalid_package".to_owned()));
    assert_eq!(house.ask(Method::POST, "/handoffs", Some(&operator), send("mail/rules.md")).await.0, 200);

    // A card that names an artifact lets its reader read it.
    let named = json!({ "package": {}, "artifacts": { "payroll/rules.md": hashes[0] } });
    let start = json!({ "profile_name": "echo", "instruction": "x", "arguments": { "more": named } });
    let refused = house.refused(Method::POST, "/turns", Some(&operator), Some(start)).await;
    assert_eq!(refused, (403, "forbidden".to_owned()));
    let worker = house.key_for("w", Scope::Worker, bounds(&["python"])).await;
    house.post("/turns", json!({ "profile_name": "hand", "instruction": "x" })).await;
    let claim = json!({ "worker": "w", "target": "python", "wait_seconds": 5, "lease_seconds": 60 });
    let turn = house.ask(Method::POST, "/worker/claim", Some(&worker), Some(claim)).await.1["turns"][0].clone();
    let card =
        json!({ "card_id": uuid::Uuid::now_v7(), "type": "handoff.package", "role": "assistant", "content": named });
    let step = json!({ "fence": turn["fence"], "step_id": StepId::new(), "cards": [card] });
    let steps = format!("/turns/{}/steps", turn["agent_turn_id"].as_str().unwrap());
    let refused = house.refused(Method::POST, &steps, Some(&worker), Some(step)).await;
    assert_eq!(refused, (403, "forbidden".to_owned()));
}

//! Forks over HTTP: many at once, their list, and what came of them.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use waybill_context::framework::Framework;
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{Config, Worker},
};

use crate::House;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Runs the worker until no turn is open.
async fn all_end(house: &House) {
    let models = Models::new(Vec::new(), Secrets::new(None, []));
    let worker = Worker::new(house.kernel.clone(), models, Collector::new(Framework::builtin()));
    let over = async {
        while house.get("/turns?open=true&most=1").await["items"] != json!([]) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    worker.serve(&Config::new("llm".parse().unwrap()), over).await;
}

/// NX-6: variants are started together, several times each; what came of them is compared with the recorded turn.
#[tokio::test]
async fn many_forks_are_started_and_compared() {
    let house = House::open().await;
    let turn_id = house.thought("good morning").await;
    let query = house.get(&format!("/turns/{turn_id}")).await["turn"]["query_card_ids"][0].clone();
    let path = format!("/turns/{turn_id}/forks");
    let body = json!({ "variants": [{}, { "cards": [{ "card_id": query, "content": "good night" }] }], "times": 2 });
    let once = Some("k1");
    let (status, started) = house.ask_once(Method::POST, &path, Some(&house.admin), Some(body.clone()), once).await;
    assert_eq!(status, 200, "{started}");
    let again = house.ask_once(Method::POST, &path, Some(&house.admin), Some(body), once).await.1;
    assert_eq!(again, started, "done once");
    let forks = started["forks"].as_array().unwrap();
    assert_eq!(forks.iter().map(|fork| fork["variant"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 0, 1, 1]);
    all_end(&house).await;

    let listed = house.get(&path).await;
    let items = listed["items"].as_array().unwrap();
    assert_eq!((items.len(), &listed["next"]), (4, &Value::Null), "{listed}");
    assert_eq!(
        (&items[0]["agent_turn_id"], &items[0]["change"]["cards"]),
        (&forks[3]["agent_turn_id"], &json!([query])),
        "newest first"
    );
    assert_eq!((&items[0]["forked_by"], &items[0]["turn"]["status"]), (&json!("key:admin"), &json!("success")));
    let page = house.get(&format!("{path}?most=3")).await;
    let rest = house.get(&format!("{path}?after={}", text(&page["next"]))).await;
    assert_eq!((page["items"].as_array().unwrap().len(), &rest["items"][0]), (3, &items[3]));

    let ids: Vec<&str> = forks.iter().map(|fork| text(&fork["agent_turn_id"])).collect();
    let compared = house.get(&format!("/forks/compare?turns={turn_id},{},{}", ids[0], ids[2])).await;
    let [recorded, same, other] = [0, 1, 2].map(|n| &compared[n]);
    assert_eq!((&recorded["context"], &recorded["same_deliverable"]), (&Value::Null, &Value::Null), "{compared}");
    assert_eq!((&recorded["n_steps"], &recorded["tools"]), (&json!(2), &json!({ "update_todo": 1 })));
    assert!(same["same_deliverable"] == true && same["context"]["same_messages"].is_u64(), "{compared}");
    assert_eq!((&other["same_deliverable"], &other["deliverable"]), (&json!(false), &json!("You said good night")));
    assert!(other["context"]["message"].as_u64().is_some_and(|message| message > 0), "{compared}");
    assert_eq!((&other["not_recorded"], &other["truncated"]), (&json!(0), &json!(false)));
}

/// NX-6: all forks of a request are started, or none.
#[tokio::test]
async fn forks_that_cannot_be_started_are_refused_together() {
    let house = House::open().await;
    let turn_id = house.thought("good morning").await;
    let path = format!("/turns/{turn_id}/forks");
    let refused = async |body: Value| house.ask(Method::POST, &path, Some(&house.admin), Some(body)).await;
    for body in [
        json!({ "variants": [] }),
        json!({ "variants": [{}], "times": 0 }),
        json!({ "variants": [{}, {}], "times": 51 }),
    ] {
        assert_eq!(refused(body.clone()).await.0, 400, "{body}");
    }
    let wrong = json!({ "variants": [{}, { "cards": [{ "card_id": uuid::Uuid::now_v7(), "content": "x" }] }] });
    let (status, problem) = refused(wrong).await;
    assert!(status.is_client_error() && text(&problem["detail"]).contains("variants[1]"), "{problem}");
    assert_eq!(house.get(&path).await["items"], json!([]));
    let never = uuid::Uuid::now_v7();
    for (wrong, code) in [
        (format!("/forks/compare?turns={turn_id}"), 400),
        ("/forks/compare?turns=a,b".to_owned(), 400),
        (format!("/forks/compare?turns={turn_id},{never}"), 404),
        (format!("/turns/{never}/forks"), 404),
    ] {
        assert_eq!(house.refused(Method::GET, &wrong, Some(&house.admin), None).await.0, code, "{wrong}");
    }
}

//! Model calls checked over HTTP: for defects, and against their receipts.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};
use waybill_kernel::card;

use crate::House;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// UI-6: the rules of `waybill lint` can be asked of any recorded call.
#[tokio::test]
async fn a_recorded_call_is_checked_for_defects() {
    let house = House::open().await;
    let turn_id = house.thought("good morning").await;
    let receipts = house.get(&format!("/turns/{turn_id}/receipts")).await;
    let [first, second] = [0, 1].map(|n| receipts[n]["step_id"].clone());
    let last = house.get(&format!("/turns/{turn_id}/context/lint")).await;
    assert_eq!((&last["step_id"], &last["before_step_id"]), (&second, &first), "{last}");
    assert!(last["findings"].is_array(), "{last}");
    let alone = house.get(&format!("/turns/{turn_id}/context/lint?step_id={}", text(&first))).await;
    assert_eq!((&alone["step_id"], &alone["before_step_id"]), (&first, &Value::Null), "{alone}");
    let never = format!("/turns/{}/context/lint", uuid::Uuid::now_v7());
    assert_eq!(house.refused(Method::GET, &never, Some(&house.admin), None).await, (404, "not_found".to_owned()));
}

/// CX-11, UI-6: every call of a turn is composed again and compared with its receipt; what was erased since is named.
#[tokio::test]
async fn the_calls_of_a_turn_are_verified() {
    let house = House::open().await;
    let turn_id = house.thought("good morning").await;
    let path = format!("/turns/{turn_id}/context/verify");
    let receipts = house.get(&format!("/turns/{turn_id}/receipts")).await;
    let verified = house.post(&path, json!({})).await;
    let items = verified["items"].as_array().unwrap();
    assert_eq!((items.len(), &verified["next"]), (2, &Value::Null), "{verified}");
    for (call, receipt) in items.iter().zip(receipts.as_array().unwrap()) {
        assert_eq!(
            (&call["request"], &call["cards"], &call["why"]),
            (&json!("ok"), &json!("ok"), &Value::Null),
            "{call}"
        );
        assert_eq!((&call["step_id"], &call["request_hash"]), (&receipt["step_id"], &call["recomputed_hash"]));
        assert_eq!(call["request_hash"], receipt["receipt"]["request_hash"]);
        assert!(call["n_cards"].as_u64().is_some_and(|n| n >= 2), "{call}");
    }
    let page = house.post(&path, json!({ "most": 1 })).await;
    assert_eq!((&page["items"], &page["next"]), (&json!([items[0]]), &items[0]["step_id"]));
    let rest = house.post(&path, json!({ "after": page["next"] })).await;
    assert_eq!((&rest["items"], &rest["next"]), (&json!([items[1]]), &Value::Null));
    let one = house.post(&path, json!({ "step_id": items[1]["step_id"] })).await;
    assert_eq!(one["items"], rest["items"]);
    for (wrong, status) in [(json!({ "most": 0 }), 400), (json!({ "step_id": uuid::Uuid::now_v7() }), 404)] {
        assert_eq!(house.refused(Method::POST, &path, Some(&house.admin), Some(wrong)).await.0, status);
    }

    let query = house.get(&format!("/turns/{turn_id}")).await["turn"]["query_card_ids"][0].clone();
    let query = text(&query).parse().unwrap();
    card::erase(&mut house.t.admin().await, house.t.project_id, &[query], "asked").await.unwrap();
    let after = house.post(&path, json!({})).await;
    let call = &after["items"][0];
    assert_eq!((&call["request"], &call["cards"]), (&json!("not_renderable"), &json!("erased")), "{after}");
    assert!(text(&call["why"]).contains("erased") && call["recomputed_hash"].is_null(), "{after}");
}

/// NX-4: from a card to the model calls that read it.
#[tokio::test]
async fn a_card_is_followed_to_the_calls_that_read_it() {
    let house = House::open().await;
    let turn_id = house.thought("good morning").await;
    let receipts = house.get(&format!("/turns/{turn_id}/receipts")).await;
    let steps: Vec<&str> = receipts.as_array().unwrap().iter().map(|call| text(&call["step_id"])).collect();
    let turn = house.get(&format!("/turns/{turn_id}")).await["turn"].clone();
    let called = async |card_id: &str| -> BTreeSet<String> {
        let page = house.get(&format!("/cards/{card_id}/calls")).await;
        assert_eq!(page["next"], Value::Null, "{page}");
        let calls = page["items"].as_array().unwrap();
        assert!(calls.iter().all(|call| call["agent_turn_id"] == turn_id && call["place"].is_i64()), "{page}");
        calls.iter().map(|call| text(&call["step_id"]).to_owned()).collect()
    };
    let all: BTreeSet<String> = steps.iter().map(|step_id| (*step_id).to_owned()).collect();
    assert_eq!(called(text(&turn["query_card_ids"][0])).await, all, "the question: by both");
    let written = house.get(&format!("/boxes/{}/cards", text(&turn["output_box_id"]))).await;
    let call =
        written["items"].as_array().unwrap().iter().find(|card| card["reading"]["metadata"]["type"] == "tool.call");
    let call = text(&call.unwrap()["reading"]["card_id"]);
    assert_eq!(called(call).await, BTreeSet::from([steps[1].to_owned()]), "what the first call led to: by the second");
    assert_eq!(called(text(&turn["deliverable_card_id"])).await, BTreeSet::new(), "what was written last: by none");
}

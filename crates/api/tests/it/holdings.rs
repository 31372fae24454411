//! Where cards stand and who could see them, over HTTP.

use reqwest::Method;
use serde_json::{Value, json};
use waybill_core::{
    id::{BoxId, GrantId},
    key::Scope,
};

use crate::House;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

impl House {
    async fn started(&self, start: Value) -> Value {
        let started = self.post("/turns", start).await;
        self.get(&format!("/turns/{}", text(&started["agent_turn_id"]))).await["turn"].clone()
    }

    /// Reads all pages of a list.
    async fn all(&self, path: &str) -> Vec<Value> {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("{path}?most=1{after}")).await;
            all.extend(page["items"].as_array().unwrap().clone());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return all,
            }
        }
    }
}

/// PM-12: a card can be followed from box to box, and to every agent that could see it.
#[tokio::test]
async fn a_card_can_be_followed_through_its_boxes() {
    let house = House::open().await;
    let first = house.started(json!({ "profile_name": "hand", "instruction": "one" })).await;
    let (box_id, card_id) = (text(&first["context_box_id"]), text(&first["query_card_ids"][0]));
    let start = json!({ "profile_name": "hand", "instruction": "two", "context_box_ids": [box_id] });
    let second = house.started(start).await;

    let held = house.all(&format!("/cards/{card_id}/holdings")).await;
    for turn in [&first, &second] {
        assert!(held.iter().any(|holding| holding["box_id"] == turn["context_box_id"]), "{held:?}");
    }
    let seen = house.all(&format!("/cards/{card_id}/sight")).await;
    for turn in [&first, &second] {
        assert!(seen.iter().any(|sight| sight["agent_id"] == turn["agent_id"]), "{seen:?}");
    }
    let heirs = house.all(&format!("/boxes/{box_id}/heirs")).await;
    assert_eq!((heirs.len(), &heirs[0]["box_id"], &heirs[0]["from_seq"]), (1, &second["context_box_id"], &json!(1)));
    let entries = house.all(&format!("/boxes/{}/entries", text(&second["context_box_id"]))).await;
    assert!(entries.iter().any(|entry| entry["source_box_id"] == box_id), "{entries:?}");
    assert!(entries.iter().any(|entry| entry["card_id"] == second["query_card_ids"][0]), "{entries:?}");
    assert!(entries.is_sorted_by_key(|entry| entry["seq"].as_i64()), "{entries:?}");
    let handed = house.all(&format!("/turns/{}/handovers", text(&second["agent_turn_id"]))).await;
    let taken = handed.iter().find(|part| part["rule"] == "box").unwrap();
    assert_eq!((&taken["source_box_id"], &taken["via"]), (&json!(box_id), &json!("asked")), "{handed:?}");
    assert!(handed.iter().any(|part| part["rule"] == "argument" && part["arg_key"] == "instruction"), "{handed:?}");
    let shown = house.get(&format!("/boxes/{box_id}")).await;
    assert_eq!((&shown["agent_id"], &shown["has_external"]), (&first["agent_id"], &json!(false)), "{shown}");

    let refused = async |path: String| house.refused(Method::GET, &path, Some(&house.admin), None).await;
    assert_eq!(refused(format!("/cards/{card_id}/holdings?after=x")).await, (400, "invalid".to_owned()));
    assert_eq!(refused(format!("/boxes/{box_id}/entries?after=-1")).await, (400, "invalid".to_owned()));
    assert_eq!(refused(format!("/boxes/{}/heirs", BoxId::new())).await, (404, "not_found".to_owned()));
}

/// SE-3: a right is given and revoked by an admin, with a reason, and stays on record.
#[tokio::test]
async fn a_right_is_given_and_revoked_on_record() {
    let house = House::open().await;
    let turn = house.started(json!({ "profile_name": "hand", "instruction": "one" })).await;
    let agent = house.post("/agents", json!({ "profile_name": "hand" })).await["agent_id"].clone();
    let give =
        |reason: &str| json!({ "agent_id": agent, "box_id": turn["context_box_id"], "upto": 1, "reason": reason });
    let operator = house.key("op", Scope::Operator).await;
    let refused = async |key: &str, body: Value| house.refused(Method::POST, "/grants", Some(key), Some(body)).await;
    assert_eq!(refused(&operator, give("x")).await, (403, "forbidden".to_owned()));
    assert_eq!(refused(&house.admin, give("")).await, (400, "invalid".to_owned()));
    let mut nowhere = give("x");
    nowhere["box_id"] = json!(BoxId::new());
    assert_eq!(refused(&house.admin, nowhere).await, (404, "not_found".to_owned()));
    let mut below = give("x");
    below["upto"] = json!(-1);
    assert_eq!(refused(&house.admin, below).await, (400, "invalid".to_owned()));

    let given = house.post("/grants", give("for the review")).await;
    let listed = house.all("/grants").await;
    assert_eq!(
        (listed.len(), &listed[0]["grant_id"], &listed[0]["granted_by"]),
        (1, &given["grant_id"], &json!("key:admin"))
    );
    assert_eq!((&listed[0]["reason"], &listed[0]["revoked_at"]), (&json!("for the review"), &Value::Null));
    let path = format!("/grants/{}", text(&given["grant_id"]));
    let revoke = async || house.ask(Method::DELETE, &path, Some(&house.admin), None).await.0.as_u16();
    assert_eq!((revoke().await, revoke().await), (200, 404));
    assert!(house.all("/grants").await[0]["revoked_at"].is_string());
    assert_eq!(
        house.get(&format!("/grants?agent_id={}", text(&agent))).await["items"][0]["grant_id"],
        given["grant_id"]
    );
    let other = house.get(&format!("/grants?agent_id={}", text(&turn["agent_id"]))).await;
    assert_eq!(other, json!({ "items": [], "next": null }), "the grants of another agent");
    let before = house.get(&format!("/grants?agent_id={}&after={}", text(&agent), GrantId::nil())).await;
    assert_eq!(before["items"], json!([]));
    assert_eq!(house.get("/refusals").await, json!({ "items": [], "next": null }));
}

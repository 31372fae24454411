//! Requests of agents to people, over HTTP: those that wait, and those that were decided.

use reqwest::Method;
use serde_json::{Value, json};
use waybill_core::key::Scope;

use crate::{House, roles::waits_for_four_eyes};

fn items(page: &Value) -> &[Value] {
    page["items"].as_array().unwrap_or_else(|| panic!("{page} is no page"))
}

/// HO-7: a request that was decided stays on record: which call it was about, by whom it was decided, when and why.
#[tokio::test]
async fn a_decided_request_stays_on_record() {
    let house = House::open().await;
    let (path, _) = waits_for_four_eyes(&house).await;
    let call_id = path.rsplit('/').next().unwrap();
    let open = house.get("/requests").await;
    let waiting = &items(&open)[0];
    assert_eq!((items(&open).len(), &waiting["tool_call_id"]), (1, &json!(call_id)), "{open}");
    assert_eq!(
        (&waiting["tool"], &waiting["effect"], &waiting["decided"]),
        (&json!("pay"), &json!("once"), &Value::Null)
    );
    // `{}`
    let hash = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    assert_eq!((&waiting["arguments_hash"], &waiting["saw_external"]), (&json!(hash), &json!(false)));
    let title = waiting["title"].as_str().unwrap();
    assert!(waiting["request"]["question"].as_str().unwrap().starts_with(title) && title.contains("pay"), "{waiting}");
    assert_eq!(items(&house.get("/requests?state=decided").await), [] as [Value; 0]);
    let shown = house.get(&path).await;
    assert_eq!((&shown["title"], &shown["external_card_ids"]), (&waiting["title"], &json!([])));

    let approver = house.key("boss", Scope::Approver).await;
    let no = json!({ "decision": "rejected", "note": "too much" });
    let decided = house.ask(Method::POST, &path, Some(&approver), Some(no)).await.1;
    assert_eq!(items(&house.get("/requests?state=open").await), [] as [Value; 0]);
    let listed = house.get("/requests?state=decided&most=1").await;
    assert_eq!((items(&listed).len(), &listed["next"]), (1, &Value::Null));
    let how = &items(&listed)[0]["decided"];
    assert_eq!(
        (&how["decision"], &how["by"], &how["note"], &how["card_id"]),
        (&json!("rejected"), &json!("key:boss"), &json!("too much"), &decided["decision_card_id"])
    );
    assert!(how["at"].is_string(), "{how}");
    let (status, shown) = house.ask(Method::GET, &path, Some(&approver), None).await;
    assert_eq!((status.as_u16(), &shown["decided"]), (200, how));

    let other = format!("/requests/{}", uuid::Uuid::now_v7());
    assert_eq!(house.refused(Method::GET, &other, Some(&house.admin), None).await, (404, "not_found".to_owned()));
    for wrong in ["/requests?state=gone", "/requests?after=x", "/requests?most=0"] {
        assert_eq!(house.refused(Method::GET, wrong, Some(&house.admin), None).await.0, 400, "{wrong}");
    }
}

//! Finding runs and looking at them as a whole, over HTTP: labels, lists, graph, timeline, what happens now.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use waybill_core::{
    card::Draft,
    id::{AgentId, CardId, StepId, ToolCallId, TurnId},
    key::{Bounds, Scope},
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    sweep,
    turn::{self, DispatchRequest},
};

use crate::House;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

impl House {
    async fn run(&self, start: Value) -> String {
        text(&self.post("/turns", start).await["agent_turn_id"]).to_owned()
    }

    /// Starts a turn below another one.
    async fn below(&self, parent: &str) -> String {
        let mut work = self.kernel.begin(self.t.project_id).await.unwrap();
        let agent_id = AgentId::new();
        let new = NewAgent::new(agent_id, "python".parse().unwrap());
        agent::provision(&mut work, &[new], Stay::Plain, None).await.unwrap();
        let card = Draft::instruction("help").seal().unwrap();
        let parent: TurnId = parent.parse().unwrap();
        let request = DispatchRequest {
            parent_agent_turn_id: Some(parent),
            ..DispatchRequest::instructed(agent_id, card.card_id())
        };
        let child = request.agent_turn_id;
        turn::enqueue(&mut work, &[request], &[card]).await.unwrap();
        work.commit().await.unwrap();
        child.to_string()
    }

    async fn listed(&self, query: &str) -> Vec<String> {
        let page = self.get(&format!("/turns?{query}")).await;
        page["items"].as_array().unwrap().iter().map(|turn| text(&turn["agent_turn_id"]).to_owned()).collect()
    }
}

/// UI-9: turns are found by their labels and by what they are; filters are combined; a wrong one is refused.
#[tokio::test]
async fn turns_are_found_by_what_they_are() {
    let house = House::open().await;
    let labels = json!({ "team": "blue", "ticket": "a=b" });
    let first = house
        .run(json!({ "profile_name": "hand", "instruction": "\nBake bread\nwith salt", "labels": labels, "external": true }))
        .await;
    let second = house
        .run(json!({ "profile_name": "echo", "instruction": "two", "labels": { "team": "blue" }, "channel": "side" }))
        .await;
    let third = house.run(json!({ "profile_name": "hand", "instruction": "three" })).await;
    let child = house.below(&first).await;
    house.post(&format!("/turns/{third}/stop"), json!({ "reason": "not needed" })).await;

    let shown = house.get(&format!("/turns/{first}")).await["turn"].clone();
    assert_eq!((&shown["title"], &shown["labels"], &shown["external"]), (&json!("Bake bread"), &labels, &json!(true)));
    assert_eq!((&shown["waiting_for"]["kind"], &shown["waiting_for"]["name"]), (&json!("worker"), &json!("python")));
    assert_eq!((&shown["n_below"], &shown["models"]), (&json!(1), &json!([])));
    let stopped = house.get(&format!("/turns/{third}")).await["turn"].clone();
    assert_eq!((&stopped["reason"], &stopped["waiting_for"]), (&json!("not needed"), &Value::Null));

    let agent = text(&shown["agent_id"]);
    for (query, wanted) in [
        ("label=team=blue", vec![&second, &first]),
        ("label=ticket=a%3Db", vec![&first]),
        ("label=team=green", vec![]),
        ("label=team=blue&profile=hand", vec![&first]),
        ("profile=hand&roots=true", vec![&third, &first]),
        ("status=canceled", vec![&third]),
        ("status=open&roots=true", vec![&second, &first]),
        ("open=true", vec![&child, &second, &first]),
        ("channel=side", vec![&second]),
        ("external=true", vec![&first]),
        ("external=false&roots=true", vec![&third, &second]),
        ("min_microdollars=1", vec![]),
        (&format!("agent={agent}"), vec![&first]),
        (&format!("forked_from={first}"), vec![]),
        ("since=2020-01-01T00:00:00Z&roots=true", vec![&third, &second, &first]),
        ("until=2020-01-01T00:00:00Z", vec![]),
        ("since=9999-01-01T00:00:00Z", vec![]),
    ] {
        assert_eq!(house.listed(query).await.iter().collect::<Vec<_>>(), wanted, "{query}");
    }
    let page = house.get("/turns?roots=true&most=2").await;
    assert_eq!(page["next"], json!(second));
    let last = house.get(&format!("/turns?roots=true&most=2&after={second}")).await;
    assert_eq!((&last["items"][0]["agent_turn_id"], &last["next"]), (&json!(first), &Value::Null));

    for wrong in ["label=team", "label=Team=x", "status=lost", "min_microdollars=-1", "since=yesterday", "most=0"] {
        let refused = house.refused(Method::GET, &format!("/turns?{wrong}"), Some(&house.admin), None).await;
        assert_eq!(refused, (400, "invalid".to_owned()), "{wrong}");
    }
    for wrong in [json!({ "Team": "x" }), json!({ "team": "" }), json!({ "team": 1 })] {
        let start = json!({ "profile_name": "hand", "instruction": "x", "labels": wrong });
        let refused = house.refused(Method::POST, "/turns", Some(&house.admin), Some(start)).await;
        assert_eq!(refused, (400, "invalid".to_owned()));
    }
    // Who may read only the record is not told what was said.
    let auditor = house.key("auditor", Scope::Auditor).await;
    let (_, page) = house.ask(Method::GET, "/turns?status=canceled", Some(&auditor), None).await;
    assert_eq!((&page["items"][0]["title"], &page["items"][0]["reason"]), (&Value::Null, &Value::Null), "{page}");
}

/// UI-9: a graph has its turns in columns, in pages; a parent that is on another page is named.
#[tokio::test]
async fn a_graph_comes_in_columns_and_pages() {
    let house = House::open().await;
    let root = house.run(json!({ "profile_name": "hand", "instruction": "one" })).await;
    let [left, right] = [house.below(&root).await, house.below(&root).await];
    let leaf = house.below(&left).await;
    let graph = house.get(&format!("/turns/{root}/graph")).await;
    assert_eq!((&graph["n"], &graph["next"], &graph["truncated"]), (&json!(4), &Value::Null, &json!(false)));
    assert_eq!((&graph["ids"], &graph["parent"]), (&json!([root, left, right, leaf]), &json!([-1, 0, 0, 1])));
    assert_eq!((&graph["profiles"], &graph["profile"]), (&json!(["hand"]), &json!([0, -1, -1, -1])));
    for column in [
        "status",
        "batch",
        "task_index",
        "edge",
        "created_ms",
        "finished_ms",
        "steps",
        "input",
        "cached",
        "output",
        "microdollars",
        "external",
        "forked",
    ] {
        assert_eq!(graph[column].as_array().map(Vec::len), Some(4), "{column}");
    }
    let first = house.get(&format!("/turns/{root}/graph?most=2")).await;
    assert_eq!((&first["ids"], &first["next"]), (&json!([root, left]), &json!(left)));
    let second = house.get(&format!("/turns/{root}/graph?most=2&after={left}")).await;
    assert_eq!((&second["ids"], &second["above"]), (&json!([right, leaf]), &json!([root, left])));
    assert_eq!((&second["parent"], &second["next"]), (&json!([2, 3]), &Value::Null));
    let below = house.get(&format!("/turns/{left}/graph")).await;
    assert_eq!((&below["ids"], &below["parent"]), (&json!([left, leaf]), &json!([-1, 0])));
    let unknown = format!("/turns/{}/graph", TurnId::new());
    for path in [format!("{unknown}?after={left}"), unknown] {
        assert_eq!(house.refused(Method::GET, &path, Some(&house.admin), None).await, (404, "not_found".to_owned()));
    }
}

/// UI-9: a timeline says what a turn waited for, and `now` what the project does.
#[tokio::test]
async fn a_timeline_tells_what_was_waited_for() {
    let house = House::open().await;
    let worker = house.key("w", Scope::Worker).await;
    house.allow("add", "sums").await;
    let turn_id = house.run(json!({ "profile_name": "hand", "instruction": "count" })).await;
    let now = house.get("/now").await;
    assert_eq!((&now["n_ready"], &now["n_running"], &now["is_all"]), (&json!(1), &json!(0), &json!(true)), "{now}");
    assert!(now["oldest_ready_at"].is_string(), "{now}");
    let claim = json!({ "worker": "w1", "target": "python", "lease_seconds": 60 });
    let ask = async |path: &str, body: Value| house.ask(Method::POST, path, Some(&worker), Some(body)).await.1;
    let turn = ask("/worker/claim", claim.clone()).await["turns"][0].clone();
    let now = house.get("/now").await;
    assert_eq!(now["n_running"], 1);
    assert!(now["workers"].as_array().unwrap().contains(&json!({ "worker_target": "python", "alive": true })), "{now}");
    let (step_id, call_id, card_id) = (StepId::new(), ToolCallId::new(), CardId::new());
    let step = json!({
        "fence": turn["fence"], "step_id": step_id, "suspend": true,
        "cards": [{ "card_id": card_id, "type": "tool.call", "role": "assistant", "tool_call_id": call_id,
                    "content": { "tool_name": "add", "arguments": "{}" } }],
        "calls": [{ "tool_call_id": call_id, "tool_call_card_id": card_id, "target": "sums", "timeout_seconds": 60 }],
        "usage": { "provider": "mine", "model": "m", "input_tokens": 5, "output_tokens": 2, "took_ms": 1 },
    });
    ask(&format!("/turns/{turn_id}/steps"), step).await;
    let shown = house.get(&format!("/turns/{turn_id}")).await["turn"].clone();
    assert_eq!((&shown["waiting_for"]["kind"], &shown["waiting_for"]["name"]), (&json!("tool"), &json!("add")));
    assert_eq!(shown["models"], json!(["m"]));
    let now = house.get("/now").await;
    assert_eq!((&now["n_waiting"], &now["waiting"][0]["kind"]), (&json!(1), &json!("tool")), "{now}");

    let timeline = async || {
        let timeline = house.get(&format!("/turns/{turn_id}/timeline?tree=true")).await;
        assert_eq!(timeline["truncated"], false);
        timeline["segments"].as_array().unwrap().clone()
    };
    let kinds = |segments: &[Value]| segments.iter().map(|one| text(&one["kind"]).to_owned()).collect::<Vec<_>>();
    let segments = timeline().await;
    assert_eq!(kinds(&segments), ["queued", "model", "tool"], "{segments:?}");
    assert_eq!((&segments[1]["ref"], &segments[2]["ref"]), (&json!(step_id), &json!(call_id)));
    assert_eq!(segments[2]["to_ms"], Value::Null, "it still waits");
    let tool = json!({ "worker": "t1", "target": "sums", "lease_seconds": 60 });
    let call = ask("/calls/claim", tool).await["calls"][0].clone();
    let report = json!({
        "worker": "t1", "claim_token": call["claim_token"], "card_id": CardId::new(), "status": "success", "result": 2,
    });
    ask(&format!("/calls/{call_id}/report"), report).await;
    ask("/worker/claim", claim).await;
    let segments = timeline().await;
    assert_eq!(kinds(&segments), ["queued", "model", "tool", "queued"], "{segments:?}");
    assert_eq!(segments[2]["status"], "success");
    let none = house.get(&format!("/turns/{turn_id}/timeline?to=2020-01-01T00:00:00Z")).await;
    assert_eq!(none["segments"], json!([]));
}

/// UI-9: that a worker was lost is on record for every turn, also for one that another turn started.
#[tokio::test]
async fn a_timeline_tells_that_a_worker_was_lost() {
    let house = House::open().await;
    let worker = house.key("w", Scope::Worker).await;
    let root = house.run(json!({ "profile_name": "echo", "instruction": "count" })).await;
    let below = house.below(&root).await;
    let claim = async |name: &str| {
        let claim = json!({ "worker": name, "target": "python", "lease_seconds": 1 });
        house.ask(Method::POST, "/worker/claim", Some(&worker), Some(claim)).await.1["turns"][0].clone()
    };
    let turn = claim("w1").await;
    assert_eq!(turn["agent_turn_id"], json!(below), "{turn}");
    // The lease ends by itself.
    tokio::time::sleep(Duration::from_millis(1_300)).await;
    sweep::tick(&house.kernel, &sweep::Config { lease: Duration::ZERO, ..Default::default() }).await.unwrap();
    let segments = house.get(&format!("/turns/{root}/timeline?tree=true")).await["segments"].clone();
    let of_below = segments.as_array().unwrap().iter().filter(|one| one["agent_turn_id"] == json!(below));
    let kinds: Vec<&str> = of_below.map(|one| text(&one["kind"])).collect();
    assert_eq!(kinds, ["lost", "queued"], "{segments}");
    assert_eq!(claim("w2").await["agent_turn_id"], json!(below), "another worker goes on");
}

/// UI-9: a thing is found by its id, by the beginning of it, and an artifact by its path.
#[tokio::test]
async fn a_thing_is_found_by_its_id() {
    let house = House::open().await;
    let turn_id = house.run(json!({ "profile_name": "hand", "instruction": "Bake bread" })).await;
    let turn = house.get(&format!("/turns/{turn_id}")).await["turn"].clone();
    let find = async |q: &str| house.get(&format!("/find?q={q}")).await;
    let wanted = json!([{ "kind": "turn", "id": turn_id, "title": "Bake bread", "href": format!("/turns/{turn_id}") }]);
    assert_eq!(find(&turn_id).await, wanted);
    assert_eq!(find(&turn_id.replace('-', "")).await, wanted);
    let prefix = find(&turn_id[..20]).await;
    assert!(prefix.as_array().unwrap().contains(&wanted[0]), "{prefix}");
    for (field, kind) in [("agent_id", "agent"), ("context_box_id", "box")] {
        let found = find(text(&turn[field])).await;
        assert_eq!((&found[0]["kind"], &found[0]["id"]), (&json!(kind), &turn[field]), "{found}");
        house.get(text(&found[0]["href"])).await;
    }
    let card = find(text(&turn["query_card_ids"][0])).await;
    assert_eq!((&card[0]["kind"], &card[0]["title"]), (&json!("card"), &json!("task.instruction")));
    assert_eq!(find(&TurnId::new().to_string()).await, json!([]));
    assert_eq!(find(&"0".repeat(64)).await, json!([]));
    assert_eq!(find("no/such/path").await, json!([]));
    for wrong in ["", "%00", &"a".repeat(201)] {
        let refused = house.refused(Method::GET, &format!("/find?q={wrong}"), Some(&house.admin), None).await;
        assert_eq!(refused, (400, "invalid".to_owned()), "{wrong:?}");
    }
    let auditor = house.key_for("auditor", Scope::Auditor, Bounds::default()).await;
    let refused = house.refused(Method::GET, &format!("/find?q={turn_id}"), Some(&auditor), None).await;
    assert_eq!(refused, (403, "forbidden".to_owned()));
}

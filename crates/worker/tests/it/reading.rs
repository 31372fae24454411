//! HO-8: what an agent reads of what it was handed, what it costs, and what it may not read.

use serde_json::{Value, json};
use waybill_artifact::Put;
use waybill_core::{
    artifact::{ArtifactPath, Pins},
    card::{CardType, Content, Draft, HandoffContent, NewCard, Role},
};
use waybill_kernel::artifact::Which;

use crate::shop::{Calls, Shop};

fn path(path: &str) -> ArtifactPath {
    path.parse().unwrap()
}

async fn put(shop: &Shop, at: &str, content: &str) {
    let (path, content) = (path(at), content.to_owned().into_bytes());
    shop.artifacts().put_bytes(shop.t.project_id, Put::new(&path), content.into()).await.unwrap();
}

async fn package(shop: &Shop, paths: &[&str]) -> NewCard {
    let mut artifacts = Pins::new();
    for at in paths {
        let found = shop.artifacts().find(shop.t.project_id, &path(at), Which::Newest).await.unwrap();
        artifacts.insert(path(at), found.artifact.hash);
    }
    let package = json!({ "version": "2.0", "handoff_type": "init_to_execute", "timestamp": "2026-01-04T10:30:00",
                          "user_requirement": "r", "design_artifacts": { "rules": "design/rules.md" } });
    let content = Content::Handoff(HandoffContent { package: package.as_object().unwrap().clone(), artifacts });
    Draft::new(CardType::handoff_package(), Role::User, content).seal().unwrap()
}

const TOOLS: [&str; 5] = ["list_artifacts", "plan_reading", "read_artifact", "search_artifacts", "write_artifact"];

/// Makes these calls, and gives what was answered.
async fn answers(
    (shop, script): &(Shop, Calls),
    calls: Vec<(&'static str, Value)>,
    handed: &[&str],
    more: Value,
) -> Vec<(String, Value)> {
    let n = calls.len();
    *script.lock().unwrap() = calls;
    let mut profile = json!({ "allowed_internal_tools": TOOLS });
    profile.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    shop.profile("openai_chat", profile).await;
    let hand = shop.hire();
    let turn_id = shop.ask_with("Go on.", &[package(shop, handed).await], None, None).await;
    assert_eq!(shop.ended(turn_id).await, ("success".into(), json!("done")));
    hand.end().await;
    let results: Vec<(String, Value)> = shop.output(turn_id).await;
    let results: Vec<(String, Value)> = results
        .into_iter()
        .filter(|(card_type, _)| card_type == "tool.result")
        .map(|(_, content)| (content["result"].as_str().unwrap().to_owned(), content))
        .collect();
    assert_eq!(results.len(), n);
    results
}

/// HO-8, HO-5: an artifact is read in the version that was handed over; each answer says what it cost and what is left; other artifacts
/// do not exist for the agent.
#[tokio::test]
async fn what_was_handed_over_is_read_and_counted() {
    let desk = Shop::scripted().await;
    let shop = &desk.0;
    put(shop, "design/rules.md", "# Rules\nDeduct the balance at once.\n").await;
    put(shop, "design/long.txt", &(1..=20_000).map(|n| format!("line {n}\n")).collect::<String>()).await;
    put(
        shop,
        "design/trace.json",
        &json!([{ "role": "user", "content": "hello" }, { "role": "tool", "content": "error" }]).to_string(),
    )
    .await;
    put(shop, "secret/other.md", "of another agent").await;
    let read = |path: &str, part: &str, more: Value| {
        let mut arguments = json!({ "path": path, "part": part });
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("read_artifact", arguments)
    };
    let calls = vec![
        ("list_artifacts", json!({})),
        ("plan_reading", json!({})),
        read("design/rules.md", "whole", json!({})),
        read("design/long.txt", "whole", json!({})),
        read("design/long.txt", "tail", json!({ "max_tokens": 50 })),
        read("design/long.txt", "lines", json!({ "from_line": 7, "to_line": 8 })),
        read("design/trace.json", "json_path", json!({ "json_path": "$[0].content" })),
        read("design/trace.json", "key_turns", json!({ "around": "hello" })),
        ("search_artifacts", json!({ "text": "BALANCE" })),
        read("secret/other.md", "whole", json!({})),
        read("../secret/other.md", "whole", json!({})),
        read("design/long.txt", "head", json!({ "max_tokens": 45_000 })),
    ];
    let handed = ["design/rules.md", "design/long.txt", "design/trace.json"];
    let told = answers(&desk, calls, &handed, json!({})).await;
    let text = |n: usize| told[n].0.as_str();
    assert!(text(0).contains("3 artifacts") && !text(0).contains("secret"), "{}", text(0));
    assert!(text(1).contains("first design/rules.md") && text(1).contains("(beyond what is left)"), "{}", text(1));
    assert!(
        text(2).starts_with("[design/rules.md v1, the whole of it; 10 tokens; ") && text(2).ends_with("at once.\n"),
        "{}",
        text(2)
    );
    assert!(text(3).contains("tokens: read a part of it") && told[3].1["status"] == "failed");
    assert!(text(4).ends_with("line 20000\n"), "{}", text(4));
    assert!(text(5).ends_with("line 7\nline 8\n"));
    assert!(text(6).ends_with("\"hello\"") && text(7).contains("2 key turns of 2"));
    assert!(text(8).contains("design/rules.md:2: Deduct the balance at once."), "{}", text(8));
    assert!(text(9).contains("artifact secret/other.md does not exist, or you may not read it"), "{}", text(9));
    assert!(text(10).contains("is not an artifact path"), "{}", text(10));
    assert!(text(11).contains("beyond the 40000 advised"), "going beyond is allowed: {}", &text(11)[..120]);
    // Counted and on record: which version, how much, how much in all.
    let mut total = 0;
    for (_, content) in told.iter().filter(|(_, content)| content["status"] == "success") {
        total += content["read"]["n_tokens"].as_i64().unwrap();
        assert_eq!(content["read"]["total"].as_i64().unwrap(), total);
    }
    assert!(total > 40_000);
    assert_eq!(told[2].1["read"]["version"], 1);
    // A later version does not change what was handed over; and a folder that the profile names is read as it is now.
    put(shop, "design/rules.md", "# New rules").await;
    let calls = vec![read("design/trace.json", "head", json!({})), read("design/rules.md", "whole", json!({}))];
    let told = answers(&desk, calls, &["design/trace.json"], json!({ "readable_artifacts": ["design"] })).await;
    assert!(told[1].0.contains("design/rules.md v2"), "{}", told[1].0);
}

/// HO-1: what an agent writes is stored before any other agent can learn of it, where its profile lets it write, and may be read again.
#[tokio::test]
async fn what_an_agent_writes_it_may_read() {
    let desk = Shop::scripted().await;
    let shop = &desk.0;
    put(shop, "design/rules.md", "r").await;
    let write = |path: &str, content: &str| ("write_artifact", json!({ "path": path, "content": content }));
    let calls = vec![
        write("out/report.json", "{\"ok\":true}"),
        write("design/rules.md", "changed"),
        ("read_artifact", json!({ "path": "out/report.json", "part": "json_path", "json_path": "$.ok" })),
        write("out/report.json", "{\"ok\":true}"),
    ];
    let told = answers(&desk, calls, &["design/rules.md"], json!({ "writable_artifacts": ["out"] })).await;
    assert!(told[0].0.starts_with("[out/report.json v1 is stored, 11 bytes;"), "{}", told[0].0);
    assert!(told[0].1["artifacts"]["out/report.json"].is_string(), "the card speaks of it");
    assert!(told[1].0.contains("you may not write design/rules.md") && told[1].1["status"] == "failed");
    assert!(told[2].0.ends_with("true"), "{}", told[2].0);
    assert!(told[3].0.contains("v1"), "the same again is the same version");
    let found = shop.artifacts().find(shop.t.project_id, &path("out/report.json"), Which::Newest).await.unwrap();
    assert_eq!(
        (found.artifact.media_type.as_str(), found.artifact.author_id.as_deref()),
        ("application/json", Some("a"))
    );
}

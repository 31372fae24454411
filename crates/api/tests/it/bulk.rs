//! HO-1 … HO-8 over HTTP: artifacts, packages, and requests to people.

use std::path::{Component, Path, PathBuf};

use reqwest::Method;
use serde_json::{Value, json};
use waybill_api::{Config, Limits};
use waybill_artifact::{Artifacts, Store};
use waybill_core::{
    artifact::ArtifactPath,
    id::{CardId, StepId, ToolCallId, UploadId},
    key::Scope,
};
use waybill_kernel::call;
use waybill_orchestrator::command;

use crate::House;

pub(crate) struct Shelf {
    pub(crate) house: House,
    folder: PathBuf,
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Shelf {
    pub(crate) async fn open() -> Shelf {
        let limits = Limits { per_second: 1e9, ..Limits::default() };
        Shelf::open_with(Config { limits, ..Config::default() }).await
    }

    pub(crate) async fn open_with(config: Config) -> Shelf {
        let folder = std::env::temp_dir().join(format!("waybill-bulk-{}", UploadId::new()));
        std::fs::create_dir_all(&folder).unwrap();
        let store = Store::in_folder(folder.join("store")).unwrap();
        let t = waybill_testkit::fresh_db().await;
        let artifacts = Artifacts::new(t.kernel.clone(), store);
        let config = Config { artifacts: Some(artifacts), ..config };
        Shelf { house: House::open_on(t, config).await, folder }
    }

    fn url(&self, below: &str, query: &[(&str, &str)]) -> reqwest::Url {
        let url = format!("{}/v1/projects/acme/artifacts{below}", self.house.base);
        reqwest::Url::parse_with_params(&url, query).unwrap()
    }

    async fn put(&self, path: &str, content: impl Into<reqwest::Body>) -> (u16, Value) {
        let put = self.house.http.put(self.url("", &[("path", path)])).bearer_auth(&self.house.admin);
        let answer = put.body(content).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
    }

    async fn get(&self, query: &[(&str, &str)], range: Option<&str>) -> (u16, Vec<u8>) {
        let mut get = self.house.http.get(self.url("/content", query)).bearer_auth(&self.house.admin);
        if let Some(range) = range {
            get = get.header("range", range);
        }
        let answer = get.send().await.unwrap();
        (answer.status().as_u16(), answer.bytes().await.unwrap().to_vec())
    }
}

/// HO-1: stored, listed, read whole and in part, in any version; removed.
#[tokio::test]
async fn artifacts_go_in_and_out() {
    let shelf = Shelf::open().await;
    let house = &shelf.house;
    let (status, first) = shelf.put("reports/请假.json", "{\"n\":1}").await;
    assert_eq!((status, &first["version"], &first["media_type"]), (200, &json!(1), &json!("application/json")));
    assert_eq!(first["author_id"], "key:admin");
    assert_eq!(shelf.put("reports/请假.json", "{\"n\":1}").await.1["version"], 1);
    assert_eq!(shelf.put("reports/请假.json", "{\"n\":22}").await.1["version"], 2);
    let large: Vec<u8> = (0..12_000_000_u32).map(|n| (n % 253) as u8).collect();
    assert_eq!(shelf.put("reports/large.bin", large.clone()).await.1["n_tokens"], Value::Null);
    let path = ("path", "reports/请假.json");
    assert_eq!(shelf.get(&[path], None).await, (200, b"{\"n\":22}".to_vec()));
    assert_eq!(shelf.get(&[path, ("version", "1")], None).await, (200, b"{\"n\":1}".to_vec()));
    assert_eq!(shelf.get(&[("path", "reports/large.bin")], None).await, (200, large.clone()));
    for (range, from, to) in
        [("bytes=0-9", 0, 10), ("bytes=2000000-", 2_000_000, 12_000_000), ("bytes=-5", 11_999_995, 12_000_000)]
    {
        assert_eq!(
            shelf.get(&[("path", "reports/large.bin")], Some(range)).await,
            (206, large[from..to].to_vec()),
            "{range}"
        );
    }
    assert_eq!(shelf.get(&[path], Some("bytes=9-")).await.0, 416);
    let listed = house.get("/artifacts?prefix=reports/&most=1").await;
    assert_eq!(
        (&listed["items"][0]["path"], &listed["next"]),
        (&json!("reports/large.bin"), &json!("reports/large.bin"))
    );
    let listed = house.get("/artifacts?prefix=reports/&after=reports/large.bin").await;
    assert_eq!((&listed["items"][0]["version"], &listed["next"]), (&json!(2), &Value::Null));
    let versions = "/artifacts/versions?path=reports/%E8%AF%B7%E5%81%87.json&most=1";
    let listed = house.get(versions).await;
    assert_eq!((&listed["items"][0]["version"], &listed["next"]), (&json!(2), &json!("2")));
    let listed = house.get(&format!("{versions}&after=2")).await;
    assert_eq!((&listed["items"][0]["version"], &listed["next"]), (&json!(1), &Value::Null));
    assert_eq!(house.get(&format!("{versions}&after=1")).await["items"], json!([]));
    let refused = house.refused(Method::GET, &format!("{versions}&after=0"), Some(&house.admin), None).await;
    assert_eq!(refused, (400, "invalid".to_owned()));
    let reader = house.key("reader", Scope::Reader).await;
    let (status, _) = house.ask(Method::DELETE, "/artifacts?path=reports/large.bin", Some(&reader), None).await;
    assert_eq!(status, 403);
    let (_, removed) = house.ask(Method::DELETE, "/artifacts?path=reports/large.bin", Some(&house.admin), None).await;
    assert_eq!(removed, json!({ "n_removed": 1 }));
    assert_eq!(shelf.get(&[("path", "reports/large.bin")], None).await.0, 404);
    let refused = house.refused(Method::DELETE, "/artifacts?path=reports/large.bin", Some(&house.admin), None).await;
    assert_eq!(refused, (404, "not_found".to_owned()));
    // Without an object store it says so.
    let plain = House::open().await;
    let (status, said) = plain.ask(Method::GET, "/artifacts/content?path=a", Some(&plain.admin), None).await;
    assert!(status == 503 && said["detail"].as_str().unwrap().contains("--artifacts"));
}

/// Returns where a path would lead, for a program that writes it into a folder.
fn leads(path: &str) -> Option<PathBuf> {
    let mut at = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(part) => at.push(part),
            Component::CurDir => {}
            Component::ParentDir => at.pop().then_some(())?,
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(at)
}

/// Makes 5,000 hostile paths: from pieces, each by itself or with others, in any order.
fn hostile() -> Vec<String> {
    const PIECES: [&str; 44] = [
        "..",
        ".",
        "/",
        "\\",
        "//",
        "../",
        "..\\",
        "~",
        "~root",
        "C:",
        "c:\\",
        "\\\\host\\share",
        "file:",
        "http://x",
        "\0",
        "\u{1}",
        "\n",
        "\r",
        "%2e%2e",
        "%2f",
        "%5c",
        "%00",
        "..%2f",
        "\u{FF0E}\u{FF0E}",
        "\u{2024}\u{2024}",
        "\u{2025}",
        "\u{FF0F}",
        "\u{2215}",
        "\u{2044}",
        "\u{29F8}",
        "\u{FF3C}",
        "\u{2216}",
        "\u{202E}",
        "\u{200B}",
        "\u{FEFF}",
        "\u{FF1A}",
        "etc/passwd",
        "store",
        ".. ",
        " ..",
        "...",
        "a",
        "CON",
        "\u{3002}\u{3002}",
    ];
    let mut state = 20_261_116_u64;
    let mut next = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut paths: Vec<String> = PIECES.iter().map(|piece| (*piece).to_owned()).collect();
    while paths.len() < 5_000 {
        let n = 1 + next(6);
        let parts: Vec<&str> = (0..n).map(|_| PIECES[next(PIECES.len())]).collect();
        let glue = ["", "/", "/", "\\"][next(4)];
        let path =
            format!("{}{}{}", ["", "/", "a/", "../"][next(4)], parts.join(glue), ["", "/x", "/../../../../x"][next(3)]);
        paths.push(path);
    }
    paths
}

/// HO-1: of 5,000 hostile paths none leads out of where it belongs, over HTTP, in the store, or written into a folder.
#[tokio::test]
async fn no_path_escapes() {
    let shelf = Shelf::open().await;
    let outside = shelf.folder.join("outside");
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("x"), "mine").unwrap();
    let (mut accepted, mut refused) = (0, 0);
    for path in hostile() {
        let (status, answer) = shelf.put(&path, "theirs").await;
        match status {
            200 => {
                accepted += 1;
                let stored = answer["path"].as_str().unwrap();
                let at = leads(stored).unwrap_or_else(|| panic!("{path:?} leads out, as {stored:?}"));
                assert_eq!(at, Path::new(stored), "{path:?} leads elsewhere than it says");
                assert!(stored.parse::<ArtifactPath>().is_ok_and(|again| again.as_str() == stored));
                assert_eq!(shelf.get(&[("path", stored)], None).await, (200, b"theirs".to_vec()));
            }
            400 => refused += 1,
            other => panic!("{path:?}: {other} {answer}"),
        }
    }
    assert!(accepted > 20 && refused > 4_000, "{accepted} taken, {refused} refused");
    // The store holds one object, by its upload; nothing was written beside it.
    let beside: Vec<_> = std::fs::read_dir(&shelf.folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(beside.len(), 2, "{beside:?}");
    assert_eq!(std::fs::read(outside.join("x")).unwrap(), b"mine");
    let projects: Vec<_> = std::fs::read_dir(shelf.folder.join("store")).unwrap().collect();
    assert_eq!(projects.len(), 1);
}

/// HO-2 … HO-7 over HTTP: a package is checked, sent once, and its schema can be read.
#[tokio::test]
async fn packages_are_checked_and_sent() {
    let shelf = Shelf::open().await;
    let house = &shelf.house;
    let package = json!({
        "version": "2.0", "handoff_type": "init_to_execute", "timestamp": "2026-01-04T10:30:00", "user_requirement": "samples",
        "design_artifacts": { "rules": "design/rules.md" },
    });
    let verdict = house.post("/handoffs/check", json!({ "package": package })).await;
    assert_eq!((&verdict["ok"], &verdict["problems"][0]["check"]), (&json!(false), &json!("path")), "{verdict}");
    let send = json!({ "profile_name": "echo", "package": package });
    let refused = house.refused(Method::POST, "/handoffs", Some(&house.admin), Some(send.clone())).await;
    assert_eq!(refused, (422, "invalid_package".to_owned()));
    shelf.put("design/rules.md", "# Rules").await;
    assert_eq!(house.post("/handoffs/check", json!({ "package": package })).await["ok"], true);
    let mut sent = Vec::new();
    for _ in 0..2 {
        sent.push(
            house.ask_once(Method::POST, "/handoffs", Some(&house.admin), Some(send.clone()), Some("once")).await,
        );
    }
    assert_eq!((sent[0].0.as_u16(), &sent[0].1), (200, &sent[1].1));
    assert_eq!(house.t.count("select count(*) from state.turns").await, 1);
    assert_eq!(house.t.count("select count(*) from cardbox.pins").await, 1);
    let schema = house.get("/handoff-types/execute_to_init/schema").await;
    assert_eq!(schema["$id"], "urn:waybill:handoff:2.0:execute_to_init");
    let unknown = house.refused(Method::GET, "/handoff-types/no-such/schema", Some(&house.admin), None).await;
    assert_eq!(unknown.0, 404);
    let own = json!({ "handoff_type": { "name": "memo", "schema": { "type": "object", "required": ["memo"] } } });
    house.post("/resources", json!({ "manifests": [own] })).await;
    assert_eq!(house.get("/handoff-types/memo/schema").await["allOf"][0]["required"], json!(["memo"]));
    let broken = json!({ "handoff_type": { "name": "bad", "schema": { "type": 7 } } });
    let refused =
        house.refused(Method::POST, "/resources", Some(&house.admin), Some(json!({ "manifests": [broken] }))).await;
    assert_eq!(refused.0, 400);
}

/// HO-7 over HTTP: a request to people is listed and decided once, and the turn gets the decision.
#[tokio::test]
async fn people_are_asked_and_decide() {
    let house = House::open().await;
    let may = json!({ "profile": {
        "name": "asker", "worker_target": "python", "system_prompt_template": "", "allowed_internal_tools": ["ask_person"],
        "llm_config": { "provider": "demo", "model": "demo" },
    } });
    house.post("/resources", json!({ "manifests": [may] })).await;
    let started = house.post("/turns", json!({ "profile_name": "asker", "instruction": "Ask." })).await;
    let claimed = house.post("/worker/claim", json!({ "worker": "w", "target": "python" })).await;
    let claimed = &claimed["turns"][0];
    let (call, card_id) = (ToolCallId::new(), CardId::new());
    let arguments = json!({ "question": "May I?", "kind": "approval" }).to_string();
    let step = json!({
        "fence": claimed["fence"], "step_id": StepId::new(), "suspend": true,
        "cards": [{ "card_id": card_id, "type": "tool.call", "role": "assistant", "tool_call_id": call,
                    "content": { "tool_name": "ask_person", "arguments": arguments } }],
        "calls": [{ "tool_call_id": call, "tool_call_card_id": card_id, "target": "pmo", "timeout_seconds": 60 }],
    });
    let turn = started["agent_turn_id"].as_str().unwrap();
    house.post(&format!("/turns/{turn}/steps"), step).await;
    let handlers = command::handlers(None);
    let deliver = async || {
        let worker =
            waybill_kernel::lease::start(&house.kernel, &"pmo".parse().unwrap(), std::time::Duration::from_secs(60))
                .await
                .unwrap();
        let mut claiming = waybill_kernel::turn::Claiming::new(worker, "pmo".parse().unwrap());
        let claimed = call::claim(&house.kernel, &mut claiming).await.unwrap().pop().unwrap();
        command::deliver(&house.kernel, &handlers, &claimed).await.unwrap()
    };
    deliver().await;
    let open = house.get("/requests").await;
    let asked = &open["items"][0];
    assert_eq!((&asked["tool_call_id"], &asked["request"]["question"]), (&json!(call), &json!("May I?")), "{open}");
    let decide = format!("/requests/{call}");
    let answered = json!({ "decision": "answered", "answer": "?" });
    assert_eq!(house.refused(Method::POST, &decide, Some(&house.admin), Some(answered)).await.0, 400);
    let reader = house.key("reader", Scope::Reader).await;
    let approved = json!({ "decision": "approved", "note": "go" });
    assert_eq!(house.refused(Method::POST, &decide, Some(&reader), Some(approved.clone())).await.0, 403);
    assert_eq!(house.post(&decide, approved.clone()).await["outcome"], "decided");
    assert_eq!(house.refused(Method::POST, &decide, Some(&house.admin), Some(approved)).await.0, 404);
    assert_eq!(house.get("/requests").await["items"], json!([]));
    deliver().await;
    let box_id = house.get(&format!("/turns/{turn}")).await["turn"]["output_box_id"].as_str().unwrap().to_owned();
    let cards = house.get(&format!("/boxes/{box_id}/cards")).await;
    let told = &cards["items"].as_array().unwrap().last().unwrap()["reading"]["content"];
    assert_eq!((&told["result"]["approved"], &told["result"]["note"]), (&json!(true), &json!("go")), "{told}");
    assert_eq!(house.t.count("select count(*) from state.outbox where event = 'request'").await, 2);
}

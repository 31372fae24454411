//! Every operation of the document has an example, recorded from a real request, and names the scopes that may use it.
//!
//! `UPDATE=1 cargo nextest run -p waybill-api examples` writes `src/recorded.json` and the table in `docs/api.md`. An example that still fits the
//! document stays as it is; delete it to record it again.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use reqwest::{Method, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use waybill_context::framework::Framework;
use waybill_core::key::Scope;
use waybill_orchestrator::command;
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{Config as WorkerConfig, Worker},
};

use crate::{
    House,
    bulk::Shelf,
    document::{Operation, document, operations},
    pages, profile,
    record::{Scribe, walk},
};

/// Operations that have no example, and why.
pub(crate) const WITHOUT: [(&str, &str); 4] = [
    ("begin_login", "it sends the browser to the identity provider"),
    ("finish_login", "the identity provider sends the browser there"),
    ("create_project", "only a server for development answers it"),
    ("list_projects", "only a server for development answers it"),
];

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Example {
    /// The scopes that are not refused.
    pub(crate) scopes: Vec<String>,
    /// The path with its query, as it was sent.
    pub(crate) path: String,
    /// The body: JSON, or text as JSON.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) request: Value,
    pub(crate) status: u16,
    pub(crate) response: Value,
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/recorded.json")
}

/// Reads the examples as they are stored now, which may be newer than those that this program was built with.
pub(crate) fn stored() -> BTreeMap<String, Example> {
    serde_json::from_str(&fs::read_to_string(file()).unwrap()).unwrap()
}

/// UI-8: of every operation, stored is an example that fits its schemas. SE-1: it names its scopes.
#[test]
fn examples_fit_the_document() {
    let (document, stored) = (document(), stored());
    let mut wrong: Vec<String> = operations(&document).iter().flat_map(|one| one.wrong(&document, &stored)).collect();
    let is_known = |name: &str| operations(&document).iter().any(|one| one.name == name);
    let gone = stored.keys().filter(|name| !is_known(name.as_str()));
    wrong.extend(gone.map(|name| format!("{name}: there is no such operation")));
    assert!(wrong.is_empty(), "run with UPDATE=1: {wrong:#?}");
}

/// UI-8, SE-1: what the server answers fits the document, and it refuses the scopes that the document does not name, and no other.
#[tokio::test]
async fn examples_are_recorded_from_real_requests() {
    let shelf = Shelf::open().await;
    let mut scribe = Scribe::new(&shelf.house);
    walk(&mut scribe).await;
    let known = read(&mut scribe).await;
    let (document, mut keys) = (document(), Vec::new());
    for scope in Scope::ALL {
        keys.push((scope, shelf.house.key(&format!("of-{}", scope.as_str()), scope).await));
    }
    let mut unread = Vec::new();
    let mut recorded = BTreeMap::new();
    for operation in operations(&document) {
        let is_done = scribe.examples.contains_key(&operation.name);
        if operation.method == Method::GET && !is_done && !WITHOUT.iter().any(|(name, _)| *name == operation.name) {
            match known.path(&operation, &document) {
                Ok(path) => get(&mut scribe, &operation.name, path).await,
                Err(lacks) => unread.push(format!("{}: `Known` has no `{lacks}`", operation.name)),
            }
        }
        if let Some(example) = scribe.examples.get(&operation.name) {
            let mut example = example.clone();
            example.response = short(example.response);
            example.scopes = scopes(&shelf.house, &keys, &operation.method, &example).await;
            recorded.insert(operation.name.clone(), example);
        }
    }
    let wrong: Vec<String> = operations(&document).iter().flat_map(|one| one.wrong(&document, &recorded)).collect();
    assert!(wrong.is_empty(), "{wrong:#?} {unread:#?}");

    let mut stored = stored();
    if std::env::var_os("UPDATE").is_some() {
        let fits = |one: &Operation| one.wrong(&document, &stored).is_empty();
        let kept: Vec<Operation> = operations(&document).into_iter().filter(fits).collect();
        for (name, example) in &mut recorded {
            if kept.iter().any(|one| one.name == *name) {
                let scopes = std::mem::take(&mut example.scopes);
                *example = Example { scopes, ..stored[name].clone() };
            }
        }
        stored = recorded.clone();
        fs::write(file(), serde_json::to_string_pretty(&stored).unwrap() + "\n").unwrap();
        pages::write(&document, &stored);
    }
    for (name, example) in &recorded {
        assert_eq!(stored.get(name).map(|stored| &stored.scopes), Some(&example.scopes), "{name}: run with UPDATE=1");
    }
}

impl Operation {
    /// Returns why there is no example of this operation, or what is wrong with it.
    fn wrong(&self, document: &Value, examples: &BTreeMap<String, Example>) -> Vec<String> {
        let Operation { name, said, .. } = self;
        let Some(example) = examples.get(name) else {
            if WITHOUT.iter().any(|(without, _)| without == name) {
                return Vec::new();
            }
            return vec![format!("{name}: it has no example: let the walk in record.rs, or `read`, do it")];
        };
        let answers = &said["responses"][example.status.to_string()]["content"];
        let sides =
            [("request", &said["requestBody"]["content"], &example.request), ("response", answers, &example.response)];
        let mut wrong = Vec::new();
        for (side, contents, value) in sides {
            let schema = contents.as_object().and_then(|contents| Some(contents.values().next()?["schema"].clone()));
            match schema {
                None if value.is_null() => {}
                None => wrong.push(format!("{name}: the document has no {side}")),
                Some(_) if value.is_null() && side == "request" && said["requestBody"]["required"] != true => {}
                Some(schema) => {
                    wrong.extend(misfit(document, &schema, value).map(|misfit| format!("{name}: {side}: {misfit}")));
                }
            }
        }
        wrong
    }
}

/// Returns where a value does not fit a schema of the document.
fn misfit(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    let schema = json!({ "allOf": [schema], "components": document["components"] });
    let validator = jsonschema::validator_for(&schema).unwrap();
    validator.validate(value).err().map(|error| format!("{}: {error}", error.instance_path()))
}

/// Shortens an answer: lists have two entries at most, long texts are cut, and keys are not shown.
fn short(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().take(2).map(short).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, short(value))).collect(),
        Value::String(text) if text.starts_with("wb_") => json!("wb_test_ID_SECRET_CHECKSUM"),
        Value::String(text) if text.chars().count() > 600 => json!(text.chars().take(600).collect::<String>() + "…"),
        value => value,
    }
}

/// Sends the request with a key of each scope, and returns the scopes that are not refused. What the request names is there no more, or is in use:
/// other refusals do not count.
async fn scopes(house: &House, keys: &[(Scope, String)], method: &Method, example: &Example) -> Vec<String> {
    let mut may = Vec::new();
    for (scope, key) in keys {
        let mut request =
            house.http.request(method.clone(), format!("{}{}", house.base, example.path)).bearer_auth(key);
        request = match &example.request {
            Value::Null => request,
            Value::String(text) => request.body(text.clone()),
            body => request.header("content-type", "application/json").body(body.to_string()),
        };
        let response = request.send().await.unwrap();
        let refused = response.status() == 403
            && response.text().await.unwrap().contains("may not do this: use a key with one of these scopes");
        if !refused {
            may.push(scope.as_str().to_owned());
        }
    }
    may
}

/// What reads can name, by the parameter of the path or query. A `name` goes by the part of the path before it.
struct Known(BTreeMap<&'static str, String>);

impl Known {
    /// Returns a path, with its query, that names what is there. Fails with the parameter for which nothing is known.
    fn path(&self, operation: &Operation, document: &Value) -> Result<String, String> {
        let (mut path, mut before) = (Vec::new(), "");
        for part in operation.path.split('/') {
            path.push(match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                None => part,
                Some("name") => self.0.get(before).map(String::as_str).ok_or(before)?,
                Some(name) => self.0.get(name).map(String::as_str).ok_or(name)?,
            });
            before = part;
        }
        let mut query = Vec::new();
        for parameter in operation.said["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            if parameter["in"] != "query" || parameter["required"] != true && name != "most" {
                continue;
            }
            let schema = match parameter["schema"]["$ref"].as_str() {
                Some(named) => document.pointer(named.trim_start_matches('#')).unwrap(),
                None => &parameter["schema"],
            };
            let value = self.0.get(name).map(String::as_str).or(schema["enum"][0].as_str()).ok_or(name)?;
            query.push(format!("{name}={value}"));
        }
        let mark = if query.is_empty() { "" } else { "?" };
        Ok(format!("{}{mark}{}", path.join("/"), query.join("&")))
    }
}

/// Reads something with the admin's key.
async fn get(scribe: &mut Scribe<'_>, name: &str, path: String) {
    let house = scribe.house;
    let response = house.http.get(format!("{}{path}", house.base)).bearer_auth(&house.admin).send().await.unwrap();
    let status = response.status();
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let answer = match kind.as_str() {
        "text/event-stream" => json!(events(house, response).await),
        "application/json" => serde_json::from_str(&response.text().await.unwrap()).unwrap(),
        _ => json!(response.text().await.unwrap()),
    };
    assert!(status.is_success(), "{name}: {path}: {status} {answer}");
    scribe.note(
        name,
        Example { scopes: Vec::new(), path, request: Value::Null, status: status.as_u16(), response: answer },
    );
}

/// Returns the first two events of a stream, which may have no end.
async fn events(house: &House, mut response: Response) -> String {
    let start = json!({ "profile_name": "hand", "instruction": "How is cheese made?" });
    house.post("/turns", start).await;
    let mut text = String::new();
    // A comment keeps the connection open.
    let n = |text: &str| {
        text.split_inclusive("\n\n").filter(|event| event.ends_with("\n\n") && !event.starts_with(':')).count()
    };
    let read = async {
        while n(&text) < 2 {
            let Some(chunk) = response.chunk().await.unwrap() else { break };
            text.push_str(&String::from_utf8_lossy(&chunk));
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), read).await;
    text.split_inclusive("\n\n").filter(|event| !event.starts_with(':')).take(2).collect()
}

/// Lets a team work, does the reads that have a body, and returns what there is to read.
async fn read(scribe: &mut Scribe<'_>) -> Known {
    let (house, admin) = (scribe.house, scribe.house.admin.clone());
    let mut lead = profile("lead", "llm");
    let tasks = json!([{ "target_ref": "echo", "instruction": "What is flour?", "target_strategy": "new" }]);
    let script =
        json!([{ "say": "I ask.", "call": { "fork_join": { "tasks": tasks } } }, { "say": "Bread is baked." }]);
    lead["profile"]["allowed_internal_tools"] = json!(["fork_join"]);
    lead["profile"]["delegation_policy"] = json!({ "target_profiles": ["echo"] });
    lead["profile"]["llm_config"]["params"]["script"] = script;
    let plan = json!({ "plan": { "name": "bread", "document": ["knead", "bake"] } });
    house.post("/resources", json!({ "manifests": [lead, plan] })).await;
    let session = house.post("/sessions", json!({ "title": "Bread" })).await["session_id"].clone();
    let agent = house.post("/agents", json!({ "profile_name": "lead" })).await["agent_id"].clone();
    let start = json!({
        "profile_name": "lead", "instruction": "How is bread made?", "session_id": session, "agent_id": agent,
    });
    let started = house.post("/turns", start).await;
    let turn_id = text(&started["agent_turn_id"]);
    run_to_end(house, &format!("/turns/{turn_id}")).await;
    let turn = house.get(&format!("/turns/{turn_id}")).await["turn"].clone();
    let tree = house.get(&format!("/turns/{turn_id}/tree")).await["turns"].clone();
    let child = tree.as_array().unwrap().iter().find(|turn| turn["batch_id"].is_string()).unwrap().clone();
    let card_id = text(&turn["deliverable_card_id"]);

    scribe.ask("put_artifact", &admin, "/artifacts?path=reports/bread.md", json!("# Bread\n")).await;
    let said = json!("Bread is baked from flour, water, salt and yeast.");
    scribe.ask("apply_document", &admin, "/knowledge?path=facts/bread&title=Bread", said).await;
    scribe.ask("show_cards", &admin, "/cards/batch", json!({ "card_ids": [card_id] })).await;
    scribe.ask("show_boxes", &admin, "/boxes/batch", json!({ "box_ids": [turn["output_box_id"]] })).await;
    let question = json!({ "question": "What is bread made of?", "folders": ["facts"] });
    scribe.ask("search_knowledge", &admin, "/knowledge/search", question).await;
    let package = scribe.examples["send_handoff"].request["package"].clone();
    scribe.ask("check_handoff", &admin, "/handoffs/check", json!({ "package": package })).await;
    scribe.ask("verify_context", &admin, &format!("/turns/{turn_id}/context/verify"), json!({})).await;
    let beat = json!({ "worker": "baker", "lease_seconds": 60 });
    house.post("/worker/claim", json!({ "worker": "baker", "target": "python", "lease_seconds": 60 })).await;
    scribe.ask("keep_lease", &admin, "/worker/heartbeat", beat).await;

    let last = |name: &str| scribe.examples[name].path.rsplit('/').next().unwrap().to_owned();
    let id = |value: &Value| text(value).to_owned();
    let fork = id(&scribe.examples["fork_turn"].response["agent_turn_id"]);
    Known(BTreeMap::from([
        ("project", "acme".to_owned()),
        ("turn", turn_id.to_owned()),
        ("agent", id(&turn["agent_id"])),
        ("batch", id(&child["batch_id"])),
        ("box", id(&turn["context_box_id"])),
        ("card", card_id.to_owned()),
        ("session", id(&session)),
        ("call", last("decide_request")),
        ("grant", last("revoke_grant")),
        ("key", last("revoke_key")),
        ("profiles", "lead".to_owned()),
        ("tools", "pay".to_owned()),
        ("plans", "bread".to_owned()),
        ("handoff-types", "init_to_execute".to_owned()),
        ("left", turn_id.to_owned()),
        ("right", id(&child["agent_turn_id"])),
        ("turns", format!("{turn_id},{fork}")),
        ("q", turn_id.to_owned()),
        ("path", "reports/bread.md".to_owned()),
        ("kind", "knowledge".to_owned()),
        ("most", "2".to_owned()),
    ]))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Runs a worker and an orchestrator until the turn has ended.
async fn run_to_end(house: &House, turn: &str) {
    let models = Models::new(Vec::new(), Secrets::new(None, []));
    let worker = Worker::new(house.kernel.clone(), models, Collector::new(Framework::builtin()));
    let over = async {
        while house.get(turn).await["turn"]["status"] == "open" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let commands = command::Config::default();
    let over = async {
        tokio::select! {
            () = over => {}
            _ = command::run(&house.kernel, &commands) => {}
        }
    };
    worker.serve(&WorkerConfig::new("llm".parse().unwrap()), over).await;
}

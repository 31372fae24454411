//! What share of the input of models comes from a provider's prompt cache: siblings of a fork, an expert that sees a history, the turns of a
//! session.
//!
//! Worker and orchestrator are the shipped ones, over PostgreSQL and HTTP. The scripted model remembers prefixes as providers do: exact bytes, tools
//! first, in blocks of 128 tokens. For comparison, it also reports the share with the turn's own facts right after the system prompt, as earlier
//! versions wrote them.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use waybill_bus::local::Local;
use waybill_context::framework::Framework;
use waybill_core::{
    id::{ProjectId, SessionId, TurnId},
    turn::TurnStatus,
};
use waybill_kernel::{project, resource, turn, work::Kernel};
use waybill_orchestrator::{
    command,
    launch::{Launch, launch},
};
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::{Config, Worker},
};

use super::{fresh_database, progress};
use crate::{
    figure::{Bar, Figure},
    model::{Asked, Reply, Server},
};
use waybill_services::Private;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub children: usize,
    /// Tokens that each child inherits.
    pub history: usize,
    pub turns: usize,
}

const DATABASE: &str = "waybill_bench_cache";
/// A block of a provider's cache, in bytes: 128 tokens of about four.
const BLOCK: usize = 512;
const LONGEST: Duration = Duration::from_secs(300);

/// What a provider has cached, and what each kind of caller sent.
#[derive(Default)]
struct Memory {
    known: HashSet<u64>,
    /// For each kind of caller: bytes read, and bytes served from the cache.
    read: BTreeMap<&'static str, (usize, usize)>,
}

impl Memory {
    /// Reads a request and caches it. The first request of a kind finds nothing and is not counted.
    fn read(&mut self, kind: &'static str, text: &str) {
        let (mut hasher, mut served, mut misses) = (DefaultHasher::new(), 0, false);
        for block in text.as_bytes().chunks(BLOCK) {
            block.hash(&mut hasher);
            let is_new = self.known.insert(hasher.finish());
            misses |= is_new;
            if !misses {
                served += block.len();
            }
        }
        let first = !self.read.contains_key(kind);
        let (all, cached) = self.read.entry(kind).or_default();
        if !first {
            *all += text.len();
            *cached += served;
        }
    }

    fn share(&self, kind: &str) -> f64 {
        let (all, cached) = self.read.get(kind).copied().unwrap_or_default();
        if all == 0 { 0.0 } else { cached as f64 / all as f64 }
    }
}

/// Locks the memory, also after a request panicked: what was counted stays.
fn held(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns the text in the order in which a provider reads it: tools, then messages.
fn bytes(body: &Value) -> String {
    let mut text = body["tools"].to_string();
    for message in body["messages"].as_array().into_iter().flatten() {
        text.push_str(&message.to_string());
    }
    text
}

/// Returns the same request with the facts of the turn right after the system prompt.
fn as_it_was(body: &Value) -> Value {
    let mut body = body.clone();
    let Some(messages) = body["messages"].as_array_mut() else { return body };
    let mut facts = None;
    for message in messages.iter_mut() {
        let Some(text) = message["content"].as_str() else { continue };
        if let Some((before, rest)) = text.split_once("<turn__context>")
            && let Some((turn, after)) = rest.split_once("</turn__context>\n\n")
        {
            facts = Some(turn.to_owned());
            message["content"] = Value::from(format!("{before}{after}"));
        }
    }
    if let Some(facts) = facts {
        messages.insert(1, json!({ "role": "system", "content": facts }));
    }
    body
}

/// Returns the kind of caller, which the system prompt shows.
fn kind(asked: &Asked) -> &'static str {
    let first = asked.messages.first().map_or("", |said| said.text.as_str());
    ["sibling", "expert", "talker"].into_iter().find(|kind| first.contains(kind)).unwrap_or("parent")
}

/// Measures on a private PostgreSQL with durability on.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let (kernel, _admin) = fresh_database(&private.server, DATABASE).await?;
    let kernel = kernel.on(Arc::new(Local::default()));
    let (now, before) = (Arc::new(Mutex::new(Memory::default())), Arc::new(Mutex::new(Memory::default())));
    let history: String = (0..options.history / 8).map(|n| format!("fact {n} is that {} follows. ", n * 7)).collect();
    let (memories, n_children) = ([now.clone(), before.clone()], options.children);
    let model = Server::start(move |asked: &Asked| {
        let kind = kind(asked);
        let [now, before] = &memories;
        held(now).read(kind, &bytes(&asked.body));
        held(before).read(kind, &bytes(&as_it_was(&asked.body)));
        answer(asked, kind, &history, n_children)
    })
    .await?;
    let project_id = ProjectId::new();
    open(&kernel, project_id).await?;
    let provider = json!({ "name": "p", "adapter": "openai_chat", "base_url": model.url() });
    let models = Models::new(vec![serde_json::from_value(provider)?], Secrets::new(None, []));
    let worker = Worker::new(kernel.clone(), models, Collector::new(Framework::builtin()));
    let serving = tokio::spawn({
        // One request at a time: of two concurrent requests, neither finds what the other one reads.
        let config = Config { most: 1, ..Config::new("llm".parse()?) };
        async move { worker.serve(&config, std::future::pending()).await }
    });
    let commanding = tokio::spawn({
        let kernel = kernel.clone();
        async move { match command::run(&kernel, &command::Config::default()).await {} }
    });
    let bar = progress("turns that share a prefix", (1 + options.turns) as u64);
    finish(&kernel, project_id, Launch::new("parent".parse()?, "fork")).await?;
    bar.inc(1);
    let session_id = SessionId::new();
    for n in 0..options.turns {
        // About as long as a message between a person and a model.
        let question = format!("Question {n}: {}", "why is that so, and what follows from it? ".repeat(12));
        let wanted = Launch { session_id: Some(session_id), ..Launch::new("talker".parse()?, question) };
        finish(&kernel, project_id, wanted).await?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    serving.abort();
    commanding.abort();
    let (now, before) = (held(&now), held(&before));
    let mut figures = Vec::new();
    for (kind, what, least) in [
        (
            "sibling",
            format!("siblings of a fork of {}, with {} tokens of history", options.children, options.history),
            0.9,
        ),
        ("expert", "an expert with history, asked again".to_owned(), 0.9),
        ("talker", format!("{} turns of a session", options.turns), 0.85),
    ] {
        let bar = Bar::AtLeast(least);
        figures.push(Figure::new(format!("{what}: cached ÷ input"), now.share(kind), "ratio", bar));
        let name = format!("{what}: with the turn's own facts in front, as before");
        figures.push(Figure::new(name, before.share(kind), "ratio", Bar::None));
    }
    Ok(figures)
}

/// Answers as the caller's kind: the parent says much, forks, asks an expert several times, and ends. The others answer once.
fn answer(asked: &Asked, kind: &str, history: &str, n_children: usize) -> Reply {
    let n_results = asked.messages.iter().filter(|said| said.result_of.is_some()).count();
    match (kind, n_results) {
        ("parent", 0) => {
            Reply::say(history).and_call("update_todo", &json!({ "changes": [{ "change": "add", "text": "fork" }] }))
        }
        ("parent", 1) => {
            // The id of its own box is in its prompt.
            let box_id = output_box(asked);
            let task = |n: usize| json!({ "target_ref": "sibling", "instruction": format!("Look at part {n}."), "context_box_id": box_id });
            let tasks: Vec<Value> = (0..n_children).map(task).collect();
            Reply::call("fork_join", &json!({ "tasks": tasks, "deadline_seconds": 250 }))
        }
        ("parent", 2..=5) => {
            let question = format!("Is part {n_results} right?");
            Reply::call(
                "ask_expert",
                &json!({ "expert_profile": "expert", "question": question, "include_history": true }),
            )
        }
        ("talker", _) => Reply::say("It is so because one thing follows from another, as was said before. ".repeat(10)),
        _ => Reply::say("It is."),
    }
}

/// Returns the id of the box that the turn writes, from the facts in its prompt.
fn output_box(asked: &Asked) -> String {
    let facts = asked.messages.iter().find_map(|said| said.text.split_once("holds what you were given, "));
    facts.and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default().to_owned()
}

async fn open(kernel: &Kernel, project_id: ProjectId) -> Result<()> {
    let profile = |name: &str, tools: Value| {
        json!({ "profile": {
            "name": name, "worker_target": "llm",
            "system_prompt_template": format!("You are the {name}. {}", "Be brief, be exact, and say what you do not know. ".repeat(20)),
            "llm_config": { "provider": "p", "model": "m" }, "allowed_internal_tools": tools,
            "delegation_policy": { "target_profiles": ["sibling", "expert"] },
            "memory": { "budget": 200_000 },
        } })
    };
    let mut work = kernel.begin(project_id).await?;
    project::create(&mut work, "cache").await?;
    for (name, tools) in [
        ("parent", json!(["fork_join", "ask_expert", "update_todo"])),
        ("sibling", json!([])),
        ("expert", json!([])),
        ("talker", json!(["update_todo"])),
    ] {
        resource::apply(&mut work, &[serde_json::from_value(profile(name, tools))?]).await?;
    }
    work.commit().await?;
    Ok(())
}

/// Starts a turn and waits until it ends.
async fn finish(kernel: &Kernel, project_id: ProjectId, wanted: Launch) -> Result<TurnId> {
    let mut work = kernel.begin(project_id).await?;
    let turn_id = launch(&mut work, &wanted).await?.agent_turn_id;
    work.commit().await?;
    let begun = tokio::time::Instant::now();
    loop {
        let found = turn::show(&mut kernel.begin(project_id).await?, &[turn_id]).await?;
        match found.first().map(|turn| turn.status) {
            Some(TurnStatus::Open) if begun.elapsed() < LONGEST => tokio::time::sleep(Duration::from_millis(20)).await,
            Some(TurnStatus::Success) => return Ok(turn_id),
            other => ensure!(false, "the turn {turn_id} ended as {other:?}"),
        }
    }
}

//! Compares many conversations with a naive model of what each must contain, while everything is killed now and then. Also checks what a model sees
//! once a summary replaces the beginning of a conversation.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use waybill_context::compose::without_blocks;
use waybill_core::id::SessionId;
use waybill_lab::model::{Asked, Pace, Reply};
use waybill_lab::team::ADAPTERS;

use crate::{
    cli::text,
    talk::{Heard, House},
};

const SUMMARY: &str = "SUMMARY of what was said before";
/// Padding that makes messages long enough to be summarised.
const PADDING: &str = "and much more is to be said about this, at some length, so that it takes its place and is worth to be put into fewer words";

fn is_summary(asked: &Asked) -> bool {
    asked.messages.iter().any(|said| said.text.contains("You keep the memory of an agent"))
}

fn question(asked: &Asked) -> &str {
    let question = asked.messages.iter().rfind(|said| said.role == "user").map_or("", |said| said.text.as_str());
    without_blocks(question).trim()
}

fn script(asked: &Asked) -> Reply {
    if is_summary(asked) {
        return Reply::say(SUMMARY);
    }
    let question = question(asked);
    match question.split_once("todo ") {
        Some((_, what)) if asked.results().next().is_none() => {
            Reply::call("update_todo", &json!({ "changes": [{ "change": "add", "text": what }] }))
        }
        _ => Reply::say(answer(question)),
    }
}

fn answer(question: &str) -> String {
    format!("answer to {question} {PADDING}")
}

/// A profile with a small memory: a few questions and answers fit, and the rest is summarised.
fn small() -> Value {
    json!({ "memory": { "budget": 1_600, "compaction": { "at_percent": 80, "keep": 150, "least": 100 } } })
}

/// Returns what the model saw of the conversation in each request with this question.
fn shown(heard: &Heard, question: &str) -> Vec<(Vec<String>, bool)> {
    let heard = heard.lock().unwrap();
    let mut requests = Vec::new();
    for request in heard.iter() {
        let is_summary = request.iter().any(|(_, text)| text.contains("You keep the memory of an agent"));
        let said = request.iter().filter(|(role, _)| role == "user" || role == "assistant");
        let said: Vec<String> = said.map(|(_, text)| without_blocks(text).trim().to_owned()).collect();
        let Some(at) = said.iter().rposition(|text| text == question).filter(|_| !is_summary) else { continue };
        let n_summaries: usize = request.iter().map(|(_, text)| text.matches(SUMMARY).count()).sum();
        assert!(n_summaries <= 1, "one summary: {request:?}");
        requests.push((said[..at].to_vec(), n_summaries == 1));
    }
    requests
}

/// The naive model of a conversation: everything that was said, in order.
#[derive(Default)]
struct Talk {
    said: Vec<String>,
    todo: Vec<String>,
}

impl Talk {
    /// Asks a question and checks that the model saw everything that was said before: all messages, or a summary and all messages after it.
    #[track_caller]
    fn ask(&mut self, house: &House, session: &str, profile: &str, question: &str) {
        let answered = house.ok(&["run", profile, question, "--session", session]);
        assert_eq!(answered.trim(), answer(question));
        let requests = shown(&house.heard, question);
        assert!(!requests.is_empty(), "{question} was asked");
        for (before, has_summary) in requests {
            assert!(self.said.ends_with(&before), "{question}: {before:?} of {:?}", self.said);
            assert_eq!(has_summary, before.len() < self.said.len(), "{question}: {before:?} of {:?}", self.said);
        }
        self.said.extend([question.to_owned(), answer(question)]);
        if let Some((_, what)) = question.split_once("todo ") {
            self.todo.push(what.to_owned());
        }
    }

    /// Checks what is stored: every message once and in order, and the todo list. Also renders every call again from its receipt.
    #[track_caller]
    fn check(&self, house: &House, session: &str) {
        let shown = house.shown(&["session", "show", session, "--json"]);
        let messages = shown["messages"].as_array().unwrap().iter();
        let messages: Vec<&str> = messages.map(|placed| placed["reading"]["content"].as_str().unwrap()).collect();
        assert_eq!(messages, self.said, "{session}");
        for what in &self.todo {
            assert_eq!(shown["todo"].to_string().matches(what.as_str()).count(), 1, "{what}: {}", shown["todo"]);
        }
        let turns = shown["turns"].as_array().unwrap();
        assert_eq!(turns.len(), self.said.len() / 2, "a turn for each question");
        for turn in turns.iter().take(2) {
            house.ok(&["context", "show", turn["agent_turn_id"].as_str().unwrap()]);
        }
    }
}

/// CX-9, CX-10, CX-14: a session is summarised, then everything is killed and restarted. The next request has the summary, no message twice, and
/// the unchanged todo list.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_stands_in_after_everything_was_killed() {
    for adapter in ADAPTERS {
        let mut house = House::open_with(adapter, small(), script).await;
        house.start();
        let session = SessionId::new().to_string();
        let mut talk = Talk::default();
        talk.ask(&house, &session, "ada", "todo milk");
        for n in 0..10 {
            talk.ask(&house, &session, ["bob", "ada"][n % 2], &format!("question {n} {PADDING}"));
        }
        let before = house.shown(&["session", "show", &session, "--json"]);
        assert!(!before["summary"].is_null(), "{adapter}: a summary stands for the beginning");
        house.kill();
        house.start();
        talk.ask(&house, &session, "ada", "and now?");
        let heard = house.heard.lock().unwrap().last().unwrap().clone();
        let holds = |what: &str| heard.iter().map(|(_, text)| text.matches(what).count()).sum::<usize>();
        assert_eq!((holds(SUMMARY), holds("milk")), (1, 1), "{adapter}: {heard:?}");
        talk.check(&house, &session);
        if adapter == ADAPTERS[0] {
            erases(&house, &session);
        }
    }
}

/// One command erases what was said. The fact that it was erased stays on record.
#[track_caller]
fn erases(house: &House, session: &str) {
    let turns = house.shown(&["session", "show", session, "--json"])["turns"].clone();
    let erased = house.shown(&["session", "erase", session, "--reason", "they asked for it", "--json"]);
    assert!(erased["n_cards"].as_u64().unwrap() >= 24, "{erased}");
    assert!(!house.run(&["session", "show", session]).status.success(), "it is forgotten");
    for turn in turns.as_array().unwrap() {
        let exported = house.ok(&["turn", "export", turn["agent_turn_id"].as_str().unwrap()]);
        assert!(!exported.contains("question") && !exported.contains("milk"), "{exported}");
    }
    assert!(house.ok(&["audit"]).contains("session.erase"));
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Runs one random conversation by two agents, with a small or a large memory.
fn program(house: &House, seed: u64) {
    let mut dice = Dice(seed);
    let session = SessionId::new().to_string();
    let mut talk = Talk::default();
    for n in 0..3 + dice.roll(9) {
        let profile = ["ada", "bob"][usize::try_from(dice.roll(2)).unwrap()];
        let question = match dice.roll(5) {
            0 => format!("program {seed}, todo thing-{seed}-{n}-"),
            1 => format!("program {seed}, question {n}"),
            _ => format!("program {seed}, question {n} {PADDING}"),
        };
        talk.ask(house, &session, profile, &question);
    }
    talk.check(house, &session);
}

/// CX-9, CX-10, CX-14: random conversations, four at a time, while all processes are killed every few seconds. `WAYBILL_CASES=200` is the long run.
#[tokio::test(flavor = "multi_thread")]
async fn random_conversations_are_as_they_must_be() {
    let cases: u64 = std::env::var("WAYBILL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20);
    let mut house = House::open_with("openai_chat", small(), script).await;
    house.start();
    let running = std::mem::take(&mut house.running);
    let (next, is_over) = (std::sync::atomic::AtomicU64::new(0), AtomicBool::new(false));
    let house = &house;
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let mut running = running;
            let mut last = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                if last.elapsed() > Duration::from_secs(6) {
                    for child in &mut running {
                        child.kill().unwrap();
                        child.wait().unwrap();
                    }
                    running = house.processes();
                    last = Instant::now();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            for child in &mut running {
                let _ = child.kill();
                let _ = child.wait();
            }
        });
        let talkers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= cases {
                            return;
                        }
                        program(house, seed);
                    }
                })
            })
            .collect();
        let ends: Vec<_> = talkers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        for end in ends {
            end.unwrap();
        }
    });
}

/// A turn that delegated work without waiting, and was then summarised, still sees which child runs.
#[tokio::test(flavor = "multi_thread")]
async fn children_that_run_are_not_forgotten() {
    let script = |asked: &Asked| {
        if is_summary(asked) {
            return Reply::say("SUMMARY");
        }
        if question(asked) == "be slow" {
            return Reply::say("at last").paced(Pace { before: Duration::from_secs(8), ..Pace::default() });
        }
        let child = json!({ "target_ref": "bob", "instruction": "be slow", "wait": false });
        if asked.messages.iter().any(|said| said.text.contains("SUMMARY")) {
            return Reply::say("I know enough");
        }
        match asked.results().count() {
            0 => Reply::call("delegate_async", &child),
            n if n < 12 => {
                let text = format!("step {n} {PADDING} {PADDING}");
                Reply { text, ..Reply::call("list_artifacts", &json!({})) }
            }
            _ => Reply::say("no summary came"),
        }
    };
    let mut extra = small();
    extra["allowed_internal_tools"] = json!(["delegate_async", "list_artifacts"]);
    extra["delegation_policy"] = json!({ "target_profiles": ["bob"] });
    extra["description"] = json!("Does what\n   it should.");
    let mut house = House::open_with("openai_chat", extra, script).await;
    house.start();
    assert_eq!(house.ok(&["run", "ada", "begin"]).trim(), "I know enough");
    let turns = house.shown(&["turn", "list", "--all", "--json"]);
    let child = turns.as_array().unwrap().iter().find(|turn| turn["profile_name"] == "bob").unwrap();
    let heard = house.heard.lock().unwrap();
    let last = heard.iter().rfind(|request| request.iter().any(|(_, text)| text.contains("SUMMARY"))).unwrap();
    let summary = &last.iter().find(|(_, text)| text.contains("SUMMARY")).unwrap().1;
    assert!(summary.contains(child["agent_turn_id"].as_str().unwrap()), "{summary}");
    assert!(summary.contains("be slow") && summary.contains("still ran"), "{summary}");
}

/// L0-11: trees of profiles without limits that never end, started in every way: the project's settings end each of them, with a deliverable.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_without_limits_ends() {
    let script = |asked: &Asked| {
        let task = |instruction: &str| json!({ "target_ref": "bob", "instruction": instruction });
        let forever = || Reply::call("list_artifacts", &json!({}));
        let package = json!({ "version": "2.0", "handoff_type": "note", "timestamp": "2026-01-01T00:00:00Z" });
        match (question(asked), asked.results().count()) {
            ("tree", 0) => Reply::call("fork_join", &json!({ "tasks": [task("leaf"), task("branch")] })),
            ("tree", 1) => {
                Reply::call("delegate_async", &json!({ "target_ref": "bob", "instruction": "leaf", "wait": true }))
            }
            ("tree", 2) => Reply::call("ask_expert", &json!({ "expert_profile": "bob", "question": "leaf" })),
            ("tree", 3) => {
                Reply::call("send_handoff", &json!({ "target_ref": "bob", "package": package, "wait": true }))
            }
            ("branch", 0) => Reply::call("fork_join", &json!({ "tasks": [task("leaf"), task("leaf")] })),
            _ => forever(),
        }
    };
    let mut extra = json!({ "delegation_policy": { "target_profiles": ["bob"] } });
    extra["allowed_internal_tools"] =
        json!(["fork_join", "delegate_async", "ask_expert", "send_handoff", "list_artifacts"]);
    let mut house = House::open_with("openai_chat", extra, script).await;
    let folder = std::env::temp_dir().join(format!("waybill-tree-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, content: String| {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let settings = json!({ "settings": { "max_steps": 8 } }).to_string();
    let note = json!({ "handoff_type": { "name": "note" } }).to_string();
    let resources = file("resources.yaml", format!("{settings}\n---\n{note}"));
    house.ok(&["apply", "-f", &resources, "--project", "acme"]);
    house.start();
    // Start the whole tree from the command line.
    let ran = house.run(&["run", "ada", "tree", "--json"]);
    assert!(!ran.status.success(), "{}", text(&ran.stdout));
    let tree: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(tree["deliverable"]["reason"], "limit_reached", "{tree}");
    let turns = tree["tree"].as_array().unwrap();
    assert!(turns.len() >= 8, "{turns:?}");
    for turn in turns {
        assert_eq!((&turn["status"], &turn["n_steps"]), (&json!("failed"), &json!(8)), "{turn}");
        assert!(turn["deliverable_card_id"].is_string(), "{turn}");
    }
    // Send a package as a person.
    let package = json!({ "version": "2.0", "handoff_type": "note", "timestamp": "2026-01-01T00:00:00Z" });
    let package = file("package.json", package.to_string());
    let sent = house.shown(&["handoff", "send", &package, "--profile", "bob", "--instruction", "leaf", "--json"]);
    let sent = sent["launched"]["agent_turn_id"].as_str().unwrap().to_owned();
    let root = tree["turn"]["agent_turn_id"].as_str().unwrap();
    let forked = house.run(&["fork", root, "--live-tools", "--json"]);
    assert_eq!(text(&forked.stdout).matches("limit_reached").count(), 2, "what was recorded, and the fork: {forked:?}");
    let begun = Instant::now();
    loop {
        let open = house.shown(&["turn", "list", "--open", "--all", "--json"]);
        if open.as_array().unwrap().is_empty() {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(40), "{open}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let sent = house.shown(&["turn", "show", &sent, "--json"]);
    assert_eq!(sent["deliverable"]["reason"], "limit_reached", "{sent}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// PM-4: a caller passes the handover of the source documents, and then invalid ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_gives_a_handover() {
    let seen: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let sees = seen.clone();
    let mut house = House::open_with("openai_chat", json!({}), move |asked: &Asked| {
        for said in &asked.messages {
            for what in ["the question", "BACKGROUND", "a risk"] {
                *sees.lock().unwrap().entry(what.to_owned()).or_default() += said.text.matches(what).count();
            }
        }
        Reply::say("done")
    })
    .await;
    house.start();
    house.ok(&["run", "ada", "BACKGROUND"]);
    let turns = house.shown(&["turn", "list", "--json"]);
    let context = turns[0]["context_box_id"].as_str().unwrap();
    let file = std::env::temp_dir().join(format!("waybill-handover-{}.yaml", std::process::id()));
    let handover = "
target_profile_config: {profile_name: ada}
context_packing_config:
  pack_arguments:
    - {arg_key: instruction}
    - {arg_key: risks, as_card_type: task.instruction, card_metadata: {role: user}}
  inherit_context:
    include_boxes_from_args: [input_box_ids]
    include_parent: true
";
    std::fs::write(&file, handover).unwrap();
    let path = file.to_str().unwrap();
    let run = |arguments: &str| {
        house.run(&["run", "ada", "the question", "--handover", path, "--arguments", arguments, "--box", context])
    };
    seen.lock().unwrap().clear();
    let done = run(r#"{"risks": ["a risk"]}"#);
    assert!(done.status.success(), "{done:?}");
    let expected = [("the question", 1), ("BACKGROUND", 1), ("a risk", 1)];
    assert_eq!(*seen.lock().unwrap(), expected.map(|(what, n)| (what.to_owned(), n)).into_iter().collect());
    let wrong = run(r#"{"instruction": "other"}"#);
    assert!(text(&wrong.stderr).contains("`arguments` must not contain `instruction`"), "{wrong:?}");
    std::fs::write(&file, handover.replace("task.instruction", "sys.profile")).unwrap();
    let wrong = run(r#"{"risks": ["a risk"]}"#);
    assert!(text(&wrong.stderr).contains("cannot be handed over"), "{wrong:?}");
    std::fs::write(&file, "context_packing_config: {pack_arguments: []}").unwrap();
    let wrong = run("{}");
    assert!(text(&wrong.stderr).contains("no argument of the handover says what to do"), "{wrong:?}");
    std::fs::remove_file(file).unwrap();
}

//! Conversations through the binary and the API, on every provider's format: what the n-th request contains of the earlier ones. The model is
//! scripted, over HTTP; workers and orchestrators are processes that are killed.

use std::{
    io::{Read as _, Write as _},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use waybill_context::compose::without_blocks;
use waybill_core::id::SessionId;
use waybill_lab::{
    model::{Asked, Pace, Reply, Server},
    team::ADAPTERS,
};
use waybill_services::Shared;
use waybill_testkit::{TestDb, fresh_db};

use crate::cli::{json as printed, text, waybill};

/// The requests that the model got, as (role, text) of each message.
pub(crate) type Heard = Arc<Mutex<Vec<Vec<(String, String)>>>>;

pub(crate) struct House {
    pub(crate) t: TestDb,
    nats_url: String,
    providers: std::path::PathBuf,
    pub(crate) heard: Heard,
    /// The raw bodies of the same requests, one per line.
    bodies: Arc<Mutex<String>>,
    _server: Server,
    artifacts: std::path::PathBuf,
    pub(crate) running: Vec<Child>,
}

impl Drop for House {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(&self.providers);
        let _ = std::fs::remove_dir_all(&self.artifacts);
    }
}

/// Repeats the question. "todo" makes it write the todo list, "slow" makes it answer late, "ask" makes it ask a person for approval.
fn script(asked: &Asked) -> Reply {
    let question = asked.messages.iter().rfind(|said| said.role == "user").map_or("", |said| said.text.as_str());
    let question = without_blocks(question).trim();
    if asked.messages.iter().any(|said| said.text.contains("Summarise")) {
        return Reply::say("SUMMARY of what was said");
    }
    if question.starts_with("ask") && asked.results().next().is_none() {
        return Reply::call("ask_person", &json!({ "question": "May I bake?", "kind": "approval" }));
    }
    if question.starts_with("slow") {
        return Reply::say("at last").paced(Pace { before: Duration::from_millis(1_500), ..Pace::default() });
    }
    if question.starts_with("todo") && asked.results().next().is_none() {
        return Reply::call("update_todo", &json!({ "changes": [{ "change": "add", "text": "buy milk" }] }));
    }
    Reply::say(format!("you said: {question}"))
}

impl House {
    async fn open(adapter: &str, extra: Value) -> House {
        House::open_with(adapter, extra, script).await
    }

    pub(crate) async fn open_with(
        adapter: &str,
        extra: Value,
        script: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> House {
        let t = fresh_db().await;
        let nats_url = Shared::get().await.unwrap().nats_url;
        let heard = Heard::default();
        let hears = heard.clone();
        let bodies: Arc<Mutex<String>> = Arc::default();
        let keeps = bodies.clone();
        let server = Server::start(move |asked: &Asked| {
            let said = asked.messages.iter().map(|said| (said.role.clone(), said.text.clone())).collect();
            hears.lock().unwrap().push(said);
            *keeps.lock().unwrap() += &format!("{}\n", asked.body);
            script(asked)
        })
        .await
        .unwrap();
        let providers = std::env::temp_dir().join(format!("waybill-talk-{}.yaml", t.name));
        let provider =
            json!({ "provider": { "name": "p", "adapter": adapter, "base_url": server.url(), "prices": {} } });
        std::fs::write(&providers, provider.to_string()).unwrap();
        let artifacts = std::env::temp_dir().join(format!("waybill-talk-artifacts-{}", t.name));
        std::fs::create_dir_all(&artifacts).unwrap();
        let house = House { t, nats_url, artifacts, providers, heard, bodies, _server: server, running: Vec::new() };
        house.ok(&["project", "create", "acme"]);
        let mut profiles = Vec::new();
        for name in ["ada", "bob"] {
            let mut profile = json!({
                "name": name, "worker_target": "llm", "system_prompt_template": format!("You are {name}."),
                "llm_config": { "provider": "p", "model": "m" }, "allowed_internal_tools": ["update_todo", "ask_person"],
            });
            profile.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            profiles.push(json!({ "profile": profile }).to_string());
        }
        let file = std::env::temp_dir().join(format!("waybill-talk-team-{}.yaml", house.t.name));
        std::fs::write(&file, profiles.join("\n---\n")).unwrap();
        house.ok(&["apply", "-f", file.to_str().unwrap(), "--project", "acme"]);
        std::fs::remove_file(file).unwrap();
        house
    }

    pub(crate) fn environment(&self) -> [(String, String); 5] {
        [
            ("WAYBILL_OWNER_URL".to_owned(), self.t.server.owner_url(&self.t.name)),
            ("WAYBILL_ARTIFACTS".to_owned(), self.artifacts.to_str().unwrap().to_owned()),
            ("WAYBILL_DATABASE_URL".to_owned(), self.t.server.service_url(&self.t.name)),
            ("WAYBILL_NATS_URL".to_owned(), self.nats_url.clone()),
            ("WAYBILL_PROJECT".to_owned(), "acme".to_owned()),
        ]
    }

    pub(crate) fn start(&mut self) {
        self.running = self.processes();
    }

    pub(crate) fn processes(&self) -> Vec<Child> {
        let start = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
            command.args(arguments).envs(self.environment()).spawn().unwrap()
        };
        vec![start(&["orchestrator"]), start(&["worker", "--providers", self.providers.to_str().unwrap()])]
    }

    /// Kills all processes, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.running.clear();
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> std::process::Output {
        let environment = self.environment();
        let environment: Vec<(&str, &str)> = environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        waybill(arguments, &environment)
    }

    #[track_caller]
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text(&output.stdout)
    }

    #[track_caller]
    pub(crate) fn shown(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        printed(&output)
    }

    /// Returns the messages of the last request, without system text and blocks.
    fn last(&self) -> Vec<(String, String)> {
        let heard = self.heard.lock().unwrap();
        let said = heard.last().unwrap().iter().filter(|(role, _)| role == "user" || role == "assistant");
        said.map(|(role, text)| (role.clone(), without_blocks(text).to_owned())).collect()
    }
}

fn pairs(said: &[(&str, &str)]) -> Vec<(String, String)> {
    said.iter().map(|(role, text)| ((*role).to_owned(), (*text).to_owned())).collect()
}

/// CX-9, CX-14, PM-3: ten turns of one session by two agents, with everything killed in the middle. Each request contains every earlier question
/// and answer once and in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_remembered() {
    for adapter in ADAPTERS {
        let mut house = House::open(adapter, json!({})).await;
        house.start();
        let session = house.ok(&["session", "new", "--title", "A talk", "--label", "test"]);
        let session = session.trim();
        let mut said: Vec<(String, String)> = Vec::new();
        for n in 0..10 {
            // This is the same for all formats, so once is enough.
            if n == 6 && adapter == ADAPTERS[0] {
                house.kill();
                house.start();
            }
            let (profile, question) = (["ada", "bob"][n % 2], format!("question {n}"));
            let answer = house.ok(&["run", profile, &question, "--session", session]);
            assert_eq!(answer.trim(), format!("you said: {question}"), "{adapter}");
            said.push(("user".to_owned(), question.clone()));
            assert_eq!(house.last(), said, "{adapter}: request {n}");
            said.push(("assistant".to_owned(), format!("you said: {question}")));
        }
        let shown = house.shown(&["session", "show", session, "--json"]);
        assert_eq!((shown["messages"].as_array().unwrap().len(), &shown["session"]["title"]), (20, &json!("A talk")));
        assert_eq!(shown["turns"].as_array().unwrap().len(), 10);
        for turn in shown["turns"].as_array().unwrap() {
            house.ok(&["context", "show", turn["agent_turn_id"].as_str().unwrap()]);
        }
        assert!(house.ok(&["session", "show", session]).contains("you said: question 9"));
        assert!(house.ok(&["session", "list"]).contains("A talk"));
        let requests = std::env::temp_dir().join(format!("waybill-talk-{}.jsonl", house.t.name));
        for agent in ["You are ada.", "You are bob."] {
            let theirs: String =
                house.bodies.lock().unwrap().split_inclusive('\n').filter(|line| line.contains(agent)).collect();
            assert_eq!(theirs.lines().count(), 5, "{adapter}");
            std::fs::write(&requests, theirs).unwrap();
            house.ok(&["lint", requests.to_str().unwrap()]);
        }
        std::fs::remove_file(requests).unwrap();
        house.ok(&["session", "end", session]);
        let late = house.run(&["run", "ada", "more", "--session", session]);
        assert!(!late.status.success() && text(&late.stderr).contains("has ended"), "{late:?}");
    }
}

/// CX-14: an agent that stays remembers what it was asked, by any caller. In a session, the session remembers.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_remembers() {
    let mut house = House::open("openai_chat", json!({})).await;
    house.start();
    let agent = house.ok(&["agent", "provision", "ada"]);
    let agent = agent.trim();
    house.ok(&["run", "ada", "my name is Ana", "--agent", agent]);
    house.ok(&["run", "ada", "what is my name?", "--agent", agent]);
    let known = [("user", "my name is Ana"), ("assistant", "you said: my name is Ana"), ("user", "what is my name?")];
    assert_eq!(house.last(), pairs(&known));
    // What is said in a session does not leave it.
    let session = SessionId::new().to_string();
    house.ok(&["run", "ada", "a secret", "--agent", agent, "--session", &session]);
    assert_eq!(house.last().len(), 5);
    house.ok(&["run", "ada", "what is the secret?", "--agent", agent]);
    assert!(house.last().iter().all(|(_, text)| !text.contains("a secret")));
    house.ok(&["run", "ada", "what is the secret?", "--agent", agent, "--session", &session]);
    assert!(house.last().iter().any(|(_, text)| text == "a secret"));
}

/// The todo list belongs to the session, and outlives the agent that wrote it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sessions_todo_list_works() {
    let mut house = House::open("openai_chat", json!({})).await;
    house.start();
    let session = SessionId::new().to_string();
    house.ok(&["run", "ada", "todo: milk", "--session", &session]);
    house.kill();
    house.start();
    house.ok(&["run", "bob", "what is left?", "--session", &session]);
    let heard = house.heard.lock().unwrap().last().unwrap().clone();
    assert!(heard.iter().any(|(_, text)| text.contains("buy milk")), "{heard:?}");
}

/// A terminal for a person who chats, on its own pty.
struct Terminal {
    child: Child,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn open(house: &House, arguments: &str) -> Terminal {
        let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_waybill"));
        let mut child = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .envs(house.environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let (writes, mut reads) = (shown.clone(), child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = reads.read(&mut bytes) {
                writes.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        Terminal { child, shown }
    }

    fn type_line(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// Waits until the terminal shows this text.
    #[track_caller]
    fn shows(&self, text: &str) {
        let begun = Instant::now();
        while !self.shown.lock().unwrap().contains(text) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{text:?} in {}", self.shown.lock().unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A chat with a tool call, an approval in the chat, and a worker that is killed in the middle. Then the person leaves and continues the session.
#[tokio::test(flavor = "multi_thread")]
async fn somebody_talks_in_a_terminal() {
    let mut house = House::open("openai_chat", json!({})).await;
    house.start();
    let session = SessionId::new().to_string();
    let mut terminal = Terminal::open(&house, &format!("chat ada --session {session}"));
    terminal.shows("you> ");
    terminal.type_line("todo: milk");
    terminal.shows("update_todo(");
    terminal.shows("ada> you said: todo: milk");
    terminal.type_line("ask them");
    terminal.shows("? May I bake?  [y/n]");
    terminal.type_line("y");
    terminal.shows("(approved)");
    terminal.shows("ada> you said: ask them");
    terminal.type_line("slow, please");
    let is_asked = || house.heard.lock().unwrap().iter().any(|said| said.iter().any(|(_, text)| text.contains("slow")));
    let begun = Instant::now();
    while !is_asked() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", terminal.shown.lock().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    house.kill();
    house.start();
    terminal.shows("at last");
    terminal.type_line("/exit");
    terminal.shows("to continue: waybill chat ada --session");
    let mut again = Terminal::open(&house, &format!("chat ada --session {session}"));
    again.shows("you> slow, please");
    again.type_line("/todo");
    again.shows("buy milk");
}

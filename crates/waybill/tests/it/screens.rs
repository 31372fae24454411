//! What commands show in a terminal and in a pipe, and what people type.

use std::{
    fs::File,
    io::Read,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::json;
use waybill_core::{
    card::Draft,
    id::{AgentId, Target, TurnId},
};
use waybill_kernel::{
    agent, lease,
    turn::{self, DispatchRequest},
};
use waybill_testkit::{TestDb, fresh_db};

use crate::{
    cli::{json, text, waybill},
    dev::Folder,
};

/// Runs a command in a terminal with this many columns, and returns what it showed.
fn in_terminal(columns: u16, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let end = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_waybill"))
        .args(arguments)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(end.try_clone().unwrap())
        .stderr(end)
        .spawn()
        .unwrap();
    let (mut terminal, mut shown, mut part) = (File::from(terminal), Vec::new(), [0; 4096]);
    // Once the last process has closed the terminal, reading fails.
    while let Ok(n @ 1..) = terminal.read(&mut part) {
        shown.extend_from_slice(&part[..n]);
    }
    child.wait().unwrap();
    text(&shown).replace("\r\n", "\n")
}

/// Enqueues a turn for a target, with this id.
async fn a_turn(t: &TestDb, target: &str, turn_id: TurnId) -> DispatchRequest {
    let (target, agent_id): (Target, _) = (target.parse().unwrap(), AgentId::new());
    let question =
        Draft::instruction("Which river runs north, and through how many countries does it run?").seal().unwrap();
    let request =
        DispatchRequest { agent_turn_id: turn_id, ..DispatchRequest::instructed(agent_id, question.card_id()) };
    let mut work = t.begin().await;
    agent::create(&mut work, &[agent_id], &target).await.unwrap();
    turn::enqueue(&mut work, std::slice::from_ref(&request), &[question]).await.unwrap();
    work.commit().await.unwrap();
    request
}

fn end_of(id: &impl ToString) -> String {
    let id = id.to_string();
    id[id.len() - 8..].to_owned()
}

/// UI-14: in a terminal tables fit and ids are short; in a pipe everything is whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_fits_its_terminal_and_is_whole_in_a_pipe() {
    let t = fresh_db().await;
    let (service, project) = (t.server.service_url(&t.name), t.project_id.to_string());
    let environment = [("WAYBILL_DATABASE_URL", service.as_str()), ("WAYBILL_PROJECT", project.as_str())];
    let turn_id = TurnId::new();
    let request = a_turn(&t, "llm", turn_id).await;
    let (whole, context) = (turn_id.to_string(), request.context_box_id.to_string());

    for columns in [80, 120] {
        let listed = in_terminal(columns, &["turn", "list"], &environment);
        assert!(listed.contains(&end_of(&turn_id)) && !listed.contains(&whole), "{listed}");
        assert!(listed.contains("\x1b["), "{listed}");
        let plain = [&environment[..], &[("NO_COLOR", "1")]].concat();
        for arguments in
            [&["turn", "list"][..], &["box", "show", &context], &["turn", "show", &whole], &["config", "show"]]
        {
            let shown = in_terminal(columns, arguments, &plain);
            assert!(!shown.contains('\x1b'), "{shown}");
            let widest = shown.lines().map(|line| line.chars().count()).max().unwrap_or_default();
            assert!(widest <= usize::from(columns), "{arguments:?} is {widest} wide:\n{shown}");
        }
    }
    let listed = text(&waybill(&["turn", "list"], &environment).stdout);
    assert!(listed.contains(&whole) && listed.lines().count() == 2 && !listed.contains('\x1b'), "{listed}");
    let boxed = text(&waybill(&["box", "show", &context], &environment).stdout);
    assert!(boxed.contains("through how many countries does it run?"), "{boxed}");
    let top = text(&waybill(&["top", "--once"], &environment).stdout);
    assert!(top.contains("llm") && top.contains("no relay runs"), "{top}");
    assert!(top.split_whitespace().all(|word| word != "-0"), "{top}");
}

/// UI-14: ids are typed as tables show them. Several that end alike are listed.
#[tokio::test]
async fn an_id_is_typed_by_its_end() {
    let t = fresh_db().await;
    let (service, project) = (t.server.service_url(&t.name), t.project_id.to_string());
    let environment = [("WAYBILL_DATABASE_URL", service.as_str()), ("WAYBILL_PROJECT", project.as_str())];
    let first = TurnId::new();
    let request = a_turn(&t, "llm", first).await;
    let shown = |turn: &str| waybill(&["turn", "show", turn, "--json"], &environment);
    for typed in [end_of(&first), end_of(&first).to_uppercase(), "@last".to_owned()] {
        assert_eq!(json(&shown(&typed))["turn"]["agent_turn_id"], first.to_string(), "{typed}");
    }
    let card = end_of(&request.query_card_ids[0]);
    assert!(text(&waybill(&["card", "show", &card], &environment).stdout).contains("Which river runs north"));
    let boxed = json(&waybill(&["box", "show", &end_of(&request.context_box_id), "--json"], &environment));
    assert_eq!(boxed["box"]["box_id"], request.context_box_id.to_string());
    let session = text(&waybill(&["session", "new"], &environment).stdout);
    for typed in [end_of(&session.trim()), "@last".to_owned()] {
        let found = json(&waybill(&["session", "show", &typed, "--json"], &environment));
        assert_eq!(found["session"]["session_id"], session.trim(), "{typed}");
    }

    // Two that end alike.
    let alike = |id: TurnId| format!("{}abcd1234", &id.to_string()[..28]).parse::<TurnId>().unwrap();
    let twins = [alike(TurnId::new()), alike(TurnId::new())];
    if twins[0] != twins[1] {
        for twin in twins {
            a_turn(&t, "llm", twin).await;
        }
        let refused = shown("abcd1234");
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && twins.iter().all(|twin| said.contains(&twin.to_string())), "{said}");
    }
    let unknown = shown("0000ffff");
    assert!(text(&unknown.stderr).contains("no turn of this project ends with 0000ffff"), "{unknown:?}");
    let malformed = shown("the last one");
    assert!(text(&malformed.stderr).contains("last 8 digits"), "{malformed:?}");
    let no_step = waybill(&["context", "show", "@last/3"], &environment);
    assert!(text(&no_step.stderr).contains("has no step 3: it has 0 steps"), "{no_step:?}");
}

/// UI-14: a reader that closes the pipe early, as `head` does, is no error.
#[tokio::test]
async fn a_closed_pipe_is_no_error() {
    let t = fresh_db().await;
    let (service, project) = (t.server.service_url(&t.name), t.project_id.to_string());
    for command in ["completions bash", "turn list", "config show", "openapi"] {
        let line = format!("set -o pipefail; {} {command} | (exec <&-; sleep 1)", env!("CARGO_BIN_EXE_waybill"));
        let output = Command::new("bash")
            .args(["-c", &line])
            .envs([("WAYBILL_DATABASE_URL", &service), ("WAYBILL_PROJECT", &project)])
            .output()
            .unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{command}: {output:?}");
    }
}

/// UI-14: a turn that no worker serves says so, and how to start one. Ctrl-C leaves the turn running, and says how to go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_worker_is_named() {
    let t = fresh_db().await;
    let service = t.server.service_url(&t.name);
    let environment = [("WAYBILL_DATABASE_URL", service.as_str()), ("WAYBILL_PROJECT", "acme")];
    waybill(&["project", "create", "acme"], &environment);
    let file = std::env::temp_dir().join(format!("waybill-{}.yaml", uuid::Uuid::now_v7()));
    let profile = json!({ "profile": {
        "name": "painter", "worker_target": "gpu", "system_prompt_template": "You paint.", "llm_config": { "provider": "demo", "model": "demo" },
    } });
    std::fs::write(&file, profile.to_string()).unwrap();
    let applied = waybill(&["apply", "-f", file.to_str().unwrap()], &environment);
    assert!(applied.status.success(), "{applied:?}");
    std::fs::remove_file(file).unwrap();
    let wrong = waybill(&["run", "paintr", "a river"], &environment);
    assert!(text(&wrong.stderr).contains("Did you mean `painter`?"), "{wrong:?}");

    let mut running = Command::new(env!("CARGO_BIN_EXE_waybill"))
        .args(["run", "painter", "a river"])
        .envs(environment)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stderr, mut said, mut part) = (running.stderr.take().unwrap(), String::new(), [0; 1024]);
    while !said.contains("waybill worker --target gpu") {
        let n = stderr.read(&mut part).unwrap();
        assert!(n > 0, "it ended: {said}");
        said.push_str(&text(&part[..n]));
    }
    assert!(said.contains("no worker serves the target `gpu`"), "{said}");
    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("the turn goes on. `waybill turn watch "), "{said}");

    let shown = text(&waybill(&["turn", "show", "@last"], &environment).stdout);
    assert!(shown.contains("a river") && shown.contains("waybill worker --target gpu"), "{shown}");
    lease::start(&t.kernel, &"gpu".parse().unwrap(), Duration::from_secs(600)).await.unwrap();
    let shown = text(&waybill(&["turn", "show", "@last"], &environment).stdout);
    assert!(!shown.contains("waybill worker"), "a process serves it: {shown}");
}

/// UI-14: an empty instruction is refused before anything starts, also if there is no database.
#[test]
fn an_empty_instruction_is_refused() {
    let environment =
        [("WAYBILL_DATABASE_URL", "postgres://waybill_service@127.0.0.1:1/app"), ("WAYBILL_PROJECT", "acme")];
    for instruction in ["", " \n"] {
        let refused = waybill(&["run", "editor", instruction], &environment);
        assert!(!refused.status.success(), "{refused:?}");
        assert!(text(&refused.stderr).contains("the instruction is empty"), "{refused:?}");
    }
}

/// UI-14: an empty inbox says so to people, and is an empty list for programs. A chat with an unknown profile opens no session.
#[tokio::test]
async fn an_empty_inbox_says_so() {
    let t = fresh_db().await;
    let (service, project) = (t.server.service_url(&t.name), t.project_id.to_string());
    let environment = [("WAYBILL_DATABASE_URL", service.as_str()), ("WAYBILL_PROJECT", project.as_str())];
    let shown = waybill(&["inbox"], &environment);
    assert_eq!(text(&shown.stdout), "no request waits for a decision\n", "{shown:?}");
    assert_eq!(json(&waybill(&["inbox", "--json"], &environment)), json!([]));
    let refused = waybill(&["chat", "nobody"], &environment);
    assert!(!refused.status.success() && !text(&refused.stdout).contains("session"), "{refused:?}");
    assert!(text(&refused.stderr).contains("there is no profile `nobody`"), "{refused:?}");
}

/// UI-13: if the database is that of a `waybill dev` that does not run, the error says so.
#[test]
fn a_stopped_dev_is_named() {
    let folder = Folder::new("stopped-dev");
    let data = folder.0.join(".waybill");
    std::fs::create_dir(&data).unwrap();
    let settings = "database_url = \"postgres://waybill_service@127.0.0.1:1/app\"\nproject = \"demo\"\n";
    std::fs::write(data.join("waybill.toml"), settings).unwrap();
    let lock = File::create(data.join("dev.lock")).unwrap();
    let said = text(&folder.run("waybill turn list").stderr);
    assert!(said.contains("does not run: start it there (`waybill dev`)"), "{said}");
    assert!(said.contains(&folder.0.display().to_string()) && !said.contains("Start PostgreSQL"), "{said}");
    lock.lock().unwrap();
    let said = text(&folder.run("waybill turn list").stderr);
    assert!(said.contains("no server listens there"), "it runs: {said}");
}

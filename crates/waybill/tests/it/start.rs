//! The pages for newcomers, run as they stand: `README.md`, `docs/start.md`, the request of `docs/coming-from.md`, and `docs/lint.md`.

use std::{
    collections::BTreeMap,
    fs,
    net::{TcpListener, TcpStream},
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use waybill_context::lint::Rule;
use waybill_lab::model::{Asked, Reply, Server};

use crate::{
    cli::{json as printed, text},
    dev::{Dev, Folder, Killed, repository},
};

/// A block of code: its language and its text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(repository().join(page)).unwrap();
    let mut blocks = Vec::new();
    let mut rest = text.as_str();
    while let Some((_, after)) = rest.split_once("\n```") {
        let (language, after) = after.split_once('\n').unwrap();
        let (block, after) = after.split_once("```").unwrap();
        blocks.push((language.to_owned(), block.to_owned()));
        rest = after;
    }
    blocks
}

/// Returns the commands of the first block under a heading of a page, without their comments.
fn commands(page: &str, heading: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join(page)).unwrap();
    let section = text.split(heading).nth(1).unwrap_or_else(|| panic!("{page} has no {heading}"));
    let block = section.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let lines = block.lines().map(|line| line.split(" #").next().unwrap().trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

/// Checks what `waybill demo` said: an answer from the documents, workers that were killed, a person, and commands that work.
fn check_demo(folder: &Folder, shown: &Output) {
    let (told, said) = (text(&shown.stderr), text(&shown.stdout));
    assert!(shown.status.success(), "{told}\n{said}");
    for part in ["kill -9 ", "is taken over", "archivist: Bread ", "publisher asks a person: May this answer"] {
        assert!(told.contains(part), "{part}: {told}\n{said}");
    }
    let parts = [
        "flour, water, salt and yeast",
        "(handbook/en/bread.md v1, lines 5–6)",
        "four hours",
        "8 turns",
        "200000 tokens",
    ];
    for part in parts {
        assert!(said.contains(part), "{part}: {said}");
    }
    let look_closer = said.split("Look closer:").nth(1).unwrap();
    let lines: Vec<&str> = look_closer.lines().map(str::trim).filter(|line| line.starts_with("waybill ")).collect();
    assert_eq!(lines.len(), 7, "{look_closer}");
    for line in lines {
        let output = folder.run(line);
        let said = text(&output.stdout);
        assert!(output.status.success() && !said.is_empty(), "{line}: {output:?}");
        let expected = match line.split(' ').nth(1).unwrap() {
            "replay" => "8 turns, 18 model calls, 0 that cannot be reproduced",
            "fork" => "malted barley",
            "artifact" => "# How is bread made?",
            "inbox" => "approved",
            _ => "",
        };
        assert!(said.contains(expected), "{line}: {said}");
    }
}

/// STYLE.md, section 11: a README is read in one go.
#[test]
fn a_readme_has_at_most_120_lines() {
    for page in ["README.md", "README.zh-CN.md"] {
        let n_lines = fs::read_to_string(repository().join(page)).unwrap().lines().count();
        assert!(n_lines <= 120, "{page} has {n_lines} lines: move details to a page in docs/");
    }
}

/// UI-3: from nothing to a finished run of several agents, without any key, though every worker is killed in the middle.
#[test]
fn the_five_minutes_of_the_readme_are_true() {
    let lines = commands("README.md", "## Five minutes");
    assert_eq!(commands("README.zh-CN.md", "## 五分钟上手"), lines, "both pages show the same commands");
    let [build, path, dev, demo, run, list] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(build, "cargo build --release");
    // The tests' folders have the program there.
    assert_eq!(path, "export PATH=\"$PWD/target/release:$PATH\"");
    let folder = Folder::new("first-run");
    let dev = Dev::start(&folder, dev);
    check_demo(&folder, &folder.run(demo));
    assert!(dev.said().contains("has exited; other workers continue its work"), "{}", dev.said());

    // Run it in a terminal, so that the tree is drawn.
    let ran = folder.run(&format!("script -qec {run:?} /dev/null"));
    let shown = text(&ran.stdout);
    assert!(ran.status.success(), "{shown}\n{}", dev.said());
    for part in ["└─ ", "researcher", "archivist", "7 turns", "malted barley", "handbook/en/beer.md"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let chinese = folder.run("waybill demo --no-kill --yes 豆腐是怎么做的？");
    assert!(chinese.status.success() && text(&chinese.stdout).contains("黄豆、水和凝固剂"), "{chinese:?}");
    let listed = folder.run(list);
    assert!(text(&listed.stdout).contains("editor") && text(&listed.stdout).contains("success"), "{listed:?}");
    // The agent that the page shows can be applied, and both pages show the same one.
    let agent = |page: &str| {
        let text = fs::read_to_string(repository().join(page)).unwrap();
        text.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap().to_owned()
    };
    assert_eq!(agent("README.md"), agent("README.zh-CN.md"));
    fs::write(folder.0.join("clerk.yaml"), agent("README.md")).unwrap();
    let applied = folder.run("waybill apply -f clerk.yaml");
    assert!(applied.status.success(), "{applied:?}");
    look_closer(&folder);
    dev.end(&folder);
}

/// Looks at a run of the editor with every command that the page does not show.
fn look_closer(folder: &Folder) {
    // Other commands: replay the same bytes, compare two calls, and show where the settings come from.
    let waybill = |arguments: &str| folder.run(&format!("waybill {arguments}"));
    let turns = printed(&waybill("turn list --json"));
    let is_run = |turn: &&Value| turn["profile_name"] == "editor" && turn["forked_from"].is_null();
    let turn = turns.as_array().unwrap().iter().find(is_run).unwrap();
    let turn_id = turn["agent_turn_id"].as_str().unwrap();
    let replayed = waybill(&format!("replay {turn_id}"));
    assert!(text(&replayed.stdout).contains("7 turns, 14 model calls, 0 that cannot be reproduced"), "{replayed:?}");
    let card_id = turn["query_card_ids"][0].as_str().unwrap();

    // NX-6: change one card and run the whole tree three times; without a change, use the recorded answers.
    let forked = waybill(&format!("fork {turn_id} --card {card_id}='How is cheese made?' -n 3 --live-tools --json"));
    assert!(forked.status.success(), "{forked:?}");
    let outcomes: Vec<Value> = text(&forked.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(outcomes.len(), 4);
    for outcome in &outcomes[1..] {
        assert_eq!((&outcome["n_turns"], &outcome["tools"]), (&outcomes[0]["n_turns"], &outcomes[0]["tools"]));
        assert_eq!(outcome["context"]["only_right"].as_array().unwrap().len(), 1, "{outcome}");
        assert!(outcome["deliverable"].as_str().unwrap().contains("rennet"), "{outcome}");
    }
    let again = waybill(&format!("fork {turn_id}"));
    assert!(again.status.success(), "{again:?}");
    assert!(text(&again.stdout).contains("again (delivers the same)"), "{again:?}");
    let fork_id = outcomes[1]["agent_turn_id"].as_str().unwrap();
    let first = |turn: &str| {
        json_lines(&waybill(&format!("context list {turn} --json")))[0]["step_id"].as_str().unwrap().to_owned()
    };
    let diff = waybill(&format!("context diff {turn_id}/{} {fork_id}/{}", first(turn_id), first(fork_id)));
    assert!(
        text(&diff.stdout).contains(&format!("- query {card_id}")) || text(&diff.stdout).contains(card_id),
        "{diff:?}"
    );
    let settings = text(&waybill("config show").stdout);
    assert!(settings.contains(".waybill/waybill.toml") && !settings.contains("postgres://"), "{settings}");
    for arguments in ["turn logs", "turn export", "turn show", "turn watch"] {
        let output = waybill(&format!("{arguments} {turn_id}"));
        assert!(output.status.success() && !output.stdout.is_empty(), "{arguments}: {output:?}");
    }
    let batch = printed(&waybill("turn list --all --json"));
    let batch = batch.as_array().unwrap().iter().find_map(|turn| turn["batch_id"].as_str()).unwrap().to_owned();
    assert!(text(&waybill(&format!("batch show {batch}")).stdout).contains("success"));
    let shown = waybill(&format!("box show {}", turn["context_box_id"].as_str().unwrap()));
    assert!(text(&shown.stdout).contains("task.instruction"), "{shown:?}");

    // Delete a project with all its data.
    let key = waybill("keys create ci --scope reader");
    assert!(text(&key.stdout).starts_with("wb_live_"), "{key:?}");
    assert!(text(&waybill("keys rotate ci").stdout).starts_with("wb_live_"));
    assert!(text(&waybill("audit").stdout).contains("key.rotate"));
    assert!(!waybill("project delete demo --yes dmeo").status.success());
    let deleted = waybill("project delete demo --yes demo");
    assert!(text(&deleted.stdout).contains("is deleted"), "{deleted:?}");
}

fn json_lines(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Plays the baker and the clerk of the page.
fn script(asked: &Asked) -> Reply {
    let is_first = asked.results().next().is_none();
    let is_clerk = asked.messages.iter().any(|said| said.text.contains("You are the clerk"));
    match (is_clerk, is_first) {
        (true, true) => Reply::call("stock", &json!({ "item": "flour" })),
        (true, false) => Reply::say(format!("The store room says: {}", asked.last())),
        (false, true) => {
            Reply::call("ask_expert", &json!({ "expert_profile": "clerk", "question": "How much flour?" }))
        }
        (false, false) => Reply::say(format!("Yes. {}", asked.last())),
    }
}

/// UI-3: from nothing to two agents of one's own, with one's own endpoint and tool, by the page alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ten_minutes_of_the_page_are_true() {
    let server = Server::start(script).await.unwrap();
    let folder = Folder::new("start");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let own: BTreeMap<&str, String> = BTreeMap::from([
        ("http://127.0.0.1:11434/v1", server.url()),
        ("127.0.0.1:8000", format!("127.0.0.1:{port}")),
        ("(\"127.0.0.1\", 8000)", format!("(\"127.0.0.1\", {port})")),
    ]);
    let mine = |text: &str| own.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours));
    let (mut dev, mut kept, mut said) = (None, Vec::new(), BTreeMap::new());
    for (language, block) in blocks("docs/start.md") {
        if matches!(language.as_str(), "yaml" | "python") {
            let name = block.lines().next().unwrap().trim_start_matches("# ");
            fs::write(folder.0.join(name), mine(&block)).unwrap();
        }
        for line in block.lines().filter(|_| language == "sh") {
            let (command, remark) = line.split_once(" #").unwrap_or((line, ""));
            let command = mine(command.trim());
            if command.contains("waybill dev") {
                dev = Some(Dev::start(&folder, &format!("env {command}")));
            } else if remark.contains("it stays") {
                kept.push(Killed(folder.shell(&format!("exec {command}")).stderr(Stdio::null()).spawn().unwrap()));
                let begun = Instant::now();
                while TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
                    assert!(begun.elapsed() < Duration::from_secs(30), "{command} does not listen");
                    std::thread::sleep(Duration::from_millis(50));
                }
            } else {
                let output = folder.run(&command);
                assert!(output.status.success(), "{command}: {output:?}\n{}", dev.as_ref().unwrap().said());
                said.insert(command.split(' ').take(2).collect::<Vec<_>>().join(" "), text(&output.stdout));
            }
        }
    }
    assert!(said["waybill run"].contains("Yes.") && said["waybill run"].contains("kilograms"), "{said:?}");
    assert!(said["waybill apply"].contains("baker") && said["waybill apply"].contains("created"), "{said:?}");
    assert!(said["waybill context"].contains("the request is as it was sent"), "{said:?}");
    assert!(said["waybill replay"].contains("2 turns, 4 model calls, 0 that cannot be reproduced"), "{said:?}");
    assert!(said["python3 ask.py"].contains("Yes."), "{said:?}");
    // Two runs of four calls each: the second `ask.py` started nothing.
    assert_eq!(server.n_asked(), 8);

    // The request of the page for those who come from elsewhere starts this clerk.
    let address = dev.as_ref().unwrap().url();
    let address = address.trim_start_matches("http://");
    let (_, request) = blocks("docs/coming-from.md").into_iter().find(|(language, _)| language == "sh").unwrap();
    assert!(request.contains("localhost:7070"), "{request}");
    let sent = folder.run(&request.replace("localhost:7070", address));
    let started: Value = serde_json::from_slice(&sent.stdout).unwrap_or_else(|_| panic!("{sent:?}"));
    let turn = started["agent_turn_id"].as_str().unwrap_or_else(|| panic!("{started}"));
    assert!(request.contains(started["session_id"].as_str().unwrap()), "{started}");
    let answered = folder.run(&format!("waybill turn watch {turn}"));
    assert!(answered.status.success() && text(&answered.stdout).contains("The store room says"), "{answered:?}");
    drop(kept);
    dev.unwrap().end(&folder);
}

/// Each rule has a section with a request that breaks it, which `waybill lint` finds, and one that does not.
#[test]
fn the_examples_of_the_lint_page_are_found() {
    let folder = Folder::new("lint-page");
    let page = fs::read_to_string(repository().join("docs/lint.md")).unwrap();
    // The example that the page opens with: a file, and what is said about it.
    let block = |language: &str| page.split(&format!("```{language}\n")).nth(1).unwrap().split("```").next().unwrap();
    fs::write(folder.0.join("requests.jsonl"), block("text")).unwrap();
    let (command, shown) = block("console").split_once('\n').unwrap();
    let output = folder.run(command.trim_start_matches("$ "));
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), shown), "{output:?}");
    for rule in Rule::ALL {
        let section = page.split(&format!("## `{rule}`")).nth(1).unwrap_or_else(|| panic!("{rule} has no section"));
        let section = section.split("\n## ").next().unwrap();
        let mut examples = section.split("```json\n").skip(1).map(|block| block.split("```").next().unwrap());
        for (name, expected) in [("defect.jsonl", vec![rule.to_string()]), ("fixed.jsonl", vec![])] {
            fs::write(folder.0.join(name), examples.next().unwrap_or_else(|| panic!("{rule} lacks {name}"))).unwrap();
            let output = folder.run(&format!("waybill lint --json {name}"));
            let found: Vec<Value> =
                text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let found: Vec<String> = found.iter().map(|one| one["rule"].as_str().unwrap().to_owned()).collect();
            assert_eq!(found, expected, "{rule}, {name}: {output:?}");
        }
    }
}

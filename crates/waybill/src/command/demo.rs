//! `waybill demo`: shows the demo team at work, kills its workers in the middle, and says what to look at next.

use std::{
    collections::HashSet,
    fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use chrono::Utc;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use waybill_core::{
    artifact::ArtifactPath,
    id::{ProjectId, TurnId},
    request::{Decided, Decision},
    tokens,
    turn::{Status, TurnStatus},
};
use waybill_kernel::{
    request,
    turn::{self, Summary},
    work::{Kernel, UnitOfWork},
};
use waybill_orchestrator::{
    knowledge::{Applied, apply},
    launch::{Launch, launch},
};

use crate::{
    config::LOCK_OF_DEV,
    connect::{self, Place},
    output, tree,
};

/// The documents that the demo team searches, from `examples/demo`.
const HANDBOOK: [(&str, &str); 6] = [
    ("handbook/en/beer.md", include_str!("../../../../examples/demo/handbook/en/beer.md")),
    ("handbook/en/bread.md", include_str!("../../../../examples/demo/handbook/en/bread.md")),
    ("handbook/en/cheese.md", include_str!("../../../../examples/demo/handbook/en/cheese.md")),
    ("handbook/zh/bread.md", include_str!("../../../../examples/demo/handbook/zh/bread.md")),
    ("handbook/zh/green-tea.md", include_str!("../../../../examples/demo/handbook/zh/green-tea.md")),
    ("handbook/zh/tofu.md", include_str!("../../../../examples/demo/handbook/zh/tofu.md")),
];
/// The profile that gets the question. It asks the others.
const FIRST: &str = "publisher";
/// More turns than the team has.
const MOST: i64 = 100;
const LOOK: Duration = Duration::from_millis(150);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The question. The handbook of the demo is about bread, beer and cheese; in Chinese about 面包, 豆腐 and 绿茶.
    #[arg(default_value = "How is bread made?")]
    question: String,
    /// Approve the answer without asking. This is the default if the input is not a terminal.
    #[arg(long)]
    yes: bool,
    /// Do not kill the workers of `waybill dev` in the middle.
    #[arg(long)]
    no_kill: bool,
    /// The data folder of the `waybill dev` that runs.
    #[arg(long, default_value = ".waybill", value_name = "FOLDER")]
    data: PathBuf,
    #[command(flatten)]
    place: Place,
}

/// Stores the documents of the demo.
pub(super) async fn shelve(work: &mut UnitOfWork) -> Result<()> {
    for (path, text) in HANDBOOK {
        let path: ArtifactPath = path.parse().with_context(|| format!("{path} is not a path"))?;
        let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default();
        apply(work, Applied { path: &path, title, text, is_external: false }, "dev").await?;
    }
    Ok(())
}

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    ensure!(!arguments.question.trim().is_empty(), "the question is empty: ask the team something");
    let (kernel, project_id) = arguments.place.open().await?;
    tokens::open();
    let mut work = connect::begin(&kernel, project_id).await?;
    let launched = launch(&mut work, &Launch::new(FIRST.parse()?, arguments.question.clone())).await;
    let root = launched
        .context("the demo team is in the project `demo` of `waybill dev`: name no other project")?
        .agent_turn_id;
    work.commit().await?;

    eprintln!("{}\n", arguments.question);
    let mut show = Show { begun: Instant::now(), said: HashSet::new() };
    let mut killing = !arguments.no_kill;
    let tree = loop {
        let tree = turn::tree(&mut kernel.begin(project_id).await?, root, MOST).await?;
        show.tell(&kernel, project_id, &tree).await?;
        if tree.first().is_none_or(|turn| !turn.status.is_open()) {
            break tree;
        }
        if killing && tree.iter().any(|turn| is(turn, "researcher") && turn.agent_status == Some(Status::Running)) {
            killing = false;
            show.kill(&arguments.data);
        }
        show.decide(&kernel, project_id, root, arguments.yes).await?;
        tokio::time::sleep(LOOK).await;
    };
    let first = tree.first().context("the turn is gone")?;
    let content = turn::delivered(&mut connect::begin(&kernel, project_id).await?, first).await?;
    if as_json {
        output::json(&serde_json::json!({ "turn": first, "tree": tree, "deliverable": content }))?;
    } else {
        let delivered = output::printable(&output::content(content.as_ref()));
        println!("\n{delivered}\n\n{}", tree::draw(&tree, Utc::now()));
        if let Some(most) = first.limits.and_then(|limits| limits.tokens) {
            println!("All of them together could have spent {most} tokens: the limit of the publisher's profile.");
        }
        print_next(first, &tree);
    }
    Ok(if first.status == TurnStatus::Success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is(turn: &Summary, profile: &str) -> bool {
    turn.profile_name.as_ref().is_some_and(|name| name.as_str() == profile)
}

/// Tells on the terminal what happens, each thing once.
struct Show {
    begun: Instant,
    said: HashSet<(TurnId, &'static str)>,
}

impl Show {
    fn say(&self, depth: i32, text: &str) {
        let indent = "  ".repeat(usize::try_from(depth).unwrap_or_default());
        eprintln!("{:>5.1} s  {indent}{}", self.begun.elapsed().as_secs_f64(), output::printable(text));
    }

    async fn tell(&mut self, kernel: &Kernel, project_id: ProjectId, tree: &[Summary]) -> Result<()> {
        for turn in tree {
            let name = turn.profile_name.as_ref().map(ToString::to_string).unwrap_or_default();
            let (turn_id, depth) = (turn.agent_turn_id, turn.recursion_depth);
            if self.said.insert((turn_id, "started")) {
                self.say(depth, &format!("{name} has work"));
            }
            let is_taken_over = turn.n_lost_leases.is_some_and(|n| n > 0);
            if is_taken_over && self.said.insert((turn_id, "taken over")) {
                self.say(depth, &format!("{name} is taken over: another worker goes on from what was written"));
            }
            if !turn.status.is_open() && self.said.insert((turn_id, "ended")) {
                let content = turn::delivered(&mut kernel.begin(project_id).await?, turn).await?;
                self.say(depth, &format!("{name}: {}", output::short(&output::content(content.as_ref()), 80)));
            }
        }
        Ok(())
    }

    /// Kills the workers of `waybill dev`, and says so.
    fn kill(&self, data: &Path) {
        let killed = kill_workers(data);
        if killed.is_empty() {
            self.say(0, "(no worker process was found to kill: `waybill dev --workers 2` runs workers as processes)");
            return;
        }
        let pids: Vec<String> = killed.iter().map(ToString::to_string).collect();
        self.say(0, &format!("kill -9 {}: every worker is dead, in the middle of its work", pids.join(" ")));
    }

    /// Shows a request of the turn to the person at the terminal, and carries out the decision.
    async fn decide(&mut self, kernel: &Kernel, project_id: ProjectId, root: TurnId, yes: bool) -> Result<()> {
        let open = request::open(&mut kernel.begin(project_id).await?, MOST).await?;
        let Some(open) = open.into_iter().find(|open| open.agent_turn_id == root) else { return Ok(()) };
        if !self.said.insert((root, "asked")) {
            return Ok(());
        }
        self.say(0, &format!("{FIRST} asks a person: {}", open.request.question));
        let decision = if yes || !io::stdin().is_terminal() {
            let why = if yes { "--yes" } else { "its input is not a terminal, so it asks no person" };
            self.say(0, &format!("approved by this command ({why})"));
            Decision::Approved
        } else {
            eprintln!("\n{}\n", output::printable(open.request.about["answer"].as_str().unwrap_or_default()));
            let Some(decision) = ask().await? else {
                let id = output::id(&open.tool_call_id);
                self.say(
                    0,
                    &format!(
                        "nothing is decided: the request waits in `waybill inbox`. Decide in another terminal with \
                         `waybill approve {id}` or `waybill reject {id}`"
                    ),
                );
                return Ok(());
            };
            decision
        };
        let mut work = kernel.begin(project_id).await?;
        let decided = Decided::new(decision, connect::actor());
        let outcome = request::decide_as(&mut work, open.tool_call_id, &decided).await;
        match outcome {
            Ok(_) => work.commit().await?,
            // A person was faster, with `waybill approve` or `waybill reject`.
            Err(request::Refused::Gone(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Asks the person at the terminal until the answer is clear. `None` means that the input ended without an answer.
async fn ask() -> Result<Option<Decision>> {
    loop {
        eprint!("Approve it? [Y/n] ");
        let line = tokio::task::spawn_blocking(|| io::stdin().lines().next()).await?;
        let Some(line) = line.transpose()? else {
            eprintln!();
            return Ok(None);
        };
        match line.trim().to_lowercase().as_str() {
            "" | "y" | "yes" => return Ok(Some(Decision::Approved)),
            "n" | "no" => return Ok(Some(Decision::Rejected)),
            _ => eprintln!("Type y to approve it, or n to reject it."),
        }
    }
}

/// Kills the worker processes of the `waybill dev` that uses this data folder. Returns their process ids; none if they cannot be found.
fn kill_workers(data: &Path) -> Vec<i32> {
    let Some(dev) = fs::read_to_string(data.join(LOCK_OF_DEV)).ok().and_then(|said| {
        let (_, pid) = said.trim().rsplit_once("process ")?;
        pid.parse::<i32>().ok()
    }) else {
        return Vec::new();
    };
    let is_worker = |pid: &i32| {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let status = read("status");
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<i32>().ok());
        let is_child = parent == Some(dev);
        is_child && read("cmdline").split('\0').any(|argument| argument == "--with-parent")
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    let workers: Vec<i32> = pids.filter(is_worker).collect();
    let is_killed = |pid: &i32| Pid::from_raw(*pid).is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok());
    workers.into_iter().filter(is_killed).collect()
}

/// Prints the commands that look closer at this run.
fn print_next(first: &Summary, tree: &[Summary]) {
    let root = first.agent_turn_id;
    println!("\nLook closer:\n");
    let line = |command: String, what: &str| println!("  waybill {command}\n      {what}");
    line(format!("turn show {root}"), "the steps of the first agent: model, tokens, cost, limits");
    line(format!("replay {root}"), "every model call of the tree, rendered again: are the bytes the same?");
    if let Some(turn) = tree.iter().find(|turn| is(turn, "archivist")) {
        line(format!("context show {}", turn.agent_turn_id), "what one model saw, and the card behind each message");
    }
    let editor = tree.iter().find(|turn| is(turn, "editor"));
    if let Some((turn, card_id)) = editor.and_then(|turn| Some((turn, turn.query_card_ids.first()?))) {
        line(format!("card sight {card_id}"), "which agents could see the editor's question, and why");
        let fork = format!("fork {} --card {card_id}=\"How is beer made?\" --live-tools", turn.agent_turn_id);
        line(fork, "the same work with one card changed, and both runs compared");
    }
    line("inbox --decided".to_owned(), "which person decided what");
    line("artifact get reports/answer.md -".to_owned(), "the report that was published");
}

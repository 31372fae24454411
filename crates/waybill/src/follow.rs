//! Follows a run until it ends: what its turns write, call and get back, which turns start and end, and which are taken over from a lost worker.
//!
//! In a terminal the tree of turns is drawn below these lines, with the text that is being written. Elsewhere there are only lines.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{self, IsTerminal},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use chrono::Utc;
use futures::{
    StreamExt,
    stream::{BoxStream, SelectAll},
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use waybill_core::{
    card::{CardType, Reading},
    id::{ProjectId, TurnId},
    request::Kind,
};
use waybill_kernel::{
    request,
    turn::{self, Summary, Unserved},
    work::{Kernel, UnitOfWork},
};
use waybill_services::interrupted;

use crate::{
    connect,
    live::Live,
    output,
    story::{self, Story},
    tree,
};

/// Turns of a tree that are read. Of a larger tree, the oldest are shown.
const MOST: i64 = 2_000;
/// Turns of which lines are printed. The others are only counted.
const MOST_TOLD: usize = 50;
/// Turns whose text is shown while it is written.
const MOST_LIVE: usize = 8;
const LOOK: Duration = Duration::from_millis(200);
/// How long a turn waits before a missing worker is reported. Workers look for work more often.
const PATIENCE: Duration = Duration::from_secs(4);
/// How often is looked for what holds turns up.
const CHECK: Duration = Duration::from_secs(2);
/// Requests of the project that are looked through for those of the run, the newest first.
const MOST_ASKED: i64 = 200;
/// Characters of a question to a person.
const MOST_QUESTION: usize = 300;
/// Characters of the text that is being written.
const MOST_WRITING: usize = 300;
/// How a shell reports a command that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// A run to follow.
pub(crate) struct Run<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) project_id: ProjectId,
    pub(crate) root: TurnId,
    pub(crate) live: &'a Live,
}

/// Waits until the root turn has ended, and prints to standard error what happens if `show` is set. Returns the whole tree. `None` means that the
/// person left with Ctrl-C; the turn goes on.
pub(crate) async fn follow(run: &Run<'_>, show: bool) -> Result<Option<Vec<Summary>>> {
    let mut interrupted = std::pin::pin!(interrupted());
    let mut teller = Teller::new(Screen::new(show));
    let mut pieces = SelectAll::<BoxStream<'static, Vec<u8>>>::new();
    let mut live = BTreeSet::new();
    loop {
        let mut work = run.kernel.begin(run.project_id).await?;
        let tree = turn::tree(&mut work, run.root, MOST).await?;
        ensure!(!tree.is_empty(), "there is no turn {} in this project", run.root);
        teller.look(&mut work, &tree).await?;
        drop(work);
        if !tree[0].status.is_open() {
            teller.end(&tree);
            return Ok(Some(tree));
        }
        for turn in tree.iter().filter(|turn| show && turn.status.is_open()) {
            if live.len() < MOST_LIVE && live.insert(turn.agent_turn_id) {
                pieces.push(run.live.pieces(run.kernel, run.project_id, turn.agent_id, turn.agent_turn_id));
            }
        }
        let next = tokio::time::Instant::now() + LOOK;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => break,
                Some(piece) = pieces.next() => teller.hear(&piece),
                heard = &mut interrupted => {
                    heard?;
                    teller.leave(run.root);
                    return Ok(None);
                }
            }
        }
    }
}

/// Returns the exit code of a command whose person left.
pub(crate) fn left() -> ExitCode {
    ExitCode::from(INTERRUPTED)
}

/// Returns what holds these turns up, with the command that helps: a person who must decide, a worker or a service that does not run, and attempts
/// that failed.
pub(crate) async fn held_up(work: &mut UnitOfWork, tree: &[Summary]) -> Result<Vec<String>> {
    let open: Vec<TurnId> = tree.iter().filter(|turn| turn.status.is_open()).map(|turn| turn.agent_turn_id).collect();
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let mut lines = asked(work, tree, &open).await?;
    let unserved = turn::unserved(work, &open, PATIENCE).await?;
    let stopped = if unserved.is_empty() { None } else { connect::stopped_dev() };
    for Unserved { agent_turn_id, target, is_call } in unserved {
        let who = name_of(tree, agent_turn_id);
        let target = target.as_str();
        let why = match (is_call, target, stopped.as_deref()) {
            (false, "llm", Some(stopped)) => format!("a worker, and {stopped}"),
            (true, "pmo", Some(stopped)) => format!("the orchestrator, and {stopped}"),
            (true, "tools", Some(stopped)) => format!("a tool, and {stopped}"),
            (false, _, _) => {
                format!(
                    "a worker: no worker serves the target `{target}`. Start one: `waybill worker --target {target}`"
                )
            }
            (true, "pmo", None) => "the orchestrator, and none runs. Start one: `waybill orchestrator`".to_owned(),
            (true, "tools", None) => "a tool, and no worker calls tools. Start one: `waybill worker`".to_owned(),
            (true, _, _) => format!("a tool: no service answers calls with the target `{target}`. Start that service"),
        };
        let line = format!("{who} waits for {why}");
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    for (turn_id, n) in turn::failing(work, &open).await? {
        let who = name_of(tree, turn_id);
        let attempts = if n == 1 { "1 attempt has".to_owned() } else { format!("{n} attempts have") };
        lines.push(format!("{who} is tried again: {attempts} failed so far, and the log of its worker says why"));
    }
    Ok(lines)
}

/// Returns what turns of the tree ask a person, each with the commands that decide it.
async fn asked(work: &mut UnitOfWork, tree: &[Summary], open: &[TurnId]) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for asked in request::list(work, request::State::Open, None, MOST_ASKED).await? {
        let Some(request) = asked.request.filter(|_| open.contains(&asked.agent_turn_id)) else { continue };
        let who = name_of(tree, asked.agent_turn_id);
        let id = output::id(&asked.tool_call_id);
        let how = match request.kind {
            Kind::Approval => format!("Decide with `waybill approve {id}` or `waybill reject {id}`"),
            Kind::Question => format!("Answer with `waybill answer {id} ANSWER`"),
        };
        let question = output::short(&request.question, MOST_QUESTION);
        let end = if question.ends_with(['?', '.', '!', '…', '？', '。', '！']) { "" } else { "." };
        lines.push(format!("{who} asks a person: {question}{end} {how}"));
    }
    // The oldest first.
    lines.reverse();
    Ok(lines)
}

/// Returns the name of a turn of the tree.
fn name_of(tree: &[Summary], turn_id: TurnId) -> String {
    tree.iter().find(|turn| turn.agent_turn_id == turn_id).map(tree::name).unwrap_or_default()
}

/// Says that a turn goes on although the person leaves, and how to see and stop it.
pub(crate) fn goes_on(turn_id: TurnId) -> String {
    format!("the turn goes on. `waybill turn watch {turn_id}` shows it, `waybill turn stop {turn_id}` stops it")
}

/// Where a run is shown.
enum Screen {
    /// A terminal, where the tree is drawn again and again.
    Drawn(ProgressBar),
    Lines,
    /// Only what a person must know.
    Notes,
}

impl Screen {
    fn new(show: bool) -> Screen {
        if !show {
            return Screen::Notes;
        }
        if io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{msg}").expect("a template"));
            return Screen::Drawn(bar);
        }
        Screen::Lines
    }

    fn line(&self, line: &str) {
        match self {
            Screen::Drawn(bar) => bar.println(output::printable(line)),
            Screen::Lines | Screen::Notes => eprintln!("{}", output::printable(line)),
        }
    }
}

/// What was told of a turn.
#[derive(Default)]
struct Told {
    state: Option<(&'static str, i64)>,
    has_ended: bool,
    lost: i32,
    /// How far its output box was read.
    upto: i64,
    story: Story,
}

/// A text that a model is writing.
#[derive(Default)]
struct Writing {
    /// The step and the attempt: another one begins from the start.
    of: (Value, Value),
    text: String,
}

/// Tells what happens in a run.
struct Teller {
    screen: Screen,
    begun: Instant,
    checked: Instant,
    told: HashMap<TurnId, Told>,
    noted: BTreeSet<String>,
    writing: BTreeMap<TurnId, Writing>,
}

impl Teller {
    fn new(screen: Screen) -> Teller {
        let now = Instant::now();
        Teller {
            screen,
            begun: now,
            checked: now,
            told: HashMap::new(),
            noted: BTreeSet::new(),
            writing: BTreeMap::new(),
        }
    }

    /// Tells what is new since the last look.
    async fn look(&mut self, work: &mut UnitOfWork, tree: &[Summary]) -> Result<()> {
        if !matches!(self.screen, Screen::Notes) {
            for turn in tree.iter().take(MOST_TOLD) {
                self.tell(work, tree, turn).await?;
            }
        }
        if self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            for line in held_up(work, tree).await? {
                if self.noted.insert(line.clone()) {
                    self.screen.line(&line);
                }
            }
        }
        self.draw(tree);
        Ok(())
    }

    /// Tells what is new of a turn.
    async fn tell(&mut self, work: &mut UnitOfWork, tree: &[Summary], turn: &Summary) -> Result<()> {
        let begun = self.begun;
        let line = |text: &str| {
            let start = format!(
                "{:>6.1} s  {}{}  ",
                begun.elapsed().as_secs_f64(),
                "  ".repeat(tree::depth(tree, turn)),
                tree::name(turn)
            );
            let below = format!("\n{}", " ".repeat(start.chars().count()));
            format!("{start}{}", text.trim_end().replace('\n', &below))
        };
        let told = self.told.entry(turn.agent_turn_id).or_default();
        let before = told.state.replace((tree::state(turn), turn.n_steps));
        if before.is_none() {
            self.screen.line(&line(&format!("started  ({})", output::id(&turn.agent_turn_id))));
        }
        let lost = turn.n_lost_leases.unwrap_or_default();
        if lost > told.lost {
            self.screen.line(&line(&format!("taken over {lost}×: its worker was lost, and another worker goes on")));
        }
        told.lost = lost;
        let is_root = turn.agent_turn_id == tree[0].agent_turn_id;
        if before == told.state && !is_root {
            return Ok(());
        }
        for placed in story::written(work, turn, told.upto).await? {
            told.upto = placed.place;
            self.writing.remove(&turn.agent_turn_id);
            let Reading::Live(card) = &placed.reading else { continue };
            // What the run delivers is the result of the command.
            let is_result = is_root && card.metadata.card_type == CardType::deliverable();
            if !is_result {
                self.screen.line(&line(&told.story.tell(card)));
            }
        }
        if !turn.status.is_open() && !std::mem::replace(&mut told.has_ended, true) {
            self.screen.line(&line(&tree::said(turn, Utc::now())));
        }
        Ok(())
    }

    /// Takes up a piece of a text that is being written.
    fn hear(&mut self, piece: &[u8]) {
        let Ok(piece) = serde_json::from_slice::<Value>(piece) else { return };
        let turn_id = piece["agent_turn_id"].as_str().and_then(|turn_id| turn_id.parse().ok());
        let (Some(turn_id), Some(text)) = (turn_id, piece["text"].as_str()) else { return };
        let writing = self.writing.entry(turn_id).or_default();
        let of = (piece["step_id"].clone(), piece["attempt"].clone());
        if writing.of != of {
            *writing = Writing { of, text: String::new() };
        }
        writing.text.push_str(text);
    }

    /// Draws the tree, and the text that is being written above it.
    fn draw(&self, tree: &[Summary]) {
        let Screen::Drawn(bar) = &self.screen else { return };
        let mut drawn = String::new();
        for turn in tree.iter().filter(|turn| turn.status.is_open()) {
            let Some(writing) = self.writing.get(&turn.agent_turn_id) else { continue };
            let n = writing.text.chars().count();
            let end: String = writing.text.chars().skip(n.saturating_sub(MOST_WRITING)).collect();
            drawn.push_str(&format!("{} writes: {}\n", tree::name(turn), output::short(&end, MOST_WRITING)));
        }
        drawn.push_str(&tree::draw(tree, Utc::now()));
        bar.set_message(output::printable(&drawn));
    }

    fn end(self, tree: &[Summary]) {
        if let Screen::Drawn(bar) = self.screen {
            bar.finish_and_clear();
            eprintln!("{}", tree::draw(tree, Utc::now()));
        }
    }

    /// Says how to go on, because the person leaves.
    fn leave(self, root: TurnId) {
        if let Screen::Drawn(bar) = self.screen {
            bar.finish_and_clear();
        }
        eprintln!("{}", goes_on(root));
    }
}

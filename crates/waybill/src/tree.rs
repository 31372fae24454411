//! Shows a run to people: the tree of its turns, with the tokens and cost of each.

use std::{
    collections::HashMap,
    fmt::Write as _,
    io::{self, IsTerminal},
    time::Duration,
};

use anyhow::{Result, ensure};
use chrono::{DateTime, Utc};
use indicatif::{ProgressBar, ProgressStyle};
use waybill_core::{
    id::{ProjectId, TurnId},
    turn::{Status, TurnStatus},
};
use waybill_kernel::{
    turn::{self, Summary},
    work::Kernel,
};

/// Turns of a tree that are read. Of a larger tree, the oldest are shown.
const MOST: i64 = 2_000;
const LOOK: Duration = Duration::from_millis(200);
/// Children of one turn that are drawn. The others are only counted.
const MOST_DRAWN: usize = 20;

/// Waits until the root turn has ended, and shows progress if `show` is set. Returns the whole tree.
pub(crate) async fn watch(kernel: &Kernel, project_id: ProjectId, root: TurnId, show: bool) -> Result<Vec<Summary>> {
    let mut screen = show.then(Screen::new);
    loop {
        let tree = turn::tree(&mut kernel.begin(project_id).await?, root, MOST).await?;
        ensure!(!tree.is_empty(), "there is no turn {root} in this project");
        if let Some(screen) = &mut screen {
            screen.show(&tree);
        }
        if !tree[0].status.is_open() {
            if let Some(screen) = screen {
                screen.end(&tree);
            }
            return Ok(tree);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A terminal where the tree is redrawn, or plain lines if there is no terminal.
enum Screen {
    Drawn(ProgressBar),
    Lines { seen: HashMap<TurnId, (&'static str, i64)>, begun: DateTime<Utc> },
}

impl Screen {
    fn new() -> Screen {
        if io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{msg}").expect("a template"));
            return Screen::Drawn(bar);
        }
        Screen::Lines { seen: HashMap::new(), begun: Utc::now() }
    }

    fn show(&mut self, tree: &[Summary]) {
        match self {
            Screen::Drawn(bar) => bar.set_message(draw(tree, Utc::now())),
            Screen::Lines { seen, begun } => {
                for turn in tree {
                    let now = (state(turn), turn.n_steps);
                    if seen.get(&turn.agent_turn_id) != Some(&now) {
                        let after = (Utc::now() - *begun).as_seconds_f64();
                        eprintln!(
                            "{after:>6.1} s  {}{}  {}",
                            "  ".repeat(depth(tree, turn)),
                            name(turn),
                            said(turn, Utc::now())
                        );
                        seen.insert(turn.agent_turn_id, now);
                    }
                }
            }
        }
    }

    fn end(self, tree: &[Summary]) {
        if let Screen::Drawn(bar) = self {
            bar.finish_and_clear();
            eprintln!("{}", draw(tree, Utc::now()));
        }
    }
}

fn depth(tree: &[Summary], turn: &Summary) -> usize {
    let parent = |turn: &Summary| tree.iter().find(|other| Some(other.agent_turn_id) == turn.parent_agent_turn_id);
    std::iter::successors(parent(turn), |turn| parent(turn)).count()
}

/// Returns one word for what a turn is doing or how it ended.
pub(crate) fn state(turn: &Summary) -> &'static str {
    if !turn.status.is_open() {
        return turn.status.as_str();
    }
    match (turn.agent_status, turn.inbox_status) {
        (Some(Status::Suspended), _) => "waiting",
        (Some(status), _) => status.as_str(),
        (None, Some(status)) => status.as_str(),
        (None, None) => turn.status.as_str(),
    }
}

fn name(turn: &Summary) -> String {
    turn.profile_name.as_ref().map_or_else(|| turn.agent_id.to_string(), ToString::to_string)
}

fn said(turn: &Summary, now: DateTime<Utc>) -> String {
    let seconds = (turn.finished_at.unwrap_or(now) - turn.created_at).as_seconds_f64();
    let mut said = format!(
        "{}  {} steps, {} → {} tokens, {}, {seconds:.1} s",
        state(turn),
        turn.n_steps,
        turn.input_tokens,
        turn.output_tokens,
        dollars(turn.microdollars)
    );
    if let Some(n) = turn.n_lost_leases.filter(|n| *n > 0) {
        let _ = write!(said, "  (taken over {n}×)");
    }
    said
}

pub(crate) fn dollars(microdollars: i64) -> String {
    format!("${:.6}", microdollars as f64 / 1_000_000.0)
}

/// Draws the tree, with the totals of its turns.
pub(crate) fn draw(tree: &[Summary], now: DateTime<Utc>) -> String {
    let Some(root) = tree.first() else { return String::new() };
    let mut drawn = String::new();
    branch(&mut drawn, tree, root, "", "", now);
    let sum = |of: fn(&Summary) -> i64| tree.iter().map(of).sum::<i64>();
    let _ = write!(
        drawn,
        "{} turns, {} steps, {} → {} tokens, {}",
        tree.len(),
        sum(|turn| turn.n_steps),
        sum(|turn| turn.input_tokens),
        sum(|turn| turn.output_tokens),
        dollars(sum(|turn| turn.microdollars))
    );
    drawn
}

fn branch(drawn: &mut String, tree: &[Summary], turn: &Summary, first: &str, others: &str, now: DateTime<Utc>) {
    let mark = match (turn.status, turn.agent_status) {
        (TurnStatus::Success, _) => "✔",
        (TurnStatus::Failed | TurnStatus::Canceled | TurnStatus::Timeout, _) => "✘",
        (TurnStatus::Open, Some(Status::Running)) => "●",
        (TurnStatus::Open, _) => "○",
    };
    let _ = writeln!(drawn, "{first}{mark} {}  {}", name(turn), said(turn, now));
    let children: Vec<&Summary> =
        tree.iter().filter(|child| child.parent_agent_turn_id == Some(turn.agent_turn_id)).collect();
    let shown = children.len().min(MOST_DRAWN);
    for (n, child) in children[..shown].iter().enumerate() {
        let last = n + 1 == children.len();
        let (first, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        branch(drawn, tree, child, &format!("{others}{first}"), &format!("{others}{below}"), now);
    }
    if children.len() > shown {
        let _ = writeln!(drawn, "{others}└─ and {} more", children.len() - shown);
    }
}

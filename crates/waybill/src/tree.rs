//! The tree of a run's turns as text, with the tokens and cost of each.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use waybill_core::turn::{Status, TurnStatus};
use waybill_kernel::turn::Summary;

use crate::output;

/// Children of one turn that are drawn. The others are only counted.
const MOST_DRAWN: usize = 20;

/// Returns how many turns of the tree are above this one.
pub(crate) fn depth(tree: &[Summary], turn: &Summary) -> usize {
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

/// Returns the profile of the turn, or its agent.
pub(crate) fn name(turn: &Summary) -> String {
    turn.profile_name.as_ref().map_or_else(|| output::id(&turn.agent_id), ToString::to_string)
}

/// Returns the state of a turn, and what it has used.
pub(crate) fn said(turn: &Summary, now: DateTime<Utc>) -> String {
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
    if microdollars == 0 { "$0".to_owned() } else { format!("${:.6}", microdollars as f64 / 1_000_000.0) }
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
        (TurnStatus::Recorded, _) => "◆",
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

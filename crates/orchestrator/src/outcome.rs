//! Outcomes: what runs came to, so that a turn and its forks can be compared (NX-6).

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use waybill_core::{
    id::{BoxId, CardId, TurnId},
    turn::TurnStatus,
};
use waybill_kernel::{
    card, fork,
    turn::{self, Summary},
    work::{DbError, UnitOfWork},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Card(#[from] card::Error),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

/// What a run came to: a turn, with all turns that it started.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Outcome {
    pub agent_turn_id: TurnId,
    pub status: TurnStatus,
    /// Turns of the run.
    pub n_turns: usize,
    pub n_steps: i64,
    /// Tokens that models read, cached ones included.
    pub input_tokens: i64,
    pub cached_tokens: i64,
    pub output_tokens: i64,
    /// Cost in millionths of a dollar.
    pub microdollars: i64,
    /// Seconds from the start to the end. `null` while the turn is open.
    pub seconds: Option<f64>,
    /// Tools that were called, and how often. A fork has the calls before its first step too.
    pub tools: BTreeMap<String, i64>,
    /// Calls without an answer, because the recorded turn did not make them: here the fork left the recorded path.
    pub not_recorded: i64,
    pub deliverable_card_id: Option<CardId>,
    /// What the turn delivered: a text, or any JSON. `null` if it has not delivered yet, or if the content can no longer be shown.
    pub deliverable: Option<Value>,
    /// Whether the run has more cards or turns than were counted.
    pub truncated: bool,
}

/// Adds up a run: a turn, and the turns that it started. Up to about `most_cards` of its cards are counted. `None` means that the run has no turn.
pub async fn outcome(work: &mut UnitOfWork, tree: &[Summary], most_cards: i64) -> Result<Option<Outcome>, Error> {
    let Some(root) = tree.first() else { return Ok(None) };
    let sum = |of: fn(&Summary) -> i64| tree.iter().map(of).sum::<i64>();
    let boxes: Vec<BoxId> = tree.iter().map(|turn| turn.output_box_id).collect();
    let written = fork::written(work, &boxes, most_cards + 1).await?;
    let n_cards: i64 = written.iter().map(|cards| cards.n).sum();
    let not_recorded = written.iter().find(|cards| cards.kind == "tool.result" && cards.name == "not_recorded");
    let not_recorded = not_recorded.map_or(0, |cards| cards.n);
    let content = turn::delivered(work, root).await?;
    Ok(Some(Outcome {
        agent_turn_id: root.agent_turn_id,
        status: root.status,
        n_turns: tree.len(),
        n_steps: sum(|turn| turn.n_steps),
        input_tokens: sum(|turn| turn.input_tokens),
        cached_tokens: sum(|turn| turn.cached_tokens),
        output_tokens: sum(|turn| turn.output_tokens),
        microdollars: sum(|turn| turn.microdollars),
        seconds: root.finished_at.map(|at| (at - root.created_at).as_seconds_f64()),
        tools: written
            .into_iter()
            .filter(|cards| cards.kind == "tool.call")
            .map(|cards| (cards.name, cards.n))
            .collect(),
        not_recorded,
        deliverable_card_id: root.deliverable_card_id,
        deliverable: content.and_then(|content| serde_json::to_value(content).ok()),
        truncated: n_cards > most_cards,
    }))
}

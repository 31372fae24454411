//! Turns that do a recorded one again from a step on, with something changed (NX-6): what was changed, and what was answered then.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waybill_core::{
    card::{CallContent, Content, ResultContent},
    card_box::Span,
    id::{AgentId, BoxId, CardId, StepId, TurnId},
};

use crate::{card_box, work::UnitOfWork};

/// What a turn does again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fork {
    pub source_turn_id: TurnId,
    /// The first step that is done again. `None` means the whole turn.
    pub source_step_id: Option<StepId>,
    /// Tools are called again, instead of replaying their recorded answers.
    pub live_tools: bool,
    /// What was changed: `{"card": …}`, `{"profile": …}`.
    pub change: Value,
}

impl Fork {
    /// Checks whether the agent keeps its profile.
    pub fn is_same_profile(&self) -> bool {
        self.change.get("profile").is_none()
    }
}

/// Puts on record that a turn is a fork.
pub async fn record(work: &mut UnitOfWork, turn_id: TurnId, fork: &Fork) -> Result<(), card_box::Error> {
    let project_id = work.project_id();
    sqlx::query(
        "insert into state.forks (project_id, agent_turn_id, source_turn_id, source_step_id, live_tools, change)
         values ($1, $2, $3, $4, $5, $6)",
    )
    .bind(project_id)
    .bind(turn_id)
    .bind(fork.source_turn_id)
    .bind(fork.source_step_id)
    .bind(fork.live_tools)
    .bind(&fork.change)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// A call that was made in a turn, and its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    pub tool_name: String,
    pub arguments: String,
    pub result: ResultContent,
}

/// Lists the calls of a turn that were answered, in the order in which they were made.
pub async fn answered(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Vec<Answered>, card_box::Error> {
    let project_id = work.project_id();
    let output_box_id =
        sqlx::query_scalar("select output_box_id from state.turns where project_id = $1 and agent_turn_id = $2")
            .bind(project_id)
            .bind(turn_id)
            .fetch_one(&mut **work)
            .await?;
    let written = card_box::read(work, Span::whole(output_box_id), None).await?;
    let cards: Vec<_> = written.iter().filter_map(|placed| placed.reading.live()).collect();
    let calls = cards.iter().filter_map(|card| match &card.content {
        Content::ToolCall(CallContent { tool_name, arguments, .. }) => {
            let result = cards.iter().find_map(|other| match &other.content {
                Content::ToolResult(result) if other.tool_call_id == card.tool_call_id => Some(result.clone()),
                _ => None,
            })?;
            Some(Answered { tool_name: tool_name.clone(), arguments: arguments.clone(), result })
        }
        _ => None,
    });
    Ok(calls.collect())
}

/// Returns where a card stands in a span of a box, if it does.
pub async fn place_in(work: &mut UnitOfWork, span: Span, card_id: CardId) -> Result<Option<i64>, card_box::Error> {
    let project_id = work.project_id();
    let place = sqlx::query_scalar(
        "select min(place) from cardbox.holdings($1, $2) where box_id = $3 and place between $4 and $5",
    )
    .bind(project_id)
    .bind(card_id)
    .bind(span.box_id)
    .bind(span.from)
    .bind(span.upto)
    .fetch_one(&mut **work)
    .await?;
    Ok(place)
}

/// Fills an empty box with a prefix of another, by reference, except for the cards that are replaced.
pub async fn fill(
    work: &mut UnitOfWork,
    box_id: BoxId,
    source: Span,
    instead: &[(i64, CardId)],
) -> Result<(), card_box::Error> {
    let mut from = source.from;
    for (place, card_id) in instead {
        if from < *place {
            card_box::inherit(work, box_id, Span { from, upto: place - 1, ..source }).await?;
        }
        card_box::append(work, box_id, &[*card_id]).await?;
        from = place + 1;
    }
    if from <= source.upto {
        card_box::inherit(work, box_id, Span { from, ..source }).await?;
    }
    Ok(())
}

/// Records that a context box was handed over as another was, place by place.
pub async fn hand_over_alike(
    work: &mut UnitOfWork,
    context_box_id: BoxId,
    like: BoxId,
    agent_id: AgentId,
) -> Result<(), card_box::Error> {
    let project_id = work.project_id();
    sqlx::query(
        "insert into state.handovers (project_id, context_box_id, part, agent_id, source_agent_id, tool_suffix, rule, arg_key, from_seq, n_cards,
                                      source_box_id, upto, via)
         select project_id, $2, part, $4, source_agent_id, tool_suffix, rule, arg_key, from_seq, n_cards, source_box_id, upto, via
           from state.handovers
          where project_id = $1 and context_box_id = $3",
    )
    .bind(project_id)
    .bind(context_box_id)
    .bind(like)
    .bind(agent_id)
    .execute(&mut **work)
    .await?;
    Ok(())
}

//! Turns that do a recorded one again from a step on, with something changed (NX-6): what was changed, and what was answered then.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::FromRow;
use waybill_core::{
    card::{CallContent, Content, ResultContent},
    card_box::Span,
    id::{AgentId, BoxId, CardId, Name, StepId, TurnId},
};

use crate::{
    card_box,
    work::{DbError, UnitOfWork},
};

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

/// What was changed for a fork.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Changed {
    /// Cards of the recorded turn that got new content.
    #[serde(default)]
    pub cards: Vec<CardId>,
    /// How the profile was changed. `null` if it was not.
    #[serde(default)]
    pub profile: Option<ChangedProfile>,
}

/// How the profile was changed for a fork.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChangedProfile {
    /// Profile that was used instead. `null` if the recorded one was used.
    pub name: Option<Name>,
    /// JSON merge patch that was applied. `null` if there was none.
    pub patch: Option<serde_json::Map<String, Value>>,
}

/// A turn that does a recorded one again.
#[derive(Clone, Debug, PartialEq, Serialize, FromRow, utoipa::ToSchema)]
#[schema(as = ForkOfTurn)]
pub struct Listed {
    pub agent_turn_id: TurnId,
    /// The first step of the recorded turn that is done again. `null` means the whole turn.
    pub source_step_id: Option<StepId>,
    /// Whether tools are called again, instead of replaying their recorded answers.
    pub live_tools: bool,
    /// What was changed.
    #[sqlx(json)]
    pub change: Changed,
    /// Caller that started the fork.
    pub forked_by: Option<String>,
    pub created_at: DateTime<Utc>,
}

/// Lists the forks of a turn, the newest first.
pub async fn list(
    work: &mut UnitOfWork,
    source_turn_id: TurnId,
    before: Option<TurnId>,
    most: i64,
) -> Result<Vec<Listed>, DbError> {
    let project_id = work.project_id();
    let forks = sqlx::query_as(
        "select f.agent_turn_id, f.source_step_id, f.live_tools, f.change, f.forked_by, f.created_at
           from state.forks f
          where f.source_turn_id = $2 and f.project_id = $1 and f.agent_turn_id < $3
          order by f.agent_turn_id desc
          limit $4",
    )
    .bind(project_id)
    .bind(source_turn_id)
    .bind(before.unwrap_or(TurnId::max()))
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(forks)
}

/// Returns the step of a turn from which another does it again. `None` means that the other is no fork of it, or does all of it again.
pub async fn source_step(
    work: &mut UnitOfWork,
    turn_id: TurnId,
    source_turn_id: TurnId,
) -> Result<Option<StepId>, DbError> {
    let project_id = work.project_id();
    let step_id: Option<Option<StepId>> = sqlx::query_scalar(
        "select f.source_step_id from state.forks f where f.project_id = $1 and f.agent_turn_id = $2 and f.source_turn_id = $3",
    )
    .bind(project_id)
    .bind(turn_id)
    .bind(source_turn_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(step_id.flatten())
}

/// Cards of one kind in the output boxes of turns: calls by the name of their tool, results by their status, all others together.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Written {
    pub kind: String,
    pub name: String,
    pub n: i64,
}

/// Counts what turns have written, in up to `most` cards.
pub async fn written(work: &mut UnitOfWork, output_box_ids: &[BoxId], most: i64) -> Result<Vec<Written>, DbError> {
    let project_id = work.project_id();
    let written = sqlx::query_as(
        "select c.kind, coalesce(r.name, '') as name, count(*) as n
           from (select p.card_id
                   from unnest($2::uuid[]) as u (box_id)
                  cross join lateral (
                        select b.box_id, b.length from cardbox.boxes b where b.project_id = $1 and b.box_id = u.box_id offset 0) b
                  cross join lateral (select p.card_id from cardbox.places($1, b.box_id, 1, b.length) p offset 0) p
                  limit $3) p
          cross join lateral (
                select c.card_id, case when c.type in ('tool.call', 'tool.result') then c.type::text else 'other' end as kind
                  from cardbox.cards c
                 where c.project_id = $1 and c.card_id = p.card_id
                offset 0) c
           left join lateral (
                select case c.kind when 'tool.call' then s.content ->> 'tool_name' else s.content ->> 'status' end as name
                  from cardbox.reading($1, c.card_id, statement_timestamp()) s
                 where c.kind <> 'other'
                offset 0) r on true
          group by c.kind, coalesce(r.name, '')",
    )
    .bind(project_id)
    .bind(output_box_ids)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(written)
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

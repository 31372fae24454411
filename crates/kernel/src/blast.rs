//! What leads from a card to what followed from it (NX-3): where cards stand, who was handed them, what was written then. Each is one statement over a
//! portion, for the walk in `waybill_orchestrator::blast`.

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use sqlx::{FromRow, types::Json};
use waybill_core::{
    artifact::ArtifactPath,
    card_box::Span,
    id::{AgentId, BoxId, CardId, SessionId, StepId, TurnId},
    turn::TurnStatus,
};

use crate::work::{self, UnitOfWork};

/// A card as an entry of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct Standing {
    pub card_id: CardId,
    pub box_id: BoxId,
    pub place: i64,
}

/// Lists the boxes that have cards as entries of their own, up to `most` for each card.
pub async fn standing(work: &mut UnitOfWork, card_ids: &[CardId], most: i64) -> Result<Vec<Standing>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select a.card_id, e.box_id, e.seq as place
           from unnest($2::uuid[]) as a (card_id)
          cross join lateral (
                select e.box_id, e.seq from cardbox.box_entries e where e.card_id = a.card_id and e.project_id = $1 limit $3) e",
    );
    Ok(found.bind(project_id).bind(card_ids).bind(most).fetch_all(&mut **work).await?)
}

/// A range of a span, in another box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct Range {
    /// Which of the spans that were asked for, from 0.
    pub n: i64,
    pub box_id: BoxId,
    /// The place of the range in its box, and what it is a range of.
    pub place: i64,
    pub from_seq: i64,
    pub to_seq: i64,
}

/// Lists the ranges in other boxes that have something of these spans, up to `most` for each box.
pub async fn ranges(work: &mut UnitOfWork, spans: &[Span], most: i64) -> Result<Vec<Range>, work::Error> {
    let project_id = work.project_id();
    let (box_ids, (from, upto)): (Vec<BoxId>, (Vec<i64>, Vec<i64>)) =
        spans.iter().map(|span| (span.box_id, (span.from, span.upto))).unzip();
    let found = sqlx::query_as(
        "select s.n - 1 as n, r.box_id, r.seq as place, r.from_seq, r.to_seq
           from unnest($2::uuid[], $3::bigint[], $4::bigint[]) with ordinality as s (box_id, from_seq, to_seq, n)
          cross join lateral (
                select r.box_id, r.seq, r.from_seq, r.to_seq
                  from cardbox.box_entries r
                 where r.source_box_id = s.box_id and r.project_id = $1 and r.to_seq >= s.from_seq and r.from_seq <= s.to_seq
                 limit $5) r",
    );
    let found = found.bind(project_id).bind(box_ids).bind(from).bind(upto).bind(most);
    Ok(found.fetch_all(&mut **work).await?)
}

/// Lists the cards that spans of boxes have as entries of their own.
pub async fn written(work: &mut UnitOfWork, spans: &[Span]) -> Result<Vec<Standing>, work::Error> {
    let project_id = work.project_id();
    let (box_ids, (from, upto)): (Vec<BoxId>, (Vec<i64>, Vec<i64>)) =
        spans.iter().map(|span| (span.box_id, (span.from, span.upto))).unzip();
    let found = sqlx::query_as(
        "select e.card_id, e.box_id, e.seq as place
           from unnest($2::uuid[], $3::bigint[], $4::bigint[]) as s (box_id, from_seq, to_seq)
          cross join lateral (
                select e.card_id, e.box_id, e.seq
                  from cardbox.box_entries e
                 where e.project_id = $1 and e.box_id = s.box_id and e.seq between s.from_seq and s.to_seq
                offset 0) e
          where e.card_id is not null",
    );
    Ok(found.bind(project_id).bind(box_ids).bind(from).bind(upto).fetch_all(&mut **work).await?)
}

/// A model call with its receipt, and from which place on its turn wrote after it.
#[derive(Debug, FromRow)]
pub struct Called {
    pub agent_turn_id: TurnId,
    pub step_id: StepId,
    /// The place of the first card that the step wrote.
    pub from_seq: Option<i64>,
    pub created_at: DateTime<Utc>,
    pub receipt: Json<Box<RawValue>>,
}

/// Lists the model calls of turns, those of one turn in their order.
pub async fn calls(work: &mut UnitOfWork, turn_ids: &[TurnId]) -> Result<Vec<Called>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select r.agent_turn_id, r.step_id, s.from_seq, r.created_at, r.receipt
           from unnest($2::uuid[]) as t (agent_turn_id)
          cross join lateral (
                select r.agent_turn_id, r.step_id, r.created_at, r.receipt
                  from state.receipts r
                 where r.project_id = $1 and r.agent_turn_id = t.agent_turn_id
                offset 0) r
           left join lateral (
                select s.from_seq
                  from state.agent_steps s
                 where s.project_id = $1 and s.agent_turn_id = r.agent_turn_id and s.step_id = r.step_id
                offset 0) s on true
          order by r.agent_turn_id, r.created_at, r.step_id",
    );
    Ok(found.bind(project_id).bind(turn_ids).fetch_all(&mut **work).await?)
}

/// What a turn wrote into, and where its answer went.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct Writer {
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    pub status: TurnStatus,
    pub output_box_id: BoxId,
    pub length: i64,
    pub session_id: Option<SessionId>,
    pub deliverable_card_id: Option<CardId>,
    /// The card that answers the call which asked for the turn, in the output box of its parent.
    pub answer_card_id: Option<CardId>,
}

/// Reads what turns wrote into, and where their answers went.
pub async fn writers(work: &mut UnitOfWork, turn_ids: &[TurnId]) -> Result<Vec<Writer>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select t.agent_turn_id, t.agent_id, t.status, t.output_box_id, b.length, t.session_id, t.deliverable_card_id,
                e.card_id as answer_card_id
           from unnest($2::uuid[]) as a (agent_turn_id)
          cross join lateral (
                select t.* from state.turns t where t.project_id = $1 and t.agent_turn_id = a.agent_turn_id offset 0) t
          cross join lateral (
                select b.length from cardbox.boxes b where b.project_id = $1 and b.box_id = t.output_box_id offset 0) b
           left join lateral (
                select e.card_id
                  from state.execution_edges e
                 where e.project_id = $1 and e.correlation_id = t.parent_tool_call_id and e.primitive = 'report' and e.edge_phase = 'response'
                offset 0) e on true",
    );
    Ok(found.bind(project_id).bind(turn_ids).fetch_all(&mut **work).await?)
}

/// A turn that another asked for, and one part of what it was asked in so many words.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct Asked {
    pub agent_turn_id: TurnId,
    pub parent_step_id: StepId,
    pub context_box_id: BoxId,
    pub query_card_ids: Vec<CardId>,
    pub from_seq: Option<i64>,
    pub n_cards: Option<i64>,
}

/// Lists the turns that turns asked for, up to `most` of each, with the parts that came from arguments of the call.
pub async fn asked(work: &mut UnitOfWork, turn_ids: &[TurnId], most: i64) -> Result<Vec<Asked>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select t.agent_turn_id, t.parent_step_id, t.context_box_id, t.query_card_ids, h.from_seq, h.n_cards
           from unnest($2::uuid[]) as a (agent_turn_id)
          cross join lateral (
                select t.agent_turn_id, t.parent_step_id, t.context_box_id, t.query_card_ids
                  from state.turns t
                 where t.parent_agent_turn_id = a.agent_turn_id and t.project_id = $1 and t.parent_step_id is not null
                 limit $3) t
           left join lateral (
                select h.from_seq, h.n_cards
                  from state.handovers h
                 where h.project_id = $1 and h.context_box_id = t.context_box_id and h.rule = 'argument' and h.n_cards > 0
                offset 0) h on true",
    );
    Ok(found.bind(project_id).bind(turn_ids).bind(most).fetch_all(&mut **work).await?)
}

/// A session whose memory a step changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct Remembered {
    pub session_id: SessionId,
    pub step_id: StepId,
    pub created_at: DateTime<Utc>,
    pub todo: bool,
}

/// Lists what changed a session's memory, in its order, up to `most` patches.
pub async fn remembered(
    work: &mut UnitOfWork,
    session_id: SessionId,
    most: i64,
) -> Result<Vec<Remembered>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select p.session_id, p.step_id, p.created_at, p.patch ? 'todo' as todo
           from state.patches p
          where p.project_id = $1 and p.session_id = $2
          order by p.created_at, p.step_id
          limit $3",
    );
    Ok(found.bind(project_id).bind(session_id).bind(most).fetch_all(&mut **work).await?)
}

/// Lists the turns of a session, up to `most`.
pub async fn of_session(work: &mut UnitOfWork, session_id: SessionId, most: i64) -> Result<Vec<TurnId>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_scalar(
        "select t.agent_turn_id from state.turns t where t.session_id = $2 and t.project_id = $1 order by t.agent_turn_id limit $3",
    );
    Ok(found.bind(project_id).bind(session_id).bind(most).fetch_all(&mut **work).await?)
}

/// An artifact that a card speaks of, and another card that speaks of the same version.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Pinned {
    pub card_id: CardId,
    pub path: ArtifactPath,
    pub version: i32,
    pub created_at: DateTime<Utc>,
    pub other_card_id: CardId,
}

/// Lists the artifacts that cards speak of, with the cards that speak of the same version, up to `most` of each.
pub async fn pinned(work: &mut UnitOfWork, card_ids: &[CardId], most: i64) -> Result<Vec<Pinned>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select c.card_id, p.path, v.version, v.created_at, o.card_id as other_card_id
           from unnest($2::uuid[]) as c (card_id)
          cross join lateral (
                select p.path, p.hash from cardbox.pins p where p.project_id = $1 and p.card_id = c.card_id offset 0) p
          cross join lateral (
                select a.version, a.created_at
                  from cardbox.artifacts a
                 where a.project_id = $1 and a.path = p.path and a.hash = p.hash
                 order by a.version
                 limit 1) v
          cross join lateral (
                select o.card_id from cardbox.pins o where o.path = p.path and o.project_id = $1 and o.hash = p.hash limit $3) o",
    );
    Ok(found.bind(project_id).bind(card_ids).bind(most).fetch_all(&mut **work).await?)
}

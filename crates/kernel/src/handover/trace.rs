//! Why a turn has a card, and who could see one (PM-12): each one query over what was written down when it was handed over.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::FromRow;
use waybill_core::id::{AgentId, BoxId, CardId, Name, TurnId};

use crate::{
    card_box::Holding,
    work::{DbError, UnitOfWork},
};

/// One place where a turn has a card, and how the card got there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Why {
    pub box_id: BoxId,
    /// Position of the card in the box. The first position is 1.
    pub place: i64,
    /// How the card got there. By a handover: `argument` (an argument), `memory` (the memory of the agent, or of the agent that it was cloned from),
    /// `output` (what the agent that it was cloned from was writing), `box` (a box that an argument names), `session` (the messages of the session)
    /// or `parent` (the card that names the calling agent). Without a handover: `wrote` (the turn itself wrote the card) or `dispatched` (the turn
    /// was dispatched with it).
    pub rule: String,
    pub arg_key: Option<String>,
    pub tool_suffix: Option<String>,
    /// The agent that handed the card over. `null` if a person did, or if the turn itself wrote the card.
    pub source_agent_id: Option<AgentId>,
    /// What it was taken from, how far, and by which right.
    pub source_box_id: Option<BoxId>,
    pub upto: Option<i64>,
    pub via: Option<String>,
}

/// Lists every place where a turn has a card, and what put it there. Empty if the turn does not have the card.
pub async fn why(work: &mut UnitOfWork, card_id: CardId, agent_turn_id: TurnId) -> Result<Vec<Why>, DbError> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "with turn as materialized (
           select context_box_id, output_box_id, source_agent_id from state.turns where project_id = $1 and agent_turn_id = $3
         ), own as materialized (
           select e.box_id, e.seq from cardbox.box_entries e where e.project_id = $1 and e.card_id = $2
         ), place as (
           select o.box_id, o.seq as place from own o
            union all
           select r.box_id, r.seq + o.seq - r.from_seq
             from turn t
            cross join own o
            cross join lateral (
                  select r.box_id, r.seq, r.from_seq
                    from cardbox.box_entries r
                   where r.project_id = $1 and r.box_id = t.context_box_id and r.source_box_id = o.box_id
                     and o.seq between r.from_seq and r.to_seq
                  offset 0) r
         )
         select p.box_id, p.place, coalesce(h.rule::text, case when p.box_id = t.output_box_id then 'wrote' else 'dispatched' end) as rule,
                h.arg_key, h.tool_suffix,
                case when p.box_id = t.context_box_id then coalesce(h.source_agent_id, t.source_agent_id) end as source_agent_id,
                h.source_box_id, h.upto, h.via::text
           from turn t
          cross join place p
           left join lateral (
                select h.* from state.handovers h
                 where h.project_id = $1 and h.context_box_id = p.box_id
                   and p.place >= h.from_seq and p.place < h.from_seq + h.n_cards
                offset 0) h on true
          where p.box_id in (t.context_box_id, t.output_box_id)
          order by p.box_id, p.place",
    )
    .bind(project_id)
    .bind(card_id)
    .bind(agent_turn_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(found)
}

/// One part of what a turn was handed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Handed {
    /// Numbers the parts of one turn, from 0.
    pub part: i32,
    /// The place of its first card in the context box, and how many cards it has.
    pub from_place: i64,
    pub n_cards: i64,
    /// The rule of the handover: `argument`, `memory`, `output`, `box`, `session` or `parent`.
    pub rule: String,
    pub arg_key: Option<String>,
    pub tool_suffix: String,
    /// The agent that handed it over, and its profile. `null` means a person.
    pub source_agent_id: Option<AgentId>,
    pub source_profile: Option<Name>,
    /// What it was taken from, how far, and by which right.
    pub source_box_id: Option<BoxId>,
    pub upto: Option<i64>,
    pub via: Option<String>,
    pub created_at: DateTime<Utc>,
}

/// Lists what a turn was handed, part by part.
pub async fn handed(work: &mut UnitOfWork, turn_id: TurnId, after: i32, most: i64) -> Result<Vec<Handed>, DbError> {
    let project_id = work.project_id();
    let parts = sqlx::query_as(
        "select h.part, h.from_seq as from_place, h.n_cards, h.rule::text, h.arg_key, h.tool_suffix, h.source_agent_id,
                a.profile_name as source_profile, h.source_box_id, h.upto, h.via::text, h.created_at
           from state.turns t
          cross join lateral (
                select h.*
                  from state.handovers h
                 where h.project_id = $1 and h.context_box_id = t.context_box_id and h.part > $3
                 order by h.part
                 limit $4) h
           left join lateral (
                select a.profile_name from resource.project_agents a where a.project_id = $1 and a.agent_id = h.source_agent_id offset 0) a on true
          where t.project_id = $1 and t.agent_turn_id = $2
          order by h.part",
    );
    Ok(parts.bind(project_id).bind(turn_id).bind(after).bind(most).fetch_all(&mut **work).await?)
}

/// An agent that could see a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Sight {
    pub agent_id: AgentId,
    /// The box it stands in, and where.
    pub box_id: BoxId,
    pub place: i64,
    /// `own`: the box is the agent's; `handed`: a turn of the agent was packed with it; `granted`; `joined`: a child of the agent wrote the box.
    pub via: String,
    pub agent_turn_id: Option<TurnId>,
    /// The rule of the handover and the agent that handed over, or the reason of the grant and who granted.
    pub rule: Option<String>,
    pub source_agent_id: Option<AgentId>,
    pub granted_by: Option<String>,
}

/// Lists every agent that could see a card in these boxes, and why: a box with the card was made for it, packed for it, granted to it, or written
/// by its children. Revoked grants count: the agent could see the card before. `card_box::holders` lists the boxes that hold a card.
pub async fn sight(work: &mut UnitOfWork, held: &[Holding]) -> Result<Vec<Sight>, DbError> {
    let project_id = work.project_id();
    let (box_ids, places): (Vec<BoxId>, Vec<i64>) = held.iter().map(|held| (held.box_id, held.place)).unzip();
    let seen = sqlx::query_as(
        "with held as materialized (select p.box_id, p.place from unnest($2::uuid[], $3::bigint[]) as p (box_id, place))
         select b.agent_id, b.box_id, p.place, case when h.rule is null then 'own' else 'handed' end as via, b.agent_turn_id,
                h.rule::text, h.source_agent_id, null::text as granted_by
           from held p
          cross join lateral (select b.* from cardbox.boxes b where b.project_id = $1 and b.box_id = p.box_id offset 0) b
           left join lateral (
                select h.* from state.handovers h
                 where h.project_id = $1 and h.context_box_id = p.box_id
                   and p.place >= h.from_seq and p.place < h.from_seq + h.n_cards
                offset 0) h on true
          where b.agent_id is not null
          union all
         select g.agent_id, p.box_id, p.place, 'granted', null, g.reason, null, g.granted_by
           from held p
          cross join lateral (select g.* from state.grants g where g.project_id = $1 and g.box_id = p.box_id offset 0) g
          where p.place <= coalesce(g.upto, p.place)
          union all
         select a.parent_agent_id, p.box_id, p.place, 'joined', b.agent_turn_id, null, b.agent_id, null
           from held p
          cross join lateral (select b.* from cardbox.boxes b where b.project_id = $1 and b.box_id = p.box_id offset 0) b
          cross join lateral (
                select t.batch_id, t.task_index from state.turns t where t.project_id = $1 and t.agent_turn_id = b.agent_turn_id offset 0) t
          cross join lateral (
                select k.output_box_id, k.output_length
                  from state.pmo_batch_tasks k
                 where k.project_id = $1 and k.batch_id = t.batch_id and k.task_index = t.task_index
                offset 0) k
          cross join lateral (
                select a.parent_agent_id from state.pmo_batches a where a.project_id = $1 and a.batch_id = t.batch_id offset 0) a
          where k.output_box_id = b.box_id and p.place <= k.output_length
          order by agent_id, box_id, via",
    )
    .bind(project_id)
    .bind(box_ids)
    .bind(places)
    .fetch_all(&mut **work)
    .await?;
    Ok(seen)
}

//! What a worker over HTTP asks to be told with the turns that it claims (UI-2): a few statements, however many turns there are.

use sqlx::FromRow;
use waybill_core::{
    id::{BoxId, CardId, Name},
    resource::{Profile, Tool},
    turn::Budget,
};

use super::{Claimed, Error};
use crate::work::UnitOfWork;

/// What is known of a claimed turn beside its row.
#[derive(Clone, Debug, FromRow)]
pub struct Brief {
    /// The profile of its agent.
    pub profile_name: Option<Name>,
    /// What it may still spend.
    #[sqlx(json(nullable))]
    pub budget: Option<Budget>,
    /// The card that says what its result must be.
    pub form_card_id: Option<CardId>,
}

/// Reads what is known of claimed turns, in their order. `limits` and `form` say whether to read the budgets and the forms of the results.
pub async fn briefs(work: &mut UnitOfWork, claimed: &[Claimed], limits: bool, form: bool) -> Result<Vec<Brief>, Error> {
    let project_id = work.project_id();
    let briefs = sqlx::query_as(
        "select a.profile_name, case when $5 then state.budget_of($1, asked.agent_turn_id) end as budget, f.card_id as form_card_id
           from unnest($2::uuid[], $3::uuid[], $4::uuid[]) with ordinality as asked (agent_turn_id, agent_id, context_box_id, n)
           left join lateral (
                select a.profile_name from resource.project_agents a where a.project_id = $1 and a.agent_id = asked.agent_id offset 0) a on true
           left join lateral (
                select own.card_id
                  from (select e.seq, e.card_id
                          from cardbox.box_entries e
                         where $6 and e.project_id = $1 and e.box_id = asked.context_box_id and e.seq <= 32 and e.card_id is not null
                        offset 0) own
                 cross join lateral cardbox.reading($1, own.card_id, statement_timestamp()) r
                 where r.type in ('task.result_fields', 'task.result_schema') and r.gone_at is null
                 order by own.seq
                 limit 1) f on true
          order by asked.n",
    )
    .bind(project_id)
    .bind(claimed.iter().map(|claimed| claimed.fence.agent_turn_id()).collect::<Vec<_>>())
    .bind(claimed.iter().map(|claimed| claimed.fence.agent_id()).collect::<Vec<_>>())
    .bind(claimed.iter().map(|claimed| claimed.context_box_id).collect::<Vec<_>>())
    .bind(limits)
    .bind(form)
    .fetch_all(&mut **work)
    .await?;
    Ok(briefs)
}

/// A profile as a turn was dispatched with it, and the tools that it allows, as they are now.
#[derive(Clone, Debug)]
pub struct Offered {
    pub profile_box_id: BoxId,
    pub profile: Profile,
    pub tools: Vec<Tool>,
    /// Whether a key registered one of the tools: what the model reads of it is content from outside.
    pub has_registered: bool,
}

#[derive(FromRow)]
struct OfferedRow {
    profile_box_id: BoxId,
    #[sqlx(json)]
    profile: serde_json::Value,
    #[sqlx(json)]
    tools: serde_json::Value,
    has_registered: bool,
}

/// Reads the profiles in these boxes, each once. What is gone, or was written by another version of Waybill, is left out.
pub async fn offered(work: &mut UnitOfWork, profile_box_ids: &[BoxId]) -> Result<Vec<Offered>, Error> {
    let project_id = work.project_id();
    let rows: Vec<OfferedRow> = sqlx::query_as(
        "select asked.box_id as profile_box_id, p.content as profile,
                coalesce((select jsonb_agg(r.content::jsonb order by t.name)
                            from jsonb_array_elements_text(p.content -> 'allowed_tools') as allowed (name)
                           cross join lateral (
                                 select t.name, t.tool_card_id from resource.tools t where t.project_id = $1 and t.name = allowed.name offset 0) t
                           cross join lateral cardbox.reading($1, t.tool_card_id, statement_timestamp()) r
                           where r.gone_at is null), '[]') as tools,
                exists (select
                          from jsonb_array_elements_text(p.content -> 'allowed_tools') as allowed (name)
                         cross join lateral (
                               select t.registered_by from resource.tools t where t.project_id = $1 and t.name = allowed.name offset 0) t
                         where t.registered_by is not null) as has_registered
           from (select distinct box_id from unnest($2::uuid[]) as asked (box_id)) asked
          cross join lateral (
                select r.content::jsonb as content
                  from cardbox.box_entries e
                 cross join lateral cardbox.reading($1, e.card_id, statement_timestamp()) r
                 where e.project_id = $1 and e.box_id = asked.box_id and e.seq = 1 and r.gone_at is null
                offset 0) p",
    )
    .bind(project_id)
    .bind(profile_box_ids)
    .fetch_all(&mut **work)
    .await?;
    let read = |row: OfferedRow| {
        let profile = serde_json::from_value(row.profile).ok()?;
        let tools = serde_json::from_value(row.tools).ok()?;
        Some(Offered { profile_box_id: row.profile_box_id, profile, tools, has_registered: row.has_registered })
    };
    Ok(rows.into_iter().filter_map(read).collect())
}

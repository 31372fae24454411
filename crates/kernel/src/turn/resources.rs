//! What a worker needs besides the boxes: who the agent is, what it may call and spend, and whether the turn was asked to stop (WK-1).

use serde::Deserialize;
use sqlx::FromRow;
use waybill_core::{
    id::Name,
    resource::{Profile, Settings, Tool},
    turn::Budget,
};

use super::{Claimed, Error};
use crate::{fork::Fork, work::UnitOfWork};

/// A profile that work may be handed to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Delegate {
    pub name: Name,
    /// What it is for.
    #[serde(default)]
    pub description: String,
}

/// Everything as it is now, except the profile, which is as it was when the turn was dispatched.
#[derive(Clone, Debug, FromRow)]
pub struct Resources {
    #[sqlx(json(nullable))]
    pub profile: Option<Profile>,
    /// The tools that the profile allows, as far as they exist.
    #[sqlx(json)]
    pub tools: Vec<Tool>,
    /// Whether a key registered one of the tools: what the model reads of it is content from outside.
    pub has_registered: bool,
    /// The profiles that the profile may delegate to: the first 64, and by tag among the first 256 profiles of the project.
    #[sqlx(json)]
    pub delegates: Vec<Delegate>,
    #[sqlx(json(nullable))]
    pub settings: Option<Settings>,
    #[sqlx(json(nullable))]
    pub budget: Option<Budget>,
    pub stop_reason: Option<String>,
    /// Steps that it has taken, and tokens that they used.
    pub n_steps: i64,
    pub n_tokens: i64,
    /// Since it was started.
    pub age_seconds: f64,
    /// Set if it does another turn again.
    #[sqlx(json(nullable))]
    pub fork: Option<Fork>,
}

/// Reads the resources of a turn, in one statement.
pub async fn resources(work: &mut UnitOfWork, claimed: &Claimed) -> Result<Resources, Error> {
    let project_id = work.project_id();
    let row: Resources = sqlx::query_as(
        "with profile as materialized (
           select r.content::jsonb as content
             from cardbox.box_entries e
            cross join lateral cardbox.reading($1, e.card_id, statement_timestamp()) r
            where e.project_id = $1 and e.box_id = $3 and e.seq = 1
         )
         select (select content from profile) as profile,
                coalesce((select jsonb_agg(r.content::jsonb order by t.name)
                            from profile p
                           cross join lateral jsonb_array_elements_text(p.content -> 'allowed_tools') as allowed (name)
                           cross join lateral (
                                 select t.name, t.tool_card_id from resource.tools t where t.project_id = $1 and t.name = allowed.name offset 0) t
                           cross join lateral cardbox.reading($1, t.tool_card_id, statement_timestamp()) r
                           where r.gone_at is null), '[]') as tools,
                exists (select
                          from profile p
                         cross join lateral jsonb_array_elements_text(p.content -> 'allowed_tools') as allowed (name)
                         cross join lateral (
                               select t.registered_by from resource.tools t where t.project_id = $1 and t.name = allowed.name offset 0) t
                         where t.registered_by is not null) as has_registered,
                coalesce((select jsonb_agg(jsonb_build_object('name', d.name, 'description', coalesce(r.content ->> 'description', '')) order by d.name)
                            from (select named.name, o.profile_card_id
                                    from profile p
                                   cross join lateral jsonb_array_elements_text(p.content -> 'delegation_policy' -> 'target_profiles') as named (name)
                                   cross join lateral (
                                         select o.profile_card_id from resource.profiles o where o.project_id = $1 and o.name = named.name offset 0) o
                                  union
                                  select o.name, o.profile_card_id
                                    from profile p
                                   cross join lateral (
                                         select o.name, o.tags, o.profile_card_id
                                           from resource.profiles o
                                          where o.project_id = $1 and p.content -> 'delegation_policy' -> 'target_tags' <> '[]'
                                          order by o.name
                                          limit 256) o
                                   where p.content -> 'delegation_policy' -> 'target_tags' ?| o.tags
                                  order by 1
                                  limit 64) d
                           cross join lateral cardbox.reading($1, d.profile_card_id, statement_timestamp()) r
                           where r.gone_at is null), '[]') as delegates,
                (select r.content::jsonb
                   from resource.projects p
                  cross join lateral cardbox.reading($1, p.settings_card_id, statement_timestamp()) r
                  where p.project_id = $1) as settings,
                state.budget_of($1, $2) as budget,
                s.n_steps, s.n_tokens, extract(epoch from now() - t.created_at)::float8 as age_seconds,
                (select i.stop_reason from state.agent_inbox i where i.project_id = $1 and i.agent_turn_id = $2) as stop_reason,
                (select to_jsonb(f) from state.forks f where f.project_id = $1 and f.agent_turn_id = $2) as fork
           from state.turns t
          cross join lateral (
                select count(*) as n_steps, coalesce(sum(s.input_tokens::bigint + s.output_tokens), 0)::bigint as n_tokens
                  from state.agent_steps s
                 where s.project_id = $1 and s.agent_turn_id = $2) s
          where t.project_id = $1 and t.agent_turn_id = $2",
    )
    .bind(project_id)
    .bind(claimed.fence.agent_turn_id())
    .bind(claimed.profile_box_id)
    .fetch_one(&mut **work)
    .await?;
    Ok(row)
}

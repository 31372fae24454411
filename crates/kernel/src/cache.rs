//! Where calls found less in the prompt cache of their provider than it could have kept (CX-14). Nothing here is on the path of a turn.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::FromRow;
use waybill_core::{
    id::{StepId, TurnId},
    turn::Price,
};

use crate::{spend, turn::Error, work::UnitOfWork};

/// The most calls that one answer looks at, and the most rows and single misses that it has. Of a turn with more calls, the first are looked at.
const MOST_CALLS: i64 = 10_000;
const MOST_ROWS: usize = 1_000;
const MOST_SHOWN: usize = 50;

/// What changed between a call and the one before it in its conversation. If several things did, the first of these.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, sqlx::Type, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
#[schema(as = CacheMissReason)]
pub enum Why {
    /// The provider or the model.
    Model,
    /// The list of tools, or one of them.
    Tools,
    /// The system prompt.
    System,
    /// A message that the call before had already: it changed, was removed, or one was inserted before it.
    Message,
    /// A block of the context, such as the todo list or the summary, or a card that has expired.
    Context,
    /// Another parameter of the request.
    Parameters,
    /// Nothing, but there were more than five minutes between the two calls.
    Idle,
    /// Nothing: the provider had not kept the beginning.
    Provider,
    /// Nothing, and no call of this model in the span read anything from a cache: the provider keeps none, was not asked to (Anthropic wants
    /// `cache_control`), or does not say.
    NoCache,
}

/// What misses are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CacheMissesBy)]
pub enum By {
    /// What changed.
    Why,
    /// The day (UTC) of the call.
    Day,
    /// The profile, or the name of an agent elsewhere.
    Profile,
    /// `PROVIDER/MODEL`
    Model,
    /// The turn with which the conversation began.
    Conversation,
}

/// One group of calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = CacheMissesRow)]
pub struct Row {
    /// What changed, the day, the profile, `PROVIDER/MODEL`, or the id of the first turn of the conversation. `null`: calls without a miss, of rows by what
    /// changed.
    pub key: Option<String>,
    pub n_calls: u64,
    pub n_misses: u64,
    /// Tokens that the calls read, cached ones included.
    pub input: u64,
    /// Tokens of these that came from the provider's cache.
    pub cached: u64,
    /// Tokens that the call before had sent already, and that did not come from the cache. Where a message changed, this is the most that it can be: what
    /// follows that message may be new.
    pub lost: u64,
    /// What these cost more than cached ones, in millionths of a dollar. `null` if no price is known for any of them.
    pub microdollars: Option<u64>,
    /// The lost tokens, by what had changed.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub why: BTreeMap<Why, u64>,
}

/// A call that missed the cache.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = CacheMiss)]
pub struct Miss {
    pub agent_turn_id: TurnId,
    pub step_id: StepId,
    /// The call before it in the conversation. It belongs to another turn if a message changed.
    pub previous_turn_id: TurnId,
    pub previous_step_id: StepId,
    pub at: DateTime<Utc>,
    pub profile_name: Option<String>,
    /// `PROVIDER/MODEL`
    pub model: String,
    pub why: Why,
    /// The number of the message that changed, from 1.
    pub message: Option<i32>,
    /// How long after the call before it began, in seconds.
    pub idle_seconds: u64,
    pub lost: u64,
    /// In millionths of a dollar. `null` if the price of the model is not known.
    pub microdollars: Option<u64>,
    /// What the provider says about it, in its own words: any JSON.
    pub provider_says: Option<Value>,
}

/// What the calls of a span of time lost.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct CacheMisses {
    /// Days: newest first. Other groups: those that lost most first.
    pub rows: Vec<Row>,
    /// Whether there are more than 1,000 groups. The rest is left out.
    pub more_rows: bool,
    /// The 50 calls that lost most.
    pub largest: Vec<Miss>,
    /// Turns that began at this time or later are not looked at, because there were too many calls before it: continue with it as `since`. `null`
    /// if all turns of the span were looked at.
    pub complete_until: Option<DateTime<Utc>>,
}

#[derive(FromRow)]
struct Call {
    agent_turn_id: TurnId,
    step_id: StepId,
    departs_from: Option<TurnId>,
    previous_turn_id: Option<TurnId>,
    previous_step_id: Option<StepId>,
    began_at: DateTime<Utc>,
    profile_name: Option<String>,
    provider: String,
    model: String,
    input: i64,
    cached: i64,
    lost: i64,
    idle_seconds: Option<i64>,
    why: Option<Why>,
    message: Option<i32>,
    cache_miss: Option<Value>,
}

impl Call {
    fn served_by(&self) -> String {
        format!("{}/{}", self.provider, self.model)
    }

    fn n_lost(&self) -> u64 {
        self.why.map_or(0, |_| self.lost.unsigned_abs())
    }

    fn microdollars(&self, price: &impl Fn(&str, &str) -> Option<Price>) -> Option<u64> {
        let price = price(&self.provider, &self.model)?;
        let more = (price.input - price.cached.unwrap_or(price.input)).max(0.0);
        Some((self.n_lost() as f64 * more).round() as u64)
    }

    fn miss(&self, price: &impl Fn(&str, &str) -> Option<Price>) -> Option<Miss> {
        Some(Miss {
            agent_turn_id: self.agent_turn_id,
            step_id: self.step_id,
            previous_turn_id: self.previous_turn_id?,
            previous_step_id: self.previous_step_id?,
            at: self.began_at,
            profile_name: self.profile_name.clone(),
            model: self.served_by(),
            why: self.why?,
            message: self.message,
            idle_seconds: self.idle_seconds.unwrap_or_default().try_into().unwrap_or_default(),
            lost: self.n_lost(),
            microdollars: self.microdollars(price),
            provider_says: self.cache_miss.clone(),
        })
    }
}

/// Adds up what the calls lost whose turns began in a span of time. `price` knows what a provider takes for a model.
pub async fn misses(
    work: &mut UnitOfWork,
    by: By,
    since: DateTime<Utc>,
    until: DateTime<Utc>,
    price: impl Fn(&str, &str) -> Option<Price>,
) -> Result<CacheMisses, Error> {
    let complete_until = spend::border(work, since, until, MOST_CALLS).await?;
    let mut calls = calls(work, since, complete_until.unwrap_or(until)).await?;
    let caching: HashSet<String> = calls.iter().filter(|call| call.cached > 0).map(Call::served_by).collect();
    for call in &mut calls {
        if matches!(call.why, Some(Why::Idle | Why::Provider)) && !caching.contains(&call.served_by()) {
            call.why = Some(Why::NoCache);
        }
    }
    let mut rows = rows(&calls, by, &price);
    let more_rows = rows.len() > MOST_ROWS;
    rows.truncate(MOST_ROWS);
    calls.sort_by_key(|call| (Reverse(call.n_lost()), call.step_id));
    let largest = calls.iter().filter_map(|call| call.miss(&price)).take(MOST_SHOWN).collect();
    Ok(CacheMisses { rows, more_rows, largest, complete_until })
}

/// Returns the calls of a span, each compared with the one before it in its conversation: the call before it in its turn or, of a recorded turn that departs
/// from another one, the last call of that. A provider keeps a beginning from 1,024 tokens on: what is less is no miss.
async fn calls(work: &mut UnitOfWork, since: DateTime<Utc>, until: DateTime<Utc>) -> Result<Vec<Call>, Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select c.agent_turn_id, c.step_id, d.departs_from, p.agent_turn_id as previous_turn_id, p.step_id as previous_step_id, c.began_at, a.profile_name,
                coalesce(c.provider, '') as provider, coalesce(c.model, '') as model, c.input, c.cached, coalesce(l.lost, 0)::bigint as lost,
                extract(epoch from c.began_at - p.created_at)::bigint as idle_seconds, w.why, w.message, c.cache_miss
           from (select s.agent_turn_id, s.step_id, s.agent_id, s.provider, s.model, s.input_tokens::bigint as input,
                        coalesce(s.cached_tokens, 0)::bigint as cached, s.cache_miss,
                        s.created_at - coalesce(s.took_ms, 0) * interval '1 millisecond' as began_at
                   from state.agent_steps s
                  where s.project_id = $1 and s.agent_turn_id >= $2 and s.agent_turn_id < $3
                  order by s.agent_turn_id, s.step_id
                  limit $4) c
           left join lateral (
                select a.profile_name from resource.project_agents a where a.project_id = $1 and a.agent_id = c.agent_id offset 0) a on true
           left join lateral (
                select r.departs_from, r.differs_at from state.recordings r where r.project_id = $1 and r.agent_turn_id = c.agent_turn_id offset 0) d on true
           left join lateral (
                select * from (
                   (select s.agent_turn_id, s.step_id, s.provider, s.model, s.input_tokens, s.created_at, true as is_same_turn
                      from state.agent_steps s
                     where s.project_id = $1 and s.agent_turn_id = c.agent_turn_id and s.step_id < c.step_id and s.input_tokens > 0
                     order by s.step_id desc
                     limit 1)
                    union all
                   (select s.agent_turn_id, s.step_id, s.provider, s.model, s.input_tokens, s.created_at, false
                      from state.agent_steps s
                     where s.project_id = $1 and s.agent_turn_id = d.departs_from and s.step_id < c.step_id and s.input_tokens > 0
                     order by s.step_id desc
                     limit 1)) p
                 order by p.is_same_turn desc
                 limit 1) p on true
           left join lateral (select least(p.input_tokens, c.input) - c.cached as lost offset 0) l on true
           left join lateral (
                select case when (c.provider, c.model) is distinct from (p.provider, p.model) then 'model'
                            when n.receipt ->> 'tools_card_id' is distinct from o.receipt ->> 'tools_card_id' then 'tools'
                            when n.receipt ->> 'system_prompt_card_id' is distinct from o.receipt ->> 'system_prompt_card_id' then 'system'
                            when not p.is_same_turn then 'message'
                            when n.receipt ->> 'blocks' is distinct from o.receipt ->> 'blocks'
                              or n.receipt ->> 'session_summary_card_id' is distinct from o.receipt ->> 'session_summary_card_id'
                              or n.receipt ->> 'gone' is distinct from o.receipt ->> 'gone' then 'context'
                            when n.receipt ->> 'params' is distinct from o.receipt ->> 'params'
                              or n.receipt #>> '{recorded,skeleton_card_id}' is distinct from o.receipt #>> '{recorded,skeleton_card_id}' then 'parameters'
                            when c.began_at - p.created_at > interval '5 minutes' then 'idle'
                            else 'provider' end as why,
                       case when not p.is_same_turn then d.differs_at + (n.receipt ->> 'system_prompt_card_id' is not null)::integer end as message
                  from state.receipts n, state.receipts o
                 where l.lost >= 1024
                   and n.project_id = $1 and n.agent_turn_id = c.agent_turn_id and n.step_id = c.step_id
                   and o.project_id = $1 and o.agent_turn_id = p.agent_turn_id and o.step_id = p.step_id
                offset 0) w on true
          where c.input > 0
          order by c.agent_turn_id, c.step_id",
    )
    .bind(project_id)
    .bind(TurnId::at(since))
    .bind(TurnId::at(until))
    .bind(MOST_CALLS)
    .fetch_all(&mut **work)
    .await?;
    Ok(found)
}

/// Adds calls up.
fn rows(calls: &[Call], by: By, price: &impl Fn(&str, &str) -> Option<Price>) -> Vec<Row> {
    let mut begins: HashMap<TurnId, TurnId> = HashMap::new();
    let mut rows: BTreeMap<Option<String>, Row> = BTreeMap::new();
    // A turn comes after those that it departs from.
    for call in calls {
        let from = call.departs_from.unwrap_or(call.agent_turn_id);
        let began = begins.get(&from).copied().unwrap_or(from);
        begins.insert(call.agent_turn_id, began);
        let key = match by {
            By::Why => call.why.and_then(|why| serde_json::to_value(why).ok()?.as_str().map(str::to_owned)),
            By::Day => Some(call.began_at.format("%F").to_string()),
            By::Profile => call.profile_name.clone(),
            By::Model => Some(call.served_by()),
            By::Conversation => Some(began.to_string()),
        };
        let row = rows.entry(key.clone()).or_insert_with(|| Row { key, ..Row::default() });
        row.n_calls += 1;
        row.input += call.input.unsigned_abs();
        row.cached += call.cached.unsigned_abs();
        if let Some(why) = call.why {
            row.n_misses += 1;
            row.lost += call.n_lost();
            *row.why.entry(why).or_default() += call.n_lost();
            if let Some(more) = call.microdollars(price) {
                row.microdollars = Some(row.microdollars.unwrap_or_default() + more);
            }
        }
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    match by {
        By::Day => rows.reverse(),
        _ => rows.sort_by_key(|row| Reverse(row.lost)),
    }
    rows
}

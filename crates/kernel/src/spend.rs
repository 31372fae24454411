//! What turns were given to spend, what they have spent, and what a project has spent (WK-5, WK-8). Nothing here is on the path of a turn.

use std::collections::HashMap;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use sqlx::FromRow;
use waybill_core::id::TurnId;

use crate::{
    turn::{Error, Given},
    work::UnitOfWork,
};

/// Model calls, tokens and money. A field that is `null` has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Amounts {
    /// Model calls.
    pub steps: Option<i64>,
    /// Tokens, read and written.
    pub tokens: Option<i64>,
    /// Cost in millionths of a dollar.
    pub microdollars: Option<i64>,
}

impl Amounts {
    /// Applies a function to what both have.
    fn with(self, other: Amounts, f: fn(i64, i64) -> i64) -> Amounts {
        let both = |one: Option<i64>, other: Option<i64>| Some(f(one?, other.unwrap_or_default()));
        Amounts {
            steps: both(self.steps, other.steps),
            tokens: both(self.tokens, other.tokens),
            microdollars: both(self.microdollars, other.microdollars),
        }
    }

    /// Returns zero of everything that has a limit.
    fn zero(self) -> Amounts {
        self.with(self, |_, _| 0)
    }
}

impl From<Given> for Amounts {
    fn from(given: Given) -> Amounts {
        Amounts { steps: given.steps, tokens: given.tokens, microdollars: given.microdollars }
    }
}

/// What was used: model calls, tokens and money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Used {
    /// Model calls.
    pub steps: i64,
    /// Tokens, read and written.
    pub tokens: i64,
    /// Cost in millionths of a dollar.
    pub microdollars: i64,
}

impl Used {
    fn add(&mut self, other: Used) {
        self.steps += other.steps;
        self.tokens += other.tokens;
        self.microdollars += other.microdollars;
    }
}

impl From<Used> for Amounts {
    fn from(used: Used) -> Amounts {
        Amounts { steps: Some(used.steps), tokens: Some(used.tokens), microdollars: Some(used.microdollars) }
    }
}

/// What a child turn was given, and what it and the turns below it have used.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ChildBudget {
    pub agent_turn_id: TurnId,
    /// What it was given. `null` if it has no limits.
    pub given: Option<Given>,
    /// What it and the turns below it have used.
    pub spent: Used,
    /// Whether it has ended. What it had left went back to its parent then, unless the parent had ended before.
    pub ended: bool,
}

/// What a turn was given to spend, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = TurnBudget)]
pub struct Budget {
    pub agent_turn_id: TurnId,
    /// What it was given. `null` if it has no limits.
    pub given: Option<Given>,
    /// What it may still use. `null` if it has no limits, or has ended.
    pub left: Option<Amounts>,
    /// What its children were given of it, whether they returned it or not.
    pub lent: Amounts,
    /// What children returned that ended before it. It is negative if they used more than they were given.
    pub returned: Amounts,
    /// What its own model calls have used.
    pub spent: Used,
    /// The time by which it ends. `null` if there is no such time.
    pub expires_at: Option<DateTime<Utc>>,
    /// Its children, oldest first.
    pub children: Vec<ChildBudget>,
    /// Whether the tree has more turns than were counted. Then the deepest are left out: `lent`, `children` and what these have spent may be too low,
    /// and `returned` too high.
    pub truncated: bool,
}

#[derive(FromRow)]
struct Spender {
    agent_turn_id: TurnId,
    parent_agent_turn_id: Option<TurnId>,
    #[sqlx(json(nullable))]
    limits: Option<Given>,
    finished_at: Option<DateTime<Utc>>,
    #[sqlx(flatten)]
    used: Used,
}

impl Spender {
    fn given(&self) -> Amounts {
        self.limits.map(Amounts::from).unwrap_or_default()
    }
}

/// What a turn lent to its children, and what came back.
#[derive(Clone, Copy)]
struct Flow {
    lent: Amounts,
    returned: Amounts,
}

/// Returns the budget of a turn, from up to `most` turns of its tree. `None` means that there is no such turn.
pub async fn budget(work: &mut UnitOfWork, turn_id: TurnId, most: usize) -> Result<Option<Budget>, Error> {
    let project_id = work.project_id();
    let mut tree: Vec<Spender> = sqlx::query_as(
        "select t.agent_turn_id, t.parent_agent_turn_id, t.limits, t.finished_at, s.steps, s.tokens, s.microdollars
           from unnest(state.turns_below($1, $2, $3)) with ordinality as asked (agent_turn_id, n)
          cross join lateral (
                select t.* from state.turns t where t.project_id = $1 and t.agent_turn_id = asked.agent_turn_id offset 0) t
          cross join lateral (
                select count(s.input_tokens) as steps, coalesce(sum(s.input_tokens::bigint + s.output_tokens), 0)::bigint as tokens,
                       coalesce(sum(s.microdollars), 0)::bigint as microdollars
                  from state.agent_steps s
                 where s.project_id = $1 and s.agent_turn_id = t.agent_turn_id) s
          order by asked.n",
    )
    .bind(project_id)
    .bind(turn_id)
    .bind(i64::try_from(most).unwrap_or(i64::MAX - 1) + 1)
    .fetch_all(&mut **work)
    .await?;
    let left: Option<Amounts> = sqlx::query_as(
        "select b.steps_left::bigint as steps, b.tokens_left as tokens, b.microdollars_left as microdollars
           from state.budgets b
          where b.project_id = $1 and b.agent_turn_id = $2",
    )
    .bind(project_id)
    .bind(turn_id)
    .fetch_optional(&mut **work)
    .await?;
    let truncated = tree.len() > most;
    tree.truncate(most);
    Ok(of_tree(&tree, left, truncated))
}

/// Adds up a tree: each turn stands after the one that asked for it.
fn of_tree(tree: &[Spender], left: Option<Amounts>, truncated: bool) -> Option<Budget> {
    let (root, below) = tree.split_first()?;
    let mut children: Vec<ChildBudget> = Vec::new();
    // To which child a turn belongs.
    let mut branch: HashMap<TurnId, usize> = HashMap::new();
    for turn in below {
        let of_parent = turn.parent_agent_turn_id.and_then(|parent| branch.get(&parent).copied());
        let place = of_parent.unwrap_or_else(|| {
            let Spender { agent_turn_id, limits: given, finished_at, .. } = *turn;
            let (spent, ended) = (Used::default(), finished_at.is_some());
            children.push(ChildBudget { agent_turn_id, given, spent, ended });
            children.len() - 1
        });
        branch.insert(turn.agent_turn_id, place);
        children[place].spent.add(turn.used);
    }
    let Flow { lent, returned } = flow(tree)?;
    Some(Budget {
        agent_turn_id: root.agent_turn_id,
        given: root.limits,
        left,
        lent,
        returned,
        spent: root.used,
        expires_at: root.limits.and_then(|given| given.deadline_at),
        children,
        truncated,
    })
}

/// Works out what the first turn of a tree lent and got back. What a turn has left when it ends goes to its parent; if that has ended, it is lost.
fn flow(tree: &[Spender]) -> Option<Flow> {
    let ends: HashMap<TurnId, Option<DateTime<Utc>>> =
        tree.iter().map(|turn| (turn.agent_turn_id, turn.finished_at)).collect();
    let none = |turn: &Spender| Flow { lent: turn.given().zero(), returned: turn.given().zero() };
    let mut flows: HashMap<TurnId, Flow> = tree.iter().map(|turn| (turn.agent_turn_id, none(turn))).collect();
    // From the end: each turn after those that it asked for.
    for turn in tree.iter().skip(1).rev() {
        let Some(own) = flows.get(&turn.agent_turn_id).copied() else { continue };
        let Some(parent_id) = turn.parent_agent_turn_id else { continue };
        let (Some(parent), Some(end)) = (flows.get_mut(&parent_id), ends.get(&parent_id)) else { continue };
        parent.lent = parent.lent.with(turn.given(), i64::saturating_add);
        if turn.finished_at.is_some_and(|at| end.is_none_or(|end| at < end)) {
            let rest = turn.given().with(turn.used.into(), i64::saturating_sub).with(own.lent, i64::saturating_sub);
            let rest = rest.with(own.returned, i64::saturating_add);
            parent.returned = parent.returned.with(rest, i64::saturating_add);
        }
    }
    flows.remove(&tree.first()?.agent_turn_id)
}

/// What spending is grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SpendBy)]
pub enum By {
    /// The hour (UTC) in which the turns began.
    Hour,
    /// The day (UTC) in which the turns began.
    Day,
    Profile,
    /// `PROVIDER/MODEL`
    Model,
    Agent,
    Session,
}

impl By {
    pub const fn as_str(self) -> &'static str {
        match self {
            By::Hour => "hour",
            By::Day => "day",
            By::Profile => "profile",
            By::Model => "model",
            By::Agent => "agent",
            By::Session => "session",
        }
    }
}

/// What one group of turns has used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
#[schema(as = SpendRow)]
pub struct Group {
    /// The hour or day, the profile, `PROVIDER/MODEL`, the agent or the session. `null` for what has none: steps without a model call, turns
    /// without a session.
    pub key: Option<String>,
    /// Beginning of the hour or day. `null` if the groups are no times.
    pub at: Option<DateTime<Utc>>,
    pub n_turns: i64,
    pub n_steps: i64,
    /// Tokens that models read, cached ones included.
    pub input: i64,
    /// Tokens that providers read from their prompt cache.
    pub cached: i64,
    /// Tokens that models wrote.
    pub output: i64,
    /// Cost in millionths of a dollar.
    pub microdollars: i64,
    /// Steps whose model was asked more than once: an attempt failed, or a worker was lost.
    pub asked_again: i64,
}

/// What the turns have used that began in a span of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Spend {
    /// Times: newest first. Other groups: the most expensive first.
    pub rows: Vec<Group>,
    /// Whether there are more than 1,000 groups. The rest is left out.
    pub more_rows: bool,
    /// Turns that began at this time or later are not counted, because there were too many steps before it: continue with it as `since`. `null`
    /// if all turns of the span are counted.
    pub complete_until: Option<DateTime<Utc>>,
}

/// The most steps that one answer adds up, and the most groups that it has.
const MOST_STEPS: i64 = 100_000;
const MOST_ROWS: usize = 1_000;

/// Adds up what the turns have used that began in a span of time.
pub async fn spend(work: &mut UnitOfWork, by: By, since: DateTime<Utc>, until: DateTime<Utc>) -> Result<Spend, Error> {
    let complete_until = border(work, since, until, MOST_STEPS).await?;
    let project_id = work.project_id();
    let mut rows: Vec<Group> = sqlx::query_as(
        "select g.key, g.at, count(distinct g.agent_turn_id) as n_turns, sum(g.n_steps)::bigint as n_steps, sum(g.input)::bigint as input,
                sum(g.cached)::bigint as cached, sum(g.output)::bigint as output, sum(g.microdollars)::bigint as microdollars,
                sum(g.asked_again)::bigint as asked_again
           from (select u.*,
                        case $4 when 'profile' then a.profile_name when 'model' then u.provider || '/' || u.model when 'agent' then u.agent_id::text
                                when 'session' then t.session_id::text end as key,
                        case when $4 in ('hour', 'day') then date_trunc($4, u.began_at, 'UTC') end as at
                   from (select s.agent_turn_id, s.agent_id, s.provider, s.model, count(*) as n_steps, coalesce(sum(s.input_tokens), 0) as input,
                                coalesce(sum(s.cached_tokens), 0) as cached, coalesce(sum(s.output_tokens), 0) as output,
                                coalesce(sum(s.microdollars), 0) as microdollars,
                                count(*) filter (where s.asked_again or s.n_asked > 1) as asked_again,
                                to_timestamp(('x' || left(replace(s.agent_turn_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) as began_at
                           from state.agent_steps s
                          where s.project_id = $1 and s.agent_turn_id >= $2 and s.agent_turn_id < $3
                          group by s.agent_turn_id, s.agent_id, s.provider, s.model) u
                   left join lateral (
                        select t.session_id
                          from state.turns t
                         where $4 = 'session' and t.project_id = $1 and t.agent_turn_id = u.agent_turn_id
                        offset 0) t on true
                   left join lateral (
                        select a.profile_name
                          from resource.project_agents a
                         where $4 = 'profile' and a.project_id = $1 and a.agent_id = u.agent_id
                        offset 0) a on true) g
          group by g.key, g.at
          order by g.at desc nulls last, sum(g.microdollars) desc, sum(g.n_steps) desc, g.key
          limit $5",
    )
    .bind(project_id)
    .bind(TurnId::at(since))
    .bind(TurnId::at(complete_until.unwrap_or(until)))
    .bind(by.as_str())
    .bind(i64::try_from(MOST_ROWS).unwrap_or_default() + 1)
    .fetch_all(&mut **work)
    .await?;
    let more_rows = rows.len() > MOST_ROWS;
    rows.truncate(MOST_ROWS);
    for row in &mut rows {
        row.key = row.key.take().or(row.at.map(|at| at.to_rfc3339_opts(SecondsFormat::Secs, true)));
    }
    Ok(Spend { rows, more_rows, complete_until })
}

/// Returns where a span must end if it has too many steps: before the turn of the first step too many.
pub(crate) async fn border(
    work: &mut UnitOfWork,
    since: DateTime<Utc>,
    until: DateTime<Utc>,
    most_steps: i64,
) -> Result<Option<DateTime<Utc>>, Error> {
    let project_id = work.project_id();
    let first: Option<TurnId> = sqlx::query_scalar(
        "select s.agent_turn_id
           from state.agent_steps s
          where s.project_id = $1 and s.agent_turn_id >= $2 and s.agent_turn_id < $3
          order by s.agent_turn_id, s.step_id
         offset $4
          limit 1",
    )
    .bind(project_id)
    .bind(TurnId::at(since))
    .bind(TurnId::at(until))
    .bind(most_steps)
    .fetch_optional(&mut **work)
    .await?;
    // Turns that began in the same millisecond are counted together; those of the first one always.
    let border = first.and_then(|turn_id| turn_id.minted_at());
    Ok(border.map(|at| at.max(since + TimeDelta::milliseconds(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn that ended at this second, or has not ended.
    fn turn(parent: Option<TurnId>, tokens: Option<i64>, ended: Option<i64>, used: i64) -> Spender {
        let finished_at = ended.and_then(|second| DateTime::from_timestamp(second, 0));
        let limits = tokens.map(|_| Given { steps: None, tokens, microdollars: None, deadline_at: None });
        let used = Used { steps: 1, tokens: used, microdollars: 0 };
        Spender { agent_turn_id: TurnId::new(), parent_agent_turn_id: parent, limits, finished_at, used }
    }

    /// WK-8: what was lent and what came back add up, also of children that lent on.
    #[test]
    fn a_tree_of_budgets_adds_up() {
        let root = turn(None, Some(1_000), None, 100);
        let over = turn(Some(root.agent_turn_id), Some(300), Some(9), 50);
        let running = turn(Some(root.agent_turn_id), Some(200), None, 20);
        let below = turn(Some(over.agent_turn_id), Some(100), Some(7), 40);
        let tokens = |amounts: Amounts| amounts.tokens;
        let budget = of_tree(&[root, over, running, below], None, false).unwrap();
        assert_eq!((tokens(budget.lent), tokens(budget.returned)), (Some(500), Some(210)), "300 less 50 and 40");
        assert_eq!((budget.lent.steps, budget.spent.tokens, budget.children.len()), (None, 100, 2));
        assert_eq!((budget.children[0].spent.tokens, budget.children[1].spent.tokens), (90, 20));
        assert_eq!(of_tree(&[], None, false), None);
    }

    /// WK-8: what a turn has left whose parent has ended is lost.
    #[test]
    fn what_comes_back_too_late_is_lost() {
        let root = turn(None, Some(1_000), None, 100);
        let over = turn(Some(root.agent_turn_id), Some(300), Some(9), 50);
        let late = turn(Some(over.agent_turn_id), Some(100), Some(10), 40);
        let budget = of_tree(&[root, over, late], None, false).unwrap();
        assert_eq!(budget.returned.tokens, Some(150), "300 less 50 and the 100 that were lent");
    }
}

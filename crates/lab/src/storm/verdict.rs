//! What must hold when a storm is over: the database is consistent, it agrees with the ledger, and the stream agrees with the outbox.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use anyhow::{Context, Result};
use sqlx::{FromRow, PgConnection};
use waybill_core::{
    id::{CardId, TurnId},
    turn::ClaimToken,
};

use super::ledger::{Entry, Line};
use crate::figure::{Bar, Figure};

/// Checks of the database alone: each count must be 0.
const WRONG: [(&str, &str); 18] = [
    ("turns that have not ended", "select count(*) from state.turns where status = 'open'"),
    (
        "turns that did not succeed, outside of batches in which one was to fail",
        "select count(*)
           from state.turns t
           left join state.pmo_batches b on b.project_id = t.project_id and b.batch_id = t.batch_id
          where t.status not in ('open', 'success') and b.fail_fast is not true",
    ),
    (
        "ended turns whose deliverable is not the last card of the output box",
        "select count(*)
           from state.turns t
           join cardbox.boxes b on b.project_id = t.project_id and b.box_id = t.output_box_id
           left join cardbox.box_entries e on e.project_id = t.project_id and e.box_id = t.output_box_id and e.seq = b.length
          where t.status <> 'open' and e.card_id is distinct from t.deliverable_card_id",
    ),
    (
        "turns with more than one deliverable",
        "select count(*)
           from (select from state.turns t
                   join cardbox.box_entries e on e.project_id = t.project_id and e.box_id = t.output_box_id
                   join cardbox.cards c on c.project_id = e.project_id and c.card_id = e.card_id
                  where c.type = 'task.deliverable'
                  group by t.project_id, t.agent_turn_id
                 having count(*) > 1) t",
    ),
    (
        "ended turns without their one task event",
        "select count(*)
           from state.turns t
          where t.status <> 'open'
            and 1 <> (select count(*) from state.outbox o
                       where o.project_id = t.project_id and o.agent_turn_id = t.agent_turn_id and o.event = 'task'
                         and o.card_id = t.deliverable_card_id)",
    ),
    (
        "steps without their event",
        "select count(*)
           from state.agent_steps s
          where s.outcome <> 'finished'
            and not exists (select from state.outbox o
                             where o.project_id = s.project_id and o.agent_turn_id = s.agent_turn_id and o.event = 'step'
                               and o.event_id = s.step_id)",
    ),
    (
        "turns that asked for state events and got none of their beginning",
        "select count(*)
           from state.turns t
          where t.emit_state_event and t.status = 'success'
            and (select count(*) filter (where o.status = 'running') = 0 or count(*) filter (where o.status = 'dispatched') = 0
                   from state.outbox o
                  where o.project_id = t.project_id and o.agent_turn_id = t.agent_turn_id and o.event = 'state')",
    ),
    (
        "steps written under an older claim than the step before",
        "select count(*)
           from (select s.claim_token, lag(s.claim_token) over (partition by s.project_id, s.agent_turn_id order by s.from_seq) as before
                   from state.agent_steps s) s
          where s.claim_token < s.before",
    ),
    (
        "steps taken twice",
        "select coalesce(sum(n), 0)::bigint
           from (select count(*) - count(distinct c.content::text) as n
                   from state.turns t
                   join cardbox.box_entries e on e.project_id = t.project_id and e.box_id = t.output_box_id
                   join cardbox.cards c on c.project_id = e.project_id and c.card_id = e.card_id
                  where c.type = 'agent.thought'
                  group by t.project_id, t.agent_turn_id) s",
    ),
    (
        "output boxes with cards that no step and no answer accounts for",
        "select count(*)
           from state.turns t
           join cardbox.boxes b on b.project_id = t.project_id and b.box_id = t.output_box_id
           left join (select s.agent_turn_id, sum(s.to_seq - s.from_seq + 1) as n from state.agent_steps s group by 1) s
             on s.agent_turn_id = t.agent_turn_id
           left join (select e.agent_turn_id, count(*) as n from state.execution_edges e
                       where e.primitive = 'report' and e.edge_phase = 'response' group by 1) r
             on r.agent_turn_id = t.agent_turn_id
          -- Somebody who stops a turn that nobody runs brings its deliverable along.
          where b.length <> coalesce(s.n, 0) + coalesce(r.n, 0)
                + (t.status = 'canceled' and not exists (select from state.agent_steps f
                                                          where f.project_id = t.project_id and f.agent_turn_id = t.agent_turn_id
                                                            and f.outcome = 'finished'))::int",
    ),
    (
        "results applied twice",
        "select coalesce(sum(n - 1), 0)::bigint
           from (select count(*) as n
                   from cardbox.box_entries e
                   join cardbox.cards c on c.project_id = e.project_id and c.card_id = e.card_id
                  where c.type = 'tool.result'
                  group by c.project_id, c.tool_call_id
                 having count(*) > 1) r",
    ),
    (
        "calls without an answer",
        "select count(*)
           from state.execution_edges e
          where e.primitive = 'command' and e.edge_phase = 'request'
            and not exists (select from state.execution_edges r
                             where r.project_id = e.project_id and r.correlation_id = e.correlation_id
                               and r.primitive = 'report' and r.edge_phase = 'response')",
    ),
    (
        "rows left over: inbox, calls, busy agents, open batches, quarantine",
        "select (select count(*) from state.agent_inbox) + (select count(*) from state.waiting_calls)
              + (select count(*) from state.agent_state_head where status <> 'idle' or n_queued <> 0)
              + (select count(*) from state.pmo_batches where status = 'open' or stopping)
              + (select count(*) from state.quarantine where quarantined_at is not null)",
    ),
    (
        "batches that closed otherwise than by their last child",
        "select count(*) from state.pmo_batches where status <> 'open' and status <> case when fail_fast then 'failed' else 'success' end",
    ),
    (
        "batches that did not report exactly once",
        "select count(*)
           from state.pmo_batches b
          where 1 <> (select count(*) from state.execution_edges e
                       where e.project_id = b.project_id and e.correlation_id = b.batch_id
                         and e.primitive = 'join' and e.edge_phase = 'response')
             or 1 <> (select count(*) from state.execution_edges e
                       where e.project_id = b.project_id and e.correlation_id = b.tool_call_id
                         and e.primitive = 'report' and e.edge_phase = 'response')",
    ),
    (
        "results of batches that are not complete and in task order",
        "select count(*)
           from state.pmo_batches b
           join state.execution_edges e on e.project_id = b.project_id and e.correlation_id = b.batch_id
                and e.primitive = 'join' and e.edge_phase = 'response'
           join cardbox.cards c on c.project_id = e.project_id and c.card_id = e.card_id
          where (select coalesce(jsonb_agg(r -> 'task_index' order by n), '[]')
                   from jsonb_array_elements(c.content::jsonb -> 'result' -> 'results') with ordinality as r (r, n))
                <> (select jsonb_agg(i) from generate_series(0, b.n_tasks - 1) i)
             or exists (select from jsonb_array_elements(c.content::jsonb -> 'result' -> 'results') r
                          join state.pmo_batch_tasks k on k.project_id = b.project_id and k.batch_id = b.batch_id
                               and k.task_index = (r ->> 'task_index')::int
                         where r ->> 'status' = 'success' and r ->> 'deliverable_card_id' is distinct from k.deliverable_card_id::text)",
    ),
    (
        "children that took more than one step after their batch had ended",
        "select count(*)
           from state.pmo_batches b
           -- A commit is seen somewhat later than it is dated. The parent's next step has surely seen it; where there is none, six seconds
           -- are longer than a transaction may take.
          cross join lateral (select coalesce(min(p.created_at), b.closed_at + interval '6 seconds') as seen_at from state.agent_steps p
                               where p.project_id = b.project_id and p.agent_turn_id = b.parent_agent_turn_id
                                 and p.created_at > b.closed_at) p
           join state.turns t on t.project_id = b.project_id and t.batch_id = b.batch_id
          where 1 < (select count(*) from state.agent_steps s
                      where s.project_id = t.project_id and s.agent_turn_id = t.agent_turn_id and s.outcome <> 'finished'
                        and s.created_at > p.seen_at)",
    ),
    (
        "agents that were made for a task and still have a head",
        "select count(*) from state.agent_state_head where ephemeral",
    ),
];

pub(crate) async fn of_the_database(admin: &mut PgConnection, turns: usize) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let accepted: i64 = sqlx::query_scalar("select count(*) from state.turns").fetch_one(&mut *admin).await?;
    figures.push(Figure::new("turns accepted, with children", accepted as f64, "turns", Bar::AtLeast(turns as f64)));
    for (what, sql) in WRONG {
        let n: i64 = sqlx::query_scalar(sql).fetch_one(&mut *admin).await.context(what)?;
        figures.push(Figure::new(what, n as f64, "rows", Bar::AtMost(0.0)));
    }
    let alone = "select count(*) from state.pmo_batches b
                      where b.status <> 'open'
                        and not exists (select from state.agent_steps p
                                         where p.project_id = b.project_id and p.agent_turn_id = b.parent_agent_turn_id and p.created_at > b.closed_at)";
    let n: i64 = sqlx::query_scalar(alone).fetch_one(&mut *admin).await?;
    figures.push(Figure::new("batches whose parent took no later step", n as f64, "batches", Bar::None));
    Ok(figures)
}

/// Compares the ledger with the database.
pub(super) async fn of_the_ledger(admin: &mut PgConnection, lines: &[Line], turns: usize) -> Result<Vec<Figure>> {
    let (mut accepted, mut wrote, mut refused) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (mut asked, mut executed) = (HashMap::new(), HashMap::new());
    let mut found_again = 0;
    let mut claims: HashMap<(TurnId, ClaimToken), HashSet<&str>> = HashMap::new();
    for line in lines {
        match &line.entry {
            Entry::Accepted { turn_id, .. } => drop(accepted.insert(*turn_id)),
            Entry::Claimed { turn_id, token, by } => drop(claims.entry((*turn_id, *token)).or_default().insert(by)),
            Entry::Wrote { card_id, again, .. } | Entry::Answered { card_id, again, .. } => {
                wrote.insert(*card_id);
                found_again += u64::from(*again);
            }
            Entry::Refused { card_id, .. } => drop(refused.insert(*card_id)),
            Entry::Asked { turn_id, step } => *asked.entry((*turn_id, *step)).or_insert(0u64) += 1,
            Entry::Executed { tool_call_id } => *executed.entry(*tool_call_id).or_insert(0u64) += 1,
            Entry::Killed { .. } | Entry::Back { .. } => {}
        }
    }
    let known: Vec<TurnId> = sqlx::query_scalar("select agent_turn_id from state.turns").fetch_all(&mut *admin).await?;
    let known: HashSet<TurnId> = known.into_iter().collect();
    let held = "select e.card_id from state.turns t
                  join cardbox.box_entries e on e.project_id = t.project_id and e.box_id = t.output_box_id
                 where e.card_id is not null";
    let held: Vec<CardId> = sqlx::query_scalar(held).fetch_all(&mut *admin).await?;
    let held: HashSet<CardId> = held.into_iter().collect();
    let again = |counts: Vec<u64>| counts.into_iter().map(|n| n - 1).sum::<u64>() as f64;
    let none = Bar::AtMost(0.0);
    let two = claims.values().filter(|by| by.len() > 1).count();
    Ok(vec![
        Figure::new("turns that the ledger heard of", accepted.len() as f64, "turns", Bar::AtLeast(turns as f64)),
        Figure::new("accepted turns that are gone", accepted.difference(&known).count() as f64, "turns", none),
        Figure::new("acknowledged writes that are gone", wrote.difference(&held).count() as f64, "cards", none),
        Figure::new("refused writes that are there", refused.intersection(&held).count() as f64, "cards", none),
        Figure::new("claims that two had under one token", two as f64, "claims", none),
        Figure::new("writes refused as stale", refused.len() as f64, "writes", Bar::None),
        Figure::new("commits of unknown outcome, found by their key", found_again as f64, "commits", Bar::None),
        Figure::new("model asked again after a takeover", again(asked.into_values().collect()), "calls", Bar::None),
        Figure::new("tool run again after a takeover", again(executed.into_values().collect()), "calls", Bar::None),
    ])
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, FromRow)]
pub(super) struct End {
    agent_turn_id: TurnId,
    /// `None` means that it has not ended.
    ended_at: Option<f64>,
    /// The token under which it ended: that of the worker that ended it, or a later one.
    claim_token: Option<ClaimToken>,
}

pub(super) async fn ends(admin: &mut PgConnection) -> Result<HashMap<TurnId, End>> {
    let ends: Vec<End> = sqlx::query_as(
        "select t.agent_turn_id, extract(epoch from t.finished_at)::float8 as ended_at, t.claim_token
           from state.turns t",
    )
    .fetch_all(admin)
    .await?;
    Ok(ends.into_iter().map(|end| (end.agent_turn_id, end)).collect())
}

/// Returns, for each turn of a killed process, the time from the kill until another process had the turn, or until the turn ended without
/// one. Outages of the database, and the lease after each, are subtracted: no process is taken for lost then. A turn that stays open waits to
/// the end of the run.
pub(super) fn kill_to_resumed(lines: &[Line], ends: &HashMap<TurnId, End>, lease: Duration) -> Vec<f64> {
    let pauses: Vec<(f64, f64)> = lines
        .iter()
        .filter_map(|line| match line.entry {
            Entry::Back { after_seconds } => Some((line.at, after_seconds + lease.as_secs_f64())),
            _ => None,
        })
        .collect();
    let over = lines.last().map_or(0.0, |line| line.at);
    // By turn: its claims, and when a worker released it.
    let mut claims: HashMap<TurnId, Vec<(f64, &str)>> = HashMap::new();
    let mut left: HashMap<TurnId, Vec<f64>> = HashMap::new();
    let mut of_process: HashMap<&str, Vec<(f64, TurnId, ClaimToken)>> = HashMap::new();
    for line in lines {
        match &line.entry {
            Entry::Claimed { turn_id, token, by } => {
                claims.entry(*turn_id).or_default().push((line.at, by));
                of_process.entry(by).or_default().push((line.at, *turn_id, *token));
            }
            Entry::Wrote { turn_id, leaves: true, .. } => left.entry(*turn_id).or_default().push(line.at),
            _ => {}
        }
    }
    let mut times = Vec::new();
    for line in lines {
        let Entry::Killed { by } = &line.entry else { continue };
        // An action shortly before the kill may reach the ledger shortly after it.
        for (claimed, turn_id, token) in
            of_process.get(by.as_str()).into_iter().flatten().filter(|(at, ..)| *at <= line.at)
        {
            let between = |at: f64| at > *claimed && at <= line.at;
            let let_go = left.get(turn_id).is_some_and(|ends| ends.iter().any(|at| between(*at)));
            let taken = claims[turn_id].iter().any(|(at, other)| between(*at) && *other != by);
            if let_go || taken {
                continue;
            }
            let by_others = claims[turn_id].iter().filter(|(at, other)| *at > line.at && other != by);
            let next = by_others.map(|(at, _)| *at).min_by(f64::total_cmp);
            let end = ends.get(turn_id);
            // The turn's end was written, but the process was killed before it could report it.
            if next.is_none() && end.is_some_and(|end| end.claim_token == Some(*token)) {
                continue;
            }
            let at = next.or(end.and_then(|end| end.ended_at)).unwrap_or(over).max(line.at);
            let paused = pauses.iter().filter(|(back, _)| (line.at..at).contains(back)).map(|(_, pause)| pause);
            times.push((at - line.at - paused.sum::<f64>()).max(0.0));
        }
    }
    times
}

/// Returns, for each turn with no other turn before it, the time from its acceptance to its first claim.
pub(super) fn accepted_to_claimed(lines: &[Line]) -> Vec<f64> {
    let mut first: HashMap<TurnId, f64> = HashMap::new();
    for line in lines {
        if let Entry::Claimed { turn_id, .. } = &line.entry {
            first.entry(*turn_id).or_insert(line.at);
        }
    }
    let accepted = lines.iter().filter_map(|line| match &line.entry {
        Entry::Accepted { turn_id, ready: true } => Some((line.at, turn_id)),
        _ => None,
    });
    accepted.filter_map(|(at, turn_id)| Some((first.get(turn_id)? - at).max(0.0))).collect()
}

/// Returns the smallest value such that at least this share of the values is not above it.
pub(crate) fn percentile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_is_not_claimed_again_counts_until_it_ends() {
        let turn_id = TurnId::new();
        let token = |n: i64| -> ClaimToken { n.to_string().try_into().unwrap() };
        let claimed = |at: f64, n: i64, by: &str| Line {
            at,
            entry: Entry::Claimed { turn_id, token: token(n), by: by.to_owned() },
        };
        let killed = Line { at: 10.0, entry: Entry::Killed { by: "a".to_owned() } };
        let over = Line { at: 40.0, entry: Entry::Back { after_seconds: 0.0 } };
        let times = |lines: &[Line], ended_at: Option<f64>, by: Option<i64>| {
            let end = End { agent_turn_id: turn_id, ended_at, claim_token: by.map(token) };
            kill_to_resumed(lines, &HashMap::from([(turn_id, end)]), Duration::ZERO)
        };
        let again = [claimed(9.0, 1, "a"), killed.clone(), claimed(14.0, 3, "b"), over.clone()];
        assert_eq!(times(&again, Some(15.0), Some(3)), [4.0]);
        let never = [claimed(9.0, 1, "a"), killed, over];
        assert_eq!(times(&never, None, None), [30.0], "it is open");
        assert_eq!(times(&never, Some(22.0), Some(2)), [12.0], "it was stopped");
        assert_eq!(times(&never, Some(9.9), Some(1)), [0.0; 0], "its end had been written");
    }
}

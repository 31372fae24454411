//! What must hold of a live database, asked without changing anything: `waybill doctor --deep`.
//!
//! Each rule is checked by one statement, so that it compares rows of one moment however busy the system is. The statement returns what breaks it.

use serde::Serialize;
use uuid::Uuid;
use waybill_core::id::ProjectId;

use crate::work::{DbError, Kernel};

/// A rule that does not hold.
#[derive(Clone, Debug, Serialize)]
pub struct Broken {
    /// `None` means the whole database.
    pub project_id: Option<ProjectId>,
    pub invariant: &'static str,
    /// Turns, calls, agents, batches or boxes by their ids, or tables of history by their names: the first of those that break it.
    pub subjects: Vec<String>,
}

/// Rules of the whole database: the partitions of history exist.
pub const OF_DATABASE: [(&str, &str); 1] = [(
    "history has partitions for the week to come",
    "select h.parent from state.history() h where state.history_ahead(h.parent) < interval '7 days'",
)];

/// Rules of one project, which is `$1`. Turns whose history was dropped are not checked.
pub const INVARIANTS: [(&str, &str); 29] = [
    (
        "an agent runs its turn if and only if a worker has claimed it",
        "select h.agent_id from state.agent_state_head h
           left join state.agent_inbox i on i.project_id = $1 and i.agent_turn_id = h.active_agent_turn_id
          where h.project_id = $1 and h.status <> 'idle' and (h.status = 'running') <> coalesce(i.status = 'processing', false)
          union all
         select i.agent_id from state.agent_inbox i
          where i.project_id = $1 and i.status = 'processing'
            and not exists (select from state.agent_state_head h
                             where h.project_id = $1 and h.agent_id = i.agent_id and h.active_agent_turn_id = i.agent_turn_id
                               and h.status = 'running')",
    ),
    (
        "a suspended turn waits for a call or for a time, or is ready",
        "select i.agent_turn_id from state.agent_state_head h
           join state.agent_inbox i on i.project_id = $1 and i.agent_turn_id = h.active_agent_turn_id
          where h.project_id = $1 and h.status = 'suspended' and i.status <> 'pending' and i.next_retry_at is null
            and not exists (select from state.waiting_calls c where c.project_id = $1 and c.agent_turn_id = i.agent_turn_id)",
    ),
    (
        "a dispatched turn is ready, or waits for its time",
        "select i.agent_turn_id from state.agent_state_head h
           join state.agent_inbox i on i.project_id = $1 and i.agent_turn_id = h.active_agent_turn_id
          where h.project_id = $1 and h.status = 'dispatched' and i.status <> 'pending' and i.next_retry_at is null",
    ),
    (
        "an idle agent has nothing queued, ready or claimed",
        "select i.agent_turn_id from state.agent_inbox i
           join state.agent_state_head h on h.project_id = $1 and h.agent_id = i.agent_id and h.status = 'idle'
          where i.project_id = $1 and i.next_retry_at is null",
    ),
    (
        "a ready turn is the one that its agent is on, at the same epoch",
        "select i.agent_turn_id from state.agent_inbox i
          where i.project_id = $1 and i.status = 'pending'
            and not exists (select from state.agent_state_head h
                             where h.project_id = $1 and h.agent_id = i.agent_id and h.active_agent_turn_id = i.agent_turn_id
                               and h.turn_epoch = i.turn_epoch and h.status in ('dispatched', 'suspended'))",
    ),
    (
        "a queued turn is behind another turn of its agent",
        "select i.agent_turn_id from state.agent_inbox i
          where i.project_id = $1 and i.status = 'queued'
            and not exists (select from state.agent_state_head h
                             where h.project_id = $1 and h.agent_id = i.agent_id and h.active_agent_turn_id <> i.agent_turn_id)",
    ),
    (
        "a worker that holds a turn or a call has a lease",
        "with lost as materialized (select w.worker_id from scheduler.workers_without_lease() w)
         select i.agent_turn_id from state.agent_inbox i
          where i.project_id = $1 and i.status = 'processing' and i.worker_id in (select worker_id from lost)
          union all
         select c.tool_call_id from state.waiting_calls c
          where c.project_id = $1 and c.status = 'processing' and c.worker_id in (select worker_id from lost)",
    ),
    (
        "a call that is waited for belongs to the turn that its agent is on",
        "select c.tool_call_id from state.waiting_calls c
          where c.project_id = $1
            and not exists (select from state.agent_state_head h
                             where h.project_id = $1 and h.agent_id = c.agent_id and h.active_agent_turn_id = c.agent_turn_id)",
    ),
    (
        "a call that waits for a batch has one that is open",
        "select c.tool_call_id from state.waiting_calls c
          where c.project_id = $1 and c.status = 'awaiting'
            and not exists (select from state.pmo_batches b
                             where b.project_id = $1 and b.tool_call_id = c.tool_call_id and b.status = 'open')",
    ),
    (
        "an open batch has its call, or is to end now",
        "select b.batch_id from state.pmo_batches b
          where b.project_id = $1 and b.status = 'open' and b.deadline_at > clock_timestamp()
            and not exists (select from state.waiting_calls c where c.project_id = $1 and c.tool_call_id = b.tool_call_id)",
    ),
    (
        "a task is over if and only if its turn is",
        "select k.agent_turn_id from state.pmo_batch_tasks k
           join state.turns t on t.project_id = $1 and t.agent_turn_id = k.agent_turn_id
          where k.project_id = $1 and (k.status = 'open') <> (t.status = 'open')",
    ),
    (
        "a turn that has a budget has not ended",
        "select b.agent_turn_id from state.budgets b
          where b.project_id = $1
            and not exists (select from state.turns t
                             where t.project_id = $1 and t.agent_turn_id = b.agent_turn_id and t.status = 'open')",
    ),
    (
        "what is gone from a turn's budget is what its steps have used",
        "select b.agent_turn_id from state.budgets b
          cross join lateral (
                select count(*) as steps, coalesce(sum(s.input_tokens::bigint + s.output_tokens), 0) as tokens,
                       coalesce(sum(s.microdollars), 0) as microdollars
                  from state.agent_steps s
                 where s.project_id = $1 and s.agent_turn_id = b.agent_turn_id and s.input_tokens is not null) s
          where b.project_id = $1 and b.agent_turn_id >= (select pruned_before from waybill.schema)
            and (b.own_steps - b.steps_left <> s.steps or b.own_tokens - b.tokens_left <> s.tokens
                 or b.own_microdollars - b.microdollars_left <> s.microdollars)",
    ),
    (
        "no turn is ready before the mark of its queue",
        "select i.agent_turn_id from state.agent_inbox i
           join state.queue_marks m on m.project_id = $1 and m.worker_target = i.worker_target
          where i.project_id = $1 and i.status = 'pending' and i.inbox_seq < case when i.inbox_seq < 0 then m.begun_seq else m.new_seq end",
    ),
    (
        "an agent has at most one turn at a time",
        "select i.agent_id from state.agent_inbox i
          where i.project_id = $1 and i.status in ('pending', 'processing')
          group by i.agent_id having count(*) > 1",
    ),
    (
        "what a head says its agent does is in its inbox",
        "select h.agent_id from state.agent_state_head h
          where h.project_id = $1 and h.active_agent_turn_id is not null
            and not exists (select from state.agent_inbox i where i.project_id = $1 and i.agent_turn_id = h.active_agent_turn_id)",
    ),
    (
        "a turn that has not ended is in an inbox, and the other way round",
        "select t.agent_turn_id from state.turns t
          where t.project_id = $1 and t.agent_turn_id >= (select pruned_before from waybill.schema) and t.status = 'open'
            and not exists (select from state.agent_inbox i where i.project_id = $1 and i.agent_turn_id = t.agent_turn_id)
          union all
         select i.agent_turn_id from state.agent_inbox i
          where i.project_id = $1
            and not exists (select from state.turns t
                             where t.project_id = $1 and t.agent_turn_id = i.agent_turn_id and t.status = 'open')",
    ),
    (
        "a recorded turn is known by its messages, and no agent runs it",
        "select t.agent_turn_id from state.turns t
          where t.project_id = $1 and t.status = 'recorded'
            and (not exists (select from state.recordings r
                              where r.project_id = $1 and r.agent_turn_id = t.agent_turn_id
                                and r.n_messages = (select b.length from cardbox.boxes b where b.project_id = $1 and b.box_id = t.context_box_id))
                 or exists (select from state.agent_inbox i where i.project_id = $1 and i.agent_turn_id = t.agent_turn_id)
                 or exists (select from state.agent_state_head h where h.project_id = $1 and h.agent_id = t.agent_id))",
    ),
    (
        "a turn stands in the tree of the turn that started it",
        "select t.agent_turn_id from state.turns t
           left join state.turns p on p.project_id = $1 and p.agent_turn_id = t.parent_agent_turn_id
          where t.project_id = $1 and t.agent_turn_id >= (select pruned_before from waybill.schema)
            and t.root_turn_id <> coalesce(p.root_turn_id, t.parent_agent_turn_id, t.agent_turn_id)",
    ),
    (
        "epochs only grow",
        "select i.agent_turn_id from state.agent_inbox i
           join state.agent_state_head h on h.project_id = $1 and h.agent_id = i.agent_id
          where i.project_id = $1 and i.turn_epoch > h.turn_epoch
          union all
         select s.agent_turn_id
           from (select s.agent_turn_id, s.turn_epoch, s.claim_token,
                        lag(s.turn_epoch) over w as epoch_before, lag(s.claim_token) over w as token_before
                   from state.agent_steps s
                  where s.project_id = $1 and s.agent_turn_id >= (select pruned_before from waybill.schema)
                 window w as (partition by s.agent_turn_id order by s.from_seq, s.created_at)) s
          where s.turn_epoch < s.epoch_before or s.claim_token < s.token_before",
    ),
    (
        "only the current claim holds a turn",
        "select i.agent_turn_id from state.agent_inbox i
           join state.agent_state_head h on h.project_id = $1 and h.agent_id = i.agent_id
          where i.project_id = $1 and i.status = 'processing'
            and (h.active_agent_turn_id is distinct from i.agent_turn_id or h.claim_token <> i.claim_token)",
    ),
    (
        "a turn that has ended has its deliverable in its output box",
        "select t.agent_turn_id from state.turns t
          where t.project_id = $1 and t.agent_turn_id >= (select pruned_before from waybill.schema) and t.status <> 'open'
            and (t.status <> 'recorded' or t.deliverable_card_id is not null)
            and not exists (select from cardbox.box_entries e
                             where e.project_id = $1 and e.box_id = t.output_box_id and e.card_id = t.deliverable_card_id)",
    ),
    (
        "a turn has at most one deliverable",
        "select t.agent_turn_id
           from state.turns t
           join cardbox.box_entries e on e.project_id = $1 and e.box_id = t.output_box_id
           join cardbox.cards c on c.project_id = $1 and c.card_id = e.card_id and c.type = 'task.deliverable'
          where t.project_id = $1 and t.agent_turn_id >= (select pruned_before from waybill.schema)
          group by t.agent_turn_id having count(*) > 1",
    ),
    (
        "the end of a turn is reported once",
        "select t.agent_turn_id
           from state.turns t
          where t.project_id = $1 and t.agent_turn_id >= (select pruned_before from waybill.schema) and t.status not in ('open', 'recorded')
            and 1 <> (select count(*) from state.outbox o
                       where o.project_id = $1 and o.agent_turn_id = t.agent_turn_id and o.event = 'task')",
    ),
    (
        "the result of a call stands once where its turn reads it",
        "select c.tool_call_id
           from state.turns t
           join cardbox.box_entries e on e.project_id = $1 and e.box_id = t.output_box_id
           join cardbox.cards c on c.project_id = $1 and c.card_id = e.card_id and c.type = 'tool.result'
          where t.project_id = $1 and t.agent_turn_id >= (select pruned_before from waybill.schema)
          group by t.agent_turn_id, c.tool_call_id having count(*) > 1",
    ),
    (
        "a call that was made is waited for, answered, or its turn is over",
        "select e.correlation_id from state.execution_edges e
           join state.turns t on t.project_id = $1 and t.agent_turn_id = e.agent_turn_id and t.status = 'open'
          where e.project_id = $1 and e.agent_turn_id >= (select pruned_before from waybill.schema) and e.primitive = 'command' and e.edge_phase = 'request'
            and not exists (select from state.waiting_calls c where c.project_id = $1 and c.tool_call_id = e.correlation_id)
            and not exists (select from state.execution_edges r
                             where r.project_id = $1 and r.correlation_id = e.correlation_id
                               and r.primitive = 'report' and r.edge_phase = 'response')",
    ),
    (
        "as many turns are queued as the head says",
        "select h.agent_id from state.agent_state_head h
          where h.project_id = $1
            and h.n_queued <> (select count(*) from state.agent_inbox i
                                where i.project_id = $1 and i.agent_id = h.agent_id and i.status = 'queued')",
    ),
    (
        "a batch counts its open tasks; once it has ended its end is on record and its counters are gone",
        "select b.batch_id from state.pmo_batches b
          where b.project_id = $1 and b.parent_agent_turn_id >= (select pruned_before from waybill.schema)
            and case when b.status = 'open'
                     then (select (sum(s.remaining), count(*) filter (where s.remaining > 0)) from state.pmo_batch_slots s
                            where s.project_id = $1 and s.batch_id = b.batch_id)
                          is distinct from
                          (select (count(*) filter (where k.status = 'open'), b.open_slots::bigint) from state.pmo_batch_tasks k
                            where k.project_id = $1 and k.batch_id = b.batch_id)
                     else not exists (select from state.execution_edges e
                                       where e.project_id = $1 and e.correlation_id = b.batch_id
                                         and e.primitive = 'join' and e.edge_phase = 'response')
                          or not b.stopping
                             and exists (select from state.pmo_batch_slots s where s.project_id = $1 and s.batch_id = b.batch_id) end",
    ),
    (
        "what a box holds is there, in the same project",
        "select e.box_id from cardbox.box_entries e
           join state.turns t on t.project_id = $1 and t.agent_turn_id >= (select pruned_before from waybill.schema) and e.box_id in (t.context_box_id, t.output_box_id)
          where e.project_id = $1
            and (e.card_id is not null and not exists (select from cardbox.cards c where c.project_id = $1 and c.card_id = e.card_id)
                 or e.source_box_id is not null
                    and not exists (select from cardbox.boxes b where b.project_id = $1 and b.box_id = e.source_box_id))",
    ),
];

/// How many subjects are named for a broken rule.
const MOST_NAMED: usize = 5;

/// Checks all rules of one project. Read only. Few rules hold while a project is being deleted (see [`crate::project::is_kept`]).
pub async fn of_project(kernel: &Kernel, project_id: ProjectId) -> Result<Vec<Broken>, DbError> {
    let mut broken = Vec::new();
    for (invariant, sql) in INVARIANTS {
        let mut work = kernel.begin(project_id).await?;
        // Longer than anything on the path of a turn may take, and read as a whole, which the plans of turns never are.
        sqlx::raw_sql(
            "set transaction read only; set local statement_timeout = '10min'; set local enable_hashjoin = on;
             set local plan_cache_mode = 'auto'",
        )
        .execute(&mut *work)
        .await?;
        let found: Vec<Uuid> = sqlx::query_scalar(sql).bind(project_id).fetch_all(&mut *work).await?;
        broken.extend(named(Some(project_id), invariant, found));
    }
    Ok(broken)
}

/// Checks the rules that belong to no project.
pub async fn of_database(kernel: &Kernel) -> Result<Vec<Broken>, DbError> {
    let mut broken = Vec::new();
    for (invariant, sql) in OF_DATABASE {
        let found: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut *kernel.lease().await?).await?;
        broken.extend(named(None, invariant, found));
    }
    Ok(broken)
}

fn named<S: ToString>(project_id: Option<ProjectId>, invariant: &'static str, found: Vec<S>) -> Option<Broken> {
    let subjects: Vec<String> = found.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    (!subjects.is_empty()).then_some(Broken { project_id, invariant, subjects })
}

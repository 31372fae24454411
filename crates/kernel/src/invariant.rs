//! What must hold of a live database, asked without changing anything: `waybill doctor --deep`.
//!
//! Each question is asked of one project in one statement, so what it sees is of one moment, and answers with whatever breaks the rule.

use serde::Serialize;
use uuid::Uuid;
use waybill_core::id::ProjectId;

use crate::work::{DbError, Kernel};

/// A rule that does not hold.
#[derive(Clone, Debug, Serialize)]
pub struct Broken {
    pub project_id: ProjectId,
    pub invariant: &'static str,
    /// Turns, calls, agents, batches or boxes: the first of those that break it.
    pub subjects: Vec<Uuid>,
}

/// `$1` is the project. Of turns whose history was dropped nothing is asked.
pub const INVARIANTS: [(&str, &str); 14] = [
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
        "the end of a turn is told once",
        "select t.agent_turn_id
           from state.turns t
          where t.project_id = $1 and t.agent_turn_id >= (select pruned_before from waybill.schema) and t.status <> 'open'
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
        "a batch counts its open tasks, and its end is on record",
        "select b.batch_id from state.pmo_batches b
          where b.project_id = $1 and b.parent_agent_turn_id >= (select pruned_before from waybill.schema)
            and case when b.status = 'open'
                     then (select sum(s.remaining) from state.pmo_batch_slots s where s.project_id = $1 and s.batch_id = b.batch_id)
                          is distinct from
                          (select count(*) from state.pmo_batch_tasks k
                            where k.project_id = $1 and k.batch_id = b.batch_id and k.status = 'open')
                     else not exists (select from state.execution_edges e
                                       where e.project_id = $1 and e.correlation_id = b.batch_id
                                         and e.primitive = 'join' and e.edge_phase = 'response') end",
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

/// Subjects that are named of a rule that is broken.
const MOST_NAMED: usize = 5;

/// Asks everything of one project. Read only. Of one that is being deleted (see [`crate::project::is_kept`]) little holds.
pub async fn of_project(kernel: &Kernel, project_id: ProjectId) -> Result<Vec<Broken>, DbError> {
    let mut broken = Vec::new();
    for (invariant, sql) in INVARIANTS {
        let mut work = kernel.begin(project_id).await?;
        // Longer than anything on the path of a turn may take.
        sqlx::raw_sql("set transaction read only; set local statement_timeout = '10min'").execute(&mut *work).await?;
        let found: Vec<Uuid> = sqlx::query_scalar(sql).bind(project_id).fetch_all(&mut *work).await?;
        if !found.is_empty() {
            let subjects = found.into_iter().take(MOST_NAMED).collect();
            broken.push(Broken { project_id, invariant, subjects });
        }
    }
    Ok(broken)
}

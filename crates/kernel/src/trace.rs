//! What is on record of a turn, for its trace.

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use waybill_core::{
    id::{AgentId, SessionId, ToolCallId, TraceId, TurnId},
    span::{Call, Record, Step},
    turn::TurnStatus,
};

use crate::{
    turn::{self, Error},
    work::UnitOfWork,
};

#[derive(FromRow)]
struct Row {
    agent_id: AgentId,
    profile_name: Option<String>,
    session_id: Option<SessionId>,
    status: TurnStatus,
    parent_tool_call_id: Option<ToolCallId>,
    trace_id: Option<TraceId>,
    traceparent: Option<String>,
    created_at: DateTime<Utc>,
    finished_at: Option<DateTime<Utc>>,
}

#[derive(FromRow)]
struct CallRow {
    tool_call_id: ToolCallId,
    tool_name: Option<String>,
    status: Option<String>,
    asked_at: DateTime<Utc>,
    answered_at: Option<DateTime<Utc>>,
}

/// Returns the record of a turn that has ended. `None` means that there is no such turn, or that it is open.
pub async fn record(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Option<Record>, Error> {
    let project_id = work.project_id();
    let row: Option<Row> = sqlx::query_as(
        "select t.agent_id, a.profile_name, t.session_id, t.status::text, t.parent_tool_call_id, t.trace_id, t.traceparent, t.created_at,
                t.finished_at
           from state.turns t
           left join lateral (
                select a.profile_name from resource.project_agents a where a.project_id = $1 and a.agent_id = t.agent_id offset 0) a on true
          where t.project_id = $1 and t.agent_turn_id = $2",
    )
    .bind(project_id)
    .bind(turn_id)
    .fetch_optional(&mut **work)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let Some(finished_at) = row.finished_at else { return Ok(None) };
    let calls: Vec<CallRow> = sqlx::query_as(
        "select c.tool_call_id, r.content::jsonb ->> 'tool_name' as tool_name, answer.status, asked.created_at as asked_at,
                answer.created_at as answered_at
           from state.turns t
          cross join lateral (select b.length from cardbox.boxes b where b.project_id = $1 and b.box_id = t.output_box_id offset 0) b
          cross join lateral (select p.card_id from cardbox.places($1, t.output_box_id, 1, b.length) p offset 0) p
          cross join lateral (
                select c.card_id, c.tool_call_id
                  from cardbox.cards c
                 where c.project_id = $1 and c.card_id = p.card_id and c.type = 'tool.call'
                offset 0) c
          cross join lateral cardbox.reading($1, c.card_id, statement_timestamp()) r
          cross join lateral (
                select e.created_at from state.execution_edges e
                 where e.project_id = $1 and e.correlation_id = c.tool_call_id and e.agent_turn_id = $2 and e.primitive = 'command' and e.edge_phase = 'request'
                offset 0) asked
           left join lateral (
                select e.status, e.created_at from state.execution_edges e
                 where e.project_id = $1 and e.correlation_id = c.tool_call_id and e.agent_turn_id = $2 and e.primitive = 'report' and e.edge_phase = 'response'
                offset 0) answer on true
          where t.project_id = $1 and t.agent_turn_id = $2 and c.tool_call_id is not null
          order by asked.created_at, c.tool_call_id",
    )
    .bind(project_id)
    .bind(turn_id)
    .fetch_all(&mut **work)
    .await?;
    let steps = turn::steps(work, turn_id).await?.into_iter().filter_map(|step| {
        Some(Step {
            step_id: step.step_id,
            provider: step.provider?,
            model: step.model.unwrap_or_default(),
            input_tokens: step.input_tokens.unwrap_or_default().into(),
            cached_tokens: step.cached_tokens.unwrap_or_default().into(),
            output_tokens: step.output_tokens.unwrap_or_default().into(),
            microdollars: step.microdollars.unwrap_or_default(),
            took_ms: step.took_ms.unwrap_or_default().into(),
            created_at: step.created_at,
        })
    });
    let steps = steps.collect();
    let calls = calls.into_iter().map(|call| Call {
        tool_call_id: call.tool_call_id,
        tool_name: call.tool_name,
        status: call.status,
        asked_at: call.asked_at,
        answered_at: call.answered_at,
    });
    Ok(Some(Record {
        project_id,
        agent_turn_id: turn_id,
        agent_id: row.agent_id,
        profile_name: row.profile_name,
        session_id: row.session_id,
        status: row.status,
        parent_tool_call_id: row.parent_tool_call_id,
        trace_id: row.trace_id,
        traceparent: row.traceparent,
        created_at: row.created_at,
        finished_at,
        steps,
        calls: calls.collect(),
    }))
}

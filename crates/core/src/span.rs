//! Traces, made from the record of a turn (OpenTelemetry, with its conventions for generative AI).
//!
//! Nothing is measured on the way: a turn, its steps and its calls are rows with times, so a trace can be made when the turn has ended, and made
//! again with the same result. The id of a span is the last half of the id of what it is about, so the process that makes the span of a child knows
//! the span of its parent without a lookup.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    card::ResultContent,
    id::{AgentId, ProjectId, SessionId, StepId, ToolCallId, TraceId, TurnId},
    turn::TurnStatus,
};

/// What is on record of a turn that has ended.
#[derive(Clone, Debug)]
pub struct Record {
    pub project_id: ProjectId,
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    pub profile_name: Option<String>,
    pub session_id: Option<SessionId>,
    /// How it ended.
    pub status: TurnStatus,
    /// The call that started it. `None` means that a caller outside did.
    pub parent_tool_call_id: Option<ToolCallId>,
    pub trace_id: Option<TraceId>,
    /// The header of the caller outside, as it was sent.
    pub traceparent: Option<String>,
    pub created_at: DateTime<Utc>,
    pub finished_at: DateTime<Utc>,
    pub steps: Vec<Step>,
    pub calls: Vec<Call>,
}

/// A step in which a model was called.
#[derive(Clone, Debug)]
pub struct Step {
    pub step_id: StepId,
    pub provider: String,
    pub model: String,
    pub input_tokens: i64,
    pub cached_tokens: i64,
    pub output_tokens: i64,
    pub microdollars: i64,
    pub took_ms: i64,
    /// When it was written.
    pub created_at: DateTime<Utc>,
}

/// A call that the turn made.
#[derive(Clone, Debug)]
pub struct Call {
    pub tool_call_id: ToolCallId,
    pub tool_name: Option<String>,
    /// Its outcome. `None` means that the turn ended first.
    pub status: Option<String>,
    pub asked_at: DateTime<Utc>,
    pub answered_at: Option<DateTime<Utc>>,
}

/// Where a turn stands in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub trace_id: u128,
    /// `None` means that it is the root.
    pub parent_span_id: Option<u64>,
}

/// Returns the span of the thing that has this id.
pub fn span_id(id: impl Into<Uuid>) -> u64 {
    id.into().as_u64_pair().1
}

/// Returns the two ids of a `traceparent` header, if it is one.
pub fn read_traceparent(header: &str) -> Option<(u128, u64)> {
    let mut parts = header.split('-');
    let (version, trace, span, _flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if version.len() != 2 || trace.len() != 32 || span.len() != 16 {
        return None;
    }
    let (trace, span) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
    (trace != 0 && span != 0).then_some((trace, span))
}

/// Returns the header that a call carries to the service that answers it: the turn's trace, and the call's own span.
pub fn traceparent(
    trace_id: Option<TraceId>,
    traceparent: Option<&str>,
    turn_id: TurnId,
    call_id: ToolCallId,
) -> String {
    format!("00-{:032x}-{:016x}-01", trace(trace_id, traceparent, turn_id), span_id(call_id))
}

fn trace(trace_id: Option<TraceId>, traceparent: Option<&str>, turn_id: TurnId) -> u128 {
    let outside = traceparent.and_then(read_traceparent).map(|(trace, _)| trace);
    outside.or(trace_id.map(|id| Uuid::from(id).as_u128())).unwrap_or_else(|| Uuid::from(turn_id).as_u128())
}

impl Record {
    /// Returns its place: below the call that started it, or else below the span of the caller outside.
    pub fn place(&self) -> Place {
        let outside = self.traceparent.as_deref().and_then(read_traceparent).map(|(_, span)| span);
        Place {
            trace_id: trace(self.trace_id, self.traceparent.as_deref(), self.agent_turn_id),
            parent_span_id: self.parent_tool_call_id.map(span_id).or(outside),
        }
    }

    /// Returns its spans, as OTLP writes them in JSON.
    pub fn spans(&self) -> Vec<Value> {
        let Place { trace_id, parent_span_id } = self.place();
        let own = span_id(self.agent_turn_id);
        let span = |id: u64, parent: Option<u64>, name: String, kind: u8, from, to, is_error: bool, attributes| {
            let mut span = json!({
                "traceId": format!("{trace_id:032x}"),
                "spanId": format!("{id:016x}"),
                "name": name,
                "kind": kind,
                "startTimeUnixNano": nanos(from),
                "endTimeUnixNano": nanos(to),
                "attributes": attributes,
                "status": if is_error { json!({ "code": 2 }) } else { json!({}) },
            });
            if let Some(parent) = parent {
                span["parentSpanId"] = format!("{parent:016x}").into();
            }
            span
        };
        let who = self.profile_name.as_deref().unwrap_or("agent");
        let mut spans = vec![span(
            own,
            parent_span_id,
            format!("invoke_agent {who}"),
            INTERNAL,
            self.created_at,
            self.finished_at,
            self.status != TurnStatus::Success,
            attributes([
                ("gen_ai.operation.name", Some("invoke_agent".into())),
                ("gen_ai.agent.id", Some(self.agent_id.to_string().into())),
                ("gen_ai.agent.name", self.profile_name.clone().map(Value::from)),
                ("gen_ai.conversation.id", self.session_id.map(|id| id.to_string().into())),
                ("waybill.project_id", Some(self.project_id.to_string().into())),
                ("waybill.agent_turn_id", Some(self.agent_turn_id.to_string().into())),
                ("waybill.status", Some(self.status.as_str().into())),
            ]),
        )];
        for step in &self.steps {
            let asked_at = step.created_at - chrono::Duration::milliseconds(step.took_ms);
            spans.push(span(
                span_id(step.step_id),
                Some(own),
                format!("chat {}", step.model),
                CLIENT,
                asked_at.max(self.created_at),
                step.created_at,
                false,
                attributes([
                    ("gen_ai.operation.name", Some("chat".into())),
                    ("gen_ai.provider.name", Some(step.provider.clone().into())),
                    ("gen_ai.request.model", Some(step.model.clone().into())),
                    ("gen_ai.usage.input_tokens", Some(step.input_tokens.into())),
                    ("gen_ai.usage.cache_read.input_tokens", Some(step.cached_tokens.into())),
                    ("gen_ai.usage.output_tokens", Some(step.output_tokens.into())),
                    ("waybill.microdollars", Some(step.microdollars.into())),
                    ("waybill.step_id", Some(step.step_id.to_string().into())),
                ]),
            ));
        }
        for call in &self.calls {
            let tool = call.tool_name.as_deref().unwrap_or("tool");
            spans.push(span(
                span_id(call.tool_call_id),
                Some(own),
                format!("execute_tool {tool}"),
                INTERNAL,
                call.asked_at,
                call.answered_at.unwrap_or(self.finished_at),
                call.status.as_deref() != Some(ResultContent::SUCCESS),
                attributes([
                    ("gen_ai.operation.name", Some("execute_tool".into())),
                    ("gen_ai.tool.name", call.tool_name.clone().map(Value::from)),
                    ("gen_ai.tool.call.id", Some(call.tool_call_id.to_string().into())),
                    ("waybill.status", call.status.clone().map(Value::from)),
                ]),
            ));
        }
        spans
    }
}

const INTERNAL: u8 = 1;
const CLIENT: u8 = 3;

fn nanos(at: DateTime<Utc>) -> String {
    at.timestamp_nanos_opt().unwrap_or_default().to_string()
}

fn attributes<const N: usize>(pairs: [(&str, Option<Value>); N]) -> Value {
    let wire = |value: Value| match value {
        // 64-bit numbers are strings in OTLP's JSON.
        Value::Number(number) => json!({ "intValue": number.to_string() }),
        other => json!({ "stringValue": other }),
    };
    let told = pairs.into_iter().filter_map(|(key, value)| Some(json!({ "key": key, "value": wire(value?) })));
    Value::Array(told.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let (turn, call, at) = (TurnId::new(), ToolCallId::new(), Utc::now());
        Record {
            project_id: ProjectId::new(),
            agent_turn_id: turn,
            agent_id: AgentId::new(),
            profile_name: Some("writer".to_owned()),
            session_id: None,
            status: TurnStatus::Success,
            parent_tool_call_id: None,
            trace_id: None,
            traceparent: None,
            created_at: at,
            finished_at: at,
            steps: Vec::new(),
            calls: vec![Call {
                tool_call_id: call,
                tool_name: Some("ask_expert".to_owned()),
                status: Some("success".to_owned()),
                asked_at: at,
                answered_at: Some(at),
            }],
        }
    }

    /// A child's span is below its parent's call, and both are in one trace, also if a caller outside started them.
    #[test]
    fn a_child_hangs_below_the_call_that_asked_for_it() {
        let outside = "00-5b8efff798038103d269b633813fc60c-eee19b7ec3c1b174-01";
        let parent = Record { traceparent: Some(outside.to_owned()), ..record() };
        let call = parent.calls[0].tool_call_id;
        let child = Record { parent_tool_call_id: Some(call), traceparent: parent.traceparent.clone(), ..record() };
        assert_eq!(parent.place().parent_span_id, Some(0xeee1_9b7e_c3c1_b174));
        assert_eq!(child.place().trace_id, 0x5b8e_fff7_9803_8103_d269_b633_813f_c60c);
        assert_eq!(child.place().trace_id, parent.place().trace_id);
        assert_eq!(parent.spans()[1]["spanId"], child.spans()[0]["parentSpanId"]);
        assert_eq!(
            traceparent(None, Some(outside), parent.agent_turn_id, call),
            format!("00-5b8efff798038103d269b633813fc60c-{:016x}-01", span_id(call))
        );
    }

    #[test]
    fn what_is_no_traceparent_is_not_followed() {
        for header in ["", "00-zz-11-01", "00-00000000000000000000000000000000-eee19b7ec3c1b174-01", "x"] {
            assert_eq!(read_traceparent(header), None, "{header}");
        }
    }
}

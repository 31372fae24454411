//! The check that every call of a project's own tool passes before it is executed, for any caller and any claimant: the profile must allow the
//! tool, the arguments must match its schema, and if the tool needs an approval, a person must have given it. Waybill's own tools are checked by
//! the worker.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Map, Value, json};
use waybill_core::{
    json,
    request::{DEADLINE_SECONDS, Kind, Request},
    resource::{Effect, Settings, Tool},
    span,
    tool::{Approval, HostPattern},
};
use waybill_kernel::{
    call::{self, ClaimedCall},
    request, resource,
    turn::Error,
    work::UnitOfWork,
};

use crate::{
    check::{fault, fits},
    conclude::ToolOutcome,
};

/// A call that may be made.
#[derive(Clone, Debug)]
pub struct Admitted {
    pub tool: Tool,
    pub arguments: Map<String, Value>,
    /// The arguments, as the model wrote them.
    pub said: String,
    /// The hosts that the project lets its tools reach.
    pub egress_hosts: BTreeSet<HostPattern>,
    pub traceparent: String,
    /// The caller's user for whom it is made.
    pub on_behalf_of: Option<String>,
    /// The time that is left until the kernel answers the call with a timeout.
    pub left: Duration,
}

/// The result of the check.
#[derive(Clone, Debug)]
pub enum Verdict {
    Go(Box<Admitted>),
    /// A person is asked; the call comes back once that person has decided.
    Asking,
    /// The call is not made; the caller gets the reason.
    Refused(ToolOutcome),
}

fn refused(why: impl Into<String>) -> Verdict {
    Verdict::Refused(ToolOutcome::failed(why))
}

/// Checks a call that was claimed. If an approval is needed, it is requested in this unit of work.
pub async fn admit(work: &mut UnitOfWork, call: &ClaimedCall) -> Result<Verdict, Error> {
    let Some(asked) = call::asked(work, call).await? else {
        return Ok(refused("the recorded call has expired or was deleted".to_owned()));
    };
    let name = &asked.tool_name;
    let allows = |profile: &waybill_core::resource::Profile| {
        profile.allowed_tools.iter().find(|tool| tool.as_str() == name).cloned()
    };
    let Some(known) = asked.profile.as_ref().and_then(allows) else {
        return Ok(refused(format!("the profile of the turn does not allow `{name}`")));
    };
    let tool = match resource::tool(work, &known).await {
        Ok(tool) => tool,
        Err(error) => return Ok(refused(fault(error)?.to_string())),
    };
    if asked.target.as_ref() != Some(&tool.target) {
        return Ok(refused(format!("only workers of target `{}` may answer calls of `{name}`", tool.target)));
    }
    let arguments = match json::parse(asked.arguments.as_bytes()) {
        Ok(Value::Object(arguments)) => arguments,
        _ => return Ok(refused(format!("the arguments of `{name}` must be a JSON object"))),
    };
    if let Err(why) = fits(&tool.parameters, &Value::Object(arguments.clone())) {
        return Ok(refused(format!("the arguments of `{name}` are not valid: {why}")));
    }
    // The tool's own `effect` decides, not what the caller said of it (WK-7).
    if tool.effect == Effect::Once && call.n_lost_leases > 0 {
        let unknown = ToolOutcome::failed(call::OUTCOME_UNKNOWN);
        return Ok(Verdict::Refused(ToolOutcome { status: "outcome_unknown".to_owned(), ..unknown }));
    }
    let needs_approval = match tool.approval {
        Approval::Never => None,
        Approval::External => asked.saw_external.then_some("the turn has seen external content"),
        Approval::Always => Some("this tool always needs one"),
    };
    match (needs_approval, &asked.decided) {
        (None, _) => {}
        (Some(why), None) => {
            let request = Request {
                kind: Kind::Approval,
                question: format!("May `{name}` be called? The call needs an approval: {why}."),
                about: json!({ "tool_name": name, "arguments": arguments, "saw_external": asked.saw_external }),
                deadline_seconds: DEADLINE_SECONDS,
                four_eyes: tool.four_eyes,
                default: false.into(),
            };
            request::ask(work, call, &request).await?;
            return Ok(Verdict::Asking);
        }
        (Some(_), Some(decided)) if decided.allows() => {}
        (Some(_), Some(decided)) => {
            let note = decided.note.as_deref().unwrap_or("no reason was given");
            let why = format!("`{name}` was not approved: {} by {}: {note}", decided.decision.as_str(), decided.by);
            return Ok(refused(why));
        }
    }
    let Settings { egress_hosts, .. } = match resource::settings(work).await {
        Ok(settings) => settings,
        Err(error) => return Ok(refused(fault(error)?.to_string())),
    };
    call::admit(work, call).await?;
    let traceparent =
        span::traceparent(asked.trace_id, asked.traceparent.as_deref(), call.agent_turn_id, call.tool_call_id);
    let (said, on_behalf_of, left) = (asked.arguments, asked.on_behalf_of, asked.left);
    Ok(Verdict::Go(Box::new(Admitted { tool, arguments, said, egress_hosts, traceparent, on_behalf_of, left })))
}

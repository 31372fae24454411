//! The door that every call of a tool passes before it reaches anybody, whoever claimed it and whoever made it: the profile must allow
//! it, the arguments must fit, and where the tool wants an approval somebody must have given it.

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

use super::{conclude::Said, fits, of_resource};

/// A call that may be made.
#[derive(Clone, Debug)]
pub struct Admitted {
    pub tool: Tool,
    pub arguments: Map<String, Value>,
    /// The model's own text.
    pub said: String,
    /// Whom the project lets its tools reach.
    pub egress_hosts: BTreeSet<HostPattern>,
    pub traceparent: String,
    /// For which user of the caller's it is.
    pub on_behalf_of: Option<String>,
    /// Until the kernel answers for whoever has it.
    pub left: Duration,
}

/// What becomes of a call at the door.
#[derive(Clone, Debug)]
pub enum Verdict {
    Go(Box<Admitted>),
    /// People are asked; it comes back once they have decided.
    Asking,
    /// It is not made; whoever made it is told why.
    Refused(Said),
}

fn refused(why: impl Into<String>) -> Verdict {
    Verdict::Refused(Said::failed(why))
}

/// Looks at a call that was claimed. Where people are to be asked they are, in this unit of work.
pub async fn admit(work: &mut UnitOfWork, call: &ClaimedCall) -> Result<Verdict, Error> {
    let Some(asked) = call::asked(work, call).await? else {
        return Ok(refused("the call cannot be read any more".to_owned()));
    };
    let name = &asked.tool_name;
    let allows = |profile: &waybill_core::resource::Profile| {
        profile.allowed_tools.iter().find(|tool| tool.as_str() == name).cloned()
    };
    let Some(known) = asked.profile.as_ref().and_then(allows) else {
        return Ok(refused(format!("the profile does not allow `{name}`")));
    };
    let tool = match of_resource(resource::tool(work, &known).await)? {
        Ok(tool) => tool,
        Err(error) => return Ok(refused(error.to_string())),
    };
    if asked.target.as_ref() != Some(&tool.target) {
        return Ok(refused(format!("`{name}` is answered by `{}`, and by nobody else", tool.target)));
    }
    let arguments = match json::parse(asked.arguments.as_bytes()) {
        Ok(Value::Object(arguments)) => arguments,
        _ => return Ok(refused(format!("the arguments of `{name}` are an object"))),
    };
    if let Err(why) = fits(&tool.parameters, &Value::Object(arguments.clone())) {
        return Ok(refused(format!("the arguments of `{name}`: {why}")));
    }
    // Whatever whoever made the call said of it (WK-7).
    if tool.effect == Effect::Once && call.n_lost_leases > 0 {
        let why = "whoever did this was lost before it could say how it went: it may have been done, or not, and is not done again";
        return Ok(Verdict::Refused(Said { status: "outcome_unknown".to_owned(), ..Said::failed(why) }));
    }
    let needs_approval = match tool.approval {
        Approval::Never => None,
        Approval::External => asked.saw_external.then_some("it has seen content from outside"),
        Approval::Always => Some("this tool always needs one"),
    };
    match (needs_approval, &asked.decided) {
        (None, _) => {}
        (Some(why), None) => {
            let request = Request {
                kind: Kind::Approval,
                question: format!("May `{name}` be called? Whoever calls it needs an approval: {why}."),
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
    let Settings { egress_hosts, .. } = match of_resource(resource::settings(work).await)? {
        Ok(settings) => settings,
        Err(error) => return Ok(refused(error.to_string())),
    };
    call::admit(work, call).await?;
    let traceparent =
        span::traceparent(asked.trace_id, asked.traceparent.as_deref(), call.agent_turn_id, call.tool_call_id);
    let (said, on_behalf_of, left) = (asked.arguments, asked.on_behalf_of, asked.left);
    Ok(Verdict::Go(Box::new(Admitted { tool, arguments, said, egress_hosts, traceparent, on_behalf_of, left })))
}

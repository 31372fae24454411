//! `provision_agent` (PM-1): somebody who is here to stay, and remembers.

use std::collections::BTreeSet;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::json;
use waybill_core::{
    card::Draft,
    id::{AgentId, Name},
    resource::InternalTool,
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    handover, turn,
    work::Kernel,
};

use super::{Answer, Command, Error, Handler, answer, begin};

#[derive(Debug)]
pub(super) struct ProvisionAgent;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    profile_name: Name,
}

impl Handler for ProvisionAgent {
    fn tool(&self) -> InternalTool {
        InternalTool::ProvisionAgent
    }

    fn handle<'a>(&'a self, kernel: &'a Kernel, command: &'a Command) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let Arguments { profile_name } = command.read()?;
            let mut work = begin(kernel, &command.call).await?;
            let mut targets = handover::targets(&mut work, &BTreeSet::from([profile_name.clone()])).await?;
            let target = targets.remove(&profile_name).ok_or(handover::Error::NoProfile(profile_name))?;
            if !command.profile.delegation_policy.allows(&target.name, &target.tags.iter().cloned().collect()) {
                let message = format!("profile `{}` may not delegate to `{}`", command.profile.name, target.name);
                return Err(Error::refused("forbidden", message));
            }
            let made = NewAgent {
                agent_id: AgentId::new(),
                profile_name: Some(target.name),
                worker_target: target.worker_target,
                cloned_from: None,
            };
            agent::provision(&mut work, std::slice::from_ref(&made), Stay::Long, Some(command.caller())).await?;
            let result = json!({ "status": "accepted", "agent_id": made.agent_id });
            let card = Draft::tool_result(command.call.tool_call_id, "success", result).seal();
            let answer = answer(&mut work, &command.call, "success", card.map_err(turn::Error::from)?).await?;
            work.commit().await?;
            Ok(answer)
        })
    }
}

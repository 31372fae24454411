//! `provision_agent` (PM-1): makes a permanent agent that keeps its memory.

use futures::future::BoxFuture;
use serde_json::json;
use waybill_core::{command::provision_agent::Arguments, id::AgentId, resource::InternalTool};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    handover,
    work::Kernel,
};

use super::{Answer, Command, Error, Handler, answer, begin};

#[derive(Debug)]
pub(super) struct ProvisionAgent;

impl Handler for ProvisionAgent {
    fn tool(&self) -> InternalTool {
        InternalTool::ProvisionAgent
    }

    fn handle<'a>(&'a self, kernel: &'a Kernel, command: &'a Command) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let Arguments { profile_name } = command.read()?;
            let mut work = begin(kernel, &command.call).await?;
            let target = handover::target(&mut work, &profile_name).await?;
            command.may_delegate_to(&target)?;
            let made = NewAgent::of(AgentId::new(), &target);
            agent::provision(&mut work, std::slice::from_ref(&made), Stay::Long, Some(command.caller())).await?;
            let result = json!({ "status": "accepted", "agent_id": made.agent_id });
            answer(work, &command.call, "success", result).await
        })
    }
}

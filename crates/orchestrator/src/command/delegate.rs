//! `delegate_async` and `launch_principal` (PM-6, PM-7): one task for one agent, with or without waiting for its result.

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waybill_core::{
    command::{argument::Strategy, delegate_async, launch_principal},
    handover::Handover,
    resource::InternalTool,
};
use waybill_kernel::{batch::JoinsAs, handover, work::Kernel};

use super::{
    Answer, Command, Error, Handler, answer, begin,
    spawn::{self, Dispatch, Fan, Permissions, Task},
};

#[derive(Debug)]
pub(super) struct DelegateAsync;

impl Handler for DelegateAsync {
    fn tool(&self) -> InternalTool {
        InternalTool::DelegateAsync
    }

    fn handle<'a>(&'a self, kernel: &'a Kernel, command: &'a Command) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let asked: delegate_async::Arguments = command.read()?;
            let delegate_async::Arguments { target_strategy, target_ref, instruction, context_box_id, .. } = asked;
            let task = Task::instructed(target_strategy, target_ref, instruction, context_box_id);
            let task = task.in_session(asked.in_session);
            let waits = asked.wait.then_some(Wait { seconds: asked.deadline_seconds });
            hand_over(kernel, command, task, &Handover::instruction(), waits, []).await
        })
    }
}

#[derive(Debug)]
pub(super) struct LaunchPrincipal;

impl Handler for LaunchPrincipal {
    fn tool(&self) -> InternalTool {
        InternalTool::LaunchPrincipal
    }

    fn handle<'a>(&'a self, kernel: &'a Kernel, command: &'a Command) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let asked: launch_principal::Arguments = command.read()?;
            let task = Task::instructed(Strategy::New, asked.profile_name, asked.instruction, Value::Null);
            send(kernel, command, task, &Handover::instruction(), []).await
        })
    }
}

/// How long the caller waits for the result. `None` means the default.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) seconds: Option<f64>,
}

/// Hands one task to one agent. Without waiting, the call is answered when the task is dispatched, with the fields of `also`; otherwise its
/// end answers the call.
pub(super) async fn hand_over(
    kernel: &Kernel,
    command: &Command,
    task: Task,
    handover: &Handover,
    waits: Option<Wait>,
    also: impl IntoIterator<Item = (&'static str, Value)>,
) -> Result<Answer, Error> {
    let Some(wait) = waits else { return send(kernel, command, task, handover, also).await };
    let deadline = spawn::deadline(wait.seconds)?;
    let fan = Fan { stage: 0, joins_as: JoinsAs::One, fail_fast: false, deadline, handover, tasks: &[task] };
    spawn::fan_out(kernel, command, fan).await
}

/// Dispatches and answers in one transaction: if the call is delivered again, it is already answered and nothing is written.
async fn send(
    kernel: &Kernel,
    command: &Command,
    task: Task,
    handover: &Handover,
    also: impl IntoIterator<Item = (&'static str, Value)>,
) -> Result<Answer, Error> {
    let mut work = begin(kernel, &command.call).await?;
    let tasks = [task];
    let addressed = spawn::address(&mut work, command, &tasks, false, Permissions::CheckNow).await?;
    let to = &addressed[0];
    let ids = spawn::mint(to);
    let sent = Dispatch { to, ids, batch: None, shares: 2 };
    let named = handover::name(&mut work, spawn::packing(command, handover), [&tasks[0].arguments]).await?;
    let dispatched = spawn::dispatch(&mut work, command, handover, &[sent], &named).await?;
    let mut result = json!({
        "status": "accepted",
        "agent_id": ids.agent_id,
        "agent_turn_id": ids.agent_turn_id,
        "turn_epoch": dispatched[0].turn_epoch,
        "trace_id": command.trace_id(),
    });
    also.into_iter().for_each(|(key, value)| result[key] = value);
    answer(work, &command.call, "success", result).await
}

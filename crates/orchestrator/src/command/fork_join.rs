//! `fork_join` (PM-8, PM-9): many tasks in parallel, one result.

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;
use waybill_core::{handover::Handover, resource::InternalTool};
use waybill_kernel::{batch::JoinsAs, work::Kernel};

use super::{
    Answer, Command, Error, Handler,
    spawn::{self, Fan, Strategy, Task},
};

#[derive(Debug)]
pub(super) struct ForkJoin;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    tasks: Vec<TaskArguments>,
    #[serde(default)]
    fail_fast: bool,
    deadline_seconds: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskArguments {
    #[serde(default)]
    target_strategy: Strategy,
    target_ref: String,
    instruction: String,
    #[serde(default, alias = "input_box_ids")]
    context_box_id: Value,
    #[serde(default)]
    in_session: bool,
}

impl Handler for ForkJoin {
    fn tool(&self) -> InternalTool {
        InternalTool::ForkJoin
    }

    fn handle<'a>(&'a self, kernel: &'a Kernel, command: &'a Command) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let asked: Arguments = command.read()?;
            let task = |task: TaskArguments| {
                Task::instructed(task.target_strategy, task.target_ref, task.instruction, task.context_box_id)
                    .in_session(task.in_session)
            };
            let tasks: Vec<Task> = asked.tasks.into_iter().map(task).collect();
            let fan = Fan {
                stage: 0,
                joins_as: JoinsAs::List,
                fail_fast: asked.fail_fast,
                deadline: spawn::deadline(asked.deadline_seconds)?,
                handover: &Handover::instruction(),
                tasks: &tasks,
            };
            spawn::fan_out(kernel, command, fan).await
        })
    }
}

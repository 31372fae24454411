//! `fork_join` (PM-8, PM-9): many tasks in parallel, one result.

use futures::future::BoxFuture;
use waybill_core::{
    command::fork_join::{Arguments, TaskArguments},
    handover::Handover,
    resource::InternalTool,
};
use waybill_kernel::{batch::JoinsAs, work::Kernel};

use super::{
    Answer, Command, Error, Handler,
    spawn::{self, Fan, Task},
};

#[derive(Debug)]
pub(super) struct ForkJoin;

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

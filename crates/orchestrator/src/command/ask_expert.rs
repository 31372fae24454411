//! `ask_expert` (PM-7): a question to a new agent, whose deliverable is the answer.

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use waybill_core::{
    command::{argument::Strategy, ask_expert::Arguments},
    handover::Handover,
    resource::InternalTool,
};
use waybill_kernel::{batch::JoinsAs, work::Kernel};

use super::{
    Answer, Command, Error, Handler,
    spawn::{self, Fan, Task},
};

#[derive(Debug)]
pub(super) struct AskExpert;

/// Packs the question, and what the caller has written so far.
fn handover() -> Handover {
    Handover::of(&["question"], &["history"])
}

impl Handler for AskExpert {
    fn tool(&self) -> InternalTool {
        InternalTool::AskExpert
    }

    fn handle<'a>(&'a self, kernel: &'a Kernel, command: &'a Command) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let asked: Arguments = command.read()?;
            let history = asked.include_history.then_some(command.asked.output_box_id);
            let arguments = Map::from_iter([
                ("question".to_owned(), Value::from(asked.question)),
                ("history".to_owned(), json!(history)),
            ]);
            let fan = Fan {
                stage: 0,
                joins_as: JoinsAs::One,
                fail_fast: false,
                deadline: spawn::deadline(asked.deadline_seconds)?,
                handover: &handover(),
                tasks: &[Task {
                    target_strategy: Strategy::New,
                    target_ref: asked.expert_profile,
                    arguments,
                    in_session: asked.in_session,
                }],
            };
            spawn::fan_out(kernel, command, fan).await
        })
    }
}

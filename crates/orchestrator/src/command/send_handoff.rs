//! `send_handoff` (HO-5, HO-7, HO-9): a delegation whose context is a checked package. The card, the pins and the turn are one transaction.

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waybill_artifact::Artifacts;
use waybill_context::handoff::needs_approval;
use waybill_core::{
    command::send_handoff::Arguments,
    request::{Kind, Request},
    resource::InternalTool,
};
use waybill_kernel::{batch, work::Kernel};

use super::{
    Answer, Command, Error, Handler, ask, begin,
    delegate::{self, Wait},
    spawn::Task,
};
use crate::handoff::{self, Sender};

#[derive(Debug)]
pub(super) struct SendHandoff {
    pub(super) artifacts: Option<Artifacts>,
}

impl Handler for SendHandoff {
    fn tool(&self) -> InternalTool {
        InternalTool::SendHandoff
    }

    fn handle<'a>(&'a self, kernel: &'a Kernel, command: &'a Command) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let asked: Arguments = command.read()?;
            let artifacts = self.artifacts.as_ref().ok_or_else(super::no_store)?;
            let mut work = begin(kernel, &command.call).await?;
            let is_open = !batch::of_call(&mut work, command.call.tool_call_id).await?.is_empty();
            drop(work);
            let sender = Sender::Turn { agent_turn_id: command.call.agent_turn_id, profile: &command.profile };
            let project_id = command.call.project_id;
            let mut verdict = handoff::check(kernel, artifacts, project_id, &asked.package, Some(sender)).await?;
            if is_open {
                // It was sent already; the rest of that is done, whatever has changed since.
                verdict.problems.clear();
            }
            let content = verdict.content(&asked.package)?;
            let rule = verdict.handoff_type.as_ref().and_then(|found| needs_approval(found, &asked.package));
            match (rule.filter(|_| !is_open), &command.asked.decided) {
                (None, _) => {}
                (Some(rule), None) => {
                    let request = Request {
                        kind: Kind::Approval,
                        question: rule.question.clone(),
                        about: Value::Object(asked.package),
                        deadline_seconds: rule.deadline_seconds,
                        four_eyes: rule.four_eyes,
                        default: rule.default.into(),
                    };
                    return ask(begin(kernel, &command.call).await?, &command.call, &request).await;
                }
                (Some(_), Some(decided)) if decided.allows() => {}
                (Some(_), Some(decided)) => {
                    let note = decided.note.as_deref().unwrap_or("no reason was given");
                    let message = format!("{} by {}: {note}", decided.decision.as_str(), decided.by);
                    return Err(Error::refused("not_approved", message));
                }
            }
            let Arguments { target_strategy, target_ref, instruction: said, .. } = asked;
            let said = said.unwrap_or_else(|| handoff::instruction(&content));
            let mut task =
                Task::instructed(target_strategy, target_ref, said, Value::Null).in_session(asked.in_session);
            task.arguments.insert("package".to_owned(), json!(content));
            let waits = asked.wait.then_some(Wait { seconds: asked.deadline_seconds });
            let also = [("n_tokens", json!(verdict.n_tokens)), ("warnings", json!(verdict.warnings))];
            delegate::hand_over(kernel, command, task, &handoff::handover(), waits, also).await
        })
    }
}

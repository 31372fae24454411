//! `ask_person` (HO-7): a question or an approval. The call waits until a person decides; then it is answered.

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waybill_core::{
    command::ask_person::Arguments,
    request::{DEADLINE_SECONDS, Decided, Decision, Kind, LONGEST_SECONDS, Request},
    resource::InternalTool,
};
use waybill_kernel::work::Kernel;

use super::{Answer, Command, Error, Handler, answer, ask, begin};

#[derive(Debug)]
pub(super) struct AskPerson;

impl Handler for AskPerson {
    fn tool(&self) -> InternalTool {
        InternalTool::AskPerson
    }

    fn handle<'a>(&'a self, kernel: &'a Kernel, command: &'a Command) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let request = request(command.read()?)?;
            let work = begin(kernel, &command.call).await?;
            match &command.asked.decided {
                None => ask(work, &command.call, &request).await,
                Some(decided) => {
                    let nobody = decided.decision == Decision::Expired && decided.answer.is_null();
                    let status = if nobody { "timeout" } else { "success" };
                    answer(work, &command.call, status, told(request.kind, decided)).await
                }
            }
        })
    }
}

/// Returns the request that a person gets.
fn request(asked: Arguments) -> Result<Request, Error> {
    let kind = asked.kind.unwrap_or(Kind::Question);
    let deadline_seconds = asked.deadline_seconds.unwrap_or(DEADLINE_SECONDS);
    if !(1..=LONGEST_SECONDS).contains(&deadline_seconds) {
        return Err(Error::bad_request(format!("`deadline_seconds` must be 1 to {LONGEST_SECONDS}")));
    }
    if kind == Kind::Approval && !(asked.default.is_null() || asked.default.is_boolean()) {
        return Err(Error::bad_request("the `default` of an approval must be true or false"));
    }
    let Arguments { question, about, default, .. } = asked;
    Ok(Request { kind, question, about, deadline_seconds, four_eyes: false, default })
}

/// Returns the decision as the caller gets it.
fn told(kind: Kind, decided: &Decided) -> Value {
    let mut told = json!({ "decision": decided.decision.as_str(), "by": decided.by });
    match kind {
        Kind::Approval => told["approved"] = decided.allows().into(),
        Kind::Question => told["answer"] = decided.answer.clone(),
    }
    if let Some(note) = &decided.note {
        told["note"] = note.as_str().into();
    }
    told
}

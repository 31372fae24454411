//! Commands: the calls that the orchestrator answers (PM-2, PM-11). They are rows in the kernel; the bus carries no work.
//!
//! ```text
//!   claim ──▶ read what is asked, and by whom ──▶ the handler ──▶ answered, in the transaction that acts
//!                                                     └─────────▶ a batch is open: its last child's end answers
//! ```
//! A fixed number of commands is handled at a time. A handler keeps no state: it reads from the database what to do next, so that the
//! process that claims the call after it continues where it stopped. A command that is delivered again acts once and gets the same answer.
//!
//! A new flow is declared in [`waybill_core::command`], where workers find what to show to models. Here it is one file: a [`Handler`] with its
//! own handover, built from the parts in [`spawn`], and a line in [`handlers`].

use std::{convert::Infallible, fmt::Debug, future::pending, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::time::sleep;
use waybill_artifact::Artifacts;
use waybill_core::{
    bus::PMO,
    card::Draft,
    error::{causes, innermost},
    id::{AgentId, BatchId, CardId, TraceId},
    json,
    request::Request,
    resource::{InternalTool, Profile},
    turn::MessageType,
};
use waybill_kernel::{
    artifact, blackboard, call,
    call::{Asked, ClaimedCall},
    external,
    handover::{self, ProfileTarget},
    intake::{self, Intake},
    request, resource,
    retry::Transient,
    session,
    turn::{self, Report, ReportOutcome},
    work::{self, Kernel, UnitOfWork},
};

mod ask_expert;
mod ask_person;
mod delegate;
mod fork_join;
mod map_reduce;
mod provision;
mod send_handoff;
pub mod spawn;

/// Settings of the command loop.
#[derive(Clone, Debug)]
pub struct Config {
    pub lease: Duration,
    /// How many commands at a time.
    pub most: usize,
    /// The poll interval for commands while no ring arrives.
    pub look: Duration,
    /// The store of the artifacts that packages name. Without it, no package can be sent.
    pub artifacts: Option<Artifacts>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            lease: waybill_kernel::lease::LEASE,
            most: 8,
            look: intake::Config::default().poll_interval,
            artifacts: None,
        }
    }
}

/// A command, and its caller.
#[derive(Clone, Debug)]
pub struct Command {
    pub call: ClaimedCall,
    pub asked: Asked,
    /// The profile of the calling turn.
    pub profile: Profile,
    pub arguments: Map<String, Value>,
}

impl Command {
    /// Returns the agent that calls.
    pub fn caller(&self) -> AgentId {
        self.call.agent_id
    }

    /// Returns the trace of the calling turn. A turn without one begins a trace.
    pub fn trace_id(&self) -> TraceId {
        self.asked.trace_id.unwrap_or_else(|| TraceId::of(self.call.agent_turn_id))
    }

    /// Checks whether the caller's profile may delegate to the target (PM-10).
    pub fn may_delegate_to(&self, target: &ProfileTarget) -> Result<(), Error> {
        if self.profile.delegation_policy.allows(&target.name, &target.tags.iter().cloned().collect()) {
            return Ok(());
        }
        let message = format!(
            "profile `{}` may not delegate to `{}`: its `delegation_policy` does not allow it",
            self.profile.name, target.name
        );
        Err(Error::refused("forbidden", message))
    }

    /// Reads the arguments into a handler's type; unknown ones are refused.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let read = serde_json::from_value(Value::Object(self.arguments.clone()));
        read.map_err(|error| {
            Error::bad_request(format!("the arguments of `{}` are not valid: {error}", self.asked.tool_name))
        })
    }
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was answered with this card.
    Answered(CardId),
    /// The last child of this batch will answer it.
    Awaiting(BatchId),
    /// A person is asked with this card; the command comes back after the decision.
    Asking(CardId),
}

/// One flow.
pub trait Handler: Debug + Send + Sync {
    /// Returns the tool by which agents call it.
    fn tool(&self) -> InternalTool;

    /// Acts, and answers the call or leaves that to a batch. For the same call it acts only once.
    fn handle<'a>(&'a self, kernel: &'a Kernel, command: &'a Command) -> BoxFuture<'a, Result<Answer, Error>>;
}

/// Returns the handlers of all flows.
pub fn handlers(artifacts: Option<Artifacts>) -> Vec<Box<dyn Handler>> {
    vec![
        Box::new(delegate::DelegateAsync),
        Box::new(delegate::LaunchPrincipal),
        Box::new(ask_expert::AskExpert),
        Box::new(fork_join::ForkJoin),
        Box::new(map_reduce::MapReduce),
        Box::new(provision::ProvisionAgent),
        Box::new(send_handoff::SendHandoff { artifacts }),
        Box::new(ask_person::AskPerson),
    ]
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller gets the reason, and may do something else.
    #[error("{message}")]
    Refused { code: &'static str, message: String },
    #[error(transparent)]
    Turn(#[from] turn::Error),
    #[error(transparent)]
    Handover(handover::Error),
    #[error(transparent)]
    Resource(resource::Error),
    #[error(transparent)]
    Blackboard(blackboard::Error),
    #[error(transparent)]
    Artifact(artifact::Error),
    #[error(transparent)]
    Session(session::Error),
}

impl Error {
    pub fn refused(code: &'static str, message: impl Into<String>) -> Error {
        Error::Refused { code, message: message.into() }
    }

    pub fn bad_request(message: impl Into<String>) -> Error {
        Error::refused("bad_request", message)
    }

    /// Returns the status and the code for the caller: `busy` may be retried, `rejected` not. `None` means an error that is not for the caller.
    fn verdict(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Error::Refused { code, .. } => Some(("rejected", code)),
            Error::Turn(turn::Error::Busy) => Some(("busy", "busy")),
            Error::Turn(turn::Error::RecursionDepthExceeded { .. }) => Some(("rejected", "recursion_depth_exceeded")),
            Error::Turn(turn::Error::BudgetExhausted(_)) => Some(("rejected", "budget_exhausted")),
            Error::Turn(turn::Error::Quota { .. }) if self.is_busy() => Some(("busy", "quota")),
            Error::Turn(turn::Error::Quota { .. }) => Some(("rejected", "quota")),
            Error::Turn(turn::Error::NotFound(_) | turn::Error::NoArtifact(_)) => Some(("rejected", "not_found")),
            Error::Turn(turn::Error::Card(_) | turn::Error::Invalid(_)) => Some(("rejected", "bad_request")),
            Error::Handover(error) if error.code() != "error" => Some(("rejected", error.code())),
            Error::Resource(resource::Error::NotFound { .. }) => Some(("rejected", "not_found")),
            Error::Artifact(_) => Some(("rejected", "not_stored")),
            _ => None,
        }
    }

    /// Checks whether a retry may soon help: a queue is full, or the project has reached its limit of open turns.
    fn is_busy(&self) -> bool {
        match self {
            Error::Turn(turn::Error::Busy) => true,
            Error::Turn(turn::Error::Quota { retry_after, .. }) => *retry_after <= 60,
            _ => false,
        }
    }

    fn timed_out(&self) -> bool {
        matches!(self, Error::Turn(error) if error.timed_out())
    }
}

impl Transient for Error {
    fn is_transient(&self) -> bool {
        matches!(self, Error::Turn(error) if error.is_transient())
    }
}

// Only the kernel interprets errors of the database.
impl From<handover::Error> for Error {
    fn from(error: handover::Error) -> Error {
        use waybill_kernel::{card, card_box};
        match error {
            handover::Error::Db(error)
            | handover::Error::Card(card::Error::Db(error))
            | handover::Error::Box(card_box::Error::Db(error)) => Error::Turn(error.into()),
            other => Error::Handover(other),
        }
    }
}

impl From<blackboard::Error> for Error {
    fn from(error: blackboard::Error) -> Error {
        match error {
            blackboard::Error::Db(error) | blackboard::Error::TryAgain(error) => Error::Turn(error.into()),
            other => Error::Blackboard(other),
        }
    }
}

impl From<resource::Error> for Error {
    fn from(error: resource::Error) -> Error {
        match error {
            resource::Error::Db(error) => Error::Turn(error.into()),
            other => Error::Resource(other),
        }
    }
}

impl From<session::Error> for Error {
    fn from(error: session::Error) -> Error {
        match error {
            session::Error::Db(error) => Error::Turn(error.into()),
            other => Error::Session(other),
        }
    }
}

impl From<artifact::Error> for Error {
    fn from(error: artifact::Error) -> Error {
        match error {
            artifact::Error::Db(error) => Error::Turn(error),
            artifact::Error::Settings(error) => error.into(),
            other => Error::Artifact(other),
        }
    }
}

/// Returns an error that the caller cannot fix.
fn no_store() -> Error {
    Error::refused("unavailable", "this orchestrator has no object store: the operator must start it with --artifacts")
}

impl From<work::Error> for Error {
    fn from(error: work::Error) -> Error {
        Error::Turn(error.into())
    }
}

/// Answers commands forever.
pub async fn run(kernel: &Kernel, config: &Config) -> Infallible {
    let handlers: Arc<[Box<dyn Handler>]> = handlers(config.artifacts.clone()).into();
    let target = PMO.parse().expect("a target");
    let intake = intake::Config {
        lease: config.lease,
        most: config.most,
        poll_interval: config.look,
        ..intake::Config::default()
    };
    let intake = Intake::<ClaimedCall>::open(kernel, target, intake);
    let serve = intake.serve(pending(), Duration::ZERO, |holding| {
        let (kernel, handlers) = (kernel.clone(), handlers.clone());
        async move { hold(&kernel, &handlers, &holding.claimed).await }
    });
    serve.await;
    unreachable!("it has no end")
}

/// How often a statement may time out before that counts as a failed attempt.
const MOST_TIMED_OUT: u32 = 8;

/// Carries out a command until it is done. Retries after errors of the server write the same ids.
async fn hold(kernel: &Kernel, handlers: &[Box<dyn Handler>], call: &ClaimedCall) -> Result<(), String> {
    let tool_call_id = call.tool_call_id;
    let mut n_timed_out = 0;
    loop {
        match deliver(kernel, handlers, call).await {
            Ok(answer) => tracing::debug!(%tool_call_id, ?answer, "command answered"),
            // Another orchestrator has it, or its turn no longer waits for it.
            Err(Error::Turn(turn::Error::Stale(_))) => {}
            // Not `retry`, which gives up after some seconds: a command waits for a server that is gone. But without a limit, a command that always
            // times out would be retried forever.
            Err(error) if error.is_transient() && n_timed_out < MOST_TIMED_OUT => {
                n_timed_out += u32::from(error.timed_out());
                tracing::debug!(%tool_call_id, %error, "a command is retried");
                sleep(Duration::from_millis(250)).await;
                continue;
            }
            Err(error) => {
                tracing::error!(%tool_call_id, %error, cause = innermost(&error), "the orchestrator could not carry out a command of an agent");
                return Err(error.to_string());
            }
        }
        return Ok(());
    }
}

/// Acts on a command once, and returns its answer, which is the same however often the command is delivered.
pub async fn deliver(kernel: &Kernel, handlers: &[Box<dyn Handler>], call: &ClaimedCall) -> Result<Answer, Error> {
    let outcome = match read(kernel, handlers, call).await {
        Ok((handler, command)) => handler.handle(kernel, &command).await,
        Err(error) => Err(error),
    };
    let outcome = match outcome {
        Err(error) => match error.verdict() {
            Some((status, code)) => reject(kernel, call, status, code, &error).await,
            None => Err(error),
        },
        done => done,
    };
    match outcome {
        // It may have been answered before.
        Err(Error::Turn(turn::Error::Stale(_) | turn::Error::NotFound(_))) => {
            let mut work = begin(kernel, call).await?;
            match call::answer(&mut work, call.tool_call_id).await? {
                Some(card_id) => Ok(Answer::Answered(card_id)),
                None => outcome,
            }
        }
        outcome => outcome,
    }
}

/// Begins a unit of work for the calling turn: what it writes is labelled as external if that turn has seen external content.
pub(crate) async fn begin(kernel: &Kernel, call: &ClaimedCall) -> Result<UnitOfWork, Error> {
    let mut work = kernel.begin(call.project_id).await.map_err(turn::Error::from)?;
    external::label_as(&mut work, call.agent_turn_id).await?;
    Ok(work)
}

/// Reads the command and finds its handler. A tool that the caller's profile does not allow is refused here, whatever its model was shown.
async fn read<'h>(
    kernel: &Kernel,
    handlers: &'h [Box<dyn Handler>],
    call: &ClaimedCall,
) -> Result<(&'h dyn Handler, Command), Error> {
    let mut work = begin(kernel, call).await?;
    let asked = call::asked(&mut work, call).await?;
    let asked = asked.ok_or_else(|| Error::bad_request("the recorded call has expired or was deleted"))?;
    work.commit().await?;
    let tool_name = &asked.tool_name;
    let handler = handlers.iter().find(|handler| handler.tool().as_str() == tool_name);
    let handler = handler.ok_or_else(|| Error::refused("not_found", format!("there is no tool `{tool_name}`")))?;
    let profile = asked.profile.clone();
    let profile =
        profile.ok_or_else(|| Error::refused("forbidden", "the turn has no profile, so it may not call tools"))?;
    if !profile.allowed_internal_tools.contains(&handler.tool()) {
        let message = format!("profile `{}` does not allow `{tool_name}`", profile.name);
        return Err(Error::refused("forbidden", message));
    }
    let arguments = match json::parse(asked.arguments.as_bytes()) {
        Ok(Value::Object(arguments)) => arguments,
        Ok(_) => return Err(Error::bad_request(format!("the arguments of `{tool_name}` must be a JSON object"))),
        Err(error) => {
            return Err(Error::bad_request(format!(
                "the arguments of `{tool_name}` are not valid: {}",
                causes(&error)
            )));
        }
    };
    Ok((handler.as_ref(), Command { call: call.clone(), asked, profile, arguments }))
}

/// Answers a command with a refusal. That is a failure, never a success that says no.
async fn reject(
    kernel: &Kernel,
    call: &ClaimedCall,
    status: &'static str,
    code: &'static str,
    error: &Error,
) -> Result<Answer, Error> {
    let result = json!({ "status": status, "error": { "code": code, "message": error.to_string() } });
    answer(begin(kernel, call).await?, call, status, result).await
}

/// Requests a decision of a person about a command, and commits.
async fn ask(mut work: UnitOfWork, call: &ClaimedCall, request: &Request) -> Result<Answer, Error> {
    let card_id = request::ask(&mut work, call, request).await?;
    work.commit().await?;
    Ok(Answer::Asking(card_id))
}

/// Answers, and commits what was done. If the call was answered before, or another process holds it, nothing is written.
pub(crate) async fn answer(
    mut work: UnitOfWork,
    call: &ClaimedCall,
    status: &str,
    result: Value,
) -> Result<Answer, Error> {
    let card = Draft::tool_result(call.tool_call_id, status, result).seal().map_err(turn::Error::from)?;
    let card_id = card.card_id();
    let report = Report {
        is_external: false,
        tool_call_id: call.tool_call_id,
        claim_token: Some(call.claim_token),
        message_type: MessageType::ToolResult,
        status: status.to_owned(),
        card,
    };
    let reported = turn::report(&mut work, &report).await?;
    if reported.outcome != ReportOutcome::Applied {
        return Err(Error::Turn(turn::Error::Stale(call.tool_call_id.to_string())));
    }
    work.commit().await?;
    Ok(Answer::Answered(card_id))
}

//! Calls from logs (RC-10): put on record as if they had passed, with their times, and without a claim of bytes.

use std::{
    error,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use tokio::sync::OnceCell;
use waybill_context::{
    record::{Unreadable, withhold},
    wire::Adapter,
};
use waybill_core::{
    id::{KeyId, ProjectId, StepId, TurnId},
    json,
};
use waybill_kernel::work::Kernel;

use super::{
    answer,
    credentials::Credentials,
    pieces::Counted,
    sender::Sender,
    source::{Projects, Source, Whose},
    write::{Desk, Error, Extra, Prepared, Written},
};

/// Returns what stands in place of a key: imported calls are never those of a conversation that passed.
fn no_key() -> KeyId {
    KeyId::from_bytes([0xff; 16])
}

/// A call from a log.
#[derive(Clone, Debug)]
pub struct ImportedCall {
    pub adapter: Adapter,
    /// Who answered, such as `openai`.
    pub provider: String,
    /// Calls of other sessions and agents are other conversations.
    pub session: Option<String>,
    pub agent: Option<String>,
    /// When it was sent, if the log says so, and how long its answer took.
    pub at: Option<DateTime<Utc>>,
    pub took: Duration,
    pub status: u16,
    /// The bodies, as JSON. The answer may be an event stream.
    pub request: String,
    pub answer: Option<String>,
    /// What it cost, if the log says so, in millionths of a dollar.
    pub microdollars: Option<u64>,
    /// What tells it from another call at the same time that says the same.
    pub id: Option<String>,
    /// The name of the log, as a label of its turn.
    pub log: String,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is a step of this turn now.
    Recorded(TurnId),
    /// It was imported before.
    Known,
}

/// The call is not on record.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is not a call that can be.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("the call cannot be stored")]
    Unstorable(#[source] Box<dyn error::Error + Send + Sync>),
    /// The database does not take it now.
    #[error("the call cannot be written at the moment")]
    Unwritten(#[source] Box<dyn error::Error + Send + Sync>),
}

impl From<Error> for ImportError {
    fn from(error: Error) -> ImportError {
        match error {
            Error::Unreadable(why) => ImportError::Unreadable(why),
            other if other.is_of_call() => ImportError::Unstorable(Box::new(other)),
            other => ImportError::Unwritten(Box::new(other)),
        }
    }
}

/// Puts calls from logs on record, in the order in which they come.
#[derive(Debug)]
pub struct Importer {
    kernel: Kernel,
    project_id: ProjectId,
    actor: String,
    projects: Projects,
    counted: Arc<Counted>,
}

impl Importer {
    pub fn new(kernel: Kernel, project_id: ProjectId, actor: String) -> Importer {
        Importer { kernel, project_id, actor, projects: Projects::default(), counted: Arc::default() }
    }

    /// Puts a call on record.
    pub async fn put(&self, call: ImportedCall) -> Result<Put, ImportError> {
        let desk = Desk { kernel: &self.kernel, projects: &self.projects, counted: &self.counted, models: None };
        match self.prepared(call).write(desk).await? {
            Written::Now(turn_id) => Ok(Put::Recorded(turn_id)),
            Written::Before => Ok(Put::Known),
        }
    }

    fn prepared(&self, call: ImportedCall) -> Prepared {
        let ImportedCall {
            adapter,
            provider,
            session,
            agent,
            at,
            took,
            status,
            request,
            answer,
            microdollars,
            id,
            log,
        } = call;
        let provider: String = json::text(&provider).chars().take(100).collect();
        let body = request.into_bytes();
        let mut credentials = Credentials::default();
        credentials.add(withhold::credentials(adapter, &body));
        let is_answered = answer.is_some() && (200..300).contains(&status);
        let (kept, said) = answer::imported(adapter, status, answer, &credentials);
        let source = Source::new(no_key(), session.as_deref(), agent.as_deref(), &provider, adapter);
        let whose = Whose::new(source, no_key(), session.as_deref(), String::new());
        Prepared {
            sender: Sender { project_id: self.project_id, key_id: no_key(), actor: self.actor.clone() },
            whose,
            parent: None,
            provider,
            adapter,
            encoding: None,
            session,
            agent,
            traceparent: None,
            body: Arc::new(body),
            cards: OnceCell::new(),
            kept,
            said,
            imported: Some(Extra { at: at.unwrap_or_else(Utc::now), said_at: at, microdollars, id, log }),
            is_answered,
            is_replayable: false,
            took,
            begun: Instant::now(),
            step_id: StepId::new(),
            turn_id: TurnId::new(),
            tried: Mutex::default(),
            _room: None,
        }
    }
}

//! Signals and events (L0-9, L0-16).
//!
//! A signal may be lost, doubled or late without harm: a doorbell says only that there may be work, a chunk is a piece of an
//! answer that is being written. An event is the record of what became true; it leaves the database through the outbox, at least
//! once, for subscribers outside. Nothing inside waits for one.

use std::{fmt, time::Duration};

use chrono::{DateTime, Utc};
use futures::{
    future::BoxFuture,
    stream::{self, BoxStream},
};
use serde::{Deserialize, Serialize};

use crate::{
    id::{AgentId, CardId, Channel, EventId, ProjectId, StepId, Target, TraceId, TurnId},
    turn::TurnEpoch,
};

/// Who a doorbell is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Door {
    /// Workers that run the turns of a target.
    Agent(Target),
    /// Services that answer the calls of a target.
    Tool(Target),
    /// The orchestrator.
    Orchestrator,
}

/// The target of calls that the orchestrator answers.
pub const PMO: &str = "pmo";

impl Door {
    /// Returns the door of the services that answer the calls of a target.
    pub fn of_calls(target: Target) -> Door {
        if target.as_str() == PMO { Door::Orchestrator } else { Door::Tool(target) }
    }
}

/// One ring. It carries no content: a process that hears it looks for work.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bell {
    pub project_id: ProjectId,
    pub door: Door,
}

/// A piece of an answer that a model is writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub project_id: ProjectId,
    pub channel: Channel,
    pub agent_id: AgentId,
    pub content: Vec<u8>,
}

/// What carries signals. Nothing here fails: a signal that cannot be sent is lost.
pub trait Bus: fmt::Debug + Send + Sync {
    /// Rings, and returns at once. Rings for one door that follow each other quickly are merged into one.
    fn ring(&self, bell: Bell);

    /// Returns a stream that wakes the process which serves a door. Of several listeners, a ring wakes one; rings that were not taken yet are
    /// merged into one. Dropping the stream ends the listening.
    fn hear(&self, door: &Door) -> BoxStream<'static, ()>;

    /// Returns whether rings can arrive. While they cannot, poll more often.
    fn is_up(&self) -> bool;

    /// Sends a piece of an answer to the callers that watch it at this moment.
    fn send(&self, chunk: Chunk);

    /// Returns the pieces of what an agent is writing, from now on.
    fn watch(&self, project_id: ProjectId, agent_id: AgentId) -> BoxStream<'static, Vec<u8>>;
}

/// A bus without listeners.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Bus for Silent {
    fn ring(&self, _: Bell) {}

    fn hear(&self, _: &Door) -> BoxStream<'static, ()> {
        Box::pin(stream::pending())
    }

    fn is_up(&self) -> bool {
        false
    }

    fn send(&self, _: Chunk) {}

    fn watch(&self, _: ProjectId, _: AgentId) -> BoxStream<'static, Vec<u8>> {
        Box::pin(stream::pending())
    }
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A turn has ended. One per turn; it stands for the last step too.
    Task,
    /// A step was written, and the turn goes on or waits.
    Step,
    /// An agent's status changed, if the turn asked for these events.
    State,
    /// A request to people was made, or was decided.
    Request,
}

impl EventKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            EventKind::Task => "task",
            EventKind::Step => "step",
            EventKind::State => "state",
            EventKind::Request => "request",
        }
    }
}

/// One event of the outbox, as it goes over the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::FromRow))]
pub struct Event {
    pub project_id: ProjectId,
    pub channel: Channel,
    pub agent_id: AgentId,
    pub agent_turn_id: TurnId,
    /// The turn at the top of its tree: itself, if no turn started it.
    pub root_turn_id: TurnId,
    pub event: EventKind,
    pub event_id: EventId,
    /// Orders the events of one agent.
    pub outbox_seq: i64,
    /// How a turn ended, what a step came to, or what the agent does now.
    pub status: String,
    pub turn_epoch: Option<TurnEpoch>,
    pub step_id: Option<StepId>,
    /// For a task, its deliverable; for a request, what is asked or was decided.
    pub card_id: Option<CardId>,
    pub trace_id: Option<TraceId>,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    pub created_at: DateTime<Utc>,
}

impl Event {
    /// Returns an id that is the same however often the event is sent, for deduplication.
    pub fn message_id(&self) -> String {
        format!("{}.{}.{}", self.agent_turn_id, self.event.as_str(), self.event_id)
    }
}

/// The stream of events cannot be reached, or refuses an event.
#[derive(Debug, thiserror::Error)]
#[error("the event stream cannot be used: {0}")]
pub struct FeedError(pub String);

/// The outcome of publishing events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// For each event, whether it arrived.
    pub arrived: Vec<bool>,
    /// Events that the stream refused, by place, with the reason. Others that did not arrive were not sent, or got no answer.
    pub refused: Vec<(usize, String)>,
}

/// Where events go.
pub trait Feed: fmt::Debug + Send + Sync {
    /// Creates the stream if it does not exist, and returns when it was created. A time other than before means that it was lost with all its events.
    fn made_at(&self) -> BoxFuture<'_, Result<DateTime<Utc>, FeedError>>;

    /// Publishes events, those of one agent one after the other, and begins nothing new after this time. After an event that did not arrive, no more
    /// events of the same agent are sent.
    fn publish<'a>(&'a self, events: &'a [Event], within: Duration) -> BoxFuture<'a, Published>;
}

//! The life of a turn (L0-1 … L0-8, L0-17): one file per transition, each one function in the database.
//!
//! ```text
//!   enqueue ──▶ dispatched ──claim──▶ running ──step: go on──▶ running
//!      │            ▲                  │  ▲  ╲
//!      ▼            │ finish of        │  │   ╲ step: suspend
//!    queued ────────┘ the one before   │  │    ▼
//!                   ▲                  │  └── suspended ◀── report (not the last)
//!                   └──── reclaim ─────┤ claim, after report (the last) or timeout
//!                                      ▼
//!                                  finish: idle, deliverable, event, next turn
//! ```
//! Every transition first takes the head row's lock, under the fence where there is one; what it must look up it reads in a
//! later statement. `docs/protocol.md` says why, and `crates/model` is the same protocol as a model that is checked.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::postgres::PgDatabaseError;
use waybill_core::{
    card::{CardType, Content, Draft, Invalid, NewCard, Role},
    id::{CardId, SessionId, StepId, TurnId},
    turn::{End, Fence},
};

use crate::{
    retry::Transient,
    work::{self, DbError},
};

mod brief;
mod claim;
mod enqueue;
mod finish;
mod follow;
mod graph;
mod label;
mod list;
mod look;
mod reclaim;
mod report;
mod resources;
mod steer;
mod step;
mod stop;
mod timeline;

pub use brief::{Brief, Offered, briefs, offered};
pub(crate) use claim::interval;
pub use claim::{Claimed, Claiming, claim, claim_in, claim_with, claimed, held, holder};
pub use enqueue::{DispatchRequest, Dispatched, MAX_RECURSION_DEPTH, enqueue};
pub use finish::{Ended, Ending, finish};
pub use follow::{Look, Stretch, Told, below, events, events_of, last_event, look, voice};
pub use graph::{Graph, GraphBatch, GraphEdge, graph};
pub use label::label;
pub use list::{Filter, Listed, Listing, list};
pub use look::{
    Edge, Given, OpenChild, Summary, Unserved, WaitKind, WaitingFor, delivered, edges, failing, open_children, show,
    tree, unserved,
};
pub use reclaim::{Attempts, Loss, Reclaimed, reclaim, release};
pub use report::{Report, ReportOutcome, Reported, report};
pub use resources::{Delegate, Resources, resources};
pub use steer::{Steered, message, steer};
pub use step::{Call, Step, Stepped, step};
pub use stop::{Stopped, stop};
pub use timeline::{Period, Segment, SegmentKind, Timeline, timeline};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another owner has it now, or it is over. Stop; write nothing more.
    #[error("this worker no longer has the turn or call, or it has ended: {0}")]
    Stale(String),
    #[error("agent, turn or call not found: {0}")]
    NotFound(String),
    #[error("the agent's queue is full: try again later")]
    Busy,
    #[error("recursion_depth_exceeded: the delegation would be {depth} levels deep; the limit is {limit}")]
    RecursionDepthExceeded { depth: i32, limit: i32 },
    #[error("an id is already used with different content: {0}. Use a new id")]
    Conflict(String),
    #[error("an id is already used for something else: {0}. Use a new id")]
    Taken(String),
    #[error("turn {0} already has its deliverable")]
    Delivered(String),
    /// It got a message while it was about to end: it goes on, and ends later.
    #[error("turn {0} got a message that the model has not seen yet: call the model with it, then end the turn")]
    Unseen(String),
    /// Its head row is gone: `waybill admin rebuild-state` rebuilds it.
    #[error("the state of the agent is lost: {0}. Run `waybill admin rebuild-state`")]
    HeadLost(String),
    /// Its parent, or the caller, has nothing left to give it.
    #[error("the budget is used up: {0}")]
    BudgetExhausted(String),
    /// More than the project's settings allow. After so many seconds a retry may help.
    #[error("{said}")]
    Quota { said: String, retry_after: u32 },
    #[error("a card names artifacts that do not exist: {0}. Store them first")]
    NoArtifact(String),
    #[error("the lease of the worker has expired: cancel its work, and continue with a new worker name")]
    LeaseLost,
    #[error("a child turn of a batch must be ended in a unit of work, because its end may complete the batch")]
    NotAlone,
    #[error("the turn or call belongs to another project than the one that the request names")]
    OtherProject,
    #[error("{0}")]
    Invalid(&'static str),
    #[error("a card is not valid")]
    Card(#[from] Invalid),
    #[error(transparent)]
    Work(#[from] work::Error),
    /// Another transaction held a lock for too long, or two waited for each other. Nothing was written; retry.
    #[error("the database was busy and nothing was written: try again")]
    TryAgain(#[source] DbError),
    #[error("the database request failed")]
    Db(#[source] DbError),
}

impl Transient for Error {
    /// Whether it was written is unknown; retried with the same ids, a transition is done once.
    fn is_transient(&self) -> bool {
        match self {
            Error::TryAgain(_) | Error::Work(work::Error::Unreachable { .. }) => true,
            Error::Db(error) | Error::Work(work::Error::Db(error)) => error.is_transient(),
            _ => false,
        }
    }
}

impl Error {
    /// Checks whether a statement took longer than the server allows: see [`DbError::timed_out`].
    pub fn timed_out(&self) -> bool {
        matches!(self, Error::Db(error) | Error::Work(work::Error::Db(error)) if error.timed_out())
    }
}

impl From<DbError> for Error {
    fn from(error: DbError) -> Error {
        error.0.into()
    }
}

impl From<sqlx::Error> for Error {
    /// The functions in the database raise their refusals with codes of their own.
    fn from(error: sqlx::Error) -> Error {
        let Some(refusal) = error.as_database_error().and_then(|e| e.try_downcast_ref::<PgDatabaseError>()) else {
            return Error::Db(error.into());
        };
        let detail = || refusal.detail().unwrap_or_else(|| refusal.message()).to_owned();
        match refusal.code() {
            "WB001" => Error::Stale(detail()),
            "WB002" => Error::Conflict(detail()),
            "WB003" => Error::Delivered(detail()),
            "WB006" => Error::HeadLost(detail()),
            "WB005" => Error::LeaseLost,
            "WB013" => Error::OtherProject,
            "WB014" => Error::NotAlone,
            "WB016" => Error::BudgetExhausted(detail()),
            "WB018" => Error::NoArtifact(detail()),
            "WB019" => Error::Unseen(detail()),
            "WB020" => {
                let retry_after = refusal.hint().and_then(|hint| hint.parse().ok()).unwrap_or(5);
                Error::Quota { said: detail(), retry_after }
            }
            "WB404" => Error::NotFound(detail()),
            "23514" if refusal.constraint() == Some("queue_is_full") => Error::Busy,
            // The same turn or card is being written by another transaction just now: the next attempt finds it.
            "23505" if matches!(refusal.constraint(), Some("turns_pkey" | "cards_pkey")) => {
                Error::TryAgain(error.into())
            }
            "23505" => Error::Taken(detail()),
            "23514" if refusal.constraint() == Some("of_the_present") => Error::Invalid(
                "an id has a time more than a day ahead of the database's clock: check this machine's clock",
            ),
            "23514" if refusal.constraint() == Some("of_the_past") => {
                Error::Invalid("the id of a turn is older than the history that is kept: use a new id")
            }
            "40001" | "40P01" | "55P03" => Error::TryAgain(error.into()),
            _ => Error::Db(error.into()),
        }
    }
}

/// Returns the deliverable of a turn that no worker ended.
pub fn ending_card(end: End, reason: &str) -> Result<NewCard, Error> {
    let content = Content::Json(serde_json::json!({ "status": end.as_str(), "reason": reason }));
    Ok(Draft::new(CardType::deliverable(), Role::Assistant, content).seal()?)
}

/// `sys.*` cards are shared by content, and never part of what a turn reads or writes; a deliverable is its end.
fn check_cards(cards: &[NewCard]) -> Result<(), Error> {
    if cards.iter().any(|card| card.metadata().card_type.is_system()) {
        return Err(Error::Invalid("a card of type `sys.*` cannot be put into a context box or output box"));
    }
    if cards.iter().any(is_deliverable) {
        return Err(Error::Invalid("a `task.deliverable` card is allowed only as the last card that ends a turn"));
    }
    Ok(())
}

/// Partitions of history are cut by the time that ids carry, and are made for the weeks to come: a row whose id is from far ahead, or has no time,
/// finds none. The database checks the ids of turns by its own clock.
fn check_minted(ids: impl IntoIterator<Item = Option<DateTime<Utc>>>, refusal: &'static str) -> Result<(), Error> {
    let horizon = Utc::now() + TimeDelta::days(1);
    let are_of_the_present = ids.into_iter().all(|minted_at| minted_at.is_some_and(|at| at <= horizon));
    if are_of_the_present { Ok(()) } else { Err(Error::Invalid(refusal)) }
}

/// Checks the same for ids that the worker of a turn chooses: of steps and calls, which are minted as they are written. The partition of an older id
/// may have been dropped.
fn check_fresh(ids: impl IntoIterator<Item = Option<DateTime<Utc>>>, refusal: &'static str) -> Result<(), Error> {
    let oldest = Utc::now() - TimeDelta::days(1);
    let ids: Vec<_> = ids.into_iter().collect();
    if ids.iter().flatten().any(|at| *at < oldest) {
        return Err(Error::Invalid(refusal));
    }
    check_minted(ids, refusal)
}

fn is_deliverable(card: &NewCard) -> bool {
    card.metadata().card_type.as_str() == "task.deliverable"
}

fn ids(cards: &[NewCard]) -> Vec<CardId> {
    cards.iter().map(NewCard::card_id).collect()
}

/// One step of a turn. The fields about the model and what it used are `null` if the step made no model call.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, sqlx::FromRow, utoipa::ToSchema)]
pub struct Taken {
    pub step_id: StepId,
    pub outcome: String,
    pub n_calls: i32,
    pub provider: Option<String>,
    pub model: Option<String>,
    pub input_tokens: Option<i32>,
    pub cached_tokens: Option<i32>,
    pub output_tokens: Option<i32>,
    pub microdollars: Option<i64>,
    pub took_ms: Option<i32>,
    pub n_asked: Option<i16>,
    pub asked_again: Option<bool>,
    /// Why the provider could not use its prompt cache fully, as the provider itself reported it. `null` if it gave no reason.
    pub cache_miss: Option<serde_json::Value>,
    /// Whether a worker reported these numbers over HTTP. Waybill did not make this model call itself.
    pub reported: Option<bool>,
    pub created_at: DateTime<Utc>,
}

/// Lists the steps of a turn, in their order.
pub async fn steps(work: &mut work::UnitOfWork, turn_id: TurnId) -> Result<Vec<Taken>, Error> {
    let project_id = work.project_id();
    let steps = sqlx::query_as(
        "select s.step_id, s.outcome::text, s.n_calls, s.provider, s.model, s.input_tokens, s.cached_tokens, s.output_tokens, s.microdollars,
                s.took_ms, s.n_asked, s.asked_again, s.cache_miss, s.reported, s.created_at
           from state.agent_steps s
          where s.project_id = $1 and s.agent_turn_id = $2
          order by s.created_at, s.step_id",
    )
    .bind(project_id)
    .bind(turn_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(steps)
}

/// Returns the outcome of a step that was written under this claim: `running`, `suspended` or `finished`. `None` means that it was not written.
pub async fn step_outcome(
    work: &mut work::UnitOfWork,
    fence: &Fence,
    step_id: StepId,
) -> Result<Option<String>, Error> {
    let project_id = work.project_id();
    let outcome = sqlx::query_scalar(
        "select s.outcome::text
           from state.agent_steps s
          where s.project_id = $1 and s.agent_turn_id = $2 and s.step_id = $3 and s.claim_token = $4",
    )
    .bind(project_id)
    .bind(fence.agent_turn_id())
    .bind(step_id)
    .bind(fence.claim_token())
    .fetch_optional(&mut **work)
    .await?;
    Ok(outcome)
}

/// Returns how far the output box of a turn went when it wrote its last step; 0 if it has written none.
pub async fn written_upto(work: &mut work::UnitOfWork, turn_id: TurnId) -> Result<i64, Error> {
    let project_id = work.project_id();
    let upto = sqlx::query_scalar(
        "select coalesce(max(s.to_seq), 0) from state.agent_steps s where s.project_id = $1 and s.agent_turn_id = $2",
    )
    .bind(project_id)
    .bind(turn_id)
    .fetch_one(&mut **work)
    .await?;
    Ok(upto)
}

/// Returns where the output box of a turn ended when a summary was last paid for and not used: a step in which a model was asked, and which wrote
/// neither a card nor a patch of the session's memory. `None` means that this never happened.
pub async fn unused_summary(
    work: &mut work::UnitOfWork,
    turn_id: TurnId,
    session_id: Option<SessionId>,
) -> Result<Option<i64>, Error> {
    let project_id = work.project_id();
    let upto = sqlx::query_scalar(
        "select max(s.to_seq)
           from state.agent_steps s
          where s.project_id = $1 and s.agent_turn_id = $2 and s.input_tokens is not null and s.to_seq < s.from_seq
            and not exists (select from state.patches p
                             where p.project_id = $1 and p.session_id = $3 and p.step_id = s.step_id
                            offset 0)",
    )
    .bind(project_id)
    .bind(turn_id)
    .bind(session_id)
    .fetch_one(&mut **work)
    .await?;
    Ok(upto)
}

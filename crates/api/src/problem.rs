//! Errors over HTTP: RFC 9457, with a stable code. Internal details are not sent: the database's own messages go to the log.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;
use waybill_core::{error::causes, metric};
use waybill_kernel::{
    artifact, blackboard, card, card_box, grant, handover, key, knowledge, project, request, resource, retain,
    retry::Transient,
    session, turn,
    work::{self, DbError},
};
use waybill_orchestrator::{command, knowledge as librarian};
use waybill_orchestrator::{fork, outcome, replay};
use waybill_worker::{
    gather, model,
    turn::{self as run, reported::Refused},
};

use crate::caller::forbidden;

/// Why a request failed, and what to do.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Problem {
    /// URI of the kind of problem: `urn:waybill:CODE`.
    #[serde(rename = "type")]
    kind: String,
    /// Short name of the kind of problem. It is the same for every problem of that kind.
    title: String,
    /// HTTP status code.
    status: u16,
    /// What is wrong in this case, and what to do.
    detail: String,
    /// Short code for programs, such as `not_found`. It stays the same in later versions.
    code: &'static str,
    /// Seconds to wait before a retry. Absent if no time is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u32>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        let title = code.replace('_', " ");
        let (kind, detail) = (format!("urn:waybill:{code}"), detail.into());
        Problem { kind, title, status: status.as_u16(), detail, code, retry_after: None }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    /// Also for what belongs to another project.
    pub(crate) fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    pub(crate) fn conflict(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, detail)
    }

    pub(crate) fn busy(code: &'static str, detail: impl Into<String>, seconds: u32) -> Problem {
        metrics::counter!(metric::REFUSED, "why" => code).increment(1);
        let status = match code {
            "rate_limited" | "backlog" | "quota" => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Problem { retry_after: Some(seconds), ..Problem::new(status, code, detail) }
    }

    /// Says which part of the request it is about.
    pub(crate) fn about(self, part: &str) -> Problem {
        let detail = format!("{part}: {}", self.detail);
        Problem { detail, ..self }
    }

    /// A fault of the server. The log says what it was.
    pub(crate) fn internal(error: impl std::fmt::Display) -> Problem {
        tracing::error!(%error, "the server could not handle a request");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the server failed, and its log says why. The change may or may not have been written: retry with the same ids and `Idempotency-Key`, so that it is written only once",
        )
    }
}

impl Problem {
    /// Checks whether the same request may succeed later.
    pub(crate) fn is_busy(&self) -> bool {
        self.retry_after.is_some()
    }

    /// Says whether the server failed: the next request would fail too.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(self.code, "internal" | "unavailable" | "overloaded")
    }
}

/// The code of a problem, for the middleware that sees the response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code(pub(crate) &'static str);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(&self)).into_response();
        response.extensions_mut().insert(Code(self.code));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Turns a database error into a problem: the database was short of something, slow or gone; or it is a fault of ours.
fn database(error: &DbError) -> Problem {
    // A fault of the request, not of the server.
    if error.is_invalid_value() {
        return Problem::invalid(format!("the database cannot store a value of the request: {error}"));
    }
    if error.is_transient() {
        tracing::warn!(%error, "the database cannot be reached");
        return Problem::busy(
            "unavailable",
            "the database cannot be reached at the moment: retry with the same ids and `Idempotency-Key`",
            1,
        );
    }
    Problem::internal(error)
}

impl From<DbError> for Problem {
    fn from(error: DbError) -> Problem {
        database(&error)
    }
}

impl From<work::Error> for Problem {
    fn from(error: work::Error) -> Problem {
        match error {
            work::Error::Db(error) => database(&error),
            work::Error::Unreachable { source, .. } => database(&source),
            other => Problem::internal(other),
        }
    }
}

impl From<turn::Error> for Problem {
    fn from(error: turn::Error) -> Problem {
        let said = error.to_string();
        match error {
            turn::Error::Stale(_) => Problem::conflict("stale", said),
            turn::Error::NotFound(_) => Problem::not_found("the agent, turn or call does not exist in this project"),
            turn::Error::Busy => Problem::busy("busy", said, 1),
            turn::Error::RecursionDepthExceeded { .. } => {
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "recursion_depth_exceeded", said)
            }
            turn::Error::Conflict(_) | turn::Error::Taken(_) => Problem::conflict("conflict", said),
            turn::Error::Delivered(_) => Problem::conflict("delivered", said),
            turn::Error::Unseen(_) => Problem::conflict("unseen", said),
            turn::Error::HeadLost(_) => Problem::conflict("head_lost", said),
            turn::Error::NoArtifact(_) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "no_artifact", said),
            turn::Error::BudgetExhausted(_) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "budget_exhausted", said),
            turn::Error::Quota { retry_after, .. } => Problem::busy("quota", said, retry_after),
            turn::Error::LeaseLost => Problem::new(StatusCode::GONE, "lease_lost", said),
            turn::Error::Invalid(_) | turn::Error::Card(_) => Problem::invalid(causes(&error)),
            turn::Error::OtherProject => Problem::not_found("the turn does not exist in this project"),
            turn::Error::TryAgain(_) => {
                Problem::busy("try_again", "the database was busy and nothing was written: retry", 1)
            }
            turn::Error::Work(error) => error.into(),
            turn::Error::Db(error) => database(&error),
            turn::Error::NotAlone => Problem::internal(said),
        }
    }
}

impl From<card::Error> for Problem {
    fn from(error: card::Error) -> Problem {
        match error {
            card::Error::Db(error) => database(&error),
            card::Error::NotFound(_) => Problem::not_found(error.to_string()),
            other => Problem::conflict("conflict", other.to_string()),
        }
    }
}

impl From<card_box::Error> for Problem {
    fn from(error: card_box::Error) -> Problem {
        match error {
            card_box::Error::Db(error) => database(&error),
            card_box::Error::Span(_) => Problem::invalid(error.to_string()),
            other => Problem::not_found(other.to_string()),
        }
    }
}

impl From<project::Error> for Problem {
    fn from(error: project::Error) -> Problem {
        let said = error.to_string();
        match error {
            project::Error::Db(error) => database(&error),
            project::Error::NotFound(_) => Problem::not_found(said),
            project::Error::Slug(_) => Problem::invalid(said),
            project::Error::Taken(_) => Problem::conflict("taken", said),
        }
    }
}

impl From<resource::Error> for Problem {
    fn from(error: resource::Error) -> Problem {
        match error {
            resource::Error::Db(error) => database(&error),
            resource::Error::NotFound { .. } => Problem::not_found(error.to_string()),
            resource::Error::OtherTarget { .. }
            | resource::Error::NotRegistered(_)
            | resource::Error::InUse { .. }
            | resource::Error::ProfileInUse { .. }
            | resource::Error::OpenTurn { .. } => Problem::conflict("conflict", error.to_string()),
            other => Problem::invalid(causes(&other)),
        }
    }
}

impl From<retain::Error> for Problem {
    fn from(error: retain::Error) -> Problem {
        match error {
            retain::Error::Db(error) => database(&error),
            other => Problem::invalid(other.to_string()),
        }
    }
}

impl From<key::Error> for Problem {
    fn from(error: key::Error) -> Problem {
        let said = error.to_string();
        match error {
            key::Error::Db(error) => database(&error),
            key::Error::Enough(_) => Problem::conflict("enough_keys", said),
            key::Error::NotFound(_) => Problem::not_found(said),
            key::Error::Unfit(_) => Problem::invalid(said),
        }
    }
}

impl From<handover::Error> for Problem {
    fn from(error: handover::Error) -> Problem {
        match error {
            handover::Error::Db(error) => database(&error),
            handover::Error::NoProfile(_) | handover::Error::NoSession(_) => Problem::not_found(error.to_string()),
            other => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, other.code(), causes(&other)),
        }
    }
}

impl From<blackboard::Error> for Problem {
    fn from(error: blackboard::Error) -> Problem {
        match error {
            blackboard::Error::Db(error) | blackboard::Error::TryAgain(error) => database(&error),
            other => Problem::conflict("conflict", other.to_string()),
        }
    }
}

impl From<session::Error> for Problem {
    fn from(error: session::Error) -> Problem {
        let said = error.to_string();
        match error {
            session::Error::Db(error) => database(&error),
            session::Error::Blackboard(error) => error.into(),
            session::Error::NotFound(_) => Problem::not_found(said),
            session::Error::Ended(_) => Problem::conflict("session_ended", said),
            session::Error::Invalid(_) => Problem::invalid(said),
        }
    }
}

impl From<command::Error> for Problem {
    fn from(error: command::Error) -> Problem {
        match error {
            command::Error::Turn(error) => error.into(),
            command::Error::Handover(error) => error.into(),
            command::Error::Artifact(error) => error.into(),
            command::Error::Resource(error) => error.into(),
            command::Error::Session(error) => error.into(),
            command::Error::Refused { code, message } => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, message),
            other => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "refused", causes(&other)),
        }
    }
}

impl From<artifact::Error> for Problem {
    fn from(error: artifact::Error) -> Problem {
        let said = error.to_string();
        match error {
            artifact::Error::GivenUp => Problem::conflict("given_up", said),
            artifact::Error::Quota(_) => Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "quota_exceeded", said),
            artifact::Error::Settings(error) => error.into(),
            artifact::Error::Db(error) => error.into(),
        }
    }
}

impl From<waybill_artifact::Error> for Problem {
    fn from(error: waybill_artifact::Error) -> Problem {
        use waybill_artifact::{Error, store};
        let said = error.to_string();
        match error {
            Error::NotFound(_) => Problem::not_found(said),
            Error::MediaType(_) => Problem::invalid(said),
            Error::Index(error) => error.into(),
            Error::Store(store::Error::TooLarge(_)) => Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", said),
            Error::Store(store::Error::Content(_)) => Problem::invalid(said),
            Error::Store(store::Error::Store(_)) => {
                tracing::warn!(error = causes(&error), "the object store cannot be reached");
                Problem::busy("unavailable", "the object store cannot be reached at the moment: retry", 1)
            }
            Error::Store(error) => Problem::internal(causes(&error)),
        }
    }
}

impl From<knowledge::Error> for Problem {
    fn from(error: knowledge::Error) -> Problem {
        match error {
            knowledge::Error::Db(error) => error.into(),
            knowledge::Error::NotFound(_) => Problem::not_found(error.to_string()),
            knowledge::Error::TooLong { .. } | knowledge::Error::NoVectors => Problem::invalid(error.to_string()),
        }
    }
}

impl From<librarian::Error> for Problem {
    fn from(error: librarian::Error) -> Problem {
        match error {
            librarian::Error::Knowledge(error) => error.into(),
            librarian::Error::Turn(error) => error.into(),
            librarian::Error::Card(error) => error.into(),
            librarian::Error::NotDelivered(_) => Problem::not_found(error.to_string()),
            librarian::Error::Empty(_) => Problem::invalid(error.to_string()),
        }
    }
}

impl From<grant::Error> for Problem {
    fn from(error: grant::Error) -> Problem {
        match error {
            grant::Error::Db(error) => database(&error),
            unknown => Problem::not_found(unknown.to_string()),
        }
    }
}

impl From<request::Refused> for Problem {
    fn from(error: request::Refused) -> Problem {
        let said = error.to_string();
        match error {
            request::Refused::Gone(_) => Problem::not_found(said),
            request::Refused::Unfit(_) | request::Refused::NoAnswer => Problem::invalid(said),
            request::Refused::FourEyes => forbidden(said),
            request::Refused::Turn(error) => error.into(),
        }
    }
}

impl From<replay::Error> for Problem {
    fn from(error: replay::Error) -> Problem {
        match error {
            replay::Error::NotFound { .. } => Problem::not_found(error.to_string()),
            replay::Error::Card(error) => error.into(),
            replay::Error::CardBox(error) => error.into(),
            replay::Error::Work(error) => error.into(),
            replay::Error::Render(waybill_context::receipt::Error::Changed { .. }) => {
                Problem::conflict("card_changed", error.to_string())
            }
            // The call exists but cannot be rendered again: its content was erased, or was written by a version that is gone.
            other => Problem::conflict("not_renderable", causes(&other)),
        }
    }
}

impl From<run::Error> for Problem {
    fn from(error: run::Error) -> Problem {
        match error {
            run::Error::Turn(error) | run::Error::Gather(gather::Error::External(error)) => error.into(),
            run::Error::Gather(gather::Error::Work(error)) => error.into(),
            run::Error::Gather(gather::Error::CardBox(error)) => error.into(),
            run::Error::Gather(gather::Error::Card(error)) => error.into(),
            run::Error::Gather(error @ gather::Error::QueryGone(_)) => {
                Problem::conflict("unreadable", error.to_string())
            }
            run::Error::Gather(error @ gather::Error::Changed(_)) => {
                Problem::conflict("card_changed", error.to_string())
            }
            run::Error::Blackboard(error) => error.into(),
            run::Error::Refused(refused) => refused.into(),
            run::Error::Invalid(_) => {
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unreadable_response", causes(&error))
            }
            other => Problem::internal(causes(&other)),
        }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        let said = refused.to_string();
        match refused {
            Refused::NoFallback(_) => Problem::invalid(said),
            Refused::Model(model::Error::NoProvider(name)) => Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "no_provider",
                format!(
                    "the server does not know provider `{name}` of the profile: its operator must add the provider to the file of `waybill serve --providers`"
                ),
            ),
            Refused::Model(_) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "cannot_compose", said),
            Refused::Mismatch => Problem::conflict("receipt_mismatch", said),
            Refused::Response(_) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unreadable_response", said),
        }
    }
}

impl From<outcome::Error> for Problem {
    fn from(error: outcome::Error) -> Problem {
        match error {
            outcome::Error::Card(error) => error.into(),
            outcome::Error::Db(error) => error.into(),
        }
    }
}

impl From<fork::Error> for Problem {
    fn from(error: fork::Error) -> Problem {
        match error {
            fork::Error::Widens(_) | fork::Error::Live => forbidden(error.to_string()),
            fork::Error::NotFound(_) | fork::Error::NoStep { .. } => Problem::not_found(error.to_string()),
            fork::Error::Resource(error) => error.into(),
            fork::Error::Card(error) => error.into(),
            fork::Error::CardBox(error) => error.into(),
            fork::Error::Turn(error) => error.into(),
            fork::Error::Work(error) => error.into(),
            other => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "cannot_fork", causes(&other)),
        }
    }
}

//! Requests as handlers want them. What cannot be read is answered with a problem.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Request, rejection::BytesRejection},
    http::{
        StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE},
        request::Parts,
    },
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use utoipa::ToSchema;
use waybill_core::{
    card::{Content, Reading},
    span::read_traceparent,
};
use waybill_kernel::offload;

use crate::{
    Api,
    limit::{Lane, Place},
    problem::Problem,
};

/// A JSON body, and its bytes.
pub(crate) struct Body<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
    pub(crate) place: Option<Place>,
}

/// A body as it was sent.
pub(crate) struct Plain {
    pub(crate) bytes: Bytes,
    place: Option<Place>,
}

impl FromRequest<Arc<Api>> for Plain {
    type Rejection = Problem;

    /// Reads all of the body, within the time limit, and only while the project's bodies do not take too much memory at once.
    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Plain, Problem> {
        let limits = &api.config.limits;
        let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let length: usize = length.unwrap_or(limits.most_bytes).min(limits.most_bytes);
        let lane = request.extensions().get::<Lane>().copied();
        let place = lane.map(|lane| api.gate.bodies.take(lane, (length >> 10) + 1)).transpose()?;
        let read = Bytes::from_request(request, api);
        let Ok(read) = tokio::time::timeout(limits.body_timeout, read).await else {
            let said =
                format!("the body of the request did not arrive within {} s: retry", limits.body_timeout.as_secs());
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", said));
        };
        let bytes = read.map_err(|error: BytesRejection| {
            let status = error.status();
            let code = if status == StatusCode::PAYLOAD_TOO_LARGE { "too_large" } else { "invalid" };
            Problem::new(status, code, error.body_text())
        })?;
        Ok(Plain { bytes, place })
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<Api>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Body<T>, Problem> {
        let kind = request.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
            let said = "send the body with `Content-Type: application/json`";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", said));
        }
        let Plain { bytes, place } = Plain::from_request(request, api).await?;
        // A list would be read as the fields in their order.
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|byte| *byte != b'{') {
            return Err(Problem::invalid("the body of the request must be a JSON object"));
        }
        let body = bytes.clone();
        // The place too is held until the body is parsed, whether or not the caller still waits.
        let (value, place) = offload::run(body.len(), move || (serde_json::from_slice(&body), place)).await;
        let value =
            value.map_err(|error| Problem::invalid(format!("the body of the request is not valid: {error}")))?;
        Ok(Body { value, bytes, place })
    }
}

/// Writes an answer that has cards in it and may be large.
pub(crate) async fn answer<T>(value: T, cards: impl Fn(&T) -> usize) -> Result<Response, Problem>
where
    T: Serialize + Send + 'static,
{
    let n_bytes = cards(&value);
    let written = offload::run(n_bytes, move || serde_json::to_vec(&value)).await.map_err(Problem::internal)?;
    Ok(([(CONTENT_TYPE, "application/json")], written).into_response())
}

/// Estimates how many bytes cards have.
pub(crate) fn size<'a>(cards: impl IntoIterator<Item = &'a Reading>) -> usize {
    let bytes = cards.into_iter().map(|reading| match reading {
        Reading::Live(card) => match &card.content {
            Content::Text(text) => text.len(),
            _ => usize::try_from(card.n_tokens.get()).unwrap_or_default() * 4,
        },
        Reading::Gone(_) => 0,
    });
    bytes.sum()
}

/// The trace that the caller's own work belongs to, if it sends a valid `traceparent`.
pub(crate) struct Traced(pub(crate) Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for Traced {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Traced, Self::Rejection> {
        let header = parts.headers.get("traceparent").and_then(|header| header.to_str().ok());
        Ok(Traced(header.filter(|header| read_traceparent(header).is_some()).map(str::to_owned)))
    }
}

/// The parameters of a path.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Problem> {
        let found = axum::extract::Path::from_request_parts(parts, state).await;
        found.map(|axum::extract::Path(named)| Path(named)).map_err(|error| Problem::not_found(error.body_text()))
    }
}

/// The parameters of a query.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Query<T>, Problem> {
        let found = axum::extract::Query::from_request_parts(parts, state).await;
        found.map(|axum::extract::Query(said)| Query(said)).map_err(|error| Problem::invalid(error.body_text()))
    }
}

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// Entries of this page.
    items: Vec<T>,
    /// Value of `after` for the next page. `null` on the last page.
    next: Option<String>,
}

impl<T> Page<T> {
    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    /// Makes a page. `items` may have one more entry than asked for.
    pub(crate) fn new<C: ToString>(mut items: Vec<T>, most: usize, cursor: impl Fn(&T) -> C) -> Page<T> {
        let more = items.len() > most;
        items.truncate(most);
        let next = items.last().filter(|_| more).map(|last| cursor(last).to_string());
        Page { items, next }
    }

    /// Makes a page, if it is known where the next one begins.
    pub(crate) fn upto<C: ToString>(items: Vec<T>, next: Option<C>) -> Page<T> {
        Page { items, next: next.map(|next| next.to_string()) }
    }
}

/// The most entries on a page, or in a list that a caller sends.
const MOST: usize = 1_000;

pub(crate) fn most(asked: Option<u16>) -> Result<usize, Problem> {
    let most = usize::from(asked.unwrap_or(100));
    if !(1..=MOST).contains(&most) {
        return Err(Problem::invalid(format!("`most` must be 1 to {MOST}")));
    }
    Ok(most)
}

/// The longest that a request waits.
const LONGEST_WAIT: f64 = 30.0;

/// Reads for how long a request is to wait.
pub(crate) fn wait(seconds: f64) -> Result<Duration, Problem> {
    if !(0.0..=LONGEST_WAIT).contains(&seconds) {
        return Err(Problem::invalid("`wait_seconds` must be 0 to 30"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Checks that a list is not too long.
pub(crate) fn not_too_many<T>(what: &str, list: &[T]) -> Result<(), Problem> {
    if list.len() > MOST {
        return Err(Problem::invalid(format!("`{what}` has {} entries: send at most {MOST} at a time", list.len())));
    }
    Ok(())
}

/// Checks that a text is not empty.
pub(crate) fn not_empty(what: &str, text: &str) -> Result<(), Problem> {
    if text.is_empty() { Err(Problem::invalid(format!("`{what}` must not be empty"))) } else { Ok(()) }
}

/// Checks that a reason, which is kept on record, is neither empty nor too long.
pub(crate) fn check_reason(reason: &str) -> Result<(), Problem> {
    if reason.is_empty() || reason.chars().count() > 1000 {
        return Err(Problem::invalid("`reason` must have 1 to 1,000 characters"));
    }
    Ok(())
}

/// Returns one more than `most`, to learn whether there are more.
pub(crate) fn and_one(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX - 1) + 1
}

//! Writes: each is one unit of work, and is done once however often it is sent with the same idempotency key.

use std::time::Duration;

use axum::{
    extract::FromRequestParts,
    http::{Method, Uri, request::Parts},
    response::Json,
};
use futures::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;
use waybill_core::card::CardHash;
use waybill_kernel::{
    idempotency::{self, Key},
    work::UnitOfWork,
};

use crate::{Api, caller::Caller, problem::Problem};

const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The header, as the OpenAPI document describes it.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code, reason = "read from the headers by hand, so that a wrong one gets our own error message")]
pub(crate) struct OnceParams {
    /// Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
    /// first response. If omitted, the server carries out every request.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 200, pattern = "^[!-~]+$")]
    key: Option<String>,
}

/// A caller's idempotency key, and the request that it is used for.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    key: Option<String>,
    method: Method,
    uri: Uri,
}

impl<S: Send + Sync> FromRequestParts<S> for Once {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Once, Problem> {
        let key = match parts.headers.get("idempotency-key") {
            None => None,
            Some(value) => {
                let key = value.to_str().ok();
                let key = key.filter(|key| is_key(key));
                Some(
                    key.ok_or_else(|| {
                        Problem::invalid(
                            "the header `Idempotency-Key` must have 1 to 200 visible ASCII characters, without spaces",
                        )
                    })?
                    .to_owned(),
                )
            }
        };
        Ok(Once { key, method: parts.method.clone(), uri: parts.uri.clone() })
    }
}

/// Checks whether a text can be an idempotency key.
pub(crate) fn is_key(text: &str) -> bool {
    (1..=200).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Takes a key. Returns the answer, if the same request was answered under it before.
pub(crate) async fn taken(work: &mut UnitOfWork, key: &str, request: CardHash) -> Result<Option<Value>, Problem> {
    match idempotency::take(work, key, request, KEPT).await? {
        Key::New => Ok(None),
        Key::Answered(answer) => Ok(Some(answer)),
        Key::Mismatch => {
            let said = "this idempotency key was used for another request: use a new key for a new request";
            Err(Problem::conflict("idempotency_mismatch", said))
        }
    }
}

impl Once {
    /// Refuses an idempotency key, for a request whose answer cannot be repeated.
    pub(crate) fn refuse(&self, why: &str) -> Result<(), Problem> {
        if self.key.is_some() { Err(Problem::invalid(format!("`Idempotency-Key`: {why}"))) } else { Ok(()) }
    }

    /// Does the write, or returns the answer that it got before.
    pub(crate) async fn write<T, F>(
        self,
        api: &Api,
        caller: &Caller,
        body: &[u8],
        act: F,
    ) -> Result<Json<Value>, Problem>
    where
        T: Serialize,
        F: for<'w> FnOnce(&'w mut UnitOfWork) -> BoxFuture<'w, Result<T, Problem>>,
    {
        let mut work = caller.begin(api).await?;
        let key = self.key.as_ref().map(|key| caller.once(key));
        if let Some(key) = &key
            && let Some(answer) = taken(&mut work, key, self.hash(body)).await?
        {
            return Ok(Json(answer));
        }
        let answer = serde_json::to_value(act(&mut work).await?).map_err(Problem::internal)?;
        if let Some(key) = &key {
            idempotency::answer(&mut work, key, &answer).await?;
        }
        work.commit().await?;
        Ok(Json(answer))
    }

    fn hash(&self, body: &[u8]) -> CardHash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.method.as_str().as_bytes()).update(b" ").update(self.asked().as_bytes()).update(b"\n");
        CardHash::from_bytes(*hasher.update(body).finalize().as_bytes())
    }

    /// Returns what was asked for. How long the caller waits for it is no part of that.
    fn asked(&self) -> String {
        let query = self.uri.query().unwrap_or_default();
        let rest: Vec<&str> = query.split('&').filter(|part| !part.starts_with("wait_seconds=")).collect();
        format!("{}?{}", self.uri.path(), rest.join("&"))
    }
}

//! The pages of the console, for browsers.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, LOCATION,
            REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
    routing::get,
};
use waybill_console::{File, POLICY};

use crate::{Api, compress, kept, missing, problem::Problem};

/// Returns the routes of the console: `/`, which leads there, and all paths below `/ui/` that the API does not take.
pub(crate) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/", get(front))
        .route("/ui", get(|| async { moved() }))
        .route("/ui/", get(|headers: HeaderMap| async move { answer("", &headers) }))
        .route(
            "/ui/{*path}",
            get(|Path(path): Path<String>, headers: HeaderMap| async move { answer(&path, &headers) }),
        )
}

/// A browser that opens `/` is led to the console.
async fn front(headers: HeaderMap) -> Response {
    let accepted = headers.get(ACCEPT).and_then(|accepted| accepted.to_str().ok()).unwrap_or_default();
    if accepted.contains("text/html") { moved() } else { missing().into_response() }
}

fn moved() -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, "/ui/"), (CACHE_CONTROL, "no-cache"), (VARY, "accept")]).into_response()
}

fn answer(path: &str, asked: &HeaderMap) -> Response {
    let Some(file) = File::at(path) else {
        let said = "this path does not exist: /ui/ is the console, /openapi.json lists all paths of the API\n";
        let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
        return (StatusCode::NOT_FOUND, headers, said).into_response();
    };
    let tag = kept::tag(file.hash);
    let mut answer = match kept::has(asked, &tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => content(file, asked),
    };
    let lasts = if file.is_lasting() { "public, max-age=31536000, immutable" } else { "no-cache" };
    let fixed: [(HeaderName, &'static str); 8] = [
        (CACHE_CONTROL, lasts),
        (VARY, "accept-encoding"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
    ];
    for (name, value) in fixed {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    // Weak: it names the bytes before they were compressed.
    if let Ok(tag) = HeaderValue::from_str(&format!("W/{tag}")) {
        answer.headers_mut().insert(ETAG, tag);
    }
    answer
}

fn content(file: &'static File, asked: &HeaderMap) -> Response {
    if compress::accepts_gzip(asked) {
        let headers = [(CONTENT_TYPE, file.content_type), (CONTENT_ENCODING, "gzip")];
        return (headers, Body::from(file.gzip)).into_response();
    }
    match file.plain() {
        Ok(plain) => ([(CONTENT_TYPE, file.content_type)], plain).into_response(),
        Err(error) => Problem::internal(error).into_response(),
    }
}

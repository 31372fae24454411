//! Answers in gzip, for clients that accept it: large JSON. Event streams are sent as they happen, and artifacts may be compressed already.

use std::{collections::HashMap, io::Write};

use axum::{
    body::{Body, Bytes, HttpBody, to_bytes},
    extract::Request,
    http::{
        HeaderMap, HeaderValue,
        header::{
            ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, VARY,
        },
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use flate2::{Compression, write::GzEncoder};
use waybill_kernel::offload;

use crate::problem::Problem;

/// Less is not worth it.
const LEAST_BYTES: u64 = 1_024;

/// Compresses the answer of a request, if it is large JSON and the client accepts gzip.
pub(crate) async fn compress(request: Request, next: Next) -> Response {
    let accepts = accepts_gzip(request.headers());
    let mut response = next.run(request).await;
    if is_stream(&response) {
        // nginx would collect events, and send many at a time.
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    }
    if !is_worth_it(&response) {
        return response;
    }
    response.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
    if !accepts {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let written = match to_bytes(body, usize::MAX).await {
        Ok(bytes) => offload::run(bytes.len(), move || gzip(&bytes)).await.map_err(Problem::internal),
        Err(error) => Err(Problem::internal(error)),
    };
    let written = match written {
        Ok(written) => written,
        Err(problem) => return problem.into_response(),
    };
    for name in [CONTENT_LENGTH, ACCEPT_RANGES] {
        parts.headers.remove(name);
    }
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    // The tag names the bytes before they were compressed.
    let tag = parts.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).filter(|tag| tag.starts_with('"'));
    if let Some(weak) = tag.and_then(|tag| HeaderValue::from_str(&format!("W/{tag}")).ok()) {
        parts.headers.insert(ETAG, weak);
    }
    Response::from_parts(parts, Body::from(written))
}

fn is_stream(response: &Response) -> bool {
    response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

fn gzip(bytes: &Bytes) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Checks whether an answer is JSON, whole, and large. Only an answer whose length is known has been written completely.
fn is_worth_it(response: &Response) -> bool {
    let headers = response.headers();
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_plain = !headers.contains_key(CONTENT_ENCODING) && !headers.contains_key(CONTENT_RANGE);
    let is_large = response.body().size_hint().exact().is_some_and(|size| size >= LEAST_BYTES);
    kind.starts_with("application/json") && is_plain && is_large
}

pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|list| list.to_str().ok());
    let codings = lists.flat_map(|list| list.split(',')).filter_map(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().to_ascii_lowercase();
        let weight = weight.strip_prefix("q=").map_or(Some(1.0), |weight| weight.parse::<f32>().ok())?;
        Some((name.trim().to_ascii_lowercase(), weight > 0.0))
    });
    let codings: HashMap<String, bool> = codings.collect();
    // `*` stands for what is not named.
    *codings.get("gzip").or_else(|| codings.get("*")).unwrap_or(&false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_clients_that_accept_gzip_get_it() {
        let asks = |said: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, said.parse().unwrap());
            accepts_gzip(&headers)
        };
        for yes in ["gzip", "br, gzip", "deflate, GZIP;q=0.5", "*"] {
            assert!(asks(yes), "{yes}");
        }
        for no in ["", "br", "gzip;q=0", "gzip;Q=0, *", "identity", "gzip;q=x"] {
            assert!(!asks(no), "{no}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}

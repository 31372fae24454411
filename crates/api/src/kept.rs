//! Answers that a client may keep: each has an `ETag`, and a client that sends it back in `If-None-Match` gets 304 instead of the same answer.

use std::{fmt, ops::Range};

use axum::{
    http::{
        HeaderMap, StatusCode,
        header::{self, HeaderName},
    },
    response::{IntoResponse, Response},
};
use serde::Serialize;
use waybill_kernel::offload;

use crate::problem::Problem;

/// A client may keep the answer, but asks each time whether it still holds: content that was erased does not live on in a browser.
const PRIVATE: &str = "private, no-cache";

/// Writes a value as JSON, which may be large, and names the answer by the hash of its bytes.
pub(crate) async fn json<T>(asked: &HeaderMap, value: T, n_bytes: usize) -> Result<Response, Problem>
where
    T: Serialize + Send + 'static,
{
    let write = move || serde_json::to_vec(&value).map(|written| (tag(blake3::hash(&written).to_hex()), written));
    let (tag, written) = offload::run(n_bytes, write).await.map_err(Problem::internal)?;
    Ok(if has(asked, &tag) { unchanged(&tag) } else { (headers(&tag), written).into_response() })
}

/// Answers with bytes that are JSON already, named by their hash: all of them, or the part that `Range` asks for.
pub(crate) fn bytes(asked: &HeaderMap, hash: impl fmt::Display, bytes: Vec<u8>) -> Result<Response, Problem> {
    let tag = tag(hash);
    if has(asked, &tag) {
        return Ok(unchanged(&tag));
    }
    // A part of something else would not fit what the client has.
    let fits = asked.get(header::IF_RANGE).is_none_or(|has| has.as_bytes() == tag.as_bytes());
    let wanted = asked.get(header::RANGE).filter(|_| fits).and_then(|range| range.to_str().ok());
    let wanted = wanted.filter(|range| range.starts_with("bytes="));
    let ranges = [(header::ACCEPT_RANGES, "bytes"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let Some(wanted) = wanted else { return Ok((headers(&tag), ranges, bytes).into_response()) };
    let (part, said) = range(wanted, bytes.len() as u64)?;
    let part = bytes[part.start as usize..part.end as usize].to_vec();
    let said = [(header::CONTENT_RANGE, said)];
    Ok((StatusCode::PARTIAL_CONTENT, headers(&tag), ranges, said, part).into_response())
}

/// Returns the tag of an answer.
pub(crate) fn tag(hash: impl fmt::Display) -> String {
    format!("\"{hash}\"")
}

fn headers(tag: &str) -> [(HeaderName, String); 3] {
    [
        (header::ETAG, tag.to_owned()),
        (header::CACHE_CONTROL, PRIVATE.to_owned()),
        (header::CONTENT_TYPE, "application/json".to_owned()),
    ]
}

fn unchanged(tag: &str) -> Response {
    let headers = [(header::ETAG, tag.to_owned()), (header::CACHE_CONTROL, PRIVATE.to_owned())];
    (StatusCode::NOT_MODIFIED, headers).into_response()
}

/// Checks whether the client says that it has this answer. A proxy that compresses may have marked the tag as weak.
pub(crate) fn has(asked: &HeaderMap, tag: &str) -> bool {
    let lists = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
    let mut tags = lists.flat_map(|list| list.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// Reads a range of one part: `bytes=0-99`, `bytes=100-`, `bytes=-100`. Returns the part, and the header that names it.
pub(crate) fn range(asked: &str, size: u64) -> Result<(Range<u64>, String), Problem> {
    let part = asked.strip_prefix("bytes=").and_then(|part| part.split_once('-'));
    let number = |text: &str| text.parse::<u64>().ok();
    let part = match part {
        Some(("", last)) => number(last).map(|last| size.saturating_sub(last)..size),
        Some((first, "")) => number(first).map(|first| first..size),
        Some((first, last)) => {
            number(first).zip(number(last)).map(|(first, last)| first..last.saturating_add(1).min(size))
        }
        None => None,
    };
    let part = part.filter(|part| part.start < part.end).ok_or_else(|| {
        let said = format!(
            "the header `Range` is not valid for content of {size} bytes: ask for one part, such as `bytes=0-99`"
        );
        Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "range", said)
    })?;
    let said = format!("bytes {}-{}/{size}", part.start, part.end - 1);
    Ok((part, said))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_client_that_has_the_answer_is_known_by_its_tags() {
        let asks = |said: &str| {
            let mut asked = HeaderMap::new();
            asked.insert(header::IF_NONE_MATCH, said.parse().unwrap());
            has(&asked, "\"a1\"")
        };
        for known in ["\"a1\"", "W/\"a1\"", "\"x\", \"a1\"", "*"] {
            assert!(asks(known), "{known}");
        }
        for other in ["\"a2\"", "a1", ""] {
            assert!(!asks(other), "{other}");
        }
        assert!(!has(&HeaderMap::new(), "\"a1\""));
    }

    #[test]
    fn a_part_is_one_range() {
        let read = |asked: &str| range(asked, 10).map(|(part, said)| (part.start, part.end, said)).ok();
        assert_eq!(read("bytes=0-3"), Some((0, 4, "bytes 0-3/10".to_owned())));
        assert_eq!(read("bytes=8-"), Some((8, 10, "bytes 8-9/10".to_owned())));
        assert_eq!(read("bytes=-3"), Some((7, 10, "bytes 7-9/10".to_owned())));
        for wrong in ["bytes=10-", "bytes=3-2", "bytes=0-1,3-4", "lines=0-1", "bytes=-0"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}

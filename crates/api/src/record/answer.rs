//! The answer to a recorded call, as far as it can be read.

use std::{io::Read as _, iter::once, time::Duration};

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use waybill_context::{record::withhold, wire::Adapter};
use waybill_core::json;
use waybill_worker::model::{self, Read};

use super::{credentials::Credentials, pieces::WITHHELD, queue::Call, source::Secret};

/// A body may become this many bytes when it is unpacked.
const MOST_UNPACKED: u64 = 64 << 20;
/// How many texts of its calls are looked at.
const MOST_ASKS: usize = 64;
/// The most pieces of an answer whose times are kept.
const MOST_PIECES: usize = 4_000;

/// The content of a `wire.answer` card.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) content_type: Option<String>,
    /// Absent if it came in a compression that is not read, or if what the project withholds stands in several pieces of a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<String>,
    /// Whether the answer ended before it was whole: the client or the provider went away, or there was no room for the rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_cut: bool,
    /// In how many places the body had a credential of the request, or what the project withholds. It is not stored.
    #[serde(default, skip_serializing_if = "is_zero")]
    n_withheld: usize,
    /// Of a stream of which nothing is withheld: for each piece, after how many milliseconds it came and how many bytes it had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) pieces: Vec<(u64, usize)>,
}

impl Kept {
    /// Takes out what the project withholds. What a stream says comes in many pieces, none of which need show it: then all of it is taken out, also if
    /// it cannot be read.
    pub(super) fn withhold(&mut self, secret: &Secret, said: Option<&[String]>) {
        if !secret.has_patterns() {
            return;
        }
        let Some(body) = self.body.take() else { return };
        let find = secret.withheld();
        let is_stream = self.content_type.as_deref().is_some_and(|kind| kind.starts_with("text/event-stream"));
        if is_stream && said.is_none_or(|said| said.iter().any(|text| !find(text).is_empty())) {
            self.n_withheld += 1;
            self.pieces.clear();
            return;
        }
        let mut n = 0;
        let mut shown = |text: &str| {
            let (text, n_here) =
                withhold::replaced(text, &[&find], WITHHELD).unwrap_or_else(|| secret.withheld_from(text));
            n += n_here;
            text
        };
        let of_line = |line: &str| match line.strip_prefix("data:") {
            Some(data) => format!("data:{}", shown(data)),
            None => shown(line),
        };
        self.body = Some(if is_stream { body.split_inclusive('\n').map(of_line).collect() } else { shown(&body) });
        self.n_withheld += n;
        if n > 0 {
            self.pieces.clear();
        }
    }
}

/// What is known of an answer.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) read: Read,
    pub(super) n_calls: usize,
    pub(super) cache_miss: Option<Value>,
    /// What the next request says of it, if it goes on from here: the id of its first call, or its text.
    pub(super) mark: Option<String>,
    /// The provider's id of it.
    pub(super) id: Option<String>,
    /// What its calls say: texts of their arguments, in which a sub-agent may find its task.
    pub(super) asks: Vec<String>,
    /// Of a stream: what it says in all its pieces together. None: it cannot be read.
    pub(super) joined: Option<Vec<String>>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Reads an answer.
pub(super) fn read(call: &Call) -> (Kept, Said) {
    let Call { answer: pieces, is_whole, .. } = call;
    let bytes = pieces.iter().map(|(_, piece)| piece.as_ref()).collect::<Vec<&[u8]>>().concat();
    let encoding = call.answer_encoding.as_deref();
    let is_plain = encoding.is_none_or(|encoding| encoding.eq_ignore_ascii_case("identity"));
    let body = text(encoding, bytes, *is_whole);
    let is_stream = call.answer_type.as_deref().is_some_and(|kind| kind.starts_with("text/event-stream"));
    let mut said = match &body {
        Some(body) if (200..300).contains(&call.status) => understood(call.adapter, body, is_stream),
        _ => Said::default(),
    };
    let (body, n_withheld) = body.map(|body| call.credentials.withheld_from(body)).unzip();
    let n_withheld = n_withheld.unwrap_or_default();
    said.cache_miss = said.cache_miss.and_then(|why| without(&call.credentials, &why));
    let has_times = is_stream && is_plain && n_withheld == 0 && pieces.len() <= MOST_PIECES;
    let time = |(at, piece): &(Duration, Bytes)| (u64::try_from(at.as_millis()).unwrap_or(u64::MAX), piece.len());
    let kept = Kept {
        status: call.status,
        content_type: call.answer_type.clone(),
        body: body.map(|body| json::text(&body).into_owned()),
        is_cut: !is_whole,
        n_withheld,
        pieces: if has_times { pieces.iter().map(time).collect() } else { Vec::new() },
    };
    (kept, said)
}

/// Reads the answer of a log: the body as JSON, or an event stream.
pub(super) fn imported(adapter: Adapter, status: u16, body: Option<String>, credentials: &Credentials) -> (Kept, Said) {
    let is_stream = body.as_deref().is_some_and(|body| !body.trim_start().starts_with(['{', '[']));
    let mut said = match &body {
        Some(body) if (200..300).contains(&status) => understood(adapter, body, is_stream),
        _ => Said::default(),
    };
    said.cache_miss = said.cache_miss.and_then(|why| without(credentials, &why));
    let is_cut = body.is_none();
    let (body, n_withheld) = body.map(|body| credentials.withheld_from(body)).unzip();
    let content_type = Some(if is_stream { "text/event-stream" } else { "application/json" }.to_owned());
    let body = body.map(|body| json::text(&body).into_owned());
    let n_withheld = n_withheld.unwrap_or_default();
    (Kept { status, content_type, body, is_cut, n_withheld, pieces: Vec::new() }, said)
}

/// Returns a value without credentials, if it is one then.
fn without(credentials: &Credentials, value: &Value) -> Option<Value> {
    serde_json::from_str(&credentials.withheld_from(value.to_string()).0).ok()
}

/// Returns the text of a body. Of one that was cut, that is what came whole.
fn text(encoding: Option<&str>, bytes: Vec<u8>, is_whole: bool) -> Option<String> {
    let (plain, is_all) = unpack(encoding, bytes)?;
    match String::from_utf8(plain) {
        Ok(text) if is_all || !is_whole => Some(text),
        Err(error) if !is_whole => {
            let n = error.utf8_error().valid_up_to();
            let mut plain = error.into_bytes();
            plain.truncate(n);
            String::from_utf8(plain).ok()
        }
        _ => None,
    }
}

/// Reads tokens and calls, if the answer is whole enough for that.
fn understood(adapter: Adapter, body: &str, is_stream: bool) -> Said {
    let raw = match is_stream {
        true => serde_json::to_string(body).ok().and_then(|text| RawValue::from_string(text).ok()),
        false => serde_json::from_str::<Box<RawValue>>(body).ok(),
    };
    let Some(answer) = raw.and_then(|raw| model::read(adapter, &raw).ok()) else { return Said::default() };
    let n_calls = answer.calls.len();
    let joined = is_stream.then(|| {
        let reasoning = answer.reasoning.iter().flat_map(|thought| [Some(&thought.text), thought.verbatim.as_ref()]);
        let calls = answer.calls.iter().map(|call| &call.arguments);
        once(&answer.text).chain(reasoning.flatten()).chain(calls).cloned().collect()
    });
    let mut asks = Vec::new();
    for call in &answer.calls {
        texts(&serde_json::from_str(&call.arguments).unwrap_or_default(), &mut asks);
    }
    let first = answer.calls.into_iter().next().map(|call| call.provider_call_id);
    let mark = first.filter(|id| !id.is_empty()).or(Some(answer.text));
    Said { read: answer.read, n_calls, cache_miss: answer.cache_miss, mark, id: answer.message_id, asks, joined }
}

/// Collects the texts of arguments.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) if found.len() < MOST_ASKS => found.push(text.clone()),
        Value::Array(all) => all.iter().for_each(|value| texts(value, found)),
        Value::Object(all) => all.values().for_each(|value| texts(value, found)),
        _ => {}
    }
}

/// Unpacks a body.
pub(super) fn unpacked(encoding: Option<&str>, bytes: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    match unpack(encoding, bytes) {
        Some((plain, true)) => Ok(plain),
        _ => Err("unreadable"),
    }
}

/// Unpacks as much of a body as can be, and says whether that is all. None means a compression that is not read.
fn unpack(encoding: Option<&str>, bytes: Vec<u8>) -> Option<(Vec<u8>, bool)> {
    let mut plain = Vec::new();
    let packed = bytes.as_slice();
    let read = match encoding.map(str::to_ascii_lowercase).as_deref() {
        None | Some("" | "identity") => return Some((bytes, true)),
        Some("gzip" | "x-gzip") => {
            flate2::read::MultiGzDecoder::new(packed).take(MOST_UNPACKED).read_to_end(&mut plain)
        }
        Some("deflate") => flate2::read::ZlibDecoder::new(packed).take(MOST_UNPACKED).read_to_end(&mut plain),
        Some("zstd") => zstd::Decoder::new(packed).ok()?.take(MOST_UNPACKED).read_to_end(&mut plain),
        Some(_) => return None,
    };
    let is_all = read.is_ok_and(|n| (n as u64) < MOST_UNPACKED);
    Some((plain, is_all))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// RC-2: of an answer that was cut, what came is kept.
    #[test]
    fn a_cut_answer_is_read_as_far_as_it_came() {
        let said = "Zürich is warmest. ".repeat(5_000);
        let mut packing = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packing.write_all(said.as_bytes()).unwrap();
        let packed = packing.finish().unwrap();
        let zstd = zstd::encode_all(said.as_bytes(), 1).unwrap();
        for (encoding, packed) in [(Some("gzip"), packed), (Some("zstd"), zstd), (None, said.clone().into_bytes())] {
            assert_eq!(text(encoding, packed.clone(), true).as_ref(), Some(&said), "{encoding:?}");
            let cut = packed[..packed.len() - 3].to_vec();
            let kept = text(encoding, cut.clone(), false).unwrap();
            assert!(said.starts_with(&kept), "{encoding:?}");
            if encoding.is_some() {
                assert_eq!(text(encoding, cut, true), None, "{encoding:?}");
            }
        }
        assert_eq!(text(None, "Zü".as_bytes()[..2].to_vec(), false).as_deref(), Some("Z"));
        assert_eq!(text(None, "Zü".as_bytes()[..2].to_vec(), true), None);
        assert_eq!(text(Some("br"), b"x".to_vec(), false), None);
    }

    #[test]
    fn a_small_body_cannot_become_a_huge_one() {
        let zeros = vec![b'0'; 65 << 20];
        let packed = zstd::encode_all(zeros.as_slice(), 1).unwrap();
        assert!(packed.len() < 1 << 20);
        assert_eq!(unpacked(Some("zstd"), packed), Err("unreadable"));
    }
}

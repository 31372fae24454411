//! Long data inside a request, such as an image: it is named and counted, and never shown.

use super::raw::{self, Object};

/// From this length on, a string that looks like base64 is not shown.
const LONG: usize = 256;

/// Names an image.
pub(super) fn image(part: &Object<'_>) -> String {
    // Anthropic's source; chat's object with a URL; Responses' URL.
    if let Some(source) = part.object("source") {
        let (media_type, data) = (source.text("media_type"), source.get("data"));
        return label("image", [media_type.as_deref(), None], data.map(n_bytes));
    }
    let url = part.object("image_url").map_or_else(|| part.get("image_url"), |image| image.get("url"));
    let (media_type, n_bytes) = url.and_then(data_url).unzip();
    label("image", [media_type.as_deref(), None], n_bytes)
}

/// Names a recording.
pub(super) fn audio(part: &Object<'_>) -> String {
    let audio = part.object("input_audio").unwrap_or_default();
    label("audio", [audio.text("format").as_deref(), None], audio.get("data").map(n_bytes))
}

/// Names a file.
pub(super) fn file(part: &Object<'_>) -> String {
    let inner = part.object("file");
    let file = inner.as_ref().unwrap_or(part);
    let name = file.text("filename").or_else(|| file.text("file_id"));
    let data = file.get("file_data");
    label("file", [name.as_deref(), None], data.map(|data| data_url(data).map_or_else(|| n_bytes(data), |(_, n)| n)))
}

/// Writes what stands for data, such as `[image image/png, 2048 bytes]`.
pub(super) fn label(kind: &str, names: [Option<&str>; 2], n_bytes: Option<usize>) -> String {
    let mut text = format!("[{kind}");
    for name in names.into_iter().flatten() {
        text = text + " " + name;
    }
    if let Some(n_bytes) = n_bytes {
        text = format!("{text}, {n_bytes} bytes");
    }
    text + "]"
}

/// Returns how many bytes a string of base64 stands for.
pub(super) fn n_bytes(raw: &str) -> usize {
    n_decoded(&raw::text(raw).unwrap_or_default())
}

fn n_decoded(base64: &str) -> usize {
    base64.bytes().filter(|byte| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte)).count() * 3 / 4
}

/// Reads a `data:` URL with base64: its media type, and how many bytes it stands for.
fn data_url(raw: &str) -> Option<(String, usize)> {
    let url = raw::text(raw)?;
    let (media_type, data) = url.strip_prefix("data:")?.split_once(',')?;
    Some((media_type.split(';').next().unwrap_or_default().to_owned(), n_decoded(data)))
}

/// Returns the JSON as it is, but with a count in place of each long string that is data.
pub(super) fn without_data(raw: &str) -> String {
    let mut shown = String::new();
    let mut at = 0;
    raw::walk(raw, None, |_, range| {
        let value = &raw[range.clone()];
        let instead = match Some(value).filter(|value| value.len() >= LONG).and_then(data_url) {
            Some((media_type, n_bytes)) => format!("\"[{media_type}, {n_bytes} bytes]\""),
            None if value.len() >= LONG && is_base64(value) => format!("\"[{} bytes]\"", n_bytes(value)),
            None => return,
        };
        shown.push_str(&raw[at..range.start]);
        shown.push_str(&instead);
        at = range.end;
    });
    shown.push_str(&raw[at..]);
    shown
}

/// Checks whether a string can be base64, with or without line breaks.
fn is_base64(raw: &str) -> bool {
    raw.starts_with('"') && raw.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"\"\\+/=-_".contains(&byte))
}

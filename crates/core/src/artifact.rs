//! Bulk content by reference: paths within a project, and the hash of what is stored there (HO-1, HO-2).
//!
//! A path is a name in an index, never one of a file system: content is stored under the id of its upload. A path must still be valid on any file
//! system, since people write artifacts to folders.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, schema::Type};

/// Which version of each path a card refers to.
pub type Pins = BTreeMap<ArtifactPath, ArtifactHash>;

const MOST_BYTES: usize = 1024;
const MOST_BYTES_OF_A_PART: usize = 255;

/// A path within a project, such as `scenarios/leave/samples/BS_MT_001.json`: relative, in Unicode's composed form (NFC).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(try_from = "String")]
pub struct ArtifactPath(String);

/// The text is not a path of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path:?} is not an artifact path: {why}; write one such as `reports/2026/summary.json`")]
pub struct MalformedPath {
    path: String,
    why: &'static str,
}

impl ArtifactPath {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns its last part.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Returns a path below this one.
    pub fn join(&self, below: &str) -> Result<ArtifactPath, MalformedPath> {
        // Checked by itself first: with the folder before it, a wrong path could look valid.
        let below: ArtifactPath = below.parse()?;
        format!("{}/{below}", self.0).parse()
    }

    /// Checks whether it is below a folder, or is the folder.
    pub fn is_within(&self, folder: &ArtifactPath) -> bool {
        self.0.strip_prefix(folder.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Characters that look like a slash or backslash but do not normalise to one.
const LIKE_SLASHES: [char; 12] = [
    '\u{2044}', '\u{2215}', '\u{2216}', '\u{2571}', '\u{2572}', '\u{27CB}', '\u{27CD}', '\u{29F5}', '\u{29F8}',
    '\u{29F9}', '\u{2CC6}', '\u{3033}',
];

/// Checks whether a character is invisible, or changes how the others are drawn.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{AD}' | '\u{34F}' | '\u{600}'..='\u{605}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}' | '\u{180B}'..='\u{180F}'
        | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{3164}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}'
        | '\u{FFA0}' | '\u{FFF0}'..='\u{FFFF}' | '\u{E000}'..='\u{F8FF}' | '\u{E0000}'..='\u{10FFFF}')
}

/// Returns why a text is not a path. The text is in composed form already.
fn wrong(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("it is empty");
    }
    if path.len() > MOST_BYTES {
        return Some("it is longer than 1,024 bytes");
    }
    if path.starts_with('/') {
        return Some("it begins with `/`");
    }
    if path.chars().any(|c| c.is_control() || is_unseen(c)) {
        return Some("it contains an invisible character");
    }
    if path.contains('\\') {
        return Some("parts are separated by `/`, not by a backslash");
    }
    // One character at a time, as Unicode normalisation (NFKC) folds them: `／` is a slash, `：` a colon.
    let folds_into =
        |c: char, what: [char; 3]| std::iter::once(c).nfkc().any(|folded| folded != c && what.contains(&folded));
    if path.chars().any(|c| LIKE_SLASHES.contains(&c) || folds_into(c, ['/', '\\', ':'])) {
        return Some("it contains a character that looks like `/`, `:` or a backslash");
    }
    let lower = path.to_ascii_lowercase();
    if ["%2e", "%2f", "%5c", "%00", "%25"].iter().any(|coded| lower.contains(coded)) {
        return Some("it contains percent-encoding, such as `%2f`");
    }
    path.split('/').find_map(wrong_part)
}

fn wrong_part(part: &str) -> Option<&'static str> {
    let folded: String = part.nfkc().collect();
    if part.is_empty() {
        return Some("it has an empty part, as in `a//b` or `a/`");
    }
    if part.len() > MOST_BYTES_OF_A_PART {
        return Some("a part of it is longer than 255 bytes");
    }
    if folded
        .trim()
        .chars()
        .all(|c| matches!(c, '.' | '\u{2024}' | '\u{FE52}' | '\u{3002}' | '\u{B7}' | '\u{2022}' | '\u{2219}'))
    {
        return Some("a part of it consists only of dots");
    }
    if part.starts_with(char::is_whitespace) || part.ends_with(char::is_whitespace) || part.ends_with('.') {
        return Some("a part of it begins or ends with a space, or ends with a dot");
    }
    if part.starts_with('~') {
        return Some("a part of it begins with `~`");
    }
    let mut first = folded.chars();
    let is_drive = first.next().is_some_and(char::is_alphabetic) && first.next() == Some(':');
    if is_drive || folded.ends_with(':') {
        return Some("a part of it looks like a drive or a URL scheme, such as `c:`");
    }
    None
}

impl FromStr for ArtifactPath {
    type Err = MalformedPath;

    fn from_str(text: &str) -> Result<ArtifactPath, MalformedPath> {
        let path: String = text.nfc().collect();
        match wrong(&path) {
            None => Ok(ArtifactPath(path)),
            Some(why) => Err(MalformedPath { path: text.chars().take(200).collect(), why }),
        }
    }
}

impl TryFrom<String> for ArtifactPath {
    type Error = MalformedPath;

    fn try_from(text: String) -> Result<ArtifactPath, MalformedPath> {
        text.parse()
    }
}

impl fmt::Display for ArtifactPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl utoipa::PartialSchema for ArtifactPath {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(MOST_BYTES)).into()
    }
}

impl utoipa::ToSchema for ArtifactPath {}

/// BLAKE3 over all bytes of an artifact.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(try_from = "String", into = "String")]
pub struct ArtifactHash([u8; 32]);

/// The text is not a hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the hash of an artifact: expected 64 hex digits")]
pub struct MalformedHash(String);

impl ArtifactHash {
    pub fn of(bytes: &[u8]) -> ArtifactHash {
        ArtifactHash(*blake3::hash(bytes).as_bytes())
    }

    pub const fn from_bytes(bytes: [u8; 32]) -> ArtifactHash {
        ArtifactHash(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for ArtifactHash {
    type Err = MalformedHash;

    fn from_str(text: &str) -> Result<ArtifactHash, MalformedHash> {
        let malformed = || MalformedHash(text.chars().take(80).collect());
        let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 64 || !text.bytes().all(is_hex) {
            return Err(malformed());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| malformed())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| malformed())?;
        }
        Ok(ArtifactHash(bytes))
    }
}

impl TryFrom<String> for ArtifactHash {
    type Error = MalformedHash;

    fn try_from(text: String) -> Result<ArtifactHash, MalformedHash> {
        text.parse()
    }
}

impl From<ArtifactHash> for String {
    fn from(hash: ArtifactHash) -> String {
        hash.to_string()
    }
}

impl fmt::Display for ArtifactHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ArtifactHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl utoipa::PartialSchema for ArtifactHash {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9a-f]{64}$")).into()
    }
}

impl utoipa::ToSchema for ArtifactHash {}

/// What is known of stored content without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub hash: ArtifactHash,
    pub size: u64,
    /// `None` means that it is not text.
    pub n_tokens: Option<i64>,
    /// The count is an estimate from its beginning: there is too much to count.
    pub is_estimate: bool,
    /// The hashes of its pieces of [`PIECE`] bytes, one after the other: any part can be verified without the rest.
    pub pieces: Vec<u8>,
}

/// Bytes that are verified at a time.
pub const PIECE: u64 = 1 << 20;

impl Stored {
    /// Describes small content, as it will be once it is stored.
    pub fn of(bytes: &[u8]) -> Stored {
        let text = std::str::from_utf8(bytes).ok();
        Stored {
            hash: ArtifactHash::of(bytes),
            size: bytes.len() as u64,
            n_tokens: text.map(|text| crate::tokens::count(text).get().into()),
            is_estimate: false,
            pieces: bytes.chunks(PIECE as usize).flat_map(|piece| *blake3::hash(piece).as_bytes()).collect(),
        }
    }
}

/// Returns the media type that follows from a path.
pub fn media_type_of(path: &ArtifactPath, is_text: bool) -> &'static str {
    let name = path.name();
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default();
    match extension.as_str() {
        "json" => "application/json",
        "jsonl" | "ndjson" => "application/x-ndjson",
        "yaml" | "yml" => "application/yaml",
        "toml" => "application/toml",
        "xml" => "application/xml",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "svg" => "image/svg+xml",
        "gz" => "application/gzip",
        "zip" => "application/zip",
        "parquet" => "application/vnd.apache.parquet",
        _ if is_text => "text/plain",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &str) -> &'static str {
        path.parse::<ArtifactPath>().unwrap_err().why
    }

    #[test]
    fn what_people_write_is_a_path() {
        for path in [
            "a",
            "a/b.json",
            "scenarios/请假/BusinessRules.md",
            "run 1/out (2).txt",
            "2026-01-04T10:30:00.json",
            "a/.hidden",
            "v1.2/x..y",
            "naïve.txt",
            "…and more.md",
        ] {
            assert!(path.parse::<ArtifactPath>().is_ok(), "{path}");
        }
        let composed: ArtifactPath = "nai\u{308}ve".parse().unwrap();
        assert_eq!(composed, "na\u{ef}ve".parse().unwrap(), "one name, however it was typed");
    }

    #[test]
    fn what_could_lead_elsewhere_is_not() {
        assert_eq!(refused("/etc/passwd"), "it begins with `/`");
        assert_eq!(refused("a/../b"), "a part of it consists only of dots");
        assert_eq!(refused("a/‥/b"), "a part of it consists only of dots");
        assert_eq!(refused("a/．．/b"), "a part of it consists only of dots");
        assert_eq!(refused("a／b"), "it contains a character that looks like `/`, `:` or a backslash");
        assert_eq!(refused("C:/x"), "a part of it looks like a drive or a URL scheme, such as `c:`");
        assert_eq!(refused("Ｃ：/x"), "it contains a character that looks like `/`, `:` or a backslash");
        assert_eq!(refused("a\\b"), "parts are separated by `/`, not by a backslash");
        assert_eq!(refused("a\0b"), "it contains an invisible character");
        assert_eq!(refused("a//b"), "it has an empty part, as in `a//b` or `a/`");
        assert_eq!(refused("a/"), "it has an empty part, as in `a//b` or `a/`");
        assert_eq!(refused("%2e%2e/a"), "it contains percent-encoding, such as `%2f`");
        let folder: ArtifactPath = "out/iteration_1".parse().unwrap();
        assert!(folder.join("../../secret").is_err() && folder.join("/etc").is_err());
        assert_eq!(folder.join("samples/a.json").unwrap().as_str(), "out/iteration_1/samples/a.json");
        assert!(!"out/iteration_12".parse::<ArtifactPath>().unwrap().is_within(&folder));
    }

    #[test]
    fn a_hash_reads_back() {
        let hash = ArtifactHash::of(b"x");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert!("xyz".parse::<ArtifactHash>().is_err() && "Ü".repeat(32).parse::<ArtifactHash>().is_err());
    }
}

//! Whose conversations a call may belong to, and what the recorder must know of its project.

use std::{
    cell::Cell,
    collections::HashMap,
    fmt,
    iter::once,
    ops::Range,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use regex::Regex;
use serde_json::json;
use waybill_context::wire::Adapter;
use waybill_core::id::{AgentId, KeyId, ProjectId};
use waybill_kernel::{project, resource, work::Kernel};
use waybill_tool::check;

use super::{lock, pieces::WITHHELD, queue::Call, write::Error};

/// Whose conversations a call may belong to: none crosses keys, sessions, agents, providers or formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source(String);

impl Source {
    pub(super) fn new(
        key_id: KeyId,
        session: Option<&str>,
        agent: Option<&str>,
        provider: &str,
        adapter: Adapter,
    ) -> Source {
        // By the id of the key: another key may get the same name later.
        Source(json!([key_id, stored(session), stored(agent), provider, adapter]).to_string())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the same id for all turns of an agent, as far as it is known which agent it is.
    pub(super) fn agent_id(&self, project_id: ProjectId) -> AgentId {
        let named = format!("recorded\n{project_id}\n{}", self.0);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::hash(named.as_bytes()).as_bytes()[..16]);
        AgentId::from_bytes(bytes)
    }
}

/// Whose a call is, and where it goes.
#[derive(Clone, Debug)]
pub(super) struct Whose {
    pub(super) source: Source,
    /// In which conversations a sub-agent of it may be.
    pub(super) kin: String,
    /// The path and the query, without the credentials in it.
    pub(super) address: String,
}

impl Whose {
    pub(super) fn new(source: Source, key_id: KeyId, session: Option<&str>, address: String) -> Whose {
        Whose { source, kin: json!([key_id, stored(session)]).to_string(), address }
    }

    #[cfg(test)]
    pub(super) fn named(name: &str) -> Whose {
        Whose { source: Source(name.to_owned()), kin: "ours".to_owned(), address: String::new() }
    }
}

impl Call {
    /// Returns whose it is, and where it goes.
    pub(super) fn whose(&self) -> Whose {
        let source = self.source_as(self.agent.as_deref());
        Whose::new(source, self.sender.key_id, self.session.as_deref(), self.address.clone())
    }

    /// Returns the source of another agent of the same key and session.
    pub(super) fn source_as(&self, agent: Option<&str>) -> Source {
        Source::new(self.sender.key_id, self.session.as_deref(), agent, &self.provider, self.adapter)
    }
}

fn stored(said: Option<&str>) -> String {
    waybill_core::json::text(said.unwrap_or_default()).into_owned()
}

/// How long what a project withholds may have changed without the recorder's knowledge.
const FRESH: Duration = Duration::from_secs(5);

/// What the recorder knows of the projects whose calls it records.
#[derive(Debug, Default)]
pub(super) struct Projects(Mutex<HashMap<ProjectId, (Secret, Instant)>>);

/// The key that hides what a project's calls say, and what is withheld from them.
#[derive(Clone)]
pub(super) struct Secret {
    pub(super) key: [u8; 32],
    patterns: Arc<[Regex]>,
}

impl fmt::Debug for Secret {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("patterns", &self.patterns).finish_non_exhaustive()
    }
}

impl Secret {
    #[cfg(test)]
    pub(super) fn of_test() -> Secret {
        Secret { key: [1; 32], patterns: Arc::default() }
    }

    #[cfg(test)]
    fn with(patterns: &[&str]) -> Secret {
        Secret { patterns: patterns.iter().map(|pattern| Regex::new(pattern).unwrap()).collect(), ..Secret::of_test() }
    }

    /// Returns where a text has what the project withholds. A text may itself be JSON, as arguments of tools are: it is looked at with its escapes
    /// and without.
    pub(super) fn withheld(&self) -> impl Fn(&str) -> Vec<Range<usize>> {
        let patterns = self.patterns.clone();
        let left = Cell::new(MOST_AGAIN);
        move |text| {
            let plain = text.contains('\\').then(|| without_escapes(text));
            let texts = || once(text).chain(plain.as_deref());
            patterns.iter().flat_map(|pattern| texts().flat_map(|text| find(pattern, text, &left))).collect()
        }
    }

    /// Replaces in a text what the project withholds. Returns in how many places.
    pub(super) fn withheld_from(&self, text: &str) -> (String, usize) {
        let mut found = self.withheld()(text);
        found.sort_by_key(|range| range.start);
        let (mut kept, mut at, mut n) = (String::with_capacity(text.len()), 0, 0);
        for range in found {
            if range.start >= at {
                kept.push_str(&text[at..range.start]);
                kept.push_str(WITHHELD);
                n += 1;
            }
            at = at.max(range.end);
        }
        kept.push_str(&text[at..]);
        (kept, n)
    }

    /// Returns a short text without what the project withholds.
    pub(super) fn shown(&self, text: &str) -> String {
        self.withheld_from(text).0
    }

    pub(super) fn has_patterns(&self) -> bool {
        !self.patterns.is_empty()
    }
}

/// In how large a part of a text a pattern is looked for at once, and how much of it two parts have in common.
const PART: usize = 16 << 10;
const COMMON: usize = 4 << 10;
/// How many bytes of one body may be looked at again because something was found before them. An odd pattern looks at all that follows each time.
const MOST_AGAIN: usize = 32 << 20;

/// Finds a pattern in a text, in bounded time: what is longer than a part, or beyond what may be looked at, is withheld to the end of the text.
fn find(pattern: &Regex, text: &str, left: &Cell<usize>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut at, mut end) = (0, text.ceil_char_boundary(PART));
    while at <= text.len() {
        match pattern.find_at(&text[..end], at) {
            Some(one) if one.end() == end && end < text.len() || left.get() < end - one.end() => {
                found.push(one.start()..text.len());
                break;
            }
            Some(one) => {
                left.set(left.get() - (end - one.end()));
                found.push(one.range());
                at = one.end().max(text.ceil_char_boundary(one.start() + 1));
            }
            None if end == text.len() => break,
            None => {
                at = at.max(text.floor_char_boundary(end.saturating_sub(COMMON)));
                end = text.ceil_char_boundary(at + PART);
            }
        }
    }
    found
}

/// Returns a text of the same length, in which the escapes of JSON are what they stand for, after a space.
fn without_escapes(text: &str) -> String {
    let (mut plain, mut is_escape) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        let (shown, begins) = match (is_escape, c) {
            (true, 'n' | 'r' | 't' | 'b' | 'f') => (' ', false),
            (false, '\\') => (' ', true),
            (_, c) => (c, false),
        };
        plain.push(shown);
        is_escape = begins;
    }
    plain
}

impl Projects {
    pub(super) async fn secret(&self, kernel: &Kernel, project_id: ProjectId) -> Result<Secret, Error> {
        if let Some((secret, read_at)) = lock(&self.0).get(&project_id)
            && read_at.elapsed() < FRESH
        {
            return Ok(secret.clone());
        }
        let read_at = Instant::now();
        let mut work = kernel.begin(project_id).await?;
        let key = project::seal_key(&mut work).await?;
        let settings = resource::settings(&mut work).await?;
        let patterns = check::withheld(&settings).map_err(Error::Settings)?.into();
        let secret = Secret { key, patterns };
        lock(&self.0).insert(project_id, (secret.clone(), read_at));
        Ok(secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RC-3: what a pattern finds is found in a text of any length and form, and an odd pattern costs no more than a bounded time.
    #[test]
    fn patterns_are_found_in_bounded_time() {
        let secret = Secret::with(&[r"\b\d{3}-\d{2}-\d{4}\b", "-----BEGIN KEY-----\n[a-z\n]+-----END KEY-----"]);
        for (text, shown) in [
            ("It is 111-22-3333.", "It is withheld."),
            ("SSN:\n111-22-3333", "SSN:\nwithheld"),
            (r#"{"a":"SSN:\n111-22-3333"}"#, r#"{"a":"SSN:\nwithheld"}"#),
            ("-----BEGIN KEY-----\nabc\ndef\n-----END KEY-----", "withheld"),
            ("0111-22-3333", "0111-22-3333"),
        ] {
            assert_eq!(secret.shown(text), shown);
        }
        for n in [PART - 14, PART - 11, PART - 5, PART, PART + COMMON, 3 * PART - 7] {
            let text = format!("{} 111-22-3333 {}", "é".repeat(n / 2), "x".repeat(2 * PART));
            assert!(!secret.shown(&text).contains("111"), "{n}");
        }
        let begun = Instant::now();
        let odd = Secret::with(&[".*[^A-Z]|[A-Z]"]);
        let shown = odd.shown(&"A".repeat(1 << 20));
        assert!(!shown.contains('A') && begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }
}

//! Credentials in request bodies. They are replaced before anything is stored.
//!
//! A credential becomes `withheld:` and 32 hex digits, a keyed hash of its text. So the same credential gives the same replacement, and pieces
//! of two requests are still equal. Without the key, no one can check a guess. Everything around it stays byte for byte.
//!
//! Not here: credentials in the headers of the request, which are not recorded; texts that a person or a tool wrote. For those a project can
//! give patterns.

use std::{borrow::Cow, ops::Range};

use serde_json::value::RawValue;

use super::raw::{self, Object, Step};
use crate::wire::Adapter;

/// Finds what a project wants to be withheld: ranges of the text of one string value. It gets the text without JSON's escapes.
pub type Pattern<'a> = dyn Fn(&str) -> Vec<Range<usize>> + 'a;

/// Where a credential can be. `*` stands for any index or key.
struct Rule {
    path: &'static [&'static str],
    what: What,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    /// Every string and number at this path or below it.
    All,
    /// A URL: its user and password, and the parameters of its query that are credentials by name.
    Url,
}

const fn all(path: &'static [&'static str]) -> Rule {
    Rule { path, what: What::All }
}

const fn url(path: &'static [&'static str]) -> Rule {
    Rule { path, what: What::Url }
}

/// Bodies of every format.
const EVERY: &[Rule] = &[
    // The OAuth access token for an MCP server or a connector, in OpenAI's tools.
    all(&["tools", "*", "authorization"]),
    // The same in Anthropic's words. Compatible servers accept it in tools too.
    all(&["tools", "*", "authorization_token"]),
    // The headers that the provider sends to the MCP server. Any of them can be a key.
    all(&["tools", "*", "headers"]),
    // The address of the MCP server.
    url(&["tools", "*", "server_url"]),
    url(&["tools", "*", "url"]),
    // The access token for an MCP server, in Anthropic's list of servers.
    all(&["mcp_servers", "*", "authorization_token"]),
    all(&["mcp_servers", "*", "authorization"]),
    all(&["mcp_servers", "*", "headers"]),
    // The address of the MCP server.
    url(&["mcp_servers", "*", "url"]),
    url(&["mcp_servers", "*", "server_url"]),
    // A gateway such as LiteLLM lets its clients send the provider's key in the body.
    all(&["api_key"]),
    all(&["extra_headers"]),
    all(&["aws_access_key_id"]),
    all(&["aws_secret_access_key"]),
    all(&["aws_session_token"]),
    all(&["azure_ad_token"]),
    all(&["vertex_credentials"]),
];

/// Chat completions only: Azure OpenAI "on your data", which reads from the customer's search index or database.
const CHAT: &[Rule] = &[
    // The key of the index, or of whichever way to log in was chosen.
    all(&["data_sources", "*", "parameters", "authentication", "key"]),
    all(&["data_sources", "*", "parameters", "authentication", "api_key"]),
    all(&["data_sources", "*", "parameters", "authentication", "encoded_api_key"]),
    all(&["data_sources", "*", "parameters", "authentication", "access_token"]),
    all(&["data_sources", "*", "parameters", "authentication", "connection_string"]),
    all(&["data_sources", "*", "parameters", "authentication", "password"]),
    // The key of the service that computes embeddings for it.
    all(&["data_sources", "*", "parameters", "embedding_dependency", "authentication", "key"]),
    all(&["data_sources", "*", "parameters", "embedding_dependency", "authentication", "api_key"]),
    all(&["data_sources", "*", "parameters", "embedding_dependency", "authentication", "access_token"]),
    // The first versions of that API.
    all(&["dataSources", "*", "parameters", "key"]),
    all(&["dataSources", "*", "parameters", "embeddingKey"]),
    all(&["dataSources", "*", "parameters", "connectionString"]),
];

/// OpenAI's Responses only.
const RESPONSES: &[Rule] = &[
    // Secrets that a container of the code interpreter adds to requests to a domain.
    all(&["tools", "*", "container", "network_policy", "domain_secrets", "*", "value"]),
    // The same for a container of the shell.
    all(&["tools", "*", "environment", "network_policy", "domain_secrets", "*", "value"]),
    // Items that bring tools along: `additional_tools` and `tool_search_output`.
    all(&["input", "*", "tools", "*", "authorization"]),
    all(&["input", "*", "tools", "*", "headers"]),
    url(&["input", "*", "tools", "*", "server_url"]),
    all(&["input", "*", "tools", "*", "container", "network_policy", "domain_secrets", "*", "value"]),
    all(&["input", "*", "tools", "*", "environment", "network_policy", "domain_secrets", "*", "value"]),
];

/// A parameter of a URL is a credential if its name ends like this, such as `key`, `api_key` and `X-Amz-Signature`.
const NAME_ENDS: [&str; 8] = ["key", "token", "secret", "sig", "signature", "password", "passwd", "pwd"];
/// Or if this is its name. `code` is the key of an Azure function.
const NAMES: [&str; 6] = ["auth", "authorization", "credential", "jwt", "code", "pass"];

fn rules(adapter: Adapter) -> impl Iterator<Item = &'static Rule> {
    let own = match adapter {
        Adapter::OpenaiChat => CHAT,
        Adapter::AnthropicMessages => &[],
        Adapter::OpenaiResponses => RESPONSES,
    };
    EVERY.iter().chain(own)
}

/// A URL that is longer is withheld whole: it could hold any number of parameters.
const LONGEST_URL: usize = 64 << 10;
/// The most paths that are named.
const MOST_PATHS: usize = 256;

/// What a body has to hide.
#[derive(Default)]
pub(super) struct Withheld {
    /// Places in the body, in its order, and what stands there instead.
    swaps: Vec<(Range<usize>, String)>,
    /// The path of each string or number that was changed. If there are very many, `…` stands for the rest.
    pub(super) paths: Vec<String>,
}

impl Withheld {
    /// Returns a part of the body, with every credential in it replaced. The part holds whole values.
    pub(super) fn text(&self, body: &str, part: Range<usize>) -> String {
        let first = self.swaps.partition_point(|(range, _)| range.start < part.start);
        let mut text = String::with_capacity(part.len());
        let mut at = part.start;
        for (range, instead) in self.swaps[first..].iter().take_while(|(range, _)| range.start < part.end) {
            text.push_str(&body[at..range.start]);
            text.push_str(instead);
            at = range.end;
        }
        text.push_str(&body[at..part.end]);
        text
    }
}

/// Returns the credentials of a body, so that they can be found elsewhere. A body that cannot be read has none.
pub fn credentials(adapter: Adapter, body: &[u8]) -> Vec<String> {
    let Some(body) = str::from_utf8(body).ok() else { return Vec::new() };
    let Some(object) = Object::of(body.trim()) else { return Vec::new() };
    let found = find(adapter, body, &object, &[0; 32], &[]).unwrap_or_default();
    found.swaps.into_iter().map(|(range, _)| raw::decode(&body[range]).into_owned()).collect()
}

/// Replaces what patterns find in the strings and numbers of a JSON text, and says in how many places. None means that this is not JSON.
pub fn replaced(text: &str, patterns: &[&Pattern<'_>], instead: &str) -> Option<(String, usize)> {
    let value = serde_json::from_str::<&RawValue>(text).ok()?.get();
    let start = raw::place(text, value).start;
    let mut withheld = Withheld::default();
    raw::walk(value, None, |_, range| {
        let found = start + range.start;
        let value = &value[range];
        match value.strip_prefix('"').and_then(|value| value.strip_suffix('"')) {
            Some(inner) => {
                let place = |(range, _): (Range<usize>, String)| found + 1 + range.start..found + 1 + range.end;
                let swaps = spans(inner, false, patterns).into_iter().map(place);
                withheld.swaps.extend(swaps.map(|range| (range, instead.to_owned())));
            }
            None if patterns.iter().any(|pattern| !pattern(value).is_empty()) => {
                withheld.swaps.push((found..found + value.len(), format!("\"{instead}\"")));
            }
            None => {}
        }
    });
    Some((withheld.text(text, 0..text.len()), withheld.swaps.len()))
}

/// Finds the credentials of a body. None means that there are too many.
pub(super) fn find(
    adapter: Adapter,
    body: &str,
    object: &Object<'_>,
    key: &[u8; 32],
    patterns: &[&Pattern<'_>],
) -> Option<Withheld> {
    let mut withheld = Withheld::default();
    for (name, value) in &object.0 {
        let rules: Vec<&Rule> = rules(adapter).filter(|rule| raw::is_key(name, rule.path[0])).collect();
        if rules.is_empty() && patterns.is_empty() {
            continue;
        }
        let start = raw::place(body, value).start;
        raw::walk(value, Some(Step::Key(name)), |path, range| {
            let n_before = withheld.swaps.len();
            if n_before > raw::MOST {
                return;
            }
            let has = |what| rules.iter().any(|rule| rule.what == what && fits(rule, path));
            let found = start + range.start;
            let value = &value[range];
            match value.strip_prefix('"').and_then(|value| value.strip_suffix('"')) {
                Some("") => {}
                Some(inner) if has(What::All) || has(What::Url) && inner.len() > LONGEST_URL => {
                    withheld.swaps.push((found + 1..found + 1 + inner.len(), replacement(key, &hashed(inner))));
                }
                Some(inner) => {
                    let swaps = spans(inner, has(What::Url), patterns).into_iter();
                    let place = |range: Range<usize>| found + 1 + range.start..found + 1 + range.end;
                    withheld.swaps.extend(swaps.map(|(range, text)| (place(range), replacement(key, &text))));
                }
                None if has(What::All) || patterns.iter().any(|pattern| !pattern(value).is_empty()) => {
                    withheld.swaps.push((found..found + value.len(), format!("\"{}\"", replacement(key, value))));
                }
                None => {}
            }
            if withheld.swaps.len() > n_before && withheld.paths.len() <= MOST_PATHS {
                let is_rest = withheld.paths.len() == MOST_PATHS;
                withheld.paths.push(if is_rest { "…".to_owned() } else { spell(path) });
            }
        });
    }
    Some(withheld).filter(|withheld| withheld.swaps.len() <= raw::MOST)
}

fn replacement(key: &[u8; 32], credential: &str) -> String {
    format!("withheld:{}", &blake3::keyed_hash(key, credential.as_bytes()).to_hex()[..32])
}

/// Returns the text of a credential. If it cannot be decoded, that is the raw text.
fn hashed(inner: &str) -> Cow<'_, str> {
    if !inner.contains('\\') {
        return Cow::Borrowed(inner);
    }
    let mut is_whole = true;
    let text = raw::unescape(inner, |c, _, _| is_whole &= c.is_some());
    if is_whole { Cow::Owned(text) } else { Cow::Borrowed(inner) }
}

fn fits(rule: &Rule, path: &[Step<'_>]) -> bool {
    let is_step = |(name, step): (&&str, &Step<'_>)| match step {
        _ if *name == "*" => true,
        Step::Key(key) => raw::is_key(key, name),
        Step::Index(_) => false,
    };
    path.len() >= rule.path.len() && rule.path.iter().zip(path).all(is_step)
}

/// Returns the parts of one string to withhold: where they are between its quotes, and their text.
fn spans(inner: &str, is_url: bool, patterns: &[&Pattern<'_>]) -> Vec<(Range<usize>, String)> {
    if !is_url && patterns.is_empty() {
        return Vec::new();
    }
    // Where decoded and raw text go on after each escape. Patterns see decoded text, so that `\b` and `\s` mean what they say.
    let mut marks = vec![(0, 0)];
    let text = match inner.contains('\\') {
        true => Cow::Owned(raw::unescape(inner, |_, decoded, raw| marks.push((decoded, raw)))),
        false => Cow::Borrowed(inner),
    };
    let mut found: Vec<Range<usize>> = patterns.iter().flat_map(|pattern| pattern(&text)).collect();
    if is_url {
        found.extend(in_url(&text));
    }
    let raw_place = |at: usize| {
        let (decoded, raw) = marks[marks.partition_point(|(decoded, _)| *decoded <= at) - 1];
        raw + (at - decoded)
    };
    let place = |range: Range<usize>| (raw_place(range.start)..raw_place(range.end), text[range].to_owned());
    apart(&text, found).into_iter().map(place).collect()
}

/// Puts ranges in order: whole characters, none empty, none over another.
fn apart(text: &str, mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.retain(|range| range.start < range.end && range.start < text.len());
    for range in &mut ranges {
        *range = text.floor_char_boundary(range.start)..text.ceil_char_boundary(range.end);
    }
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let is_over = next.start < last.end;
        if is_over {
            last.end = last.end.max(next.end);
        }
        is_over
    });
    ranges
}

/// Finds the credentials in a URL.
fn in_url(url: &str) -> Vec<Range<usize>> {
    // Slashes in a path or a query are not those before the host. A browser takes any number of them.
    let first = url.find(['/', '\\', '?', '#']).unwrap_or(url.len());
    let after = url[first..].trim_start_matches(['/', '\\']);
    let host = if url[..first].ends_with(':') || first == 0 { url.len() - after.len() } else { 0 };
    let host_end = url[host..].find(['/', '\\', '?', '#']).map_or(url.len(), |at| host + at);
    let user = url[host..host_end].rfind('@').map(|at| host..host + at);
    let query = url.find(['?', '#']).unwrap_or(url.len());
    let values = url[query..].split(['?', '#', '&', ';']).filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        is_credential(name).then(|| raw::place(url, value))
    });
    user.into_iter().chain(values).collect()
}

/// Checks whether a header or a parameter of this name is a credential.
pub fn is_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.contains(&name.as_str()) || NAME_ENDS.iter().any(|end| name.ends_with(end))
}

/// Writes a path for people, such as `tools[2].headers.Authorization`. A very long one is cut off.
fn spell(path: &[Step<'_>]) -> String {
    const N_STEPS: usize = 16;
    const N_CHARS: usize = 64;
    let mut spelled = String::new();
    for step in path.iter().take(N_STEPS) {
        let key = match step {
            Step::Index(index) => {
                spelled.push_str(&format!("[{index}]"));
                continue;
            }
            Step::Key(key) => raw::text(key).unwrap_or_default(),
        };
        let short: String = key.chars().take(N_CHARS).collect();
        let more = if short.len() < key.len() { "…" } else { "" };
        if !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-')) {
            spelled.push_str(if spelled.is_empty() { "" } else { "." });
            spelled.push_str(&short);
            spelled.push_str(more);
        } else {
            spelled.push_str(&format!("[{:?}]", short + more));
        }
    }
    if path.len() > N_STEPS {
        spelled.push('…');
    }
    spelled
}

#[cfg(test)]
mod tests;

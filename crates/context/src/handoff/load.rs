//! Reads a part of a long text: its beginning, its end, some lines, what a JSONPath selects, the key turns of a conversation (HO-8).

use serde::Deserialize;
use serde_json::Value;
use serde_json_path::JsonPath;
use waybill_core::tokens::{self, Tokens};

/// Which part.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Whole,
    /// Whole lines from the beginning.
    Head,
    /// Whole lines up to the end.
    Tail,
    /// These lines, counted from 1, both included.
    Lines(u64, u64),
    /// What an RFC 9535 path selects from JSON.
    JsonPath(String),
    /// Of a conversation: its beginning and end, errors, tool calls, and the turns around a text.
    KeyTurns {
        around: Option<String>,
    },
}

/// A part that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub text: String,
    /// Which part it is, in words.
    pub what: String,
    pub n_tokens: Tokens,
}

impl Loaded {
    fn new(text: String, what: impl Into<String>) -> Loaded {
        Loaded { n_tokens: tokens::count(&text), text, what: what.into() }
    }
}

/// Reads a part of a text. `most` limits the tokens if the part has no size of its own.
pub fn load(text: &str, part: &Part, most: Tokens) -> Result<Loaded, String> {
    match part {
        Part::Whole => Ok(Loaded::new(text.to_owned(), "the whole of it")),
        Part::Head => Ok(head(text, most)),
        Part::Tail => Ok(tail(text, most)),
        Part::Lines(from, to) => lines(text, *from, *to),
        Part::JsonPath(path) => json_path(text, path),
        Part::KeyTurns { around } => key_turns(text, around.as_deref(), most),
    }
}

/// Takes whole lines while there is room; the first line is taken even if it is too long.
fn taken<'t>(lines: impl Iterator<Item = &'t str>, most: Tokens) -> Vec<&'t str> {
    let mut room = most.get();
    let mut taken = Vec::new();
    for line in lines {
        let n = tokens::count(line).get();
        if n > room && !taken.is_empty() {
            break;
        }
        taken.push(line);
        room -= n;
        if room <= 0 {
            break;
        }
    }
    taken
}

/// Cuts a text to at most `most` tokens.
fn cut(text: &str, most: Tokens, from_the_end: bool) -> &str {
    let mut part = text;
    loop {
        let n = tokens::count(part);
        if n <= most {
            return part;
        }
        let keep = (part.len() as u64 * u64::from(most.get().unsigned_abs()) / u64::from(n.get().unsigned_abs()).max(1))
            as usize;
        let keep = keep.min(part.len() - 1);
        part = if from_the_end {
            let mut at = part.len() - keep;
            while !part.is_char_boundary(at) {
                at += 1;
            }
            &part[at..]
        } else {
            let mut at = keep;
            while !part.is_char_boundary(at) {
                at -= 1;
            }
            &part[..at]
        };
    }
}

fn head(text: &str, most: Tokens) -> Loaded {
    let n_lines = text.lines().count();
    let taken = taken(text.split_inclusive('\n'), most);
    let n = taken.len();
    let part: String = taken.concat();
    let part = cut(&part, most, false);
    let what =
        if part.len() == text.len() { "the whole of it".to_owned() } else { format!("lines 1–{n} of {n_lines}") };
    Loaded::new(part.to_owned(), what)
}

fn tail(text: &str, most: Tokens) -> Loaded {
    let n_lines = text.lines().count();
    let mut taken = taken(text.split_inclusive('\n').rev(), most);
    taken.reverse();
    let n = taken.len();
    let part: String = taken.concat();
    let part = cut(&part, most, true);
    let what = if part.len() == text.len() {
        "the whole of it".to_owned()
    } else {
        format!("the last {n} of {n_lines} lines")
    };
    Loaded::new(part.to_owned(), what)
}

fn lines(text: &str, from: u64, to: u64) -> Result<Loaded, String> {
    let n_lines = text.lines().count() as u64;
    if from == 0 || to < from {
        return Err("`from_line` must be at least 1, and `to_line` must not be before it".to_owned());
    }
    if from > n_lines {
        return Err(format!("it has only {n_lines} lines"));
    }
    let to = to.min(n_lines);
    let (skip, take) =
        (usize::try_from(from - 1).unwrap_or(usize::MAX), usize::try_from(to - from + 1).unwrap_or(usize::MAX));
    let part: String = text.split_inclusive('\n').skip(skip).take(take).collect();
    Ok(Loaded::new(part, format!("lines {from}–{to} of {n_lines}")))
}

fn json_path(text: &str, path: &str) -> Result<Loaded, String> {
    let wanted = JsonPath::parse(path)
        .map_err(|error| format!("`{path}` is not a JSONPath such as `$.layer1_problems[*].title`: {error}"))?;
    let value: Value = serde_json::from_str(text).map_err(|error| format!("it is not valid JSON: {error}"))?;
    let found = wanted.query(&value).all();
    let n = found.len();
    let text: Vec<String> = found.into_iter().map(ToString::to_string).collect();
    Ok(Loaded::new(text.join("\n"), format!("{n} values at `{path}`, one per line")))
}

/// Finds the turns of a conversation: a JSON list, a list under a common name, or one turn per line.
fn turns(text: &str) -> Result<Vec<Value>, String> {
    const NAMES: [&str; 5] = ["conversation_history", "messages", "turns", "conversation", "history"];
    fn find(value: Value, depth: u8) -> Option<Vec<Value>> {
        match value {
            Value::Array(items) if items.iter().any(Value::is_object) => Some(items),
            Value::Object(mut fields) => {
                if let Some(Value::Array(items)) = NAMES.iter().find_map(|name| fields.remove(*name)) {
                    return Some(items);
                }
                if depth == 0 {
                    return None;
                }
                fields.into_iter().filter(|(_, field)| field.is_object()).find_map(|(_, field)| find(field, depth - 1))
            }
            _ => None,
        }
    }
    let whole = serde_json::from_str::<Value>(text);
    let found = match whole {
        Ok(value) => find(value, 1),
        Err(_) => {
            text.lines().filter(|line| !line.trim().is_empty()).map(|line| serde_json::from_str(line).ok()).collect()
        }
    };
    found.filter(|turns| !turns.is_empty()).ok_or_else(|| {
        format!(
            "it is not a conversation: expected a list of turns, alone or under one of {}, or one turn per line",
            NAMES.join(", ")
        )
    })
}

fn went_wrong(turn: &Value) -> bool {
    let says = |key: &str| turn.get(key).and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
    let status = says("status");
    turn.get("error").is_some_and(|error| !error.is_null() && error != false)
        || turn.get("is_error").is_some_and(|is| is == true)
        || ["error", "failed", "failure", "timeout"].contains(&status.as_str())
        || says("role") == "tool" && ["error", "failed", "exception"].iter().any(|word| says("content").contains(word))
}

fn calls_tools(turn: &Value) -> bool {
    let is_some = |key: &str| match turn.get(key) {
        Some(Value::Array(items)) => !items.is_empty(),
        Some(value) => !value.is_null(),
        None => false,
    };
    is_some("tool_calls") || is_some("tool_name") || turn.get("role").is_some_and(|role| role == "tool")
}

/// Selects whole turns, the most important first: those around a text, the first and last ones, errors, tool calls.
fn key_turns(text: &str, around: Option<&str>, most: Tokens) -> Result<Loaded, String> {
    let turns = turns(text)?;
    let written: Vec<String> = turns.iter().enumerate().map(|(n, turn)| format!("#{} {turn}\n", n + 1)).collect();
    let last = turns.len() - 1;
    let matching: Vec<usize> = match around.map(str::to_lowercase) {
        None => Vec::new(),
        Some(wanted) => {
            let found = written.iter().enumerate().filter(|(_, text)| text.to_lowercase().contains(&wanted));
            found.flat_map(|(n, _)| [n, n.saturating_sub(1), (n + 1).min(last)]).collect()
        }
    };
    if around.is_some() && matching.is_empty() {
        return Err(format!("none of the {} turns contains {:?}", turns.len(), around.unwrap_or_default()));
    }
    let having = |is: fn(&Value) -> bool| turns.iter().enumerate().filter(move |(_, turn)| is(turn)).map(|(n, _)| n);
    let ends = [0, last, 1.min(last), last.saturating_sub(1)];
    let wanted = matching.into_iter().chain(ends).chain(having(went_wrong)).chain(having(calls_tools));
    let mut room = most.get();
    let mut kept = std::collections::BTreeSet::new();
    for n in wanted {
        let n_tokens = tokens::count(&written[n]).get();
        // At least one is kept: a turn is never cut.
        if kept.contains(&n) || n_tokens > room && !kept.is_empty() {
            continue;
        }
        room -= n_tokens;
        kept.insert(n);
    }
    let mut part = String::new();
    let mut next = 0;
    for n in kept.iter().copied().chain([turns.len()]) {
        if n > next {
            part.push_str(&format!("… {} turns left out …\n", n - next));
        }
        if let Some(turn) = written.get(n) {
            part.push_str(turn);
        }
        next = n + 1;
    }
    Ok(Loaded::new(part, format!("{} key turns of {}", kept.len(), turns.len())))
}

/// Finds a text, ignoring case: the line, counted from 1, and the text around it.
pub fn search(text: &str, wanted: &str, most: usize) -> Vec<(usize, String)> {
    let wanted = wanted.to_lowercase();
    let found = text.lines().enumerate().filter_map(|(n, line)| {
        let at = line.to_lowercase().find(&wanted)?;
        Some((n + 1, around(line, at)))
    });
    found.take(most).collect()
}

/// Returns at most 200 characters of a line, around the place.
fn around(line: &str, at: usize) -> String {
    let before = line.char_indices().take_while(|(n, _)| *n < at).count();
    let skip = before.saturating_sub(80);
    let mut part: String = line.chars().skip(skip).take(200).collect();
    if skip > 0 {
        part.insert(0, '…');
    }
    part
}

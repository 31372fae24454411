//! Finds defects of a model request or a transcript from any program: those that providers answer with an error, and those that they
//! silently bill for.
//!
//! Reads requests in the format of OpenAI, chat and responses, and of Anthropic, and bare lists of messages or items, as JSON or as one
//! JSON value per line. Lines that are requests are taken as calls that follow each other: breaks of their prompt cache are found too.

use std::{borrow::Cow, collections::HashMap, fmt};

use serde::Serialize;
use serde_json::Value;

/// The kinds of defects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = LintRule)]
pub enum Rule {
    /// A tool result that answers no call of the assistant message before it.
    OrphanedResult,
    /// A tool call that is not answered before the conversation continues.
    CallWithoutResult,
    /// The same user message twice, as after a resume that replayed it.
    DoubledInput,
    /// An empty message.
    EmptyContent,
    /// System text after the conversation has begun.
    SystemInTheMiddle,
    /// Two messages of one role in a row, or an assistant message first, if the provider requires alternating roles.
    BrokenAlternation,
    /// A request that does not continue where the one before it ended: the prompt cache misses from here.
    CacheBreak,
}

impl Rule {
    pub const ALL: [Rule; 7] = [
        Rule::OrphanedResult,
        Rule::CallWithoutResult,
        Rule::DoubledInput,
        Rule::EmptyContent,
        Rule::SystemInTheMiddle,
        Rule::BrokenAlternation,
        Rule::CacheBreak,
    ];
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = serde_json::to_value(self).expect("a word");
        f.write_str(name.as_str().expect("a word"))
    }
}

/// One defect, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub rule: Rule,
    /// The number of the request in the file, from 1.
    pub request: usize,
    /// The number of the message in the request, from 1; 0 means the tool list, or system text that is not a message.
    pub message: usize,
    /// What was found, and what to do.
    pub what: String,
}

/// The text is neither a request nor a transcript.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("the file is empty")]
    Empty,
    #[error("line {line} is not valid JSON")]
    Json { line: usize, source: serde_json::Error },
    #[error("line {line}: expected a request with `messages` or `input`, or messages with a `role`")]
    Shape { line: usize },
}

/// The API whose rules a conversation must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    OpenAi,
    Anthropic,
    /// OpenAI's items: what an assistant thinks, says and calls in one answer is several items.
    Responses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaker {
    System,
    User,
    Assistant,
    /// Results in messages of their own, as in OpenAI's format.
    Tool,
}

/// One message of any format.
#[derive(Clone, Debug)]
struct Message {
    speaker: Speaker,
    text: String,
    /// Content that is neither text nor tools: an image, a document, thinking.
    other: bool,
    calls: Vec<String>,
    results: Vec<String>,
    raw: Value,
}

#[derive(Clone, Debug)]
struct Request {
    family: Family,
    /// What comes before the messages: separate system text, and tools.
    head: Value,
    messages: Vec<Message>,
}

/// Finds all defects of a file, in the order in which they occur.
pub fn lint(text: &str) -> Result<Vec<Finding>, Unreadable> {
    let requests = read(text)?;
    let mut findings = Vec::new();
    for (n, request) in requests.iter().enumerate() {
        findings.extend(of_request(request).into_iter().map(|(rule, message, what)| Finding {
            rule,
            request: n + 1,
            message,
            what,
        }));
    }
    for (n, pair) in requests.windows(2).enumerate() {
        if let Some((message, what)) = cache_break(&pair[0], &pair[1]) {
            findings.push(Finding { rule: Rule::CacheBreak, request: n + 2, message, what });
        }
    }
    findings.sort_by_key(|finding| (finding.request, finding.message, finding.rule));
    Ok(findings)
}

fn read(text: &str) -> Result<Vec<Request>, Unreadable> {
    if text.trim().is_empty() {
        return Err(Unreadable::Empty);
    }
    // One value, perhaps over many lines; otherwise one per line.
    let values: Vec<(usize, Value)> = match serde_json::from_str(text) {
        Ok(value) => vec![(1, value)],
        Err(_) => text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(n, line)| {
                let value = serde_json::from_str(line).map_err(|source| Unreadable::Json { line: n + 1, source });
                Ok((n + 1, value?))
            })
            .collect::<Result<_, Unreadable>>()?,
    };
    let mut requests = Vec::new();
    let mut loose = Vec::new();
    for (line, value) in values {
        match &value {
            Value::Object(_) if is_request(&value) => {
                requests.push(request(&value).ok_or(Unreadable::Shape { line })?);
            }
            Value::Object(object) if object.contains_key("role") || is_item(&value) => loose.push(value),
            Value::Array(list) if !list.is_empty() && list.iter().all(is_request) => {
                for item in list {
                    requests.push(request(item).ok_or(Unreadable::Shape { line })?);
                }
            }
            Value::Array(list) if !list.is_empty() => {
                let transcript = serde_json::json!({ "messages": list });
                requests.push(request(&transcript).ok_or(Unreadable::Shape { line })?);
            }
            _ => return Err(Unreadable::Shape { line }),
        }
    }
    if !loose.is_empty() {
        let transcript = serde_json::json!({ "messages": loose });
        requests.push(request(&transcript).ok_or(Unreadable::Shape { line: 1 })?);
    }
    Ok(requests)
}

/// Checks whether a value is a request. Some items have an `input` too, but they also have a `type`.
fn is_request(value: &Value) -> bool {
    value.get("messages").is_some() || value.get("input").is_some() && value.get("type").is_none()
}

/// Checks whether a value is an item without a role, as in OpenAI's responses.
fn is_item(value: &Value) -> bool {
    let kind = kind(value);
    let is_known = kind.ends_with("_call") || kind.ends_with("_call_output");
    value.get("role").is_none() && (is_known || matches!(kind, "reasoning" | "item_reference"))
}

fn request(value: &Value) -> Option<Request> {
    let list: Cow<'_, [Value]> = match value.get("messages").or(value.get("input"))? {
        Value::Array(list) => list.into(),
        Value::String(text) => vec![serde_json::json!({ "role": "user", "content": text })].into(),
        _ => return None,
    };
    let anthropic = value.get("system").is_some()
        || value.get("max_tokens").is_some()
            && value.get("model").and_then(Value::as_str).is_some_and(|m| m.starts_with("claude"))
        || list.iter().any(|message| blocks(message).any(|block| matches!(kind(block), "tool_use" | "tool_result")));
    let responses = value.get("messages").is_none() || list.iter().any(is_item);
    let family = match (responses, anthropic) {
        (true, _) => Family::Responses,
        (false, true) => Family::Anthropic,
        (false, false) => Family::OpenAi,
    };
    let messages = list.iter().map(message).collect::<Option<Vec<_>>>()?;
    let system = value.get("system").or(value.get("instructions"));
    let head = serde_json::json!([system, value.get("tools")]);
    Some(Request { family, head, messages })
}

fn blocks(message: &Value) -> impl Iterator<Item = &Value> {
    message.get("content").and_then(Value::as_array).into_iter().flatten()
}

fn kind(block: &Value) -> &str {
    block.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn message(value: &Value) -> Option<Message> {
    let role = value.get("role").and_then(Value::as_str);
    let speaker = match role {
        Some("system" | "developer") => Speaker::System,
        Some("user") => Speaker::User,
        Some("assistant") => Speaker::Assistant,
        Some("tool" | "function") => Speaker::Tool,
        None if is_item(value) && kind(value).ends_with("_output") => Speaker::Tool,
        None if is_item(value) => Speaker::Assistant,
        _ => return None,
    };
    let mut message = Message {
        speaker,
        text: String::new(),
        other: false,
        calls: Vec::new(),
        results: Vec::new(),
        raw: value.clone(),
    };
    let string = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(text) = value.get("content").and_then(Value::as_str) {
        message.text = text.to_owned();
    }
    for block in blocks(value) {
        match kind(block) {
            "text" | "input_text" | "output_text" => message.text.push_str(&string(block, "text")),
            "tool_use" => message.calls.push(string(block, "id")),
            "tool_result" => message.results.push(string(block, "tool_use_id")),
            _ => message.other = true,
        }
    }
    for call in value.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        message.calls.push(string(call, "id"));
    }
    match (role, speaker) {
        (Some(_), Speaker::Tool) => message.results.push(string(value, "tool_call_id")),
        (None, Speaker::Tool) => message.results.push(string(value, "call_id")),
        // Calls that the provider answers itself have no such id.
        (None, _) if value.get("call_id").is_some() => message.calls.push(string(value, "call_id")),
        (None, _) => message.other = true,
        _ => {}
    }
    // A refusal, an audio answer, reasoning: not text, but not empty either.
    message.other |= ["refusal", "audio", "function_call", "reasoning_content", "reasoning"]
        .iter()
        .any(|key| value.get(key).is_some_and(|value| !value.is_null()));
    Some(message)
}

fn of_request(request: &Request) -> Vec<(Rule, usize, String)> {
    let mut found = Vec::new();
    // The calls of the last assistant message that are still open, and where it was.
    let mut open: HashMap<&str, usize> = HashMap::new();
    let mut begun = false;
    let mut before: Option<&Message> = None;
    for (n, message) in request.messages.iter().enumerate() {
        let place = n + 1;
        for result in &message.results {
            if open.remove(result.as_str()).is_none() {
                let what = format!(
                    "a result for {result:?}, which the assistant message before it did not call: remove it, or put the call back"
                );
                found.push((Rule::OrphanedResult, place, what));
            }
        }
        // Results may come in several messages, and an answer in several items; anything else ends the round.
        let goes_on = request.family == Family::Responses && message.speaker == Speaker::Assistant;
        if message.results.is_empty() && message.speaker != Speaker::System && !goes_on {
            unanswered(&mut open, &mut found);
        }
        match message.speaker {
            Speaker::System if begun => {
                let what = "system text after the conversation has begun: move it to the front".to_owned();
                found.push((Rule::SystemInTheMiddle, place, what));
            }
            Speaker::System => {}
            _ => begun = true,
        }
        if message.text.trim().is_empty() && !message.other && message.calls.is_empty() && message.results.is_empty() {
            found.push((Rule::EmptyContent, place, "the message is empty: leave it out".to_owned()));
        }
        if request.family == Family::Anthropic && message.speaker != Speaker::System {
            let first = before.is_none() && message.speaker == Speaker::Assistant;
            let again = before.is_some_and(|before| before.speaker == message.speaker);
            if first || again {
                let what = if first { "an assistant message comes first" } else { "two messages of one role in a row" };
                found.push((
                    Rule::BrokenAlternation,
                    place,
                    format!("{what}: join them, or insert the missing message"),
                ));
            }
        }
        if message.speaker == Speaker::Assistant {
            open.extend(message.calls.iter().map(|call| (call.as_str(), place)));
        }
        if message.speaker != Speaker::System {
            before = Some(message);
        }
    }
    unanswered(&mut open, &mut found);
    found.extend(doubled(&request.messages));
    found
}

fn unanswered(open: &mut HashMap<&str, usize>, found: &mut Vec<(Rule, usize, String)>) {
    let mut left: Vec<(&str, usize)> = open.drain().collect();
    left.sort_unstable();
    for (call, place) in left {
        let what =
            format!("call {call:?} has no result before the conversation continues: answer it, or leave the call out");
        found.push((Rule::CallWithoutResult, place, what));
    }
}

/// Finds a user message that occurs twice with nothing between, or with the same answer after it both times. People do say "yes" twice, but
/// they do not get the same long answer twice.
fn doubled(messages: &[Message]) -> Vec<(Rule, usize, String)> {
    let spoken: Vec<(usize, &Message)> =
        messages.iter().enumerate().filter(|(_, message)| message.speaker != Speaker::System).collect();
    let mut found = Vec::new();
    for (n, (place, message)) in spoken.iter().enumerate() {
        let says = |other: &Message| {
            message.speaker == Speaker::User
                && other.speaker == Speaker::User
                && message.results.is_empty()
                && !message.text.trim().is_empty()
                && other.text == message.text
                && other.other == message.other
        };
        let after = |n: usize| spoken.get(n + 1).map(|(_, message)| &message.raw);
        let earlier = spoken[..n].iter().enumerate().rev().find(|(_, (_, other))| says(other));
        let Some((m, (first, _))) = earlier else { continue };
        if m + 1 == n || after(m).is_some() && after(m) == after(n) {
            let what = format!("the same user input as message {}: it was replayed", first + 1);
            found.push((Rule::DoubledInput, place + 1, what));
        }
    }
    found
}

/// Finds where a request differs from the one before it, although it repeats messages that come after that place. `None` means that no cached
/// message is paid again, or that it is another conversation.
fn cache_break(before: &Request, after: &Request) -> Option<(usize, String)> {
    let shared = before.messages.iter().zip(&after.messages).take_while(|(a, b)| a.raw == b.raw).count();
    if before.head != after.head {
        let same_talk = shared > 0;
        return same_talk
            .then(|| (0, "the tools or the system text changed: the prompt cache cannot be used at all".to_owned()));
    }
    let (was, is) = (before.messages.get(shared)?, after.messages.get(shared)?);
    let is_clock = was.text != is.text && without_numbers(&was.text) == without_numbers(&is.text);
    let headed = before.head.as_array().is_some_and(|parts| parts.iter().any(|part| !part.is_null()));
    // Nothing in common: two conversations that happen to be in one file.
    if shared == 0 && !headed && !is_clock {
        return None;
    }
    // The messages that are repeated, and would have cost a tenth from the cache.
    let again = &after.messages[shared + 1..];
    let lost = before.messages[shared + 1..].iter().filter(|old| again.iter().any(|new| new.raw == old.raw)).count();
    if lost == 0 {
        return None;
    }
    let place = shared + 1;
    let what = if is_clock {
        format!(
            "message {place} contains a time or a counter that changed: {lost} cached messages after it are paid again; move it after them"
        )
    } else {
        format!("message {place} differs from the request before: {lost} cached messages after it are paid again")
    };
    Some((place, what))
}

/// Replaces each run of digits by one sign, so that a clock, a date or a counter does not make texts differ.
fn without_numbers(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '0'..='9' if plain.ends_with('#') => {}
            '0'..='9' => plain.push('#'),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks `rule@message` of each finding.
    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let found: Vec<String> =
            lint(text).unwrap().iter().map(|f| format!("{}@{}.{}", f.rule, f.request, f.message)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_clean_conversation_has_no_findings() {
        check(r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"}]"#, &[]);
        check(
            r#"{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"weather?"},
                {"role":"assistant","content":null,"tool_calls":[{"id":"a"},{"id":"b"}]},
                {"role":"tool","tool_call_id":"b","content":"rain"},{"role":"tool","tool_call_id":"a","content":"wind"},
                {"role":"assistant","content":"wet"},{"role":"user","content":"yes"},{"role":"assistant","content":"ok"},
                {"role":"user","content":"yes"}]}"#,
            &[],
        );
        check(
            r#"{"model":"claude-x","max_tokens":9,"system":"be brief","messages":[{"role":"user","content":"weather?"},
                {"role":"assistant","content":[{"type":"text","text":"let me see"},{"type":"tool_use","id":"t1","name":"w","input":{}}]},
                {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"rain"}]}]}"#,
            &[],
        );
    }

    /// In this format, calls and reasoning are items of their own.
    #[test]
    fn items_are_checked_like_messages() {
        let items =
            |items: &str| format!(r#"{{"model":"m","store":false,"input":[{{"role":"user","content":"x"}},{items}]}}"#);
        let thought = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"}"#;
        let call = |id: &str| format!(r#"{{"type":"function_call","call_id":"{id}","name":"w","arguments":"{{}}"}}"#);
        let result = |id: &str| format!(r#"{{"type":"function_call_output","call_id":"{id}","output":""}}"#);
        let said = r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"y"}]}"#;
        let user = r#"{"role":"user","content":"z"}"#;
        let (a, b) = (call("a"), call("b"));
        let (of_a, of_b) = (result("a"), result("b"));
        check(&items(&[thought, said, &a, &b, &of_b, &of_a, said].join(",")), &[]);
        check(&items(&[&*a, &of_a, thought, &b, &of_b, user].join(",")), &[]);
        check(&items(&[&*a, &b, &of_b, user].join(",")), &["call_without_result@1.2"]);
        check(&items(&[&*a, user, &of_a].join(",")), &["call_without_result@1.2", "orphaned_result@1.4"]);
        check(&items(&[&*a, said].join(",")), &["call_without_result@1.2"]);
        check(&items(r#"{"type":"message","role":"assistant","content":[]}"#), &["empty_content@1.2"]);
        check(&items(r#"{"type":"web_search_call","id":"ws_1","status":"completed"}"#), &[]);
        check(&format!("[{user},{a},{of_a}]"), &[]);
        check(&format!("{user}\n{of_b}"), &["orphaned_result@1.2"]);
        check(r#"{"input":"hi"}"#, &[]);
        let told = |text: &str| format!(r#"{{"instructions":"{text}","input":[{user}]}}"#);
        check(&format!("{}\n{}", told("s"), told("t")), &["cache_break@2.0"]);
    }

    #[test]
    fn results_and_calls_belong_together() {
        check(
            r#"[{"role":"user","content":"x"},{"role":"tool","tool_call_id":"a","content":"r"}]"#,
            &["orphaned_result@1.2"],
        );
        check(
            r#"[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"a"}]},{"role":"user","content":"y"}]"#,
            &["call_without_result@1.2"],
        );
        check(
            r#"[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"a"}]},
                {"role":"tool","tool_call_id":"a","content":"r"},{"role":"tool","tool_call_id":"a","content":"r"}]"#,
            &["orphaned_result@1.4"],
        );
        check(
            r#"{"system":"s","messages":[{"role":"user","content":"x"},
                {"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"w","input":{}}]}]}"#,
            &["call_without_result@1.2"],
        );
    }

    #[test]
    fn replayed_input_is_found_and_repeated_words_are_not() {
        check(r#"[{"role":"user","content":"x"},{"role":"user","content":"x"}]"#, &["doubled_input@1.2"]);
        check(
            r#"[{"role":"user","content":"x"},{"role":"assistant","content":"y"},{"role":"user","content":"x"},{"role":"assistant","content":"y"}]"#,
            &["doubled_input@1.3"],
        );
        check(
            r#"[{"role":"user","content":"go on"},{"role":"assistant","content":"one"},{"role":"user","content":"go on"},{"role":"assistant","content":"two"}]"#,
            &[],
        );
    }

    #[test]
    fn shape_is_checked_by_family() {
        check(r#"[{"role":"user","content":" "}]"#, &["empty_content@1.1"]);
        check(
            r#"[{"role":"user","content":"x"},{"role":"system","content":"s"},{"role":"assistant","content":"y"}]"#,
            &["system_in_the_middle@1.2"],
        );
        check(
            r#"{"system":"s","messages":[{"role":"assistant","content":"a"},{"role":"user","content":"x"},{"role":"user","content":"y"}]}"#,
            &["broken_alternation@1.1", "broken_alternation@1.3"],
        );
        check(r#"[{"role":"user","content":"x"},{"role":"user","content":"y"}]"#, &[]);
    }

    #[test]
    fn a_cache_break_is_where_the_prefix_ends() {
        let one = r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"x"}]}"#;
        let next = r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"x"},{"role":"assistant","content":"y"},{"role":"user","content":"z"}]}"#;
        let broken = r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"X"},{"role":"assistant","content":"y"}]}"#;
        let other = r#"{"messages":[{"role":"user","content":"something else"}]}"#;
        check(&format!("{one}\n{next}"), &[]);
        check(&format!("{one}\n{broken}"), &[]); // nothing that it holds again
        let edited = next.replacen("\"x\"", "\"X\"", 1).replace("]}", r#",{"role":"user","content":"more"}]}"#);
        check(&format!("{next}\n{edited}"), &["cache_break@2.2"]);
        let clock = |time: &str, more: &str| {
            format!(
                r#"{{"messages":[{{"role":"system","content":"It is {time}."}},{{"role":"user","content":"x"}}{more}]}}"#
            )
        };
        let answered = r#",{"role":"assistant","content":"y"},{"role":"user","content":"z"}"#;
        check(&format!("{}\n{}", clock("19:25:00", ""), clock("19:25:09", answered)), &["cache_break@2.1"]);
        check(&format!("{}\n{}", clock("noon", ""), clock("midnight", answered)), &[]); // another conversation, perhaps
        check(&format!("{one}\n{other}"), &[]);
        let tools = r#"{"tools":[1],"messages":[{"role":"system","content":"s"},{"role":"user","content":"x"}]}"#;
        check(&format!("{one}\n{tools}"), &["cache_break@2.0"]);
    }

    #[test]
    fn what_cannot_be_read_says_where() {
        assert!(matches!(lint(" "), Err(Unreadable::Empty)));
        assert!(matches!(lint("{\"role\":\"user\",\"content\":\"x\"}\nnope"), Err(Unreadable::Json { line: 2, .. })));
        assert!(matches!(lint("{\"a\":1}"), Err(Unreadable::Shape { line: 1 })));
        assert!(matches!(lint("[{\"role\":\"owl\"}]"), Err(Unreadable::Shape { line: 1 })));
    }
}

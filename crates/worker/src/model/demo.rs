//! `provider: demo`: a model that follows a script in its profile and needs neither key nor network.
//!
//! ```yaml
//! llm_config:
//!   provider: demo
//!   model: demo
//!   params:
//!     script:
//!       - {say: Let me look., call: {search: {query: "{{query}}"}}}
//!       - {say: "I found: {{result}}"}
//! ```
//! `{{query}}` is the question, `{{result}}` the last tool result, `{{summary}}` the readable part of that result, `{{summary:1}}` that of the
//! first result, `{{json}}` (alone in a value) the last result as JSON, `{{path:report.json}}` the last path mentioned that ends in
//! `report.json`, and `{{found}}` the sentences of found passages that fit the question best.
//! The first answer in a turn is the first line, and so on; the last line is repeated. If the question is Chinese, `script_zh` is followed,
//! where there is one. A line with `needs` is used if the last result contains that text; otherwise its `or` is used.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use waybill_context::{compose::without_blocks, knowledge};
use waybill_core::tokens;

use super::{Answer, Error, ModelToolCall, Read, http::ModelRequest};

pub(super) const NAME: &str = "demo";

/// Words of questions that say nothing about their subject.
const ASKING: [&str; 14] =
    ["what", "when", "where", "which", "does", "made", "make", "makes", "many", "much", "怎么", "怎样", "如何", "什么"];

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default)]
    say: String,
    /// Tools to call, and their arguments.
    #[serde(default)]
    call: BTreeMap<String, Value>,
    /// How long it waits before it answers.
    #[serde(default)]
    after_ms: u64,
    /// A text that the last result must contain, for this line to be used.
    #[serde(default)]
    needs: String,
    /// The line that is used otherwise.
    or: Option<Box<Line>>,
}

pub(super) async fn ask(asking: &ModelRequest<'_>) -> Result<Answer, Error> {
    let wrong =
        |error: serde_json::Error| Error::Refused(format!("the script of the demo model is not valid: {error}"));
    let request: Value = serde_json::from_slice(asking.request).map_err(wrong)?;
    let texts = |role: &'static str| {
        let messages = request["messages"].as_array().into_iter().flatten();
        messages.filter(move |message| message["role"] == role).map(|said| said["content"].as_str().unwrap_or_default())
    };
    let results: Vec<&str> = texts("tool").collect();
    let query = without_blocks(texts("user").next_back().unwrap_or_default()).to_owned();
    let result = results.last().copied().unwrap_or_default();

    let params = &asking.llm.params;
    let script = params.get("script_zh").filter(|_| is_chinese(&query)).or(params.get("script")).cloned();
    let script = script.unwrap_or_else(|| serde_json::json!([{ "say": "{{query}}" }]));
    let mut script: Vec<Line> = serde_json::from_value(script).map_err(wrong)?;
    let last =
        script.len().checked_sub(1).ok_or_else(|| Error::Refused("the script of the demo model is empty".into()))?;
    let mut line = script.swap_remove(asking.n_before.min(last));
    if !result.contains(&line.needs)
        && let Some(other) = line.or.take()
    {
        line = *other;
    }
    tokio::time::sleep(Duration::from_millis(line.after_ms)).await;
    let all = || request["messages"].as_array().into_iter().flatten().filter_map(|message| message["content"].as_str());
    let fill = |text: &str| match text.strip_prefix("{{path:").and_then(|text| text.strip_suffix("}}")) {
        Some(end) => all().rev().find_map(|said| path(said, end)).unwrap_or_default(),
        None => filled_text(text, &query, &results),
    };
    let json = || serde_json::from_str::<Value>(result).unwrap_or(Value::Null);
    let call = |(n, (tool_name, arguments)): (usize, (String, Value))| ModelToolCall {
        provider_call_id: format!("call_{n}"),
        tool_name,
        arguments: filled(arguments, &fill, &json).to_string(),
    };
    let text = fill(&line.say);
    let output = u32::try_from(tokens::count(&text).get()).unwrap_or_default();
    let calls = line.call.into_iter().enumerate().map(call).collect();
    Ok(Answer { text, calls, read: Read { input: asking.n_tokens, cached: 0, output }, ..Answer::default() })
}

/// Fills the slots of a text.
fn filled_text(text: &str, query: &str, results: &[&str]) -> String {
    let result = results.last().copied().unwrap_or_default();
    let mut filled = text.to_owned();
    // Splitting words takes a dictionary, so it is done only where it is needed.
    if filled.contains("{{found}}") {
        filled = filled.replace("{{found}}", &quote(query, result));
    }
    for (n, result) in results.iter().enumerate() {
        filled = filled.replace(&format!("{{{{summary:{}}}}}", n + 1), &summary(result));
    }
    filled.replace("{{query}}", query).replace("{{result}}", result).replace("{{summary}}", &summary(result))
}

/// Returns the readable part of a result: what was delivered; of several deliverables, one after the other, each once.
fn summary(result: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(result) else { return result.to_owned() };
    let said = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match (&value["deliverable"], value["results"].as_array()) {
        (Value::Null, Some(results)) => {
            let mut lines: Vec<String> = results.iter().map(|one| said(&one["summary"])).collect();
            lines.dedup();
            lines.join("\n")
        }
        (Value::Null, None) => result.to_owned(),
        (deliverable, _) => said(deliverable),
    }
}

fn is_chinese(text: &str) -> bool {
    text.contains(|c: char| ('\u{4e00}'..='\u{9fff}').contains(&c))
}

/// Returns what the found passages say about the question, and where it stands: of the passage that shares most words with the question, the two
/// sentences that share most. A passage that shares only one of several words is no answer.
fn quote(query: &str, result: &str) -> String {
    // Short words are in every text.
    let is_long = |word: &str| word.chars().count() >= if word.is_ascii() { 4 } else { 2 };
    let is_telling = |word: &String| is_long(word) && !ASKING.contains(&word.as_str());
    let wanted: Vec<String> = knowledge::words(query).into_iter().filter(is_telling).collect();
    let n_shared = |text: &str| {
        let words = knowledge::words(text);
        wanted.iter().filter(|word| words.contains(word)).count()
    };
    // Each passage begins with `[1] PATH vVERSION, lines FROM–TO: HEADINGS`.
    let mut passages: Vec<(&str, String)> = Vec::new();
    for line in result.lines() {
        let head = line.strip_prefix('[').and_then(|line| line.split_once("] "));
        let head = head.filter(|(n, head)| n.parse::<u32>().is_ok() && head.contains(", lines "));
        if let Some((_, head)) = head {
            passages.push((head, String::new()));
        } else if let Some((_, text)) = passages.last_mut() {
            text.push_str(line);
            text.push(' ');
        }
    }
    let ranked = passages.iter().map(|(head, text)| (n_shared(&format!("{head} {text}")), head, text));
    // Of equal ones, the first is the best that was found.
    let best = ranked.rev().max_by_key(|(n, _, _)| *n).filter(|(n, _, _)| *n >= wanted.len().clamp(1, 2));
    let Some((_, head, text)) = best else {
        let nothing = if is_chinese(query) {
            "文档里没有提到这一点。"
        } else {
            "The documents say nothing about this."
        };
        return nothing.to_owned();
    };
    let sentences = sentences(text);
    let mut chosen: Vec<usize> = (0..sentences.len()).collect();
    chosen.sort_by_key(|n| Reverse(n_shared(sentences[*n])));
    chosen.truncate(2);
    chosen.sort_unstable();
    let said: Vec<&str> = chosen.into_iter().map(|n| sentences[n]).collect();
    let place = head.split(": ").next().unwrap_or_default();
    if is_chinese(query) { format!("{}（{place}）", said.concat()) } else { format!("{} ({place})", said.join(" ")) }
}

fn sentences(text: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let is_end = |(at, c): &(usize, char)| match c {
            '。' | '！' | '？' => true,
            '.' | '!' | '?' => rest[at + 1..].chars().next().is_none_or(char::is_whitespace),
            _ => false,
        };
        let end = rest.char_indices().find(is_end).map_or(rest.len(), |(at, c)| at + c.len_utf8());
        found.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    found
}

/// Returns the first path in the text that ends in `end`.
fn path(text: &str, end: &str) -> Option<String> {
    let parts = text.split(|c: char| c.is_whitespace() || "\"'`,;()[]{}".contains(c));
    let mut found =
        parts.map(|part| part.trim_end_matches(':')).filter(|part| part.ends_with(end) && part.contains('/'));
    found.next().map(str::to_owned)
}

fn filled(value: Value, fill: &impl Fn(&str) -> String, json: &impl Fn() -> Value) -> Value {
    match value {
        Value::String(text) if text == "{{json}}" => json(),
        Value::String(text) => Value::String(fill(&text)),
        Value::Array(values) => values.into_iter().map(|value| filled(value, fill, json)).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, filled(value, fill, json))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUND: &str = "[2 passages, found by words]\n[1] en/cheese.md v1, lines 5–6: Cheese › Time\nCheese is slow. It takes days.\n\n\
        [2] en/bread.md v1, lines 15–16: Bread › Time\nA night helps. Bread takes four hours of time. The oven\ntakes 0.7 hours.";

    #[test]
    fn an_answer_is_made_of_what_was_found() {
        let said = quote("Time: How is bread made?", FOUND);
        assert_eq!(said, "A night helps. Bread takes four hours of time. (en/bread.md v1, lines 15–16)");
        assert_eq!(quote("Time: How are rockets made?", FOUND), "The documents say nothing about this.");
        assert!(quote("What is bread?", FOUND).contains("Bread takes four hours"));
        assert_eq!(quote("", ""), "The documents say nothing about this.");
        let found = "[1] zh/bread.md v1, lines 5–5: 面包 › 配料\n面包的配料有四样：面粉、水、盐和酵母。揉十分钟。";
        let said = quote("配料：面包是怎么做的？", found);
        assert_eq!(said, "面包的配料有四样：面粉、水、盐和酵母。揉十分钟。（zh/bread.md v1, lines 5–5）");
        assert_eq!(quote("时间：火箭是怎么做的？", found), "文档里没有提到这一点。");
    }

    #[test]
    fn slots_are_filled() {
        let results = ["{\"deliverable\":\"first\"}", "second"];
        assert_eq!(filled_text("{{summary:1}}, {{summary}}: {{query}}", "q", &results), "first, second: q");
        assert_eq!(summary("{\"results\":[{\"summary\":\"a\"},{\"summary\":\"a\"},{\"summary\":\"b\"}]}"), "a\nb");
        assert_eq!(sentences("One. Two at 0.7 h? Three"), ["One.", "Two at 0.7 h?", "Three"]);
    }
}

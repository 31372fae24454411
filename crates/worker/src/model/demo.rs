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
//! `{{query}}` is the question, `{{result}}` the last tool result, `{{summary}}` the readable part of that result, `{{json}}` (alone in a
//! value) that result as JSON, and `{{path:report.json}}` the last path mentioned that ends in `report.json`.
//! The first answer in a turn is the first line, and so on; the last line is repeated.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use waybill_context::compose::without_blocks;
use waybill_core::tokens;

use super::{Answer, Error, ModelToolCall, Read, http::ModelRequest};

pub(super) const NAME: &str = "demo";

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
}

pub(super) async fn ask(asking: &ModelRequest<'_>) -> Result<Answer, Error> {
    let wrong =
        |error: serde_json::Error| Error::Refused(format!("the script of the demo model is not valid: {error}"));
    let script =
        asking.llm.params.get("script").cloned().unwrap_or_else(|| serde_json::json!([{ "say": "{{query}}" }]));
    let mut script: Vec<Line> = serde_json::from_value(script).map_err(wrong)?;
    let last =
        script.len().checked_sub(1).ok_or_else(|| Error::Refused("the script of the demo model is empty".into()))?;
    let line = script.swap_remove(asking.n_before.min(last));
    tokio::time::sleep(Duration::from_millis(line.after_ms)).await;
    let request: Value = serde_json::from_slice(asking.request).map_err(wrong)?;
    let said = |role: &str| {
        let messages = request["messages"].as_array().into_iter().flatten().rev();
        let mut texts = messages.filter(|message| message["role"] == role).map(|message| &message["content"]);
        texts.next().and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (query, result) = (without_blocks(&said("user")).to_owned(), said("tool"));
    let summary = summary(&result);
    let all = || request["messages"].as_array().into_iter().flatten().filter_map(|message| message["content"].as_str());
    let fill = |text: &str| match text.strip_prefix("{{path:").and_then(|text| text.strip_suffix("}}")) {
        Some(end) => all().rev().find_map(|said| path(said, end)).unwrap_or_default(),
        None => text.replace("{{query}}", &query).replace("{{result}}", &result).replace("{{summary}}", &summary),
    };
    let json = || serde_json::from_str::<Value>(&result).unwrap_or(Value::Null);
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

/// Returns the readable part of a result: what was delivered; of several deliverables, one after the other.
fn summary(result: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(result) else { return result.to_owned() };
    let said = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match (&value["deliverable"], value["results"].as_array()) {
        (Value::Null, Some(results)) => results.iter().map(|one| said(&one["summary"])).collect::<Vec<_>>().join("\n"),
        (Value::Null, None) => result.to_owned(),
        (deliverable, _) => said(deliverable),
    }
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

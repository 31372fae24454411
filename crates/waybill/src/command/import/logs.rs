//! Logs of model calls, in the formats that people have.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use waybill_api::ImportedCall;
use waybill_context::wire::Adapter;

use super::claude_code;

/// A call and where it is in its file, or why it cannot be read.
pub(super) type Read = Result<(String, ImportedCall), (String, String)>;

/// Reads the calls of a file, each with how much of the file was read before it.
pub(super) fn calls<'a>(text: &'a str, log: &'a str) -> Box<dyn Iterator<Item = (f64, Read)> + 'a> {
    // Windows writes a mark at the beginning.
    let entries = entries(text.trim_start_matches('\u{feff}'));
    if claude_code::is_transcript(&entries) {
        return claude_code::calls(entries, log);
    }
    let n = entries.len() as f64;
    let mut read: Vec<Read> = Vec::new();
    for (at, raw) in entries {
        match raw.and_then(|raw| one(raw, log)) {
            Ok(call) => read.extend(call.map(|call| Ok((at, call)))),
            Err(why) => read.push(Err((at, why))),
        }
    }
    // A conversation is put together in the order of its calls.
    read.sort_by_key(|call| call.as_ref().ok().map(|(_, call)| (call.at.is_none(), call.at)));
    Box::new(read.into_iter().enumerate().map(move |(i, call)| (i as f64 / n, call)))
}

/// Returns the JSON objects of a file, each with its place: JSON lines, one list, or a list inside an object.
pub(super) fn entries(text: &str) -> Vec<(String, Result<&str, String>)> {
    fn list(list: Vec<&RawValue>) -> Vec<(String, Result<&str, String>)> {
        list.iter().enumerate().map(|(i, raw)| ((i + 1).to_string(), Ok(raw.get()))).collect()
    }
    #[derive(Deserialize)]
    struct Page<'a> {
        #[serde(borrow, alias = "observations", alias = "requests")]
        data: Vec<&'a RawValue>,
    }
    if let Ok(all) = serde_json::from_str::<Vec<&RawValue>>(text) {
        return list(all);
    }
    if let Ok(Page { data }) = serde_json::from_str(text) {
        return list(data);
    }
    if let Ok(one) = serde_json::from_str::<&RawValue>(text) {
        return vec![("1".to_owned(), Ok(one.get()))];
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            let read = serde_json::from_str::<&RawValue>(line).map(RawValue::get);
            ((i + 1).to_string(), read.map_err(|error| format!("this is not JSON: {error}")))
        })
        .collect()
}

/// The fields of an object.
pub(super) struct Fields<'a>(HashMap<Cow<'a, str>, &'a RawValue>);

impl<'a> Fields<'a> {
    pub(super) fn of(raw: &'a str) -> Option<Fields<'a>> {
        serde_json::from_str(raw).ok().map(Fields)
    }

    /// Returns the first of these fields that is there.
    pub(super) fn raw(&self, names: &[&str]) -> Option<&'a str> {
        let given = names.iter().filter_map(|name| self.0.get(*name)).map(|value| value.get());
        given.into_iter().find(|value| *value != "null")
    }

    pub(super) fn text(&self, names: &[&str]) -> Option<String> {
        serde_json::from_str(self.raw(names)?).ok()
    }

    fn number(&self, names: &[&str]) -> Option<f64> {
        let raw = self.raw(names)?;
        raw.trim_matches('"').parse().ok()
    }

    /// Returns the first time that is there. An error says that it cannot be read.
    pub(super) fn time(&self, names: &[&str]) -> Result<Option<DateTime<Utc>>, String> {
        let Some(raw) = self.raw(names) else { return Ok(None) };
        let at = match self.text(names) {
            Some(text) => time(&text),
            None => raw.parse().ok().and_then(since_1970),
        };
        let latest = Utc::now() + TimeDelta::days(1);
        let at = at.filter(|at| *at >= DateTime::UNIX_EPOCH && *at < latest);
        at.map(Some).ok_or_else(|| format!("{raw} is not a time in the past: write it as 2026-10-01T08:00:00Z"))
    }

    fn object(&self, names: &[&str]) -> Option<Fields<'a>> {
        Fields::of(self.raw(names)?)
    }
}

fn time(text: &str) -> Option<DateTime<Utc>> {
    let text = text.trim().replacen(' ', "T", 1);
    let seconds = || text.parse().ok().and_then(since_1970);
    // Exports of databases leave the time zone out, or its minutes.
    let zones = ["", "Z", ":00"];
    zones.iter().find_map(|zone| format!("{text}{zone}").parse().ok()).or_else(seconds)
}

/// Reads a number of seconds, or of milliseconds.
fn since_1970(number: f64) -> Option<DateTime<Utc>> {
    const IN_MILLISECONDS: f64 = 1e11;
    let seconds = if number.abs() < IN_MILLISECONDS { number } else { number / 1e3 };
    DateTime::from_timestamp_millis((seconds * 1e3).round() as i64)
}

/// Reads one entry. None means that it is no model call.
fn one(raw: &str, log: &str) -> Result<Option<ImportedCall>, String> {
    let fields = Fields::of(raw).ok_or("this is not a JSON object")?;
    let is_observation =
        fields.raw(&["traceId", "trace_id"]).is_some() && fields.raw(&["startTime", "start_time"]).is_some();
    if is_observation {
        let is_call = fields.text(&["type"]).is_none_or(|kind| kind == "GENERATION");
        return if is_call { langfuse(&fields, log).map(spaced_alike).map(Some) } else { Ok(None) };
    }
    request(raw, &fields, log).map(spaced_alike).map(Some)
}

/// Takes the spaces between the parts of a request away: they are the log's, and a message that is spaced otherwise would be another one.
fn spaced_alike(mut call: ImportedCall) -> ImportedCall {
    let (mut in_string, mut is_escaped) = (false, false);
    call.request.retain(|c| {
        let is_kept = in_string || !matches!(c, ' ' | '\t' | '\n' | '\r');
        in_string ^= c == '"' && !is_escaped;
        is_escaped = in_string && c == '\\' && !is_escaped;
        is_kept
    });
    call
}

/// Reads a call that has its request as it was sent: our own lines, exports of Helicone, and requests alone.
fn request(raw: &str, fields: &Fields<'_>, log: &str) -> Result<ImportedCall, String> {
    let asked_in = ["request", "request_body", "body"];
    let answered_in = ["answer", "response_body", "response"];
    let is_alone = fields.raw(&["messages", "input"]).is_some() && fields.raw(&asked_in).is_none();
    let request = if is_alone { Some(raw) } else { fields.raw(&asked_in) };
    let request = inner(request.ok_or("this is no model call: it has neither `request` nor `messages`")?);
    let asked = Fields::of(&request).ok_or("`request` is not a JSON object")?;
    let answer = fields.raw(&answered_in);
    // As OpenAI's batches have it: the body is inside an object with the status.
    let inside = answer.and_then(Fields::of).filter(|answer| answer.raw(&["status_code"]).is_some());
    let status = inside.as_ref().and_then(|inside| inside.number(&["status_code"]));
    let status = status.or_else(|| fields.number(&["status", "response_status"]));
    let answer = match &inside {
        Some(inside) => inside.raw(&["body"]),
        None => answer,
    };
    let path = fields.text(&["url", "path", "request_path", "endpoint"]).unwrap_or_default();
    let named = fields.text(&["format", "adapter"]);
    let adapter = match named.as_deref() {
        Some(name) => serde_json::from_value(json!(name)).map_err(|_| {
            format!("there is no format {name:?}: it is openai_chat, openai_responses or anthropic_messages")
        })?,
        None => guessed(&path, &asked, answer),
    };
    let took = fields.number(&["took_ms", "delay_ms", "latency_ms"]).filter(|ms| *ms > 0.0 && *ms < 1e9);
    let took = took.map_or(Duration::ZERO, |ms| Duration::from_secs_f64(ms / 1e3));
    let more = fields.object(&["request_properties", "properties", "metadata"]);
    let session = fields.text(&["session", "session_id", "sessionId"]);
    let session = session.or_else(|| more.as_ref()?.text(&["Helicone-Session-Id"]));
    let agent = fields.text(&["agent"]).or_else(|| more.as_ref()?.text(&["Helicone-Session-Name"]));
    let model = asked.text(&["model"]).or_else(|| fields.text(&["model", "request_model"]));
    let provider = fields.text(&["provider"]).map(|name| name.to_lowercase());
    let dollars = fields.number(&["cost", "cost_usd", "costUSD"]);
    Ok(ImportedCall {
        adapter,
        provider: provider.unwrap_or_else(|| provider_of(adapter, model.as_deref()).to_owned()),
        session,
        agent,
        at: fields.time(&["at", "request_created_at", "created_at", "timestamp"])?,
        took,
        status: status.map_or(200, |status| status as u16),
        answer: answer.map(|answer| inner(answer).into_owned()),
        request: if is_alone { without(&request, &answered_in) } else { request.into_owned() },
        microdollars: microdollars(dollars),
        id: fields.text(&["custom_id", "request_id", "id"]),
        log: log.to_owned(),
    })
}

/// Returns an object without some of its fields.
fn without(object: &str, names: &[&str]) -> String {
    let Ok(mut fields) = serde_json::from_str::<serde_json::Map<String, Value>>(object) else {
        return object.to_owned();
    };
    let n = fields.len();
    fields.retain(|name, _| !names.contains(&name.as_str()));
    if fields.len() == n { object.to_owned() } else { json!(fields).to_string() }
}

/// Returns the JSON that a string contains, or else the value as it is.
fn inner(raw: &str) -> Cow<'_, str> {
    let text: Option<String> = raw.starts_with('"').then(|| serde_json::from_str(raw).ok()).flatten();
    match text {
        Some(text) => Cow::Owned(text),
        None => Cow::Borrowed(raw),
    }
}

fn guessed(path: &str, asked: &Fields<'_>, answer: Option<&str>) -> Adapter {
    let answer = answer.and_then(Fields::of);
    let is_message = answer.is_some_and(|answer| answer.text(&["type"]).as_deref() == Some("message"));
    let has_system = asked.raw(&["system", "max_tokens"]).is_some();
    let is_claude = asked.text(&["model"]).is_some_and(|model| model.contains("claude")) && has_system;
    if path.ends_with("/responses") || asked.raw(&["messages"]).is_none() {
        Adapter::OpenaiResponses
    } else if path.ends_with("/messages") || is_message || is_claude && !path.ends_with("/completions") {
        Adapter::AnthropicMessages
    } else {
        Adapter::OpenaiChat
    }
}

fn provider_of(adapter: Adapter, model: Option<&str>) -> &'static str {
    let is_claude = model.is_some_and(|model| model.contains("claude"));
    if adapter == Adapter::AnthropicMessages || is_claude { "anthropic" } else { "openai" }
}

/// Returns the text of a JSON string, or else the value as it is written.
fn text_of(raw: &str) -> String {
    serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned())
}

fn microdollars(dollars: Option<f64>) -> Option<u64> {
    dollars.filter(|dollars| *dollars > 0.0 && *dollars < 1e6).map(|dollars| (dollars * 1e6).round() as u64)
}

/// Reads a generation of Langfuse, which has what was said, not what was sent: the request is put together in the format of chat completions, or in
/// Anthropic's if its content has Anthropic's blocks.
fn langfuse(fields: &Fields<'_>, log: &str) -> Result<ImportedCall, String> {
    let input = fields.raw(&["input"]).map(inner).ok_or("the generation has no `input`")?;
    let output = fields.raw(&["output"]).map(inner);
    let model = fields.text(&["model", "providedModelName", "provided_model_name"]).unwrap_or_default();
    let has_blocks = |text: &str| text.contains(r#""type":"tool_use""#) || text.contains(r#""type": "tool_use""#);
    let is_anthropic = has_blocks(&input) || output.as_deref().is_some_and(has_blocks);
    let adapter = if is_anthropic { Adapter::AnthropicMessages } else { Adapter::OpenaiChat };
    let usage = fields.object(&["usageDetails", "usage_details", "usage"]);
    let at = fields.time(&["startTime", "start_time"])?.ok_or("the generation has no `startTime`")?;
    let ended_at = fields.time(&["endTime", "end_time"])?.unwrap_or(at);
    let failed = fields.text(&["level"]).as_deref() == Some("ERROR");
    let costs = fields.object(&["costDetails", "cost_details"]);
    let cost = costs.and_then(|costs| costs.number(&["total"]));
    let cost = cost.or_else(|| fields.number(&["calculatedTotalCost", "totalCost", "total_cost", "totalPrice"]));
    Ok(ImportedCall {
        adapter,
        provider: provider_of(adapter, Some(&model)).to_owned(),
        session: fields.text(&["sessionId", "session_id", "traceId", "trace_id"]),
        agent: fields.text(&["name"]),
        at: Some(at),
        took: (ended_at - at).max(TimeDelta::zero()).to_std().unwrap_or_default(),
        status: if failed { 500 } else { 200 },
        request: asked(&model, &input),
        answer: output.map(|output| answered(adapter, &model, &output, usage)),
        microdollars: microdollars(cost),
        id: fields.text(&["id"]),
        log: log.to_owned(),
    })
}

/// Puts a request together from what a tracer kept of it.
fn asked(model: &str, input: &str) -> String {
    let model = json!(model);
    let whole = Fields::of(input);
    if whole.as_ref().is_some_and(|whole| whole.raw(&["messages"]).is_some() && whole.raw(&["model"]).is_some()) {
        return input.to_owned();
    }
    let messages = whole.as_ref().and_then(|whole| whole.raw(&["messages"]));
    let tools = whole.as_ref().and_then(|whole| whole.raw(&["tools"]));
    let messages = match messages {
        Some(messages) => messages.to_owned(),
        None if serde_json::from_str::<Vec<&RawValue>>(input).is_ok() => input.to_owned(),
        None if whole.is_some_and(|whole| whole.raw(&["role"]).is_some()) => format!("[{input}]"),
        None => json!([{ "role": "user", "content": input }]).to_string(),
    };
    let tools = tools.map(|tools| format!(r#","tools":{tools}"#)).unwrap_or_default();
    format!(r#"{{"model":{model},"messages":{messages}{tools}}}"#)
}

/// Puts an answer together from what a tracer kept of it.
fn answered(adapter: Adapter, model: &str, output: &str, usage: Option<Fields<'_>>) -> String {
    let list: Option<Vec<&RawValue>> = serde_json::from_str(output).ok();
    let first = list.as_deref().and_then(|list| list.first()).map(|first| first.get());
    // A list is one of messages, or of the blocks of one.
    let is_blocks = first.and_then(Fields::of).is_some_and(|first| first.raw(&["role", "choices"]).is_none());
    let first = first.filter(|_| !is_blocks);
    let blocks = is_blocks.then(|| output.to_owned());
    let output = first.unwrap_or(output);
    let whole = Fields::of(output);
    if whole.as_ref().is_some_and(|whole| whole.raw(&["choices", "stop_reason"]).is_some()) {
        return output.to_owned();
    }
    let is_message = whole.as_ref().is_some_and(|whole| whole.raw(&["content", "tool_calls"]).is_some());
    let count = |names: &[&str]| usage.as_ref().and_then(|usage| usage.number(names)).map_or(0, |n| n as u64);
    let (read, written) = (
        count(&["input", "prompt_tokens", "promptTokens"]),
        count(&["output", "completion_tokens", "completionTokens"]),
    );
    let cached = count(&["input_cached_tokens", "cache_read_input_tokens", "input_cache_read"]);
    if adapter == Adapter::AnthropicMessages {
        let said = whole.as_ref().and_then(|whole| whole.raw(&["content"])).map(str::to_owned);
        let text = || json!([{ "type": "text", "text": text_of(output) }]).to_string();
        let content = blocks.or(said).unwrap_or_else(text);
        let new = count(&["cache_creation_input_tokens", "input_cache_creation"]);
        let usage = json!({ "input_tokens": read, "cache_creation_input_tokens": new, "output_tokens": written, "cache_read_input_tokens": cached });
        let model = json!(model);
        return format!(
            r#"{{"type":"message","role":"assistant","model":{model},"content":{content},"stop_reason":"end_turn","usage":{usage}}}"#
        );
    }
    let message =
        if is_message { output.to_owned() } else { json!({ "role": "assistant", "content": output }).to_string() };
    let usage = json!({
        "prompt_tokens": read.saturating_add(cached), "completion_tokens": written, "prompt_tokens_details": { "cached_tokens": cached },
    });
    let model = json!(model);
    format!(
        r#"{{"model":{model},"choices":[{{"index":0,"message":{message},"finish_reason":"stop"}}],"usage":{usage}}}"#
    )
}

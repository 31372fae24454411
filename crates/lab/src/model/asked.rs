//! Reads a request of any format into one type, [`Asked`].

use serde_json::Value;

use super::{Asked, Called, Format, Said, wire::Request};

impl Format {
    /// Returns the format of a path.
    pub(super) fn at(path: &str) -> Option<Format> {
        let path = path.split('?').next().unwrap_or_default();
        [
            ("/chat/completions", Format::OpenaiChat),
            ("/responses", Format::OpenaiResponses),
            ("/messages", Format::AnthropicMessages),
        ]
        .into_iter()
        .find_map(|(suffix, format)| path.ends_with(suffix).then_some(format))
    }
}

/// Reads a request. The ledger sets its ordinal later.
pub(super) fn read(format: Format, request: &Request) -> serde_json::Result<Asked> {
    let body: Value = serde_json::from_slice(request.body())?;
    let messages = match format {
        Format::OpenaiChat => list(&body["messages"]).iter().map(of_chat).collect(),
        Format::OpenaiResponses => of_responses(&body),
        Format::AnthropicMessages => of_messages(&body),
    };
    let tool_name = |tool: &Value| string(tool.pointer("/function/name").unwrap_or(&tool["name"]));
    Ok(Asked {
        n: 0,
        format,
        model: string(&body["model"]),
        key: request.header("idempotency-key").map(str::to_owned),
        headers: request.headers.clone(),
        messages,
        tools: list(&body["tools"]).iter().map(tool_name).collect(),
        stream: body["stream"] == true,
        body,
    })
}

fn of_chat(message: &Value) -> Said {
    let called = |call: &Value| Called {
        id: string(&call["id"]),
        name: string(&call["function"]["name"]),
        arguments: string(&call["function"]["arguments"]),
    };
    Said {
        calls: list(&message["tool_calls"]).iter().map(called).collect(),
        result_of: message["tool_call_id"].as_str().map(str::to_owned),
        ..said(&string(&message["role"]), &message["content"])
    }
}

fn of_responses(body: &Value) -> Vec<Said> {
    let mut messages = Vec::new();
    if body["instructions"].is_string() {
        messages.push(said("system", &body["instructions"]));
    }
    if body["input"].is_string() {
        messages.push(said("user", &body["input"]));
    }
    for item in list(&body["input"]) {
        match item["type"].as_str() {
            Some("function_call") => {
                // A message and the calls after it are one answer from the model.
                if messages.last().is_none_or(|said| said.role != "assistant") {
                    messages.push(said("assistant", &Value::Null));
                }
                messages.last_mut().expect("one was just made sure of").calls.push(Called {
                    id: string(&item["call_id"]),
                    name: string(&item["name"]),
                    arguments: string(&item["arguments"]),
                });
            }
            Some("function_call_output") => messages.push(result(&item["call_id"], &item["output"])),
            Some("message") | None => messages.push(said(&string(&item["role"]), &item["content"])),
            Some(_) => {}
        }
    }
    messages
}

fn of_messages(body: &Value) -> Vec<Said> {
    let mut messages = Vec::new();
    if !body["system"].is_null() {
        messages.push(said("system", &body["system"]));
    }
    for message in list(&body["messages"]) {
        let mut rest = said(&string(&message["role"]), &message["content"]);
        let mut is_result_only = !list(&message["content"]).is_empty();
        for block in list(&message["content"]) {
            match block["type"].as_str() {
                Some("tool_result") => messages.push(result(&block["tool_use_id"], &block["content"])),
                Some("tool_use") => rest.calls.push(Called {
                    id: string(&block["id"]),
                    name: string(&block["name"]),
                    arguments: block["input"].to_string(),
                }),
                _ => {}
            }
            is_result_only &= block["type"] == "tool_result";
        }
        if !is_result_only {
            messages.push(rest);
        }
    }
    messages
}

fn said(role: &str, content: &Value) -> Said {
    let role = if role == "developer" { "system" } else { role };
    Said { role: role.to_owned(), text: text(content), ..Said::default() }
}

fn result(of: &Value, content: &Value) -> Said {
    Said { result_of: Some(string(of)), ..said("tool", content) }
}

/// Returns the text of a content, which is a string, or parts of which some have a text.
fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        content => list(content).iter().filter_map(|part| part["text"].as_str()).collect(),
    }
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

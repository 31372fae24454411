//! Anthropic's Messages format: content blocks, each opened, filled and closed.

use serde_json::{Value, json};

use super::{Answer, named_event};

pub(super) fn events(answer: &Answer<'_>) -> Vec<String> {
    let reply = answer.reply;
    let mut blocks = Vec::new();
    if let Some(reasoning) = &reply.reasoning {
        blocks.push((
            json!({"type": "thinking", "thinking": "", "signature": ""}),
            "thinking_delta",
            "thinking",
            reasoning,
        ));
    }
    if !reply.text.is_empty() {
        blocks.push((json!({"type": "text", "text": ""}), "text_delta", "text", &reply.text));
    }
    for (index, (name, arguments)) in reply.calls.iter().enumerate() {
        let opened = json!({"type": "tool_use", "id": call_id(answer, index), "name": name, "input": {}});
        blocks.push((opened, "input_json_delta", "partial_json", arguments));
    }

    let mut events = Vec::new();
    let mut say = |name: &str, mut data: Value| {
        data["type"] = json!(name);
        events.push(named_event(name, &data));
    };
    say("message_start", json!({"message": message(answer)}));
    say("ping", json!({}));
    for (index, (opened, kind, key, text)) in blocks.into_iter().enumerate() {
        let is_signed = opened.get("signature").is_some();
        say("content_block_start", json!({"index": index, "content_block": opened}));
        for piece in answer.pieces(text) {
            say("content_block_delta", json!({"index": index, "delta": {"type": kind, key: piece}}));
        }
        if is_signed {
            let delta = json!({"type": "signature_delta", "signature": signature(answer)});
            say("content_block_delta", json!({"index": index, "delta": delta}));
        }
        say("content_block_stop", json!({"index": index}));
    }
    let delta = json!({"stop_reason": stop_reason(answer), "stop_sequence": null});
    say("message_delta", json!({"delta": delta, "usage": {"output_tokens": reply.n_output}}));
    say("message_stop", json!({}));
    events
}

pub(super) fn whole(answer: &Answer<'_>) -> Value {
    let reply = answer.reply;
    let mut content = Vec::new();
    if let Some(reasoning) = &reply.reasoning {
        content.push(json!({"type": "thinking", "thinking": reasoning, "signature": signature(answer)}));
    }
    if !reply.text.is_empty() {
        content.push(json!({"type": "text", "text": reply.text}));
    }
    for (index, (name, arguments)) in reply.calls.iter().enumerate() {
        // Arguments that are not JSON cannot be written here, only in a stream.
        let input = serde_json::from_str(arguments).unwrap_or(json!({}));
        content.push(json!({"type": "tool_use", "id": call_id(answer, index), "name": name, "input": input}));
    }
    let mut whole = message(answer);
    whole["content"] = Value::Array(content);
    whole["stop_reason"] = json!(stop_reason(answer));
    whole["usage"]["output_tokens"] = json!(reply.n_output);
    whole
}

/// Returns the message without content. Its input tokens are those that were not in the cache.
fn message(answer: &Answer<'_>) -> Value {
    let reply = answer.reply;
    let mut message = json!({
        "id": format!("msg_{}", answer.id), "type": "message", "role": "assistant", "model": answer.asked.model,
        "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": {
            "input_tokens": reply.n_input.saturating_sub(reply.n_cached), "cache_read_input_tokens": reply.n_cached,
            "cache_creation_input_tokens": 0, "output_tokens": 1,
        },
    });
    if let Some(asked) = answer.asked.body.get("diagnostics") {
        let reason = reply.cache_miss.as_ref().filter(|_| !asked["previous_message_id"].is_null());
        message["diagnostics"] = json!({"cache_miss_reason": reason});
    }
    message
}

fn call_id(answer: &Answer<'_>, index: usize) -> String {
    format!("toolu_{}{index}", answer.id)
}

fn signature(answer: &Answer<'_>) -> String {
    format!("signed-{}", answer.id)
}

fn stop_reason(answer: &Answer<'_>) -> &'static str {
    match (answer.reply.cut_at_limit, answer.reply.calls.is_empty()) {
        (true, _) => "max_tokens",
        (false, true) => "end_turn",
        (false, false) => "tool_use",
    }
}

//! OpenAI's Responses format: items with parts, each opened, filled and closed by numbered events.

use serde_json::{Value, json};

use super::{Answer, named_event};

pub(super) fn events(answer: &Answer<'_>) -> Vec<String> {
    let mut events = Vec::new();
    let mut say = |name: &str, mut data: Value| {
        data["type"] = json!(name);
        data["sequence_number"] = json!(events.len());
        events.push(named_event(name, &data));
    };
    say("response.created", json!({"response": response(answer, "in_progress")}));
    say("response.in_progress", json!({"response": response(answer, "in_progress")}));
    for (index, item) in output(answer).iter().enumerate() {
        let at = json!({"item_id": item["id"], "output_index": index});
        let parted = match item["type"].as_str() {
            Some("reasoning") => Some(("summary", "summary_index", "reasoning_summary_part", "reasoning_summary_text")),
            Some("message") => Some(("content", "content_index", "content_part", "output_text")),
            _ => None,
        };
        let mut opened = item.clone();
        if let Some(status) = opened.get_mut("status") {
            *status = json!("in_progress");
        }
        if let Some((parts, part_index, part_event, text_event)) = parted {
            let (at, part) = (with(&at, part_index, json!(0)), &item[parts][0]);
            say("response.output_item.added", json!({"output_index": index, "item": with(&opened, parts, json!([]))}));
            say(&format!("response.{part_event}.added"), with(&at, "part", with(part, "text", json!(""))));
            for piece in answer.pieces(part["text"].as_str().unwrap_or_default()) {
                say(&format!("response.{text_event}.delta"), with(&at, "delta", json!(piece)));
            }
            say(&format!("response.{text_event}.done"), with(&at, "text", part["text"].clone()));
            say(&format!("response.{part_event}.done"), with(&at, "part", part.clone()));
        } else {
            let arguments = &item["arguments"];
            opened["arguments"] = json!("");
            say("response.output_item.added", json!({"output_index": index, "item": opened}));
            for piece in answer.pieces(arguments.as_str().unwrap_or_default()) {
                say("response.function_call_arguments.delta", with(&at, "delta", json!(piece)));
            }
            say("response.function_call_arguments.done", with(&at, "arguments", arguments.clone()));
        }
        say("response.output_item.done", json!({"output_index": index, "item": item}));
    }
    say(&format!("response.{}", status(answer)), json!({"response": whole(answer)}));
    events
}

pub(super) fn whole(answer: &Answer<'_>) -> Value {
    let reply = answer.reply;
    let mut whole = response(answer, status(answer));
    whole["output"] = Value::Array(output(answer));
    whole["usage"] = json!({
        "input_tokens": reply.n_input, "input_tokens_details": {"cached_tokens": reply.n_cached},
        "output_tokens": reply.n_output, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.n_input + reply.n_output,
    });
    if reply.cut_at_limit {
        whole["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    whole
}

/// Returns the response without its output.
pub(super) fn response(answer: &Answer<'_>, status: &str) -> Value {
    json!({
        "id": format!("resp_{}", answer.id), "object": "response", "created_at": answer.created, "status": status,
        "model": answer.asked.model, "output": [], "error": null, "incomplete_details": null, "usage": null,
        "parallel_tool_calls": true, "previous_response_id": null, "metadata": {},
    })
}

fn output(answer: &Answer<'_>) -> Vec<Value> {
    let (reply, id) = (answer.reply, &answer.id);
    let mut items = Vec::new();
    if let Some(reasoning) = &reply.reasoning {
        items.push(json!({
            "type": "reasoning", "id": format!("rs_{id}"), "encrypted_content": format!("sealed-{id}"),
            "summary": [{"type": "summary_text", "text": reasoning}],
        }));
    }
    if !reply.text.is_empty() {
        items.push(json!({
            "type": "message", "id": format!("msg_{id}"), "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}],
        }));
    }
    for (index, (name, arguments)) in reply.calls.iter().enumerate() {
        items.push(json!({
            "type": "function_call", "id": format!("fc_{id}{index}"), "status": "completed",
            "call_id": format!("call_{id}{index}"), "name": name, "arguments": arguments,
        }));
    }
    if let Some(status) = items.last_mut().and_then(|last| last.get_mut("status")) {
        *status = json!(self::status(answer));
    }
    items
}

fn status(answer: &Answer<'_>) -> &'static str {
    if answer.reply.cut_at_limit { "incomplete" } else { "completed" }
}

fn with(object: &Value, key: &str, value: Value) -> Value {
    let mut object = object.clone();
    object[key] = value;
    object
}

//! Chat completions as OpenAI and compatible providers stream them. Reasoning comes as `reasoning_content`, as DeepSeek sends it.

use serde_json::{Value, json};

use super::Answer;

pub(super) fn events(answer: &Answer<'_>) -> Vec<String> {
    let reply = answer.reply;
    let mut deltas = vec![json!({"role": "assistant", "content": ""})];
    if let Some(reasoning) = &reply.reasoning {
        let pieces = answer.pieces(reasoning);
        deltas.extend(pieces.iter().map(|piece| json!({"content": null, "reasoning_content": piece})));
    }
    if !reply.text.is_empty() {
        deltas.extend(answer.pieces(&reply.text).iter().map(|piece| json!({"content": piece})));
    }
    for (index, (name, _)) in reply.calls.iter().enumerate() {
        let function = json!({"name": name, "arguments": ""});
        let call = json!({"index": index, "id": call_id(answer, index), "type": "function", "function": function});
        deltas.push(json!({"tool_calls": [call]}));
    }
    // Parallel calls grow together, a piece of each in turn.
    let arguments: Vec<_> = reply.calls.iter().map(|(_, arguments)| answer.pieces(arguments)).collect();
    for round in 0..arguments.iter().map(Vec::len).max().unwrap_or(0) {
        for (index, pieces) in arguments.iter().enumerate() {
            if let Some(piece) = pieces.get(round) {
                deltas.push(json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}));
            }
        }
    }

    let with_usage = answer.asked.body["stream_options"]["include_usage"] == true;
    let event = |choices: Value, usage: Value| {
        let mut chunk = completion(answer, "chat.completion.chunk", choices);
        if with_usage {
            chunk["usage"] = usage;
        }
        format!("data: {chunk}\n\n")
    };
    let choice =
        |delta: Value, finish: Value| json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    let mut events: Vec<_> = deltas.into_iter().map(|delta| event(choice(delta, Value::Null), Value::Null)).collect();
    events.push(event(choice(json!({}), json!(finish(answer))), Value::Null));
    if with_usage {
        events.push(event(json!([]), usage(answer)));
    }
    events.push("data: [DONE]\n\n".to_owned());
    events
}

pub(super) fn whole(answer: &Answer<'_>) -> Value {
    let reply = answer.reply;
    let mut message = json!({"role": "assistant", "content": reply.text, "refusal": null});
    if let Some(reasoning) = &reply.reasoning {
        message["reasoning_content"] = json!(reasoning);
    }
    if !reply.calls.is_empty() {
        let call = |(index, (name, arguments)): (usize, &(String, String))| {
            let function = json!({"name": name, "arguments": arguments});
            json!({"id": call_id(answer, index), "type": "function", "function": function})
        };
        message["tool_calls"] = reply.calls.iter().enumerate().map(call).collect();
        if reply.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": finish(answer)});
    let mut whole = completion(answer, "chat.completion", json!([choice]));
    whole["usage"] = usage(answer);
    whole
}

fn completion(answer: &Answer<'_>, object: &str, choices: Value) -> Value {
    json!({
        "id": format!("chatcmpl-{}", answer.id), "object": object, "created": answer.created,
        "model": answer.asked.model, "system_fingerprint": "fp_scripted", "choices": choices,
    })
}

fn call_id(answer: &Answer<'_>, index: usize) -> String {
    format!("call_{}{index}", answer.id)
}

fn finish(answer: &Answer<'_>) -> &'static str {
    match (answer.reply.cut_at_limit, answer.reply.calls.is_empty()) {
        (true, _) => "length",
        (false, true) => "stop",
        (false, false) => "tool_calls",
    }
}

fn usage(answer: &Answer<'_>) -> Value {
    let reply = answer.reply;
    json!({
        "prompt_tokens": reply.n_input, "completion_tokens": reply.n_output, "total_tokens": reply.n_input + reply.n_output,
        "prompt_tokens_details": {"cached_tokens": reply.n_cached},
    })
}

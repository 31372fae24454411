//! How each provider reports an error.

use serde_json::{Value, json};

use super::{Answer, Format, named_event, responses};

/// A line that is neither an event nor JSON.
pub(super) const GARBAGE: &str = "data: {\"choices\":[{\"delta\":{\"con\n\n";

/// Returns the body of an HTTP error.
pub(super) fn body(format: Format, code: u16, message: &str) -> Value {
    let (openai, openai_code, anthropic) = match code {
        401 => ("invalid_request_error", json!("invalid_api_key"), "authentication_error"),
        403 => ("invalid_request_error", json!("unsupported_country_region_territory"), "permission_error"),
        404 => ("invalid_request_error", json!("model_not_found"), "not_found_error"),
        413 => ("invalid_request_error", Value::Null, "request_too_large"),
        429 => ("requests", json!("rate_limit_exceeded"), "rate_limit_error"),
        503 | 529 => ("server_error", Value::Null, "overloaded_error"),
        500.. => ("server_error", Value::Null, "api_error"),
        _ => ("invalid_request_error", Value::Null, "invalid_request_error"),
    };
    match format {
        Format::AnthropicMessages => json!({"type": "error", "error": {"type": anthropic, "message": message}}),
        _ => json!({"error": {"message": message, "type": openai, "param": null, "code": openai_code}}),
    }
}

/// Returns the event for an error after `n` events. OpenAI has two kinds: a response that has not begun cannot fail.
pub(super) fn event(answer: &Answer<'_>, n: usize, message: &str) -> String {
    match answer.asked.format {
        Format::OpenaiChat => format!("data: {}\n\n", body(Format::OpenaiChat, 500, message)),
        Format::AnthropicMessages => named_event("error", &body(Format::AnthropicMessages, 529, message)),
        Format::OpenaiResponses if n == 0 => {
            let error = json!({
                "type": "error", "sequence_number": n, "code": "server_error", "message": message, "param": null,
            });
            named_event("error", &error)
        }
        Format::OpenaiResponses => {
            let mut response = responses::response(answer, "failed");
            response["error"] = json!({"code": "server_error", "message": message});
            let failed = json!({"type": "response.failed", "sequence_number": n, "response": response});
            named_event("response.failed", &failed)
        }
    }
}

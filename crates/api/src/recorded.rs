//! What is known of the operations from real requests: the scopes that may use each, and an example.
//!
//! A test makes the requests and writes `recorded.json` (`UPDATE=1 cargo nextest run -p waybill-api examples`). The document shows it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::openapi::{Content, OpenApi, RefOr};

const RECORDED: &str = include_str!("recorded.json");

/// A request that was answered.
#[derive(Debug, Deserialize)]
struct Example {
    /// The scopes that are not refused.
    scopes: Vec<String>,
    #[serde(default)]
    request: Option<Value>,
    status: u16,
    response: Value,
}

/// Gives every operation its scopes (`x-scopes`) and its example.
pub(crate) fn show(document: &mut OpenApi) {
    let recorded: BTreeMap<String, Example> = serde_json::from_str(RECORDED).expect("a test has written it");
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let name = operation.operation_id.as_deref().unwrap_or_default();
            let Some(Example { scopes, request, status, response }) = recorded.get(name) else { continue };
            operation.extensions.get_or_insert_default().insert("x-scopes".to_owned(), json!(scopes));
            if let (Some(RefOr::T(body)), Some(request)) = (&mut operation.request_body, request) {
                body.content.values_mut().for_each(|content| give(content, request));
            }
            if let Some(RefOr::T(answer)) = operation.responses.responses.get_mut(&status.to_string()) {
                answer.content.values_mut().for_each(|content| give(content, response));
            }
        }
    }
}

fn give(content: &mut RefOr<Content>, example: &Value) {
    if let RefOr::T(content) = content {
        content.example = Some(example.clone());
    }
}

//! The OpenAPI document.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::examples::WITHOUT;

pub(crate) fn document() -> Value {
    serde_json::to_value(waybill_api::document()).unwrap()
}

/// An operation of the document, and what the document says of it.
pub(crate) struct Operation {
    pub(crate) name: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) said: Value,
}

pub(crate) fn operations(document: &Value) -> Vec<Operation> {
    let paths = document["paths"].as_object().unwrap().iter();
    let all = paths.flat_map(|(path, item)| item.as_object().unwrap().iter().map(move |operation| (path, operation)));
    let read = |(path, (method, said)): (&String, (&String, &Value))| Operation {
        name: said["operationId"].as_str().unwrap().to_owned(),
        method: method.to_uppercase().parse().unwrap(),
        path: path.clone(),
        said: said.clone(),
    };
    all.map(read).collect()
}

/// UI-1, UI-8
#[test]
fn every_operation_is_described_and_says_what_it_refuses_with() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    let (mut n, mut ids) = (0, BTreeSet::new());
    for (path, operations) in document["paths"].as_object().unwrap() {
        let outside = ["/v1/me", "/v1/projects"].contains(&path.as_str()) || path.starts_with("/ui/");
        assert!(path.starts_with("/v1/projects/{project}") || outside, "{path}");
        for (method, operation) in operations.as_object().unwrap() {
            n += 1;
            let place = format!("{method} {path}");
            assert!(operation["summary"].as_str().is_some_and(|said| said.len() > 5), "{place}");
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{place}: its id is taken");
            let refusal = &operation["responses"]["default"]["content"]["application/problem+json"];
            assert_eq!(refusal["schema"]["$ref"], "#/components/schemas/Problem", "{place}");
            let name = operation["operationId"].as_str().unwrap();
            let record = "run `UPDATE=1 cargo nextest run -p waybill-api examples`, and build it again";
            assert!(WITHOUT.iter().any(|one| one.0 == name) || operation["x-scopes"].is_array(), "{name}: {record}");
        }
    }
    assert!(n >= 36, "{n}");
}

/// SE-11: an operation takes a key or a cookie; those that log a browser in take neither.
#[test]
fn every_operation_says_how_its_caller_is_known() {
    let document = document();
    assert_eq!(document["security"], json!([{ "key": [] }, { "cookie": [] }]));
    let schemes = &document["components"]["securitySchemes"];
    assert_eq!((&schemes["key"]["scheme"], &schemes["cookie"]["in"]), (&json!("bearer"), &json!("cookie")));
    let session = &document["paths"]["/ui/session"];
    assert_eq!(
        (&session["post"]["security"], &session["delete"]["security"]),
        (&json!([{}]), &json!([{ "cookie": [] }]))
    );
    assert_eq!(document["paths"]["/v1/me"]["get"]["security"], Value::Null, "as all others");
}

/// Two types under one name would be one in the document.
#[test]
fn every_reference_has_its_schema_and_the_lists_are_of_what_they_list() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for reference in references(&document) {
        let name = reference.strip_prefix("#/components/schemas/").unwrap();
        assert!(schemas.contains_key(name), "{name}");
    }
    for (name, field) in [
        ("Agent", "ephemeral"),
        ("Key", "scope"),
        ("Resource", "version"),
        ("Shown", "steps"),
        ("Seen", "messages"),
        ("SessionChange", "patch"),
        ("TurnEvent", "outbox_seq"),
        ("Receipt", "request_hash"),
        ("Profile", "llm_config"),
        ("Settings", "egress_hosts"),
    ] {
        assert!(schemas[name]["properties"].get(field).is_some(), "{name}: {}", schemas[name]);
    }
}

fn references(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| match key.as_str() {
                "$ref" => value.as_str().into_iter().collect(),
                // What was recorded may be a schema of its own.
                "example" => Vec::new(),
                _ => references(value),
            })
            .collect(),
        Value::Array(values) => values.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

/// UI-6: a generated client knows the fields of every object. What may be any JSON is a schema that allows any JSON.
#[test]
fn no_object_is_without_fields() {
    let document = document();
    let mut untyped = Vec::new();
    look(&document, "", &mut untyped);
    assert!(untyped.is_empty(), "{untyped:#?}");
}

fn look(value: &Value, place: &str, untyped: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let is_object = match &fields.get("type") {
                Some(Value::String(name)) => name == "object",
                Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
                _ => false,
            };
            let says = ["properties", "additionalProperties", "oneOf", "allOf", "anyOf"];
            if is_object && !says.iter().any(|word| fields.contains_key(*word)) {
                untyped.push(place.to_owned());
            }
            let said = fields.iter().filter(|(key, _)| *key != "example");
            said.for_each(|(key, value)| look(value, &format!("{place}/{key}"), untyped));
        }
        Value::Array(values) => values.iter().for_each(|value| look(value, place, untyped)),
        _ => {}
    }
}

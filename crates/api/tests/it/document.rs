//! The OpenAPI document.

use std::collections::BTreeSet;

use serde_json::Value;

fn document() -> Value {
    serde_json::to_value(waybill_api::document()).unwrap()
}

/// UI-1
#[test]
fn every_operation_is_described_and_says_what_it_refuses_with() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    let (mut n, mut ids) = (0, BTreeSet::new());
    for (path, operations) in document["paths"].as_object().unwrap() {
        assert!(path.starts_with("/v1/projects/{project}") || path == "/v1/me", "{path}");
        for (method, operation) in operations.as_object().unwrap() {
            n += 1;
            let place = format!("{method} {path}");
            assert!(operation["summary"].as_str().is_some_and(|said| said.len() > 5), "{place}");
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{place}: its id is taken");
            let refusal = &operation["responses"]["default"]["content"]["application/problem+json"];
            assert_eq!(refusal["schema"]["$ref"], "#/components/schemas/Problem", "{place}");
        }
    }
    assert!(n >= 36, "{n}");
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
            .flat_map(
                |(key, value)| if key == "$ref" { value.as_str().into_iter().collect() } else { references(value) },
            )
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
            fields.iter().for_each(|(key, value)| look(value, &format!("{place}/{key}"), untyped));
        }
        Value::Array(values) => values.iter().for_each(|value| look(value, place, untyped)),
        _ => {}
    }
}

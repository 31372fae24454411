//! JSON Schemas of projects. A few lines of schema can take hours to check, so the amount of work is estimated beforehand: when the schema is
//! applied, and again with each value to check.

use std::collections::HashMap;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

/// The largest schema, as it is written.
const MOST_BYTES: usize = 256 << 10;
/// The most parts of a schema once every `$ref` is replaced by what it names.
const MOST_PARTS: u64 = 50_000;
/// Parts of the schema times parts of the value: about a second.
const MOST_STEPS: u64 = 20_000_000;
/// Steps that take only a moment: a check with more of them must not block a thread that other tasks need.
const A_MOMENT: u64 = 50_000;

/// The largest schema of a result: a model gets it with every call.
const MOST_RESULT_BYTES: usize = 64 << 10;

/// Checks whether a value can be the schema that results must fit (`task.result_schema`).
pub fn check_result(schema: &Value) -> Result<(), String> {
    if schema["type"] != "object" {
        return Err("the schema must have `\"type\": \"object\"`: put other values into a property".to_owned());
    }
    if schema.to_string().len() > MOST_RESULT_BYTES {
        return Err(format!("the schema has more than {MOST_RESULT_BYTES} bytes"));
    }
    Schema::new(schema).map(drop)
}

/// A schema that can be used.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    n_parts: u64,
}

impl Schema {
    pub fn new(schema: &Value) -> Result<Schema, String> {
        if schema.to_string().len() > MOST_BYTES {
            return Err(format!("the schema has more than {MOST_BYTES} bytes"));
        }
        let n_parts = Expanding { root: schema, known: HashMap::new() }.count(schema)?;
        if n_parts > MOST_PARTS {
            return Err(format!("the schema has more than {MOST_PARTS} parts once every `$ref` is followed"));
        }
        // A pattern takes one pass over the text for each of its states, so their number is limited.
        let patterns = PatternOptions::regex().size_limit(64 << 10).dfa_size_limit(1 << 20);
        let validator = jsonschema::options().with_pattern_options(patterns).build(schema);
        Ok(Schema { validator: validator.map_err(|error| error.to_string())?, n_parts })
    }

    /// Checks whether checking this value takes more than a moment.
    pub fn is_slow(&self, value: &Value) -> bool {
        self.n_steps(value) > A_MOMENT
    }

    fn n_steps(&self, value: &Value) -> u64 {
        self.n_parts.saturating_mul(size(value))
    }

    /// Returns where the value does not match the schema, and why, at most `most` of them. An empty list means that it matches.
    pub fn violations(&self, value: &Value, most: usize) -> Vec<(String, String)> {
        if self.n_steps(value) > MOST_STEPS {
            return vec![(
                String::new(),
                "the value is too large to be checked against this schema: send less at a time".to_owned(),
            )];
        }
        // `iter_errors` finds all errors before it returns the first, so a slow check stops at one error.
        let errors: Vec<_> = match self.is_slow(value) {
            true => self.validator.validate(value).err().into_iter().collect(),
            false => self.validator.iter_errors(value).take(most).collect(),
        };
        errors
            .into_iter()
            .map(|error| (error.instance_path().to_string(), error.to_string().chars().take(300).collect()))
            .collect()
    }
}

/// Counts the values within a value, and itself. A long text counts as several.
fn size(value: &Value) -> u64 {
    match value {
        Value::Array(values) => values.iter().map(size).sum::<u64>() + 1,
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() as u64 / 64 + size(value)).sum::<u64>() + 1,
        Value::String(text) => text.len() as u64 / 64 + 1,
        _ => 1,
    }
}

/// Counts parts as if what a `$ref` names stood in its place.
struct Expanding<'s> {
    root: &'s Value,
    /// `None` means that it is being counted at the moment.
    known: HashMap<&'s str, Option<u64>>,
}

/// The parts for which a pattern counts, whatever it is: its time is limited by its largest size.
const PATTERN: u64 = 512;

impl<'s> Expanding<'s> {
    /// Counts the parts of a schema. Below a keyword is a schema, a list or a map of schemas, or no schema at all.
    fn count(&mut self, schema: &'s Value) -> Result<u64, String> {
        let mut n = 1_u64;
        let Value::Object(fields) = schema else { return Ok(n) };
        for (key, value) in fields {
            let more = match (key.as_str(), value) {
                ("$ref", Value::String(name)) => self.named(name)?,
                ("$dynamicRef" | "$recursiveRef" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor", _)
                | ("unevaluatedProperties" | "unevaluatedItems", _) => {
                    return Err(format!("`{key}` is not supported: use `$ref`, `properties` and `items`"));
                }
                ("$id" | "id", Value::String(_)) if !std::ptr::eq(schema, self.root) => {
                    return Err(format!("`{key}` is allowed only at the top level of a schema"));
                }
                // Counted where a `$ref` names them.
                ("$defs" | "definitions", Value::Object(_)) => 0,
                ("properties" | "dependentSchemas" | "dependencies", Value::Object(named)) => {
                    self.sum(named.values())?
                }
                ("patternProperties", Value::Object(named)) => {
                    self.sum(named.values())?.saturating_add(named.len() as u64 * PATTERN)
                }
                ("pattern", _) => PATTERN,
                ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(schemas)) => self.sum(schemas)?,
                (
                    "items"
                    | "additionalItems"
                    | "contains"
                    | "additionalProperties"
                    | "propertyNames"
                    | "if"
                    | "then"
                    | "else"
                    | "not"
                    | "contentSchema",
                    schema,
                ) => self.count(schema)?,
                (_, value) => size(value),
            };
            n = n.saturating_add(more);
        }
        Ok(n)
    }

    fn sum(&mut self, schemas: impl IntoIterator<Item = &'s Value>) -> Result<u64, String> {
        schemas.into_iter().try_fold(0_u64, |n, schema| Ok(n.saturating_add(self.count(schema)?)))
    }

    fn named(&mut self, name: &'s str) -> Result<u64, String> {
        match self.known.get(name) {
            Some(Some(n)) => return Ok(*n),
            Some(None) => {
                return Err(format!("`$ref: {name}` leads back to itself: recursive schemas are not supported"));
            }
            None => {}
        }
        let pointer = name.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let pointer = pointer.filter(|pointer| !pointer.contains('%'));
        let pointer =
            pointer.ok_or_else(|| format!("`$ref: {name}`: name a part of the same schema, such as `#/$defs/part`"))?;
        let found = self.root.pointer(pointer).ok_or_else(|| format!("`$ref: {name}`: the schema has no such part"))?;
        self.known.insert(name, None);
        let n = self.count(found)?;
        self.known.insert(name, Some(n));
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Map, json};

    use super::*;

    /// Each of `n` parts names the next one twice: 2^n parts.
    fn doubling(n: usize) -> Value {
        let mut parts = Map::from_iter([(format!("p{n}"), json!({ "type": "object" }))]);
        for i in 0..n {
            let next = json!({ "$ref": format!("#/$defs/p{}", i + 1) });
            parts.insert(format!("p{i}"), json!({ "allOf": [next, next] }));
        }
        json!({ "$defs": parts, "$ref": "#/$defs/p0" })
    }

    #[test]
    fn a_schema_that_would_take_hours_is_refused() {
        assert!(Schema::new(&doubling(8)).is_ok());
        for n in [25, 35, 200] {
            assert!(Schema::new(&doubling(n)).unwrap_err().contains("parts"), "{n}");
        }
        let error = |schema: Value| Schema::new(&schema).unwrap_err();
        assert!(error(json!({ "properties": { "next": { "$ref": "#" } } })).contains("back to itself"));
        assert!(
            error(json!({ "$defs": { "a": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" })).contains("back to itself")
        );
        assert!(error(json!({ "$ref": "https://example.com/schema" })).contains("same schema"));
        assert!(error(json!({ "$dynamicRef": "#x" })).contains("$dynamicRef"));
        // Names that look like keywords, encoded names, and another root.
        let bomb = doubling(35)["$defs"].clone();
        for name in ["definitions", "$defs", "default", "const", "enum", "examples"] {
            let hidden = json!({ "$defs": bomb, "properties": { name: { "$ref": "#/$defs/p0" } } });
            assert!(error(hidden).contains("parts"), "{name}");
            let hidden = json!({ "$defs": bomb, "patternProperties": { name: { "$ref": "#/$defs/p0" } } });
            assert!(error(hidden).contains("parts"), "{name}");
        }
        assert!(
            error(json!({ "$defs": bomb, "$%64efs": { "p0": {} }, "$ref": "#/$%64efs/p0" })).contains("same schema")
        );
        let other = json!({ "properties": { "x": { "$id": "urn:x", "$defs": bomb, "$ref": "#/$defs/p0" } }, "$defs": { "p0": {} } });
        assert!(error(other).contains("$id"));
        assert!(error(json!({ "anyOf": [{}], "unevaluatedProperties": false })).contains("unevaluatedProperties"));
        assert!(!error(json!({ "pattern": "[ab]*a[ab]{5000}c" })).is_empty());
        assert!(!error(json!({ "pattern": "(?=a)b" })).is_empty(), "what cannot be looked for in one pass");
        assert!(!error(json!({ "pattern": "((a{1000}){1000}){1000}" })).is_empty());
        assert!(error(json!({ "enum": vec!["x".repeat(1000); 300] })).contains("bytes"));
    }

    /// WK-4
    #[test]
    fn the_schema_of_a_result_is_an_object_and_small() {
        let error = |schema: Value| check_result(&schema).unwrap_err();
        assert_eq!(check_result(&json!({ "type": "object", "properties": { "a": { "type": "string" } } })), Ok(()));
        assert!(error(json!({ "type": "array" })).contains("object") && error(json!(7)).contains("object"));
        assert!(error(json!({ "type": "object", "title": "x".repeat(70_000) })).contains("bytes"));
        assert!(error(json!({ "type": "object", "$ref": "https://example.com/schema" })).contains("same schema"));
    }

    #[test]
    fn what_is_named_like_a_reference_is_none() {
        let schema =
            json!({ "properties": { "$ref": { "type": "string" } }, "enum": [{ "$ref": "#" }, { "$ref": "x" }] });
        assert_eq!(Schema::new(&schema).unwrap().violations(&json!({ "$ref": "x" }), 5), []);
    }

    #[test]
    fn a_value_that_is_too_large_for_its_schema_is_refused() {
        let many: Map<String, Value> = (0..2_000).map(|n| (format!("p{n}"), json!({ "type": "string" }))).collect();
        let schema = Schema::new(&json!({ "items": { "properties": many } })).unwrap();
        assert_eq!(schema.violations(&json!([{ "p1": "x" }]), 5), []);
        assert!(!schema.is_slow(&json!([{ "p1": "x" }])));
        let large = Value::Array(vec![json!({ "p1": 1 }); 50_000]);
        assert!(schema.is_slow(&large) && schema.violations(&large, 5)[0].1.contains("too large"));
        assert_eq!(schema.violations(&json!([{ "p1": 1 }]), 5)[0].0, "/0/p1");
    }
}

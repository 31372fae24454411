//! Parts of JSON Schemas for the arguments of tools.

use serde_json::{Value, json};

/// Returns the schema of an object that has no other properties.
pub fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// Returns the schema of a text.
pub fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

//! Whether arguments, answers and manifests fit their schemas.

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value, json};
use tokio::runtime::{Handle, RuntimeFlavor};
use waybill_context::{handoff, schema::Schema};
use waybill_core::{
    card::ResultContent,
    resource::{Manifest, Settings, Tool},
    tool::TOOLS,
};
use waybill_kernel::{resource, turn};

/// Checks a value against a schema. The error says in one line where it does not match.
pub fn fits(schema: &Map<String, Value>, value: &Value) -> Result<(), String> {
    matches(&compile(schema)?, value)
}

/// Compiles a schema, for several checks.
pub fn compile(schema: &Map<String, Value>) -> Result<Schema, String> {
    Schema::new(&Value::Object(schema.clone())).map_err(|why| format!("the schema is not a valid JSON Schema: {why}"))
}

/// Checks a value against a compiled schema. The error says in one line where it does not match.
pub fn matches(schema: &Schema, value: &Value) -> Result<(), String> {
    let check = || schema.violations(value, 5);
    let violations = if schema.is_slow(value) { beside(check) } else { check() };
    let wrong = |(at, why): (String, String)| if at.is_empty() { why } else { format!("{at}: {why}") };
    let errors: Vec<String> = violations.into_iter().map(wrong).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("; ").chars().take(800).collect()) }
}

/// Runs slow work without blocking other tasks of this thread.
fn beside<T>(act: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(act),
        _ => act(),
    }
}

/// Returns a tool's answer as it is reported: an answer that does not match the tool's own schema is a failure.
pub fn checked(tool: &Tool, status: &str, result: Value) -> (String, Value) {
    match &tool.result {
        Some(schema) if status == ResultContent::SUCCESS => match fits(schema, &result) {
            Ok(()) => (status.to_owned(), result),
            Err(why) => {
                ("failed".to_owned(), json!(format!("the result of `{}` does not match its schema: {why}", tool.name)))
            }
        },
        _ => (status.to_owned(), result),
    }
}

/// Returns what is wrong with a resource. An error of the database says nothing about the resource, and is returned as an error.
pub fn fault(error: resource::Error) -> Result<resource::Error, turn::Error> {
    match error {
        resource::Error::Db(error) => Err(error.into()),
        fault => Ok(fault),
    }
}

/// Returns a resource, or `None` if there is none that can be read.
pub fn readable<T>(outcome: Result<T, resource::Error>) -> Result<Option<T>, turn::Error> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) => fault(error).map(|_| None),
    }
}

/// Checks whether the schemas of a manifest can be used.
pub fn check_manifest(manifest: &Manifest) -> Result<(), String> {
    match manifest {
        Manifest::Tool(tool) => check_schemas(tool),
        Manifest::HandoffType(handoff_type) => handoff::check_type(handoff_type),
        Manifest::Settings(settings) => withheld(settings).map(drop),
        Manifest::Profile(_) | Manifest::Plan(_) => Ok(()),
    }
}

/// How many expressions a project may withhold text by, and how much memory each may take.
const MOST_WITHHELD: usize = 32;
const MOST_OF_PATTERN: usize = 256 << 10;

/// Returns what a project withholds from its records.
pub fn withheld(settings: &Settings) -> Result<Vec<Regex>, String> {
    if settings.withhold.len() > MOST_WITHHELD {
        return Err(format!("`withhold` has more than {MOST_WITHHELD} expressions: join some with `|`"));
    }
    let pattern = |text: &String| {
        let built = RegexBuilder::new(text).size_limit(MOST_OF_PATTERN).build();
        let built = built.map_err(|error| format!("`withhold`: {error}"))?;
        match built.is_match("") {
            true => Err(format!("`withhold`: {text:?} matches a text without characters: it would withhold nothing")),
            false => Ok(built),
        }
    };
    settings.withhold.iter().map(pattern).collect()
}

fn check_schemas(tool: &Tool) -> Result<(), String> {
    let name = &tool.name;
    match (&tool.http, &tool.mcp) {
        (Some(_), Some(_)) => return Err(format!("tool `{name}`: set `http` or `mcp`, not both")),
        (None, None) if tool.target.as_str() == TOOLS => {
            return Err(format!(
                "tool `{name}`: set `http` or `mcp` to say how it is reached, or `target` to say which workers claim its calls"
            ));
        }
        (None, Some(mcp)) if mcp.server.is_some() == mcp.url.is_some() => {
            return Err(format!("tool `{name}`: `mcp` must have either a `server` or a `url`, and not both"));
        }
        (None, Some(mcp)) if mcp.server.is_some() && !mcp.headers.is_empty() => {
            return Err(format!(
                "tool `{name}`: `headers` can be set only with a `url`; the operator sets the headers of a `server`"
            ));
        }
        (None, Some(mcp)) if mcp.url.as_ref().is_some_and(|url| !url.names().is_empty()) => {
            return Err(format!("tool `{name}`: the address of an MCP server must not contain `{{arguments}}`"));
        }
        (Some(http), None) => {
            let known = tool.parameters.get("properties").and_then(Value::as_object);
            let required: Vec<&str> = tool
                .parameters
                .get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            if let Some(missing) = http.url.names().into_iter().find(|name| !required.contains(name)) {
                return Err(format!(
                    "tool `{name}`: `{missing}` is part of the address, so add it to `required` in `parameters`"
                ));
            }
            let unknown = http.query.iter().find(|name| known.is_none_or(|known| !known.contains_key(*name)));
            if let Some(unknown) = unknown {
                return Err(format!(
                    "tool `{name}`: `query` contains `{unknown}`, which is not in `properties` of `parameters`"
                ));
            }
        }
        _ => {}
    }
    for (what, schema) in [("parameters", Some(&tool.parameters)), ("result", tool.result.as_ref())] {
        let Some(schema) = schema else { continue };
        Schema::new(&Value::Object(schema.clone()))
            .map_err(|why| format!("tool `{}`: `{what}` is not a valid JSON Schema: {why}", tool.name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A tool's answer is checked against the tool's own schema.
    #[test]
    fn an_answer_is_as_the_tool_said() {
        let search: Tool = serde_json::from_value(json!({
            "name": "search", "description": "d", "target": "web", "effect": "pure", "result": { "type": "array" },
            "parameters": { "type": "object", "properties": { "q": { "type": "string" } }, "required": ["q"] },
        }))
        .unwrap();
        assert_eq!(checked(&search, "success", json!([1])), ("success".into(), json!([1])));
        assert_eq!(checked(&search, "success", json!("x")).0, "failed");
        assert_eq!(checked(&search, "failed", json!("x")), ("failed".into(), json!("x")));
        assert!(check_schemas(&search).is_ok());
        let broken = Tool { parameters: json!({ "type": 7 }).as_object().unwrap().clone(), ..search };
        assert!(check_schemas(&broken).unwrap_err().contains("parameters"));
    }
}

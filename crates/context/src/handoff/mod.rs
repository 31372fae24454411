//! Handoff packages (HO-1 … HO-8): what a package must contain, what must be true before it is sent, and how much of its artifacts to read.
//!
//! A type is data: a JSON Schema and a gate. The two built-in types are written like those of a project, and nothing here knows their fields.
//! A package itself is JSON and stays so: unknown fields are passed on unchanged.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Serialize;
use serde_json::{Map, Value, json};
use waybill_core::{
    artifact::ArtifactPath,
    error::causes,
    handoff::{ApprovalRule, HandoffType},
    json,
    resource::Manifest,
    tokens::{self, Tokens},
};

use crate::schema::Schema;

pub mod load;
pub mod plan;

/// The version of the package format, not of a type.
pub const VERSION: &str = "2.0";

/// How many problems are reported at once.
const MOST_PROBLEMS: usize = 100;

/// Returns the built-in types, `init_to_execute` and `execute_to_init`.
pub fn built_in() -> &'static [HandoffType] {
    static TYPES: LazyLock<Vec<HandoffType>> = LazyLock::new(|| {
        let written = [include_str!("init_to_execute.yaml"), include_str!("execute_to_init.yaml")];
        let types = written.map(|text| match serde_saphyr::from_str(text) {
            Ok(Manifest::HandoffType(handoff_type)) => *handoff_type,
            other => panic!("a type that is built in cannot be read: {other:?}"),
        });
        types.into()
    });
    &TYPES
}

/// The checks of a package, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Its own content.
    Schema,
    /// The artifacts that it names exist, as they were stored.
    Path,
    /// The artifacts that it names are as its type requires.
    Gate,
    /// Its length.
    Size,
}

/// One problem of a package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub check: Check,
    /// Where in the package, as a JSON Pointer; or the path of an artifact.
    pub at: String,
    pub problem: String,
    pub advice: String,
}

impl Problem {
    pub fn new(check: Check, at: impl Into<String>, problem: impl Into<String>, advice: impl Into<String>) -> Problem {
        Problem { check, at: at.into(), problem: problem.into(), advice: advice.into() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = if self.at.is_empty() { "the package" } else { &self.at };
        write!(f, "{at}: {}: {}", self.problem, self.advice)
    }
}

/// Returns the complete JSON Schema of a type's packages, as it is published (HO-3).
pub fn published(handoff_type: &HandoffType) -> Value {
    let HandoffType { name, description, schema, .. } = handoff_type;
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": format!("urn:waybill:handoff:{VERSION}:{name}"),
        "title": name,
        "description": description,
        "type": "object",
        "required": ["version", "handoff_type", "timestamp"],
        "properties": {
            "version": { "const": VERSION },
            "handoff_type": { "const": name },
            "timestamp": { "type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}" },
            "metadata": { "type": "object" },
        },
        "allOf": [schema],
    })
}

/// Checks whether a type can be used.
pub fn check_type(handoff_type: &HandoffType) -> Result<(), String> {
    let HandoffType { name, gate, .. } = handoff_type;
    let fail = |what: &str, why: &dyn std::fmt::Display| Err(format!("handoff_type `{name}`: {what}: {why}"));
    if let Err(error) = Schema::new(&published(handoff_type)) {
        return fail("schema", &error);
    }
    let empty = Map::new();
    let paths = gate.paths.iter().map(|rule| ("gate.paths", rule.schema.as_ref()));
    let files = gate.files.iter().map(|rule| ("gate.files", rule.schema.as_ref()));
    let warnings = gate.warnings.iter().map(|rule| ("gate.warnings", Some(&rule.unless)));
    let approval = gate.approval.iter().map(|rule| ("gate.approval", Some(&rule.when)));
    for (what, schema) in paths.chain(files).chain(warnings).chain(approval) {
        if let Err(error) = Schema::new(&Value::Object(schema.unwrap_or(&empty).clone())) {
            return fail(what, &error);
        }
    }
    let at = gate.paths.iter().map(|rule| &rule.at).chain(gate.folders.iter().map(|rule| &rule.at));
    let within = gate.paths.iter().filter_map(|rule| rule.within.as_ref());
    let within = within.chain(gate.files.iter().filter_map(|rule| rule.within.as_ref()));
    let priority = gate.priority.iter().flat_map(|rule| [&rule.items, &rule.at]);
    if let Some(pointer) = at.chain(within).chain(priority).find(|pointer| !pointer.starts_with('/')) {
        return fail("gate", &format!("`{pointer}` is not a JSON Pointer such as `/design_artifacts/*`"));
    }
    if let Some(error) = gate.files.iter().find_map(|rule| rule.path.parse::<ArtifactPath>().err()) {
        return fail("gate.files", &error);
    }
    Ok(())
}

/// HO-3 … HO-5: checks a package against the schema of its type.
pub fn check_schema(handoff_type: &HandoffType, package: &Map<String, Value>) -> Vec<Problem> {
    let advice = format!("see `waybill handoff schema {}`", handoff_type.name);
    violations(&published(handoff_type), &Value::Object(package.clone()))
        .into_iter()
        .map(|(at, problem)| Problem::new(Check::Schema, at, problem, advice.clone()))
        .collect()
}

fn violations(schema: &Value, value: &Value) -> Vec<(String, String)> {
    match Schema::new(schema) {
        Ok(schema) => schema.violations(value, MOST_PROBLEMS),
        Err(error) => vec![(String::new(), format!("the schema is not a valid JSON Schema: {error}"))],
    }
}

fn fits(schema: &Map<String, Value>, package: &Map<String, Value>) -> bool {
    violations(&Value::Object(schema.clone()), &Value::Object(package.clone())).is_empty()
}

/// An artifact that must exist, and what it must be.
#[derive(Clone, Debug, PartialEq)]
pub struct Named<'t> {
    /// Where the package names it. Empty means that its type requires it.
    pub at: String,
    pub path: ArtifactPath,
    pub media_type: Option<&'t str>,
    pub schema: Option<&'t Map<String, Value>>,
}

/// The artifacts and folders that a package names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mentioned<'t> {
    pub artifacts: Vec<Named<'t>>,
    /// Everything below these folders is handed over too.
    pub folders: Vec<ArtifactPath>,
    /// Values that should be paths and are not.
    pub problems: Vec<Problem>,
}

/// HO-1: finds everything that a package names, at the places that its type lists.
pub fn mentioned<'t>(handoff_type: &'t HandoffType, package: &Map<String, Value>) -> Mentioned<'t> {
    let gate = &handoff_type.gate;
    let whole = Value::Object(package.clone());
    let mut mentioned = Mentioned::default();
    for rule in &gate.paths {
        for (at, value) in resolve(&whole, &rule.at) {
            match path_of(&whole, value, rule.within.as_deref()) {
                Ok(path) => mentioned.artifacts.push(Named {
                    at,
                    path,
                    media_type: rule.media_type.as_deref(),
                    schema: rule.schema.as_ref(),
                }),
                Err(why) => mentioned.problems.push(not_a_path(at, why)),
            }
        }
    }
    for rule in &gate.files {
        match path_of(&whole, &Value::from(rule.path.as_str()), rule.within.as_deref()) {
            Ok(path) => mentioned.artifacts.push(Named {
                at: String::new(),
                path,
                media_type: rule.media_type.as_deref(),
                schema: rule.schema.as_ref(),
            }),
            Err(why) => mentioned.problems.push(not_a_path(rule.within.clone().unwrap_or_default(), why)),
        }
    }
    for rule in &gate.folders {
        for (at, value) in resolve(&whole, &rule.at) {
            match path_of(&whole, value, None) {
                Ok(path) => mentioned.folders.push(path),
                Err(why) => mentioned.problems.push(not_a_path(at, why)),
            }
        }
    }
    mentioned.problems.dedup();
    mentioned.problems.truncate(MOST_PROBLEMS);
    mentioned
}

fn not_a_path(at: String, why: String) -> Problem {
    Problem::new(Check::Path, at, why, "write the path of an artifact of this project")
}

fn path_of(whole: &Value, value: &Value, within: Option<&str>) -> Result<ArtifactPath, String> {
    let text = |value: Option<&Value>, what: &str| match value.and_then(Value::as_str) {
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("{what} must be a string")),
    };
    let path = text(Some(value), "the path")?;
    match within {
        None => path.parse().map_err(|error: waybill_core::artifact::MalformedPath| error.to_string()),
        Some(within) => {
            let folder = text(whole.pointer(within), within)?;
            let folder: ArtifactPath =
                folder.parse().map_err(|error: waybill_core::artifact::MalformedPath| error.to_string())?;
            folder.join(&path).map_err(|error| error.to_string())
        }
    }
}

/// Returns all values at a JSON Pointer in which `*` matches each element, and their places.
fn resolve<'v>(whole: &'v Value, pointer: &str) -> Vec<(String, &'v Value)> {
    let mut found = vec![(String::new(), whole)];
    for part in pointer.split('/').skip(1) {
        found = found
            .into_iter()
            .flat_map(|(at, value)| -> Vec<(String, &Value)> {
                match (part, value) {
                    ("*", Value::Array(items)) => {
                        items.iter().enumerate().map(|(n, item)| (format!("{at}/{n}"), item)).collect()
                    }
                    ("*", Value::Object(fields)) => {
                        fields.iter().map(|(key, field)| (format!("{at}/{}", escape(key)), field)).collect()
                    }
                    (part, value) => {
                        let next = value.pointer(&format!("/{part}"));
                        next.map(|next| (format!("{at}/{part}"), next)).into_iter().collect()
                    }
                }
            })
            .collect();
    }
    found
}

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// HO-6: checks whether the artifact at a path is as the type of the package requires.
pub fn check_content(named: &Named<'_>, media_type: &str, content: Option<&[u8]>) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(wanted) = named.media_type
        && wanted != media_type
    {
        let problem = format!("its media type is `{media_type}`, but must be `{wanted}`");
        problems.push(Problem::new(Check::Gate, named.path.as_str(), problem, "store it again with that media type"));
    }
    let (Some(schema), Some(content)) = (named.schema, content) else { return problems };
    match json::parse(content) {
        Ok(value) => {
            let wrong = violations(&Value::Object(schema.clone()), &value);
            problems.extend(wrong.into_iter().map(|(at, problem)| {
                let at = format!("{}#{at}", named.path);
                Problem::new(Check::Gate, at, problem, "make it match its schema and store it again")
            }));
        }
        Err(error) => problems.push(Problem::new(
            Check::Gate,
            named.path.as_str(),
            format!("it cannot be read as JSON: {}", causes(&error)),
            "store it again as JSON",
        )),
    }
    problems
}

/// Counts the tokens of a package as a model reads it.
pub fn count(package: &Map<String, Value>) -> Tokens {
    tokens::count(&json::canonical(package))
}

/// HO-2: checks whether it is short enough; if not, says what to cut.
pub fn check_size(handoff_type: &HandoffType, package: &Map<String, Value>) -> Option<Problem> {
    let (n_tokens, most) = (count(package), handoff_type.max_tokens);
    if n_tokens <= most {
        return None;
    }
    let problem = format!("the package has {n_tokens} tokens; a `{}` may have at most {most}", handoff_type.name);
    let sizes = package.iter().map(|(key, value)| (key, value, tokens::count(&json::canonical(value))));
    let Some((key, value, of_it)) = sizes.max_by_key(|(.., n_tokens)| *n_tokens) else {
        return Some(Problem::new(Check::Size, "", problem, "make it shorter"));
    };
    let advice = match value {
        Value::Array(items) if items.len() > 1 => {
            let each = (of_it.get() / i32::try_from(items.len()).unwrap_or(i32::MAX)).max(1);
            let room = (most.get() - (n_tokens.get() - of_it.get())).max(0) / each;
            let by_priority = by_priority(handoff_type, package, key);
            format!(
                "`{key}` has {of_it} of these tokens, in {} entries of about {each}: keep the {room} that matter most{by_priority}, and move the others to an artifact that the package names",
                items.len(),
            )
        }
        _ => format!("`{key}` has {of_it} of these tokens: store it as an artifact and name its path"),
    };
    Some(Problem::new(Check::Size, format!("/{}", escape(key)), problem, advice))
}

/// Describes how many entries have which priority, if the type has priorities.
fn by_priority(handoff_type: &HandoffType, package: &Map<String, Value>, key: &str) -> String {
    let Some(rule) = handoff_type.gate.priority.as_ref().filter(|rule| rule.items == format!("/{}", escape(key)))
    else {
        return String::new();
    };
    let whole = Value::Object(package.clone());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, priority) in resolve(&whole, &format!("{}/*{}", rule.items, rule.at)) {
        *counts.entry(priority.as_str().unwrap_or("none")).or_default() += 1;
    }
    let said: Vec<String> = ["high", "medium", "low"]
        .iter()
        .filter_map(|priority| counts.get(priority).map(|n| format!("{n} are {priority}")))
        .collect();
    if said.is_empty() { String::new() } else { format!(" ({})", said.join(", ")) }
}

/// Returns warnings for the sender. They do not stop the package.
pub fn warnings(handoff_type: &HandoffType, package: &Map<String, Value>) -> Vec<String> {
    let rules = handoff_type.gate.warnings.iter().filter(|rule| !fits(&rule.unless, package));
    let n_tokens = count(package);
    let long = handoff_type.advised_tokens.filter(|advised| n_tokens > *advised);
    let long = long.map(|advised| {
        format!("the package has {n_tokens} tokens; about {advised} are enough for most packages of this type")
    });
    rules.map(|rule| rule.message.clone()).chain(long).collect()
}

/// HO-7: returns the rule by which a person must approve the package, if one applies.
pub fn needs_approval<'t>(handoff_type: &'t HandoffType, package: &Map<String, Value>) -> Option<&'t ApprovalRule> {
    handoff_type.gate.approval.as_ref().filter(|rule| fits(&rule.when, package))
}

#[cfg(test)]
mod tests;

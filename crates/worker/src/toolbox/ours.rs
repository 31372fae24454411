//! The definitions of Waybill's own tools, as models see them. The commands of the orchestrator are declared in [`waybill_core::command`]; the
//! tools that the worker answers itself are declared here.

use serde_json::{Map, Value, json};
use waybill_context::{schema::Schema, wire};
use waybill_core::{
    card::{Field, ResultForm},
    command::{
        COMMANDS, Delegates,
        schema::{object, text},
    },
    resource::InternalTool,
};
use waybill_kernel::turn::Delegate;

use super::artifact::MOST_TOKENS;

/// Returns the definition of a tool. `None` means that the tool is declared nowhere, which a test excludes.
pub(super) fn definition(tool: InternalTool, form: &ResultForm, delegates: &[Delegate]) -> Option<wire::Tool> {
    let command = COMMANDS.into_iter().find(|command| command.tool == tool);
    let (description, parameters) = match command {
        Some(command) => {
            let named = delegates.iter().map(|delegate| (delegate.name.as_str(), delegate.description.as_str()));
            (command.description, (command.parameters)(&Delegates::new(named)))
        }
        None => answered_here(tool, form)?,
    };
    Some(wire::Tool { tool_name: tool.as_str().to_owned(), description: description.to_owned(), parameters })
}

/// A description, and the JSON Schema of the arguments.
type Declared = (&'static str, Value);

/// Returns the declaration of a tool that the worker answers itself.
fn answered_here(tool: InternalTool, form: &ResultForm) -> Option<Declared> {
    Some(match tool {
        InternalTool::SubmitResult => {
            ("Ends your work and submits its result. Call it once, when everything is done.", result(form))
        }
        InternalTool::UpdateTodo => update_todo(),
        InternalTool::ListArtifacts => list_artifacts(),
        InternalTool::PlanReading => plan_reading(),
        InternalTool::ReadArtifact => read_artifact(),
        InternalTool::SearchArtifacts => search_artifacts(),
        InternalTool::WriteArtifact => write_artifact(),
        InternalTool::ReadPlan => read_plan(),
        InternalTool::SearchKnowledge => search_knowledge(),
        _ => return None,
    })
}

fn update_todo() -> Declared {
    (
        "Changes the todo list of this session, which all its agents see. Either all changes are made, or none.",
        object(
            json!({ "changes": { "type": "array", "minItems": 1, "items": {
                "type": "object",
                "properties": {
                    "change": { "enum": ["add", "update", "remove", "replace"] },
                    "item_id": { "type": "integer", "description": "Id of the item to update or remove." },
                    "text": { "type": "string" },
                    "texts": { "type": "array", "items": { "type": "string" }, "description": "For `replace`: the items of the new list." },
                    "status": { "enum": ["pending", "in_progress", "done"] },
                    "note": { "type": "string" },
                },
                "required": ["change"], "additionalProperties": false,
            } } }),
            &["changes"],
        ),
    )
}

fn list_artifacts() -> Declared {
    (
        "Lists the artifacts that you may read: those that you were handed or wrote, and those in folders that you may read.",
        object(json!({ "prefix": text("List only paths that begin with this.") }), &[]),
    )
}

fn plan_reading() -> Declared {
    (
        "Shows how many tokens it would cost to read whole artifacts, the most urgent first.",
        object(
            json!({ "paths": { "type": "array", "items": { "type": "string" }, "description": "The artifacts to plan for. If omitted, all." } }),
            &[],
        ),
    )
}

fn read_artifact() -> Declared {
    (
        "Reads an artifact, or a part of it.",
        object(
            json!({
                "path": text("Path of the artifact."),
                "part": {
                    "enum": ["whole", "head", "tail", "lines", "json_path", "key_turns"],
                    "description": "`head` and `tail`: the first and last lines. `lines`: from `from_line` to `to_line`. \
                        `json_path`: what `json_path` selects. `key_turns`: of a conversation, its beginning and end, errors, \
                        tool calls, and the turns around the text in `around`.",
                },
                "max_tokens": { "type": "integer", "minimum": 1, "maximum": MOST_TOKENS },
                "from_line": { "type": "integer", "minimum": 1 }, "to_line": { "type": "integer", "minimum": 1 },
                "json_path": text("A JSONPath, such as `$.layer1_problems[*].title`."),
                "around": text("For `key_turns`: a text to find in the turns."),
            }),
            &["path", "part"],
        ),
    )
}

fn search_artifacts() -> Declared {
    (
        "Searches the artifacts that you may read for a text, ignoring case. Returns each place and the text around it.",
        object(
            json!({ "text": text("The text to search for."), "prefix": text("Search only paths that begin with this.") }),
            &["text"],
        ),
    )
}

fn write_artifact() -> Declared {
    (
        "Stores a text as an artifact. If the path exists, this adds a new version. Other agents can read it once you hand it to them.",
        object(
            json!({
                "path": text("Path to store it at."), "content": text("The whole text."),
                "media_type": text("Such as `application/json`."),
            }),
            &["path", "content"],
        ),
    )
}

fn read_plan() -> Declared {
    (
        "Reads a plan of the project. If no name is given, lists all plans.",
        object(
            json!({
                "name": text("Name of the plan."),
                "version": { "type": "integer", "minimum": 1, "description": "If omitted, the newest one." },
            }),
            &[],
        ),
    )
}

fn search_knowledge() -> Declared {
    (
        "Finds passages in the project's documents, or in published results of earlier work. \
         It searches by the words of your question, and also by meaning if the project has that set up.",
        object(
            json!({
                "question": {
                    "type": "string", "minLength": 1, "maxLength": 4000,
                    "description": "What you want to know, in words that the passage is likely to contain.",
                },
                "kind": {
                    "enum": ["knowledge", "experience"],
                    "description": "`knowledge`: documents. `experience`: results of earlier work. Default: `knowledge`.",
                },
                "most": { "type": "integer", "minimum": 1, "maximum": 20, "description": "How many passages to return at most." },
            }),
            &["question"],
        ),
    )
}

/// Returns the schema of a result: the one that was given, or each required field with its description.
fn result(form: &ResultForm) -> Value {
    let fields = match form {
        ResultForm::Any => {
            return object(
                json!({ "result": { "description": "The result: text, or JSON in the form that was asked for." } }),
                &["result"],
            );
        }
        ResultForm::Schema(schema) => return Value::Object(schema.clone()),
        ResultForm::Fields(fields) => fields,
    };
    let property = |field: &Field| {
        let plain = Map::from_iter([("description".to_owned(), Value::from(field.description.as_str()))]);
        let mut schema = plain.clone();
        schema.extend(field.extra.clone());
        // The field's other properties may not be a valid schema.
        let schema = Some(Value::Object(schema)).filter(|schema| Schema::new(schema).is_ok());
        (field.name.clone(), schema.unwrap_or(Value::Object(plain)))
    };
    let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
    object(Value::Object(fields.iter().map(property).collect()), &names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Neither the list of commands nor the worker's own tools lack one that a profile may allow.
    #[test]
    fn every_tool_has_a_definition() {
        // The refusal of an unknown name lists all names.
        let refusal = serde_json::from_value::<InternalTool>(json!("unknown")).unwrap_err().to_string();
        let names: Vec<&str> = refusal.split('`').skip(3).step_by(2).collect();
        assert!(names.contains(&"submit_result") && names.contains(&"fork_join"), "{refusal}");
        for name in names {
            let tool: InternalTool = serde_json::from_value(json!(name)).unwrap();
            let definition =
                definition(tool, &ResultForm::Any, &[]).unwrap_or_else(|| panic!("{name} is declared nowhere"));
            assert_eq!(definition.tool_name, name);
            Schema::new(&definition.parameters).unwrap();
        }
    }
}

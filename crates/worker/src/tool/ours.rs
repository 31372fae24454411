//! What Waybill itself offers, as a model is shown it. The orchestrator refuses whatever does not fit; these schemas say so beforehand.

use serde_json::{Map, Value, json};
use waybill_context::{schema::Schema, wire};
use waybill_core::{card::Field, resource::InternalTool};
use waybill_kernel::turn::Delegate;

pub(super) fn definition(tool: InternalTool, fields: &[Field], delegates: &[Delegate]) -> wire::Tool {
    let (description, parameters) = match tool {
        InternalTool::SubmitResult => {
            ("Ends your work with its result. Nothing follows it, so call it once, when all is done.", result(fields))
        }
        InternalTool::DelegateAsync => (
            "Hands a task to another agent. With `wait` you get its result; without, you go on at once.",
            object(
                json!({
                    "target_strategy": strategy(), "target_ref": target_ref(delegates), "instruction": instruction(),
                    "context_box_id": boxes(), "in_session": in_session(),
                    "wait": { "type": "boolean", "description": "Whether to wait for the result." },
                    "deadline_seconds": deadline(),
                }),
                &["target_ref", "instruction"],
            ),
        ),
        InternalTool::LaunchPrincipal => (
            "Starts an agent on a task of its own. You do not wait for it.",
            object(
                json!({ "profile_name": text(&with_names("Name of its profile.", delegates)), "instruction": instruction() }),
                &["profile_name", "instruction"],
            ),
        ),
        InternalTool::AskExpert => (
            "Asks an expert one question and waits for the answer.",
            object(
                json!({
                    "expert_profile": text(&with_names("Name of the expert's profile.", delegates)),
                    "question": text("All that the expert needs to know, unless it sees your work."),
                    "include_history": { "type": "boolean", "description": "Whether it sees what you have done so far." },
                    "in_session": in_session(),
                    "deadline_seconds": deadline(),
                }),
                &["expert_profile", "question"],
            ),
        ),
        InternalTool::ForkJoin => {
            let task = object(
                json!({
                    "target_strategy": strategy(), "target_ref": target_ref(delegates), "instruction": instruction(),
                    "context_box_id": boxes(), "in_session": in_session(),
                }),
                &["target_ref", "instruction"],
            );
            (
                "Hands several tasks out side by side and waits for all of them. Each sees its own instruction only.",
                object(
                    json!({
                        "tasks": { "type": "array", "minItems": 1, "items": task },
                        "fail_fast": { "type": "boolean", "description": "Whether the first failure stops the others." },
                        "deadline_seconds": deadline(),
                    }),
                    &["tasks"],
                ),
            )
        }
        InternalTool::MapReduce => (
            "Has a planner split a task, workers do the parts side by side, and a reducer put them together.",
            object(
                json!({
                    "planner_profile": text("Name of a profile."), "worker_profile": text("Name of a profile."),
                    "reducer_profile": text("Name of a profile."), "instruction": instruction(), "context_box_id": boxes(),
                    "fail_fast": { "type": "boolean" }, "deadline_seconds": deadline(),
                }),
                &["planner_profile", "worker_profile", "reducer_profile", "instruction"],
            ),
        ),
        InternalTool::ProvisionAgent => (
            "Makes an agent that stays and remembers. Gives its id, to be reused.",
            object(json!({ "profile_name": text(&with_names("Name of its profile.", delegates)) }), &["profile_name"]),
        ),
        InternalTool::UpdateTodo => (
            "Changes the todo list that everybody in this session sees. All changes are made, or none.",
            object(
                json!({ "changes": { "type": "array", "minItems": 1, "items": {
                    "type": "object",
                    "properties": {
                        "change": { "enum": ["add", "update", "remove", "replace"] },
                        "item_id": { "type": "integer", "description": "Of the item to update or remove." },
                        "text": { "type": "string" },
                        "texts": { "type": "array", "items": { "type": "string" }, "description": "To replace the whole list." },
                        "status": { "enum": ["pending", "in_progress", "done"] },
                        "note": { "type": "string" },
                    },
                    "required": ["change"], "additionalProperties": false,
                } } }),
                &["changes"],
            ),
        ),
        InternalTool::SendHandoff => (
            "Hands a package to another agent: what it needs to know, and the paths of artifacts, never their content. What is wrong with it is told all at once. Store everything before you send.",
            object(
                json!({
                    "target_strategy": strategy(), "target_ref": target_ref(delegates),
                    "package": {
                        "type": "object",
                        "description": "With `version` \"2.0\", `handoff_type`, `timestamp`, and what its type wants.",
                        "required": ["version", "handoff_type", "timestamp"],
                    },
                    "instruction": text("What it is to do with the package."),
                    "in_session": in_session(),
                    "wait": { "type": "boolean", "description": "Whether to wait for the result." },
                    "deadline_seconds": deadline(),
                }),
                &["target_ref", "package"],
            ),
        ),
        InternalTool::AskPerson => (
            "Asks a person, and waits. Some take days: ask only what you cannot find out or decide.",
            object(
                json!({
                    "question": text("All that is needed to answer it."),
                    "kind": { "enum": ["question", "approval"], "description": "`approval`: yes or no." },
                    "about": { "description": "What it is about." },
                    "deadline_seconds": { "type": "integer", "minimum": 1, "description": "How long to wait." },
                    "default": { "description": "What holds if nobody answers: an answer, or true or false." },
                }),
                &["question"],
            ),
        ),
        InternalTool::ListArtifacts => (
            "Lists the artifacts that you may read: what you were handed, and what you wrote.",
            object(json!({ "prefix": text("Only those whose path begins so.") }), &[]),
        ),
        InternalTool::PlanReading => (
            "What it would cost to read artifacts whole, the most urgent first.",
            object(
                json!({ "paths": { "type": "array", "items": { "type": "string" }, "description": "None: all." } }),
                &[],
            ),
        ),
        InternalTool::ReadArtifact => (
            "Reads an artifact, or a part of it.",
            object(
                json!({
                    "path": text("Of the artifact."),
                    "part": {
                        "enum": ["whole", "head", "tail", "lines", "json_path", "key_turns"],
                        "description": "`key_turns`: of a conversation, how it began and ended, errors, tool calls, and what is around a text.",
                    },
                    "max_tokens": { "type": "integer", "minimum": 1 },
                    "from_line": { "type": "integer", "minimum": 1 }, "to_line": { "type": "integer", "minimum": 1 },
                    "json_path": text("Such as `$.layer1_problems[*].title`."),
                    "around": text("Of `key_turns`: a text that turns say."),
                }),
                &["path", "part"],
            ),
        ),
        InternalTool::SearchArtifacts => (
            "Finds a text in the artifacts that you may read, whatever its case: where, and what is around it.",
            object(
                json!({ "text": text("What to look for."), "prefix": text("Only in those whose path begins so.") }),
                &["text"],
            ),
        ),
        InternalTool::WriteArtifact => (
            "Stores a text as an artifact, as a new version where there is one. Others read it once you hand it to them.",
            object(
                json!({ "path": text("Where."), "content": text("All of it."), "media_type": text("Such as `application/json`.") }),
                &["path", "content"],
            ),
        ),
        InternalTool::ReadPlan => (
            "Reads a plan of the project, or lists the plans when no name is given.",
            object(
                json!({
                    "name": text("Name of the plan."),
                    "version": { "type": "integer", "minimum": 1, "description": "The newest one when left out." },
                }),
                &[],
            ),
        ),
        InternalTool::SearchKnowledge => (
            "Finds passages in what the project knows, or in what was done before and published: by the words of a question, and by its meaning where that is set up.",
            object(
                json!({
                    "question": { "type": "string", "minLength": 1, "maxLength": 4000, "description": "What you want to know, with the words that it would be told in." },
                    "kind": { "enum": ["knowledge", "experience"], "description": "`knowledge`: documents. `experience`: what was delivered before." },
                    "most": { "type": "integer", "minimum": 1, "maximum": 20, "description": "How many passages." },
                }),
                &["question"],
            ),
        ),
    };
    wire::Tool { tool_name: tool.as_str().to_owned(), description: description.to_owned(), parameters }
}

/// What a result must have, each field as it was described.
fn result(fields: &[Field]) -> Value {
    if fields.is_empty() {
        return object(
            json!({ "result": { "description": "The result: text, or whatever was asked for." } }),
            &["result"],
        );
    }
    let property = |field: &Field| {
        let plain = Map::from_iter([("description".to_owned(), Value::from(field.description.as_str()))]);
        let mut schema = plain.clone();
        schema.extend(field.extra.clone());
        // Whatever else was said of it need not be a schema.
        let schema = Some(Value::Object(schema)).filter(|schema| Schema::new(schema).is_ok());
        (field.name.clone(), schema.unwrap_or(Value::Object(plain)))
    };
    let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
    object(Value::Object(fields.iter().map(property).collect()), &names)
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn instruction() -> Value {
    text("What is to be done, with all that is needed to do it.")
}

fn target_ref(delegates: &[Delegate]) -> Value {
    text(&with_names("Name of a profile where the strategy is `new`, else the id of an agent.", delegates))
}

/// Whom it may name, and what each is for.
fn with_names(what: &str, delegates: &[Delegate]) -> String {
    let line = |delegate: &Delegate| match delegate.description.trim() {
        "" => format!("\n- {}", delegate.name),
        description => {
            format!("\n- {}: {}", delegate.name, description.split_whitespace().collect::<Vec<_>>().join(" "))
        }
    };
    let lines: String = delegates.iter().map(line).collect();
    if lines.is_empty() { what.to_owned() } else { format!("{what} You may hand work to:{lines}") }
}

fn strategy() -> Value {
    json!({
        "enum": ["new", "reuse", "clone"],
        "description": "`new`: an agent made for the task. `reuse`: one that there is, with its memory. `clone`: a copy of one.",
    })
}

fn boxes() -> Value {
    json!({
        "type": ["string", "array", "null"], "items": { "type": "string" },
        "description": "Boxes that it is to see besides, by id.",
    })
}

fn in_session() -> Value {
    json!({
        "type": "boolean",
        "description": "Whether it takes part in your conversation: it sees what was said, and its result is said there too.",
    })
}

fn deadline() -> Value {
    json!({ "type": "number", "exclusiveMinimum": 0, "description": "How long it may take, in seconds." })
}

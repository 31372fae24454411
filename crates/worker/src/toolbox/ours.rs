//! The definitions of Waybill's own tools, as models see them. The orchestrator refuses calls that do not match; these schemas say so
//! beforehand.

use serde_json::{Map, Value, json};
use waybill_context::{schema::Schema, wire};
use waybill_core::{card::Field, resource::InternalTool};
use waybill_kernel::turn::Delegate;

pub(super) fn definition(tool: InternalTool, fields: &[Field], delegates: &[Delegate]) -> wire::Tool {
    let (description, parameters) = match tool {
        InternalTool::SubmitResult => {
            ("Ends your work and submits its result. Call it once, when everything is done.", result(fields))
        }
        InternalTool::DelegateAsync => (
            "Hands a task to another agent. With `wait` you get its result; without, you continue at once.",
            object(
                json!({
                    "target_strategy": strategy(), "target_ref": target_ref(delegates), "instruction": instruction(),
                    "context_box_id": boxes(), "in_session": in_session(),
                    "wait": { "type": "boolean", "description": "Whether to wait for the result. Default: false." },
                    "deadline_seconds": deadline(),
                }),
                &["target_ref", "instruction"],
            ),
        ),
        InternalTool::LaunchPrincipal => (
            "Starts a new agent on a task of its own. You do not get its result and do not wait for it.",
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
                    "question": text("The question, with everything that the expert needs to know to answer it."),
                    "include_history": { "type": "boolean", "description": "Whether the expert also sees what you have done so far. Default: false." },
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
                "Runs several tasks in parallel, each by another agent, and waits for all results. \
                 Each agent sees only its own instruction and what you add for it.",
                object(
                    json!({
                        "tasks": { "type": "array", "minItems": 1, "items": task },
                        "fail_fast": { "type": "boolean", "description": "Whether the first failed task cancels the others. Default: false." },
                        "deadline_seconds": deadline(),
                    }),
                    &["tasks"],
                ),
            )
        }
        InternalTool::MapReduce => (
            "A planner agent splits a task into parts, worker agents do the parts in parallel, \
             and a reducer agent combines the results. You wait for the combined result.",
            object(
                json!({
                    "planner_profile": text("Name of the planner's profile."), "worker_profile": text("Name of the workers' profile."),
                    "reducer_profile": text("Name of the reducer's profile."), "instruction": instruction(), "context_box_id": boxes(),
                    "fail_fast": { "type": "boolean" }, "deadline_seconds": deadline(),
                }),
                &["planner_profile", "worker_profile", "reducer_profile", "instruction"],
            ),
        ),
        InternalTool::ProvisionAgent => (
            "Creates an agent that persists and keeps its memory between tasks. Returns its id, for use with `target_strategy` `reuse`.",
            object(json!({ "profile_name": text(&with_names("Name of its profile.", delegates)) }), &["profile_name"]),
        ),
        InternalTool::UpdateTodo => (
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
        ),
        InternalTool::SendHandoff => (
            "Hands a package to another agent. A package holds what the agent needs to know, and the paths of artifacts, never their content. \
             Store all artifacts before you send it. If the package is invalid, it is not sent, and you get a list of all problems.",
            object(
                json!({
                    "target_strategy": strategy(), "target_ref": target_ref(delegates),
                    "package": {
                        "type": "object",
                        "description": "Must have `version` \"2.0\", `handoff_type`, `timestamp` (RFC 3339), and the fields that its type requires.",
                        "required": ["version", "handoff_type", "timestamp"],
                    },
                    "instruction": text("What the agent should do with the package."),
                    "in_session": in_session(),
                    "wait": { "type": "boolean", "description": "Whether to wait for the result. Default: false." },
                    "deadline_seconds": deadline(),
                }),
                &["target_ref", "package"],
            ),
        ),
        InternalTool::AskPerson => (
            "Asks a person, and waits for the answer. This can take days: ask only what you cannot find out or decide yourself.",
            object(
                json!({
                    "question": text("The question, with everything that is needed to answer it."),
                    "kind": {
                        "enum": ["question", "approval"],
                        "description": "`question` gets an answer in words; `approval` gets yes or no. Default: `question`.",
                    },
                    "about": { "description": "What the question is about: any JSON." },
                    "deadline_seconds": { "type": "integer", "minimum": 1, "description": "How long to wait, in seconds." },
                    "default": { "description": "The answer to use if no person answers in time; true or false for an approval." },
                }),
                &["question"],
            ),
        ),
        InternalTool::ListArtifacts => (
            "Lists the artifacts that you may read: those that you were handed or wrote, and those in folders that you may read.",
            object(json!({ "prefix": text("List only paths that begin with this.") }), &[]),
        ),
        InternalTool::PlanReading => (
            "Shows how many tokens it would cost to read whole artifacts, the most urgent first.",
            object(
                json!({ "paths": { "type": "array", "items": { "type": "string" }, "description": "The artifacts to plan for. If omitted, all." } }),
                &[],
            ),
        ),
        InternalTool::ReadArtifact => (
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
                    "max_tokens": { "type": "integer", "minimum": 1 },
                    "from_line": { "type": "integer", "minimum": 1 }, "to_line": { "type": "integer", "minimum": 1 },
                    "json_path": text("A JSONPath, such as `$.layer1_problems[*].title`."),
                    "around": text("For `key_turns`: a text to find in the turns."),
                }),
                &["path", "part"],
            ),
        ),
        InternalTool::SearchArtifacts => (
            "Searches the artifacts that you may read for a text, ignoring case. Returns each place and the text around it.",
            object(
                json!({ "text": text("The text to search for."), "prefix": text("Search only paths that begin with this.") }),
                &["text"],
            ),
        ),
        InternalTool::WriteArtifact => (
            "Stores a text as an artifact. If the path exists, this adds a new version. Other agents can read it once you hand it to them.",
            object(
                json!({
                    "path": text("Path to store it at."), "content": text("The whole text."),
                    "media_type": text("Such as `application/json`."),
                }),
                &["path", "content"],
            ),
        ),
        InternalTool::ReadPlan => (
            "Reads a plan of the project. If no name is given, lists all plans.",
            object(
                json!({
                    "name": text("Name of the plan."),
                    "version": { "type": "integer", "minimum": 1, "description": "If omitted, the newest one." },
                }),
                &[],
            ),
        ),
        InternalTool::SearchKnowledge => (
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
        ),
    };
    wire::Tool { tool_name: tool.as_str().to_owned(), description: description.to_owned(), parameters }
}

/// Returns the schema of a result: each required field with its description.
fn result(fields: &[Field]) -> Value {
    if fields.is_empty() {
        return object(
            json!({ "result": { "description": "The result: text, or JSON in the form that was asked for." } }),
            &["result"],
        );
    }
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

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn instruction() -> Value {
    text("What to do, with everything that the agent needs to know to do it.")
}

fn target_ref(delegates: &[Delegate]) -> Value {
    text(&with_names("If `target_strategy` is `new`: name of a profile. Otherwise: id of an agent.", delegates))
}

/// Adds the agents that may be named, and what each is for.
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
        "description": "`new`: an agent made for the task. `reuse`: an existing agent, with its memory. \
            `clone`: a copy of an existing agent. Default: `new`.",
    })
}

fn boxes() -> Value {
    json!({
        "type": ["string", "array", "null"], "items": { "type": "string" },
        "description": "Ids of boxes whose content the agent sees in addition to the instruction.",
    })
}

fn in_session() -> Value {
    json!({
        "type": "boolean",
        "description": "Whether the agent takes part in your conversation: it sees what was said there, and its result is added to it. Default: false.",
    })
}

fn deadline() -> Value {
    json!({ "type": "number", "exclusiveMinimum": 0, "description": "How long you wait at most, in seconds. Default: one hour." })
}

//! What models are shown and what handlers read: for each command, its schema and its arguments accept the same objects.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use waybill_context::schema::Schema;
use waybill_core::{
    command::{
        COMMANDS, Declaration, Delegates, ask_expert, ask_person, delegate_async, fork_join, launch_principal,
        map_reduce, provision_agent, send_handoff,
    },
    resource::InternalTool,
};
use waybill_orchestrator::command::handlers;

/// Other names of fields that handlers read. Models are not shown them.
const ALIASES: [&str; 1] = ["input_box_ids"];

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

fn texts(list: &Value) -> BTreeSet<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn with(object: &Value, key: &str, value: Value) -> Value {
    let mut changed = object.clone();
    changed[key] = value;
    changed
}

/// Returns the names that serde expects, which its refusal of an unknown name lists.
fn expected(refusal: &str) -> BTreeSet<&str> {
    refusal.split('`').skip(3).step_by(2).collect()
}

/// Checks that a schema and a type of arguments accept and refuse the same objects. `minimal` has only what is required, `full` has
/// everything.
#[track_caller]
fn check<A: DeserializeOwned>(schema: &Value, minimal: &Value, full: &Value) {
    let validator = Schema::new(schema).unwrap();
    let both = |value: &Value, accept: bool| {
        let violations = validator.violations(value, 3);
        assert_eq!(violations.is_empty(), accept, "the schema, for {value}: {violations:?}");
        let refusal = serde_json::from_value::<A>(value.clone()).err().map(|error| error.to_string());
        assert_eq!(refusal.is_none(), accept, "the arguments, for {value}: {refusal:?}");
        refusal.unwrap_or_default()
    };
    let (properties, required) = (keys(&schema["properties"]), texts(&schema["required"]));
    assert_eq!(keys(minimal), required);
    assert_eq!(keys(full), properties);
    both(minimal, true);
    both(full, true);
    for name in required {
        let mut lacking = minimal.clone();
        lacking.as_object_mut().unwrap().remove(name);
        both(&lacking, false);
    }
    let refusal = both(&with(full, "unknown", json!(1)), false);
    let fields: BTreeSet<&str> = expected(&refusal).into_iter().filter(|name| !ALIASES.contains(name)).collect();
    assert_eq!(fields, properties, "{refusal}");
    for name in properties {
        let values = &schema["properties"][name]["enum"];
        if values.is_array() {
            let refusal = both(&with(full, name, json!("unknown")), false);
            assert_eq!(expected(&refusal), texts(values), "{refusal}");
        }
    }
}

fn parameters(declaration: &Declaration) -> Value {
    (declaration.parameters)(&Delegates::new([("editor", "Edits texts."), ("writer", "")]))
}

/// Checks a command, and returns its tool.
#[track_caller]
fn command<A: DeserializeOwned>(declaration: Declaration, minimal: Value, full: Value) -> InternalTool {
    check::<A>(&parameters(&declaration), &minimal, &full);
    declaration.tool
}

#[test]
fn a_schema_accepts_what_its_handler_reads() {
    let minimal_task = json!({ "target_ref": "editor", "instruction": "edit" });
    let full_task = json!({
        "target_strategy": "reuse", "target_ref": "editor", "instruction": "edit", "context_box_id": ["a", "b"], "in_session": true,
    });
    let fork = parameters(&fork_join::DECLARATION);
    check::<fork_join::TaskArguments>(&fork["properties"]["tasks"]["items"], &minimal_task, &full_task);

    let package = json!({ "version": "2.0", "handoff_type": "review", "timestamp": "2026-01-04T15:30:00Z" });
    let waiting = with(&with(&full_task, "wait", json!(true)), "deadline_seconds", json!(1.5));
    let checked = [
        command::<delegate_async::Arguments>(delegate_async::DECLARATION, minimal_task.clone(), waiting),
        command::<launch_principal::Arguments>(
            launch_principal::DECLARATION,
            json!({ "profile_name": "editor", "instruction": "edit" }),
            json!({ "profile_name": "editor", "instruction": "edit" }),
        ),
        command::<ask_expert::Arguments>(
            ask_expert::DECLARATION,
            json!({ "expert_profile": "editor", "question": "why?" }),
            json!({
                "expert_profile": "editor", "question": "why?", "include_history": true, "in_session": true, "deadline_seconds": 60,
            }),
        ),
        command::<fork_join::Arguments>(
            fork_join::DECLARATION,
            json!({ "tasks": [minimal_task] }),
            json!({ "tasks": [minimal_task, full_task], "fail_fast": true, "deadline_seconds": 60 }),
        ),
        command::<map_reduce::Arguments>(
            map_reduce::DECLARATION,
            json!({ "planner_profile": "p", "worker_profile": "w", "reducer_profile": "r", "instruction": "count" }),
            json!({
                "planner_profile": "p", "worker_profile": "w", "reducer_profile": "r", "instruction": "count",
                "context_box_id": "a", "fail_fast": true, "deadline_seconds": 60,
            }),
        ),
        command::<provision_agent::Arguments>(
            provision_agent::DECLARATION,
            json!({ "profile_name": "editor" }),
            json!({ "profile_name": "editor" }),
        ),
        command::<send_handoff::Arguments>(
            send_handoff::DECLARATION,
            json!({ "target_ref": "editor", "package": package }),
            json!({
                "target_strategy": "clone", "target_ref": "editor", "package": package, "instruction": "review",
                "in_session": true, "wait": true, "deadline_seconds": 60,
            }),
        ),
        command::<ask_person::Arguments>(
            ask_person::DECLARATION,
            json!({ "question": "may I?" }),
            json!({
                "question": "may I?", "kind": "approval", "about": { "file": "a" }, "deadline_seconds": 60, "default": false,
            }),
        ),
    ];
    assert_eq!(BTreeSet::from(checked), COMMANDS.iter().map(|command| command.tool).collect());
}

#[test]
fn every_command_has_one_handler() {
    let handlers = handlers(None);
    assert_eq!(handlers.len(), COMMANDS.len());
    let handled: BTreeSet<InternalTool> = handlers.iter().map(|handler| handler.tool()).collect();
    assert_eq!(handled, COMMANDS.iter().map(|command| command.tool).collect());
}

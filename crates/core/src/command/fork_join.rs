//! `fork_join` (PM-8, PM-9): many tasks in parallel, one result.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Declaration, Delegates,
    argument::{Strategy, boxes, deadline, in_session, instruction, strategy, target_ref},
    schema::object,
};
use crate::resource::InternalTool;

pub const DECLARATION: Declaration = Declaration {
    tool: InternalTool::ForkJoin,
    description: "Runs several tasks in parallel, each by another agent, and waits for all results. \
                  Each agent sees only its own instruction and what you add for it.",
    parameters,
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    pub tasks: Vec<TaskArguments>,
    #[serde(default)]
    pub fail_fast: bool,
    pub deadline_seconds: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskArguments {
    #[serde(default)]
    pub target_strategy: Strategy,
    pub target_ref: String,
    pub instruction: String,
    #[serde(default, alias = "input_box_ids")]
    pub context_box_id: Value,
    #[serde(default)]
    pub in_session: bool,
}

fn parameters(delegates: &Delegates) -> Value {
    let task = object(
        json!({
            "target_strategy": strategy(), "target_ref": target_ref(delegates), "instruction": instruction(),
            "context_box_id": boxes(), "in_session": in_session(),
        }),
        &["target_ref", "instruction"],
    );
    object(
        json!({
            "tasks": { "type": "array", "minItems": 1, "items": task },
            "fail_fast": { "type": "boolean", "description": "Whether the first failed task cancels the others. Default: false." },
            "deadline_seconds": deadline(),
        }),
        &["tasks"],
    )
}

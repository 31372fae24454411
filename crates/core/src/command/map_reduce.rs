//! `map_reduce` (PM-11, CX-7): a planner, many workers, and a reducer that combines the results.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Declaration, Delegates,
    argument::{boxes, deadline, instruction},
    schema::{object, text},
};
use crate::resource::InternalTool;

pub const DECLARATION: Declaration = Declaration {
    tool: InternalTool::MapReduce,
    description: "A planner agent splits a task into parts, worker agents do the parts in parallel, \
                  and a reducer agent combines the results. You wait for the combined result.",
    parameters,
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    pub planner_profile: String,
    pub worker_profile: String,
    pub reducer_profile: String,
    pub instruction: String,
    #[serde(default)]
    pub context_box_id: Value,
    #[serde(default)]
    pub fail_fast: bool,
    pub deadline_seconds: Option<f64>,
}

fn parameters(_: &Delegates) -> Value {
    object(
        json!({
            "planner_profile": text("Name of the planner's profile."), "worker_profile": text("Name of the workers' profile."),
            "reducer_profile": text("Name of the reducer's profile."), "instruction": instruction(), "context_box_id": boxes(),
            "fail_fast": { "type": "boolean" }, "deadline_seconds": deadline(),
        }),
        &["planner_profile", "worker_profile", "reducer_profile", "instruction"],
    )
}

//! `delegate_async` (PM-6): one task for one agent, with or without waiting for its result.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Declaration, Delegates,
    argument::{Strategy, boxes, deadline, in_session, instruction, strategy, target_ref, wait},
    schema::object,
};
use crate::resource::InternalTool;

pub const DECLARATION: Declaration = Declaration {
    tool: InternalTool::DelegateAsync,
    description: "Hands a task to another agent. With `wait` you get its result; without, you continue at once.",
    parameters,
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    #[serde(default)]
    pub target_strategy: Strategy,
    pub target_ref: String,
    pub instruction: String,
    #[serde(default, alias = "input_box_ids")]
    pub context_box_id: Value,
    #[serde(default)]
    pub in_session: bool,
    #[serde(default)]
    pub wait: bool,
    pub deadline_seconds: Option<f64>,
}

fn parameters(delegates: &Delegates) -> Value {
    object(
        json!({
            "target_strategy": strategy(), "target_ref": target_ref(delegates), "instruction": instruction(),
            "context_box_id": boxes(), "in_session": in_session(),
            "wait": wait(),
            "deadline_seconds": deadline(),
        }),
        &["target_ref", "instruction"],
    )
}

//! `send_handoff` (HO-5, HO-7, HO-9): a delegation whose context is a checked package.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Declaration, Delegates,
    argument::{Strategy, deadline, in_session, strategy, target_ref, wait},
    schema::{object, text},
};
use crate::resource::InternalTool;

pub const DECLARATION: Declaration = Declaration {
    tool: InternalTool::SendHandoff,
    description: "Hands a package to another agent. A package holds what the agent needs to know, and the paths of artifacts, never their content. \
                  Store all artifacts before you send it. If the package is invalid, it is not sent, and you get a list of all problems.",
    parameters,
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    #[serde(default)]
    pub target_strategy: Strategy,
    pub target_ref: String,
    pub package: Map<String, Value>,
    pub instruction: Option<String>,
    #[serde(default)]
    pub in_session: bool,
    #[serde(default)]
    pub wait: bool,
    pub deadline_seconds: Option<f64>,
}

fn parameters(delegates: &Delegates) -> Value {
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
            "wait": wait(),
            "deadline_seconds": deadline(),
        }),
        &["target_ref", "package"],
    )
}

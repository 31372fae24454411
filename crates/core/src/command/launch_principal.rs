//! `launch_principal` (PM-7): one task for a new agent, without waiting for its result.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Declaration, Delegates,
    argument::instruction,
    schema::{object, text},
};
use crate::resource::InternalTool;

pub const DECLARATION: Declaration = Declaration {
    tool: InternalTool::LaunchPrincipal,
    description: "Starts a new agent on a task of its own. You do not get its result and do not wait for it.",
    parameters,
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    pub profile_name: String,
    pub instruction: String,
}

fn parameters(delegates: &Delegates) -> Value {
    object(
        json!({ "profile_name": text(&delegates.append_to("Name of its profile.")), "instruction": instruction() }),
        &["profile_name", "instruction"],
    )
}

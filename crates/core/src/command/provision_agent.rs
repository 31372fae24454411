//! `provision_agent` (PM-1): makes a permanent agent that keeps its memory.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Declaration, Delegates,
    schema::{object, text},
};
use crate::{id::Name, resource::InternalTool};

pub const DECLARATION: Declaration = Declaration {
    tool: InternalTool::ProvisionAgent,
    description: "Creates an agent that persists and keeps its memory between tasks. Returns its id, for use with `target_strategy` `reuse`.",
    parameters,
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    pub profile_name: Name,
}

fn parameters(delegates: &Delegates) -> Value {
    object(json!({ "profile_name": text(&delegates.append_to("Name of its profile.")) }), &["profile_name"])
}

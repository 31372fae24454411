//! Arguments that several commands have, with their schemas.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Delegates, schema::text};

/// Which agent does a task (PM-6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// A new agent, made from a profile.
    #[default]
    New,
    /// An existing agent, with its memory.
    Reuse,
    /// A copy of an existing agent, with its memory and what it is writing.
    Clone,
}

pub(super) fn strategy() -> Value {
    json!({
        "enum": ["new", "reuse", "clone"],
        "description": "`new`: an agent made for the task. `reuse`: an existing agent, with its memory. \
            `clone`: a copy of an existing agent. Default: `new`.",
    })
}

pub(super) fn target_ref(delegates: &Delegates) -> Value {
    text(&delegates.append_to("If `target_strategy` is `new`: name of a profile. Otherwise: id of an agent."))
}

pub(super) fn instruction() -> Value {
    text("What to do, with everything that the agent needs to know to do it.")
}

pub(super) fn boxes() -> Value {
    json!({
        "type": ["string", "array", "null"], "items": { "type": "string" },
        "description": "Ids of boxes whose content the agent sees in addition to the instruction.",
    })
}

pub(super) fn in_session() -> Value {
    json!({
        "type": "boolean",
        "description": "Whether the agent takes part in your conversation: it sees what was said there, and its result is added to it. Default: false.",
    })
}

pub(super) fn wait() -> Value {
    json!({ "type": "boolean", "description": "Whether to wait for the result. Default: false." })
}

pub(super) fn deadline() -> Value {
    json!({ "type": "number", "exclusiveMinimum": 0, "description": "How long you wait at most, in seconds. Default: one hour." })
}

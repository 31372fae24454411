//! `ask_expert` (PM-7): a question to a new agent, whose deliverable is the answer.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Declaration, Delegates,
    argument::{deadline, in_session},
    schema::{object, text},
};
use crate::resource::InternalTool;

pub const DECLARATION: Declaration = Declaration {
    tool: InternalTool::AskExpert,
    description: "Asks an expert one question and waits for the answer.",
    parameters,
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    pub expert_profile: String,
    pub question: String,
    #[serde(default)]
    pub include_history: bool,
    #[serde(default)]
    pub in_session: bool,
    pub deadline_seconds: Option<f64>,
}

fn parameters(delegates: &Delegates) -> Value {
    object(
        json!({
            "expert_profile": text(&delegates.append_to("Name of the expert's profile.")),
            "question": text("The question, with everything that the expert needs to know to answer it."),
            "include_history": { "type": "boolean", "description": "Whether the expert also sees what you have done so far. Default: false." },
            "in_session": in_session(),
            "deadline_seconds": deadline(),
        }),
        &["expert_profile", "question"],
    )
}

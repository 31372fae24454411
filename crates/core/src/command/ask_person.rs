//! `ask_person` (HO-7): a question or an approval. The call waits until a person decides.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Declaration, Delegates,
    schema::{object, text},
};
use crate::{request::Kind, resource::InternalTool};

pub const DECLARATION: Declaration = Declaration {
    tool: InternalTool::AskPerson,
    description: "Asks a person, and waits for the answer. This can take days: ask only what you cannot find out or decide yourself.",
    parameters,
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    pub question: String,
    pub kind: Option<Kind>,
    #[serde(default)]
    pub about: Value,
    pub deadline_seconds: Option<u64>,
    #[serde(default)]
    pub default: Value,
}

fn parameters(_: &Delegates) -> Value {
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
    )
}

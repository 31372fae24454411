//! Commands: the tools that the orchestrator answers (PM-2, PM-11). Each is declared once, in a file of its own: its description, its arguments
//! and their JSON Schema. Workers show [`COMMANDS`] to models; the orchestrator reads the arguments. It refuses calls that do not match; the
//! schemas say so beforehand.
//!
//! Not here: the handlers, which are in the orchestrator, and the tools that a worker answers itself.

use serde_json::Value;

use crate::resource::InternalTool;

pub mod argument;
pub mod schema;

pub mod ask_expert;
pub mod ask_person;
pub mod delegate_async;
pub mod fork_join;
pub mod launch_principal;
pub mod map_reduce;
pub mod provision_agent;
pub mod send_handoff;

/// A command, as models see it.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    pub tool: InternalTool,
    pub description: &'static str,
    /// Returns the JSON Schema of its arguments.
    pub parameters: fn(&Delegates) -> Value,
}

/// The declarations of all commands.
pub const COMMANDS: [Declaration; 8] = [
    delegate_async::DECLARATION,
    launch_principal::DECLARATION,
    ask_expert::DECLARATION,
    fork_join::DECLARATION,
    map_reduce::DECLARATION,
    provision_agent::DECLARATION,
    send_handoff::DECLARATION,
    ask_person::DECLARATION,
];

/// The agents to which a caller may hand work, as a list for its model.
#[derive(Clone, Debug, Default)]
pub struct Delegates {
    lines: String,
}

impl Delegates {
    /// Lists agents: the name of each, and what it is for.
    pub fn new<'a>(agents: impl IntoIterator<Item = (&'a str, &'a str)>) -> Delegates {
        let line = |(name, description): (&str, &str)| match description.trim() {
            "" => format!("\n- {name}"),
            description => format!("\n- {name}: {}", description.split_whitespace().collect::<Vec<_>>().join(" ")),
        };
        Delegates { lines: agents.into_iter().map(line).collect() }
    }

    /// Appends the list to the description of an argument that names one of them.
    fn append_to(&self, description: &str) -> String {
        match self.lines.as_str() {
            "" => description.to_owned(),
            lines => format!("{description} You may hand work to:{lines}"),
        }
    }
}

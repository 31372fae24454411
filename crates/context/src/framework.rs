//! The framework's text: what every agent of a project is told about where it works. A template with a version, which receipts name.

use waybill_core::{
    card::Field,
    id::AgentId,
    resource::Process,
    template::{Malformed, Slot, Template},
};

use crate::todo::one_line;

/// What there is to say of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub agent_id: AgentId,
    /// Whoever handed the work over (`meta.parent_pointer`).
    pub parent_agent_id: Option<AgentId>,
    pub process: Process,
    /// What the deliverable must have (`task.result_fields`).
    pub result_fields: &'a [Field],
}

impl Facts<'_> {
    /// For the framework's text, and for a profile's prompt.
    pub fn fill(&self, slot: Slot) -> Option<String> {
        match slot {
            Slot::AgentId => Some(self.agent_id.to_string()),
            Slot::ParentAgentId => self.parent_agent_id.map(|agent_id| agent_id.to_string()),
            Slot::Process => Some(self.process.as_str().to_owned()),
            Slot::ResultFields => {
                let line = |field: &Field| format!("- {}: {}", one_line(&field.name), one_line(&field.description));
                let lines: Vec<String> = self.result_fields.iter().map(line).collect();
                (!lines.is_empty()).then(|| lines.join("\n"))
            }
        }
    }
}

/// A template, and what receipts name it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Framework {
    version: String,
    template: Template,
}

/// Why there is no such framework.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the version is empty: receipts name it")]
    NoVersion,
    #[error(transparent)]
    Template(#[from] Malformed),
}

impl Framework {
    /// Ours, for whoever has none.
    pub fn builtin() -> Framework {
        Framework::parse("waybill-1", include_str!("framework.txt")).expect("a test renders it")
    }

    pub fn parse(version: &str, text: &str) -> Result<Framework, Error> {
        if version.trim().is_empty() {
            return Err(Error::NoVersion);
        }
        Ok(Framework { version: version.to_owned(), template: Template::parse(text)? })
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn render(&self, facts: &Facts<'_>) -> String {
        self.template.render(|slot| facts.fill(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CX-4: what it says follows from the turn, each fact on a line of its own.
    #[test]
    fn the_facts_of_a_turn_are_said() {
        let field =
            |name: &str| Field { name: name.into(), description: "in\none line".into(), extra: Default::default() };
        let fields = [field("answer"), field("source")];
        let facts =
            Facts { agent_id: AgentId::nil(), parent_agent_id: None, process: Process::React, result_fields: &fields };
        let framework =
            Framework::parse("1", "As {{process}}:\n{{result_fields}}\n\nFor {{parent_agent_id}}.").unwrap();
        assert_eq!(framework.render(&facts), "As react:\n- answer: in one line\n- source: in one line");
        assert_eq!(Framework::parse(" ", "a").unwrap_err(), Error::NoVersion);
        assert!(Framework::parse("1", "{{x}}").is_err());
        assert!(Framework::builtin().render(&facts).contains("You work as react."));
    }
}

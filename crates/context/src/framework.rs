//! The framework's text: what every agent of a project reads about its environment. It is a template with a version, which receipts name.
//! A second text describes the single turn; it stands after everything that turns share.

use serde_json::Value;
use waybill_core::{
    card::{Field, ResultForm},
    id::{AgentId, BoxId},
    resource::{FrameworkText, Process},
    template::{Malformed, Slot, Template},
    turn::Budget,
};

use crate::todo::one_line;

/// The facts of a turn that the texts use.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub agent_id: AgentId,
    /// The agent that handed the work over (`meta.parent_pointer`).
    pub parent_agent_id: Option<AgentId>,
    pub process: Process,
    /// What the deliverable must be.
    pub result_form: &'a ResultForm,
    pub context_box_id: BoxId,
    pub output_box_id: BoxId,
    /// What it may spend.
    pub budget: Option<Budget>,
}

impl Facts<'_> {
    /// Fills a slot of the framework's text or of a profile's prompt.
    pub fn fill(&self, slot: Slot) -> Option<String> {
        match slot {
            Slot::AgentId => Some(self.agent_id.to_string()),
            Slot::ParentAgentId => self.parent_agent_id.map(|agent_id| agent_id.to_string()),
            Slot::Process => Some(self.process.as_str().to_owned()),
            Slot::ContextBoxId => Some(self.context_box_id.to_string()),
            Slot::OutputBoxId => Some(self.output_box_id.to_string()),
            Slot::Limits => self.budget.as_ref().and_then(limits),
            Slot::ResultFields => {
                let lines = result_fields(self.result_form);
                (!lines.is_empty()).then(|| lines.join("\n"))
            }
        }
    }
}

/// Describes each field of a result in a line. The tool `submit_result` has the whole of a schema.
fn result_fields(form: &ResultForm) -> Vec<String> {
    match form {
        ResultForm::Any => Vec::new(),
        ResultForm::Fields(fields) => {
            let line = |field: &Field| format!("- {}: {}", one_line(&field.name), one_line(&field.description));
            fields.iter().map(line).collect()
        }
        ResultForm::Schema(schema) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let line = |(name, property): (&String, &Value)| match property["description"].as_str() {
                Some(description) => format!("- {}: {}", one_line(name), one_line(description)),
                None => format!("- {}", one_line(name)),
            };
            properties.into_iter().flatten().map(line).collect()
        }
    }
}

/// Describes in a sentence what is left to spend.
fn limits(budget: &Budget) -> Option<String> {
    let Budget { steps, tokens, seconds, .. } = budget;
    let steps = steps.map(|steps| format!("{steps} steps"));
    let tokens = tokens.map(|tokens| format!("{tokens} tokens"));
    let seconds = seconds.map(|seconds| format!("{seconds:.0} seconds"));
    let parts: Vec<String> = [steps, tokens, seconds].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("You have {} for this, shared with agents you hand work to.", parts.join(", ")))
}

/// A template, and the version by which receipts name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Framework {
    version: String,
    template: Template,
    turn: Template,
}

/// Why a text cannot be a framework.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the version of a framework must not be empty: each receipt records it")]
    NoVersion,
    #[error(transparent)]
    Template(#[from] Malformed),
}

impl Framework {
    /// Returns Waybill's own text, for projects that have none.
    pub fn builtin() -> Framework {
        Framework::parse("waybill-2", include_str!("framework.txt")).expect("a test renders it")
    }

    pub fn parse(version: &str, text: &str) -> Result<Framework, Error> {
        if version.trim().is_empty() {
            return Err(Error::NoVersion);
        }
        Ok(Framework::of(&FrameworkText { version: version.to_owned(), text: Template::parse(text)? }))
    }

    /// Returns a project's own text.
    pub fn of(said: &FrameworkText) -> Framework {
        let turn = Template::parse(include_str!("turn.txt")).expect("a test renders it");
        Framework { version: said.version.clone(), template: said.text.clone(), turn }
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn render(&self, facts: &Facts<'_>) -> String {
        self.template.render(|slot| facts.fill(slot))
    }

    /// Renders the text about one turn.
    pub fn render_turn(&self, facts: &Facts<'_>) -> String {
        self.turn.render(|slot| facts.fill(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CX-4: the text follows from the turn's facts, each on a line of its own.
    #[test]
    fn the_facts_of_a_turn_are_said() {
        let field =
            |name: &str| Field { name: name.into(), description: "in\none line".into(), extra: Default::default() };
        let fields = ResultForm::Fields(vec![field("answer"), field("source")]);
        let facts = Facts {
            agent_id: AgentId::nil(),
            parent_agent_id: None,
            process: Process::React,
            result_form: &fields,
            context_box_id: BoxId::nil(),
            output_box_id: BoxId::nil(),
            budget: Some(Budget { steps: Some(9), tokens: None, microdollars: None, seconds: Some(60.0) }),
        };
        let framework = Framework::builtin();
        assert!(framework.render(&facts).contains("You work as react."));
        let turn = framework.render_turn(&facts);
        assert!(turn.ends_with("- answer: in one line\n- source: in one line"), "{turn}");
        assert!(turn.contains("You have 9 steps, 60 seconds for this") && !turn.contains("handed over"), "{turn}");
        let schema = serde_json::json!({ "type": "object", "properties": {
            "answer": { "type": "string", "description": "one word" }, "score": { "type": "number" },
        } });
        let schema = ResultForm::Schema(schema.as_object().cloned().unwrap_or_default());
        let turn = framework.render_turn(&Facts { result_form: &schema, ..facts });
        assert!(turn.ends_with("these fields:\n- answer: one word\n- score"), "{turn}");
        assert_eq!(Framework::parse(" ", "a").unwrap_err(), Error::NoVersion);
        assert!(Framework::parse("1", "{{x}}").is_err());
    }
}

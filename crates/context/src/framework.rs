//! The framework's text: what every agent of a project is told about where it works. A template with a version, checked when it is
//! loaded, so that no brace can fail at run time.
//!
//! `{{agent_id}}` is a slot, of a closed set. `{{{{` is two braces. Anything else, single braces too, is text. A paragraph with a slot
//! that has nothing to say is left out.

use std::fmt;

use waybill_core::{card::Field, id::AgentId};

use crate::{policy::Process, todo::one_line};

/// What a slot is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    AgentId,
    ParentAgentId,
    Process,
    ResultFields,
}

impl Slot {
    pub const ALL: [Slot; 4] = [Slot::AgentId, Slot::ParentAgentId, Slot::Process, Slot::ResultFields];

    pub fn as_str(self) -> &'static str {
        match self {
            Slot::AgentId => "agent_id",
            Slot::ParentAgentId => "parent_agent_id",
            Slot::Process => "process",
            Slot::ResultFields => "result_fields",
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

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

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("line {line}: `{{{{{name}}}}}` is no slot: there are {known}; for two braces write `{{{{{{{{`", known = known())]
    UnknownSlot { line: usize, name: String },
    #[error("line {line}: `{{{{` is not closed on its line by `}}}}`; for two braces write `{{{{{{{{`")]
    Unclosed { line: usize },
    #[error("the version is empty: receipts name it")]
    NoVersion,
}

fn known() -> String {
    Slot::ALL.map(|slot| format!("`{slot}`")).join(", ")
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Slot(Slot),
}

/// A checked template. Rendering it cannot fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    version: String,
    paragraphs: Vec<Vec<Part>>,
}

impl Template {
    /// Ours, for whoever has none.
    pub fn builtin() -> Template {
        Template::parse("waybill-1", include_str!("framework.txt")).expect("a test renders it")
    }

    pub fn parse(version: &str, text: &str) -> Result<Template, Malformed> {
        if version.trim().is_empty() {
            return Err(Malformed::NoVersion);
        }
        let (mut paragraphs, mut paragraph) = (Vec::new(), Vec::new());
        for (n, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                paragraphs.push(std::mem::take(&mut paragraph));
                continue;
            }
            if !paragraph.is_empty() {
                paragraph.push(Part::Text("\n".into()));
            }
            parse_line(line, n + 1, &mut paragraph)?;
        }
        paragraphs.push(paragraph);
        paragraphs.retain(|paragraph| !paragraph.is_empty());
        Ok(Template { version: version.to_owned(), paragraphs })
    }

    /// What receipts name it by.
    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn render(&self, facts: &Facts<'_>) -> String {
        let fill = |paragraph: &Vec<Part>| -> Option<String> {
            let part = |part: &Part| match part {
                Part::Text(text) => Some(text.clone()),
                Part::Slot(slot) => facts.fill(*slot),
            };
            paragraph.iter().map(part).collect()
        };
        self.paragraphs.iter().filter_map(fill).collect::<Vec<_>>().join("\n\n")
    }
}

fn parse_line(mut line: &str, n: usize, parts: &mut Vec<Part>) -> Result<(), Malformed> {
    while let Some((before, rest)) = line.split_once("{{") {
        if let Some(rest) = rest.strip_prefix("{{") {
            parts.push(Part::Text(format!("{before}{{{{")));
            line = rest;
            continue;
        }
        let (name, rest) = rest.split_once("}}").ok_or(Malformed::Unclosed { line: n })?;
        let slot = Slot::ALL.into_iter().find(|slot| slot.as_str() == name.trim());
        let slot = slot.ok_or_else(|| Malformed::UnknownSlot { line: n, name: name.to_owned() })?;
        parts.push(Part::Text(before.to_owned()));
        parts.push(Part::Slot(slot));
        line = rest;
    }
    parts.push(Part::Text(line.to_owned()));
    Ok(())
}

impl Facts<'_> {
    fn fill(&self, slot: Slot) -> Option<String> {
        match slot {
            Slot::AgentId => Some(self.agent_id.to_string()),
            Slot::ParentAgentId => self.parent_agent_id.map(|agent_id| agent_id.to_string()),
            Slot::Process => Some(self.process.as_str().to_owned()),
            Slot::ResultFields => {
                let lines = self
                    .result_fields
                    .iter()
                    .map(|field| format!("- {}: {}", one_line(&field.name), one_line(&field.description)));
                let lines: Vec<String> = lines.collect();
                (!lines.is_empty()).then(|| lines.join("\n"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn renders(template: &str, text: &str) {
        let field = Field { name: "answer".into(), description: "in one word".into(), extra: Default::default() };
        let facts = Facts {
            agent_id: AgentId::nil(),
            parent_agent_id: None,
            process: Process::React,
            result_fields: std::slice::from_ref(&field),
        };
        assert_eq!(Template::parse("1", template).unwrap().render(&facts), text);
    }

    /// CX-4, CX-7
    #[test]
    fn slots_are_filled_and_paragraphs_without_an_answer_left_out() {
        renders("You work as {{process}}.", "You work as react.");
        renders("a\n\nYour caller is {{parent_agent_id}}.\nAsk it.\n\nb", "a\n\nb");
        renders("Give:\n{{ result_fields }}\n", "Give:\n- answer: in one word");
        renders("", "");
    }

    /// A literal brace is text; what could only fail at run time is refused when it is loaded.
    #[test]
    fn braces_are_text_or_refused_at_once() {
        renders(r#"Answer as {"a": {"b": 1}}"#, r#"Answer as {"a": {"b": 1}}"#);
        renders("{{{{process}} {{process}}", "{{process}} react");
        let fails = |text: &str, error: Malformed| assert_eq!(Template::parse("1", text).unwrap_err(), error);
        fails("a\n{{proces}}", Malformed::UnknownSlot { line: 2, name: "proces".into() });
        fails("{{process\n}}", Malformed::Unclosed { line: 1 });
        assert_eq!(Template::parse(" ", "a").unwrap_err(), Malformed::NoVersion);
        let said = Malformed::UnknownSlot { line: 2, name: "x".into() }.to_string();
        assert_eq!(
            said,
            "line 2: `{{x}}` is no slot: there are `agent_id`, `parent_agent_id`, `process`, `result_fields`; for two braces write `{{{{`"
        );
        assert!(Template::builtin().version().starts_with("waybill-"));
    }
}

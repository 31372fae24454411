//! Templates: text with slots of a closed set, checked when it is read, so that no brace can fail at run time.
//!
//! `{{agent_id}}` is a slot. `{{{{` is two braces. Anything else, single braces too, is text. A paragraph with a slot that has no value
//! is left out.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, schema::Type};

/// What a slot is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    AgentId,
    ParentAgentId,
    Process,
    ResultFields,
    ContextBoxId,
    OutputBoxId,
    Limits,
}

impl Slot {
    pub const ALL: [Slot; 7] = [
        Slot::AgentId,
        Slot::ParentAgentId,
        Slot::Process,
        Slot::ResultFields,
        Slot::ContextBoxId,
        Slot::OutputBoxId,
        Slot::Limits,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Slot::AgentId => "agent_id",
            Slot::ParentAgentId => "parent_agent_id",
            Slot::Process => "process",
            Slot::ResultFields => "result_fields",
            Slot::ContextBoxId => "context_box_id",
            Slot::OutputBoxId => "output_box_id",
            Slot::Limits => "limits",
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("line {line} of the template: `{{{{{name}}}}}` is not a known slot: use {known}; to write `{{{{` as text, write `{{{{{{{{`", known = known())]
    UnknownSlot { line: usize, name: String },
    #[error(
        "line {line} of the template: `{{{{` is not closed on its line by `}}}}`; to write `{{{{` as text, write `{{{{{{{{`"
    )]
    Unclosed { line: usize },
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    text: String,
    paragraphs: Vec<Vec<Part>>,
}

impl utoipa::PartialSchema for Template {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("Text with slots such as `{{agent_id}}`."))
            .into()
    }
}

impl utoipa::ToSchema for Template {}

impl Template {
    pub fn parse(text: &str) -> Result<Template, Malformed> {
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
        Ok(Template { text: text.to_owned(), paragraphs })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.paragraphs.iter().flatten().filter_map(|part| match part {
            Part::Slot(slot) => Some(*slot),
            Part::Text(_) => None,
        })
    }

    /// Fills the slots. `fill` returns `None` for a slot that has no value.
    pub fn render(&self, fill: impl Fn(Slot) -> Option<String>) -> String {
        let render = |paragraph: &Vec<Part>| -> Option<String> {
            let part = |part: &Part| match part {
                Part::Text(text) => Some(text.clone()),
                Part::Slot(slot) => fill(*slot),
            };
            paragraph.iter().map(part).collect()
        };
        self.paragraphs.iter().filter_map(render).collect::<Vec<_>>().join("\n\n")
    }
}

impl TryFrom<String> for Template {
    type Error = Malformed;

    fn try_from(text: String) -> Result<Template, Malformed> {
        Template::parse(&text)
    }
}

impl From<Template> for String {
    fn from(template: Template) -> String {
        template.text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn renders(template: &str, text: &str) {
        let fill = |slot| match slot {
            Slot::Process => Some("react".to_owned()),
            Slot::ResultFields => Some("- answer: in one word".to_owned()),
            _ => None,
        };
        assert_eq!(Template::parse(template).unwrap().render(fill), text);
    }

    #[test]
    fn slots_are_filled_and_paragraphs_without_an_answer_left_out() {
        renders("You work as {{process}}.", "You work as react.");
        renders("a\n\nYour caller is {{parent_agent_id}}.\nAsk it.\n\nb", "a\n\nb");
        renders("Give:\n{{ result_fields }}\n", "Give:\n- answer: in one word");
        renders("", "");
    }

    /// A literal brace is text; what could only fail at run time is refused when it is read.
    #[test]
    fn braces_are_text_or_refused_at_once() {
        renders(r#"Answer as {"a": {"b": 1}}"#, r#"Answer as {"a": {"b": 1}}"#);
        renders("{{{{process}} {{process}}", "{{process}} react");
        let fails = |text: &str, error: Malformed| assert_eq!(Template::parse(text).unwrap_err(), error);
        fails("a\n{{proces}}", Malformed::UnknownSlot { line: 2, name: "proces".into() });
        fails("{{process\n}}", Malformed::Unclosed { line: 1 });
        let said = Malformed::UnknownSlot { line: 2, name: "x".into() }.to_string();
        assert_eq!(
            said,
            "line 2 of the template: `{{x}}` is not a known slot: use `agent_id`, `parent_agent_id`, `process`, `result_fields`, `context_box_id`, `output_box_id`, `limits`; to write `{{` as text, write `{{{{`"
        );
    }
}

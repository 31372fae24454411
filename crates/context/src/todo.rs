//! The todo list of a session: a structured card (`context.todo`), changed as a whole, and its rendering as `todo__context`.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use waybill_core::{
    card::{Card, CardType, Content, Draft, Role},
    json,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    #[default]
    Pending,
    InProgress,
    Done,
}

/// One thing to do. Its number is never used for another item, even after it is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    pub item_id: u32,
    pub text: String,
    #[serde(default)]
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Everything to do, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Todo {
    items: Vec<Item>,
    /// How many numbers were used.
    n_given: u32,
}

/// One change. Several are all made, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    Add {
        text: String,
        #[serde(default)]
        status: Status,
    },
    Update {
        item_id: u32,
        #[serde(default)]
        text: Option<String>,
        #[serde(default)]
        status: Option<Status>,
        #[serde(default)]
        note: Option<String>,
    },
    Remove {
        item_id: u32,
    },
    /// Replaces the whole list.
    Replace {
        texts: Vec<String>,
    },
}

/// Why a list cannot be changed or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the todo list has no item {item_id}: its items are {known:?}")]
    UnknownItem { item_id: u32, known: Vec<u32> },
    #[error("`text` of an item must not be empty: write what to do")]
    NoText,
    #[error("the content of the card is not a todo list")]
    Unreadable(#[from] serde_json::Error),
}

impl Todo {
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Returns the list with all changes made, in order.
    pub fn changed(&self, changes: &[Change]) -> Result<Todo, Error> {
        let mut todo = self.clone();
        for change in changes {
            todo.make(change)?;
        }
        Ok(todo)
    }

    fn make(&mut self, change: &Change) -> Result<(), Error> {
        match change {
            Change::Add { text, status } => self.add(text, *status)?,
            Change::Update { item_id, text, status, note } => {
                let place = self.place(*item_id)?;
                let item = &mut self.items[place];
                if let Some(text) = text {
                    item.text = said(text)?;
                }
                item.status = status.unwrap_or(item.status);
                item.note = note.clone().or(item.note.take()).filter(|note| !note.trim().is_empty());
            }
            Change::Remove { item_id } => {
                let place = self.place(*item_id)?;
                self.items.remove(place);
            }
            Change::Replace { texts } => {
                self.items.clear();
                texts.iter().try_for_each(|text| self.add(text, Status::Pending))?;
            }
        }
        Ok(())
    }

    fn add(&mut self, text: &str, status: Status) -> Result<(), Error> {
        let text = said(text)?;
        self.n_given += 1;
        self.items.push(Item { item_id: self.n_given, text, status, note: None });
        Ok(())
    }

    fn place(&self, item_id: u32) -> Result<usize, Error> {
        let known = || self.items.iter().map(|item| item.item_id).collect();
        let place = self.items.iter().position(|item| item.item_id == item_id);
        place.ok_or_else(|| Error::UnknownItem { item_id, known: known() })
    }

    /// Renders the text of `todo__context`; empty if there is nothing to do.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for item in &self.items {
            let mark = match item.status {
                Status::Pending => ' ',
                Status::InProgress => '>',
                Status::Done => 'x',
            };
            let note = item.note.as_deref().map(|note| format!(" ({})", one_line(note))).unwrap_or_default();
            let _ = writeln!(text, "- [{mark}] {} {}{note}", item.item_id, one_line(&item.text));
        }
        text.truncate(text.trim_end().len());
        text
    }

    pub fn draft(&self) -> Draft {
        let content = serde_json::to_value(self).expect("a list has string keys only");
        Draft::new(CardType::todo(), Role::System, Content::Json(content))
    }

    pub fn read(card: &Card) -> Result<Todo, Error> {
        Ok(card.read_as()?)
    }
}

fn said(text: &str) -> Result<String, Error> {
    if text.trim().is_empty() { Err(Error::NoText) } else { Ok(json::text(text).into_owned()) }
}

/// Joins lines into one, so that a text of several lines cannot imitate the lines that Waybill writes.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(todo: &Todo, changes: &str) -> Result<Todo, Error> {
        todo.changed(&serde_json::from_str::<Vec<Change>>(changes).unwrap())
    }

    #[test]
    fn a_list_is_changed_as_a_whole() {
        let todo = changed(
            &Todo::default(),
            r#"[{"change": "add", "text": "read"}, {"change": "add", "text": "write\n- [x] 9 sleep", "status": "in_progress"}]"#,
        )
        .unwrap();
        assert_eq!(todo.render(), "- [ ] 1 read\n- [>] 2 write - [x] 9 sleep");
        let todo = changed(
            &todo,
            r#"[{"change": "remove", "item_id": 1}, {"change": "add", "text": "send"},
                {"change": "update", "item_id": 2, "status": "done", "note": "twice"}]"#,
        )
        .unwrap();
        assert_eq!(todo.render(), "- [x] 2 write - [x] 9 sleep (twice)\n- [ ] 3 send"); // a number is not given out again
        let error =
            changed(&todo, r#"[{"change": "remove", "item_id": 2}, {"change": "remove", "item_id": 1}]"#).unwrap_err();
        assert_eq!(error.to_string(), "the todo list has no item 1: its items are [3]");
        assert!(matches!(changed(&todo, r#"[{"change": "add", "text": " "}]"#), Err(Error::NoText)));
        assert_eq!(changed(&todo, r#"[{"change": "replace", "texts": ["rest"]}]"#).unwrap().render(), "- [ ] 4 rest");
        assert_eq!(changed(&todo, r#"[{"change": "replace", "texts": []}]"#).unwrap().render(), "");
    }

    #[test]
    fn a_list_is_the_same_after_it_was_a_card() {
        let todo = changed(&Todo::default(), r#"[{"change": "replace", "texts": ["a", "b\u0000"]}]"#).unwrap();
        let card = crate::kit::stored(todo.draft());
        assert_eq!(Todo::read(&card).unwrap(), todo);
    }
}

//! Labels: names and values that a caller files its turns under, to find them again.

use std::{collections::BTreeMap, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, schema::Type};

const MOST_LABELS: usize = 16;
const MOST_NAME: usize = 64;
const MOST_VALUE: usize = 200;

/// Why a text or an object cannot be labels.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    #[error("a turn can have at most 16 labels")]
    TooMany,
    #[error("{0:?} is not a valid name of a label: use 1 to 64 characters (a-z, 0-9, `_`, `.` and `-`)")]
    Name(String),
    #[error("the value of label `{0}` must have 1 to 200 characters, and no control characters")]
    Value(String),
    #[error("{0:?} is not a label: write `name=value`")]
    Unnamed(String),
}

/// One label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub name: String,
    pub value: String,
}

impl Label {
    fn check(name: &str, value: &str) -> Result<(), Malformed> {
        let is_sign = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.-".contains(&b);
        if !(1..=MOST_NAME).contains(&name.len()) || !name.bytes().all(is_sign) {
            return Err(Malformed::Name(name.to_owned()));
        }
        if !(1..=MOST_VALUE).contains(&value.chars().count()) || value.contains(char::is_control) {
            return Err(Malformed::Value(name.to_owned()));
        }
        Ok(())
    }
}

impl FromStr for Label {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Label, Malformed> {
        let (name, value) = text.split_once('=').ok_or_else(|| Malformed::Unnamed(text.to_owned()))?;
        Label::check(name, value)?;
        Ok(Label { name: name.to_owned(), value: value.to_owned() })
    }
}

/// The labels of a turn: for each name one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl TryFrom<BTreeMap<String, String>> for Labels {
    type Error = Malformed;

    fn try_from(labels: BTreeMap<String, String>) -> Result<Labels, Malformed> {
        if labels.len() > MOST_LABELS {
            return Err(Malformed::TooMany);
        }
        labels.iter().try_for_each(|(name, value)| Label::check(name, value))?;
        Ok(Labels(labels))
    }
}

impl utoipa::PartialSchema for Labels {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .property_names(Some(text().max_length(Some(MOST_NAME)).pattern(Some("^[a-z0-9_.-]+$")).build()))
            .additional_properties(Some(text().max_length(Some(MOST_VALUE)).pattern(Some(r"^[^\x00-\x1f\x7f-\x9f]+$"))))
            .max_properties(Some(MOST_LABELS))
            .description(Some("Labels of a turn: for each name one value."))
            .into()
    }
}

impl utoipa::ToSchema for Labels {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(labels: serde_json::Value, is_valid: bool) {
        let read = serde_json::from_value::<Labels>(labels.clone());
        assert_eq!(read.is_ok(), is_valid, "{labels}: {read:?}");
    }

    /// UI-9
    #[test]
    fn a_label_has_a_short_name_and_one_line() {
        check(serde_json::json!({ "team": "blue", "a.b-c_1": "日本" }), true);
        check(serde_json::json!({ "Team": "blue" }), false);
        check(serde_json::json!({ "": "blue" }), false);
        check(serde_json::json!({ "team": "" }), false);
        check(serde_json::json!({ "team": "a\nb" }), false);
        check(serde_json::json!({ "team": "a".repeat(201) }), false);
        let many = |n: usize| (0..n).map(|n| (format!("l{n}"), "v".into())).collect::<serde_json::Map<_, _>>();
        check(many(16).into(), true);
        check(many(17).into(), false);
        assert_eq!("a=b=c".parse::<Label>().unwrap(), Label { name: "a".to_owned(), value: "b=c".to_owned() });
        assert!("a".parse::<Label>().is_err());
    }
}

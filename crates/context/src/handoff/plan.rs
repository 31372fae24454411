//! How many tokens it would cost to read the artifacts that a package names, the most urgent first (HO-8).

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use waybill_core::{artifact::ArtifactPath, handoff::HandoffType};

use super::{mentioned, resolve};

/// How many tokens one turn is advised to read. It may read more.
pub const ADVISED: i64 = 40_000;

/// How urgent it is to read something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// The package names it outside of its entries: a report, a design.
    First,
    High,
    Medium,
    Low,
    /// It was handed over without being named.
    Unnamed,
}

/// Returns how urgent each artifact of a package is.
pub fn priorities(handoff_type: &HandoffType, package: &Map<String, Value>) -> BTreeMap<ArtifactPath, Priority> {
    let whole = Value::Object(package.clone());
    let rule = handoff_type.gate.priority.as_ref();
    let said: BTreeMap<String, Priority> = rule
        .map(|rule| {
            let items = resolve(&whole, &format!("{}/*", rule.items)).into_iter();
            items
                .map(|(at, item)| {
                    let priority = match item.pointer(&rule.at).and_then(Value::as_str) {
                        Some("high") => Priority::High,
                        Some("medium") => Priority::Medium,
                        _ => Priority::Low,
                    };
                    (format!("{at}/"), priority)
                })
                .collect()
        })
        .unwrap_or_default();
    let mut priorities = BTreeMap::new();
    for named in mentioned(handoff_type, package).artifacts {
        // With the final slash, `/items/3/` matches one entry only.
        let entry = named.at.match_indices('/').filter_map(|(n, _)| said.get(&named.at[..=n])).next_back();
        let priority = entry.copied().unwrap_or(Priority::First);
        let known = priorities.entry(named.path).or_insert(priority);
        *known = priority.min(*known);
    }
    priorities
}

/// Something that could be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    pub path: ArtifactPath,
    pub priority: Priority,
    pub n_tokens: i64,
    /// The tokens of this one and all before it.
    pub total: i64,
    /// Whether that total is within what may still be read.
    pub fits: bool,
}

/// Sorts by urgency, then by length. `left` is how many tokens may still be read.
pub fn plan(wanted: impl IntoIterator<Item = (ArtifactPath, Priority, i64)>, left: i64) -> Vec<Item> {
    let mut wanted: Vec<_> = wanted.into_iter().collect();
    wanted.sort_by(|(path, priority, n_tokens), (other_path, other, other_tokens)| {
        (priority, n_tokens, path).cmp(&(other, other_tokens, other_path))
    });
    let mut total = 0;
    let item = |(path, priority, n_tokens): (ArtifactPath, Priority, i64)| {
        total += n_tokens;
        Item { path, priority, n_tokens, total, fits: total <= left }
    };
    wanted.into_iter().map(item).collect()
}

//! A script as JSON: a list of rules. The first rule that matches answers.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Asked, Fault, Pace, Reply, Script};

#[derive(Debug, Deserialize)]
pub struct Rules(Vec<Rule>);

/// Matches if all conditions that it names hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    model: Option<String>,
    /// A text that the last user message or result contains.
    contains: Option<String>,
    /// The number of results after the last user message.
    n_results: Option<usize>,
    /// The number of requests before this one.
    n_asked: Option<usize>,
    /// How often the rule may be used. If omitted, there is no limit.
    times: Option<usize>,
    reply: Written,
    #[serde(skip)]
    n_used: AtomicUsize,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    text: String,
    reasoning: Option<String>,
    #[serde(default)]
    calls: Vec<Call>,
    #[serde(default)]
    usage: Usage,
    #[serde(default)]
    cut_at_limit: bool,
    #[serde(default)]
    pace: Pace,
    fault: Option<Fault>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    name: String,
    /// A string is sent unchanged; any other value is sent as JSON.
    arguments: Value,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Usage {
    n_input: u32,
    n_cached: u32,
    n_output: u32,
}

impl Script for Rules {
    fn reply(&self, asked: &Asked) -> Reply {
        if let Some(rule) = self.0.iter().find(|rule| rule.fits(asked) && rule.take()) {
            return rule.reply.clone().into();
        }
        let message = format!(
            "no rule for request {}: model {:?}, {} results, last message {:?}",
            asked.n,
            asked.model,
            asked.results().count(),
            asked.last(),
        );
        Reply::default().with_fault(Fault::Status { code: 400, retry_after: None, message })
    }
}

impl Rule {
    fn fits(&self, asked: &Asked) -> bool {
        self.model.as_ref().is_none_or(|model| *model == asked.model)
            && self.contains.as_ref().is_none_or(|text| asked.last().contains(text))
            && self.n_results.is_none_or(|n| n == asked.results().count())
            && self.n_asked.is_none_or(|n| n == asked.n)
    }

    /// Uses the rule, if it may still be used.
    fn take(&self) -> bool {
        self.n_used.fetch_add(1, Relaxed) < self.times.unwrap_or(usize::MAX)
    }
}

impl From<Written> for Reply {
    fn from(written: Written) -> Reply {
        let Written { text, reasoning, calls, usage, cut_at_limit, pace, fault } = written;
        let arguments = |arguments| match arguments {
            Value::String(text) => text,
            json => json.to_string(),
        };
        let calls = calls.into_iter().map(|call| (call.name, arguments(call.arguments))).collect();
        let Usage { n_input, n_cached, n_output } = usage;
        Reply { text, reasoning, calls, n_input, n_cached, n_output, cut_at_limit, pace, fault, ..Reply::default() }
    }
}

pub(super) fn milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

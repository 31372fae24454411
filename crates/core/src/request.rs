//! Requests to people, and what they decide (HO-7).

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The default deadline: a week.
pub const DEADLINE_SECONDS: u64 = 7 * 24 * 3600;
/// The longest deadline: 90 days.
pub const LONGEST_SECONDS: u64 = 90 * 24 * 3600;

/// What a person is asked for. `approval`: yes or no. `question`: an answer in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RequestKind)]
pub enum Kind {
    /// Yes or no.
    Approval,
    /// An answer in words.
    Question,
}

/// An approval or a question for a person. It is the content of a `request` card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RequestContent)]
pub struct Request {
    pub kind: Kind,
    pub question: String,
    /// Details for the person who decides, such as the handoff package or the tool call.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub about: Value,
    pub deadline_seconds: u64,
    /// If true, the caller that started the turn must not decide: another person has to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub four_eyes: bool,
    /// What counts as the decision if no person decides in time: `true` or `false` for an approval, the answer for a question. If omitted, the
    /// approval is not given, or the question has no answer.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub default: Value,
}

/// How a request was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Approved,
    Rejected,
    Answered,
    /// No person decided in time.
    Expired,
}

impl Decision {
    pub const fn as_str(self) -> &'static str {
        match self {
            Decision::Approved => "approved",
            Decision::Rejected => "rejected",
            Decision::Answered => "answered",
            Decision::Expired => "expired",
        }
    }

    /// Checks whether a request of this kind can be decided this way.
    pub const fn fits(self, kind: Kind) -> bool {
        match kind {
            Kind::Approval => matches!(self, Decision::Approved | Decision::Rejected | Decision::Expired),
            Kind::Question => matches!(self, Decision::Answered | Decision::Expired),
        }
    }
}

/// What was decided. Content of a `request.decision` card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    pub decision: Decision,
    /// The answer to a question; or the default of the request.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub answer: Value,
    /// A note of the person who decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// `key:NAME`, `cli:USER`, or `deadline`.
    pub by: String,
}

impl Decided {
    pub fn new(decision: Decision, by: impl Into<String>) -> Decided {
        Decided { decision, answer: Value::Null, note: None, by: by.into() }
    }

    /// Returns whether the work may go on. A request that no person decided does not allow it, unless its default does.
    pub fn allows(&self) -> bool {
        match self.decision {
            Decision::Approved => true,
            Decision::Expired => self.answer == Value::Bool(true),
            Decision::Rejected | Decision::Answered => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_no_approval_unless_it_was_said_to_be() {
        let expired = |answer: Value| Decided { answer, ..Decided::new(Decision::Expired, "deadline") };
        assert!(!expired(Value::Null).allows() && !expired(Value::Bool(false)).allows());
        assert!(expired(Value::Bool(true)).allows());
        assert!(Decided::new(Decision::Approved, "cli:me").allows());
        assert!(!Decided::new(Decision::Rejected, "cli:me").allows());
        assert!(Decision::Answered.fits(Kind::Question) && !Decision::Answered.fits(Kind::Approval));
    }
}

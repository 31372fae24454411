//! What people are asked, and what they decide (HO-7).

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A week.
pub const DEADLINE_SECONDS: u64 = 7 * 24 * 3600;
/// The longest anybody waits for a person: 90 days.
pub const LONGEST_SECONDS: u64 = 90 * 24 * 3600;

/// What is wanted of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RequestKind)]
pub enum Kind {
    /// Yes or no.
    Approval,
    /// Words.
    Question,
}

/// Something that a person is asked. Content of a `request` card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub kind: Kind,
    pub question: String,
    /// What it is about, for whoever decides: the package, the call.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub about: Value,
    pub deadline_seconds: u64,
    /// Whoever had the turn started may not decide.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub four_eyes: bool,
    /// What holds where nobody decides in time: of an approval `true` or `false`, of a question the answer. None: nobody answered.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub default: Value,
}

/// How it was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Approved,
    Rejected,
    Answered,
    /// Nobody did.
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

    /// Whether this is how such a thing is decided.
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
    /// Of a question; or what was said beforehand.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub answer: Value,
    /// What else whoever decided has to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// `key:NAME`, `cli:USER`, or `deadline`.
    pub by: String,
}

impl Decided {
    pub fn new(decision: Decision, by: impl Into<String>) -> Decided {
        Decided { decision, answer: Value::Null, note: None, by: by.into() }
    }

    /// Whether it may go on. An approval that nobody gave is none, unless that was said beforehand.
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

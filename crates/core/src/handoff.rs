//! Kinds of handoff packages, as people write them (HO-7). Only data: the checks are in `waybill_context::handoff`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{id::Name, request, tokens::Tokens};

/// A kind of handoff package: what it must say, and what must be true before it is sent (HO-7).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HandoffType {
    pub name: Name,
    #[serde(default)]
    pub description: String,
    /// A larger package is refused.
    #[serde(default = "some_thousands")]
    pub max_tokens: Tokens,
    /// The sender of a larger package is warned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advised_tokens: Option<Tokens>,
    /// JSON Schema of what it has beyond what every package has.
    #[serde(default)]
    pub schema: Map<String, Value>,
    #[serde(default)]
    pub gate: Gate,
}

fn some_thousands() -> Tokens {
    Tokens::new(5_000).unwrap_or_default()
}

/// What must be true before a package is sent. `at` and `within` are JSON Pointers into the package, in which `*` stands for each entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Gate {
    /// Where the package names artifacts. Each of them must exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathRule>,
    /// Artifacts that must exist without being named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRule>,
    /// Where it names folders. All that is below them goes along.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<FolderRule>,
    /// How it orders its artifacts for a plan of reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<PriorityRule>,
    /// Warnings that the sender gets. They do not refuse the package.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<WarningRule>,
    /// When a person must approve it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalRule>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PathRule {
    pub at: String,
    /// The folder that it is relative to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// JSON Schema of the artifact's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Map<String, Value>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileRule {
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Map<String, Value>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FolderRule {
    pub at: String,
}

/// Each of `items` says at `at` how urgent it is: `high`, `medium` or `low`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorityRule {
    pub items: String,
    pub at: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WarningRule {
    /// JSON Schema of a package that needs no warning.
    pub unless: Map<String, Value>,
    pub message: String,
}

/// A package is sent once a person has approved it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRule {
    /// JSON Schema of the packages that need an approval. If empty, all do.
    #[serde(default)]
    pub when: Map<String, Value>,
    pub question: String,
    #[serde(default = "a_week")]
    pub deadline_seconds: u64,
    /// What holds if no person decides in time.
    #[serde(default)]
    pub default: bool,
    /// The caller that had the turn started may not decide.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub four_eyes: bool,
}

fn a_week() -> u64 {
    request::DEADLINE_SECONDS
}

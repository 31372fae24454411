//! What a project has: profiles, tools, plans and settings (PM-1). Written by people as manifests, stored as cards, known by name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    num::NonZero,
};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Map, Value};

use crate::{
    artifact::ArtifactPath,
    handoff::HandoffType,
    id::{Name, Target},
    template::{Slot, Template},
    tokens::Tokens,
    tool::{Approval, HostPattern, HttpTool, McpTool, TOOLS},
    turn::Limits,
};

/// One document of a manifest: `profile:`, `tool:`, `plan:`, `handoff_type:` or `settings:`, and what belongs to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Manifest {
    Profile(Box<Profile>),
    Tool(Box<Tool>),
    Plan(Plan),
    HandoffType(Box<HandoffType>),
    Settings(Settings),
}

/// What an agent is: prompt, tools, model, policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub name: Name,
    /// The workers that run it.
    pub worker_target: Target,
    #[serde(default)]
    pub tags: BTreeSet<Name>,
    #[serde(default)]
    pub description: String,
    pub system_prompt_template: Template,
    /// Tools of the project that it may call.
    #[serde(default)]
    pub allowed_tools: BTreeSet<Name>,
    /// What Waybill itself offers.
    #[serde(default)]
    pub allowed_internal_tools: BTreeSet<InternalTool>,
    /// Folders of artifacts that it may read in their newest version. What it was handed, and what it wrote, it may read in any case.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub readable_artifacts: BTreeSet<ArtifactPath>,
    /// Folders of artifacts that it may write to.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub writable_artifacts: BTreeSet<ArtifactPath>,
    /// What the project knows, as far as it may be found by this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knowledge: Option<Shelf>,
    /// What was done before, and published, as far as it may be found by this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experience: Option<Shelf>,
    /// Tools one of which a turn must end with; none: text is the deliverable.
    #[serde(default)]
    pub must_end_with: BTreeSet<Name>,
    /// Whom it may delegate to. Empty: nobody (PM-10).
    #[serde(default)]
    pub delegation_policy: DelegationPolicy,
    pub llm_config: LlmConfig,
    #[serde(default)]
    pub process: Process,
    #[serde(default)]
    pub memory: Memory,
    /// The profile whose model and prompt write summaries where it compacts. None: its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summariser: Option<Name>,
    /// What one turn may spend, itself and through everybody it hands work to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// Documents that an agent may find: by `search_knowledge`, where it may call that, and as a block of its context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shelf {
    /// Whatever lies below these.
    pub folders: BTreeSet<ArtifactPath>,
    /// How much of what fits the question is shown without being asked for. None: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_tokens: Option<Tokens>,
}

/// Whom an agent may delegate to: whoever has one of the tags, or one of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelegationPolicy {
    #[serde(default)]
    pub target_tags: BTreeSet<Name>,
    #[serde(default)]
    pub target_profiles: BTreeSet<Name>,
}

impl DelegationPolicy {
    pub fn allows(&self, name: &Name, tags: &BTreeSet<Name>) -> bool {
        self.target_profiles.contains(name) || !self.target_tags.is_disjoint(tags)
    }
}

/// What Waybill itself offers to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InternalTool {
    SubmitResult,
    DelegateAsync,
    LaunchPrincipal,
    AskExpert,
    ForkJoin,
    MapReduce,
    ProvisionAgent,
    UpdateTodo,
    SendHandoff,
    AskPerson,
    ListArtifacts,
    PlanReading,
    ReadArtifact,
    SearchArtifacts,
    WriteArtifact,
    SearchKnowledge,
    ReadPlan,
}

impl InternalTool {
    pub const fn as_str(self) -> &'static str {
        match self {
            InternalTool::SubmitResult => "submit_result",
            InternalTool::DelegateAsync => "delegate_async",
            InternalTool::LaunchPrincipal => "launch_principal",
            InternalTool::AskExpert => "ask_expert",
            InternalTool::ForkJoin => "fork_join",
            InternalTool::MapReduce => "map_reduce",
            InternalTool::ProvisionAgent => "provision_agent",
            InternalTool::UpdateTodo => "update_todo",
            InternalTool::SendHandoff => "send_handoff",
            InternalTool::AskPerson => "ask_person",
            InternalTool::ListArtifacts => "list_artifacts",
            InternalTool::PlanReading => "plan_reading",
            InternalTool::ReadArtifact => "read_artifact",
            InternalTool::SearchArtifacts => "search_artifacts",
            InternalTool::WriteArtifact => "write_artifact",
            InternalTool::SearchKnowledge => "search_knowledge",
            InternalTool::ReadPlan => "read_plan",
        }
    }
}

/// Which model, and how it is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlmConfig {
    pub provider: Name,
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Sent as they are.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// Asked in this order where the ones before them cannot answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<LlmConfig>,
}

/// Where a secret is to be found. The secret itself never enters a card (SE-4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SecretRef {
    pub secret: Name,
}

impl<'de> Deserialize<'de> for SecretRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SecretRef, D::Error> {
        struct Reference;
        impl<'de> Visitor<'de> for Reference {
            type Value = SecretRef;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a reference such as `{secret: openai}`")
            }

            // Not what was found: it may be the key.
            fn visit_str<E: de::Error>(self, _: &str) -> Result<SecretRef, E> {
                Err(E::custom("a key itself must not stand in a manifest: name it, as in `{secret: openai}`"))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SecretRef, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Fields {
                    secret: Name,
                }
                let Fields { secret } = Fields::deserialize(MapAccessDeserializer::new(map))?;
                Ok(SecretRef { secret })
            }
        }
        deserializer.deserialize_any(Reference)
    }
}

/// How an agent works, as far as it matters for what it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Process {
    Sequential,
    Dynamic,
    Hierarchical,
    #[default]
    React,
    MapreducePlanner,
    MapreduceWorker,
    MapreduceReducer,
}

impl Process {
    /// CX-7: whether a session's messages are packed for it. Boxes that are named for it always are.
    pub const fn sees_checkpoint_messages(self) -> bool {
        !matches!(self, Process::MapreducePlanner | Process::MapreduceWorker | Process::MapreduceReducer)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Process::Sequential => "sequential",
            Process::Dynamic => "dynamic",
            Process::Hierarchical => "hierarchical",
            Process::React => "react",
            Process::MapreducePlanner => "mapreduce_planner",
            Process::MapreduceWorker => "mapreduce_worker",
            Process::MapreduceReducer => "mapreduce_reducer",
        }
    }
}

/// The order of what the model sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// CX-1: each block is one system message, before the history.
    Layered,
    /// CX-3: what changes stands behind what does not. Volatile blocks are tagged text in the query's message; those of every step come
    /// last.
    CacheFirst,
}

/// When to compact, and how much to leave as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compaction {
    /// Once this share of the budget is needed.
    pub at_percent: u8,
    /// The recent tail.
    pub keep: Tokens,
    /// Less than this is not worth a summary.
    pub least: Tokens,
}

/// How much an agent sees, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    pub order: Order,
    /// For everything that the model reads.
    pub budget: Tokens,
    /// So many cards at the beginning of the context are always shown.
    pub n_pinned: u32,
    pub compaction: Option<Compaction>,
}

impl Default for Memory {
    fn default() -> Memory {
        let tokens = |n| Tokens::new(n).unwrap_or_default();
        Memory {
            order: Order::CacheFirst,
            budget: tokens(100_000),
            n_pinned: 0,
            compaction: Some(Compaction { at_percent: 80, keep: tokens(20_000), least: tokens(10_000) }),
        }
    }
}

/// A tool of the project, and who answers its calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    pub name: Name,
    pub description: String,
    /// JSON Schema of the arguments.
    #[serde(default = "no_parameters")]
    pub parameters: Map<String, Value>,
    /// JSON Schema of what it answers; an answer that is not so is a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Map<String, Value>>,
    /// Who answers it: whoever claims calls for this. With `http` or `mcp`, Waybill's own services, unless it says otherwise.
    #[serde(default = "tools")]
    pub target: Target,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpTool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<McpTool>,
    /// When somebody must say yes before it is called.
    #[serde(default, skip_serializing_if = "Approval::is_never")]
    pub approval: Approval,
    /// Whoever had the turn started may not say yes to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub four_eyes: bool,
    /// What it answers is the project's own word. Else it came from outside, and is labelled so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trusted: bool,
    #[serde(default)]
    pub effect: Effect,
    #[serde(default = "a_minute")]
    pub timeout_seconds: u32,
    #[serde(default)]
    pub after_execution: AfterExecution,
}

fn no_parameters() -> Map<String, Value> {
    let Value::Object(schema) = serde_json::json!({ "type": "object", "properties": {} }) else { return Map::new() };
    schema
}

fn tools() -> Target {
    TOOLS.parse().expect("a target")
}

fn a_minute() -> u32 {
    60
}

/// What calling it twice does (WK-7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    Pure,
    Idempotent,
    /// An intent without a result is never repeated.
    #[default]
    Once,
}

/// What follows a call (WK-3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterExecution {
    /// The turn waits for the result, and goes on.
    #[default]
    Suspend,
    /// The turn ends with it.
    Terminate,
}

/// A document that agents and people read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub name: Name,
    pub document: Value,
}

/// Which model makes vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    pub provider: Name,
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
}

/// A project's own `framework__context`. Receipts name its version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "FrameworkSaid")]
pub struct FrameworkText {
    pub version: String,
    pub text: Template,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FrameworkSaid {
    version: String,
    text: Template,
}

impl TryFrom<FrameworkSaid> for FrameworkText {
    type Error = String;

    fn try_from(said: FrameworkSaid) -> Result<FrameworkText, String> {
        let FrameworkSaid { version, text } = said;
        if version.trim().is_empty() {
            return Err("the version of a framework is empty: receipts name it".to_owned());
        }
        let per_turn = text.slots().find(|slot| *slot != Slot::Process);
        match per_turn {
            Some(slot) => Err(format!(
                "`{{{{{slot}}}}}` differs from turn to turn, and everything behind it would miss a prompt cache: agents are told that in `turn__context`"
            )),
            None => Ok(FrameworkText { version, text }),
        }
    }
}

/// What holds for a whole project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// CX-7: experience, knowledge and todo are shared between agents.
    pub enable_share_context: bool,
    /// L0-11
    pub max_recursion_depth: u32,
    /// How many steps a turn takes at most, where neither its profile nor whoever started it says.
    pub max_steps: u32,
    /// How many tokens a turn reads and writes at most, where nobody says.
    pub max_tokens: u32,
    /// How long a turn lasts at most, its waiting included, where nobody says.
    pub max_seconds: u32,
    /// What every agent is told about where it works, instead of Waybill's own text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub framework: Option<FrameworkText>,
    /// Bytes of artifacts that it may store, each content counted once.
    pub artifact_quota_bytes: u64,
    /// How many turns may be open at a time, those that wait included. One more is refused. None: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_open_turns: Option<NonZero<u32>>,
    /// How many turns may run at a time. The rest wait. None: as many as the workers allow every project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running_turns: Option<NonZero<u32>>,
    /// Once it has spent this in a calendar month (UTC), no turn starts until the next; turns that are open go on. None: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_microdollars_per_month: Option<NonZero<u64>>,
    /// Whom its tools may reach. Empty: nobody.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub egress_hosts: BTreeSet<HostPattern>,
    /// A result of more than this becomes an artifact, and the window has its beginning and end.
    pub result_tokens: Tokens,
    /// Makes vectors of what the project knows, and of what is looked for. None: words alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding: Option<Embedding>,
    /// Anything else that the project's own tools want to know.
    pub labels: BTreeMap<Name, String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            enable_share_context: true,
            max_recursion_depth: 20,
            max_steps: 200,
            max_tokens: 20_000_000,
            max_seconds: 30 * 24 * 3600,
            framework: None,
            artifact_quota_bytes: 100 << 30,
            max_open_turns: None,
            max_running_turns: None,
            max_microdollars_per_month: None,
            egress_hosts: BTreeSet::new(),
            result_tokens: Tokens::new(8_000).unwrap_or_default(),
            embedding: None,
            labels: BTreeMap::new(),
        }
    }
}

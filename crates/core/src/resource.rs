//! What a project has: profiles, tools, plans and settings (PM-1). People write them as manifests; they are stored as cards and found by name.

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
    object::{object, object_or_none},
    template::{Slot, Template},
    tokens::Tokens,
    tool::{Approval, HostPattern, HttpTool, McpTool, TOOLS},
    turn::Limits,
};

/// One document of a manifest: `profile:`, `tool:`, `plan:`, `handoff_type:` or `settings:`, and what belongs to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Manifest {
    Profile(Box<Profile>),
    Tool(Box<Tool>),
    Plan(Plan),
    HandoffType(Box<HandoffType>),
    Settings(Box<Settings>),
}

/// What an agent is: prompt, tools, model, policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub name: Name,
    /// The workers that run it.
    pub worker_target: Target,
    #[serde(default)]
    #[schema(value_type = Vec<Name>)]
    pub tags: BTreeSet<Name>,
    #[serde(default)]
    pub description: String,
    pub system_prompt_template: Template,
    /// Tools of the project that it may call.
    #[serde(default)]
    #[schema(value_type = Vec<Name>)]
    pub allowed_tools: BTreeSet<Name>,
    /// Tools of Waybill itself that it may call.
    #[serde(default)]
    #[schema(value_type = Vec<InternalTool>)]
    pub allowed_internal_tools: BTreeSet<InternalTool>,
    /// Folders of artifacts that it may read in their newest version. It may always read what it was handed and what it wrote.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(value_type = Vec<ArtifactPath>)]
    pub readable_artifacts: BTreeSet<ArtifactPath>,
    /// Folders of artifacts that it may write to.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(value_type = Vec<ArtifactPath>)]
    pub writable_artifacts: BTreeSet<ArtifactPath>,
    /// Documents of the project that this agent may find.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knowledge: Option<Shelf>,
    /// Published deliverables of earlier turns that this agent may find.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experience: Option<Shelf>,
    /// Tools one of which a turn must end with. If empty, text is the deliverable.
    #[serde(default)]
    #[schema(value_type = Vec<Name>)]
    pub must_end_with: BTreeSet<Name>,
    /// Whom it may delegate to. If empty, it may not delegate (PM-10).
    #[serde(default, deserialize_with = "object")]
    pub delegation_policy: DelegationPolicy,
    pub llm_config: LlmConfig,
    #[serde(default)]
    pub process: Process,
    #[serde(default, deserialize_with = "object")]
    pub memory: Memory,
    /// The profile whose model and prompt write the summaries of its compaction. If omitted, its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summariser: Option<Name>,
    /// What one turn may spend, itself and through all turns that it starts.
    #[serde(default, deserialize_with = "object_or_none", skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// Documents that an agent may find: by `search_knowledge`, if it may call that, and as a block of its context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Shelf {
    /// The documents below these folders.
    #[schema(value_type = Vec<ArtifactPath>)]
    pub folders: BTreeSet<ArtifactPath>,
    /// How many tokens of matching documents are shown without a search. If omitted, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_tokens: Option<Tokens>,
}

/// Whom an agent may delegate to: profiles that have one of the tags or one of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DelegationPolicy {
    #[serde(default)]
    #[schema(value_type = Vec<Name>)]
    pub target_tags: BTreeSet<Name>,
    #[serde(default)]
    #[schema(value_type = Vec<Name>)]
    pub target_profiles: BTreeSet<Name>,
}

impl DelegationPolicy {
    pub fn allows(&self, name: &Name, tags: &BTreeSet<Name>) -> bool {
        self.target_profiles.contains(name) || !self.target_tags.is_disjoint(tags)
    }
}

/// Tools that Waybill itself offers to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
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

/// Which model is called, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LlmConfig {
    pub provider: Name,
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Parameters of the provider's API, such as `temperature`: any JSON. They are sent as they are.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// Models that are called in this order, if the ones before them cannot answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub fallbacks: Vec<LlmConfig>,
}

/// The name of a secret. The secret itself never enters a card (SE-4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
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

            // The error does not show what was found: it may be the key.
            fn visit_str<E: de::Error>(self, _: &str) -> Result<SecretRef, E> {
                Err(E::custom("do not write a secret into a manifest: write its name, as in `{secret: openai}`"))
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

/// How an agent works, as far as that decides what it sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
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
    /// Returns whether a session's messages are packed for it (CX-7). Boxes that are named for it always are.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// CX-1: each block is one system message, before the history.
    Layered,
    /// CX-3: what changes comes after what does not. Volatile blocks are tagged text in the query's message; those of every step come
    /// last.
    CacheFirst,
}

/// When to compact, and how much to leave as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Compaction {
    /// The share of the budget at which to compact.
    pub at_percent: u8,
    /// The recent part that is left as it is.
    pub keep: Tokens,
    /// Less than this is not worth a summary.
    pub least: Tokens,
}

/// How much an agent sees, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    pub order: Order,
    /// The limit for everything that the model reads.
    pub budget: Tokens,
    /// How many cards at the beginning of the context are always shown.
    #[serde(deserialize_with = "small")]
    #[schema(maximum = 2147483647)]
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

/// A tool of the project, and the target that answers its calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    pub name: Name,
    pub description: String,
    /// JSON Schema of the arguments.
    #[serde(default = "no_parameters")]
    pub parameters: Map<String, Value>,
    /// JSON Schema of its answer. An answer that does not match is a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Map<String, Value>>,
    /// The target whose workers claim and answer its calls. If omitted, Waybill's own services, which call `http` and `mcp` tools.
    #[serde(default = "tools")]
    pub target: Target,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpTool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<McpTool>,
    /// When a person must approve a call before it is made.
    #[serde(default, skip_serializing_if = "Approval::is_never")]
    pub approval: Approval,
    /// Whether the caller that had the turn started may not approve its calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub four_eyes: bool,
    /// Whether its answers count as the project's own content. Otherwise they are labelled as content from outside.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trusted: bool,
    #[serde(default)]
    pub effect: Effect,
    #[serde(default = "a_minute", deserialize_with = "small")]
    #[schema(maximum = 2147483647)]
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

/// Reads a number that the database's integers have room for.
fn small<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = u32::deserialize(deserializer)?;
    within(number.into(), i32::MAX as u64).map(|()| number)
}

fn small_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZero<u32>>, D::Error> {
    let number = Option::<NonZero<u32>>::deserialize(deserializer)?;
    within(number.map_or(0, |number| number.get().into()), i32::MAX as u64).map(|()| number)
}

fn signed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(deserializer)?;
    within(number, i64::MAX as u64).map(|()| number)
}

fn signed_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NonZero<u64>>, D::Error> {
    let number = Option::<NonZero<u64>>::deserialize(deserializer)?;
    within(number.map_or(0, NonZero::get), i64::MAX as u64).map(|()| number)
}

/// Refuses a number that is more than the most.
pub(crate) fn within<E: de::Error>(number: u64, most: u64) -> Result<(), E> {
    if number <= most { Ok(()) } else { Err(E::custom(format!("{number} is more than {most}"))) }
}

fn a_minute() -> u32 {
    60
}

/// What calling it twice does (WK-7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    Pure,
    Idempotent,
    /// An intent without a result is never repeated.
    #[default]
    Once,
}

/// What follows a call (WK-3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AfterExecution {
    /// The turn waits for the result, and goes on.
    #[default]
    Suspend,
    /// The turn ends with it.
    Terminate,
}

/// A document that agents and people read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub name: Name,
    /// Any JSON.
    pub document: Value,
}

/// Which model makes vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    pub provider: Name,
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
}

/// A project's own `framework__context`. Receipts name its version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(try_from = "FrameworkSaid")]
pub struct FrameworkText {
    #[schema(min_length = 1)]
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
            return Err("the version of a framework must not be empty: each receipt records it".to_owned());
        }
        let per_turn = text.slots().find(|slot| *slot != Slot::Process);
        match per_turn {
            Some(slot) => Err(format!(
                "`{{{{{slot}}}}}` is different in every turn, so the prompt cache would miss everything after it: leave it out, because agents get it in `turn__context`"
            )),
            None => Ok(FrameworkText { version, text }),
        }
    }
}

/// What holds for a whole project.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// CX-7: experience, knowledge and todo are shared between agents.
    pub enable_share_context: bool,
    /// L0-11
    #[serde(deserialize_with = "small")]
    #[schema(maximum = 2147483647)]
    pub max_recursion_depth: u32,
    /// The most steps of a turn, if neither its profile nor its caller sets a limit.
    #[serde(deserialize_with = "small")]
    #[schema(maximum = 2147483647)]
    pub max_steps: u32,
    /// The most tokens that a turn reads and writes, if neither its profile nor its caller sets a limit.
    #[serde(deserialize_with = "small")]
    #[schema(maximum = 2147483647)]
    pub max_tokens: u32,
    /// The most seconds that a turn lasts, waiting included, if neither its profile nor its caller sets a limit.
    #[serde(deserialize_with = "small")]
    #[schema(maximum = 2147483647)]
    pub max_seconds: u32,
    /// Text in every agent's prompt that explains the system in which it runs. If omitted, Waybill's built-in text is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub framework: Option<FrameworkText>,
    /// Bytes of artifacts that it may store, each content counted once.
    #[serde(deserialize_with = "signed")]
    pub artifact_quota_bytes: u64,
    /// How many turns may be open at a time, waiting ones included; 100,000 at most. One more is refused. If omitted, any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100000)]
    pub max_open_turns: Option<NonZero<u32>>,
    /// How many turns may run at a time. The rest wait. If omitted, as many as the workers allow every project.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "small_or_none")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 2147483647)]
    pub max_running_turns: Option<NonZero<u32>>,
    /// Once the project has spent this in a calendar month (UTC), no turn starts until the next month; open turns go on. If omitted, no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "signed_or_none")]
    #[schema(value_type = Option<u64>, minimum = 1)]
    pub max_microdollars_per_month: Option<NonZero<u64>>,
    /// Hosts that its tools may reach. If empty, none.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(value_type = Vec<HostPattern>)]
    pub egress_hosts: BTreeSet<HostPattern>,
    /// A result of more tokens than this becomes an artifact; the model sees its beginning and end.
    pub result_tokens: Tokens,
    /// The model that makes vectors of documents and of searches. If omitted, documents are found by words alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding: Option<Embedding>,
    /// Regular expressions. The recorder does not store what matches one of them in a text of a recorded request or answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub withhold: Vec<String>,
    /// Further settings, for the project's own tools.
    #[schema(value_type = BTreeMap<String, String>)]
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
            withhold: Vec::new(),
            labels: BTreeMap::new(),
        }
    }
}

//! Turns: their states, how they end, and the fence that says who may act on one (L0-4 … L0-8, L0-17).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    id::{AgentId, ProjectId, TurnId},
    resource::within,
};

/// Status of an agent. `idle`: it has no turn. `dispatched`: its turn waits for a worker. `running`: a worker runs its turn. `suspended`: its turn
/// waits for the answers to its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
#[schema(as = AgentStatus)]
pub enum Status {
    Idle,
    Dispatched,
    Running,
    Suspended,
}

impl Status {
    pub const ALL: [Status; 4] = [Status::Idle, Status::Dispatched, Status::Running, Status::Suspended];

    /// The whole machine. Each statement of the kernel's `turn` folder repeats its row as `status =`.
    pub const fn may_become(self, next: Status) -> bool {
        use Status::*;
        matches!(
            (self, next),
            (Idle, Dispatched)
                | (Dispatched, Running)
                | (Running, Suspended)
                | (Suspended, Running)
                | (Running, Dispatched) // reclaimed
                | (Dispatched | Running | Suspended, Idle)
        )
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Idle => "idle",
            Status::Dispatched => "dispatched",
            Status::Running => "running",
            Status::Suspended => "suspended",
        }
    }
}

/// How a turn ends. Every turn that has ended has a deliverable, also if it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum End {
    Success,
    Failed,
    Canceled,
    Timeout,
}

impl End {
    pub const fn as_str(self) -> &'static str {
        match self {
            End::Success => "success",
            End::Failed => "failed",
            End::Canceled => "canceled",
            End::Timeout => "timeout",
        }
    }
}

/// `open` until the turn has ended; then how it ended. `recorded`: an agent elsewhere made the model calls, and Waybill recorded them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum TurnStatus {
    Open,
    Success,
    Failed,
    Canceled,
    Timeout,
    /// Calls of an agent elsewhere, recorded on their way to a provider. Waybill does not run it.
    Recorded,
}

impl TurnStatus {
    pub const fn is_open(self) -> bool {
        matches!(self, TurnStatus::Open)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            TurnStatus::Open => "open",
            TurnStatus::Success => "success",
            TurnStatus::Failed => "failed",
            TurnStatus::Canceled => "canceled",
            TurnStatus::Timeout => "timeout",
            TurnStatus::Recorded => "recorded",
        }
    }
}

/// State of an open turn. `queued`: another turn of its agent comes first. `pending`: a worker can claim it. `processing`: a worker runs it.
/// `deferred`: it waits for the answers to its calls, or for a time, such as that of its next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
pub enum InboxStatus {
    /// Another turn of the agent comes first.
    Queued,
    /// A worker may claim it.
    Pending,
    /// A worker has it.
    Processing,
    /// It waits for the results of its calls, or for a time.
    Deferred,
}

impl InboxStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            InboxStatus::Queued => "queued",
            InboxStatus::Pending => "pending",
            InboxStatus::Processing => "processing",
            InboxStatus::Deferred => "deferred",
        }
    }
}

/// Why a turn became ready for a worker. `turn`: it was started. `tool_result`: the last call that it waited for was answered. `timeout`: that call
/// timed out. `stop` is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "snake_case"))]
#[serde(rename_all = "snake_case")]
pub enum MessageType {
    Turn,
    ToolResult,
    Timeout,
    Stop,
}

/// Increases by one each time the agent begins a turn, and each time its turn is taken from a worker. A write with an older epoch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(transparent)]
pub struct TurnEpoch(i64);

/// Identifies one claim of a turn or of a call. Each claim has a new, higher token, which cannot be guessed. In JSON it is a string, because a
/// JavaScript number cannot hold all its digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(into = "String", try_from = "String")]
#[schema(value_type = String, pattern = "^[0-9]{1,19}$")]
pub struct ClaimToken(i64);

impl From<ClaimToken> for String {
    fn from(token: ClaimToken) -> String {
        token.0.to_string()
    }
}

impl TryFrom<String> for ClaimToken {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<ClaimToken, Self::Error> {
        text.parse().map(ClaimToken)
    }
}

/// The right to act on one turn: whose, which, at which epoch, under which claim.
/// Comes from a row just read or written, or from a worker that got one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::FromRow))]
pub struct Fence {
    project_id: ProjectId,
    agent_id: AgentId,
    agent_turn_id: TurnId,
    turn_epoch: TurnEpoch,
    claim_token: ClaimToken,
}

#[cfg(feature = "sqlx")]
crate::composite!(fence: Fence => "state.fence" {
    fence.project_id, fence.agent_id, fence.agent_turn_id, fence.turn_epoch, fence.claim_token
});

impl Fence {
    /// Makes the fence that a worker says it has. The kernel checks whether that is true.
    pub fn claimed(
        project_id: ProjectId,
        agent_id: AgentId,
        agent_turn_id: TurnId,
        turn_epoch: TurnEpoch,
        claim_token: ClaimToken,
    ) -> Fence {
        Fence { project_id, agent_id, agent_turn_id, turn_epoch, claim_token }
    }

    pub fn project_id(&self) -> ProjectId {
        self.project_id
    }

    pub fn agent_id(&self) -> AgentId {
        self.agent_id
    }

    pub fn agent_turn_id(&self) -> TurnId {
        self.agent_turn_id
    }

    pub fn turn_epoch(&self) -> TurnEpoch {
        self.turn_epoch
    }

    pub fn claim_token(&self) -> ClaimToken {
        self.claim_token
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "turn {} at epoch {}, claim {}", self.agent_turn_id, self.turn_epoch.0, self.claim_token.0)
    }
}

/// What a turn may spend, together with all turns that it starts. A field that is omitted sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Maximum number of model calls.
    #[serde(default, deserialize_with = "small", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2147483647)]
    pub steps: Option<u32>,
    /// Maximum number of tokens that models read and write.
    #[serde(default, deserialize_with = "small", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2147483647)]
    pub tokens: Option<u32>,
    /// Maximum cost in millionths of a dollar.
    #[serde(default, deserialize_with = "small", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2147483647)]
    pub microdollars: Option<u32>,
    /// Maximum time in seconds, from the request to start the turn until its end. Time in which the turn waits counts too.
    #[serde(default, deserialize_with = "small", skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2147483647)]
    pub seconds: Option<u32>,
}

/// Reads a number that the database has room for.
fn small<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let number = Option::<u32>::deserialize(deserializer)?;
    within(number.unwrap_or(0).into(), i32::MAX as u64).map(|()| number)
}

impl Limits {
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// Returns the smaller one of each limit.
    pub fn least(self, other: Limits) -> Limits {
        let least = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        Limits {
            steps: least(self.steps, other.steps),
            tokens: least(self.tokens, other.tokens),
            microdollars: least(self.microdollars, other.microdollars),
            seconds: least(self.seconds, other.seconds),
        }
    }

    /// Checks whether no limit allows more than the other's.
    pub fn is_within(self, other: Limits) -> bool {
        self.least(other) == self
    }
}

/// One of the [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Steps,
    Tokens,
    Microdollars,
    Seconds,
}

impl Limit {
    pub const fn as_str(self) -> &'static str {
        match self {
            Limit::Steps => "steps",
            Limit::Tokens => "tokens",
            Limit::Microdollars => "microdollars",
            Limit::Seconds => "seconds",
        }
    }
}

/// What a turn may still spend. A field that is `null` has no limit. A negative number means that the last step exceeded the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Budget {
    pub steps: Option<i64>,
    pub tokens: Option<i64>,
    pub microdollars: Option<i64>,
    pub seconds: Option<f64>,
}

impl Budget {
    /// Returns the limit that is used up, if any.
    pub fn exhausted(&self) -> Option<Limit> {
        let none = |left: Option<i64>| left.is_some_and(|left| left < 1);
        match self {
            budget if budget.seconds.is_some_and(|left| left <= 0.0) => Some(Limit::Seconds),
            budget if none(budget.steps) => Some(Limit::Steps),
            budget if none(budget.tokens) => Some(Limit::Tokens),
            budget if none(budget.microdollars) => Some(Limit::Microdollars),
            _ => None,
        }
    }
}

/// What a model call used (WK-5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Usage {
    pub provider: String,
    pub model: String,
    /// All tokens that the model read, cached ones included.
    pub input_tokens: u32,
    pub cached_tokens: u32,
    pub output_tokens: u32,
    pub microdollars: u64,
    pub took_ms: u32,
    /// How often the model was called until it answered.
    pub n_asked: u16,
    /// The turn was taken over: a worker that was lost may have made the same call before.
    pub asked_again: bool,
    /// Why the provider found less in its prompt cache than it could, in its own words. `None` means that it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_miss: Option<serde_json::Value>,
    /// A worker reported these numbers over HTTP: Waybill did not make the call.
    #[serde(default)]
    pub reported: bool,
}

/// Prices in dollars per million tokens, which equals microdollars per token.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub input: f64,
    /// `None` means that cached tokens cost what others do.
    #[serde(default)]
    pub cached: Option<f64>,
    pub output: f64,
}

impl Price {
    /// Checks that no price is negative, infinite or not a number.
    pub fn is_sound(&self) -> bool {
        [self.input, self.cached.unwrap_or(0.0), self.output].iter().all(|price| price.is_finite() && *price >= 0.0)
    }

    /// Returns what a call costs, in microdollars.
    pub fn of(&self, usage: &Usage) -> u64 {
        let fresh = f64::from(usage.input_tokens.saturating_sub(usage.cached_tokens)) * self.input;
        let cached = f64::from(usage.cached_tokens) * self.cached.unwrap_or(self.input);
        (fresh + cached + f64::from(usage.output_tokens) * self.output).ceil() as u64
    }
}

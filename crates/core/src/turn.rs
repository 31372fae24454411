//! Turns: their states, how they end, and the fence that says who may act on one (L0-4 … L0-8, L0-17).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{AgentId, ProjectId, TurnId};

/// What an agent is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "lowercase"))]
#[serde(rename_all = "lowercase")]
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
}

/// How a turn ends. Each of them has a deliverable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

/// Why a worker is given a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = "text", rename_all = "snake_case"))]
#[serde(rename_all = "snake_case")]
pub enum MessageType {
    Turn,
    ToolResult,
    Timeout,
    Stop,
}

/// Counts the owners an agent has had. A write that carries an old epoch must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(transparent)]
pub struct TurnEpoch(i64);

/// Counts the claims of an agent's turns, or of a call. Two claims are never under one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(transparent)]
pub struct ClaimToken(i64);

/// The right to act on one turn: whose, which, at which epoch, under which claim.
/// Only a row just read or written yields one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::FromRow))]
pub struct Fence {
    project_id: ProjectId,
    agent_id: AgentId,
    agent_turn_id: TurnId,
    turn_epoch: TurnEpoch,
    claim_token: ClaimToken,
}

impl Fence {
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

//! Transaction 4: the answer to a call (L0-13). The last one that a suspended turn waits for makes it ready again.

use waybill_core::{
    bus::Door,
    card::NewCard,
    id::{Target, ToolCallId, TurnId},
    metric,
    turn::{ClaimToken, MessageType},
};

use super::{Error, check_cards};
use crate::work::{self, Work};

/// An answer.
#[derive(Clone, Debug)]
pub struct Report {
    pub tool_call_id: ToolCallId,
    /// The claim that it answers for. `None` means that it stands in for the process that should have answered.
    pub claim_token: Option<ClaimToken>,
    pub message_type: MessageType,
    /// `success`, `failed`, `timeout` …: for the edge.
    pub status: String,
    /// What it says came from outside.
    pub is_external: bool,
    pub card: NewCard,
}

/// Whether an answer counts. `applied`: it does. `duplicate`: the same answer was applied before. `dropped`: it came too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, sqlx::Type, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum ReportOutcome {
    Applied,
    /// The same answer came before.
    Duplicate,
    /// It came too late.
    Dropped,
}

impl ReportOutcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            ReportOutcome::Applied => "applied",
            ReportOutcome::Duplicate => "duplicate",
            ReportOutcome::Dropped => "dropped",
        }
    }
}

/// What happened to the answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Reported {
    /// `applied`: the turn gets the answer. `duplicate`: the same answer was applied before. `dropped`: it came too late, because the call had been
    /// answered, had timed out, or its turn had ended.
    pub outcome: ReportOutcome,
    pub agent_turn_id: TurnId,
    /// Whether this was the last answer that the turn waited for. Workers can then claim the turn again.
    pub resumed: bool,
}

/// Applies an answer, once.
pub async fn report(work: &mut impl Work, report: &Report) -> Result<Reported, Error> {
    let cards = std::slice::from_ref(&report.card);
    check_cards(cards)?;
    if report.card.metadata().card_type.as_str() != "tool.result" {
        return Err(Error::Invalid("a call must be answered with a `tool.result` card"));
    }
    if report.card.tool_call_id() != Some(report.tool_call_id) {
        return Err(Error::Invalid("`tool_call_id` of the result card must be the id of the call that it answers"));
    }
    let query = sqlx::query_as::<_, (ReportOutcome, TurnId, Option<Target>)>(
        "select outcome, agent_turn_id, worker_target
           from state.report(p_project => $1, p_call => $2, p_token => $3, p_message_type => $4, p_status => $5, p_external => $6,
                             p_cards => $7)",
    )
    .bind(work.project_id())
    .bind(report.tool_call_id)
    .bind(report.claim_token)
    .bind(report.message_type)
    .bind(&report.status)
    .bind(report.is_external)
    .bind(cards);
    let (outcome, agent_turn_id, worker_target) = work::one(work, query).await?;
    metrics::counter!(metric::REPORTS, "outcome" => outcome.as_str()).increment(1);
    let resumed = worker_target.is_some();
    worker_target.into_iter().for_each(|target| work.ring(Door::Agent(target)));
    Ok(Reported { outcome, agent_turn_id, resumed })
}

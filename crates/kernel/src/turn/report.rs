//! Transaction 4: the answer to a call (L0-13). The last one that a suspended turn waits for makes it ready again.

use waybill_core::{
    bus::Door,
    card::NewCard,
    id::{Target, ToolCallId, TurnId},
    metric,
    turn::{ClaimToken, MessageType},
};

use super::{Error, check_cards};
use crate::{card::bind_cards, work::Work};

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

/// What became of an answer.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Reported {
    /// `applied`, `duplicate` (the same answer came before), or `dropped` (it came too late).
    pub outcome: String,
    pub agent_turn_id: TurnId,
    /// It was the last one: the turn is ready again.
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
    let query = sqlx::query_as::<_, (String, TurnId, Option<Target>)>(
        "select outcome, agent_turn_id, worker_target
           from state.report($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)",
    )
    .bind(work.project_id())
    .bind(report.tool_call_id)
    .bind(report.claim_token)
    .bind(report.message_type)
    .bind(&report.status)
    .bind(report.is_external);
    let (outcome, agent_turn_id, worker_target) = bind_cards!(query, cards).fetch_one(work.connection()).await?;
    metrics::counter!(metric::REPORTS, "outcome" => outcome.clone()).increment(1);
    let resumed = worker_target.is_some();
    worker_target.into_iter().for_each(|target| work.ring(Door::Agent(target)));
    Ok(Reported { outcome, agent_turn_id, resumed })
}

//! Commands: the calls that turns wait for, claimed by whoever answers them (L0-13).

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use waybill_core::{
    card::{CardType, Content, Draft, NewCard, ResultContent, Role},
    id::{AgentId, CardId, ProjectId, StepId, Target, ToolCallId, TurnId},
    turn::ClaimToken,
};

use crate::{
    turn::{Claiming, Error},
    work::{Kernel, Work},
};

/// A call that is ours to answer until its deadline, or until it is taken from us.
#[derive(Clone, Debug, FromRow)]
pub struct ClaimedCall {
    pub project_id: ProjectId,
    pub tool_call_id: ToolCallId,
    pub agent_turn_id: TurnId,
    pub agent_id: AgentId,
    pub step_id: StepId,
    pub tool_call_card_id: CardId,
    pub claim_token: ClaimToken,
    pub deadline_at: DateTime<Utc>,
    /// How often it was taken from somebody before.
    pub n_lost_leases: i32,
}

/// Claims up to `most` calls, as turns are claimed.
pub async fn claim(kernel: &Kernel, claiming: &mut Claiming) -> Result<Vec<ClaimedCall>, Error> {
    let claimed: Vec<ClaimedCall> = sqlx::query_as("select * from scheduler.claim_calls($1, $2, $3, $4, $5)")
        .bind(claiming.worker_id)
        .bind(&claiming.target)
        .bind(claiming.after)
        .bind(claiming.most.max(1))
        .bind(claiming.in_flight_cap.max(1))
        .fetch_all(kernel.pool())
        .await?;
    if let Some(last) = claimed.last() {
        claiming.after = last.project_id;
    }
    Ok(claimed)
}

/// Takes a call from whoever claimed it. Says whom to ring once this is committed; none: it was answered, or taken before.
pub async fn reclaim(
    work: &mut impl Work,
    tool_call_id: ToolCallId,
    claim_token: ClaimToken,
) -> Result<Option<Target>, Error> {
    let target = sqlx::query_scalar("select state.reclaim_call($1, $2, $3)")
        .bind(work.project_id())
        .bind(tool_call_id)
        .bind(claim_token)
        .fetch_one(work.connection())
        .await?;
    Ok(target)
}

/// The answer that stands in for one that did not come in time.
pub fn timeout_card(tool_call_id: ToolCallId) -> Result<NewCard, Error> {
    let content = ResultContent {
        status: "timeout".to_owned(),
        result: serde_json::json!("the call was not answered before its deadline"),
        extra: serde_json::Map::new(),
    };
    let mut draft = Draft::new(CardType::tool_result(), Role::Tool, Content::ToolResult(content));
    draft.tool_call_id = Some(tool_call_id);
    Ok(draft.seal()?)
}

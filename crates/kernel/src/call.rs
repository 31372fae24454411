//! Commands: the calls that turns wait for, claimed by whoever answers them (L0-13).

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use waybill_core::{
    bus::Door,
    card::{Draft, NewCard},
    id::{AgentId, CardId, ProjectId, StepId, Target, ToolCallId, TurnId, WorkerId},
    turn::ClaimToken,
};

use crate::{
    turn::{Claiming, Error, interval},
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
    let claimed: Vec<ClaimedCall> = sqlx::query_as("select * from scheduler.claim_calls($1, $2, $3, $4, $5, $6)")
        .bind(claiming.worker_id)
        .bind(&claiming.target)
        .bind(claiming.after)
        .bind(claiming.most.max(1))
        .bind(claiming.in_flight_cap.max(1))
        .bind(interval(claiming.lease))
        .fetch_all(kernel.pool())
        .await?;
    if let Some(last) = claimed.last() {
        claiming.after = last.project_id;
    }
    Ok(claimed)
}

/// What a service holds: more than it knows of where a claim was committed without its learning of it.
pub async fn held(kernel: &Kernel, worker_id: WorkerId) -> Result<Vec<ClaimedCall>, Error> {
    let held = sqlx::query_as("select * from scheduler.held_calls($1)").bind(worker_id);
    Ok(held.fetch_all(kernel.pool()).await?)
}

/// Takes a call from whoever claimed it. False: it was answered, or taken before.
pub async fn reclaim(work: &mut impl Work, tool_call_id: ToolCallId, claim_token: ClaimToken) -> Result<bool, Error> {
    let target: Option<Target> = sqlx::query_scalar("select state.reclaim_call($1, $2, $3)")
        .bind(work.project_id())
        .bind(tool_call_id)
        .bind(claim_token)
        .fetch_one(work.connection())
        .await?;
    let taken = target.is_some();
    target.into_iter().for_each(|target| work.ring(Door::Tool(target)));
    Ok(taken)
}

/// The answer that stands in for one that did not come in time.
pub fn timeout_card(tool_call_id: ToolCallId) -> Result<NewCard, Error> {
    let result = serde_json::json!("the call was not answered before its deadline");
    Ok(Draft::tool_result(tool_call_id, "timeout", result).seal()?)
}

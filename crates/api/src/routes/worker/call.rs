//! Calls of tools: claiming and answering them.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use waybill_core::{
    bus::Door,
    card::Draft,
    id::{AgentId, CardId, Name, ToolCallId, TurnId},
    key::Scope,
    turn::{ClaimToken, MessageType},
};
use waybill_kernel::{
    call::{self, ClaimedCall},
    turn::{self, Report, Reported},
};
use waybill_tool::{
    admit::{self, Verdict},
    conclude::{ToolOutcome, conclude},
};

use super::{
    card::invalid,
    claim::{Claim, Waiting},
};
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Path},
};

/// A call that the worker has claimed and must answer before `deadline_at`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OneCall {
    /// Id of the call.
    tool_call_id: ToolCallId,
    /// Turn that makes the call.
    agent_turn_id: TurnId,
    /// Agent of the turn that makes the call.
    agent_id: AgentId,
    /// Token of the claim. Send it with the answer.
    claim_token: ClaimToken,
    /// Name of the tool.
    tool_name: Name,
    /// Arguments as JSON text, exactly as the model wrote them. They match the schema of the tool.
    arguments: String,
    /// Idempotency key of the call. It stays the same if another worker gets the call later: do the work only once for each key.
    idempotency_key: ToolCallId,
    /// When the call times out.
    deadline_at: chrono::DateTime<chrono::Utc>,
    /// How often the call was taken from a worker because its lease had expired.
    n_lost_leases: i32,
    /// User for whom the turn was started, if the caller named one.
    on_behalf_of: Option<String>,
}

/// The calls that the worker has claimed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimedCalls {
    /// Claimed calls. Empty if no call was waiting.
    calls: Vec<OneCall>,
}

impl OneCall {
    fn new(claimed: &ClaimedCall, tool_name: Name, arguments: String, on_behalf_of: Option<String>) -> OneCall {
        OneCall {
            tool_call_id: claimed.tool_call_id,
            agent_turn_id: claimed.agent_turn_id,
            agent_id: claimed.agent_id,
            claim_token: claimed.claim_token,
            tool_name,
            arguments,
            idempotency_key: claimed.tool_call_id,
            deadline_at: claimed.deadline_at,
            n_lost_leases: claimed.n_lost_leases,
            on_behalf_of,
        }
    }
}

/// Returns the calls that may be made. A call that may not be made is answered here, and for some a person must decide first. `known` means that
/// they may have been let through before.
pub(super) async fn admitted(
    api: &Api,
    caller: &Caller,
    claimed: Vec<ClaimedCall>,
    known: bool,
) -> Result<Vec<OneCall>, Problem> {
    let mut calls = Vec::with_capacity(claimed.len());
    for claimed in claimed {
        let mut work = caller.begin(api).await?;
        if known && call::is_admitted(&mut work, &claimed).await? {
            // The call is in progress, whatever the turn has seen since.
            let Some(asked) = call::asked(&mut work, &claimed).await? else { continue };
            let Ok(tool_name) = asked.tool_name.parse() else { continue };
            calls.push(OneCall::new(&claimed, tool_name, asked.arguments, asked.on_behalf_of));
            continue;
        }
        let verdict = match admit::admit(&mut work, &claimed).await {
            // Another worker has it by now.
            Err(turn::Error::Stale(_)) => continue,
            verdict => verdict?,
        };
        work.commit().await?;
        let admitted = match verdict {
            Verdict::Go(admitted) => admitted,
            Verdict::Asking => continue,
            Verdict::Refused(said) => {
                conclude(&api.kernel, None, &claimed, CardId::new(), said).await?;
                continue;
            }
        };
        calls.push(OneCall::new(&claimed, admitted.tool.name, admitted.said, admitted.on_behalf_of));
    }
    Ok(calls)
}

/// Claim calls of a target, to answer them.
///
/// If no call is waiting, the request waits up to `wait_seconds` for one.
#[utoipa::path(
    post, path = "/calls/claim", tag = "worker", request_body = Claim,
    responses((status = 200, body = ClaimedCalls)),
)]
pub(crate) async fn claim_calls(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Body { value: claim, .. }: Body<Claim>,
) -> Result<Json<ClaimedCalls>, Problem> {
    caller.may(&[Scope::Tool, Scope::Worker])?;
    let mut claiming = claim.check(&caller)?;
    let door = Door::of_calls(claim.target.clone());
    let mut waiting = Waiting::new(&api, &caller, &door, claim.wait_seconds);
    loop {
        let mut work = caller.begin(&api).await?;
        let claimed = call::claim_in(&mut work, &mut claiming).await?;
        work.commit().await?;
        let calls = admitted(&api, &caller, claimed, false).await?;
        if !calls.is_empty() || !waiting.again(&api).await? {
            return Ok(Json(ClaimedCalls { calls }));
        }
    }
}

/// The answer to a call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewReport {
    /// Name of the worker that claimed the call.
    #[schema(min_length = 1, max_length = 200)]
    worker: String,
    /// `claim_token` of the claimed call.
    claim_token: ClaimToken,
    /// Id of the `tool.result` card: a UUIDv7 that the worker generates. If you repeat the request, send the same id.
    card_id: CardId,
    /// Outcome of the call, such as `success` or `failed`.
    #[schema(min_length = 1, max_length = 64)]
    status: String,
    /// Result of the call. If it has more tokens than `result_tokens` in the project's settings, the server stores it as an artifact, and the turn
    /// gets only its beginning and its end.
    result: Value,
    /// What the turn does after the call. If omitted, `after_execution` in the manifest of the tool applies.
    #[serde(default)]
    after_execution: Option<After>,
}

/// What the turn does after a call. `suspend`: it continues with the result. `terminate`: it ends with the result.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum After {
    /// The turn goes on.
    Suspend,
    /// The turn ends with the result.
    Terminate,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneToolCall {
    call: ToolCallId,
}

/// Answer a call that the worker has claimed.
///
/// After the last answer that a turn waits for, workers can claim the turn again. 409 `stale` means that another worker has the call.
#[utoipa::path(
    post, path = "/calls/{call}/report", tag = "worker", request_body = NewReport,
    params(("call" = ToolCallId, Path)),
    responses((status = 200, body = Reported)),
)]
pub(crate) async fn report_call(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneToolCall { call }): Path<OneToolCall>,
    Body { value: said, .. }: Body<NewReport>,
) -> Result<Json<Reported>, Problem> {
    caller.may(&[Scope::Tool, Scope::Worker])?;
    if !(1..=64).contains(&said.status.chars().count()) {
        return Err(Problem::invalid("`status` must have 1 to 64 characters"));
    }
    let worker_id = caller.worker_id(&said.worker)?;
    let mut work = caller.begin(&api).await?;
    let held = call::find(&mut work, worker_id, call, said.claim_token).await?;
    let is_open = held.is_some() || call::is_open(&mut work, call).await?;
    drop(work);
    if let Some(held) = held {
        let after = said.after_execution.map(|after| ("after_execution".to_owned(), serde_json::json!(after)));
        let answer = ToolOutcome {
            extra: after.into_iter().collect(),
            author_id: Some(caller.actor.clone()),
            ..ToolOutcome::new(&said.status, said.result)
        };
        let reported = conclude(&api.kernel, api.config.artifacts.as_ref(), &held, said.card_id, answer).await?;
        return Ok(Json(reported));
    }
    if is_open {
        return Err(turn::Error::Stale(call.to_string()).into());
    }
    // The call is over: by this answer, or before it came.
    let mut draft = Draft { card_id: said.card_id, ..Draft::tool_result(call, &said.status, said.result) };
    draft.metadata.author_id = Some(caller.actor.clone());
    let report = Report {
        is_external: true,
        tool_call_id: call,
        claim_token: Some(said.claim_token),
        message_type: MessageType::ToolResult,
        status: said.status,
        card: draft.seal().map_err(invalid)?,
    };
    let mut work = caller.begin(&api).await?;
    let reported = turn::report(&mut work, &report).await?;
    work.commit().await?;
    Ok(Json(reported))
}

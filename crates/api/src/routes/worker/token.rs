//! What a model is writing, piece by piece, from a worker over HTTP to the callers that watch the turn (WK-5).

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waybill_core::{
    bus::Chunk,
    id::{StepId, TurnId},
    key::Scope,
};
use waybill_kernel::turn;

use super::TurnFence;
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Path, not_empty},
    routes::{TokenEvent, turn::OneTurn},
};

/// The most characters of one piece.
const MOST_TEXT: usize = 16_384;

/// A piece of what the model is writing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTokens {
    /// Fence of the turn, as the claim returned it.
    fence: TurnFence,
    /// Id of the step that is being written. Use the same id when you write the step.
    step_id: StepId,
    /// Attempt of the step, beginning with 1. If you call the model again for the same step, use the next number: the text then begins from the
    /// start.
    #[schema(minimum = 1, maximum = 65535)]
    attempt: u16,
    /// The piece: what the model has written since the piece before.
    #[schema(min_length = 1, max_length = 16384)]
    text: String,
}

/// Confirmation that the piece was sent.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokensSent {
    /// Always true. The callers that watch the turn at this moment get the piece; it is not kept.
    sent: bool,
}

/// Send a piece of what the model is writing to the callers that watch the turn.
///
/// Pieces are not kept: write the whole text with the step. Send a few pieces per second, each with the text since the last one. 409 `stale` means
/// that another worker has the turn, or that the turn has ended.
#[utoipa::path(
    post, path = "/turns/{turn}/tokens", tag = "worker", request_body = NewTokens,
    params(("turn" = TurnId, Path)),
    responses((status = 200, body = TokensSent)),
)]
pub(crate) async fn send_tokens(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Body { value: tokens, .. }: Body<NewTokens>,
) -> Result<Json<TokensSent>, Problem> {
    caller.may(&[Scope::Worker])?;
    not_empty("text", &tokens.text)?;
    if tokens.text.chars().count() > MOST_TEXT {
        return Err(Problem::invalid(format!("`text` must have at most {MOST_TEXT} characters: send it in pieces")));
    }
    if tokens.attempt == 0 {
        return Err(Problem::invalid("`attempt` must be 1 to 65,535"));
    }
    let fence = tokens.fence.of(&caller, turn);
    let mut work = caller.begin(&api).await?;
    let is_held = caller.holds(&mut work, &fence).await?;
    let voice = turn::voice(&mut work, turn).await?;
    drop(work);
    let Some((agent_id, channel)) = voice.filter(|(agent_id, _)| is_held && *agent_id == fence.agent_id()) else {
        return Err(turn::Error::Stale(fence.to_string()).into());
    };
    let NewTokens { step_id, attempt, text, .. } = tokens;
    let piece = TokenEvent { agent_turn_id: turn, step_id, attempt, text };
    let content = serde_json::to_vec(&piece).map_err(Problem::internal)?;
    api.kernel.bus().send(Chunk { project_id: caller.project_id, channel, agent_id, content });
    Ok(Json(TokensSent { sent: true }))
}

//! One model call as it was: its messages with the cards that each came from, what was left out, and the bytes of the request.

use std::sync::Arc;

use axum::{extract::State, http::HeaderMap, response::Response};
use chrono::DateTime;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use waybill_context::{
    call::Call,
    layer::Layer,
    receipt::{Digest, Receipt},
    record,
    unit::{Message, Omitted, Reasoning, Source},
    wire::Tool,
};
use waybill_core::{
    card::{Reading, Role, ToolCall},
    id::{CardId, StepId, ToolCallId, TurnId},
    tokens::Tokens,
};
use waybill_kernel::card;

use super::render;
use crate::{
    Api,
    caller::Caller,
    kept,
    problem::Problem,
    request::{Page, Path, Query, most},
    routes::turn::OneTurn,
};

/// The most bytes of messages on one page; a single message may have more.
const MOST_BYTES: usize = 4 << 20;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowParams {
    /// Step of the model call. If omitted, the last model call of the turn.
    step_id: Option<StepId>,
    /// Whether to show what each message says. If omitted, true.
    bodies: Option<bool>,
}

/// A model call. Its request is rendered again from the stored cards, and verified against the hash in its receipt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Seen {
    /// The receipt of the call.
    receipt: Receipt,
    /// Tokens that the call was allowed to have. The receipt's `n_tokens` says how many it had.
    budget: Tokens,
    /// Messages, in the order in which the model saw them.
    messages: Vec<SeenMessage>,
    /// Cards that the model was not shown, and why.
    omitted: Vec<Omitted>,
    /// Tools that the model could call. `null` if it had none.
    tools: Option<SeenTools>,
}

/// A message that a model saw, and where it came from.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SeenMessage {
    /// Number of the message, from 1.
    n: usize,
    /// Layer that the message belongs to.
    layer: Layer,
    /// Role that the model saw.
    role: Role,
    /// Tokens of the message.
    n_tokens: Tokens,
    /// Cards that the message was made of.
    sources: Vec<Source>,
    /// Characters of `content`.
    chars: usize,
    /// What the message says. Absent with `bodies=false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// Tools that the model called. Absent if there are none, and with `bodies=false`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
    /// For a result: the call that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<ToolCallId>,
    /// What the model thought before it wrote this. Absent if it is not known, and with `bodies=false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<SeenReasoning>,
}

/// What a model thought before it answered.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SeenReasoning {
    /// Format of the provider that it came from.
    adapter: String,
    /// The readable part.
    text: String,
    /// The provider's own blocks, as JSON text. They are sent back to it byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    verbatim: Option<String>,
}

/// The tools that a model could call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SeenTools {
    /// Card that lists them, with their descriptions and schemas.
    card_id: CardId,
    /// Tokens of that card.
    n_tokens: Tokens,
    /// Names of the tools.
    names: Vec<String>,
}

impl SeenMessage {
    fn new(n: usize, message: Message<'static>, bodies: bool) -> SeenMessage {
        let Message { layer, role, content, tool_calls, tool_call_id, reasoning, sources, n_tokens } = message;
        SeenMessage {
            n,
            layer,
            role,
            n_tokens,
            sources: sources.to_vec(),
            chars: content.chars().count(),
            content: bodies.then(|| content.into_owned()),
            tool_calls: if bodies { tool_calls.into_owned() } else { Vec::new() },
            tool_call_id,
            reasoning: reasoning.filter(|_| bodies).map(|Reasoning { adapter, text, verbatim }| SeenReasoning {
                adapter: adapter.into_owned(),
                text: text.into_owned(),
                verbatim: verbatim.map(|verbatim| verbatim.into_owned()),
            }),
        }
    }
}

/// Returns about how many bytes a message has as JSON.
fn size(message: &Message<'_>) -> usize {
    let calls: usize = message.tool_calls.iter().map(|call| call.arguments.len() + 200).sum();
    let thought = message.reasoning.as_ref();
    let thought = thought.map_or(0, |said| said.text.len() + said.verbatim.as_ref().map_or(0, |text| text.len()));
    message.content.len() + calls + thought + 400
}

/// Show what a model saw: each message with its layer, its tokens, and the cards that it came from.
///
/// With `bodies=false` the messages are listed without their content; `context/messages` has the content in pages, and `context/request` has the
/// bytes that were sent. If the same bytes cannot be rendered again, the answer is 409 `not_renderable`, with the reason.
#[utoipa::path(
    get, path = "/turns/{turn}/context", tag = "context", params(("turn" = TurnId, Path), ShowParams),
    responses((status = 200, body = Seen), (status = 304, description = "The client has the answer.")),
)]
pub(crate) async fn show_context(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(ShowParams { step_id, bodies }): Query<ShowParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    caller.may_read()?;
    let call = render(&api, &caller, turn, step_id).await?;
    let tools = match call.receipt.tools_card_id {
        Some(card_id) => list_tools(&api, &caller, card_id, &call.receipt).await?,
        None => None,
    };
    let bodies = bodies.unwrap_or(true);
    let Call { composed, receipt, .. } = call;
    let n_bytes: usize = composed.messages.iter().map(|message| if bodies { size(message) } else { 400 }).sum();
    let messages = composed.messages.into_iter().zip(1..);
    let seen = Seen {
        budget: receipt.policy.budget,
        receipt,
        messages: messages.map(|(message, n)| SeenMessage::new(n, message, bodies)).collect(),
        omitted: composed.omitted,
        tools,
    };
    kept::json(&headers, seen, n_bytes).await
}

/// Reads the card that lists the tools, as it was before it ended.
async fn list_tools(
    api: &Api,
    caller: &Caller,
    card_id: CardId,
    receipt: &Receipt,
) -> Result<Option<SeenTools>, Problem> {
    let mut work = caller.begin(api).await?;
    let found = card::fetch(&mut work, &[card_id], Some(DateTime::UNIX_EPOCH)).await?.found.pop();
    let Some(card) = found.and_then(Reading::into_live) else { return Ok(None) };
    let names = match &receipt.recorded {
        Some(_) => record::tool_names(receipt, &card),
        None => {
            let tools: Vec<Tool> = card.read_as().map_err(Problem::internal)?;
            tools.into_iter().map(|tool| tool.tool_name).collect()
        }
    };
    Ok(Some(SeenTools { card_id, n_tokens: card.n_tokens, names }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessageParams {
    /// Step of the model call. If omitted, the last model call of the turn.
    step_id: Option<StepId>,
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[param(maximum = 2147483647)]
    after: Option<u32>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the messages of a model call with their content, in pages.
///
/// A page has up to 4 MiB of messages. `after` is the number of the last message that you have, so a client that has the list of `context` with
/// `bodies=false` can read any part of it.
#[utoipa::path(
    get, path = "/turns/{turn}/context/messages", tag = "context", params(("turn" = TurnId, Path), MessageParams),
    responses((status = 200, body = Page<SeenMessage>), (status = 304, description = "The client has the answer.")),
)]
pub(crate) async fn list_context_messages(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(params): Query<MessageParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    caller.may_read()?;
    let (most, after) = (most(params.most)?, params.after.unwrap_or(0));
    let after = i32::try_from(after).ok().and_then(|after| usize::try_from(after).ok());
    let after = after.ok_or_else(|| Problem::invalid(format!("`after` must be at most {}", i32::MAX)))?;
    let call = render(&api, &caller, turn, params.step_id).await?;
    let n_messages = call.composed.messages.len();
    let (mut items, mut n_bytes) = (Vec::new(), 0);
    for (message, n) in call.composed.messages.into_iter().zip(1..).skip(after).take(most) {
        n_bytes += size(&message);
        if n_bytes > MOST_BYTES && !items.is_empty() {
            break;
        }
        items.push(SeenMessage::new(n, message, true));
    }
    let last = items.last().map(|message| message.n);
    let page = Page::upto(items, last.filter(|last| *last < n_messages));
    kept::json(&headers, page, n_bytes).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RequestParams {
    /// Step of the model call. If omitted, the last model call of the turn.
    step_id: Option<StepId>,
}

/// Read the request of a model call, byte for byte as it was sent.
///
/// The BLAKE3 hash of the bytes is the receipt's `request_hash`, and it is the `ETag` of the answer. `If-None-Match` is answered with 304 if the
/// client has these bytes; `Range: bytes=0-99` returns a part. If the same bytes cannot be rendered again, the answer is 409 `not_renderable`, with
/// the reason. If credentials of a recorded call were withheld, they are not in the answer: then the `ETag` is the hash of what it has.
#[utoipa::path(
    get, path = "/turns/{turn}/context/request", tag = "context", params(("turn" = TurnId, Path), RequestParams),
    responses(
        (status = 200, description = "The request, in the format of the provider's API.", body = serde_json::Value, content_type = "application/json"),
        (status = 206, description = "A part of the request.", body = String, content_type = "application/json"),
        (status = 304, description = "The client has the request."),
    ),
)]
pub(crate) async fn show_context_request(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(params): Query<RequestParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    caller.may_read()?;
    let Call { receipt, request, .. } = render(&api, &caller, turn, params.step_id).await?;
    kept::bytes(&headers, named(&receipt, &request), request)
}

/// Returns the hash that names the bytes of a request. That of the receipt is of other bytes if credentials were withheld from these.
fn named(receipt: &Receipt, request: &[u8]) -> Digest {
    let is_part = receipt.recorded.as_ref().is_some_and(|recording| !recording.withheld.is_empty());
    if is_part { Digest::of(request) } else { receipt.request_hash }
}

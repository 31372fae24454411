//! Model calls compared: two of them, or each call of a turn with the one before it.

use std::{collections::HashMap, sync::Arc};

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use waybill_context::{
    call::Call,
    diff::{self, Diff},
    layer::Layer,
    receipt::Receipt,
};
use waybill_core::{
    id::{CardId, StepId, TurnId},
    tokens::Tokens,
};
use waybill_kernel::{
    offload,
    turn::{self, Taken},
};
use waybill_orchestrator::replay;

use super::rendered;
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Page, Path, Query},
    routes::turn::{OneTurn, one},
};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DiffParams {
    /// Turn of the first model call.
    left: TurnId,
    /// Step of the first model call. If omitted, the last model call of the turn.
    left_step_id: Option<StepId>,
    /// Turn of the second model call.
    right: TurnId,
    /// Step of the second model call. If omitted, the last model call of the turn.
    right_step_id: Option<StepId>,
}

/// How two model calls differ.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownDiff {
    #[serde(flatten)]
    diff: Diff,
    /// Tokens that the provider read from its prompt cache for the left call. `null` if that was not recorded.
    left_cached: Option<i32>,
    /// Tokens that the provider read from its prompt cache for the right call. `null` if that was not recorded.
    right_cached: Option<i32>,
}

/// Compare what a model saw in two model calls.
///
/// They are compared by set, order and tokens, message by message, and by where a prompt cache stops being of use.
#[utoipa::path(
    get, path = "/context/diff", tag = "context", params(DiffParams),
    responses((status = 200, body = ShownDiff)),
)]
pub(crate) async fn diff_contexts(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<DiffParams>,
) -> Result<Json<ShownDiff>, Problem> {
    caller.may_read()?;
    let (left, left_cached) = render(&api, &caller, params.left, params.left_step_id).await?;
    let (right, right_cached) = render(&api, &caller, params.right, params.right_step_id).await?;
    Ok(Json(ShownDiff { diff: compared(left, right).await, left_cached, right_cached }))
}

/// Renders a call again, and looks up how much of it the provider had cached.
async fn render(
    api: &Api,
    caller: &Caller,
    turn_id: TurnId,
    step_id: Option<StepId>,
) -> Result<(Arc<Call<'static>>, Option<i32>), Problem> {
    let mut work = caller.begin(api).await?;
    one(&mut work, turn_id).await?;
    let recorded = replay::recorded(&mut work, turn_id, step_id).await?;
    let steps = turn::steps(&mut work, turn_id).await?;
    drop(work);
    let taken = steps.into_iter().find(|step| step.step_id == recorded.step_id);
    Ok((Arc::new(rendered(recorded).await?), taken.and_then(|step| step.cached_tokens)))
}

/// Compares two calls. Long ones are compared apart from the threads that answer requests.
async fn compared(left: Arc<Call<'static>>, right: Arc<Call<'static>>) -> Diff {
    let n_bytes = left.request.len() + right.request.len();
    offload::run(n_bytes, move || diff::diff(&left, &right)).await
}

/// The most calls in one answer.
const MOST_CALLS: u16 = 200;
/// The most tokens that are rendered for one answer; a single call may have more.
const MOST_TOKENS: i64 = 10_000_000;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChainParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<StepId>,
    /// Entries per page, at most 200. If omitted, 200.
    #[param(minimum = 1, maximum = 200)]
    most: Option<u16>,
}

/// A model call, compared with the one before it in the same turn.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Link {
    /// Step of the model call.
    step_id: StepId,
    /// Tokens of the call, as Waybill counts them.
    n_tokens: Tokens,
    /// Tokens at its beginning that the call before has too. `null` for the first call, and if one of the two cannot be rendered again.
    same_tokens: Option<Tokens>,
    /// Tokens that the provider read from its prompt cache. `null` if that was not recorded.
    cached_tokens: Option<i32>,
    /// Seconds from the end of the call before to the beginning of this one. `null` for the first call.
    gap_seconds: Option<f64>,
    /// The first message that differs from the call before. `null` if there is none.
    #[serde(rename = "break")]
    first_break: Option<LinkBreak>,
    /// Why the call could not use all of the call before. `null` if it continues where that one ended.
    cause: Option<Cause>,
    /// Why the provider found less in its prompt cache than it could, in its own words: any JSON. `null` if it did not say.
    cache_miss: Option<Value>,
}

/// The first message that differs from the call before: from here on the prompt cache misses.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LinkBreak {
    /// Number of the message, from 1. 0 means the tools, which come before all messages.
    message: usize,
    /// Layer of the message.
    layer: Option<Layer>,
    /// Cards that caused it.
    card_ids: Vec<CardId>,
}

/// Why a call could not use all of the call before.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cause {
    /// There is no call before it.
    FirstCall,
    /// Another provider, model or format was asked.
    OtherModel,
    /// The model had other tools.
    ToolsChanged,
    /// A message differs: see `break`.
    PrefixBroke,
    /// One of the two calls cannot be rendered again.
    NotRenderable,
}

/// Compare each model call of a turn with the call before it: what stayed the same, and which card broke the prompt cache.
///
/// A page has up to 200 calls, and fewer if they are very long.
#[utoipa::path(
    get, path = "/turns/{turn}/context/chain", tag = "context", params(("turn" = TurnId, Path), ChainParams),
    responses((status = 200, body = Page<Link>)),
)]
pub(crate) async fn list_context_chain(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn: turn_id }): Path<OneTurn>,
    Query(params): Query<ChainParams>,
) -> Result<Json<Page<Link>>, Problem> {
    caller.may_read()?;
    let most = params.most.unwrap_or(MOST_CALLS);
    if !(1..=MOST_CALLS).contains(&most) {
        return Err(Problem::invalid(format!("`most` must be 1 to {MOST_CALLS}")));
    }
    let mut work = caller.begin(&api).await?;
    one(&mut work, turn_id).await?;
    let calls = replay::list(&mut work, turn_id).await?;
    let steps = turn::steps(&mut work, turn_id).await?;
    drop(work);
    let steps: HashMap<StepId, Taken> = steps.into_iter().map(|step| (step.step_id, step)).collect();
    let first = match params.after {
        None => 0,
        Some(after) => {
            let place = calls.iter().position(|(step_id, _)| *step_id == after);
            1 + place.ok_or_else(|| Problem::not_found(format!("turn {turn_id} has no model call in step {after}")))?
        }
    };
    let mut before = match first.checked_sub(1).map(|n| &calls[n]) {
        Some((step_id, receipt)) => Some(Made::again(&api, &caller, *step_id, receipt, &steps).await?),
        None => None,
    };
    let (mut links, mut n_tokens) = (Vec::new(), 0);
    for (step_id, receipt) in calls.iter().skip(first).take(most.into()) {
        n_tokens += i64::from(receipt.n_tokens.get());
        if n_tokens > MOST_TOKENS && !links.is_empty() {
            break;
        }
        let made = Made::again(&api, &caller, *step_id, receipt, &steps).await?;
        links.push(made.after(before.as_ref()).await);
        before = Some(made);
    }
    let last = links.last().map(|link| link.step_id);
    let next = last.filter(|_| first + links.len() < calls.len());
    Ok(Json(Page::upto(links, next)))
}

/// A model call of the chain.
struct Made<'a> {
    step_id: StepId,
    receipt: &'a Receipt,
    taken: Option<&'a Taken>,
    /// `None` means that it cannot be rendered again.
    call: Option<Arc<Call<'static>>>,
}

impl<'a> Made<'a> {
    async fn again(
        api: &Api,
        caller: &Caller,
        step_id: StepId,
        receipt: &'a Receipt,
        steps: &'a HashMap<StepId, Taken>,
    ) -> Result<Made<'a>, Problem> {
        let mut work = caller.begin(api).await?;
        let recorded = replay::record(&mut work, step_id, receipt.clone()).await?;
        drop(work);
        let call = match rendered(recorded).await {
            Ok(call) => Some(Arc::new(call)),
            Err(replay::Error::Render(_)) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Made { step_id, receipt, taken: steps.get(&step_id), call })
    }

    /// Compares it with the call before.
    async fn after(&self, before: Option<&Made<'_>>) -> Link {
        let diff = match (before.and_then(|before| before.call.clone()), self.call.clone()) {
            (Some(left), Some(right)) => Some(compared(left, right).await),
            _ => None,
        };
        let cause = match (before, &diff) {
            (None, _) => Some(Cause::FirstCall),
            (Some(before), _) if before.asked() != self.asked() => Some(Cause::OtherModel),
            (Some(_), None) => Some(Cause::NotRenderable),
            (Some(_), Some(diff)) => diff.first_break.as_ref().map(|place| match place.message {
                0 => Cause::ToolsChanged,
                _ => Cause::PrefixBroke,
            }),
        };
        let ended = before.and_then(|before| before.taken).map(|taken| taken.created_at);
        let gap = ended.map(|ended| (self.receipt.read_at - ended).num_milliseconds().max(0) as f64 / 1_000.0);
        Link {
            step_id: self.step_id,
            n_tokens: self.receipt.n_tokens,
            same_tokens: diff.as_ref().map(|diff| diff.same_tokens),
            cached_tokens: self.taken.and_then(|taken| taken.cached_tokens),
            gap_seconds: gap,
            first_break: diff.and_then(|diff| diff.first_break).map(|place| LinkBreak {
                message: place.message,
                layer: place.right.or(place.left),
                card_ids: place.card_ids,
            }),
            cause,
            cache_miss: self.taken.and_then(|taken| taken.cache_miss.clone()),
        }
    }

    /// Returns what was asked: format, provider and model.
    fn asked(&self) -> (&str, Option<&str>, Option<&str>) {
        let (provider, model) = (
            self.taken.and_then(|taken| taken.provider.as_deref()),
            self.taken.and_then(|taken| taken.model.as_deref()),
        );
        (&self.receipt.adapter, provider, model)
    }
}

//! Turns: started, listed, looked at, stopped, done again.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use waybill_core::{
    handover::Handover,
    id::{AgentId, BatchId, BoxId, CardId, Channel, Name, SessionId, StepId, TurnId},
    key::Scope,
    turn::Limits,
};
use waybill_kernel::{
    audit,
    batch::{self, Batch, TaskShown},
    external, handover,
    turn::{self, Edge, Listing, Summary, Taken},
    work::UnitOfWork,
};
use waybill_orchestrator::launch::{DispatchResult, Launch, WhileRunning, launch};
use waybill_worker::fork;

use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Page, Path, Query, Traced, and_one, most, not_empty, not_too_many},
    write::{Once, OnceParams},
};

/// What is wanted, and of whom.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    profile_name: Name,
    #[schema(min_length = 1)]
    instruction: String,
    /// What the result must have: `[{"name": …, "description": …}]`
    #[serde(default)]
    result_fields: Option<Vec<ResultField>>,
    /// How the context is packed, instead of the usual way: which arguments become cards, which boxes go along. `instruction`, `result_fields` and
    /// `input_box_ids` (the `context_box_ids`) are arguments too.
    #[serde(default)]
    #[schema(value_type = Object)]
    handover: Option<Handover>,
    /// What the handover speaks of besides.
    #[serde(default)]
    arguments: serde_json::Map<String, Value>,
    /// Who is to do it, with what it remembers; none: somebody who is made for it.
    #[serde(default)]
    agent_id: Option<AgentId>,
    /// Boxes that it is to see besides.
    #[serde(default)]
    #[schema(max_items = 1000)]
    context_box_ids: Vec<BoxId>,
    /// A conversation that it is part of: it sees what was said, and what comes of it is said there. Opened with its first use.
    #[serde(default)]
    session_id: Option<SessionId>,
    /// What becomes of it where a turn of the session runs.
    #[serde(default)]
    while_running: WhileRunning,
    /// Where its events go.
    #[serde(default)]
    channel: Option<Channel>,
    /// What it may spend. Less than the profile says; more takes a key of scope `admin`.
    #[serde(default)]
    limits: Option<Limits>,
    /// What is wanted came from outside, such as a mail or a web form: the turn has seen content from outside from the start.
    #[serde(default)]
    external: bool,
    /// The user of yours for whom this is done. It goes on record with the turn and all that it asks for, and tools are told.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200)]
    on_behalf_of: Option<String>,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ResultField {
    name: String,
    description: String,
    #[serde(flatten)]
    extra: serde_json::Map<String, Value>,
}

/// Have something done.
#[utoipa::path(
    post, path = "/turns", tag = "turns", request_body = Start,
    params(OnceParams),
    responses((status = 200, body = DispatchResult)),
)]
pub(crate) async fn start_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    once: Once,
    Traced(traceparent): Traced,
    Body { value: start, bytes, .. }: Body<Start>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    caller.may_start(&start.profile_name)?;
    not_empty("instruction", &start.instruction)?;
    not_too_many("context_box_ids", &start.context_box_ids)?;
    let fields = start.result_fields.map(|fields| serde_json::to_value(fields).unwrap_or_default());
    let wanted = Launch {
        result_fields: fields,
        handover: start.handover,
        arguments: start.arguments,
        agent_id: start.agent_id,
        context_box_ids: start.context_box_ids,
        session_id: start.session_id,
        owner: caller.owner(),
        while_running: start.while_running,
        channel: start.channel,
        limits: start.limits,
        may_widen: caller.may_widen(),
        external: start.external || caller.bounds.external,
        on_behalf_of: start.on_behalf_of,
        emit_state_event: true,
        traceparent,
        ..Launch::new(start.profile_name, start.instruction)
    };
    let (late, acting) = (api.backlog.late(&api.kernel).await, caller.clone());
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            acting.may_employ(work, wanted.agent_id).await?;
            // What a running turn is told starts nothing.
            if wanted.while_running != WhileRunning::Steer {
                late.room(work.project_id(), &handover::target(work, &wanted.profile_name).await?.worker_target)?;
            }
            Ok(launch(work, &wanted).await?)
        })
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Go on after this: the `next` of the page before.
    after: Option<TurnId>,
    /// How many at most, up to 1,000.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
    /// Only those that nobody asked for on behalf of another turn.
    #[serde(default)]
    roots: bool,
    /// Only those that have no end yet.
    #[serde(default)]
    open: bool,
}

/// Turns, the newest first.
#[utoipa::path(
    get, path = "/turns", tag = "turns", params(ListParams),
    responses((status = 200, body = Page<Summary>)),
)]
pub(crate) async fn list_turns(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<Page<Summary>>, Problem> {
    caller.may_audit()?;
    let n = most(params.most)?;
    let listing = Listing { before: params.after, most: and_one(n), roots: params.roots, open: params.open };
    let listed = turn::list(&mut caller.begin(&api).await?, &listing).await?;
    Ok(Json(Page::new(listed, n, |turn| turn.agent_turn_id)))
}

/// A turn, its steps, and what came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Shown {
    turn: Summary,
    steps: Vec<Taken>,
    /// None: it has none yet, or it can no longer be shown.
    deliverable: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneTurn {
    pub(super) turn: TurnId,
}

/// A turn, its steps, and what came of it.
#[utoipa::path(
    get, path = "/turns/{turn}", tag = "turns", params(("turn" = TurnId, Path)),
    responses((status = 200, body = Shown)),
)]
pub(crate) async fn show_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
) -> Result<Json<Shown>, Problem> {
    caller.may_read()?;
    let mut work = caller.begin(&api).await?;
    let found = one(&mut work, turn).await?;
    let steps = turn::steps(&mut work, turn).await?;
    let deliverable = turn::delivered(&mut work, &found).await?;
    let deliverable = deliverable.and_then(|content| serde_json::to_value(content).ok());
    Ok(Json(Shown { turn: found, steps, deliverable }))
}

pub(super) async fn one(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Summary, Problem> {
    let found = turn::show(work, &[turn_id]).await?.pop();
    found.ok_or_else(|| Problem::not_found(format!("there is no turn {turn_id} here")))
}

/// A turn and everybody it asked: each after whoever asked it, up to 10,000.
#[utoipa::path(
    get, path = "/turns/{turn}/tree", tag = "turns", params(("turn" = TurnId, Path)),
    responses((status = 200, body = Vec<Summary>)),
)]
pub(crate) async fn show_tree(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
) -> Result<Json<Vec<Summary>>, Problem> {
    caller.may_audit()?;
    let tree = turn::tree(&mut caller.begin(&api).await?, turn, 10_000).await?;
    if tree.is_empty() {
        return Err(Problem::not_found(format!("there is no turn {turn} here")));
    }
    Ok(Json(tree))
}

/// How a turn was asked for, and what its calls came to.
#[utoipa::path(
    get, path = "/turns/{turn}/edges", tag = "turns", params(("turn" = TurnId, Path)),
    responses((status = 200, body = Vec<Edge>)),
)]
pub(crate) async fn list_edges(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
) -> Result<Json<Vec<Edge>>, Problem> {
    caller.may_audit()?;
    let mut work = caller.begin(&api).await?;
    one(&mut work, turn).await?;
    Ok(Json(turn::edges(&mut work, turn).await?))
}

/// Why it is to end.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stop {
    #[schema(min_length = 1)]
    reason: String,
}

/// What a stop came to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StopAnswer {
    agent_turn_id: TurnId,
    /// `ended`: nobody ran it. `asked`: whoever runs it is to end it. `over`: it had its end before.
    stopped: &'static str,
}

/// Have a turn end. It still delivers.
#[utoipa::path(
    post, path = "/turns/{turn}/stop", tag = "turns", request_body = Stop,
    params(("turn" = TurnId, Path), OnceParams),
    responses((status = 200, body = StopAnswer)),
)]
pub(crate) async fn stop_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    once: Once,
    Body { value: Stop { reason }, bytes, .. }: Body<Stop>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    not_empty("reason", &reason)?;
    let actor = caller.actor.clone();
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            let stopped = turn::stop(work, turn, &reason).await?;
            audit::record(work, &actor, "turn.stop", &turn.to_string(), &json!({ "reason": reason })).await?;
            Ok(StopAnswer { agent_turn_id: turn, stopped: stopped.as_str() })
        })
    })
    .await
}

/// What is changed. Nothing: it is done again as it was.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fork {
    /// The model call that is done again; none: the first.
    #[serde(default)]
    step_id: Option<StepId>,
    /// What cards say instead.
    #[serde(default)]
    #[schema(max_items = 1000)]
    cards: Vec<ChangedCard>,
    /// Who does it instead.
    #[serde(default)]
    profile_name: Option<Name>,
    /// What is different about the profile: a JSON merge patch. It may change the prompt and the model's parameters and take away what the profile
    /// may do; to allow it more, or to have it call tools anew, takes a key of scope `admin`.
    #[serde(default)]
    profile_patch: Option<serde_json::Map<String, Value>>,
    /// Call tools and agents. Else they answer as they did then.
    #[serde(default)]
    live_tools: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangedCard {
    card_id: CardId,
    content: Value,
}

/// Do a recorded turn again from one of its model calls on, with something changed.
#[utoipa::path(
    post, path = "/turns/{turn}/fork", tag = "turns", request_body = Fork,
    params(("turn" = TurnId, Path), OnceParams),
    responses((status = 200, body = fork::Forked)),
)]
pub(crate) async fn fork_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    once: Once,
    Body { value, bytes, .. }: Body<Fork>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    not_too_many("cards", &value.cards)?;
    let change = fork::Change {
        cards: value.cards.into_iter().map(|card| (card.card_id, card.content)).collect(),
        profile_name: value.profile_name,
        profile_patch: value.profile_patch.map(Value::Object),
    };
    let may_widen = caller.may_widen();
    let wanted = fork::Wanted {
        turn_id: turn,
        step_id: value.step_id,
        change,
        live_tools: value.live_tools,
        may_widen,
        external: caller.bounds.external,
    };
    if !caller.bounds.profiles.is_empty() {
        let source = one(&mut caller.begin(&api).await?, turn).await?.profile_name;
        let profile = wanted.change.profile_name.as_ref().or(source.as_ref());
        let unnamed = || Problem::not_found(format!("turn {turn} has no profile"));
        caller.may_start(profile.ok_or_else(unnamed)?)?;
    }
    let (actor, external) = (caller.actor.clone(), caller.bounds.external);
    let late = api.backlog.late(&api.kernel).await;
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            external::label(work, external).await?;
            let forked = fork::fork(work, &wanted).await?;
            let detail = json!({ "source": wanted.turn_id, "live_tools": wanted.live_tools });
            audit::record(work, &actor, "turn.fork", &forked.agent_turn_id.to_string(), &detail).await?;
            late.room(work.project_id(), &forked.worker_target)?;
            Ok(forked)
        })
    })
    .await
}

/// A batch, and its tasks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownBatch {
    #[serde(flatten)]
    batch: Batch,
    tasks: Page<TaskShown>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneBatch {
    batch: BatchId,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TaskParams {
    /// Go on after the task of this index.
    after: Option<i32>,
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// A batch, and what became of its tasks.
#[utoipa::path(
    get, path = "/batches/{batch}", tag = "turns", params(("batch" = BatchId, Path), TaskParams),
    responses((status = 200, body = ShownBatch)),
)]
pub(crate) async fn show_batch(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneBatch { batch: batch_id }): Path<OneBatch>,
    Query(params): Query<TaskParams>,
) -> Result<Json<ShownBatch>, Problem> {
    caller.may_read()?;
    let mut work = caller.begin(&api).await?;
    let n = most(params.most)?;
    let found = batch::find(&mut work, batch_id).await?;
    let batch = found.ok_or_else(|| Problem::not_found(format!("there is no batch {batch_id} here")))?;
    let tasks = batch::tasks(&mut work, batch_id, params.after.unwrap_or(-1), and_one(n)).await?;
    Ok(Json(ShownBatch { batch, tasks: Page::new(tasks, n, |task| task.task_index) }))
}

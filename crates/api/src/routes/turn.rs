//! Turns: start, list, show, stop, and run again.

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
use waybill_orchestrator::fork;
use waybill_orchestrator::launch::{DispatchResult, Launch, WhileRunning, launch};

use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Page, Path, Query, Traced, and_one, most, not_empty, not_too_many},
    write::{Once, OnceParams},
};

/// The work to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    /// Profile of the agent that does the work.
    profile_name: Name,
    /// What the agent is to do.
    #[schema(min_length = 1)]
    instruction: String,
    /// Fields that the result must have: `[{"name": …, "description": …}]`. If omitted, no fields are required.
    #[serde(default)]
    result_fields: Option<Vec<ResultField>>,
    /// How the context is packed: which arguments become cards, which boxes go along. `instruction`, `result_fields` and `input_box_ids` (the
    /// `context_box_ids`) are arguments too. If omitted, the context is packed in the standard way.
    #[serde(default)]
    #[schema(value_type = Object)]
    handover: Option<Handover>,
    /// Further arguments that the handover refers to.
    #[serde(default)]
    arguments: serde_json::Map<String, Value>,
    /// Agent that does the work, with what it remembers. If omitted, a new agent is created for this turn.
    #[serde(default)]
    agent_id: Option<AgentId>,
    /// Further boxes that the agent is to see.
    #[serde(default)]
    #[schema(max_items = 1000)]
    context_box_ids: Vec<BoxId>,
    /// Session (conversation) that the turn is part of: it sees the messages so far, and its result becomes one of them. The first use of an id opens
    /// the session. If omitted, the turn is part of no session.
    #[serde(default)]
    session_id: Option<SessionId>,
    /// What happens if a turn of the session is running already. If omitted, `start`.
    #[serde(default)]
    while_running: WhileRunning,
    /// Channel that its events are published to. If omitted, `public`.
    #[serde(default)]
    channel: Option<Channel>,
    /// What the turn may spend: less than the profile allows, or more with a key of scope `admin`. If omitted, the limits of the profile apply.
    #[serde(default)]
    limits: Option<Limits>,
    /// Whether the instruction came from outside, such as from an email or a web form. The turn then counts as having seen content from outside.
    #[serde(default)]
    external: bool,
    /// Your user for whom this is done. It is recorded with the turn and with all that the turn starts, and tools get it. If omitted, no user is
    /// recorded.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200)]
    on_behalf_of: Option<String>,
}

/// A field that the result must have.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ResultField {
    /// Name of the field.
    name: String,
    /// What the field holds.
    description: String,
    #[serde(flatten)]
    extra: serde_json::Map<String, Value>,
}

/// Start a turn.
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
    start.arguments.values().try_for_each(|said| caller.may_say(said))?;
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
            // Steering a running turn starts nothing.
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
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<TurnId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
    /// Whether to list only turns that no other turn has started.
    #[serde(default)]
    roots: bool,
    /// Whether to list only turns that have not ended.
    #[serde(default)]
    open: bool,
}

/// List turns, newest first.
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

/// A turn, its steps, and its deliverable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Shown {
    /// The turn.
    turn: Summary,
    /// Its steps, in order.
    steps: Vec<Taken>,
    /// What it delivered. `null` if it has not delivered yet, or if the content can no longer be shown.
    deliverable: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneTurn {
    pub(super) turn: TurnId,
}

/// Show a turn, its steps, and its deliverable.
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
    found.ok_or_else(|| Problem::not_found(format!("there is no turn {turn_id} in this project")))
}

/// List a turn and the turns that it started, directly or indirectly, up to 10,000.
///
/// Each turn comes after the one that started it.
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
        return Err(Problem::not_found(format!("there is no turn {turn} in this project")));
    }
    Ok(Json(tree))
}

/// List the edges of a turn: how it was started, and what its calls came to.
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

/// Why the turn is to end.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stop {
    /// Reason, which is recorded.
    #[schema(min_length = 1)]
    reason: String,
}

/// What a stop came to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StopAnswer {
    /// The turn.
    agent_turn_id: TurnId,
    /// `ended`: no worker was running it, and it has ended. `asked`: the worker that runs it was asked to end it. `over`: it had ended before.
    stopped: &'static str,
}

/// Stop a turn.
///
/// A stopped turn still has a deliverable.
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

/// What is changed. If nothing is, the turn is run again as it was.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fork {
    /// Step of the model call from which the turn is run again. If omitted, the first model call.
    #[serde(default)]
    step_id: Option<StepId>,
    /// Cards with new content.
    #[serde(default)]
    #[schema(max_items = 1000)]
    cards: Vec<ChangedCard>,
    /// Profile to use instead. If omitted, the profile of the recorded turn.
    #[serde(default)]
    profile_name: Option<Name>,
    /// JSON merge patch for the profile. It may change the prompt and the model's parameters, and take away what the profile may do. To allow the
    /// profile more, or to call tools again, needs a key of scope `admin`. If omitted, the profile is used as it is.
    #[serde(default)]
    profile_patch: Option<serde_json::Map<String, Value>>,
    /// Whether to call tools and agents again. If omitted, they answer as they did in the recorded turn.
    #[serde(default)]
    live_tools: bool,
}

/// A card with new content.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangedCard {
    /// The card.
    card_id: CardId,
    /// Its new content.
    content: Value,
}

/// Fork a turn: run it again from one of its model calls on, with something changed.
///
/// The recorded turn stays as it is.
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
    value.cards.iter().try_for_each(|card| caller.may_say(&card.content))?;
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
        let unnamed = || Problem::not_found(format!("turn {turn} has no profile: set `profile_name`"));
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
    /// Its tasks, by index.
    tasks: Page<TaskShown>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneBatch {
    batch: BatchId,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TaskParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<i32>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// Show a batch, and what became of its tasks.
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
    let batch = found.ok_or_else(|| Problem::not_found(format!("there is no batch {batch_id} in this project")))?;
    let tasks = batch::tasks(&mut work, batch_id, params.after.unwrap_or(-1), and_one(n)).await?;
    Ok(Json(ShownBatch { batch, tasks: Page::new(tasks, n, |task| task.task_index) }))
}

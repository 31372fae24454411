//! Turns: start, show and stop.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use waybill_core::{
    handover::Handover,
    id::{AgentId, BatchId, BoxId, Channel, Name, SessionId, TurnId},
    key::Scope,
    label::Labels,
    object::object_or_none,
    turn::Limits,
};
use waybill_kernel::{
    audit,
    batch::{self, Batch, TaskShown},
    handover,
    turn::{self, Edge, Summary, Taken},
    work::UnitOfWork,
};
use waybill_orchestrator::launch::{DispatchResult, Launch, WhileRunning, launch};

use super::{listing::without_content, watch::until_over};
use crate::{
    Api,
    caller::Caller,
    limit::{Late, Place},
    problem::Problem,
    request::{Body, Page, Path, Query, Traced, and_one, most, not_empty, not_too_many, wait},
    write::{Once, OnceParams},
};

/// The turn to start: its profile, its instruction, and what the agent sees.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    /// Profile of the agent that does the work.
    profile_name: Name,
    /// What the agent must do.
    #[schema(min_length = 1)]
    instruction: String,
    /// Fields that the result must have: `[{"name": …, "description": …}]`. If omitted, no fields are required.
    #[serde(default)]
    result_fields: Option<Vec<ResultField>>,
    /// JSON Schema (draft 2020-12) that the result must fit: an object (`"type": "object"`) of at most 64 KiB, whose `$ref`s name parts of itself. The
    /// agent sees it as the parameters of `submit_result`, with which the turn then ends. Do not set `result_fields` too. If omitted, no schema applies.
    #[serde(default)]
    result_schema: Option<serde_json::Map<String, Value>>,
    /// Rules for what the agent sees: which arguments become cards, and which boxes are included. The rules can also use the arguments `instruction`,
    /// `result_fields`, `result_schema` and `input_box_ids` (the `context_box_ids`). If omitted, standard rules apply.
    #[serde(default)]
    handover: Option<Handover>,
    /// Further arguments for the rules in `handover`, by name.
    #[serde(default)]
    arguments: serde_json::Map<String, Value>,
    /// Existing agent that does the work. It sees what it remembers of earlier turns. If omitted, a new agent is created for this turn.
    #[serde(default)]
    agent_id: Option<AgentId>,
    /// Ids of further boxes whose cards the agent sees.
    #[serde(default)]
    #[schema(max_items = 1000)]
    context_box_ids: Vec<BoxId>,
    /// Session (conversation) that the turn is part of. The turn sees the messages so far, and its deliverable becomes a message. The first use of an
    /// id opens the session. If omitted, the turn is part of no session.
    #[serde(default)]
    session_id: Option<SessionId>,
    /// What happens if a turn of the session is running already. If omitted, `start`.
    #[serde(default)]
    while_running: WhileRunning,
    /// Labels to file the turn under, such as `{"team": "blue"}`: list the turns with a label by `GET turns?label=team=blue`. At most 16. If omitted,
    /// none.
    #[serde(default)]
    labels: Labels,
    /// Channel to which the events of the turn are published. If omitted, `public`.
    #[serde(default)]
    channel: Option<Channel>,
    /// What the turn may spend. A limit above that of the profile has an effect only with a key of scope `admin`. If omitted, the limits of the
    /// profile apply.
    #[serde(default, deserialize_with = "object_or_none")]
    limits: Option<Limits>,
    /// Whether the instruction is external content: it came from outside your system, such as an email or a web form. The turn then counts as having
    /// seen external content. If omitted, false.
    #[serde(default)]
    external: bool,
    /// User of your own system for whom you start the turn. The user is recorded with the turn and with all turns that it starts, and tools get it
    /// with each call. If omitted, no user is recorded.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200)]
    on_behalf_of: Option<String>,
}

/// A field that the result must have.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ResultField {
    /// Name of the field.
    name: String,
    /// What the field must contain.
    description: String,
    #[serde(flatten)]
    extra: serde_json::Map<String, Value>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitParams {
    /// Seconds to wait for the end of the turn, at most 30. If omitted, the request does not wait.
    #[serde(default)]
    #[param(minimum = 0, maximum = 30)]
    wait_seconds: f64,
}

/// What a start led to.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "describes the answer, which is written as JSON once and may be repeated")]
pub(crate) struct Started {
    #[serde(flatten)]
    dispatched: DispatchResult,
    /// The turn, as it is once it has ended or the wait is over. Absent if the request did not wait, or could
    /// not wait to the end: then look the turn up by `agent_turn_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<Shown>,
}

/// Start a turn: an agent works on an instruction and delivers a result.
///
/// With `wait_seconds` the answer comes once the turn has ended, or after that time, and has the turn in it.
#[utoipa::path(
    post, path = "/turns", tag = "turns", request_body = Start,
    params(WaitParams, OnceParams),
    responses((status = 200, body = Started)),
)]
pub(crate) async fn start_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(WaitParams { wait_seconds }): Query<WaitParams>,
    once: Once,
    Traced(traceparent): Traced,
    Body { value: start, bytes, place: body }: Body<Start>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    let wait = wait(wait_seconds)?;
    let wanted = wanted(&caller, start, traceparent)?;
    // Before the turn is started: if the request cannot wait, nothing is done.
    let place = place_to_wait(&api, &caller, wait)?;
    let (late, acting) = (api.backlog.late(&api.kernel).await, caller.clone());
    let answer = once
        .write(&api, &caller, &bytes, move |work| Box::pin(async move { begin(work, &acting, &late, &wanted).await }));
    let Json(mut answer) = answer.await?;
    // A request that waits needs its body no more.
    drop((body, bytes));
    if let Some(place) = place {
        let turn_id = serde_json::from_value(answer["agent_turn_id"].clone()).map_err(Problem::internal)?;
        // The turn is started: a wait that fails must not look like a start that failed.
        let shown = match until_over(&api, &caller, turn_id, wait, place).await {
            Ok(()) => look(&api, &caller, turn_id).await,
            Err(problem) => Err(problem),
        };
        if let Ok(shown) = shown {
            answer["turn"] = serde_json::to_value(shown).map_err(Problem::internal)?;
        }
    }
    Ok(Json(answer))
}

/// Checks a start as far as the database is not needed for it, and returns what is to be started.
pub(super) fn wanted(caller: &Caller, start: Start, traceparent: Option<String>) -> Result<Launch, Problem> {
    caller.may_start(&start.profile_name)?;
    not_empty("instruction", &start.instruction)?;
    not_too_many("context_box_ids", &start.context_box_ids)?;
    start.arguments.values().try_for_each(|said| caller.may_say(said))?;
    let fields = start.result_fields.map(|fields| serde_json::to_value(fields).unwrap_or_default());
    Ok(Launch {
        result_fields: fields,
        result_schema: start.result_schema.map(Value::Object),
        handover: start.handover,
        arguments: start.arguments,
        agent_id: start.agent_id,
        context_box_ids: start.context_box_ids,
        labels: start.labels,
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
    })
}

/// Starts a turn, if the caller may employ its agent and the queue has room for it.
pub(super) async fn begin(
    work: &mut UnitOfWork,
    caller: &Caller,
    late: &Late,
    wanted: &Launch,
) -> Result<DispatchResult, Problem> {
    caller.may_employ(work, wanted.agent_id).await?;
    // Steering a running turn starts nothing.
    if wanted.while_running != WhileRunning::Steer {
        late.room(work.project_id(), &handover::target(work, &wanted.profile_name).await?.worker_target)?;
    }
    Ok(launch(work, wanted).await?)
}

/// Takes a place among the requests that wait, if this one does.
fn place_to_wait(api: &Api, caller: &Caller, wait: Duration) -> Result<Option<Place>, Problem> {
    (!wait.is_zero()).then(|| api.gate.waits.take(caller.lane, 1)).transpose()
}

/// The most turns of a tree in one answer.
const MOST_OF_TREE: u16 = 10_000;

/// A turn, its steps, and its deliverable.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Shown {
    /// The turn: its state, its boxes, and what it has used so far.
    turn: Summary,
    /// Steps of the turn, in order.
    steps: Vec<Taken>,
    /// What it delivered: a text, or any JSON. `null` if it has not delivered yet, or if the content can no longer be shown.
    deliverable: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneTurn {
    pub(super) turn: TurnId,
}

/// Show a turn, its steps, and its deliverable.
///
/// With `wait_seconds` the answer comes once the turn has ended, or after that time.
#[utoipa::path(
    get, path = "/turns/{turn}", tag = "turns", params(("turn" = TurnId, Path), WaitParams),
    responses((status = 200, body = Shown)),
)]
pub(crate) async fn show_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(WaitParams { wait_seconds }): Query<WaitParams>,
) -> Result<Json<Shown>, Problem> {
    caller.may_read()?;
    let wait = wait(wait_seconds)?;
    if let Some(place) = place_to_wait(&api, &caller, wait)? {
        until_over(&api, &caller, turn, wait, place).await?;
    }
    Ok(Json(look(&api, &caller, turn).await?))
}

async fn look(api: &Api, caller: &Caller, turn_id: TurnId) -> Result<Shown, Problem> {
    let mut work = caller.begin(api).await?;
    let turn = one(&mut work, turn_id).await?;
    let steps = turn::steps(&mut work, turn_id).await?;
    let deliverable = turn::delivered(&mut work, &turn).await?;
    let deliverable = deliverable.and_then(|content| serde_json::to_value(content).ok());
    Ok(Shown { turn, steps, deliverable })
}

pub(super) async fn one(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Summary, Problem> {
    let found = turn::show(work, &[turn_id]).await?.pop();
    found.ok_or_else(|| Problem::not_found(format!("there is no turn {turn_id} in this project")))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TreeParams {
    /// The most turns to list, at most 10,000. If omitted, 10,000.
    #[param(minimum = 1, maximum = 10000)]
    most: Option<u16>,
}

/// A turn and the turns below it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tree {
    /// Turns, level by level: each comes after the one that started it.
    turns: Vec<Summary>,
    /// Whether there are more turns. The deepest are left out; list the tree of a turn further down to see them.
    truncated: bool,
}

/// List a turn and the turns that it started, directly or indirectly, up to 10,000.
///
/// Each turn comes after the one that started it. `truncated` says whether there are more.
#[utoipa::path(
    get, path = "/turns/{turn}/tree", tag = "turns", params(("turn" = TurnId, Path), TreeParams),
    responses((status = 200, body = Tree)),
)]
pub(crate) async fn show_tree(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Query(TreeParams { most }): Query<TreeParams>,
) -> Result<Json<Tree>, Problem> {
    caller.may_audit()?;
    let most = usize::from(most.unwrap_or(MOST_OF_TREE));
    if !(1..=usize::from(MOST_OF_TREE)).contains(&most) {
        return Err(Problem::invalid(format!("`most` must be 1 to {MOST_OF_TREE}")));
    }
    let mut turns = turn::tree(&mut caller.begin(&api).await?, turn, and_one(most)).await?;
    if turns.is_empty() {
        return Err(Problem::not_found(format!("there is no turn {turn} in this project")));
    }
    let truncated = turns.len() > most;
    turns.truncate(most);
    without_content(&caller, &mut turns);
    Ok(Json(Tree { turns, truncated }))
}

/// List the edges of a turn: how it was started, what its calls came to, and which batches of turns they became.
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

/// Why the turn is stopped.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stop {
    /// Reason for stopping the turn. It is recorded in the audit log.
    #[schema(min_length = 1)]
    reason: String,
}

/// What happened to the turn.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StopAnswer {
    /// Id of the turn.
    agent_turn_id: TurnId,
    /// `ended`: no worker was running the turn, and it has ended as `canceled`. `asked`: a worker is running the turn, and was asked to end it.
    /// `over`: the turn had already ended.
    stopped: &'static str,
}

/// Stop a turn.
///
/// The turn ends as `canceled`, and still has a deliverable.
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

/// A batch and its tasks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownBatch {
    #[serde(flatten)]
    batch: Batch,
    /// Tasks of the batch, in the order of their index.
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

/// Show a batch and the state of its tasks.
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

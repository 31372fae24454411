//! Batches of children (PM-8, PM-9): counted down in slots, joined in the transaction of the last child's end.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::{FromRow, types::Json};
use waybill_core::{
    bus::Door,
    card::{Draft, NewCard},
    id::{AgentId, BatchId, BoxId, CardId, ProjectId, Target, ToolCallId, TurnId},
    json,
    turn::{ClaimToken, TurnStatus},
};

use crate::{
    turn::{Error, stop},
    work::{Kernel, UnitOfWork, Work},
};

/// Above this many tasks a join lists counts and the first failures instead of every result.
const MOST_LISTED: usize = 64;
const MOST_FAILURES: usize = 20;
/// How many characters of a deliverable are shown in a list of results.
const MOST_SUMMARY: usize = 500;

/// A child to be dispatched: the id of its turn is minted before, so that its end always finds its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, FromRow)]
pub struct Task {
    pub agent_id: AgentId,
    pub agent_turn_id: TurnId,
}

/// What the end of a batch gives to the turn that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum JoinsAs {
    /// Its results, in task order.
    List,
    /// The deliverable of its one task.
    One,
    /// Nothing yet: the call goes back to its handler, which continues.
    Resume,
}

impl JoinsAs {
    const fn as_str(self) -> &'static str {
        match self {
            JoinsAs::List => "list",
            JoinsAs::One => "one",
            JoinsAs::Resume => "resume",
        }
    }
}

/// A fork.
#[derive(Clone, Debug)]
pub struct Fork {
    pub batch_id: BatchId,
    /// A call may take several batches, one after the other.
    pub stage: i16,
    pub joins_as: JoinsAs,
    /// The first failure ends the batch and stops the rest.
    pub fail_fast: bool,
    pub timeout: Duration,
    /// In the order of `task_index`, from 0.
    pub tasks: Vec<Task>,
}

/// An open batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct Opened {
    /// For a fork that is delivered again, the id from the first time.
    pub batch_id: BatchId,
    pub duplicate: bool,
}

/// Opens the batch of a claimed call, once per call and stage. The children are then enqueued like any other turn, with the id of the batch;
/// after the last one, call [`dispatched`].
pub async fn open(
    work: &mut impl Work,
    tool_call_id: ToolCallId,
    claim_token: ClaimToken,
    fork: &Fork,
) -> Result<Opened, Error> {
    if fork.tasks.is_empty() {
        return Err(Error::Invalid("a batch must have at least one task"));
    }
    let wire = json!({
        "batch_id": fork.batch_id,
        "stage": fork.stage,
        "joins_as": fork.joins_as.as_str(),
        "fail_fast": fork.fail_fast,
        "timeout_seconds": fork.timeout.as_secs_f64(),
        "tasks": fork.tasks,
    });
    let opened = sqlx::query_as("select batch_id, duplicate from state.open_batch($1, $2, $3, $4)")
        .bind(work.project_id())
        .bind(tool_call_id)
        .bind(claim_token)
        .bind(Json(wire))
        .fetch_one(work.connection())
        .await?;
    Ok(opened)
}

#[derive(FromRow)]
struct TaskRow {
    task_index: i32,
    agent_id: AgentId,
    status: TurnStatus,
    deliverable_card_id: Option<CardId>,
    output_box_id: Option<BoxId>,
    error: Option<String>,
    /// The content of the deliverable, where the result shows it.
    content: Option<Json<Value>>,
}

impl TaskRow {
    /// Returns the status to report once the batch has ended: a task that was still open is canceled.
    fn told(&self) -> TurnStatus {
        if self.status.is_open() { TurnStatus::Canceled } else { self.status }
    }

    fn has_failed(&self) -> bool {
        !matches!(self.status, TurnStatus::Success | TurnStatus::Open)
    }
}

/// Closes a batch if it is due: all tasks over, a failure with `fail_fast`, or its deadline. Reports to the parent in the same
/// transaction. Returns false if the batch was closed before, or is to go on.
pub async fn join(work: &mut impl Work, batch_id: BatchId) -> Result<bool, Error> {
    let locked: Option<(ToolCallId, JoinsAs, bool, bool)> =
        sqlx::query_as("select tool_call_id, joins_as, fail_fast, overdue from state.lock_batch($1, $2)")
            .bind(work.project_id())
            .bind(batch_id)
            .fetch_optional(work.connection())
            .await?;
    let Some((tool_call_id, joins_as, fail_fast, overdue)) = locked else { return Ok(false) };
    let tasks: Vec<TaskRow> = sqlx::query_as(
        "select k.task_index, k.agent_id, k.status::text, k.deliverable_card_id, k.output_box_id, k.error, r.content
           from (select k.*, count(*) over () as n,
                        count(*) filter (where k.status not in ('success', 'open')) over (order by k.task_index) as n_failed
                   from state.pmo_batch_tasks k
                  where k.project_id = $1 and k.batch_id = $2) k
           left join lateral cardbox.reading($1, k.deliverable_card_id, statement_timestamp()) r
                on k.n <= $3 or k.n_failed <= $4 and k.status not in ('success', 'open')
          order by k.task_index",
    )
    .bind(work.project_id())
    .bind(batch_id)
    .bind(MOST_LISTED as i64)
    .bind(MOST_FAILURES as i64)
    .fetch_all(work.connection())
    .await?;
    let Some(status) = verdict(&tasks, fail_fast, overdue).map(Status::as_str) else { return Ok(false) };
    // A handler that continues reads the results from a box, however many there are.
    let results_box_id = (joins_as == JoinsAs::Resume || tasks.len() > MOST_LISTED).then(BoxId::new);
    let cards = match joins_as {
        JoinsAs::Resume => Vec::new(),
        JoinsAs::One => {
            let told = tasks.first().map_or(Value::Null, told_whole);
            vec![sealed(tool_call_id, status, told, || tasks.first().map_or(Value::Null, pointed_out))?]
        }
        JoinsAs::List => {
            let told = result(status, &tasks, results_box_id, told_briefly);
            vec![sealed(tool_call_id, status, told, || result(status, &tasks, results_box_id, pointed_out))?]
        }
    };
    let query = sqlx::query_as(
        "select worker_target, call_target
           from state.close_batch(p_project => $1, p_batch => $2, p_status => $3, p_results => $4, p_cards => $5)",
    )
    .bind(work.project_id())
    .bind(batch_id)
    .bind(status)
    .bind(results_box_id)
    .bind(&cards);
    let (parent, handler): (Option<Target>, Option<Target>) = query.fetch_one(work.connection()).await?;
    parent.into_iter().for_each(|target| work.ring(Door::Agent(target)));
    handler.into_iter().for_each(|target| work.ring(Door::of_calls(target)));
    Ok(true)
}

/// Returns the status that a batch ends with, or `None` while it is to go on.
fn verdict(tasks: &[TaskRow], fail_fast: bool, overdue: bool) -> Option<Status> {
    let n = |wanted: TurnStatus| tasks.iter().filter(|task| task.status == wanted).count();
    let (open, succeeded) = (n(TurnStatus::Open), n(TurnStatus::Success));
    let failed = tasks.len() - open - succeeded;
    match () {
        () if fail_fast && failed > 0 => Some(Status::Failed),
        () if open > 0 && overdue => Some(Status::Timeout),
        () if open > 0 => None,
        () if failed == 0 => Some(Status::Success),
        () if succeeded == 0 => Some(Status::Failed),
        () => Some(Status::Partial),
    }
}

/// Shows the only task of a batch: its deliverable as it is.
fn told_whole(task: &TaskRow) -> Value {
    let mut result = json!({ "status": task.told(), "agent_id": task.agent_id });
    if let Some(box_id) = task.output_box_id {
        result["output_box_id"] = json!(box_id);
    }
    if let Some(error) = &task.error {
        result["error"] = json!(error);
    }
    if let Some(Json(content)) = &task.content {
        result["deliverable"] = content.clone();
    }
    result
}

/// Shows one task among many: its result, in a few words.
fn told_briefly(task: &TaskRow) -> Value {
    let mut result = json!({ "task_index": task.task_index, "status": task.told() });
    if let Some(card_id) = task.deliverable_card_id {
        result["deliverable_card_id"] = json!(card_id);
    }
    if let Some(box_id) = task.output_box_id {
        result["output_box_id"] = json!(box_id);
    }
    let said = task.content.as_ref().map(|Json(content)| {
        let reason = content["reason"].as_str().filter(|_| task.has_failed());
        let said = content.as_str().or(reason).or(content["summary"].as_str());
        said.map_or_else(|| brief(&content.to_string()), brief)
    });
    match (&task.error, said) {
        (Some(error), _) => result["error"] = json!(error),
        (None, Some(said)) if task.has_failed() => result["error"] = json!(said),
        (None, Some(said)) => result["summary"] = json!(said),
        (None, None) => {}
    }
    result
}

/// Returns the beginning of a text. Stored text may have escapes, and none of them is cut in two.
fn brief(text: &str) -> String {
    let mut brief: String = text.chars().take(MOST_SUMMARY).collect();
    while json::check_string(&brief).is_err() && brief.pop().is_some() {}
    brief
}

/// Builds the result of a batch: `{status, results}` in task order; above [`MOST_LISTED`] tasks `{status, counts, failed, results_box_id}`.
fn result(status: &str, tasks: &[TaskRow], results_box_id: Option<BoxId>, one: fn(&TaskRow) -> Value) -> Value {
    if tasks.len() <= MOST_LISTED {
        json!({ "status": status, "results": tasks.iter().map(one).collect::<Vec<_>>() })
    } else {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for task in tasks {
            *counts.entry(task.told().as_str()).or_default() += 1;
        }
        let failed = tasks.iter().filter(|task| task.has_failed()).take(MOST_FAILURES);
        let failed: Vec<Value> = failed.map(one).collect();
        json!({ "status": status, "counts": counts, "failed": failed, "results_box_id": results_box_id })
    }
}

/// Seals the result of a join. A join never fails because of what a child delivered: a result that cannot be a card only says where to find it.
fn sealed(
    tool_call_id: ToolCallId,
    status: &str,
    told: Value,
    pointed_out: impl FnOnce() -> Value,
) -> Result<NewCard, Error> {
    match Draft::tool_result(tool_call_id, status, told).seal() {
        Ok(card) => Ok(card),
        Err(_) => Ok(Draft::tool_result(tool_call_id, status, pointed_out()).seal()?),
    }
}

/// Returns where to find the result of a task.
fn pointed_out(task: &TaskRow) -> Value {
    json!({
        "task_index": task.task_index, "agent_id": task.agent_id, "status": task.told(),
        "deliverable_card_id": task.deliverable_card_id, "output_box_id": task.output_box_id,
    })
}

/// Lists the tasks of a batch that are still to be dispatched, with their index. A batch that has ended has none.
pub async fn undispatched(work: &mut UnitOfWork, batch_id: BatchId) -> Result<Vec<(i32, Task)>, Error> {
    let project_id = work.project_id();
    let tasks: Vec<(i32, AgentId, TurnId)> = sqlx::query_as(
        "select k.task_index, k.agent_id, k.agent_turn_id
           from state.pmo_batches b
           join state.pmo_batch_tasks k on k.project_id = $1 and k.batch_id = b.batch_id and k.status = 'open'
           left join lateral (
                select t.agent_turn_id from state.turns t where t.project_id = $1 and t.agent_turn_id = k.agent_turn_id offset 0) t on true
          where b.project_id = $1 and b.batch_id = $2 and b.status = 'open' and t.agent_turn_id is null
          order by k.task_index",
    )
    .bind(project_id)
    .bind(batch_id)
    .fetch_all(&mut **work)
    .await?;
    let task = |(task_index, agent_id, agent_turn_id)| (task_index, Task { agent_id, agent_turn_id });
    Ok(tasks.into_iter().map(task).collect())
}

/// State of a batch. `open`: tasks are still open. `success`: all tasks succeeded. `partial`: some tasks failed. `failed`: all tasks failed, or one
/// failed and the batch has `fail_fast`. `timeout`: the deadline passed while tasks were open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, sqlx::Type, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
#[schema(as = BatchStatus)]
pub enum Status {
    Open,
    /// All tasks succeeded.
    Success,
    /// Some tasks failed.
    Partial,
    /// All tasks failed, or one did and the batch has `fail_fast`.
    Failed,
    /// Its deadline passed while tasks were open.
    Timeout,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Open => "open",
            Status::Success => "success",
            Status::Partial => "partial",
            Status::Failed => "failed",
            Status::Timeout => "timeout",
        }
    }
}

/// A batch: child turns that one call started together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Batch {
    pub batch_id: BatchId,
    pub tool_call_id: ToolCallId,
    pub stage: i16,
    pub status: Status,
    pub n_tasks: i32,
    pub n_failed: i32,
    /// Box with the deliverables, in the order of the tasks. `null` while the batch is open, or if the result of the call lists them itself.
    pub results_box_id: Option<BoxId>,
    pub created_at: DateTime<Utc>,
    pub closed_at: Option<DateTime<Utc>>,
}

/// Lists the batches of a call, in the order of their stages.
pub async fn of_call(work: &mut UnitOfWork, tool_call_id: ToolCallId) -> Result<Vec<Batch>, Error> {
    let project_id = work.project_id();
    let batches = sqlx::query_as(
        "select b.batch_id, b.tool_call_id, b.stage, b.status::text, b.n_tasks, b.results_box_id, b.created_at, b.closed_at,
                (select count(*)::int from state.pmo_batch_tasks k
                  where k.project_id = $1 and k.batch_id = b.batch_id and k.status not in ('success', 'open')) as n_failed
           from state.pmo_batches b
          where b.project_id = $1 and b.tool_call_id = $2
          order by b.stage",
    )
    .bind(project_id)
    .bind(tool_call_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(batches)
}

/// Looks up a batch.
pub async fn find(work: &mut UnitOfWork, batch_id: BatchId) -> Result<Option<Batch>, Error> {
    let project_id = work.project_id();
    let batch = sqlx::query_as(
        "select b.batch_id, b.tool_call_id, b.stage, b.status::text, b.n_tasks, b.results_box_id, b.created_at, b.closed_at,
                (select count(*)::int from state.pmo_batch_tasks k
                  where k.project_id = $1 and k.batch_id = $2 and k.status not in ('success', 'open')) as n_failed
           from state.pmo_batches b
          where b.project_id = $1 and b.batch_id = $2",
    )
    .bind(project_id)
    .bind(batch_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(batch)
}

/// One task of a batch: its child turn, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
pub struct TaskShown {
    pub task_index: i32,
    pub agent_id: AgentId,
    pub agent_turn_id: TurnId,
    pub status: TurnStatus,
    pub deliverable_card_id: Option<CardId>,
    pub error: Option<String>,
}

/// Lists the tasks of a batch after one of them, in their order.
pub async fn tasks(work: &mut UnitOfWork, batch_id: BatchId, after: i32, most: i64) -> Result<Vec<TaskShown>, Error> {
    let project_id = work.project_id();
    let tasks = sqlx::query_as(
        "select task_index, agent_id, agent_turn_id, status::text, deliverable_card_id, error
           from state.pmo_batch_tasks
          where project_id = $1 and batch_id = $2 and task_index > $3
          order by task_index
          limit $4",
    )
    .bind(project_id)
    .bind(batch_id)
    .bind(after)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(tasks)
}

/// Lists what the tasks of a batch delivered, in task order.
pub async fn deliverables(work: &mut UnitOfWork, batch_id: BatchId) -> Result<Vec<CardId>, Error> {
    let project_id = work.project_id();
    let card_ids = sqlx::query_scalar(
        "select deliverable_card_id
           from state.pmo_batch_tasks
          where project_id = $1 and batch_id = $2 and deliverable_card_id is not null
          order by task_index",
    )
    .bind(project_id)
    .bind(batch_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(card_ids)
}

/// Gives up tasks that cannot be dispatched; joins the batch if they were the last.
pub async fn fail_tasks(
    work: &mut UnitOfWork,
    batch_id: BatchId,
    task_indexes: &[i32],
    error: &str,
) -> Result<(), Error> {
    let project_id = work.project_id();
    let done: Vec<BatchId> = sqlx::query_scalar("select unnest(state.fail_tasks($1, $2, $3, $4))")
        .bind(project_id)
        .bind(batch_id)
        .bind(task_indexes)
        .bind(error)
        .fetch_all(&mut **work)
        .await?;
    for batch_id in done {
        join(work, batch_id).await?;
    }
    Ok(())
}

/// Notes that all children are dispatched: from here on the call waits only for the join. Returns false if it was answered, or taken from us.
pub async fn dispatched(
    work: &mut impl Work,
    tool_call_id: ToolCallId,
    claim_token: ClaimToken,
) -> Result<bool, Error> {
    let (awaited, handler): (bool, Option<Target>) =
        sqlx::query_as("select awaited, call_target from state.await_batch($1, $2, $3)")
            .bind(work.project_id())
            .bind(tool_call_id)
            .bind(claim_token)
            .fetch_one(work.connection())
            .await?;
    handler.into_iter().for_each(|target| work.ring(Door::of_calls(target)));
    Ok(awaited)
}

/// How many children are asked to stop at a time.
const MOST_STOPPED: i32 = 100;

/// Stops children of a batch that closed before they were over, each in a transaction of its own. A child that cannot be stopped
/// does not hold up the others.
pub async fn stop_children(kernel: &Kernel, project_id: ProjectId, batch_id: BatchId) -> Result<(), Error> {
    let turns: Vec<TurnId> = sqlx::query_scalar("select unnest(state.settle_batch($1, $2, $3))")
        .bind(project_id)
        .bind(batch_id)
        .bind(MOST_STOPPED)
        .fetch_all(&mut *kernel.lease().await?)
        .await?;
    let mut stopped = Ok(());
    for turn_id in turns {
        if let Err(error) = stop_child(kernel, project_id, turn_id).await {
            stopped = Err(error);
        }
    }
    stopped
}

async fn stop_child(kernel: &Kernel, project_id: ProjectId, turn_id: TurnId) -> Result<(), Error> {
    let mut work = kernel.begin(project_id).await?;
    stop(&mut work, turn_id, "its batch has ended").await?;
    Ok(work.commit().await?)
}

//! Batches of children (PM-8, PM-9): counted down in slots, joined in the transaction of the last child's end.

use std::{collections::HashMap, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};
use sqlx::{FromRow, types::Json};
use waybill_core::{
    bus::Door,
    card::{Draft, NewCard},
    id::{AgentId, BatchId, BoxId, CardId, ProjectId, Target, ToolCallId, TurnId},
    turn::ClaimToken,
};

use crate::{
    card::bind_cards,
    turn::{Error, stop},
    work::{Kernel, UnitOfWork, Work},
};

/// Above this many tasks a join lists counts and the first failures instead of every result.
const MOST_LISTED: usize = 64;
const MOST_FAILURES: usize = 20;

/// One child to be: its turn's id is minted before it is dispatched, so that its end always finds its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, FromRow)]
pub struct Task {
    pub agent_id: AgentId,
    pub agent_turn_id: TurnId,
}

/// A fork.
#[derive(Clone, Debug)]
pub struct Fork {
    pub batch_id: BatchId,
    /// The first failure ends the batch and stops the rest.
    pub fail_fast: bool,
    pub timeout: Duration,
    /// In the order of `task_index`, from 0.
    pub tasks: Vec<Task>,
}

/// That a batch is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct Opened {
    /// Of the first time, for a fork that is delivered again.
    pub batch_id: BatchId,
    pub duplicate: bool,
}

/// Opens the batch of a claimed call, once per call. The children are enqueued like any other turn, with its id; when all are, say
/// so with [`dispatched`].
pub async fn open(
    work: &mut impl Work,
    tool_call_id: ToolCallId,
    claim_token: ClaimToken,
    fork: &Fork,
) -> Result<Opened, Error> {
    if fork.tasks.is_empty() {
        return Err(Error::Invalid("a batch has at least one task"));
    }
    let wire = json!({
        "batch_id": fork.batch_id,
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
    status: String,
    deliverable_card_id: Option<CardId>,
    output_box_id: Option<BoxId>,
}

/// Closes a batch if it is due: all tasks over, a failure with `fail_fast`, or its deadline. Tells the parent in the same
/// transaction. False: it was closed before, or is to go on.
pub async fn join(work: &mut impl Work, batch_id: BatchId) -> Result<bool, Error> {
    let locked: Option<(ToolCallId, bool, bool)> =
        sqlx::query_as("select tool_call_id, fail_fast, overdue from state.lock_batch($1, $2)")
            .bind(work.project_id())
            .bind(batch_id)
            .fetch_optional(work.connection())
            .await?;
    let Some((tool_call_id, fail_fast, overdue)) = locked else { return Ok(false) };
    let tasks: Vec<TaskRow> = sqlx::query_as(
        "select task_index, status::text, deliverable_card_id, output_box_id
           from state.pmo_batch_tasks
          where project_id = $1 and batch_id = $2
          order by task_index",
    )
    .bind(work.project_id())
    .bind(batch_id)
    .fetch_all(work.connection())
    .await?;
    let Some(status) = verdict(&tasks, fail_fast, overdue) else { return Ok(false) };
    let cards = [result_card(tool_call_id, status, &tasks)?];
    let query = sqlx::query_scalar(
        "select worker_target
           from state.close_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
    )
    .bind(work.project_id())
    .bind(batch_id)
    .bind(status);
    let parent: Option<Target> = bind_cards!(query, &cards).fetch_one(work.connection()).await?;
    parent.into_iter().for_each(|target| work.ring(Door::Agent(target)));
    Ok(true)
}

/// What a batch has come to; none while it is to go on.
fn verdict(tasks: &[TaskRow], fail_fast: bool, overdue: bool) -> Option<&'static str> {
    let n = |wanted: &str| tasks.iter().filter(|task| task.status == wanted).count();
    let (open, succeeded) = (n("open"), n("success"));
    let failed = tasks.len() - open - succeeded;
    match () {
        () if fail_fast && failed > 0 => Some("failed"),
        () if open > 0 && overdue => Some("timeout"),
        () if open > 0 => None,
        () if failed == 0 => Some("success"),
        () if succeeded == 0 => Some("failed"),
        () => Some("partial"),
    }
}

/// `{status, results}` in task order; above [`MOST_LISTED`] tasks `{status, counts, failed}`.
fn result_card(tool_call_id: ToolCallId, status: &str, tasks: &[TaskRow]) -> Result<NewCard, Error> {
    let one = |task: &TaskRow| -> Value {
        let mut result = json!({ "task_index": task.task_index, "status": task.status });
        if let Some(card_id) = task.deliverable_card_id {
            result["deliverable_card_id"] = json!(card_id);
        }
        if let Some(box_id) = task.output_box_id {
            result["output_box_id"] = json!(box_id);
        }
        result
    };
    let result = if tasks.len() <= MOST_LISTED {
        json!({ "status": status, "results": tasks.iter().map(one).collect::<Vec<_>>() })
    } else {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for task in tasks {
            *counts.entry(&task.status).or_default() += 1;
        }
        let failed = tasks.iter().filter(|task| !matches!(task.status.as_str(), "success" | "open"));
        json!({ "status": status, "counts": counts, "failed": failed.take(MOST_FAILURES).map(one).collect::<Vec<_>>() })
    };
    Ok(Draft::tool_result(tool_call_id, status, result).seal()?)
}

/// The tasks of a batch, in order: for a handler that finds it open and dispatches what is left.
pub async fn tasks(work: &mut UnitOfWork, batch_id: BatchId) -> Result<Vec<Task>, Error> {
    let project_id = work.project_id();
    let tasks = sqlx::query_as(
        "select agent_id, agent_turn_id
           from state.pmo_batch_tasks
          where project_id = $1 and batch_id = $2
          order by task_index",
    )
    .bind(project_id)
    .bind(batch_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(tasks)
}

/// Says that all children are dispatched: the call waits for the join alone. False: it was answered, or taken from us.
pub async fn dispatched(
    work: &mut impl Work,
    tool_call_id: ToolCallId,
    claim_token: ClaimToken,
) -> Result<bool, Error> {
    let awaited = sqlx::query_scalar("select state.await_batch($1, $2, $3)")
        .bind(work.project_id())
        .bind(tool_call_id)
        .bind(claim_token)
        .fetch_one(work.connection())
        .await?;
    Ok(awaited)
}

/// How many children are told to stop at a time.
const MOST_STOPPED: i32 = 100;

/// Stops children of a batch that closed before they were over, each in a transaction of its own. One that cannot be stopped
/// does not keep the others from it.
pub async fn stop_children(kernel: &Kernel, project_id: ProjectId, batch_id: BatchId) -> Result<(), Error> {
    let turns: Vec<TurnId> = sqlx::query_scalar("select unnest(state.settle_batch($1, $2, $3))")
        .bind(project_id)
        .bind(batch_id)
        .bind(MOST_STOPPED)
        .fetch_all(kernel.pool())
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

//! `map_reduce` (PM-11, CX-7): a planner, many workers, and a reducer that combines the results. These are three batches of one call; each
//! but the last gives the call back, and the next stage follows from the batches that are over.

use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waybill_core::{
    card::{Content, Origin},
    card_box::{Placed, Span},
    command::{argument::Strategy, map_reduce::Arguments},
    handover::Handover,
    id::{BoxId, StepId},
    json,
    resource::InternalTool,
};
use waybill_kernel::{
    batch::{self, Batch, JoinsAs},
    blackboard::{self, Patch},
    call, card_box, external, handover,
    work::{Kernel, UnitOfWork},
};

use super::{
    Answer, Command, Error, Handler, answer, begin,
    spawn::{self, Fan, Task},
};

#[derive(Debug)]
pub(super) struct MapReduce;

const PLAN: i16 = 0;
const MAP: i16 = 1;
const REDUCE: i16 = 2;

/// Packs the common instruction, the task's own part of it, and the boxes that it may read.
fn handover() -> Handover {
    Handover::of(&["instruction", "part"], &["input_box_ids", "results_box_id"])
}

impl Handler for MapReduce {
    fn tool(&self) -> InternalTool {
        InternalTool::MapReduce
    }

    fn handle<'a>(&'a self, kernel: &'a Kernel, command: &'a Command) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let asked: Arguments = command.read()?;
            let deadline = spawn::deadline(asked.deadline_seconds)?;
            let mut work = begin(kernel, &command.call).await?;
            let batches = batch::of_call(&mut work, command.call.tool_call_id).await?;
            let output_box_id = command.asked.output_box_id;
            let (stage, tasks) = match batches.last() {
                None => (PLAN, vec![task(&asked, &asked.planner_profile, Value::Null, None)]),
                // Another process left it half done: the same tasks, some of which are dispatched.
                Some(last) if last.status == batch::Status::Open => {
                    (last.stage, tasks(&mut work, &asked, output_box_id, last.stage, &batches).await?)
                }
                Some(last) if matches!(last.status, batch::Status::Failed | batch::Status::Timeout) => {
                    return failed(work, command, last).await;
                }
                Some(last) => {
                    (last.stage + 1, tasks(&mut work, &asked, output_box_id, last.stage + 1, &batches).await?)
                }
            };
            if stage == REDUCE {
                remember(&mut work, command, &batches).await?;
            }
            work.commit().await?;
            let fan = Fan {
                stage,
                joins_as: if stage == REDUCE { JoinsAs::One } else { JoinsAs::Resume },
                fail_fast: asked.fail_fast,
                deadline: left(deadline, &batches),
                handover: &handover(),
                tasks: &tasks,
            };
            spawn::fan_out(kernel, command, fan).await
        })
    }
}

fn task(asked: &Arguments, profile: &str, part: Value, results_box_id: Option<BoxId>) -> Task {
    let (instruction, context_box_id) = (asked.instruction.clone(), asked.context_box_id.clone());
    let mut task = Task::instructed(Strategy::New, profile.to_owned(), instruction, context_box_id);
    task.arguments.insert("part".to_owned(), part);
    task.arguments.insert("results_box_id".to_owned(), json!(results_box_id));
    task
}

/// Returns the tasks of a stage, from the results of the stage before.
async fn tasks(
    work: &mut UnitOfWork,
    asked: &Arguments,
    output_box_id: BoxId,
    stage: i16,
    batches: &[Batch],
) -> Result<Vec<Task>, Error> {
    let before = |stage: i16| batches.iter().find(|batch| batch.stage == stage).and_then(|b| b.results_box_id);
    match stage {
        PLAN => Ok(vec![task(asked, &asked.planner_profile, Value::Null, None)]),
        MAP => {
            let planned = read(work, before(PLAN)).await?;
            // The planner's parts go to the workers in the caller's name: so if they are external, the caller is marked too.
            let is_external =
                |placed: &Placed| placed.reading.live().is_some_and(|card| card.origin == Origin::External);
            if planned.iter().any(is_external) {
                external::mark(work, output_box_id).await?;
            }
            let parts = plan(&planned)?;
            Ok(parts.into_iter().map(|part| task(asked, &asked.worker_profile, part, None)).collect())
        }
        _ => Ok(vec![task(asked, &asked.reducer_profile, Value::Null, before(MAP))]),
    }
}

async fn read(work: &mut UnitOfWork, results_box_id: Option<BoxId>) -> Result<Vec<Placed>, Error> {
    let gone = || Error::refused("not_found", "the results of the previous stage have expired or were deleted");
    let span = Span::whole(results_box_id.ok_or_else(gone)?);
    card_box::read(work, span, None).await.map_err(|error| handover::Error::Box(error).into())
}

/// Reads the plan: a list, a list under `parts`, or either as text.
fn plan(results: &[Placed]) -> Result<Vec<Value>, Error> {
    let said = results.first().and_then(|placed| placed.reading.live()).map(|card| match &card.content {
        Content::Text(text) => json::parse(text.as_bytes()).unwrap_or(Value::Null),
        other => serde_json::to_value(other).unwrap_or(Value::Null),
    });
    let parts = match said {
        Some(Value::Array(parts)) => parts,
        Some(Value::Object(mut fields)) => match fields.remove("parts") {
            Some(Value::Array(parts)) => parts,
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    let message = "the planner's deliverable is not a plan: expected a JSON list of parts, or `{\"parts\": […]}`";
    if parts.is_empty() { Err(Error::refused("no_plan", message)) } else { Ok(parts) }
}

/// Adds the workers' deliverables to the results of the caller's session (CX-9). Writing them again changes nothing.
async fn remember(work: &mut UnitOfWork, command: &Command, batches: &[Batch]) -> Result<(), Error> {
    let Some(session_id) = command.asked.session_id else { return Ok(()) };
    let Some(map) = batches.iter().find(|batch| batch.stage == MAP) else { return Ok(()) };
    // Not for a call that is over, or that another process holds.
    call::hold(work, &command.call).await?;
    let card_ids = batch::deliverables(work, map.batch_id).await?;
    let patch = Patch::default().reset(BoxId::new()).results(&card_ids);
    // The call's id is the idempotency key: the step that made the call may have written a patch of its own.
    let key: StepId = command.call.tool_call_id.to_string().parse().expect("an id is an id");
    blackboard::patch(work, session_id, key, &patch).await?;
    Ok(())
}

/// Returns the time that is left: there is one deadline for all stages.
fn left(deadline: Duration, batches: &[Batch]) -> Duration {
    let Some(first) = batches.first() else { return deadline };
    let last = batches.iter().filter_map(|batch| batch.closed_at).max().unwrap_or(first.created_at);
    let spent = (last - first.created_at).to_std().unwrap_or_default();
    deadline.saturating_sub(spent).max(Duration::from_secs(1))
}

async fn failed(work: UnitOfWork, command: &Command, batch: &Batch) -> Result<Answer, Error> {
    let stage = match batch.stage {
        PLAN => "plan",
        MAP => "map",
        _ => "reduce",
    };
    let Batch { status, n_failed, results_box_id, .. } = batch;
    let result = json!({ "status": status, "stage": stage, "n_failed": n_failed, "results_box_id": results_box_id });
    answer(work, &command.call, status.as_str(), result).await
}

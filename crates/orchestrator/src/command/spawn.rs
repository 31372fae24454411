//! The parts that flows are made of: whom a task is for, its dispatch, and the batch that waits for many.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::sleep;
use waybill_core::{
    handover::Handover,
    id::{AgentId, BatchId, BoxId, Name, TurnId},
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    batch::{self, Fork, JoinsAs},
    handover::{self, Brings, Named, Pack, Packing, Target},
    resource,
    turn::{self, DispatchRequest, Dispatched},
    work::{Kernel, UnitOfWork},
};

use super::{Answer, Command, Error, begin};

/// How long a wait is that names no deadline, and the longest there is.
pub const DEADLINE: Duration = Duration::from_secs(3600);
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// Children of one batch.
pub const MOST_TASKS: usize = 20_000;
/// Children that are dispatched in one transaction.
const PORTION: usize = 200;
/// How often a busy agent is asked, each time after twice as long.
const ATTEMPTS: u32 = 7;
const BACKOFF: Duration = Duration::from_millis(50);

/// Who is to do a task (PM-6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// An agent that is made of a profile.
    #[default]
    New,
    /// An agent that there is, with what it remembers.
    Reuse,
    /// An agent that is made of another: with what that one remembers, and what it is writing.
    Clone,
}

/// Whom a task is for, and what it is told.
#[derive(Clone, Debug)]
pub struct Task {
    pub target_strategy: Strategy,
    /// The name of a profile, or the id of an agent.
    pub target_ref: String,
    /// By the handover of its flow.
    pub arguments: Map<String, Value>,
}

/// A task whose target is known and allowed.
#[derive(Clone, Debug)]
pub struct Addressed<'t> {
    task: &'t Task,
    target: Target,
    /// Who is reused, or cloned.
    existing: Option<AgentId>,
}

/// Whether what is asked is allowed now, or was when its batch was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Heeded,
    AsItWas,
}

/// Looks the targets of tasks up, and whether the caller may delegate to each (PM-10), and wait for it (PM-6).
pub async fn address<'t>(
    work: &mut UnitOfWork,
    command: &Command,
    tasks: &'t [Task],
    waits: bool,
    policy: Policy,
) -> Result<Vec<Addressed<'t>>, Error> {
    let limit = resource::settings(work).await?.max_recursion_depth;
    let depth = command.asked.recursion_depth + 1;
    if i64::from(depth) > i64::from(limit) && policy == Policy::Heeded {
        let message = format!("a spawn would be {depth} deep; the project's limit is {limit}");
        return Err(Error::refused("recursion_depth_exceeded", message));
    }
    let refs = tasks.iter().filter(|task| task.target_strategy != Strategy::New);
    let refs: HashSet<AgentId> = refs.map(|task| agent_ref(&task.target_ref)).collect::<Result<_, _>>()?;
    let roster: HashMap<AgentId, Name> = match refs.is_empty() {
        true => HashMap::new(),
        false => {
            let listed = agent::roster(work, &refs.iter().copied().collect::<Vec<_>>()).await?;
            let here = listed.into_iter().filter(|agent| agent.retired_at.is_none());
            here.filter_map(|agent| Some((agent.agent_id, agent.profile_name?))).collect()
        }
    };
    let mut names = Vec::with_capacity(tasks.len());
    let mut reused = HashSet::new();
    for task in tasks {
        let (name, existing) = match task.target_strategy {
            Strategy::New => (profile_ref(&task.target_ref)?, None),
            Strategy::Reuse | Strategy::Clone => {
                let agent_id = agent_ref(&task.target_ref)?;
                let name = roster.get(&agent_id).cloned();
                let unknown = || Error::refused("not_found", format!("there is no agent {agent_id} with a profile"));
                (name.ok_or_else(unknown)?, Some(agent_id))
            }
        };
        if let (Strategy::Reuse, Some(agent_id)) = (task.target_strategy, existing)
            && !reused.insert(agent_id)
        {
            return Err(Error::bad_request(format!("agent {agent_id} is reused twice: once per batch")));
        }
        names.push((name, existing));
    }
    let distinct: BTreeSet<Name> = names.iter().map(|(name, _)| name.clone()).collect();
    let targets = handover::targets(work, &distinct).await?;
    let allows = |t: &Target| command.profile.delegation_policy.allows(&t.name, &t.tags.iter().cloned().collect());
    if let Some(target) = targets.values().find(|target| policy == Policy::Heeded && !allows(target)) {
        let message = format!("profile `{}` may not delegate to `{}`", command.profile.name, target.name);
        return Err(Error::refused("forbidden", message));
    }
    if waits && !reused.is_empty() && policy == Policy::Heeded {
        let reused: Vec<AgentId> = reused.into_iter().collect();
        let waiting = agent::waiting_for(work, &reused, command.caller()).await?;
        if let Some(agent_id) = waiting.first() {
            let message = format!("agent {agent_id} waits for you: waiting for it would never end");
            return Err(Error::refused("would_deadlock", message));
        }
    }
    let address = |(task, (name, existing))| {
        let target: &Target = &targets[&name];
        Addressed { task, target: target.clone(), existing }
    };
    Ok(tasks.iter().zip(names).map(address).collect())
}

fn agent_ref(text: &str) -> Result<AgentId, Error> {
    text.parse().map_err(|error| Error::bad_request(format!("`target_ref`: {error}")))
}

fn profile_ref(text: &str) -> Result<Name, Error> {
    text.parse().map_err(|error| Error::bad_request(format!("`target_ref`: {error}")))
}

/// The ids of a task: minted before it is dispatched, so that its end always finds it.
pub type Minted = batch::Task;

/// For somebody who is there already it is that one, else somebody new.
pub fn mint(addressed: &Addressed<'_>) -> Minted {
    let agent_id = match addressed.task.target_strategy {
        Strategy::Reuse => addressed.existing.unwrap_or_else(AgentId::new),
        Strategy::New | Strategy::Clone => AgentId::new(),
    };
    Minted { agent_id, agent_turn_id: TurnId::new() }
}

/// Within the caller's rights.
pub fn packing<'a>(command: &'a Command, handover: &'a Handover) -> Packing<'a> {
    Packing {
        trace_id: command.asked.trace_id,
        parent_step_id: Some(command.call.step_id),
        ..Packing::new(&command.asked.tool_name, Some(command.caller()), handover)
    }
}

/// One task that is to be dispatched.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    pub to: &'a Addressed<'a>,
    pub ids: Minted,
    /// The batch, and its place in it.
    pub batch: Option<(BatchId, i32)>,
}

/// Packs the contexts of tasks, makes their agents and enqueues their turns (PM-3), in the caller's transaction: each once, however often.
pub async fn dispatch(
    work: &mut UnitOfWork,
    command: &Command,
    handover: &Handover,
    tasks: &[Dispatch<'_>],
    named: &Named,
) -> Result<Vec<Dispatched>, Error> {
    let existing: HashSet<AgentId> = tasks.iter().filter_map(|task| task.to.existing).collect();
    let memories = agent::memories(work, &existing.into_iter().collect::<Vec<_>>()).await?;
    let memories: HashMap<AgentId, agent::Memory> = memories.into_iter().map(|m| (m.agent_id, m)).collect();
    let (mut packs, mut made) = (Vec::with_capacity(tasks.len()), Vec::new());
    for Dispatch { to, ids, .. } in tasks {
        let mut arguments = to.task.arguments.clone();
        arguments.insert("profile_name".to_owned(), Value::from(to.target.name.as_str()));
        let memory = to.existing.and_then(|agent_id| memories.get(&agent_id));
        let clones = to.task.target_strategy == Strategy::Clone;
        let brings = match memory {
            None => Brings::Nothing,
            Some(agent::Memory { memory_box_id, output_box_id, .. }) if clones => {
                Brings::Cloned { memory_box_id: *memory_box_id, output_box_id: *output_box_id }
            }
            Some(memory) => Brings::Memory(memory.memory_box_id),
        };
        packs.push(Pack { brings, ..Pack::new(ids.agent_id, ids.agent_turn_id, arguments) });
        if to.task.target_strategy != Strategy::Reuse {
            made.push(NewAgent {
                agent_id: ids.agent_id,
                profile_name: Some(to.target.name.clone()),
                worker_target: to.target.worker_target.clone(),
                cloned_from: to.existing.filter(|_| clones),
            });
        }
    }
    let prepared = handover::prepare(work, packing(command, handover), &packs, named).await?;
    agent::provision(work, &made, Stay::Ephemeral, Some(command.caller())).await?;
    let requests: Vec<DispatchRequest> = tasks
        .iter()
        .zip(prepared.packed())
        .map(|(task, packed)| DispatchRequest {
            agent_turn_id: task.ids.agent_turn_id,
            channel: Some(command.asked.channel.clone()),
            profile_box_id: Some(packed.target_profile_box_id),
            query_card_ids: packed.query_card_ids,
            source_agent_id: Some(command.caller()),
            parent_agent_turn_id: Some(command.call.agent_turn_id),
            parent_step_id: Some(command.call.step_id),
            parent_tool_call_id: Some(command.call.tool_call_id),
            batch_id: task.batch.map(|(batch_id, _)| batch_id),
            task_index: task.batch.map(|(_, task_index)| task_index),
            recursion_depth: command.asked.recursion_depth + 1,
            trace_id: command.asked.trace_id,
            traceparent: command.asked.traceparent.clone(),
            tracestate: command.asked.tracestate.clone(),
            ..DispatchRequest::new(task.ids.agent_id, packed.context_box_id)
        })
        .collect();
    let dispatched = turn::enqueue(work, &requests, &[]).await?;
    handover::write(work, &prepared, |place| !dispatched[place].duplicate).await?;
    Ok(dispatched)
}

/// A batch to be.
#[derive(Clone, Copy, Debug)]
pub struct Fan<'a> {
    pub stage: i16,
    pub joins_as: JoinsAs,
    pub fail_fast: bool,
    pub deadline: Duration,
    pub handover: &'a Handover,
    pub tasks: &'a [Task],
}

/// Opens the batch of a command, or finds it open, dispatches what is left of it, portion by portion, and leaves the call to its end.
pub async fn fan_out(kernel: &Kernel, command: &Command, fan: Fan<'_>) -> Result<Answer, Error> {
    if fan.tasks.is_empty() || fan.tasks.len() > MOST_TASKS {
        return Err(Error::bad_request(format!("a batch has 1 to {MOST_TASKS} tasks, not {}", fan.tasks.len())));
    }
    let call = &command.call;
    let mut work = begin(kernel, call).await?;
    let batches = batch::of_call(&mut work, call.tool_call_id).await?;
    let known = batches.iter().find(|batch| batch.stage == fan.stage).map(|batch| batch.batch_id);
    // Of a batch that somebody has opened what is left is dispatched, whatever has changed since: it was allowed then.
    let policy = if known.is_some() { Policy::AsItWas } else { Policy::Heeded };
    let (addressed, named) = match (look_up(&mut work, command, &fan, policy).await, known) {
        (Ok(found), _) => found,
        (Err(error), Some(batch_id)) => {
            drop(work);
            let Some((_, code)) = error.verdict() else { return Err(error) };
            let all: Vec<i32> = (0..).take(fan.tasks.len()).collect();
            give_up(kernel, command, batch_id, &all, code).await?;
            return leave(kernel, command, batch_id).await;
        }
        (Err(error), None) => return Err(error),
    };
    let fork = Fork {
        batch_id: BatchId::new(),
        stage: fan.stage,
        joins_as: fan.joins_as,
        fail_fast: fan.fail_fast,
        timeout: fan.deadline,
        tasks: addressed.iter().map(mint).collect(),
    };
    let opened = batch::open(&mut work, call.tool_call_id, call.claim_token, &fork).await?;
    work.commit().await?;
    let batch_id = opened.batch_id;
    check_again(kernel, command, batch_id, &addressed).await?;
    // Once more where somebody else was at it too: what it did is not to be taken for the end of the batch.
    for _ in 0..3 {
        if dispatch_left(kernel, command, &fan, batch_id, &addressed, &named).await? {
            break;
        }
    }
    leave(kernel, command, batch_id).await
}

/// Whom the tasks are for, and what they inherit: before anything is written, so that a fork is refused as a whole.
async fn look_up<'t>(
    work: &mut UnitOfWork,
    command: &Command,
    fan: &Fan<'t>,
    policy: Policy,
) -> Result<(Vec<Addressed<'t>>, Named), Error> {
    let addressed = address(work, command, fan.tasks, true, policy).await?;
    let arguments = fan.tasks.iter().map(|task| &task.arguments);
    let named = handover::name(work, packing(command, fan.handover), arguments).await?;
    Ok((addressed, named))
}

/// Whether two wait for each other is seen by whoever opened its batch last.
async fn check_again(
    kernel: &Kernel,
    command: &Command,
    batch_id: BatchId,
    addressed: &[Addressed<'_>],
) -> Result<(), Error> {
    let reused: Vec<AgentId> =
        addressed.iter().filter(|to| to.task.target_strategy == Strategy::Reuse).filter_map(|to| to.existing).collect();
    if reused.is_empty() {
        return Ok(());
    }
    let mut work = begin(kernel, &command.call).await?;
    let waiting = agent::waiting_for(&mut work, &reused, command.caller()).await?;
    work.commit().await?;
    let waits = |to: &Addressed<'_>| to.existing.is_some_and(|agent_id| waiting.contains(&agent_id));
    let indexes: Vec<i32> = (0..).zip(addressed).filter(|(_, to)| waits(to)).map(|(index, _)| index).collect();
    if indexes.is_empty() { Ok(()) } else { give_up(kernel, command, batch_id, &indexes, "would_deadlock").await }
}

/// All that is left, portion by portion. False: somebody else was at it, and there may be more.
async fn dispatch_left(
    kernel: &Kernel,
    command: &Command,
    fan: &Fan<'_>,
    batch_id: BatchId,
    addressed: &[Addressed<'_>],
    named: &Named,
) -> Result<bool, Error> {
    let mut work = begin(kernel, &command.call).await?;
    let left = batch::undispatched(&mut work, batch_id).await?;
    work.commit().await?;
    let left: Vec<Dispatch<'_>> = left
        .into_iter()
        .filter_map(|(task_index, ids)| {
            let to = addressed.get(usize::try_from(task_index).ok()?)?;
            Some(Dispatch { to, ids, batch: Some((batch_id, task_index)) })
        })
        .collect();
    for portion in left.chunks(PORTION) {
        match commit(kernel, command, fan.handover, portion, named).await {
            Ok(()) => {}
            Err(Error::Turn(turn::Error::Stale(_))) => return Ok(false),
            // One of them is to blame; the others are not to suffer for it.
            Err(error) if error.verdict().is_some() => {
                one_by_one(kernel, command, fan.handover, batch_id, portion, named).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The batch answers the call.
async fn leave(kernel: &Kernel, command: &Command, batch_id: BatchId) -> Result<Answer, Error> {
    let call = &command.call;
    let mut alone = kernel.alone(call.project_id).await.map_err(turn::Error::from)?;
    batch::dispatched(&mut alone, call.tool_call_id, call.claim_token).await?;
    Ok(Answer::Awaiting(batch_id))
}

async fn try_commit(
    kernel: &Kernel,
    command: &Command,
    handover: &Handover,
    tasks: &[Dispatch<'_>],
    named: &Named,
) -> Result<(), Error> {
    let mut work = begin(kernel, &command.call).await?;
    dispatch(&mut work, command, handover, tasks, named).await?;
    Ok(work.commit().await?)
}

async fn commit(
    kernel: &Kernel,
    command: &Command,
    handover: &Handover,
    tasks: &[Dispatch<'_>],
    named: &Named,
) -> Result<(), Error> {
    let mut tries = 0;
    loop {
        match try_commit(kernel, command, handover, tasks, named).await {
            Err(error) if error.is_of_the_server() && tries < 3 => {
                tries += 1;
                sleep(BACKOFF * tries).await;
            }
            outcome => return outcome,
        }
    }
}

/// Each in a transaction of its own. One whose queue is full is asked again and again, and given up in the end; one that cannot be is given up at once.
async fn one_by_one(
    kernel: &Kernel,
    command: &Command,
    handover: &Handover,
    batch_id: BatchId,
    tasks: &[Dispatch<'_>],
    named: &Named,
) -> Result<(), Error> {
    let mut left: Vec<Dispatch<'_>> = tasks.to_vec();
    for attempt in 0..ATTEMPTS {
        let mut busy = Vec::new();
        for task in left {
            match commit(kernel, command, handover, &[task], named).await {
                Ok(()) => {}
                Err(Error::Turn(turn::Error::Busy)) => busy.push(task),
                Err(Error::Turn(turn::Error::Stale(_))) => {}
                Err(error) => match error.verdict() {
                    Some((_, code)) => give_up(kernel, command, batch_id, &indexes(&[task]), code).await?,
                    None => return Err(error),
                },
            }
        }
        if busy.is_empty() {
            return Ok(());
        }
        left = busy;
        sleep(BACKOFF * 2_u32.pow(attempt)).await;
    }
    give_up(kernel, command, batch_id, &indexes(&left), "busy").await
}

fn indexes(tasks: &[Dispatch<'_>]) -> Vec<i32> {
    tasks.iter().filter_map(|task| Some(task.batch?.1)).collect()
}

async fn give_up(
    kernel: &Kernel,
    command: &Command,
    batch_id: BatchId,
    indexes: &[i32],
    code: &str,
) -> Result<(), Error> {
    let mut work = begin(kernel, &command.call).await?;
    batch::fail_tasks(&mut work, batch_id, indexes, code).await?;
    Ok(work.commit().await?)
}

/// `deadline_seconds` of a command.
pub fn deadline(seconds: Option<f64>) -> Result<Duration, Error> {
    let Some(seconds) = seconds else { return Ok(DEADLINE) };
    let asked = Duration::try_from_secs_f64(seconds).ok().filter(|asked| !asked.is_zero() && *asked <= LONGEST);
    asked.ok_or_else(|| Error::bad_request(format!("`deadline_seconds` is above 0 and at most {}", LONGEST.as_secs())))
}

/// Arguments of the recipe behind every delegation (PM-5).
pub fn instruction(instruction: Value, context_box_id: Value) -> Map<String, Value> {
    let named = [("instruction", instruction), ("context_box_id", context_box_id)];
    named.into_iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A box as an argument.
pub fn boxed(box_id: Option<BoxId>) -> Value {
    box_id.map_or(Value::Null, |box_id| Value::from(box_id.to_string()))
}

//! The parts of which flows are made: the target of a task, its dispatch, and the batch that waits for many tasks.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use serde_json::{Map, Value};
use tokio::time::sleep;
use waybill_core::{
    command::argument::Strategy,
    handover::Handover,
    id::{AgentId, BatchId, Name, TurnId},
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    batch::{self, Fork, JoinsAs},
    handover::{self, Brings, Named, Pack, Packing, ProfileTarget},
    resource,
    retry::retry,
    turn::{self, DispatchRequest, Dispatched},
    work::{Kernel, UnitOfWork},
};

use super::{Answer, Command, Error, begin};

/// The default deadline of a wait, and the longest one.
pub const DEADLINE: Duration = Duration::from_secs(3600);
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most children of one batch.
pub const MOST_TASKS: usize = 20_000;
/// How many children are dispatched in one transaction.
const PORTION: usize = 200;
/// How often the dispatch to a busy agent is tried; the pause doubles each time.
const ATTEMPTS: u32 = 7;
const BACKOFF: Duration = Duration::from_millis(50);

/// The target of a task, and its arguments.
#[derive(Clone, Debug)]
pub struct Task {
    pub target_strategy: Strategy,
    /// The name of a profile, or the id of an agent.
    pub target_ref: String,
    /// The arguments that the handover of its flow packs.
    pub arguments: Map<String, Value>,
    /// Whether it takes part in the caller's session: it sees what was said there, and its result is added there.
    pub in_session: bool,
}

impl Task {
    /// Makes a task for the default handover of every delegation (PM-5).
    pub fn instructed(
        target_strategy: Strategy,
        target_ref: String,
        instruction: String,
        context_box_id: Value,
    ) -> Task {
        let arguments = [("instruction", Value::from(instruction)), ("input_box_ids", context_box_id)];
        let arguments = arguments.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Task { target_strategy, target_ref, arguments, in_session: false }
    }

    #[must_use]
    pub fn in_session(self, in_session: bool) -> Task {
        Task { in_session, ..self }
    }
}

/// A task whose target is known and allowed.
#[derive(Clone, Debug)]
pub struct Addressed<'t> {
    task: &'t Task,
    target: ProfileTarget,
    /// The agent that is reused or cloned.
    existing: Option<AgentId>,
}

/// Whether permissions are checked now, or were checked when the batch was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permissions {
    CheckNow,
    CheckedBefore,
}

/// Looks up the targets of tasks, and checks that the caller may delegate to each (PM-10) and wait for it (PM-6).
pub async fn address<'t>(
    work: &mut UnitOfWork,
    command: &Command,
    tasks: &'t [Task],
    waits: bool,
    policy: Permissions,
) -> Result<Vec<Addressed<'t>>, Error> {
    let limit = resource::settings(work).await?.max_recursion_depth;
    let depth = command.asked.recursion_depth + 1;
    if i64::from(depth) > i64::from(limit) && policy == Permissions::CheckNow {
        let message = format!("the delegation would be {depth} levels deep; the project's limit is {limit}");
        return Err(Error::refused("recursion_depth_exceeded", message));
    }
    if command.asked.session_id.is_none() && tasks.iter().any(|task| task.in_session) {
        return Err(Error::bad_request(
            "`in_session` is not possible, because your own turn does not belong to a session: leave it out",
        ));
    }
    let refs = tasks.iter().filter(|task| task.target_strategy != Strategy::New);
    let refs: HashSet<AgentId> = refs.map(|task| agent_ref(&task.target_ref)).collect::<Result<_, _>>()?;
    let profiles = agent::profiles(work, &refs.into_iter().collect::<Vec<_>>()).await?;
    let mut names = Vec::with_capacity(tasks.len());
    let mut reused = HashSet::new();
    for task in tasks {
        let (name, existing) = match task.target_strategy {
            Strategy::New => (profile_ref(&task.target_ref)?, None),
            Strategy::Reuse | Strategy::Clone => {
                let agent_id = agent_ref(&task.target_ref)?;
                let name = profiles.get(&agent_id).cloned();
                let unknown =
                    || Error::refused("not_found", format!("agent {agent_id} does not exist, or has no profile"));
                (name.ok_or_else(unknown)?, Some(agent_id))
            }
        };
        if let (Strategy::Reuse, Some(agent_id)) = (task.target_strategy, existing)
            && !reused.insert(agent_id)
        {
            return Err(Error::bad_request(format!(
                "agent {agent_id} is reused twice: use each agent only once per batch"
            )));
        }
        names.push((name, existing));
    }
    let distinct: BTreeSet<Name> = names.iter().map(|(name, _)| name.clone()).collect();
    let targets = handover::targets(work, &distinct).await?;
    if policy == Permissions::CheckNow {
        targets.values().try_for_each(|target| command.may_delegate_to(target))?;
    }
    if waits && policy == Permissions::CheckNow {
        let reused: Vec<AgentId> = reused.into_iter().collect();
        let waiting = agent::waiting_for(work, &reused, command.caller()).await?;
        if let Some(agent_id) = waiting.first() {
            let message = format!(
                "agent {agent_id} already waits for you, so waiting for it would never end: use a different agent"
            );
            return Err(Error::refused("would_deadlock", message));
        }
    }
    let address = |(task, (name, existing))| {
        let target: &ProfileTarget = &targets[&name];
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

/// The ids of a task. They are made before it is dispatched, so that its end always finds it.
pub type Minted = batch::Task;

/// Makes the ids of a task: a reused agent keeps its id, otherwise the agent gets a new one.
pub fn mint(addressed: &Addressed<'_>) -> Minted {
    let agent_id = match addressed.task.target_strategy {
        Strategy::Reuse => addressed.existing.unwrap_or_else(AgentId::new),
        Strategy::New | Strategy::Clone => AgentId::new(),
    };
    Minted { agent_id, agent_turn_id: TurnId::new() }
}

/// Returns how contexts are packed, within the caller's rights.
pub fn packing<'a>(command: &'a Command, handover: &'a Handover) -> Packing<'a> {
    Packing {
        session_id: command.asked.session_id,
        trace_id: Some(command.trace_id()),
        parent_step_id: Some(command.call.step_id),
        ..Packing::new(&command.asked.tool_name, Some(command.caller()), handover)
    }
}

/// One task to dispatch.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    pub to: &'a Addressed<'a>,
    pub ids: Minted,
    /// The batch, and the position in it.
    pub batch: Option<(BatchId, i32)>,
    /// The number of shares into which the caller's budget is split: one for each task still to be dispatched, and one for the caller.
    pub shares: i32,
}

/// Packs the contexts of tasks, makes their agents and enqueues their turns (PM-3), in the caller's transaction. Repeating it changes nothing.
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
        let session_id = command.asked.session_id.filter(|_| to.task.in_session);
        packs.push(Pack { brings, session_id, ..Pack::new(ids.agent_id, ids.agent_turn_id, arguments) });
        if to.task.target_strategy != Strategy::Reuse {
            made.push(NewAgent { cloned_from: to.existing, ..NewAgent::of(ids.agent_id, &to.target) });
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
            session_id: command.asked.session_id.filter(|_| task.to.task.in_session),
            source_agent_id: Some(command.caller()),
            parent_agent_turn_id: Some(command.call.agent_turn_id),
            parent_step_id: Some(command.call.step_id),
            parent_tool_call_id: Some(command.call.tool_call_id),
            batch_id: task.batch.map(|(batch_id, _)| batch_id),
            task_index: task.batch.map(|(_, task_index)| task_index),
            recursion_depth: command.asked.recursion_depth + 1,
            trace_id: Some(command.trace_id()),
            traceparent: command.asked.traceparent.clone(),
            tracestate: command.asked.tracestate.clone(),
            limits: task.to.target.limits.filter(|limits| !limits.is_none()),
            shares: Some(task.shares),
            ..DispatchRequest::new(task.ids.agent_id, packed.context_box_id)
        })
        .collect();
    let dispatched = turn::enqueue(work, &requests, &[]).await?;
    handover::write(work, &prepared, |place| !dispatched[place].duplicate).await?;
    Ok(dispatched)
}

/// A batch to open.
#[derive(Clone, Copy, Debug)]
pub struct Fan<'a> {
    pub stage: i16,
    pub joins_as: JoinsAs,
    pub fail_fast: bool,
    pub deadline: Duration,
    pub handover: &'a Handover,
    pub tasks: &'a [Task],
}

/// Opens the batch of a command, or finds it open, and dispatches the remaining tasks in portions. The end of the batch answers the call.
pub async fn fan_out(kernel: &Kernel, command: &Command, fan: Fan<'_>) -> Result<Answer, Error> {
    if fan.tasks.is_empty() || fan.tasks.len() > MOST_TASKS {
        return Err(Error::bad_request(format!(
            "a batch must have 1 to {MOST_TASKS} tasks, but this one has {}",
            fan.tasks.len()
        )));
    }
    let call = &command.call;
    let mut work = begin(kernel, call).await?;
    let batches = batch::of_call(&mut work, call.tool_call_id).await?;
    let known = batches.iter().find(|batch| batch.stage == fan.stage).map(|batch| batch.batch_id);
    // If the batch is open already, its remaining tasks are dispatched whatever has changed since: they were allowed then.
    let policy = if known.is_some() { Permissions::CheckedBefore } else { Permissions::CheckNow };
    let (addressed, named) = match (look_up(&mut work, command, &fan, policy).await, known) {
        (Ok(found), _) => found,
        (Err(error), Some(batch_id)) => {
            drop(work);
            let Some((_, code)) = error.verdict() else { return Err(error) };
            let open = Open { kernel, command, handover: fan.handover, named: &Named::default(), batch_id };
            open.give_up((0..).take(fan.tasks.len()), code).await?;
            return open.leave().await;
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
    let batch_id = batch::open(&mut work, call.tool_call_id, call.claim_token, &fork).await?.batch_id;
    work.commit().await?;
    let open = Open { kernel, command, handover: fan.handover, named: &named, batch_id };
    open.check_again(&addressed).await?;
    // Again if the list of tasks was out of date, because another process was dispatching too.
    for _ in 0..3 {
        if open.dispatch_left(&addressed).await? {
            break;
        }
    }
    open.leave().await
}

/// Looks up the targets of the tasks and what they inherit. This is before anything is written, so that a fork is refused as a whole.
async fn look_up<'t>(
    work: &mut UnitOfWork,
    command: &Command,
    fan: &Fan<'t>,
    policy: Permissions,
) -> Result<(Vec<Addressed<'t>>, Named), Error> {
    let addressed = address(work, command, fan.tasks, true, policy).await?;
    let arguments = fan.tasks.iter().map(|task| &task.arguments);
    let named = handover::name(work, packing(command, fan.handover), arguments).await?;
    Ok((addressed, named))
}

/// An open batch, and what is needed to dispatch its tasks.
struct Open<'a> {
    kernel: &'a Kernel,
    command: &'a Command,
    handover: &'a Handover,
    named: &'a Named,
    batch_id: BatchId,
}

impl Open<'_> {
    async fn begin(&self) -> Result<UnitOfWork, Error> {
        begin(self.kernel, &self.command.call).await
    }

    /// Checks again for a deadlock: if two agents wait for each other, the process that opened the later batch sees it.
    async fn check_again(&self, addressed: &[Addressed<'_>]) -> Result<(), Error> {
        let reuses = addressed.iter().filter(|to| to.task.target_strategy == Strategy::Reuse);
        let reused: Vec<AgentId> = reuses.filter_map(|to| to.existing).collect();
        if reused.is_empty() {
            return Ok(());
        }
        let mut work = self.begin().await?;
        let waiting = agent::waiting_for(&mut work, &reused, self.command.caller()).await?;
        work.commit().await?;
        let waits = |to: &Addressed<'_>| to.existing.is_some_and(|agent_id| waiting.contains(&agent_id));
        let indexes = (0..).zip(addressed).filter(|(_, to)| waits(to)).map(|(index, _)| index);
        self.give_up(indexes, "would_deadlock").await
    }

    /// Dispatches the remaining tasks in portions. False means that the list of tasks was out of date, because another process was dispatching too: read it again.
    async fn dispatch_left(&self, addressed: &[Addressed<'_>]) -> Result<bool, Error> {
        let mut work = self.begin().await?;
        let left = batch::undispatched(&mut work, self.batch_id).await?;
        work.commit().await?;
        let n_left = i32::try_from(left.len()).unwrap_or(i32::MAX - 1);
        let left: Vec<Dispatch<'_>> = left
            .into_iter()
            .zip(0..)
            .filter_map(|((task_index, ids), place)| {
                let to = addressed.get(usize::try_from(task_index).ok()?)?;
                Some(Dispatch { to, ids, batch: Some((self.batch_id, task_index)), shares: n_left - place + 1 })
            })
            .collect();
        for portion in left.chunks(PORTION) {
            match self.dispatch(portion).await {
                Ok(()) => {}
                Err(Error::Turn(turn::Error::Stale(_))) => return Ok(false),
                // One of them caused the error; the others should not fail with it.
                Err(error) if error.verdict().is_some() => self.one_by_one(portion).await?,
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    async fn dispatch(&self, tasks: &[Dispatch<'_>]) -> Result<(), Error> {
        retry(|| Box::pin(self.dispatch_once(tasks))).await
    }

    async fn dispatch_once(&self, tasks: &[Dispatch<'_>]) -> Result<(), Error> {
        let mut work = self.begin().await?;
        dispatch(&mut work, self.command, self.handover, tasks, self.named).await?;
        Ok(work.commit().await?)
    }

    /// Dispatches each in a transaction of its own. If an agent's queue is full, it is tried several times before the task fails; a task that
    /// cannot be dispatched fails at once.
    async fn one_by_one(&self, tasks: &[Dispatch<'_>]) -> Result<(), Error> {
        let index = |task: &Dispatch<'_>| task.batch.map(|(_, task_index)| task_index);
        let mut left: Vec<Dispatch<'_>> = tasks.to_vec();
        for attempt in 0..ATTEMPTS {
            let mut busy = Vec::new();
            for task in left {
                match self.dispatch(&[task]).await {
                    Ok(()) | Err(Error::Turn(turn::Error::Stale(_))) => {}
                    Err(error) if error.is_busy() => busy.push(task),
                    Err(error) => match error.verdict() {
                        Some((_, code)) => self.give_up(index(&task), code).await?,
                        None => return Err(error),
                    },
                }
            }
            left = busy;
            if left.is_empty() {
                return Ok(());
            }
            sleep(BACKOFF * 2_u32.pow(attempt)).await;
        }
        self.give_up(left.iter().filter_map(index), "busy").await
    }

    /// Fails these tasks with a code.
    async fn give_up(&self, indexes: impl IntoIterator<Item = i32>, code: &str) -> Result<(), Error> {
        let indexes: Vec<i32> = indexes.into_iter().collect();
        if indexes.is_empty() {
            return Ok(());
        }
        let mut work = self.begin().await?;
        batch::fail_tasks(&mut work, self.batch_id, &indexes, code).await?;
        Ok(work.commit().await?)
    }

    /// Leaves the answer to the batch.
    async fn leave(&self) -> Result<Answer, Error> {
        let call = &self.command.call;
        let mut alone = self.kernel.alone(call.project_id).await.map_err(turn::Error::from)?;
        batch::dispatched(&mut alone, call.tool_call_id, call.claim_token).await?;
        Ok(Answer::Awaiting(self.batch_id))
    }
}

/// Reads the `deadline_seconds` of a command.
pub fn deadline(seconds: Option<f64>) -> Result<Duration, Error> {
    let Some(seconds) = seconds else { return Ok(DEADLINE) };
    let asked = Duration::try_from_secs_f64(seconds).ok().filter(|asked| !asked.is_zero() && *asked <= LONGEST);
    asked.ok_or_else(|| {
        Error::bad_request(format!("`deadline_seconds` must be greater than 0 and at most {}", LONGEST.as_secs()))
    })
}

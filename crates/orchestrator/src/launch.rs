//! Work from outside: a caller that is not an agent starts a turn (PM-3, PM-5).

use serde_json::{Map, Value, json};
use waybill_context::schema;
use waybill_core::{
    bus::Door,
    card::{CardType, HandoffContent},
    handover::{Handover, PackArgument},
    id::{AgentId, BoxId, Channel, Name, SessionId, Target, TraceId, TurnId},
    label::Labels,
    turn::{InboxStatus, Limits, TurnEpoch},
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    external,
    handover::{self, Brings, Pack, Packing, pack_context},
    offload, session,
    turn::{self, DispatchRequest},
    work::{self, UnitOfWork, Work},
};

use crate::{command::Error, handoff};

/// What to do with a message for a session in which a turn is already running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhileRunning {
    /// Starts another turn beside the running one. It sees the session as it is now.
    #[default]
    Start,
    /// Queues a turn of the same agent, which starts once the running one has ended and sees its result.
    Queue,
    /// Starts no turn: the running one sees the message at its next step.
    Steer,
}

/// A request to start a turn.
#[derive(Clone, Debug)]
pub struct Launch {
    pub profile_name: Name,
    pub instruction: String,
    /// A handoff package that was checked.
    pub package: Option<HandoffContent>,
    /// `[{name, description, …}]`: the fields that the result must have.
    pub result_fields: Option<Value>,
    /// The JSON Schema that the result must fit. Not together with `result_fields`.
    pub result_schema: Option<Value>,
    /// A handover that replaces the default way to pack its context, and the arguments that it names.
    pub handover: Option<Handover>,
    pub arguments: Map<String, Value>,
    /// The agent that runs it. `None` means a new agent, made for it.
    pub agent_id: Option<AgentId>,
    /// Boxes that it sees in addition.
    pub context_box_ids: Vec<BoxId>,
    /// What the caller files it under.
    pub labels: Labels,
    /// The conversation that it is part of. First use opens it.
    pub session_id: Option<SessionId>,
    /// The owner whose sessions may be named. `None` means the sessions of any owner.
    pub owner: Option<String>,
    pub while_running: WhileRunning,
    pub channel: Option<Channel>,
    /// What it may spend, within the limits of the profile.
    pub limits: Option<Limits>,
    /// Whether `limits` may exceed those of the profile.
    pub may_widen: bool,
    /// Whether the instruction is external content.
    pub external: bool,
    /// The caller's user for whom it is made.
    pub on_behalf_of: Option<String>,
    /// Whether changes of its agent's state are published as events.
    pub emit_state_event: bool,
    /// The W3C `traceparent` that it belongs to. `None` means that it begins a trace.
    pub traceparent: Option<String>,
}

impl Launch {
    pub fn new(profile_name: Name, instruction: impl Into<String>) -> Launch {
        Launch {
            profile_name,
            instruction: instruction.into(),
            package: None,
            result_fields: None,
            result_schema: None,
            handover: None,
            arguments: Map::new(),
            agent_id: None,
            context_box_ids: Vec::new(),
            labels: Labels::default(),
            session_id: None,
            owner: None,
            while_running: WhileRunning::default(),
            channel: None,
            limits: None,
            may_widen: false,
            external: false,
            on_behalf_of: None,
            emit_state_event: false,
            traceparent: None,
        }
    }
}

impl Launch {
    /// Checks that the request only has a message: nothing else about a running turn can be changed.
    fn only_a_message(&self) -> Result<(), Error> {
        let besides = [
            ("handover", self.handover.is_some() || !self.arguments.is_empty()),
            ("package", self.package.is_some()),
            ("result_fields", self.result_fields.is_some()),
            ("result_schema", self.result_schema.is_some()),
            ("context_box_ids", !self.context_box_ids.is_empty()),
            ("limits", self.limits.is_some()),
            ("labels", !self.labels.is_empty()),
        ];
        match besides.into_iter().find(|(_, is_given)| *is_given) {
            Some((field, _)) => {
                let message = format!(
                    "a running turn can only be sent an `instruction`: leave out `{field}`, or start a new turn"
                );
                Err(Error::refused("bad_request", message))
            }
            None => Ok(()),
        }
    }

    /// Returns the handover that packs the context, and the arguments that it packs.
    fn to_pack(&self) -> Result<(Handover, Map<String, Value>), Error> {
        let mut handover = self.handover.clone().unwrap_or_else(handoff::handover);
        let packed = &mut handover.context_packing_config.pack_arguments;
        for (arg_key, card_type) in
            [("result_fields", CardType::result_fields()), ("result_schema", CardType::result_schema())]
        {
            if packed.iter().all(|rule| rule.as_card_type != card_type) {
                packed.push(PackArgument::new(arg_key).typed(card_type));
            }
        }
        let usual = [
            ("profile_name", Some(Value::from(self.profile_name.as_str()))),
            ("instruction", Some(Value::from(self.instruction.as_str()))),
            ("package", self.package.as_ref().map(|package| json!(package))),
            ("result_fields", self.result_fields.clone()),
            ("result_schema", self.result_schema.clone()),
            ("input_box_ids", Some(json!(self.context_box_ids))),
        ];
        if let Some((key, _)) = usual.iter().find(|(key, _)| self.arguments.contains_key(*key)) {
            let message = format!(
                "`arguments` must not contain `{key}`, because the request has its own field for it: use that field"
            );
            return Err(Error::refused("bad_request", message));
        }
        let mut arguments = self.arguments.clone();
        arguments.extend(usual.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        Ok((handover, arguments))
    }
}

/// Bytes of work for a byte of a schema: from 8 KiB on it is checked apart from the threads that answer requests.
const PER_BYTE: usize = 8;

/// Checks what the result must be: fields or a schema, and a schema that can be used.
async fn check_form(handover: &Handover, arguments: &Map<String, Value>) -> Result<(), Error> {
    let rules = &handover.context_packing_config.pack_arguments;
    let forms = rules.iter().filter(|rule| rule.as_card_type.is_result_form());
    let given = forms.filter_map(|rule| Some((rule, arguments.get(&rule.arg_key).filter(|value| !value.is_null())?)));
    let given: Vec<(&PackArgument, &Value)> = given.collect();
    if given.len() > 1 {
        let message = "set `result_fields` or `result_schema`, not both: a result has one form";
        return Err(Error::refused("bad_request", message));
    }
    for (rule, value) in given {
        if rule.as_card_type == CardType::result_schema() {
            let (value, n_bytes) = (value.clone(), value.to_string().len());
            offload::run(n_bytes * PER_BYTE, move || schema::check_result(&value))
                .await
                .map_err(|why| Error::refused("bad_request", format!("`{}`: {why}", rule.arg_key)))?;
        }
    }
    Ok(())
}

/// Finds the turn of a session that a message is for: to steer, one that has begun; to queue behind, the last one. An end of that turn in
/// the meantime is not missed.
async fn running(
    work: &mut UnitOfWork,
    session_id: SessionId,
    wanted: WhileRunning,
) -> Result<Option<turn::Summary>, Error> {
    let find = async |work: &mut UnitOfWork| -> Result<Option<turn::Summary>, Error> {
        let open = session::open_turns(work, session_id).await?;
        let begun = open.iter().position(|turn| turn.inbox_status != Some(InboxStatus::Queued));
        let at = if wanted == WhileRunning::Steer { begun.or(Some(0)) } else { Some(0) };
        Ok(at.and_then(|at| open.into_iter().nth(at)))
    };
    let Some(found) = find(work).await? else { return Ok(None) };
    // The lock may have waited for the turn to end. Reading again sees that end, so that its result is packed too.
    session::hold(work, found.agent_id).await?;
    find(work).await
}

/// What entering a session led to.
enum Entered {
    /// The running turn gets the message, so no turn starts.
    Steered(DispatchResult),
    /// A turn starts, run by this agent. `None` means a new agent.
    RunBy(Option<AgentId>),
}

/// Enters the session of the request, if it names one, and finds out what happens to a message while a turn is running there.
async fn enter_session(work: &mut UnitOfWork, launch: &Launch, worker_target: &Target) -> Result<Entered, Error> {
    let mut given = launch.agent_id;
    let Some(session_id) = launch.session_id else { return Ok(Entered::RunBy(given)) };
    session::enter(work, session_id, launch.owner.as_deref()).await?;
    let running = match launch.while_running {
        WhileRunning::Start => None,
        WhileRunning::Queue | WhileRunning::Steer => {
            session::alone(work, session_id).await?;
            running(work, session_id, launch.while_running).await?
        }
    };
    let Some(running) = running else { return Ok(Entered::RunBy(given)) };
    if running.profile_name.as_ref() != Some(&launch.profile_name) {
        let by = running.profile_name.as_ref().map_or("unknown", Name::as_str);
        let message = format!("the running turn of session {session_id} has the profile `{by}`: use that profile");
        return Err(Error::refused("bad_request", message));
    }
    if launch.while_running == WhileRunning::Steer {
        launch.only_a_message()?;
        let card = turn::message(&launch.instruction)?;
        let steered = turn::steer(work, running.agent_turn_id, &card).await?;
        work.ring(Door::Agent(worker_target.clone()));
        if !steered.is_over {
            return Ok(Entered::Steered(DispatchResult {
                status: DispatchStatus::Steered,
                agent_id: steered.agent_id,
                agent_turn_id: running.agent_turn_id,
                turn_epoch: steered.turn_epoch,
                trace_id: TraceId::of(running.agent_turn_id),
                session_id: Some(session_id),
            }));
        }
    } else if given.is_none_or(|agent_id| agent_id == running.agent_id) {
        given = Some(running.agent_id);
    } else {
        let message = format!(
            "agent {} is running a turn in session {session_id}: use that agent, or leave out `agent_id`",
            running.agent_id
        );
        return Err(Error::refused("bad_request", message));
    }
    Ok(Entered::RunBy(given))
}

/// Records the caller's user for whom the turn is made.
async fn name_user(work: &mut UnitOfWork, launch: &Launch) -> Result<(), Error> {
    if let Some(user) = &launch.on_behalf_of {
        if !(1..=200).contains(&user.chars().count()) || user.chars().any(char::is_control) {
            return Err(Error::refused(
                "bad_request",
                "`on_behalf_of` must have 1 to 200 characters, and no control characters",
            ));
        }
        work::on_behalf_of(work, user).await.map_err(turn::Error::from)?;
    }
    Ok(())
}

/// What a request to start a turn did. `accepted`: a worker can claim the turn. `queued`: the turn waits for another turn of its agent. `steered`: no
/// turn was started; the running turn gets the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DispatchStatus {
    /// A worker can claim the turn.
    Accepted,
    /// The turn waits for another turn of its agent.
    Queued,
    /// No turn was started: the running one gets the message.
    Steered,
}

/// The turn that was started or queued, or that gets the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct DispatchResult {
    pub status: DispatchStatus,
    pub agent_id: AgentId,
    pub agent_turn_id: TurnId,
    /// Epoch of the agent: it increases when the agent begins a turn, and when a turn is taken from a worker. `null` while the turn waits for
    /// another turn of its agent.
    pub turn_epoch: Option<TurnEpoch>,
    #[schema(value_type = String, pattern = "^[0-9a-f]{32}$")]
    pub trace_id: TraceId,
    pub session_id: Option<SessionId>,
}

/// Starts the turn, in the caller's transaction.
pub async fn launch(work: &mut UnitOfWork, launch: &Launch) -> Result<DispatchResult, Error> {
    let target = handover::target(work, &launch.profile_name).await?;
    external::label(work, launch.external).await?;
    name_user(work, launch).await?;
    let given = match enter_session(work, launch, &target.worker_target).await? {
        Entered::Steered(steered) => return Ok(steered),
        Entered::RunBy(given) => given,
    };
    let (agent_id, agent_turn_id) = (given.unwrap_or_else(AgentId::new), TurnId::new());
    let brings = match given {
        Some(agent_id) => {
            let memory = agent::memories(work, &[agent_id]).await?.pop();
            memory.map_or(Brings::Nothing, |memory| Brings::Memory(memory.memory_box_id))
        }
        None => {
            agent::provision(work, &[NewAgent::of(agent_id, &target)], Stay::Ephemeral, None).await?;
            Brings::Nothing
        }
    };
    let (handover, arguments) = launch.to_pack()?;
    check_form(&handover, &arguments).await?;
    let pack = Pack { session_id: launch.session_id, brings, ..Pack::new(agent_id, agent_turn_id, arguments) };
    let packed = pack_context(work, Packing::new("launch", None, &handover), &[pack]).await?.remove(0);
    if packed.query_card_ids.is_empty() {
        let message = "no argument of the handover says what to do: `pack_arguments` must contain `instruction` or another argument";
        return Err(Error::refused("bad_request", message));
    }
    let limits = match (launch.limits, target.limits) {
        (Some(wanted), Some(allowed)) if !launch.may_widen => Some(wanted.least(allowed)),
        (wanted, allowed) => wanted.or(allowed),
    };
    // Children inherit the trace of their parent, so that all of them are one trace.
    let trace_id = TraceId::of(agent_turn_id);
    let request = DispatchRequest {
        agent_turn_id,
        profile_box_id: Some(packed.target_profile_box_id),
        query_card_ids: packed.query_card_ids,
        session_id: launch.session_id,
        channel: launch.channel.clone(),
        emit_state_event: launch.emit_state_event,
        trace_id: Some(trace_id),
        traceparent: launch.traceparent.clone(),
        limits: limits.filter(|limits| !limits.is_none()),
        ..DispatchRequest::new(agent_id, packed.context_box_id)
    };
    let dispatched = turn::enqueue(work, &[request], &[]).await?.remove(0);
    turn::label(work, agent_turn_id, &launch.labels).await?;
    if dispatched.turn_epoch.is_none() {
        // A claim does not wait for the agent's lock, which this transaction held: it may have skipped the turn before this one.
        work.ring(Door::Agent(target.worker_target));
    }
    let status = if dispatched.turn_epoch.is_some() { DispatchStatus::Accepted } else { DispatchStatus::Queued };
    let (turn_epoch, session_id) = (dispatched.turn_epoch, launch.session_id);
    Ok(DispatchResult { status, agent_id, agent_turn_id, turn_epoch, trace_id, session_id })
}

//! Work from outside: somebody who is no agent wants something done (PM-3, PM-5).

use serde_json::{Map, Value, json};
use waybill_core::{
    card::{CardType, HandoffContent},
    handover::PackArgument,
    id::{AgentId, Channel, Name, SessionId, TraceId, TurnId},
    turn::Limits,
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    handover::{self, Pack, Packing, pack_context},
    turn::{self, DispatchRequest},
    work::UnitOfWork,
};

use crate::{command::Error, handoff};

/// What is wanted, and of whom.
#[derive(Clone, Debug)]
pub struct Launch {
    pub profile_name: Name,
    pub instruction: String,
    /// A handoff package that was checked.
    pub package: Option<HandoffContent>,
    /// `[{name, description, …}]`: what the result must have.
    pub result_fields: Option<Value>,
    /// Who is to do it; none: somebody who is made for it.
    pub agent_id: Option<AgentId>,
    pub session_id: Option<SessionId>,
    pub channel: Option<Channel>,
    /// Instead of what the profile says.
    pub limits: Option<Limits>,
    /// Whoever follows it is told what its agent does.
    pub emit_state_event: bool,
    /// The trace that it belongs to, as W3C writes it; none: it begins one.
    pub traceparent: Option<String>,
}

impl Launch {
    pub fn new(profile_name: Name, instruction: impl Into<String>) -> Launch {
        Launch {
            profile_name,
            instruction: instruction.into(),
            package: None,
            result_fields: None,
            agent_id: None,
            session_id: None,
            channel: None,
            limits: None,
            emit_state_event: false,
            traceparent: None,
        }
    }
}

/// That it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Launched {
    pub agent_id: AgentId,
    pub agent_turn_id: TurnId,
}

/// Dispatches it, in the caller's transaction.
pub async fn launch(work: &mut UnitOfWork, launch: &Launch) -> Result<Launched, Error> {
    let target = handover::target(work, &launch.profile_name).await?;
    let (agent_id, agent_turn_id) = (launch.agent_id.unwrap_or_else(AgentId::new), TurnId::new());
    if launch.agent_id.is_none() {
        agent::provision(work, &[NewAgent::of(agent_id, &target)], Stay::Ephemeral, None).await?;
    }
    let mut handover = handoff::handover();
    let fields = PackArgument { as_card_type: CardType::result_fields(), ..PackArgument::new("result_fields") };
    handover.context_packing_config.pack_arguments.push(fields);
    let arguments = [
        ("profile_name", Some(Value::from(launch.profile_name.as_str()))),
        ("instruction", Some(Value::from(launch.instruction.as_str()))),
        ("package", launch.package.as_ref().map(|package| json!(package))),
        ("result_fields", launch.result_fields.clone()),
    ];
    let arguments: Map<String, Value> =
        arguments.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    let pack = Pack::new(agent_id, agent_turn_id, arguments);
    let packed = pack_context(work, Packing::new("launch", None, &handover), &[pack]).await?.remove(0);
    let request = DispatchRequest {
        agent_turn_id,
        profile_box_id: Some(packed.target_profile_box_id),
        query_card_ids: packed.query_card_ids,
        session_id: launch.session_id,
        channel: launch.channel.clone(),
        emit_state_event: launch.emit_state_event,
        // Children have it from their parent: so all of them are one trace.
        trace_id: Some(TraceId::of(agent_turn_id)),
        traceparent: launch.traceparent.clone(),
        limits: launch.limits.or(target.limits).filter(|limits| !limits.is_none()),
        ..DispatchRequest::new(agent_id, packed.context_box_id)
    };
    turn::enqueue(work, &[request], &[]).await?;
    Ok(Launched { agent_id, agent_turn_id })
}

//! Packing, for one turn or for thousands, in the same few statements.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value};
use sqlx::FromRow;
use waybill_core::{
    card::{NewCard, Role},
    handover::Handover,
    id::{AgentId, BoxId, CardId, Name, SessionId, StepId, Target, TraceId, TurnId},
    resource::Process,
    turn::Limits,
};

use super::Error;
use crate::work::UnitOfWork;

mod argument;
mod layout;
mod source;
mod write;

use argument::{argument_cards, named_boxes, parent_card, target_name};
use layout::{Entry, Layout, Part};
use source::{brought, sessions};

pub use source::{Named, name};
pub use write::write;

/// Who packs, and by which rules.
#[derive(Clone, Copy, Debug)]
pub struct Packing<'a> {
    /// The tool that was called: the author of the cards.
    pub tool_suffix: &'a str,
    /// The agent within whose rights it packs. `None` means a person.
    pub source_agent_id: Option<AgentId>,
    pub handover: &'a Handover,
    /// The session that the source's own turn is in: the only one that an agent may name.
    pub session_id: Option<SessionId>,
    /// The trace of the calling step: lineage of the cards.
    pub trace_id: Option<TraceId>,
    pub parent_step_id: Option<StepId>,
}

impl<'a> Packing<'a> {
    pub fn new(tool_suffix: &'a str, source_agent_id: Option<AgentId>, handover: &'a Handover) -> Packing<'a> {
        Packing { tool_suffix, source_agent_id, handover, session_id: None, trace_id: None, parent_step_id: None }
    }
}

/// What one turn is packed from.
#[derive(Clone, Debug)]
pub struct Pack {
    /// The agent whose turn it is.
    pub agent_id: AgentId,
    pub agent_turn_id: TurnId,
    pub arguments: Map<String, Value>,
    /// Its messages are handed over too, if the receiver's process is shown them.
    pub session_id: Option<SessionId>,
    /// What the receiver brings itself.
    pub brings: Brings,
}

/// What a receiver remembers. The sender needs no right to it: it is enough that it may address the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Brings {
    #[default]
    Nothing,
    /// Its own memory.
    Memory(BoxId),
    /// The memory of the agent that it was cloned from, and what that agent is writing just now.
    Cloned { memory_box_id: BoxId, output_box_id: Option<BoxId> },
}

impl Brings {
    /// Returns the rule, the box and the right of each part.
    fn parts(self) -> impl Iterator<Item = (&'static str, BoxId, &'static str)> {
        let (memory, output) = match self {
            Brings::Nothing => (None, None),
            Brings::Memory(box_id) => (Some(("memory", box_id, "own")), None),
            Brings::Cloned { memory_box_id, output_box_id } => {
                (Some(("memory", memory_box_id, "cloned")), output_box_id.map(|box_id| ("output", box_id, "cloned")))
            }
        };
        memory.into_iter().chain(output)
    }
}

impl Pack {
    pub fn new(agent_id: AgentId, agent_turn_id: TurnId, arguments: Map<String, Value>) -> Pack {
        Pack { agent_id, agent_turn_id, arguments, session_id: None, brings: Brings::Nothing }
    }
}

/// A context box, and for whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    pub context_box_id: BoxId,
    pub target_profile_box_id: BoxId,
    pub worker_target: Target,
    /// The cards that were written for it, in order.
    pub attached_card_ids: Vec<CardId>,
    /// Those of them that ask something.
    pub query_card_ids: Vec<CardId>,
}

/// A profile as far as a delegation needs it.
#[derive(Clone, Debug, FromRow)]
pub struct ProfileTarget {
    pub name: Name,
    pub profile_box_id: BoxId,
    pub worker_target: Target,
    pub tags: Vec<Name>,
    #[sqlx(json)]
    pub process: Process,
    #[sqlx(json(nullable))]
    pub limits: Option<Limits>,
}

/// Looks up profiles by name.
pub async fn targets(work: &mut UnitOfWork, names: &BTreeSet<Name>) -> Result<HashMap<Name, ProfileTarget>, Error> {
    let project_id = work.project_id();
    let rows: Vec<ProfileTarget> = sqlx::query_as(
        "select p.name, p.profile_box_id, p.worker_target::text, p.tags, r.content -> 'process' as process, r.content -> 'limits' as limits
           from unnest($2::text[]) as asked (name)
          cross join lateral (select p.* from resource.profiles p where p.project_id = $1 and p.name = asked.name offset 0) p
          cross join lateral cardbox.reading($1, p.profile_card_id, statement_timestamp()) r",
    )
    .bind(project_id)
    .bind(names.iter().map(Name::as_str).collect::<Vec<_>>())
    .fetch_all(&mut **work)
    .await?;
    let found: HashMap<Name, ProfileTarget> = rows.into_iter().map(|row| (row.name.clone(), row)).collect();
    match names.iter().find(|name| !found.contains_key(*name)) {
        Some(unknown) => Err(Error::NoProfile(unknown.clone())),
        None => Ok(found),
    }
}

/// Looks up one profile by name.
pub async fn target(work: &mut UnitOfWork, name: &Name) -> Result<ProfileTarget, Error> {
    let mut found = targets(work, &BTreeSet::from([name.clone()])).await?;
    found.remove(name).ok_or_else(|| Error::NoProfile(name.clone()))
}

/// Packs as PM-4 says: all packs, or none.
pub async fn pack_context(work: &mut UnitOfWork, packing: Packing<'_>, packs: &[Pack]) -> Result<Vec<Packed>, Error> {
    let named = name(work, packing, packs.iter().map(|pack| &pack.arguments)).await?;
    let prepared = prepare(work, packing, packs, &named).await?;
    write(work, &prepared, |_| true).await?;
    Ok(prepared.packed().collect())
}

/// What is to be written, checked and with its ids: for a caller that dispatches first and then writes only what was new.
#[derive(Clone, Debug)]
pub struct Prepared {
    tool_suffix: String,
    source_agent_id: Option<AgentId>,
    parent: Option<NewCard>,
    plans: Vec<Plan>,
}

impl Prepared {
    /// Returns the context boxes, in the order of the packs.
    pub fn packed(&self) -> impl Iterator<Item = Packed> + '_ {
        self.plans.iter().map(|plan| plan.packed.clone())
    }
}

#[derive(Clone, Debug)]
struct Plan {
    agent_id: AgentId,
    agent_turn_id: TurnId,
    packed: Packed,
    length: i64,
    cards: Vec<NewCard>,
    entries: Vec<Entry>,
    parts: Vec<Part>,
}

/// Reads, checks and seals everything.
pub async fn prepare(
    work: &mut UnitOfWork,
    packing: Packing<'_>,
    packs: &[Pack],
    named: &Named,
) -> Result<Prepared, Error> {
    let names: Vec<Name> = packs.iter().map(|pack| target_name(packing.handover, pack)).collect::<Result<_, _>>()?;
    let targets = targets(work, &names.iter().cloned().collect()).await?;
    let sees = |name: &Name| targets[name].process.sees_checkpoint_messages();
    let shown = packs.iter().zip(&names).filter(|(_, name)| sees(name)).filter_map(|(pack, _)| pack.session_id);
    let (messages, sessions) = sessions(work, &packing, shown.collect()).await?;
    let brought = brought(work, packs).await?;
    let parent = match packing
        .source_agent_id
        .filter(|_| packing.handover.context_packing_config.inherit_context.include_parent)
    {
        Some(source) => Some(parent_card(&packing, source)?),
        None => None,
    };
    let mut plans = Vec::with_capacity(packs.len());
    for (pack, name) in packs.iter().zip(&names) {
        let target = &targets[name];
        let cards = argument_cards(&packing, pack)?;
        let mut layout = Layout::default();
        for (arg_key, card) in &cards {
            layout.card("argument", Some(arg_key.clone()), card.card_id());
        }
        for (rule, box_id, via) in pack.brings.parts() {
            layout.inherit(rule, None, &brought[&box_id], Some(via));
        }
        for (arg_key, box_id) in named_boxes(packing.handover, &pack.arguments)? {
            let source = named.0.get(&box_id).ok_or_else(|| Error::NoBox(vec![box_id]))?;
            layout.inherit("box", Some(arg_key), source, None);
        }
        if let Some(session_id) = pack.session_id.filter(|_| target.process.sees_checkpoint_messages()) {
            layout.inherit("session", None, &sessions[&messages[&session_id]], None);
        }
        if let Some(parent) = &parent {
            layout.card("parent", None, parent.card_id());
        }
        let cards: Vec<NewCard> = cards.into_iter().map(|(_, card)| card).collect();
        let packed = Packed {
            context_box_id: BoxId::new(),
            target_profile_box_id: target.profile_box_id,
            worker_target: target.worker_target.clone(),
            attached_card_ids: cards.iter().chain(&parent).map(NewCard::card_id).collect(),
            query_card_ids: cards.iter().filter(|card| asks(card)).map(NewCard::card_id).collect(),
        };
        let Layout { length, entries, parts, .. } = layout;
        let (agent_id, agent_turn_id) = (pack.agent_id, pack.agent_turn_id);
        plans.push(Plan { agent_id, agent_turn_id, packed, length, cards, entries, parts });
    }
    let (tool_suffix, source_agent_id) = (packing.tool_suffix.to_owned(), packing.source_agent_id);
    Ok(Prepared { tool_suffix, source_agent_id, parent, plans })
}

/// Checks whether a card is a question, not a rule for the answer.
fn asks(card: &NewCard) -> bool {
    card.metadata().role == Role::User && !card.metadata().card_type.is_result_form()
}

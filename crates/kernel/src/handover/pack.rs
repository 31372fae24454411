//! Packing, for one turn or for thousands, in the same few statements.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Map, Value};
use sqlx::FromRow;
use waybill_core::{
    card::{CardType, Content, Draft, NewCard, Role},
    card_box::Span,
    handover::{Handover, PackArgument},
    id::{AgentId, BoxId, CardId, Name, SessionId, StepId, Target as Door, TraceId, TurnId},
    json,
    resource::Process,
    turn::Limits,
};

use super::Error;
use crate::{
    card,
    card_box::{self, MOST_RUNS},
    grant,
    work::UnitOfWork,
};

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
    pub worker_target: Door,
    /// The cards that were written for it, in order.
    pub attached_card_ids: Vec<CardId>,
    /// Those of them that ask something.
    pub query_card_ids: Vec<CardId>,
}

/// A profile as far as a delegation needs it.
#[derive(Clone, Debug, FromRow)]
pub struct Target {
    pub name: Name,
    pub profile_box_id: BoxId,
    pub worker_target: Door,
    pub tags: Vec<Name>,
    #[sqlx(json)]
    pub process: Process,
    #[sqlx(json(nullable))]
    pub limits: Option<Limits>,
}

/// Looks up profiles by name.
pub async fn targets(work: &mut UnitOfWork, names: &BTreeSet<Name>) -> Result<HashMap<Name, Target>, Error> {
    let project_id = work.project_id();
    let rows: Vec<Target> = sqlx::query_as(
        "select p.name, p.profile_box_id, p.worker_target::text, p.tags, r.content -> 'process' as process, r.content -> 'limits' as limits
           from unnest($2::text[]) as asked (name)
          cross join lateral (select p.* from resource.profiles p where p.project_id = $1 and p.name = asked.name offset 0) p
          cross join lateral cardbox.reading($1, p.profile_card_id, statement_timestamp()) r",
    )
    .bind(project_id)
    .bind(names.iter().map(Name::as_str).collect::<Vec<_>>())
    .fetch_all(&mut **work)
    .await?;
    let found: HashMap<Name, Target> = rows.into_iter().map(|row| (row.name.clone(), row)).collect();
    match names.iter().find(|name| !found.contains_key(*name)) {
        Some(unknown) => Err(Error::NoProfile(unknown.clone())),
        None => Ok(found),
    }
}

/// Looks up one profile by name.
pub async fn target(work: &mut UnitOfWork, name: &Name) -> Result<Target, Error> {
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

/// One row of the box.
#[derive(Clone, Copy, Debug)]
struct Entry {
    seq: i64,
    held: Held,
}

#[derive(Clone, Copy, Debug)]
enum Held {
    Card(CardId),
    Range(Span),
}

/// One row of its provenance.
#[derive(Clone, Debug)]
struct Part {
    rule: &'static str,
    arg_key: Option<String>,
    from: i64,
    n_cards: i64,
    /// Which box, how far, by which right.
    source: Option<(Span, String)>,
}

/// The boxes that arguments name, as far as the source may read them now: the same for all receivers that inherit them.
#[derive(Clone, Debug, Default)]
pub struct Named(HashMap<BoxId, Source>);

/// Looks up the boxes that arguments name, once for all packs. A box of many pieces that many receivers inherit is flattened here. If this refuses,
/// what the source may not pass on is on record.
pub async fn name<'m>(
    work: &mut UnitOfWork,
    packing: Packing<'_>,
    arguments: impl IntoIterator<Item = &'m Map<String, Value>>,
) -> Result<Named, Error> {
    let mut heirs: BTreeMap<BoxId, usize> = BTreeMap::new();
    for arguments in arguments {
        for (_, box_id) in named_boxes(packing.handover, arguments)? {
            *heirs.entry(box_id).or_default() += 1;
        }
    }
    let boxes: Vec<BoxId> = heirs.keys().copied().collect();
    let rights = rights(work, &packing, &boxes).await?;
    Ok(Named(sources(work, rights, |box_id| heirs[&box_id]).await?))
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
    card.metadata().role == Role::User && card.metadata().card_type != CardType::result_fields()
}

fn target_name(handover: &Handover, pack: &Pack) -> Result<Name, Error> {
    match pack.arguments.get("profile_name").filter(|value| !value.is_null()) {
        Some(Value::String(name)) => {
            name.parse().map_err(|error| Error::BadRequest(format!("`profile_name`: {error}")))
        }
        Some(_) => Err(Error::BadRequest("`profile_name` is a name, as a string".to_owned())),
        None => handover.target_profile_config.profile_name.clone().ok_or_else(|| {
            Error::BadRequest("no target: neither the arguments nor the handover name a profile".to_owned())
        }),
    }
}

fn argument_cards(packing: &Packing<'_>, pack: &Pack) -> Result<Vec<(String, NewCard)>, Error> {
    let rules = &packing.handover.context_packing_config.pack_arguments;
    let given = rules.iter().filter_map(|rule| Some((rule, pack.arguments.get(&rule.arg_key)?)));
    let cards = given.filter(|(_, value)| !value.is_null()).map(|(rule, value)| {
        let card = argument_card(packing, rule, value)?;
        Ok((rule.arg_key.clone(), card))
    });
    cards.collect()
}

fn argument_card(packing: &Packing<'_>, rule: &PackArgument, value: &Value) -> Result<NewCard, Error> {
    let PackArgument { arg_key, as_card_type, card_metadata } = rule;
    let is_ours = as_card_type.is_system() || as_card_type.as_str().starts_with("meta.");
    if is_ours || *as_card_type == CardType::deliverable() {
        return Err(Error::BadRequest(format!("argument `{arg_key}`: a `{as_card_type}` is never packed")));
    }
    let fields = *as_card_type == CardType::result_fields();
    let content = match value {
        Value::Array(_) if fields => Content::read(as_card_type, value.clone()),
        _ if *as_card_type == CardType::handoff_package() => Content::read(as_card_type, value.clone()),
        _ if fields => {
            return Err(Error::BadRequest(format!("argument `{arg_key}` is a list of `{{name, description}}`")));
        }
        Value::Object(_) | Value::Array(_) => Ok(Content::Json(value.clone())),
        Value::String(text) => Ok(Content::Text(json::readmit(text.clone()))),
        other => Ok(Content::Text(other.to_string())),
    };
    let invalid = |source| Error::Argument { arg_key: arg_key.clone(), source };
    let role = match card_metadata.get("role") {
        Some(role) => serde_json::from_value(role.clone())
            .map_err(|error| Error::BadRequest(format!("the handover of `{arg_key}`: `role`: {error}")))?,
        None if fields => Role::System,
        None => Role::User,
    };
    let mut draft = Draft::new(as_card_type.clone(), role, content.map_err(invalid)?);
    draft.metadata.extra = card_metadata.clone();
    draft.metadata.extra.remove("role");
    sign(packing, &mut draft);
    draft.seal().map_err(invalid)
}

fn parent_card(packing: &Packing<'_>, source: AgentId) -> Result<NewCard, Error> {
    let content = Content::Json(serde_json::json!({ "parent_agent_id": source }));
    let mut draft = Draft::new(CardType::parent_pointer(), Role::System, content);
    sign(packing, &mut draft);
    draft.seal().map_err(|source| Error::Argument { arg_key: "parent".to_owned(), source })
}

fn sign(packing: &Packing<'_>, draft: &mut Draft) {
    draft.metadata.author_id = Some(packing.tool_suffix.to_owned());
    draft.metadata.trace_id = packing.trace_id;
    draft.metadata.parent_step_id = packing.parent_step_id;
}

/// Returns the boxes that arguments name, each once, in order.
fn named_boxes(handover: &Handover, arguments: &Map<String, Value>) -> Result<Vec<(String, BoxId)>, Error> {
    let mut named: Vec<(String, BoxId)> = Vec::new();
    for arg_key in &handover.context_packing_config.inherit_context.include_boxes_from_args {
        let values = match arguments.get(arg_key) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        for value in values {
            let text = value.as_str().ok_or_else(|| {
                Error::BadRequest(format!("argument `{arg_key}` is the id of a box, or a list of them"))
            })?;
            let box_id: BoxId =
                text.parse().map_err(|error| Error::BadRequest(format!("argument `{arg_key}`: {error}")))?;
            if named.iter().all(|(_, known)| *known != box_id) {
                named.push((arg_key.clone(), box_id));
            }
        }
    }
    Ok(named)
}

/// What is inherited, read once for all receivers.
#[derive(Clone, Debug)]
struct Source {
    /// What is handed over.
    span: Span,
    via: String,
    /// The ranges that hold it.
    runs: Vec<Span>,
}

/// Returns the runs of spans. A span of many pieces that many receivers inherit is flattened once, since each of them would hold every piece.
async fn sources(
    work: &mut UnitOfWork,
    spans: Vec<(Span, String)>,
    heirs: impl Fn(BoxId) -> usize,
) -> Result<HashMap<BoxId, Source>, Error> {
    let mut runs = runs(work, spans.iter().map(|(span, _)| *span).collect()).await?;
    let mut sources = HashMap::with_capacity(spans.len());
    for (span, via) in spans {
        let mut held = runs.remove(&span.box_id).unwrap_or_default();
        if held.len() as i64 > MOST_RUNS && heirs(span.box_id) > 1 {
            held = vec![card_box::share(work, span).await?];
        }
        sources.insert(span.box_id, Source { span, via, runs: held });
    }
    Ok(sources)
}

/// Returns what receivers remember, as it is now.
async fn brought(work: &mut UnitOfWork, packs: &[Pack]) -> Result<HashMap<BoxId, Source>, Error> {
    let mut heirs: BTreeMap<BoxId, usize> = BTreeMap::new();
    for (_, box_id, _) in packs.iter().flat_map(|pack| pack.brings.parts()) {
        *heirs.entry(box_id).or_default() += 1;
    }
    let boxes: Vec<BoxId> = heirs.keys().copied().collect();
    let found = grant::readable(work, None, &boxes).await?;
    let spans = found.into_values().map(|found| (Span::prefix(found.box_id, found.length), "own".to_owned()));
    sources(work, spans.collect(), |box_id| heirs[&box_id]).await
}

/// Returns the messages of the named sessions, by session and by box. An agent may name only the session that it is in.
async fn sessions(
    work: &mut UnitOfWork,
    packing: &Packing<'_>,
    named: BTreeSet<SessionId>,
) -> Result<(HashMap<SessionId, BoxId>, HashMap<BoxId, Source>), Error> {
    let other = |session_id: &&SessionId| packing.source_agent_id.is_some() && packing.session_id != Some(**session_id);
    if let Some(other) = named.iter().find(other) {
        let error = Error::NoSession(*other);
        return Err(work.refuse(error));
    }
    let messages = messages(work, named).await?;
    let boxes: Vec<BoxId> = messages.values().copied().collect();
    let found = grant::readable(work, None, &boxes).await?;
    let rights =
        found.into_values().map(|found| (Span::prefix(found.box_id, found.length), "session".to_owned())).collect();
    // Messages are appended one by one: a session's box is one run.
    let sources = sources(work, rights, |_| 1).await?;
    Ok((messages, sources))
}

/// Returns how far the source may read boxes, and by which right. Fails closed, and leaves a record of what was asked for.
async fn rights(work: &mut UnitOfWork, packing: &Packing<'_>, boxes: &[BoxId]) -> Result<Vec<(Span, String)>, Error> {
    let rights = grant::readable(work, packing.source_agent_id, boxes).await?;
    let (mut spans, mut refused) = (Vec::with_capacity(boxes.len()), Vec::new());
    for box_id in boxes {
        match rights.get(box_id) {
            Some(grant::Readable { upto: Some(upto), via: Some(via), .. }) => {
                spans.push((Span::prefix(*box_id, *upto), via.clone()));
            }
            Some(_) => refused.push((*box_id, "forbidden")),
            None => refused.push((*box_id, "not_found")),
        }
    }
    if refused.is_empty() {
        return Ok(spans);
    }
    if let Some(source) = packing.source_agent_id {
        grant::record(work, source, packing.tool_suffix, &refused).await?;
    }
    let (unknown, forbidden): (Vec<_>, Vec<_>) = refused.into_iter().partition(|(_, why)| *why == "not_found");
    let boxes = |refused: Vec<(BoxId, &str)>| refused.into_iter().map(|(box_id, _)| box_id).collect();
    let error = if forbidden.is_empty() { Error::NoBox(boxes(unknown)) } else { Error::Forbidden(boxes(forbidden)) };
    Err(work.refuse(error))
}

async fn messages(work: &mut UnitOfWork, sessions: BTreeSet<SessionId>) -> Result<HashMap<SessionId, BoxId>, Error> {
    if sessions.is_empty() {
        return Ok(HashMap::new());
    }
    let project_id = work.project_id();
    let asked: Vec<SessionId> = sessions.iter().copied().collect();
    let rows: Vec<(SessionId, BoxId)> = sqlx::query_as(
        "select b.session_id, b.messages_box_id
           from unnest($2::uuid[]) as asked (session_id)
          cross join lateral (
                select b.* from state.blackboards b where b.project_id = $1 and b.session_id = asked.session_id offset 0) b",
    )
    .bind(project_id)
    .bind(asked)
    .fetch_all(&mut **work)
    .await?;
    let found: HashMap<SessionId, BoxId> = rows.into_iter().collect();
    match sessions.into_iter().find(|session_id| !found.contains_key(session_id)) {
        Some(unknown) => Err(Error::NoSession(unknown)),
        None => Ok(found),
    }
}

/// Returns the runs by box, in the order of places.
async fn runs(work: &mut UnitOfWork, spans: Vec<Span>) -> Result<HashMap<BoxId, Vec<Span>>, Error> {
    if spans.is_empty() {
        return Ok(HashMap::new());
    }
    let project_id = work.project_id();
    let rows: Vec<(BoxId, BoxId, i64, i64)> = sqlx::query_as(
        "select s.box_id, r.source_box_id, r.from_seq, r.to_seq
           from unnest($2::uuid[], $3::bigint[]) as s (box_id, upto)
          cross join lateral cardbox.runs($1, s.box_id, 1, s.upto) r
          order by s.box_id, r.place",
    )
    .bind(project_id)
    .bind(spans.iter().map(|span| span.box_id).collect::<Vec<_>>())
    .bind(spans.iter().map(|span| span.upto).collect::<Vec<_>>())
    .fetch_all(&mut **work)
    .await?;
    let mut runs: HashMap<BoxId, Vec<Span>> = HashMap::new();
    for (box_id, source, from, to) in rows {
        runs.entry(box_id).or_default().push(Span { box_id: source, from, upto: to });
    }
    Ok(runs)
}

/// A context box in the making.
#[derive(Default)]
struct Layout {
    length: i64,
    entries: Vec<Entry>,
    parts: Vec<Part>,
    held: Vec<Span>,
}

impl Layout {
    fn card(&mut self, rule: &'static str, arg_key: Option<String>, card_id: CardId) {
        self.length += 1;
        self.entries.push(Entry { seq: self.length, held: Held::Card(card_id) });
        self.parts.push(Part { rule, arg_key, from: self.length, n_cards: 1, source: None });
    }

    /// Adds a source. What is already held of it is left out: on reading it would be a repeat.
    fn inherit(&mut self, rule: &'static str, arg_key: Option<String>, source: &Source, via: Option<&str>) {
        let from = self.length + 1;
        for run in &source.runs {
            for fresh in without(*run, &self.held) {
                self.entries.push(Entry { seq: self.length + 1, held: Held::Range(fresh) });
                self.length += fresh.upto - fresh.from + 1;
                self.held.push(fresh);
            }
        }
        let source = Some((source.span, via.unwrap_or(&source.via).to_owned()));
        self.parts.push(Part { rule, arg_key, from, n_cards: self.length + 1 - from, source });
    }
}

/// Returns the parts of a span that are in none of the others, in order.
fn without(span: Span, others: &[Span]) -> Vec<Span> {
    let mut left = vec![span];
    for other in others.iter().filter(|other| other.box_id == span.box_id) {
        let cut = |span: Span| {
            let before = Span { upto: span.upto.min(other.from - 1), ..span };
            let after = Span { from: span.from.max(other.upto + 1), ..span };
            [before, after].into_iter().filter(|part| part.from <= part.upto)
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    left
}

/// Writes the prepared packs that are to be kept; `keep` gets the place of each.
pub async fn write(work: &mut UnitOfWork, prepared: &Prepared, keep: impl Fn(usize) -> bool) -> Result<(), Error> {
    let plans: Vec<&Plan> =
        prepared.plans.iter().enumerate().filter(|(place, _)| keep(*place)).map(|(_, plan)| plan).collect();
    if plans.is_empty() {
        return Ok(());
    }
    let cards: Vec<NewCard> = plans.iter().flat_map(|plan| &plan.cards).chain(&prepared.parent).cloned().collect();
    card::insert(work, &cards).await?;
    let entries: Vec<(BoxId, &Entry)> =
        plans.iter().flat_map(|plan| plan.entries.iter().map(|entry| (plan.packed.context_box_id, entry))).collect();
    let parts: Vec<(&Plan, i32, &Part)> =
        plans.iter().flat_map(|plan| (0..).zip(&plan.parts).map(|(n, part)| (*plan, n, part))).collect();
    let ranges = |field: fn(Span) -> i64| {
        let of = |entry: &Entry| match entry.held {
            Held::Card(_) => None,
            Held::Range(span) => Some(field(span)),
        };
        entries.iter().map(|(_, entry)| of(entry)).collect::<Vec<_>>()
    };
    let project_id = work.project_id();
    sqlx::query(
        "with made as (
           insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id)
           select $1, b.* from unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::uuid[]) as b (box_id, length, agent_id, agent_turn_id)
         ), entry as (
           insert into cardbox.box_entries (project_id, box_id, seq, card_id, source_box_id, from_seq, to_seq)
           select $1, e.*
             from unnest($6::uuid[], $7::bigint[], $8::uuid[], $9::uuid[], $10::bigint[], $11::bigint[])
                  as e (box_id, seq, card_id, source_box_id, from_seq, to_seq)
         )
         insert into state.handovers
                (project_id, source_agent_id, tool_suffix, context_box_id, part, agent_id, rule, arg_key, from_seq, n_cards, source_box_id,
                 upto, via)
         select $1, $12, $13, p.*
           from unnest($14::uuid[], $15::int[], $16::uuid[], $17::text[], $18::text[], $19::bigint[], $20::bigint[], $21::uuid[],
                       $22::bigint[], $23::text[])
                as p (context_box_id, part, agent_id, rule, arg_key, from_seq, n_cards, source_box_id, upto, via)",
    )
    .bind(project_id)
    .bind(plans.iter().map(|plan| plan.packed.context_box_id).collect::<Vec<_>>())
    .bind(plans.iter().map(|plan| plan.length).collect::<Vec<_>>())
    .bind(plans.iter().map(|plan| plan.agent_id).collect::<Vec<_>>())
    .bind(plans.iter().map(|plan| plan.agent_turn_id).collect::<Vec<_>>())
    .bind(entries.iter().map(|(box_id, _)| *box_id).collect::<Vec<_>>())
    .bind(entries.iter().map(|(_, entry)| entry.seq).collect::<Vec<_>>())
    .bind(entries.iter().map(|(_, entry)| entry.held.card_id()).collect::<Vec<_>>())
    .bind(entries.iter().map(|(_, entry)| entry.held.source_box_id()).collect::<Vec<_>>())
    .bind(ranges(|span| span.from))
    .bind(ranges(|span| span.upto))
    .bind(prepared.source_agent_id)
    .bind(&prepared.tool_suffix)
    .bind(parts.iter().map(|(plan, ..)| plan.packed.context_box_id).collect::<Vec<_>>())
    .bind(parts.iter().map(|(_, n, _)| *n).collect::<Vec<_>>())
    .bind(parts.iter().map(|(plan, ..)| plan.agent_id).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.rule).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.arg_key.as_deref()).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.from).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.n_cards).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.source.as_ref().map(|(span, _)| span.box_id)).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.source.as_ref().map(|(span, _)| span.upto)).collect::<Vec<_>>())
    .bind(parts.iter().map(|(.., part)| part.source.as_ref().map(|(_, via)| via.as_str())).collect::<Vec<_>>())
    .execute(&mut **work)
    .await?;
    Ok(())
}

impl Held {
    fn card_id(&self) -> Option<CardId> {
        match self {
            Held::Card(card_id) => Some(*card_id),
            Held::Range(_) => None,
        }
    }

    fn source_box_id(&self) -> Option<BoxId> {
        match self {
            Held::Card(_) => None,
            Held::Range(span) => Some(span.box_id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A span and what is held already, as "from-upto"; what is left.
    #[track_caller]
    fn check(span: &str, others: &str, left: &str) {
        let box_id = BoxId::nil();
        let read = |text: &str| {
            let (from, upto) = text.split_once('-').expect("a span");
            Span { box_id, from: from.parse().expect("a number"), upto: upto.parse().expect("a number") }
        };
        let others: Vec<Span> = others.split_whitespace().map(read).collect();
        let found = without(read(span), &others);
        let found: Vec<String> = found.iter().map(|span| format!("{}-{}", span.from, span.upto)).collect();
        assert_eq!(found.join(" "), left, "{span} without {others:?}");
    }

    #[test]
    fn what_is_held_already_is_left_out() {
        check("1-9", "", "1-9");
        check("1-9", "1-9", "");
        check("1-9", "1-20", "");
        check("3-9", "1-2", "3-9"); // before it
        check("3-9", "10-12", "3-9"); // behind it
        check("3-9", "1-4", "5-9");
        check("3-9", "8-12", "3-7");
        check("1-9", "3-4", "1-2 5-9");
        check("1-9", "3-4 7-7", "1-2 5-6 8-9");
        check("3-9", "3-3 9-9", "4-8");
    }
}

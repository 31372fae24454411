//! From cards to units: what belongs together stays together (CX-12). A call and its results are one unit, even if other cards came between.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde::Serialize;
use serde_json::Value;
use smallvec::{SmallVec, smallvec};
use waybill_core::{
    card::{Card, CardHash, CardType, Content, Draft, Origin, Reading, Role, ToolCall},
    card_box::Placed,
    id::{CardId, ToolCallId},
    tokens::{self, Tokens},
};

use crate::layer::Layer;

/// A card from which a message was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, utoipa::ToSchema)]
pub struct Source {
    pub card_id: CardId,
    pub hash: CardHash,
    /// Where the card came from.
    pub origin: Origin,
}

/// The cards from which a message was made: usually one.
pub type Sources = SmallVec<[Source; 1]>;

/// One message in a form that fits every provider, and the cards it came from (CX-11).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Message<'a> {
    #[serde(skip)]
    pub layer: Layer,
    pub role: Role,
    pub content: Cow<'a, str>,
    #[serde(skip_serializing_if = "<[ToolCall]>::is_empty")]
    pub tool_calls: Cow<'a, [ToolCall]>,
    /// For a result: the call that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
    /// For an assistant's message among the turn's own steps: its reasoning before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning<'a>>,
    #[serde(skip)]
    pub sources: Sources,
    #[serde(skip)]
    pub n_tokens: Tokens,
}

impl<'a> Message<'a> {
    pub(crate) fn text(
        layer: Layer,
        role: Role,
        content: impl Into<Cow<'a, str>>,
        sources: Sources,
        n_tokens: Tokens,
    ) -> Message<'a> {
        Message {
            layer,
            role,
            content: content.into(),
            tool_calls: Cow::Borrowed(&[]),
            tool_call_id: None,
            reasoning: None,
            sources,
            n_tokens,
        }
    }

    fn of(layer: &Layer, card: &'a Card) -> Message<'a> {
        Message {
            tool_calls: Cow::Borrowed(&card.tool_calls),
            tool_call_id: card.tool_call_id.filter(|_| card.metadata.role == Role::Tool),
            ..Message::text(layer.clone(), card.metadata.role, text_of(card), smallvec![source(card)], card.n_tokens)
        }
    }

    /// Returns a copy that does not borrow from the cards.
    pub fn into_owned(self) -> Message<'static> {
        let Message { layer, role, content, tool_calls, tool_call_id, reasoning, sources, n_tokens } = self;
        let (content, tool_calls) = (Cow::Owned(content.into_owned()), Cow::Owned(tool_calls.into_owned()));
        let reasoning = reasoning.map(Reasoning::into_owned);
        Message { layer, role, content, tool_calls, tool_call_id, reasoning, sources, n_tokens }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.content.trim().is_empty() && self.tool_calls.is_empty() && self.tool_call_id.is_none()
    }
}

/// The content of an `agent.reasoning` card: what a model thought before it answered. It can be sent back through the same adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reasoning<'a> {
    /// The adapter's name.
    pub adapter: Cow<'a, str>,
    /// The readable part.
    pub text: Cow<'a, str>,
    /// The provider's own JSON array of blocks, to be sent back byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbatim: Option<Cow<'a, str>>,
}

impl<'a> Reasoning<'a> {
    pub fn draft(&self) -> Draft {
        let content = serde_json::to_value(self).expect("a reasoning has string keys only");
        Draft::new(CardType::reasoning(), Role::Assistant, Content::Json(content))
    }

    fn of(card: &'a Card) -> Option<Reasoning<'a>> {
        let Content::Json(content) = &card.content else { return None };
        let text = |key: &str| content.get(key).and_then(Value::as_str).map(Cow::Borrowed);
        Some(Reasoning { adapter: text("adapter")?, text: text("text")?, verbatim: text("verbatim") })
    }

    fn into_owned(self) -> Reasoning<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let Reasoning { adapter, text, verbatim } = self;
        Reasoning { adapter: owned(adapter), text: owned(text), verbatim: verbatim.map(owned) }
    }
}

pub(crate) fn source(card: &Card) -> Source {
    Source { card_id: card.card_id, hash: card.hash, origin: card.origin }
}

/// Returns the content of a card as text.
pub(crate) fn text_of(card: &Card) -> Cow<'_, str> {
    match &card.content {
        Content::Text(text) => Cow::Borrowed(text),
        Content::Json(value) => plain(value),
        // A call itself is not text; the framework's text lists the fields that the result must have.
        Content::Handoff(handoff) => Cow::Owned(Value::Object(handoff.package.clone()).to_string()),
        Content::ToolCall(_) | Content::Fields(_) => Cow::Borrowed(""),
        Content::ToolResult(result) if result.is_success() => plain(&result.result),
        Content::ToolResult(result) => Cow::Owned(format!("{}: {}", result.status, plain(&result.result))),
    }
}

fn plain(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

/// Why a card is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It does not fit the budget.
    Budget,
    /// A call of the unit has no result.
    OpenCall,
    /// A card of the unit has expired, or was deleted or erased.
    Gone,
    /// A result without its call.
    Orphan,
    /// A second result of a call, or a card that is already shown.
    Repeated,
    /// A summary replaces it.
    Covered,
    /// Nothing that the model reads: a pointer, an empty card, another agent's system text, the reasoning of another turn.
    NotForTheModel,
}

/// Cards that are not shown, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Omitted {
    pub card_ids: Vec<CardId>,
    pub reason: Reason,
}

/// Messages that are shown together or not at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit<'a> {
    pub(crate) first: Message<'a>,
    /// For calls: their results.
    pub(crate) results: Vec<Message<'a>>,
    /// Calls that have no result yet.
    open: SmallVec<[ToolCallId; 2]>,
    /// Shown regardless of the budget.
    pub(crate) pinned: bool,
    /// A summary replaces it.
    pub(crate) covered: bool,
    /// Its calls are cards of their own: the message to which they belong does not name them.
    calls_have_cards: bool,
    /// A card that is gone may have been one of its calls.
    pub(crate) lost_a_call: bool,
    /// The text beside open calls. The calls may still be answered, so no summary replaces the text.
    pub(crate) is_partial: bool,
    /// The position of its last card.
    last: i64,
}

impl<'a> Unit<'a> {
    fn new(first: Message<'a>, place: i64, covered: bool) -> Unit<'a> {
        Unit {
            open: first.tool_calls.iter().map(|call| call.tool_call_id).collect(),
            first,
            results: Vec::new(),
            pinned: false,
            covered,
            calls_have_cards: false,
            lost_a_call: false,
            is_partial: false,
            last: place,
        }
    }

    pub(crate) fn messages(&self) -> impl Iterator<Item = &Message<'a>> {
        std::iter::once(&self.first).chain(&self.results)
    }

    pub(crate) fn into_messages(self) -> impl Iterator<Item = Message<'a>> {
        std::iter::once(self.first).chain(self.results)
    }

    pub(crate) fn card_ids(&self) -> impl Iterator<Item = CardId> + '_ {
        self.messages().flat_map(|message| &message.sources).map(|source| source.card_id)
    }

    pub(crate) fn omitted(&self, reason: Reason) -> Omitted {
        Omitted { card_ids: self.card_ids().collect(), reason }
    }

    pub(crate) fn n_tokens(&self, per_message: Tokens) -> Tokens {
        self.messages().map(|message| message.n_tokens + per_message).sum()
    }

    pub(crate) fn has_open_call(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns the text that was said beside calls, if none of them is answered: the message without the calls, and the cards that are left out.
    /// `None` means that there was no text.
    pub(crate) fn words(&self) -> Option<(Unit<'a>, Omitted)> {
        if self.lost_a_call || !self.results.is_empty() || self.first.content.trim().is_empty() {
            return None;
        }
        let mut first = self.first.clone();
        let left: Vec<CardId> = first.sources.drain(1..).map(|source| source.card_id).collect();
        first.tool_calls = Cow::Borrowed(&[]);
        first.n_tokens = tokens::count(&first.content);
        let unit = Unit { first, open: SmallVec::new(), is_partial: true, ..self.clone() };
        Some((unit, Omitted { card_ids: left, reason: Reason::OpenCall }))
    }
}

/// Units in the order of their first card, and the cards that cannot be part of one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Units<'a> {
    pub(crate) units: Vec<Unit<'a>>,
    pub(crate) omitted: Vec<Omitted>,
}

/// Groups cards into messages of a layer. `shown` are cards that are shown elsewhere already; each card that is read here is added.
/// `covered` cards are grouped too, and dropped only afterwards: a summary must not change which cards belong together.
pub(crate) fn group<'a>(
    layer: &Layer,
    cards: impl IntoIterator<Item = &'a Placed>,
    covered: &HashSet<CardId>,
    shown: &mut HashSet<CardId>,
) -> Units<'a> {
    let mut grouped = Units::default();
    // The unit of each call. Its first message is the assistant's.
    let mut calls: HashMap<ToolCallId, usize> = HashMap::new();
    let reasoning = CardType::reasoning();
    let mut thought: Option<Thought<'a>> = None;
    for Placed { reading, place, .. } in cards {
        let omit = |reason| Omitted { card_ids: vec![reading.card_id()], reason };
        if !shown.insert(reading.card_id()) {
            grouped.omitted.push(omit(Reason::Repeated));
            continue;
        }
        let card = match reading {
            Reading::Live(card) => card,
            Reading::Gone(_) => {
                // Directly after calls on cards of their own, the missing card may have been another call.
                let follows =
                    |unit: &&mut Unit<'_>| unit.last + 1 == *place && unit.results.is_empty() && unit.calls_have_cards;
                if let Some(unit) = grouped.units.last_mut().filter(follows) {
                    unit.lost_a_call = true;
                    unit.last = *place;
                }
                grouped.omitted.push(omit(Reason::Gone));
                continue;
            }
        };
        if card.metadata.card_type == reasoning {
            // Listed as omitted until the message comes to which it belongs.
            let omitted = grouped.omitted.len();
            grouped.omitted.push(omit(Reason::NotForTheModel));
            let read = Reasoning::of(card).filter(|_| *layer == Layer::Steps);
            thought = read.map(|reasoning| Thought { card, reasoning, last: *place, omitted });
            continue;
        }
        thought = thought.filter(|thought| thought.precedes(card, *place));
        let n_units = grouped.units.len();
        let message = Message::of(layer, card);
        match card.metadata.role {
            Role::System => grouped.omitted.push(omit(Reason::NotForTheModel)),
            Role::Tool => match message.tool_call_id.and_then(|call| Some((call, *calls.get(&call)?))) {
                None => grouped.omitted.push(omit(Reason::Orphan)),
                Some((call, unit)) => {
                    let unit = &mut grouped.units[unit];
                    if unit.open.contains(&call) {
                        unit.open.retain(|open| *open != call);
                        unit.results.push(message);
                    } else {
                        grouped.omitted.push(omit(Reason::Repeated));
                    }
                }
            },
            Role::Assistant if card.metadata.card_type == CardType::tool_call() => {
                add_call(&mut grouped, &mut calls, card, *place, covered.contains(&card.card_id), message);
            }
            _ if message.is_empty() => grouped.omitted.push(omit(Reason::NotForTheModel)),
            _ => {
                let at = grouped.units.len();
                let unit = Unit::new(message, *place, covered.contains(&card.card_id));
                calls.extend(unit.open.iter().map(|call| (*call, at)));
                grouped.units.push(unit);
            }
        }
        if grouped.units.len() > n_units {
            thought.take().into_iter().for_each(|thought| thought.join(&mut grouped, covered));
        } else if let Some(thought) = &mut thought {
            thought.last = *place;
        }
    }
    grouped.units.retain(|unit| !unit.covered);
    grouped.omitted.retain(|omitted| !omitted.card_ids.iter().any(|card_id| covered.contains(card_id)));
    for unit in &mut grouped.units {
        in_order_of_calls(unit);
    }
    grouped
}

/// Adds a `tool.call` card: the record of a call that its assistant message already names, or the call itself.
fn add_call<'a>(
    grouped: &mut Units<'a>,
    calls: &mut HashMap<ToolCallId, usize>,
    card: &'a Card,
    place: i64,
    covered: bool,
    message: Message<'a>,
) {
    let (Some(tool_call_id), Content::ToolCall(content)) = (card.tool_call_id, &card.content) else {
        grouped.omitted.push(Omitted { card_ids: vec![card.card_id], reason: Reason::NotForTheModel });
        return;
    };
    if let Some(unit) = calls.get(&tool_call_id) {
        let unit = &mut grouped.units[*unit];
        if unit.covered == covered {
            unit.first.sources.push(source(card));
        } else {
            grouped.omitted.push(Omitted { card_ids: vec![card.card_id], reason: Reason::Repeated });
        }
        return;
    }
    let call = ToolCall {
        tool_call_id,
        tool_name: content.tool_name.clone(),
        arguments: content.arguments.clone(),
        provider_call_id: None,
    };
    // Calls that directly follow each other, or the thought they came with, are one message, as long as none is answered. A card between
    // them separates them, even if it was not read; so does a summary that covers only one of them.
    let at = grouped.units.len();
    let joins = |unit: &&mut Unit<'_>| {
        let is_next = unit.last + 1 == place && unit.covered == covered;
        is_next && unit.results.is_empty() && unit.first.role == Role::Assistant
    };
    match grouped.units.last_mut().filter(joins) {
        Some(unit) => {
            unit.last = place;
            unit.calls_have_cards = true;
            let said = &mut unit.first;
            said.tool_calls.to_mut().push(call);
            said.sources.push(source(card));
            said.n_tokens = said.n_tokens + card.n_tokens;
            unit.open.push(tool_call_id);
            calls.insert(tool_call_id, at - 1);
        }
        None => {
            let message = Message { tool_calls: Cow::Owned(vec![call]), ..message };
            grouped.units.push(Unit { calls_have_cards: true, ..Unit::new(message, place, covered) });
            calls.insert(tool_call_id, at);
        }
    }
}

/// A reasoning whose message has not come yet.
struct Thought<'a> {
    card: &'a Card,
    reasoning: Reasoning<'a>,
    /// Its position, or that of the empty card after it.
    last: i64,
    /// Its index in the list of omitted cards.
    omitted: usize,
}

impl<'a> Thought<'a> {
    /// Checks whether a card is what the model said directly after it, in the same step.
    fn precedes(&self, card: &Card, place: i64) -> bool {
        let is_same_step = self.card.metadata.step_id == card.metadata.step_id;
        self.last + 1 == place && is_same_step && card.metadata.role == Role::Assistant
    }

    /// Becomes part of the message that was just begun, unless a summary covers only one of the two.
    fn join(self, grouped: &mut Units<'a>, covered: &HashSet<CardId>) {
        let Some(unit) = grouped.units.last_mut() else { return };
        if unit.covered == covered.contains(&self.card.card_id) {
            grouped.omitted.remove(self.omitted);
            let said = &mut unit.first;
            // Added after the message's own card: the first source identifies the message.
            said.sources.push(source(self.card));
            said.n_tokens = said.n_tokens + self.card.n_tokens;
            said.reasoning = Some(self.reasoning);
        }
    }
}

/// Sorts results into the order of their calls.
fn in_order_of_calls(unit: &mut Unit<'_>) {
    let calls = &unit.first.tool_calls;
    let place = |message: &Message<'_>| calls.iter().position(|call| Some(call.tool_call_id) == message.tool_call_id);
    if !unit.results.is_sorted_by_key(place) {
        unit.results.sort_by_key(place);
    }
}

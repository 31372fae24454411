//! The composer: a pure function of system prompt, blocks, history, query and the turn's own steps, under a policy (CX-2).
//!
//! ```text
//!   system_prompt · blocks · checkpoint_messages · [turn] query · the turn's own steps        layered
//!   system_prompt · stable blocks · checkpoint_messages · [volatile blocks] query · own steps · [blocks of every step]     cache first
//! ```
//! Budget (CX-12): everything except the history must fit, otherwise nothing is composed. Of the history, the pinned units are shown, and the
//! newest of the others that fit, without a gap.

use std::{borrow::Cow, collections::HashSet};

use serde::Serialize;
use waybill_core::{
    card::{Card, Role},
    card_box::{Origin, Placed, Places},
    id::CardId,
    resource::Order,
    tokens::{self, Tokens},
};

use crate::{
    layer::{Block, BlockKey, Contexts, Layer, Text},
    policy::Policy,
    unit::{self, Message, Omitted, Reason, Source, Sources, Unit},
};

/// What can be shown: cards, which are shown as they are, and texts that were made for the call.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a, 't> {
    pub system_prompt: Option<&'t Text>,
    pub contexts: &'t Contexts,
    /// Checkpoint messages: the earlier messages that the turn may see, in order.
    pub history: &'a [Placed],
    /// How many cards at the beginning of the history are always shown.
    pub n_pinned: usize,
    /// The positions of the cards that the compression block replaces. They are not shown.
    pub covered: &'t Places,
    pub query: &'a [Card],
    /// The turn's own cards so far.
    pub steps: &'a [Placed],
    /// The tokens of what the model reads in addition: the tools.
    pub other_tokens: Tokens,
}

/// What the model sees, and what was left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Composed<'a> {
    pub messages: Vec<Message<'a>>,
    pub n_tokens: Tokens,
    pub omitted: Vec<Omitted>,
}

/// The layer and the cards of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shown<'a> {
    pub layer: &'a Layer,
    pub sources: &'a [Source],
    pub n_tokens: Tokens,
}

impl Composed<'_> {
    /// Returns a copy that does not borrow from the cards.
    pub fn into_owned(self) -> Composed<'static> {
        let Composed { messages, n_tokens, omitted } = self;
        Composed { messages: messages.into_iter().map(Message::into_owned).collect(), n_tokens, omitted }
    }

    /// Lists the layer and the cards of each message.
    pub fn manifest(&self) -> impl Iterator<Item = Shown<'_>> {
        self.messages.iter().map(|message| Shown {
            layer: &message.layer,
            sources: &message.sources,
            n_tokens: message.n_tokens,
        })
    }
}

/// Why nothing can be composed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the turn has no instruction: at least one card must say what to do")]
    NoQuery,
    #[error("card {0} is empty, but must contain the task for the agent")]
    EmptyQuery(CardId),
    #[error("card {0}, which says what to do, must have the role `user`")]
    NotTheUsers(CardId),
    #[error("the parts of the context that cannot be left out need {needed} tokens, but the budget is {budget}: use a larger budget, or turn on compaction", needed = .needed.get(), budget = .budget.get())]
    OverBudget { needed: Tokens, budget: Tokens },
    #[error("card {card_id}, which this turn wrote, cannot be shown to the model: {reason:?}")]
    BrokenStep { card_id: CardId, reason: Reason },
}

/// Composes what the model sees.
pub fn compose<'a>(input: &Input<'a, '_>, policy: &Policy) -> Result<Composed<'a>, Error> {
    let sorted = sort(input, policy)?;
    let fixed = sorted.fixed(policy);
    let Sections { front, history, query, steps, last, mut omitted, .. } = sorted;
    let over = |needed: Tokens| Error::OverBudget { needed, budget: policy.budget };
    if fixed > policy.budget {
        return Err(over(fixed));
    }
    let (history, n_tokens) = fit(history, policy, fixed, &mut omitted).map_err(over)?;
    let n_messages = |units: &[Unit<'_>]| units.iter().map(|unit| 1 + unit.results.len()).sum::<usize>();
    let mut messages = front;
    messages.reserve(n_messages(&history) + n_messages(&steps) + 1 + last.len());
    messages.extend(history.into_iter().flat_map(Unit::into_messages));
    messages.push(query);
    messages.extend(steps.into_iter().flat_map(Unit::into_messages));
    messages.extend(last);
    Ok(Composed { messages, n_tokens, omitted })
}

/// Everything that can be shown, in its order, before anything is left out to fit the budget.
pub(crate) struct Sections<'a> {
    pub(crate) front: Vec<Message<'a>>,
    pub(crate) history: Vec<Unit<'a>>,
    pub(crate) query: Message<'a>,
    pub(crate) steps: Vec<Unit<'a>>,
    /// Blocks of every step, if the order puts them last.
    pub(crate) last: Vec<Message<'a>>,
    pub(crate) omitted: Vec<Omitted>,
    other_tokens: Tokens,
}

impl Sections<'_> {
    /// Returns the tokens of everything except the history. It must fit, otherwise nothing is composed.
    pub(crate) fn fixed(&self, policy: &Policy) -> Tokens {
        let messages = self.front.iter().chain([&self.query]).chain(&self.last);
        let steps = self.steps.iter().map(|unit| unit.n_tokens(policy.per_message));
        self.other_tokens + messages.map(|message| message.n_tokens + policy.per_message).chain(steps).sum()
    }
}

pub(crate) fn sort<'a>(input: &Input<'a, '_>, policy: &Policy) -> Result<Sections<'a>, Error> {
    let mut shown: HashSet<CardId> = HashSet::with_capacity(input.history.len() + input.steps.len());
    let volatile = |(key, block): &(&BlockKey, &Block)| {
        **key == BlockKey::Turn || policy.order == Order::CacheFirst && (!key.is_stable() || block.every_step)
    };
    let blocks = || input.contexts.iter().filter(|(_, block)| !block.text.text.trim().is_empty());

    let prompt = input.system_prompt.filter(|prompt| !prompt.text.trim().is_empty());
    let mut front: Vec<Message<'a>> = prompt.map(|prompt| system(Layer::SystemPrompt, prompt)).into_iter().collect();
    let stable = blocks().filter(|block| !volatile(block));
    front.extend(stable.map(|(key, block)| system(Layer::Block(key.clone()), &block.text)));

    let query = query(input, blocks().filter(|block| volatile(block) && !block.1.every_step))?;
    shown.extend(query.sources.iter().map(|source| source.card_id));
    let last = blocks().filter(|block| volatile(block) && block.1.every_step).map(|(key, block)| {
        let (text, n_tokens) = tagged(key, &block.text);
        Message::text(Layer::Block(key.clone()), Role::User, text, block.text.sources.clone(), n_tokens)
    });
    let last = last.collect();

    let mut omitted = Vec::new();
    let covered = covered(input, &mut omitted);
    let steps = steps(input.steps, &covered, &mut shown, &mut omitted)?;
    // The query has a place of its own, even if the context box also holds it.
    let is_query = |card_id| input.query.iter().any(|card| card.card_id == card_id);
    let history = input.history.iter().filter(|placed| !is_query(placed.reading.card_id()));
    let grouped = unit::group(&Layer::CheckpointMessages, history, &covered, &mut shown);
    omitted.extend(grouped.omitted);
    let mut history: Vec<Unit<'a>> = Vec::with_capacity(grouped.units.len());
    for unit in grouped.units {
        if !unit.has_open_call() && !unit.lost_a_call {
            history.push(unit);
        } else if let Some((words, left)) = unit.words() {
            // An agent that is called in the middle of a step sees the text beside that call.
            history.push(words);
            omitted.extend(Some(left).filter(|left| !left.card_ids.is_empty()));
        } else {
            omitted.push(unit.omitted(if unit.lost_a_call { Reason::Gone } else { Reason::OpenCall }));
        }
    }
    let pinned: HashSet<CardId> =
        input.history.iter().take(input.n_pinned).map(|placed| placed.reading.card_id()).collect();
    for unit in &mut history {
        let is_pinned = !pinned.is_empty() && unit.card_ids().any(|card_id| pinned.contains(&card_id));
        unit.pinned = is_pinned;
    }
    Ok(Sections { front, history, query, steps, last, omitted, other_tokens: input.other_tokens })
}

/// Returns the cards that a summary replaces. A card at several places is covered at all of them.
fn covered(input: &Input<'_, '_>, omitted: &mut Vec<Omitted>) -> HashSet<CardId> {
    if input.covered.is_empty() {
        return HashSet::new();
    }
    let cards = input.history.iter().chain(input.steps);
    let is_covered = |origin: Origin| input.covered.contains(origin.box_id, origin.seq);
    let covered = cards.filter(|placed| placed.origins().any(is_covered));
    let mut card_ids: Vec<CardId> = covered.map(|placed| placed.reading.card_id()).collect();
    let mut seen = HashSet::with_capacity(card_ids.len());
    card_ids.retain(|card_id| seen.insert(*card_id));
    if !card_ids.is_empty() {
        omitted.push(Omitted { card_ids, reason: Reason::Covered });
    }
    seen
}

fn system(layer: Layer, text: &Text) -> Message<'static> {
    Message::text(layer, Role::System, text.text.clone(), text.sources.clone(), text.n_tokens)
}

/// Renders a block as text inside a message. Tags in its content are escaped, so that it cannot end the block or begin another.
fn tagged(key: &BlockKey, text: &Text) -> (String, Tokens) {
    let tags = tokens::count(&format!("<{key}>\n\n</{key}>\n\n"));
    (format!("<{key}>\n{}\n</{key}>", without_tags(&text.text)), text.n_tokens + tags)
}

/// Escapes tags such as `<todo__context>` and `</todo__context>` as `&lt;…`.
fn without_tags(text: &str) -> Cow<'_, str> {
    const SUFFIX: &str = "__context";
    if !text.contains(SUFFIX) {
        return Cow::Borrowed(text);
    }
    let is_tag = |after: &str| {
        let name = after.strip_prefix('/').unwrap_or(after).trim_start();
        name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().is_some_and(|name| name.ends_with(SUFFIX))
    };
    let mut parts = text.split('<');
    let mut safe = parts.next().unwrap_or_default().to_owned();
    for after in parts {
        safe.push_str(if is_tag(after) { "&lt;" } else { "<" });
        safe.push_str(after);
    }
    Cow::Owned(safe)
}

/// Returns the query without the blocks before it in its message: for programs that read a request and not its receipt.
pub fn without_blocks(mut text: &str) -> &str {
    while let Some((tag, rest)) = text.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        let end = format!("</{tag}>\n\n");
        match rest.find(&end).filter(|_| tag.ends_with("__context")) {
            Some(at) => text = &rest[at + end.len()..],
            None => break,
        }
    }
    text
}

/// Makes the one message of the query (CX-8): volatile blocks first, then the query itself.
fn query<'t>(
    input: &Input<'_, '_>,
    blocks: impl Iterator<Item = (&'t BlockKey, &'t Block)>,
) -> Result<Message<'static>, Error> {
    let (mut parts, mut sources, mut n_tokens) = (Vec::<Cow<'_, str>>::new(), Sources::new(), Tokens::ZERO);
    for (key, block) in blocks {
        let (text, cost) = tagged(key, &block.text);
        parts.push(Cow::Owned(text));
        sources.extend(block.text.sources.iter().copied());
        n_tokens = n_tokens + cost;
    }
    // `turn__context` already lists the fields that the result must have.
    let mut query = input.query.iter().filter(|card| !card.metadata.card_type.is_result_form()).peekable();
    if query.peek().is_none() {
        return Err(Error::NoQuery);
    }
    let mut asked = HashSet::new();
    for card in query.filter(|card| asked.insert(card.card_id)) {
        if card.metadata.role != Role::User {
            return Err(Error::NotTheUsers(card.card_id));
        }
        let text = unit::text_of(card);
        if text.trim().is_empty() {
            return Err(Error::EmptyQuery(card.card_id));
        }
        parts.push(text);
        sources.push(unit::source(card));
        n_tokens = n_tokens + card.n_tokens;
    }
    Ok(Message::text(Layer::Query, Role::User, parts.join("\n\n"), sources, n_tokens))
}

/// Groups the turn's own steps (CX-13). None may be missing: the model would have to continue from what it did not say.
fn steps<'a>(
    steps: &'a [Placed],
    covered: &HashSet<CardId>,
    shown: &mut HashSet<CardId>,
    omitted: &mut Vec<Omitted>,
) -> Result<Vec<Unit<'a>>, Error> {
    let grouped = unit::group(&Layer::Steps, steps, covered, shown);
    let serious = |omitted: &&Omitted| !matches!(omitted.reason, Reason::Repeated | Reason::NotForTheModel);
    if let Some(omitted) = grouped.omitted.iter().find(serious) {
        return Err(Error::BrokenStep { card_id: omitted.card_ids[0], reason: omitted.reason });
    }
    if let Some(open) = grouped.units.iter().find(|unit| unit.has_open_call()) {
        let card_id = open.first.sources[0].card_id;
        return Err(Error::BrokenStep { card_id, reason: Reason::OpenCall });
    }
    omitted.extend(grouped.omitted);
    Ok(grouped.units)
}

/// Selects from the history what is pinned, and the newest of the rest that fits, in whole units. Returns the total tokens; the error is what
/// the pinned units would need.
fn fit<'a>(
    history: Vec<Unit<'a>>,
    policy: &Policy,
    fixed: Tokens,
    omitted: &mut Vec<Omitted>,
) -> Result<(Vec<Unit<'a>>, Tokens), Tokens> {
    let cost = |unit: &Unit<'_>| unit.n_tokens(policy.per_message);
    let mut spent: Tokens = fixed + history.iter().filter(|unit| unit.pinned).map(cost).sum();
    if spent > policy.budget {
        return Err(spent);
    }
    // From the newest backwards, until one does not fit, so that the history has no gaps.
    let mut first = history.len();
    while first > 0 {
        let unit = &history[first - 1];
        if !unit.pinned {
            if spent + cost(unit) > policy.budget {
                break;
            }
            spent = spent + cost(unit);
        }
        first -= 1;
    }
    let mut kept: Vec<Unit<'a>> = Vec::with_capacity(history.len() - first);
    for (place, unit) in history.into_iter().enumerate() {
        if place < first && !unit.pinned {
            omitted.push(unit.omitted(Reason::Budget));
        } else {
            kept.push(unit);
        }
    }
    Ok((kept, spent))
}

#[cfg(test)]
mod tests;

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
    card::{Card, CardType, Role},
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
    pub besides: Tokens,
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
    #[error("the turn has no query: at least one card must say what to do")]
    NoQuery,
    #[error("card {0} of the query is empty")]
    EmptyQuery(CardId),
    #[error("card {0} of the query does not have the role `user`")]
    NotTheUsers(CardId),
    #[error("what must be shown needs {needed} tokens, and the budget is {budget}: compact, or use a larger budget", needed = .needed.get(), budget = .budget.get())]
    OverBudget { needed: Tokens, budget: Tokens },
    #[error("the turn's own card {card_id} cannot be shown: {reason:?}")]
    BrokenStep { card_id: CardId, reason: Reason },
}

/// Composes what the model sees.
pub fn compose<'a>(input: &Input<'a, '_>, policy: &Policy) -> Result<Composed<'a>, Error> {
    let sorted = sort(input, policy)?;
    let fixed = sorted.fixed(policy);
    let Sorted { front, history, query, steps, last, mut omitted, .. } = sorted;
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
pub(crate) struct Sorted<'a> {
    pub(crate) front: Vec<Message<'a>>,
    pub(crate) history: Vec<Unit<'a>>,
    pub(crate) query: Message<'a>,
    pub(crate) steps: Vec<Unit<'a>>,
    /// Blocks of every step, if the order puts them last.
    pub(crate) last: Vec<Message<'a>>,
    pub(crate) omitted: Vec<Omitted>,
    besides: Tokens,
}

impl Sorted<'_> {
    /// Returns the tokens of everything except the history. It must fit, otherwise nothing is composed.
    pub(crate) fn fixed(&self, policy: &Policy) -> Tokens {
        let messages = self.front.iter().chain([&self.query]).chain(&self.last);
        let steps = self.steps.iter().map(|unit| unit.n_tokens(policy.per_message));
        self.besides + messages.map(|message| message.n_tokens + policy.per_message).chain(steps).sum()
    }
}

pub(crate) fn sort<'a>(input: &Input<'a, '_>, policy: &Policy) -> Result<Sorted<'a>, Error> {
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
    Ok(Sorted { front, history, query, steps, last, omitted, besides: input.besides })
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
    // The framework's text lists the fields that the result must have.
    let mut query = input.query.iter().filter(|card| card.metadata.card_type != CardType::result_fields()).peekable();
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
mod tests {
    use proptest::prelude::*;
    use waybill_core::{card::Reading, card_box::Span};

    use super::*;
    use crate::kit::{Kit, any_line, any_steps, cases, tokens};

    struct Case {
        kit: Kit,
        policy: Policy,
        history: Vec<Placed>,
        n_pinned: usize,
        covered: Places,
        query: Vec<Card>,
        steps: Vec<Placed>,
        contexts: Contexts,
        prompt: Option<Text>,
        besides: Tokens,
    }

    fn case(history: &str, query: &str, steps: &str) -> Case {
        let mut kit = Kit::default();
        let history = kit.placed(history);
        let query = kit.cards(query);
        let steps = kit.placed(steps);
        let policy = Policy { order: Order::Layered, budget: tokens(1_000), per_message: Tokens::ZERO };
        Case {
            kit,
            policy,
            history,
            n_pinned: 0,
            covered: Places::default(),
            query,
            steps,
            contexts: Contexts::new(),
            prompt: None,
            besides: Tokens::ZERO,
        }
    }

    impl Case {
        fn compose(&self) -> Result<Composed<'_>, Error> {
            let input = Input {
                system_prompt: self.prompt.as_ref(),
                contexts: &self.contexts,
                history: &self.history,
                n_pinned: self.n_pinned,
                covered: &self.covered,
                query: &self.query,
                steps: &self.steps,
                besides: self.besides,
            };
            compose(&input, &self.policy)
        }

        /// Checks the messages, and what is left out with its reason.
        #[track_caller]
        fn gives(&self, messages: &str, omitted: &str) {
            let composed = self.compose().unwrap();
            let shown: Vec<String> = composed.messages.iter().map(|message| self.kit.name(message)).collect();
            assert_eq!(shown.join(" "), messages);
            let left: Vec<String> = composed
                .omitted
                .iter()
                .map(|omitted| {
                    let names: Vec<&str> = omitted.card_ids.iter().map(|id| self.kit.names[id].as_str()).collect();
                    let reason = serde_json::to_value(omitted.reason).unwrap();
                    format!("{}:{}", names.join("+"), reason.as_str().unwrap())
                })
                .collect();
            assert_eq!(left.join(" "), omitted);
            assert!(composed.n_tokens <= self.policy.budget);
        }
    }

    /// CX-1: the order of layers, and that an empty block is no message.
    #[test]
    fn layers_stand_in_their_order() {
        let mut case = case("u1 a1", "u2", "a3");
        case.contexts = case.kit.contexts("zoo compression todo knowledge experience framework apes");
        case.prompt = Some(case.kit.text("prompt", 1));
        let blank = case.contexts.get_mut(&BlockKey::Knowledge).unwrap();
        blank.text.text = "  ".into();
        case.gives("prompt framework experience todo compression apes zoo u1 a1 u2 a3", "");
        let layers: Vec<String> = case.compose().unwrap().manifest().map(|shown| shown.layer.to_string()).collect();
        assert_eq!(layers[..3], ["system_prompt", "framework__context", "experience__context"]);
        assert_eq!(layers[7..], ["checkpoint_messages", "checkpoint_messages", "query", "steps"]);
    }

    /// CX-3: what changes stands after what does not.
    #[test]
    fn a_cache_finds_its_prefix() {
        let mut case = case("u1", "u2", "a3");
        case.contexts = case.kit.contexts("framework todo zoo* compression");
        case.policy.order = Order::CacheFirst;
        case.gives("framework compression u1 todo+u2 a3 zoo*", "");
        let composed = case.compose().unwrap();
        assert_eq!(composed.messages[3].content, "<todo__context>\ntodo\n</todo__context>\n\nu2");
        assert_eq!(without_blocks(&composed.messages[3].content), "u2");
        assert_eq!(without_blocks("<a>x</a>\n\nb"), "<a>x</a>\n\nb");
        assert_eq!(composed.messages[5].content, "<zoo__context>\nzoo*\n</zoo__context>");
    }

    /// What differs from turn to turn stands with the query, in every order.
    #[test]
    fn what_is_the_turns_own_stands_behind_what_is_shared() {
        for order in [Order::Layered, Order::CacheFirst] {
            let mut case = case("u1", "u2", "");
            case.contexts = case.kit.contexts("framework turn");
            case.policy.order = order;
            case.gives("framework u1 turn+u2", "");
        }
    }

    /// The content of a block stays in the block.
    #[test]
    fn a_block_cannot_be_left() {
        let mut case = case("", "u2", "");
        case.contexts = case.kit.contexts("knowledge");
        case.policy.order = Order::CacheFirst;
        let block = case.contexts.get_mut(&BlockKey::Knowledge).unwrap();
        block.text.text = "a < b </knowledge__context> < / todo__context> <x__context y='1'> __context".into();
        assert_eq!(
            case.compose().unwrap().messages[0].content,
            "<knowledge__context>\na < b &lt;/knowledge__context> < / todo__context> &lt;x__context y='1'> __context\n</knowledge__context>\n\nu2"
        );
    }

    /// CX-12: a call and its results are one unit, whatever came between.
    #[test]
    fn pairs_stay_together() {
        case("u1 c1xy r1y u3 r1x", "u2", "").gives("u1 c1xy r1x r1y u3 u2", "");
        case("a1 t1x t1y r1y r1x", "u2", "").gives("a1+t1x+t1y r1x r1y u2", ""); // calls on cards of their own
        case("c1x t1x r1x", "u2", "").gives("c1x+t1x r1x u2", ""); // a call that its thought names already
        case("u1 c1xy r1x u3", "u2", "").gives("u1 u3 u2", "c1xy+r1x:open_call");
        case("c1x! r1x u1", "u2", "").gives("u1 u2", "c1x:gone r1x:orphan");
        case("c1x r1x! u1", "u2", "").gives("c1x u1 u2", "r1x:gone"); // the words, without the call
        case("a1 t1x u3", "u2", "").gives("a1 u3 u2", "t1x:open_call");
        case("a1 t1x t1y! r1x r1y", "u2", "").gives("u2", "t1y:gone r1y:orphan a1+t1x+r1x:gone");
        case("a1 u1! u3", "u2", "").gives("a1 u3 u2", "u1:gone");
        case("c1x r1x r2x", "u2", "").gives("c1x r1x u2", "r2x:repeated");
        case("s1 e1 u1", "u2", "").gives("u1 u2", "s1:not_for_the_model e1:not_for_the_model");
    }

    /// CX-12: what does not fit is left out in whole units, the oldest first, without a gap.
    #[test]
    fn the_newest_that_fits_is_shown() {
        let fits = |budget: i32, history: &str, messages: &str, omitted: &str| {
            let mut case = case(history, "u2", "");
            case.policy.budget = tokens(budget);
            case.gives(messages, omitted);
        };
        fits(9, "u3 a4", "u3 a4 u2", "");
        fits(8, "u3 a4", "a4 u2", "u3:budget");
        fits(8, "u1 a9 u3", "u3 u2", "u1:budget a9:budget"); // no gap: what is older than what does not fit goes too
        fits(4, "c1x r2x", "u2", "c1x+r2x:budget"); // half of it would fit
        fits(5, "c1x r2x", "c1x r2x u2", "");
        let mut pinned = case("u1 a9 u3", "u2", "");
        (pinned.policy.budget, pinned.n_pinned) = (tokens(8), 1);
        pinned.gives("u1 u3 u2", "a9:budget");
    }

    /// CX-12: what must be shown and does not fit is an error, not a cut.
    #[test]
    fn what_must_be_shown_is_never_cut() {
        let over = |history: &str, query: &str, steps: &str, n_pinned: usize, budget: i32, needed: i32| {
            let mut case = case(history, query, steps);
            (case.policy.budget, case.n_pinned) = (tokens(budget), n_pinned);
            let expected = Error::OverBudget { needed: tokens(needed), budget: tokens(budget) };
            assert_eq!(case.compose().unwrap_err(), expected);
        };
        over("", "u5", "", 0, 4, 5);
        over("", "u2", "a3", 0, 4, 5);
        over("u3", "u2", "", 1, 4, 5);
        for (per_message, besides) in [(3, 0), (0, 3)] {
            let mut counted = case("", "u2", "");
            (counted.policy.per_message, counted.besides) = (tokens(per_message), tokens(besides));
            counted.policy.budget = tokens(4);
            assert!(counted.compose().is_err());
        }
    }

    /// CX-8: the query is shown once, even if the context box or the output box also holds it.
    #[test]
    fn the_query_is_shown_once() {
        let mut case = case("u1", "u2", "a3");
        let reading = Reading::Live(Box::new(case.query[0].clone()));
        for list in [&mut case.history, &mut case.steps] {
            let origin = Origin { seq: 9, ..list[0].origin };
            list.push(Placed { place: 9, origin, also: Vec::new(), reading: reading.clone() });
        }
        case.query.push(case.query[0].clone());
        case.gives("u1 u2 a3", "u2:repeated");
    }

    #[test]
    fn a_turn_without_a_query_is_refused() {
        assert_eq!(case("u1", "", "").compose().unwrap_err(), Error::NoQuery);
        let assistant = case("", "a1", "");
        assert_eq!(assistant.compose().unwrap_err(), Error::NotTheUsers(assistant.query[0].card_id));
    }

    /// CX-13, CX-12: the turn's own steps come after the query, and nothing of them may be missing.
    #[test]
    fn own_steps_are_whole() {
        case("", "u1", "c1x r1x a2").gives("u1 c1x r1x a2", "");
        for (steps, reason) in [("c1x", Reason::OpenCall), ("r1x", Reason::Orphan), ("a1!", Reason::Gone)] {
            let case = case("", "u1", steps);
            let card_id = case.steps[0].reading.card_id();
            assert_eq!(case.compose().unwrap_err(), Error::BrokenStep { card_id, reason });
        }
    }

    /// Reasoning belongs to what the model said directly after it, in the same step, while the turn lasts. It never breaks a step.
    #[test]
    fn what_was_thought_is_part_of_what_was_said() {
        let left = |words: &str| {
            words.split_whitespace().map(|word| format!("{word}:not_for_the_model")).collect::<Vec<_>>().join(" ")
        };
        let did = |steps: &str, messages: &str, omitted: &str| case("", "u1", steps).gives(messages, &left(omitted));
        did("q2x a1 t1x t1y r1x r1y q3y c1z r1z", "u1 a1+q2x+t1x+t1y r1x r1y c1z+q3y r1z", "");
        did("a1 q2x t1x r1x", "u1 a1 t1x+q2x r1x", ""); // it thought again: another message
        did("q2x e1 t1x r1x", "u1 t1x+q2x r1x", "e1"); // it said nothing, and called
        did("q1x q2x a1", "u1 a1+q2x", "q1x");
        did("q2x", "u1", "q2x");
        did("q2x u3 a1", "u1 u3 a1", "q2x");
        did("c1x q2x r1x a1", "u1 c1x r1x a1", "q2x");
        did("c1x q2x t1x r1x", "u1 c1x+t1x r1x", "q2x"); // the record of a call begins nothing
        did("q2z a1", "u1 a1", "q2z"); // it cannot be read
        case("q2x a1 t1x r1x q3x", "u2", "").gives("a1+t1x r1x u2", "q2x:not_for_the_model q3x:not_for_the_model");

        let mut case = case("", "u1", "q2x c1x r1x");
        case.policy.budget = tokens(4);
        assert!(
            matches!(case.compose(), Err(Error::OverBudget { needed, .. }) if needed == tokens(5)),
            "it is counted"
        );
        case.policy.budget = tokens(5);
        case.gives("u1 c1x+q2x r1x", "");
        assert_eq!(case.compose().unwrap().messages[1].n_tokens, tokens(3));
        let result = case.steps.pop();
        let call = case.steps[1].reading.card_id();
        assert_eq!(case.compose().unwrap_err(), Error::BrokenStep { card_id: call, reason: Reason::OpenCall });
        case.steps.extend(result);
        let Reading::Live(thought) = &mut case.steps[0].reading else { unreachable!() };
        thought.metadata.step_id = Some(waybill_core::id::StepId::new());
        case.gives("u1 c1x r1x", "q2x:not_for_the_model"); // of a step that only thought
    }

    /// CX-10: what a summary replaces is not shown, and is listed as omitted.
    #[test]
    fn what_is_covered_is_skipped() {
        let mut case = case("u1 a1 u3 a4", "u2", "");
        case.covered.insert(Span::prefix(case.history[0].origin.box_id, 2));
        case.gives("u3 a4 u2", "u1+a1:covered");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(1_000)))]

        /// CX-2, CX-8, CX-12: for any history.
        #[test]
        fn whatever_comes_the_messages_are_valid(
            line in any_line(), did in any_steps(), n_pinned in 0..3usize, budget in 5..120i32, cache in any::<bool>(),
        ) {
            let mut case = case(&line, "u5", &did);
            case.n_pinned = n_pinned;
            case.contexts = case.kit.contexts("framework todo clock* zoo");
            case.prompt = Some(case.kit.text("prompt", 1));
            case.policy.budget = tokens(budget);
            case.policy.order = if cache { Order::CacheFirst } else { Order::Layered };
            let composed = match case.compose() {
                Ok(composed) => composed,
                Err(Error::OverBudget { needed, budget }) => {
                    prop_assert!(needed > budget);
                    return Ok(());
                }
                Err(other) => panic!("{other}"),
            };
            prop_assert_eq!(&composed, &case.compose().unwrap(), "equal input, equal messages");
            prop_assert!(composed.n_tokens <= case.policy.budget);
            let counted: Tokens = composed.manifest().map(|shown| shown.n_tokens).sum();
            prop_assert_eq!(counted, composed.n_tokens);
            let queries = composed.manifest().filter(|shown| *shown.layer == Layer::Query).count();
            prop_assert_eq!(queries, 1);
            let place = |shown: &Shown<'_>| match shown.layer {
                Layer::Block(BlockKey::Extra(name)) if cache && name.starts_with("clock") => 9, // of every step: last
                Layer::SystemPrompt => 0,
                Layer::Block(key) => 1 + usize::from(matches!(key, BlockKey::Extra(_))),
                Layer::CheckpointMessages => 3,
                Layer::Query => 4,
                Layer::Steps => 5,
            };
            let order: Vec<usize> = composed.manifest().map(|shown| place(&shown)).collect();
            prop_assert!(order.is_sorted(), "the order is the policy's: {:?}", order);
            valid(&composed.messages)?;

            // Every card of history and steps is either shown or listed as omitted.
            let shown: Vec<CardId> = composed.manifest().flat_map(|s| s.sources).map(|s| s.card_id).collect();
            let left: Vec<CardId> = composed.omitted.iter().flat_map(|omitted| omitted.card_ids.clone()).collect();
            for placed in case.history.iter().chain(&case.steps) {
                let id = placed.reading.card_id();
                prop_assert_eq!(shown.iter().chain(&left).filter(|other| **other == id).count(), 1, "{}", case.kit.names[&id]);
            }
        }
    }

    /// Checks what every provider requires of messages.
    fn valid(messages: &[Message<'_>]) -> Result<(), TestCaseError> {
        let mut open: Vec<waybill_core::id::ToolCallId> = Vec::new();
        let mut begun = false;
        for message in messages {
            prop_assert!(!message.is_empty());
            match message.role {
                Role::System => prop_assert!(!begun, "system text in the middle"),
                Role::Tool => {
                    prop_assert_eq!(open.first().copied(), message.tool_call_id, "a result follows its call, in order");
                    open.remove(0);
                }
                Role::User | Role::Assistant => {
                    prop_assert!(open.is_empty(), "a call without its result");
                    open = message.tool_calls.iter().map(|call| call.tool_call_id).collect();
                    begun = true;
                }
            }
        }
        prop_assert!(open.is_empty());
        Ok(())
    }
}

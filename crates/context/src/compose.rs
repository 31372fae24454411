//! The composer: a pure function of system prompt, blocks, history, query and the turn's own steps, under a policy (CX-2).
//!
//! ```text
//!   system_prompt · blocks · checkpoint_messages · query · the turn's own steps        layered
//!   system_prompt · stable blocks · checkpoint_messages · [volatile blocks] query · own steps · [blocks of every step]     cache first
//! ```
//! Budget (CX-12): everything but the history is shown, or nothing is composed. Of the history the pinned units are shown, and of the rest the newest
//! ones that fit, without a gap.

use std::collections::HashSet;

use serde::Serialize;
use waybill_core::{
    card::{Card, Role},
    card_box::Span,
    id::CardId,
    tokens::Tokens,
};

use crate::{
    layer::{Block, BlockKey, Contexts, Layer, Text},
    policy::{Family, Order, Policy},
    unit::{self, Message, Omitted, Placed, Reason, Source, Unit, Units},
};

/// What there is to show.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    pub system_prompt: Option<&'a Text>,
    pub contexts: &'a Contexts,
    /// Checkpoint messages: what the turn may see of before, in order.
    pub history: &'a [Placed],
    /// So many cards at the beginning of the history are always shown.
    pub n_pinned: usize,
    /// What the compression block stands for. Not shown.
    pub covered: &'a [Span],
    pub query: &'a [Card],
    /// `task.result_fields`: what the deliverable must have. Said with the query.
    pub contract: Option<&'a Card>,
    /// The turn's own cards so far.
    pub steps: &'a [Placed],
}

/// What the model sees, and what of it came from where.
#[derive(Clone, Debug, PartialEq)]
pub struct Composed {
    pub messages: Vec<Message>,
    /// One line per message.
    pub manifest: Vec<Shown>,
    pub n_tokens: Tokens,
    pub omitted: Vec<Omitted>,
}

/// Where a message came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    pub layer: Layer,
    pub sources: Vec<Source>,
    pub n_tokens: Tokens,
}

/// Why nothing can be shown.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the turn has no query: at least one card must say what is wanted")]
    NoQuery,
    #[error("card {0} of the query says nothing")]
    EmptyQuery(CardId),
    #[error("card {0} of the query is not the user's")]
    NotTheUsers(CardId),
    #[error("what must be shown needs {needed} tokens of {budget}: compact, or take a larger budget", needed = .needed.get(), budget = .budget.get())]
    OverBudget { needed: Tokens, budget: Tokens },
    #[error("the turn's own card {card_id} cannot be shown: {reason:?}")]
    BrokenStep { card_id: CardId, reason: Reason },
}

/// Puts together what the model sees.
pub fn compose(input: &Input<'_>, policy: &Policy) -> Result<Composed, Error> {
    let mut shown: HashSet<CardId> = HashSet::new();
    let volatile = |(key, block): &(&BlockKey, &Block)| {
        policy.order == Order::CacheFirst && (!key.is_stable() || block.every_step)
    };
    let blocks = || input.contexts.iter().filter(|(_, block)| !block.text.text.trim().is_empty());

    let mut front: Vec<(Layer, Message)> = Vec::new();
    if let Some(prompt) = input.system_prompt.filter(|prompt| !prompt.text.trim().is_empty()) {
        front.push((Layer::SystemPrompt, system(prompt)));
    }
    front.extend(
        blocks().filter(|block| !volatile(block)).map(|(key, block)| (Layer::Block(key.clone()), system(&block.text))),
    );

    let query = query(input, blocks().filter(|block| volatile(block) && !block.1.every_step))?;
    shown.extend(query.sources.iter().map(|source| source.card_id));
    let steps = steps(input.steps, &mut shown)?;
    let last = blocks().filter(|block| volatile(block) && block.1.every_step).map(|(key, block)| {
        let text = tagged(key, &block.text.text);
        (Layer::Block(key.clone()), Message::text(Role::User, text, vec![of(&block.text)], block.text.n_tokens))
    });
    let mut back: Vec<(Layer, Message)> = vec![(Layer::Query, query)];
    back.extend(steps.units.into_iter().flat_map(|unit| unit.messages).map(|message| (Layer::Steps, message)));
    back.extend(last);

    let cost = |messages: &[(Layer, Message)]| -> Tokens {
        messages.iter().map(|(_, message)| message.n_tokens + policy.per_message).sum()
    };
    let fixed = cost(&front) + cost(&back);
    let over = |needed: Tokens| Error::OverBudget { needed, budget: policy.budget };
    if fixed > policy.budget {
        return Err(over(fixed));
    }
    let (history, mut omitted, spent) = history(input, policy, &mut shown, fixed).map_err(over)?;

    omitted.extend(steps.omitted);
    let messages = front.into_iter().chain(history).chain(back);
    let mut composed = Composed { messages: Vec::new(), manifest: Vec::new(), n_tokens: fixed + spent, omitted };
    for (layer, message) in messages {
        composed.manifest.push(Shown { layer, sources: message.sources.clone(), n_tokens: message.n_tokens });
        composed.messages.push(message);
    }
    Ok(composed)
}

fn of(text: &Text) -> Source {
    Source { card_id: text.card_id, hash: text.hash }
}

fn system(text: &Text) -> Message {
    Message::text(Role::System, text.text.clone(), vec![of(text)], text.n_tokens)
}

/// A block as text inside a message.
fn tagged(key: &BlockKey, text: &str) -> String {
    format!("<{key}>\n{text}\n</{key}>")
}

/// The one message of the query (CX-8): volatile blocks first, then what is wanted, then what the answer must have.
fn query<'a>(input: &Input<'_>, blocks: impl Iterator<Item = (&'a BlockKey, &'a Block)>) -> Result<Message, Error> {
    let (mut parts, mut sources, mut n_tokens) = (Vec::new(), Vec::new(), Tokens::ZERO);
    for (key, block) in blocks {
        parts.push(tagged(key, &block.text.text));
        sources.push(of(&block.text));
        n_tokens = n_tokens + block.text.n_tokens;
    }
    if input.query.is_empty() {
        return Err(Error::NoQuery);
    }
    let mut asked = HashSet::new();
    for card in input.query.iter().filter(|card| asked.insert(card.card_id)) {
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
    if let Some(contract) = input.contract {
        parts.push(format!("<result_fields>\n{}\n</result_fields>", unit::text_of(contract)));
        sources.push(unit::source(contract));
        n_tokens = n_tokens + contract.n_tokens;
    }
    Ok(Message::text(Role::User, parts.join("\n\n"), sources, n_tokens))
}

/// The turn's own steps (CX-13). Nothing of them may be missing: the model would be asked to go on from what it did not say.
fn steps(steps: &[Placed], shown: &mut HashSet<CardId>) -> Result<Units, Error> {
    let grouped = unit::group(steps.iter().map(|placed| &placed.reading), shown);
    let serious = |omitted: &&Omitted| !matches!(omitted.reason, Reason::Repeated | Reason::NotForTheModel);
    if let Some(omitted) = grouped.omitted.iter().find(serious) {
        return Err(Error::BrokenStep { card_id: omitted.card_ids[0], reason: omitted.reason });
    }
    if let Some(open) = grouped.units.iter().find(|unit| unit.has_open_call()) {
        return Err(Error::BrokenStep { card_id: open.card_ids()[0], reason: Reason::OpenCall });
    }
    Ok(grouped)
}

type Chosen = (Vec<(Layer, Message)>, Vec<Omitted>, Tokens);

/// Of the history: what is pinned, and the newest of the rest that fits, in whole units. An error is what the pinned would need.
fn history(input: &Input<'_>, policy: &Policy, shown: &mut HashSet<CardId>, fixed: Tokens) -> Result<Chosen, Tokens> {
    let is_covered = |placed: &&Placed| {
        input.covered.iter().any(|span| span.box_id == placed.box_id && (span.from..=span.upto).contains(&placed.seq))
    };
    let (covered, open): (Vec<&Placed>, Vec<&Placed>) = input.history.iter().partition(is_covered);
    let pinned: HashSet<CardId> =
        input.history.iter().take(input.n_pinned).map(|placed| placed.reading.card_id()).collect();
    // The query stands at its own place, also where the context box holds it.
    let query: HashSet<CardId> = input.query.iter().map(|card| card.card_id).collect();
    let open = open.into_iter().map(|placed| &placed.reading).filter(|reading| !query.contains(&reading.card_id()));
    let grouped = unit::group(open, shown);
    let mut omitted = grouped.omitted;
    if !covered.is_empty() {
        let card_ids = covered.iter().map(|placed| placed.reading.card_id()).collect();
        omitted.push(Omitted { card_ids, reason: Reason::Covered });
    }
    let (whole, broken): (Vec<Unit>, Vec<Unit>) = grouped.units.into_iter().partition(|unit| !unit.has_open_call());
    omitted.extend(broken.iter().map(|unit| Omitted { card_ids: unit.card_ids(), reason: Reason::OpenCall }));

    let is_pinned = |unit: &Unit| unit.card_ids().iter().any(|card_id| pinned.contains(card_id));
    let cost = |unit: &Unit| unit.n_tokens(policy.per_message);
    let mut spent: Tokens = whole.iter().filter(|unit| is_pinned(unit)).map(cost).sum();
    if fixed + spent > policy.budget {
        return Err(fixed + spent);
    }
    // From the newest backwards, until one does not fit: the history has no gaps.
    let mut first = whole.len();
    while first > 0 {
        let unit = &whole[first - 1];
        if !is_pinned(unit) {
            if fixed + spent + cost(unit) > policy.budget {
                break;
            }
            spent = spent + cost(unit);
        }
        first -= 1;
    }
    let mut kept: Vec<Unit> = Vec::new();
    for (place, unit) in whole.into_iter().enumerate() {
        let begins = !kept.is_empty() || unit.begins_with_user() || policy.family == Family::Free;
        let reason = match () {
            () if place < first && !is_pinned(&unit) => Reason::Budget,
            () if !begins => Reason::NoBeginning,
            () => {
                kept.push(unit);
                continue;
            }
        };
        if reason == Reason::NoBeginning {
            spent = Tokens::new(spent.get() - cost(&unit).get()).unwrap_or(Tokens::ZERO);
        }
        omitted.push(Omitted { card_ids: unit.card_ids(), reason });
    }
    let messages = kept.into_iter().flat_map(|unit| unit.messages).map(|message| (Layer::CheckpointMessages, message));
    Ok((messages.collect(), omitted, spent))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kit::{Kit, tokens};

    struct Case {
        kit: Kit,
        policy: Policy,
        history: Vec<Placed>,
        n_pinned: usize,
        covered: Vec<Span>,
        query: Vec<Card>,
        steps: Vec<Placed>,
        contexts: Contexts,
        prompt: Option<Text>,
    }

    fn case(history: &str, query: &str, steps: &str) -> Case {
        let mut kit = Kit::default();
        let history = kit.placed(history);
        let query = kit.cards(query);
        let steps = kit.placed(steps);
        let policy =
            Policy { order: Order::Layered, family: Family::Free, budget: tokens(1_000), per_message: Tokens::ZERO };
        Case {
            kit,
            policy,
            history,
            n_pinned: 0,
            covered: Vec::new(),
            query,
            steps,
            contexts: Contexts::new(),
            prompt: None,
        }
    }

    impl Case {
        fn compose(&self) -> Result<Composed, Error> {
            let input = Input {
                system_prompt: self.prompt.as_ref(),
                contexts: &self.contexts,
                history: &self.history,
                n_pinned: self.n_pinned,
                covered: &self.covered,
                query: &self.query,
                contract: None,
                steps: &self.steps,
            };
            compose(&input, &self.policy)
        }

        /// The messages, and what is left out with its reason.
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
            assert_eq!(composed.manifest.len(), composed.messages.len());
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
        let layers: Vec<String> =
            case.compose().unwrap().manifest.iter().map(|shown| shown.layer.to_string()).collect();
        assert_eq!(layers[..3], ["system_prompt", "framework__context", "experience__context"]);
        assert_eq!(layers[7..], ["checkpoint_messages", "checkpoint_messages", "query", "steps"]);
    }

    /// CX-3: what changes stands behind what does not.
    #[test]
    fn a_cache_finds_its_prefix() {
        let mut case = case("u1", "u2", "a3");
        case.contexts = case.kit.contexts("framework todo zoo* compression");
        case.policy.order = Order::CacheFirst;
        case.gives("framework compression u1 todo+u2 a3 zoo*", "");
        let composed = case.compose().unwrap();
        assert_eq!(composed.messages[3].content, "<todo__context>\ntodo\n</todo__context>\n\nu2");
        assert_eq!(composed.messages[5].content, "<zoo__context>\nzoo*\n</zoo__context>");
    }

    /// CX-12: a call and its results are one unit, whatever came between.
    #[test]
    fn pairs_stay_together() {
        case("u1 c1xy r1y u3 r1x", "u2", "").gives("u1 c1xy r1x r1y u3 u2", "");
        case("a1 t1x t1y r1y r1x", "u2", "").gives("a1+t1x+t1y r1x r1y u2", ""); // calls on cards of their own
        case("c1x t1x r1x", "u2", "").gives("c1x+t1x r1x u2", ""); // a call that its thought names already
        case("u1 c1xy r1x u3", "u2", "").gives("u1 u3 u2", "c1xy+r1x:open_call");
        case("c1x! r1x u1", "u2", "").gives("u1 u2", "c1x:gone r1x:orphan");
        case("c1x r1x! u1", "u2", "").gives("u1 u2", "r1x:gone c1x:open_call");
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
        let mut counted = case("", "u2", "");
        (counted.policy.per_message, counted.policy.budget) = (tokens(3), tokens(4));
        assert!(counted.compose().is_err());
    }

    /// CX-8: the query is shown once, also where the context box or the output box holds it.
    #[test]
    fn the_query_is_shown_once() {
        let mut case = case("u1", "u2", "a3");
        let reading = waybill_core::card::Reading::Live(Box::new(case.query[0].clone()));
        for list in [&mut case.history, &mut case.steps] {
            let box_id = list[0].box_id;
            list.push(Placed { box_id, seq: 9, reading: reading.clone() });
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

    /// CX-10: what a summary stands for is not shown, and is said not to be.
    #[test]
    fn what_is_covered_is_skipped() {
        let mut case = case("u1 a1 u3 a4", "u2", "");
        case.covered = vec![Span { box_id: case.history[0].box_id, from: 1, upto: 2 }];
        case.gives("u3 a4 u2", "u1+a1:covered");
    }

    #[test]
    fn where_the_user_must_begin_the_history_begins_with_the_user() {
        let mut case = case("a1 c1x r1x u3 a4", "u2", "");
        case.gives("a1 c1x r1x u3 a4 u2", "");
        case.policy.family = Family::UserFirst;
        case.gives("u3 a4 u2", "a1:no_beginning c1x+r1x:no_beginning");
    }

    /// Any history: says, calls, results that are missing, doubled, orphaned, out of order or gone.
    fn any_line() -> impl Strategy<Value = String> {
        let word = (prop::sample::select(vec!["u", "a", "c", "r", "t", "s", "e"]), 1..9u8, "[w-z]{1,2}", 0..8u8)
            .prop_map(|(kind, n, names, gone)| {
                let names = match kind {
                    "c" if names.len() == 2 && names[..1] == names[1..] => &names[..1],
                    "c" => &names,
                    "r" | "t" => &names[..1],
                    _ => "",
                };
                format!("{kind}{n}{names}{}", if gone == 0 { "!" } else { "" })
            });
        prop::collection::vec(word, 0..14).prop_map(|words| words.join(" "))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(1_000)))]

        /// CX-2, CX-8, CX-12: whatever the history is.
        #[test]
        fn whatever_comes_the_messages_are_valid(
            line in any_line(), n_pinned in 0..3usize, budget in 5..60i32, first in any::<bool>(), cache in any::<bool>(),
        ) {
            let mut case = case(&line, "u5", "");
            case.n_pinned = n_pinned;
            case.contexts = case.kit.contexts("framework todo");
            case.policy.budget = tokens(budget);
            case.policy.family = if first { Family::UserFirst } else { Family::Free };
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
            let counted: Tokens = composed.manifest.iter().map(|shown| shown.n_tokens).sum();
            prop_assert_eq!(counted, composed.n_tokens);
            let queries = composed.manifest.iter().filter(|shown| shown.layer == Layer::Query).count();
            prop_assert_eq!(queries, 1);
            valid(&composed.messages, first)?;

            // Every card of the history is shown, or said not to be, and not both.
            let shown: Vec<CardId> = composed.manifest.iter().flat_map(|s| &s.sources).map(|s| s.card_id).collect();
            let left: Vec<CardId> = composed.omitted.iter().flat_map(|omitted| omitted.card_ids.clone()).collect();
            for placed in &case.history {
                let id = placed.reading.card_id();
                prop_assert_eq!(shown.iter().chain(&left).filter(|other| **other == id).count(), 1, "{}", case.kit.names[&id]);
            }
        }
    }

    /// What every provider asks of messages.
    fn valid(messages: &[Message], user_first: bool) -> Result<(), TestCaseError> {
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
                role => {
                    prop_assert!(open.is_empty(), "a call without its result");
                    prop_assert!(begun || !user_first || role == Role::User, "the user begins");
                    open = message.tool_calls.iter().map(|call| call.tool_call_id).collect();
                    begun = true;
                }
            }
        }
        prop_assert!(open.is_empty());
        Ok(())
    }

    fn cases(short: u32) -> u32 {
        std::env::var("WAYBILL_CASES").map_or(short, |count| count.parse().expect("WAYBILL_CASES is a number"))
    }
}

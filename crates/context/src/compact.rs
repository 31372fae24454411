//! Compaction (CX-10): a summary replaces exactly named places. No box is rewritten: the composer skips what is covered.
//!
//! ```text
//!   pinned head │ what the last summary stands for │ what the next one will │ recent tail │ query │ own steps … recent tail
//! ```
//! * Of a session: a card that its blackboard points to. It covers only places of the session's messages, because all agents of the session
//!   are shown it.
//! * Of a turn: a card in the turn's own output box; the newest one counts. It may cover anything that the turn sees.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use waybill_core::{
    card::{Card, CardType, Content, Draft, Role},
    card_box::{Origin, Placed, Places, Span},
    id::{BoxId, CardId},
    resource::Compaction,
    tokens::{self, Tokens},
};

use crate::{
    compose::{self, Input},
    layer::{Block, Text},
    policy::Policy,
    unit::{self, Message, Source, Unit},
};

/// The content of a `context.compression` card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    pub text: String,
    /// The tokens of the text. The card's own count includes the covered places, which no model reads.
    pub n_tokens: Tokens,
    /// What it covers, including everything that the one before it covered.
    pub covers: Places,
    /// The summary that it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_card_id: Option<CardId>,
}

impl Summary {
    pub fn draft(&self) -> Draft {
        let content = serde_json::to_value(self).expect("a summary has string keys only");
        Draft::new(CardType::compression(), Role::System, Content::Json(content))
    }

    pub fn read(card: &Card) -> Result<Summary, Unreadable> {
        card.read_as().map_err(|source| Unreadable { card_id: card.card_id, source })
    }
}

/// A card that should be a summary cannot be read as one. Nothing is composed: what it covers would be shown again.
#[derive(Debug, thiserror::Error)]
#[error("the content of card {card_id} is not a summary")]
pub struct Unreadable {
    pub card_id: CardId,
    source: serde_json::Error,
}

/// A summary, and its card.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    pub source: Source,
    pub summary: Summary,
}

/// The summaries that apply to a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InForce {
    pub session: Option<Standing>,
    pub turn: Option<Standing>,
}

impl InForce {
    /// Finds the session's summary, and the newest of the turn's own.
    pub fn of(session: Option<&Card>, steps: &[Placed]) -> Result<InForce, Unreadable> {
        let mut own = steps.iter().rev().filter_map(|placed| placed.reading.live());
        let own = own.find(|card| card.metadata.card_type == CardType::compression());
        let standing = |card: &Card| Ok(Standing { source: unit::source(card), summary: Summary::read(card)? });
        Ok(InForce { session: session.map(standing).transpose()?, turn: own.map(standing).transpose()? })
    }

    fn standing(&self) -> impl Iterator<Item = &Standing> {
        self.session.iter().chain(&self.turn)
    }

    pub fn covered(&self) -> Places {
        self.standing().flat_map(|standing| standing.summary.covers.spans()).collect()
    }

    /// Returns the block `compression__context`.
    pub fn block(&self) -> Option<Block> {
        let texts: Vec<&str> = self.standing().map(|standing| standing.summary.text.as_str()).collect();
        if texts.is_empty() {
            return None;
        }
        let text = Text {
            text: texts.join("\n\n"),
            n_tokens: self.standing().map(|standing| standing.summary.n_tokens).sum(),
            sources: self.standing().map(|standing| standing.source).collect(),
        };
        Some(Block { text, every_step: false })
    }

    pub fn previous(&self, scope: Scope) -> Option<&Standing> {
        match scope {
            Scope::Session => self.session.as_ref(),
            Scope::Turn => self.turn.as_ref(),
        }
    }
}

/// Where a summary applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Session,
    Turn,
}

/// What to summarise.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<'a> {
    pub scope: Scope,
    /// In order, in whole units.
    pub messages: Vec<Message<'a>>,
    pub covers: Places,
    pub n_tokens: Tokens,
}

impl Plan<'_> {
    /// Returns a copy that does not borrow from the cards.
    pub fn into_owned(self) -> Plan<'static> {
        let Plan { scope, messages, covers, n_tokens } = self;
        Plan { scope, messages: messages.into_iter().map(Message::into_owned).collect(), covers, n_tokens }
    }

    /// Makes the content of the card. It continues the summary that is in force, and covers everything that one covered.
    pub fn summary(&self, text: String, in_force: &InForce) -> Summary {
        let previous = in_force.previous(self.scope);
        let mut covers = self.covers.clone();
        covers.extend(previous.into_iter().flat_map(|previous| previous.summary.covers.spans()));
        let previous_card_id = previous.map(|previous| previous.source.card_id);
        Summary { n_tokens: tokens::count(&text), text, covers, previous_card_id }
    }

    /// Returns the tokens that are shown of it now, including the summary that it continues.
    pub fn shown_tokens(&self, in_force: &InForce) -> Tokens {
        self.n_tokens + in_force.previous(self.scope).map_or(Tokens::ZERO, |previous| previous.summary.n_tokens)
    }
}

/// Plans what to compact, if it is time: everything between the pinned head and the recent tail, in whole units. `messages_box_id` is the
/// session's.
pub fn plan<'a>(
    input: &Input<'a, '_>,
    policy: &Policy,
    compaction: Compaction,
    messages_box_id: Option<BoxId>,
) -> Result<Option<Plan<'a>>, compose::Error> {
    let sorted = compose::sort(input, policy)?;
    let cost = |unit: &Unit<'_>| unit.n_tokens(policy.per_message);
    let needed = sorted.fixed(policy) + sorted.history.iter().map(cost).sum();
    if i64::from(needed.get()) * 100 <= i64::from(policy.budget.get()) * i64::from(compaction.at_percent) {
        return Ok(None);
    }
    let history = sorted.history.iter().filter(|unit| !unit.pinned && !unit.is_partial);
    let mut units: Vec<&Unit<'a>> = history.chain(&sorted.steps).collect();
    let mut kept = Tokens::ZERO;
    // The last step of the turn stays, however large: the model continues from there.
    let mut is_last_step = !sorted.steps.is_empty();
    while let Some(unit) = units.last() {
        kept = kept + cost(unit);
        if kept > compaction.keep && !is_last_step {
            break;
        }
        is_last_step = false;
        units.pop();
    }

    let mut origins: HashMap<CardId, Vec<Origin>> = HashMap::new();
    for placed in input.history.iter().chain(input.steps) {
        origins.entry(placed.reading.card_id()).or_default().extend(placed.origins());
    }
    let in_session = |origin: &&Origin| messages_box_id == Some(origin.box_id);
    let of_session = |unit: &&Unit<'a>| unit.card_ids().all(|card_id| origins[&card_id].iter().any(|o| in_session(&o)));
    let (session, turn): (Vec<&Unit<'a>>, Vec<&Unit<'a>>) = units.into_iter().partition(of_session);
    let sum = |units: &[&Unit<'a>]| -> Tokens { units.iter().map(|unit| cost(unit)).sum() };
    let (scope, units) = if sum(&session) >= sum(&turn) { (Scope::Session, session) } else { (Scope::Turn, turn) };
    if units.is_empty() || sum(&units) < compaction.least {
        return Ok(None);
    }
    let places = units.iter().flat_map(|unit| unit.card_ids()).flat_map(|card_id| &origins[&card_id]);
    let covers = places.filter(|origin| scope == Scope::Turn || in_session(origin));
    Ok(Some(Plan {
        scope,
        n_tokens: sum(&units),
        covers: covers.map(|origin| Span { box_id: origin.box_id, from: origin.seq, upto: origin.seq }).collect(),
        messages: units.into_iter().flat_map(Unit::messages).cloned().collect(),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use waybill_core::{card::Reading, card_box::without_repeats, resource::Order};

    use super::*;
    use crate::{
        kit::{self, Kit, any_line, cases, tokens},
        layer::{BlockKey, Contexts, Layer},
    };

    const COMPACTION: Compaction = Compaction { at_percent: 50, keep: Tokens::ZERO, least: Tokens::ZERO };

    fn policy(budget: i32) -> Policy {
        Policy { order: Order::Layered, budget: tokens(budget), per_message: Tokens::ZERO }
    }

    /// A session, a turn in it, and its summary.
    struct Case {
        kit: Kit,
        history: Vec<Placed>,
        query: Vec<Card>,
        steps: Vec<Placed>,
        session: Option<Card>,
        n_pinned: usize,
    }

    fn case(history: &str, steps: &str) -> Case {
        let mut kit = Kit::default();
        let (history, query, steps) = (kit.placed(history), kit.cards("u1"), kit.placed(steps));
        Case { kit, history, query, steps, session: None, n_pinned: 0 }
    }

    impl Case {
        fn in_force(&self) -> InForce {
            InForce::of(self.session.as_ref(), &self.steps).unwrap()
        }

        fn with_input<'a, T>(&'a self, f: impl FnOnce(&Input<'a, '_>) -> T) -> T {
            let in_force = self.in_force();
            let contexts: Contexts = in_force.block().map(|block| (BlockKey::Compression, block)).into_iter().collect();
            f(&Input {
                system_prompt: None,
                contexts: &contexts,
                history: &self.history,
                n_pinned: self.n_pinned,
                covered: &in_force.covered(),
                query: &self.query,
                steps: &self.steps,
                other_tokens: Tokens::ZERO,
            })
        }

        fn plan(&self, budget: i32, keep: i32, in_session: bool) -> Option<Plan<'static>> {
            let compaction = Compaction { keep: tokens(keep), ..COMPACTION };
            let messages_box_id = self.history.first().map(|placed| placed.origin.box_id).filter(|_| in_session);
            let plan = self.with_input(|input| plan(input, &policy(budget), compaction, messages_box_id)).unwrap();
            plan.map(Plan::into_owned)
        }

        fn names(&self, messages: &[Message<'_>]) -> String {
            messages.iter().map(|message| self.kit.name(message)).collect::<Vec<_>>().join(" ")
        }

        /// Writes the summary to where it belongs.
        fn apply(&mut self, plan: &Plan<'_>, text: &str) {
            let summary = plan.summary(text.into(), &self.in_force());
            let card = kit::stored(summary.draft());
            self.kit.names.insert(card.card_id, text.into());
            match plan.scope {
                Scope::Session => self.session = Some(card),
                Scope::Turn => {
                    let (box_id, seq) = match self.steps.last() {
                        Some(last) => (last.origin.box_id, last.origin.seq + 1),
                        None => (BoxId::new(), 1),
                    };
                    let reading = Reading::Live(Box::new(card));
                    self.steps.push(Placed { place: seq, origin: Origin { box_id, seq }, also: Vec::new(), reading });
                }
            }
        }

        /// Returns the history and the steps that are shown, with a large budget.
        fn shown(&self) -> String {
            let composed = self.with_input(|input| compose::compose(input, &policy(1_000_000))).unwrap();
            self.names(&composed.messages)
        }
    }

    #[test]
    fn what_lies_between_head_and_tail_is_compacted_in_whole_units() {
        let plans = |budget: i32, keep: i32, n_pinned: usize, messages: Option<&str>| {
            let mut case = case("u1 c1x r3x u2 a2", "");
            case.n_pinned = n_pinned;
            let plan = case.plan(budget, keep, true);
            assert_eq!(plan.map(|plan| case.names(&plan.messages)).as_deref(), messages);
        };
        plans(20, 4, 0, None); // half of it is used: not yet
        plans(19, 4, 0, Some("u1 c1x r3x"));
        plans(19, 4, 1, Some("c1x r3x"));
        plans(19, 2, 1, Some("c1x r3x u2"));
        plans(19, 6, 0, Some("u1 c1x r3x")); // the call does not fit into the tail with half of its unit
        plans(19, 8, 0, Some("u1"));
        plans(19, 9, 0, None);
    }

    /// The session's messages are summarised for the session, the rest for the turn alone.
    #[test]
    fn a_summary_goes_to_those_who_see_what_it_covers() {
        let mut case = case("u3 a3", "c1x r3x a5 a2");
        let plan = case.plan(20, 7, true).unwrap();
        assert_eq!((plan.scope, case.names(&plan.messages).as_str()), (Scope::Session, "u3 a3"));
        case.apply(&plan, "s1");
        assert_eq!(case.shown(), "s1 u1 c1x r3x a5 a2");
        let plan = case.plan(20, 2, true).unwrap();
        assert_eq!((plan.scope, case.names(&plan.messages).as_str()), (Scope::Turn, "c1x r3x a5"));
        case.apply(&plan, "t1");
        assert_eq!(case.shown(), "s1+t1 u1 a2");
        assert_eq!(case.in_force().block().unwrap().text.text, "s1\n\nt1");
        // For a turn outside of the session, the same history is its own.
        let other = self::case("u3 a3", "");
        assert_eq!(other.plan(10, 0, false).unwrap().scope, Scope::Turn);
    }

    /// Reasoning belongs to what was said, and counts with it.
    #[test]
    fn a_summary_stands_for_what_was_thought_too() {
        let mut case = case("", "q2x c1x r3x q1y a1 q9x a2");
        let plan = case.plan(10, 0, false).unwrap();
        assert_eq!((case.names(&plan.messages).as_str(), plan.n_tokens), ("c1x+q2x r3x a1+q1y", tokens(8)));
        assert_eq!(plan.covers.spans().map(|span| (span.from, span.upto)).collect::<Vec<_>>(), [(1, 5)]);
        case.apply(&plan, "t1");
        assert_eq!(case.shown(), "t1 u1 a2+q9x");
        // If only one of the two is covered, the other is not shown with a message to which it does not belong.
        let half = case.steps[5].origin;
        let half = Span { box_id: half.box_id, from: half.seq, upto: half.seq };
        case.apply(&Plan { covers: [half].into_iter().collect(), ..plan }, "t2");
        assert_eq!(case.shown(), "t2 u1 a2");
    }

    /// The last step of the turn is never summarised, however large.
    #[test]
    fn the_last_step_stays() {
        assert_eq!(case("", "a9").plan(10, 0, false), None);
        let case = case("", "a1 c1x r9x");
        assert_eq!(case.names(&case.plan(10, 0, false).unwrap().messages), "a1");
    }

    /// CX-10: the previous summary is an input of the next one, which covers everything that it covered.
    #[test]
    fn a_summary_goes_on_from_the_one_before() {
        let mut case = case("u3 a3 u4 a4 u5 a5", "");
        case.apply(&case.plan(10, 18, true).unwrap(), "s1");
        let first = case.in_force().session.unwrap();
        assert_eq!(case.shown(), "s1 u4 a4 u5 a5 u1");
        case.apply(&case.plan(10, 10, true).unwrap(), "s2");
        let second = case.in_force().session.unwrap();
        assert_eq!(case.shown(), "s2 u5 a5 u1");
        assert_eq!(second.summary.previous_card_id, Some(first.source.card_id));
        assert_eq!(second.summary.covers.spans().map(|span| (span.from, span.upto)).collect::<Vec<_>>(), [(1, 4)]);
    }

    /// A card is read at its first place, which knows the others; a summary may cover any of them.
    #[test]
    fn a_card_at_two_places_is_covered_at_both() {
        let mut case = case("u3 a3 u4", "");
        let session = case.history[0].origin;
        let elsewhere = Origin { box_id: BoxId::new(), seq: 1 };
        let again = Placed { origin: elsewhere, ..case.history[0].clone() };
        case.history.insert(0, again);
        case.history = without_repeats(case.history);
        assert_eq!((case.history[0].origin, &case.history[0].also[..]), (elsewhere, &[session][..]));
        case.history.swap(0, 1); // for the test's own idea of what the session's box is
        let plan = case.plan(10, 4, true).unwrap();
        let spans: Vec<Span> = plan.covers.spans().collect();
        assert_eq!(spans, [Span::prefix(session.box_id, 2)], "of the session, and of no other box");
        case.apply(&plan, "s1");
        assert_eq!(case.shown(), "s1 u4 u1");
    }

    /// A summary does not change which cards belong together.
    #[test]
    fn what_comes_after_a_summary_does_not_join_what_it_covers() {
        let grow = |before: &str, after: &str, shown: &str| {
            let mut case = case(before, "");
            case.apply(&case.plan(1, 0, true).unwrap(), "s1");
            let box_id = case.history[0].origin.box_id;
            for word in after.split_whitespace() {
                let seq = i64::try_from(case.history.len()).unwrap() + 1;
                let placed = case.kit.placed(word).remove(0);
                case.history.push(Placed { place: seq, origin: Origin { box_id, seq }, ..placed });
            }
            assert_eq!(case.shown(), shown);
        };
        grow("a1", "t1x r1x", "s1 t1x r1x u1"); // a call right behind a thought that is covered
        grow("c1x r1x", "r2x u3", "s1 u3 u1"); // a second result of a call that is covered
        grow("u1 a2", "u3", "s1 u3 u1");
    }

    #[test]
    fn what_is_too_little_is_not_worth_a_summary() {
        let case = case("u3 a3", "");
        let plan = |least: i32| {
            let compaction = Compaction { least: tokens(least), ..COMPACTION };
            case.with_input(|input| plan(input, &policy(10), compaction, None)).unwrap().is_some()
        };
        assert!(plan(6) && !plan(7));
    }

    #[test]
    fn a_card_that_is_no_summary_stops_everything() {
        let card = Kit::default().card("u1");
        assert!(InForce::of(Some(&card), &[]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(1_000)))]

        /// CX-10: compacted again and again while it grows, nothing is shown twice, and nothing is lost that no summary covers.
        #[test]
        fn compaction_neither_doubles_nor_loses(
            lines in prop::collection::vec(any_line(), 1..4), keep in 0..12i32, n_pinned in 0..3usize, in_session in any::<bool>(),
        ) {
            let mut case = case("", "");
            case.n_pinned = n_pinned;
            let box_id = BoxId::new();
            let mut stood_for: Vec<String> = Vec::new();
            let names = |case: &Case| -> Vec<String> {
                let composed = case.with_input(|input| compose::compose(input, &policy(1_000_000))).unwrap();
                let history = composed.messages.iter().filter(|message| message.layer == Layer::CheckpointMessages);
                history.flat_map(|message| &message.sources).map(|source| source.card_id.to_string()).collect()
            };
            for (n, line) in lines.iter().enumerate() {
                for word in line.split_whitespace() {
                    let seq = i64::try_from(case.history.len()).unwrap() + 1;
                    let placed = case.kit.placed(word).remove(0);
                    case.history.push(Placed { place: seq, origin: Origin { box_id, seq }, ..placed });
                }
                let before = names(&case);
                let Some(plan) = case.plan(4, keep, in_session) else { continue };
                let planned: Vec<String> =
                    plan.messages.iter().flat_map(|m| &m.sources).map(|source| source.card_id.to_string()).collect();
                case.apply(&plan, &format!("s{n}"));
                let after = names(&case);
                // Exactly what was planned is gone; the rest is unchanged.
                let rest: Vec<&String> = before.iter().filter(|name| !planned.contains(name)).collect();
                prop_assert_eq!(rest, after.iter().collect::<Vec<_>>());
                prop_assert!(planned.iter().all(|name| !stood_for.contains(name)), "summarised twice");
                stood_for.extend(planned);
                prop_assert!(after.iter().all(|name| !stood_for.contains(name)), "shown, and stood for");
            }
            // What would be shown without any summary is shown, or covered, or repeats what was said before.
            let mut after = names(&case);
            let composed = case.with_input(|input| compose::compose(input, &policy(1_000_000))).unwrap();
            let repeated = composed.omitted.iter().filter(|omitted| omitted.reason == unit::Reason::Repeated);
            after.extend(repeated.flat_map(|omitted| &omitted.card_ids).map(CardId::to_string));
            case.session = None;
            case.steps.clear();
            let lost: Vec<String> =
                names(&case).into_iter().filter(|name| !after.contains(name) && !stood_for.contains(name)).collect();
            prop_assert!(lost.is_empty(), "{:?}", lost);
        }
    }
}

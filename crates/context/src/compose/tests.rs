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
    other_tokens: Tokens,
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
        other_tokens: Tokens::ZERO,
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
            other_tokens: self.other_tokens,
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
    for (per_message, other_tokens) in [(3, 0), (0, 3)] {
        let mut counted = case("", "u2", "");
        (counted.policy.per_message, counted.other_tokens) = (tokens(per_message), tokens(other_tokens));
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
    assert!(matches!(case.compose(), Err(Error::OverBudget { needed, .. }) if needed == tokens(5)), "it is counted");
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

//! Compares two calls (NX-2): by set, by order, by tokens, and by where the prompt cache stops matching.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use waybill_core::{id::CardId, tokens::Tokens};

use crate::{call::Call, compose::Composed, layer::Layer, unit::Message};

/// A card of one of the two calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Line {
    pub layer: Layer,
    pub card_id: CardId,
}

/// The first message that differs: from here on the prompt cache misses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Break {
    /// The number of the message, from 1; 0 means the tools, which come before all messages.
    pub message: usize,
    /// The layer of that message in the left call, and in the right one.
    pub left: Option<Layer>,
    pub right: Option<Layer>,
    /// The cards that caused it: those of this message that the other call does not have at this place.
    pub card_ids: Vec<CardId>,
}

/// Tokens of both calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Sides {
    pub left: Tokens,
    pub right: Tokens,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Both calls have it, and it says the same.
    Same,
    /// Both calls have it, and it says something else.
    Changed,
    OnlyLeft,
    OnlyRight,
    /// Both calls have it, but at another place among the others.
    Moved,
}

/// One message of the two calls. A system prompt, a block and the query are the same message if their layer is; others if their card is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Op {
    pub op: Fate,
    /// The number of the message in the left call, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<usize>,
    /// The number of the message in the right call, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub right: Option<usize>,
    /// The tokens of the message: in the right call, if that has it.
    pub tokens: Tokens,
}

/// How the right call differs from the left one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Diff {
    /// Cards that only the left call has.
    pub only_left: Vec<Line>,
    /// Cards that only the right call has.
    pub only_right: Vec<Line>,
    /// In both, but not in the same order: the fewest that would have to move.
    pub moved: Vec<CardId>,
    pub left_tokens: Tokens,
    pub right_tokens: Tokens,
    /// Tokens of each layer, where they differ.
    pub layers: BTreeMap<String, Sides>,
    /// The messages of both calls, in the order of the right one. What only the left one has stands where it was.
    pub ops: Vec<Op>,
    /// How many messages and tokens at the beginning are the same.
    pub same_messages: usize,
    pub same_tokens: Tokens,
    /// `None` means that the right call only continues where the left one ends.
    pub first_break: Option<Break>,
}

/// Returns how the right call differs from the left one.
pub fn diff(left: &Call<'_>, right: &Call<'_>) -> Diff {
    let mut found = of_messages(&left.composed, &right.composed);
    let (theirs, ours) = (left.receipt.tools_card_id, right.receipt.tools_card_id);
    if theirs != ours {
        let card_ids = ours.or(theirs).into_iter().collect();
        found.first_break = Some(Break { message: 0, left: None, right: None, card_ids });
        (found.same_messages, found.same_tokens) = (0, Tokens::ZERO);
    }
    found
}

fn of_messages(left: &Composed<'_>, right: &Composed<'_>) -> Diff {
    let (left_lines, right_lines) = (lines(left), lines(right));
    let only = |these: &[Line], those: &[Line]| -> Vec<Line> {
        let those: HashSet<CardId> = those.iter().map(|line| line.card_id).collect();
        these.iter().filter(|line| !those.contains(&line.card_id)).cloned().collect()
    };
    let same = left.messages.iter().zip(&right.messages).take_while(|(left, right)| is_same(left, right)).count();
    Diff {
        only_left: only(&left_lines, &right_lines),
        only_right: only(&right_lines, &left_lines),
        moved: moved(&left_lines, &right_lines),
        left_tokens: left.n_tokens,
        right_tokens: right.n_tokens,
        layers: layers(left, right),
        ops: ops(left, right),
        same_messages: same,
        same_tokens: right.messages[..same].iter().map(|message| message.n_tokens).sum(),
        first_break: (same < left.messages.len())
            .then(|| first_break(left.messages.get(same), right.messages.get(same), same)),
    }
}

fn lines(composed: &Composed<'_>) -> Vec<Line> {
    let of = |message: &Message<'_>| -> Vec<Line> {
        let line = |card_id| Line { layer: message.layer.clone(), card_id };
        message.sources.iter().map(|source| line(source.card_id)).collect()
    };
    composed.messages.iter().flat_map(of).collect()
}

/// Checks whether two messages are the same for a provider.
fn is_same(left: &Message<'_>, right: &Message<'_>) -> bool {
    (left.role, &left.content, &left.tool_calls, left.tool_call_id, &left.reasoning)
        == (right.role, &right.content, &right.tool_calls, right.tool_call_id, &right.reasoning)
}

fn first_break(left: Option<&Message<'_>>, right: Option<&Message<'_>>, same: usize) -> Break {
    let sources = |message: Option<&Message<'_>>| -> Vec<CardId> {
        message.iter().flat_map(|message| &message.sources).map(|source| source.card_id).collect()
    };
    let (theirs, ours) = (sources(left), sources(right));
    let mut card_ids: Vec<CardId> = ours.iter().filter(|card_id| !theirs.contains(card_id)).copied().collect();
    if card_ids.is_empty() {
        // Something was removed.
        card_ids = theirs.into_iter().filter(|card_id| !ours.contains(card_id)).collect();
    }
    let layer = |message: Option<&Message<'_>>| message.map(|message| message.layer.clone());
    Break { message: same + 1, left: layer(left), right: layer(right), card_ids }
}

fn layers(left: &Composed<'_>, right: &Composed<'_>) -> BTreeMap<String, Sides> {
    let mut layers: BTreeMap<String, Sides> = BTreeMap::new();
    for message in &left.messages {
        let tokens = &mut layers.entry(message.layer.to_string()).or_default().left;
        *tokens = *tokens + message.n_tokens;
    }
    for message in &right.messages {
        let tokens = &mut layers.entry(message.layer.to_string()).or_default().right;
        *tokens = *tokens + message.n_tokens;
    }
    layers.retain(|_, Sides { left, right }| left != right);
    layers
}

/// What makes a message of one call the same as one of the other.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Layer(&'a Layer),
    Card(CardId),
}

fn key<'a>(message: &'a Message<'_>) -> Key<'a> {
    match (&message.layer, message.sources.first()) {
        // The first source identifies the message.
        (Layer::CheckpointMessages | Layer::Steps, Some(source)) => Key::Card(source.card_id),
        (layer, _) => Key::Layer(layer),
    }
}

fn ops(left: &Composed<'_>, right: &Composed<'_>) -> Vec<Op> {
    let places: HashMap<Key<'_>, usize> = right.messages.iter().map(key).zip(0..).collect();
    let mut taken = HashSet::with_capacity(places.len());
    let common: Vec<(usize, usize)> = left
        .messages
        .iter()
        .map(key)
        .enumerate()
        .filter_map(|(n, key)| Some((n, *places.get(&key)?)))
        .filter(|(_, place)| taken.insert(*place))
        .collect();
    let kept = in_order(&common);
    let is_common: HashSet<usize> = common.iter().map(|(theirs, _)| *theirs).collect();
    let moved: HashMap<usize, usize> =
        common.iter().zip(0..).filter(|(_, n)| !kept.contains(n)).map(|((theirs, ours), _)| (*ours, *theirs)).collect();
    let ends = (left.messages.len(), right.messages.len());
    let mut found = Vec::with_capacity(ends.0.max(ends.1));
    let (mut theirs, mut ours) = (0, 0);
    let kept = common.iter().zip(0..).filter(|(_, n)| kept.contains(n)).map(|(pair, _)| *pair);
    for (until_theirs, until_ours) in kept.chain([ends]) {
        for n in (theirs..until_theirs).filter(|n| !is_common.contains(n)) {
            found.push(Op { op: Fate::OnlyLeft, left: Some(n + 1), right: None, tokens: left.messages[n].n_tokens });
        }
        for n in ours..until_ours {
            let from = moved.get(&n).map(|from| from + 1);
            let op = if from.is_some() { Fate::Moved } else { Fate::OnlyRight };
            found.push(Op { op, left: from, right: Some(n + 1), tokens: right.messages[n].n_tokens });
        }
        if let (Some(before), Some(after)) = (left.messages.get(until_theirs), right.messages.get(until_ours)) {
            let op = if is_same(before, after) { Fate::Same } else { Fate::Changed };
            let (left, right) = (Some(until_theirs + 1), Some(until_ours + 1));
            found.push(Op { op, left, right, tokens: after.n_tokens });
        }
        (theirs, ours) = (until_theirs + 1, until_ours + 1);
    }
    found
}

/// Returns the common cards that are not part of the longest common order.
fn moved(left: &[Line], right: &[Line]) -> Vec<CardId> {
    let places: HashMap<CardId, usize> = right.iter().enumerate().map(|(place, line)| (line.card_id, place)).collect();
    let common: Vec<(CardId, usize)> =
        left.iter().filter_map(|line| Some((line.card_id, *places.get(&line.card_id)?))).collect();
    let kept = in_order(&common);
    common.iter().enumerate().filter(|(n, _)| !kept.contains(n)).map(|(_, (card_id, _))| *card_id).collect()
}

/// Returns which elements make up the longest run whose places increase.
fn in_order<T>(common: &[(T, usize)]) -> HashSet<usize> {
    // Patience sorting: `piles[n]` ends the best run of length n + 1; each element knows the one before it in its run.
    let (mut piles, mut before): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), Vec::with_capacity(common.len()));
    for (n, (_, place)) in common.iter().enumerate() {
        let pile = piles.partition_point(|&top| common[top].1 < *place);
        before.push(pile.checked_sub(1).map(|pile| piles[pile]));
        if pile == piles.len() { piles.push(n) } else { piles[pile] = n }
    }
    let mut kept = HashSet::new();
    let mut next = piles.last().copied();
    while let Some(n) = next {
        kept.insert(n);
        next = before[n];
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{golden, wire::Adapter};

    fn call(script: &str) -> Call<'static> {
        golden::read(script).call(Adapter::OpenaiChat)
    }

    /// Writes the ops of a diff, such as `1=1 2!2 3~4 5- +6`: the same, changed, moved, only in the left call, only in the right one.
    fn written(diff: &Diff) -> String {
        let number = |n: Option<usize>| n.map(|n| n.to_string()).unwrap_or_default();
        let word = |op: &Op| {
            let sign = match op.op {
                Fate::Same => "=",
                Fate::Changed => "!",
                Fate::OnlyLeft => "-",
                Fate::OnlyRight => "+",
                Fate::Moved => "~",
            };
            format!("{}{sign}{}", number(op.left), number(op.right))
        };
        diff.ops.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    const SCRIPT: &str = "react cache_first 900
prompt: p
todo: - [ ] 1 t
history
  user: one
  assistant: two
  user: three
query: q";

    /// NX-2: a call that only continues the other one keeps its whole prefix.
    #[test]
    fn what_goes_on_breaks_nothing() {
        let left = call(SCRIPT);
        let right = call(&format!("{SCRIPT}\nsteps\n  assistant: said"));
        let diff = diff(&left, &right);
        assert_eq!((diff.first_break.clone(), diff.same_messages), (None, left.composed.messages.len()));
        assert_eq!((diff.only_left.len(), diff.only_right.len(), diff.moved.len()), (0, 1, 0));
        assert_eq!(diff.layers.keys().collect::<Vec<_>>(), ["steps"]);
        assert_eq!(written(&diff), "1=1 2=2 3=3 4=4 5=5 6=6 +7");
    }

    /// NX-2: a line of the script is the same card as long as it is at the same place.
    #[test]
    fn the_card_that_broke_the_prefix_is_named() {
        let left = call(SCRIPT);
        let right = call(&SCRIPT.replace("[ ]", "[x]"));
        let found = diff(&left, &right);
        let place = found.first_break.unwrap();
        assert_eq!((place.message, place.right), (6, Some(Layer::Query)));
        let todo = right.composed.messages[5].sources[0].card_id;
        assert_eq!((place.card_ids, found.only_right[0].card_id), (vec![todo], todo));
        assert_eq!(written(&diff(&left, &right)), "1=1 2=2 3=3 4=4 5=5 6!6");

        // In the layered order the same change is seen two messages earlier, before the history.
        let layered = |script: &str| call(&script.replace("cache_first", "layered"));
        let found = diff(&layered(SCRIPT), &layered(&SCRIPT.replace("[ ]", "[x]")));
        assert_eq!(found.first_break.unwrap().message, 3);

        let mut shorter = left.clone();
        let gone = shorter.composed.messages.remove(3);
        let found = diff(&left, &shorter);
        assert_eq!(found.first_break.as_ref().unwrap().message, 4);
        assert_eq!(found.only_left, [Line { layer: Layer::CheckpointMessages, card_id: gone.sources[0].card_id }]);
        assert_eq!(written(&found), "1=1 2=2 3=3 4- 5=4 6=5");
    }

    #[test]
    fn what_moved_is_the_least_that_had_to() {
        let left = call(SCRIPT);
        let mut right = left.clone();
        let first = right.composed.messages.remove(2);
        right.composed.messages.insert(4, first.clone());
        let diff = diff(&left, &right);
        assert_eq!(diff.moved, [first.sources[0].card_id]);
        assert!(diff.only_left.is_empty() && diff.only_right.is_empty());
        assert_eq!(written(&diff), "1=1 2=2 4=3 5=4 3~5 6=6");
    }

    #[test]
    fn another_thought_breaks_the_prefix() {
        let after =
            |thought: &str| call(&format!("{SCRIPT}\nsteps\n  reasoning openai_chat: {thought}\n  assistant: said"));
        let found = diff(&after("one"), &after("two"));
        assert_eq!(found.first_break.and_then(|place| place.right), Some(Layer::Steps));
    }

    /// The tools come before everything: with other tools, nothing of the prefix is left.
    #[test]
    fn other_tools_break_everything() {
        let left = call(SCRIPT);
        let mut right = left.clone();
        right.receipt.tools_card_id = None;
        let place = diff(&left, &right).first_break.unwrap();
        assert_eq!((place.message, place.card_ids), (0, vec![left.receipt.tools_card_id.unwrap()]));
    }
}

//! Compares two calls (NX-2): by set, by order, by tokens, and by where the prompt cache stops matching.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use waybill_core::{id::CardId, tokens::Tokens};

use crate::{call::Call, compose::Composed, layer::Layer, unit::Message};

/// A card of one of the two calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    pub layer: Layer,
    pub card_id: CardId,
}

/// The first message that differs: from here on the prompt cache misses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Break {
    /// The number of the message, from 1; 0 means the tools, which come before all messages.
    pub message: usize,
    pub left: Option<Layer>,
    pub right: Option<Layer>,
    /// The cards that caused it: those of this message that the other call does not have at this place.
    pub card_ids: Vec<CardId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diff {
    pub only_left: Vec<Line>,
    pub only_right: Vec<Line>,
    /// In both, but not in the same order: the fewest that would have to move.
    pub moved: Vec<CardId>,
    pub left_tokens: Tokens,
    pub right_tokens: Tokens,
    /// Tokens of each layer, left and right, where they differ.
    pub layers: BTreeMap<String, (Tokens, Tokens)>,
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

fn layers(left: &Composed<'_>, right: &Composed<'_>) -> BTreeMap<String, (Tokens, Tokens)> {
    let mut layers: BTreeMap<String, (Tokens, Tokens)> = BTreeMap::new();
    for message in &left.messages {
        let tokens = &mut layers.entry(message.layer.to_string()).or_default().0;
        *tokens = *tokens + message.n_tokens;
    }
    for message in &right.messages {
        let tokens = &mut layers.entry(message.layer.to_string()).or_default().1;
        *tokens = *tokens + message.n_tokens;
    }
    layers.retain(|_, (left, right)| left != right);
    layers
}

/// Returns the common cards that are not part of the longest common order.
fn moved(left: &[Line], right: &[Line]) -> Vec<CardId> {
    let places: HashMap<CardId, usize> = right.iter().enumerate().map(|(place, line)| (line.card_id, place)).collect();
    let common: Vec<(CardId, usize)> =
        left.iter().filter_map(|line| Some((line.card_id, *places.get(&line.card_id)?))).collect();
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
    common.iter().enumerate().filter(|(n, _)| !kept.contains(n)).map(|(_, (card_id, _))| *card_id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{golden, wire::Adapter};

    fn call(script: &str) -> Call<'static> {
        golden::read(script).call(Adapter::OpenaiChat)
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

        // In the layered order the same change is seen two messages earlier, before the history.
        let layered = |script: &str| call(&script.replace("cache_first", "layered"));
        let found = diff(&layered(SCRIPT), &layered(&SCRIPT.replace("[ ]", "[x]")));
        assert_eq!(found.first_break.unwrap().message, 3);

        let mut shorter = left.clone();
        let gone = shorter.composed.messages.remove(3);
        let found = diff(&left, &shorter);
        assert_eq!(found.first_break.unwrap().message, 4);
        assert_eq!(found.only_left, [Line { layer: Layer::CheckpointMessages, card_id: gone.sources[0].card_id }]);
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

//! Places in a box. A box only grows, so a prefix or a span of one is a snapshot for ever (CB-8).

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use serde::{Deserialize, Serialize};

use crate::{
    card::Reading,
    id::{BoxId, CardId},
};

/// Positions `from ..= upto` of a box, counted from 1. Empty when `upto < from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Span {
    pub box_id: BoxId,
    pub from: i64,
    pub upto: i64,
}

impl Span {
    /// The first `upto` positions: what the box held when it was that long.
    pub const fn prefix(box_id: BoxId, upto: i64) -> Span {
        Span { box_id, from: 1, upto }
    }

    /// Everything the box holds at the moment it is looked at.
    pub const fn whole(box_id: BoxId) -> Span {
        Span::prefix(box_id, i64::MAX)
    }
}

/// Box and position at which a card was written. Other boxes can include it from there by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Origin {
    pub box_id: BoxId,
    pub seq: i64,
}

/// A card of a box, with its position.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Placed {
    /// Position of the card in the box that was read, counted from 1.
    pub place: i64,
    /// Box and position at which the card was written.
    pub origin: Origin,
    /// If the card occurs again among the positions that were read: where it was written, for each of these occurrences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Origin>,
    /// The card. If it has expired or was deleted, only its id, its hash and the reason.
    pub reading: Reading,
}

impl Placed {
    pub fn origins(&self) -> impl Iterator<Item = Origin> + '_ {
        std::iter::once(self.origin).chain(self.also.iter().copied())
    }
}

/// Keeps each card at the first of its places, which lists the others.
pub fn without_repeats(cards: impl IntoIterator<Item = Placed>) -> Vec<Placed> {
    let cards = cards.into_iter();
    let mut first: HashMap<CardId, usize> = HashMap::with_capacity(cards.size_hint().0);
    let mut kept: Vec<Placed> = Vec::with_capacity(cards.size_hint().0);
    for placed in cards {
        match first.entry(placed.reading.card_id()) {
            Entry::Occupied(at) => kept[*at.get()].also.extend(placed.origins()),
            Entry::Vacant(entry) => {
                entry.insert(kept.len());
                kept.push(placed);
            }
        }
    }
    kept
}

/// A set of places, kept as spans: neighbours are one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Span>", into = "Vec<Span>")]
pub struct Places(BTreeMap<(BoxId, i64), i64>);

impl Places {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, box_id: BoxId, place: i64) -> bool {
        let before = self.0.range(..=(box_id, place)).next_back();
        before.is_some_and(|((held, _), upto)| *held == box_id && place <= *upto)
    }

    pub fn insert(&mut self, span: Span) {
        let Span { box_id, mut from, mut upto } = span;
        if upto < from {
            return;
        }
        // All spans that it touches become part of it.
        while let Some((&(held, first), &last)) = self.0.range(..=(box_id, upto.saturating_add(1))).next_back() {
            if held != box_id || last.saturating_add(1) < from {
                break;
            }
            (from, upto) = (from.min(first), upto.max(last));
            self.0.remove(&(held, first));
        }
        self.0.insert((box_id, from), upto);
    }

    /// By box and position.
    pub fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.0.iter().map(|(&(box_id, from), &upto)| Span { box_id, from, upto })
    }
}

impl Extend<Span> for Places {
    fn extend<I: IntoIterator<Item = Span>>(&mut self, spans: I) {
        spans.into_iter().for_each(|span| self.insert(span));
    }
}

impl FromIterator<Span> for Places {
    fn from_iter<I: IntoIterator<Item = Span>>(spans: I) -> Places {
        let mut places = Places::default();
        places.extend(spans);
        places
    }
}

impl From<Vec<Span>> for Places {
    fn from(spans: Vec<Span>) -> Places {
        spans.into_iter().collect()
    }
}

impl From<Places> for Vec<Span> {
    fn from(places: Places) -> Vec<Span> {
        places.spans().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain set; and no two spans touch.
        #[test]
        fn a_set_of_places_is_a_set(spans in prop::collection::vec((0..2usize, 1..20i64, -1..6i64), 0..12)) {
            let boxes = [BoxId::new(), BoxId::new()];
            let spans: Vec<Span> =
                spans.into_iter().map(|(n, from, more)| Span { box_id: boxes[n], from, upto: from + more }).collect();
            let plain: HashSet<(BoxId, i64)> =
                spans.iter().flat_map(|span| (span.from..=span.upto).map(|seq| (span.box_id, seq))).collect();
            let places: Places = spans.into_iter().collect();
            for box_id in boxes {
                for place in 0..30 {
                    prop_assert_eq!(places.contains(box_id, place), plain.contains(&(box_id, place)));
                }
            }
            let kept: Vec<Span> = places.spans().collect();
            prop_assert!(kept.windows(2).all(|pair| pair[0].box_id != pair[1].box_id || pair[0].upto + 1 < pair[1].from));
            prop_assert!(kept.iter().all(|span| span.from <= span.upto));
        }
    }
}

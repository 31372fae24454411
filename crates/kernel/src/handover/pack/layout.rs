//! The rows of a context box and of its provenance, before they are written.

use waybill_core::{
    card_box::Span,
    id::{BoxId, CardId},
};

use super::source::Source;

/// One row of the box.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) seq: i64,
    pub(super) held: Held,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Held {
    Card(CardId),
    Range(Span),
}

impl Held {
    pub(super) fn card_id(&self) -> Option<CardId> {
        match self {
            Held::Card(card_id) => Some(*card_id),
            Held::Range(_) => None,
        }
    }

    pub(super) fn source_box_id(&self) -> Option<BoxId> {
        match self {
            Held::Card(_) => None,
            Held::Range(span) => Some(span.box_id),
        }
    }
}

/// One row of its provenance.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) rule: &'static str,
    pub(super) arg_key: Option<String>,
    pub(super) from: i64,
    pub(super) n_cards: i64,
    /// Which box, how far, by which right.
    pub(super) source: Option<(Span, String)>,
}

/// A context box in the making.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) length: i64,
    pub(super) entries: Vec<Entry>,
    pub(super) parts: Vec<Part>,
    held: Vec<Span>,
}

impl Layout {
    pub(super) fn card(&mut self, rule: &'static str, arg_key: Option<String>, card_id: CardId) {
        self.length += 1;
        self.entries.push(Entry { seq: self.length, held: Held::Card(card_id) });
        self.parts.push(Part { rule, arg_key, from: self.length, n_cards: 1, source: None });
    }

    /// Adds a source. What is already held of it is left out: on reading it would be a repeat.
    pub(super) fn inherit(&mut self, rule: &'static str, arg_key: Option<String>, source: &Source, via: Option<&str>) {
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

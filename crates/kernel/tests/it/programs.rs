//! Random programs of everything a box can do, against a naive model that copies cards about.

use std::collections::HashSet;

use chrono::{DateTime, TimeDelta, Utc};
use proptest::{prelude::*, test_runner::TestRunner};
use sqlx::PgConnection;
use waybill_core::{
    card::{Draft, NewCard, Reading},
    card_box::{Placed, Span},
    id::{BoxId, CardId, ProjectId},
    tokens::Tokens,
};
use waybill_kernel::{
    card,
    card_box::{self, Window},
    work::UnitOfWork,
};
use waybill_testkit::{TestDb, fresh_db};

use crate::cases;

/// Numbers name a box, card or position by their remainder, so that every program makes sense.
#[derive(Clone, Debug)]
enum Step {
    Create,
    Write { into: usize, count: usize, ttl: bool },
    AppendAgain { into: usize, card: usize },
    Replay { card: usize },
    Inherit { into: usize, source: usize, from: usize, count: usize },
    CreateFrom { source: usize, from: usize, count: usize },
    Share { source: usize, from: usize },
    Expire { card: usize },
    Delete { card: usize },
    Erase { card: usize },
    Read { source: usize, from: usize, count: usize, when: usize },
    Hydrate { source: usize, upto: Option<usize>, pinned: usize, budget: i32, when: usize },
    Holdings { card: usize },
}

fn any_step() -> impl Strategy<Value = Step> {
    let n = || 0..1000_usize;
    prop_oneof![
        2 => Just(Step::Create),
        6 => (n(), 1..6_usize, any::<bool>()).prop_map(|(into, count, ttl)| Step::Write { into, count, ttl }),
        2 => (n(), n()).prop_map(|(into, card)| Step::AppendAgain { into, card }),
        1 => n().prop_map(|card| Step::Replay { card }),
        6 => (n(), n(), n(), n()).prop_map(|(into, source, from, count)| Step::Inherit { into, source, from, count }),
        3 => (n(), n(), n()).prop_map(|(source, from, count)| Step::CreateFrom { source, from, count }),
        1 => (n(), n()).prop_map(|(source, from)| Step::Share { source, from }),
        1 => n().prop_map(|card| Step::Expire { card }),
        1 => n().prop_map(|card| Step::Delete { card }),
        1 => n().prop_map(|card| Step::Erase { card }),
        3 => (n(), n(), n(), 0..3_usize).prop_map(|(source, from, count, when)| Step::Read { source, from, count, when }),
        3 => (n(), prop::option::of(n()), 0..4_usize, 0..60, 0..3_usize)
            .prop_map(|(source, upto, pinned, budget, when)| Step::Hydrate { source, upto, pinned, budget, when }),
        1 => n().prop_map(|card| Step::Holdings { card }),
    ]
}

/// A card at a position, and the box and position where it was first written: what a range would point at.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Slot {
    card: usize,
    origin: (usize, usize),
}

struct ModelCard {
    sealed: NewCard,
    expires: bool,
    deleted: bool,
    erased: bool,
}

impl ModelCard {
    /// When: an hour ago, now, in an hour. Cards with an end expire within the hour.
    fn is_live(&self, when: usize) -> bool {
        !(self.erased || self.deleted && when >= 1 || self.expires && when >= 2)
    }
}

struct Model {
    cards: Vec<ModelCard>,
    boxes: Vec<(BoxId, Vec<Slot>)>,
}

/// The times of readings: an hour ago, now, in an hour.
type AsOf = [Option<DateTime<Utc>>; 3];

/// What is compared: position, card, whether it is live.
type Seen = Vec<(i64, CardId, bool)>;

impl Model {
    fn see(&self, slots: &[(usize, Slot)], when: usize) -> Seen {
        let mut shown = HashSet::new();
        let first = slots.iter().filter(|(_, slot)| shown.insert(slot.card));
        first
            .map(|(place, slot)| {
                let card = &self.cards[slot.card];
                (*place as i64, card.sealed.card_id(), card.is_live(when))
            })
            .collect()
    }

    fn places(&self, source: usize, from: usize, upto: usize) -> Vec<(usize, Slot)> {
        let slots = self.boxes[source].1.iter().copied().enumerate().map(|(i, slot)| (i + 1, slot));
        slots.filter(|(place, _)| (from..=upto).contains(place)).collect()
    }

    fn tokens(&self, slot: &Slot, when: usize) -> i32 {
        let card = &self.cards[slot.card];
        if card.is_live(when) { card.sealed.n_tokens().get() } else { 0 }
    }

    /// The pinned head, then from the end as far back as the budget goes; a card costs once. Like the statement, it goes
    /// back in chunks of 128 positions, which count their own repeats once, and cuts at the exact card afterwards.
    fn hydrate(&self, source: usize, upto: usize, pinned: usize, budget: i32, when: usize) -> Seen {
        let length = upto.min(self.boxes[source].1.len());
        let pinned = pinned.min(length);
        let distinct = |slots: &[(usize, Slot)]| -> i32 {
            let mut counted = HashSet::new();
            slots.iter().filter(|(_, slot)| counted.insert(slot.card)).map(|(_, slot)| self.tokens(slot, when)).sum()
        };
        let head = self.places(source, 1, pinned);
        let mut from = length + 1;
        let mut walked = distinct(&head);
        while from > pinned + 1 && walked <= budget {
            let next = from.saturating_sub(128).max(pinned + 1);
            walked += distinct(&self.places(source, next, from - 1));
            from = next;
        }
        let mut spent = distinct(&head);
        let mut paid: HashSet<usize> = head.iter().map(|(_, slot)| slot.card).collect();
        let mut tail = Vec::new();
        for (place, slot) in self.places(source, from, length).into_iter().rev() {
            if paid.insert(slot.card) {
                spent += self.tokens(&slot, when);
            }
            if spent > budget {
                break;
            }
            tail.push((place, slot));
        }
        let live = |(_, slot): &(usize, Slot)| self.cards[slot.card].is_live(when);
        let tail = tail.into_iter().rev().skip_while(|placed| !live(placed));
        self.see(&head.into_iter().chain(tail).collect::<Vec<_>>(), when)
    }
}

fn seen(placed: &[Placed]) -> Seen {
    let one = |placed: &Placed| (placed.place, placed.reading.card_id(), matches!(placed.reading, Reading::Live(_)));
    placed.iter().map(one).collect()
}

/// A step's numbers, brought into the span of a box.
fn span_of(length: usize, from: usize, count: usize) -> (usize, usize) {
    let from = from % (length + 1) + 1;
    (from, (from + count % (length + 2)).saturating_sub(1))
}

/// Each does a step in the database and in the model, and compares them.
impl Model {
    /// Writes cards, and makes boxes.
    async fn grow(&mut self, work: &mut UnitOfWork, n: usize, step: &Step) -> Result<(), TestCaseError> {
        let (boxes, cards) = (self.boxes.len().max(1), self.cards.len());
        match *step {
            Step::Create => {
                let box_id = BoxId::new();
                card_box::create(work, &[box_id]).await.unwrap();
                self.boxes.push((box_id, Vec::new()));
            }
            Step::Write { into, count, ttl } => {
                let into = into % boxes;
                let mut sealed = Vec::new();
                for i in 0..count {
                    let mut draft = Draft::instruction(&format!("card {n} {i} {}", "word ".repeat(i)));
                    draft.ttl_seconds = (ttl && i == 0).then_some(60);
                    sealed.push(draft.seal().unwrap());
                }
                card::insert(work, &sealed).await.unwrap();
                card_box::append(work, self.boxes[into].0, &crate::ids(&sealed)).await.unwrap();
                for card in sealed {
                    let expires = card.ttl_seconds().is_some();
                    let at = self.boxes[into].1.len() + 1;
                    self.boxes[into].1.push(Slot { card: self.cards.len(), origin: (into, at) });
                    self.cards.push(ModelCard { sealed: card, expires, deleted: false, erased: false });
                }
            }
            Step::AppendAgain { into, card } if cards > 0 => {
                let (into, card) = (into % boxes, card % cards);
                let card_id = self.cards[card].sealed.card_id();
                let length = card_box::append(work, self.boxes[into].0, &[card_id]).await.unwrap();
                let slots = &mut self.boxes[into].1;
                slots.push(Slot { card, origin: (into, slots.len() + 1) });
                prop_assert_eq!(length as usize, slots.len());
            }
            Step::Replay { card } if cards > 0 => {
                card::insert(work, &[self.cards[card % cards].sealed.clone()]).await.unwrap();
            }
            Step::Inherit { into, source, from, count } => {
                let (into, source) = (into % boxes, source % boxes);
                let (from, upto) = span_of(self.boxes[source].1.len(), from, count);
                let span = Span { box_id: self.boxes[source].0, from: from as i64, upto: upto as i64 };
                let length = card_box::inherit(work, self.boxes[into].0, span).await.unwrap();
                let held: HashSet<_> = self.boxes[into].1.iter().map(|slot| slot.origin).collect();
                for (_, slot) in self.places(source, from, upto) {
                    if slot.origin.0 != into && !held.contains(&slot.origin) {
                        self.boxes[into].1.push(slot);
                    }
                }
                prop_assert_eq!(length as usize, self.boxes[into].1.len());
            }
            Step::CreateFrom { source, from, count } => {
                let source = source % boxes;
                let (from, upto) = span_of(self.boxes[source].1.len(), from, count);
                let box_id = BoxId::new();
                let span = Span { box_id: self.boxes[source].0, from: from as i64, upto: upto as i64 };
                card_box::create_from(work, &[box_id], span).await.unwrap();
                let slots = self.places(source, from, upto).into_iter().map(|(_, slot)| slot).collect();
                self.boxes.push((box_id, slots));
            }
            Step::Share { source, from } => {
                let source = source % boxes;
                let (from, _) = span_of(self.boxes[source].1.len(), from, 0);
                let span = Span { box_id: self.boxes[source].0, from: from as i64, upto: i64::MAX };
                let shared = card_box::share(work, span).await.unwrap();
                let read = card_box::read(work, shared, None).await.unwrap();
                let places = self.places(source, from, usize::MAX);
                let expected: Vec<_> = self.see(&places, 1).into_iter().map(|(_, id, live)| (id, live)).collect();
                prop_assert_eq!(seen(&read).into_iter().map(|(_, id, live)| (id, live)).collect::<Vec<_>>(), expected);
                if shared.box_id != span.box_id {
                    let at = self.boxes.len();
                    let flat =
                        places.iter().enumerate().map(|(i, (_, slot))| Slot { card: slot.card, origin: (at, i + 1) });
                    self.boxes.push((shared.box_id, flat.collect()));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Expires, deletes or erases a card. Returns false if that was refused, as it should be: there is nothing to commit.
    async fn end_card(
        &mut self,
        work: &mut UnitOfWork,
        owner: &mut PgConnection,
        step: &Step,
    ) -> Result<bool, TestCaseError> {
        let cards = self.cards.len();
        match *step {
            Step::Expire { card } if cards > 0 => {
                let card = &mut self.cards[card % cards];
                let outcome = card::expire(work, &[card.sealed.card_id()], 60).await;
                prop_assert_eq!(outcome.is_ok(), !card.expires);
                if outcome.is_err() {
                    return Ok(false);
                }
                card.expires = true;
            }
            Step::Delete { card } if cards > 0 => {
                let card = &mut self.cards[card % cards];
                card::delete(work, &[card.sealed.card_id()], "because").await.unwrap();
                card.deleted = true;
            }
            Step::Erase { card } if cards > 0 => {
                let card = &mut self.cards[card % cards];
                card::erase(owner, work.project_id(), &[card.sealed.card_id()], "because").await.unwrap();
                card.erased = true;
            }
            _ => {}
        }
        Ok(true)
    }

    /// Reads without changing anything.
    async fn compare(&self, work: &mut UnitOfWork, step: &Step, as_of: &AsOf) -> Result<(), TestCaseError> {
        let (boxes, cards) = (self.boxes.len().max(1), self.cards.len());
        match *step {
            Step::Read { source, from, count, when } => {
                let source = source % boxes;
                let (from, upto) = span_of(self.boxes[source].1.len(), from, count);
                let span = Span { box_id: self.boxes[source].0, from: from as i64, upto: upto as i64 };
                let read = card_box::read(work, span, as_of[when]).await.unwrap();
                prop_assert_eq!(seen(&read), self.see(&self.places(source, from, upto), when));
            }
            Step::Hydrate { source, upto, pinned, budget, when } => {
                let source = source % boxes;
                let length = self.boxes[source].1.len();
                let upto = upto.map(|upto| upto % (length + 2));
                let budget_tokens = Tokens::new(budget).unwrap();
                let window = Window { pinned: pinned as i64, budget: budget_tokens, as_of: as_of[when] };
                let upto_place = upto.map(|upto| upto as i64);
                let hydrated = card_box::hydrate(work, self.boxes[source].0, upto_place, window).await.unwrap();
                let expected = self.hydrate(source, upto.unwrap_or(usize::MAX), pinned, budget, when);
                prop_assert_eq!(seen(&hydrated.cards), expected);
            }
            Step::Holdings { card } if cards > 0 => {
                let card = card % cards;
                let card_id = self.cards[card].sealed.card_id();
                let found = card_box::holdings(work, card_id, None, 10_000).await.unwrap();
                let found: Vec<_> = found.into_iter().map(|holding| (holding.box_id, holding.place)).collect();
                let everywhere = self.boxes.iter().flat_map(|(box_id, slots)| {
                    let here = slots.iter().enumerate().filter(|(_, slot)| slot.card == card);
                    here.map(|(i, _)| (*box_id, i as i64 + 1))
                });
                let mut expected: Vec<_> = everywhere.collect();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
            _ => {}
        }
        Ok(())
    }
}

async fn run(t: &TestDb, owner: &mut PgConnection, program: &[Step]) -> Result<(), TestCaseError> {
    let project_id = ProjectId::new();
    let mut model = Model { cards: Vec::new(), boxes: Vec::new() };
    let now = Utc::now();
    let as_of: AsOf = [Some(now - TimeDelta::hours(1)), None, Some(now + TimeDelta::hours(1))];
    for (n, step) in [Step::Create].iter().chain(program).enumerate() {
        let mut work = t.kernel.begin(project_id).await.unwrap();
        match step {
            Step::Expire { .. } | Step::Delete { .. } | Step::Erase { .. } => {
                if !model.end_card(&mut work, owner, step).await? {
                    continue;
                }
            }
            Step::Read { .. } | Step::Hydrate { .. } | Step::Holdings { .. } => {
                model.compare(&mut work, step, &as_of).await?;
            }
            _ => model.grow(&mut work, n, step).await?,
        }
        work.commit().await.unwrap();
    }
    let mut work = t.kernel.begin(project_id).await.unwrap();
    for (source, (box_id, slots)) in model.boxes.iter().enumerate() {
        let read = card_box::read(&mut work, Span::whole(*box_id), None).await.unwrap();
        prop_assert_eq!(seen(&read), model.see(&model.places(source, 1, slots.len()), 1));
        for placed in &read {
            prop_assert!(!matches!(&placed.reading, Reading::Live(card) if !card.verifies()));
        }
    }
    Ok(())
}

/// CB-3, CB-5, CB-7, CB-8, CB-9, CB-11, CB-13
#[test]
fn random_programs_agree_with_a_naive_model() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let t = runtime.block_on(fresh_db());
    let owner = std::cell::RefCell::new(runtime.block_on(t.owner()));
    let config = ProptestConfig { cases: cases(500), failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&prop::collection::vec(any_step(), 1..24), |program| {
        runtime.block_on(run(&t, &mut owner.borrow_mut(), &program))
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

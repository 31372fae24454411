//! The kernel against a real PostgreSQL. One binary, a fresh database for each test.

#![allow(clippy::unwrap_used)]

mod aborts;
mod artifacts;
mod batches;
mod boxes;
mod budgets;
mod cards;
mod cost;
mod erasure;
mod faces;
mod handovers;
mod history;
mod intake;
mod memory;
mod operations;
mod outbox;
mod plans;
mod pooled;
mod programs;
mod queue;
mod races;
mod resources;
mod retain;
mod retain_kept;
mod retain_programs;
mod schema;
mod sources;
mod start;
mod sweeps;
mod turn_cost;
mod turns;
mod walls;

use waybill_core::{
    card::{Draft, NewCard, Reading},
    card_box::{Placed, Span},
    id::{BoxId, CardId},
};
use waybill_kernel::{card, card_box, work::UnitOfWork};

/// `n` sealed instructions that say different things.
fn instructions(n: usize) -> Vec<NewCard> {
    (0..n).map(|i| Draft::instruction(&format!("instruction {i}")).seal().unwrap()).collect()
}

fn ids(cards: &[NewCard]) -> Vec<CardId> {
    cards.iter().map(NewCard::card_id).collect()
}

/// A new box with `n` new cards.
async fn filled_box(work: &mut UnitOfWork, n: usize) -> (BoxId, Vec<CardId>) {
    let box_id = BoxId::new();
    let cards = instructions(n);
    card::insert(work, &cards).await.unwrap();
    card_box::create(work, &[box_id]).await.unwrap();
    card_box::append(work, box_id, &ids(&cards)).await.unwrap();
    (box_id, ids(&cards))
}

/// The ids of everything in a box, live or gone, in order.
async fn held(work: &mut UnitOfWork, box_id: BoxId) -> Vec<CardId> {
    card_ids(&card_box::read(work, Span::whole(box_id), None).await.unwrap())
}

fn card_ids(placed: &[Placed]) -> Vec<CardId> {
    placed.iter().map(|placed| placed.reading.card_id()).collect()
}

fn is_live(reading: &Reading) -> bool {
    matches!(reading, Reading::Live(_))
}

/// How many cases a random test runs: the short count, or what `WAYBILL_CASES` says.
fn cases(short: u32) -> u32 {
    std::env::var("WAYBILL_CASES").map_or(short, |count| count.parse().expect("WAYBILL_CASES is a number"))
}

//! Boxes: ordered, append-only sequences that hold cards by reference (CB-7 … CB-9, CB-12, NX-5).
//!
//! ```text
//!   box A   1:card  2:card  3:card                                 three entries, length 3
//!   box B   1:A[1…3]               4:card                          two entries,   length 4
//!   box C   1:A[1…3]               4:B[4…4]   5:card               three entries, length 5
//! ```
//! An entry's `seq` is the position of its first card; a range always points at a box's own cards, so reading is
//! one level deep. Whatever is inherited, however long, costs one entry per run. A prefix is a snapshot for ever.
//!
//! A card appears once when a box is read: the first place wins, of the places that were read.

use chrono::{DateTime, Utc};
use waybill_core::{
    card_box::Span,
    id::{AgentId, BoxId, CardId, TurnId},
};

use crate::{
    card::Batch,
    work::{DbError, UnitOfWork, from_driver},
};

mod hydrate;
mod inherit;
mod read;

pub use hydrate::{Also, AlsoRead, Hydrated, Pointers, Window, hydrate, hydrate_with, still_holds};
pub use inherit::{MOST_RUNS, create_from, inherit, share};
pub use read::{hashes, read, within};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("box {0} not found")]
    NotFound(BoxId),
    #[error("cards not found: {0:?}")]
    CardsNotFound(Vec<CardId>),
    #[error("positions {} to {} are not a valid range of box {}: the first position is 1", .0.from, .0.upto, .0.box_id)]
    Span(Span),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// A box without its cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, sqlx::FromRow, utoipa::ToSchema)]
pub struct CardBox {
    pub box_id: BoxId,
    pub length: i64,
    /// The agent that it was made for. `null` means that it is no agent's own.
    pub agent_id: Option<AgentId>,
    /// The turn that it was made for.
    pub agent_turn_id: Option<TurnId>,
    /// Whether it holds content from outside, or content that was written after such content was seen.
    pub has_external: bool,
    pub created_at: DateTime<Utc>,
}

/// A place where a card stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, sqlx::FromRow, utoipa::ToSchema)]
pub struct Holding {
    pub box_id: BoxId,
    pub place: i64,
}

/// Creates empty boxes.
pub async fn create(work: &mut UnitOfWork, box_ids: &[BoxId]) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query("insert into cardbox.boxes (project_id, box_id, length) select $1, unnest($2::uuid[]), 0")
        .bind(project_id)
        .bind(box_ids)
        .execute(&mut **work)
        .await?;
    Ok(())
}

/// Creates an empty box that belongs to a turn, and goes with it.
pub async fn create_for(work: &mut UnitOfWork, box_id: BoxId, agent_id: AgentId, turn_id: TurnId) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query(
        "insert into cardbox.boxes (project_id, box_id, length, agent_id, agent_turn_id) values ($1, $2, 0, $3, $4)",
    )
    .bind(project_id)
    .bind(box_id)
    .bind(agent_id)
    .bind(turn_id)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// Looks up boxes.
pub async fn find(work: &mut UnitOfWork, box_ids: &[BoxId]) -> Result<Batch<CardBox, BoxId>, Error> {
    let project_id = work.project_id();
    let rows = sqlx::query_as::<_, CardBox>(
        "select b.box_id, b.length, b.agent_id, b.agent_turn_id, b.has_external, b.created_at
           from (select distinct box_id from unnest($2::uuid[]) as asked (box_id)) asked
          cross join lateral (select b.* from cardbox.boxes b where b.project_id = $1 and b.box_id = asked.box_id offset 0) b",
    )
    .bind(project_id)
    .bind(box_ids)
    .fetch_all(&mut **work)
    .await?;
    Ok(Batch::in_order(box_ids, rows, |found| found.box_id))
}

/// Appends cards to a box; returns its new length. Nothing is written unless the box and all cards exist.
/// A unit of work that appends to several boxes does so in the order of their ids, so that two cannot wait for each other.
pub async fn append(work: &mut UnitOfWork, box_id: BoxId, card_ids: &[CardId]) -> Result<i64, Error> {
    let project_id = work.project_id();
    // The row lock of the update is the order of the box: no gap, no tie, released with the entries at commit.
    let length: Option<i64> = sqlx::query_scalar(
        "with known as materialized (
           select count(*) as n
             from (select distinct card_id from unnest($3::uuid[]) as asked (card_id)) asked
             left join lateral (select c.card_id
                                  from cardbox.cards c
                                 where c.project_id = $1 and c.card_id = asked.card_id
                                offset 0) c on true
            where c.card_id is null
         ), grown as (
           update cardbox.boxes b
              set length = b.length + cardinality($3)
             from known
            where b.project_id = $1 and b.box_id = $2 and known.n = 0
        returning b.length
         ), entries as (
           insert into cardbox.box_entries (project_id, box_id, seq, card_id)
           select $1, $2, grown.length - cardinality($3) + asked.n, asked.card_id
             from grown
            cross join unnest($3::uuid[]) with ordinality as asked (card_id, n)
         )
         select length from grown",
    )
    .bind(project_id)
    .bind(box_id)
    .bind(card_ids)
    .fetch_optional(&mut **work)
    .await?;
    match length {
        Some(length) => Ok(length),
        None => Err(why_not_appended(work, box_id, card_ids).await?),
    }
}

async fn why_not_appended(work: &mut UnitOfWork, box_id: BoxId, card_ids: &[CardId]) -> Result<Error, Error> {
    if !find(work, &[box_id]).await?.missing.is_empty() {
        return Ok(Error::NotFound(box_id));
    }
    let project_id = work.project_id();
    let unknown = sqlx::query_scalar(
        "select asked.card_id
           from unnest($2::uuid[]) as asked (card_id)
          where not exists (select from cardbox.cards c where c.project_id = $1 and c.card_id = asked.card_id offset 0)",
    )
    .bind(project_id)
    .bind(card_ids)
    .fetch_all(&mut **work)
    .await?;
    Ok(Error::CardsNotFound(unknown))
}

/// Lists every place where a card stands, directly or by range, in the order of box and place.
pub async fn holdings(
    work: &mut UnitOfWork,
    card_id: CardId,
    after: Option<Holding>,
    most: i64,
) -> Result<Vec<Holding>, Error> {
    let project_id = work.project_id();
    let held = sqlx::query_as(
        "select box_id, place
           from cardbox.holdings($1, $2)
          where $3::uuid is null or (box_id, place) > ($3, $4)
          order by box_id, place
          limit $5",
    )
    .bind(project_id)
    .bind(card_id)
    .bind(after.map(|holding| holding.box_id))
    .bind(after.map(|holding| holding.place))
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(held)
}

/// Lists the boxes that hold a card, in the order of their ids, each with the first place where the card stands in it.
pub async fn holders(
    work: &mut UnitOfWork,
    card_id: CardId,
    after: Option<BoxId>,
    most: i64,
) -> Result<Vec<Holding>, Error> {
    let project_id = work.project_id();
    let held = sqlx::query_as(
        "select p.box_id, min(p.place) as place
           from (select h.box_id, h.place from cardbox.holdings($1, $2) h offset 0) p
          where $3::uuid is null or p.box_id > $3
          group by p.box_id
          order by p.box_id
          limit $4",
    );
    Ok(held.bind(project_id).bind(card_id).bind(after).bind(most).fetch_all(&mut **work).await?)
}

/// An entry of a box: one card, or a range of another box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, sqlx::FromRow, utoipa::ToSchema)]
#[schema(as = BoxEntry)]
pub struct Entry {
    /// The place of its first card in the box.
    pub seq: i64,
    /// The card, where it is one card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card_id: Option<CardId>,
    /// The box that it takes a range from, and the first and the last place there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_box_id: Option<BoxId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_seq: Option<i64>,
}

/// Lists the entries of a box, in order.
pub async fn entries(work: &mut UnitOfWork, box_id: BoxId, after: i64, most: i64) -> Result<Vec<Entry>, Error> {
    let project_id = work.project_id();
    let entries = sqlx::query_as(
        "select e.seq, e.card_id, e.source_box_id, e.from_seq, e.to_seq
           from cardbox.box_entries e
          where e.project_id = $1 and e.box_id = $2 and e.seq > $3
          order by e.seq
          limit $4",
    );
    Ok(entries.bind(project_id).bind(box_id).bind(after).bind(most).fetch_all(&mut **work).await?)
}

/// A range of a box in another box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, sqlx::FromRow, utoipa::ToSchema)]
pub struct Heir {
    /// The box that took the range, and the place of its first card there.
    pub box_id: BoxId,
    pub place: i64,
    /// The first and the last place of the range in the box that was asked for.
    pub from_seq: i64,
    pub to_seq: i64,
}

/// Lists the boxes that took ranges of a box, in the order of box and place.
pub async fn heirs(
    work: &mut UnitOfWork,
    box_id: BoxId,
    after: Option<Holding>,
    most: i64,
) -> Result<Vec<Heir>, Error> {
    let project_id = work.project_id();
    let heirs = sqlx::query_as(
        "select h.box_id, h.seq as place, h.from_seq, h.to_seq
           from (select e.box_id, e.seq, e.from_seq, e.to_seq
                   from cardbox.box_entries e
                  where e.source_box_id = $2 and e.project_id = $1
                 offset 0) h
          where (h.box_id, h.seq) > ($3, $4)
          order by h.box_id, h.seq
          limit $5",
    );
    let (after_box, after_place) = after.map_or((BoxId::nil(), 0), |heir| (heir.box_id, heir.place));
    let heirs = heirs.bind(project_id).bind(box_id).bind(after_box).bind(after_place).bind(most);
    Ok(heirs.fetch_all(&mut **work).await?)
}

/// Checks that positions count from 1. A span that ends before it begins, however far, is empty.
fn check(span: Span) -> Result<Span, Error> {
    if span.from < 1 { Err(Error::Span(span)) } else { Ok(Span { upto: span.upto.max(span.from - 1), ..span }) }
}

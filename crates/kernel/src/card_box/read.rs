//! Reading a span of a box.

use chrono::{DateTime, Utc};
use sqlx::{FromRow, Row, postgres::PgRow};
use waybill_core::{
    card::CardHash,
    card_box::{Origin, Placed, Span, without_repeats},
    id::CardId,
};

use super::{Error, check};
use crate::{
    card::{self, ReadingRow},
    offload,
    work::UnitOfWork,
};

/// Reads a span of a box, in order. For long boxes, page by page.
pub async fn read(work: &mut UnitOfWork, span: Span, as_of: Option<DateTime<Utc>>) -> Result<Vec<Placed>, Error> {
    let span = check(span)?;
    let project_id = work.project_id();
    // The references are sorted, not the cards: wide rows would spill to disk.
    let rows = sqlx::query(
        "select p.place, p.origin_box_id, p.origin_seq, r.*
           from cardbox.boxes b
           left join (
                lateral (select * from cardbox.places($1, $2, $3, least($4, b.length)) order by place offset 0) p
                cross join lateral cardbox.reading($1, p.card_id, coalesce($5, statement_timestamp())) r) on true
          where b.project_id = $1 and b.box_id = $2
          order by p.place",
    )
    .bind(project_id)
    .bind(span.box_id)
    .bind(span.from)
    .bind(span.upto)
    .bind(as_of)
    .fetch_all(&mut **work)
    .await?;
    if rows.is_empty() {
        return Err(Error::NotFound(span.box_id));
    }
    let rows: Vec<PlacedRow> = offload::decode(rows).await?;
    Ok(without_repeats(rows.into_iter().filter_map(|row| row.0)))
}

/// Lists the hashes of the cards of a span, ended or not, in order.
pub async fn hashes(work: &mut UnitOfWork, span: Span) -> Result<Vec<CardHash>, Error> {
    let span = check(span)?;
    let project_id = work.project_id();
    let hashes = sqlx::query_scalar(
        "select c.hash
           from (select * from cardbox.places($1, $2, $3, $4) order by place offset 0) p
          cross join lateral (select c.hash from cardbox.cards c where c.project_id = $1 and c.card_id = p.card_id offset 0) c
          order by p.place",
    )
    .bind(project_id)
    .bind(span.box_id)
    .bind(span.from)
    .bind(span.upto)
    .fetch_all(&mut **work)
    .await?;
    Ok(hashes)
}

/// Returns up to which place a part of a box has at most so many bytes: one card at least.
pub async fn within(work: &mut UnitOfWork, span: Span, n_bytes: i64) -> Result<i64, Error> {
    let span = check(span)?;
    let project_id = work.project_id();
    let places: Vec<(i64, CardId)> = sqlx::query_as(
        "select p.place, p.card_id
           from cardbox.boxes b
          cross join lateral cardbox.places($1, $2, $3, least($4, b.length)) p
          where b.project_id = $1 and b.box_id = $2
          order by p.place",
    )
    .bind(project_id)
    .bind(span.box_id)
    .bind(span.from)
    .bind(span.upto)
    .fetch_all(&mut **work)
    .await?;
    let card_ids: Vec<CardId> = places.iter().map(|(_, card_id)| *card_id).collect();
    let n = card::n_within(work, &card_ids, n_bytes).await?;
    Ok(if n < places.len() { places[n].0 - 1 } else { span.upto })
}

struct PlacedRow(Option<Placed>);

impl FromRow<'_, PgRow> for PlacedRow {
    fn from_row(row: &PgRow) -> sqlx::Result<PlacedRow> {
        let Some(place) = row.try_get("place")? else { return Ok(PlacedRow(None)) };
        let origin = Origin { box_id: row.try_get("origin_box_id")?, seq: row.try_get("origin_seq")? };
        Ok(PlacedRow(Some(Placed { place, origin, also: Vec::new(), reading: ReadingRow::from_row(row)?.0 })))
    }
}

//! Inheriting: a span of one box in other boxes, by reference.

use waybill_core::{card_box::Span, id::BoxId};

use super::{Error, check};
use crate::work::UnitOfWork;

/// A source of more runs than this is flattened once before many boxes inherit it.
pub const MOST_RUNS: i64 = 8;

/// Positions flattened by one statement: well below the statement timeout.
const FLATTEN_STEP: i64 = 100_000;

/// Appends a span of another box to a box, by reference; returns the box's new length.
/// What the box already holds of the same source is left out: on reading it would be a repeat.
pub async fn inherit(work: &mut UnitOfWork, box_id: BoxId, source: Span) -> Result<i64, Error> {
    let source = check(source)?;
    let project_id = work.project_id();
    // A separate statement: what the box holds may be read only after we have its lock.
    let lengths: Option<(i64, Option<i64>)> = sqlx::query_as(
        "select b.length, (select s.length from cardbox.boxes s where s.project_id = $1 and s.box_id = $3)
           from cardbox.boxes b
          where b.project_id = $1 and b.box_id = $2
            for no key update of b",
    )
    .bind(project_id)
    .bind(box_id)
    .bind(source.box_id)
    .fetch_optional(&mut **work)
    .await?;
    let (length, source_length) = lengths.ok_or(Error::NotFound(box_id))?;
    let upto = source.upto.min(source_length.ok_or(Error::NotFound(source.box_id))?);
    let grown: Option<i64> = sqlx::query_scalar(
        "with held as materialized (
           select source_box_id, range_agg(int8range(from_seq, to_seq, '[]')) as parts
             from cardbox.box_entries
            where project_id = $1 and box_id = $2 and source_box_id is not null
            group by source_box_id
         ), fresh as (
           select r.source_box_id, lower(part) as from_seq, upper(part) - 1 as to_seq,
                  sum(upper(part) - lower(part)) over (order by r.place, lower(part))::bigint as upto
             from cardbox.runs($1, $3, $4, $5) r
             left join held on held.source_box_id = r.source_box_id
            cross join lateral unnest(
                    int8multirange(int8range(r.from_seq, r.to_seq, '[]')) - coalesce(held.parts, '{}')) as part
            where r.source_box_id <> $2
         ), entries as (
           insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq)
           select $1, $2, $6 + upto - (to_seq - from_seq), source_box_id, from_seq, to_seq
             from fresh
         )
         update cardbox.boxes b
            set length = $6 + (select max(upto) from fresh)
          where b.project_id = $1 and b.box_id = $2 and exists (select from fresh)
      returning b.length",
    )
    .bind(project_id)
    .bind(box_id)
    .bind(source.box_id)
    .bind(source.from)
    .bind(upto)
    .bind(length)
    .fetch_optional(&mut **work)
    .await?;
    Ok(grown.unwrap_or(length))
}

/// Creates boxes that begin with a span of another box, by reference: one entry per run in each, whatever its length.
/// For many boxes, [`share`] the source first.
pub async fn create_from(work: &mut UnitOfWork, box_ids: &[BoxId], source: Span) -> Result<(), Error> {
    let source = check(source)?;
    let project_id = work.project_id();
    let found: Option<i64> = sqlx::query_scalar(
        "with source as materialized (
           select least(length, $5) as upto
             from cardbox.boxes
            where project_id = $1 and box_id = $3
         ), made as (
           insert into cardbox.boxes (project_id, box_id, length)
           select $1, unnest($2::uuid[]), greatest(source.upto - $4::bigint + 1, 0)
             from source
         ), entries as (
           insert into cardbox.box_entries (project_id, box_id, seq, source_box_id, from_seq, to_seq)
           select $1, heir.box_id, r.place - $4::bigint + 1, r.source_box_id, r.from_seq, r.to_seq
             from source
            cross join lateral cardbox.runs($1, $3, $4, source.upto) r
            cross join unnest($2::uuid[]) as heir (box_id)
         )
         select upto from source",
    )
    .bind(project_id)
    .bind(box_ids)
    .bind(source.box_id)
    .bind(source.from)
    .bind(source.upto)
    .fetch_optional(&mut **work)
    .await?;
    found.map(|_| ()).ok_or(Error::NotFound(source.box_id))
}

/// Returns a span with the same cards that many boxes can inherit cheaply: the source itself, or, where it has more
/// than [`MOST_RUNS`] runs, a new box that holds its cards one by one.
pub async fn share(work: &mut UnitOfWork, source: Span) -> Result<Span, Error> {
    let source = check(source)?;
    let project_id = work.project_id();
    let counted: Option<(i64, i64)> = sqlx::query_as(
        "select least(b.length, $4), (select count(*) from cardbox.runs($1, $2, $3, least(b.length, $4)))
           from cardbox.boxes b
          where b.project_id = $1 and b.box_id = $2",
    )
    .bind(project_id)
    .bind(source.box_id)
    .bind(source.from)
    .bind(source.upto)
    .fetch_optional(&mut **work)
    .await?;
    let (upto, runs) = counted.ok_or(Error::NotFound(source.box_id))?;
    let source = Span { upto, ..source };
    if runs <= MOST_RUNS {
        return Ok(source);
    }
    let flat = Span::prefix(BoxId::new(), source.upto - source.from + 1);
    sqlx::query("insert into cardbox.boxes (project_id, box_id, length, is_shared) values ($1, $2, $3, true)")
        .bind(project_id)
        .bind(flat.box_id)
        .bind(flat.upto)
        .execute(&mut **work)
        .await?;
    let mut from = source.from;
    while from <= source.upto {
        let upto = source.upto.min(from + FLATTEN_STEP - 1);
        sqlx::query(
            "insert into cardbox.box_entries (project_id, box_id, seq, card_id)
             select $1, $2, p.place - $6 + 1, p.card_id
               from cardbox.places($1, $3, $4, $5) p",
        )
        .bind(project_id)
        .bind(flat.box_id)
        .bind(source.box_id)
        .bind(from)
        .bind(upto)
        .bind(source.from)
        .execute(&mut **work)
        .await?;
        from = upto + 1;
    }
    Ok(flat)
}

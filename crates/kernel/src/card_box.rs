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
use sqlx::{FromRow, Row, postgres::PgRow};
use waybill_core::{
    card::Reading,
    card_box::{Origin, Placed, Span, without_repeats},
    id::{BoxId, CardId, SessionId},
    tokens::Tokens,
};

use crate::{
    card::{self, Batch, ReadingRow},
    offload,
    work::UnitOfWork,
};

/// A source of more runs than this is flattened once before many boxes inherit it.
pub const MOST_RUNS: i64 = 8;

/// Positions flattened by one statement: well below the statement timeout.
const FLATTEN_STEP: i64 = 100_000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("box {0} not found")]
    NotFound(BoxId),
    #[error("cards not found: {0:?}")]
    CardsNotFound(Vec<CardId>),
    #[error("positions {} to {} of box {} are not a span: positions count from 1", .0.from, .0.upto, .0.box_id)]
    Span(Span),
    #[error("database")]
    Db(#[from] sqlx::Error),
}

/// A box without its cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, sqlx::FromRow, utoipa::ToSchema)]
pub struct CardBox {
    pub box_id: BoxId,
    pub length: i64,
    pub created_at: DateTime<Utc>,
}

/// What a turn gets to see of a box: its head, its newest tail, and what was left out in between.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Hydrated {
    /// How long the box was.
    pub length: i64,
    /// The time as of which it was read: the one asked for, or the database's. A card whose end was written before this and
    /// committed after is live here and gone when read again as of this time: a receipt also names what was gone.
    pub as_of: DateTime<Utc>,
    pub cards: Vec<Placed>,
    /// The positions that were left out, because the budget could not hold them or nothing live was left in them.
    pub omitted: Option<Span>,
}

/// What may be read for a turn.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// How many of the first cards are always read.
    pub pinned: i64,
    /// How many tokens head and tail may have together. The head is read even where it has more.
    pub budget: Tokens,
    /// Cards that had ended by then are gone. `None` means now, by the database's clock.
    pub as_of: Option<DateTime<Utc>>,
}

/// What else is read in the same statement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside<'a> {
    /// Read whole.
    pub output_box_id: Option<BoxId>,
    pub card_ids: &'a [CardId],
    pub session_id: Option<SessionId>,
}

/// What was read beside the box.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Besides {
    pub output: Vec<Placed>,
    /// In any order.
    pub cards: Vec<Reading>,
    /// The session's box, if there is a session.
    pub messages_box_id: Option<BoxId>,
    pub todo: Option<Reading>,
    pub compression: Option<Reading>,
    /// The first `task.result_fields` that was put into the context box itself, near its beginning, where packing puts it.
    pub fields: Option<Reading>,
}

/// A place where a card stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, sqlx::FromRow)]
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

/// Looks up boxes.
pub async fn find(work: &mut UnitOfWork, box_ids: &[BoxId]) -> Result<Batch<CardBox, BoxId>, Error> {
    let project_id = work.project_id();
    let rows = sqlx::query_as::<_, CardBox>(
        "select b.box_id, b.length, b.created_at
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
    sqlx::query("insert into cardbox.boxes (project_id, box_id, length) values ($1, $2, $3)")
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

/// Reads what a turn may see of a prefix of a box: the pinned head and the newest tail that the budget can hold.
pub async fn hydrate(
    work: &mut UnitOfWork,
    box_id: BoxId,
    upto: Option<i64>,
    window: Window,
) -> Result<Hydrated, Error> {
    Ok(hydrate_beside(work, box_id, upto, window, &Beside::default()).await?.0)
}

/// Reads the same, and what else a model call is made of. One statement, whose cost follows the budget and not the length of the box.
pub async fn hydrate_beside(
    work: &mut UnitOfWork,
    box_id: BoxId,
    upto: Option<i64>,
    window: Window,
    beside: &Beside<'_>,
) -> Result<(Hydrated, Besides), Error> {
    let project_id = work.project_id();
    // `walk` goes back from the end in chunks of 128 positions until their cards have more tokens than the budget, or
    // until 4,096 positions in a row held nothing live. `kept` cuts at the exact card. A repeat costs nothing: in the
    // walk within its chunk, in the cut for good; nor does what stands in the head already.
    let rows: Vec<HydratedRow> = sqlx::query_as(
        "with recursive
         b as materialized (
           select least(length, $3) as length, least(length, $3, $4) as pinned, coalesce($6, statement_timestamp()) as as_of
             from cardbox.boxes
            where project_id = $1 and box_id = $2
         ),
         head as materialized (
           select coalesce(sum(n_tokens), 0) as n_tokens, array_agg(card_id) as card_ids
             from (select distinct p.card_id, case when r.gone_at is null then r.n_tokens else 0 end as n_tokens
                     from b
                    cross join lateral cardbox.places($1, $2, 1, b.pinned) p
                    cross join lateral cardbox.reading($1, p.card_id, b.as_of) r) pinned
         ),
         walk as (
           select b.length + 1 as lo, head.n_tokens as spent, 0 as idle
             from b, head
            union all
           select greatest(w.lo - 128, b.pinned + 1), w.spent + chunk.n_tokens,
                  case when chunk.n_live > 0 then 0 else w.idle + 128 end
             from walk w
            cross join b
            cross join lateral (
                  select coalesce(sum(live.n_tokens), 0) as n_tokens, count(*) as n_live
                    from (select distinct p.card_id, r.n_tokens
                            from cardbox.places($1, $2, greatest(w.lo - 128, b.pinned + 1), w.lo - 1) p
                           cross join lateral cardbox.reading($1, p.card_id, b.as_of) r
                           where r.gone_at is null) live) chunk
            where w.lo > b.pinned + 1 and w.spent <= $5 and w.idle < 4096
         ),
         tail as materialized (
           select min(lo) as lo from walk
         ),
         kept as (
           select p.*
             from b
            cross join lateral cardbox.places($1, $2, 1, b.pinned) p
            union all
           select cut.place, cut.card_id, cut.origin_box_id, cut.origin_seq
             from (select costs.place, costs.card_id, costs.origin_box_id, costs.origin_seq,
                          costs.head_tokens + sum(costs.n_tokens) over (order by costs.place desc) as spent
                     from (select p.*, head.n_tokens as head_tokens,
                                  case when r.gone_at is null
                                        and row_number() over (partition by p.card_id order by p.place desc) = 1
                                        and p.card_id <> all (coalesce(head.card_ids, '{}'))
                                       then r.n_tokens else 0 end as n_tokens
                             from b
                            cross join head
                            cross join tail
                            cross join lateral cardbox.places($1, $2, tail.lo, b.length) p
                            cross join lateral cardbox.reading($1, p.card_id, b.as_of) r) costs) cut
            where cut.spent <= $5
         )
         select 'context' as part, b.length, b.pinned, b.as_of, k.place, k.origin_box_id, k.origin_seq, r.*
           from b
           left join (
                kept k
                cross join lateral cardbox.reading($1, k.card_id, b.as_of) r) on true
          union all
         select 'output', b.length, b.pinned, b.as_of, p.place, p.origin_box_id, p.origin_seq, r.*
           from b
          cross join lateral (select o.length from cardbox.boxes o where o.project_id = $1 and o.box_id = $7) o
          cross join lateral cardbox.places($1, $7, 1, o.length) p
          cross join lateral cardbox.reading($1, p.card_id, b.as_of) r
          union all
         select 'card', b.length, b.pinned, b.as_of, asked.n, null, null, r.*
           from b
          cross join unnest($8::uuid[]) with ordinality as asked (card_id, n)
          cross join lateral cardbox.reading($1, asked.card_id, b.as_of) r
          union all
         select 'fields', b.length, b.pinned, b.as_of, own.seq, null, null, r.*
           from b
          cross join lateral (
                select e.seq, e.card_id
                  from cardbox.box_entries e
                 where $7::uuid is not null and e.project_id = $1 and e.box_id = $2 and e.seq <= 32 and e.card_id is not null
                offset 0) own
          cross join lateral cardbox.reading($1, own.card_id, b.as_of) r
          where r.type = 'task.result_fields' and r.gone_at is null
          union all
         select said.part, b.length, b.pinned, b.as_of, null, s.messages_box_id, null, r.*
           from b
           join state.blackboards s on s.project_id = $1 and s.session_id = $9
          cross join lateral (values ('session', null), ('todo', s.todo_card_id), ('compression', s.compression_card_id))
                as said (part, card_id)
           left join lateral cardbox.reading($1, said.card_id, b.as_of) r on true
          where said.part = 'session' or r.card_id is not null",
    )
    .bind(project_id)
    .bind(box_id)
    .bind(upto.unwrap_or(i64::MAX).max(0))
    .bind(window.pinned.max(0))
    .bind(window.budget)
    .bind(window.as_of)
    .bind(beside.output_box_id)
    .bind(beside.card_ids)
    .bind(beside.session_id)
    .fetch_all(&mut **work)
    .await?;
    let Some(&HydratedRow { length, pinned, as_of, .. }) = rows.first() else { return Err(Error::NotFound(box_id)) };
    let at = |place, origin, reading| Placed { place, origin, also: Vec::new(), reading };
    let (mut besides, mut fields) = (Besides::default(), Vec::new());
    let mut context: Vec<Placed> = Vec::with_capacity(rows.len());
    for HydratedRow { part, place, origin, reading, .. } in rows {
        match (part.as_str(), place, origin, reading) {
            ("context", Some(place), Some(origin), Some(reading)) => context.push(at(place, origin, reading)),
            ("output", Some(place), Some(origin), Some(reading)) => besides.output.push(at(place, origin, reading)),
            ("card", _, _, Some(reading)) => besides.cards.push(reading),
            ("fields", Some(place), _, Some(reading)) => fields.push((place, reading)),
            ("todo", _, _, reading) => besides.todo = reading,
            ("compression", _, _, reading) => besides.compression = reading,
            ("session", _, Some(origin), _) => besides.messages_box_id = Some(origin.box_id),
            _ => {}
        }
    }
    besides.fields = fields.into_iter().min_by_key(|(place, _)| *place).map(|(_, reading)| reading);
    // Sorted here: there, whole cards would be sorted, and spill to disk.
    context.sort_unstable_by_key(|placed| placed.place);
    besides.output.sort_unstable_by_key(|placed| placed.place);
    besides.output = without_repeats(besides.output);
    let (head, tail): (Vec<Placed>, Vec<Placed>) = context.into_iter().partition(|placed| placed.place <= pinned);
    // Ended cards before the first live card of the tail are of no use.
    let tail: Vec<Placed> = tail.into_iter().skip_while(|placed| matches!(placed.reading, Reading::Gone(_))).collect();
    let tail_from = tail.first().map_or(length + 1, |placed| placed.place);
    let omitted = Span { box_id, from: pinned + 1, upto: tail_from - 1 };
    let hydrated = Hydrated {
        length,
        as_of,
        cards: without_repeats(head.into_iter().chain(tail)),
        omitted: (omitted.from <= omitted.upto).then_some(omitted),
    };
    Ok((hydrated, besides))
}

/// What a session pointed to when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointers {
    pub session_id: SessionId,
    pub messages_box_id: BoxId,
    pub todo_card_id: Option<CardId>,
    pub compression_card_id: Option<CardId>,
}

/// Checks whether what was hydrated at `read_at` would be read the same now: no card of the project has ended since, the output box is as long as
/// we made it, and the session points to the same. Returns the time of the check if so.
pub async fn still_holds(
    work: &mut UnitOfWork,
    read_at: DateTime<Utc>,
    output: Span,
    session: Option<Pointers>,
) -> Result<Option<DateTime<Utc>>, Error> {
    let project_id = work.project_id();
    // An end is dated when its transaction begins, and visible when it commits: no transaction takes longer than this.
    let as_of = sqlx::query_scalar(
        "select statement_timestamp()
          where (select least(c.expires_at, c.deleted_at, c.erased_at)
                   from cardbox.cards c
                  where c.project_id = $1 and least(c.expires_at, c.deleted_at, c.erased_at) > $2::timestamptz - interval '15 seconds'
                    and least(c.expires_at, c.deleted_at, c.erased_at) <= statement_timestamp()
                    and (c.expires_at is not null or c.deleted_at is not null or c.erased_at is not null)
                  -- In the order of the index of ends, so that it is the one that is read.
                  order by least(c.expires_at, c.deleted_at, c.erased_at)
                  limit 1) is null
            and exists (select from cardbox.boxes o where o.project_id = $1 and o.box_id = $7 and o.length = $8)
            and ($3::uuid is null
                 or exists (select from state.blackboards b
                             where b.project_id = $1 and b.session_id = $3 and b.messages_box_id = $4
                               and b.todo_card_id is not distinct from $5 and b.compression_card_id is not distinct from $6))",
    )
    .bind(project_id)
    .bind(read_at)
    .bind(session.map(|session| session.session_id))
    .bind(session.map(|session| session.messages_box_id))
    .bind(session.and_then(|session| session.todo_card_id))
    .bind(session.and_then(|session| session.compression_card_id))
    .bind(output.box_id)
    .bind(output.upto)
    .fetch_optional(&mut **work)
    .await?;
    Ok(as_of)
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

/// Checks that positions count from 1. A span that ends before it begins, however far, is empty.
fn check(span: Span) -> Result<Span, Error> {
    if span.from < 1 { Err(Error::Span(span)) } else { Ok(Span { upto: span.upto.max(span.from - 1), ..span }) }
}

struct PlacedRow(Option<Placed>);

impl FromRow<'_, PgRow> for PlacedRow {
    fn from_row(row: &PgRow) -> sqlx::Result<PlacedRow> {
        let Some(place) = row.try_get("place")? else { return Ok(PlacedRow(None)) };
        let origin = Origin { box_id: row.try_get("origin_box_id")?, seq: row.try_get("origin_seq")? };
        Ok(PlacedRow(Some(Placed { place, origin, also: Vec::new(), reading: ReadingRow::from_row(row)?.0 })))
    }
}

struct HydratedRow {
    part: String,
    length: i64,
    pinned: i64,
    as_of: DateTime<Utc>,
    place: Option<i64>,
    origin: Option<Origin>,
    reading: Option<Reading>,
}

impl FromRow<'_, PgRow> for HydratedRow {
    fn from_row(row: &PgRow) -> sqlx::Result<HydratedRow> {
        let box_id: Option<BoxId> = row.try_get("origin_box_id")?;
        let seq: Option<i64> = row.try_get("origin_seq")?;
        let card_id: Option<CardId> = row.try_get("card_id")?;
        Ok(HydratedRow {
            part: row.try_get("part")?,
            length: row.try_get("length")?,
            pinned: row.try_get("pinned")?,
            as_of: row.try_get("as_of")?,
            place: row.try_get("place")?,
            origin: box_id.map(|box_id| Origin { box_id, seq: seq.unwrap_or(0) }),
            reading: card_id.is_some().then(|| ReadingRow::from_row(row)).transpose()?.map(|row| row.0),
        })
    }
}

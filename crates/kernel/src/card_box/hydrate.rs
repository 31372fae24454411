//! Hydrating: what a turn may see of a box, within a budget, and what else its model call is made of.

use chrono::{DateTime, Utc};
use sqlx::{
    FromRow, Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::QueryAs,
};
use waybill_core::{
    card::Reading,
    card_box::{Origin, Placed, Span, without_repeats},
    id::{BoxId, CardId, SessionId},
    tokens::Tokens,
};

use super::Error;
use crate::{card::ReadingRow, work::UnitOfWork};

/// What a turn gets to see of a box: its head, its newest tail, and what was left out in between.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Hydrated {
    /// How long the box was.
    pub length: i64,
    /// The time as of which it was read: the one asked for, or the database's. A deletion that was in progress at this time may not be visible
    /// yet: the card is live here, and gone in a later read as of the same time. That is why a receipt also lists cards that were gone.
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
pub struct Also<'a> {
    /// Read whole.
    pub output_box_id: Option<BoxId>,
    pub card_ids: &'a [CardId],
    pub session_id: Option<SessionId>,
}

/// What was read with the box.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlsoRead {
    pub output: Vec<Placed>,
    /// In any order.
    pub cards: Vec<Reading>,
    /// The session's box, if there is a session.
    pub messages_box_id: Option<BoxId>,
    pub todo: Option<Reading>,
    pub compression: Option<Reading>,
    /// The first `task.result_fields` or `task.result_schema` that was put into the context box itself, near its beginning, where packing puts it.
    pub result_form: Option<Reading>,
}

/// Reads what a turn may see of a prefix of a box: the pinned head and the newest tail that the budget can hold.
pub async fn hydrate(
    work: &mut UnitOfWork,
    box_id: BoxId,
    upto: Option<i64>,
    window: Window,
) -> Result<Hydrated, Error> {
    Ok(hydrate_with(work, box_id, upto, window, &Also::default()).await?.0)
}

/// Reads the same, and what else a model call is made of. One statement, whose cost follows the budget and not the length of the box.
pub async fn hydrate_with(
    work: &mut UnitOfWork,
    box_id: BoxId,
    upto: Option<i64>,
    window: Window,
    also: &Also<'_>,
) -> Result<(Hydrated, AlsoRead), Error> {
    let project_id = work.project_id();
    let rows = hydration()
        .bind(project_id)
        .bind(box_id)
        .bind(upto.unwrap_or(i64::MAX).max(0))
        .bind(window.pinned.max(0))
        .bind(window.budget)
        .bind(window.as_of)
        .bind(also.output_box_id)
        .bind(also.card_ids)
        .bind(also.session_id)
        .fetch_all(&mut **work)
        .await?;
    let Some(&HydratedRow { length, pinned, as_of, .. }) = rows.first() else { return Err(Error::NotFound(box_id)) };
    let (context, also_read) = by_part(rows);
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
    Ok((hydrated, also_read))
}

/// Returns the statement of [`hydrate_with`], which binds its arguments.
///
/// `walk` goes back from the end in chunks of 128 positions until their cards have more tokens than the budget, or
/// until 4,096 positions in a row held nothing live. `kept` cuts at the exact card, and counts each card
/// once and none that the head already holds. The walk only avoids counting a card twice within a chunk.
fn hydration<'q>() -> QueryAs<'q, Postgres, HydratedRow, PgArguments> {
    sqlx::query_as(
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
         select 'form', b.length, b.pinned, b.as_of, own.seq, null, null, r.*
           from b
          cross join lateral (
                select e.seq, e.card_id
                  from cardbox.box_entries e
                 where $7::uuid is not null and e.project_id = $1 and e.box_id = $2 and e.seq <= 32 and e.card_id is not null
                offset 0) own
          cross join lateral cardbox.reading($1, own.card_id, b.as_of) r
          where r.type in ('task.result_fields', 'task.result_schema') and r.gone_at is null
          union all
         select said.part, b.length, b.pinned, b.as_of, null, s.messages_box_id, null, r.*
           from b
           join state.blackboards s on s.project_id = $1 and s.session_id = $9
          cross join lateral (values ('session', null), ('todo', s.todo_card_id), ('compression', s.compression_card_id))
                as said (part, card_id)
           left join lateral cardbox.reading($1, said.card_id, b.as_of) r on true
          where said.part = 'session' or r.card_id is not null",
    )
}

/// Sorts rows by the part of the statement that they come from. Returns the cards of the context box in order, and what was read with it.
fn by_part(rows: Vec<HydratedRow>) -> (Vec<Placed>, AlsoRead) {
    let at = |place, origin, reading| Placed { place, origin, also: Vec::new(), reading };
    let (mut also_read, mut forms) = (AlsoRead::default(), Vec::new());
    let mut context: Vec<Placed> = Vec::with_capacity(rows.len());
    for HydratedRow { part, place, origin, reading, .. } in rows {
        match (part.as_str(), place, origin, reading) {
            ("context", Some(place), Some(origin), Some(reading)) => context.push(at(place, origin, reading)),
            ("output", Some(place), Some(origin), Some(reading)) => also_read.output.push(at(place, origin, reading)),
            ("card", _, _, Some(reading)) => also_read.cards.push(reading),
            ("form", Some(place), _, Some(reading)) => forms.push((place, reading)),
            ("todo", _, _, reading) => also_read.todo = reading,
            ("compression", _, _, reading) => also_read.compression = reading,
            ("session", _, Some(origin), _) => also_read.messages_box_id = Some(origin.box_id),
            _ => {}
        }
    }
    also_read.result_form = forms.into_iter().min_by_key(|(place, _)| *place).map(|(_, reading)| reading);
    // Sorted here: there, whole cards would be sorted, and spill to disk.
    context.sort_unstable_by_key(|placed| placed.place);
    also_read.output.sort_unstable_by_key(|placed| placed.place);
    also_read.output = without_repeats(also_read.output);
    (context, also_read)
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
    // An end is dated when its transaction begins, and visible when it commits: Waybill's own transactions commit within these seconds.
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

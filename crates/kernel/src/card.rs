//! Cards in the database: written once, read by id, ended but never changed (CB-1 … CB-6, CB-10, CB-11, CB-13).
//!
//! ```text
//!            insert                expire, delete            erase
//!   draft ──────────────▶ live ──────────────────▶ ended ───────────▶ erased
//!                          │                                            ▲
//!                          └────────────────────────────────────────────┘
//! ```
//! An ended or erased card is not hydrated; it answers an audit read with a tombstone.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};
use sqlx::{
    FromRow, PgConnection, Row,
    postgres::{PgDatabaseError, PgRow},
};
use waybill_core::{
    card::{Card, CardHash, CardType, Content, Gone, Metadata, NewCard, Origin, Reading, Tombstone},
    id::{CardId, ProjectId, StepId, ToolCallId, TraceId},
};

use crate::{
    offload,
    work::{DbError, UnitOfWork, from_driver},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("card {0} already exists with different content: a card cannot be changed, so use a new id")]
    Conflict(CardId),
    #[error("card {0} has type `{1}`, but only Waybill itself writes cards of type `sys.*`: use another type")]
    Shared(CardId, CardType),
    #[error("card {0} has expired or was deleted: use a new id to write its content again")]
    Ended(CardId),
    #[error("cards not found: {0:?}")]
    NotFound(Vec<CardId>),
    #[error("these cards already have an expiry time, or are shared and cannot expire: {0:?}")]
    EndIsSet(Vec<CardId>),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// What a batch read found, in the order asked for and without repeats, and what it did not find.
#[derive(Clone, Debug)]
pub struct Batch<T, Id> {
    pub found: Vec<T>,
    pub missing: Vec<Id>,
}

impl<T, Id: Copy + Eq + std::hash::Hash> Batch<T, Id> {
    /// Sorts what came back, in any order, into the order in which it was asked for.
    pub(crate) fn in_order(asked: &[Id], rows: Vec<T>, id: impl Fn(&T) -> Id) -> Batch<T, Id> {
        let mut rows: HashMap<Id, T> = rows.into_iter().map(|row| (id(&row), row)).collect();
        let mut seen = HashSet::new();
        let mut batch = Batch { found: Vec::with_capacity(rows.len()), missing: Vec::new() };
        for id in asked.iter().copied().filter(|id| seen.insert(*id)) {
            match rows.remove(&id) {
                Some(row) => batch.found.push(row),
                None => batch.missing.push(id),
            }
        }
        batch
    }
}

/// Writes cards. Writing the same card again changes nothing; the same id with other content is a conflict.
pub async fn insert(work: &mut UnitOfWork, cards: &[NewCard]) -> Result<(), Error> {
    if let Some(card) = cards.iter().find(|card| card.metadata().card_type.is_system()) {
        return Err(Error::Shared(card.card_id(), card.metadata().card_type.clone()));
    }
    let query = sqlx::query_scalar::<_, i64>("select cardbox.put_many(p_project => $1, p_cards => $2)")
        .bind(work.project_id())
        .bind(cards);
    let written = query.fetch_one(&mut **work).await?;
    if usize::try_from(written) == Ok(cards.len()) { Ok(()) } else { check_replay(work, cards).await }
}

/// Writes `sys.*` cards, which exist once per project and content; returns the ids under which they exist.
pub async fn intern(work: &mut UnitOfWork, cards: &[NewCard]) -> Result<Vec<CardId>, Error> {
    let mut known = find_by_content(work, cards).await?;
    let mut unknown: Vec<NewCard> = cards.iter().filter(|card| !known.contains_key(&card.hash())).cloned().collect();
    if !unknown.is_empty() {
        // The same order for all writers, so that two writers of the same set cannot wait for each other.
        unknown.sort_by_key(|card| *card.hash().as_bytes());
        write_shared(work, &unknown).await?;
        known = find_by_content(work, cards).await?;
    }
    if let Some(card) = cards.iter().find(|card| !known.contains_key(&card.hash())) {
        // Its id is taken: by other content, or by the same content that has ended since.
        check_replay(work, std::slice::from_ref(card)).await?;
        return Err(work.refuse(Error::Ended(card.card_id())));
    }
    Ok(cards.iter().map(|card| known[&card.hash()]).collect())
}

/// Writes cards that exist once for each content.
async fn write_shared(work: &mut UnitOfWork, cards: &[NewCard]) -> Result<(), Error> {
    let project_id = work.project_id();
    let insert = sqlx::query(
        "insert into cardbox.cards
                (project_id, card_id, n_tokens, type, role, author_id, hash, salt, tool_call_id, trace_id,
                 step_id, parent_step_id, ttl_seconds, expires_at, content, tool_calls, metadata, content_addressed)
         select r.*, true
           from cardbox.rows(p_project => $1, p_cards => $2) r
             on conflict do nothing",
    )
    .bind(project_id)
    .bind(cards);
    insert.execute(&mut **work).await?;
    Ok(())
}

/// Checks in a later statement, because the insert may have waited for a writer that its own snapshot cannot see.
async fn check_replay(work: &mut UnitOfWork, cards: &[NewCard]) -> Result<(), Error> {
    let query = sqlx::query_scalar("select cardbox.conflicting(p_project => $1, p_cards => $2)");
    let query = query.bind(work.project_id()).bind(cards);
    let conflicting: Option<CardId> = query.fetch_one(&mut **work).await?;
    conflicting.map_or(Ok(()), |card_id| Err(work.refuse(Error::Conflict(card_id))))
}

async fn find_by_content(work: &mut UnitOfWork, cards: &[NewCard]) -> Result<HashMap<CardHash, CardId>, Error> {
    let project_id = work.project_id();
    let known = sqlx::query_as::<_, (CardHash, CardId)>(
        "select c.hash, c.card_id
           from unnest($2::bytea[]) as asked (hash)
          cross join lateral (
                select c.hash, c.card_id
                  from cardbox.cards c
                 where c.project_id = $1 and c.hash = asked.hash
                   and c.content_addressed and c.deleted_at is null and c.erased_at is null
                offset 0) c",
    )
    .bind(project_id)
    .bind(cards.iter().map(|card| card.hash().as_bytes().to_vec()).collect::<Vec<_>>())
    .fetch_all(&mut **work)
    .await?;
    Ok(known.into_iter().collect())
}

/// Reads cards by id, as they were at `as_of` (`None` means now). A card that has ended is read as a tombstone.
pub async fn fetch(
    work: &mut UnitOfWork,
    card_ids: &[CardId],
    as_of: Option<DateTime<Utc>>,
) -> Result<Batch<Reading, CardId>, Error> {
    let project_id = work.project_id();
    let rows = sqlx::query(
        "select r.*
           from (select distinct card_id from unnest($2::uuid[]) as asked (card_id)) asked
          cross join lateral cardbox.reading($1, asked.card_id, coalesce($3, statement_timestamp())) r",
    )
    .bind(project_id)
    .bind(card_ids)
    .bind(as_of)
    .fetch_all(&mut **work)
    .await?;
    let readings = offload::decode::<ReadingRow>(rows).await?.into_iter().map(|row| row.0).collect();
    Ok(Batch::in_order(card_ids, readings, Reading::card_id))
}

/// Cards that were compared with their hashes.
#[derive(Debug)]
pub struct Hashed {
    pub last: CardId,
    pub n_cards: usize,
    /// Those that someone has changed in the database.
    pub changed: Vec<CardId>,
}

/// Compares up to `most` cards of the project with their hashes, in the order of their ids. What was erased has nothing left to compare. `None` means
/// that no card comes after `after`.
pub async fn check_hashes(work: &mut UnitOfWork, after: Option<CardId>, most: i64) -> Result<Option<Hashed>, DbError> {
    let project_id = work.project_id();
    let rows = sqlx::query(
        "select r.*
           from (select c.card_id from cardbox.cards c where c.project_id = $1 and c.card_id > $2 order by c.card_id limit $3) c
          cross join lateral cardbox.reading($1, c.card_id, '-infinity') r
          order by r.card_id",
    );
    let rows = rows.bind(project_id).bind(after.unwrap_or(CardId::nil())).bind(most).fetch_all(&mut **work).await?;
    let checked = offload::decode::<HashRow>(rows).await?;
    let changed = checked.iter().filter(|card| !card.verifies).map(|card| card.card_id).collect();
    Ok(checked.last().map(|last| Hashed { last: last.card_id, n_cards: checked.len(), changed }))
}

/// Sets when cards expire, once: a card that has an end keeps it.
pub async fn expire(work: &mut UnitOfWork, card_ids: &[CardId], ttl_seconds: i32) -> Result<(), Error> {
    let project_id = work.project_id();
    let set: Vec<CardId> = sqlx::query_scalar("select cardbox.expire($1, $2, $3)")
        .bind(project_id)
        .bind(card_ids)
        .bind(ttl_seconds)
        .fetch_one(&mut **work)
        .await?;
    let refused = absent(card_ids, &set);
    if refused.is_empty() {
        return Ok(());
    }
    let unknown = fetch(work, &refused, None).await?.missing;
    Err(work.refuse(if unknown.is_empty() { Error::EndIsSet(refused) } else { Error::NotFound(unknown) }))
}

/// Returns how many of these cards, from the first on, have at most so many bytes in all: one at least.
pub async fn n_within(work: &mut UnitOfWork, card_ids: &[CardId], n_bytes: i64) -> Result<usize, DbError> {
    let project_id = work.project_id();
    let n: i32 = sqlx::query_scalar("select cardbox.n_within($1, $2, $3)")
        .bind(project_id)
        .bind(card_ids)
        .bind(n_bytes)
        .fetch_one(&mut **work)
        .await?;
    Ok(usize::try_from(n).unwrap_or_default())
}

/// Takes cards out of every later hydration. Deleting twice changes nothing: the first reason stays.
pub async fn delete(work: &mut UnitOfWork, card_ids: &[CardId], reason: &str) -> Result<(), Error> {
    let project_id = work.project_id();
    let unknown: Vec<CardId> = sqlx::query_scalar("select cardbox.delete($1, $2, $3)")
        .bind(project_id)
        .bind(card_ids)
        .bind(reason)
        .fetch_one(&mut **work)
        .await?;
    if unknown.is_empty() { Ok(()) } else { Err(work.refuse(Error::NotFound(unknown))) }
}

/// Destroys the content of cards for good, on record. Takes the owner's connection: the service has no right to it.
pub async fn erase(
    owner: &mut PgConnection,
    project_id: ProjectId,
    card_ids: &[CardId],
    reason: &str,
) -> Result<Vec<Tombstone>, Error> {
    let rows = sqlx::query_as::<_, (CardId, CardHash, DateTime<Utc>, String)>(
        "select card_id, hash, erased_at, reason from cardbox.erase($1, $2, $3)",
    )
    .bind(project_id)
    .bind(card_ids)
    .bind(reason)
    .fetch_all(owner)
    .await
    .map_err(|error| not_found(&error).unwrap_or_else(|| error.into()))?;
    let tombstone = |(card_id, hash, gone_at, reason)| Tombstone { card_id, hash, gone_at, why: Gone::Erased(reason) };
    Ok(rows.into_iter().map(tombstone).collect())
}

/// `cardbox.erase` names what it did not find in the detail of its refusal, as an array.
fn not_found(error: &sqlx::Error) -> Option<Error> {
    let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    if error.code() != "WB012" {
        return None;
    }
    let ids = error.detail()?.trim_matches(['{', '}']).split(',');
    Some(Error::NotFound(ids.filter_map(|id| id.parse().ok()).collect()))
}

fn absent(asked: &[CardId], present: &[CardId]) -> Vec<CardId> {
    let present: HashSet<_> = present.iter().collect();
    asked.iter().filter(|id| !present.contains(id)).copied().collect()
}

/// A row of `cardbox.reading`, decoded straight into a [`Reading`]. Public so that baselines can decode in the same way.
pub struct ReadingRow(pub Reading);

impl FromRow<'_, PgRow> for ReadingRow {
    fn from_row(row: &PgRow) -> sqlx::Result<ReadingRow> {
        let card_id: CardId = row.try_get("card_id")?;
        let hash: CardHash = row.try_get("hash")?;
        if let Some(gone_at) = row.try_get("gone_at")? {
            let reason = row.try_get::<Option<String>, _>("gone_reason")?.unwrap_or_default();
            let why = match row.try_get("gone_why")? {
                "erased" => Gone::Erased(reason),
                "deleted" => Gone::Deleted(reason),
                _ => Gone::Expired,
            };
            return Ok(ReadingRow(Reading::Gone(Tombstone { card_id, hash, gone_at, why })));
        }
        let card_type: CardType = row.try_get("type")?;
        let content = Content::read_stored(&card_type, json_text(row, "content")?.unwrap_or("null"))
            .map_err(|error| malformed(card_id, "content", error))?;
        let tool_calls = match json_text(row, "tool_calls")? {
            Some(text) => serde_json::from_str(text).map_err(|error| malformed(card_id, "tool_calls", error))?,
            None => Vec::new(),
        };
        let extra = match json_text(row, "metadata")? {
            Some(text) => serde_json::from_str(text).map_err(|error| malformed(card_id, "metadata", error))?,
            None => Map::<String, Value>::new(),
        };
        let metadata = Metadata {
            card_type,
            role: row.try_get("role")?,
            author_id: row.try_get("author_id")?,
            trace_id: row.try_get::<Option<TraceId>, _>("trace_id")?,
            step_id: row.try_get::<Option<StepId>, _>("step_id")?,
            parent_step_id: row.try_get::<Option<StepId>, _>("parent_step_id")?,
            extra,
        };
        let origin = Origin::of(&metadata, row.try_get("is_external")?);
        Ok(ReadingRow(Reading::Live(Box::new(Card {
            origin,
            card_id,
            content,
            tool_calls,
            tool_call_id: row.try_get::<Option<ToolCallId>, _>("tool_call_id")?,
            metadata,
            ttl_seconds: row.try_get("ttl_seconds")?,
            expires_at: row.try_get("expires_at")?,
            created_at: row.try_get("created_at")?,
            hash,
            salt: row.try_get("salt")?,
            n_tokens: row.try_get("n_tokens")?,
        }))))
    }
}

/// Whether a card matches its hash. One that cannot be read as a card does not.
struct HashRow {
    card_id: CardId,
    verifies: bool,
}

impl FromRow<'_, PgRow> for HashRow {
    fn from_row(row: &PgRow) -> sqlx::Result<HashRow> {
        let verifies = match ReadingRow::from_row(row) {
            Ok(ReadingRow(Reading::Live(card))) => card.verifies(),
            Ok(ReadingRow(Reading::Gone(_))) => true,
            Err(_) => false,
        };
        Ok(HashRow { card_id: row.try_get("card_id")?, verifies })
    }
}

/// The stored JSON text as it stands in the row, without a parse in between.
fn json_text<'r>(row: &'r PgRow, column: &str) -> sqlx::Result<Option<&'r str>> {
    let raw = row.try_get_raw(column)?;
    if sqlx::ValueRef::is_null(&raw) {
        return Ok(None);
    }
    raw.as_str().map(Some).map_err(|source| sqlx::Error::ColumnDecode { index: column.to_owned(), source })
}

fn malformed(card_id: CardId, column: &str, source: serde_json::Error) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: format!("{column} of card {card_id}"), source: source.into() }
}

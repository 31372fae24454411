//! The index of bulk content: which upload stands at which path, in which version (HO-1, HO-5). The bytes themselves are in the object store.
//!
//! ```text
//!   begin ──▶ the bytes are streamed ──▶ finish: a version of a path ──▶ remove ──▶ collect, once no card speaks of it
//!     └────── given up, or never finished: the object is swept ◀──────────────────────────────┘
//! ```
//! An object has a row in `uploads` from before its first byte is written until a path names it: no object is ever forgotten in the store.

use std::{collections::BTreeSet, time::Duration};

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{FromRow, Row, postgres::PgRow};
use waybill_core::{
    artifact::{ArtifactHash, ArtifactPath, Pins, Stored},
    id::{CardId, ProjectId, TurnId, UploadId},
};

use crate::{
    resource,
    turn::{self, interval},
    work::{Kernel, UnitOfWork},
};

/// How long an upload may take.
pub const UPLOAD: Duration = Duration::from_secs(24 * 3600);
/// How long a reader of removed content may still take.
pub const GRACE: Duration = Duration::from_secs(3600);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the upload took too long and was cancelled: start it again")]
    GivenUp,
    #[error(
        "the artifact quota of the project is used up ({0}): remove artifacts, or raise `artifact_quota_bytes` in its settings"
    )]
    Quota(String),
    #[error(transparent)]
    Settings(#[from] resource::Error),
    #[error(transparent)]
    Db(turn::Error),
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Error {
        let refusal = error.as_database_error();
        match refusal.and_then(|error| error.code()).as_deref() {
            Some("WB404") => Error::GivenUp,
            Some("WB017") => {
                let refusal = refusal.and_then(|error| error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>());
                Error::Quota(refusal.and_then(|error| error.detail()).unwrap_or_default().to_owned())
            }
            _ => Error::Db(error.into()),
        }
    }
}

/// An artifact: one version of the content at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Artifact {
    pub path: ArtifactPath,
    pub version: i32,
    pub hash: ArtifactHash,
    pub media_type: String,
    pub size: i64,
    /// Number of tokens. `null` if the content is not text.
    pub n_tokens: Option<i64>,
    /// Whether `n_tokens` is an estimate. Large content is not counted: the number is estimated from its beginning.
    pub is_estimate: bool,
    /// Caller or agent that stored this version.
    pub author_id: Option<String>,
    pub created_at: DateTime<Utc>,
    /// Whether it is external content: it came from outside, or a turn that had seen external content wrote it.
    pub is_external: bool,
}

/// An artifact, and where its bytes are.
#[derive(Clone, Debug)]
pub struct Found {
    pub artifact: Artifact,
    pub upload_id: UploadId,
    pub stored: Stored,
}

impl FromRow<'_, PgRow> for Found {
    fn from_row(row: &PgRow) -> sqlx::Result<Found> {
        let artifact = Artifact::from_row(row)?;
        let stored = Stored {
            hash: artifact.hash,
            size: u64::try_from(artifact.size).unwrap_or_default(),
            n_tokens: artifact.n_tokens,
            is_estimate: artifact.is_estimate,
            pieces: row.try_get("pieces")?,
        };
        Ok(Found { artifact, upload_id: row.try_get("upload_id")?, stored })
    }
}

/// What a project has stored, and how much it may store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Usage {
    pub bytes: i64,
    pub quota: i64,
}

impl Usage {
    pub fn left(&self) -> u64 {
        u64::try_from(self.quota - self.bytes).unwrap_or_default()
    }
}

pub async fn usage(work: &mut UnitOfWork) -> Result<Usage, Error> {
    let quota = resource::settings(work).await?.artifact_quota_bytes;
    let project_id = work.project_id();
    let bytes: Option<i64> = sqlx::query_scalar("select artifact_bytes from resource.projects where project_id = $1")
        .bind(project_id)
        .fetch_optional(&mut **work)
        .await?;
    Ok(Usage { bytes: bytes.unwrap_or_default(), quota: i64::try_from(quota).unwrap_or(i64::MAX) })
}

/// Begins an upload, before a byte of it is written. Returns how many bytes it may have.
pub async fn begin(work: &mut UnitOfWork, upload_id: UploadId) -> Result<u64, Error> {
    let usage = usage(work).await?;
    let project_id = work.project_id();
    sqlx::query(
        "insert into cardbox.uploads (project_id, upload_id, expires_at) values ($1, $2, now() + $3) on conflict do nothing",
    )
    .bind(project_id)
    .bind(upload_id)
    .bind(interval(UPLOAD))
    .execute(&mut **work)
    .await?;
    if usage.left() == 0 {
        return Err(work.refuse(Error::Quota(format!("{} of {} bytes", usage.bytes, usage.quota))));
    }
    Ok(usage.left())
}

/// What an upload is to be.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    pub upload_id: UploadId,
    pub path: &'a ArtifactPath,
    pub media_type: &'a str,
    pub author_id: Option<&'a str>,
    pub stored: &'a Stored,
}

/// What [`finish`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, FromRow)]
pub struct Put {
    pub version: i32,
    /// False if the same content was at the path already.
    pub changed: bool,
}

/// Puts uploaded content at a path. Doing it again changes nothing.
pub async fn finish(work: &mut UnitOfWork, finish: Finish<'_>) -> Result<Put, Error> {
    let quota = i64::try_from(resource::settings(work).await?.artifact_quota_bytes).unwrap_or(i64::MAX);
    let project_id = work.project_id();
    let Finish { upload_id, path, media_type, author_id, stored } = finish;
    let put = sqlx::query_as(
        "select version, changed
           from cardbox.put_artifact(p_project => $1, p_upload => $2, p_path => $3, p_media_type => $4, p_author => $5, p_hash => $6,
                                     p_size => $7, p_tokens => $8, p_estimate => $9, p_pieces => $10, p_quota => $11)",
    )
    .bind(project_id)
    .bind(upload_id)
    .bind(path)
    .bind(media_type)
    .bind(author_id)
    .bind(stored.hash)
    .bind(i64::try_from(stored.size).unwrap_or(i64::MAX))
    .bind(stored.n_tokens)
    .bind(stored.is_estimate)
    .bind(&stored.pieces)
    .bind(quota)
    .fetch_one(&mut **work)
    .await?;
    Ok(put)
}

/// Which version of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Newest,
    Version(i32),
    /// The version that a card names, also if the path was removed since.
    Pinned(ArtifactHash),
}

/// Looks up one artifact.
pub async fn find(work: &mut UnitOfWork, path: &ArtifactPath, which: Which) -> Result<Option<Found>, Error> {
    let (version, hash) = match which {
        Which::Newest => (None, None),
        Which::Version(version) => (Some(version), None),
        Which::Pinned(hash) => (None, Some(hash)),
    };
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select a.path, a.version, a.hash, a.media_type, b.size, b.n_tokens, b.is_estimate, a.author_id, a.created_at, a.is_external, b.upload_id, b.pieces
           from cardbox.artifacts a
          cross join lateral (select b.* from cardbox.blobs b where b.project_id = $1 and b.hash = a.hash offset 0) b
          where a.project_id = $1 and a.path = $2 and ($3::int is null or a.version = $3)
            and case when $4::bytea is null then a.removed_at is null else a.hash = $4 end
          order by a.version desc
          limit 1",
    )
    .bind(project_id)
    .bind(path)
    .bind(version)
    .bind(hash)
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// Returns the newest version of each of these paths that exists.
pub async fn find_all(work: &mut UnitOfWork, paths: &[ArtifactPath]) -> Result<Vec<Found>, Error> {
    let project_id = work.project_id();
    let paths: Vec<&str> = paths.iter().map(ArtifactPath::as_str).collect();
    let found = sqlx::query_as(
        "select a.path, a.version, a.hash, a.media_type, b.size, b.n_tokens, b.is_estimate, a.author_id, a.created_at, a.is_external, b.upload_id, b.pieces
           from unnest($2::text[]) as asked (path)
          cross join lateral (
                select a.*
                  from cardbox.artifacts a
                 where a.project_id = $1 and a.path = asked.path and a.removed_at is null
                 order by a.version desc
                 limit 1) a
          cross join lateral (select b.* from cardbox.blobs b where b.project_id = $1 and b.hash = a.hash offset 0) b",
    )
    .bind(project_id)
    .bind(paths)
    .fetch_all(&mut **work)
    .await?;
    Ok(found)
}

/// Returns pinned artifacts, each in its pinned version.
pub async fn find_pinned(work: &mut UnitOfWork, pins: &Pins) -> Result<Vec<Found>, Error> {
    let project_id = work.project_id();
    let (paths, hashes): (Vec<&str>, Vec<ArtifactHash>) =
        pins.iter().map(|(path, hash)| (path.as_str(), *hash)).unzip();
    let found = sqlx::query_as(
        "select a.path, a.version, a.hash, a.media_type, b.size, b.n_tokens, b.is_estimate, a.author_id, a.created_at, a.is_external, b.upload_id, b.pieces
           from unnest($2::text[], $3::bytea[]) as asked (path, hash)
          cross join lateral (
                select a.*
                  from cardbox.artifacts a
                 where a.project_id = $1 and a.path = asked.path and a.hash = asked.hash
                 order by a.version desc
                 limit 1) a
          cross join lateral (select b.* from cardbox.blobs b where b.project_id = $1 and b.hash = a.hash offset 0) b
          order by a.path",
    )
    .bind(project_id)
    .bind(paths)
    .bind(hashes)
    .fetch_all(&mut **work)
    .await?;
    Ok(found)
}

/// Lists the artifacts below a prefix by path, each in its newest version. The cost follows the length of the list, not the number of versions.
pub async fn list(work: &mut UnitOfWork, prefix: &str, after: &str, most: i64) -> Result<Vec<Artifact>, Error> {
    let project_id = work.project_id();
    let listed = sqlx::query_as(
        "with recursive walk (path) as (
           (select a.path
              from cardbox.artifacts a
             where a.project_id = $1 and a.path >= $2 and a.path > $3 and a.path < $2 || U&'\\+10FFFF' and a.removed_at is null
             order by a.path
             limit 1)
            union all
           select (select a.path
                     from cardbox.artifacts a
                    where a.project_id = $1 and a.path > walk.path and a.path < $2 || U&'\\+10FFFF' and a.removed_at is null
                    order by a.path
                    limit 1)
             from walk
            where walk.path is not null
         )
         select a.path, a.version, a.hash, a.media_type, b.size, b.n_tokens, b.is_estimate, a.author_id, a.created_at, a.is_external
           from (select path from walk where path is not null limit $4) walk
          cross join lateral (
                select a.*
                  from cardbox.artifacts a
                 where a.project_id = $1 and a.path = walk.path and a.removed_at is null
                 order by a.version desc
                 limit 1) a
          cross join lateral (select b.* from cardbox.blobs b where b.project_id = $1 and b.hash = a.hash offset 0) b
          order by a.path",
    )
    .bind(project_id)
    .bind(prefix)
    .bind(after)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(listed)
}

/// Lists the versions of a path, the newest first: those before one, if it is given.
pub async fn versions(
    work: &mut UnitOfWork,
    path: &ArtifactPath,
    before: Option<i32>,
    most: i64,
) -> Result<Vec<Artifact>, Error> {
    let project_id = work.project_id();
    let versions = sqlx::query_as(
        "select a.path, a.version, a.hash, a.media_type, b.size, b.n_tokens, b.is_estimate, a.author_id, a.created_at, a.is_external
           from cardbox.artifacts a
          cross join lateral (select b.* from cardbox.blobs b where b.project_id = $1 and b.hash = a.hash offset 0) b
          where a.project_id = $1 and a.path = $2 and a.version < $3 and a.removed_at is null
          order by a.version desc
          limit $4",
    )
    .bind(project_id)
    .bind(path)
    .bind(before.unwrap_or(i32::MAX))
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(versions)
}

/// Which versions to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remove {
    All,
    /// All but the newest.
    Older,
}

/// Removes a path from the index. A turn that was handed a version of it still has that version. Returns how many versions were removed.
pub async fn remove(work: &mut UnitOfWork, path: &ArtifactPath, remove: Remove) -> Result<u64, Error> {
    let project_id = work.project_id();
    let removed = sqlx::query(
        "update cardbox.artifacts a
            set removed_at = now()
          where a.project_id = $1 and a.path = $2 and a.removed_at is null
            and ($3 or a.version < (select max(n.version) from cardbox.artifacts n where n.project_id = $1 and n.path = $2))",
    )
    .bind(project_id)
    .bind(path)
    .bind(remove == Remove::All)
    .execute(&mut **work)
    .await?;
    Ok(removed.rows_affected())
}

/// Deletes removed versions that no card names. Returns how many; their objects are swept.
pub async fn collect(work: &mut UnitOfWork, most: i32) -> Result<i32, Error> {
    let project_id = work.project_id();
    let collected = sqlx::query_scalar("select cardbox.collect($1, $2, $3)")
        .bind(project_id)
        .bind(most)
        .bind(interval(GRACE))
        .fetch_one(&mut **work)
        .await?;
    Ok(collected)
}

/// Returns which versions these cards name. Only packages and results name any.
pub async fn pinned(work: &mut UnitOfWork, card_ids: &[CardId]) -> Result<Pins, Error> {
    let project_id = work.project_id();
    let pins: Vec<(ArtifactPath, ArtifactHash)> = sqlx::query_as(
        "select p.path, p.hash
           from unnest($2::uuid[]) with ordinality as asked (card_id, n)
          cross join lateral (
                select p.path, p.hash from cardbox.pins p where p.project_id = $1 and p.card_id = asked.card_id offset 0) p
          order by asked.n",
    )
    .bind(project_id)
    .bind(card_ids)
    .fetch_all(&mut **work)
    .await?;
    // If a path is named twice, the last one counts.
    Ok(pins.into_iter().collect())
}

/// Returns which of these a turn was handed, or wrote: cards of its context and its output name them.
pub async fn handed(work: &mut UnitOfWork, turn_id: TurnId, pins: &Pins) -> Result<BTreeSet<ArtifactPath>, Error> {
    let project_id = work.project_id();
    let (paths, hashes): (Vec<&str>, Vec<ArtifactHash>) =
        pins.iter().map(|(path, hash)| (path.as_str(), *hash)).unzip();
    let handed: Vec<ArtifactPath> = sqlx::query_scalar(
        "select asked.path
           from state.turns t
          cross join unnest($3::text[], $4::bytea[]) as asked (path, hash)
          where t.project_id = $1 and t.agent_turn_id = $2
            and exists (select from cardbox.pins p
                         cross join lateral (select h.box_id from cardbox.holdings($1, p.card_id) h offset 0) h
                         where p.project_id = $1 and p.path = asked.path and p.hash = asked.hash
                           and h.box_id in (t.context_box_id, t.output_box_id)
                        offset 0)",
    )
    .bind(project_id)
    .bind(turn_id)
    .bind(paths)
    .bind(hashes)
    .fetch_all(&mut **work)
    .await?;
    Ok(handed.into_iter().collect())
}

/// Gives an upload up: its object is due to be deleted.
pub async fn give_up(work: &mut UnitOfWork, upload_id: UploadId) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query(
        "update cardbox.uploads set condemned = true, expires_at = now() where project_id = $1 and upload_id = $2",
    )
    .bind(project_id)
    .bind(upload_id)
    .execute(&mut **work)
    .await?;
    Ok(())
}

/// Lists objects that nothing names and that are due to be deleted. Crosses projects, through the scheduler's function.
pub async fn ended_uploads(kernel: &Kernel, most: i32) -> Result<Vec<(ProjectId, UploadId)>, Error> {
    let ended = sqlx::query_as("select project_id, upload_id from scheduler.ended_uploads($1)").bind(most);
    Ok(ended.fetch_all(&mut *kernel.lease().await?).await?)
}

/// Makes sure that nothing will name an upload any more. Returns false if something does already.
pub async fn condemn(work: &mut UnitOfWork, upload_id: UploadId) -> Result<bool, Error> {
    let project_id = work.project_id();
    let condemned = sqlx::query(
        "update cardbox.uploads set condemned = true where project_id = $1 and upload_id = $2 and expires_at <= now()",
    )
    .bind(project_id)
    .bind(upload_id)
    .execute(&mut **work)
    .await?;
    Ok(condemned.rows_affected() > 0)
}

/// Forgets an upload whose object is gone.
pub async fn forget(work: &mut UnitOfWork, upload_id: UploadId) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query("delete from cardbox.uploads where project_id = $1 and upload_id = $2 and condemned")
        .bind(project_id)
        .bind(upload_id)
        .execute(&mut **work)
        .await?;
    Ok(())
}

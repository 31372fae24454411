//! What a project knows, and what it has done before: documents in chunks that can be found by their words, and by their meaning where
//! there are vectors (CX-4). Searching sees the unit of work's own project and no other.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{FromRow, types::Json};
use waybill_core::{
    artifact::{ArtifactHash, ArtifactPath},
    id::{CardId, TurnId},
};

use crate::{
    external, turn,
    work::{UnitOfWork, Work},
};

/// More would hold the project's row for too long.
pub const MOST_CHUNKS: usize = 2_000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("document {path} has {n_chunks} chunks, but at most {MOST_CHUNKS} are allowed: split it")]
    TooLong { path: ArtifactPath, n_chunks: usize },
    #[error("there is no document {0}")]
    NotFound(ArtifactPath),
    #[error(
        "the database does not have the extension `vector` (`create extension vector`), so documents are found by their words alone"
    )]
    NoVectors,
    #[error(transparent)]
    Db(turn::Error),
}

impl<E: Into<turn::Error>> From<E> for Error {
    fn from(error: E) -> Error {
        Error::Db(error.into())
    }
}

/// Kind of a document. `knowledge`: a person stored it. `experience`: it is a published deliverable of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DocumentKind)]
pub enum Kind {
    /// Applied by people.
    Knowledge,
    /// A deliverable that was published.
    Experience,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Knowledge => "knowledge",
            Kind::Experience => "experience",
        }
    }
}

/// A piece that is found and shown as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chunk {
    pub from_line: i32,
    pub to_line: i32,
    /// The headings that it stands under.
    pub heading: String,
    pub content: String,
    pub n_tokens: i32,
    /// Each once.
    pub words: Vec<String>,
}

/// A document that is to be stored.
#[derive(Clone, Debug)]
pub struct NewDocument<'a> {
    pub kind: Kind,
    pub path: &'a ArtifactPath,
    pub title: &'a str,
    pub hash: ArtifactHash,
    pub chunks: &'a [Chunk],
    /// For experience: the turn that delivered it, and the card.
    pub source: Option<(TurnId, CardId)>,
}

/// A document that agents can find, in its newest version, without its text.
#[derive(Clone, Debug, Serialize, FromRow, utoipa::ToSchema)]
pub struct Document {
    #[sqlx(try_from = "String")]
    pub kind: Kind,
    pub path: ArtifactPath,
    pub version: i32,
    pub hash: ArtifactHash,
    pub title: String,
    pub n_chunks: i32,
    pub n_tokens: i64,
    /// Whether it is external content: it came from outside, or a turn that had seen external content wrote it.
    pub is_external: bool,
    /// For `experience`, the turn that delivered it.
    pub agent_turn_id: Option<TurnId>,
    pub card_id: Option<CardId>,
    /// Embedding model that made the vectors of the document. `null` means that the document has none, and is found only by its words.
    pub embedded_by: Option<String>,
    pub updated_at: DateTime<Utc>,
}

impl TryFrom<String> for Kind {
    type Error = String;

    fn try_from(text: String) -> Result<Kind, String> {
        match text.as_str() {
            "knowledge" => Ok(Kind::Knowledge),
            "experience" => Ok(Kind::Experience),
            _ => Err(format!("{text:?} is not a kind of document: use `knowledge` or `experience`")),
        }
    }
}

/// Puts a document where it can be found. Returns false if the same document is there already.
pub async fn put(work: &mut UnitOfWork, document: &NewDocument<'_>) -> Result<bool, Error> {
    let NewDocument { kind, path, title, hash, chunks, source } = document;
    if chunks.len() > MOST_CHUNKS {
        return Err(Error::TooLong { path: (*path).clone(), n_chunks: chunks.len() });
    }
    let before = taken_out(work, *kind, path, Some((hash, title))).await?;
    let version = match before {
        Before::Same => return Ok(false),
        Before::Other(version) => version + 1,
        Before::Nothing => 1,
    };
    let project_id = work.project_id();
    let document_id = uuid::Uuid::now_v7();
    let n_tokens: i64 = chunks.iter().map(|chunk| i64::from(chunk.n_tokens)).sum();
    sqlx::query(
        "insert into resource.documents
                (project_id, kind, path, document_id, version, hash, title, n_chunks, n_tokens, agent_turn_id, card_id)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    )
    .bind(project_id)
    .bind(kind.as_str())
    .bind(*path)
    .bind(document_id)
    .bind(version)
    .bind(hash)
    .bind(title)
    .bind(i32::try_from(chunks.len()).unwrap_or(i32::MAX))
    .bind(n_tokens)
    .bind(source.map(|(turn, _)| turn))
    .bind(source.map(|(_, card)| card))
    .execute(&mut **work)
    .await?;
    sqlx::query("select resource.put_chunks($1, $2, $3)")
        .bind(project_id)
        .bind(document_id)
        .bind(Json(chunks))
        .execute(&mut **work)
        .await?;
    Ok(true)
}

/// Removes a document, so that it is no longer found. What was shown of it stays with the receipts.
pub async fn remove(work: &mut UnitOfWork, kind: Kind, path: &ArtifactPath) -> Result<(), Error> {
    match taken_out(work, kind, path, None).await? {
        Before::Nothing => Err(Error::NotFound(path.clone())),
        Before::Same | Before::Other(_) => Ok(()),
    }
}

/// What stood at a path.
enum Before {
    Nothing,
    Same,
    Other(i32),
}

async fn taken_out(
    work: &mut UnitOfWork,
    kind: Kind,
    path: &ArtifactPath,
    instead: Option<(&ArtifactHash, &str)>,
) -> Result<Before, Error> {
    let project_id = work.project_id();
    // Changes of documents run one at a time: all documents share the word counts.
    sqlx::query("select from resource.projects where project_id = $1 for no key update")
        .bind(project_id)
        .execute(&mut **work)
        .await?;
    let found: Option<(uuid::Uuid, i32, ArtifactHash, String, bool, bool)> = sqlx::query_as(
        "select document_id, version, hash, title,
                is_external, coalesce(current_setting('waybill.external', true), '') = 'on'
           from resource.documents
          where project_id = $1 and kind = $2 and path = $3",
    )
    .bind(project_id)
    .bind(kind.as_str())
    .bind(path)
    .fetch_optional(&mut **work)
    .await?;
    let Some((document_id, version, hash, title, was_external, is_external)) = found else {
        return Ok(Before::Nothing);
    };
    if let Some((other, said)) = instead
        && *other == hash
    {
        // The same words keep their label. It can be raised.
        if said == title && was_external >= is_external {
            return Ok(Before::Same);
        }
        external::label(work, was_external || is_external).await?;
    }
    sqlx::query("select resource.forget_chunks($1, $2)")
        .bind(project_id)
        .bind(document_id)
        .execute(&mut **work)
        .await?;
    sqlx::query("delete from resource.documents where project_id = $1 and kind = $2 and path = $3")
        .bind(project_id)
        .bind(kind.as_str())
        .bind(path)
        .execute(&mut **work)
        .await?;
    Ok(Before::Other(version))
}

/// Lists documents in the order of their paths.
pub async fn list(work: &mut UnitOfWork, kind: Kind, after: &str, most: i64) -> Result<Vec<Document>, Error> {
    let project_id = work.project_id();
    let documents = sqlx::query_as(
        "select kind, path, version, hash, title, n_chunks, n_tokens, is_external, agent_turn_id, card_id, embedded_by, updated_at
           from resource.documents
          where project_id = $1 and kind = $2 and path > $3
          order by path
          limit $4",
    )
    .bind(project_id)
    .bind(kind.as_str())
    .bind(after)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(documents)
}

/// Looks up one document.
pub async fn find(work: &mut UnitOfWork, kind: Kind, path: &ArtifactPath) -> Result<Option<Document>, Error> {
    let project_id = work.project_id();
    let document = sqlx::query_as(
        "select kind, path, version, hash, title, n_chunks, n_tokens, is_external, agent_turn_id, card_id, embedded_by, updated_at
           from resource.documents
          where project_id = $1 and kind = $2 and path = $3",
    )
    .bind(project_id)
    .bind(kind.as_str())
    .bind(path)
    .fetch_optional(&mut **work)
    .await?;
    Ok(document)
}

/// What is looked for, and where.
#[derive(Clone, Debug)]
pub struct Search<'a> {
    pub kind: Kind,
    pub folders: Vec<&'a str>,
    pub words: &'a [String],
    /// The model, and the question as it sees it.
    pub meaning: Option<(&'a str, &'a [f32])>,
    pub most: i32,
}

/// A chunk (passage) of a document that a search returned.
#[derive(Clone, Debug, PartialEq, Serialize, FromRow, utoipa::ToSchema)]
#[schema(as = FoundChunk)]
pub struct Found {
    pub path: ArtifactPath,
    pub version: i32,
    pub hash: ArtifactHash,
    pub title: String,
    pub seq: i32,
    pub from_line: i32,
    pub to_line: i32,
    pub heading: String,
    pub content: String,
    pub n_tokens: i32,
    pub is_external: bool,
    pub agent_turn_id: Option<TurnId>,
}

/// Finds chunks by their words, and by their meaning where it is known: two lists, each best first.
pub async fn search(work: &mut UnitOfWork, search: &Search<'_>) -> Result<(Vec<Found>, Vec<Found>), Error> {
    let project_id = work.project_id();
    let by_words = sqlx::query_as(
        "select d.path, d.version, d.hash, d.title, c.seq, c.from_line, c.to_line, c.heading, c.content, c.n_tokens, d.is_external, d.agent_turn_id
           from resource.search_words($1, $2, $3, $4, $5) with ordinality as f (document_id, seq, score, place)
          cross join lateral (
                select d.* from resource.documents d where d.document_id = f.document_id and d.project_id = $1 offset 0) d
          cross join lateral (
                select c.* from resource.chunks c where c.project_id = $1 and c.document_id = f.document_id and c.seq = f.seq offset 0) c
          order by f.place",
    )
    .bind(project_id)
    .bind(search.kind.as_str())
    .bind(&search.folders)
    .bind(search.words)
    .bind(search.most)
    .fetch_all(&mut **work)
    .await?;
    let Some((model, embedding)) = search.meaning else { return Ok((by_words, Vec::new())) };
    let by_meaning = sqlx::query_as(
        "select d.path, d.version, d.hash, d.title, c.seq, c.from_line, c.to_line, c.heading, c.content, c.n_tokens, d.is_external, d.agent_turn_id
           from resource.search_meaning(p_project => $1, p_kind => $2, p_folders => $3, p_model => $4, p_embedding => $5, p_most => $6)
                with ordinality as f (document_id, seq, score, place)
          cross join lateral (
                select d.* from resource.documents d where d.document_id = f.document_id and d.project_id = $1 offset 0) d
          cross join lateral (
                select c.* from resource.chunks c where c.project_id = $1 and c.document_id = f.document_id and c.seq = f.seq offset 0) c
          order by f.place",
    )
    .bind(project_id)
    .bind(search.kind.as_str())
    .bind(&search.folders)
    .bind(model)
    .bind(embedding)
    .bind(search.most)
    .fetch_all(&mut **work)
    .await
    .map_err(|error| match error.as_database_error().and_then(|db| db.code().map(|code| code.into_owned())) {
        Some(code) if code == "WB019" => Error::NoVectors,
        _ => error.into(),
    })?;
    Ok((by_words, by_meaning))
}

/// Checks whether vectors can be searched in this database.
pub async fn has_vectors(work: &mut impl Work) -> Result<bool, Error> {
    let there = sqlx::query_scalar("select exists (select from pg_extension where extname = 'vector')");
    Ok(there.fetch_one(work.connection()).await?)
}

/// A chunk that has no vector of a model yet.
#[derive(Clone, Debug, FromRow)]
pub struct Unembedded {
    pub document_id: uuid::Uuid,
    pub seq: i32,
    pub heading: String,
    pub content: String,
}

/// Returns the chunks of the next document that has no vectors, or vectors of another model: they are to be made by this one.
pub async fn unembedded(work: &mut UnitOfWork, model: &str) -> Result<Vec<Unembedded>, Error> {
    let project_id = work.project_id();
    let chunks = sqlx::query_as(
        "select c.document_id, c.seq, c.heading, c.content
           from (select d.document_id
                   from resource.documents d
                  where d.project_id = $1 and d.embedded_by is distinct from $2
                  order by d.kind, d.path
                  limit 1) d
          cross join lateral (
                select c.* from resource.chunks c where c.project_id = $1 and c.document_id = d.document_id offset 0) c
          order by c.seq",
    )
    .bind(project_id)
    .bind(model)
    .fetch_all(&mut **work)
    .await?;
    Ok(chunks)
}

/// Stores the vectors of all chunks of a document, in their order.
pub async fn embed(
    work: &mut UnitOfWork,
    document_id: uuid::Uuid,
    model: &str,
    vectors: &[Vec<f32>],
) -> Result<(), Error> {
    let project_id = work.project_id();
    let vectors: Vec<(i32, &Vec<f32>)> = (1..).zip(vectors).collect();
    for (seq, vector) in vectors {
        sqlx::query(
            "update resource.chunks set embedding = $4 where project_id = $1 and document_id = $2 and seq = $3",
        )
        .bind(project_id)
        .bind(document_id)
        .bind(seq)
        .bind(vector)
        .execute(&mut **work)
        .await?;
    }
    sqlx::query("update resource.documents set embedded_by = $3 where project_id = $1 and document_id = $2")
        .bind(project_id)
        .bind(document_id)
        .bind(model)
        .execute(&mut **work)
        .await?;
    Ok(())
}

//! A project's knowledge: documents that people apply, and deliverables that they publish (CX-4).

use serde_json::{Value, json};
use waybill_context::knowledge as text;
use waybill_core::{
    artifact::{ArtifactHash, ArtifactPath},
    card::{Content, Origin, Reading},
    id::TurnId,
    turn::TurnStatus,
};
use waybill_kernel::{
    audit, card, external,
    knowledge::{self, Chunk, Document, Kind, NewDocument},
    turn,
    work::UnitOfWork,
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("document {0} has no text that a search could find")]
    Empty(ArtifactPath),
    #[error(
        "turn {0} has no result to publish: it does not exist, has not succeeded, or its deliverable has expired or was deleted"
    )]
    NotDelivered(TurnId),
    #[error(transparent)]
    Knowledge(#[from] knowledge::Error),
    #[error(transparent)]
    Turn(#[from] turn::Error),
    #[error(transparent)]
    Card(#[from] card::Error),
}

/// A document that a person applies.
#[derive(Clone, Copy, Debug)]
pub struct Applied<'a> {
    pub path: &'a ArtifactPath,
    pub title: &'a str,
    pub text: &'a str,
    /// Whether it is external content: a turn that is shown it counts as having seen such content.
    pub is_external: bool,
}

/// Applies a document, and records it in the audit log. Applying it again changes only the log.
pub async fn apply(work: &mut UnitOfWork, applied: Applied<'_>, actor: &str) -> Result<(Document, bool), Error> {
    external::label(work, applied.is_external).await?;
    let (document, changed) = put(work, Kind::Knowledge, applied.path, applied.title, applied.text, None).await?;
    let said = json!({ "version": document.version, "changed": changed });
    record(work, actor, "knowledge.apply", applied.path, &said).await?;
    Ok((document, changed))
}

/// Removes a document from search, and records that in the audit log.
pub async fn remove(work: &mut UnitOfWork, kind: Kind, path: &ArtifactPath, actor: &str) -> Result<(), Error> {
    knowledge::remove(work, kind, path).await?;
    record(work, actor, "knowledge.remove", path, &json!({ "kind": kind })).await
}

async fn record(
    work: &mut UnitOfWork,
    actor: &str,
    action: &str,
    path: &ArtifactPath,
    said: &Value,
) -> Result<(), Error> {
    Ok(audit::record(work, actor, action, path.as_str(), said).await.map_err(turn::Error::from)?)
}

/// Publishes a turn's deliverable, and records that in the audit log. Its title may be external content. Agents whose profile names its
/// folder find it.
pub async fn publish(
    work: &mut UnitOfWork,
    turn_id: TurnId,
    path: &ArtifactPath,
    (title, is_external): (&str, bool),
    actor: &str,
) -> Result<(Document, bool), Error> {
    let turn = turn::show(work, &[turn_id]).await?.pop();
    let card_id = turn.filter(|turn| turn.status == TurnStatus::Success).and_then(|turn| turn.deliverable_card_id);
    let card_id = card_id.ok_or(Error::NotDelivered(turn_id))?;
    let found = card::fetch(work, &[card_id], None).await?.found.pop().and_then(Reading::into_live);
    let card = found.ok_or(Error::NotDelivered(turn_id))?;
    let said = match &card.content {
        Content::Text(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    };
    external::label(work, is_external || card.origin == Origin::External).await?;
    let (document, changed) = put(work, Kind::Experience, path, title, &said, Some((turn_id, card_id))).await?;
    let said = json!({ "agent_turn_id": turn_id, "version": document.version, "changed": changed });
    record(work, actor, "knowledge.publish", path, &said).await?;
    Ok((document, changed))
}

async fn put(
    work: &mut UnitOfWork,
    kind: Kind,
    path: &ArtifactPath,
    title: &str,
    said: &str,
    source: Option<(TurnId, waybill_core::id::CardId)>,
) -> Result<(Document, bool), Error> {
    let line = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let chunks: Vec<Chunk> = text::cut(title, said)
        .into_iter()
        .map(|piece| Chunk {
            from_line: line(piece.lines.0),
            to_line: line(piece.lines.1),
            heading: piece.heading,
            content: piece.content,
            n_tokens: piece.n_tokens,
            words: piece.words,
        })
        .collect();
    if chunks.is_empty() {
        return Err(Error::Empty(path.clone()));
    }
    let hash = ArtifactHash::of(said.as_bytes());
    let document = NewDocument { kind, path, title, hash, chunks: &chunks, source };
    let changed = knowledge::put(work, &document).await?;
    let found = knowledge::find(work, kind, path).await?;
    Ok((found.ok_or_else(|| knowledge::Error::NotFound(path.clone()))?, changed))
}

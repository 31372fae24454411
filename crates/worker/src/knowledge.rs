//! A project's documents and published results, as an agent sees them: a block of its context or a tool, as its profile says (CX-4, CX-5).
//! Search is by words, and also by meaning if the project names an embedding model and the database supports vectors.

use std::collections::HashMap;

use futures::future::BoxFuture;
use waybill_context::{
    handoff::plan::ADVISED,
    knowledge::{self as text, Provenance, Shown},
};
use waybill_core::{
    card::{Card, Content},
    id::ProjectId,
    resource::{Embedding, Shelf},
    tokens::Tokens,
};
use waybill_kernel::{
    knowledge::{self, Found, Kind, Search},
    resource, turn,
    work::Kernel,
};

use crate::{
    collect::{Asked, Block, Failure, Source},
    model::Models,
};

/// How many entries of each result list are considered.
const MOST: i32 = 24;
/// How many chunks the tool returns, unless the call says otherwise.
pub(crate) const USUAL: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Knowledge(#[from] knowledge::Error),
    #[error(transparent)]
    Settings(#[from] resource::Error),
    #[error("the embedding of the question failed: {0}")]
    Embedding(#[source] crate::model::Error),
}

/// What to search, and where.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    pub kind: Kind,
    pub shelf: &'a Shelf,
    pub question: &'a str,
    /// How many chunks are returned at most.
    pub most: usize,
}

/// What was found, best first, and how.
#[derive(Clone, Debug)]
pub struct Answer {
    pub found: Vec<Found>,
    /// `words`, `words and meaning`, or why only words were used.
    pub how: String,
}

/// Searches the documents of a shelf for a question.
pub async fn search(
    kernel: &Kernel,
    models: &Models,
    project_id: ProjectId,
    query: &Query<'_>,
) -> Result<Answer, Error> {
    let Query { kind, shelf, question, most } = *query;
    let mut work = kernel.begin(project_id).await.map_err(knowledge::Error::from)?;
    let embedding = resource::settings(&mut work).await?.embedding;
    let has_vectors = embedding.is_some() && knowledge::has_vectors(&mut work).await?;
    drop(work); // a model may be asked
    let (vector, how) = match (&embedding, has_vectors) {
        (None, _) => (None, "words".to_owned()),
        (Some(_), false) => (None, format!("words alone: {}", knowledge::Error::NoVectors)),
        (Some(embedding), true) => match embed(models, project_id, embedding, vec![question.to_owned()]).await {
            Ok(mut vectors) => (vectors.pop(), "words and meaning".to_owned()),
            Err(error) => (None, format!("words alone: {error}")),
        },
    };
    let words = text::question(question);
    let meaning = embedding.as_ref().zip(vector.as_ref());
    let search = Search {
        kind,
        folders: shelf.folders.iter().map(|folder| folder.as_str()).collect(),
        words: &words,
        meaning: meaning.map(|(embedding, vector)| (embedding.model.as_str(), vector.as_slice())),
        most: MOST,
    };
    let mut work = kernel.begin(project_id).await.map_err(knowledge::Error::from)?;
    let (by_words, by_meaning) = knowledge::search(&mut work, &search).await?;
    let key = |found: &Found| (found.path.clone(), found.seq);
    let lists = [by_words.iter().map(key).collect(), by_meaning.iter().map(key).collect::<Vec<_>>()];
    let mut all: HashMap<_, Found> = by_words.into_iter().chain(by_meaning).map(|found| (key(&found), found)).collect();
    let found = text::fuse(&lists, most).iter().filter_map(|key| all.remove(key)).collect();
    Ok(Answer { found, how })
}

/// Returns the vectors of texts, in the same order.
pub async fn embed(
    models: &Models,
    project_id: ProjectId,
    embedding: &Embedding,
    texts: Vec<String>,
) -> Result<Vec<Vec<f32>>, Error> {
    models.embed(project_id, embedding, texts).await.map_err(Error::Embedding)
}

/// Embeds the next document that has no vectors of the project's model. Returns its number of chunks, or `None` if no document is left.
pub async fn embed_next(kernel: &Kernel, models: &Models, project_id: ProjectId) -> Result<Option<usize>, Error> {
    const AT_ONCE: usize = 64;
    let mut work = kernel.begin(project_id).await.map_err(knowledge::Error::from)?;
    let Some(embedding) = resource::settings(&mut work).await?.embedding else { return Ok(None) };
    let chunks = knowledge::unembedded(&mut work, &embedding.model).await?;
    drop(work);
    let Some(document_id) = chunks.first().map(|chunk| chunk.document_id) else { return Ok(None) };
    let mut vectors = Vec::with_capacity(chunks.len());
    for some in chunks.chunks(AT_ONCE) {
        let texts = some.iter().map(|chunk| format!("{}\n{}", chunk.heading, chunk.content)).collect();
        vectors.extend(embed(models, project_id, &embedding, texts).await?);
    }
    let mut work = kernel.begin(project_id).await.map_err(knowledge::Error::from)?;
    knowledge::embed(&mut work, document_id, &embedding.model, &vectors).await?;
    work.commit().await.map_err(|error| knowledge::Error::Db(turn::Error::from(error)))?;
    Ok(Some(vectors.len()))
}

/// Renders what was found for a model.
pub fn render(found: &[Found]) -> String {
    let shown: Vec<Shown<'_>> = found
        .iter()
        .map(|found| Shown {
            path: found.path.as_str(),
            version: found.version,
            lines: (found.from_line, found.to_line),
            title: &found.title,
            heading: &found.heading,
            content: &found.content,
        })
        .collect();
    text::render(&shown)
}

pub fn provenance(found: &[Found]) -> Vec<Provenance> {
    let one = |found: &Found| Provenance {
        path: found.path.to_string(),
        version: found.version,
        hash: found.hash.to_string(),
        seq: found.seq,
    };
    found.iter().map(one).collect()
}

/// The source of the block with documents that match a turn's question.
pub(crate) struct Shelved {
    pub(crate) kernel: Kernel,
    pub(crate) models: Models,
    pub(crate) kind: Kind,
}

impl Source for Shelved {
    fn collect<'a>(&'a self, asked: &'a Asked<'a>) -> BoxFuture<'a, Result<Option<Block>, Failure>> {
        Box::pin(async move {
            let shelf = match self.kind {
                Kind::Knowledge => asked.knowledge,
                Kind::Experience => asked.experience,
            };
            let Some((shelf, most)) = shelf.and_then(|shelf| Some((shelf, shelf.block_tokens?))) else {
                return Ok(None);
            };
            let question = question(asked.query);
            let query = Query { kind: self.kind, shelf, question: &question, most: usize::MAX };
            let answer = search(&self.kernel, &self.models, asked.project_id, &query).await?;
            let found = within(answer.found, most);
            if found.is_empty() {
                return Ok(None);
            }
            let is_external = found.iter().any(|found| found.is_external);
            Ok(Some(Block { text: render(&found), is_external, sources: provenance(&found) }))
        })
    }
}

/// Keeps as many of the best as fit.
fn within(found: Vec<Found>, most: Tokens) -> Vec<Found> {
    let mut left = most.get().min(i32::try_from(ADVISED).unwrap_or(i32::MAX));
    let fits = |found: &Found| {
        left -= found.n_tokens + 24;
        left >= 0
    };
    found.into_iter().take_while(fits).collect()
}

fn question(query: &[Card]) -> String {
    let text = |card: &Card| match &card.content {
        Content::Text(text) => text.clone(),
        other => serde_json::to_string(other).unwrap_or_default(),
    };
    query.iter().map(text).collect::<Vec<_>>().join("\n")
}

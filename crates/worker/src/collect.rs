//! The collector: asks the registered sources for the blocks of a call (CX-4). It renders no messages and writes nothing.

use std::{collections::BTreeMap, error, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use waybill_context::{
    call::LeftOut,
    framework::{Facts, Framework},
    knowledge::Provenance,
    layer::{BlockKey, MalformedKey},
    policy::Audience,
    todo::Todo,
};
use waybill_core::{
    card::Card,
    id::{AgentId, ProjectId, SessionId},
    resource::Shelf,
};

/// What a source may know of the turn for which it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub project_id: ProjectId,
    pub agent_id: AgentId,
    pub session_id: Option<SessionId>,
    pub audience: &'a Audience,
    /// Facts about the turn.
    pub facts: Facts<'a>,
    /// The project's own framework text.
    pub framework: Option<&'a Framework>,
    pub query: &'a [Card],
    /// The session's todo list.
    pub todo: Option<&'a Card>,
    /// The documents that the profile lets it find.
    pub knowledge: Option<&'a Shelf>,
    pub experience: Option<&'a Shelf>,
}

/// The answer of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub text: String,
    /// Whether it came from outside: a turn that is shown it has then seen external content.
    pub is_external: bool,
    /// Where it came from.
    pub sources: Vec<Provenance>,
}

impl From<String> for Block {
    fn from(text: String) -> Block {
        Block { text, is_external: false, sources: Vec::new() }
    }
}

/// Why a source has no answer.
pub type Failure = Box<dyn error::Error + Send + Sync>;

/// A source of context: a todo list, a knowledge base, earlier results.
pub trait Source: Send + Sync {
    /// Returns the block. `None` means that there is nothing to show.
    fn collect<'a>(&'a self, asked: &'a Asked<'a>) -> BoxFuture<'a, Result<Option<Block>, Failure>>;

    /// Returns whether it must be asked before every step, and not once per turn.
    fn every_step(&self) -> bool {
        false
    }

    /// Returns the timeout. A turn does not wait longer for any source.
    fn timeout(&self) -> Duration {
        Duration::from_secs(2)
    }
}

/// Why a source cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error(transparent)]
    Key(#[from] MalformedKey),
    #[error("the block name `{0}` is reserved for summaries: use another name")]
    Compression(BlockKey),
}

/// A block as it was collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub key: BlockKey,
    pub block: Block,
    pub every_step: bool,
}

/// Which sources are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Begin,
    /// Only those that must be asked before every step.
    EveryStep,
}

/// All sources, by the block that they give.
#[derive(Clone)]
pub struct Collector {
    sources: BTreeMap<BlockKey, Arc<dyn Source>>,
    framework_version: String,
}

impl Collector {
    /// Makes a collector with the framework's text and the session's todo list as sources.
    pub fn new(framework: Framework) -> Collector {
        let framework_version = framework.version().to_owned();
        let turn: Arc<dyn Source> = Arc::new(TurnText(framework.clone()));
        let framework: Arc<dyn Source> = Arc::new(FrameworkText(framework));
        let todo: Arc<dyn Source> = Arc::new(TodoList);
        let sources =
            BTreeMap::from([(BlockKey::Framework, framework), (BlockKey::Turn, turn), (BlockKey::Todo, todo)]);
        Collector { sources, framework_version }
    }

    /// Returns the version of the framework's text, as receipts name it.
    pub fn framework_version(&self) -> &str {
        &self.framework_version
    }

    /// Registers this source for the block of this name. It replaces the one before it.
    pub fn register(&mut self, name: &str, source: Arc<dyn Source>) -> Result<(), RegisterError> {
        let key: BlockKey = name.parse()?;
        if key == BlockKey::Compression {
            return Err(RegisterError::Compression(key));
        }
        self.sources.insert(key, source);
        Ok(())
    }

    /// Registers this source, unless the block has one already.
    pub(crate) fn offer(&mut self, key: BlockKey, source: Arc<dyn Source>) {
        self.sources.entry(key).or_insert(source);
    }

    /// Asks the sources whose block is shown, all at once. A block whose source fails or takes too long is left out.
    pub async fn collect(&self, asked: &Asked<'_>, when: When) -> (Vec<Answer>, Vec<LeftOut>) {
        let wanted = |(key, source): &(&BlockKey, &Arc<dyn Source>)| {
            asked.audience.sees(key) && (when == When::Begin || source.every_step())
        };
        let ask = async |(key, source): (&BlockKey, &Arc<dyn Source>)| {
            // Called inside the async block, so that a panic before the source returns its future is caught too.
            let answer = AssertUnwindSafe(async { source.collect(asked).await }).catch_unwind();
            let answer = match tokio::time::timeout(source.timeout(), answer).await {
                Err(_) => Err(format!("the source did not respond within {:?}", source.timeout())),
                Ok(Err(_)) => Err("the source panicked".to_owned()),
                Ok(Ok(Err(failure))) => Err(in_short(&failure)),
                Ok(Ok(Ok(block))) => Ok(block.filter(|block| !block.text.trim().is_empty())),
            };
            (key.clone(), source.every_step(), answer)
        };
        let (mut answers, mut left_out) = (Vec::new(), Vec::new());
        for (key, every_step, answer) in join_all(self.sources.iter().filter(wanted).map(ask)).await {
            match answer {
                Ok(Some(block)) => answers.push(Answer { key, block, every_step }),
                Ok(None) => {}
                Err(why) => {
                    tracing::warn!(%key, why, agent_id = %asked.agent_id, "a block of context is left out of the model request");
                    left_out.push(LeftOut { key, why });
                }
            }
        }
        (answers, left_out)
    }
}

/// Shortens a failure to what may be logged and kept forever: one line without addresses, which may carry a key.
fn in_short(failure: &Failure) -> String {
    let text = failure.to_string();
    let words = text.split_whitespace().map(|word| if word.contains("://") { "…" } else { word });
    words.collect::<Vec<_>>().join(" ").chars().take(160).collect()
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.sources.keys()).finish()
    }
}

struct FrameworkText(Framework);

impl Source for FrameworkText {
    fn collect<'a>(&'a self, asked: &'a Asked<'a>) -> BoxFuture<'a, Result<Option<Block>, Failure>> {
        let text = asked.framework.unwrap_or(&self.0).render(&asked.facts);
        Box::pin(async { Ok(Some(text.into())) })
    }
}

struct TurnText(Framework);

impl Source for TurnText {
    fn collect<'a>(&'a self, asked: &'a Asked<'a>) -> BoxFuture<'a, Result<Option<Block>, Failure>> {
        let text = self.0.render_turn(&asked.facts);
        Box::pin(async { Ok(Some(text.into())) })
    }
}

struct TodoList;

impl Source for TodoList {
    fn collect<'a>(&'a self, asked: &'a Asked<'a>) -> BoxFuture<'a, Result<Option<Block>, Failure>> {
        let list = asked.todo.map(Todo::read).transpose();
        Box::pin(async { Ok(list?.map(|list| list.render().into())) })
    }
}

//! One model call: what it is made of, its bytes, and its receipt.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use waybill_core::{
    card::Card,
    card_box::{Placed, Span},
    id::{BoxId, CardId},
    resource::Compaction,
    tokens::Tokens,
};

use crate::{
    compact::{self, InForce, Plan},
    compose::{self, Composed, Input},
    knowledge::Provenance,
    layer::{Block, BlockKey, Contexts, Text},
    policy::{Audience, Policy},
    receipt::Receipt,
    wire::{Adapter, Params, Tool, messages},
};

/// Everything of which a call is made, as it was read.
#[derive(Clone, Debug)]
pub struct Materials {
    /// The agent's own prompt, never another agent's (CX-6).
    pub system_prompt: Option<Card>,
    /// `sys.tools`: a list of tools.
    pub tools: Option<Card>,
    /// The collected blocks that the audience may see. Summaries are not among them.
    pub blocks: Vec<Collected>,
    /// The summary that the session's blackboard points to.
    pub session_summary: Option<Card>,
    /// The context box, as far as it was read.
    pub history: Vec<Placed>,
    /// The positions of the context box that were read.
    pub read: Vec<Span>,
    pub n_pinned: usize,
    pub query: Vec<Card>,
    /// The output box, as far as it was read.
    pub steps: Vec<Placed>,
    pub output: Span,
    /// The version of the framework's template.
    pub framework_version: String,
    /// Blocks that are missing because their source failed.
    pub left_out: Vec<LeftOut>,
    /// When it was read, by the database's clock.
    pub read_at: DateTime<Utc>,
}

/// A block whose source failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LeftOut {
    pub key: BlockKey,
    pub why: String,
}

/// A block, with the card that stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    pub key: BlockKey,
    pub card: Card,
    /// Whether it is collected again for every step.
    pub every_step: bool,
    /// Where it came from.
    pub sources: Vec<Provenance>,
}

/// How a call is made.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderConfig {
    pub adapter: Adapter,
    pub policy: Policy,
    pub params: Params,
}

/// A call, ready to be sent.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    pub composed: Composed<'a>,
    /// The request, byte for byte.
    pub request: Vec<u8>,
    pub receipt: Receipt,
}

impl Call<'_> {
    /// Returns a copy that does not borrow from the cards.
    pub fn into_owned(self) -> Call<'static> {
        let Call { composed, request, receipt } = self;
        Call { composed: composed.into_owned(), request, receipt }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Compose(#[from] compose::Error),
    #[error(transparent)]
    Summary(#[from] compact::Unreadable),
    #[error("the content of card {card_id} is not a list of tools")]
    Tools { card_id: CardId, source: serde_json::Error },
}

impl Materials {
    /// Keeps only the blocks that the audience may see (CX-7).
    pub fn allow(&mut self, audience: &Audience) {
        self.blocks.retain(|block| audience.sees(&block.key));
        if !audience.sees(&BlockKey::Compression) {
            self.session_summary = None;
        }
    }

    fn with_input<'a, T>(&'a self, f: impl FnOnce(&Input<'a, '_>) -> T) -> Result<T, Error> {
        let in_force = self.in_force()?;
        let prompt = self.system_prompt.as_ref().map(Text::of);
        let block = |block: &Collected| {
            (block.key.clone(), Block { text: Text::of(&block.card), every_step: block.every_step })
        };
        let tools = self.tools.as_ref().map_or(Tokens::ZERO, |tools| tools.n_tokens);
        let other_tokens = tools + Tokens::new(messages::ADDED).unwrap_or_default();
        let mut contexts: Contexts = self.blocks.iter().map(block).collect();
        contexts.extend(in_force.block().map(|block| (BlockKey::Compression, block)));
        Ok(f(&Input {
            system_prompt: prompt.as_ref(),
            contexts: &contexts,
            history: &self.history,
            n_pinned: self.n_pinned,
            covered: &in_force.covered(),
            query: &self.query,
            steps: &self.steps,
            other_tokens,
        }))
    }

    /// Returns the cards that a receipt names one by one.
    pub(crate) fn cards(&self) -> impl Iterator<Item = &Card> {
        let named = self.system_prompt.iter().chain(&self.tools).chain(&self.session_summary);
        named.chain(self.blocks.iter().map(|block| &block.card)).chain(&self.query)
    }

    pub fn in_force(&self) -> Result<InForce, Error> {
        Ok(InForce::of(self.session_summary.as_ref(), &self.steps)?)
    }

    pub fn compose(&self, policy: &Policy) -> Result<Composed<'_>, Error> {
        Ok(self.with_input(|input| compose::compose(input, policy))??)
    }

    /// Returns what to compact before the call, if anything.
    pub fn plan_compaction(
        &self,
        policy: &Policy,
        compaction: Compaction,
        messages_box_id: Option<BoxId>,
    ) -> Result<Option<Plan<'_>>, Error> {
        Ok(self.with_input(|input| compact::plan(input, policy, compaction, messages_box_id))??)
    }

    /// Composes, and writes the request.
    pub fn call(&self, config: &RenderConfig) -> Result<Call<'_>, Error> {
        let composed = self.compose(&config.policy)?;
        let request = config.adapter.request(&composed, &config.policy, &self.list_tools()?, &config.params);
        let receipt = Receipt::new(self, config, &composed, &request);
        Ok(Call { composed, request, receipt })
    }

    fn list_tools(&self) -> Result<Vec<Tool>, Error> {
        let Some(card) = &self.tools else { return Ok(Vec::new()) };
        card.read_as().map_err(|source| Error::Tools { card_id: card.card_id, source })
    }
}

//! Receipts of recorded calls (RC-4): from cards to the bytes that were sent.

use std::iter::empty;

use chrono::DateTime;
use serde::{Deserialize, Serialize};
use waybill_core::{
    card::{Card, CardHash},
    card_box::{Places, Span},
    id::CardId,
    resource::Order,
    tokens::{TOKENIZER, Tokens},
};

use super::{join, message, raw_of, system_message};
use crate::{
    call::Call,
    compose::Composed,
    policy::{POLICY_VERSION, Policy},
    receipt::{Digest, Error, Receipt},
    wire::{Adapter, Params},
};

/// What the claim of a recorded call rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestsOn {
    /// On the bytes that were sent: the model saw these and nothing else.
    Bytes,
    /// On what the provider remembers of earlier calls: the model saw more than the bytes that were sent.
    Provider,
    /// On a log that was imported: what was sent may have been written in another way, and may have said more.
    Import,
}

/// How a call was recorded that an agent elsewhere made: it was not composed by Waybill, but passed on its way to the provider, or was imported from a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Recording {
    /// Name of the provider, as the operator's file has it.
    pub provider: String,
    /// What the request says besides its system text, tools and messages.
    pub skeleton_card_id: CardId,
    pub rests_on: RestsOn,
    /// What the provider calls the state that the call builds on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_id: Option<String>,
    /// Credentials in the body that were not stored, by their paths. The hash is that of the body with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
    /// The compression in which the body was sent. The hash is that of the body without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
}

/// A recorded call, for its receipt: each card with its hash.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    pub recording: Recording,
    pub adapter: Adapter,
    pub skeleton: CardHash,
    pub system: Option<(CardId, CardHash)>,
    pub tools: Option<(CardId, CardHash)>,
    /// Its messages, and the hash of each.
    pub messages: Span,
    pub hashes: &'a [CardHash],
    pub n_tokens: Tokens,
    pub request_hash: Digest,
}

/// The cards of a recorded request.
pub(crate) struct Pieces {
    pub(crate) skeleton: Card,
    pub(crate) system: Option<Card>,
    pub(crate) tools: Option<Card>,
    pub(crate) messages: Vec<Card>,
}

impl Receipt {
    /// Makes the receipt of a call that an agent elsewhere made.
    pub fn recorded(parts: Parts<'_>) -> Receipt {
        let Parts { recording, adapter, skeleton, system, tools, messages, hashes, n_tokens, request_hash } = parts;
        let named = [Some((recording.skeleton_card_id, skeleton)), system, tools];
        let cards = named.into_iter().flatten().collect();
        let mut receipt = Receipt {
            system_prompt_card_id: system.map(|(card_id, _)| card_id),
            tools_card_id: tools.map(|(card_id, _)| card_id),
            blocks: Vec::new(),
            left_out: Vec::new(),
            session_summary_card_id: None,
            history: if hashes.is_empty() { Vec::new() } else { vec![messages] },
            n_pinned: 0,
            gone: Places::default(),
            query_card_ids: Vec::new(),
            output: Span { box_id: messages.box_id, from: 1, upto: 0 },
            read_at: DateTime::UNIX_EPOCH,
            policy: Policy { order: Order::Layered, budget: n_tokens, per_message: Tokens::ZERO },
            policy_version: POLICY_VERSION,
            tokenizer: TOKENIZER.to_owned(),
            framework_version: String::new(),
            adapter: adapter.as_str().to_owned(),
            adapter_version: adapter.version(),
            params: Params::default(),
            n_messages: hashes.len() + usize::from(system.is_some()),
            n_tokens,
            n_omitted: 0,
            request_hash,
            cards_hash: Digest::of(&[]),
            reported: false,
            recorded: Some(recording),
        };
        receipt.cards_hash = receipt.hash(&cards, hashes.iter().copied(), empty());
        receipt
    }

    /// Joins a recorded request to the bytes that were sent. Credentials that were withheld are not in it.
    pub(crate) fn join(&self, recording: &Recording, adapter: Adapter, pieces: Pieces) -> Result<Call<'static>, Error> {
        let Pieces { skeleton, system, tools, messages } = pieces;
        let raw = |card: &Card| raw_of(card).into_owned();
        let (system_text, tools_text) = (system.as_ref().map(raw), tools.as_ref().map(raw));
        let texts: Vec<String> = messages.iter().map(raw).collect();
        let cut = serde_json::from_str(&raw(&skeleton)).map_err(|_| Error::Unjoined)?;
        let request = join(&cut, system_text.as_deref(), tools_text.as_deref(), &texts);
        let request = request.map_err(|_| Error::Unjoined)?.into_bytes();
        let rendered = Digest::of(&request);
        if rendered != self.request_hash && recording.withheld.is_empty() {
            return Err(Error::Mismatch { rendered, receipt: self.request_hash });
        }
        let shown = system.iter().map(|card| system_message(adapter, card));
        let shown = shown.chain(messages.iter().map(|card| message(adapter, card))).collect();
        let composed = Composed { messages: shown, n_tokens: self.n_tokens, omitted: Vec::new() };
        Ok(Call { composed, request, receipt: self.clone() })
    }
}

//! Receipts (CX-11): what a model call saw, as pointers and hashes, from which the same bytes can be rendered again.
//!
//! A receipt names spans of the context box and of the output box, never a list of cards, so its size does not grow with the turn. A replay
//! reads every card as it was before it ended, removes those that were gone at the time, and composes. So expiry does not matter, nor does the
//! moment at which an end was committed.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, schema::Type};
use waybill_core::{
    card::{Card, CardHash, Gone, Reading, Tombstone, changed},
    card_box::{Placed, Places, Span},
    id::CardId,
    tokens::{TOKENIZER, Tokens},
};

use crate::{
    call::{Call, Collected, Error as CallError, LeftOut, Materials, RenderConfig},
    compose::Composed,
    knowledge::Provenance,
    layer::BlockKey,
    policy::{POLICY_VERSION, Policy},
    record::receipt::{Pieces, Recording},
    wire::{Adapter, Params},
};

/// BLAKE3.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// Returns the keyed hash of bytes: only a holder of the key can make it.
    pub fn keyed(key: &[u8; 32], bytes: &[u8]) -> Digest {
        Digest(*blake3::keyed_hash(key, bytes).as_bytes())
    }

    /// Compares in constant time: how long it takes does not show where two hashes differ.
    pub fn is_same(&self, other: &Digest) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl utoipa::PartialSchema for Digest {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9a-f]{64}$")).into()
    }
}

impl utoipa::ToSchema for Digest {}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(text).map_err(serde::de::Error::custom)?;
        Ok(Digest(*hash.as_bytes()))
    }
}

/// A block, by its card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BlockRef {
    pub key: BlockKey,
    pub card_id: CardId,
    /// Whether it was collected again for every step.
    pub every_step: bool,
    /// Where it came from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Provenance>,
}

/// What one model call saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Receipt {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt_card_id: Option<CardId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools_card_id: Option<CardId>,
    pub blocks: Vec<BlockRef>,
    /// Blocks whose source failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_summary_card_id: Option<CardId>,
    /// Spans of the context box.
    pub history: Vec<Span>,
    pub n_pinned: usize,
    /// Positions of the context box whose cards had ended.
    #[serde(default, skip_serializing_if = "Places::is_empty")]
    #[schema(value_type = Vec<Span>)]
    pub gone: Places,
    pub query_card_ids: Vec<CardId>,
    /// The span of the output box.
    pub output: Span,
    pub read_at: DateTime<Utc>,

    /// How it was composed and rendered.
    pub policy: Policy,
    pub policy_version: u32,
    pub tokenizer: String,
    pub framework_version: String,
    pub adapter: String,
    pub adapter_version: u32,
    /// Parameters of the profile that were sent as they are: any JSON.
    #[schema(value_type = serde_json::Map<String, serde_json::Value>)]
    pub params: Params,

    pub n_messages: usize,
    pub n_tokens: Tokens,
    /// Cards that were read and left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_omitted: usize,
    /// The hash of the request, byte for byte.
    pub request_hash: Digest,
    /// The hash over the hashes of all cards that were read. It can be verified even if a card was erased since.
    pub cards_hash: Digest,
    /// Whether a worker sent the request over HTTP: that it sent these bytes is its own word.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reported: bool,
    /// Only of a call that an agent elsewhere made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recording>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Everything that a receipt points to, each card as it was before it ended.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The cards that it names one by one.
    pub cards: Vec<Reading>,
    pub history: Vec<Placed>,
    pub steps: Vec<Placed>,
}

/// Whether the cards that a call saw are still what they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CardsVerdict)]
pub enum Verdict {
    /// All are there with the hashes of the receipt, and each says what was hashed.
    Ok,
    /// All are there with the hashes of the receipt, but the content of some was erased.
    Erased,
    /// Some that the receipt names are not there.
    Missing,
    /// Others are there than the receipt has hashed, or one says something else than was hashed.
    Mismatch,
}

/// Why the same bytes cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the request cannot be rendered again, because {} of its cards have been erased: {card_ids:?}; the hashes of all its cards {}", card_ids.len(), if *.cards_verified { "still match the receipt" } else { "do not match the receipt" })]
    Erased { card_ids: Vec<CardId>, cards_verified: bool },
    #[error("the receipt was written with {0}, which this version of Waybill does not support")]
    RendererGone(String),
    #[error("the request cannot be rendered again, because some of its cards are missing from the database: {0:?}")]
    Missing(Vec<CardId>),
    #[error("the request could not be reproduced: its hash is now {rendered}, but the receipt has {receipt}")]
    Mismatch { rendered: Digest, receipt: Digest },
    #[error(
        "these cards were changed in the database after Waybill had written them, and no longer match their hashes: {card_ids:?}"
    )]
    Changed { card_ids: Vec<CardId>, rendered: Digest },
    #[error("the recorded request cannot be joined: its parts do not fit together")]
    Unjoined,
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Receipt {
    pub(crate) fn new(
        materials: &Materials,
        config: &RenderConfig,
        composed: &Composed<'_>,
        request: &[u8],
    ) -> Receipt {
        let card_id = |card: &Option<Card>| card.as_ref().map(|card| card.card_id);
        let block = |block: &Collected| BlockRef {
            key: block.key.clone(),
            card_id: block.card.card_id,
            every_step: block.every_step,
            sources: block.sources.clone(),
        };
        let gone = |placed: &&Placed| matches!(placed.reading, Reading::Gone(_));
        let context_box_id = materials.read.first().map(|span| span.box_id);
        let place = |placed: &Placed| Some(Span { box_id: context_box_id?, from: placed.place, upto: placed.place });
        let mut receipt = Receipt {
            system_prompt_card_id: card_id(&materials.system_prompt),
            tools_card_id: card_id(&materials.tools),
            blocks: materials.blocks.iter().map(block).collect(),
            left_out: materials.left_out.clone(),
            session_summary_card_id: card_id(&materials.session_summary),
            history: materials.read.clone(),
            n_pinned: materials.n_pinned,
            gone: materials.history.iter().filter(gone).filter_map(place).collect(),
            query_card_ids: materials.query.iter().map(|card| card.card_id).collect(),
            output: materials.output,
            read_at: materials.read_at,
            policy: config.policy,
            policy_version: POLICY_VERSION,
            tokenizer: TOKENIZER.to_owned(),
            framework_version: materials.framework_version.clone(),
            adapter: config.adapter.as_str().to_owned(),
            adapter_version: config.adapter.version(),
            params: config.params.clone(),
            n_messages: composed.messages.len(),
            n_tokens: composed.n_tokens,
            n_omitted: composed.omitted.iter().map(|omitted| omitted.card_ids.len()).sum(),
            request_hash: Digest::of(request),
            cards_hash: Digest::of(&[]),
            reported: false,
            recorded: None,
        };
        let cards = materials.cards().map(|card| (card.card_id, card.hash)).collect();
        receipt.cards_hash = receipt.hash_cards(&cards, &materials.history, &materials.steps);
        receipt
    }

    /// Hashes the hashes of all cards that were read, in order: those that are named, then history and steps.
    fn hash_cards(&self, cards: &HashMap<CardId, CardHash>, history: &[Placed], steps: &[Placed]) -> Digest {
        let hash = |placed: &Placed| placed.reading.hash();
        self.hash(cards, history.iter().map(hash), steps.iter().map(hash))
    }

    pub(crate) fn hash(
        &self,
        cards: &HashMap<CardId, CardHash>,
        history: impl ExactSizeIterator<Item = CardHash>,
        steps: impl ExactSizeIterator<Item = CardHash>,
    ) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for card_id in self.card_ids() {
            hasher.update(cards[&card_id].as_bytes());
        }
        hasher.update(&history.len().to_le_bytes());
        for hash in history {
            hasher.update(hash.as_bytes());
        }
        hasher.update(&steps.len().to_le_bytes());
        for hash in steps {
            hasher.update(hash.as_bytes());
        }
        Digest(*hasher.finalize().as_bytes())
    }

    /// Returns the cards that are named one by one.
    pub fn card_ids(&self) -> Vec<CardId> {
        let prompt = self.system_prompt_card_id.iter().chain(&self.tools_card_id).chain(&self.session_summary_card_id);
        let named = prompt.chain(self.blocks.iter().map(|block| &block.card_id)).chain(&self.query_card_ids);
        named.chain(self.recorded.iter().map(|recorded| &recorded.skeleton_card_id)).copied().collect()
    }

    /// Checks the cards: their hashes against the receipt, and what each says against its hash.
    pub fn verify_cards(&self, found: &Found) -> Verdict {
        let hashes: HashMap<CardId, CardHash> =
            found.cards.iter().map(|reading| (reading.card_id(), reading.hash())).collect();
        if self.card_ids().iter().any(|card_id| !hashes.contains_key(card_id)) {
            return Verdict::Missing;
        }
        let placed = found.history.iter().chain(&found.steps).map(|placed| &placed.reading);
        let readings: Vec<&Reading> = found.cards.iter().chain(placed).collect();
        let are_hashed = self.hash_cards(&hashes, &found.history, &found.steps) == self.cards_hash;
        if !are_hashed || readings.iter().filter_map(|reading| reading.live()).any(|card| !card.verifies()) {
            return Verdict::Mismatch;
        }
        let erased = readings.iter().any(|reading| matches!(reading, Reading::Gone(_)));
        if erased { Verdict::Erased } else { Verdict::Ok }
    }

    fn adapter(&self) -> Result<Adapter, Error> {
        let gone = |what: String| Err(Error::RendererGone(what));
        if self.policy_version != POLICY_VERSION {
            return gone(format!("policy version {}", self.policy_version));
        }
        if self.tokenizer != TOKENIZER {
            return gone(format!("tokenizer {}", self.tokenizer));
        }
        let known = Adapter::ALL.into_iter().find(|adapter| adapter.as_str() == self.adapter);
        match known.filter(|adapter| adapter.version() == self.adapter_version) {
            Some(adapter) => Ok(adapter),
            None => gone(format!("adapter {} version {}", self.adapter, self.adapter_version)),
        }
    }

    /// Renders the same call again, to the same bytes; or says why it is not possible. Also cards that the request leaves out must match their hashes.
    pub fn render(&self, found: Found) -> Result<Call<'static>, Error> {
        let readings = found.cards.iter().chain(found.history.iter().chain(&found.steps).map(|placed| &placed.reading));
        let card_ids = changed(readings.filter_map(Reading::live));
        match self.render_found(found) {
            Ok(call) if card_ids.is_empty() => Ok(call),
            Ok(_) => Err(Error::Changed { card_ids, rendered: self.request_hash }),
            Err(Error::Mismatch { rendered, .. }) if !card_ids.is_empty() => Err(Error::Changed { card_ids, rendered }),
            Err(error) => Err(error),
        }
    }

    fn render_found(&self, found: Found) -> Result<Call<'static>, Error> {
        let adapter = self.adapter()?;
        let cards: HashMap<CardId, Reading> =
            found.cards.into_iter().map(|reading| (reading.card_id(), reading)).collect();
        let missing: Vec<CardId> = self.card_ids().into_iter().filter(|id| !cards.contains_key(id)).collect();
        if !missing.is_empty() {
            return Err(Error::Missing(missing));
        }
        let context_box_id = self.history.first().map(|span| span.box_id);
        let was_gone = |placed: &Placed| context_box_id.is_some_and(|box_id| self.gone.contains(box_id, placed.place));
        let shown = found.history.iter().filter(|placed| !was_gone(placed)).chain(&found.steps);
        let readings = cards.values().chain(shown.map(|placed| &placed.reading));
        let erased: BTreeSet<CardId> =
            readings.filter(|reading| matches!(reading, Reading::Gone(_))).map(Reading::card_id).collect();
        let hashes: HashMap<CardId, CardHash> =
            cards.iter().map(|(card_id, reading)| (*card_id, reading.hash())).collect();
        let cards_verified = self.hash_cards(&hashes, &found.history, &found.steps) == self.cards_hash;
        let gone = || Error::Erased { card_ids: erased.iter().copied().collect(), cards_verified };
        let end = |placed: Placed| match &placed.reading {
            Reading::Live(card) if was_gone(&placed) => {
                let why = Gone::Expired;
                let tombstone = Tombstone { card_id: card.card_id, hash: card.hash, gone_at: self.read_at, why };
                Placed { reading: Reading::Gone(tombstone), ..placed }
            }
            _ => placed,
        };
        if cards.values().any(|reading| matches!(reading, Reading::Gone(_))) {
            return Err(gone());
        }
        let card = |card_id: &CardId| match &cards[card_id] {
            Reading::Live(card) => (**card).clone(),
            Reading::Gone(_) => unreachable!("erased cards were reported above"),
        };
        if let Some(recording) = &self.recorded {
            if !erased.is_empty() {
                return Err(gone());
            }
            let messages: Vec<Card> =
                found.history.into_iter().filter_map(|placed| placed.reading.into_live()).collect();
            let named = |card_id: &Option<CardId>| card_id.as_ref().map(card);
            let (system, tools) = (named(&self.system_prompt_card_id), named(&self.tools_card_id));
            let pieces = Pieces { skeleton: card(&recording.skeleton_card_id), system, tools, messages };
            return self.join(recording, adapter, pieces);
        }
        let block = |block: &BlockRef| Collected {
            key: block.key.clone(),
            card: card(&block.card_id),
            every_step: block.every_step,
            sources: block.sources.clone(),
        };
        let materials = Materials {
            system_prompt: self.system_prompt_card_id.as_ref().map(card),
            tools: self.tools_card_id.as_ref().map(card),
            blocks: self.blocks.iter().map(block).collect(),
            session_summary: self.session_summary_card_id.as_ref().map(card),
            history: found.history.into_iter().map(end).collect(),
            read: self.history.clone(),
            n_pinned: self.n_pinned,
            query: self.query_card_ids.iter().map(card).collect(),
            steps: found.steps,
            output: self.output,
            framework_version: self.framework_version.clone(),
            left_out: self.left_out.clone(),
            read_at: self.read_at,
        };
        // An erased card may not have been shown: a summary covered it, or it was there twice.
        match materials.call(&RenderConfig { adapter, policy: self.policy, params: self.params.clone() }) {
            Ok(call) if call.receipt.request_hash == self.request_hash => {
                Ok(Call { receipt: self.clone(), ..call.into_owned() })
            }
            _ if !erased.is_empty() => Err(gone()),
            Ok(call) => Err(Error::Mismatch { rendered: call.receipt.request_hash, receipt: self.request_hash }),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    /// Returns a receipt as it is read later.
    fn stored(receipt: &Receipt) -> Receipt {
        serde_json::from_str(&serde_json::to_string(receipt).unwrap()).unwrap()
    }

    fn end(reading: &mut Reading, why: Gone) {
        let (card_id, hash) = (reading.card_id(), reading.hash());
        *reading = Reading::Gone(Tombstone { card_id, hash, gone_at: DateTime::UNIX_EPOCH, why });
    }

    const SCRIPT: &str = "react cache_first 900
prompt: p
history
  user: a
  assistant: b
  user: c
query: d
steps
  assistant: -> a=search({})
  tool a: e";

    /// CX-11: every request renders to the same bytes again.
    #[test]
    fn rendered_again_it_is_the_same_byte_for_byte() {
        for (name, script) in golden::scripts() {
            let scene = golden::read(&script);
            for adapter in Adapter::ALL {
                let call = scene.call(adapter);
                let again = stored(&call.receipt).render(scene.found()).unwrap();
                assert!(again.request == call.request, "{name}");
                assert_eq!(again.composed, call.composed);
                assert_eq!(again.receipt, call.receipt);
            }
        }
    }

    /// CX-11: cards that were gone at the time stay gone, although a replay reads all cards as they were before they ended.
    #[test]
    fn what_was_gone_stays_gone() {
        let mut scene = golden::read(SCRIPT);
        let found = scene.found();
        end(&mut scene.materials.history[1].reading, Gone::Expired);
        let call = scene.call(Adapter::OpenaiChat);
        assert!(!String::from_utf8(call.request.clone()).unwrap().contains("\"b\""));
        let again = stored(&call.receipt).render(found).unwrap();
        assert!(again.request == call.request);
        assert_eq!(call.receipt.gone.spans().map(|span| (span.from, span.upto)).collect::<Vec<_>>(), [(2, 2)]);
    }

    /// CX-11: an erased card is named, wherever it was, and the hashes still match, unless a card was exchanged.
    #[test]
    fn what_was_erased_is_named() {
        let scene = golden::read(SCRIPT);
        let call = scene.call(Adapter::OpenaiChat);
        let erased = |change: &dyn Fn(&mut Found)| {
            let mut found = scene.found();
            change(&mut found);
            match call.receipt.render(found) {
                Err(Error::Erased { card_ids, cards_verified }) => (card_ids, cards_verified),
                other => panic!("{other:?}"),
            }
        };
        let gone = || Gone::Erased("asked".into());
        let id = |placed: &Placed| vec![placed.reading.card_id()];
        let history = erased(&|found| end(&mut found.history[0].reading, gone()));
        assert_eq!(history, (id(&scene.materials.history[0]), true));
        let step = erased(&|found| end(&mut found.steps[1].reading, gone()));
        assert_eq!(step, (id(&scene.materials.steps[1]), true));
        let prompt = scene.materials.system_prompt.as_ref().unwrap().card_id;
        let named = erased(&|found| {
            found.cards.iter_mut().filter(|reading| reading.card_id() == prompt).for_each(|r| end(r, gone()));
        });
        assert_eq!(named, (vec![prompt], true));
        // A card that the model was not shown is not missed.
        let covered =
            golden::read("react layered 900\nsummary 1-2: s\nhistory\n  user: a\n  assistant: b\n  user: c\nquery: d");
        let sent = covered.call(Adapter::OpenaiChat);
        let mut found = covered.found();
        end(&mut found.history[1].reading, gone());
        assert!(sent.receipt.render(found).unwrap().request == sent.request);
        let exchanged = erased(&|found| {
            end(&mut found.history[0].reading, gone());
            found.history.swap(1, 2);
        });
        assert!(!exchanged.1);
    }

    /// CX-11: the cards of a call are verified without its request: each against its hash, and all against the receipt.
    #[test]
    fn cards_are_verified_one_by_one() {
        let scene = golden::read(SCRIPT);
        let receipt = scene.call(Adapter::OpenaiChat).receipt;
        let verdict = |change: &dyn Fn(&mut Found)| {
            let mut found = scene.found();
            change(&mut found);
            receipt.verify_cards(&found)
        };
        assert_eq!(verdict(&|found| end(&mut found.history[0].reading, Gone::Erased("x".into()))), Verdict::Erased);
        assert_eq!(verdict(&|found| drop(found.cards.pop())), Verdict::Missing);
        assert_eq!(verdict(&|found| found.history.swap(0, 1)), Verdict::Mismatch);
        assert_eq!(verdict(&|found| drop(found.steps.pop())), Verdict::Mismatch);
    }

    /// CX-11: a renderer that no longer exists is not a mismatch.
    #[test]
    fn what_cannot_be_rendered_says_why() {
        let scene = golden::read(SCRIPT);
        let receipt = scene.call(Adapter::OpenaiChat).receipt;
        let gone = |change: &dyn Fn(&mut Receipt)| {
            let mut receipt = receipt.clone();
            change(&mut receipt);
            matches!(receipt.render(scene.found()), Err(Error::RendererGone(_)))
        };
        assert!(gone(&|receipt| receipt.adapter = "morse".into()));
        assert!(gone(&|receipt| receipt.adapter_version += 1));
        assert!(gone(&|receipt| receipt.policy_version += 1));
        assert!(gone(&|receipt| receipt.tokenizer = "words".into()));
        let mut found = scene.found();
        let lost = found.cards.pop().unwrap().card_id();
        assert!(matches!(receipt.render(found), Err(Error::Missing(ids)) if ids == [lost]));
        let mut found = scene.found();
        found.history.swap(0, 1);
        assert!(matches!(receipt.render(found), Err(Error::Mismatch { .. })));
    }

    /// DESIGN: the size of a receipt does not grow with the turn.
    #[test]
    fn a_receipt_names_spans() {
        let long = |n: usize| {
            let lines: Vec<String> = (0..n).map(|n| format!("  user: {n}")).collect();
            let script = format!("react layered 900000\nhistory\n{}\nquery: q", lines.join("\n"));
            serde_json::to_string(&golden::read(&script).call(Adapter::OpenaiChat).receipt).unwrap().len()
        };
        assert!(long(2_000) < long(2) + 20, "{} {}", long(2_000), long(2));
    }
}

//! Layers: where a message comes from (CX-1). A fixed set, plus blocks that users of this crate register.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize, Serializer};
use smallvec::smallvec;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, schema::Type};
use waybill_core::{card::Card, tokens::Tokens};

use crate::unit::{self, Sources};

/// In the order of the default policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    SystemPrompt,
    Block(BlockKey),
    CheckpointMessages,
    Query,
    /// The turn's own steps so far.
    Steps,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layer::SystemPrompt => f.write_str("system_prompt"),
            Layer::Block(key) => key.fmt(f),
            Layer::CheckpointMessages => f.write_str("checkpoint_messages"),
            Layer::Query => f.write_str("query"),
            Layer::Steps => f.write_str("steps"),
        }
    }
}

impl Serialize for Layer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl utoipa::PartialSchema for Layer {
    fn schema() -> RefOr<Schema> {
        let said = "Where a message comes from: `system_prompt`, `checkpoint_messages`, `query`, `steps`, or a block, whose name ends in `__context`.";
        ObjectBuilder::new().schema_type(Type::String).description(Some(said)).into()
    }
}

impl utoipa::ToSchema for Layer {}

/// The name of a block. Every name ends in `__context`, also those of registered blocks (CX-4).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BlockKey {
    Framework,
    Experience,
    Knowledge,
    Todo,
    Compression,
    /// Everything that differs from turn to turn: who the agent is, its boxes, what it may spend, the fields of its result. It stands with the
    /// query, in every order, so that turns which inherit the same context share everything before it.
    Turn,
    /// A registered block: these come after the known ones, in the order of their names.
    Extra(String),
}

impl BlockKey {
    pub const KNOWN: [BlockKey; 6] = [
        BlockKey::Framework,
        BlockKey::Experience,
        BlockKey::Knowledge,
        BlockKey::Todo,
        BlockKey::Compression,
        BlockKey::Turn,
    ];

    pub fn as_str(&self) -> &str {
        match self {
            BlockKey::Framework => "framework__context",
            BlockKey::Experience => "experience__context",
            BlockKey::Knowledge => "knowledge__context",
            BlockKey::Todo => "todo__context",
            BlockKey::Compression => "compression__context",
            BlockKey::Turn => "turn__context",
            BlockKey::Extra(name) => name,
        }
    }

    /// Returns whether it stays the same for all steps of a turn and all turns of an agent, unless its text is edited.
    pub(crate) fn is_stable(&self) -> bool {
        matches!(self, BlockKey::Framework | BlockKey::Compression)
    }
}

impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl utoipa::PartialSchema for BlockKey {
    fn schema() -> RefOr<Schema> {
        let pattern = "^[a-z0-9_]+__context$";
        ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).max_length(Some(64)).into()
    }
}

impl utoipa::ToSchema for BlockKey {}

/// A text that cannot be the name of a block.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} cannot be the name of a block: use a-z, 0-9 and `_`, ending in `__context`, at most 64 characters")]
pub struct MalformedKey(String);

impl FromStr for BlockKey {
    type Err = MalformedKey;

    fn from_str(text: &str) -> Result<BlockKey, MalformedKey> {
        if let Some(known) = BlockKey::KNOWN.into_iter().find(|known| known.as_str() == text) {
            return Ok(known);
        }
        let fits = text.len() <= 64
            && text.strip_suffix("__context").is_some_and(|name| !name.is_empty())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if fits { Ok(BlockKey::Extra(text.to_owned())) } else { Err(MalformedKey(text.to_owned())) }
    }
}

impl TryFrom<String> for BlockKey {
    type Error = MalformedKey;

    fn try_from(text: String) -> Result<BlockKey, MalformedKey> {
        text.parse()
    }
}

impl From<BlockKey> for String {
    fn from(key: BlockKey) -> String {
        key.as_str().to_owned()
    }
}

/// Text that is shown as it is: a system prompt, or a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    pub text: String,
    pub n_tokens: Tokens,
    /// The cards that hold it. A rendered block is a card that only receipts refer to (CX-5).
    pub sources: Sources,
}

impl Text {
    /// Returns the text of a card.
    pub fn of(card: &Card) -> Text {
        Text { text: unit::text_of(card).into_owned(), n_tokens: card.n_tokens, sources: smallvec![unit::source(card)] }
    }
}

/// A block, and how long it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub text: Text,
    /// Whether it is collected again for every step, not once per turn. It then stands last if the order is made for the cache (CX-3).
    pub every_step: bool,
}

/// The collected blocks, by name.
pub type Contexts = BTreeMap<BlockKey, Block>;

#[cfg(test)]
mod tests {
    use super::*;

    /// CX-1, CX-4
    #[test]
    fn blocks_have_a_name_and_an_order() {
        let key = |text: &str| text.parse::<BlockKey>().unwrap();
        let names = ["zoo__context", "compression__context", "a1__context", "framework__context", "todo__context"];
        let mut keys: Vec<BlockKey> = names.into_iter().map(key).collect();
        keys.sort();
        let sorted: Vec<&str> = keys.iter().map(BlockKey::as_str).collect();
        assert_eq!(
            sorted,
            ["framework__context", "todo__context", "compression__context", "a1__context", "zoo__context"]
        );
        for bad in ["todo", "__context", "To__context", "a b__context", "todo__contexts", ""] {
            assert!(bad.parse::<BlockKey>().is_err(), "{bad}");
        }
    }
}

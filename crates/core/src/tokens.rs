//! Token counts, as the o200k vocabulary counts them.
//!
//! Each card's count is taken once, when the card is made, and stored with it. Providers without a public
//! vocabulary are estimated from the same number.

use std::{fmt, iter::Sum, ops::Add, sync::LazyLock};

use bpe_openai::{Tokenizer, byte_pair_encoding::BytePairEncoding};
use serde::{Deserialize, Serialize};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, schema::Type};

/// The vocabulary that counts. Receipts name it.
pub const TOKENIZER: &str = "o200k_base";

/// A number of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(try_from = "i32", into = "i32")]
pub struct Tokens(i32);

/// A count below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a number of tokens: it must not be negative")]
pub struct Negative(i32);

impl TryFrom<i32> for Tokens {
    type Error = Negative;

    fn try_from(count: i32) -> Result<Tokens, Negative> {
        Tokens::new(count).ok_or(Negative(count))
    }
}

impl From<Tokens> for i32 {
    fn from(tokens: Tokens) -> i32 {
        tokens.0
    }
}

impl Tokens {
    pub const ZERO: Tokens = Tokens(0);

    /// Returns `None` if the count is negative.
    pub const fn new(count: i32) -> Option<Tokens> {
        if count < 0 { None } else { Some(Tokens(count)) }
    }

    pub const fn get(self) -> i32 {
        self.0
    }
}

impl utoipa::PartialSchema for Tokens {
    fn schema() -> RefOr<Schema> {
        let int32 = SchemaFormat::KnownFormat(KnownFormat::Int32);
        ObjectBuilder::new().schema_type(Type::Integer).format(Some(int32)).minimum(Some(0)).into()
    }
}

impl utoipa::ToSchema for Tokens {}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Add for Tokens {
    type Output = Tokens;

    fn add(self, other: Tokens) -> Tokens {
        Tokens(self.0.saturating_add(other.0))
    }
}

impl Sum for Tokens {
    fn sum<I: Iterator<Item = Tokens>>(counts: I) -> Tokens {
        counts.fold(Tokens::ZERO, Add::add)
    }
}

/// Opened at the first count, in about a tenth of a second.
static O200K: LazyLock<Tokenizer> = LazyLock::new(|| {
    let packed: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/o200k_base.zst"));
    let table = zstd::decode_all(packed).expect("the build script compressed it");
    let table: BytePairEncoding = rmp_serde::from_slice(&table).expect("the build script wrote it");
    Tokenizer::new_lookahead(table, &[(&WORDS.join("|"), false), (r"\s+\s", true), (r"\s+", false)], false)
        .expect("the patterns are valid")
});

/// How the vocabulary cuts a text before it looks for tokens. The patterns belong to it, as the table does.
const WORDS: [&str; 6] = [
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+$",
];

/// Opens the vocabulary now. A short-lived process calls this before a transaction in which it counts, so that the transaction does not wait for it.
pub fn open() {
    LazyLock::force(&O200K);
}

/// Counts the tokens of a text.
pub fn count(text: &str) -> Tokens {
    let counted = O200K.count(text);
    Tokens(i32::try_from(counted).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_vocabulary() {
        assert_eq!(count(""), Tokens::ZERO);
        assert_eq!(count("hello world"), Tokens(2));
        assert_eq!(count("a".repeat(64).as_str()), Tokens(8));
    }

    #[test]
    fn the_packed_table_counts_as_the_library_does() {
        let texts = [
            "I'll pay €1,234.56  by\r\n\n\tMonday /x ",
            "fn main() { println!(\"{x:>8}\"); }   ",
            "上下文箱 holds 卡片。",
        ];
        for text in texts {
            assert_eq!(count(text).get() as usize, bpe_openai::o200k_base().count(text), "{text:?}");
        }
    }

    #[test]
    fn a_sum_saturates_instead_of_wrapping() {
        assert_eq!(Tokens(i32::MAX) + Tokens(1), Tokens(i32::MAX));
    }
}

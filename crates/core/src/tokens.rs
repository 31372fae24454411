//! Token counts, as the o200k vocabulary counts them.
//!
//! Each card's count is taken once, when the card is made, and stored with it. Providers without a public
//! vocabulary are estimated from the same number.

use std::{fmt, iter::Sum, ops::Add};

use serde::{Deserialize, Serialize};

/// The vocabulary that counts. Receipts name it.
pub const TOKENIZER: &str = "o200k_base";

/// A number of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
#[serde(transparent)]
pub struct Tokens(i32);

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

/// Counts the tokens of a text.
pub fn count(text: &str) -> Tokens {
    let counted = bpe_openai::o200k_base().count(text);
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
    fn a_sum_saturates_instead_of_wrapping() {
        assert_eq!(Tokens(i32::MAX) + Tokens(1), Tokens(i32::MAX));
    }
}

//! Waybill's basic types: ids, JSON that hashes the same everywhere, cards, artifacts, places in boxes, turns and the right to act on them,
//! signals and events.
//!
//! ```
//! use waybill_core::{card::Draft, tokens::Tokens};
//!
//! // A card is drafted, then sealed: checked, hashed over its canonical form, and counted in tokens. After that it never changes.
//! let card = Draft::instruction("Compare the two offers.").seal()?;
//! assert_eq!(card.metadata().card_type.as_str(), "task.instruction");
//! assert!(card.n_tokens() > Tokens::ZERO);
//! # Ok::<(), waybill_core::card::Invalid>(())
//! ```
//!
//! * Basics: [`id`], [`json`], [`tokens`], [`error`].
//! * What is said and stored: [`card`], [`card_box`], [`artifact`].
//! * What runs: [`turn`], [`label`], [`handover`], [`handoff`], [`command`], [`request`].
//! * What people write: [`resource`], [`template`], [`tool`], [`key`].
//! * What others see: [`bus`], [`metric`], [`span`].
//!
//! Nothing here does I/O, reads a clock for a decision, or knows a table. The one exception to purity
//! is what is minted, ids ([`id`], UUIDv7) and keys ([`key`]), which take the time and random bits.
//! With the feature `sqlx` the types carry their database codecs, so there is no second set of row types.

#[cfg(feature = "sqlx")]
mod composite;

pub mod error;
pub mod id;
pub mod json;
pub mod object;
pub mod tokens;

pub mod artifact;
pub mod card;
pub mod card_box;

pub mod label;
pub mod turn;

pub mod template;

pub mod guard;
pub mod handoff;
pub mod handover;
pub mod key;
pub mod request;
pub mod resource;
pub mod tool;

pub mod command;

pub mod bus;
pub mod metric;
pub mod span;

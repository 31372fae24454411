//! Waybill's basic types: ids, JSON that hashes the same everywhere, cards, artifacts, places in boxes, turns and the right to act on them,
//! signals and events.
//!
//! Nothing here does I/O, reads a clock for a decision, or knows a table. The one exception to purity
//! is what is minted, ids ([`id`], UUIDv7) and keys ([`key`]), which take the time and random bits.
//! With the feature `sqlx` the types carry their database codecs, so there is no second set of row types.

pub mod error;
pub mod id;
pub mod json;
pub mod tokens;

pub mod artifact;
pub mod card;
pub mod card_box;

pub mod turn;

pub mod template;

pub mod guard;
pub mod handoff;
pub mod handover;
pub mod key;
pub mod request;
pub mod resource;
pub mod tool;

pub mod bus;
pub mod metric;
pub mod span;

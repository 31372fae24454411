//! What the model sees: layers, units, a budget, and the one function that puts them together (CX-1 … CX-13).
//!
//! * Pure: no I/O, no clock, no chance. Equal input gives equal messages.
//! * Only [`compose`] decides the order of layers, by policy.
//! * A call and its results are one unit. A unit is shown as a whole or not at all, and what is not shown is reported.
//! * The query is shown once.
//!
//! Not here: where cards and blocks come from, how a provider wants its bytes.

pub mod layer;
pub mod policy;

pub mod framework;
pub mod todo;

pub mod unit;

pub mod compose;

pub mod compact;

pub mod wire;

pub mod call;
pub mod receipt;

pub mod handoff;
pub mod knowledge;
pub mod schema;

pub mod diff;

pub mod lint;

#[cfg(test)]
mod kit;

#[cfg(test)]
mod golden;

//! What the model sees: layers, units, a budget, and the one function that puts them together (CX-1 … CX-13).
//!
//! ```
//! use waybill_context::{compose::{Input, compose}, layer::Contexts, policy::Policy};
//! use waybill_core::{card::Draft, card_box::Places, resource::Order, tokens::{self, Tokens}};
//!
//! let question = Draft::instruction("Which offer is better?").seal()?.into_card(Default::default());
//! let input = Input {
//!     system_prompt: None,
//!     contexts: &Contexts::new(),
//!     history: &[],
//!     n_pinned: 0,
//!     covered: &Places::default(),
//!     query: &[question],
//!     steps: &[],
//!     other_tokens: Tokens::ZERO,
//! };
//! let budget = tokens::count(&"word ".repeat(1_000));
//! let composed = compose(&input, &Policy { order: Order::Layered, budget, per_message: Tokens::ZERO })?;
//! assert_eq!(composed.messages.len(), 1);
//! assert!(composed.omitted.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * What can be shown: [`layer`], [`mod@unit`], [`framework`], [`mod@todo`], [`knowledge`], [`handoff`].
//! * How it is put together: [`mod@compose`], [`policy`], [`compact`].
//! * One call: [`call`], [`wire`], [`receipt`], [`diff`], [`lint`], [`schema`].
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
pub mod record;

pub mod handoff;
pub mod knowledge;
pub mod schema;

pub mod diff;

pub mod lint;

#[cfg(test)]
mod kit;

#[cfg(test)]
mod golden;

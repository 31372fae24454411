//! The worker: runs turns against models (WK-1 … WK-7).
//!
//! * [`turn::run`] is one turn, top to bottom; what is composed is decided in `waybill-context`, what is true in `waybill-kernel`.
//! * No transaction is open while somebody else thinks: a source, a summariser, a model.
//! * Every write is fenced by the turn it is made for; everything that came back from a model is written in one transaction.
//! * Only `model` and `tool` reach outside, and only they and `secret` see a key.
//!
//! Not here: SQL, the order of layers, what the orchestrator does with a command.

pub mod serve;
pub mod turn;
mod write;

pub mod collect;
pub mod gather;

pub mod compact;
mod summarise;

pub mod installation;
pub mod knowledge;
pub mod model;
mod outside;
pub mod secret;
pub mod tool;

pub mod fork;
pub mod replay;

//! The worker: runs turns against models (WK-1 … WK-9).
//!
//! * [`turn::run`] runs one turn from start to end. [`turn::reported`] has its steps in two halves, for workers elsewhere that ask the model (WK-9).
//!   `waybill-context` decides what is composed; `waybill-kernel` holds the state.
//! * No transaction is open while a source, a summariser or a model is working.
//! * Every write is fenced by the turn that it belongs to. Everything that came back from a model is written in one transaction.
//! * Only `model` connects to other hosts; tools are `waybill-tool`'s.
//!
//! Not here: SQL, the order of layers, what the orchestrator does with a command.

pub mod serve;
pub mod turn;

mod ends;
mod write;

pub mod collect;
pub mod gather;

pub mod compact;
mod summarise;

pub mod installation;
pub mod knowledge;
pub mod model;
pub mod toolbox;

//! What happens around one model call: gather what it is made of, compact it where it is too much, render again what it was.
//!
//! * Sources are asked at the edge, with deadlines; what fails is left out and said so. What is composed is decided in `waybill-context`.
//! * No transaction is open while somebody else thinks: a source, a summariser, a model.
//! * Every write is fenced by the turn it is made for.
//!
//! Not here: SQL, the order of layers, HTTP.

pub mod collect;
pub mod gather;

pub mod compact;

pub mod replay;

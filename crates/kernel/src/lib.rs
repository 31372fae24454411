//! Waybill's truth: cards and boxes in PostgreSQL, one project per transaction.
//!
//! * All SQL of Waybill is here, each statement a literal beside its binds; one test prepares them all.
//! * A unit of work belongs to one project. Row-level security holds it there, whatever a statement says.
//! * A card never changes and a box only grows; the database refuses anything else, whoever asks.
//! * Time is the database's. Order is a sequence column.
//!
//! Not here: NATS, HTTP, models, files, environment. Nothing is published inside a transaction.

pub mod work;

pub mod card;
pub mod card_box;
pub mod project;

pub mod check;
pub mod migrate;

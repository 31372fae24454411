//! Waybill's truth: cards, boxes and turns in PostgreSQL, one project per transaction.
//!
//! * All SQL of Waybill is here, each statement a literal beside its binds; one test prepares them all.
//! * A unit of work belongs to one project. Row-level security holds it there, whatever a statement says.
//! * A card never changes and a box only grows; the database refuses anything else, to every role.
//! * A turn is acted on under a fence; a worker that lost it changes nothing. The transitions are functions in the database, each
//!   in a file beside the Rust that calls it.
//! * Time is the database's. Order is a sequence column.
//!
//! Not here: NATS, HTTP, models, files, environment. Nothing is published inside a transaction.

pub mod offload;
pub mod retry;
pub mod work;

pub mod artifact;
pub mod card;
pub mod card_box;

pub mod blackboard;
pub mod receipt;
pub mod session;

pub mod agent;
pub mod external;
pub mod fork;
pub mod grant;
pub mod handover;

pub mod batch;
pub mod call;
pub mod intake;
pub mod lease;
pub mod outbox;
pub mod request;
pub mod turn;

pub mod idempotency;
pub mod quarantine;
pub mod sweep;

pub mod trace;
pub mod vitals;

pub mod audit;
pub mod key;
pub mod knowledge;
pub mod project;
pub mod resource;

pub mod check;
pub mod invariant;
pub mod migrate;
pub mod retention;

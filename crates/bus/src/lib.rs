//! Waybill's doorbell, its token streams and its event feed (L0-9, L0-16).
//!
//! * Only this crate uses NATS. The types, and the traits through which other crates use this one, are in `waybill_core::bus`.
//! * A signal may be lost, duplicated or late. Nothing here waits for one, repeats one or reports that one was lost.
//! * An unreachable server is no error: the connection retries for ever, and `is_up()` is false meanwhile.
//! * A server older than 2.10 is never used, because it ignores unknown options without an error.
//! * An acknowledged event is in the stream. An agent's events are there in the order in which they were published.
//!
//! Not here: the outbox that events come from, what a process does when it is woken, files, environment.

pub mod subject;

pub mod local;
pub mod nats;

pub mod feed;

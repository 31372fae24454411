//! Waybill's doorbell, its token streams and its event feed (L0-9, L0-16).
//!
//! * All NATS of Waybill is here. The words, and the traits by which the others see this crate, are `waybill_core::bus`.
//! * A signal may be lost, doubled or late. Nothing here waits for one, repeats one or reports that one was lost.
//! * A server that is away is no error: what is connected goes on, tries again for ever, and says `is_up() == false` meanwhile.
//! * A server older than 2.10 is never used: it ignores what it does not know, without an error.
//! * An event that was acknowledged is in the stream; an agent's events are there in the order in which they were handed over.
//!
//! Not here: the outbox that events come from, the decision what to do when woken, files, environment.

pub mod subject;

pub mod local;
pub mod nats;

pub mod feed;

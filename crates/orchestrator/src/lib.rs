//! The orchestrator: what agents ask of it (delegate, fork, …), and what must go on whoever else is up: the sweeps, and the relay of events.
//!
//! Any number of processes may run them at once. They hold nothing in memory that matters: killed at any instant, another goes on.
//! Not here: NATS. Events leave through [`waybill_core::bus::Feed`], rings through the kernel's bus.

pub mod command;
pub mod handoff;
pub mod knowledge;
pub mod launch;
pub mod relay;
pub mod trace;
pub mod watch;

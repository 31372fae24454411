//! The orchestrator: it carries out the commands of agents (delegate, fork, …), and runs the sweeps and the relay of events.
//!
//! Any number of processes may run at once. They keep no state in memory: if one is killed at any instant, another continues.
//! Not here: NATS. Events leave through [`waybill_core::bus::Feed`], rings through the kernel's bus.

pub mod command;
pub mod handoff;
pub mod knowledge;
pub mod launch;
pub mod relay;
pub mod trace;
pub mod watch;

//! The orchestrator: it carries out the commands of agents (delegate, fork, …), and runs the sweeps and the relay of events. Launching, forking and replaying
//! turns are here too: they read the record and start turns, and run nothing.
//!
//! Any number of processes may run at once. They keep no state in memory: if one is killed at any instant, another continues.
//! Not here: NATS. Events leave through [`waybill_core::bus::Feed`], rings through the kernel's bus.

pub mod blast;
pub mod command;
pub mod fork;
pub mod handoff;
pub mod knowledge;
pub mod launch;
pub mod outcome;
pub mod relay;
pub mod replay;
pub mod trace;
pub mod watch;

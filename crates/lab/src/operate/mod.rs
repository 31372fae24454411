//! What an operator has to deal with: failover, overload, a transaction that stays open, a dump while partitions are to be made, wrong
//! clocks, full disks, processes killed for memory, and a day with kills, an upgrade and backups.

pub mod day;
pub mod failover;
pub mod faults;
pub mod held;
pub mod neighbours;
pub mod overload;
pub mod weeks;
mod writers;

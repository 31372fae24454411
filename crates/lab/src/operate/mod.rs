//! What an operator meets: failover, overload, a transaction that stays open, wrong clocks, full disks, processes killed for memory, and a day of all that.

pub mod day;
pub mod failover;
pub mod faults;
pub mod held;
pub mod overload;
mod writers;

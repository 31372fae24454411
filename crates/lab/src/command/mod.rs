//! The commands of `waybill-lab`.

pub(crate) mod bench;
pub(crate) mod chaos;
pub(crate) mod process;
mod report;

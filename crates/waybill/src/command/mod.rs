//! The commands, one file each.

pub(crate) mod admin;
pub(crate) mod agent;
pub(crate) mod apply;
pub(crate) mod bench;
pub(crate) mod card;
pub(crate) mod chaos;
pub(crate) mod context;
pub(crate) mod doctor;
pub(crate) mod grant;
pub(crate) mod lab;
pub(crate) mod lint;
pub(crate) mod migrate;
pub(crate) mod orchestrator;
pub(crate) mod project;
pub(crate) mod resource;
pub(crate) mod turn;
pub(crate) mod worker;

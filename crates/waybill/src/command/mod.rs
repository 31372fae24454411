//! The commands, one file each.

pub(crate) mod admin;
pub(crate) mod agent;
pub(crate) mod apply;
pub(crate) mod bench;
pub(crate) mod card;
pub(crate) mod chaos;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod dev;
pub(crate) mod doctor;
pub(crate) mod fork;
pub(crate) mod grant;
pub(crate) mod keys;
pub(crate) mod lab;
pub(crate) mod lint;
pub(crate) mod look;
pub(crate) mod migrate;
pub(crate) mod orchestrator;
pub(crate) mod project;
pub(crate) mod replay;
pub(crate) mod resource;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod turn;
pub(crate) mod worker;

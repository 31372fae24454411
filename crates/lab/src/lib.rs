//! The laboratory: private services, benchmarks and the baselines they are measured against, and the storm.
//!
//! Tests, `.ci/run`, `waybill bench` and `waybill dev` start their servers through [`services`]. This crate may
//! use SQL, for baselines only; no feature of the product is implemented here.

pub mod operate;
pub mod services;

pub mod figure;

pub mod bench;

pub mod storm;

pub mod bulk;
pub mod roles;
pub mod team;
pub mod tools;
pub mod walls;

pub mod model;

//! The laboratory: benchmarks and the baselines they are measured against, storms, and the scripted model. `waybill-lab` is its program.
//!
//! This crate may use SQL, for baselines only; no feature of the product is implemented here.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

pub mod operate;
pub mod pages;

pub mod figure;

pub mod bench;

pub mod storm;

pub mod bulk;
pub mod roles;
#[cfg(test)]
mod scopes;
mod serving;
pub mod team;
pub mod tools;
pub mod walls;

pub mod model;

/// Returns the `waybill` program that is measured: the one beside `waybill-lab`.
pub fn waybill() -> Result<PathBuf> {
    let program = std::env::current_exe().context("this program cannot be found")?.with_file_name("waybill");
    ensure!(program.exists(), "{} does not exist: build it with `cargo build`", program.display());
    Ok(program)
}

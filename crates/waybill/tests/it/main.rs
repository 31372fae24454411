//! Tests of the binary from outside, and of the workspace.

#![allow(clippy::unwrap_used)]

mod cli;
mod dev;
mod house;
mod lint;
mod talk;
mod talks;
mod team;
mod watching;

//! The binary from outside, and the house it stands in.

#![allow(clippy::unwrap_used)]

mod cli;
mod dev;
mod house;
mod lint;
mod talk;
mod talks;
mod team;
mod watching;

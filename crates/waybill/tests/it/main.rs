//! Tests of the binary from outside, and of the workspace.

#![allow(clippy::unwrap_used)]

mod cli;
mod dev;
mod house;
mod import;
mod inside;
mod leaving;
mod lint;
mod logins;
mod newcomer;
mod screens;
mod start;
mod talk;
mod talks;
mod team;
mod watching;
mod wrong;

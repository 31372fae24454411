//! The door for tool calls (WK-3, WK-4): which calls are admitted, how they leave, and what becomes of their answers.
//!
//! * [`admit`] decides whether a call may be made now, and asks for an approval where the tool requires one.
//! * [`service`] serves the calls of HTTP and MCP tools; [`egress`] limits the hosts that they reach; [`secret`] finds keys by name.
//! * [`conclude`] checks an answer, stores what is too long as an artifact, and reports it.
//! * [`check`] holds arguments, answers and manifests to their schemas; [`openapi`] makes manifests.
//!
//! Not here: models, and which tools an agent is shown (`waybill-worker`).

pub mod admit;
pub mod check;
pub mod conclude;
pub mod service;

pub mod egress;
mod http;
pub mod mcp;
pub mod openapi;
pub mod outside;
pub mod secret;

//! Handing over (PM-4, PM-5, PM-12): the context box of a turn is packed on record, by reference, within the rights of the agent or person that
//! packs it.
//!
//! ```text
//!   arguments ──rules──▶ cards            1 … n       what is asked
//!   memory, boxes, session ──ranges──▶    n + 1 …     what went before
//!   parent pointer                        last        who asks
//! ```
//! Each part is one row of `state.handovers`: which rule put it there, from which box, how far, by which right. The row also gives the
//! receiver the right to read that box, and to pass it on.

mod pack;
mod trace;

pub use pack::{
    Brings, Named, Pack, Packed, Packing, Prepared, ProfileTarget, name, pack_context, prepare, target, targets, write,
};
pub use trace::{Handed, Sight, Why, handed, sight, why};
use waybill_core::{
    card::Invalid,
    id::{BoxId, Name, SessionId},
};

use crate::{
    card, card_box,
    work::{DbError, from_driver},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    BadRequest(String),
    #[error("argument `{arg_key}` is not valid")]
    Argument { arg_key: String, source: Invalid },
    #[error("there is no profile `{0}` in this project")]
    NoProfile(Name),
    #[error("there is no session {0} in this project")]
    NoSession(SessionId),
    #[error("not found in this project: boxes {0:?}")]
    NoBox(Vec<BoxId>),
    /// On record by the time this is returned.
    #[error(
        "this agent may not use boxes {0:?}: it does not own them, and they were neither handed over nor granted to it"
    )]
    Forbidden(Vec<BoxId>),
    #[error(transparent)]
    Card(#[from] card::Error),
    #[error(transparent)]
    Box(#[from] card_box::Error),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

impl Error {
    /// Returns the error code for the caller.
    pub fn code(&self) -> &'static str {
        match self {
            Error::BadRequest(_) | Error::Argument { .. } => "bad_request",
            Error::NoProfile(_) | Error::NoSession(_) | Error::NoBox(_) => "not_found",
            Error::Forbidden(_) => "forbidden",
            Error::Card(_) | Error::Box(_) | Error::Db(_) => "error",
        }
    }
}

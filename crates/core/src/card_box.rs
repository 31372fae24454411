//! Places in a box. A box only grows, so a prefix or a span of one is a snapshot for ever (CB-8).

use serde::{Deserialize, Serialize};

use crate::id::BoxId;

/// Positions `from ..= upto` of a box, counted from 1. Empty when `upto < from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    pub box_id: BoxId,
    pub from: i64,
    pub upto: i64,
}

impl Span {
    /// The first `upto` positions: what the box held when it was that long.
    pub const fn prefix(box_id: BoxId, upto: i64) -> Span {
        Span { box_id, from: 1, upto }
    }

    /// Everything the box holds at the moment it is looked at.
    pub const fn whole(box_id: BoxId) -> Span {
        Span::prefix(box_id, i64::MAX)
    }
}

//! The card: the smallest unit of information. Immutable, typed, one id for ever (CB-1 … CB-6).
//!
//! A card is written as a [`Draft`], sealed into a [`NewCard`] (canonical bytes, hash, token count: each taken
//! once), stored, and read back as a [`Card`], or as a [`Tombstone`] when its content may no longer be shown.

mod content;
mod draft;
mod hash;
mod metadata;
mod reading;

pub use content::{CallContent, Content, Field, HandoffContent, ResultContent, ResultForm, ToolCall};
pub use draft::{Draft, Invalid, NewCard};
pub use hash::{CardHash, Salt};
pub use metadata::{CardType, MalformedType, Metadata, Role};
pub use reading::{Card, Gone, Origin, Reading, Tombstone, changed};

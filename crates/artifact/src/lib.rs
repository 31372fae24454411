//! Bulk content in an object store: a folder, S3, Google Cloud Storage or Azure, by URL (HO-1).
//!
//! An object is what one upload wrote; it is never changed. Which path and version it stands for is said by rows of the kernel. Whatever is read
//! was verified before it is handed on, piece by piece.

mod artifacts;
mod measure;
pub mod store;

pub use artifacts::{Artifacts, Error, Put};
pub use store::{Key, Store};

//! Bulk content in an object store: a folder, S3, Google Cloud Storage or Azure, by URL (HO-1).
//!
//! An object holds what one upload wrote, and never changes. Rows of the kernel say which path and version it belongs to. Content that is read
//! is verified piece by piece before it is returned.

mod artifacts;
mod measure;
pub mod store;

pub use artifacts::{Artifacts, Error, Put};
pub use store::{Key, Store};

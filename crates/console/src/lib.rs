//! The console (UI-4): the pages that browsers get at `/ui/`.
//!
//! Their sources are in `console/`, built files in `dist/`, compressed with gzip: `cargo build` needs no Node. They are the same for everybody; all that
//! they show comes from the HTTP API, with the rights of the caller.
//!
//! Not here: how they are served, logins and their cookies, which belong to the API.

use std::io::{Read, Result};

use flate2::read::GzDecoder;

/// A file of the console.
#[derive(Debug)]
pub struct File {
    /// Path below `/ui/`.
    path: &'static str,
    pub content_type: &'static str,
    /// Hash of the content.
    pub hash: &'static str,
    /// The content, compressed with gzip.
    pub gzip: &'static [u8],
}

/// Made by the build of the console.
static FILES: &[File] = include!("../dist/files.rs");

/// The page. All addresses of the console load it; it finds out what to show from its own address.
const PAGE: &str = "index.html";
/// Files whose names change with their content.
const ASSETS: &str = "assets/";

/// What a page of the console may do: load scripts, styles and data from this server only, send nothing elsewhere, be shown in no other page. Text can
/// become neither markup nor script: the only Trusted Types policy makes workers.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; worker-src 'self'; \
    base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types waybill-worker";

impl File {
    /// Returns what a browser gets for a path below `/ui/`: a file, or the page. A file of another version is not replaced by the page, because the
    /// browser would take it for a script.
    pub fn at(path: &str) -> Option<&'static File> {
        let wanted = if path.starts_with(ASSETS) { [path; 2] } else { [path, PAGE] };
        wanted.iter().find_map(|wanted| FILES.iter().find(|file| file.path == *wanted))
    }

    /// Checks whether the name of the file changes with its content, so that a browser may keep it for ever.
    pub fn is_lasting(&self) -> bool {
        self.path.starts_with(ASSETS)
    }

    /// Returns the content for a client that does not accept gzip.
    pub fn plain(&self) -> Result<Vec<u8>> {
        let mut plain = Vec::new();
        GzDecoder::new(self.gzip).read_to_end(&mut plain)?;
        Ok(plain)
    }
}

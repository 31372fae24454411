//! How this process speaks HTTP to others.

use std::time::Duration;

use reqwest::{Client, ClientBuilder, redirect::Policy};

/// A client that follows nobody elsewhere.
pub(crate) fn client() -> ClientBuilder {
    // Whoever was first has installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .redirect(Policy::none())
        .user_agent(concat!("waybill/", env!("CARGO_PKG_VERSION")))
}

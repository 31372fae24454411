//! The HTTP client for requests to other hosts.

use std::time::Duration;

use reqwest::{Client, ClientBuilder, redirect::Policy};

/// Returns a client that follows no redirects.
pub fn client() -> ClientBuilder {
    // This fails if a provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .redirect(Policy::none())
        .user_agent(concat!("waybill/", env!("CARGO_PKG_VERSION")))
}

//! Cookies of browsers (SE-11), and the checks that a request was made by a page of this server, or of this machine.
//!
//! Over TLS a cookie is `__Host-waybill`: `Secure`, and of this host alone. Over plain HTTP, which only loopback and `waybill dev` serve,
//! browsers do not all accept that, so there it is `waybill`.

use axum::http::{HeaderMap, Method, StatusCode, Uri, header, request::Parts};
use waybill_core::{guard::Guard, key::BrowserSecret};

use crate::{Api, problem::Problem};

/// The cookie of a session, without its prefix.
pub(crate) const SESSION: &str = "waybill";
/// The cookie of a login that is under way, without its prefix.
pub(crate) const LOGIN: &str = "waybill-login";

/// When a browser sends a cookie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    /// With requests of pages of this server.
    Strict,
    /// Also when a person comes here from another site.
    Lax,
}

/// Returns the value of a cookie.
pub(crate) fn read<'a>(api: &Api, headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let name = full(api, name);
    let lists = headers.get_all(header::COOKIE).iter().filter_map(|list| list.to_str().ok());
    let mut pairs = lists.flat_map(|list| list.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Returns the secret of the browser's session. A cookie that cannot be one is as good as none.
pub(crate) fn session(api: &Api, headers: &HeaderMap) -> Option<BrowserSecret> {
    read(api, headers, SESSION)?.parse().ok()
}

/// Returns the value of `Set-Cookie`. No seconds mean that the cookie is removed.
pub(crate) fn set(api: &Api, name: &str, value: &str, seconds: i64, sent: Sent) -> String {
    let secure = if is_secure(api) { "; Secure" } else { "" };
    format!("{}={value}; Path=/; Max-Age={seconds}; HttpOnly{secure}; SameSite={sent:?}", full(api, name))
}

fn full(api: &Api, name: &str) -> String {
    if is_secure(api) { format!("__Host-{name}") } else { name.to_owned() }
}

/// Checks whether browsers reach this server over TLS.
fn is_secure(api: &Api) -> bool {
    api.config.tls.is_some() || api.config.behind_tls
}

/// Returns the origin of this server, as the browser that sent the request knows it.
pub(crate) fn origin(api: &Api, uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let host = || headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = uri.authority().map(|authority| authority.as_str()).or_else(host)?;
    Some(format!("{}://{host}", if is_secure(api) { "https" } else { "http" }))
}

/// Which page made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Own,
    Other,
    /// None: a person typed the address, or the client is not a browser that says so.
    Unsaid,
}

/// Returns which page made a request. A page can set neither header.
fn page(api: &Api, parts: &Parts) -> Page {
    let text = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap_or_default());
    match (text("sec-fetch-site"), text("origin")) {
        (Some("same-origin"), _) => Page::Own,
        (Some("none"), _) | (None, None) => Page::Unsaid,
        (None, Some(said)) if origin(api, &parts.uri, &parts.headers).is_some_and(|own| own == said) => Page::Own,
        _ => Page::Other,
    }
}

/// Refuses a request with a cookie that a page of another site may have made, or that changes something and does not say which page made it.
pub(crate) fn own_pages_only(api: &Api, parts: &Parts) -> Result<(), Problem> {
    let is_read = parts.method == Method::GET || parts.method == Method::HEAD;
    allow(match page(api, parts) {
        Page::Own => true,
        Page::Unsaid => is_read,
        Page::Other => false,
    })
}

/// Refuses a request of a page of another site. For requests that need no cookie.
pub(crate) fn no_other_pages(api: &Api, parts: &Parts) -> Result<(), Problem> {
    allow(page(api, parts) != Page::Other)
}

fn allow(may: bool) -> Result<(), Problem> {
    if may || !Guard::CrossSite.stands() {
        return Ok(());
    }
    let said = "a cookie is accepted only from pages of this server: send `Origin` or `Sec-Fetch-Site: same-origin`, or use an API key";
    Err(Problem::new(StatusCode::FORBIDDEN, "cross_site", said))
}

/// Checks that the request names this machine as its host and origin: a page of another origin can make a browser send requests, but not these.
pub(crate) fn names_loopback(headers: &HeaderMap) -> bool {
    let is_loopback = |authority: &str| {
        let host = authority
            .rsplit_once(':')
            .map_or(authority, |(host, port)| if port.bytes().all(|b| b.is_ascii_digit()) { host } else { authority });
        matches!(host, "localhost" | "127.0.0.1" | "[::1]")
    };
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default().to_owned());
    let host = text(header::HOST).is_none_or(|host| is_loopback(&host));
    let origin = text(header::ORIGIN)
        .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, authority)| is_loopback(authority)));
    host && origin
}

//! The headers of requests and answers: which of them are passed on, and what they say.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// What our own headers begin with. None of them is sent on.
const OURS: &str = "x-waybill-";

/// Headers that belong to one connection, not to the request.
const OF_CONNECTION: [HeaderName; 11] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

/// Returns the headers that are sent on.
pub(super) fn passed(headers: &HeaderMap) -> HeaderMap {
    let listed = listed(headers);
    let mut passed = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let is_ours = name.as_str().starts_with(OURS) || *name == header::HOST || *name == header::CONTENT_LENGTH;
        if is_ours || is_of_connection(name, &listed) {
            continue;
        }
        if *name == header::COOKIE {
            if let Some(value) = foreign_cookies(value) {
                passed.append(name, value);
            }
            continue;
        }
        passed.append(name, value.clone());
    }
    passed
}

/// Returns the headers of the answer that the client gets.
pub(super) fn answered(headers: &HeaderMap) -> HeaderMap {
    let listed = listed(headers);
    let passed = headers.iter().filter(|(name, _)| !is_of_connection(name, &listed));
    passed.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Checks whether the client asks for a WebSocket. Other upgrades, such as to HTTP/2, are offers that may be passed over.
pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    items(headers, &header::UPGRADE).any(|item| item.eq_ignore_ascii_case("websocket"))
}

pub(super) fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Returns one of our own headers, if it has something to say: at most 200 characters.
pub(super) fn own(headers: &HeaderMap, name: &'static str) -> Option<String> {
    let said = text(headers, &HeaderName::from_static(name))?;
    let said = said.trim();
    (1..=200).contains(&said.chars().count()).then(|| said.to_owned())
}

fn is_of_connection(name: &HeaderName, listed: &[HeaderName]) -> bool {
    OF_CONNECTION.contains(name) || listed.contains(name)
}

/// Returns the headers that `Connection` names: they belong to it too.
fn listed(headers: &HeaderMap) -> Vec<HeaderName> {
    items(headers, &header::CONNECTION).filter_map(|name| name.parse().ok()).collect()
}

/// Returns the items of a header that is a list.
fn items<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .map(str::trim)
}

/// Returns cookies without those of Waybill's own console.
fn foreign_cookies(value: &HeaderValue) -> Option<HeaderValue> {
    let text = value.to_str().ok()?;
    let is_foreign =
        |cookie: &&str| !matches!(cookie.split('=').next().unwrap_or_default().trim(), "waybill" | "__Host-waybill");
    let foreign: Vec<&str> = text.split(';').filter(is_foreign).map(str::trim).collect();
    if foreign.is_empty() { None } else { HeaderValue::from_str(&foreign.join("; ")).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn shown(headers: &HeaderMap) -> Vec<(&str, &str)> {
        headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect()
    }

    /// SE-4: what is Waybill's own is not sent to a provider.
    #[test]
    fn our_own_headers_are_not_sent_on() {
        let sent = headers(&[
            ("x-waybill-key", "wb_x"),
            ("authorization", "Bearer sk"),
            ("cookie", "a=1; waybill=secret; b=2"),
            ("connection", "close"),
            ("host", "here"),
        ]);
        assert_eq!(shown(&passed(&sent)), [("authorization", "Bearer sk"), ("cookie", "a=1; b=2")]);
    }

    /// RC-1: what belongs to one connection ends with it, in both directions.
    #[test]
    fn headers_of_a_connection_end_with_it() {
        let all = headers(&[
            ("connection", "Upgrade, HTTP2-Settings"),
            ("connection", "x-hop, close"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABk"),
            ("proxy-connection", "keep-alive"),
            ("x-hop", "1"),
            ("x-stays", "2"),
        ]);
        assert_eq!(shown(&passed(&all)), [("x-stays", "2")]);
        assert_eq!(shown(&answered(&all)), [("x-stays", "2")]);
    }

    #[test]
    fn only_a_websocket_is_one() {
        assert!(is_websocket(&headers(&[("upgrade", "WebSocket")])));
        assert!(is_websocket(&headers(&[("upgrade", "h2c, websocket")])));
        assert!(!is_websocket(&headers(&[("upgrade", "h2c"), ("connection", "websocket")])));
        assert!(!is_websocket(&headers(&[])));
    }
}

//! Logging in with the identity provider (SE-11): the authorization code flow of OpenID Connect, with PKCE. The server exchanges the code, so no token
//! ever reaches the browser.
//!
//! One secret belongs to a login, in a cookie of ten minutes. State, nonce and verifier are derived from it, so another browser cannot finish the login.

use reqwest::{Url, header};
use ring::digest;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use waybill_core::key::BrowserSecret;

use crate::{
    caller::unauthorized,
    problem::Problem,
    token::{Holder, Tokens, read, unavailable},
};

/// This server, as the identity provider knows it.
#[derive(Clone, Debug)]
pub struct Client {
    pub id: String,
    /// `None` means a public client: PKCE alone protects the code.
    pub secret: Option<SecretString>,
}

/// Returns the address of the provider where a login begins.
pub(crate) async fn begin(
    tokens: &Tokens,
    client: &Client,
    callback: &str,
    secret: &BrowserSecret,
) -> Result<String, Problem> {
    let mut url = Url::parse(&tokens.endpoints().await?.authorization).map_err(Problem::internal)?;
    let challenge = base64url(digest::digest(&digest::SHA256, secret.derive("verifier").as_bytes()).as_ref());
    url.query_pairs_mut()
        .append_pair("response_type", "code")
        .append_pair("scope", "openid")
        .append_pair("client_id", &client.id)
        .append_pair("redirect_uri", callback)
        .append_pair("state", &secret.derive("state"))
        .append_pair("nonce", &secret.derive("nonce"))
        .append_pair("code_challenge", &challenge)
        .append_pair("code_challenge_method", "S256");
    Ok(url.into())
}

/// Exchanges a code for an ID token, and returns its holder.
pub(crate) async fn finish(
    tokens: &Tokens,
    client: &Client,
    callback: &str,
    secret: &BrowserSecret,
    code: &str,
) -> Result<Holder, Problem> {
    #[derive(Deserialize)]
    struct Answer {
        id_token: String,
    }
    let url = tokens.endpoints().await?.token;
    let verifier = secret.derive("verifier");
    let mut form = vec![
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", callback),
        ("code_verifier", verifier.as_str()),
    ];
    let request = tokens.http.post(url).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    let request = match &client.secret {
        Some(secret) => request.basic_auth(encoded(&client.id), Some(encoded(secret.expose_secret()))),
        None => {
            form.push(("client_id", client.id.as_str()));
            request
        }
    };
    let answer = request.body(form_of(&form)).send().await.map_err(|error| unavailable(&error.to_string()))?;
    if answer.status().is_client_error() {
        tracing::debug!(status = answer.status().as_u16(), "the identity provider refused a code");
        return Err(unauthorized("the identity provider did not accept this login: begin again at `/ui/login`"));
    }
    let answer = answer.error_for_status().map_err(|error| unavailable(&error.to_string()))?;
    let Answer { id_token } = read(answer).await.map_err(|error| unavailable(&error))?;
    tokens.read_id(&id_token, &client.id, &secret.derive("nonce")).await
}

/// Returns a local path to go to after a login, in its plain form. `None` means that it is not below `/ui/`, or would not fit in a cookie.
pub(crate) fn local(next: &str) -> Option<String> {
    let base = Url::parse("http://own.invalid/").ok()?;
    let url = base.join(next).ok()?;
    let is_own = next.starts_with("/ui/") && url.origin() == base.origin() && url.path().starts_with("/ui/");
    let text = url.as_str().strip_prefix("http://own.invalid")?;
    (is_own && text.len() <= 1_000 && !text.contains([';', ',', '\\', '"'])).then(|| text.to_owned())
}

/// Returns the pairs as a form.
fn form_of(pairs: &[(&str, &str)]) -> String {
    let mut url = Url::parse("http://own.invalid/").expect("a valid URL");
    for (name, value) in pairs {
        url.query_pairs_mut().append_pair(name, value);
    }
    url.query().unwrap_or_default().to_owned()
}

/// Returns a text as it stands in a form.
fn encoded(text: &str) -> String {
    form_of(&[("", text)]).trim_start_matches('=').to_owned()
}

fn base64url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let word = part.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for n in 0..=part.len() {
            text.push(char::from(LETTERS[(word >> (18 - 6 * n) & 63) as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SE-11: a login goes on to a page of this server, and nowhere else.
    #[test]
    fn only_pages_below_ui_are_next() {
        for (next, found) in [
            ("/ui/", "/ui/"),
            ("/ui/acme/runs?status=failed#1", "/ui/acme/runs?status=failed#1"),
            ("/ui/a/../b", "/ui/b"),
            ("/ui/ein ü", "/ui/ein%20%C3%BC"),
            ("/ui//evil.example", "/ui//evil.example"),
        ] {
            assert_eq!(local(next).as_deref(), Some(found), "{next}");
        }
        let long = format!("/ui/{}", "a".repeat(1_000));
        for next in [
            "",
            "/",
            "/ui",
            "ui/",
            "//evil.example/ui/",
            "/\\evil.example/ui/",
            "https://evil.example/ui/",
            "javascript:alert(1)",
            "/ui/../v1/me",
            "/ui/..//evil.example",
            "/ui/%2e%2e/v1/me",
            "/ui/\\..\\..\\evil",
            "/ui/a;b",
            "/ui/?a\\b",
            "\t/ui/",
            long.as_str(),
        ] {
            assert_eq!(local(next), None, "{next}");
        }
    }

    #[test]
    fn forms_and_letters_are_as_the_standards_say() {
        assert_eq!(form_of(&[("a", "b c"), ("d", "&=")]), "a=b+c&d=%26%3D");
        assert_eq!(encoded("a:b=c"), "a%3Ab%3Dc");
        // RFC 7636, appendix B.
        let verifier = b"dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let challenge = base64url(digest::digest(&digest::SHA256, verifier).as_ref());
        assert_eq!(challenge, "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }
}

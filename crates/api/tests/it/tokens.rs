//! Tokens of an identity provider, a real one over HTTP, beside our own keys (SE-1).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    routing::{get, post},
};
use reqwest::{Method, StatusCode, Url, header::HeaderMap};
use ring::{
    digest,
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use waybill_api::{Client, Config, Identity};

use crate::House;

fn base64(bytes: &[u8]) -> String {
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

/// A provider whose keys can be replaced, and where a browser logs in.
#[derive(Clone)]
pub(crate) struct Provider {
    pub(crate) issuer: String,
    keys: Arc<Mutex<BTreeMap<String, Ed25519KeyPair>>>,
    /// Codes that were not exchanged yet: the challenge, and what the ID token is to say.
    pub(crate) codes: Arc<Mutex<BTreeMap<String, (String, Value)>>>,
}

/// The client that the provider knows, and its secret.
pub(crate) const CLIENT: (&str, &str) = ("console", "a secret: 100 %");

impl Provider {
    pub(crate) async fn open() -> Provider {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let provider = Provider { issuer, keys: Arc::default(), codes: Arc::default() };
        let (named, held, asked) = (provider.issuer.clone(), provider.keys.clone(), provider.clone());
        let document = move || {
            let at = |path: &str| format!("{named}/{path}");
            let document = json!({
                "issuer": named, "jwks_uri": at("keys"), "authorization_endpoint": at("authorize?tenant=1"), "token_endpoint": at("token"),
            });
            async move { Json(document) }
        };
        let shown = move || {
            let keys: Vec<Value> = held.lock().unwrap().iter().map(|(kid, key)| {
                json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "alg": "EdDSA", "x": base64(key.public_key().as_ref()) })
            }).collect();
            async move { Json(json!({ "keys": keys })) }
        };
        let token = move |headers: HeaderMap, body: String| {
            let token = asked.exchange(&headers, &body);
            async move { token.map(Json).ok_or(StatusCode::BAD_REQUEST) }
        };
        let app = Router::new()
            .route("/.well-known/openid-configuration", get(document))
            .route("/keys", get(shown))
            .route("/token", post(token));
        tokio::spawn(async move { axum::serve(listener, app).await });
        provider.mint("one");
        provider
    }

    /// What the provider does once the person has logged in: it makes a code for the browser, which goes back with it and its state.
    pub(crate) fn authorize(&self, location: &str, more: Value) -> (String, String) {
        let url = Url::parse(location).unwrap();
        let asked: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
        let mut claims = self.claims(json!({ "aud": asked["client_id"], "nonce": asked["nonce"] }));
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let code = format!("code-{}", uuid::Uuid::now_v7());
        self.codes.lock().unwrap().insert(code.clone(), (asked["code_challenge"].clone(), claims));
        (code, asked["state"].clone())
    }

    /// Exchanges a code, once, for the client that proves itself and knows the verifier.
    fn exchange(&self, headers: &HeaderMap, body: &str) -> Option<Value> {
        let form = Url::parse(&format!("http://form/?{body}")).unwrap();
        let form: BTreeMap<String, String> = form.query_pairs().into_owned().collect();
        let (challenge, claims) = self.codes.lock().unwrap().remove(form.get("code")?)?;
        // `console:a+secret%3A+100+%25`
        let basic = "Basic Y29uc29sZTphK3NlY3JldCUzQSsxMDArJTI1";
        let is_client = headers.get("authorization").is_some_and(|said| said == basic);
        let verified = base64(digest::digest(&digest::SHA256, form.get("code_verifier")?.as_bytes()).as_ref());
        let is_ours = form["grant_type"] == "authorization_code" && form["redirect_uri"].ends_with("/ui/callback");
        (is_client && is_ours && verified == challenge).then(|| {
            json!({ "access_token": "x", "token_type": "Bearer", "id_token": self.sign(json!({ "alg": "EdDSA", "kid": "one" }), &claims) })
        })
    }

    fn mint(&self, kid: &str) {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let key = Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap();
        self.keys.lock().unwrap().insert(kid.to_owned(), key);
    }

    pub(crate) fn identity(&self, client: Option<Client>) -> Identity {
        let (audience, claim) = ("waybill".to_owned(), "waybill".to_owned());
        Identity { issuer: self.issuer.clone(), audience, claim, client }
    }

    pub(crate) fn claims(&self, more: Value) -> Value {
        let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({ "iss": self.issuer, "aud": "waybill", "sub": "ada", "exp": at + 600, "waybill": { "acme": "operator" } });
        for (key, value) in more.as_object().unwrap() {
            match value {
                Value::Null => drop(claims.as_object_mut().unwrap().remove(key)),
                value => claims[key] = value.clone(),
            }
        }
        claims
    }

    fn sign(&self, header: Value, claims: &Value) -> String {
        let said = format!("{}.{}", base64(header.to_string().as_bytes()), base64(claims.to_string().as_bytes()));
        let keys = self.keys.lock().unwrap();
        let key = &keys[header["kid"].as_str().unwrap_or("one")];
        format!("{said}.{}", base64(key.sign(said.as_bytes()).as_ref()))
    }

    pub(crate) fn token(&self, more: Value) -> String {
        self.sign(json!({ "alg": "EdDSA", "kid": "one" }), &self.claims(more))
    }
}

async fn house(provider: &Provider) -> House {
    House::open_with(Config { identity: Some(provider.identity(None)), ..Config::default() }).await
}

async fn list(house: &House, token: &str) -> StatusCode {
    house.ask(Method::GET, "/turns", Some(token), None).await.0
}

/// SE-1: the holder of a token may do what the token says, in the projects that it names.
#[tokio::test]
async fn a_token_says_what_its_holder_may_do() {
    let provider = Provider::open().await;
    let house = house(&provider).await;
    let token = provider.token(json!({}));
    assert_eq!(list(&house, &token).await, 200);
    assert_eq!(list(&house, &house.admin).await, 200, "our own keys go on");
    let (status, said) =
        house.ask(Method::POST, "/keys", Some(&token), Some(json!({ "name": "k", "scope": "reader" }))).await;
    assert_eq!((status.as_u16(), said["code"].as_str()), (403, Some("forbidden")), "an operator makes no keys");
    let launch = json!({ "profile_name": "echo", "instruction": "hello" });
    let reader = provider.token(json!({ "waybill": { "acme": "reader" } }));
    assert_eq!(house.ask(Method::POST, "/turns", Some(&reader), Some(launch.clone())).await.0, 403);
    assert_eq!(house.ask(Method::POST, "/turns", Some(&token), Some(launch)).await.0, 200);
    for elsewhere in [json!({ "waybill": { "other": "admin" } }), json!({ "waybill": {} })] {
        assert_eq!(list(&house, &provider.token(elsewhere)).await, 404, "another project is not there");
    }
    let managed = provider.token(json!({ "waybill": { "acme": "admin" } }));
    let (status, _) =
        house.ask(Method::POST, "/keys", Some(&managed), Some(json!({ "name": "k", "scope": "reader" }))).await;
    assert_eq!(status, 200);
    let audit = house.get("/audit").await;
    assert!(audit.to_string().contains("user:ada"), "{audit}");
}

/// SE-1: a token that is not signed, not for us, not from the issuer or not valid now is refused.
#[tokio::test]
async fn what_is_wrong_with_a_token_is_not_told_and_it_is_refused() {
    let provider = Provider::open().await;
    let house = house(&provider).await;
    assert_eq!(list(&house, &provider.token(json!({}))).await, 200);
    let good = provider.token(json!({}));
    let (said, signed) = good.rsplit_once('.').unwrap();
    let of_others = Provider::open().await;
    let claims = provider.claims(json!({}));
    let none = json!({ "alg": "none" }).to_string();
    // Signed with the public key as if it were a secret: what an attacker knows.
    let forged = {
        let keys = provider.keys.lock().unwrap();
        let public = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, keys["one"].public_key().as_ref());
        let header = json!({ "alg": "HS256", "kid": "one" }).to_string();
        let said = format!("{}.{}", base64(header.as_bytes()), base64(claims.to_string().as_bytes()));
        format!("{said}.{}", base64(ring::hmac::sign(&public, said.as_bytes()).as_ref()))
    };
    let wrong = [
        ("expired", provider.token(json!({ "exp": 1_000_000 }))),
        ("without an end", provider.token(json!({ "exp": null }))),
        ("not yet", provider.token(json!({ "nbf": 9_999_999_999_u64 }))),
        ("for another", provider.token(json!({ "aud": "elsewhere" }))),
        ("without an audience", provider.token(json!({ "aud": null }))),
        ("from another", provider.token(json!({ "iss": "https://evil.example" }))),
        ("without a subject", provider.token(json!({ "sub": null }))),
        ("with a scope that there is not", provider.token(json!({ "waybill": { "acme": "god" } }))),
        ("signed by another", of_others.sign(json!({ "alg": "EdDSA", "kid": "one" }), &claims)),
        ("changed", format!("{}x.{signed}", &said[..said.len() - 1])),
        ("unsigned", format!("{}.{}.", base64(none.as_bytes()), base64(claims.to_string().as_bytes()))),
        ("signed with a secret", forged),
        ("no token", "a.b.c".to_owned()),
    ];
    let mut words = std::collections::BTreeSet::new();
    for (what, token) in wrong {
        let (status, said) = house.ask(Method::GET, "/turns", Some(&token), None).await;
        assert_eq!(status, 401, "{what}");
        words.insert(said["detail"].as_str().unwrap().to_owned());
    }
    assert_eq!(words.len(), 1, "{words:?}");
}

/// A new key of the provider is fetched when a token names it.
#[tokio::test]
async fn keys_of_a_provider_may_change() {
    let provider = Provider::open().await;
    let house = house(&provider).await;
    provider.mint("two");
    let token = provider.sign(json!({ "alg": "EdDSA", "kid": "two" }), &provider.claims(json!({})));
    assert_eq!(list(&house, &token).await, 200);
    provider.keys.lock().unwrap().clear();
    assert_eq!(list(&house, &token).await, 200, "what is known is kept");
}

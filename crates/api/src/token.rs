//! Tokens of an identity provider (OpenID Connect), beside our own keys (SE-1): a signed JWT that says who holds it, and what they may do in which
//! project.
//!
//! ```json
//! { "iss": "https://id.example", "aud": "waybill", "sub": "ada", "exp": 1794000000, "waybill": { "acme": "operator" } }
//! ```
//! The provider's keys are fetched from where its discovery document says, cached for five minutes, and fetched again when a token names an
//! unknown one.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, TokenData, Validation,
    crypto::{CryptoProvider, JwtVerifier, KeyUtils},
    decode, decode_header,
    errors::ErrorKind,
    jwk::JwkSet,
    signature::{self, Verifier},
};
use ring::signature as ring_signature;
use serde::Deserialize;
use waybill_core::key::Scope;

use crate::{cached::Cached, login::Client, problem::Problem};

/// The identity provider whose tokens are accepted, and how they are read.
#[derive(Clone, Debug)]
pub struct Identity {
    /// As the provider writes it in its tokens: `https://id.example`.
    pub issuer: String,
    /// The audience that a token must be for.
    pub audience: String,
    /// The claim that says what its holder may do: an object of project slugs and scopes.
    pub claim: String,
    /// This server as a client of the provider, for logging in with a browser. `None` means that browsers log in with keys only.
    pub client: Option<Client>,
}

/// The holder of a token.
#[derive(Debug)]
pub(crate) struct Holder {
    /// The provider's name for the holder.
    pub(crate) subject: String,
    /// By the slug of a project, or by its id, which no other project can take over.
    pub(crate) scopes: HashMap<String, Scope>,
    /// In seconds since 1970.
    pub(crate) ends: i64,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    #[serde(flatten)]
    others: serde_json::Map<String, serde_json::Value>,
}

/// Only asymmetric signatures. A token that is signed with a secret that both sides know is not accepted.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];
/// How old cached keys may be.
#[derive(Clone, Copy, Debug)]
struct Ages {
    /// A token that names an unknown key causes the keys to be fetched again, but no more often than this.
    pause: Duration,
    /// How long a key that the provider has withdrawn is still valid.
    fresh: Duration,
    /// The same, while the provider cannot be reached.
    oldest: Duration,
}

const AGES: Ages =
    Ages { pause: Duration::from_secs(10), fresh: Duration::from_secs(300), oldest: Duration::from_secs(3600) };
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes that a document of the provider may have.
const MOST_BYTES: usize = 1 << 20;

/// Where a browser logs in, and where its code is exchanged.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    pub(crate) authorization: String,
    pub(crate) token: String,
}

/// The provider's keys, and when they were fetched.
#[derive(Debug)]
struct Keys {
    keys: JwkSet,
    /// `None` means that the provider names none that are safe.
    endpoints: Option<Endpoints>,
    at: Option<Instant>,
    /// The last attempt to fetch them failed.
    failed: bool,
}

impl Keys {
    fn find(&self, kid: Option<&str>) -> Option<DecodingKey> {
        let found = match kid {
            Some(kid) => self.keys.find(kid),
            None => self.keys.keys.first().filter(|_| self.keys.keys.len() == 1),
        };
        found.and_then(|jwk| DecodingKey::from_jwk(jwk).ok())
    }

    fn is_younger(&self, age: Duration) -> bool {
        self.at.is_some_and(|at| at.elapsed() < age)
    }
}

#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) identity: Identity,
    pub(crate) http: reqwest::Client,
    keys: Cached<Keys>,
    ages: Ages,
}

/// The identity provider is not configured correctly.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "`{0}` is not a valid issuer URL: it must begin with https://, or with http:// if the provider runs on this machine"
    )]
    Issuer(String),
    #[error("the HTTP client for the identity provider cannot be created")]
    Client(#[from] reqwest::Error),
}

impl Identity {
    pub(crate) fn tokens(self) -> Result<Tokens, IdentityError> {
        let is_local = match is_safe(&self.issuer) {
            Some(is_local) => is_local,
            None => return Err(IdentityError::Issuer(self.issuer)),
        };
        // Another part of the process may have installed the same ones already.
        let _ = RING.install_default();
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none());
        let http = if is_local { http.no_proxy() } else { http }.build()?;
        let keys = Cached::new(Keys { keys: JwkSet { keys: Vec::new() }, endpoints: None, at: None, failed: false });
        Ok(Tokens { identity: self, http, keys, ages: AGES })
    }
}

impl Tokens {
    /// Returns the holder of an access token.
    pub(crate) async fn read(&self, token: &str) -> Result<Holder, Problem> {
        let claims = self.claims(token, &self.identity.audience).await?;
        // Such tokens are for the application that signs people in, and say nothing about what they may do here.
        if ["nonce", "at_hash", "c_hash"].into_iter().any(|claim| claims.others.contains_key(claim)) {
            return Err(refused("it is an ID token: send the access token"));
        }
        self.holder(claims)
    }

    /// Returns the holder of the ID token of a login: it is for this client, and has the nonce of that login.
    pub(crate) async fn read_id(&self, token: &str, client_id: &str, nonce: &str) -> Result<Holder, Problem> {
        let claims = self.claims(token, client_id).await?;
        let text = |claim: &str| claims.others.get(claim).and_then(serde_json::Value::as_str);
        if text("nonce") != Some(nonce) {
            return Err(refused("its nonce is not that of this login"));
        }
        let for_many = claims.others.get("aud").and_then(serde_json::Value::as_array).is_some_and(|aud| aud.len() > 1);
        if text("azp").map_or(for_many, |azp| azp != client_id) {
            return Err(refused("it was made for another client"));
        }
        self.holder(claims)
    }

    /// Checks a token, and returns what it says.
    async fn claims(&self, token: &str, audience: &str) -> Result<Claims, Problem> {
        let header = decode_header(token).map_err(|error| refused(&error.to_string()))?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(refused(&format!("it is signed with {:?}", header.alg)));
        }
        let key = self.key(header.kid.as_deref()).await?.ok_or_else(|| refused("its key is unknown"))?;
        let mut validation = Validation::new(header.alg);
        validation.set_issuer(&[&self.identity.issuer]);
        validation.set_audience(&[audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.validate_nbf = true;
        let token: TokenData<Claims> = decode(token, &key, &validation).map_err(|error| refused(&error.to_string()))?;
        Ok(token.claims)
    }

    fn holder(&self, Claims { sub, mut others }: Claims) -> Result<Holder, Problem> {
        let scopes = others.remove(&self.identity.claim).unwrap_or_default();
        let scopes = serde_json::from_value(scopes).map_err(|error| refused(&error.to_string()))?;
        let ends = others.get("exp").and_then(serde_json::Value::as_f64).unwrap_or_default() as i64;
        Ok(Holder { subject: sub, scopes, ends })
    }

    /// Returns where a browser logs in.
    pub(crate) async fn endpoints(&self) -> Result<Endpoints, Problem> {
        if !self.keys.answer().is_younger(self.ages.fresh) {
            self.renew(true).await;
        }
        let keys = self.keys.answer();
        let endpoints = keys.endpoints.clone().filter(|_| keys.is_younger(self.ages.oldest));
        endpoints.ok_or_else(|| unavailable("it names no safe addresses for logging in, or cannot be reached"))
    }

    /// Returns the provider's key of this name; without a name, its only key. Keys are fetched again now and then, since the provider may have
    /// withdrawn one, and when a token names an unknown one.
    async fn key(&self, kid: Option<&str>) -> Result<Option<DecodingKey>, Problem> {
        let keys = self.keys.answer();
        let found = keys.find(kid);
        if found.is_some() && keys.is_younger(self.ages.fresh) {
            return Ok(found);
        }
        // A request whose key is known does not wait for another request that fetches keys.
        let waits = found.is_none() || !keys.is_younger(self.ages.oldest);
        self.renew(waits).await;
        let keys = self.keys.answer();
        match keys.find(kid) {
            Some(key) if keys.is_younger(self.ages.oldest) => Ok(Some(key)),
            _ if keys.failed => {
                Err(Problem::busy("unavailable", "the identity provider cannot be reached at the moment: retry", 5))
            }
            _ => Ok(None),
        }
    }

    /// Fetches the provider's keys and endpoints, unless that was done a moment ago.
    async fn renew(&self, waits: bool) {
        let ask = async {
            Some(match self.fetch().await {
                Ok((keys, endpoints)) => Keys { keys, endpoints, at: Some(Instant::now()), failed: false },
                Err(error) => {
                    let issuer = &self.identity.issuer;
                    tracing::warn!(error, issuer, "the identity provider's keys cannot be fetched");
                    let known = self.keys.answer();
                    Keys { keys: known.keys.clone(), endpoints: known.endpoints.clone(), at: known.at, failed: true }
                }
            })
        };
        self.keys.renew(self.ages.pause, waits, ask).await;
    }

    async fn fetch(&self) -> Result<(JwkSet, Option<Endpoints>), String> {
        #[derive(Deserialize)]
        struct Document {
            issuer: String,
            jwks_uri: String,
            authorization_endpoint: Option<String>,
            token_endpoint: Option<String>,
        }
        let issuer = self.identity.issuer.trim_end_matches('/');
        let document: Document = self.get(&format!("{issuer}/.well-known/openid-configuration")).await?;
        if document.issuer != self.identity.issuer {
            return Err(format!("the discovery document of the provider names another issuer: {:?}", document.issuer));
        }
        if is_safe(&document.jwks_uri).is_none() {
            return Err(format!("the keys of the provider are at {:?}, which does not use https", document.jwks_uri));
        }
        let safe = |address: Option<String>| address.filter(|address| is_safe(address).is_some());
        let endpoints = safe(document.authorization_endpoint).zip(safe(document.token_endpoint));
        let endpoints = endpoints.map(|(authorization, token)| Endpoints { authorization, token });
        Ok((self.get(&document.jwks_uri).await?, endpoints))
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, url: &str) -> Result<T, String> {
        let answer = self.http.get(url).send().await.and_then(reqwest::Response::error_for_status);
        read(answer.map_err(|error| error.to_string())?).await
    }
}

/// Reads a JSON document of the provider.
pub(crate) async fn read<T: serde::de::DeserializeOwned>(mut answer: reqwest::Response) -> Result<T, String> {
    let (url, mut body) = (answer.url().to_string(), Vec::new());
    while let Some(part) = answer.chunk().await.map_err(|error| error.to_string())? {
        body.extend_from_slice(&part);
        if body.len() > MOST_BYTES {
            return Err(format!("{url} has more than {MOST_BYTES} bytes"));
        }
    }
    serde_json::from_slice(&body).map_err(|error| format!("{url}: {error}"))
}

/// Refuses a token. Every refusal has the same text, so that a forger learns nothing from it.
fn refused(why: &str) -> Problem {
    tracing::debug!(why, "a token was refused");
    crate::caller::unauthorized(
        "this OIDC token is not valid: it has expired, is for another issuer or audience, is of the wrong kind, or its signature is wrong",
    )
}

pub(crate) fn unavailable(why: &str) -> Problem {
    tracing::warn!(why, "the identity provider cannot be used for logging in");
    Problem::busy("unavailable", "the identity provider cannot be reached at the moment: retry", 5)
}

/// Checks whether an address may be used: it is over TLS, or on this machine. If it may, returns whether it is on this machine.
fn is_safe(address: &str) -> Option<bool> {
    let url = reqwest::Url::parse(address).ok()?;
    let is_local = matches!(url.host_str()?, "127.0.0.1" | "localhost" | "[::1]");
    (url.scheme() == "https" || url.scheme() == "http" && is_local).then_some(is_local)
}

/// Signatures are checked by ring, as those of TLS are. Nothing is signed here.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::InvalidAlgorithm.into()),
    verifier_factory: |algorithm, key| Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() })),
    key_utils: KeyUtils::new_unimplemented(),
};

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), signature::Error> {
        let wrong = |_| signature::Error::new();
        let rsa = |parameters: &ring_signature::RsaParameters| match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let key = ring_signature::RsaPublicKeyComponents { n, e };
                key.verify(parameters, message, signed).map_err(wrong)
            }
            DecodingKeyKind::SecretOrDer(_) => Err(signature::Error::new()),
        };
        let plain = |family: AlgorithmFamily, algorithm: &'static dyn ring_signature::VerificationAlgorithm| match self
            .key
            .kind()
        {
            DecodingKeyKind::SecretOrDer(key) if self.key.family() == family => {
                ring_signature::UnparsedPublicKey::new(algorithm, key).verify(message, signed).map_err(wrong)
            }
            _ => Err(signature::Error::new()),
        };
        match self.algorithm {
            Algorithm::RS256 => rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => rsa(&ring_signature::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => rsa(&ring_signature::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => rsa(&ring_signature::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => plain(AlgorithmFamily::Ec, &ring_signature::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => plain(AlgorithmFamily::Ec, &ring_signature::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => plain(AlgorithmFamily::Ed, &ring_signature::ED25519),
            _ => Err(signature::Error::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::{Json, Router, http::StatusCode, routing::get};
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a provider that shows these keys. `None` means that it is out of order.
    async fn provider(shows: Arc<Mutex<Option<Value>>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let document = json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys") });
        let keys = move || {
            let shown = shows.lock().unwrap().clone();
            async move { shown.map(Json).ok_or(StatusCode::BAD_GATEWAY) }
        };
        let app = Router::new()
            .route("/.well-known/openid-configuration", get(|| async move { Json(document) }))
            .route("/keys", get(keys));
        tokio::spawn(async move { axum::serve(listener, app).await });
        issuer
    }

    fn identity(issuer: String) -> Identity {
        Identity { issuer, audience: "waybill".to_owned(), claim: "waybill".to_owned(), client: None }
    }

    fn keys(kid: &str) -> Option<Value> {
        let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        Some(json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "kid": kid, "alg": "EdDSA", "x": x }] }))
    }

    /// SE-1: a withdrawn key stops being valid, a new one is found, and while its provider is away a key is valid for a while, not for ever.
    #[tokio::test]
    async fn keys_have_an_age() {
        const MOMENT: Duration = Duration::from_secs(1);
        let shows = Arc::new(Mutex::new(keys("one")));
        let issuer = provider(shows.clone()).await;
        let identity = identity(issuer);
        let ages = Ages { pause: Duration::ZERO, fresh: MOMENT, oldest: 3 * MOMENT };
        let tokens = Tokens { ages, ..identity.tokens().unwrap() };
        let knows = async |kid| tokens.key(Some(kid)).await.map(|key| key.is_some()).map_err(|_| "unavailable");
        assert_eq!((knows("one").await, knows("two").await), (Ok(true), Ok(false)));

        *shows.lock().unwrap() = keys("two");
        assert_eq!(knows("one").await, Ok(true), "fresh enough");
        assert_eq!((knows("two").await, knows("one").await), (Ok(true), Ok(false)), "asked for, and the other is gone");

        *shows.lock().unwrap() = keys("three");
        tokio::time::sleep(MOMENT).await;
        assert_eq!(knows("two").await, Ok(false), "withdrawn");

        *shows.lock().unwrap() = None;
        assert_eq!((knows("three").await, knows("one").await), (Ok(true), Err("unavailable")));
        tokio::time::sleep(MOMENT).await;
        assert_eq!(knows("three").await, Ok(true), "the provider is away, and it is not that old");
        tokio::time::sleep(2 * MOMENT).await;
        assert_eq!(knows("three").await, Err("unavailable"), "too old to be trusted");
        *shows.lock().unwrap() = keys("three");
        assert_eq!(knows("three").await, Ok(true));
    }

    /// However many tokens name an unknown key, the provider is asked only now and then.
    #[tokio::test]
    async fn a_provider_is_not_asked_for_every_token() {
        let shows = Arc::new(Mutex::new(keys("one")));
        let issuer = provider(shows.clone()).await;
        let identity = identity(issuer);
        let tokens = identity.tokens().unwrap();
        assert!(tokens.key(Some("two")).await.is_ok_and(|key| key.is_none()));
        *shows.lock().unwrap() = keys("two");
        assert!(tokens.key(Some("two")).await.is_ok_and(|key| key.is_none()), "asked a moment ago");
        assert!(tokens.key(Some("one")).await.is_ok_and(|key| key.is_some()));
    }
}

//! Browsers over real HTTP (SE-11): logging in with a key and with the identity provider, cookies, and pages of other sites.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, future::join_all};
use reqwest::{Client, Method, Response, Url, header::HeaderMap, redirect::Policy};
use serde_json::{Value, json};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};
use waybill_api::{Client as OidcClient, Config};
use waybill_core::{
    guard::{self, Guard},
    id::ProjectId,
    key::{ApiKey, Scope},
};
use waybill_kernel::{project, sweep};

use crate::{
    House,
    tokens::{CLIENT, Provider},
};

const OWN: &[(&str, &str)] = &[("sec-fetch-site", "same-origin")];

/// A browser, with what it sends in `Cookie`.
struct Browser<'a> {
    house: &'a House,
    http: Client,
    cookie: String,
}

impl Browser<'_> {
    fn open(house: &House) -> Browser<'_> {
        let http = Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
        Browser { house, http, cookie: String::new() }
    }

    /// Logs in with a key, and keeps the cookie.
    async fn logged_in<'a>(house: &'a House, key: &str) -> Browser<'a> {
        let mut browser = Browser::open(house);
        let response = browser.send(Method::POST, "/ui/session", Some(json!({ "key": key })), OWN).await;
        assert_eq!(response.status(), 200);
        browser.cookie = set_cookies(response.headers())[0].split(';').next().unwrap().to_owned();
        browser
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>, more: &[(&str, &str)]) -> Response {
        let is_whole = path.starts_with("/v1") || path.starts_with("/ui");
        let path = if is_whole { path.to_owned() } else { format!("/v1/projects/acme{path}") };
        let mut request = self.http.request(method, format!("{}{path}", self.house.base));
        if !self.cookie.is_empty() {
            request = request.header("cookie", format!("theme=dark; {}", self.cookie));
        }
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().await.unwrap();
        let is_cors = |name: &str| name.starts_with("access-control");
        assert!(!response.headers().keys().any(|name| is_cors(name.as_str())), "{:?}", response.headers());
        response
    }

    /// Sends a request as a page of the server does. Returns the status, and the answer.
    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let response = self.send(method, path, body, OWN).await;
        (response.status().as_u16(), serde_json::from_str(&response.text().await.unwrap()).unwrap())
    }

    /// Returns the status and, of a refusal, the code.
    async fn code(&self, method: Method, path: &str, body: Option<Value>, more: &[(&str, &str)]) -> (u16, String) {
        let response = self.send(method, path, body, more).await;
        let status = response.status().as_u16();
        let said: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default();
        (status, said["code"].as_str().unwrap_or_default().to_owned())
    }
}

fn set_cookies(headers: &HeaderMap) -> Vec<String> {
    headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap().to_owned()).collect()
}

/// Returns the secret of a cookie, its attributes without the age, and the age.
fn taken_apart(cookie: &str, name: &str) -> (String, String, i64) {
    let (secret, rest) = cookie.strip_prefix(&format!("{name}=")).unwrap().split_once("; ").unwrap();
    let (before, age) = rest.split_once("Max-Age=").unwrap();
    let (age, after) = age.split_once("; ").unwrap();
    (secret.to_owned(), format!("{before}{after}"), age.parse().unwrap())
}

fn start() -> Option<Value> {
    Some(json!({ "profile_name": "hand", "instruction": "x" }))
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

/// SE-11: with the cookie of a login a browser does what its key may do, no more, until it logs out. The audit names the key.
#[tokio::test]
async fn a_browser_has_the_rights_of_its_key() {
    let house = House::open().await;
    let operator = house.key("o", Scope::Operator).await;
    let browser = Browser::logged_in(&house, &operator).await;
    let (status, me) = browser.ask(Method::GET, "/v1/me", None).await;
    assert_eq!((status, &me["actor"], &me["scope"]), (200, &json!("key:o"), &json!("operator")));
    assert!(me["expires_at"].is_string(), "{me}");
    let (_, login) = browser.ask(Method::GET, "/ui/session", None).await;
    let project = json!({ "project_id": house.t.project_id, "slug": "acme", "scope": "operator" });
    assert_eq!((&login["actor"], &login["projects"]), (&json!("key:o"), &json!([project])));

    let (status, started) = browser.ask(Method::POST, "/turns", start()).await;
    assert_eq!(status, 200, "{started}");
    let turn = format!("/turns/{}", started["agent_turn_id"].as_str().unwrap());
    assert_eq!(browser.ask(Method::GET, &turn, None).await.1["turn"]["started_by"], "key:o");
    let session = browser.ask(Method::POST, "/sessions", Some(json!({}))).await.1;
    let session = format!("/sessions/{}", session["session_id"].as_str().unwrap());
    assert_eq!(browser.ask(Method::PATCH, &session, Some(json!({ "title": "t" }))).await.0, 200);
    assert_eq!(browser.ask(Method::DELETE, &session, None).await.0, 200);
    let key = Some(json!({ "name": "k", "scope": "admin" }));
    assert_eq!(browser.code(Method::POST, "/keys", key.clone(), OWN).await, refused(403, "forbidden"));
    assert_eq!(browser.code(Method::GET, "/v1/projects/other/turns", None, OWN).await, refused(404, "not_found"));

    // With both, the header counts.
    let admin = format!("Bearer {}", house.admin);
    let both = browser.send(Method::POST, "/keys", key, &[("authorization", admin.as_str())]).await;
    assert_eq!(both.status(), 200, "a key needs no page of ours");
    let both = [("authorization", "Bearer wb_x"), OWN[0]];
    assert_eq!(browser.code(Method::GET, "/turns", None, &both).await, refused(401, "unauthorized"));

    let response = browser.send(Method::DELETE, "/ui/session", None, OWN).await;
    assert_eq!(response.status(), 200);
    assert_eq!(set_cookies(response.headers()), ["waybill=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"]);
    for (method, path) in [(Method::GET, "/turns"), (Method::GET, "/ui/session"), (Method::DELETE, "/ui/session")] {
        assert_eq!(browser.code(method, path, None, OWN).await, refused(401, "unauthorized"));
    }
    let audit = house.get("/audit").await;
    let entries = audit["items"].as_array().unwrap().iter().filter(|entry| entry["actor"] == "key:o");
    let actions: Vec<&str> = entries.map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!((actions.first(), actions.last()), (Some(&"browser.logout"), Some(&"browser.login")), "{audit}");
}

/// SE-11: the cookie cannot be read by a page, and does not leave the server's own pages. Over TLS it is of this host alone.
#[tokio::test]
async fn a_cookie_has_exactly_these_attributes() {
    for (behind_tls, name, attributes) in [
        (false, "waybill", "Path=/; HttpOnly; SameSite=Strict"),
        (true, "__Host-waybill", "Path=/; HttpOnly; Secure; SameSite=Strict"),
    ] {
        let house = House::open_with(Config { behind_tls, ..Config::default() }).await;
        let mut browser = Browser::open(&house);
        let key = Some(json!({ "key": house.admin }));
        let response = browser.send(Method::POST, "/ui/session", key, &[]).await;
        assert_eq!(response.headers()["cache-control"], "no-store");
        let set = set_cookies(response.headers());
        assert_eq!(set.len(), 1);
        let (secret, found, age) = taken_apart(&set[0], name);
        assert_eq!((secret.len(), found.as_str()), (64, attributes));
        assert!((43_190..=43_200).contains(&age), "{age}");
        let text = response.text().await.unwrap();
        assert!(!text.contains(&secret) && !text.contains(&house.admin), "{text}");
        for (sent, status) in [(name, 200), ("waybill-login", 401), ("WAYBILL", 401)] {
            browser.cookie = format!("{sent}={secret}");
            assert_eq!(browser.code(Method::GET, "/turns", None, OWN).await.0, status, "{sent}");
        }
        if behind_tls {
            browser.cookie = format!("waybill={secret}");
            assert_eq!(browser.code(Method::GET, "/turns", None, OWN).await.0, 401, "without its prefix");
        }
    }
}

/// SE-11: a page of another site cannot use the cookie, for a write or for a read; and no answer says that it may.
#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let house = House::open().await;
    let browser = Browser::logged_in(&house, &house.admin).await;
    let own = house.base.as_str();
    let other_scheme = own.replace("http://", "https://");
    let cross_site = || refused(403, "cross_site");
    let site = |said: &'static str| ("sec-fetch-site", said);
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Headers<'_>, bool, bool); 12] = [
        (&[], true, false),
        (&[site("same-origin")], true, true),
        (&[("origin", own)], true, true),
        (&[site("none")], true, false),
        (&[site("same-site")], false, false),
        (&[site("cross-site")], false, false),
        (&[site("")], false, false),
        (&[site("cross-site"), ("origin", own)], false, false),
        (&[("origin", "https://evil.example")], false, false),
        (&[("origin", "null")], false, false),
        (&[("origin", other_scheme.as_str())], false, false),
        (&[site("same-origin"), ("origin", "https://proxied.example")], true, true),
    ];
    for (headers, may_read, may_write) in cases {
        let read = browser.code(Method::GET, "/turns", None, headers).await;
        assert_eq!(read == cross_site(), !may_read, "{headers:?}: {read:?}");
        let written = browser.code(Method::POST, "/turns", start(), headers).await;
        assert_eq!(written == cross_site(), !may_write, "{headers:?}: {written:?}");
        assert!([200, 403].contains(&read.0) && [200, 403].contains(&written.0), "{headers:?}: {read:?} {written:?}");
    }
    for (method, path) in [
        (Method::GET, "/v1/me"),
        (Method::GET, "/ui/session"),
        (Method::DELETE, "/ui/session"),
        (Method::PUT, "/retention"),
        (Method::DELETE, "/cards/x?reason=x"),
    ] {
        let said = browser.code(method.clone(), path, None, &[site("cross-site")]).await;
        assert_eq!(said, cross_site(), "{method} {path}");
    }
    // A page cannot log a person in as another, a form cannot write, and there is no preflight.
    let key = Some(json!({ "key": house.admin }));
    let said = browser.code(Method::POST, "/ui/session", key, &[("origin", "https://evil.example")]).await;
    assert_eq!(said, cross_site());
    let form = browser.code(Method::POST, "/turns", None, OWN).await;
    assert_eq!(form, refused(415, "unsupported_media_type"));
    let asks = [("origin", "https://evil.example"), ("access-control-request-method", "POST")];
    let preflight = browser.send(Method::OPTIONS, "/turns", None, &asks).await;
    assert_eq!(preflight.status(), 405);
}

/// SE-11: without the guard the attack succeeds. `chaos roles` does the same with every operation.
#[tokio::test]
async fn without_the_guard_another_site_writes() {
    let house = House::open().await;
    let browser = Browser::logged_in(&house, &house.admin).await;
    let evil = [("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")];
    assert_eq!(browser.code(Method::POST, "/turns", start(), &evil).await, refused(403, "cross_site"));
    assert!(guard::take_away(Some(Guard::CrossSite)), "tests are built with debug assertions");
    let written = browser.code(Method::POST, "/turns", start(), &evil).await;
    guard::take_away(None);
    assert_eq!(written.0, 200, "{written:?}");
}

/// SE-1, SE-11: a session ends with its key and by logging out, at once for requests and within 5 s for streams.
#[tokio::test]
async fn what_ends_a_session_ends_its_streams() {
    let house = House::open().await;
    let reader = house.key("r", Scope::Reader).await;
    let started = house.post("/turns", json!({ "profile_name": "hand", "instruction": "x" })).await;
    let path = format!("/turns/{}/events", started["agent_turn_id"].as_str().unwrap());
    let (revoked, left, stays) = (
        Browser::logged_in(&house, &reader).await,
        Browser::logged_in(&house, &house.admin).await,
        Browser::logged_in(&house, &house.admin).await,
    );
    let mut streams = Vec::new();
    for browser in [&revoked, &left, &stays] {
        let mut events = browser.send(Method::GET, &path, None, OWN).await.bytes_stream();
        assert!(events.next().await.is_some(), "it hears what there was");
        streams.push(events);
    }
    let keys = house.get("/keys").await;
    let key = keys["items"].as_array().unwrap().iter().find(|key| key["name"] == "r").unwrap();
    let key = format!("/keys/{}", key["key_id"].as_str().unwrap());
    assert_eq!(house.ask(Method::DELETE, &key, Some(&house.admin), None).await.0, 200);
    assert_eq!(left.ask(Method::DELETE, "/ui/session", None).await.0, 200);
    for browser in [&revoked, &left] {
        assert_eq!(browser.code(Method::GET, "/turns", None, OWN).await, refused(401, "unauthorized"));
    }
    let mut last = streams.pop().unwrap();
    for mut events in streams {
        let ended = async { while events.next().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(6), ended).await.expect("the stream ends");
    }
    let ended = async { while last.next().await.is_some() {} };
    assert!(
        tokio::time::timeout(Duration::from_millis(500), ended).await.is_err(),
        "another session of that key goes on"
    );
    assert_eq!(stays.ask(Method::GET, "/turns", None).await.0, 200);
}

/// SE-11: a session ends by itself, and with an expired key; then it is forgotten.
#[tokio::test]
async fn a_session_expires() {
    let house = House::open().await;
    let reader = house.key("r", Scope::Reader).await;
    let (first, second) = (Browser::logged_in(&house, &reader).await, Browser::logged_in(&house, &house.admin).await);
    house.t.count("with x as (update resource.api_keys set expires_at = now() where name = 'r' returning 1) select count(*) from x").await;
    assert_eq!(first.code(Method::GET, "/turns", None, OWN).await, refused(401, "unauthorized"));
    assert_eq!(second.ask(Method::GET, "/turns", None).await.0, 200);
    house
        .t
        .count("with x as (update resource.browser_sessions set expires_at = now() returning 1) select count(*) from x")
        .await;
    assert_eq!(second.code(Method::GET, "/turns", None, OWN).await, refused(401, "unauthorized"));
    let swept = sweep::tick(&house.kernel, &sweep::Config::default()).await.unwrap();
    assert_eq!(swept.browser_sessions_forgotten, 2);
    assert_eq!(house.t.count("select count(*) from resource.browser_sessions").await, 0);
}

/// SE-1, SE-11: wrong keys and cookies are refused like wrong bearer keys, and limited for each address.
#[tokio::test]
async fn a_wrong_key_does_not_log_in() {
    let house = House::open().await;
    let mut browser = Browser::open(&house);
    let unknown = ApiKey::mint("test").expose().to_owned();
    for key in ["", "wb_x", &house.admin[1..], unknown.as_str()] {
        let said = browser.code(Method::POST, "/ui/session", Some(json!({ "key": key })), OWN).await;
        assert_eq!(said, refused(401, "unauthorized"), "{key}");
    }
    let more = Some(json!({ "key": house.admin, "scope": "admin" }));
    assert_eq!(browser.code(Method::POST, "/ui/session", more, OWN).await, refused(400, "invalid"));
    let once = [OWN[0], ("idempotency-key", "k")];
    let said = browser.code(Method::POST, "/ui/session", Some(json!({ "key": house.admin })), &once).await;
    assert_eq!(said, refused(400, "invalid"), "its answer is not kept");
    for cookie in ["waybill=", "waybill=x", format!("waybill={}", "0".repeat(64)).as_str()] {
        browser.cookie = cookie.to_owned();
        assert_eq!(browser.code(Method::GET, "/turns", None, OWN).await, refused(401, "unauthorized"), "{cookie}");
    }
    browser.cookie.clear();
    let wrong = || browser.code(Method::POST, "/ui/session", Some(json!({ "key": unknown })), OWN);
    let said = join_all((0..300).map(|_| wrong())).await;
    let limited = said.contains(&refused(429, "rate_limited"));
    assert!(limited, "300 at once are too many");
    assert_eq!(house.t.count("select count(*) from resource.browser_sessions").await, 0);
}

/// Everything that Waybill logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("waybill") || metadata.target().starts_with("sqlx")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                self.0.push_str(&format!("{}={value:?} ", field.name()));
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push_str(&line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// SE-4, SE-11: neither a key nor a cookie is logged, whether it is accepted or refused.
#[tokio::test]
async fn no_cookie_is_logged() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let house = House::open().await;
    let mut browser = Browser::logged_in(&house, &house.admin).await;
    let secret = browser.cookie.split_once('=').unwrap().1.to_owned();
    assert_eq!(browser.ask(Method::POST, "/turns", start()).await.0, 200);
    assert_eq!(browser.code(Method::GET, "/turns", None, &[("sec-fetch-site", "cross-site")]).await.0, 403);
    assert_eq!(browser.ask(Method::DELETE, "/ui/session", None).await.0, 200);
    assert_eq!(browser.code(Method::GET, "/turns", None, OWN).await.0, 401);
    browser.cookie = format!("waybill={}", "ab".repeat(32));
    assert_eq!(browser.code(Method::GET, "/turns", None, OWN).await.0, 401);
    let heard = log.0.lock().unwrap().clone();
    assert!(heard.contains("browser.login"), "it hears: {heard}");
    for secret in [secret, "ab".repeat(32), house.admin.clone()] {
        assert!(!heard.contains(&secret));
    }
}

async fn house_of(provider: &Provider) -> House {
    let (id, secret) = CLIENT;
    let client = OidcClient { id: id.to_owned(), secret: Some(secret.into()) };
    House::open_with(Config { identity: Some(provider.identity(Some(client))), ..Config::default() }).await
}

impl Browser<'_> {
    /// Begins a login, and keeps its cookie. Returns where the browser is sent.
    async fn begin(&mut self, next: &str) -> String {
        let response = self.send(Method::GET, &format!("/ui/login?next={next}"), None, &[]).await;
        assert_eq!(response.status(), 302);
        let set = set_cookies(response.headers());
        let (value, attributes, age) = taken_apart(&set[0], "waybill-login");
        assert_eq!((attributes.as_str(), age), ("Path=/; HttpOnly; SameSite=Lax", 600));
        self.cookie = format!("waybill-login={value}");
        response.headers()["location"].to_str().unwrap().to_owned()
    }

    /// Comes back from the provider, as browsers do: the request was made by another site.
    async fn come_back(&self, code: &str, state: &str) -> Response {
        let path = format!("/ui/callback?code={code}&state={state}");
        self.send(Method::GET, &path, None, &[("sec-fetch-site", "cross-site")]).await
    }

    async fn refused_back(&self, code: &str, state: &str) -> (u16, String) {
        let response = self.come_back(code, state).await;
        assert!(set_cookies(response.headers()).is_empty(), "a refusal sets no cookie");
        let status = response.status().as_u16();
        let said: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        (status, said["code"].as_str().unwrap().to_owned())
    }
}

/// SE-11: a person logs in with the identity provider. The session may do what the ID token says, in each of its projects, until the token ends.
#[tokio::test]
async fn a_person_logs_in_with_the_identity_provider() {
    let provider = Provider::open().await;
    let house = house_of(&provider).await;
    let mut work = house.kernel.begin(ProjectId::new()).await.unwrap();
    project::create(&mut work, "beta").await.unwrap();
    let beta = work.project_id();
    work.commit().await.unwrap();

    let mut browser = Browser::open(&house);
    let location = browser.begin("/ui/acme/runs%3Fstatus=failed").await;
    let url = Url::parse(&location).unwrap();
    assert!(location.starts_with(&format!("{}/authorize?tenant=1&", provider.issuer)), "{location}");
    let asked = |name: &str| url.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned();
    let callback = format!("{}/ui/callback", house.base);
    assert_eq!((asked("response_type"), asked("scope")), ("code".to_owned(), "openid".to_owned()));
    assert_eq!((asked("client_id"), asked("redirect_uri")), (CLIENT.0.to_owned(), callback));
    assert_eq!((asked("code_challenge_method"), asked("code_challenge").len()), ("S256".to_owned(), 43));
    assert!(!browser.cookie.contains(&asked("state")) && asked("state") != asked("nonce"));

    let rights =
        json!({ "waybill": { "acme": "operator", "beta": "admin", beta.to_string(): "reader", "none": "admin" } });
    let (code, state) = provider.authorize(&location, rights);
    let response = browser.come_back(&code, &state).await;
    assert_eq!(response.status(), 302);
    assert_eq!(response.headers()["location"], "/ui/acme/runs?status=failed");
    let set = set_cookies(response.headers());
    let (secret, attributes, age) = taken_apart(&set[0], "waybill");
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict");
    assert!((590..=600).contains(&age), "it ends with the token: {age}");
    assert_eq!(set[1..], ["waybill-login=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"]);

    browser.cookie = format!("waybill={secret}");
    let (_, login) = browser.ask(Method::GET, "/ui/session", None).await;
    assert_eq!(login["actor"], "user:ada");
    let scopes: Vec<(&str, &str)> = login["projects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|project| (project["slug"].as_str().unwrap(), project["scope"].as_str().unwrap()))
        .collect();
    assert_eq!(scopes, [("acme", "operator"), ("beta", "reader")], "an id wins over a slug");
    assert_eq!(browser.code(Method::GET, "/v1/me", None, OWN).await, refused(400, "invalid"), "of several projects");
    let (status, started) = browser.ask(Method::POST, "/turns", start()).await;
    assert_eq!(status, 200, "{started}");
    let turn = format!("/turns/{}", started["agent_turn_id"].as_str().unwrap());
    assert_eq!(house.get(&turn).await["turn"]["started_by"], "user:ada");
    assert_eq!(browser.ask(Method::GET, "/v1/projects/beta/turns", None).await.0, 200);
    assert_eq!(browser.ask(Method::GET, &format!("/v1/projects/{beta}/turns"), None).await.0, 200);
    assert_eq!(browser.code(Method::POST, "/v1/projects/beta/turns", start(), OWN).await, refused(403, "forbidden"));
    assert_eq!(browser.code(Method::GET, "/v1/projects/none/turns", None, OWN).await, refused(404, "not_found"));
    assert!(house.get("/audit").await.to_string().contains("browser.login"));

    assert_eq!(browser.ask(Method::DELETE, "/ui/session", None).await.0, 200);
    for path in ["/turns", "/v1/projects/beta/turns"] {
        assert_eq!(browser.code(Method::GET, path, None, OWN).await, refused(401, "unauthorized"));
    }
}

/// SE-11: a login ends in the browser that began it, once, with a token that was made for it; else there is no session.
#[tokio::test]
async fn what_is_wrong_with_a_login_is_refused() {
    let provider = Provider::open().await;
    let house = house_of(&provider).await;
    let unauthorized = || refused(401, "unauthorized");
    let mut browser = Browser::open(&house);
    assert_eq!(browser.refused_back("code", "state").await, unauthorized(), "not begun");

    let of_others = Provider::open().await;
    for (what, more) in [
        ("nonce", json!({ "nonce": "of another login" })),
        ("no nonce", json!({ "nonce": null })),
        ("an access token", json!({ "aud": "waybill" })),
        ("for another client", json!({ "azp": "another" })),
        ("for several", json!({ "aud": [CLIENT.0, "another"] })),
        ("of another issuer", json!({ "iss": of_others.issuer })),
        ("expired", json!({ "exp": 1_000_000 })),
        ("a scope that there is not", json!({ "waybill": { "acme": "god" } })),
    ] {
        let location = browser.begin("/ui/").await;
        let (code, state) = provider.authorize(&location, more);
        assert_eq!(browser.refused_back(&code, &state).await, unauthorized(), "{what}");
    }
    let location = browser.begin("/ui/").await;
    let (code, state) = provider.authorize(&location, json!({ "waybill": { "elsewhere": "admin" } }));
    assert_eq!(browser.refused_back(&code, &state).await, refused(403, "forbidden"), "no project of ours");

    // Another state, another browser, another verifier.
    let location = browser.begin("/ui/").await;
    let (code, state) = provider.authorize(&location, json!({}));
    for wrong in ["", "x", &state[1..]] {
        assert_eq!(browser.refused_back(&code, wrong).await, unauthorized(), "{wrong}");
    }
    let mut victim = Browser::open(&house);
    victim.begin("/ui/").await;
    assert_eq!(victim.refused_back(&code, &state).await, unauthorized(), "the login of an attacker");
    let response =
        browser.send(Method::GET, &format!("/ui/callback?error=access_denied&state={state}"), None, &[]).await;
    assert_eq!(response.status(), 401, "the provider refused");
    let path = format!("/ui/callback?code={code}&state={state}&iss=https%3A%2F%2Fevil.example");
    assert_eq!(browser.send(Method::GET, &path, None, &[]).await.status(), 401, "another provider");
    provider.codes.lock().unwrap().get_mut(&code).unwrap().0 = "another challenge".to_owned();
    assert_eq!(browser.refused_back(&code, &state).await, unauthorized(), "its verifier is another");

    // A code is good for once.
    let location = browser.begin("/ui/").await;
    let (code, state) = provider.authorize(&location, json!({}));
    assert_eq!(browser.come_back(&code, &state).await.status(), 302);
    assert_eq!(browser.refused_back(&code, &state).await, unauthorized(), "replayed");
    assert_eq!(house.t.count("select count(*) from resource.browser_sessions").await, 1);
}

/// SE-11: a login leads to a page of this server, whatever the address or the cookie says.
#[tokio::test]
async fn a_login_leads_nowhere_else() {
    let provider = Provider::open().await;
    let house = house_of(&provider).await;
    let mut browser = Browser::open(&house);
    for next in [
        "https://evil.example/ui/",
        "//evil.example/ui/",
        "/%5Cevil.example",
        "/ui/../v1/me",
        "/ui/a%3Bb",
        "javascript:x",
        "/",
    ] {
        let said = browser.code(Method::GET, &format!("/ui/login?next={next}"), None, &[]).await;
        assert_eq!(said, refused(400, "invalid"), "{next}");
    }
    let location = browser.begin("/ui/").await;
    let (code, state) = provider.authorize(&location, json!({}));
    let (secret, _) = browser.cookie.split_once('.').unwrap();
    browser.cookie = format!("{secret}.//evil.example/ui/");
    assert_eq!(browser.refused_back(&code, &state).await, refused(401, "unauthorized"));

    let house = House::open().await;
    let browser = Browser::open(&house);
    for path in ["/ui/login", "/ui/callback?code=x&state=y"] {
        assert_eq!(browser.code(Method::GET, path, None, &[]).await, refused(404, "not_found"), "no provider");
    }
}

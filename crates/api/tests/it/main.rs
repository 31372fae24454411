//! The API over real HTTP, with a real database behind it.

#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use waybill_api::{Access, Config, Limits};
use waybill_bus::local::Local;
use waybill_core::key::{ApiKey, Bounds, Scope};
use waybill_kernel::{key, project, resource, work::Kernel};
use waybill_testkit::{TestDb, fresh_db};

mod asking;
#[path = "../../../context/src/record/bodies.rs"]
mod bodies;
mod browsing;
mod bulk;
mod checking;
mod composing;
mod console;
mod contexts;
mod document;
mod examples;
mod forking;
mod holdings;
mod packages;
mod pages;
mod pooled;
mod projects;
mod record;
mod recording;
mod registering;
mod requests;
mod roles;
mod runs;
mod spending;
mod starting;
mod talking;
mod tls;
mod tokens;
mod watching;
mod working;

/// A project, the API in front of it, and keys.
struct House {
    t: TestDb,
    kernel: Kernel,
    http: Client,
    base: String,
    admin: String,
    _end: oneshot::Sender<()>,
    _serving: JoinHandle<std::io::Result<()>>,
}

impl House {
    async fn open() -> House {
        House::open_with(Config::default()).await
    }

    async fn open_with(config: Config) -> House {
        House::open_on(fresh_db().await, config).await
    }

    async fn open_on(t: TestDb, config: Config) -> House {
        let kernel = t.kernel.clone().on(Arc::new(Local::default()));
        let mut work = kernel.begin(t.project_id).await.unwrap();
        project::create(&mut work, "acme").await.unwrap();
        let profiles = [profile("echo", "llm"), profile("hand", "python")];
        resource::apply(&mut work, &profiles.map(|profile| serde_json::from_value(profile).unwrap())).await.unwrap();
        work.commit().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (end, ended) = oneshot::channel::<()>();
        let ended = async { ended.await.unwrap_or_default() };
        let serving = tokio::spawn(waybill_api::serve(listener, kernel.clone(), config, ended, Duration::from_secs(1)));
        // The first test has installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Client::builder().no_proxy().build().unwrap();
        let mut house = House { t, kernel, http, base, admin: String::new(), _end: end, _serving: serving };
        house.admin = house.key("admin", Scope::Admin).await;
        house
    }

    /// Applies a tool that is answered by the worker that claims its calls, and that `hand` may call.
    async fn allow(&self, tool: &str, target: &str) {
        let tool = json!({ "tool": { "name": tool, "description": "d", "target": target } });
        let mut hand = profile("hand", "python");
        hand["profile"]["allowed_tools"] = json!([tool["tool"]["name"]]);
        let mut work = self.kernel.begin(self.t.project_id).await.unwrap();
        resource::apply(&mut work, &[tool, hand].map(|one| serde_json::from_value(one).unwrap())).await.unwrap();
        work.commit().await.unwrap();
    }

    async fn key(&self, name: &str, scope: Scope) -> String {
        let targets = match scope {
            Scope::Worker | Scope::Tool | Scope::Developer => ["llm", "python", "sums", "bells", "none"].as_slice(),
            _ => &[],
        };
        let targets = targets.iter().map(|target| target.parse().unwrap()).collect();
        self.key_for(name, scope, Bounds { targets, ..Bounds::default() }).await
    }

    async fn key_for(&self, name: &str, scope: Scope, bounds: Bounds) -> String {
        let key = ApiKey::mint("test");
        let mut work = self.kernel.begin(self.t.project_id).await.unwrap();
        key::create(&mut work, &key, &name.parse().unwrap(), scope, &bounds, None).await.unwrap();
        work.commit().await.unwrap();
        key.expose().to_owned()
    }

    /// Sends a request, and returns the status and the answer.
    async fn ask(&self, method: Method, path: &str, key: Option<&str>, body: Option<Value>) -> (StatusCode, Value) {
        self.ask_once(method, path, key, body, None).await
    }

    async fn ask_once(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<Value>,
        once: Option<&str>,
    ) -> (StatusCode, Value) {
        let path = if path.starts_with("/v1") || !path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/v1/projects/acme{path}")
        };
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        if let Some(once) = once {
            request = request.header("idempotency-key", once);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let wanted = if status.is_success() { "application/json" } else { "application/problem+json" };
        assert_eq!(kind, wanted, "{path}");
        (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.ask(Method::GET, path, Some(&self.admin), None).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.ask(Method::POST, path, Some(&self.admin), Some(body)).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Returns the status and the code of a refusal.
    async fn refused(&self, method: Method, path: &str, key: Option<&str>, body: Option<Value>) -> (u16, String) {
        let (status, answer) = self.ask(method, path, key, body).await;
        assert_eq!(answer["status"], status.as_u16(), "{answer}");
        assert!(answer["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{answer}");
        (status.as_u16(), answer["code"].as_str().unwrap().to_owned())
    }
}

fn profile(name: &str, target: &str) -> Value {
    json!({ "profile": {
        "name": name, "worker_target": target, "system_prompt_template": "You repeat.",
        "llm_config": { "provider": "demo", "model": "demo", "params": { "script": [{ "say": "You said {{query}}" }] } },
    } })
}

/// Callers on this machine need no key.
fn open_house() -> Config {
    Config { access: Access::Loopback, ..Config::default() }
}

fn narrow(limits: Limits) -> Config {
    Config { limits, ..Config::default() }
}

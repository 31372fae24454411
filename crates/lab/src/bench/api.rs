//! What the API adds: the median time to start a turn over HTTP, with a key, compared with the same launch inside the process; then what `worked`
//! and `lists` measure.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot, task::JoinSet};
use waybill_api::{Config, Limits};
use waybill_core::{
    id::{Name, ProjectId},
    key::{ApiKey, Bounds, Scope},
    resource::Manifest,
};
use waybill_kernel::{
    key, project, resource,
    work::{Kernel, UnitOfWork},
};
use waybill_orchestrator::launch::{Launch, launch};

use super::{fresh_database, lists, median, progress, worked};
use crate::figure::{Bar, Figure};
use waybill_services::Private;

/// How long each window is, how many rounds, and what is read after them.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub window: Duration,
    pub rounds: usize,
    /// What HTTP may cost, as a factor.
    pub cost: f64,
    pub lists: lists::Options,
}

const DATABASE: &str = "waybill_bench_api";
pub(super) const CLIENTS: usize = 32;

/// Measures on a private PostgreSQL with durability on.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let (project_id, key) = found(&kernel, "bench", &[echo("nobody")?]).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let projects = format!("http://{}/v1/projects", listener.local_addr()?);
    let (end, ended) = oneshot::channel::<()>();
    let limits = Limits { per_second: 1e9, ..Limits::default() };
    let config = Config { limits, ..Config::default() };
    let ended = async { ended.await.unwrap_or_default() };
    let serving = tokio::spawn(waybill_api::serve(listener, kernel.clone(), config, ended, Duration::from_secs(2)));

    let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(CLIENTS).build()?;
    let (url, key) = (format!("{projects}/bench"), key.expose().to_owned());
    let caller = Caller { http, url, key };
    let bar = progress("starting turns", options.rounds as u64);
    let (mut ratios, mut over_http) = (Vec::new(), Vec::new());
    for round in 0..=options.rounds {
        let (near, far) = if round % 2 == 0 {
            let near = crowd(options.window, || inside(kernel.clone(), project_id)).await?;
            (near, crowd(options.window, || caller.clone().outside()).await?)
        } else {
            let far = crowd(options.window, || caller.clone().outside()).await?;
            (crowd(options.window, || inside(kernel.clone(), project_id)).await?, far)
        };
        // The first round warms up connections and plans.
        if round > 0 {
            ratios.push(far.p50 / near.p50);
            over_http.push(far.rate);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let worked = worked::run(options.rounds, &kernel, &caller.http, &projects, options.cost).await?;
    let read = lists::run(options.lists, &kernel, &mut admin, &caller.http, &projects).await?;
    let _ = end.send(());
    serving.await??;
    let mut figures = vec![
        Figure::new(
            "starting a turn over HTTP ÷ inside the process, 32 clients",
            median(ratios),
            "ratio",
            Bar::AtMost(options.cost),
        ),
        Figure::new("turns started over HTTP", median(over_http), "turns/s", Bar::None),
    ];
    figures.extend(worked);
    figures.extend(read);
    Ok(figures)
}

/// Returns a profile `echo` for this target.
pub(crate) fn echo(target: &str) -> Result<Manifest> {
    let profile = json!({ "profile": {
        "name": "echo", "worker_target": target, "system_prompt_template": "You repeat.",
        "llm_config": { "provider": "demo", "model": "demo" },
    } });
    Ok(serde_json::from_value(profile)?)
}

/// Makes a project with these manifests, and a key that may start turns.
pub(crate) async fn found(kernel: &Kernel, slug: &str, manifests: &[Manifest]) -> Result<(ProjectId, ApiKey)> {
    let mut work = kernel.begin(ProjectId::new()).await?;
    project::create(&mut work, slug).await?;
    resource::apply(&mut work, manifests).await?;
    let key = ApiKey::mint("bench");
    key::create(&mut work, &key, &"bench".parse()?, Scope::Operator, &Bounds::default(), None).await?;
    let project_id = work.project_id();
    work.commit().await?;
    Ok((project_id, key))
}

const INSTRUCTION: &str = "Say this once more, in your own words, and leave nothing out of it.";

async fn inside(kernel: Kernel, project_id: ProjectId) -> Result<()> {
    let profile: Name = "echo".parse()?;
    let mut work: UnitOfWork = kernel.begin(project_id).await?;
    launch(&mut work, &Launch { emit_state_event: true, ..Launch::new(profile, INSTRUCTION) }).await?;
    Ok(work.commit().await?)
}

/// A client of a project.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) http: reqwest::Client,
    /// URL of the project.
    pub(super) url: String,
    pub(super) key: String,
}

impl Caller {
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<String> {
        let request = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.key);
        let response = request.header("content-type", "application/json").body(body.to_string()).send().await?;
        let (status, text) = (response.status(), response.text().await?);
        ensure!(status.is_success(), "{path}: {status}: {text}");
        Ok(text)
    }

    async fn outside(self) -> Result<()> {
        self.post("/turns", &json!({ "profile_name": "echo", "instruction": INSTRUCTION })).await.map(drop)
    }
}

/// What clients did in a window: how often a second, and how long one act took.
struct Done {
    rate: f64,
    p50: f64,
}

/// Lets all clients together do `act` during the window.
async fn crowd<F>(window: Duration, act: impl Fn() -> F) -> Result<Done>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut took = Vec::new();
    let mut clients = JoinSet::new();
    let begun = Instant::now();
    // Each client has one request at a time, and begins the next when it is done.
    for _ in 0..CLIENTS {
        clients.spawn(timed(act()));
    }
    let mut timer = std::pin::pin!(tokio::time::sleep(window));
    loop {
        tokio::select! {
            () = &mut timer => break,
            ended = clients.join_next() => {
                took.push(ended.context("a client is at work")???);
                clients.spawn(timed(act()));
            }
        }
    }
    let rate = took.len() as f64 / begun.elapsed().as_secs_f64();
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    ensure!(!took.is_empty(), "no client was done within {window:?}");
    Ok(Done { rate, p50: median(took) })
}

/// Returns how many seconds an act takes.
pub(super) async fn timed(act: impl Future<Output = Result<()>>) -> Result<f64> {
    let begun = Instant::now();
    act.await?;
    Ok(begun.elapsed().as_secs_f64())
}

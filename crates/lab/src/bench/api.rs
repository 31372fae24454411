//! What the API adds: starting a turn over HTTP, with a key, compared with the same launch inside the process; then what `lists` measures.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
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

use super::{fresh_database, lists, median, progress};
use crate::figure::{Bar, Figure};
use waybill_services::Private;

/// How long each window is, how many rounds, and what is read after them.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub window: Duration,
    pub rounds: usize,
    pub lists: lists::Options,
}

const DATABASE: &str = "waybill_bench_api";
const CLIENTS: usize = 32;

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
    let (url, key) = (format!("{projects}/bench/turns"), key.expose().to_owned());
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
            ratios.push(near / far);
            over_http.push(far);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let read = lists::run(options.lists, &kernel, &mut admin, &caller.http, &projects).await?;
    let _ = end.send(());
    serving.await??;
    let mut figures = vec![
        Figure::new(
            "starting a turn over HTTP ÷ inside the process, 32 clients",
            median(ratios),
            "ratio",
            Bar::AtMost(2.0),
        ),
        Figure::new("turns started over HTTP", median(over_http), "turns/s", Bar::None),
    ];
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

#[derive(Clone)]
struct Caller {
    http: reqwest::Client,
    url: String,
    key: String,
}

impl Caller {
    async fn outside(self) -> Result<()> {
        let body = json!({ "profile_name": "echo", "instruction": INSTRUCTION }).to_string();
        let request = self.http.post(&self.url).bearer_auth(&self.key).header("content-type", "application/json");
        let response = request.body(body).send().await?;
        let (status, text) = (response.status(), response.text().await?);
        ensure!(status.is_success(), "{status}: {text}");
        Ok(())
    }
}

/// Returns how often a second all clients together complete `act` during the window.
async fn crowd<F>(window: Duration, act: impl Fn() -> F) -> Result<f64>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut done: u64 = 0;
    let mut clients = JoinSet::new();
    let begun = std::time::Instant::now();
    // Each client has one request at a time, and begins the next when it is done.
    for _ in 0..CLIENTS {
        clients.spawn(act());
    }
    let mut timer = std::pin::pin!(tokio::time::sleep(window));
    loop {
        tokio::select! {
            () = &mut timer => break,
            ended = clients.join_next() => {
                ended.context("a client is at work")???;
                done += 1;
                clients.spawn(act());
            }
        }
    }
    let rate = done as f64 / begun.elapsed().as_secs_f64();
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    Ok(rate)
}

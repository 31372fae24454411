//! Large content, streamed through the API of a separate process: how much memory that takes; and the same content under many paths.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use waybill_artifact::{Artifacts, Store};
use waybill_core::{
    id::ProjectId,
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{key, project};

use super::{fresh_database, progress};
use crate::figure::{Bar, Figure};
use waybill_services::{Home, Private};

/// How much content, and which store.
#[derive(Clone, Debug)]
pub struct Options {
    /// `waybill` itself.
    pub program: PathBuf,
    pub megabytes: u64,
    pub paths: usize,
    /// The bar for the server's peak memory.
    pub memory: Bar,
    /// URL of an object store, with credentials from the environment. `None` means a folder.
    pub store: Option<String>,
}

const DATABASE: &str = "waybill_bench_artifacts";
const PORTION: usize = 1 << 20;

struct Server {
    child: Child,
    url: String,
    key: String,
    http: reqwest::Client,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Returns its peak memory, in MB.
    fn peak(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
        let kilobytes: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
        Ok(kilobytes / 1024.0)
    }

    async fn put(&self, path: &str, body: reqwest::Body) -> Result<serde_json::Value> {
        let url = format!("{}?path={path}", self.url);
        let put = self.http.put(url).bearer_auth(&self.key).body(body);
        let answer = put.header("content-type", "application/octet-stream").send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "{path}: {status} {text}");
        Ok(serde_json::from_str(&text)?)
    }
}

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let mut work = kernel.begin(ProjectId::new()).await?;
    project::create(&mut work, "bench").await?;
    let made = ApiKey::mint("bench");
    key::create(&mut work, &made, &"bench".parse()?, Scope::Admin, &Bounds::default(), None).await?;
    let project_id = work.project_id();
    work.commit().await?;
    let place = match &options.store {
        Some(url) => url.clone(),
        None => {
            let folder = Home::find()?.path("bench-artifacts");
            let _ = std::fs::remove_dir_all(&folder);
            format!("file://{}", folder.display())
        }
    };
    let artifacts = Artifacts::new(kernel.clone(), Store::open(&place, std::env::vars())?);
    let server = serve(options, &private.server.service_url(DATABASE), &place, made.expose()).await?;
    // The tokenizer's vocabulary is loaded once and stays in memory.
    let at_rest = server.peak()?;
    server.put("small.txt", "a few words".into()).await?;
    let before = server.peak()?;

    let n = options.megabytes;
    let bar = progress("in", n);
    let ticking = bar.clone();
    let content = stream::iter(0..n).map(move |n| {
        ticking.inc(1);
        Ok::<_, std::io::Error>(portion(n))
    });
    let begun = Instant::now();
    let stored = server.put("large.log", reqwest::Body::wrap_stream(content)).await?;
    let into = begun.elapsed();
    bar.finish_and_clear();
    let mut hasher = blake3::Hasher::new();
    for n in 0..n {
        hasher.update(&portion(n));
    }
    let sent = hasher.finalize();
    let peak_in = server.peak()?;

    let bar = progress("out", n);
    let begun = Instant::now();
    let get = |url: String| server.http.get(url).bearer_auth(&server.key).send();
    let content = get(format!("{}/content?path=large.log", server.url)).await?.error_for_status()?;
    let mut content = content.bytes_stream();
    let (mut hasher, mut read) = (blake3::Hasher::new(), 0_u64);
    while let Some(bytes) = content.try_next().await? {
        hasher.update(&bytes);
        read += bytes.len() as u64;
        bar.set_position(read >> 20);
    }
    let out = begun.elapsed();
    bar.finish_and_clear();
    let differs = u32::from(hasher.finalize() != sent) + u32::from(stored["hash"] != sent.to_hex().as_str());
    let peak_out = server.peak()?;

    let bar = progress("the same under many paths", options.paths as u64);
    let same: Bytes = vec![b'='; 1 << 16].into();
    let mut puts = stream::iter(0..options.paths)
        .map(|n| {
            let (server, same) = (&server, same.clone());
            async move { server.put(&format!("many/{n}.txt"), same.into()).await }
        })
        .buffer_unordered(8);
    while puts.try_next().await?.is_some() {
        bar.inc(1);
    }
    drop(puts);
    bar.finish_and_clear();
    while artifacts.sweep(1_000).await? > 0 {}
    let named: i64 = sqlx::query_scalar("select count(*) from cardbox.artifacts where path like 'many/%'")
        .fetch_one(&mut admin)
        .await?;
    let objects = artifacts.store().count(project_id).await?;
    artifacts.store().delete_project(project_id).await?;
    let speed = |took: Duration| n as f64 / took.as_secs_f64();
    Ok(vec![
        Figure::new("memory of the server at rest", at_rest, "MB", Bar::None),
        Figure::new("… and with the vocabulary that tokens are counted with", before, "MB", Bar::None),
        Figure::new(format!("{n} MB in and out: what that adds"), peak_out - before, "MB", Bar::AtMost(64.0)),
        Figure::new(format!("{n} MB in: the most memory that the server had"), peak_in, "MB", options.memory),
        Figure::new(format!("{n} MB out: the most memory that the server had"), peak_out, "MB", options.memory),
        Figure::new("content that came back otherwise", differs.into(), "", Bar::AtMost(0.0)),
        Figure::new("in", speed(into), "MB/s", Bar::None),
        Figure::new("out", speed(out), "MB/s", Bar::None),
        Figure::new("paths of the same content", named as f64, "", Bar::AtLeast(options.paths as f64)),
        Figure::new(
            "objects in the store: the large one, the small one, and that content",
            objects as f64,
            "",
            Bar::AtMost(3.0),
        ),
    ])
}

/// Returns a MiB of text that differs for each `n`.
fn portion(n: u64) -> Bytes {
    let line = format!("{n:012} the balance was deducted and the application was filed, 余额已扣减\n");
    line.repeat(PORTION / line.len() + 1).into_bytes()[..PORTION].to_vec().into()
}

async fn serve(options: &Options, database_url: &str, place: &str, key: &str) -> Result<Server> {
    let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let child = Command::new(&options.program)
        .args(["serve", "--per-second", "100000", "--listen", &listen.to_string()])
        .env("WAYBILL_DATABASE_URL", database_url)
        .env("WAYBILL_ARTIFACTS", place)
        .env_remove("WAYBILL_NATS_URL")
        .stdin(Stdio::null())
        .spawn()
        .context("the API cannot be started")?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    let url = format!("http://{listen}/v1/projects/bench/artifacts");
    let server = Server { child, url, key: key.to_owned(), http };
    for _ in 0..200 {
        if server
            .http
            .get(format!("http://{listen}/ready"))
            .send()
            .await
            .is_ok_and(|answer| answer.status().is_success())
        {
            return Ok(server);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the API did not come up")
}

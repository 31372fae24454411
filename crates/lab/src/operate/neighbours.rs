//! One project (the bully) attacks the API with all its keys; another (the victim) keeps working beside it (SE-8).
//!
//! The bully holds long polls, streams, idle uploads, requests without a body and half-sent heads open, reads cards of 4 MiB by the page,
//! applies schemas that would take hours to check, and floods the server with invalid keys. First it does the same to another process on the
//! same machine: the victim's latency during that part is the baseline.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reqwest::{Client, Method};
use serde_json::{Map, Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use waybill_core::{
    card::{CardType, Content, Draft, Role},
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{card, key, project, resource, work::Kernel};
use waybill_services::{ChildProcess, Home, Private, Server};

use crate::{
    bench::{api::echo, fresh_database, progress},
    figure::{Bar, Figure},
    storm::verdict::percentile,
};

#[derive(Clone, Debug)]
pub struct Options {
    pub program: PathBuf,
    /// How long each part lasts.
    pub lasts: Duration,
}

/// How many connections of each kind the bully holds open.
const HELD: usize = 150;
const KEYS: usize = 4;
/// Requests of the victim per second.
const PACE: f64 = 20.0;

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let here = House::open(options, &private.server, "waybill_neighbours").await?;
    let elsewhere = House::open(options, &private.server, "waybill_elsewhere").await?;
    let bar = progress("parts", 3);
    here.victim(Duration::from_secs(3)).await?;

    let beside = {
        let _bully = elsewhere.bully().await?;
        sleep(Duration::from_secs(2)).await;
        here.victim(options.lasts).await?
    };
    bar.inc(1);
    sleep(Duration::from_secs(5)).await;
    let before = here.memory()?;
    let (under, most) = {
        let _bully = here.bully().await?;
        sleep(Duration::from_secs(2)).await;
        let grown = async {
            let mut most = before;
            loop {
                most = most.max(here.memory().unwrap_or_default());
                here.most.store(most, Ordering::Relaxed);
                sleep(Duration::from_millis(100)).await;
            }
        };
        let under = tokio::select! {
            under = here.victim(options.lasts) => under?,
            () = grown => unreachable!("it looks until it is dropped"),
        };
        (under, here.most.load(Ordering::Relaxed))
    };
    bar.inc(1);
    sleep(Duration::from_secs(8)).await;
    let after = here.victim(options.lasts / 2).await?;
    bar.finish_and_clear();
    let p99 = |seen: &Seen| percentile(seen.took.clone(), 0.99);
    let grown = most.saturating_sub(before) as f64 / f64::from(1 << 20);
    Ok(vec![
        Figure::new("requests of the victim", under.took.len() as f64, "requests", Bar::AtLeast(1.0)),
        Figure::new("p99 beside the bully at another process", p99(&beside) * 1e3, "ms", Bar::None),
        Figure::new("p99 beside the bully", p99(&under) * 1e3, "ms", Bar::None),
        Figure::new(
            "p99 beside the bully ÷ beside it at another process",
            p99(&under) / p99(&beside),
            "ratio",
            Bar::AtMost(1.5),
        ),
        Figure::new(
            "requests of the victim that were refused or lost",
            (under.lost + beside.lost + after.lost) as f64,
            "requests",
            Bar::AtMost(0.0),
        ),
        Figure::new("memory of the process beyond what it had before", grown, "MiB", Bar::AtMost(192.0)),
        Figure::new(
            "p99 ten seconds after the bully ÷ beside it at another process",
            p99(&after) / p99(&beside),
            "ratio",
            Bar::AtMost(1.5),
        ),
    ])
}

/// A server, and two projects.
struct House {
    address: String,
    http: Client,
    victim: String,
    bully: Vec<String>,
    cards: Vec<String>,
    process: ChildProcess,
    most: AtomicU64,
}

#[derive(Default)]
struct Seen {
    took: Vec<f64>,
    lost: usize,
}

impl House {
    async fn open(options: &Options, server: &Server, database: &'static str) -> Result<House> {
        let (kernel, _) = fresh_database(server, database).await?;
        let (victim, _) = settle(&kernel, "victim", 1).await?;
        let (bully, cards) = settle(&kernel, "bully", KEYS).await?;
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let folder = Home::find()?.path(database);
        let mut command = Command::new(&options.program);
        command
            .args(["serve", "--listen", &address, "--per-second", "100000", "--artifacts"])
            .arg(format!("file://{}", folder.display()));
        command.env("WAYBILL_DATABASE_URL", server.service_url(database)).env_remove("WAYBILL_NATS_URL");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = ChildProcess(command.spawn().context("a server cannot be started")?);
        let http = Client::builder().no_proxy().timeout(Duration::from_secs(20)).build()?;
        let house = House { address, http, victim: victim[0].clone(), bully, cards, process, most: AtomicU64::new(0) };
        for _ in 0..100 {
            if house
                .http
                .get(format!("http://{}/ready", house.address))
                .send()
                .await
                .is_ok_and(|answer| answer.status().is_success())
            {
                return Ok(house);
            }
            sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("the server does not come up");
    }

    /// Returns the memory of the process, in bytes.
    fn memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
    }

    /// Sends a client's usual requests at a steady pace.
    async fn victim(&self, lasts: Duration) -> Result<Seen> {
        let mut ticks = interval(Duration::from_secs_f64(1.0 / PACE));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (begun, mut asking, mut seen, mut n) = (Instant::now(), JoinSet::new(), Seen::default(), 0);
        let base = format!("http://{}/v1/projects/victim", self.address);
        while begun.elapsed() < lasts {
            ticks.tick().await;
            n += 1;
            let start = json!({ "profile_name": "echo", "instruction": "x" });
            let (method, path, body) = match n % 4 {
                0 => (Method::POST, "/turns", Some(start)),
                1 => (Method::GET, "/turns?most=10", None),
                2 => (Method::GET, "/resources", None),
                _ => (Method::GET, "/agents?most=10", None),
            };
            let mut request = self.http.request(method, format!("{base}{path}")).bearer_auth(&self.victim);
            if let Some(body) = body {
                request = request.header("content-type", "application/json").body(body.to_string());
            }
            asking.spawn(async move {
                let begun = Instant::now();
                let is_good = match request.send().await {
                    Ok(answer) => answer.status().is_success() && answer.bytes().await.is_ok(),
                    Err(_) => false,
                };
                (begun.elapsed().as_secs_f64(), is_good)
            });
        }
        while let Some(asked) = asking.join_next().await {
            let (took, is_good) = asked?;
            seen.took.push(took);
            seen.lost += usize::from(!is_good);
        }
        ensure!(!seen.took.is_empty(), "the victim asked nothing");
        Ok(seen)
    }

    /// Starts the bully, which attacks until the value is dropped.
    async fn bully(&self) -> Result<JoinSet<()>> {
        let mut bully = JoinSet::new();
        let base = format!("http://{}/v1/projects/bully", self.address);
        // The bully has its own client, so that it does not share connections with the victim's client.
        let http = Client::builder().no_proxy().build()?;
        let key = |n: usize| self.bully[n % KEYS].clone();
        let started = http.post(format!("{base}/turns")).bearer_auth(key(0)).header("content-type", "application/json");
        let started = started.body(json!({ "profile_name": "echo", "instruction": "x" }).to_string()).send().await?;
        let started: Value = serde_json::from_slice(&started.bytes().await?)?;
        let turn_id = started["agent_turn_id"].as_str().context("the bully cannot start a turn")?.to_owned();
        for n in 0..HELD {
            let poll = (http.clone(), format!("{base}/worker/claim"), key(n));
            bully.spawn(async move {
                let (http, url, key) = poll;
                let claim = json!({ "worker": n.to_string(), "target": "nobody", "wait_seconds": 30 }).to_string();
                loop {
                    let asked = http.post(&url).bearer_auth(&key).header("content-type", "application/json");
                    let _ = asked.body(claim.clone()).send().await;
                    sleep(Duration::from_millis(200)).await;
                }
            });
            let watch = (http.clone(), format!("{base}/turns/{turn_id}/events"), key(n));
            bully.spawn(async move {
                let (http, url, key) = watch;
                loop {
                    if let Ok(answer) = http.get(&url).bearer_auth(&key).send().await {
                        let _ = answer.bytes().await;
                    }
                    sleep(Duration::from_millis(200)).await;
                }
            });
            // Half a request head, an upload that sends one byte, a body that does not come.
            let heads = [
                "GET /health HTTP/1.1\r\nhost: x\r\nx-half".to_owned(),
                format!(
                    "PUT /v1/projects/bully/artifacts?path=b/{n} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 1000000\r\n\r\nx",
                    key = self.bully[n % KEYS]
                ),
                format!(
                    "POST /v1/projects/bully/turns HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: 4000000\r\n\r\n{{",
                    key = self.bully[n % KEYS]
                ),
            ];
            for head in heads {
                let address = self.address.clone();
                bully.spawn(async move {
                    loop {
                        if let Ok(mut stream) = TcpStream::connect(&address).await {
                            let _ = stream.write_all(head.as_bytes()).await;
                            let mut rest = [0; 1024];
                            while tokio::io::AsyncReadExt::read(&mut stream, &mut rest).await.is_ok_and(|n| n > 0) {}
                        }
                        sleep(Duration::from_millis(500)).await;
                    }
                });
            }
        }
        let mut parts = Map::from_iter([("p30".to_owned(), json!({}))]);
        for n in 0..30 {
            let next = json!({ "$ref": format!("#/$defs/p{}", n + 1) });
            parts.insert(format!("p{n}"), json!({ "allOf": [next, next] }));
        }
        let bomb = json!({ "manifests": [{ "tool": { "name": "bomb", "description": "d", "target": "x",
            "parameters": { "$defs": parts, "$ref": "#/$defs/p0" } } }] });
        let batch = json!({ "card_ids": self.cards });
        for (n, (path, body)) in
            [("/cards/batch", &batch), ("/cards/batch", &batch), ("/resources", &bomb)].into_iter().enumerate()
        {
            let (http, url, key, body) =
                (http.clone(), format!("{base}{path}"), self.bully[n % KEYS].clone(), body.to_string());
            bully.spawn(async move {
                loop {
                    let request = http.post(&url).bearer_auth(&key).header("content-type", "application/json");
                    if let Ok(answer) = request.body(body.clone()).send().await {
                        let _ = answer.bytes().await;
                    }
                    sleep(Duration::from_millis(20)).await;
                }
            });
        }
        let forged: Arc<Client> = Arc::new(http);
        bully.spawn(async move {
            let mut ticks = interval(Duration::from_millis(5));
            loop {
                ticks.tick().await;
                let (http, base) = (forged.clone(), base.clone());
                tokio::spawn(async move {
                    let key = ApiKey::mint("live");
                    let _ = http.get(format!("{base}/turns")).bearer_auth(key.expose()).send().await;
                });
            }
        });
        Ok(bully)
    }
}

/// Makes a project with `n_keys` admin keys, and, if more than one, ten cards of 4 MiB.
async fn settle(kernel: &Kernel, slug: &str, n_keys: usize) -> Result<(Vec<String>, Vec<String>)> {
    let mut work = kernel.begin(waybill_core::id::ProjectId::new()).await?;
    project::create(&mut work, slug).await?;
    resource::apply(&mut work, &[echo("llm")?]).await?;
    let mut keys = Vec::new();
    for n in 0..n_keys {
        let made = ApiKey::mint("test");
        key::create(&mut work, &made, &format!("k{n}").parse()?, Scope::Admin, &Bounds::default(), None).await?;
        keys.push(made.expose().to_owned());
    }
    let mut cards = Vec::new();
    for _ in 0..if n_keys > 1 { 10 } else { 0 } {
        let draft = Draft::new(CardType::thought(), Role::Assistant, Content::Text("words ".repeat(690_000)));
        let card = draft.seal()?;
        card::insert(&mut work, std::slice::from_ref(&card)).await?;
        cards.push(card.card_id().to_string());
    }
    work.commit().await?;
    Ok((keys, cards))
}

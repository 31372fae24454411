//! Three times the load that the workers can handle: every accepted turn is done, every refusal is a 429 or 503 with `Retry-After`, waits return
//! to normal afterwards, and another project is not affected.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use waybill_api::{Config, Limits};
use waybill_core::id::{Target, TurnId};
use waybill_kernel::{
    intake::{self, Intake},
    turn::{self, Claimed},
    work::Kernel,
};
use waybill_services::Private;

use crate::{
    bench::{
        api::{echo, found},
        fresh_database, progress,
        turns::ending,
    },
    figure::{Bar, Figure},
    storm::verdict::percentile,
};

/// How long each part lasts.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub normal: Duration,
    pub overload: Duration,
    pub after: Duration,
    /// While a project's oldest ready turn waits longer than this, the project may start no more turns.
    pub most_backlog: Duration,
}

const DATABASE: &str = "waybill_overload";
const WORKERS: usize = 4;
/// How long a turn keeps a worker busy: this makes the capacity known, and keeps the machine itself from being overloaded.
const SERVICE: Duration = Duration::from_millis(100);
const CAPACITY: f64 = WORKERS as f64 / 0.1;
/// Waits are compared in windows of this length.
const WINDOW: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Seen {
    accepted: Mutex<Vec<(TurnId, Instant, bool)>>,
    claimed: Mutex<HashMap<TurnId, Instant>>,
    /// Refusals by status; and how many of them had no `Retry-After`.
    refused: Mutex<(HashMap<u16, u64>, u64)>,
}

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let (target, seen): (Target, _) = ("llm".parse()?, Arc::new(Seen::default()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let limits = Limits { per_second: 1e9, most_backlog: options.most_backlog, ..Limits::default() };
    let (end, ended) = oneshot::channel::<()>();
    let ended = async { ended.await.unwrap_or_default() };
    let config = Config { limits, ..Config::default() };
    let serving = tokio::spawn(waybill_api::serve(listener, kernel.clone(), config, ended, Duration::from_secs(2)));
    let mut callers = Vec::new();
    for slug in ["host", "guest"] {
        callers.push(Caller {
            http: reqwest::Client::builder().no_proxy().build()?,
            url: format!("http://{address}/v1/projects/{slug}/turns"),
            key: found(&kernel, slug, &[echo(target.as_str())?]).await?.1.expose().to_owned(),
            is_guest: slug == "guest",
            seen: seen.clone(),
        });
    }
    let (over, is_over) = oneshot::channel::<()>();
    let is_over = async { is_over.await.unwrap_or_default() };
    let worker = tokio::spawn(work(kernel.clone(), target.clone(), seen.clone(), is_over));

    let bar = progress("overload", 4);
    let mut at = vec![Instant::now()];
    // Half the capacity; slightly more than the capacity; three times the capacity; half again.
    let parts = [(0.5, options.normal), (1.1, options.normal), (3.0, options.overload), (0.5, options.after)];
    for (load, lasts) in parts {
        let guest = callers[1].pace(4.0, lasts);
        let host = callers[0].pace(load * CAPACITY, lasts);
        let (host, guest) = tokio::join!(host, guest);
        host.and(guest)?;
        at.push(Instant::now());
        bar.inc(1);
    }
    bar.finish_and_clear();
    let begun = Instant::now();
    while open(&mut admin).await? > 0 {
        if begun.elapsed() > options.most_backlog + Duration::from_secs(60) {
            bail!("turns were not done a minute after they should have been");
        }
        sleep(Duration::from_millis(200)).await;
    }
    let _ = over.send(());
    worker.await?;
    let _ = end.send(());
    serving.await??;

    let accepted = seen.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let claimed = seen.claimed.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let waits = |from: Instant, to: Instant, guest: bool| -> Vec<f64> {
        let then = accepted.iter().filter(|(_, at, of_guest)| *at >= from && *at < to && *of_guest == guest);
        then.filter_map(|(turn_id, at, _)| Some(claimed.get(turn_id)?.saturating_duration_since(*at).as_secs_f64()))
            .collect()
    };
    let normal = percentile(waits(at[0], at[1], false), 0.99);
    let worst = percentile(waits(at[2], at[3], false), 0.99);
    // Finds the first window from which on all waits are as before. A window without an accepted turn counts as not recovered.
    let windows: Vec<f64> = (0..)
        .map(|n| at[3] + WINDOW * n)
        .take_while(|from| *from + WINDOW <= at[4])
        .map(|from| waits(from, from + WINDOW, false))
        .map(|waits| if waits.is_empty() { f64::INFINITY } else { percentile(waits, 0.99) })
        .collect();
    let late = windows.iter().rposition(|wait| *wait > normal * 2.0).map_or(0, |last| last + 1);
    let back = if late == windows.len() { f64::INFINITY } else { WINDOW.as_secs_f64() * late as f64 };
    let guests = [0, 1, 2].map(|n| percentile(waits(at[n], at[n + 1], true), 0.99));
    let there: i64 =
        sqlx::query_scalar("select count(*) from state.turns where status = 'success'").fetch_one(&mut admin).await?;
    let (refused, silent) = seen.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let n_refused: u64 = refused.values().sum();
    let strange: u64 = refused.iter().filter(|(status, _)| ![429, 503].contains(*status)).map(|(_, n)| n).sum();
    let none = Bar::AtMost(0.0);
    Ok(vec![
        Figure::new("turns accepted", accepted.len() as f64, "turns", Bar::AtLeast(1.0)),
        Figure::new("turns accepted and not done", (accepted.len() as f64 - there as f64).abs(), "turns", none),
        Figure::new("turns refused", n_refused as f64, "turns", Bar::AtLeast(1.0)),
        Figure::new("turns refused otherwise than by 429 or 503", strange as f64, "turns", none),
        Figure::new("refusals that did not say when to come back", silent as f64, "answers", none),
        Figure::new("wait for a worker, p99, at half the load", normal, "s", Bar::None),
        // Turns that are accepted before the oldest has waited for `most_backlog` are done too, so this wait is
        // longer than `most_backlog`, by a factor that grows with the load.
        Figure::new("wait for a worker, p99, at three times the load", worst, "s", Bar::None),
        Figure::new("until waits are as before the overload", back, "s", Bar::AtMost(60.0)),
        Figure::new(
            "another project's wait, p99, beside the overload ÷ beside workers that are just busy",
            guests[2] / guests[1],
            "ratio",
            Bar::AtMost(3.0),
        ),
        Figure::new(
            "another project's wait, p99, beside the overload ÷ at half the load",
            guests[2] / guests[0],
            "ratio",
            Bar::None,
        ),
    ])
}

async fn open(admin: &mut sqlx::PgConnection) -> Result<i64> {
    Ok(sqlx::query_scalar("select count(*) from state.turns where status = 'open'").fetch_one(admin).await?)
}

/// Runs `WORKERS` turns at a time, until `end`.
async fn work(kernel: Kernel, target: Target, seen: Arc<Seen>, end: impl Future<Output = ()>) {
    let intake = Intake::<Claimed>::open(&kernel, target, intake::Config { most: WORKERS, ..Default::default() });
    let turns = intake.serve(end, Duration::from_secs(5), |holding| {
        let fence = holding.claimed.fence;
        seen.claimed.lock().unwrap_or_else(PoisonError::into_inner).insert(fence.agent_turn_id(), Instant::now());
        let kernel = kernel.clone();
        async move {
            sleep(SERVICE).await;
            let finished = async {
                let mut work = kernel.begin(fence.project_id()).await?;
                turn::finish(&mut work, &[ending(fence)]).await?;
                Ok::<_, turn::Error>(work.commit().await?)
            };
            finished.await.map_err(|error| error.to_string())
        }
    });
    turns.await;
}

/// A client that starts turns, whether they are accepted or not.
#[derive(Clone)]
struct Caller {
    http: reqwest::Client,
    url: String,
    key: String,
    is_guest: bool,
    seen: Arc<Seen>,
}

impl Caller {
    async fn pace(&self, per_second: f64, lasts: Duration) -> Result<()> {
        let mut ticks = interval(Duration::from_secs_f64(1.0 / per_second));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (begun, room, mut asking) = (Instant::now(), Arc::new(Semaphore::new(400)), JoinSet::new());
        while begun.elapsed() < lasts {
            ticks.tick().await;
            let (place, caller) = (room.clone().acquire_owned().await?, self.clone());
            asking.spawn(async move {
                let _place = place;
                caller.ask().await
            });
            while let Some(asked) = asking.try_join_next() {
                asked??;
            }
        }
        while let Some(asked) = asking.join_next().await {
            asked??;
        }
        Ok(())
    }

    async fn ask(&self) -> Result<()> {
        let body = json!({ "profile_name": "echo", "instruction": "Say this once more." }).to_string();
        let request = self.http.post(&self.url).bearer_auth(&self.key).header("content-type", "application/json");
        let response = request.body(body).send().await?;
        let (status, at) = (response.status(), Instant::now());
        if status.is_success() {
            let said: Value = serde_json::from_str(&response.text().await?)?;
            let turn_id = said["agent_turn_id"].as_str().context("a turn was accepted without an id")?.parse()?;
            self.seen.accepted.lock().unwrap_or_else(PoisonError::into_inner).push((turn_id, at, self.is_guest));
            return Ok(());
        }
        let mut refused = self.seen.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.0.entry(status.as_u16()).or_default() += 1;
        refused.1 += u64::from(!response.headers().contains_key("retry-after"));
        Ok(())
    }
}

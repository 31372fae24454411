//! Monitoring: `/metrics`, `/health` and `/ready` of a process, on a separate address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use axum::{Router, extract::State, http::StatusCode, routing::get};
use clap::Args;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::{net::TcpListener, sync::Mutex, time::timeout};
use waybill_core::metric::{self, Kind};
use waybill_kernel::{
    vitals,
    work::{Counts, Kernel},
};

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Address on which `/metrics`, `/health` and `/ready` are served, without authentication. If omitted, they are not served.
    #[arg(long, env = "WAYBILL_METRICS_LISTEN", value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
}

/// From a millisecond to a minute.
const BUCKETS: [f64; 15] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// The database is queried at most this often, however often the metrics are scraped.
const FRESH: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(2);
const MOST_TARGETS: usize = 200;

/// Whether the process is shutting down. It still ends what it has begun, and `/ready` says that it takes nothing new.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaving(Arc<AtomicBool>);

impl Leaving {
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The state behind the three routes.
struct Watched {
    handle: PrometheusHandle,
    kernel: Kernel,
    leaving: Leaving,
    /// Whether `/metrics` also reports the state of the whole system.
    is_whole: bool,
    read: Mutex<Read>,
}

/// When the database was last queried, and for which series it had a value.
#[derive(Default)]
struct Read {
    at: Option<Instant>,
    seen: Vec<(String, Vec<metrics::Label>)>,
    targets: BTreeSet<String>,
}

impl Watch {
    /// Starts to count, and serves the routes if an address is set. `part` is the role of the process. With `is_whole`, as in an orchestrator,
    /// `/metrics` also reports the state of the whole system.
    pub(crate) async fn begin(&self, part: &'static str, kernel: &Kernel, is_whole: bool) -> Result<Leaving> {
        let leaving = Leaving::default();
        let Some(address) = self.metrics_listen else { return Ok(leaving) };
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
            .and_then(|builder| builder.install_recorder())
            .context("cannot install the metrics recorder")?;
        for metric in metric::ALL {
            match metric.kind {
                Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
                Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
                Kind::Histogram => metrics::describe_histogram!(metric.name, metric.help),
            }
        }
        metrics::gauge!(metric::UP, "part" => part, "version" => crate::VERSION).set(1.0);
        let upkeep = handle.clone();
        tokio::spawn(async move {
            loop {
                // Samples stay in memory until they are put into their buckets. Without scrapes, only this does it.
                tokio::time::sleep(FRESH).await;
                upkeep.run_upkeep();
            }
        });
        let watched =
            Watched { handle, kernel: kernel.clone(), leaving: leaving.clone(), is_whole, read: Mutex::default() };
        let app = Router::new()
            .route("/metrics", get(show))
            .route("/health", get(|| async { "up\n" }))
            .route("/ready", get(ready))
            .with_state(Arc::new(watched));
        let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        tracing::info!(address = %listener.local_addr()?, "serving metrics and health checks");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(leaving)
    }
}

/// Reports whether the process takes work. The routes exist only once it has connected and its checks have passed. Whether the database answers at
/// the moment is a metric: all processes lose it at the same time, and none should be replaced or left out because of it.
async fn ready(State(watched): State<Arc<Watched>>) -> (StatusCode, &'static str) {
    match watched.leaving.0.load(Ordering::Relaxed) {
        false => (StatusCode::OK, "ready\n"),
        true => (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n"),
    }
}

async fn show(State(watched): State<Arc<Watched>>) -> ([(&'static str, &'static str); 1], String) {
    let Counts { used, free, most } = watched.kernel.connections();
    for (state, n) in [("used", used), ("idle", free), ("most", most)] {
        metrics::gauge!(metric::POOL_CONNECTIONS, "state" => state).set(n as f64);
    }
    if watched.is_whole {
        let mut read = watched.read.lock().await;
        if read.at.is_none_or(|at| at.elapsed() > FRESH) {
            read.at = Some(Instant::now());
            look(&watched.kernel, &mut read).await;
        }
    }
    ([("content-type", "text/plain; version=0.0.4")], watched.handle.render())
}

/// Reads the state of the whole system into gauges. A series that has no value any more is set to zero.
async fn look(kernel: &Kernel, Read { seen, targets, .. }: &mut Read) {
    let is_up = matches!(timeout(PATIENCE, vitals::ping(kernel)).await, Ok(Ok(())));
    metrics::gauge!(metric::DATABASE_UP).set(f64::from(u8::from(is_up)));
    let found = timeout(PATIENCE, vitals::read(kernel)).await;
    let Ok(Ok(found)) = found else {
        tracing::warn!("the metrics of the whole system are not updated: the database could not be read");
        return;
    };
    for (name, labels) in seen.drain(..) {
        metrics::gauge!(name, labels).set(0.0);
    }
    let mut summed: BTreeMap<(String, Option<String>, Option<String>), f64> = BTreeMap::new();
    for vital in found {
        let target = vital.target.map(|target| told_apart(targets, target));
        *summed.entry((vital.vital, target, vital.status)).or_default() += vital.value;
    }
    for ((vital, target, status), value) in summed {
        let mut labels = Vec::new();
        labels.extend(target.map(|target| metrics::Label::new("target", target)));
        labels.extend(status.map(|status| metrics::Label::new("status", status)));
        metrics::gauge!(vital.clone(), labels.clone()).set(value);
        seen.push((vital, labels));
    }
}

/// Limits the number of series, because authors of profiles and tools choose the names of targets. The first `MOST_TARGETS` keep their name;
/// the rest share one.
fn told_apart(targets: &mut BTreeSet<String>, target: String) -> String {
    if targets.len() < MOST_TARGETS {
        targets.insert(target.clone());
    }
    if targets.contains(&target) { target } else { "other".to_owned() }
}

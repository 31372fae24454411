//! Traces are sent with the events: the relay that publishes the end of a turn also sends its spans to an OpenTelemetry collector (OTLP over
//! HTTP).
//!
//! Spans are made from the stored record. If there is no other feed, an event counts as published once the collector has its turn's spans. If
//! events also go to NATS, the relay does not wait for the collector: spans that it does not accept are dropped, and counted.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use waybill_core::{
    bus::{Event, EventKind, Feed, FeedError, Published},
    metric,
};
use waybill_kernel::{trace, work::Kernel};

/// The most spans in one request.
const MOST_SPANS: usize = 2_000;
/// How many events' turns are read and sent at a time.
const PORTION: usize = 32;
/// How many turns may wait for a slow collector, if there is another feed.
const MOST_WAITING: usize = 4_096;
const TIMEOUT: Duration = Duration::from_secs(5);

/// A collector that speaks OTLP over HTTP.
#[derive(Clone, Debug)]
pub struct Collector {
    http: reqwest::Client,
    url: String,
}

impl Collector {
    /// Takes the endpoint in OpenTelemetry's form: `http://HOST:4318`, to which `/v1/traces` is added.
    pub fn new(endpoint: &str) -> Result<Collector, reqwest::Error> {
        let http = reqwest::Client::builder().timeout(TIMEOUT).no_proxy().build()?;
        Ok(Collector { http, url: format!("{}/v1/traces", endpoint.trim_end_matches('/')) })
    }

    /// Sends spans. False means that a retry may help. Spans that the collector will never accept count as sent, and as dropped.
    async fn send(&self, spans: &[Value]) -> bool {
        if spans.is_empty() {
            return true;
        }
        let attribute = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
        let body = json!({ "resourceSpans": [{
            "resource": { "attributes": [
                attribute("service.name", "waybill"), attribute("service.version", env!("CARGO_PKG_VERSION")),
            ] },
            "scopeSpans": [{ "scope": { "name": "waybill" }, "spans": spans }],
        }] });
        let request = self.http.post(&self.url).header("content-type", "application/json").body(body.to_string());
        let error = match request.send().await.and_then(reqwest::Response::error_for_status) {
            Ok(_) => {
                count("sent", spans.len());
                return true;
            }
            Err(error) => error,
        };
        tracing::warn!(%error, "trace spans could not be sent to the OpenTelemetry collector");
        let is_final = error
            .status()
            .is_some_and(|status| status.is_client_error() && !matches!(status.as_u16(), 408 | 425 | 429));
        if is_final {
            count("dropped", spans.len());
        }
        is_final
    }
}

fn count(outcome: &'static str, n: usize) {
    metrics::counter!(metric::SPANS, "outcome" => outcome).increment(n as u64);
}

/// Reads turns that have ended, and sends their spans.
#[derive(Clone, Debug)]
struct Tracer {
    kernel: Kernel,
    collector: Collector,
}

impl Tracer {
    /// Sends the traces of these events' turns, and returns whether the collector has them.
    async fn trace(&self, events: &[Event]) -> bool {
        let mut spans = Vec::new();
        for event in events.iter().filter(|event| event.event == EventKind::Task) {
            match self.spans(event).await {
                Ok(more) => spans.extend(more),
                Err(error) => tracing::warn!(%error, "the trace of a turn is not sent: the turn could not be read"),
            }
        }
        for part in spans.chunks(MOST_SPANS) {
            if !self.collector.send(part).await {
                return false;
            }
        }
        true
    }

    async fn spans(&self, event: &Event) -> Result<Vec<Value>, waybill_kernel::turn::Error> {
        let mut work = self.kernel.begin(event.project_id).await?;
        let record = trace::record(&mut work, event.agent_turn_id).await?;
        Ok(record.map(|record| record.spans()).unwrap_or_default())
    }

    /// Sends one portion after the other, in order, until one does not arrive or the time is over.
    async fn trace_all(&self, events: &[Event], within: Duration) -> Vec<bool> {
        let (begun, mut arrived) = (Instant::now(), Vec::new());
        for portion in events.chunks(PORTION) {
            if begun.elapsed() > within || !self.trace(portion).await {
                break;
            }
            arrived.extend(portion.iter().map(|_| true));
        }
        arrived.resize(events.len(), false);
        arrived
    }

    /// Sends traces in the background. Those that the collector does not accept at once are dropped.
    async fn follow(self, mut turns: mpsc::Receiver<Event>) {
        let mut portion = Vec::new();
        while turns.recv_many(&mut portion, PORTION).await > 0 {
            if !self.trace(&portion).await {
                count("dropped", portion.len());
            }
            portion.clear();
        }
    }
}

/// A feed that also sends traces; without another feed it sends only traces.
#[derive(Debug)]
pub struct Traced<F> {
    tracer: Tracer,
    /// The other feed, and the queue of turns whose traces are sent in the background.
    beside: Option<(F, mpsc::Sender<Event>)>,
}

impl<F: Feed> Traced<F> {
    pub fn new(kernel: Kernel, collector: Collector, feed: Option<F>) -> Traced<F> {
        let tracer = Tracer { kernel, collector };
        let beside = feed.map(|feed| {
            let (sender, turns) = mpsc::channel(MOST_WAITING);
            tokio::spawn(tracer.clone().follow(turns));
            (feed, sender)
        });
        Traced { tracer, beside }
    }
}

impl<F: Feed> Feed for Traced<F> {
    fn made_at(&self) -> BoxFuture<'_, Result<DateTime<Utc>, FeedError>> {
        match &self.beside {
            Some((feed, _)) => feed.made_at(),
            // Different from the time of any stream, so that a stream that is added later gets every event.
            None => Box::pin(std::future::ready(Ok(DateTime::UNIX_EPOCH))),
        }
    }

    fn publish<'a>(&'a self, events: &'a [Event], within: Duration) -> BoxFuture<'a, Published> {
        Box::pin(async move {
            let Some((feed, turns)) = &self.beside else {
                return Published { arrived: self.tracer.trace_all(events, within).await, refused: Vec::new() };
            };
            for event in events.iter().filter(|event| event.event == EventKind::Task) {
                if turns.try_send(event.clone()).is_err() {
                    count("dropped", 1);
                }
            }
            feed.publish(events, within).await
        })
    }
}

//! The relay: publishes the events of the outbox to a stream, in order per agent, at least once (L0-9).
//!
//! It reads events that are not published yet, publishes them, waits for the acknowledgements, and marks them. If it is killed anywhere in
//! between, an event is published again, and the stream drops the duplicate by its id. A stream that was lost and created again gets every
//! event again.
//!
//! An event that the stream refuses, while it accepts others, would block its shard. After enough refusals the events of its agent are put
//! into quarantine: they wait, so that their order is kept, and the events of other agents do not.

use std::{convert::Infallible, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use waybill_core::{
    bus::{Event, Feed, Published},
    id::{Target, WorkerId},
    metric,
};
use waybill_kernel::{
    lease, outbox,
    turn::Error,
    work::{DbError, Kernel},
};

/// Settings of the relay.
#[derive(Clone, Debug)]
pub struct Config {
    pub lease: Duration,
    /// The most events of each shard at a time.
    pub most: i32,
    /// The poll interval when there is nothing to publish.
    pub pause: Duration,
    /// How long an event may be refused before its agent is quarantined.
    pub refusals: outbox::Refusals,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            lease: lease::LEASE,
            most: 64,
            pause: Duration::from_millis(250),
            refusals: outbox::Refusals::default(),
        }
    }
}

/// Publishes forever.
pub async fn run(kernel: &Kernel, feed: &dyn Feed, config: &Config) -> Infallible {
    let target: Target = outbox::RELAY.parse().expect("a target");
    let mut worker_id = WorkerId::new();
    let mut held: Option<Instant> = None;
    let mut most = config.most;
    loop {
        if held.is_none_or(|at| at.elapsed() > config.lease / 4) {
            let asked = Instant::now();
            match timeout(config.lease, hold(kernel, feed, worker_id, &target, config)).await {
                Ok(Ok(true)) => held = Some(asked),
                Ok(Ok(false)) => held = None,
                Ok(Err(error)) => {
                    if matches!(error, Error::LeaseLost) {
                        worker_id = WorkerId::new();
                    }
                    tracing::warn!(%error, "the relay could not renew its lease on the outbox: it publishes no events until it can");
                    held = None;
                }
                Err(_) => held = None,
            }
        }
        if held.is_none() {
            sleep(config.pause * 2).await;
            continue;
        }
        let published = publish(kernel, feed, worker_id, config, most).await;
        // If all events of the portion belong to agents whose first event is refused, those of other agents come after them: read more.
        most = if matches!(published, Ok(Portion::Refused)) {
            (most * 4).min(config.most * MOST_WIDENED)
        } else {
            config.most
        };
        match published {
            Ok(Portion::Empty) => sleep(config.pause).await,
            // If there are few events, it waits a little so that a portion has more.
            Ok(Portion::Published(few)) if few < FEW => sleep(config.pause / 10).await,
            Ok(Portion::Published(_)) => {}
            Ok(Portion::Nothing | Portion::Refused) => {
                tracing::warn!("the event stream or the trace collector accepted no events: trying again");
                held = None;
                sleep(config.pause).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the relay could not publish events: trying again");
                // The stream may be gone: check it before the next portion.
                held = None;
                sleep(config.pause).await;
            }
        }
    }
}

const FEW: usize = 16;
const MOST_WIDENED: i32 = 16;

#[derive(Debug)]
enum Portion {
    Empty,
    Published(usize),
    /// No event arrived.
    Nothing,
    /// No event arrived, and the stream refused some of them.
    Refused,
}

/// Renews the lease, takes this process's share of the shards, and checks the stream. False means that there is no stream.
async fn hold(
    kernel: &Kernel,
    feed: &dyn Feed,
    worker_id: WorkerId,
    target: &Target,
    config: &Config,
) -> Result<bool, Error> {
    outbox::hold(kernel, worker_id, target, config.lease).await?;
    match feed.made_at().await {
        Ok(made_at) => {
            if outbox::publish_to(kernel, made_at).await? {
                tracing::info!(%made_at, "found a new event stream: events that only the old one got are published again");
            }
            Ok(true)
        }
        Err(error) => {
            tracing::debug!(%error, "no stream");
            Ok(false)
        }
    }
}

/// Publishes a portion. Every event that arrived is marked, even if the stream is slow: otherwise the same portion would come again and again.
async fn publish(
    kernel: &Kernel,
    feed: &dyn Feed,
    worker_id: WorkerId,
    config: &Config,
    most: i32,
) -> Result<Portion, Error> {
    let portion = bounded(config, outbox::unpublished(kernel, worker_id, most)).await?;
    if portion.is_empty() {
        return Ok(Portion::Empty);
    }
    let events: Vec<Event> = portion.iter().map(|row| row.event.clone()).collect();
    let Published { arrived, refused } = feed.publish(&events, config.lease / 2).await;
    bounded(config, outbox::mark(kernel, worker_id, &portion, &arrived)).await?;
    metrics::counter!(metric::EVENTS_PUBLISHED).increment(arrived.iter().filter(|arrived| **arrived).count() as u64);
    if !arrived.contains(&true) {
        // The stream accepts no event at all: that says nothing about a single event.
        return Ok(if refused.is_empty() { Portion::Nothing } else { Portion::Refused });
    }
    for (place, error) in refused {
        let event = &events[place];
        if bounded(config, outbox::refuse(kernel, event, &error, &config.refusals)).await? {
            tracing::warn!(project = %event.project_id, agent = %event.agent_id, error, "NATS refused an event repeatedly: the events of its agent wait until `waybill admin quarantine retry`");
        }
    }
    Ok(Portion::Published(events.len()))
}

/// Limits a request to the length of a lease: a server that takes longer counts as gone.
async fn bounded<T>(config: &Config, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(config.lease, asked).await.unwrap_or_else(|_| Err(Error::TryAgain(DbError::no_answer())))
}

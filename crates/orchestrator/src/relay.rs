//! The relay: events leave the outbox into a stream, in order per agent, at least once (L0-9).
//!
//! Found by what is not published yet, published, waited for, noted. Killed anywhere in between, an event is published again; the stream
//! drops it by its id. A stream that was made anew, because it was lost, is told everything again.
//!
//! An event that the stream refuses, while it takes others, would stand in the way of its shard. Refused for long enough, the events of its agent are
//! put into quarantine: they wait, so that their order stays, and nobody else's do.

use std::{convert::Infallible, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use waybill_core::{
    bus::{Event, Feed, Published},
    id::{Target, WorkerId},
    metric,
};
use waybill_kernel::{lease, outbox, turn::Error, work::Kernel};

/// How often, and how much.
#[derive(Clone, Debug)]
pub struct Config {
    pub lease: Duration,
    /// Events of each shard at a time.
    pub most: i32,
    /// Between two looks when there was nothing.
    pub pause: Duration,
    /// How long an event may be refused.
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

/// Publishes for ever.
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
                    tracing::warn!(%error, "the relay cannot hold its shards");
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
        // Where all that was tried belongs to agents whose first event is refused, others are further behind.
        most = if matches!(published, Ok(Portion::Refused)) {
            (most * 4).min(config.most * MOST_WIDENED)
        } else {
            config.most
        };
        match published {
            Ok(Portion::Empty) => sleep(config.pause).await,
            // Of a trickle it waits for a little more at a time.
            Ok(Portion::Published(few)) if few < FEW => sleep(config.pause / 10).await,
            Ok(Portion::Published(_)) => {}
            Ok(Portion::Nothing | Portion::Refused) => {
                tracing::warn!("the stream takes no events");
                held = None;
                sleep(config.pause).await;
            }
            Err(error) => {
                tracing::warn!(%error, "events were not published");
                // The stream may be gone: look before the next portion.
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
    /// None arrived.
    Nothing,
    /// None arrived, and the stream said of some that it does not take them.
    Refused,
}

/// Renews the lease, takes our share of the shards, and makes sure of the stream. False: there is no stream to publish to.
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
                tracing::info!(%made_at, "publishing to a stream that is new");
            }
            Ok(true)
        }
        Err(error) => {
            tracing::debug!(%error, "no stream");
            Ok(false)
        }
    }
}

/// Whatever arrived is noted, also where the stream is slow: else the same portion would come again and again.
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
        // It takes nothing from anybody: that says nothing about any event.
        return Ok(if refused.is_empty() { Portion::Nothing } else { Portion::Refused });
    }
    for (place, error) in refused {
        let event = &events[place];
        if bounded(config, outbox::refuse(kernel, event, &error, &config.refusals)).await? {
            tracing::warn!(project = %event.project_id, agent = %event.agent_id, error, "events of an agent are in quarantine");
        }
    }
    Ok(Portion::Published(events.len()))
}

/// A server that does not answer within a lease is gone.
async fn bounded<T>(config: &Config, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = || Error::TryAgain(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    timeout(config.lease, asked).await.unwrap_or_else(|_| Err(late()))
}

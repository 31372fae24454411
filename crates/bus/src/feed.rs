//! The feed of events on JetStream.
//!
//! Publishing an event waits until the server has acknowledged it. Each event carries an id, by which the server drops a duplicate within the
//! duplicate window. After that window a repeated event is stored again, so delivery is at least once: readers deduplicate by
//! [`Event::message_id`] if they must.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use async_nats::{
    HeaderValue,
    jetstream::{
        self, Context,
        consumer::pull::OrderedConfig,
        context::{ContextBuilder, PublishErrorKind},
        message::PublishMessage,
        stream::{DiscardPolicy, StorageType},
    },
};
use chrono::{DateTime, Utc};
use futures::{StreamExt, future::BoxFuture, stream};
use tokio::time;
use waybill_core::bus::{Bus, Event, Feed, FeedError, Published};

use crate::{nats::Nats, subject};

const ACK_TIMEOUT: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Agents whose events are published at the same time.
const AGENTS_AT_ONCE: usize = 256;

/// The settings of a new stream. An existing stream keeps its settings.
#[derive(Clone, Debug)]
pub struct Config {
    pub stream: String,
    /// Events older than this are dropped.
    pub max_age: Duration,
    /// How long the server recognises a duplicate.
    pub duplicate_window: Duration,
    /// Servers of a cluster that hold the stream.
    pub replicas: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            stream: "WAYBILL_EVENTS".to_owned(),
            max_age: Duration::from_secs(7 * 24 * 60 * 60),
            duplicate_window: Duration::from_secs(2 * 60),
            replicas: 1,
        }
    }
}

/// Events in a JetStream stream. Clones are the same feed.
#[derive(Clone)]
pub struct NatsFeed {
    nats: Nats,
    jetstream: Context,
    config: Config,
}

impl NatsFeed {
    pub fn new(nats: &Nats, config: Config) -> NatsFeed {
        let jetstream = ContextBuilder::new().timeout(REQUEST_TIMEOUT).build(nats.client().clone());
        NatsFeed { nats: nats.clone(), jetstream, config }
    }

    /// Returns all events that the stream holds now, oldest first, each with its sequence number in the stream.
    pub async fn read_all(&self) -> Result<Vec<(u64, Event)>, FeedError> {
        self.ensure_up()?;
        let stream = self.jetstream.get_stream(&self.config.stream).await.map_err(unusable)?;
        let state = &stream.cached_info().state;
        let (mut events, mut is_more) = (Vec::new(), state.messages > 0);
        if !is_more {
            return Ok(events);
        }
        // An ordered consumer notices lost messages and requests them again.
        let consumer = stream.create_consumer(OrderedConfig::default()).await.map_err(unusable)?;
        let mut messages = consumer.messages().await.map_err(unusable)?;
        while is_more {
            let message = time::timeout(REQUEST_TIMEOUT, messages.next()).await.map_err(unusable)?;
            let message = message
                .ok_or_else(|| FeedError("NATS ended the stream before all events were read: try again".to_owned()))?
                .map_err(unusable)?;
            let info = message.info().map_err(unusable)?;
            let event = serde_json::from_slice(&message.payload).map_err(|error| {
                FeedError(format!("message {} of the stream is not an event of Waybill: {error}", info.stream_sequence))
            })?;
            is_more = info.pending > 0 && info.stream_sequence < state.last_sequence;
            events.push((info.stream_sequence, event));
        }
        Ok(events)
    }

    /// Deletes the stream with all its events. A relay creates it again and replays everything.
    pub async fn delete(&self) -> Result<(), FeedError> {
        self.ensure_up()?;
        self.jetstream.delete_stream(&self.config.stream).await.map_err(unusable)?;
        Ok(())
    }

    /// Publishes one event and waits for its acknowledgement.
    async fn publish_one(&self, event: &Event) -> Result<(), Unpublished> {
        // While it is not connected, the client would buffer the event and send it at some later time.
        self.ensure_up().map_err(|_| Unpublished::Away)?;
        let body = serde_json::to_vec(event).map_err(|error| Unpublished::Refused(error.to_string()))?;
        let mut message = PublishMessage::build()
            .payload(body.into())
            .message_id(event.message_id())
            .expected_stream(&self.config.stream);
        for (name, value) in [("traceparent", &event.traceparent), ("tracestate", &event.tracestate)] {
            // They came from outside. A value that no header can hold is left out; the body has it.
            if let Some(value) = value.as_deref().and_then(|value| HeaderValue::from_str(value).ok()) {
                message = message.header(name, value);
            }
        }
        let acknowledged = async { self.jetstream.send_publish(subject::event(event), message).await?.await };
        match time::timeout(ACK_TIMEOUT, acknowledged).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(match error.kind() {
                PublishErrorKind::TimedOut => Unpublished::Silence,
                PublishErrorKind::StreamNotFound | PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => {
                    Unpublished::Away
                }
                _ => Unpublished::Refused(error.to_string()),
            }),
            Err(_) => Err(Unpublished::Silence),
        }
    }

    /// Publishes events of one agent, given by their places, up to the first that fails. Returns how many arrived, and the stream's reason if it
    /// refused the next one.
    async fn publish_in_order(
        &self,
        events: &[Event],
        places: &[usize],
        is_silent: &AtomicBool,
        until: Instant,
    ) -> (usize, Option<String>) {
        for (n_arrived, place) in places.iter().enumerate() {
            // A server that does not answer one does not answer the others. Without this check each would wait for the same timeout in turn.
            if is_silent.load(Ordering::Relaxed) || Instant::now() >= until {
                return (n_arrived, None);
            }
            if let Err(error) = self.publish_one(&events[*place]).await {
                is_silent.fetch_or(matches!(error, Unpublished::Silence), Ordering::Relaxed);
                tracing::debug!(agent = %events[*place].agent_id, %error, "event not published");
                let refused = matches!(error, Unpublished::Refused(_)).then(|| error.to_string());
                return (n_arrived, refused);
            }
        }
        (places.len(), None)
    }

    fn ensure_up(&self) -> Result<(), FeedError> {
        if self.nats.is_up() { Ok(()) } else { Err(FeedError("NATS cannot be reached".to_owned())) }
    }
}

impl fmt::Debug for NatsFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsFeed").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Feed for NatsFeed {
    fn made_at(&self) -> BoxFuture<'_, Result<DateTime<Utc>, FeedError>> {
        Box::pin(async {
            self.ensure_up()?;
            let config = jetstream::stream::Config {
                name: self.config.stream.clone(),
                description: Some("What became true in Waybill".to_owned()),
                subjects: vec![subject::EVENTS.to_owned()],
                storage: StorageType::File,
                discard: DiscardPolicy::Old,
                max_age: self.config.max_age,
                duplicate_window: self.config.duplicate_window,
                num_replicas: self.config.replicas,
                ..Default::default()
            };
            let made = self.jetstream.get_or_create_stream(config);
            let stream = time::timeout(REQUEST_TIMEOUT, made).await.map_err(unusable)?.map_err(unusable)?;
            Ok(stream.cached_info().created)
        })
    }

    fn publish<'a>(&'a self, events: &'a [Event], within: Duration) -> BoxFuture<'a, Published> {
        let mut of_agent: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (place, event) in events.iter().enumerate() {
            of_agent.entry((event.project_id, event.agent_id)).or_default().push(place);
        }
        Box::pin(async move {
            let (is_silent, until) = (AtomicBool::new(false), Instant::now() + within);
            let publishing = of_agent.into_values().map(|places| {
                let is_silent = &is_silent;
                async move {
                    let (n_arrived, refused) = self.publish_in_order(events, &places, is_silent, until).await;
                    (places, n_arrived, refused)
                }
            });
            let mut published = Published { arrived: vec![false; events.len()], refused: Vec::new() };
            let mut done = stream::iter(publishing).buffer_unordered(AGENTS_AT_ONCE);
            while let Some((places, n_arrived, refused)) = done.next().await {
                places[..n_arrived].iter().for_each(|place| published.arrived[*place] = true);
                published.refused.extend(refused.map(|error| (places[n_arrived], error)));
            }
            published
        })
    }
}

/// Why an event did not arrive.
#[derive(Debug, thiserror::Error)]
enum Unpublished {
    #[error("NATS did not acknowledge the event")]
    Silence,
    /// NATS or the stream is missing.
    #[error("NATS cannot be reached, or its stream does not exist")]
    Away,
    /// The stream answers, and refuses this event.
    #[error("{0}")]
    Refused(String),
}

fn unusable(error: impl fmt::Display) -> FeedError {
    FeedError(error.to_string())
}

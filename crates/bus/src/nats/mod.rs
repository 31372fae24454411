//! The bus over core NATS.
//!
//! ```text
//! ring ─► waiting (a set: equal bells are sent once)             ─► one task ─► NATS ─► one member of the queue group ─► hear
//! send ───────────────────────────────────────────────────────────────────────► NATS ─► every watcher                 ─► watch
//! ```
//!
//! * Connecting works while the server is unreachable, and losing the server ends nothing: the client retries at least every second and
//!   subscribes again by itself. A stream that was returned never ends.
//! * While the server is unreachable, bells and chunks are dropped. A late one would add nothing that polling has not found.
//! * NATS chooses the listener of a bell before that listener asks for it. So keep polling what [`Bus::hear`] returned, or drop it: a listener
//!   that is busy elsewhere swallows rings that an idle one would have answered.

use std::{
    fmt, io,
    sync::{Arc, Weak},
    time::Duration,
};

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Message, Subscriber, connection::State};
use futures::{
    FutureExt, Stream, StreamExt,
    stream::{self, BoxStream},
};
use tokio::{task, time};
use waybill_core::{
    bus::{Bell, Bus, Chunk, Door},
    id::{AgentId, ProjectId},
};

use crate::subject;

mod address;
mod bells;

use bells::{Bells, Ringer};

/// Listeners of one door share its bells, over all processes.
const QUEUE_GROUP: &str = "waybill";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The client closes a connection at the third ping without an answer.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// Messages that a subscription buffers for a slow reader. More are lost.
const MESSAGES_KEPT: usize = 4096;

/// A server answers, but cannot be used. An unreachable server is no error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("this is not a valid NATS address: write nats://HOST:PORT or nats://USER:PASSWORD@HOST:PORT")]
    Address(#[source] io::Error),
    #[error(
        "NATS {0} is too old: 2.10 or newer is needed, because older servers silently ignore requests of newer clients"
    )]
    TooOld(String),
    #[error("NATS refused the connection: check the login in its URL, and the TLS settings of the server")]
    Refused(#[source] async_nats::ConnectError),
}

/// A connection to NATS. Clones share it. It closes with the last clone and the last stream that a clone returned.
#[derive(Clone)]
pub struct Nats {
    link: Link,
    ringer: Arc<Ringer>,
}

impl Nats {
    /// Connects to `nats://[user:password@|token@]host[:port]`, or to one of several addresses, separated by commas.
    ///
    /// If no server answers within two seconds, or none listens, this still returns and continues to connect in the background.
    pub async fn connect(url: &str) -> Result<Nats, Error> {
        let (servers, options) = address::parse(url).map_err(Error::Address)?;
        let wanted = Arc::new(());
        let bells = Arc::new(Bells::default());
        let options = configure(options, Arc::downgrade(&wanted), bells.clone());

        // The first attempt is allowed to fail: only this distinguishes a server that refuses us from one that is unreachable.
        let attempt = async_nats::connect_with_options(&servers[..], options.clone());
        let client = match time::timeout(CONNECT_TIMEOUT, attempt).await {
            Ok(Ok(client)) => {
                let version = client.server_info().version;
                if !is_new_enough(&version) {
                    return Err(Error::TooOld(version));
                }
                client
            }
            Ok(Err(error)) if is_refusal(error.kind()) => return Err(Error::Refused(error)),
            away => {
                tracing::warn!(?away, "NATS is unreachable: connecting in the background");
                let later = options.retry_on_initial_connect();
                async_nats::connect_with_options(&servers[..], later).await.map_err(Error::Refused)?
            }
        };

        let link = Link { client, _wanted: wanted };
        tokio::spawn(bells::keep_sending(link.clone(), bells.clone()));
        Ok(Nats { link, ringer: Arc::new(Ringer(bells)) })
    }

    /// Waits until the bells that were rung are sent, for a second at most. Only a process that is about to end needs it.
    pub async fn flush(&self) {
        self.ringer.0.send(&self.link).await;
    }

    pub(crate) fn client(&self) -> &Client {
        &self.link.client
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats").field("is_up", &self.is_up()).finish_non_exhaustive()
    }
}

impl Bus for Nats {
    fn ring(&self, bell: Bell) {
        if self.is_up() {
            self.ringer.0.add(bell);
        }
    }

    fn hear(&self, door: &Door) -> BoxStream<'static, ()> {
        let messages = self.link.listen(subject::bells(door), Some(QUEUE_GROUP));
        Box::pin(stream::unfold(Box::pin(messages), |mut messages| async {
            messages.next().await?;
            // All bells that have arrived by now are one wake-up. Unconstrained, because tokio would report after some of them that there are no
            // more, to let other tasks run.
            while let Some(Some(_)) = task::unconstrained(messages.next()).now_or_never() {}
            Some(((), messages))
        }))
    }

    fn is_up(&self) -> bool {
        self.link.is_up()
    }

    fn send(&self, chunk: Chunk) {
        if self.is_up() {
            let sent = self.link.client.publish(subject::chunk(&chunk), chunk.content.into());
            // The client queues the chunk at once, which keeps the order, or has no room, and the chunk is lost. Unconstrained, because a task
            // that sends many without a pause would use up its tokio budget and lose some.
            task::unconstrained(sent).now_or_never();
        }
    }

    fn watch(&self, project_id: ProjectId, agent_id: AgentId) -> BoxStream<'static, Vec<u8>> {
        let messages = self.link.listen(subject::chunks(project_id, agent_id), None);
        Box::pin(messages.map(|message| message.payload.into()))
    }
}

/// A handle to the connection. While a handle exists, a broken connection is reconnected.
#[derive(Clone)]
struct Link {
    client: Client,
    _wanted: Arc<()>,
}

impl Link {
    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    fn is_up(&self) -> bool {
        self.is_connected() && self.client.try_server_info().is_some_and(|server| is_new_enough(&server.version))
    }

    /// Returns the messages of a subject. The stream continues after the server was unreachable, and never ends.
    fn listen(&self, subject: String, queue_group: Option<&'static str>) -> impl Stream<Item = Message> + use<> {
        let link = self.clone();
        // Subscribe now and not at the first poll: messages between the two would be lost. If the client has no room now, the loop retries.
        let subscribed = task::unconstrained(link.subscribe(&subject, queue_group)).now_or_never().flatten();
        stream::unfold((link, subject, subscribed), move |(link, subject, mut subscribed)| async move {
            loop {
                if let Some(subscriber) = &mut subscribed
                    && let Some(message) = subscriber.next().await
                {
                    return Some((message, (link, subject, subscribed)));
                }
                subscribed = link.subscribe(&subject, queue_group).await;
                if subscribed.is_none() {
                    time::sleep(LONGEST_RETRY).await;
                }
            }
        })
    }

    async fn subscribe(&self, subject: &str, queue_group: Option<&str>) -> Option<Subscriber> {
        let subscribed = match queue_group {
            Some(group) => self.client.queue_subscribe(subject.to_owned(), group.to_owned()).await,
            None => self.client.subscribe(subject.to_owned()).await,
        };
        subscribed.inspect_err(|error| tracing::warn!(subject, %error, "subscribing to NATS failed: retrying")).ok()
    }
}

fn configure(options: ConnectOptions, wanted: Weak<()>, bells: Arc<Bells>) -> ConnectOptions {
    options
        .name("waybill")
        .connection_timeout(CONNECT_TIMEOUT)
        .ping_interval(PING_INTERVAL)
        .subscription_capacity(MESSAGES_KEPT)
        .max_reconnects(None)
        .reconnect_delay_callback(move |attempt| {
            // A client that is reconnecting does not notice that all its handles are dropped, and would retry for ever.
            if wanted.strong_count() == 0 { Duration::MAX } else { retry_delay(attempt) }
        })
        .event_callback(move |event| {
            if event == async_nats::Event::Connected {
                bells.stir();
            }
            async {}
        })
}

/// Returns the delay before an attempt: none before the first, then 20, 40, 80 … milliseconds.
fn retry_delay(attempt: usize) -> Duration {
    match attempt {
        0 | 1 => Duration::ZERO,
        2..8 => Duration::from_millis(5 << attempt),
        _ => LONGEST_RETRY,
    }
}

fn is_refusal(kind: ConnectErrorKind) -> bool {
    matches!(kind, ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Tls)
}

/// Checks whether a version is 2.10 or newer. A server without a version is not accepted.
fn is_new_enough(version: &str) -> bool {
    let number = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok();
    let mut parts = version.trim_start_matches('v').split('.').map(number);
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= (2, 10),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_from_2_10_on_are_new_enough() {
        for version in ["2.10.0", "2.10", "v2.11.3", "2.15.1-beta.2", "3.0.0"] {
            assert!(is_new_enough(version), "{version}");
        }
        for version in ["2.9.10", "2.1.0", "1.99.0", "2", "", "latest"] {
            assert!(!is_new_enough(version), "{version}");
        }
    }

    #[test]
    fn retries_slow_down_to_one_a_second() {
        let delays: Vec<_> = (0..10).map(|attempt| retry_delay(attempt).as_millis()).collect();
        assert_eq!(delays, [0, 0, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }
}

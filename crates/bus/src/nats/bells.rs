//! Outgoing bells.

use std::{
    collections::BTreeSet,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{self, Notify},
    time,
};
use waybill_core::bus::Bell;

use super::{Link, is_new_enough};
use crate::subject;

/// Bells that cannot be sent to the server within this time are dropped.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The bells that wait to be sent.
#[derive(Default)]
pub(super) struct Bells {
    waiting: Mutex<Waiting>,
    /// Notified when there is something to do: a bell waits, a server was reached, or the last [`Ringer`] was dropped.
    stirred: Notify,
    sending: sync::Mutex<()>,
}

#[derive(Default)]
struct Waiting {
    bells: BTreeSet<Bell>,
    closed: bool,
}

impl Bells {
    pub(super) fn add(&self, bell: Bell) {
        if self.waiting().bells.insert(bell) {
            self.stirred.notify_one();
        }
    }

    pub(super) fn stir(&self) {
        self.stirred.notify_one();
    }

    /// Sends the waiting bells and returns when they are written. Bells that cannot be sent now are dropped.
    pub(super) async fn send(&self, link: &Link) {
        // One sender at a time: when this one has the lock, the bells that an earlier sender took are written too.
        let _sending = self.sending.lock().await;
        let bells = mem::take(&mut self.waiting().bells);
        let sent = async {
            for bell in bells.iter().filter(|_| link.is_up()) {
                link.client.publish(subject::bell(bell), "".into()).await.ok();
            }
            // Publishing only queues. Bells that are rung while this batch is written form the next batch.
            if link.is_connected() {
                link.client.flush().await.ok();
            }
        };
        if time::timeout(SEND_TIMEOUT, sent).await.is_err() {
            tracing::debug!(n_bells = bells.len(), "bells were lost");
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics halfway through a change of the set.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends bells until the last [`Ringer`] is dropped.
pub(super) async fn keep_sending(link: Link, bells: Arc<Bells>) {
    let mut server = None;
    loop {
        bells.stirred.notified().await;
        bells.send(&link).await;
        let version = link.client.try_server_info().map(|info| info.version);
        if server != version {
            match &version {
                Some(version) if !is_new_enough(version) => {
                    tracing::error!(version, "NATS is too old and is not used: 2.10 or newer is needed");
                }
                _ => tracing::info!(version, "connected to NATS"),
            }
            server = version;
        }
        if bells.waiting().closed {
            return;
        }
    }
}

/// Held by everything that can ring. When the last one is dropped, sending ends.
pub(super) struct Ringer(pub(super) Arc<Bells>);

impl Drop for Ringer {
    fn drop(&mut self) {
        self.0.waiting().closed = true;
        self.0.stir();
    }
}

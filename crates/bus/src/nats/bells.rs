//! Bells on their way out.

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

/// After this long what could not be handed to the server is given up.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The bells that wait to be sent.
#[derive(Default)]
pub(super) struct Bells {
    waiting: Mutex<Waiting>,
    /// Told when there is something to do: a bell waits, a server was reached, or nobody can ring any more.
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

    /// Sends what waits, and returns once it has left. What cannot leave now is dropped.
    pub(super) async fn send(&self, link: &Link) {
        // One at a time, so that whoever waits here knows that what another took before is gone too.
        let _sending = self.sending.lock().await;
        let bells = mem::take(&mut self.waiting().bells);
        let sent = async {
            for bell in bells.iter().filter(|_| link.is_up()) {
                link.client.publish(subject::bell(bell), "".into()).await.ok();
            }
            // Publishing only queues. Bells that are rung until all is written are one batch.
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

/// Sends bells until nobody can ring any more.
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
                _ => tracing::info!(version, "NATS was reached"),
            }
            server = version;
        }
        if bells.waiting().closed {
            return;
        }
    }
}

/// What whoever can ring holds. With the last of them the sending ends.
pub(super) struct Ringer(pub(super) Arc<Bells>);

impl Drop for Ringer {
    fn drop(&mut self) {
        self.0.waiting().closed = true;
        self.0.stir();
    }
}

//! The bus inside one process: for a process that runs alone, and for tests.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::stream::{self, BoxStream};
use tokio::sync::{Notify, broadcast, broadcast::error::RecvError};
use waybill_core::{
    bus::{Bell, Bus, Chunk, Door},
    id::{AgentId, ProjectId},
};

/// How many chunks a watcher may lag behind before it loses the oldest.
const CHUNKS_KEPT: usize = 1024;

/// Clones are the same bus.
#[derive(Clone, Default)]
pub struct Local {
    ends: Arc<Mutex<Ends>>,
    beside_others: bool,
}

#[derive(Default)]
struct Ends {
    doors: HashMap<Door, Arc<Notify>>,
    watched: HashMap<(ProjectId, AgentId), broadcast::Sender<Vec<u8>>>,
}

impl Local {
    /// Creates a bus for a process that is not alone: other processes add work too, and cannot ring here. Poll often.
    pub fn beside_others() -> Local {
        Local { beside_others: true, ..Local::default() }
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        // Nothing panics halfway through a change of these maps.
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn door(&self, door: &Door) -> Arc<Notify> {
        self.ends().doors.entry(door.clone()).or_default().clone()
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Local")
    }
}

impl Bus for Local {
    fn ring(&self, bell: Bell) {
        // Wakes one listener. If none waits, one ring is remembered for the next one.
        self.door(&bell.door).notify_one();
    }

    fn hear(&self, door: &Door) -> BoxStream<'static, ()> {
        Box::pin(stream::unfold(self.door(door), |bell| async {
            bell.notified().await;
            Some(((), bell))
        }))
    }

    fn is_up(&self) -> bool {
        !self.beside_others
    }

    fn send(&self, chunk: Chunk) {
        if let Some(watched) = self.ends().watched.get(&(chunk.project_id, chunk.agent_id)) {
            // This fails only if there is no watcher any more.
            watched.send(chunk.content).ok();
        }
    }

    fn watch(&self, project_id: ProjectId, agent_id: AgentId) -> BoxStream<'static, Vec<u8>> {
        let mut ends = self.ends();
        ends.watched.retain(|_, watched| watched.receiver_count() > 0);
        let watched = ends.watched.entry((project_id, agent_id)).or_insert_with(|| broadcast::channel(CHUNKS_KEPT).0);
        Box::pin(stream::unfold(watched.subscribe(), |mut chunks| async {
            loop {
                match chunks.recv().await {
                    Ok(content) => return Some((content, chunks)),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt};
    use waybill_core::id::Channel;

    use super::*;

    #[tokio::test]
    async fn a_watcher_that_lags_loses_the_oldest_and_goes_on() {
        let (bus, project_id, agent_id) = (Local::default(), ProjectId::new(), AgentId::new());
        let mut watched = bus.watch(project_id, agent_id);
        for n in 0..CHUNKS_KEPT + 10 {
            let content = n.to_string().into_bytes();
            bus.send(Chunk { project_id, channel: Channel::default(), agent_id, content });
        }
        let first = watched.next().await.unwrap();
        assert_eq!(first, b"10");
    }

    #[tokio::test]
    async fn nothing_is_kept_for_agents_that_nobody_watches_any_more() {
        let bus = Local::default();
        for _ in 0..100 {
            drop(bus.watch(ProjectId::new(), AgentId::new()));
        }
        let _watched = bus.watch(ProjectId::new(), AgentId::new());
        assert_eq!(bus.ends().watched.len(), 1);
    }

    /// A listener that was woken but dropped before it looked passes the ring on.
    #[tokio::test]
    async fn a_ring_outlives_the_listener_it_woke() {
        let (bus, door) = (Local::default(), Door::Orchestrator);
        let (mut first, mut second) = (bus.hear(&door), bus.hear(&door));
        assert!(first.next().now_or_never().is_none() && second.next().now_or_never().is_none());
        bus.ring(Bell { project_id: ProjectId::new(), door });
        drop(first);
        assert!(second.next().now_or_never().is_some());
    }
}

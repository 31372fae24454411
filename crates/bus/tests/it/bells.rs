//! Doorbells, in one process and over NATS.

use futures::{FutureExt, StreamExt, stream};
use waybill_bus::{local::Local, subject};
use waybill_core::{
    bus::{Bus, Chunk, Door},
    id::{AgentId, Channel, ProjectId},
};
use waybill_services::Shared;

use crate::{a_bell, own_door, shared_nats, soon};

/// Returns when everything that the bus sent before has arrived: it sends a chunk last and waits for it.
async fn settled(bus: &dyn Bus) {
    let (project_id, agent_id) = (ProjectId::new(), AgentId::new());
    let mut last = bus.watch(project_id, agent_id);
    bus.send(Chunk { project_id, channel: Channel::default(), agent_id, content: vec![] });
    soon(last.next()).await.unwrap();
}

async fn wakes_one(bus: &dyn Bus) {
    let door = own_door();
    let mut listeners = stream::select_all((0..3).map(|_| bus.hear(&door)));
    for n in 0..20 {
        bus.ring(a_bell(&door));
        soon(listeners.next()).await.unwrap();
        settled(bus).await;
        assert_eq!(listeners.next().now_or_never(), None, "ring {n} woke two");
    }
}

#[tokio::test]
async fn a_ring_wakes_one_of_several_listeners_in_one_process() {
    wakes_one(&Local::default()).await;
}

/// L0-9
#[tokio::test]
async fn a_ring_wakes_one_of_several_listeners_over_nats() {
    wakes_one(&shared_nats().await).await;
}

/// Rings that a listener has not taken yet are one wake-up, even if each of them was sent.
async fn coalesces(bus: &dyn Bus, flush: impl AsyncFn()) {
    let door = own_door();
    let mut listener = bus.hear(&door);
    for _ in 0..300 {
        bus.ring(a_bell(&door)); // each for another project, so no two are equal
    }
    flush().await;
    settled(bus).await;
    assert_eq!(soon(listener.next()).await, Some(()));
    assert_eq!(listener.next().now_or_never(), None);

    bus.ring(a_bell(&door));
    assert_eq!(soon(listener.next()).await, Some(()), "a later ring is another one");
}

#[tokio::test]
async fn rings_that_were_not_taken_are_one_in_one_process() {
    coalesces(&Local::default(), async || {}).await;
}

#[tokio::test]
async fn rings_that_were_not_taken_are_one_over_nats() {
    let nats = shared_nats().await;
    coalesces(&nats, async || nats.flush().await).await;
}

#[tokio::test]
async fn equal_rings_that_follow_each_other_quickly_are_sent_once() {
    let nats = shared_nats().await;
    let observer = async_nats::connect(Shared::get().await.unwrap().nats_url).await.unwrap();
    let bell = a_bell(&own_door());
    let mut sent = observer.subscribe(subject::bell(&bell)).await.unwrap();
    let inbox = observer.new_inbox();
    let mut back = observer.subscribe(inbox.clone()).await.unwrap();
    // Once a message to ourselves is back, the server knows the subscriptions too.
    observer.publish(inbox.clone(), "".into()).await.unwrap();
    soon(back.next()).await.unwrap();

    for _ in 0..100 {
        nats.ring(bell.clone());
    }
    nats.flush().await;
    soon(sent.next()).await.unwrap();
    settled(&nats).await;
    observer.publish(inbox, "".into()).await.unwrap();
    soon(back.next()).await.unwrap();
    assert!(sent.next().now_or_never().is_none());
}

/// L0-9: a ring is for its door only.
async fn tells_doors_apart(bus: &dyn Bus, flush: impl AsyncFn()) {
    let Door::Agent(target) = own_door() else { unreachable!() };
    let (agent, tool) = (Door::Agent(target.clone()), Door::Tool(target));
    let (mut at_agent, mut at_tool) = (bus.hear(&agent), bus.hear(&tool));
    bus.ring(a_bell(&tool));
    flush().await;
    settled(bus).await;
    assert_eq!(soon(at_tool.next()).await, Some(()));
    assert_eq!(at_agent.next().now_or_never(), None);
}

#[tokio::test]
async fn a_ring_is_for_its_door_only() {
    tells_doors_apart(&Local::default(), async || {}).await;
    let nats = shared_nats().await;
    tells_doors_apart(&nats, async || nats.flush().await).await;
}

async fn forgets_the_gone(bus: &dyn Bus) {
    let door = own_door();
    let (gone, mut there) = (bus.hear(&door), bus.hear(&door));
    drop(gone);
    for _ in 0..20 {
        bus.ring(a_bell(&door));
        assert_eq!(soon(there.next()).await, Some(()));
    }
}

#[tokio::test]
async fn a_listener_that_was_dropped_swallows_no_ring() {
    forgets_the_gone(&Local::default()).await;
    forgets_the_gone(&shared_nats().await).await;
}

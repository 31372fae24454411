//! Chunks of answers, in one process and over NATS.

use futures::{FutureExt, StreamExt};
use waybill_bus::local::Local;
use waybill_core::{
    bus::{Bus, Chunk},
    id::{AgentId, Channel, ProjectId},
};

use crate::{shared_nats, soon};

async fn arrive_in_order(bus: &dyn Bus) {
    let (project_id, agent_id) = (ProjectId::new(), AgentId::new());
    let (mut first, mut second) = (bus.watch(project_id, agent_id), bus.watch(project_id, agent_id));
    let mut of_another = bus.watch(project_id, AgentId::new());
    // More than tokio lets one task do in a row. None may be lost because of that.
    for n in 0..500 {
        let channel: Channel = if n % 2 == 0 { "public" } else { "team" }.parse().unwrap();
        bus.send(Chunk { project_id, channel, agent_id, content: format!("token {n}").into_bytes() });
    }
    for n in 0..500 {
        assert_eq!(soon(first.next()).await.unwrap(), format!("token {n}").into_bytes());
        assert_eq!(soon(second.next()).await.unwrap(), format!("token {n}").into_bytes());
    }
    assert!(of_another.next().now_or_never().is_none());
}

#[tokio::test]
async fn chunks_arrive_in_order_in_one_process() {
    arrive_in_order(&Local::default()).await;
}

/// L0-9
#[tokio::test]
async fn chunks_arrive_in_order_over_nats() {
    arrive_in_order(&shared_nats().await).await;
}

#[tokio::test]
async fn one_who_comes_late_sees_only_what_follows() {
    let nats = shared_nats().await;
    let local = Local::default();
    for bus in [&nats as &dyn Bus, &local] {
        let (project_id, channel, agent_id) = (ProjectId::new(), Channel::default(), AgentId::new());
        let send = |text: &str| {
            bus.send(Chunk { project_id, channel: channel.clone(), agent_id, content: text.as_bytes().to_vec() });
        };
        send("before");
        let mut watched = bus.watch(project_id, agent_id);
        send("after");
        assert_eq!(soon(watched.next()).await.unwrap(), b"after");
    }
}

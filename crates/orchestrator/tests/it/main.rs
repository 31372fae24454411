//! The commands, the sweeps and the relay, against a real PostgreSQL and a real NATS.

#![allow(clippy::unwrap_used)]

mod commands;
mod handoffs;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::task::JoinHandle;
use waybill_bus::{
    feed::{Config as FeedConfig, NatsFeed},
    nats::Nats,
};
use waybill_core::{
    bus::{Door, Event, Feed},
    card::Draft,
    id::{AgentId, Target, WorkerId},
    turn::End,
};
use waybill_kernel::{
    agent, outbox, sweep,
    turn::{self, Claiming, DispatchRequest, Ending},
};
use waybill_lab::services::nats;
use waybill_orchestrator::{relay, watch};
use waybill_testkit::{TestDb, fresh_db};

const LEASE: Duration = Duration::from_millis(400);

struct House {
    t: TestDb,
    nats: nats::Private,
    feed: NatsFeed,
    agents: Vec<AgentId>,
}

fn llm() -> Target {
    "llm".parse().unwrap()
}

impl House {
    async fn new() -> House {
        let t = fresh_db().await;
        let mut nats = nats::Private::new().unwrap();
        nats.start().unwrap();
        let feed = NatsFeed::new(&Nats::connect(&nats.url()).await.unwrap(), FeedConfig::default());
        let agents: Vec<AgentId> = (0..8).map(|_| AgentId::new()).collect();
        let mut work = t.begin().await;
        agent::create(&mut work, &agents, &llm()).await.unwrap();
        work.commit().await.unwrap();
        House { t, nats, feed, agents }
    }

    async fn enqueue(&self, agent_id: AgentId) {
        let card = Draft::instruction("say it").seal().unwrap();
        let request = DispatchRequest::instructed(agent_id, card.card_id());
        let mut alone = self.t.kernel.alone(self.t.project_id).await.unwrap();
        turn::enqueue(&mut alone, &[request], &[card]).await.unwrap();
    }

    /// One turn of each agent, from its beginning to its end.
    async fn round(&self) {
        let mut alone = self.t.kernel.alone(self.t.project_id).await.unwrap();
        let mut claiming = Claiming { lease: Duration::from_secs(60), ..Claiming::new(WorkerId::new(), llm()) };
        for agent_id in &self.agents {
            self.enqueue(*agent_id).await;
            let fence = turn::claim(self.t.kernel.pool(), &mut claiming).await.unwrap().remove(0).fence;
            let cards = vec![turn::ending_card(End::Success, "said").unwrap()];
            let ending = Ending { fence, status: End::Success, step_id: None, receipt: None, usage: None, cards };
            turn::finish(&mut alone, &[ending]).await.unwrap();
        }
    }

    fn relay(&self) -> JoinHandle<()> {
        let (kernel, feed) = (self.t.kernel.clone(), self.feed.clone());
        let config = relay::Config { lease: LEASE, most: 3, pause: LEASE / 20 };
        tokio::spawn(async move { match relay::run(&kernel, &feed, &config).await {} })
    }

    fn watch(&self) -> JoinHandle<()> {
        let kernel = self.t.kernel.clone();
        let config = watch::Config {
            sweep: sweep::Config { lease: LEASE, ..Default::default() },
            weeks_ahead: 1,
            artifacts: None,
        };
        tokio::spawn(async move { match watch::run(&kernel, &config).await {} })
    }

    /// Waits until the stream holds so many events, and gives them. Of each agent they must be in order, and each event once.
    async fn told(&self, n: usize) -> Vec<Event> {
        for _ in 0..600 {
            let events = self.feed.read_all().await.unwrap_or_default();
            if events.len() >= n {
                let events: Vec<Event> = events.into_iter().map(|(_, event)| event).collect();
                let ids: BTreeSet<String> = events.iter().map(Event::message_id).collect();
                assert_eq!((ids.len(), events.len()), (n, n));
                let mut last = BTreeMap::new();
                for event in &events {
                    let before = last.insert(event.agent_id, event.outbox_seq);
                    assert!(before < Some(event.outbox_seq), "{} after {before:?}", event.outbox_seq);
                }
                return events;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{n} events were to come: {:?}", outbox::lag(&self.t.kernel).await);
    }
}

/// L0-9: what is written is told, in order, once; also what is written while a relay is killed and another takes its place.
#[tokio::test(flavor = "multi_thread")]
async fn events_outlive_their_relay() {
    let house = House::new().await;
    let watching = house.watch();
    let relays = [house.relay(), house.relay()];
    house.round().await;
    house.told(8).await;
    relays[0].abort();
    house.round().await;
    relays[1].abort();
    house.round().await;
    let last = house.relay();
    house.told(24).await;
    // An event is in the stream before it is marked as told.
    for _ in 0..200 {
        if outbox::lag(&house.t.kernel).await.unwrap().n_unpublished == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(outbox::lag(&house.t.kernel).await.unwrap().n_unpublished, 0);
    last.abort();
    watching.abort();
}

/// L0-16: a stream that is deleted, and a server that is killed with all it held, are told everything again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stream_is_told_again() {
    let mut house = House::new().await;
    let (watching, relaying) = (house.watch(), house.relay());
    house.round().await;
    house.told(8).await;
    let made_at = house.feed.made_at().await.unwrap();
    house.feed.delete().await.unwrap();
    house.round().await;
    house.told(16).await;
    assert_ne!(house.feed.made_at().await.unwrap(), made_at);
    house.nats.kill();
    house.round().await;
    house.nats.start().unwrap();
    house.told(24).await;
    relaying.abort();
    watching.abort();
}

/// L0-14: a ring that was lost costs a tick: the watch rings again for what is ready.
#[tokio::test]
async fn the_watch_rings_for_what_nobody_heard() {
    let house = House::new().await;
    house.enqueue(house.agents[0]).await;
    house.t.bus.rung();
    let watching = house.watch();
    for _ in 0..2 {
        let mut rung = Vec::new();
        while rung.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            rung = house.t.bus.rung();
        }
        assert_eq!(rung[0], Door::Agent(llm()));
    }
    watching.abort();
}

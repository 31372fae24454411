//! The commands, the sweeps and the relay, against a real PostgreSQL and a real NATS.

#![allow(clippy::unwrap_used)]

mod commands;
mod declarations;
mod handoffs;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::BoxFuture;

use tokio::task::JoinHandle;
use waybill_bus::{
    feed::{Config as FeedConfig, NatsFeed},
    nats::Nats,
};
use waybill_core::{
    bus::{Door, Event, Feed, FeedError, Published},
    card::Draft,
    id::{AgentId, Target, WorkerId},
    turn::End,
};
use waybill_kernel::{
    agent, outbox, quarantine, sweep,
    turn::{self, Claiming, DispatchRequest, Ending},
};
use waybill_orchestrator::{relay, watch};
use waybill_services::nats;
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

    /// Runs one turn of each agent, from its beginning to its end.
    async fn round(&self) {
        let mut alone = self.t.kernel.alone(self.t.project_id).await.unwrap();
        let mut claiming = Claiming { lease: Duration::from_secs(60), ..Claiming::new(WorkerId::new(), llm()) };
        for agent_id in &self.agents {
            self.enqueue(*agent_id).await;
            let fence = turn::claim(&self.t.kernel, &mut claiming).await.unwrap().remove(0).fence;
            let cards = vec![turn::ending_card(End::Success, "said").unwrap()];
            let ending =
                Ending { fence, status: End::Success, step_id: None, receipt: None, usage: None, seen: None, cards };
            turn::finish(&mut alone, &[ending]).await.unwrap();
        }
    }

    fn relay(&self) -> JoinHandle<()> {
        let (kernel, feed) = (self.t.kernel.clone(), self.feed.clone());
        let config = relay::Config { lease: LEASE, most: 3, pause: LEASE / 20, ..relay::Config::default() };
        tokio::spawn(async move { match relay::run(&kernel, &feed, &config).await {} })
    }

    fn watch(&self) -> JoinHandle<()> {
        let kernel = self.t.kernel.clone();
        let config = watch::Config { sweep: sweep::Config { lease: LEASE, ..Default::default() }, artifacts: None };
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

/// L0-9: every event is published in order, once; also those written while a relay is killed and another takes its place.
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
    // An event is in the stream before it is marked as published.
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

/// L0-16: after a stream is deleted, or a server is killed with all its data, every event is published again.
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

/// A stream that refuses the events of one agent while this is switched on, and accepts all others.
#[derive(Debug)]
struct Picky {
    feed: NatsFeed,
    refuses: AgentId,
    is_picky: Arc<AtomicBool>,
}

impl Feed for Picky {
    fn made_at(&self) -> BoxFuture<'_, Result<DateTime<Utc>, FeedError>> {
        self.feed.made_at()
    }

    fn publish<'a>(&'a self, events: &'a [Event], within: Duration) -> BoxFuture<'a, Published> {
        Box::pin(async move {
            let is_refused = |event: &Event| {
                event.agent_id == self.refuses && self.is_picky.load(std::sync::atomic::Ordering::SeqCst)
            };
            let taken: Vec<Event> = events.iter().filter(|event| !is_refused(event)).cloned().collect();
            let mut arrived = self.feed.publish(&taken, within).await.arrived.into_iter();
            let arrived = events.iter().map(|event| !is_refused(event) && arrived.next().unwrap()).collect();
            let first = events.iter().position(is_refused);
            Published { arrived, refused: first.map(|place| (place, "too large".to_owned())).into_iter().collect() }
        })
    }
}

/// An event that is refused for good does not hold up its shard, not even with more behind it than a portion has places.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_refused_holds_up_its_agent_alone() {
    let house = House::new().await;
    let refuses = house.agents[0];
    // It was taken before.
    let (watching, relaying) = (house.watch(), house.relay());
    house.round().await;
    house.told(8).await;
    relaying.abort();
    let is_picky = Arc::new(AtomicBool::new(true));
    let (kernel, feed) =
        (house.t.kernel.clone(), Picky { feed: house.feed.clone(), refuses, is_picky: is_picky.clone() });
    for _ in 0..5 {
        house.round().await;
    }
    let refusals = outbox::Refusals { most: 3, apart: Duration::from_millis(100) };
    let config = relay::Config { lease: LEASE, most: 3, pause: LEASE / 20, refusals };
    let relaying = tokio::spawn(async move { match relay::run(&kernel, &feed, &config).await {} });
    let told = house.told(8 + 7 * 5).await;
    assert!(told[8..].iter().all(|event| event.agent_id != refuses));
    for _ in 0..200 {
        if !quarantine::list(&house.t.kernel, 1).await.unwrap().iter().all(|row| row.quarantined_at.is_none()) {
            break;
        }
        house.round().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let listed = quarantine::list(&house.t.kernel, 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].subject_id, listed[0].sweep.as_str()), (1, refuses.into(), quarantine::EVENTS));
    assert!(listed[0].quarantined_at.is_some());

    // The stream is lost meanwhile: everything is published again except what is in quarantine.
    house.feed.delete().await.unwrap();
    let others = "select count(*) from state.outbox where agent_id <> $1";
    let n: i64 = sqlx::query_scalar(others).bind(refuses).fetch_one(&mut house.t.admin().await).await.unwrap();
    house.told(n as usize).await;

    // Once the fault is fixed and they are released, they arrive in order, which `told` checks for every agent.
    is_picky.store(false, std::sync::atomic::Ordering::SeqCst);
    let mut work = house.t.begin().await;
    quarantine::retry(&mut work, Some(refuses.into())).await.unwrap();
    work.commit().await.unwrap();
    let n: i64 =
        sqlx::query_scalar("select count(*) from state.outbox").fetch_one(&mut house.t.admin().await).await.unwrap();
    house.told(n as usize).await;
    relaying.abort();
    watching.abort();
}

/// One sweep that has much to do, each of it slow, keeps no other from its work.
#[tokio::test]
async fn the_watch_rings_while_another_sweep_is_long() {
    let house = House::new().await;
    for agent_id in &house.agents[1..] {
        let card = Draft::instruction("later").seal().unwrap();
        let later = Some(Utc::now() + TimeDelta::milliseconds(100));
        let request = DispatchRequest { not_before: later, ..DispatchRequest::instructed(*agent_id, card.card_id()) };
        let mut alone = house.t.kernel.alone(house.t.project_id).await.unwrap();
        turn::enqueue(&mut alone, &[request], &[card]).await.unwrap();
    }
    house.enqueue(house.agents[0]).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    // Each of the seven waits for its head, a second at a time, for as long as this lasts.
    let mut holding = house.t.admin().await;
    sqlx::raw_sql("begin; select from state.agent_state_head for update").execute(&mut holding).await.unwrap();
    let watching = house.watch();
    for _ in 0..6 {
        house.t.bus.rung();
        let begun = std::time::Instant::now();
        while house.t.bus.rung().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(3), "the watch rings no more");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    watching.abort();
}

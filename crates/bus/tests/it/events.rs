//! The event feed on JetStream.
//!
//! Each test has its own server: a subject belongs to one stream of a server, and these tests delete theirs.

use std::time::{Duration, Instant};

use async_nats::jetstream;
use chrono::{DateTime, Utc};
use waybill_bus::{
    feed::{Config, NatsFeed},
    nats::Nats,
    subject::{self, Subject},
};
use waybill_core::{
    bus::{Event, EventKind, Feed, Published},
    id::{AgentId, Channel, EventId, ProjectId, TurnId},
};
use waybill_services::nats::Private;

use crate::{server::running, soon, until_down, until_up};

const LONG: Duration = Duration::from_secs(60);

struct Bench {
    server: Private,
    nats: Nats,
    feed: NatsFeed,
    project_id: ProjectId,
}

impl Bench {
    async fn new() -> Bench {
        let server = running();
        let nats = Nats::connect(&server.url()).await.unwrap();
        let feed = NatsFeed::new(&nats, Config::default());
        Bench { server, nats, feed, project_id: ProjectId::new() }
    }

    async fn with_stream() -> (Bench, DateTime<Utc>) {
        let bench = Bench::new().await;
        let made_at = bench.feed.made_at().await.unwrap();
        (bench, made_at)
    }

    /// Returns a JetStream context on another connection.
    async fn jetstream(&self) -> jetstream::Context {
        jetstream::new(async_nats::connect(self.server.url()).await.unwrap())
    }

    fn event(&self, agent_id: AgentId, outbox_seq: i64) -> Event {
        let agent_turn_id = TurnId::new();
        Event {
            project_id: self.project_id,
            channel: Channel::default(),
            agent_id,
            agent_turn_id,
            root_turn_id: agent_turn_id,
            event: EventKind::Step,
            event_id: EventId::new(),
            outbox_seq,
            status: "success".to_owned(),
            turn_epoch: None,
            step_id: None,
            card_id: None,
            trace_id: None,
            traceparent: None,
            tracestate: None,
            created_at: DateTime::from_timestamp(1_800_000_000, 123_456_000).unwrap(),
        }
    }

    async fn stored(&self) -> Vec<Event> {
        self.feed.read_all().await.unwrap().into_iter().map(|(_, event)| event).collect()
    }
}

/// No event arrived, and none was refused.
fn nothing(n: usize) -> Published {
    Published { arrived: vec![false; n], refused: Vec::new() }
}

/// L0-9
#[tokio::test]
async fn events_of_one_agent_are_stored_in_order() {
    let (bench, _) = Bench::with_stream().await;
    let agents: Vec<AgentId> = (0..300).map(|_| AgentId::new()).collect();
    let events: Vec<Event> = (0..5)
        .flat_map(|seq| agents.iter().map(move |agent| (*agent, seq)))
        .map(|(agent, seq)| bench.event(agent, seq))
        .collect();
    assert_eq!(bench.feed.publish(&events, LONG).await.arrived, vec![true; 1500]);

    let stored = bench.feed.read_all().await.unwrap();
    assert!(stored.iter().map(|(sequence, _)| *sequence).eq(1..=1500));
    for agent in agents {
        let of_agent = |events: &mut dyn Iterator<Item = &Event>| -> Vec<Event> {
            events.filter(|event| event.agent_id == agent).cloned().collect()
        };
        assert_eq!(of_agent(&mut stored.iter().map(|(_, event)| event)), of_agent(&mut events.iter()));
    }
}

/// L0-9
#[tokio::test]
async fn an_event_that_is_published_twice_is_stored_once() {
    let (bench, _) = Bench::with_stream().await;
    assert_eq!(bench.stored().await, []);
    let events = [bench.event(AgentId::new(), 1), bench.event(AgentId::new(), 1)];
    assert_eq!(bench.feed.publish(&events, LONG).await.arrived, [true, true]);
    assert_eq!(bench.feed.publish(&events, LONG).await.arrived, [true, true], "it has arrived, so much is true");
    assert_eq!(bench.stored().await.len(), 2);
}

#[tokio::test]
async fn an_event_carries_its_id_and_its_trace() {
    let (bench, _) = Bench::with_stream().await;
    let agent_id = AgentId::new();
    let traced = Event {
        traceparent: Some(format!("00-{}-{}-01", "ab".repeat(16), "cd".repeat(8))),
        tracestate: Some("waybill=1".to_owned()),
        event: EventKind::Task,
        ..bench.event(agent_id, 1)
    };
    let forged = Event { tracestate: Some("a=1\r\nNats-Msg-Id: other".to_owned()), ..bench.event(agent_id, 2) };
    assert_eq!(bench.feed.publish(&[traced.clone(), forged.clone()], LONG).await.arrived, [true, true]);

    let stream = bench.jetstream().await.get_stream("WAYBILL_EVENTS").await.unwrap();
    let message = stream.get_raw_message(1).await.unwrap();
    let header = |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(header("Nats-Msg-Id"), Some(traced.message_id()));
    assert_eq!(header("traceparent"), traced.traceparent);
    assert_eq!(header("tracestate"), traced.tracestate);
    let Subject::Event { event, agent_id: of, .. } = subject::parse(&message.subject).unwrap() else {
        panic!("{message:?}")
    };
    assert_eq!((event, of), (EventKind::Task, agent_id));
    assert_eq!(bench.stored().await, [traced, forged.clone()]);

    let message = stream.get_raw_message(2).await.unwrap();
    assert_eq!(message.headers.get("Nats-Msg-Id").unwrap().as_str(), forged.message_id());
    assert!(message.headers.get("tracestate").is_none(), "{message:?}");
}

#[tokio::test]
async fn the_stream_is_made_once_and_keeps_its_time_through_a_crash() {
    let (mut bench, made_at) = Bench::with_stream().await;
    assert_eq!(bench.feed.made_at().await.unwrap(), made_at);
    assert!((Utc::now() - made_at).num_seconds().abs() < 60, "{made_at}");
    let event = bench.event(AgentId::new(), 1);
    assert_eq!(bench.feed.publish(std::slice::from_ref(&event), LONG).await.arrived, [true]);

    bench.server.kill();
    until_down(&bench.nats).await;
    bench.server.start().unwrap();
    until_up(&bench.nats).await;
    assert_eq!(bench.feed.made_at().await.unwrap(), made_at);
    assert_eq!(bench.stored().await, [event]);
}

/// L0-16: a changed creation time tells the relay to fill the stream again.
#[tokio::test]
async fn a_stream_that_was_deleted_shows_another_time() {
    let (bench, made_at) = Bench::with_stream().await;
    let event = bench.event(AgentId::new(), 1);
    assert_eq!(bench.feed.publish(std::slice::from_ref(&event), LONG).await.arrived, [true]);
    bench.jetstream().await.delete_stream("WAYBILL_EVENTS").await.unwrap();
    assert_eq!(bench.feed.publish(std::slice::from_ref(&event), LONG).await, nothing(1), "the stream is missing");

    assert!(bench.feed.made_at().await.unwrap() > made_at);
    assert_eq!(bench.feed.publish(std::slice::from_ref(&event), LONG).await.arrived, [true]);
    assert_eq!(bench.stored().await, [event]);
}

#[tokio::test]
async fn the_stream_is_made_as_configured() {
    let bench = Bench::new().await;
    let config = Config {
        stream: "OWN".to_owned(),
        max_age: Duration::from_secs(3600),
        duplicate_window: Duration::from_secs(60),
        replicas: 1,
    };
    NatsFeed::new(&bench.nats, config).made_at().await.unwrap();
    let made = bench.jetstream().await.get_stream("OWN").await.unwrap().cached_info().config.clone();
    assert_eq!(made.subjects, [subject::EVENTS]);
    assert_eq!((made.max_age.as_secs(), made.duplicate_window.as_secs(), made.num_replicas), (3600, 60, 1));
    assert_eq!(made.storage, jetstream::stream::StorageType::File);

    let error = bench.feed.made_at().await.unwrap_err().to_string();
    assert!(error.contains("overlap"), "{error}");
}

/// A gap would be worse than a delay: events after one that did not arrive are not sent.
#[tokio::test]
async fn after_an_event_that_did_not_arrive_nothing_of_its_agent_is_sent() {
    let (bench, _) = Bench::with_stream().await;
    let (one, other) = (AgentId::new(), AgentId::new());
    let too_long = Event { status: "x".repeat(2 << 20), ..bench.event(one, 2) };
    let events = [bench.event(one, 1), bench.event(other, 1), too_long, bench.event(one, 3), bench.event(other, 2)];
    let published = bench.feed.publish(&events, LONG).await;
    assert_eq!(published.arrived, [true, true, false, false, true]);
    let refused: Vec<usize> = published.refused.iter().map(|(place, _)| *place).collect();
    assert_eq!(refused, [2], "the stream refuses only that one: {published:?}");
    let mut stored =
        bench.stored().await.into_iter().map(|event| (event.agent_id, event.outbox_seq)).collect::<Vec<_>>();
    stored.sort();
    let mut expected = vec![(one, 1), (other, 1), (other, 2)];
    expected.sort();
    assert_eq!(stored, expected);
}

/// L0-16
#[tokio::test]
async fn a_dead_server_costs_a_moment_and_no_event_is_said_to_have_arrived() {
    let (mut bench, _) = Bench::with_stream().await;
    let events: Vec<Event> = (0..1000).map(|_| bench.event(AgentId::new(), 1)).collect();
    bench.server.kill();
    let begun = Instant::now();
    assert_eq!(bench.feed.publish(&events, LONG).await, nothing(1000));
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());

    until_down(&bench.nats).await;
    let begun = Instant::now();
    assert_eq!(bench.feed.publish(&events, LONG).await, nothing(1000));
    let error = bench.feed.made_at().await.unwrap_err().to_string();
    assert_eq!(error, "the event stream cannot be used: NATS cannot be reached");
    assert!(bench.feed.read_all().await.is_err());
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());

    bench.server.start().unwrap();
    until_up(&bench.nats).await;
    bench.feed.made_at().await.unwrap();
    assert_eq!(bench.feed.publish(&events, LONG).await.arrived, vec![true; 1000]);
    assert_eq!(bench.stored().await.len(), 1000);
}

/// L0-16: the connection stands, and the server does not answer.
#[tokio::test]
async fn a_frozen_server_costs_the_timeout_once() {
    let (bench, _) = Bench::with_stream().await;
    let events: Vec<Event> = (0..1000).map(|_| bench.event(AgentId::new(), 1)).collect();
    bench.server.freeze();
    let begun = Instant::now();
    assert_eq!(bench.feed.publish(&events, LONG).await, nothing(1000));
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let error = soon(bench.feed.made_at()).await.unwrap_err().to_string();
    assert!(error.starts_with("the event stream cannot be used: "), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// Events that a slow stream did not take in time are distinguished from those it took: nothing that arrived is published again.
#[tokio::test]
async fn publishing_begins_nothing_after_its_time() {
    let bench = Bench::new().await;
    bench.feed.made_at().await.unwrap();
    let agent_id = AgentId::new();
    let events: Vec<Event> = (0..50).map(|n| bench.event(agent_id, n)).collect();
    assert_eq!(bench.feed.publish(&events, Duration::ZERO).await.arrived, vec![false; 50]);
    assert_eq!(bench.feed.publish(&events, LONG).await.arrived, vec![true; 50]);
}

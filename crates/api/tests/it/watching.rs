//! Watching projects and trees over HTTP (UI-10), and tokens from a worker in another language (WK-5).
//!
//! Tests share a server: a transaction of another test that stays open for seconds holds events up here too. So these tests bound from above only
//! what does not depend on that, and accept an event that comes again after a stream is continued.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream::BoxStream};
use reqwest::Method;
use serde_json::{Value, json};
use waybill_core::{
    card::{CardType, Content, Draft, Role},
    id::{AgentId, StepId, TurnId, WorkerId},
    key::Scope,
    turn::End,
};
use waybill_kernel::{
    agent,
    turn::{self, Claimed, Claiming, DispatchRequest, Ending},
    work::UnitOfWork,
};

use crate::House;

#[derive(Clone, Debug, PartialEq)]
struct Heard {
    kind: String,
    id: Option<i64>,
    data: Value,
}

impl Heard {
    fn turn(&self) -> &str {
        self.data["agent_turn_id"].as_str().unwrap()
    }
}

fn data(heard: &[Heard]) -> Vec<&Value> {
    heard.iter().map(|event| &event.data).collect()
}

/// A stream that is read event by event.
struct Watch {
    pieces: BoxStream<'static, String>,
    text: String,
}

impl Watch {
    async fn open(house: &House, path: &str, last: Option<i64>) -> Watch {
        let url = format!("{}/v1/projects/acme{path}", house.base);
        let mut request = house.http.get(url).bearer_auth(&house.admin);
        if let Some(last) = last {
            request = request.header("last-event-id", last.to_string());
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream", "{path}");
        let pieces = response.bytes_stream().map(|piece| String::from_utf8(piece.unwrap().to_vec()).unwrap());
        Watch { pieces: pieces.boxed(), text: String::new() }
    }

    /// Returns the id that the stream begins with, from which a client that hears nothing more goes on.
    async fn beginning(&mut self) -> i64 {
        while !self.text.contains("\n\n") {
            self.text.push_str(&self.pieces.next().await.unwrap());
        }
        self.text.lines().find_map(|line| line.strip_prefix("id:")).unwrap().trim().parse().unwrap()
    }

    async fn next(&mut self) -> Heard {
        self.within(Duration::from_secs(10)).await.expect("an event comes in time")
    }

    /// The next event, if one comes in this time.
    async fn within(&mut self, time: Duration) -> Option<Heard> {
        let until = tokio::time::Instant::now() + time;
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n").map(|(a, b)| (a.to_owned(), b.to_owned())) {
                self.text = rest;
                let line = |name: &'static str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let Some(data) = line("data:") else { continue };
                let (kind, id) = (line("event:").unwrap().to_owned(), line("id:").map(|id| id.parse().unwrap()));
                return Some(Heard { kind, id, data: serde_json::from_str(data).unwrap() });
            }
            let piece = tokio::time::timeout_at(until, self.pieces.next()).await.ok()?;
            self.text.push_str(&piece.expect("the stream goes on"));
        }
    }

    /// Everything until `n` turns have ended.
    async fn until_ended(&mut self, n: usize) -> Vec<Heard> {
        let mut heard: Vec<Heard> = Vec::new();
        while heard.iter().filter(|event| event.kind == "task").count() < n {
            heard.push(self.next().await);
        }
        heard
    }
}

/// Adds a turn of a new agent. It is true once the work is committed.
async fn add(work: &mut UnitOfWork, parent: Option<TurnId>) -> TurnId {
    let (agent_id, card) = (AgentId::new(), Draft::instruction("x").seal().unwrap());
    agent::create(work, &[agent_id], &"none".parse().unwrap()).await.unwrap();
    let request = DispatchRequest {
        parent_agent_turn_id: parent,
        emit_state_event: true,
        ..DispatchRequest::instructed(agent_id, card.card_id())
    };
    turn::enqueue(work, std::slice::from_ref(&request), std::slice::from_ref(&card)).await.unwrap();
    request.agent_turn_id
}

async fn added(house: &House, parent: Option<TurnId>) -> TurnId {
    let mut work = house.kernel.begin(house.t.project_id).await.unwrap();
    let turn_id = add(&mut work, parent).await;
    work.commit().await.unwrap();
    turn_id
}

/// Claims all turns that are ready. Returns how each ends.
async fn claim_all(house: &House) -> Vec<Ending> {
    let mut work = house.kernel.begin(house.t.project_id).await.unwrap();
    let mut claiming = Claiming { most: 10, ..Claiming::new(WorkerId::new(), "none".parse().unwrap()) };
    let claimed = turn::claim_in(&mut work, &mut claiming).await.unwrap();
    work.commit().await.unwrap();
    let ending = |claimed: Claimed| {
        let card = Draft::new(CardType::deliverable(), Role::Assistant, Content::Text("done".to_owned()));
        Ending {
            fence: claimed.fence,
            status: End::Success,
            step_id: Some(StepId::new()),
            receipt: None,
            usage: None,
            seen: None,
            cards: vec![card.seal().unwrap()],
        }
    };
    claimed.into_iter().map(ending).collect()
}

/// Runs and ends all turns that are ready.
async fn end_all(house: &House) {
    for ending in claim_all(house).await {
        let mut work = house.kernel.begin(house.t.project_id).await.unwrap();
        turn::finish(&mut work, &[ending]).await.unwrap();
        work.commit().await.unwrap();
    }
}

/// UI-10: one stream carries a whole tree or project, from any event on, and of the kinds that were asked for.
#[tokio::test]
async fn a_tree_and_a_project_are_each_one_stream() {
    let house = House::open().await;
    let (one, other) = (added(&house, None).await, added(&house, None).await);
    let path = format!("/events?root={one}&after=0");
    let (mut tree, mut project) = (Watch::open(&house, &path, None).await, Watch::open(&house, "/events", None).await);
    let beginning = Watch::open(&house, "/events", None).await.beginning().await;
    let (below, aside) = (added(&house, Some(one)).await, added(&house, Some(other)).await);
    end_all(&house).await;

    let of_tree = tree.until_ended(2).await;
    let mine = [one.to_string(), below.to_string()];
    assert!(of_tree.iter().all(|event| mine.contains(&event.turn().to_owned())), "{of_tree:?}");
    assert!(of_tree.iter().all(|event| event.data["root_turn_id"] == mine[0]), "{of_tree:?}");
    assert!(of_tree.is_sorted_by_key(|event| event.id), "{of_tree:?}");
    let of_one: Vec<&str> =
        of_tree.iter().filter(|event| event.turn() == mine[0]).map(|event| event.kind.as_str()).collect();
    assert_eq!(of_one[..3], ["state", "state", "task"], "{of_tree:?}");

    let of_project = project.until_ended(4).await;
    assert_eq!(of_project[0].turn(), mine[1], "only what came after the stream was opened: {of_project:?}");
    assert!(of_project.iter().any(|event| event.turn() == aside.to_string()));
    // A client that was cut off before the first event misses none.
    let mut missed = Watch::open(&house, "/events", Some(beginning)).await.until_ended(4).await;
    missed.retain(|event| of_project.iter().any(|heard| heard.data == event.data));
    assert_eq!(data(&missed), data(&of_project));

    // Once more, from the middle; and only the ends.
    let mut again = Watch::open(&house, &format!("/events?root={one}"), of_tree[1].id).await;
    let mut again = again.until_ended(2).await;
    again.retain(|event| !of_tree[..2].iter().any(|before| before.data == event.data));
    assert_eq!(data(&again), data(&of_tree[2..]));
    let mut ends = Watch::open(&house, "/events?after=0&kinds=task,request", None).await;
    let ends = ends.until_ended(4).await;
    assert!(ends.len() == 4 && ends.iter().all(|event| event.kind == "task"), "{ends:?}");

    let refused = async |path: String| house.refused(Method::GET, &path, Some(&house.admin), None).await;
    assert_eq!(refused(format!("/events?root={below}")).await, (400, "invalid".to_owned()));
    assert_eq!(refused(format!("/events?root={}", TurnId::new())).await, (404, "not_found".to_owned()));
    assert_eq!(refused(format!("/events?tokens={}", TurnId::new())).await, (404, "not_found".to_owned()));
    let nine = vec![one.to_string(); 9].join(",");
    assert_eq!(refused(format!("/events?tokens={nine}")).await, (400, "invalid".to_owned()));
    assert_eq!(refused("/events?kinds=nothing".to_owned()).await, (400, "invalid".to_owned()));
    assert_eq!(refused("/events?after=-1".to_owned()).await, (400, "invalid".to_owned()));
}

/// UI-10: a tree whose events are far apart is read turn by turn, not among all events of the project.
#[tokio::test]
async fn an_old_tree_is_read_from_its_beginning() {
    let house = House::open().await;
    let one = added(&house, None).await;
    let below = added(&house, Some(one)).await;
    added(&house, None).await;
    // More than a page of events of that other turn.
    let many = "with n as (
        insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status)
        select t.project_id, t.agent_turn_id, 'state', gen_random_uuid(), t.agent_id, 'running'
          from (select t.* from state.turns t order by t.agent_turn_id desc limit 1) t, generate_series(1, 600)
        returning 1)
      select count(*) from n";
    assert_eq!(house.t.count(many).await, 600);
    end_all(&house).await;
    let mut watch = Watch::open(&house, &format!("/events?root={one}&after=0"), None).await;
    let heard = watch.until_ended(2).await;
    let mine = [one.to_string(), below.to_string()];
    assert!(heard.iter().all(|event| mine.contains(&event.turn().to_owned())), "{heard:?}");
    assert!(heard.is_sorted_by_key(|event| event.id), "{heard:?}");
    let seq = |event: &Heard| event.data["outbox_seq"].as_i64().unwrap();
    assert!(seq(&heard[heard.len() - 1]) - seq(&heard[0]) > 600, "{heard:?}");
    // From the middle, it is no different.
    let mut again = Watch::open(&house, &format!("/events?root={one}"), heard[0].id).await;
    let mut again = again.until_ended(2).await;
    again.retain(|event| event.data != heard[0].data);
    assert_eq!(data(&again), data(&heard[1..]));
}

/// UI-10: a transaction that drew its number early and commits late is neither lost nor out of place. One that stays open for seconds does not stop
/// the stream, and what was sent before it has the id of what came before both.
#[tokio::test]
async fn an_event_that_commits_late_is_not_lost() {
    let house = House::open().await;
    let mut watch = Watch::open(&house, "/events", None).await;
    let mut late = house.kernel.begin(house.t.project_id).await.unwrap();
    let first = add(&mut late, None).await;
    let second = added(&house, None).await;
    assert_eq!(watch.within(Duration::from_millis(800)).await, None, "an event with a lower number may still come");
    late.commit().await.unwrap();
    let begun = Instant::now();
    let (a, b) = (watch.next().await, watch.next().await);
    assert_eq!((a.turn(), b.turn()), (first.to_string().as_str(), second.to_string().as_str()));
    assert!(a.id <= b.id && begun.elapsed() < Duration::from_secs(4), "{a:?} {b:?}");

    let mut late = house.kernel.begin(house.t.project_id).await.unwrap();
    let third = add(&mut late, None).await;
    let fourth = added(&house, None).await;
    let early = watch.next().await;
    assert_eq!(early.turn(), fourth.to_string());
    assert!(early.id >= b.id && early.id < early.data["outbox_seq"].as_i64(), "{early:?}");
    // What commits together with it has a higher number than all that was sent.
    let fifth = add(&mut late, None).await;
    late.commit().await.unwrap();
    let mut two = [watch.next().await, watch.next().await];
    two.sort_by_key(|event| event.data["outbox_seq"].as_i64());
    let [last, with_it] = two;
    assert_eq!((last.turn(), with_it.turn()), (third.to_string().as_str(), fifth.to_string().as_str()));
    assert_eq!(watch.within(Duration::from_millis(800)).await, None, "each came once");
    // A client that continues after what it has got by then gets both, in their order.
    let mut again = Watch::open(&house, "/events", early.id).await;
    let mut both = Vec::new();
    while both.len() < 2 {
        both.extend(Some(again.next().await.data).filter(|data| *data == last.data || *data == early.data));
    }
    assert_eq!(both, [last.data, early.data]);
}

/// UI-10: a turn's own stream does not wait for other transactions.
#[tokio::test]
async fn the_events_of_one_turn_wait_for_no_other() {
    let house = House::open().await;
    let turn_id = added(&house, None).await;
    let mut watch = Watch::open(&house, &format!("/turns/{turn_id}/events"), None).await;
    assert_eq!(watch.next().await.data["status"], "dispatched");
    let mut late = house.kernel.begin(house.t.project_id).await.unwrap();
    add(&mut late, None).await;
    let begun = Instant::now();
    end_all(&house).await;
    let heard = watch.until_ended(1).await;
    assert_eq!(heard.last().map(|event| event.kind.as_str()), Some("task"));
    assert!(begun.elapsed() < Duration::from_millis(1900), "{:?}", begun.elapsed());
    drop(late);
}

/// UI-10: a turn's end that commits late is sent, and its stream ends, while another transaction stays open.
#[tokio::test]
async fn an_end_that_commits_late_is_not_waited_for_in_vain() {
    let house = House::open().await;
    let turn_id = added(&house, None).await;
    let mut project = Watch::open(&house, "/events", None).await;
    let mut one = Watch::open(&house, &format!("/turns/{turn_id}/events"), None).await;
    let endings = claim_all(&house).await;
    let mut open = house.kernel.begin(house.t.project_id).await.unwrap();
    add(&mut open, None).await;
    let mut late = house.kernel.begin(house.t.project_id).await.unwrap();
    turn::finish(&mut late, &endings).await.unwrap();
    let other = added(&house, None).await;
    while project.next().await.turn() != other.to_string() {}
    late.commit().await.unwrap();
    for watch in [&mut one, &mut project] {
        let heard = watch.until_ended(1).await;
        assert_eq!(heard.last().map(Heard::turn), Some(turn_id.to_string().as_str()), "{heard:?}");
    }
    drop(open);
}

/// UI-10: a number that no event has yet does not keep a stream from its events, nor from its end.
#[tokio::test]
async fn a_stream_that_continues_too_far_goes_on_from_now() {
    let house = House::open().await;
    let turn_id = added(&house, None).await;
    let far = 9_000_000_000_000_000_000;
    let mut one = Watch::open(&house, &format!("/turns/{turn_id}/events?after={far}"), None).await;
    let mut project = Watch::open(&house, "/events", Some(far)).await;
    end_all(&house).await;
    assert_eq!(one.until_ended(1).await.last().map(|event| event.kind.as_str()), Some("task"));
    let heard = project.until_ended(1).await;
    assert!(heard.iter().all(|event| event.turn() == turn_id.to_string() && event.id < Some(far)), "{heard:?}");
}

/// WK-5, UI-10: a worker over HTTP sends what its model is writing, while it holds the turn, to the callers that asked for this turn's tokens.
#[tokio::test]
async fn a_worker_over_http_sends_tokens() {
    let house = House::open().await;
    let worker = house.key("w", Scope::Worker).await;
    let started = house.post("/turns", json!({ "profile_name": "hand", "instruction": "x" })).await;
    let turn = started["agent_turn_id"].as_str().unwrap();
    let claim = json!({ "worker": "w", "target": "python", "lease_seconds": 60 });
    let claimed = house.ask(Method::POST, "/worker/claim", Some(&worker), Some(claim)).await.1["turns"][0].clone();
    let path = format!("/turns/{turn}/tokens");
    let piece = |text: &str| json!({ "fence": claimed["fence"], "step_id": StepId::new(), "attempt": 1, "text": text });

    let mut watch = Watch::open(&house, &format!("/events?root={turn}&tokens={turn}"), None).await;
    let sent = house.ask(Method::POST, &path, Some(&worker), Some(piece("Good "))).await;
    assert_eq!((sent.0.as_u16(), &sent.1), (200, &json!({ "sent": true })));
    let heard = watch.next().await;
    assert_eq!((heard.kind.as_str(), heard.id, heard.turn()), ("token", None, turn));
    assert_eq!(heard.data["text"], "Good ");

    let mut old = piece("x");
    old["fence"]["claim_token"] = json!("1000000");
    let mut other = piece("x");
    other["fence"]["agent_id"] = json!(AgentId::new());
    let other_worker = house.key("v", Scope::Worker).await;
    let reader = house.key("r", Scope::Reader).await;
    for (key, body, refusal) in [
        (&worker, old, (409, "stale")),
        (&worker, other, (409, "stale")),
        (&other_worker, piece("x"), (409, "stale")),
        (&reader, piece("x"), (403, "forbidden")),
        (&worker, piece(""), (400, "invalid")),
        (&worker, piece(&"x".repeat(16_385)), (400, "invalid")),
    ] {
        let refused = house.refused(Method::POST, &path, Some(key), Some(body)).await;
        assert_eq!((refused.0, refused.1.as_str()), refusal);
    }
}

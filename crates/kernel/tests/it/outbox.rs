//! Events, and what a relay relies on (L0-9, L0-16).

use std::{collections::BTreeSet, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use waybill_core::{
    bus::{Event, EventKind},
    id::WorkerId,
};
use waybill_kernel::{
    check,
    outbox::{self, Unpublished},
    quarantine,
    turn::{DispatchRequest, Error, Loss},
};

use crate::turns::{House, LONG, answer, calling, instruction, target};

async fn hold(house: &House, relay: WorkerId) -> Vec<i16> {
    outbox::hold(house.kernel(), relay, &target("relay"), LONG).await.unwrap()
}

async fn unpublished(house: &House, relay: WorkerId) -> Vec<Unpublished> {
    outbox::unpublished(house.kernel(), relay, 100).await.unwrap()
}

/// All that is to be published, by one relay that has every shard.
async fn all(house: &House) -> Vec<Event> {
    let relay = WorkerId::new();
    assert_eq!(hold(house, relay).await.len(), 16);
    let events = unpublished(house, relay).await.into_iter().map(|row| row.event).collect();
    waybill_kernel::lease::end(house.kernel(), relay).await.unwrap();
    events
}

fn words(events: &[Event]) -> Vec<String> {
    events.iter().map(|e| format!("{} {}", e.event.as_str(), e.status)).collect()
}

/// L0-9: a turn's events are written with what makes them true: each step, each change of state it asked for, one end.
#[tokio::test]
async fn a_turn_is_told_from_beginning_to_end() {
    let house = House::new().await;
    let card = instruction("tell me");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = DispatchRequest {
        emit_state_event: true,
        channel: Some("news".parse().unwrap()),
        traceparent: Some(trace.to_owned()),
        ..DispatchRequest::instructed(house.agent().await, card.card_id())
    };
    house.enqueue_all(std::slice::from_ref(&request), &[card]).await.unwrap();
    let fence = house.claim().await.unwrap().fence;
    let step = calling(1, "tool", LONG, true);
    house.step(&fence, &step).await.unwrap();
    house.report(&answer(step.calls[0].tool_call_id)).await.unwrap();
    let fence = house.claim().await.unwrap().fence;
    house.reclaim(&fence, &Loss::Lease).await;
    let fence = house.claim().await.unwrap().fence;
    house.finish(fence).await.unwrap();

    let events = all(&house).await;
    assert_eq!(
        words(&events),
        [
            "state dispatched",
            "state running",
            "step suspended",
            "state suspended",
            "state running",
            "state dispatched",
            "state running",
            "task success",
            "state idle"
        ]
    );
    assert!(events.is_sorted_by_key(|event| event.outbox_seq));
    for event in &events {
        assert_eq!(event.agent_turn_id, request.agent_turn_id);
        assert_eq!((event.channel.as_str(), event.traceparent.as_deref()), ("news", Some(trace)));
    }
    let ids: BTreeSet<String> = events.iter().map(Event::message_id).collect();
    assert_eq!(ids.len(), events.len(), "each has an id of its own");
    let task = events.iter().find(|event| event.event == EventKind::Task).unwrap();
    assert_eq!(task.card_id, house.turn(request.agent_turn_id).await.deliverable_card_id);
    assert!(task.step_id.is_some(), "the last step is in the event of the end");
}

/// The same, if turns are claimed and ended many at a time; and a turn that did not ask for states has events of its end and steps only.
#[tokio::test]
async fn many_turns_are_told_as_one_is() {
    let house = House::new().await;
    let agents = house.agents(2).await;
    let cards: Vec<_> = (0..3).map(|_| instruction("tell me")).collect();
    let mut requests: Vec<_> = [agents[0], agents[1], agents[1]]
        .iter()
        .zip(&cards)
        .map(|(agent, card)| DispatchRequest::instructed(*agent, card.card_id()))
        .collect();
    requests[1].emit_state_event = true;
    requests[2].emit_state_event = true;
    house.enqueue_all(&requests, &cards).await.unwrap();
    let mut claiming =
        waybill_kernel::turn::Claiming { most: 2, ..waybill_kernel::turn::Claiming::new(house.worker, target("llm")) };
    let claimed = waybill_kernel::turn::claim(house.kernel(), &mut claiming).await.unwrap();
    assert_eq!(claimed.len(), 2);
    let endings: Vec<_> = claimed.iter().map(|claimed| crate::turns::ending(claimed.fence)).collect();
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    waybill_kernel::turn::finish(&mut alone, &endings).await.unwrap();
    let events = all(&house).await;
    let of = |place: usize| {
        let mine: Vec<Event> =
            events.iter().filter(|e| e.agent_turn_id == requests[place].agent_turn_id).cloned().collect();
        words(&mine)
    };
    assert_eq!(of(0), ["task success"]);
    assert_eq!(of(1), ["state dispatched", "state running", "task success", "state dispatched"]);
    assert_eq!(of(2), ["state dispatched"], "its agent was free when the one before it had ended");
}

/// L0-11: a turn and its events name the root of its tree, however deep it stands, enqueued alone or with others.
#[tokio::test]
async fn a_turn_and_its_events_name_the_root_of_its_tree() {
    let house = House::new().await;
    let root = house.enqueue(house.agent().await).await.agent_turn_id;
    let mut tree = vec![root];
    for n in [1, 2] {
        let cards = crate::instructions(n);
        let parent = tree.last().copied();
        let requests: Vec<_> = house
            .agents(n)
            .await
            .iter()
            .zip(&cards)
            .map(|(agent, card)| DispatchRequest {
                parent_agent_turn_id: parent,
                emit_state_event: true,
                ..DispatchRequest::instructed(*agent, card.card_id())
            })
            .collect();
        house.enqueue_all(&requests, &cards).await.unwrap();
        tree.extend(requests.iter().map(|request| request.agent_turn_id));
    }
    for turn_id in &tree {
        assert_eq!(house.turn(*turn_id).await.root_turn_id, root);
    }
    let events = all(&house).await;
    assert_eq!(words(&events), ["state dispatched"; 3]);
    assert!(events.iter().all(|event| event.root_turn_id == root));
}

/// A turn that is stopped before it was dispatched has no events of its agent's state; and headers that no broker takes are refused.
#[tokio::test]
async fn a_turn_that_never_ran_tells_its_end_only() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    house.enqueue(agent_id).await;
    let card = instruction("behind");
    let request = DispatchRequest { emit_state_event: true, ..DispatchRequest::instructed(agent_id, card.card_id()) };
    house.enqueue_all(std::slice::from_ref(&request), std::slice::from_ref(&card)).await.unwrap();
    house.stop(request.agent_turn_id).await.unwrap();
    assert_eq!(words(&all(&house).await), ["task canceled"]);

    let large = DispatchRequest { tracestate: Some("a".repeat(513)), ..request.clone() };
    let forged = DispatchRequest { traceparent: Some("a\r\nb".to_owned()), ..request };
    for request in [large, forged] {
        let refused = house.enqueue_all(&[request], std::slice::from_ref(&card)).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
}

/// Relays share the shards; a new one gets its part, and a lost one's part goes to those that are left.
#[tokio::test]
async fn relays_share_the_outbox() {
    let house = House::new().await;
    let (first, second) = (WorkerId::new(), WorkerId::new());
    assert_eq!(hold(&house, first).await.len(), 16);
    assert!(hold(&house, second).await.is_empty(), "nothing is free yet");
    assert_eq!(hold(&house, first).await.len(), 8, "it gives up what is beyond its share");
    assert_eq!(hold(&house, second).await.len(), 8);
    waybill_kernel::lease::end(house.kernel(), first).await.unwrap();
    assert_eq!(hold(&house, second).await.len(), 16);
    let again = outbox::hold(house.kernel(), first, &target("relay"), Duration::from_secs(4)).await;
    assert!(matches!(again, Err(Error::LeaseLost)), "{again:?}");
    assert_eq!(unpublished(&house, first).await.len(), 0);
}

/// LESSONS: `id > last` skips what commits late. Ours is found, however low its number.
#[tokio::test]
async fn a_late_commit_is_not_skipped() {
    let house = House::new().await;
    let (early, late) = (house.running().await, house.running().await);
    let mut slow = house.t.begin().await;
    waybill_kernel::turn::finish(&mut slow, &[crate::turns::ending(early)]).await.unwrap();
    house.finish(late).await.unwrap();
    let relay = WorkerId::new();
    hold(&house, relay).await;
    let portion = unpublished(&house, relay).await;
    assert_eq!(portion.len(), 1);
    outbox::mark(house.kernel(), relay, &portion, &[true]).await.unwrap();
    slow.commit().await.unwrap();
    let found = unpublished(&house, relay).await;
    assert_eq!(found.len(), 1);
    assert!(found[0].event.outbox_seq < portion[0].event.outbox_seq);
    assert_eq!(found[0].event.agent_turn_id, early.agent_turn_id());
}

/// A new stream gets everything again, in order, also if a relay is lost on the way; then only what is new.
#[tokio::test]
async fn a_lost_stream_is_told_everything_again() {
    let house = House::new().await;
    let made_at: DateTime<Utc> = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
    let lost_at = made_at + TimeDelta::seconds(5);
    let relay = WorkerId::new();
    hold(&house, relay).await;
    assert!(outbox::publish_to(house.kernel(), made_at).await.unwrap());
    assert!(!outbox::publish_to(house.kernel(), made_at).await.unwrap());
    for _ in 0..6 {
        let fence = house.running().await;
        house.finish(fence).await.unwrap();
    }
    let portion = unpublished(&house, relay).await;
    assert_eq!(portion.len(), 6);
    let mut arrived = vec![true; 6];
    arrived[2] = false;
    outbox::mark(house.kernel(), relay, &portion, &arrived).await.unwrap();
    let left = unpublished(&house, relay).await;
    assert_eq!(left.len(), 1, "what did not arrive is published again");
    outbox::mark(house.kernel(), relay, &left, &[true]).await.unwrap();
    assert_eq!(unpublished(&house, relay).await.len(), 0);

    assert!(outbox::publish_to(house.kernel(), lost_at).await.unwrap());
    assert_eq!(outbox::lag(house.kernel()).await.unwrap().n_replaying, 16);
    let again = outbox::unpublished(house.kernel(), relay, 1).await.unwrap();
    assert!(!again.is_empty() && again.iter().all(|row| row.replayed));
    outbox::mark(house.kernel(), relay, &again, &vec![true; again.len()]).await.unwrap();
    // What was read for the stream before does not move the new one's place.
    assert!(outbox::publish_to(house.kernel(), made_at).await.unwrap());
    outbox::mark(house.kernel(), relay, &again, &vec![true; again.len()]).await.unwrap();
    waybill_kernel::lease::end(house.kernel(), relay).await.unwrap();
    let heir = WorkerId::new();
    hold(&house, heir).await;
    let mut told = Vec::new();
    loop {
        let rows = outbox::unpublished(house.kernel(), heir, 2).await.unwrap();
        if rows.is_empty() {
            break;
        }
        outbox::mark(house.kernel(), heir, &rows, &vec![true; rows.len()]).await.unwrap();
        told.extend(rows.into_iter().map(|row| row.event.outbox_seq));
    }
    told.sort_unstable();
    assert_eq!(told, portion.iter().map(|row| row.event.outbox_seq).collect::<Vec<_>>());
    hold(&house, heir).await;
    assert_eq!(outbox::lag(house.kernel()).await.unwrap().n_replaying, 0);
    let fence = house.running().await;
    house.finish(fence).await.unwrap();
    let new = unpublished(&house, heir).await;
    assert!(new.len() == 1 && !new[0].replayed);
}

/// What the stream refuses waits with all later events of its agent, and holds up no other agent's; once it is released, all comes in order.
#[tokio::test]
async fn events_that_the_stream_refuses_wait_and_hold_up_nobody() {
    let house = House::new().await;
    let made_at: DateTime<Utc> = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
    let relay = WorkerId::new();
    hold(&house, relay).await;
    outbox::publish_to(house.kernel(), made_at).await.unwrap();
    let tell = async |agent_id| {
        house.enqueue(agent_id).await;
        let fence = house.claim().await.unwrap().fence;
        house.step(&fence, &calling(0, "tool", LONG, false)).await.unwrap();
        house.finish(fence).await.unwrap();
    };
    let (refused, other) = (house.agent().await, house.agent().await);
    tell(refused).await;
    tell(other).await;
    let of = |rows: &[Unpublished], agent_id| -> Vec<i64> {
        rows.iter().filter(|row| row.event.agent_id == agent_id).map(|row| row.event.outbox_seq).collect()
    };
    let portion = unpublished(&house, relay).await;
    let all = of(&portion, refused);
    assert!(all.len() > 1 && !of(&portion, other).is_empty());
    let bad = portion.iter().find(|row| row.event.agent_id == refused).unwrap().event.clone();

    // Refusals that follow each other at once are one.
    let patient = outbox::Refusals { most: 2, apart: LONG };
    for _ in 0..3 {
        assert!(!outbox::refuse(house.kernel(), &bad, "too large", &patient).await.unwrap());
    }
    assert_eq!(of(&unpublished(&house, relay).await, refused), all, "it is tried again");
    let at_once = outbox::Refusals { most: 2, apart: Duration::ZERO };
    assert!(outbox::refuse(house.kernel(), &bad, "too large", &at_once).await.unwrap());
    assert!(!outbox::refuse(house.kernel(), &bad, "too large", &at_once).await.unwrap(), "once");
    let listed = quarantine::list(house.kernel(), 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].subject_id), (1, refused.into()));
    assert!(listed[0].last_error.contains(&bad.message_id()) && listed[0].last_error.contains("too large"));
    assert!(!check::quarantined(house.kernel()).await.ok);

    tell(refused).await;
    let rows = unpublished(&house, relay).await;
    assert!(of(&rows, refused).is_empty() && !of(&rows, other).is_empty());
    outbox::mark(house.kernel(), relay, &rows, &vec![true; rows.len()]).await.unwrap();
    assert_eq!(outbox::lag(house.kernel()).await.unwrap().n_unpublished, 0);

    // The stream is lost. The other agents' events are published again, and what is new after that; these still wait.
    let again = async || {
        hold(&house, relay).await;
        let rows = unpublished(&house, relay).await;
        outbox::mark(house.kernel(), relay, &rows, &vec![true; rows.len()]).await.unwrap();
        rows
    };
    outbox::publish_to(house.kernel(), made_at + TimeDelta::seconds(5)).await.unwrap();
    assert!(of(&again().await, refused).is_empty());
    assert!(again().await.is_empty());
    assert_eq!(
        outbox::lag(house.kernel()).await.unwrap().n_replaying,
        0,
        "what waits does not keep the replay from its end"
    );
    tell(other).await;
    assert!(!of(&again().await, other).is_empty());

    let release = async || {
        let mut work = house.t.begin().await;
        assert_eq!(quarantine::retry(&mut work, Some(refused.into())).await.unwrap(), 1);
        work.commit().await.unwrap();
    };
    release().await;
    let told = of(&again().await, refused);
    assert_eq!(told[..all.len()], all);
    assert!(told.len() > all.len() && told.is_sorted());

    // Refused while a new stream gets again what the one before had taken: that too is published, once it is released.
    outbox::publish_to(house.kernel(), made_at + TimeDelta::seconds(9)).await.unwrap();
    for last in [false, true] {
        assert_eq!(outbox::refuse(house.kernel(), &bad, "too large", &at_once).await.unwrap(), last);
    }
    assert!(of(&again().await, refused).is_empty());
    again().await;
    release().await;
    assert_eq!(of(&again().await, refused), told);
}

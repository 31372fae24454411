//! How a process comes to its work (L0-16, L0-17), with a bus that no process hears: by looking.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use waybill_core::{bus::Door, id::WorkerId, turn::TurnStatus};
use waybill_kernel::{
    call::{self, ClaimedCall},
    intake::{Config, Holding, Intake, Order},
    sweep,
    turn::{self, Claimed, Claiming},
};

use crate::turns::{House, calling, ending, target};

const LEASE: Duration = Duration::from_millis(1_000);

fn config(most: usize) -> Config {
    Config {
        lease: LEASE,
        most,
        poll_interval: Duration::from_millis(50),
        poll_interval_with_bus: Duration::from_millis(50),
        ..Config::default()
    }
}

fn intake(house: &House, most: usize) -> Intake<Claimed> {
    Intake::open(house.kernel(), target("llm"), config(most))
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), what).await.expect("it comes soon")
}

/// Holds no more than it may, rings on when it is full, and takes more when something is given back.
#[tokio::test]
async fn an_intake_takes_what_it_has_room_for() {
    let house = House::new().await;
    for agent_id in house.agents(3).await {
        house.enqueue(agent_id).await;
    }
    house.rung();
    let mut intake = intake(&house, 2);
    let (first, second) = (soon(intake.next()).await, soon(intake.next()).await);
    assert_eq!(house.rung(), [Door::Agent(target("llm"))], "there may be more, for others");
    assert!(timeout(LEASE, intake.next()).await.is_err(), "no room");
    house.finish(first.claimed.fence).await.unwrap();
    drop(first);
    let third = soon(intake.next()).await;
    assert_ne!(third.claimed.fence, second.claimed.fence);
}

/// L0-17: what is held stays held for many leases; what an intake silently dropped comes back to it.
#[tokio::test]
async fn a_lease_is_kept_while_something_is_held() {
    let house = House::new().await;
    house.enqueue(house.agent().await).await;
    let mut intake = intake(&house, 2);
    let held = soon(intake.next()).await;
    let brief = sweep::Config { lease: LEASE, ..Default::default() };
    let until = Instant::now() + LEASE * 4;
    while Instant::now() < until {
        assert_eq!(sweep::tick(house.kernel(), &brief).await.unwrap().turns_reclaimed, 0);
        tokio::time::sleep(LEASE / 8).await;
    }
    assert_eq!(held.order(), Order::Go);
    let fence = held.claimed.fence;
    drop(held);
    let again = soon(intake.next()).await;
    assert_eq!(again.claimed.fence, fence, "no other process can have it while our lease holds, so it is ours");
    house.finish(fence).await.unwrap();
}

/// WK-6: a holder learns that its turn is to stop; and that it is lost, when another worker has it.
#[tokio::test]
async fn a_holder_hears_what_becomes_of_its_turn() {
    let house = House::new().await;
    house.enqueue(house.agent().await).await;
    let mut intake = intake(&house, 1);
    let held = soon(intake.next()).await;
    house.stop(held.claimed.fence.agent_turn_id()).await.unwrap();
    assert_eq!(soon(held.called_off()).await, Order::Stop);
    house.meddle("update state.worker_leases set expires_at = '-infinity'").await;
    let lost = async {
        while held.order() != Order::Lost {
            tokio::time::sleep(LEASE / 16).await;
        }
    };
    soon(lost).await;
    assert_eq!(house.sweep().await.turns_reclaimed, 1);
    let again = soon(intake.next()).await;
    assert!(again.claimed.fence.claim_token() > held.claimed.fence.claim_token());
    drop(held);
    assert!(again.claimed.stop_asked);
    house.finish(again.claimed.fence).await.unwrap();
}

/// DESIGN §9.5: a claim whose answer was lost is looked up by its claimant: nothing stays claimed by a process that does not know of it.
#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_found() {
    let house = House::new().await;
    let agents = house.agents(2).await;
    house.enqueue(agents[0]).await;
    let mut intake = intake(&house, 4);
    let held = soon(intake.next()).await;
    let ours = "select worker_id from state.agent_inbox where worker_id is not null";
    let worker_id: WorkerId = sqlx::query_scalar(ours).fetch_one(&mut house.t.admin().await).await.unwrap();
    house.enqueue(agents[1]).await;
    // As the intake would, but the answer goes nowhere.
    let lost = turn::claim(house.kernel(), &mut Claiming::new(worker_id, target("llm"))).await.unwrap();
    assert_eq!(lost.len(), 1);
    let found = soon(intake.next()).await;
    assert_eq!(found.claimed.fence, lost[0].fence);
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    turn::finish(&mut alone, &[ending(found.claimed.fence), ending(held.claimed.fence)]).await.unwrap();
}

/// L0-13: calls are taken in the same way.
#[tokio::test]
async fn a_tool_takes_its_calls() {
    let house = House::new().await;
    let fence = house.running().await;
    house.step(&fence, &calling(2, "tool", LEASE * 100, true)).await.unwrap();
    let mut intake: Intake<ClaimedCall> = Intake::open(house.kernel(), target("tool"), config(8));
    let (one, two) = (soon(intake.next()).await, soon(intake.next()).await);
    assert_ne!(one.claimed.tool_call_id, two.claimed.tool_call_id);
}

/// L0-14: an idle process has no lease and asks for nothing but its looks.
#[tokio::test]
async fn an_idle_process_has_no_lease() {
    let house = House::new().await;
    let idle = intake(&house, 1);
    let waiting = tokio::spawn(async move {
        let mut idle = idle;
        idle.next().await.claimed.clone()
    });
    tokio::time::sleep(LEASE).await;
    assert_eq!(
        house.count("select count(*) from state.worker_leases where worker_target = 'llm'").await,
        1,
        "the house's"
    );
    house.enqueue(house.agent().await).await;
    soon(waiting).await.unwrap();
}

/// WK-7: a caller that stops waiting in the middle of a claim, and asks again, gets it at once. The lease is so long that a renewal would come
/// too late.
#[tokio::test]
async fn a_caller_may_stop_waiting_in_the_middle_of_a_claim() {
    let house = House::new().await;
    house.t.arm_fail_points().await;
    house.enqueue(house.agent().await).await;
    let paused = house.t.pause_at("claim.taken").await;
    let lease = Duration::from_secs(240);
    let mut intake: Intake<Claimed> = Intake::open(house.kernel(), target("llm"), Config { lease, ..config(1) });
    tokio::select! {
        _ = intake.next() => panic!("it waits at the mark"),
        () = paused.reached() => {}
    }
    paused.resume().await;
    let found = soon(intake.next()).await;
    assert_eq!(found.claimed.n_lost_leases, 0, "it was never taken from us");
    house.finish(found.claimed.fence).await.unwrap();
}

/// A process that ends in good order keeps its lease until the last of what it held is done, and then gives it up at once.
#[tokio::test]
async fn an_intake_that_is_gone_gives_its_lease_up() {
    let house = House::new().await;
    house.enqueue(house.agent().await).await;
    let mut intake = intake(&house, 1);
    let held = soon(intake.next()).await;
    drop(intake);
    let brief = sweep::Config { lease: LEASE, ..Default::default() };
    let until = Instant::now() + LEASE * 3;
    while Instant::now() < until {
        assert_eq!(sweep::tick(house.kernel(), &brief).await.unwrap().turns_reclaimed, 0);
        tokio::time::sleep(LEASE / 8).await;
    }
    house.finish(held.claimed.fence).await.unwrap();
    drop(held);
    let ours = "select count(*) from state.worker_leases where expires_at > '-infinity'";
    let ended = async {
        while house.count(ours).await > 1 {
            tokio::time::sleep(LEASE / 16).await;
        }
    };
    timeout(LEASE, ended).await.expect("before it would lapse");
}

/// L0-17: the holder of a turn that was taken away learns of it with the next renewals, though the process is alive and well.
#[tokio::test]
async fn a_turn_that_was_taken_away_is_called_off() {
    let house = House::new().await;
    house.enqueue(house.agent().await).await;
    let mut intake = intake(&house, 1);
    let held = soon(intake.next()).await;
    house.reclaim(&held.claimed.fence, &turn::Loss::Lease).await;
    assert_eq!(soon(held.called_off()).await, Order::Lost);
    let again = soon(intake.next()).await;
    assert!(again.claimed.fence.claim_token() > held.claimed.fence.claim_token());
    drop(held);
    assert_eq!(again.order(), Order::Go, "what was lost does not take along what was claimed again");
}

/// What the database says that the process of `worker_target` holds, at most.
async fn most_held(house: &House) -> i64 {
    house
        .count("select coalesce(max(n), 0) from (select count(*) as n from state.agent_inbox where status = 'processing' group by worker_id) w")
        .await
}

/// L0-16: a claim that was sent is never thrown away, however turns end beside it, and no more is held than `most`. The lease is so long
/// that a claim thrown away would come back after the test has given up.
#[tokio::test]
async fn a_busy_process_throws_no_claim_away() {
    const TURNS: usize = 300;
    let house = House::new().await;
    for agent_id in house.agents(TURNS).await {
        house.enqueue(agent_id).await;
    }
    let lease = Duration::from_secs(240);
    let intake = Intake::<Claimed>::open(house.kernel(), target("llm"), Config { lease, ..config(4) });
    let (told, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let kernel = house.kernel().clone();
    let handle = move |holding: Arc<Holding<Claimed>>| {
        let (kernel, told) = (kernel.clone(), told.clone());
        async move {
            let fence = holding.claimed.fence;
            let mut alone = kernel.alone(fence.project_id()).await.unwrap();
            turn::finish(&mut alone, &[ending(fence)]).await.unwrap();
            told.send(fence.agent_turn_id()).map_err(|_| "the test is over".to_owned())
        }
    };
    let serving = tokio::spawn(intake.serve(std::future::pending(), Duration::ZERO, handle));
    let mut seen = HashSet::new();
    while seen.len() < TURNS {
        assert!(seen.insert(soon(ended.recv()).await.unwrap()), "each is run once");
        if seen.len() % 10 == 0 {
            assert!(most_held(&house).await <= 4);
        }
    }
    serving.abort();
    let lost = "select count(*) from state.agent_inbox";
    assert_eq!(house.count(lost).await, 0);
}

/// Work that turns up under our name is taken up only where there is room.
#[tokio::test]
async fn unknown_claims_are_taken_up_within_most() {
    let house = House::new().await;
    for agent_id in house.agents(5).await {
        house.enqueue(agent_id).await;
    }
    let mut intake = intake(&house, 2);
    let (first, second) = (soon(intake.next()).await, soon(intake.next()).await);
    let ours = "select worker_id from state.agent_inbox where worker_id is not null limit 1";
    let worker_id: WorkerId = sqlx::query_scalar(ours).fetch_one(&mut house.t.admin().await).await.unwrap();
    let mut claiming = Claiming { most: 2, ..Claiming::new(worker_id, target("llm")) };
    let unknown_claims = turn::claim(house.kernel(), &mut claiming).await.unwrap();
    assert_eq!(unknown_claims.len(), 2);
    assert!(timeout(LEASE * 3, intake.next()).await.is_err(), "there is no room");
    let mut held = vec![first, second];
    for n in 1..=2 {
        house.finish(held.remove(0).claimed.fence).await.unwrap();
        let found = soon(intake.next()).await;
        assert!(unknown_claims.iter().any(|claim| claim.fence == found.claimed.fence), "before what is new");
        assert_eq!(most_held(&house).await, 4 - n);
        held.push(found);
    }
    house.finish(held.remove(0).claimed.fence).await.unwrap();
    let new = soon(intake.next()).await;
    assert!(!unknown_claims.iter().any(|claim| claim.fence == new.claimed.fence));
    assert!(most_held(&house).await <= 2);
}

/// L0-6: a handler that panics, or gives up, is an attempt that failed: counted, and ended after three.
#[tokio::test]
async fn a_handler_that_panics_is_an_attempt_that_failed() {
    let house = House::new().await;
    let turn_id = house.enqueue(house.agent().await).await.agent_turn_id;
    let intake = intake(&house, 1);
    let (told, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let serving =
        tokio::spawn(intake.serve(std::future::pending(), Duration::ZERO, move |holding| {
            told.send(holding.claimed.retry_count).unwrap();
            async move {
                if holding.claimed.retry_count == 1 { Err("no more".to_owned()) } else { panic!("at the worst time") }
            }
        }));
    for n in 0..3 {
        assert_eq!(soon(begun.recv()).await, Some(n));
        let given_back = async {
            while house.count("select count(*) from state.agent_inbox where status = 'processing'").await > 0 {
                tokio::time::sleep(LEASE / 16).await;
            }
        };
        soon(given_back).await;
        house.meddle("update state.agent_inbox set next_retry_at = now()").await;
        house.sweep().await;
    }
    serving.abort();
    assert_eq!(house.turn(turn_id).await.status, TurnStatus::Failed);
}

/// The same for calls: after three the turn gets the reason, and goes on.
#[tokio::test]
async fn a_call_whose_handler_gives_up_is_answered() {
    let house = House::new().await;
    let fence = house.running().await;
    let step = calling(1, "tool", LEASE * 100, true);
    house.step(&fence, &step).await.unwrap();
    let intake = Intake::<ClaimedCall>::open(house.kernel(), target("tool"), config(8));
    let (told, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let serving = tokio::spawn(intake.serve(std::future::pending(), Duration::ZERO, move |holding| {
        told.send((holding.claimed.retry_count, holding.claimed.n_lost_leases)).unwrap();
        async { Err("the tool is out of order".to_owned()) }
    }));
    for n in 0..3 {
        assert_eq!(soon(begun.recv()).await, Some((n, 0)));
    }
    let answered = async {
        loop {
            let mut work = house.t.begin().await;
            if let Some(card_id) = call::answer(&mut work, step.calls[0].tool_call_id).await.unwrap() {
                break card_id;
            }
            tokio::time::sleep(LEASE / 16).await;
        }
    };
    soon(answered).await;
    serving.abort();
    let again = house.claim().await.expect("the turn is ready again");
    assert_eq!(again.fence.agent_turn_id(), fence.agent_turn_id());
    let failed = "select count(*) from state.execution_edges where primitive = 'report' and edge_phase = 'response'";
    assert_eq!(house.count(failed).await, 1);
}

/// A process that ends lets what is under way come to its end, and gives back at once what it has claimed and not begun.
#[tokio::test]
async fn a_process_that_ends_gives_its_work_back() {
    let house = House::new().await;
    for agent_id in house.agents(3).await {
        house.enqueue(agent_id).await;
    }
    let lease = Duration::from_secs(240);
    let intake = Intake::<Claimed>::open(house.kernel(), target("llm"), Config { lease, ..config(3) });
    let (told, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let kernel = house.kernel().clone();
    let serving = tokio::spawn(intake.serve(async { drop(ended.await) }, Duration::from_secs(2), move |holding| {
        let (kernel, told) = (kernel.clone(), told.clone());
        async move {
            let n = told.send(holding.claimed.fence).map(|()| 0).unwrap_or(1);
            assert_eq!(n, 0);
            tokio::time::sleep(Duration::from_millis(500)).await;
            let fence = holding.claimed.fence;
            let mut alone = kernel.alone(fence.project_id()).await.unwrap();
            turn::finish(&mut alone, &[ending(fence)]).await.unwrap();
            Ok(())
        }
    }));
    for _ in 0..3 {
        soon(begun.recv()).await.unwrap();
    }
    for agent_id in house.agents(3).await {
        house.enqueue(agent_id).await;
    }
    end.send(()).unwrap();
    soon(serving).await.unwrap();
    assert_eq!(house.count("select count(*) from state.turns where status = 'success'").await, 3);
    let live = "select count(*) from state.worker_leases where expires_at > '-infinity'";
    assert_eq!(house.count(live).await, 1, "the house's own; the lease is given up before the loop returns");
}

//! How a process comes to its work (L0-16, L0-17), with a bus that nobody hears: by looking.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use waybill_core::{bus::Door, id::WorkerId};
use waybill_kernel::{
    call::ClaimedCall,
    intake::{Config, Intake, Order},
    sweep,
    turn::{self, Claimed, Claiming},
};

use crate::turns::{House, calling, ending, target};

const LEASE: Duration = Duration::from_millis(400);

fn config(most: usize) -> Config {
    Config {
        lease: LEASE,
        most,
        wary: Duration::from_millis(50),
        trusting: Duration::from_millis(50),
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

/// L0-17: what is held stays held for many leases; what an intake gave up without a word comes back to it.
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
    assert_eq!(again.claimed.fence, fence, "nobody else can have it while our lease holds, so it is ours to do");
    house.finish(fence).await.unwrap();
}

/// WK-6: a holder hears that its turn is to stop; and that it is lost, when somebody else has it.
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

/// DESIGN §9.5: a claim whose answer was lost is looked up by who claimed: nothing stays claimed by somebody who does not know of it.
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
    let lost = turn::claim(house.kernel().pool(), &mut Claiming::new(worker_id, target("llm"))).await.unwrap();
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

/// WK-7: a claim that was given up in the middle is found, not left to lapse.
#[tokio::test]
async fn a_claim_given_up_in_the_middle_is_found() {
    let house = House::new().await;
    house.t.arm_fail_points().await;
    house.enqueue(house.agent().await).await;
    let lease = Duration::from_secs(3);
    let mut intake: Intake<Claimed> = Intake::open(house.kernel(), target("llm"), Config { lease, ..config(1) });
    let paused = house.t.pause_at("claim.taken").await;
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

/// L0-17: whoever holds a turn that was taken away hears of it with the next renewals, though the process is alive and well.
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
    assert_eq!(again.order(), Order::Go, "what was lost does not take along what was claimed anew");
}

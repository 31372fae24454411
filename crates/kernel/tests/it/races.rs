//! Two sessions at once, with one held at a mark between two statements (L0-5; `docs/protocol.md`).
//!
//! Each race is also run with the SQL that suggests itself, on tables of the test's own, to show that it loses.

use std::sync::Arc;

use sqlx::PgConnection;
use waybill_core::turn::{End, Status, TurnStatus};
use waybill_kernel::turn::{self, Loss, Reclaimed, ReportOutcome, Stopped};

use crate::turns::{House, LONG, answer, calling, ending, is_stale};

async fn armed() -> Arc<House> {
    let house = House::new().await;
    house.t.arm_fail_points().await;
    Arc::new(house)
}

/// Two plain sessions, and the least of the tables that a naive transition needs.
async fn naive(house: &House) -> (PgConnection, PgConnection, PgConnection) {
    let mut owner = house.t.admin().await;
    sqlx::raw_sql(
        "create schema naive;
         create table naive.head (status text, turn int, epoch int);
         create table naive.inbox (turn int, status text);
         create table naive.step (turn int, epoch int);
         create table naive.call (id int);
         create table naive.task (id int, status text);
         create table naive.delivered (turn int, status text)",
    )
    .execute(&mut owner)
    .await
    .unwrap();
    (house.t.admin().await, house.t.admin().await, owner)
}

async fn run(connection: &mut PgConnection, sql: &'static str) -> u64 {
    sqlx::raw_sql(sql).execute(connection).await.unwrap().rows_affected()
}

async fn number(connection: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

/// Holds the first at a mark until the second waits for what the first has locked; then both go on.
async fn race<A, B>(
    house: &House,
    mark: &str,
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> (A, B) {
    let paused = house.t.pause_at(mark).await;
    tokio::join!(first, async {
        paused.reached().await;
        let resume = async {
            house.t.until_blocked(2).await;
            paused.resume().await;
        };
        tokio::join!(second, resume).0
    })
}

/// The same with either of them first, as `a_first` says; the outcomes stand in the order of the arguments.
async fn race_either_way<A, B>(
    house: &House,
    mark: &str,
    a_first: bool,
    a: impl Future<Output = A>,
    b: impl Future<Output = B>,
) -> (A, B) {
    if a_first {
        race(house, mark, a, b).await
    } else {
        let (b, a) = race(house, mark, b, a).await;
        (a, b)
    }
}

/// A step that has begun is before the reclaim, and the reclaim waits for it; one that comes after is stale. Nothing between.
#[tokio::test]
async fn a_stale_insert_beside_a_reclaim() {
    let house = armed().await;
    let fence = house.running().await;
    let step = calling(1, "tool", LONG, false);
    let (stepped, reclaimed) =
        race(&house, "step.cards", house.step(&fence, &step), house.reclaim(&fence, &Loss::Lease)).await;
    assert!(stepped.is_ok(), "it was first");
    assert!(matches!(reclaimed, Reclaimed::Armed));

    let fence = house.claim().await.unwrap().fence;
    let step = calling(1, "tool", LONG, false);
    let (reclaimed, stepped) =
        race(&house, "reclaim.locked", house.reclaim(&fence, &Loss::Lease), house.step(&fence, &step)).await;
    assert!(matches!(reclaimed, Reclaimed::Armed));
    assert!(is_stale(&stepped));
    assert_eq!(house.count("select count(*) from state.agent_steps").await, 1);

    let (mut a, mut b, mut owner) = naive(&house).await;
    run(&mut owner, "insert into naive.head values ('running', 1, 1)").await;
    run(&mut a, "begin; insert into naive.step select 1, 1 where exists (select from naive.head where epoch = 1)")
        .await;
    run(&mut b, "update naive.head set epoch = 2").await;
    run(&mut a, "commit").await;
    let stale = "select count(*) from naive.step s join naive.head h using (turn) where s.epoch < h.epoch";
    assert_eq!(number(&mut owner, stale).await, 1, "fenced by WHERE alone, a stale row is committed after the reclaim");
}

/// Enqueue sees the agent busy, finish sees nothing queued: with the head's lock first, one of them sees the other.
#[tokio::test]
async fn an_enqueue_beside_a_finish() {
    let house = armed().await;
    for (first, mark) in [
        ("finish", "finish.locked"),
        ("finish", "finish.next"),
        ("enqueue", "enqueue.locked"),
        ("enqueue", "enqueue.row"),
    ] {
        let fence = house.running().await;
        let agent_id = fence.agent_id();
        let (finish, enqueue) = (house.finish(fence), house.enqueue(agent_id));
        race_either_way(&house, mark, first == "finish", finish, enqueue).await.0.unwrap();
        let next = house.claim().await.unwrap_or_else(|| panic!("the turn is lost: {mark}"));
        assert_eq!(next.fence.agent_id(), agent_id);
        house.finish(next.fence).await.unwrap();
        assert_eq!(house.head(agent_id).await.n_queued, 0);
    }

    let (mut a, mut b, mut owner) = naive(&house).await;
    run(&mut owner, "insert into naive.head values ('running', 1, 1)").await;
    run(&mut a, "begin; select from naive.head for no key update; insert into naive.inbox values (2, 'queued')").await;
    let finish = tokio::spawn(async move {
        run(
            &mut b,
            "with next as (select turn from naive.inbox where status = 'queued' limit 1)
             update naive.head set status = case when exists (select from next) then 'dispatched' else 'idle' end",
        )
        .await
    });
    house.t.until_blocked(1).await;
    run(&mut a, "commit").await;
    finish.await.unwrap();
    let lost = "select count(*) from naive.head, naive.inbox where head.status = 'idle' and inbox.status = 'queued'";
    assert_eq!(number(&mut owner, lost).await, 1, "looked up in the statement that waits, the queued turn is not seen");
}

/// The last result and the suspension: the second one sees the first.
#[tokio::test]
async fn a_result_beside_a_suspend() {
    let house = armed().await;
    for (first, mark) in [
        ("suspend", "step.locked"),
        ("suspend", "step.suspended"),
        ("report", "report.locked"),
        ("report", "report.applied"),
    ] {
        let fence = house.running().await;
        let step = calling(1, "tool", LONG, false);
        house.step(&fence, &step).await.unwrap();
        let report = answer(step.calls[0].tool_call_id);
        let wait = calling(0, "tool", LONG, true);
        let (stepped, reported) =
            race_either_way(&house, mark, first == "suspend", house.step(&fence, &wait), house.report(&report)).await;
        assert_eq!(reported.unwrap().outcome, ReportOutcome::Applied);
        let suspended = stepped.unwrap().suspended;
        assert_eq!(suspended, first == "suspend", "{mark}");
        // Either it goes on, or it was resumed.
        let fence = if suspended { house.claim().await.expect("it was resumed").fence } else { fence };
        house.finish(fence).await.unwrap();
    }

    let (mut a, mut b, mut owner) = naive(&house).await;
    run(&mut owner, "insert into naive.head values ('running', 1, 1); insert into naive.call values (1)").await;
    run(&mut a, "begin; update naive.head set status = 'suspended' where exists (select from naive.call)").await;
    run(&mut b, "begin; delete from naive.call; insert into naive.inbox select 1, 'pending' from naive.head where status = 'suspended'; commit").await;
    run(&mut a, "commit").await;
    let stuck = "select count(*) from naive.head where status = 'suspended' and not exists (select from naive.call)
                    and not exists (select from naive.inbox)";
    assert_eq!(number(&mut owner, stuck).await, 1, "without the head's lock the turn waits for nothing, for ever");
}

/// Two children that end last: the batch is closed once, and the parent gets the result.
#[tokio::test]
async fn two_last_children() {
    let house = armed().await;
    for mark in ["finish.locked", "finish.turn", "finish.tasks", "finish.slot", "finish.batch", "join.closed"] {
        let family = house.family(2, false, LONG).await;
        let (one, two) = (house.claim().await.unwrap(), house.claim().await.unwrap());
        if mark == "join.closed" {
            house.end_child(&one, End::Success).await;
        }
        let paused = house.t.pause_at(mark).await;
        let h = house.clone();
        let (early, late) = if mark == "join.closed" { (two.clone(), None) } else { (one, Some(two)) };
        let first = tokio::spawn(async move { h.end_child(&early, End::Success).await });
        paused.reached().await;
        let h = house.clone();
        let second = late.map(|late| tokio::spawn(async move { h.end_child(&late, End::Success).await }));
        if mark == "finish.batch" {
            house.t.until_blocked(2).await; // the first has the batch's row: the second waits for it, and is the last
        } else if second.is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        paused.resume().await;
        first.await.unwrap();
        if let Some(second) = second {
            second.await.unwrap();
        }
        let parent = house.claim().await.unwrap_or_else(|| panic!("the parent got no result: {mark}"));
        assert_eq!(parent.fence.agent_turn_id(), family.parent.agent_turn_id());
        assert_eq!(house.told(&parent).await["status"], "success");
        house.finish(parent.fence).await.unwrap();
    }
    assert_eq!(house.count("select count(*) from state.pmo_batches where status <> 'success'").await, 0);

    let (mut a, mut b, mut owner) = naive(&house).await;
    run(&mut owner, "insert into naive.task values (1, 'open'), (2, 'open')").await;
    run(&mut a, "begin; update naive.task set status = 'done' where id = 1").await;
    run(&mut b, "begin; update naive.task set status = 'done' where id = 2").await;
    let close = "insert into naive.delivered select 0, 'closed' where not exists (select from naive.task where status = 'open')";
    assert_eq!(
        run(&mut a, close).await + run(&mut b, close).await,
        0,
        "each sees the other's as open: the batch never closes"
    );
    run(&mut a, "commit").await;
    run(&mut b, "commit").await;
}

/// A stop and a finish: one end, one deliverable, one event.
#[tokio::test]
async fn a_stop_beside_a_finish() {
    let house = armed().await;
    for (first, mark) in [("finish", "finish.locked"), ("finish", "finish.event"), ("stop", "stop.locked")] {
        let fence = house.running().await;
        let turn_id = fence.agent_turn_id();
        let (finish, stop) = (house.finish(fence), house.stop(turn_id));
        let (finished, stopped) = race_either_way(&house, mark, first == "finish", finish, stop).await;
        finished.unwrap();
        assert_eq!(stopped.unwrap(), if first == "finish" { Stopped::Over } else { Stopped::Asked });
        assert_eq!(house.turn(turn_id).await.status, TurnStatus::Success);
        assert_eq!(house.head(fence.agent_id()).await.status, Status::Idle);
    }
    assert_eq!(house.count("select count(*) from state.outbox").await, 3);

    let (mut a, mut b, mut owner) = naive(&house).await;
    run(&mut owner, "insert into naive.head values ('running', 1, 1)").await;
    run(&mut a, "begin; insert into naive.delivered select turn, 'success' from naive.head where status = 'running'; update naive.head set status = 'idle'").await;
    run(&mut b, "insert into naive.delivered select turn, 'canceled' from naive.head where status = 'running'").await;
    run(&mut a, "commit").await;
    assert_eq!(
        number(&mut owner, "select count(*) from naive.delivered").await,
        2,
        "looked at without a lock, it ends twice"
    );
}

/// A parent ends while a child counts down in its batch: the end is refused and tried again, and takes the fork with it. Without that the other
/// children would run until the batch's own deadline.
#[tokio::test]
async fn an_end_beside_a_count_down() {
    let house = armed().await;
    // Seventeen children share sixteen slots: the end of one brings its slot to zero and locks the batch.
    let family = house.family(17, false, LONG).await;
    let mut children = Vec::new();
    while let Some(child) = house.claim().await {
        children.push(child);
    }
    let paused = house.t.pause_at("finish.batch").await;
    let (h, second) = (house.clone(), children[1].clone());
    let counting = tokio::spawn(async move { h.end_child(&second, End::Success).await });
    paused.reached().await;
    let parent = family.parent.agent_turn_id();
    let refused = house.stop(parent).await;
    assert!(matches!(refused, Err(turn::Error::TryAgain(_))), "{refused:?}");
    assert_eq!(house.turn(parent).await.status, TurnStatus::Open, "nothing of it is written");
    paused.resume().await;
    counting.await.unwrap();
    assert_eq!(house.stop(parent).await.unwrap(), Stopped::Ended);
    let swept = house.sweep().await;
    assert_eq!((swept.batches_closed, swept.batches_stopped), (1, 1), "its children are asked");
    let told = "select count(*) from state.agent_inbox where stop_asked";
    assert_eq!(house.count(told).await, 16);

    let (mut a, mut b, mut owner) = naive(&house).await;
    run(&mut owner, "insert into naive.task values (1, 'open')").await;
    run(&mut a, "begin; update naive.task set status = status").await;
    let skipping = "update naive.task t set status = 'over'
                      from (select id from naive.task for no key update skip locked) s where s.id = t.id";
    assert_eq!(run(&mut b, skipping).await, 0, "no transaction ends what is skipped because it is locked");
    run(&mut a, "commit").await;
}

/// A reclaim trusts no list: a worker that claimed the turn since keeps it, and a claim never waits.
#[tokio::test]
async fn a_claim_beside_a_reclaim() {
    let house = armed().await;
    let old = house.running().await;
    // Reclaimed and not yet committed: no worker can claim it, and none waits.
    let paused = house.t.pause_at("reclaim.armed").await;
    let h = house.clone();
    let reclaim = tokio::spawn(async move { h.reclaim(&old, &Loss::Lease).await });
    paused.reached().await;
    assert!(house.claim().await.is_none());
    paused.resume().await;
    assert!(matches!(reclaim.await.unwrap(), Reclaimed::Armed));
    // Claimed and not yet committed: a second sweep with the list from before waits, and then finds its fence gone.
    let paused = house.t.pause_at("claim.taken").await;
    let h = house.clone();
    let claim = tokio::spawn(async move { h.claim().await });
    paused.reached().await;
    let h = house.clone();
    let late = tokio::spawn(async move { h.reclaim(&old, &Loss::Lease).await });
    let other = house.claim().await;
    paused.resume().await;
    assert!(other.is_none(), "one owner");
    assert_eq!(late.await.unwrap(), Reclaimed::Stale);
    let claimed = claim.await.unwrap().unwrap();
    // A claim leaves alone what another transaction has locked: here a stop that holds the head.
    house.reclaim(&claimed.fence, &Loss::Lease).await;
    let paused = house.t.pause_at("stop.locked").await;
    let h = house.clone();
    let stop = tokio::spawn(async move { h.stop(old.agent_turn_id()).await });
    paused.reached().await;
    assert!(house.claim().await.is_none());
    paused.resume().await;
    assert!(matches!(stop.await.unwrap().unwrap(), Stopped::Ended));

    let (mut a, mut b, mut owner) = naive(&house).await;
    run(
        &mut owner,
        "insert into naive.head values ('running', 1, 2); insert into naive.inbox values (1, 'processing')",
    )
    .await;
    // A list made at epoch 1; the turn was claimed again since, at epoch 2.
    run(&mut a, "update naive.inbox set status = 'pending' where turn = 1").await;
    let second = "update naive.inbox set status = 'processing' where turn = 1 and status = 'pending'";
    assert_eq!(run(&mut b, second).await, 1, "reclaimed by id alone, it has a second owner beside the first");
    assert_eq!(number(&mut owner, "select count(*) from naive.head where status = 'running' and epoch = 2").await, 1);
}

/// A finish of many takes its locks in one order, like an enqueue of many: they cannot wait for each other.
#[tokio::test]
async fn many_at_once_do_not_deadlock() {
    let house = Arc::new(House::new().await);
    let agents = house.agents(12).await;
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..6usize {
        let (house, mut agents) = (house.clone(), agents.clone());
        tasks.spawn(async move {
            for round in 0..15usize {
                agents.rotate_left((client + round) % 12);
                let card = crate::turns::instruction("x");
                let mut requests: Vec<_> =
                    agents.iter().map(|a| turn::DispatchRequest::instructed(*a, card.card_id())).collect();
                requests.truncate(8);
                house.enqueue_all(&requests, &[card]).await.unwrap();
                let mut claiming =
                    turn::Claiming { most: 8, ..turn::Claiming::new(house.worker, crate::turns::target("llm")) };
                let claimed = turn::claim(house.kernel(), &mut claiming).await.unwrap();
                let endings: Vec<_> = claimed.iter().rev().map(|claimed| ending(claimed.fence)).collect();
                let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
                turn::finish(&mut alone, &endings).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    while let Some(claimed) = house.claim().await {
        house.finish(claimed.fence).await.unwrap();
    }
    assert_eq!(house.count("select count(*) from state.turns where status = 'success'").await, 6 * 15 * 8);
    assert_eq!(house.count("select count(*) from state.agent_inbox").await, 0);
    assert_eq!(
        house.count("select count(*) from state.agent_state_head where status <> 'idle' or n_queued <> 0").await,
        0
    );
}

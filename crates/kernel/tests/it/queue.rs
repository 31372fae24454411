//! The queue of ready turns: its order, and the marks that let a claim begin where the queue is not done yet (DESIGN 11).

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use waybill_core::{
    id::{AgentId, ProjectId, TurnId},
    turn::Fence,
};
use waybill_kernel::{
    agent, invariant, turn,
    turn::{Attempts, Claiming, DispatchRequest, Loss},
    work::UnitOfWork,
};

use crate::{
    cases,
    turns::{House, LONG, answer, calling, ending, instruction, target},
};

const DRAW: &str = "select count(nextval('state.agent_inbox_inbox_seq_seq')) from generate_series(1, 500)";

/// Draws as many places as a mark needs to be moved, and moves it where it may be. Says whether it was.
async fn mark(house: &House, project_id: ProjectId) -> bool {
    let mut admin = house.t.admin().await;
    sqlx::query(DRAW).execute(&mut admin).await.unwrap();
    sqlx::query_scalar("select state.mark_queue('llm', $1)").bind(project_id).fetch_one(&mut admin).await.unwrap()
}

async fn marked_upto(house: &House) -> i64 {
    house.count("select coalesce(max(new_seq), -1) from state.queue_marks").await
}

/// A turn that was begun comes before those that are new, whenever it became ready; of either kind the first that was ready comes first.
#[tokio::test]
async fn what_was_begun_comes_first() {
    let house = House::new().await;
    let (first, second) = (house.running().await, house.running().await);
    let new = house.enqueue(house.agent().await).await.agent_turn_id;
    house.reclaim(&second, &Loss::Lease).await;
    let step = calling(1, "tool", LONG, true);
    house.step(&first, &step).await.unwrap();
    house.report(&answer(step.calls[0].tool_call_id)).await.unwrap();
    for expected in [second.agent_turn_id(), first.agent_turn_id(), new] {
        assert_eq!(house.claim().await.unwrap().fence.agent_turn_id(), expected);
    }
}

/// Whatever was marked and when, a claim takes what a look without marks would.
#[tokio::test]
async fn a_claim_takes_what_a_plain_look_would() {
    let house = House::new().await;
    let mut projects = Vec::new();
    for _ in 0..3 {
        let (project_id, agents) = (ProjectId::new(), (0..40).map(|_| AgentId::new()).collect::<Vec<_>>());
        let mut work = house.kernel().begin(project_id).await.unwrap();
        agent::create(&mut work, &agents, &target("llm")).await.unwrap();
        work.commit().await.unwrap();
        projects.push((project_id, agents));
    }
    let mut claiming = Claiming::new(house.worker, target("llm"));
    let (mut held, mut n_claimed, mut dice) = (Vec::<Fence>::new(), 0, 7_u64);
    let mut admin = house.t.admin().await;
    for n in 0..cases(400) {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (what, which) = (dice >> 60, (dice >> 33) as usize);
        let (project_id, agents) = &projects[which % 3];
        match what {
            0..5 => {
                let card = instruction("x");
                let request = DispatchRequest::instructed(agents[which / 3 % agents.len()], card.card_id());
                let mut alone = house.kernel().alone(*project_id).await.unwrap();
                turn::enqueue(&mut alone, &[request], &[card]).await.unwrap();
            }
            5..9 => {
                let plain: Option<TurnId> = sqlx::query_scalar(
                    "select agent_turn_id from state.agent_inbox where status = 'pending'
                      order by project_id <= $1, project_id, inbox_seq limit 1",
                )
                .bind(claiming.after)
                .fetch_optional(&mut admin)
                .await
                .unwrap();
                let claimed = turn::claim(house.kernel(), &mut claiming).await.unwrap().pop();
                assert_eq!(claimed.as_ref().map(|claimed| claimed.fence.agent_turn_id()), plain, "after {n}");
                n_claimed += u32::from(claimed.is_some());
                held.extend(claimed.map(|claimed| claimed.fence));
            }
            9..11 if !held.is_empty() => {
                house.finish(held.swap_remove(which % held.len())).await.unwrap();
            }
            11..13 if !held.is_empty() => {
                let fence = held.swap_remove(which % held.len());
                let mut work = house.kernel().begin(fence.project_id()).await.unwrap();
                turn::reclaim(&mut work, &fence, &Loss::Lease, Attempts::default()).await.unwrap();
                work.commit().await.unwrap();
            }
            13..15 if !held.is_empty() => {
                let fence = held.swap_remove(which % held.len());
                let step = calling(1, "tool", LONG, true);
                house.step(&fence, &step).await.unwrap();
                let mut alone = house.kernel().alone(fence.project_id()).await.unwrap();
                turn::report(&mut alone, &answer(step.calls[0].tool_call_id)).await.unwrap();
            }
            _ => {
                mark(&house, *project_id).await;
            }
        }
    }
    assert!(n_claimed > 50, "{n_claimed}");
    assert_eq!(
        house
            .count("select count(*) from state.queue_marks where new_seq > 0 and begun_seq > -4611686018427387904")
            .await,
        3
    );
    for (project_id, _) in &projects {
        let broken = invariant::of_project(house.kernel(), *project_id).await.unwrap();
        assert!(broken.is_empty(), "{broken:?}");
    }
    // Many at once find the rest.
    let ready = house.count("select count(*) from state.agent_inbox where status = 'pending'").await;
    let mut all = Claiming { most: 1_000, ..claiming };
    let mut rest = 0;
    while let taken @ 1.. = turn::claim(house.kernel(), &mut all).await.unwrap().len() {
        rest += taken;
    }
    assert_eq!(rest as i64, ready);
}

/// An agent's turn, in a transaction that is still open.
async fn enqueue_in(work: &mut UnitOfWork, agent_id: AgentId) -> TurnId {
    let card = instruction("late");
    let request = DispatchRequest::instructed(agent_id, card.card_id());
    turn::enqueue(work, std::slice::from_ref(&request), &[card]).await.unwrap();
    request.agent_turn_id
}

/// A mark does not move past a place whose turn may still be armed: not while the transaction that drew it is open.
#[tokio::test]
async fn a_mark_waits_for_a_transaction_that_drew_a_place_before_it() {
    let house = House::new().await;
    let project_id = house.t.project_id;
    let agents = house.agents(4).await;
    let (mut early, mut late) = (house.t.begin().await, house.t.begin().await);
    let first = enqueue_in(&mut early, agents[0]).await;
    let turn_id = enqueue_in(&mut late, agents[1]).await;
    let last = enqueue_in(&mut early, agents[2]).await;
    early.commit().await.unwrap();
    // The newest transaction that is over is older than the late one: no snapshot's xmax is above its id.
    let mut admin = house.t.admin().await;
    let step = "select state.mark_queue('llm', $1)";
    assert!(sqlx::query_scalar::<_, bool>(step).bind(project_id).fetch_one(&mut admin).await.unwrap());
    assert_eq!(house.claim().await.unwrap().fence.agent_turn_id(), first);
    for _ in 0..3 {
        assert!(!mark(&house, project_id).await, "a transaction that holds an earlier place is open");
    }
    assert_eq!(marked_upto(&house).await, 0);
    // One that began after the mark's first step does not count: the mark moves, up to the turn that was late.
    let mut later = house.t.begin().await;
    enqueue_in(&mut later, agents[3]).await;
    late.commit().await.unwrap();
    assert!(mark(&house, project_id).await);
    assert_eq!(
        marked_upto(&house).await,
        house.count("select min(inbox_seq) from state.agent_inbox where status = 'pending'").await
    );
    for expected in [turn_id, last] {
        assert_eq!(house.claim().await.expect("it is ready").fence.agent_turn_id(), expected);
    }
    drop(later);
}

/// A transaction that is prepared goes under another name. It still holds its place.
#[tokio::test]
async fn a_mark_waits_for_a_prepared_transaction() {
    let house = House::new().await;
    let project_id = house.t.project_id;
    let agent_id = house.agent().await;
    let mut work = house.t.begin().await;
    let turn_id = enqueue_in(&mut work, agent_id).await;
    assert!(mark(&house, project_id).await);
    let name = format!("late {turn_id}");
    sqlx::raw_sql(AssertSqlSafe(format!("prepare transaction '{name}'"))).execute(&mut *work).await.unwrap();
    assert!(!mark(&house, project_id).await);
    assert_eq!(marked_upto(&house).await, 0);
    let mut admin = house.t.admin().await;
    sqlx::raw_sql(AssertSqlSafe(format!("commit prepared '{name}'"))).execute(&mut admin).await.unwrap();
    assert!(mark(&house, project_id).await);
    assert_eq!(house.claim().await.expect("it is ready").fence.agent_turn_id(), turn_id);
    drop(work);
}

/// Also where there is no mark yet: the claim goes on without one.
#[tokio::test]
async fn a_first_mark_is_not_made_beside_a_prepared_transaction() {
    let house = House::new().await;
    let project_id = house.t.project_id;
    let mut work = house.t.begin().await;
    let turn_id = enqueue_in(&mut work, house.agent().await).await;
    let name = format!("first {turn_id}");
    sqlx::raw_sql(AssertSqlSafe(format!("prepare transaction '{name}'"))).execute(&mut *work).await.unwrap();
    assert!(!mark(&house, project_id).await);
    assert_eq!(house.count("select count(*) from state.queue_marks").await, 0);
    let mut admin = house.t.admin().await;
    sqlx::raw_sql(AssertSqlSafe(format!("commit prepared '{name}'"))).execute(&mut admin).await.unwrap();
    assert!(mark(&house, project_id).await);
    drop(work);
}

/// What a mark asks of a snapshot, only "read committed" gives.
#[tokio::test]
async fn a_mark_does_not_move_under_an_old_snapshot() {
    let house = House::new().await;
    let mut admin = house.t.admin().await;
    let mut old = admin.begin().await.unwrap();
    sqlx::raw_sql("set transaction isolation level repeatable read").execute(&mut *old).await.unwrap();
    let moved = sqlx::query_scalar::<_, bool>("select state.mark_queue('llm', $1)").bind(house.t.project_id);
    assert!(!moved.fetch_one(&mut *old).await.unwrap());
    old.rollback().await.unwrap();
    // A session that keeps places in store would use an early one late, in a transaction that no mark knew of.
    let cached = "select seqcache from pg_sequence where seqrelid = 'state.agent_inbox_inbox_seq_seq'::regclass";
    assert_eq!(house.count(cached).await, 1);
}

/// A transaction that an operator holds open, and that has written elsewhere, does not keep a mark where it is.
#[tokio::test]
async fn a_mark_does_not_wait_for_other_transactions() {
    let house = House::new().await;
    let project_id = house.t.project_id;
    let mut admin = house.t.admin().await;
    let mut other: sqlx::Transaction<'_, sqlx::Postgres> = PgConnection::begin(&mut admin).await.unwrap();
    sqlx::query("create table public.elsewhere ()").execute(&mut *other).await.unwrap();
    sqlx::query("select count(*) from state.agent_inbox").execute(&mut *other).await.unwrap();
    house.meddle("delete from state.queue_marks").await;
    assert!(mark(&house, project_id).await);
    assert!(mark(&house, project_id).await);
    assert!(marked_upto(&house).await > 0);
    other.rollback().await.unwrap();
}

/// A mark says how many run: as many as may be claimed, and no more.
#[tokio::test]
async fn a_cap_holds_with_marks() {
    let house = House::new().await;
    for agent_id in house.agents(8).await {
        house.enqueue(agent_id).await;
    }
    house.meddle("delete from state.queue_marks").await;
    assert!(mark(&house, house.t.project_id).await);
    let mut one = Claiming { in_flight_cap: 4, ..Claiming::new(house.worker, target("llm")) };
    let mut many = Claiming { most: 10, ..one.clone() };
    let first = turn::claim(house.kernel(), &mut one).await.unwrap().remove(0);
    assert_eq!(turn::claim(house.kernel(), &mut many).await.unwrap().len(), 3);
    assert!(turn::claim(house.kernel(), &mut one).await.unwrap().is_empty());
    turn::finish(&mut house.kernel().alone(house.t.project_id).await.unwrap(), &[ending(first.fence)]).await.unwrap();
    assert_eq!(turn::claim(house.kernel(), &mut one).await.unwrap().len(), 1);
    assert!(turn::claim(house.kernel(), &mut many).await.unwrap().is_empty());
}

/// A look that read more than so many entries marks its queue, another does not, and a mark that is not moved for a minute is forgotten.
#[tokio::test]
async fn a_long_look_leaves_a_mark() {
    let house = House::new().await;
    let marks = "select count(*) from state.queue_marks";
    let mut admin = house.t.admin().await;
    for (long, expected) in [("1", 0), ("0", 1)] {
        house.meddle("delete from state.queue_marks").await;
        house.enqueue(house.agent().await).await;
        sqlx::query("select set_config('waybill.long_look', $1, false)").bind(long).execute(&mut admin).await.unwrap();
        let claim = "select agent_turn_id from scheduler.claim($1, 'llm', $2, 10, '1 hour', '1 hour')";
        let claimed: Option<TurnId> =
            sqlx::query_scalar(claim).bind(house.worker).bind(ProjectId::nil()).fetch_one(&mut admin).await.unwrap();
        assert!(claimed.is_some());
        assert_eq!(house.count(marks).await, expected, "{long}");
    }
    assert_eq!(house.sweep().await.marks_forgotten, 0);
    house.meddle("update state.queue_marks set marked_at = now() - interval '2 minutes'").await;
    assert_eq!(house.sweep().await.marks_forgotten, 1);
    assert_eq!(house.count(marks).await, 0);
}

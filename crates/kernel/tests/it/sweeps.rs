//! Watchdogs, leases, quarantine, rebuilding (L0-14, L0-15, L0-17), and callers' keys (CB-4).

use std::time::Duration;

use serde_json::json;
use waybill_core::{
    bus::Door,
    card::CardHash,
    id::{AgentId, ProjectId, TurnId},
    turn::{MessageType, Status},
};
use waybill_kernel::{
    agent,
    idempotency::{self, Key},
    lease, quarantine,
    sweep::{self, Sweep},
    turn::{self, Claiming, DispatchRequest, Error, Loss},
    work::{Config, Kernel},
};

use crate::turns::{House, LONG, answer, calling, instruction, is_stale, target};

/// L0-17: a worker that does not renew loses its turns to others, which resume them; its lease is gone for good.
#[tokio::test]
async fn a_lapsed_worker_loses_its_turns() {
    let house = House::new().await;
    let brief = lease::start(house.kernel(), &target("llm"), LONG).await.unwrap();
    let agents = house.agents(3).await;
    for agent_id in &agents {
        house.enqueue(*agent_id).await;
    }
    let lost = house.claim_as(brief).await.unwrap().remove(0);
    let kept = house.claim().await.unwrap();
    lease::renew::<TurnId>(house.kernel(), brief, Duration::ZERO).await.unwrap();
    let swept = house.sweep().await;
    assert_eq!((swept.leases_lapsed, swept.turns_reclaimed), (1, 1));
    assert!(matches!(lease::renew::<TurnId>(house.kernel(), brief, LONG).await, Err(Error::LeaseLost)));
    assert!(matches!(house.claim_as(brief).await, Err(Error::LeaseLost)), "a name that was lost stays lost");
    assert!(is_stale(&house.finish(lost.fence).await));
    house.finish(kept.fence).await.unwrap();
    let again = house.claim().await.unwrap();
    assert_eq!((again.fence.agent_turn_id(), again.n_lost_leases), (lost.fence.agent_turn_id(), 1));
    assert_eq!(house.sweep().await.turns_reclaimed, 0);
}

/// A worker whose lease row is gone: what it holds is found all the same, and given to others.
#[tokio::test]
async fn what_a_worker_without_a_lease_row_holds_goes_to_others() {
    let house = House::new().await;
    let fence = house.running().await;
    house.step(&fence, &calling(1, "tool", LONG, true)).await.unwrap();
    let call = house.claim_calls("tool", 1).await.remove(0);
    let held = house.running().await;
    assert_eq!(lease::end_missing(house.kernel()).await.unwrap(), 0, "it has its lease");
    house.meddle("delete from state.worker_leases").await;
    let swept = house.sweep().await;
    assert_eq!((swept.turns_reclaimed, swept.calls_reclaimed), (0, 0), "sweeps start from leases");
    assert_eq!(lease::end_missing(house.kernel()).await.unwrap(), 1);
    let swept = house.sweep().await;
    assert_eq!((swept.turns_reclaimed, swept.calls_reclaimed), (1, 1));
    assert_eq!(lease::end_missing(house.kernel()).await.unwrap(), 0);
    let house = House::of(house.t).await;
    assert_eq!(house.claim().await.unwrap().fence.agent_turn_id(), held.agent_turn_id());
    assert_eq!(house.claim_calls("tool", 1).await.remove(0).tool_call_id, call.tool_call_id);
}

/// L0-17: nothing is reclaimed until one lease after the database, or sweeping itself, came up: no worker could have renewed.
#[tokio::test]
async fn nothing_is_reclaimed_right_after_an_outage() {
    let house = House::new().await;
    let fence = house.running().await;
    let config = sweep::Config { lease: Duration::from_secs(30 * 86_400), ..Default::default() };
    house.meddle("update state.worker_leases set expires_at = now() - interval '1 minute'").await;
    house.meddle("update state.sweep_clock set beat_at = now() - interval '60 days', steady_since = now() - interval '90 days'").await;
    // The server itself came up less than a month ago, and no process has swept for two.
    assert_eq!(sweep::tick(house.kernel(), &config).await.unwrap().leases_lapsed, 0);
    let steady = "select count(*) from state.sweep_clock where steady_since > now() - interval '1 minute'";
    assert_eq!(
        house.count(steady).await,
        0,
        "while the server was away no process could sweep: that is not another outage"
    );
    house.meddle("update state.sweep_clock set beat_at = now() - interval '2 hours'").await;
    let second = sweep::Config { lease: Duration::from_secs(1), ..Default::default() };
    assert_eq!(sweep::tick(house.kernel(), &second).await.unwrap().leases_lapsed, 0);
    assert_eq!(house.count(steady).await, 1, "the server was there and no process swept: the gap was seen");
    lease::renew::<TurnId>(house.kernel(), house.worker, LONG).await.unwrap();
    house.finish(fence).await.unwrap();

    // A second's lease, swept all the time: it lapses only when it has been steady for as long.
    let config = sweep::Config { lease: Duration::from_millis(300), ..Default::default() };
    let brief = lease::start(house.kernel(), &target("llm"), Duration::ZERO).await.unwrap();
    house.meddle("update state.sweep_clock set steady_since = now(), beat_at = now()").await;
    assert_eq!(sweep::tick(house.kernel(), &config).await.unwrap().leases_lapsed, 0);
    let mut lapsed = 0;
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        lapsed += sweep::tick(house.kernel(), &config).await.unwrap().leases_lapsed;
        if lapsed > 0 {
            break;
        }
    }
    assert_eq!(lapsed, 1);
    assert!(matches!(lease::renew::<TurnId>(house.kernel(), brief, LONG).await, Err(Error::LeaseLost)));
}

/// L0-14: a worker that is alive while its turn is silent loses the turn; steps count as life.
#[tokio::test]
async fn a_silent_turn_is_given_to_another() {
    let house = House::new().await;
    let (speaking, silent) = (house.running().await, house.running().await);
    house.step(&speaking, &calling(0, "x", LONG, false)).await.unwrap();
    house.meddle("update state.agent_inbox set silent_by = now()").await;
    let config = sweep::Config { silence: Duration::from_secs(60), lease: Duration::ZERO, ..Default::default() };
    let swept = sweep::tick(house.kernel(), &config).await.unwrap();
    assert_eq!(swept.turns_silent, 1);
    assert!(is_stale(&house.finish(silent).await));
    house.finish(speaking).await.unwrap();
    assert_eq!(house.claim().await.unwrap().n_lost_leases, 1);
}

/// L0-14, LESSONS: a nudge is a doorbell, never a row: targets with ready work are named, and nothing is written.
#[tokio::test]
async fn ready_work_is_rung_for_again() {
    let house = House::new().await;
    house.enqueue(house.agent().await).await;
    let fence = house.running().await;
    house.step(&fence, &calling(1, "tool", LONG, true)).await.unwrap();
    house.enqueue(house.agent().await).await;
    house.rung();
    for _ in 0..2 {
        let swept = house.sweep().await;
        assert_eq!(swept.doors_rung, 2);
        assert_eq!(house.rung(), [Door::Agent(target("llm")), Door::Tool(target("tool"))]);
    }
    assert_eq!(house.count("select count(*) from state.agent_inbox").await, 3);
    assert_eq!(house.count("select count(*) from state.agent_inbox where dispatched_at is null").await, 0);
}

/// LESSONS: one bad row does not hold up the others; after some failures it stands aside until an operator looks.
#[tokio::test]
async fn a_bad_row_goes_into_quarantine() {
    let house = House::new().await;
    let (bad, good) = (house.running().await, house.running().await);
    let steps = [calling(1, "tool", Duration::ZERO, true), calling(1, "tool", Duration::ZERO, true)];
    house.step(&bad, &steps[0]).await.unwrap();
    house.step(&good, &steps[1]).await.unwrap();
    // From here on one of the two calls cannot be taken away, so that its timeout fails at every sweep.
    house
        .meddle(
            "create function state.break() returns trigger language plpgsql as $$ begin raise exception 'broken'; end $$;
            ",
        )
        .await;
    let sql = format!(
        "create trigger break before delete on state.waiting_calls for each row
           when (old.tool_call_id = '{}') execute function state.break()",
        steps[0].calls[0].tool_call_id
    );
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut house.t.admin().await).await.unwrap();
    let first = house.sweep().await;
    assert_eq!((first.calls_timed_out, first.failures), (1, 1), "the good one is not held up");
    for _ in 0..4 {
        assert_eq!(house.sweep().await.failures, 1);
    }
    assert_eq!(house.sweep().await.failures, 0, "left alone");
    let listed = quarantine::list(house.kernel(), 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].n_failures, listed[0].sweep.as_str()), (1, 5, "overdue_calls"));
    assert!(listed[0].quarantined_at.is_some() && listed[0].last_error.contains("broken"), "{listed:?}");

    house.meddle("drop trigger break on state.waiting_calls").await;
    let mut work = house.t.begin().await;
    assert_eq!(quarantine::retry(&mut work, None).await.unwrap(), 1);
    work.commit().await.unwrap();
    assert_eq!(house.sweep().await.calls_timed_out, 1);
    assert!(quarantine::list(house.kernel(), 10).await.unwrap().is_empty());
}

/// A row that takes too long is tried for a while, since the server may be to blame, and not for ever.
#[tokio::test]
async fn a_row_that_times_out_goes_into_quarantine_in_the_end() {
    let house = House::new().await;
    let fence = house.running().await;
    house.step(&fence, &calling(1, "tool", Duration::ZERO, true)).await.unwrap();
    let slow = "create function state.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return old; end $$;
                create trigger slow before delete on state.waiting_calls for each row execute function state.slow()";
    sqlx::raw_sql(slow).execute(&mut house.t.admin().await).await.unwrap();
    let soon = format!("alter role waybill_service in database {} set statement_timeout = '100ms'", house.t.name);
    sqlx::raw_sql(sqlx::AssertSqlSafe(soon)).execute(&mut house.t.admin().await).await.unwrap();
    let kernel = Kernel::connect_unchecked(&Config::new(house.t.server.service_url(&house.t.name))).await.unwrap();
    let config = sweep::Config { lease: Duration::ZERO, max_failures: 2, ..Default::default() };
    for n in 1..=8 {
        let swept = sweep::run(&kernel, &config, Sweep::Overdue).await.unwrap();
        assert_eq!((swept.failures, swept.calls_timed_out), (1, 0), "{n}");
    }
    assert_eq!(sweep::run(&kernel, &config, Sweep::Overdue).await.unwrap(), sweep::Swept::default(), "left alone");
    let listed = quarantine::list(house.kernel(), 10).await.unwrap();
    assert!(listed[0].quarantined_at.is_some() && listed[0].n_failures == 8, "{listed:?}");
}

/// What takes long is left where it is after a while: the next tick goes on with it, and the other sweeps have had theirs.
#[tokio::test]
async fn a_long_sweep_leaves_the_rest_to_the_next_tick() {
    let house = House::new().await;
    for _ in 0..3 {
        let fence = house.running().await;
        house.step(&fence, &calling(1, "tool", Duration::ZERO, true)).await.unwrap();
    }
    // Each waits a second for its head.
    let mut holding = house.t.admin().await;
    sqlx::raw_sql("begin; select from state.agent_state_head for update").execute(&mut holding).await.unwrap();
    let config = sweep::Config { lease: Duration::ZERO, ..Default::default() };
    let swept = sweep::run(house.kernel(), &config, Sweep::Overdue).await.unwrap();
    assert_eq!((swept.calls_timed_out, swept.left_over), (0, 2));
    sqlx::raw_sql("rollback").execute(&mut holding).await.unwrap();
    let swept = sweep::run(house.kernel(), &config, Sweep::Overdue).await.unwrap();
    assert_eq!((swept.calls_timed_out, swept.left_over), (3, 0));
}

/// One whose head is locked takes the time of a whole portion. The others of its shard have their turn all the same.
#[tokio::test]
async fn a_locked_row_does_not_starve_those_behind_it() {
    let house = House::new().await;
    let shard = loop {
        let fence = house.running().await;
        house.step(&fence, &calling(1, "tool", Duration::ZERO, true)).await.unwrap();
        let full = "select shard from state.waiting_calls group by shard having count(*) >= 4";
        if let Some(shard) =
            sqlx::query_scalar::<_, i16>(full).fetch_optional(&mut house.t.admin().await).await.unwrap()
        {
            break shard;
        }
    };
    // The first of them.
    let mut holding = house.t.admin().await;
    let lock = format!(
        "begin; select from state.agent_state_head where agent_id = (
           select agent_id from state.waiting_calls where shard = {shard} order by deadline_at limit 1) for update"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut holding).await.unwrap();
    let config = sweep::Config { lease: Duration::ZERO, shards: vec![shard], ..Default::default() };
    let mut timed_out = 0;
    for _ in 0..40 {
        timed_out += sweep::run(house.kernel(), &config, Sweep::Overdue).await.unwrap().calls_timed_out;
        if timed_out == 3 {
            break;
        }
    }
    assert_eq!(timed_out, 3, "all but the one that is locked");
    sqlx::raw_sql("rollback").execute(&mut holding).await.unwrap();
}

/// L0-14: a sweep takes its portion of its shards, and any number of them may run at once.
#[tokio::test]
async fn sweeps_are_sharded_limited_and_shared() {
    let house = House::new().await;
    for _ in 0..20 {
        let fence = house.running().await;
        house.step(&fence, &calling(1, "tool", Duration::ZERO, true)).await.unwrap();
    }
    let few = sweep::Config { lease: Duration::ZERO, most: 3, ..Default::default() };
    assert_eq!(sweep::tick(house.kernel(), &few).await.unwrap().calls_timed_out, 3);
    let half = |shards: std::ops::Range<i16>| sweep::Config {
        lease: Duration::ZERO,
        shards: shards.collect(),
        ..Default::default()
    };
    let (low, high) = (half(0..8), half(8..16));
    let (a, b, c) = tokio::join!(
        sweep::tick(house.kernel(), &low),
        sweep::tick(house.kernel(), &high),
        sweep::tick(house.kernel(), &low),
    );
    let done = [a, b, c].map(|swept| swept.unwrap().calls_timed_out);
    assert_eq!(done.iter().sum::<u64>(), 17, "each once: {done:?}");
    assert!(done[1] > 0);
    assert_eq!(house.count("select count(*) from state.quarantine").await, 0);
}

/// L0-15: a lost head is rebuilt from inbox, turns, steps and edges, wherever the agent stood.
#[tokio::test]
async fn a_lost_head_is_rebuilt() {
    let house = House::new().await;
    let lose = "delete from state.agent_state_head";
    let rebuild = async |agent_id: AgentId| {
        let mut work = house.t.begin().await;
        assert_eq!(agent::without_head(&mut work, 10).await.unwrap(), [agent_id]);
        let head = agent::rebuild(&mut work, agent_id).await.unwrap();
        work.commit().await.unwrap();
        head
    };
    // Running, with two turns queued behind it.
    let fence = house.running().await;
    let agent_id = fence.agent_id();
    house.step(&fence, &calling(0, "x", LONG, false)).await.unwrap();
    let queued = [house.enqueue(agent_id).await, house.enqueue(agent_id).await].map(|d| d.agent_turn_id);
    house.meddle(lose).await;
    assert!(is_stale(&house.finish(fence).await));
    let head = rebuild(agent_id).await;
    assert_eq!(
        (head.status, head.active_agent_turn_id, head.n_queued),
        (Status::Dispatched, Some(fence.agent_turn_id()), 2)
    );
    assert!(head.turn_epoch > fence.turn_epoch(), "L0-6");
    assert!(is_stale(&house.finish(fence).await), "the old holder is powerless");
    let again = house.claim().await.unwrap();
    assert!(again.fence.claim_token() > fence.claim_token());
    house.finish(again.fence).await.unwrap();
    // Dispatched.
    house.meddle(lose).await;
    assert_eq!(rebuild(agent_id).await.active_agent_turn_id, Some(queued[0]));
    let claimed = house.claim().await.unwrap();
    // Suspended: answers are refused while there is no head, and taken when there is.
    let step = calling(2, "tool", LONG, true);
    house.step(&claimed.fence, &step).await.unwrap();
    house.report(&answer(step.calls[0].tool_call_id)).await.unwrap();
    house.meddle(lose).await;
    let early = house.report(&answer(step.calls[1].tool_call_id)).await;
    assert!(matches!(early, Err(Error::HeadLost(_))), "{early:?}");
    assert!(matches!(house.stop(queued[0]).await, Err(Error::HeadLost(_))));
    assert_eq!(rebuild(agent_id).await.status, Status::Suspended);
    assert!(house.claim().await.is_none());
    house.report(&answer(step.calls[1].tool_call_id)).await.unwrap();
    let resumed = house.claim().await.unwrap();
    assert_eq!(resumed.message_type, MessageType::ToolResult);
    house.finish(resumed.fence).await.unwrap();
    let last = house.claim().await.unwrap();
    assert_eq!(last.fence.agent_turn_id(), queued[1]);
    house.finish(last.fence).await.unwrap();
    // Idle: epochs go on from where they were.
    house.meddle(lose).await;
    let head = rebuild(agent_id).await;
    assert_eq!(head.status, Status::Idle);
    assert!(head.turn_epoch > last.fence.turn_epoch());
    let mut work = house.t.begin().await;
    assert_eq!(agent::rebuild(&mut work, agent_id).await.unwrap(), head, "one that is there is left as it is");
    assert!(matches!(agent::rebuild(&mut work, AgentId::new()).await, Err(Error::NotFound(_))));
}

/// DESIGN §9: round robin over projects, and no more of one project at once than its cap.
#[tokio::test]
async fn claims_are_fair_and_capped() {
    let house = House::new().await;
    let mut projects = Vec::new();
    for n_turns in [30, 2, 2] {
        let project_id = ProjectId::new();
        let agents: Vec<AgentId> = (0..n_turns).map(|_| AgentId::new()).collect();
        let mut work = house.kernel().begin(project_id).await.unwrap();
        agent::create(&mut work, &agents, &target("llm")).await.unwrap();
        let card = instruction("x");
        let requests: Vec<_> = agents.iter().map(|a| DispatchRequest::instructed(*a, card.card_id())).collect();
        turn::enqueue(&mut work, &requests, &[card]).await.unwrap();
        work.commit().await.unwrap();
        projects.push(project_id);
    }
    let order = |claimed: &[turn::Claimed]| -> Vec<usize> {
        claimed.iter().map(|c| projects.iter().position(|p| *p == c.fence.project_id()).unwrap()).collect()
    };
    let mut claiming = Claiming { after: ProjectId::nil(), ..Claiming::new(house.worker, target("llm")) };
    let mut one_by_one = Vec::new();
    for _ in 0..6 {
        one_by_one.extend(turn::claim(house.kernel(), &mut claiming).await.unwrap());
    }
    assert_eq!(order(&one_by_one), [0, 1, 2, 0, 1, 2]);
    for claimed in &one_by_one[..1] {
        house.reclaim_in(claimed, &Loss::Lease).await;
    }
    let capped = Claiming { in_flight_cap: 4, most: 10, after: ProjectId::nil(), ..claiming.clone() };
    let many = turn::claim(house.kernel(), &mut capped.clone()).await.unwrap();
    assert_eq!(many.len(), 3, "one project is left, and it has one running");
    assert!(turn::claim(house.kernel(), &mut capped.clone()).await.unwrap().is_empty(), "at its cap");
    let mut single = Claiming { most: 1, ..capped.clone() };
    assert!(turn::claim(house.kernel(), &mut single).await.unwrap().is_empty(), "at its cap");
    let mut other = Claiming { in_flight_cap: 100, ..single };
    assert_eq!(turn::claim(house.kernel(), &mut other).await.unwrap().len(), 1);
    // In one call, each project has its share.
    let late = ProjectId::new();
    let mut work = house.kernel().begin(late).await.unwrap();
    let agents: Vec<AgentId> = (0..4).map(|_| AgentId::new()).collect();
    agent::create(&mut work, &agents, &target("llm")).await.unwrap();
    let card = instruction("x");
    let requests: Vec<_> = agents.iter().map(|a| DispatchRequest::instructed(*a, card.card_id())).collect();
    turn::enqueue(&mut work, &requests, &[card]).await.unwrap();
    work.commit().await.unwrap();
    let mut fair = Claiming { most: 4, in_flight_cap: 100, after: ProjectId::nil(), ..other };
    let shared = turn::claim(house.kernel(), &mut fair).await.unwrap();
    assert_eq!(shared.iter().filter(|c| c.fence.project_id() == late).count(), 2, "{shared:?}");
}

/// CB-4: a caller's key and its answer are written together; of two at once one does the work; another request with the key is refused.
#[tokio::test]
async fn a_callers_key_is_answered_once() {
    let house = House::new().await;
    let (request, other) = (CardHash::from_bytes([1; 32]), CardHash::from_bytes([2; 32]));
    let mut work = house.t.begin().await;
    assert_eq!(idempotency::take(&mut work, "k", request, LONG).await.unwrap(), Key::New);
    let kernel = house.kernel().clone();
    let project_id = house.t.project_id;
    let second = tokio::spawn(async move {
        let mut work = kernel.begin(project_id).await.unwrap();
        idempotency::take(&mut work, "k", request, LONG).await.unwrap()
    });
    house.t.until_blocked(1).await;
    idempotency::answer(&mut work, "k", &json!({"agent_turn_id": 7})).await.unwrap();
    work.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), Key::Answered(json!({"agent_turn_id": 7})));
    let mut work = house.t.begin().await;
    assert_eq!(idempotency::take(&mut work, "k", other, LONG).await.unwrap(), Key::Mismatch);
    drop(work);
    // Given up: the key is free again. Over: too, and the sweep takes it away.
    let mut work = house.t.begin().await;
    assert_eq!(idempotency::take(&mut work, "given up", request, LONG).await.unwrap(), Key::New);
    drop(work);
    let mut work = house.t.begin().await;
    assert_eq!(idempotency::take(&mut work, "given up", other, Duration::ZERO).await.unwrap(), Key::New);
    work.commit().await.unwrap();
    let mut work = house.t.begin().await;
    assert_eq!(idempotency::take(&mut work, "given up", request, Duration::ZERO).await.unwrap(), Key::New);
    work.commit().await.unwrap();
    assert_eq!(house.sweep().await.keys_forgotten, 1);
    let mut elsewhere = house.kernel().begin(ProjectId::new()).await.unwrap();
    assert_eq!(
        idempotency::take(&mut elsewhere, "k", other, LONG).await.unwrap(),
        Key::New,
        "each project has its own"
    );
}

/// A turn whose time has come while its agent's queue is full waits for a place, and is not put aside.
#[tokio::test]
async fn a_due_turn_waits_for_a_place_in_the_queue() {
    let house = House::new().await;
    let agent_id = house.agent().await;
    house.meddle("update state.agent_state_head set queue_cap = 1").await;
    let card = instruction("later");
    let mut request = DispatchRequest::instructed(agent_id, card.card_id());
    request.not_before = Some(chrono::Utc::now() + LONG);
    house.enqueue_all(std::slice::from_ref(&request), &[card]).await.unwrap();
    house.enqueue(agent_id).await;
    house.enqueue(agent_id).await;
    let due = "update state.agent_inbox set next_retry_at = now() where next_retry_at is not null";
    for _ in 0..6 {
        house.meddle(due).await;
        assert_eq!(house.sweep().await.failures, 0);
    }
    assert_eq!(house.head(agent_id).await.n_queued, 1);
    for _ in 0..2 {
        house.finish(house.claim().await.unwrap().fence).await.unwrap();
    }
    house.meddle(due).await;
    house.sweep().await;
    assert_eq!(house.claim().await.unwrap().fence.agent_turn_id(), request.agent_turn_id);
}

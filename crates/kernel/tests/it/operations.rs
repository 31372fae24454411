//! What an operator relies on: vitals, invariants that are held to, history that is dropped, versions that follow each other.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use chrono::{TimeDelta, Utc};
use sqlx::AssertSqlSafe;
use tokio::task::JoinSet;
use waybill_core::{
    card::{CardType, Content, Draft, Role},
    id::{TurnId, WorkerId},
    metric,
    span::Record,
    turn::{End, Fence, Limits, MessageType, TurnStatus, Usage},
};
use waybill_kernel::{
    batch, invariant, lease, migrate, outbox,
    record::{self, Mark, NewRecording},
    retention, sweep, trace,
    turn::{self, DispatchRequest, Ending, Loss, Step},
    vitals,
    work::{Config, Error, Kernel},
};

use waybill_testkit::recorded_call;

use crate::{
    batches::Plan,
    budgets::limited,
    turns::{House, LONG, answer, calling, ending, instruction, target, thought},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::test]
async fn vitals_say_how_the_system_is() {
    let house = House::new().await;
    for agent_id in house.agents(3).await {
        house.enqueue(agent_id).await;
    }
    let fence = house.claim().await.unwrap().fence;
    house.step(&fence, &calling(1, "tool", LONG, true)).await.unwrap();
    house.claim().await.unwrap();
    let read = vitals::read(house.kernel()).await.unwrap();
    let of = |name: &str, target: &str, status: &str| {
        let found = read.iter().find(|vital| {
            vital.vital == name
                && vital.target.as_deref().unwrap_or_default() == target
                && vital.status.as_deref().unwrap_or_default() == status
        });
        found.map(|vital| vital.value)
    };
    assert_eq!(of(metric::QUEUE_TURNS, "llm", "pending"), Some(1.0));
    assert_eq!(of(metric::QUEUE_TURNS, "llm", "processing"), Some(1.0));
    assert_eq!(of(metric::CALLS, "tool", "pending"), Some(1.0));
    assert_eq!(of(metric::WORKERS, "llm", ""), Some(1.0));
    assert!(of(metric::QUEUE_OLDEST_SECONDS, "llm", "").unwrap() >= 0.0);
    assert!(of(metric::OUTBOX_EVENTS, "", "").unwrap() >= 1.0);
    for vital in &read {
        assert!(metric::ALL.iter().any(|metric| metric.name == vital.vital), "{}", vital.vital);
    }
    let busy = vitals::busiest(house.kernel(), 10).await.unwrap();
    let busy = busy.iter().find(|busy| busy.project_id == house.t.project_id).unwrap();
    assert_eq!((busy.n_pending, busy.n_processing), (1, 1));
}

/// A transaction that another role holds open is seen, if the owner was given the right to look.
#[tokio::test]
async fn the_oldest_transaction_is_seen() {
    let house = House::new().await;
    house.meddle("grant pg_read_all_stats to waybill_scheduler").await;
    let mut other = house.t.admin().await;
    sqlx::raw_sql("begin; select 1").execute(&mut other).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let read = vitals::read(house.kernel()).await.unwrap();
    let oldest = read.iter().find(|vital| vital.vital == metric::OLDEST_TRANSACTION_SECONDS).unwrap();
    assert!(oldest.value > 1.0, "{oldest:?}");
}

/// What a turn did is on record, for its trace.
#[tokio::test]
async fn a_turn_can_be_traced_once_it_has_ended() {
    let house = House::new().await;
    let fence = house.running().await;
    let step = calling(1, "tool", LONG, true);
    house.step(&fence, &step).await.unwrap();
    let call_id = step.calls[0].tool_call_id;
    let of =
        async |turn_id: TurnId| -> Option<Record> { trace::record(&mut house.t.begin().await, turn_id).await.unwrap() };
    assert!(of(fence.agent_turn_id()).await.is_none(), "it has not ended");
    house.report(&answer(call_id)).await.unwrap();
    let fence = house.claim().await.unwrap().fence;
    house.finish(fence).await.unwrap();
    let record = of(fence.agent_turn_id()).await.unwrap();
    assert_eq!((record.status, record.place().parent_span_id), (TurnStatus::Success, None));
    assert_eq!(record.spans().len(), 2, "the turn and its call, no model was asked: {record:?}");
    assert!(of(TurnId::new()).await.is_none());
}

const COUNTS: &str = "a batch counts its open tasks; once it has ended its end is on record and its counters are gone";

/// What is done, what it breaks, and how it is mended. An id that begins with an f is not in use.
const MEDDLED: [(&str, &[&str], &str); 30] = [
    (
        "update state.agent_state_head set status = 'dispatched', queue_cap = 999 where status = 'running'",
        &["an agent runs its turn if and only if a worker has claimed it"],
        "update state.agent_state_head set status = 'running', queue_cap = 1000 where queue_cap = 999",
    ),
    (
        "with h as (update state.agent_state_head set status = 'suspended', queue_cap = 999 where status = 'running' returning agent_id)
         update state.agent_inbox i set status = 'deferred', stop_reason = i.worker_id::text, worker_id = null
           from h where i.agent_id = h.agent_id and i.status = 'processing'",
        &["a suspended turn waits for a call or for a time, or is ready"],
        "with h as (update state.agent_state_head set status = 'running', queue_cap = 1000 where queue_cap = 999 returning agent_id)
         update state.agent_inbox i set status = 'processing', worker_id = i.stop_reason::uuid, stop_reason = null
           from h where i.agent_id = h.agent_id and i.status = 'deferred'",
    ),
    (
        "update state.agent_inbox set status = 'deferred', stop_reason = 'meddled' where status = 'pending'",
        &["a dispatched turn is ready, or waits for its time"],
        "update state.agent_inbox set status = 'pending', stop_reason = null where stop_reason = 'meddled'",
    ),
    (
        "update state.agent_state_head set status = 'idle', active_agent_turn_id = null where n_queued > 0",
        &["an idle agent has nothing queued, ready or claimed", "a queued turn is behind another turn of its agent"],
        "update state.agent_state_head h set status = 'running', active_agent_turn_id = i.agent_turn_id
           from state.agent_inbox i where h.n_queued > 0 and i.agent_id = h.agent_id and i.status = 'processing'",
    ),
    (
        "update state.agent_inbox set turn_epoch = turn_epoch - 1 where status = 'pending'",
        &["a ready turn is the one that its agent is on, at the same epoch"],
        "update state.agent_inbox set turn_epoch = turn_epoch + 1 where status = 'pending'",
    ),
    (
        "update state.worker_leases set worker_id = overlay(worker_id::text placing 'f' from 1)::uuid",
        &["a worker that holds a turn or a call has a lease"],
        "update state.worker_leases set worker_id = overlay(worker_id::text placing '0' from 1)::uuid",
    ),
    (
        "update state.waiting_calls set agent_turn_id = overlay(agent_turn_id::text placing 'f' from 1)::uuid",
        &[
            "a call that is waited for belongs to the turn that its agent is on",
            "a suspended turn waits for a call or for a time, or is ready",
        ],
        "update state.waiting_calls set agent_turn_id = overlay(agent_turn_id::text placing '0' from 1)::uuid",
    ),
    (
        "update state.waiting_calls set status = 'awaiting' where status = 'pending'",
        &["a call that waits for a batch has one that is open"],
        "update state.waiting_calls c set status = 'pending'
          where status = 'awaiting' and not exists (select from state.pmo_batches b where b.tool_call_id = c.tool_call_id)",
    ),
    (
        "update state.pmo_batches set tool_call_id = overlay(tool_call_id::text placing 'f' from 1)::uuid where status = 'open'",
        &["an open batch has its call, or is to end now", "a call that waits for a batch has one that is open"],
        "update state.pmo_batches set tool_call_id = overlay(tool_call_id::text placing '0' from 1)::uuid",
    ),
    (
        "update state.pmo_batch_tasks set status = 'open', error = 'meddled' where status = 'success'",
        &["a task is over if and only if its turn is"],
        "update state.pmo_batch_tasks set status = 'success', error = null where error = 'meddled'",
    ),
    (
        "update state.budgets set agent_turn_id = overlay(agent_turn_id::text placing 'f' from 1)::uuid",
        &["a turn that has a budget has not ended"],
        "update state.budgets set agent_turn_id = overlay(agent_turn_id::text placing '0' from 1)::uuid",
    ),
    (
        "update state.budgets set tokens_left = tokens_left + 1",
        &["what is gone from a turn's budget is what its steps have used"],
        "update state.budgets set tokens_left = tokens_left - 1",
    ),
    (
        "do $$ begin execute format('drop table %s', (select p.partition from state.partitions('outbox') p where p.starts_at > now()
           order by p.starts_at limit 1)); end $$",
        &["history has partitions for the week to come"],
        "select state.extend_partitions()",
    ),
    (
        "insert into state.pmo_batch_slots select project_id, batch_id, 0, 0 from state.pmo_batches where status <> 'open'",
        &[COUNTS],
        "delete from state.pmo_batch_slots where remaining = 0",
    ),
    (
        "update state.pmo_batches set open_slots = open_slots + 1 where status = 'open'",
        &[COUNTS],
        "update state.pmo_batches set open_slots = open_slots - 1 where status = 'open'",
    ),
    (
        "insert into state.queue_marks select worker_target, project_id, 0, inbox_seq + 1, 0, '{}', now(), 0, 0, 0
           from state.agent_inbox where status = 'pending'
             on conflict (worker_target, project_id) do update set new_seq = excluded.new_seq",
        &["no turn is ready before the mark of its queue"],
        "delete from state.queue_marks",
    ),
    (
        "update state.agent_inbox set status = 'pending', stop_reason = 'meddled' where status = 'queued'",
        &["an agent has at most one turn at a time", "as many turns are queued as the head says"],
        "update state.agent_inbox set status = 'queued', stop_reason = null where stop_reason = 'meddled'",
    ),
    (
        "update state.agent_inbox set agent_turn_id = overlay(agent_turn_id::text placing 'f' from 1)::uuid",
        &[
            "what a head says its agent does is in its inbox",
            "a turn that has not ended is in an inbox, and the other way round",
        ],
        "update state.agent_inbox set agent_turn_id = overlay(agent_turn_id::text placing '0' from 1)::uuid",
    ),
    (
        "update state.agent_state_head set turn_epoch = turn_epoch - 9",
        &["epochs only grow"],
        "update state.agent_state_head set turn_epoch = turn_epoch + 9",
    ),
    (
        "update state.turns set root_turn_id = agent_turn_id where parent_agent_turn_id is not null",
        &["a turn stands in the tree of the turn that started it"],
        "update state.turns set root_turn_id = parent_agent_turn_id where parent_agent_turn_id is not null",
    ),
    (
        "update state.agent_steps set claim_token = claim_token - 1099511627776 * from_seq",
        &["epochs only grow"],
        "update state.agent_steps set claim_token = claim_token + 1099511627776 * from_seq",
    ),
    (
        "update state.agent_state_head set claim_token = claim_token + 1",
        &["only the current claim holds a turn"],
        "update state.agent_state_head set claim_token = claim_token - 1",
    ),
    (
        "update state.turns set deliverable_card_id = overlay(deliverable_card_id::text placing 'f' from 1)::uuid",
        &["a turn that has ended has its deliverable in its output box"],
        "update state.turns set deliverable_card_id = overlay(deliverable_card_id::text placing '0' from 1)::uuid",
    ),
    (
        "insert into cardbox.box_entries (project_id, box_id, seq, card_id)
         select e.project_id, e.box_id, e.seq + 1000, e.card_id from cardbox.box_entries e",
        &["a turn has at most one deliverable", "the result of a call stands once where its turn reads it"],
        "delete from cardbox.box_entries where seq > 1000",
    ),
    (
        "insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status)
         select project_id, agent_turn_id, event, overlay(event_id::text placing 'f' from 1)::uuid, agent_id, status
           from state.outbox where event = 'task'",
        &["the end of a turn is reported once"],
        "delete from state.outbox where event_id::text like 'f%'",
    ),
    (
        "update state.waiting_calls set tool_call_id = overlay(tool_call_id::text placing 'f' from 1)::uuid",
        &["a call that was made is waited for, answered, or its turn is over"],
        "update state.waiting_calls set tool_call_id = overlay(tool_call_id::text placing '0' from 1)::uuid",
    ),
    (
        "update state.pmo_batch_slots set remaining = remaining + 1",
        &[COUNTS],
        "update state.pmo_batch_slots set remaining = remaining - 1",
    ),
    (
        "update state.execution_edges set status = edge_phase::text, primitive = 'command', edge_phase = 'response' where primitive = 'join' and edge_phase = 'response'",
        &[COUNTS],
        "update state.execution_edges set primitive = 'join', status = 'success' where primitive = 'command' and status = 'response'",
    ),
    (
        "update cardbox.box_entries set card_id = overlay(card_id::text placing 'f' from 1)::uuid",
        &["what a box holds is there, in the same project"],
        "update cardbox.box_entries set card_id = overlay(card_id::text placing '0' from 1)::uuid",
    ),
    (
        "update state.recordings set n_messages = n_messages + 1",
        &["a recorded turn is known by its messages, and no agent runs it"],
        "update state.recordings set n_messages = n_messages - 1",
    ),
];

/// Records a call of an agent elsewhere.
async fn record_a_call(house: &House) {
    let mark = |n: u8| Mark::from_bytes([n; 16]);
    let message = Draft::instruction("Hello").seal().unwrap();
    let answer =
        Draft::new(CardType::wire_answer(), Role::Assistant, Content::Json(serde_json::json!({ "status": 200 })))
            .seal()
            .unwrap();
    let (recording, call) = recorded_call(Some(3));
    let recording = NewRecording { query_card_ids: vec![message.card_id()], ..recording };
    let mut work = house.t.begin().await;
    record::begin(&mut work, &recording).await.unwrap();
    assert!(record::write(&mut work, &call, std::slice::from_ref(&message), Some(&answer)).await.unwrap());
    // The same call again is written once, also if its turn has gone on.
    assert!(!record::write(&mut work, &call, std::slice::from_ref(&message), Some(&answer)).await.unwrap());
    let found = record::to_extend(&mut work, &[(mark(2), Some(mark(9)))], None).await.unwrap();
    assert_eq!(found.map(|found| (found.agent_turn_id, found.n_messages)), Some((call.agent_turn_id, 1)));
    // The same request again is another conversation, because this one was answered.
    assert_eq!(record::to_extend(&mut work, &[(mark(2), None)], None).await.unwrap(), None);
    work.commit().await.unwrap();
}

/// Makes a batch that is open and one that is closed; a turn that waits for the second of its calls; one that has ended, with steps; one behind another; one
/// at work; one that has a budget, of which it has spent some, and a child that it shares it with; one that is ready.
async fn put_everything_under_way(house: &House) {
    house.family(3, false, LONG).await;
    while house.claim().await.is_some() {}
    house.family(1, false, LONG).await;
    let child = house.claim().await.unwrap();
    house.end_child(&child, End::Success).await;
    let parent = house.claim().await.unwrap();
    house.finish(parent.fence).await.unwrap();
    let fence = house.running().await;
    let step = calling(2, "tool", LONG, true);
    house.step(&fence, &step).await.unwrap();
    house.report(&answer(step.calls[0].tool_call_id)).await.unwrap();
    let agent_id = house.agent().await;
    house.enqueue(agent_id).await;
    house.enqueue(agent_id).await;
    house.claim().await.unwrap();
    let limits = Limits { steps: Some(9), tokens: Some(900), microdollars: Some(90), seconds: None };
    let (request, card) = limited(house, limits, None).await;
    let parent = request.agent_turn_id;
    house.enqueue_all(&[request], &[card]).await.unwrap();
    let fence = house.claim().await.unwrap().fence;
    let usage = Usage { input_tokens: 40, output_tokens: 2, microdollars: 3, ..Usage::default() };
    house.step(&fence, &Step { usage: Some(usage), ..calling(0, "tool", LONG, false) }).await.unwrap();
    let (child, card) = limited(house, Limits::default(), Some(parent)).await;
    house.enqueue_all(&[child], &[card]).await.unwrap();
    record_a_call(house).await;
}

/// DESIGN, section 9: what must hold holds of a live system, and what does not is named.
#[tokio::test]
async fn what_must_hold_is_held_to() {
    let house = House::new().await;
    let broken = async || {
        let mut broken = invariant::of_project(house.kernel(), house.t.project_id).await.unwrap();
        broken.extend(invariant::of_database(house.kernel()).await.unwrap());
        broken.into_iter().map(|broken| broken.invariant).collect::<Vec<_>>()
    };
    put_everything_under_way(&house).await;
    assert_eq!(broken().await, Vec::<&str>::new());

    let named: BTreeSet<&str> = MEDDLED.iter().flat_map(|(_, invariants, _)| *invariants).copied().collect();
    let all = invariant::INVARIANTS.iter().chain(&invariant::OF_DATABASE);
    let all: BTreeSet<&str> = all.map(|(invariant, _)| *invariant).collect();
    assert_eq!(named, all);
    for (meddle, invariants, mend) in MEDDLED {
        house.meddle(meddle).await;
        let found = broken().await;
        assert!(invariants.iter().all(|invariant| found.contains(invariant)), "{meddle}: {found:?}");
        house.meddle(mend).await;
        assert_eq!(broken().await, Vec::<&str>::new(), "{mend}");
    }
}

/// On a system at work nothing is found: each question sees one moment, however many transactions end while it is asked.
#[tokio::test]
async fn what_must_hold_holds_while_turns_run() {
    let house = Arc::new(House::new().await);
    let done = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for client in 0..3 {
        let (house, done) = (house.clone(), done.clone());
        load.spawn(async move {
            let mut n_turns = 0;
            while !done.load(Ordering::Relaxed) {
                n_turns += one_of_each(&house, client).await;
            }
            n_turns
        });
    }
    let (mut rounds, begun) = (0, Instant::now());
    while rounds < 12 || begun.elapsed() < Duration::from_secs(4) {
        let broken = invariant::of_project(house.kernel(), house.t.project_id).await.unwrap();
        assert!(broken.is_empty(), "round {rounds}: {broken:?}");
        rounds += 1;
    }
    done.store(true, Ordering::Relaxed);
    let mut n_turns = 0;
    while let Some(loaded) = load.join_next().await {
        n_turns += loaded.unwrap();
    }
    assert!(n_turns > rounds, "{n_turns} turns in {rounds} rounds");
    assert!(invariant::of_database(house.kernel()).await.unwrap().is_empty());
}

/// A turn for later, two turns of one agent, one with a budget that calls tools, is lost once and ends; a fork of which one child fails; a stop.
/// Each client has a worker of its own, and whatever it claims it brings on.
async fn one_of_each(house: &House, client: usize) -> usize {
    let worker = lease::start(house.kernel(), &target("llm"), LONG).await.unwrap();
    let limits = Limits { steps: Some(9), tokens: Some(900), microdollars: None, seconds: None };
    let (limited_turn, card) = limited(house, limits, None).await;
    let agent_id = limited_turn.agent_id;
    house.enqueue_all(&[limited_turn], &[card]).await.unwrap();
    house.enqueue(agent_id).await;
    let stopped = house.enqueue(house.agent().await).await.agent_turn_id;
    let mut n_turns = 0;
    loop {
        let Some(claimed) = house.claim_as(worker).await.unwrap().pop() else { break };
        n_turns += 1;
        let usage = Usage { input_tokens: 40, output_tokens: 2, microdollars: 3, ..Usage::default() };
        let asked = Step { usage: Some(usage), cards: vec![thought("so")], ..calling(0, "tool", LONG, false) };
        house.step(&claimed.fence, &asked).await.unwrap();
        if claimed.batch_id.is_some() {
            // A child: of the first to end its batch, the others hear that.
            let status = if n_turns % 4 == 0 { End::Failed } else { End::Success };
            let mut work = house.t.begin().await;
            turn::finish(&mut work, &[Ending { status, ..ending(claimed.fence) }]).await.unwrap();
            work.commit().await.unwrap();
        } else if claimed.message_type == MessageType::Turn && claimed.n_lost_leases == 0 && n_turns % 3 == 0 {
            house.reclaim(&claimed.fence, &Loss::Lease).await;
        } else if claimed.message_type == MessageType::Turn && n_turns % 2 == 0 {
            let step = calling(2, "tool", LONG, true);
            if house.step(&claimed.fence, &step).await.unwrap().suspended {
                for call in &step.calls {
                    house.report(&answer(call.tool_call_id)).await.unwrap();
                }
            }
        } else if claimed.message_type == MessageType::Turn && n_turns < 20 && claimed.recursion_depth == 0 {
            fork_from(house, &claimed.fence, client).await;
        } else {
            house.finish(claimed.fence).await.unwrap();
        }
    }
    // Whatever state another client has brought it to.
    let _ = house.stop(stopped).await;
    sweep::tick(house.kernel(), &sweep::Config::default()).await.unwrap();
    n_turns
}

/// Asks for a fork, and handles the next one that was asked for, by whichever client.
async fn fork_from(house: &House, parent: &Fence, client: usize) {
    house.step(parent, &calling(1, "sys-pmo", LONG, true)).await.unwrap();
    let Some(call) = house.claim_calls("sys-pmo", 1).await.pop() else { return };
    let Plan { fork, children, card } = house.plan_fork(3, client == 0, LONG);
    house.make(&children).await;
    let mut alone = house.kernel().alone(house.t.project_id).await.unwrap();
    // Its turn may have been stopped meanwhile.
    if batch::open(&mut alone, call.tool_call_id, call.claim_token, &fork).await.is_ok() {
        turn::enqueue(&mut alone, &children, &[card]).await.unwrap();
        batch::dispatched(&mut alone, call.tool_call_id, call.claim_token).await.unwrap();
    }
}

/// Partitions of the first week of 2020.
const OLD: &str =
    "select state.make_partition(h.parent, '2020-01-01T00:00Z', '2020-01-08T00:00Z') from state.history() h";

/// HI-3: old partitions are dropped whole; what a turn without an end can reach is not.
#[tokio::test]
async fn history_is_dropped_by_partitions_and_none_that_is_needed() {
    let house = House::new().await;
    sqlx::raw_sql(OLD).execute(&mut house.t.owner().await).await.unwrap();
    let plan = async |older_than| {
        let mut owner = house.t.owner().await;
        retention::plan(house.kernel(), &mut owner, older_than, false).await.unwrap()
    };
    let names = |plan: &retention::Plan| {
        plan.partitions.iter().map(|partition| partition.partition.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&plan(100_000 * DAY).await), Vec::<String>::new(), "not as old as that");
    let old = plan(365 * DAY).await;
    let all = ["agent_steps", "execution_edges", "outbox", "patches", "receipts", "refusals"];
    assert_eq!(names(&old), all.map(|table| format!("parts.{table}_20200101")));

    // A turn of that week that has not ended.
    let card = instruction("wait");
    let request = DispatchRequest {
        agent_turn_id: TurnId::at(Utc::now() - TimeDelta::days(9 * 365)),
        ..DispatchRequest::instructed(house.agent().await, card.card_id())
    };
    assert!(house.enqueue_all(std::slice::from_ref(&request), std::slice::from_ref(&card)).await.is_err(), "no v7");
    let minted = uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 1_577_900_000, 0)).to_string();
    let request = DispatchRequest { agent_turn_id: minted.parse().unwrap(), ..request };
    house.enqueue_all(&[request], &[card]).await.unwrap();
    let held = plan(365 * DAY).await;
    assert_eq!(names(&held), Vec::<String>::new());
    assert!(held.held.unwrap().why.contains(&minted));
    // The first plan was made before it began.
    let drop = async |plan: &retention::Plan| {
        let mut dropped = Vec::new();
        let note = |partition: &retention::Partition| dropped.push(partition.partition.clone());
        let done = retention::drop(house.kernel(), &mut house.t.owner().await, plan, note).await;
        done.map(|()| dropped)
    };
    let late = drop(&old).await;
    assert!(matches!(&late, Err(retention::Error::Needed { why }) if why.contains(&minted)), "{late:?}");

    let fence = house.claim().await.unwrap().fence;
    house.finish(fence).await.unwrap();
    // RT-2: a hold keeps the history of its project too.
    assert!(house.hold(Some("case 17")).await);
    let held = plan(365 * DAY).await;
    assert_eq!(names(&held), Vec::<String>::new());
    assert!(held.held.unwrap().why.contains("legal hold"));
    assert!(drop(&old).await.is_err());
    assert!(house.hold(None).await);
    let old = plan(365 * DAY).await;
    assert_eq!(drop(&old).await.unwrap(), names(&old));
    assert_eq!(names(&plan(365 * DAY).await), Vec::<String>::new());
    let kept_from: TurnId = sqlx::query_scalar("select pruned_before from waybill.schema")
        .fetch_one(&mut house.t.owner().await)
        .await
        .unwrap();
    assert_eq!(kept_from, TurnId::at(old.before));
    // That time is closed, even if there were partitions for it.
    sqlx::raw_sql(OLD).execute(&mut house.t.owner().await).await.unwrap();
    let card = instruction("too late");
    let minted = uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 1_577_900_001, 0)).to_string();
    let request = DispatchRequest {
        agent_turn_id: minted.parse().unwrap(),
        ..DispatchRequest::instructed(house.agent().await, card.card_id())
    };
    assert!(house.enqueue_all(&[request], &[card]).await.is_err());
}

/// HI-3: an event that was promised to a stream is kept until it is there, also while no relay is alive.
#[tokio::test]
async fn what_a_relay_has_yet_to_publish_is_kept_while_none_is_alive() {
    let house = House::new().await;
    sqlx::raw_sql(OLD).execute(&mut house.t.owner().await).await.unwrap();
    let minted = uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 1_577_900_000, 0)).to_string();
    let card = instruction("wait");
    let request = DispatchRequest {
        agent_turn_id: minted.parse().unwrap(),
        ..DispatchRequest::instructed(house.agent().await, card.card_id())
    };
    house.enqueue_all(&[request], &[card]).await.unwrap();
    let fence = house.claim().await.unwrap().fence;
    house.finish(fence).await.unwrap();
    let asked = async |drop_unpublished| {
        let mut owner = house.t.owner().await;
        let plan = retention::plan(house.kernel(), &mut owner, 365 * DAY, drop_unpublished).await.unwrap();
        plan.held.map(|held| held.why)
    };
    let held = async || asked(false).await;
    assert_eq!(held().await, None, "no relay has ever been there");
    // One was there, and is gone.
    outbox::publish_to(house.kernel(), Utc::now()).await.unwrap();
    assert!(held().await.unwrap().contains("not been published yet"));
    assert_eq!(asked(true).await, None, "unless they are to go");
    let relay = WorkerId::new();
    outbox::hold(house.kernel(), relay, &outbox::RELAY.parse().unwrap(), LONG).await.unwrap();
    let events = outbox::unpublished(house.kernel(), relay, 64).await.unwrap();
    assert!(!events.is_empty());
    outbox::mark(house.kernel(), relay, &events, &vec![true; events.len()]).await.unwrap();
    assert_eq!(held().await, None, "all are published");
}

/// Processes of one version go on, and start, on the schema of the next one; not on that of the one after.
#[tokio::test]
async fn a_newer_schema_serves_the_version_before() {
    let house = House::new().await;
    let url = house.t.server.service_url(&house.t.name);
    let next =
        |oldest: i64| format!("update waybill.schema set version = {}, oldest = {oldest}", migrate::newest() + 1);
    let mut admin = house.t.admin().await;
    sqlx::raw_sql(AssertSqlSafe(next(migrate::newest()))).execute(&mut admin).await.unwrap();
    Kernel::connect(&Config::new(url.clone())).await.expect("one version ahead is served");
    sqlx::raw_sql(AssertSqlSafe(next(migrate::newest() + 1))).execute(&mut admin).await.unwrap();
    let refused = Kernel::connect(&Config::new(url.clone())).await;
    assert!(matches!(refused, Err(Error::Unfit(_))), "two are not");
    sqlx::raw_sql(AssertSqlSafe(next(migrate::newest()))).execute(&mut admin).await.unwrap();
    sqlx::raw_sql("grant select on state.turns to public").execute(&mut admin).await.unwrap();
    let refused = Kernel::connect(&Config::new(url)).await;
    assert!(matches!(refused, Err(Error::Unfit(_))), "its walls are known too");
}

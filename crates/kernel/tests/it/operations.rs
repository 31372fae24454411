//! What an operator relies on: vitals, invariants that are held to, history that is dropped, versions that follow each other.

use std::{collections::BTreeSet, fs, time::Duration};

use chrono::{TimeDelta, Utc};
use serde::Deserialize;
use sqlx::{AssertSqlSafe, Column, Either, Executor, SqlSafeStr, Statement as _};
use waybill_core::{id::TurnId, metric, span::Record, turn::End};
use waybill_kernel::{
    invariant, migrate, retention, trace,
    turn::DispatchRequest,
    vitals,
    work::{Config, Error, Kernel},
};

use crate::turns::{House, LONG, answer, calling, instruction};

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

/// A transaction that somebody else holds open is seen, where the owner was given the right to look.
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
    assert_eq!((record.status.as_str(), record.place().parent_span_id), ("success", None));
    assert_eq!(record.spans().len(), 1, "no model was asked, and what was called stands on no card: {record:?}");
    assert!(of(TurnId::new()).await.is_none());
}

/// DESIGN, section 9: what must hold holds of a live system, and what does not is named.
#[tokio::test]
async fn what_must_hold_is_held_to() {
    let house = House::new().await;
    let broken = async || {
        let broken = invariant::of_project(house.kernel(), house.t.project_id).await.unwrap();
        broken.into_iter().map(|broken| broken.invariant).collect::<Vec<_>>()
    };
    // A batch that is open and one that is closed; a turn that waits for the second of its calls; one that has ended, with steps; one behind another; one at work; one that is ready.
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
    house.enqueue(house.agent().await).await;
    assert_eq!(broken().await, Vec::<&str>::new());

    // What is done, what it breaks, and how it is mended. An id that begins with an f is nobody's.
    let meddled: [(&str, &[&str], &str); 13] = [
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
            "update state.agent_steps set claim_token = claim_token - 9 * from_seq",
            &["epochs only grow"],
            "update state.agent_steps set claim_token = claim_token + 9 * from_seq",
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
            &["the end of a turn is told once"],
            "delete from state.outbox where event_id::text like 'f%'",
        ),
        (
            "update state.waiting_calls set tool_call_id = overlay(tool_call_id::text placing 'f' from 1)::uuid",
            &["a call that was made is waited for, answered, or its turn is over"],
            "update state.waiting_calls set tool_call_id = overlay(tool_call_id::text placing '0' from 1)::uuid",
        ),
        (
            "update state.pmo_batch_slots set remaining = remaining + 1",
            &["a batch counts its open tasks, and its end is on record"],
            "update state.pmo_batch_slots set remaining = remaining - 1",
        ),
        (
            "update state.execution_edges set status = edge_phase::text, primitive = 'command', edge_phase = 'response' where primitive = 'join' and edge_phase = 'response'",
            &["a batch counts its open tasks, and its end is on record"],
            "update state.execution_edges set primitive = 'join', status = 'success' where primitive = 'command' and status = 'response'",
        ),
        (
            "update cardbox.box_entries set card_id = overlay(card_id::text placing 'f' from 1)::uuid",
            &["what a box holds is there, in the same project"],
            "update cardbox.box_entries set card_id = overlay(card_id::text placing '0' from 1)::uuid",
        ),
    ];
    let named: BTreeSet<&str> = meddled.iter().flat_map(|(_, invariants, _)| *invariants).copied().collect();
    let all: BTreeSet<&str> = invariant::INVARIANTS.iter().map(|(invariant, _)| *invariant).collect();
    assert_eq!(named, all);
    for (meddle, invariants, mend) in meddled {
        house.meddle(meddle).await;
        let found = broken().await;
        assert!(invariants.iter().all(|invariant| found.contains(invariant)), "{meddle}: {found:?}");
        house.meddle(mend).await;
        assert_eq!(broken().await, Vec::<&str>::new(), "{mend}");
    }
}

/// Old weeks are dropped whole; what a turn without an end can reach is not.
#[tokio::test]
async fn history_is_dropped_by_the_week_and_none_that_is_needed() {
    let house = House::new().await;
    for table in ["agent_steps", "execution_edges", "outbox"] {
        // Of January 2020.
        let sql = format!(
            "create table parts.{table}_20200106 partition of state.{table}
                for values from ('016f7895-d800-0000-0000-000000000000') to ('016f9ca2-d400-0000-0000-000000000000')"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut house.t.owner().await).await.unwrap();
    }
    let plan = async |older_than| {
        let mut owner = house.t.owner().await;
        retention::plan(house.kernel(), &mut owner, older_than).await.unwrap()
    };
    let names = |plan: &retention::Plan| {
        plan.partitions.iter().map(|partition| partition.partition.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&plan(100_000 * DAY).await), Vec::<String>::new(), "not as old as that");
    let old = plan(365 * DAY).await;
    assert_eq!(names(&old), ["parts.agent_steps_20200106", "parts.execution_edges_20200106", "parts.outbox_20200106"]);

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

    let fence = house.claim().await.unwrap().fence;
    house.finish(fence).await.unwrap();
    let old = plan(365 * DAY).await;
    let mut dropped = Vec::new();
    retention::drop(&mut house.t.owner().await, &old, |partition| dropped.push(partition.partition.clone()))
        .await
        .unwrap();
    assert_eq!(dropped.len(), 3);
    assert_eq!(names(&plan(365 * DAY).await), Vec::<String>::new());
    let kept_from: TurnId = sqlx::query_scalar("select pruned_before from waybill.schema")
        .fetch_one(&mut house.t.owner().await)
        .await
        .unwrap();
    assert_eq!(kept_from, TurnId::at(old.before));
}

#[derive(Deserialize)]
struct Statement {
    file: String,
    sql: String,
    parameters: Vec<u32>,
    columns: Vec<(String, u32)>,
}

/// A rolling upgrade migrates first: whatever the version before asks is still understood, takes the same and gives the same.
#[tokio::test]
async fn the_version_before_goes_on_with_this_schema() {
    let house = House::new().await;
    let path = format!("{}/tests/previous/{}.jsonl", env!("CARGO_MANIFEST_DIR"), migrate::OLDEST);
    let said = fs::read_to_string(path).expect("what the version before asks");
    let mut connection = house.kernel().pool().acquire().await.unwrap();
    let mut n = 0;
    for line in said.lines() {
        let before: Statement = serde_json::from_str(line).unwrap();
        let sql = before.sql.clone();
        let described = connection.prepare(AssertSqlSafe(sql).into_sql_str()).await;
        let described = described.unwrap_or_else(|error| panic!("{}: {error}\n{}", before.file, before.sql));
        // A type of our own has another number in each database.
        let number =
            |oid: Option<sqlx::postgres::types::Oid>| oid.map_or(0, |oid| if oid.0 < 16_384 { oid.0 } else { 0 });
        let columns: Vec<(String, u32)> = described
            .columns()
            .iter()
            .map(|column| (column.name().to_owned(), number(column.type_info().oid())))
            .collect();
        let known: Vec<&(String, u32)> = before.columns.iter().filter(|(_, oid)| *oid > 0).collect();
        let found: Vec<&(String, u32)> = columns.iter().filter(|(_, oid)| *oid > 0).collect();
        assert!(
            before.sql.contains("select *") && known.iter().all(|column| found.contains(column)) || known == found,
            "{}: {}\n{known:?}\n{found:?}",
            before.file,
            before.sql
        );
        let parameters = match described.parameters() {
            Some(Either::Left(types)) => types.iter().map(|info| number(info.oid())).collect(),
            _ => Vec::new(),
        };
        assert_eq!(parameters, before.parameters, "{}: {}", before.file, before.sql);
        n += 1;
    }
    assert!(n > 150, "{n}");
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

//! Partitions of history: made while others read and write, and what lies outside of them.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use chrono::{TimeDelta, Utc};
use secrecy::SecretString;
use sqlx::AssertSqlSafe;
use waybill_core::{
    id::{StepId, ToolCallId},
    metric,
};
use waybill_kernel::{
    check, migrate, retention,
    turn::{self, Error},
    vitals,
};

use crate::turns::{House, LONG, answer, calling, ending};

/// What a dump does with every table for as long as it runs.
const AS_A_DUMP: &str =
    "begin; lock table state.agent_steps, state.execution_edges, state.patches, state.receipts, state.refusals,
                         state.outbox in access share mode";

/// Sessions that wait for a lock.
const WAITING: &str = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                        where d.datname = current_database() and not l.granted";

async fn extend(house: &House, weeks: i32) -> Result<i32, retention::Error> {
    retention::extend(&mut house.kernel().pool().acquire().await.unwrap(), weeks).await
}

/// Beside a dump no partition can be made, and no process waits for one; after it they are, each in a transaction of its own, and by one process.
#[tokio::test]
async fn partitions_are_made_once_nobody_reads() {
    let house = House::new().await;
    let ahead = async || retention::weeks_ahead(house.kernel()).await.unwrap();
    assert_eq!(ahead().await, 1);
    // A refused caller gets its answer before its transaction is quite over: another connection would find its lock held.
    let mut connection = house.kernel().pool().acquire().await.unwrap();
    let mut dump = house.t.admin().await;
    sqlx::raw_sql(AS_A_DUMP).execute(&mut dump).await.unwrap();
    let begun = Instant::now();
    let refused = retention::extend(&mut connection, 3).await;
    assert!(matches!(refused, Err(retention::Error::InUse(_))), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(2), "six tables, each for 50 ms: {:?}", begun.elapsed());

    // A reader of one table keeps the others from nothing.
    sqlx::raw_sql("rollback; begin; lock table state.agent_steps in access share mode")
        .execute(&mut dump)
        .await
        .unwrap();
    assert!(retention::extend(&mut connection, 3).await.is_err());
    assert_eq!(
        house.count("select count(*) from pg_class where relkind = 'r' and relname ~ '^(outbox|agent_steps)_2'").await,
        4 + 2
    );
    sqlx::raw_sql("rollback").execute(&mut dump).await.unwrap();

    // While another process makes them, this one does not.
    let another = "begin; select pg_advisory_xact_lock(hashtextextended('waybill.partitions', 0))";
    sqlx::raw_sql(another).execute(&mut dump).await.unwrap();
    assert_eq!(retention::extend(&mut connection, 3).await.unwrap(), 0);
    sqlx::raw_sql("rollback").execute(&mut dump).await.unwrap();
    assert_eq!(retention::extend(&mut connection, 3).await.unwrap(), 2);
    assert_eq!(retention::extend(&mut connection, 3).await.unwrap(), 0);
    assert_eq!(ahead().await, 3);

    // They are what a partition is: the same columns, indexes and guards.
    let facts = "select count(distinct facts) from (
                   select array[(select string_agg(format('%s %s %s %s', attname, atttypid, attnotnull, attgenerated), ',' order by attname)
                                   from pg_attribute where attrelid = c.oid and attnum > 0),
                                (select count(*)::text from pg_index where indrelid = c.oid),
                                (select string_agg(tgname, ',') from pg_trigger where tgrelid = c.oid and tgname <> 'of_the_present')] as facts
                     from pg_class c where c.relnamespace = 'parts'::regnamespace and c.relkind = 'r' and c.relname like 'outbox%') f";
    assert_eq!(house.count(facts).await, 1);
    let owners = "select count(distinct relowner) from pg_class where relnamespace = 'parts'::regnamespace";
    assert_eq!(house.count(owners).await, 1);
}

/// A turn does not wait for a process that waits for a table, not even where that one waits for long.
#[tokio::test]
async fn a_turn_goes_on_while_partitions_are_waited_for() {
    let house = House::new().await;
    let mut dump = house.t.admin().await;
    sqlx::raw_sql(AS_A_DUMP).execute(&mut dump).await.unwrap();
    // As the function does it, but with all the time in the world.
    let mut waiting = house.t.owner().await;
    let waits = tokio::spawn(async move {
        sqlx::raw_sql(
            "select state.make_partition('agent_steps', date_trunc('week', now() + interval '21 days', 'UTC'), false)",
        )
        .execute(&mut waiting)
        .await
    });
    while house.count(WAITING).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let fence = house.running().await;
    let step = calling(1, "tool", LONG, true);
    house.step(&fence, &step).await.unwrap();
    house.report(&answer(step.calls[0].tool_call_id)).await.unwrap();
    let fence = house.claim().await.unwrap().fence;
    house.finish(fence).await.unwrap();
    assert!(!waits.is_finished());
    sqlx::raw_sql("rollback").execute(&mut dump).await.unwrap();
    waits.await.unwrap().unwrap();
}

/// What came while its week had no partition lies in the rest, is seen there, and is moved.
#[tokio::test]
async fn what_lies_in_the_rest_is_seen_and_moved() {
    let house = House::new().await;
    let mut owner = house.t.owner().await;
    let week = Utc::now().date_naive().week(chrono::Weekday::Mon).first_day().format("%Y%m%d").to_string();
    for table in ["execution_edges", "outbox"] {
        sqlx::raw_sql(AssertSqlSafe(format!("drop table parts.{table}_{week}"))).execute(&mut owner).await.unwrap();
    }
    let fence = house.running().await;
    house.step(&fence, &calling(1, "tool", LONG, false)).await.unwrap();
    house.finish(fence).await.unwrap();
    let (edges, events) =
        ("select count(*) from state.execution_edges", "select count(*) from state.outbox where shard is not null");
    let before = (house.count(edges).await, house.count(events).await);
    assert!(before.0 > 0 && before.1 > 0);

    assert_eq!(extend(&house, 1).await.unwrap(), 0, "no partition is made over them");
    let read = vitals::read(house.kernel()).await.unwrap();
    let in_rest: f64 = read.iter().filter(|vital| vital.vital == metric::REST_ROWS).map(|vital| vital.value).sum();
    assert_eq!(in_rest as i64, before.0 + before.1);
    assert!(read.iter().any(|vital| vital.vital == metric::WEEKS_AHEAD && vital.value == -1.0), "{read:?}");
    let seen = check::partitions(house.kernel()).await;
    assert!(!seen.ok && seen.advice.contains("empty-rest"), "{seen:?}");

    let mut moved = Vec::new();
    let done = retention::empty_rest(&mut owner, |rest| moved.push(rest.clone())).await.unwrap();
    assert_eq!(done, moved);
    assert_eq!(moved.iter().map(|rest| rest.n_rows).sum::<i64>(), before.0 + before.1);
    assert_eq!(retention::rest(&mut owner).await.unwrap(), []);
    assert_eq!((house.count(edges).await, house.count(events).await), before);
    assert!(check::partitions(house.kernel()).await.ok);
    assert_eq!(retention::weeks_ahead(house.kernel()).await.unwrap(), 1);
    let guards =
        "select count(*) from pg_trigger where tgrelid = 'parts.execution_edges_rest'::regclass and tgenabled = 'O'";
    assert_eq!(house.count(guards).await, 2, "history is append-only again");
    let refused = sqlx::raw_sql("delete from state.execution_edges").execute(&mut house.t.admin().await).await;
    assert!(refused.is_err(), "where it was moved to as well");
    // Turns go on where they belong.
    let fence = house.running().await;
    house.finish(fence).await.unwrap();
    assert_eq!(retention::rest(&mut owner).await.unwrap(), []);
}

fn minted(days: i64, version: usize) -> String {
    let at = Utc::now() + TimeDelta::days(days);
    let timestamp = uuid::Timestamp::from_unix(uuid::NoContext, at.timestamp().unsigned_abs(), 0);
    let mut id = uuid::Uuid::new_v7(timestamp).to_string();
    id.replace_range(14..15, &version.to_string());
    id
}

/// An id of far ahead, or one without a time, would lie in the way of a partition, or in the rest for ever.
#[tokio::test]
async fn ids_of_calls_and_steps_are_of_the_present() {
    let house = House::new().await;
    let fence = house.running().await;
    for id in [minted(42, 7), minted(2, 7), minted(-400, 7), minted(0, 4), minted(0, 1)] {
        let mut step = calling(1, "tool", LONG, false);
        step.calls[0].tool_call_id = id.parse::<ToolCallId>().unwrap();
        let refused = house.step(&fence, &step).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{id}: {refused:?}");
        let mut step = calling(0, "tool", LONG, false);
        step.step_id = id.parse::<StepId>().unwrap();
        assert!(matches!(house.step(&fence, &step).await, Err(Error::Invalid(_))), "{id}");
        let mut ending = ending(fence);
        ending.step_id = Some(step.step_id);
        let refused = turn::finish(&mut house.t.begin().await, &[ending]).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{id}: {refused:?}");
    }
    // A process whose clock is ahead mints ids that look right to it. The database knows better.
    let agent_id = house.agent().await;
    for (days, is_right) in [(42, false), (2, false), (0, true)] {
        let turn = serde_json::json!({
            "agent_turn_id": minted(days, 7), "agent_id": agent_id, "context_box_id": uuid::Uuid::now_v7(), "context_card_ids": [],
            "output_box_id": uuid::Uuid::now_v7(), "query_card_ids": [], "recursion_depth": 0, "emit_state_event": false,
        });
        let one = "select from state.enqueue($1, jsonb_populate_record(null::state.new_turn, $2), '{}')";
        let many = "select from state.enqueue_many($1, array[($2 ->> 'agent_id')::uuid], array[jsonb_populate_record(null::state.new_turn, $2)], '{}')";
        for sql in [many, one] {
            let mut work = house.t.begin().await;
            let asked = sqlx::query(sql).bind(house.t.project_id).bind(&turn).execute(&mut *work).await;
            assert_eq!(asked.is_ok(), is_right, "{days}: {asked:?}");
        }
    }
    for id in [minted(42, 7), "9b4e28ba-2fa1-41d2-883f-0016d3cca427".to_owned()] {
        let sql = format!(
            "insert into state.refusals (project_id, refusal_id, agent_id, box_id, tool_suffix, why)
             values ('{0}', '{id}', '{0}', '{0}', 'x', 'forbidden')",
            house.t.project_id
        );
        let refused = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *house.t.begin().await).await.unwrap_err();
        let said = Error::from(refused);
        assert!(matches!(&said, Error::Invalid(why) if why.contains("the database's clock")), "{said:?}");
    }
    assert_eq!(house.count("select count(*) from state.rest()").await, 0);
    house.finish(fence).await.unwrap();
}

/// A migration that waits for a table does not hold up turns for longer than a moment, and goes on when the table is free.
#[tokio::test]
async fn a_migration_tries_again_while_a_table_is_in_use() {
    let house = House::new().await;
    // What the last migration does, and has yet to do here.
    let undo = "delete from waybill.migrations where version = 10; drop table waybill.schema, state.queue_marks";
    sqlx::raw_sql(undo).execute(&mut house.t.admin().await).await.unwrap();
    let mut reader = house.t.admin().await;
    sqlx::raw_sql("begin; select count(*) from state.agent_inbox").execute(&mut reader).await.unwrap();
    let mut owner = migrate::connect_owner(&SecretString::from(house.t.server.owner_url(&house.t.name))).await.unwrap();
    let is_done = AtomicBool::new(false);
    let migrating = async {
        migrate::run(&mut owner, |_| ()).await.unwrap();
        is_done.store(true, Ordering::SeqCst);
    };
    // It stands in the way of turns for a moment at a time, again and again.
    let watching = async {
        let (begun, mut n_attempts) = (Instant::now(), 0);
        while n_attempts < 2 {
            assert!(
                begun.elapsed() < Duration::from_secs(60) && !is_done.load(Ordering::SeqCst),
                "it needs the table alone"
            );
            if house.count(WAITING).await > 0 {
                let since = Instant::now();
                while house.count(WAITING).await > 0 {
                    assert!(
                        since.elapsed() < Duration::from_secs(5),
                        "it waits for the table, and all others behind it"
                    );
                }
                n_attempts += 1;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        sqlx::raw_sql("rollback").execute(&mut reader).await.unwrap();
    };
    tokio::join!(migrating, watching);
}

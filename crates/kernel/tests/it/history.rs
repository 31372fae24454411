//! Partitions of history: made, cut and dropped while others read and write.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use chrono::{TimeDelta, Utc};
use secrecy::SecretString;
use sqlx::AssertSqlSafe;
use waybill_core::{
    error::causes,
    id::{StepId, ToolCallId},
    metric,
};
use waybill_kernel::{
    check, migrate,
    retention::{self, Step},
    retry::Transient,
    turn::{self, DispatchRequest, Error},
    vitals,
};

use crate::turns::{House, LONG, answer, calling, ending, instruction};

/// What a dump does with every table for as long as it runs.
const AS_A_DUMP: &str =
    "begin; lock table state.agent_steps, state.execution_edges, state.patches, state.receipts, state.refusals,
                         state.outbox in access share mode";

/// Sessions that wait for a lock.
const WAITING: &str = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
                        where d.datname = current_database() and not l.granted";

async fn extend(house: &House) -> Result<i32, retention::Error> {
    retention::extend(&mut house.kernel().pool().acquire().await.unwrap()).await
}

async fn days_ahead(house: &House) -> i64 {
    retention::history(house.kernel()).await.unwrap().days_ahead
}

/// Drops the partitions of some tables from the one of the present on, or from the next one on.
async fn lose(house: &House, tables: &str, from: &str) {
    let sql = format!(
        "do $$ declare v_one regclass; begin
           for v_one in select p.partition from unnest(string_to_array('{tables}', ' ')) as h (parent)
                         cross join lateral state.partitions(h.parent) p where p.{from} > now() loop
             execute format('drop table %s', v_one);
           end loop; end $$"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut house.t.owner().await).await.unwrap();
}

const ALL: &str = "agent_steps execution_edges outbox patches receipts refusals";
const PRESENT: &str = "ends_at";
const NEXT: &str = "starts_at";

/// HI-1: partitions are made beside a dump, each in a transaction of its own, and by one process.
#[tokio::test]
async fn partitions_are_made_beside_a_dump() {
    let house = House::new().await;
    assert!(days_ahead(&house).await >= 28, "a migration makes them");
    lose(&house, ALL, NEXT).await;
    assert!(days_ahead(&house).await < 7);
    // A refused caller gets its answer before its transaction is quite over: another connection would find its lock held.
    let mut connection = house.kernel().pool().acquire().await.unwrap();
    let mut other = house.t.admin().await;
    // While another process makes them, this one does not.
    let another = "begin; select pg_advisory_xact_lock(hashtextextended('waybill.partitions', 0))";
    sqlx::raw_sql(another).execute(&mut other).await.unwrap();
    assert_eq!(retention::extend(&mut connection).await.unwrap(), 0);
    // A session that changes the partitions of one table keeps the others from nothing, and is waited for only for a moment.
    sqlx::raw_sql("rollback; begin; lock table state.agent_steps in share update exclusive mode")
        .execute(&mut other)
        .await
        .unwrap();
    let begun = Instant::now();
    let refused = retention::extend(&mut connection).await;
    assert!(matches!(refused, Err(retention::Error::InUse(_))), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let whole = "select count(*) from state.history() h where state.history_ahead(h.parent) >= interval '28 days'";
    assert_eq!(house.count(whole).await, 5);
    sqlx::raw_sql("rollback").execute(&mut other).await.unwrap();

    sqlx::raw_sql(AS_A_DUMP).execute(&mut other).await.unwrap();
    assert!(retention::extend(&mut connection).await.unwrap() >= 4);
    assert_eq!(retention::extend(&mut connection).await.unwrap(), 0);
    assert_eq!(house.count(whole).await, 6);
    sqlx::raw_sql("rollback").execute(&mut other).await.unwrap();

    // They are what a partition is: the same columns, indexes, guards and settings.
    let facts = "select count(distinct facts) from (
                   select array[(select string_agg(format('%s %s %s %s', attname, atttypid, attnotnull, attgenerated), ',' order by attname)
                                   from pg_attribute where attrelid = c.oid and attnum > 0),
                                (select count(*)::text from pg_index where indrelid = c.oid), c.reloptions::text,
                                (select string_agg(tgname, ',' order by tgname) from pg_trigger where tgrelid = c.oid)] as facts
                     from pg_class c where c.relnamespace = 'parts'::regnamespace and c.relkind = 'r' and c.relname like 'outbox%') f";
    assert_eq!(house.count(facts).await, 1);
    let owners = "select count(distinct relowner) from pg_class where relnamespace = 'parts'::regnamespace";
    assert_eq!(house.count(owners).await, 1);
    let defaults = "select count(*) from pg_partitioned_table where partdefid <> 0";
    assert_eq!(house.count(defaults).await, 0);
}

/// HI-2: the step may change at any time. Each partition begins where the one before ends.
#[tokio::test]
async fn steps_change_without_a_gap() {
    let house = House::new().await;
    let mut owner = house.t.owner().await;
    let steps = [(Step::Day, 28, 1..=1), (Step::Month, 56, 28..=31), (Step::Week, 28, 7..=7), (Step::Day, 28, 1..=1)];
    for (step, least, longest) in steps {
        retention::set_step(&mut owner, step).await.unwrap();
        lose(&house, ALL, NEXT).await;
        extend(&house).await.unwrap();
        let history = retention::history(house.kernel()).await.unwrap();
        assert_eq!(history.step, step);
        assert!(history.days_ahead >= least, "{history:?}");
        let gaps = "select count(*) from state.history() h cross join lateral state.partitions(h.parent) p where p.next_at <> p.ends_at";
        assert_eq!(house.count(gaps).await, 0);
        let lengths = "select max(p.ends_at - p.starts_at) from state.partitions('outbox') p where p.starts_at > now()";
        let lengths = format!("select extract(day from ({lengths}))::bigint");
        let found: i64 = sqlx::query_scalar(AssertSqlSafe(lengths)).fetch_one(&mut owner).await.unwrap();
        assert!(longest.contains(&found), "{step:?}: {found} days");
        let fence = house.running().await;
        house.finish(fence).await.unwrap();
    }
}

/// HI-1: a turn does not wait for a process that waits for a table, not even where that one waits for long.
#[tokio::test]
async fn a_turn_goes_on_while_partitions_are_waited_for() {
    let house = House::new().await;
    let mut other = house.t.admin().await;
    let held = "begin; lock table state.agent_steps in share update exclusive mode";
    sqlx::raw_sql(held).execute(&mut other).await.unwrap();
    // As the function does it, but with all the time in the world.
    let mut waiting = house.t.owner().await;
    let waits = tokio::spawn(async move {
        sqlx::raw_sql("select state.make_partition('agent_steps', '2050-01-01T00:00Z', '2050-02-01T00:00Z')")
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
    sqlx::raw_sql("rollback").execute(&mut other).await.unwrap();
    waits.await.unwrap().unwrap();
}

/// HI-1: a row for whose time there is no partition is refused with what to do, and not tried again; what is missing is made, in the middle too.
#[tokio::test]
async fn a_row_without_a_partition_is_refused_with_advice() {
    let house = House::new().await;
    let fence = house.running().await;
    lose(&house, "outbox", PRESENT).await;
    let refused = house.finish(fence).await.unwrap_err();
    assert!(causes(&refused).contains("waybill admin extend-partitions"), "{refused:?}");
    assert!(!refused.is_transient(), "{refused:?}");
    let read = vitals::read(house.kernel()).await.unwrap();
    let ahead: Vec<_> = read.iter().filter(|vital| vital.vital == metric::HISTORY_AHEAD_SECONDS).collect();
    assert_eq!(ahead.len(), 6);
    assert!(ahead.iter().all(|vital| (vital.value == 0.0) == (vital.target.as_deref() == Some("outbox"))), "{ahead:?}");
    let seen = check::partitions(house.kernel()).await;
    assert!(!seen.ok && seen.advice.contains("extend-partitions"), "{seen:?}");
    // The present one alone is missing elsewhere.
    let present = "do $$ begin execute format('drop table %s',
                     (select p.partition from state.partitions('agent_steps') p where p.starts_at <= now() and now() < p.ends_at)); end $$";
    sqlx::raw_sql(present).execute(&mut house.t.owner().await).await.unwrap();

    assert!(extend(&house).await.unwrap() > 1);
    assert!(check::partitions(house.kernel()).await.ok);
    let short = "select count(*) from state.history() h where state.history_ahead(h.parent) < interval '28 days'";
    assert_eq!(house.count(short).await, 0);
    house.finish(fence).await.unwrap();
}

/// HI-3: pruning that was interrupted is finished by the next run, and no turn waits for either.
#[tokio::test]
async fn an_interrupted_prune_is_finished() {
    let house = House::new().await;
    let mut owner = house.t.owner().await;
    let old = "select state.make_partition(h.parent, '2020-01-01T00:00Z', '2020-01-08T00:00Z') from state.history() h;
               select state.make_partition('outbox', '2020-01-08T00:00Z', '2020-01-15T00:00Z')";
    sqlx::raw_sql(old).execute(&mut owner).await.unwrap();
    let mut dump = house.t.admin().await;
    sqlx::raw_sql(AS_A_DUMP).execute(&mut dump).await.unwrap();
    // The first was interrupted while it waited for the dump, another between its two statements.
    sqlx::raw_sql("set lock_timeout = '100ms'").execute(&mut owner).await.unwrap();
    let begun = "alter table state.outbox detach partition parts.outbox_20200101 concurrently";
    assert!(sqlx::raw_sql(begun).execute(&mut owner).await.is_err());
    let fence = house.running().await;
    house.finish(fence).await.unwrap();
    sqlx::raw_sql("rollback").execute(&mut dump).await.unwrap();
    let detached = "alter table state.patches detach partition parts.patches_20200101";
    sqlx::raw_sql(detached).execute(&mut owner).await.unwrap();

    let plan = retention::plan(house.kernel(), &mut owner, Duration::from_secs(365 * 86_400), false).await.unwrap();
    let mut dropped = Vec::new();
    retention::drop(house.kernel(), &mut owner, &plan, |partition| dropped.push(partition.partition.clone()))
        .await
        .unwrap();
    assert_eq!(dropped.len(), 7, "{dropped:?}");
    assert_eq!(house.count("select count(*) from pg_class where relname like '%\\_2020____'").await, 0);
    assert_eq!(house.count("select count(*) from pg_inherits where inhdetachpending").await, 0);
}

/// RT-2: a hold that is placed after a prune was interrupted keeps what it has detached.
#[tokio::test]
async fn a_hold_keeps_what_a_prune_has_detached() {
    let house = House::new().await;
    let mut owner = house.t.owner().await;
    let old = "select state.make_partition('outbox', '2020-01-01T00:00Z', '2020-01-08T00:00Z')";
    sqlx::raw_sql(old).execute(&mut owner).await.unwrap();
    let event = format!(
        "insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status)
         values ('{}', state.first_id('2020-01-02T00:00Z'), 'state', gen_random_uuid(), gen_random_uuid(), 'running')",
        house.t.project_id
    );
    sqlx::raw_sql(AssertSqlSafe(event)).execute(&mut house.t.admin().await).await.unwrap();
    let detached = "alter table state.outbox detach partition parts.outbox_20200101";
    sqlx::raw_sql(detached).execute(&mut owner).await.unwrap();
    assert!(house.hold(Some("case 17")).await);
    let plan = retention::plan(house.kernel(), &mut owner, Duration::from_secs(365 * 86_400), false).await.unwrap();
    let refused = retention::drop(house.kernel(), &mut owner, &plan, |_| {}).await;
    assert!(matches!(refused, Err(retention::Error::Held { .. })), "{refused:?}");
    let there = "select count(*) from pg_class where relname = 'outbox_20200101'";
    assert_eq!(house.count(there).await, 1);
    assert!(house.hold(None).await);
    retention::drop(house.kernel(), &mut owner, &plan, |_| {}).await.unwrap();
    assert_eq!(house.count(there).await, 0);
}

fn minted(days: i64, version: usize) -> String {
    let at = Utc::now() + TimeDelta::days(days);
    let timestamp = uuid::Timestamp::from_unix(uuid::NoContext, at.timestamp().unsigned_abs(), 0);
    let mut id = uuid::Uuid::new_v7(timestamp).to_string();
    id.replace_range(14..15, &version.to_string());
    id
}

/// HI-1: an id of far ahead, of long ago or without a time would find no partition, and is refused.
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
    let card = instruction("late");
    let request = DispatchRequest {
        agent_turn_id: minted(-400, 7).parse().unwrap(),
        ..DispatchRequest::instructed(agent_id, card.card_id())
    };
    let refused = house.enqueue_all(&[request], &[card]).await;
    assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("use a new id")), "{refused:?}");
    for id in [minted(42, 7), "9b4e28ba-2fa1-41d2-883f-0016d3cca427".to_owned()] {
        let sql = format!(
            "insert into state.refusals (project_id, refusal_id, agent_id, box_id, tool_suffix, why)
             values ('{0}', '{id}', '{0}', '{0}', 'x', 'forbidden')",
            house.t.project_id
        );
        let refused = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *house.t.begin().await).await.unwrap_err();
        let said = Error::from(refused);
        assert!(matches!(&said, Error::Db(error) if error.lacks_partition()), "{said:?}");
    }
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

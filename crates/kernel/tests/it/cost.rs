//! CB-9: cost does not grow with history. Counted in pages and rows, so that a busy machine cannot blur it.

use serde_json::Value;
use sqlx::AssertSqlSafe;
use waybill_core::{
    card_box::Span,
    id::{BoxId, CardId},
    tokens::Tokens,
};
use waybill_kernel::{card_box, work::UnitOfWork};
use waybill_testkit::{TestDb, fresh_db};

use crate::filled_box;

/// A box that holds `n` cards of ten tokens, made by one statement.
async fn long_box(t: &TestDb, n: i64) -> BoxId {
    let box_id = BoxId::new();
    let mut work = t.begin().await;
    sqlx::query("set local statement_timeout = '5min'").execute(&mut *work).await.unwrap();
    sqlx::query(
        "with made as (
           insert into cardbox.cards (project_id, card_id, n_tokens, type, role, hash, salt, content)
           select $1, gen_random_uuid(), 10, 'agent.thought', 'assistant', decode(repeat('00', 32), 'hex'), decode(repeat('00', 16), 'hex'), '\"x\"'
             from generate_series(1, $3)
        returning card_id
         ), b as (
           insert into cardbox.boxes (project_id, box_id, length) values ($1, $2, $3)
         )
         insert into cardbox.box_entries (project_id, box_id, seq, card_id)
         select $1, $2, row_number() over (), card_id from made",
    )
    .bind(t.project_id)
    .bind(box_id)
    .bind(n)
    .execute(&mut *work)
    .await
    .unwrap();
    work.commit().await.unwrap();
    box_id
}

/// CB-9
#[tokio::test]
async fn appending_and_inheriting_write_the_same_rows_at_any_length() {
    let t = fresh_db().await;
    let mut counts = Vec::new();
    for n in [10, 20_000] {
        let box_id = long_box(&t, n).await;
        let mut work = t.begin().await;
        let (_, cards) = filled_box(&mut work, 1).await;
        let before = rows_written(&mut work).await.unwrap();
        card_box::append(&mut work, box_id, &cards).await.unwrap();
        let appended = rows_written(&mut work).await.unwrap();
        card_box::create_from(&mut work, &[BoxId::new()], Span::whole(box_id)).await.unwrap();
        let made = rows_written(&mut work).await.unwrap();
        let (heir, _) = filled_box(&mut work, 1).await;
        let between = rows_written(&mut work).await.unwrap();
        card_box::inherit(&mut work, heir, Span::whole(box_id)).await.unwrap();
        counts.push([appended - before, made - appended, rows_written(&mut work).await.unwrap() - between]);
    }
    assert_eq!(counts, [[2, 2, 2]; 2], "an entry and the box's row");
}

/// CB-9: pages touched by a turn's hydration of a long box and of a short one.
#[tokio::test]
async fn hydrating_touches_the_same_pages_at_any_length() {
    let t = fresh_db().await;
    let mut boxes = Vec::new();
    for n in [1_000, 50_000] {
        let plain = long_box(&t, n).await;
        let heir = BoxId::new();
        let mut work = t.begin().await;
        card_box::create_from(&mut work, &[heir], Span::whole(plain)).await.unwrap();
        work.commit().await.unwrap();
        boxes.extend([plain, heir]);
    }
    sqlx::query("vacuum analyze").execute(&mut t.admin().await).await.unwrap();
    let mut pages = Vec::new();
    for box_id in boxes {
        pages.push(pages_of_hydration(&t, box_id).await);
    }
    let [short, short_heir, long, long_heir] = pages[..] else { unreachable!() };
    assert!(long <= short * 1.2 && long_heir <= short_heir * 1.2, "{pages:?}");
}

async fn pages_of_hydration(t: &TestDb, box_id: BoxId) -> f64 {
    pages_of(
        t,
        "with recursive",
        &format!("'{}', '{box_id}', 1000000, 2, 2000, null, null, '{{}}', null", t.project_id),
    )
    .await
}

/// Pages that the statement of `card_box` with this part touches. What it writes is rolled back.
async fn pages_of(t: &TestDb, part: &str, arguments: &str) -> f64 {
    let sources = [include_str!("../../src/card_box/hydrate.rs"), include_str!("../../src/card_box/inherit.rs")];
    let sql = sources.iter().flat_map(|source| source.split('"')).find(|literal| literal.contains(part)).unwrap();
    let mut work = t.begin().await;
    sqlx::raw_sql(AssertSqlSafe(format!("prepare h as {sql}"))).execute(&mut *work).await.unwrap();
    let explain = format!("explain (analyze, buffers, format json) execute h({arguments})");
    let plan = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_one(&mut *work).await.unwrap();
    let plan: Value = sqlx::Row::get(&plan, 0);
    sqlx::query("deallocate h").execute(&mut *work).await.unwrap();
    most_pages(&plan[0]["Plan"])
}

/// A node counts what is below it; but the root does not count the parts that write, which run after it.
fn most_pages(node: &Value) -> f64 {
    let own = node["Shared Hit Blocks"].as_f64().unwrap() + node["Shared Read Blocks"].as_f64().unwrap();
    node["Plans"].as_array().into_iter().flatten().map(most_pages).fold(own, f64::max)
}

/// CB-9: to find that a long box holds no range takes no more pages than for a short one, however many ranges others hold.
#[tokio::test]
async fn inheriting_touches_the_same_pages_at_any_length() {
    let t = fresh_db().await;
    let (short, long) = (long_box(&t, 10).await, long_box(&t, 50_000).await);
    let mut work = t.begin().await;
    let (heir, _) = filled_box(&mut work, 1).await;
    let others: Vec<BoxId> = (0..5_000).map(|_| BoxId::new()).collect();
    card_box::create_from(&mut work, &others, Span::whole(short)).await.unwrap();
    work.commit().await.unwrap();
    sqlx::query("vacuum analyze").execute(&mut t.admin().await).await.unwrap();
    let project_id = t.project_id;
    for (part, upto) in [("as heir (box_id)", 1_000_000), ("range_agg", 10)] {
        let mut pages = Vec::new();
        for source in [short, long] {
            let arguments = match part {
                "range_agg" => format!("'{project_id}', '{heir}', '{source}', 1, {upto}, 1"),
                _ => format!("'{project_id}', '{{{}}}', '{source}', 1, {upto}", BoxId::new()),
            };
            // The least of three: now and then a table grows by a page just then.
            let mut least = f64::MAX;
            for _ in 0..3 {
                least = least.min(pages_of(&t, part, &arguments).await);
            }
            pages.push(least);
        }
        assert!(pages[1] <= pages[0] + 4.0, "{part}: {pages:?}");
        assert!(pages[1] <= 60.0, "the ranges of other boxes are not read: {part}: {pages:?}");
    }
}

/// CB-9: a tail of a hundred thousand cards that have ended is not walked to its beginning.
#[tokio::test]
async fn a_long_tail_of_ended_cards_is_not_walked_to_its_beginning() {
    let t = fresh_db().await;
    let box_id = long_box(&t, 100_000).await;
    sqlx::query("alter table cardbox.cards disable trigger user").execute(&mut t.admin().await).await.unwrap();
    sqlx::query("update cardbox.cards set deleted_at = now() - interval '1 day', deleted_reason = 'x'")
        .execute(&mut t.admin().await)
        .await
        .unwrap();
    let window = card_box::Window { pinned: 0, budget: Tokens::new(2_000).unwrap(), as_of: None };
    let hydrated = card_box::hydrate(&mut t.begin().await, box_id, None, window).await.unwrap();
    assert!(hydrated.cards.is_empty(), "nothing live, nothing shown: {}", hydrated.cards.len());
    assert_eq!(hydrated.omitted, Some(Span::prefix(box_id, 100_000)));
    let pages = pages_of(
        &t,
        "with recursive",
        &format!("'{}', '{box_id}', 1000000, 0, 100000000, null, null, '{{}}', null", t.project_id),
    )
    .await;
    assert!(pages < 100_000.0, "pages: {pages}"); // all 100,000 positions would be over a million
}

/// One statement each, whatever the number of cards.
#[tokio::test]
async fn batches_are_one_statement_each() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let cards = crate::instructions(50);
    let asked: Vec<CardId> = crate::ids(&cards);
    let before = statements(&mut work).await;
    waybill_kernel::card::insert(&mut work, &cards).await.unwrap();
    let inserted = statements(&mut work).await;
    waybill_kernel::card::fetch(&mut work, &asked, None).await.unwrap();
    let fetched = statements(&mut work).await;
    assert_eq!((inserted - before, fetched - inserted), (2, 2), "one, and the counting itself");
}

/// The number of statements prepared on this connection so far: each text is prepared once, and run once here.
async fn statements(work: &mut UnitOfWork) -> i64 {
    let nonce = CardId::new();
    let sql = format!("select count(*) from pg_prepared_statements where '{nonce}' <> ''");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut **work).await.unwrap()
}

/// Returns the rows that this connection has written and not reported yet: useful only as a difference.
async fn rows_written(work: &mut UnitOfWork) -> sqlx::Result<i64> {
    let rows = sqlx::query_scalar(
        "select coalesce(sum(n_tup_ins + n_tup_upd), 0)::bigint
           from pg_stat_xact_user_tables where schemaname = 'cardbox'",
    );
    rows.fetch_one(&mut **work).await
}

//! The statements and the schema they run on.

use std::{fs, path::Path, process::Command};

use sqlx::{AssertSqlSafe, Row};
use waybill_core::{card_box::Span, id::BoxId};
use waybill_kernel::card_box;
use waybill_services::postgres;
use waybill_testkit::fresh_db;

use crate::{
    filled_box,
    plans::extract::{Statement, literals},
};

fn statement_with(part: &str) -> String {
    let mut matching = literals().into_iter().map(|literal| literal.sql).filter(|sql| sql.contains(part));
    let found = matching.next().unwrap_or_else(|| panic!("no statement has {part:?}"));
    assert!(matching.next().is_none(), "several statements have {part:?}");
    found
}

#[tokio::test]
async fn every_statement_prepares() {
    let t = fresh_db().await;
    let statements = literals();
    assert!(statements.len() >= 60, "the scan finds them: {}", statements.len());
    for (n, Statement { place, sql, .. }) in statements.iter().enumerate() {
        let mut work = t.begin().await;
        let prepared = sqlx::raw_sql(AssertSqlSafe(format!("prepare s{n} as {sql}"))).execute(&mut *work).await;
        assert!(prepared.is_ok(), "{place}: {sql}\n{prepared:?}");
    }
}

/// A call with many values in a row is easily mixed up: more than twelve belong into a row, and more than five are named where they are passed.
#[tokio::test]
async fn functions_take_few_values_and_calls_name_them() {
    let t = fresh_db().await;
    let wide: Vec<String> = sqlx::query_scalar(
        "select p.oid::regprocedure::text from pg_proc p
          where p.pronamespace::regnamespace::text in ('cardbox', 'resource', 'scheduler', 'state') and p.pronargs > 12",
    )
    .fetch_all(&mut t.admin().await)
    .await
    .unwrap();
    assert_eq!(wide, [""; 0]);
    let by_place = |sql: &&str| {
        let calls = ["cardbox.", "resource.", "scheduler.", "state."];
        calls.iter().any(|schema| {
            let after = sql.split(schema).skip(1);
            after.filter_map(|rest| rest.split_once('(')).any(|(name, values)| {
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                    && values.starts_with("$1, $2, $3, $4, $5, $6")
            })
        })
    };
    let statements = literals();
    let unnamed: Vec<&str> = statements.iter().map(|one| one.sql.as_str()).filter(by_place).collect();
    assert_eq!(unnamed, [""; 0]);
}

/// CB-9: the plans read by key and nothing beyond the box, also where a project has many ranges.
#[tokio::test]
async fn the_plans_read_nothing_beyond_the_box() {
    let t = fresh_db().await;
    let mut work = t.begin().await;
    let (source, cards) = filled_box(&mut work, 400).await;
    let children: Vec<BoxId> = (0..300).map(|_| BoxId::new()).collect();
    card_box::create_from(&mut work, &children, Span::whole(source)).await.unwrap();
    for _ in 0..20 {
        let (other, _) = filled_box(&mut work, 5).await;
        let heirs: Vec<BoxId> = (0..30).map(|_| BoxId::new()).collect();
        card_box::create_from(&mut work, &heirs, Span::whole(other)).await.unwrap();
    }
    work.commit().await.unwrap();
    sqlx::query("analyze").execute(&mut t.admin().await).await.unwrap();

    let child = children[7];
    let plans = [
        (
            statement_with("walk as"),
            format!("'{}', '{child}', 1000, 2, 40, null, '{source}', '{{{}}}', '{child}'", t.project_id, cards[0]),
        ),
        (statement_with("left join (\n                lateral"), format!("'{}', '{child}', 5, 9, null", t.project_id)),
        (
            statement_with("select distinct card_id from unnest($2"),
            format!("'{}', '{{{}}}', null", t.project_id, cards[0]),
        ),
        (
            statement_with("returning b.length\n         ), entries"),
            format!("'{}', '{child}', '{{{}}}'", t.project_id, cards[0]),
        ),
        (statement_with("range_agg"), format!("'{}', '{child}', '{source}', 1, 400, 400", t.project_id)),
        (statement_with("as heir (box_id)"), format!("'{}', '{{{}}}', '{child}', 1, 400", t.project_id, BoxId::new())),
        (
            statement_with("from cardbox.holdings($1, $2)\n"),
            format!("'{}', '{}', null, null, 10", t.project_id, cards[0]),
        ),
    ];
    for (n, (sql, arguments)) in plans.iter().enumerate() {
        let mut work = t.begin().await;
        sqlx::raw_sql(AssertSqlSafe(format!("prepare p{n} as {sql}"))).execute(&mut *work).await.unwrap();
        let explain = format!("explain (costs off) execute p{n}({arguments})");
        let plan = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut *work).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let whole = plan.join("\n");
        assert!(whole.contains('$'), "a generic plan:\n{whole}");
        for bad in ["Seq Scan", "Merge Join", "Hash Join"] {
            assert!(!whole.contains(bad), "{bad} in\n{sql}\n{whole}");
        }
        let scans =
            |line: &str| line.contains("Index") && (line.contains(" on box_entries") || line.contains(" on cards"));
        for pair in plan.windows(2).filter(|pair| scans(&pair[0])) {
            let keyed = pair[1].contains("Index Cond") && (pair[1].contains("box_id") || pair[1].contains("card_id"));
            assert!(keyed, "not by key: {}\n{}\n{whole}", pair[0], pair[1]);
        }
        for part in [
            "Function Scan on places",
            "Function Scan on reading",
            "Function Scan on runs",
            "Function Scan on holdings",
        ] {
            assert!(!whole.contains(part), "not written into the caller: {part}\n{whole}");
        }
    }
}

/// `docs/schema.sql` is what the migrations make. `UPDATE=1 cargo nextest run docs_schema` writes it.
#[tokio::test]
async fn docs_schema_is_what_the_migrations_make() {
    let t = fresh_db().await;
    let pg_dump = postgres::binaries().unwrap().join("pg_dump");
    let version = Command::new(&pg_dump).arg("--version").output().unwrap().stdout;
    if !String::from_utf8(version).unwrap().contains("(PostgreSQL) 15.") {
        return; // another version writes the same schema with other words
    }
    let dumped = Command::new(pg_dump)
        .args(["--schema-only", "--no-owner", "--exclude-schema=waybill", "--exclude-schema=parts", "--dbname"])
        .arg(t.server.admin_url(&t.name))
        .output()
        .unwrap();
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    let dumped = String::from_utf8(dumped.stdout).unwrap();
    let kept =
        |line: &&str| !line.starts_with("--") && !line.starts_with('\\') && !line.starts_with("SE") && !line.is_empty();
    let schema: String = dumped.lines().filter(kept).flat_map(|line| [line, "\n"]).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema.sql");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&page, &schema).unwrap();
    }
    assert!(
        fs::read_to_string(page).unwrap_or_default() == schema,
        "docs/schema.sql is out of date: run with UPDATE=1"
    );
}

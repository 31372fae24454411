//! Benchmarks. Each compares several ways to do the same thing, in one run on one server: ratios and counts, not times.

use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use waybill_core::{
    card::{CardType, Content, Draft, NewCard, Role},
    tokens::Tokens,
};
use waybill_kernel::{
    migrate,
    work::{Config, Kernel},
};

use waybill_services::Server;

pub mod against;
pub mod api;
pub mod artifact;
mod away;
pub mod bells;
pub mod cache;
pub mod card_box;
pub mod compose;
pub mod delete;
mod fill;
pub mod fork;
pub mod groups;
pub mod growth;
pub mod knowledge;
pub mod leaves;
pub mod lists;
mod peer;
pub mod record;
pub mod serve;
pub mod skew;
pub mod storage;
pub mod turns;
mod worked;

/// Tokens of each card: about 700 bytes of text.
const CARD_TOKENS: i32 = 170;

/// Shows a progress bar on the terminal; silent where there is no terminal.
pub fn progress(what: &str, length: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg:36} {bar:32} {human_pos}/{human_len} {eta}").expect("the template is valid");
    ProgressBar::new(length).with_style(style).with_message(what.to_owned())
}

/// Replaces the last run's database with a new, migrated one. Returns the kernel on it and an administrator's connection.
pub(crate) async fn fresh_database(server: &Server, database: &'static str) -> Result<(Kernel, PgConnection)> {
    let drop = format!("drop database if exists {database} with (force)");
    sqlx::query(AssertSqlSafe(drop)).execute(&mut server.admin().await?).await?;
    server.create_database(database).await?;
    let mut owner = PgConnection::connect(&server.owner_url(database)).await?;
    migrate::run(&mut owner, |_| ()).await?;
    server.open_logins().await?;
    // One connection for each of the 32 clients of the largest benchmark, and a few more. A benchmark that needs fewer opens fewer.
    let config = Config { max_connections: 40, ..Config::new(server.service_url(database)) };
    Ok((Kernel::connect(&config).await?, PgConnection::connect(&server.admin_url(database)).await?))
}

/// Returns a text of about 700 bytes that no other card has.
fn noise() -> String {
    uuid::Uuid::now_v7().simple().to_string().repeat(21)
}

fn draft(card_type: CardType, role: Role) -> Draft {
    Draft::new(card_type, role, Content::Text(noise()))
}

/// Seals a card with a known token count, because counting tokens costs more than storing the card.
pub(crate) fn new_card(card_type: CardType, role: Role) -> NewCard {
    let tokens = Tokens::new(CARD_TOKENS).expect("positive");
    draft(card_type, role).seal_counted(tokens).expect("plain text is a card")
}

/// A connection reports to the server's statistics up to ten seconds late.
const BOOKS_LATE: Duration = Duration::from_secs(12);

/// Returns the number of transactions of a database, as the server counts them: every autocommit statement is one, and so is a pool's ping.
async fn transactions(admin: &mut PgConnection, database: &str) -> Result<i64> {
    let sql = "select xact_commit + xact_rollback from pg_stat_database where datname = $1";
    Ok(sqlx::query_scalar(sql).bind(database).fetch_one(admin).await?)
}

/// Returns the median, so that a hiccup of the machine does not count.
fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("measurements compare"));
    values[values.len() / 2]
}

async fn timed(work: impl AsyncFnOnce() -> Result<()>) -> Result<Duration> {
    let begun = Instant::now();
    work().await?;
    Ok(begun.elapsed())
}

/// Returns median time of `a` ÷ median time of `b`. The two alternate, so that machine noise affects both alike.
async fn ratio(
    what: &str,
    samples: u64,
    mut a: impl AsyncFnMut() -> Result<()>,
    mut b: impl AsyncFnMut() -> Result<()>,
) -> Result<f64> {
    let bar = progress(what, samples);
    let (mut times_a, mut times_b) = (Vec::new(), Vec::new());
    for sample in 0..samples + samples / 10 + 1 {
        let (time_a, time_b) = if sample % 2 == 0 {
            let time_a = timed(&mut a).await?;
            (time_a, timed(&mut b).await?)
        } else {
            let time_b = timed(&mut b).await?;
            (timed(&mut a).await?, time_b)
        };
        // The first tenth warms up caches and plans.
        if sample > samples / 10 {
            times_a.push(time_a);
            times_b.push(time_b);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(median(times_a).as_secs_f64() / median(times_b).as_secs_f64())
}

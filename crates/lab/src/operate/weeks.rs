//! Weeks whose partitions are missing, during a dump: orchestrators make them, and no statement waits for that.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sqlx::{Connection, PgConnection};
use tokio::{task::JoinSet, time::sleep};
use waybill_kernel::{retention, work::Kernel};
use waybill_orchestrator::watch;
use waybill_services::Private;

use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    operate::held::Load,
};

/// How long each window is, and how many rounds.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The length of each window. Windows with and without missing partitions alternate.
    pub window: Duration,
    pub rounds: u32,
}

const DATABASE: &str = "waybill_weeks";
const ORCHESTRATORS: usize = 2;
/// Days ahead for which orchestrators keep partitions.
const WANTED: i64 = 28;

/// Drops the partitions of the weeks to come.
const LOSE: &str = "do $$
    declare
      v_one regclass;
    begin
      for v_one in select p.partition from state.history() h cross join lateral state.partitions(h.parent) p where p.starts_at > now() loop
        execute format('drop table %s', v_one);
      end loop;
    end $$";

/// Takes the locks that a dump holds on every table while it runs.
const AS_A_DUMP: &str = "begin isolation level repeatable read read only;
    do $$
    declare
      v_table regclass;
    begin
      for v_table in select c.oid from pg_class c
                      where c.relkind in ('r', 'p') and c.relnamespace = any (array['cardbox', 'resource', 'state', 'parts']::regnamespace[]) loop
        execute format('lock table %s in access share mode', v_table);
      end loop;
    end $$";

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let (kernel, mut dump) = fresh_database(&private.server, DATABASE).await?;
    let load = Load::new(&kernel).await?;
    let bar = progress("a dump, and partitions to be made", u64::from(options.rounds) + 1);
    load.run(None, options.window / 2).await?;
    let peak = load.run(None, options.window).await?;
    bar.inc(1);
    let (mut alone, mut missing, mut waited, mut left) = (0.0, 0.0, 0.0_f64, 0_i64);
    for _ in 0..options.rounds {
        sqlx::raw_sql(AS_A_DUMP).execute(&mut dump).await?;
        alone += beside(&load, &kernel, peak / 2.0, options.window).await?;
        sqlx::raw_sql("rollback").execute(&mut dump).await?;
        sqlx::raw_sql(LOSE).execute(&mut dump).await?;
        let ahead = retention::history(&kernel).await?.days_ahead;
        ensure!(ahead < WANTED, "no partition is missing: the run proves nothing");
        sqlx::raw_sql(AS_A_DUMP).execute(&mut dump).await?;
        let watching = PgConnection::connect(&private.server.admin_url(DATABASE)).await?;
        let watching = tokio::spawn(longest_wait(watching, options.window));
        missing += beside(&load, &kernel, peak / 2.0, options.window).await?;
        waited = waited.max(watching.await??);
        left = left.max(WANTED - retention::history(&kernel).await?.days_ahead);
        sqlx::raw_sql("rollback").execute(&mut dump).await?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(vec![
        Figure::new("turns/s at peak", peak, "turns/s", Bar::None),
        Figure::new("turns/s of half the peak, beside a dump", alone / f64::from(options.rounds), "turns/s", Bar::None),
        Figure::new(
            "turns/s beside a dump with weeks missing ÷ beside the dump alone",
            missing / alone,
            "ratio",
            Bar::AtLeast(0.95),
        ),
        Figure::new("longest that a statement stood behind the making of partitions", waited, "ms", Bar::AtMost(250.0)),
        Figure::new("days that are still missing beside the dump", left.max(0) as f64, "days", Bar::AtMost(0.0)),
    ])
}

/// Runs the load beside orchestrators. They start with each window, and so make missing partitions at once.
async fn beside(load: &Load, kernel: &Kernel, rate: f64, window: Duration) -> Result<f64> {
    let mut orchestrators: JoinSet<()> = JoinSet::new();
    for _ in 0..ORCHESTRATORS {
        let kernel = kernel.clone();
        orchestrators.spawn(async move { match watch::run(&kernel, &watch::Config::default()).await {} });
    }
    load.run(Some(rate), window).await
}

/// Returns the longest time, in milliseconds, that a statement waited for a lock behind one that makes partitions.
async fn longest_wait(mut admin: PgConnection, lasts: Duration) -> Result<f64> {
    let (begun, mut longest) = (Instant::now(), 0.0_f64);
    while begun.elapsed() < lasts {
        let waited: f64 = sqlx::query_scalar(
            "select coalesce(max(extract(epoch from clock_timestamp() - l.waitstart)) * 1000, 0)::float8
               from pg_locks l
               join pg_stat_activity a on a.pid = l.pid and a.query not like '%extend_partitions%'
              where not l.granted and l.waitstart is not null
                and exists (select from unnest(pg_blocking_pids(l.pid)) as b (pid)
                              join pg_stat_activity o on o.pid = b.pid and o.query like '%extend_partitions%')",
        )
        .fetch_one(&mut admin)
        .await?;
        longest = longest.max(waited);
        sleep(Duration::from_millis(10)).await;
    }
    Ok(longest)
}

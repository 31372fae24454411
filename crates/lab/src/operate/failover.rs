//! Repeated failover to a synchronous standby, under writers: no acknowledged write is lost, every write of unknown outcome is found by its key, and
//! writes resume soon.
//!
//! ```text
//!   writers ──▶ proxy ──▶ primary ──synchronous──▶ standby
//!                 │  killed: promote, let it commit alone, move the proxy, make the next standby, synchronous again
//! ```

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sqlx::{Connection, PgConnection};
use tokio::time::sleep;
use waybill_kernel::work::{Config, Kernel};

use super::writers::Writers;
use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    storm::proxy::{Mode, Proxy},
};
use waybill_services::Private;

/// How many failovers.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub failovers: usize,
}

const DATABASE: &str = "waybill_failover";
const CALM: Duration = Duration::from_secs(2);
/// Longer than any statement of the service may take.
const FROZEN: Duration = Duration::from_secs(7);

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    let mut primary = Private::to_be_killed().await?;
    let (kernel, admin) = fresh_database(&primary.server, DATABASE).await?;
    drop((kernel, admin));
    let mut standby = primary.standby().await?;
    synchronous(&primary, true).await?;
    let proxy = Proxy::start(primary.server.port(), Mode::Pass, 1).await?;
    let url = primary.server.service_url(DATABASE).replace(&primary.server.port().to_string(), &proxy.port.to_string());
    let kernel = Kernel::connect(&Config::new(url)).await?;
    let writers = Writers::start(&kernel).await?;
    let known = writers.known.clone();

    let bar = progress("failovers", options.failovers as u64);
    let (mut back, mut early) = (Vec::new(), 0);
    for n in 0..options.failovers {
        sleep(CALM).await;
        if n % 5 == 4 {
            // While the standby does not answer, no write may be acknowledged.
            standby.freeze(true);
            let frozen_at = Instant::now();
            sleep(FROZEN).await;
            let told = known.acknowledged().into_iter();
            early += told.filter(|(at, _)| *at > frozen_at + Duration::from_millis(500)).count();
            standby.freeze(false);
            // Waits until pending writes arrive.
            sleep(CALM).await;
        }
        let killed_at = Instant::now();
        primary.kill();
        proxy.set(Mode::Cut);
        standby.promote().await?;
        synchronous(&standby, false).await?;
        proxy.move_to(standby.server.port());
        // Writes acknowledged from here on are on the new server.
        let moved_at = Instant::now();
        proxy.set(Mode::Pass);
        let next = loop {
            if let Some(after) = known.since(moved_at) {
                break moved_at - killed_at + after;
            }
            ensure!(killed_at.elapsed() < Duration::from_secs(60), "no write came back within a minute");
            sleep(Duration::from_millis(10)).await;
        };
        back.push(next.as_secs_f64());
        primary = standby;
        standby = primary.standby().await?;
        synchronous(&primary, true).await?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    sleep(CALM).await;
    let mut admin = PgConnection::connect(&primary.server.admin_url(DATABASE)).await?;
    let mut figures = vec![
        Figure::new("failovers", back.len() as f64, "", Bar::AtLeast(options.failovers as f64)),
        Figure::new("writes acknowledged while the standby stood still", early as f64, "writes", Bar::AtMost(0.0)),
        Figure::new(
            "from the kill to the next acknowledged write, at most",
            back.iter().copied().fold(0.0, f64::max),
            "s",
            Bar::AtMost(10.0),
        ),
    ];
    figures.extend(writers.account(&mut admin).await?);
    Ok(figures)
}

/// Sets whether a commit waits for a standby.
async fn synchronous(server: &Private, is_on: bool) -> Result<()> {
    let mut admin = server.server.admin().await?;
    let names = if is_on { "*" } else { "" };
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("alter system set synchronous_standby_names = '{names}'")))
        .execute(&mut admin)
        .await?;
    sqlx::query("select pg_reload_conf()").execute(&mut admin).await?;
    if is_on {
        let begun = Instant::now();
        let attached =
            "select exists (select from pg_stat_replication where state = 'streaming' and sync_state = 'sync')";
        while !sqlx::query_scalar::<_, bool>(attached).fetch_one(&mut admin).await? {
            ensure!(begun.elapsed() < Duration::from_secs(60), "the standby did not follow within a minute");
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

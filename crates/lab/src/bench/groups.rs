//! What it gives that a worker ends turns together: turns a second, how soon a turn ends, and what a turn that is alone pays for it.
//!
//! The worker is the real process, the model is the demo's and answers at once. Once beside its database, once half a millisecond away from it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use sqlx::PgConnection;
use tokio::task::JoinSet;
use waybill_bus::nats::Nats;
use waybill_orchestrator::watch;

use super::{
    away, fresh_database, progress,
    serve::{Callers, Hands, wait_until_done},
};
use crate::{
    figure::{Bar, Figure},
    storm::verdict::percentile,
};
use waybill_services::{Private, nats};

/// How many turns.
#[derive(Clone, Debug)]
pub struct Options {
    /// `waybill` itself.
    pub program: PathBuf,
    /// Turns that wait when a worker starts.
    pub backlog: usize,
    /// Turns that are started alone, one after the other.
    pub alone: usize,
    /// How long turns are started at a third of what the worker can do.
    pub window: Duration,
    /// How often both ways are measured, by turns.
    pub rounds: usize,
}

const DATABASE: &str = "waybill_bench_groups";
/// In each direction.
const AWAY: Duration = Duration::from_micros(250);
/// Ends each turn alone, and together.
const WAYS: [&str; 2] = ["1", "64"];

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let mut nats = nats::Private::new()?;
    nats.start()?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let kernel = kernel.on(Arc::new(Nats::connect(&nats.url()).await?));
    let mut crew = JoinSet::new();
    let sweeps = kernel.clone();
    crew.spawn(async move { match watch::run(&sweeps, &watch::Config::default()).await {} });
    let callers = Callers::new(kernel, Duration::ZERO).await?;
    let beside = private.server.url_of("worker", DATABASE);
    let port = url::Url::parse(&beside)?.port().context("the URL has a port")?;
    let mut distant = url::Url::parse(&beside)?;
    let _ = distant.set_port(Some(away::start(port, AWAY)?));
    let mut figures = Vec::new();
    for (place, database_url) in [("beside the database", beside), ("0.5 ms away", distant.to_string())] {
        let mut measured = [Vec::new(), Vec::new()];
        for round in 0..options.rounds * 2 {
            let way = (round + round / 2) % 2;
            callers.ask(options.backlog).await?;
            let arguments = ["--most", "64", "--most-ends", WAYS[way]];
            let mut hands = Hands::hire(&options.program, &database_url, &nats.url(), 1, &arguments)?;
            measured[way].push(measure(options, &callers, &mut admin, &mut hands).await?);
        }
        figures.extend(compare(place, &measured));
    }
    Ok(figures)
}

/// What one worker did.
struct Measured {
    per_second: f64,
    /// Created to finished, in seconds.
    alone: f64,
    p99: f64,
}

async fn measure(
    options: &Options,
    callers: &Callers,
    admin: &mut PgConnection,
    hands: &mut Hands,
) -> Result<Measured> {
    wait_until_done(admin, hands).await?;
    // The middle of the backlog, without the start of the process.
    let sql = "select (extract(epoch from max(finished_at) - min(finished_at)))::float8
                 from (select finished_at from state.turns order by finished_at desc limit $1) t
                where finished_at >= (select percentile_disc(0.1) within group (order by finished_at)
                                        from (select finished_at from state.turns order by finished_at desc limit $1) t)";
    let n = options.backlog as i64;
    let seconds: f64 = sqlx::query_scalar(sql).bind(n).fetch_one(&mut *admin).await?;
    let per_second = options.backlog as f64 * 0.9 / seconds.max(0.001);
    let bar = progress("turns alone", options.alone as u64);
    let mut alone = Vec::new();
    for _ in 0..options.alone {
        callers.clone().launch().await?;
        wait_until_done(admin, hands).await?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let sql = "select extract(epoch from finished_at - created_at)::float8 from state.turns order by created_at desc limit $1";
    alone.extend(sqlx::query_scalar::<_, f64>(sql).bind(options.alone as i64).fetch_all(&mut *admin).await?);
    let load = per_second / 3.0;
    let took = callers.pace("turns at a third of what it can do", load, options.window, admin, hands).await?;
    Ok(Measured { per_second, alone: percentile(alone, 0.5), p99: percentile(took, 0.99) })
}

fn compare(place: &str, [one_by_one, together]: &[Vec<Measured>; 2]) -> Vec<Figure> {
    let median = |measured: &[Measured], of: fn(&Measured) -> f64| percentile(measured.iter().map(of).collect(), 0.5);
    let ratio = |of: fn(&Measured) -> f64| median(together, of) / median(one_by_one, of);
    vec![
        Figure::new(format!("turns/s one by one, {place}"), median(one_by_one, |m| m.per_second), "turns/s", Bar::None),
        Figure::new(format!("turns/s together, {place}"), median(together, |m| m.per_second), "turns/s", Bar::None),
        Figure::new(
            format!("turns/s together ÷ one by one, {place}"),
            ratio(|m| m.per_second),
            "ratio",
            Bar::AtLeast(1.8),
        ),
        Figure::new(
            format!("created to finished, p99, together ÷ one by one, {place}"),
            ratio(|m| m.p99),
            "ratio",
            Bar::AtMost(1.1),
        ),
        Figure::new(
            format!("a turn alone, together ÷ one by one, {place}"),
            ratio(|m| m.alone),
            "ratio",
            Bar::AtMost(1.05),
        ),
    ]
}

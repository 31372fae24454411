//! The watchdogs, again and again (L0-14). They also ring for what is ready, so that a ring that was lost costs one tick.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use tokio::time::{sleep, timeout};
use waybill_artifact::Artifacts;
use waybill_core::metric;
use waybill_kernel::{
    agent, lease,
    sweep::{self, Swept},
    work::Kernel,
};

/// How often, and how.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub sweep: sweep::Config,
    /// Partitions of history are made for so many weeks ahead.
    pub weeks_ahead: i32,
    /// Where objects that nothing names are deleted. Without, they stay.
    pub artifacts: Option<Artifacts>,
}

/// A tick that takes longer is given up: whoever is at the other end of its connection is gone.
const MOST_PATIENT: Duration = Duration::from_secs(15);
/// Agents that nobody asked for any more, at a time.
const MOST_RETIRED: i32 = 1_000;
/// Objects that nothing names, at a time.
const MOST_SWEPT: i32 = 100;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Sweeps for ever; retires, tidies and looks for lost leases beside it.
pub async fn run(kernel: &Kernel, config: &Config) -> Infallible {
    tokio::select! {
        swept = sweep(kernel, config) => swept,
        retired = retire(kernel) => retired,
        ended = end_missing_leases(kernel) => ended,
        tidied = tidy(config.artifacts.as_ref()) => tidied,
    }
}

async fn retire(kernel: &Kernel) -> Infallible {
    loop {
        match timeout(MOST_PATIENT, agent::retire(kernel, MOST_RETIRED)).await {
            Ok(Ok(retired)) if retired >= MOST_RETIRED as u64 => continue,
            Ok(Ok(_)) => {}
            trouble => tracing::warn!(?trouble, "agents were not retired"),
        }
        sleep(MINUTE).await;
    }
}

/// A worker without a lease row holds what no other sweep finds.
async fn end_missing_leases(kernel: &Kernel) -> Infallible {
    loop {
        match timeout(MOST_PATIENT, lease::end_missing(kernel)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(ended)) => tracing::warn!(ended, "workers held turns or calls without a lease: these go to others"),
            trouble => tracing::warn!(?trouble, "workers without a lease were not looked for"),
        }
        sleep(MINUTE).await;
    }
}

/// Objects of the store that nothing names.
async fn tidy(artifacts: Option<&Artifacts>) -> Infallible {
    let Some(artifacts) = artifacts else { return std::future::pending().await };
    loop {
        match artifacts.sweep(MOST_SWEPT).await {
            Ok(swept) if swept >= MOST_SWEPT as u64 => continue,
            Ok(0) => {}
            Ok(swept) => tracing::info!(swept, "objects that nothing names were deleted"),
            Err(error) => tracing::warn!(%error, "objects that nothing names were not deleted"),
        }
        sleep(MINUTE).await;
    }
}

async fn sweep(kernel: &Kernel, config: &Config) -> Infallible {
    // Four ticks within a lease: a gap as long as a lease means that nobody swept.
    let pause = (config.sweep.lease / 4).min(Duration::from_secs(1));
    let mut extended: Option<Instant> = None;
    loop {
        match timeout(MOST_PATIENT, sweep::tick(kernel, &config.sweep)).await {
            Ok(Ok(swept)) => {
                count(&swept);
                if swept.did_something() {
                    tracing::info!(?swept, "swept");
                }
                if is_full(&swept, config.sweep.most) {
                    continue;
                }
            }
            Ok(Err(error)) => {
                metrics::counter!(metric::SWEEPS, "outcome" => "failed").increment(1);
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, "a sweep failed");
            }
            Err(_) => {
                metrics::counter!(metric::SWEEPS, "outcome" => "failed").increment(1);
                tracing::warn!("a sweep was given up: the database did not answer");
            }
        }
        if extended.is_none_or(|at| at.elapsed() > HOUR) {
            match timeout(MOST_PATIENT, sweep::extend_partitions(kernel, config.weeks_ahead)).await {
                Ok(Ok(_)) => extended = Some(Instant::now()),
                trouble => tracing::warn!(?trouble, "partitions were not made"),
            }
        }
        sleep(pause).await;
    }
}

fn count(swept: &Swept) {
    metrics::counter!(metric::SWEEPS, "outcome" => "done").increment(1);
    let Swept { turns_reclaimed, turns_silent, turns_released, calls_reclaimed, calls_timed_out, .. } = *swept;
    for (what, n) in [
        ("leases_lapsed", u64::try_from(swept.leases_lapsed).unwrap_or_default()),
        ("turns_reclaimed", turns_reclaimed),
        ("turns_silent", turns_silent),
        ("turns_released", turns_released),
        ("calls_reclaimed", calls_reclaimed),
        ("calls_timed_out", calls_timed_out),
        ("batches_closed", swept.batches_closed),
        ("batches_stopped", swept.batches_stopped),
        ("failures", swept.failures),
        ("doors_rung", swept.doors_rung),
    ] {
        metrics::counter!(metric::SWEPT, "what" => what).increment(n);
    }
}

/// Whether a portion was as large as it may be, so that there is probably more.
fn is_full(swept: &Swept, most: i32) -> bool {
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    [swept.turns_reclaimed, swept.turns_released, swept.calls_reclaimed, swept.calls_timed_out]
        .into_iter()
        .any(|n| n >= most)
}

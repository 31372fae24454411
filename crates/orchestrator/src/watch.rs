//! The watchdogs, again and again (L0-14). They also ring for what is ready, so that a ring that was lost costs one tick.

use std::{convert::Infallible, time::Duration};

use futures::future::select_all;
use tokio::time::{sleep, timeout};
use waybill_artifact::Artifacts;
use waybill_core::{error::causes, metric};
use waybill_kernel::{
    agent, lease, retention,
    sweep::{self, Sweep, Swept},
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
const QUARTER: Duration = Duration::from_secs(900);
const HOUR: Duration = Duration::from_secs(3600);

/// Sweeps for ever; retires, tidies, makes partitions and looks for lost leases beside it.
pub async fn run(kernel: &Kernel, config: &Config) -> Infallible {
    // Each at its own pace: none waits behind another that is long.
    let sweeps = Sweep::ALL.map(|kind| Box::pin(sweep(kernel, config, kind)));
    tokio::select! {
        (swept, _, _) = select_all(sweeps) => swept,
        retired = retire(kernel) => retired,
        ended = end_missing_leases(kernel) => ended,
        extended = extend(kernel, config.weeks_ahead) => extended,
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

/// Partitions of history, ahead of their time. Where a dump or a long read keeps us from making them, they can wait: weeks are in hand.
async fn extend(kernel: &Kernel, weeks: i32) -> Infallible {
    let mut pause = MINUTE;
    loop {
        let made = async {
            let mut connection = kernel.pool().acquire().await?;
            retention::extend(&mut connection, weeks).await
        };
        match timeout(MOST_PATIENT, made).await {
            Ok(Ok(made)) => {
                if made > 0 {
                    tracing::info!(made, "partitions were made");
                }
                pause = MINUTE;
                sleep(HOUR).await;
            }
            trouble => {
                let cause = trouble.map_or("the database did not answer".to_owned(), |made| {
                    made.err().map(|error| causes(&error)).unwrap_or_default()
                });
                tracing::warn!(cause, again_in = ?pause, "partitions of history were not made");
                sleep(pause).await;
                pause = (pause * 2).min(QUARTER);
            }
        }
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

/// One kind of sweeps, tick after tick.
async fn sweep(kernel: &Kernel, config: &Config, kind: Sweep) -> Infallible {
    // Four ticks within a lease: a gap as long as a lease means that nobody swept.
    let pause = (config.sweep.lease / 4).min(Duration::from_secs(1));
    loop {
        match timeout(MOST_PATIENT, sweep::run(kernel, &config.sweep, kind)).await {
            Ok(Ok(swept)) => {
                count(kind, &swept);
                if swept.did_something() {
                    tracing::info!(?swept, "swept");
                }
                if is_full(&swept, config.sweep.most) {
                    continue;
                }
            }
            Ok(Err(error)) => {
                failed(kind);
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, sweep = kind.as_str(), "a sweep failed");
            }
            Err(_) => {
                failed(kind);
                tracing::warn!(sweep = kind.as_str(), "a sweep was given up: the database did not answer");
            }
        }
        sleep(pause).await;
    }
}

fn failed(kind: Sweep) {
    metrics::counter!(metric::SWEEPS, "sweep" => kind.as_str(), "outcome" => "failed").increment(1);
}

fn count(kind: Sweep, swept: &Swept) {
    metrics::counter!(metric::SWEEPS, "sweep" => kind.as_str(), "outcome" => "done").increment(1);
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
    swept.left_over > 0
        || [swept.turns_reclaimed, swept.turns_released, swept.calls_reclaimed, swept.calls_timed_out]
            .into_iter()
            .any(|n| n >= most)
}

//! The watchdogs, which run periodically (L0-14). They also ring for work that is ready, so that a lost ring costs one tick.

use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use futures::future::select_all;
use tokio::time::{sleep, timeout};
use waybill_artifact::Artifacts;
use waybill_core::{error::causes, id::ProjectId, metric};
use waybill_kernel::{
    agent, lease, retain,
    retain::Portion,
    retention,
    sweep::{self, Sweep, Swept},
    work::Kernel,
};

/// Settings of the watchdogs.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub sweep: sweep::Config,
    /// The store whose unreferenced objects are deleted. `None` means that they stay.
    pub artifacts: Option<Artifacts>,
}

/// A tick that takes longer is given up: the server at the other end of its connection is gone.
const MOST_PATIENT: Duration = Duration::from_secs(15);
/// How many unused agents are retired at a time.
const MOST_RETIRED: i32 = 1_000;
/// How many unreferenced objects are deleted at a time.
const MOST_SWEPT: i32 = 100;
/// How many projects' walks are continued in one round, and how many rows each looks at.
const MOST_PROJECTS: i32 = 100;
const MOST_RETAINED: i32 = 200;
/// How long one portion of a walk may take, and the pause after it: other work comes first.
const MOST_REMOVING: Duration = Duration::from_secs(75);
const PAUSE: Duration = Duration::from_millis(250);
const MINUTE: Duration = Duration::from_secs(60);
const QUARTER: Duration = Duration::from_secs(900);
const HOUR: Duration = Duration::from_secs(3600);

/// Sweeps forever. At the same time it retires agents, deletes unreferenced objects, makes partitions, looks for missing leases, and removes what
/// projects no longer keep.
pub async fn run(kernel: &Kernel, config: &Config) -> Infallible {
    // Each at its own pace: none waits for another that takes long.
    let sweeps = Sweep::ALL.map(|kind| Box::pin(sweep(kernel, config, kind)));
    tokio::select! {
        (swept, _, _) = select_all(sweeps) => swept,
        retired = retire(kernel) => retired,
        ended = end_missing_leases(kernel) => ended,
        extended = extend(kernel) => extended,
        tidied = tidy(config.artifacts.as_ref()) => tidied,
        removed = remove(kernel) => removed,
    }
}

async fn retire(kernel: &Kernel) -> Infallible {
    loop {
        match timeout(MOST_PATIENT, agent::retire(kernel, MOST_RETIRED)).await {
            Ok(Ok(retired)) if retired >= MOST_RETIRED as u64 => continue,
            Ok(Ok(_)) => {}
            trouble => tracing::warn!(?trouble, "unused agents could not be retired: trying again in a minute"),
        }
        sleep(MINUTE).await;
    }
}

/// Ends the claims of workers that have no lease row: no other sweep finds those.
async fn end_missing_leases(kernel: &Kernel) -> Infallible {
    loop {
        match timeout(MOST_PATIENT, lease::end_missing(kernel)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(ended)) => {
                tracing::warn!(ended, "workers lost their leases: their turns and calls were released to other workers")
            }
            trouble => tracing::warn!(?trouble, "cannot look for workers without a lease: trying again in a minute"),
        }
        sleep(MINUTE).await;
    }
}

/// Makes partitions of history ahead of time. If that fails it can wait: there are weeks left.
async fn extend(kernel: &Kernel) -> Infallible {
    let mut pause = MINUTE;
    loop {
        match timeout(MOST_PATIENT, retention::extend_here(kernel)).await {
            Ok(Ok(made)) => {
                if made > 0 {
                    tracing::info!(made, "the next partitions of the history tables were created");
                }
                pause = MINUTE;
                sleep(HOUR).await;
            }
            trouble => {
                let cause = trouble.map_or("the database did not answer".to_owned(), |made| {
                    made.err().map(|error| causes(&error)).unwrap_or_default()
                });
                tracing::warn!(cause, again_in = ?pause, "the next partitions of the history tables could not be created; trying again later");
                sleep(pause).await;
                pause = (pause * 2).min(QUARTER);
            }
        }
    }
}

/// Deletes objects of the store that nothing references.
async fn tidy(artifacts: Option<&Artifacts>) -> Infallible {
    let Some(artifacts) = artifacts else { return std::future::pending().await };
    loop {
        match artifacts.sweep(MOST_SWEPT).await {
            Ok(swept) if swept >= MOST_SWEPT as u64 => continue,
            Ok(0) => {}
            Ok(swept) => tracing::info!(swept, "unreferenced objects were deleted from the object store"),
            Err(error) => tracing::warn!(%error, "unreferenced objects could not be deleted from the object store"),
        }
        sleep(MINUTE).await;
    }
}

/// Removes what projects no longer keep, one portion of each in turn. Of several processes one does so at a time.
async fn remove(kernel: &Kernel) -> Infallible {
    // What each walk has removed so far, for the log.
    let mut walks: BTreeMap<ProjectId, BTreeMap<String, i64>> = BTreeMap::new();
    loop {
        let due = match timeout(MOST_PATIENT, retain::due(kernel, MOST_PROJECTS)).await {
            Ok(Ok(due)) => due,
            trouble => {
                tracing::warn!(?trouble, "projects whose retention is due were not looked for");
                Vec::new()
            }
        };
        let mut is_done = true;
        for project_id in due {
            match timeout(MOST_REMOVING, retain::portion(kernel, project_id, MOST_RETAINED)).await {
                Ok(Ok(Some(portion))) => {
                    is_done &= portion.is_over;
                    note(&mut walks, project_id, portion);
                }
                Ok(Ok(None)) => {}
                trouble => {
                    tracing::warn!(?trouble, project = %project_id, "what the project no longer keeps was not removed")
                }
            }
            sleep(PAUSE).await;
        }
        if is_done {
            sleep(MINUTE).await;
        }
    }
}

/// Counts what a portion has removed, and logs what its walk has removed when that is over.
fn note(walks: &mut BTreeMap<ProjectId, BTreeMap<String, i64>>, project_id: ProjectId, portion: Portion) {
    let walk = walks.entry(project_id).or_default();
    for (what, n) in portion.removed {
        metrics::counter!(metric::REMOVED, "what" => what.clone()).increment(n.unsigned_abs());
        *walk.entry(what).or_default() += n;
    }
    if portion.is_over
        && let Some(removed) = walks.remove(&project_id)
        && !removed.is_empty()
    {
        tracing::info!(project = %project_id, ?removed, "what the project no longer keeps was removed");
    }
}

/// Runs one kind of sweep, tick after tick.
async fn sweep(kernel: &Kernel, config: &Config, kind: Sweep) -> Infallible {
    // Four ticks within a lease: a gap as long as a lease means that no process swept.
    let pause = (config.sweep.lease / 4).min(Duration::from_secs(1));
    loop {
        match timeout(MOST_PATIENT, sweep::run(kernel, &config.sweep, kind)).await {
            Ok(Ok(swept)) => {
                count(kind, &swept);
                if swept.did_something() {
                    tracing::info!(?swept, "a watchdog found work to do");
                }
                if is_full(&swept, config.sweep.most) {
                    continue;
                }
            }
            Ok(Err(error)) => {
                failed(kind);
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, sweep = kind.as_str(), "a watchdog failed; it runs again at its next interval");
            }
            Err(_) => {
                failed(kind);
                tracing::warn!(
                    sweep = kind.as_str(),
                    "a watchdog stopped because the database did not answer in time; it runs again at its next interval"
                );
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

/// Checks whether a portion had its largest size, so that there is probably more.
fn is_full(swept: &Swept, most: i32) -> bool {
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    swept.left_over > 0
        || [swept.turns_reclaimed, swept.turns_released, swept.calls_reclaimed, swept.calls_timed_out]
            .into_iter()
            .any(|n| n >= most)
}

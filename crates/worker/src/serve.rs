//! A worker process: claims turns as they come, up to a limit at a time, and hands them over when it stops.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use waybill_artifact::Artifacts;
use waybill_context::layer::BlockKey;
use waybill_core::{error::innermost, id::Target};
use waybill_kernel::{
    intake::{self, Holding, Intake},
    knowledge::Kind,
    lease,
    turn::{self, Attempts, Claimed},
    work::Kernel,
};

use crate::{
    collect::Collector,
    ends::Ends,
    knowledge::Shelved,
    model::Models,
    turn::{Error, Outcome, run},
};

/// Settings of a worker process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The target whose turns it runs.
    pub target: Target,
    pub lease: Duration,
    /// How many turns at a time.
    pub most: usize,
    /// How many turns of one project may run at once, over all processes.
    pub in_flight_cap: i32,
    /// The poll interval for work while no ring arrives.
    pub look: Duration,
    /// How long it waits for running steps when it stops.
    pub grace: Duration,
}

impl Config {
    pub fn new(target: Target) -> Config {
        let (lease, look) = (lease::LEASE, intake::Config::default().poll_interval);
        Config { target, lease, most: 64, in_flight_cap: 1_000, look, grace: Duration::from_secs(30) }
    }
}

/// Everything that is needed to run turns. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Worker {
    kernel: Kernel,
    models: Models,
    collector: Arc<Collector>,
    attempts: Attempts,
    leaving: Arc<AtomicBool>,
    artifacts: Option<Artifacts>,
    ends: Arc<Ends>,
}

/// How many turns of one project may end in one transaction.
pub const MOST_ENDS: usize = 64;

impl Worker {
    pub fn new(kernel: Kernel, models: Models, mut collector: Collector) -> Worker {
        for (key, kind) in [(BlockKey::Knowledge, Kind::Knowledge), (BlockKey::Experience, Kind::Experience)] {
            collector.offer(key, Arc::new(Shelved { kernel: kernel.clone(), models: models.clone(), kind }));
        }
        let (collector, leaving) = (Arc::new(collector), Arc::default());
        let ends = Ends::new(kernel.clone(), MOST_ENDS);
        Worker { kernel, models, collector, attempts: Attempts::default(), leaving, artifacts: None, ends }
    }

    /// Sets the artifacts that turns may read and write.
    #[must_use]
    pub fn with_artifacts(self, artifacts: Option<Artifacts>) -> Worker {
        Worker { artifacts, ..self }
    }

    /// Sets how many turns of one project may end in one transaction: 1 ends each alone.
    #[must_use]
    pub fn with_most_ends(self, most: usize) -> Worker {
        Worker { ends: Ends::new(self.kernel.clone(), most.max(1)), ..self }
    }

    pub(crate) fn ends(&self) -> &Arc<Ends> {
        &self.ends
    }

    pub(crate) fn artifacts(&self) -> Option<&Artifacts> {
        self.artifacts.as_ref()
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub(crate) fn models(&self) -> &Models {
        &self.models
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    pub(crate) fn attempts(&self) -> Attempts {
        self.attempts
    }

    /// Checks whether the process is stopping: then no new step begins.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Runs turns until `end` resolves; then lets running steps complete, and gives the turns back for other workers.
    pub async fn serve(&self, config: &Config, end: impl Future<Output = ()>) {
        let intake = intake::Config {
            lease: config.lease,
            most: config.most,
            in_flight_cap: config.in_flight_cap,
            poll_interval: config.look,
            ..intake::Config::default()
        };
        let intake = Intake::<Claimed>::open(&self.kernel, config.target.clone(), intake);
        let end = async {
            end.await;
            self.leaving.store(true, Ordering::Relaxed);
        };
        intake
            .serve(end, config.grace, |holding| {
                let worker = self.clone();
                async move { worker.hold(&holding).await }
            })
            .await;
    }

    /// Runs a turn while this worker holds it. An error that `run` cannot handle counts as a failed attempt.
    async fn hold(&self, holding: &Holding<Claimed>) -> Result<(), String> {
        let turn_id = holding.claimed.fence.agent_turn_id();
        match run(self, holding).await {
            Ok(Outcome::Left) => tracing::debug!(%turn_id, "a turn is left to other workers"),
            Ok(outcome) => tracing::debug!(%turn_id, ?outcome, "a turn moved"),
            // Another worker has it.
            Err(Error::Turn(turn::Error::Stale(_))) => {}
            Err(error) => {
                tracing::error!(%turn_id, %error, cause = innermost(&error), "the worker could not continue a turn");
                return Err(error.to_string());
            }
        }
        Ok(())
    }
}

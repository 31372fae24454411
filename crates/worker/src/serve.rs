//! A worker process: takes turns as they come, so many at a time, and lets them go in good order.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
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
    knowledge::Shelved,
    model::Models,
    turn::{Error, Outcome, run},
    write,
};

/// How a process works.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose turns it runs.
    pub target: Target,
    pub lease: Duration,
    /// How many turns at a time.
    pub most: usize,
    /// How many turns of one project may run at once, over all processes.
    pub in_flight_cap: i32,
    /// Between two looks for work at most, while nobody rings.
    pub look: Duration,
    /// How long, when it is to end, it waits for the steps that are under way.
    pub grace: Duration,
}

impl Config {
    pub fn new(target: Target) -> Config {
        let (lease, look) = (lease::LEASE, intake::Config::default().wary);
        Config { target, lease, most: 64, in_flight_cap: 1_000, look, grace: Duration::from_secs(30) }
    }
}

/// Everything that turns are run with. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Worker {
    kernel: Kernel,
    models: Models,
    collector: Arc<Collector>,
    attempts: Attempts,
    leaving: Arc<AtomicBool>,
    artifacts: Option<Artifacts>,
}

impl Worker {
    pub fn new(kernel: Kernel, models: Models, mut collector: Collector) -> Worker {
        for (key, kind) in [(BlockKey::Knowledge, Kind::Knowledge), (BlockKey::Experience, Kind::Experience)] {
            collector.offer(key, Arc::new(Shelved { kernel: kernel.clone(), models: models.clone(), kind }));
        }
        let (collector, leaving) = (Arc::new(collector), Arc::default());
        Worker { kernel, models, collector, attempts: Attempts::default(), leaving, artifacts: None }
    }

    /// With artifacts that turns may read and write.
    #[must_use]
    pub fn with_artifacts(self, artifacts: Option<Artifacts>) -> Worker {
        Worker { artifacts, ..self }
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

    /// It is to end: no step begins any more.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Takes turns until `end` comes; then lets steps that are under way come to their end, and gives the turns to others.
    pub async fn serve(&self, config: &Config, end: impl Future<Output = ()>) {
        let intake = intake::Config {
            lease: config.lease,
            most: config.most,
            in_flight_cap: config.in_flight_cap,
            wary: config.look,
            ..intake::Config::default()
        };
        let mut intake = Intake::<Claimed>::open(&self.kernel, config.target.clone(), intake);
        let mut turns = JoinSet::new();
        let mut end = std::pin::pin!(end);
        loop {
            tokio::select! {
                holding = intake.next() => {
                    let worker = self.clone();
                    turns.spawn(async move { worker.hold(holding).await });
                }
                Some(_) = turns.join_next() => {}
                () = &mut end => break,
            }
        }
        self.leaving.store(true, Ordering::Relaxed);
        drop(intake);
        let ended = async { while turns.join_next().await.is_some() {} };
        if tokio::time::timeout(config.grace, ended).await.is_err() {
            tracing::warn!("steps that were under way are given up");
            turns.shutdown().await;
        }
        // Time for the lease to be given up, so that others need not wait for it to lapse.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    /// Runs a turn while it is ours.
    async fn hold(&self, holding: Holding<Claimed>) {
        let turn_id = holding.claimed.fence.agent_turn_id();
        let outcome = tokio::select! {
            outcome = run(self, &holding) => outcome,
            () = holding.lost() => {
                tracing::debug!(%turn_id, "a turn was lost");
                return;
            }
        };
        match outcome {
            Ok(Outcome::Left) => tracing::debug!(%turn_id, "a turn is left to others"),
            Ok(outcome) => tracing::debug!(%turn_id, ?outcome, "a turn moved"),
            // Somebody else has it.
            Err(Error::Turn(turn::Error::Stale(_))) => {}
            Err(error) => {
                let cause = innermost(&error);
                tracing::error!(%turn_id, %error, cause, "an attempt failed");
                self.give_back(&holding, &error).await;
            }
        }
    }

    /// An attempt that failed in a way that nobody foresaw is counted, and tried again later.
    async fn give_back(&self, holding: &Holding<Claimed>, error: &Error) {
        let loss = turn::Loss::Attempt { error: error.to_string(), backoff: Duration::from_secs(2) };
        if let Err(error) = write::give_back(&self.kernel, &holding.claimed.fence, &loss, self.attempts).await {
            tracing::debug!(%error, "it could not be given back: its lease ends");
        }
    }
}

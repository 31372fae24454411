//! A transaction that stays open, beside half of the peak load: the dead rows that vacuum cannot remove meanwhile must not slow the system down.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use waybill_core::{
    card::{CardType, Role},
    id::{AgentId, ProjectId, WorkerId},
    metric,
};
use waybill_kernel::{
    agent, lease,
    retry::Transient,
    turn::{self, Claiming, DispatchRequest},
    vitals,
    work::Kernel,
};
use waybill_services::Private;

use crate::{
    bench::{fresh_database, new_card, progress, turns::ending},
    figure::{Bar, Figure},
};

/// How long each part lasts.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long the peak is measured, and then half of it without an open transaction.
    pub before: Duration,
    pub held: Duration,
    /// How long the alert's condition must hold: an age of over a minute, for a minute. `None` means that the transaction is open for too short
    /// a time to check this.
    pub alert: Option<Duration>,
}

const DATABASE: &str = "waybill_held";
const CLIENTS: usize = 8;
const AGENTS: usize = 1_000;
const OLD: f64 = 60.0;

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    // Lets `waybill_scheduler` see the transactions of every role. An owner that is no superuser cannot grant that right.
    sqlx::query("grant pg_read_all_stats to waybill_scheduler").execute(&mut admin).await?;
    let load = Load::new(&kernel).await?;

    let bar = progress("a transaction held open", 4);
    load.run(None, options.before / 2).await?;
    bar.inc(1);
    let peak = load.run(None, options.before).await?;
    bar.inc(1);
    let rate = peak / 2.0;
    let before = load.run(Some(rate), options.before).await?;
    bar.inc(1);
    sqlx::raw_sql("begin isolation level repeatable read; select count(*) from state.turns")
        .execute(&mut admin)
        .await?;
    let watching = tokio::spawn(watch(kernel.clone(), options.held));
    let during = load.run(Some(rate), options.held).await?;
    let (oldest, alerting) = watching.await??;
    sqlx::raw_sql("rollback").execute(&mut admin).await?;
    bar.finish_and_clear();
    let mut figures = vec![
        Figure::new("turns/s at peak", peak, "turns/s", Bar::None),
        Figure::new("turns/s of half the peak, before", before, "turns/s", Bar::None),
        Figure::new("turns/s beside an open transaction ÷ before", during / before, "ratio", Bar::AtLeast(0.95)),
        Figure::new(
            "age of the oldest transaction, as measured",
            oldest,
            "s",
            Bar::AtLeast(options.held.as_secs_f64() * 0.9 - 2.0),
        ),
    ];
    if let Some(needed) = options.alert {
        let bar = Bar::AtLeast(needed.as_secs_f64());
        figures.push(Figure::new("how long WaybillLongTransaction had cause to fire", alerting, "s", bar));
    }
    Ok(figures)
}

/// Returns the greatest age seen, and for how long it was above the alert's limit.
async fn watch(kernel: Kernel, lasts: Duration) -> Result<(f64, f64)> {
    let (begun, mut oldest, mut above) = (Instant::now(), 0.0_f64, None::<Instant>);
    while begun.elapsed() < lasts {
        let read = vitals::read(&kernel).await?;
        let age = read.iter().find(|vital| vital.vital == metric::OLDEST_TRANSACTION_SECONDS);
        let age = age.map_or(0.0, |vital| vital.value);
        oldest = oldest.max(age);
        if age > OLD {
            above.get_or_insert_with(Instant::now);
        }
        sleep(Duration::from_secs(1)).await;
    }
    Ok((oldest, above.map_or(0.0, |since| since.elapsed().as_secs_f64())))
}

/// A few clients that run turns of one project.
#[derive(Clone)]
pub(super) struct Load {
    kernel: Kernel,
    project_id: ProjectId,
    agents: Arc<Vec<AgentId>>,
    worker: WorkerId,
}

impl Load {
    pub(super) async fn new(kernel: &Kernel) -> Result<Load> {
        let project_id = ProjectId::new();
        let agents: Vec<AgentId> = (0..AGENTS).map(|_| AgentId::new()).collect();
        let mut work = kernel.begin(project_id).await?;
        agent::create(&mut work, &agents, &"llm".parse()?).await?;
        work.commit().await?;
        let worker = lease::start(kernel, &"llm".parse()?, Duration::from_secs(3600)).await?;
        Ok(Load { kernel: kernel.clone(), project_id, agents: Arc::new(agents), worker })
    }

    /// Runs complete turns, one after the other, at this rate or as fast as possible. Returns turns per second.
    pub(super) async fn run(&self, rate: Option<f64>, lasts: Duration) -> Result<f64> {
        let (done, begun) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (load, done) = (self.clone(), done.clone());
            clients.spawn(async move {
                let mut pace = rate.map(|rate| interval(Duration::from_secs_f64(CLIENTS as f64 / rate)));
                if let Some(pace) = &mut pace {
                    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
                }
                let mut claiming = Claiming::new(load.worker, "llm".parse()?);
                for n in 0.. {
                    if let Some(pace) = &mut pace {
                        pace.tick().await;
                    }
                    if begun.elapsed() >= lasts {
                        break;
                    }
                    match load.turn(client + n * CLIENTS, &mut claiming).await {
                        Ok(()) => done.fetch_add(1, Relaxed),
                        // It waited for too long: this turn does not count as done.
                        Err(error) if error.downcast_ref().is_some_and(turn::Error::is_transient) => continue,
                        Err(error) => return Err(error),
                    };
                }
                anyhow::Ok(())
            });
        }
        while let Some(client) = clients.join_next().await {
            client??;
        }
        Ok(done.load(Relaxed) as f64 / begun.elapsed().as_secs_f64())
    }

    async fn turn(&self, n: usize, claiming: &mut Claiming) -> Result<()> {
        let card = new_card(CardType::instruction(), Role::User);
        let request = DispatchRequest::instructed(self.agents[n % self.agents.len()], card.card_id());
        turn::enqueue(&mut self.kernel.alone(self.project_id).await?, &[request], &[card]).await?;
        // If this claims nothing, another client holds the turn and finishes it.
        for claimed in turn::claim(&self.kernel, claiming).await? {
            turn::finish(&mut self.kernel.alone(self.project_id).await?, &[ending(claimed.fence)]).await?;
        }
        Ok(())
    }
}

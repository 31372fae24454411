//! What a doorbell costs, and what idle processes cost.

use std::{
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use tokio::{sync::mpsc, task::JoinSet};
use waybill_bus::{
    feed::{Config as FeedConfig, NatsFeed},
    local::Local,
    nats::Nats,
};
use waybill_core::{
    bus::Bus,
    card::Draft,
    id::{AgentId, ProjectId, StepId, Target},
    turn::End,
};
use waybill_kernel::{
    agent,
    intake::{Config, Intake},
    turn::{self, Claimed, DispatchRequest, Ending},
    work::Kernel,
};
use waybill_orchestrator::{relay, watch};

use super::{BOOKS_LATE, fresh_database, median, progress, transactions};
use crate::figure::{Bar, Figure};
use waybill_services::{Private, Server, nats};

/// How many samples, and how long idle processes are watched.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub samples: usize,
    pub window: Duration,
}

const DATABASE: &str = "waybill_bench_bells";
const IDLE_WORKERS: usize = 100;

/// Measures on a private PostgreSQL with durability on, and a private NATS.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let mut nats = nats::Private::new()?;
    nats.start()?;
    let (kernel, _admin) = fresh_database(&private.server, DATABASE).await?;
    let mut figures = Vec::new();
    doorbell_to_claim(options, &kernel, &nats.url(), &mut figures).await?;
    idleness(options, &kernel, &private.server, &nats.url(), &mut figures).await?;
    Ok(figures)
}

/// One worker that waits for a doorbell, and the project that starts turns for it.
struct House {
    kernel: Kernel,
    project_id: ProjectId,
    agent_id: AgentId,
    claimed: mpsc::UnboundedReceiver<Instant>,
    _worker: JoinSet<()>,
}

impl House {
    async fn open(kernel: &Kernel, bus: Arc<dyn Bus>, target: &str) -> Result<House> {
        let kernel = kernel.clone().on(bus);
        let (project_id, agent_id, target) = (ProjectId::new(), AgentId::new(), target.parse::<Target>()?);
        let mut work = kernel.begin(project_id).await?;
        agent::create(&mut work, &[agent_id], &target).await?;
        work.commit().await?;
        let (tell, claimed) = mpsc::unbounded_channel();
        let intake = Intake::<Claimed>::open(&kernel, target, Config::default());
        let mut worker = JoinSet::new();
        let hands = kernel.clone();
        worker.spawn(intake.serve(pending(), Duration::ZERO, move |holding| {
            let (hands, tell, at) = (hands.clone(), tell.clone(), Instant::now());
            async move {
                finish(&hands, holding.claimed.fence).await.map_err(|error| format!("{error:#}"))?;
                tell.send(at).map_err(|_| "the bench is over".to_owned())
            }
        }));
        Ok(House { kernel, project_id, agent_id, claimed, _worker: worker })
    }

    /// Returns the time from the doorbell to the claim.
    async fn sample(&mut self) -> Result<Duration> {
        let card = Draft::instruction("answer the door").seal()?;
        let request = DispatchRequest::instructed(self.agent_id, card.card_id());
        let mut alone = self.kernel.alone(self.project_id).await?;
        turn::enqueue(&mut alone, &[request], &[card]).await?;
        let rung = Instant::now();
        let claimed = self.claimed.recv().await.ok_or_else(|| anyhow::anyhow!("the worker has ended"))?;
        // Lets the worker end the last turn and listen for the doorbell again.
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(claimed.saturating_duration_since(rung))
    }
}

async fn finish(kernel: &Kernel, fence: waybill_core::turn::Fence) -> Result<()> {
    let deliverable = turn::ending_card(End::Success, "opened")?;
    let ending = Ending {
        fence,
        status: End::Success,
        step_id: Some(StepId::new()),
        receipt: None,
        usage: None,
        seen: None,
        cards: vec![deliverable],
    };
    turn::finish(&mut kernel.alone(fence.project_id()).await?, &[ending]).await?;
    Ok(())
}

async fn doorbell_to_claim(options: Options, kernel: &Kernel, nats_url: &str, figures: &mut Vec<Figure>) -> Result<()> {
    let mut near = House::open(kernel, Arc::new(Local::default()), "near").await?;
    let mut far = House::open(kernel, Arc::new(Nats::connect(nats_url).await?), "far").await?;
    let bar = progress("doorbell to claim", options.samples as u64);
    let (mut times_near, mut times_far) = (Vec::new(), Vec::new());
    for sample in 0..options.samples + 10 {
        let (time_near, time_far) = (near.sample().await?, far.sample().await?);
        if sample >= 10 {
            times_near.push(time_near.as_secs_f64());
            times_far.push(time_far.as_secs_f64());
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let (near, far) = (median(times_near), median(times_far));
    figures.push(Figure::new("doorbell to claim, in-process, p50", near * 1e6, "µs", Bar::None));
    figures.push(Figure::new("doorbell to claim, NATS, p50", far * 1e6, "µs", Bar::None));
    figures.push(Figure::new("doorbell to claim, p50, NATS ÷ in-process", far / near, "ratio", Bar::AtMost(3.0)));
    Ok(())
}

async fn idleness(
    options: Options,
    kernel: &Kernel,
    server: &Server,
    nats_url: &str,
    figures: &mut Vec<Figure>,
) -> Result<()> {
    let mut workers = JoinSet::new();
    for _ in 0..IDLE_WORKERS {
        let kernel = kernel.clone().on(Arc::new(Nats::connect(nats_url).await?));
        let intake = Intake::<Claimed>::open(&kernel, "idle".parse()?, Config::default());
        workers.spawn(intake.serve(pending(), Duration::ZERO, |_| async { Ok(()) }));
    }
    let idle = per_minute(server, "idle workers", options.window).await?;
    workers.shutdown().await;
    figures.push(Figure::new("100 idle workers: transactions a minute", idle, "1/min", Bar::AtMost(300.0)));

    let nats = Nats::connect(nats_url).await?;
    let feed = NatsFeed::new(&nats, FeedConfig::default());
    let kernel = kernel.clone().on(Arc::new(nats));
    let (watching, relaying) = (watch::Config::default(), relay::Config::default());
    let busy = tokio::select! {
        _ = watch::run(&kernel, &watching) => unreachable!("it runs for ever"),
        _ = relay::run(&kernel, &feed, &relaying) => unreachable!("it runs for ever"),
        busy = per_minute(server, "idle orchestrator", options.window / 2) => busy?,
    };
    figures.push(Figure::new("one idle orchestrator: transactions a minute", busy, "1/min", Bar::None));
    Ok(())
}

/// Returns transactions per minute, as the server counts them.
async fn per_minute(server: &Server, what: &str, window: Duration) -> Result<f64> {
    let mut admin = server.admin().await?;
    // The server counts earlier transactions late.
    tokio::time::sleep(BOOKS_LATE).await;
    let before = transactions(&mut admin, DATABASE).await?;
    let bar = progress(what, window.as_secs());
    let begun = Instant::now();
    while begun.elapsed() < window {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bar.set_position(begun.elapsed().as_secs());
    }
    bar.finish_and_clear();
    Ok((transactions(&mut admin, DATABASE).await? - before) as f64 * 60.0 / begun.elapsed().as_secs_f64())
}

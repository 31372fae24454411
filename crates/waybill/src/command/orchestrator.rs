//! `waybill orchestrator`

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use waybill_bus::{
    feed::{Config as FeedConfig, NatsFeed},
    nats::Nats,
};
use waybill_core::bus::Feed;
use waybill_kernel::{sweep, work::Kernel};
use waybill_orchestrator::{
    command, relay,
    trace::{Collector, Traced},
    watch,
};
use waybill_services::interrupted;

use crate::{
    connect::{self, Bus, Service, Storage},
    usage,
    watch::Watch,
};

pub(crate) const STREAM: &str = "WAYBILL_EVENTS";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    service: Service,
    #[command(flatten)]
    bus: Bus,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    storage: Storage,
    /// Run only this part. If omitted, all parts run, but the relay only if --nats-url or --otlp-endpoint is set.
    #[arg(long)]
    only: Option<Part>,
    /// Maximum number of database connections.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Lease in seconds: if a process does not renew its lease for this long, other processes take over its work. Use the same value for all of them.
    #[arg(long, default_value_t = 4.0, value_parser = usage::seconds)]
    lease: f64,
    /// The JetStream stream to publish events to.
    #[arg(long, default_value = STREAM)]
    stream: String,
    /// OpenTelemetry collector that gets the traces of ended turns, such as http://HOST:4318. If omitted, no traces are sent.
    #[arg(long, env = "WAYBILL_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Part {
    /// Carry out the commands of agents: delegate_async, fork_join, …
    Commands,
    /// Run the watchdogs, which handle expired leases, missed deadlines, and turns that are due.
    Sweep,
    /// Publish events to NATS, and send traces to the OpenTelemetry collector.
    Relay,
}

pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode> {
    let nats = arguments.bus.connect().await?;
    let kernel = connect::on_bus(arguments.service.kernel_with(arguments.connections).await?, nats.as_ref());
    if arguments.only == Some(Part::Relay) && nats.is_none() && arguments.otlp_endpoint.is_none() {
        bail!(
            "the relay has nothing to send events to: set --nats-url (or WAYBILL_NATS_URL) for events, or --otlp-endpoint for traces"
        );
    }
    arguments.watch.begin("orchestrator", &kernel, true).await?;
    connect::extend_history(&kernel).await;
    let collector = arguments
        .otlp_endpoint
        .as_deref()
        .map(Collector::new)
        .transpose()
        .context("the client for --otlp-endpoint cannot be created")?;
    let artifacts = arguments.storage.open(&kernel)?;
    let lease = Duration::from_secs_f64(arguments.lease);
    let config = command::Config { lease, artifacts, ..command::Config::default() };
    tokio::select! {
        () = keep_going(&kernel, nats.as_ref(), collector, config, arguments.stream, arguments.only) => {}
        heard = interrupted() => heard?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the commands of agents and the watchdogs, and relays events if there is a receiver for them.
pub(crate) async fn keep_going(
    kernel: &Kernel,
    nats: Option<&Nats>,
    collector: Option<Collector>,
    command_config: command::Config,
    stream: String,
    only: Option<Part>,
) {
    let lease = command_config.lease;
    let sweep = sweep::Config { lease, ..sweep::Config::default() };
    let watch_config = watch::Config { sweep, artifacts: command_config.artifacts.clone() };
    let relay_config = relay::Config { lease, ..relay::Config::default() };
    let stream = nats.map(|nats| NatsFeed::new(nats, FeedConfig { stream, ..FeedConfig::default() }));
    let feed: Option<Box<dyn Feed>> = match (stream, collector) {
        (feed, Some(collector)) => Some(Box::new(Traced::new(kernel.clone(), collector, feed))),
        (Some(stream), None) => Some(Box::new(stream)),
        (None, None) => None,
    };
    let runs = |part| only.is_none_or(|only| only == part);
    let answering = async {
        match runs(Part::Commands) {
            true => command::run(kernel, &command_config).await,
            false => std::future::pending().await,
        }
    };
    let sweeping = async {
        match runs(Part::Sweep) {
            true => watch::run(kernel, &watch_config).await,
            false => std::future::pending().await,
        }
    };
    let relaying = async {
        match &feed {
            Some(feed) if runs(Part::Relay) => relay::run(kernel, &**feed, &relay_config).await,
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = answering => {}
        _ = sweeping => {}
        _ = relaying => {}
    }
}

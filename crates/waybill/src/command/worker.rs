//! `waybill worker`

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Args;
use waybill_context::framework::Framework;
use waybill_core::{bus::PMO, id::Target};
use waybill_services::{interrupted, orphaned};
use waybill_tool::{secret::Secrets, service};
use waybill_worker::{
    collect::Collector,
    installation::{Document, Installation},
    model::Provider,
    serve::{Config, MOST_ENDS, Worker},
};

use crate::{
    command::apply,
    connect::{self, Bus, Service, Storage},
    reload::Followed,
    usage,
    watch::Watch,
};

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
    /// Run the turns of profiles with this `worker_target`.
    #[arg(long, default_value = "llm")]
    target: Target,
    #[command(flatten)]
    models: Reached,
    /// Maximum number of HTTP and MCP tool calls at a time. With 0, another worker must answer them.
    #[arg(long, default_value_t = 32)]
    tools: usize,
    /// Answer calls to tools that have this `target`.
    #[arg(long, default_value = "tools")]
    tools_target: Target,
    /// Maximum number of turns that this worker runs at a time.
    #[arg(long, default_value_t = 64)]
    most: usize,
    /// When several turns of one project end at the same time, commit up to this many in one database transaction. 1 turns this off.
    #[arg(long, default_value_t = MOST_ENDS)]
    most_ends: usize,
    /// Maximum number of turns of one project at a time, over all workers.
    #[arg(long, default_value_t = 1_000)]
    in_flight_cap: i32,
    /// Maximum number of database connections.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Lease in seconds: if a process does not renew its lease for this long, other processes take over its work. Use the same value for all of them.
    #[arg(long, default_value_t = 4.0, value_parser = usage::seconds)]
    lease: f64,
    /// Poll interval in seconds: how often to look for work if NATS does not announce any.
    #[arg(long, default_value_t = 1.5, value_parser = usage::seconds)]
    look: f64,
    /// Seconds to wait for running steps at shutdown.
    #[arg(long, default_value_t = 30.0, value_parser = usage::seconds)]
    grace: f64,
    /// End when the parent process ends.
    #[arg(long, hide = true)]
    with_parent: bool,
}

/// How models, tools and their secrets are reached.
#[derive(Clone, Debug, Args)]
pub(crate) struct Reached {
    /// YAML file of outside services: `provider: {name, adapter, base_url, …}`, `mcp_server: {name, command or url, …}`,
    /// `egress: {hosts, private_hosts}`. It is read again when it changes. If omitted, only the providers `openai_chat`, `openai_responses`,
    /// `anthropic_messages` and `demo` exist.
    #[arg(long, env = "WAYBILL_PROVIDERS", value_name = "FILE")]
    pub(crate) providers: Option<PathBuf>,
    /// Folder with one file per secret. Secrets of one project are in a subfolder with the id of the project. If omitted, secrets come from environment
    /// variables, such as `WAYBILL_SECRET_OPENAI` for the secret `openai`.
    #[arg(long, env = "WAYBILL_SECRETS", value_name = "FOLDER")]
    pub(crate) secrets: Option<PathBuf>,
    /// Providers that the file may leave out.
    #[arg(skip)]
    pub(crate) also: Vec<Provider>,
}

pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode> {
    ensure!(arguments.most > 0 && arguments.in_flight_cap > 0, "--most and --in-flight-cap must be at least 1");
    ensure!(
        arguments.target.as_str() != PMO && arguments.tools_target.as_str() != PMO,
        "the target `{PMO}` belongs to `waybill orchestrator`: name the `worker_target` of profiles with --target, and the `target` of tools \
         with --tools-target"
    );
    let (installation, followed) = arguments.models.read_and_follow()?;
    let nats = arguments.bus.connect().await?;
    let kernel = connect::on_bus(arguments.service.kernel_with(arguments.connections).await?, nats.as_ref());
    let leaving = arguments.watch.begin("worker", &kernel, false).await?;
    connect::extend_history(&kernel).await;
    let config = Config {
        lease: Duration::from_secs_f64(arguments.lease),
        most: arguments.most,
        in_flight_cap: arguments.in_flight_cap,
        look: Duration::from_secs_f64(arguments.look),
        grace: Duration::from_secs_f64(arguments.grace),
        ..Config::new(arguments.target)
    };
    tracing::info!(worker_target = %config.target, "waiting for turns of profiles with this `worker_target`");
    let artifacts = arguments.storage.open(&kernel)?;
    let tools = installation.tools(kernel.clone(), artifacts.clone());
    let calls = service::Config {
        target: arguments.tools_target,
        lease: config.lease,
        most: arguments.tools.max(1),
        look: config.look,
        grace: config.grace,
    };
    let models = installation.models();
    followed.follow(models.clone(), Some(tools.clone()));
    let worker = Worker::new(kernel, models, Collector::new(Framework::builtin()));
    let worker = worker.with_artifacts(artifacts).with_most_ends(arguments.most_ends);
    let (end_calls, ending) = tokio::sync::oneshot::channel::<()>();
    let answering = async {
        if arguments.tools > 0 {
            tools.serve(&calls, async { drop(ending.await) }).await;
        }
    };
    let mut heard = Ok(());
    let end = async {
        tokio::select! {
            interrupted = interrupted() => heard = interrupted,
            () = orphaned(), if arguments.with_parent => {}
        }
        leaving.begin();
        drop(end_calls);
    };
    tokio::join!(worker.serve(&config, end), answering);
    heard?;
    Ok(ExitCode::SUCCESS)
}

impl Reached {
    pub(crate) fn read(&self) -> Result<Installation> {
        Ok(self.read_and_follow()?.0)
    }

    /// Reads the providers file. Also returns what is needed to notice its changes.
    pub(crate) fn read_and_follow(&self) -> Result<(Installation, Followed)> {
        if let Some(folder) = &self.secrets {
            ensure!(folder.is_dir(), "--secrets {}: this folder does not exist", folder.display());
        }
        let read = |file: &PathBuf| {
            std::fs::read_to_string(file).with_context(|| format!("cannot read the providers file {}", file.display()))
        };
        let text = self.providers.as_ref().map(read).transpose()?;
        let installation = self.parse(text.as_deref())?;
        Ok((installation, Followed { reached: self.clone(), text: text.unwrap_or_default() }))
    }

    /// Parses the text of the providers file.
    pub(crate) fn parse(&self, text: Option<&str>) -> Result<Installation> {
        let documents = match (&self.providers, text) {
            (Some(file), Some(text)) => apply::parse::<Document>(&file.display().to_string(), text)?,
            _ => Vec::new(),
        };
        let secrets = Secrets::new(self.secrets.clone(), std::env::vars());
        let read = Installation::read(documents, secrets).map_err(|why| match &self.providers {
            Some(file) => anyhow::anyhow!("{}: {why}", file.display()),
            None => anyhow::anyhow!(why),
        });
        let mut installation = read?;
        for provider in &self.also {
            if !installation.providers.iter().any(|known| known.name == provider.name) {
                installation.providers.push(provider.clone());
            }
        }
        Ok(installation)
    }
}

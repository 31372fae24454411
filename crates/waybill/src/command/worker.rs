//! `waybill worker`

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Args;
use waybill_context::framework::Framework;
use waybill_core::id::Target;
use waybill_worker::{
    collect::Collector,
    installation::{Document, Installation},
    secret::Secrets,
    serve::{Config, Worker},
    tool::service,
};

use crate::{
    command::apply,
    connect::{self, Bus, Service, Storage},
    figures::interrupted,
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
    /// Whose turns it runs: the `worker_target` of profiles.
    #[arg(long, default_value = "llm")]
    target: Target,
    #[command(flatten)]
    models: Reached,
    /// Calls of tools at a time, of those that are reached over HTTP or MCP. 0: none; another process answers them.
    #[arg(long, default_value_t = 32)]
    tools: usize,
    /// Whose calls it answers: the `target` of tools, where they name another than `tools`.
    #[arg(long, default_value = "tools")]
    tools_target: Target,
    /// Turns at a time.
    #[arg(long, default_value_t = 64)]
    most: usize,
    /// Turns of one project at a time, over all workers.
    #[arg(long, default_value_t = 1_000)]
    in_flight_cap: i32,
    /// Connections to the database.
    #[arg(long, default_value_t = 8)]
    connections: u32,
    /// Seconds that a process may be out of reach before others get what it holds. The same for all processes.
    #[arg(long, default_value_t = 4.0)]
    lease: f64,
    /// Seconds between two looks for work at most, while no doorbell is heard.
    #[arg(long, default_value_t = 1.5)]
    look: f64,
    /// Seconds that steps under way are waited for when it is to end.
    #[arg(long, default_value_t = 30.0)]
    grace: f64,
    /// End with whoever started it.
    #[arg(long, hide = true)]
    with_parent: bool,
}

/// How models are reached.
#[derive(Debug, Args)]
pub(crate) struct Reached {
    /// YAML that says how the world outside is reached: `provider: {name, adapter, base_url, …}`, `mcp_server: {name, command or url, …}`,
    /// `egress: {hosts, private_hosts}`. The providers `openai_chat`, `openai_responses`, `anthropic_messages` and `demo` need none.
    #[arg(long, env = "WAYBILL_PROVIDERS", value_name = "FILE")]
    pub(crate) providers: Option<PathBuf>,
    /// A folder with a file for each secret, or with a folder for each project. Without it, `WAYBILL_SECRET_NAME` is looked for.
    #[arg(long, env = "WAYBILL_SECRETS", value_name = "FOLDER")]
    pub(crate) secrets: Option<PathBuf>,
}

pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode> {
    ensure!(arguments.most > 0 && arguments.in_flight_cap > 0, "--most and --in-flight-cap are at least 1");
    let installation = arguments.models.read()?;
    let nats = arguments.bus.connect().await?;
    let kernel = connect::on_bus(arguments.service.kernel_with(arguments.connections).await?, nats.as_ref());
    arguments.watch.begin("worker", &kernel, false).await?;
    let config = Config {
        lease: Duration::from_secs_f64(arguments.lease),
        most: arguments.most,
        in_flight_cap: arguments.in_flight_cap,
        look: Duration::from_secs_f64(arguments.look),
        grace: Duration::from_secs_f64(arguments.grace),
        ..Config::new(arguments.target)
    };
    let artifacts = arguments.storage.open(&kernel)?;
    let tools = installation.tools(kernel.clone(), artifacts.clone());
    let calls = service::Config {
        target: arguments.tools_target,
        lease: config.lease,
        most: arguments.tools.max(1),
        look: config.look,
        grace: config.grace,
    };
    let worker = Worker::new(kernel, installation.models(), Collector::new(Framework::builtin()));
    let worker = worker.with_artifacts(artifacts);
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
        drop(end_calls);
    };
    tokio::join!(worker.serve(&config, end), answering);
    heard?;
    Ok(ExitCode::SUCCESS)
}

/// Returns once whoever started this process is gone.
pub(crate) async fn orphaned() {
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

impl Reached {
    pub(crate) fn read(&self) -> Result<Installation> {
        if let Some(folder) = &self.secrets {
            ensure!(folder.is_dir(), "--secrets {}: there is no such folder", folder.display());
        }
        let documents = match &self.providers {
            Some(file) => {
                let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
                apply::parse::<Document>(&file.display().to_string(), &text)?
            }
            None => Vec::new(),
        };
        let secrets = Secrets::new(self.secrets.clone(), std::env::vars());
        Installation::read(documents, secrets).map_err(|why| match &self.providers {
            Some(file) => anyhow::anyhow!("{}: {why}", file.display()),
            None => anyhow::anyhow!(why),
        })
    }
}

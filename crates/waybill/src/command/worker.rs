//! `waybill worker`

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use waybill_context::framework::Framework;
use waybill_core::id::Target;
use waybill_worker::{
    collect::Collector,
    model::{Models, Provider, provider::Document},
    secret::Secrets,
    serve::{Config, Worker},
};

use crate::{
    command::apply,
    connect::{self, Bus, Service, Storage},
    figures::interrupted,
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    service: Service,
    #[command(flatten)]
    bus: Bus,
    #[command(flatten)]
    storage: Storage,
    /// Whose turns it runs: the `worker_target` of profiles.
    #[arg(long, default_value = "llm")]
    target: Target,
    #[command(flatten)]
    models: Reached,
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
    /// YAML that says how providers are reached: `provider: {name, adapter, base_url, …}`. `openai_chat`, `openai_responses`,
    /// `anthropic_messages` and `demo` need none.
    #[arg(long, env = "WAYBILL_PROVIDERS", value_name = "FILE")]
    pub(crate) providers: Option<PathBuf>,
    /// A folder with a file for each secret, or with a folder for each project. Without it, `WAYBILL_SECRET_NAME` is looked for.
    #[arg(long, env = "WAYBILL_SECRETS", value_name = "FOLDER")]
    pub(crate) secrets: Option<PathBuf>,
}

pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode> {
    ensure!(arguments.most > 0 && arguments.in_flight_cap > 0, "--most and --in-flight-cap are at least 1");
    let models = arguments.models.read()?;
    let nats = arguments.bus.connect().await?;
    let kernel = connect::on_bus(arguments.service.kernel_with(arguments.connections).await?, nats.as_ref());
    let config = Config {
        lease: Duration::from_secs_f64(arguments.lease),
        most: arguments.most,
        in_flight_cap: arguments.in_flight_cap,
        look: Duration::from_secs_f64(arguments.look),
        grace: Duration::from_secs_f64(arguments.grace),
        ..Config::new(arguments.target)
    };
    let artifacts = arguments.storage.open(&kernel)?;
    let worker = Worker::new(kernel, models, Collector::new(Framework::builtin())).with_artifacts(artifacts);
    let mut heard = Ok(());
    let end = async {
        tokio::select! {
            interrupted = interrupted() => heard = interrupted,
            () = orphaned(), if arguments.with_parent => {}
        }
    };
    worker.serve(&config, end).await;
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
    pub(crate) fn read(&self) -> Result<Models> {
        let providers = read_providers(self.providers.as_ref())?;
        if let Some(folder) = &self.secrets {
            ensure!(folder.is_dir(), "--secrets {}: there is no such folder", folder.display());
        }
        Ok(Models::new(providers, Secrets::new(self.secrets.clone(), std::env::vars())))
    }
}

fn read_providers(file: Option<&PathBuf>) -> Result<Vec<Provider>> {
    let Some(file) = file else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let documents: Vec<Document> = apply::parse(&file.display().to_string(), &text)?;
    let providers: Vec<Provider> = documents.into_iter().map(|Document::Provider(provider)| *provider).collect();
    if let Some(twice) =
        providers.iter().enumerate().find(|(n, one)| providers[..*n].iter().any(|other| other.name == one.name))
    {
        bail!("{}: provider `{}` is there twice", file.display(), twice.1.name);
    }
    Ok(providers)
}

//! How a command connects to the database, the bus and the artifact store, and finds its project.

use std::{
    fs::File,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use waybill_artifact::{Artifacts, Store};
use waybill_bus::nats::Nats;
use waybill_core::id::ProjectId;
use waybill_kernel::{
    project, retention,
    work::{Actor, Config, Error, Kernel, UnitOfWork},
};

use crate::config;

/// The data folder of the `waybill dev` whose database this process uses.
static OF_DEV: OnceLock<PathBuf> = OnceLock::new();

/// The connection of a process or a command.
#[derive(Debug, Args)]
pub(crate) struct Service {
    /// URL of the database: postgres://LOGIN:PASSWORD@HOST:PORT/DATABASE. The login is `waybill_worker` for workers, `waybill_orchestrator` for
    /// orchestrators, and `waybill_service` for everything else.
    #[arg(long, env = "WAYBILL_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: SecretString,
}

impl Service {
    pub(crate) fn config(&self) -> Config {
        if let Some(folder) = config::dev_folder(self.database_url.expose_secret()) {
            // It is set already if the process connects a second time.
            let _ = OF_DEV.set(folder);
        }
        Config { database_url: self.database_url.clone(), ..Config::new("") }
    }

    pub(crate) async fn kernel(&self) -> Result<Kernel> {
        kernel(&self.config()).await
    }

    /// Connects with at most this many database connections.
    pub(crate) async fn kernel_with(&self, max_connections: u32) -> Result<Kernel> {
        kernel(&Config { max_connections, ..self.config() }).await
    }
}

async fn kernel(config: &Config) -> Result<Kernel> {
    Kernel::connect(config).await.map_err(|error| match (error, stopped_dev()) {
        (Error::Unreachable { place, source }, Some(stopped)) => {
            anyhow::Error::new(source).context(format!("{stopped}. The database at {place} cannot be reached"))
        }
        (error, _) => error.into(),
    })
}

/// Says that the `waybill dev` whose database this process uses does not run, and how to start it. `None` means that it runs, or that the
/// database is from elsewhere.
pub(crate) fn stopped_dev() -> Option<String> {
    let data = OF_DEV.get()?;
    let lock = File::open(data.join(config::LOCK_OF_DEV)).ok()?;
    // The process that runs holds the lock.
    lock.try_lock_shared().ok()?;
    let usual = data.parent().filter(|_| data.ends_with(".waybill"));
    Some(match usual {
        Some(folder) => {
            format!("`waybill dev` of {} does not run: start it there (`waybill dev`)", folder.display())
        }
        None => {
            let data = data.display();
            format!(
                "the `waybill dev` with the data folder {data} does not run: start it (`waybill dev --data {data}`)"
            )
        }
    })
}

/// The bus: doorbells and the stream of events.
#[derive(Debug, Args)]
pub(crate) struct Bus {
    /// URL of NATS 2.10 or newer, such as nats://USER:PASSWORD@HOST:PORT. NATS announces new work to processes at once. If omitted, they find it by
    /// polling.
    #[arg(long, env = "WAYBILL_NATS_URL", hide_env_values = true, value_name = "URL")]
    nats_url: Option<SecretString>,
}

impl Bus {
    pub(crate) fn url(&self) -> Option<&str> {
        self.nats_url.as_ref().map(|url| url.expose_secret())
    }

    pub(crate) async fn connect(&self) -> Result<Option<Nats>> {
        match &self.nats_url {
            Some(url) => Ok(Some(Nats::connect(url.expose_secret()).await?)),
            None => Ok(None),
        }
    }
}

/// Returns the kernel with its signals sent to NATS, if NATS is configured.
pub(crate) fn on_bus(kernel: Kernel, nats: Option<&Nats>) -> Kernel {
    match nats {
        Some(nats) => kernel.on(Arc::new(nats.clone())),
        None => kernel,
    }
}

/// Makes missing partitions of history when a process starts. If that fails, the process goes on: an orchestrator makes them later.
pub(crate) async fn extend_history(kernel: &Kernel) {
    const PATIENCE: Duration = Duration::from_secs(5);
    match tokio::time::timeout(PATIENCE, retention::extend_here(kernel)).await {
        Ok(Ok(0)) => {}
        Ok(Ok(made)) => tracing::info!(made, "partitions were made"),
        trouble => tracing::warn!(?trouble, "the next partitions of the history tables could not be created"),
    }
}

/// The object store of artifacts.
#[derive(Debug, Args)]
pub(crate) struct Storage {
    /// Where artifacts are stored: a folder, or a URL such as s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX. The credentials come
    /// from environment variables, such as AWS_ACCESS_KEY_ID. If omitted, `waybill dev` uses a folder in its data folder, and other commands cannot
    /// store or read artifacts.
    #[arg(long, env = "WAYBILL_ARTIFACTS", value_name = "URL")]
    pub(crate) artifacts: Option<String>,
}

impl Storage {
    pub(crate) fn open(&self, kernel: &Kernel) -> Result<Option<Artifacts>> {
        let Some(place) = &self.artifacts else { return Ok(None) };
        Ok(Some(Artifacts::new(kernel.clone(), Store::at(place)?)))
    }

    pub(crate) fn need(&self, kernel: &Kernel) -> Result<Artifacts> {
        let opened = self.open(kernel)?;
        opened.context("this command needs the object store: set --artifacts or WAYBILL_ARTIFACTS")
    }
}

/// The connection of the schema owner, which has more rights than the service.
#[derive(Debug, Args)]
pub(crate) struct Owner {
    /// URL of the database, with the login of the role that owns the schema: postgres://OWNER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, env = "WAYBILL_OWNER_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) owner_url: SecretString,
}

/// Returns the account that the process runs as.
pub(crate) fn uid() -> Option<u32> {
    std::fs::metadata("/proc/self").ok().map(|own| own.uid())
}

/// Returns the actor for the audit: the account that the process runs as, regardless of its environment. The database also records which role
/// is connected.
pub(crate) fn actor() -> String {
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_uid = |uid: u32| {
        let account = accounts.lines().find(|line| line.split(':').nth(2) == Some(&uid.to_string()));
        account.and_then(|line| line.split(':').next()).map_or_else(|| format!("uid-{uid}"), str::to_owned)
    };
    let name = uid().map(of_uid).or_else(|| std::env::var("USER").ok());
    format!("cli:{}", name.as_deref().unwrap_or("unknown"))
}

/// Begins a unit of work that is recorded under the account that runs this command.
pub(crate) async fn begin(kernel: &Kernel, project_id: ProjectId) -> Result<UnitOfWork> {
    Ok(kernel.begin_as(project_id, &Actor { name: actor(), address: None }).await?)
}

/// A project, and the connection to its database.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The project: its slug or its id.
    #[arg(long, env = "WAYBILL_PROJECT")]
    project: String,
    #[command(flatten)]
    service: Service,
}

impl Place {
    pub(crate) async fn open(&self) -> Result<(Kernel, ProjectId)> {
        let kernel = self.service.kernel().await?;
        let project_id = project_id(&kernel, &self.project).await?;
        Ok((kernel, project_id))
    }

    pub(crate) async fn begin(&self) -> Result<UnitOfWork> {
        let (kernel, project_id) = self.open().await?;
        begin(&kernel, project_id).await
    }
}

/// Returns the id of a project that is named by its slug or by its id.
pub(crate) async fn project_id(kernel: &Kernel, named: &str) -> Result<ProjectId> {
    match named.parse() {
        Ok(project_id) => Ok(project_id),
        Err(_) => Ok(project::find(kernel, named).await?),
    }
}

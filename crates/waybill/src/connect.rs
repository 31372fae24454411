//! How a command reaches the database, and the project it works in.

use std::{os::unix::fs::MetadataExt, sync::Arc};

use anyhow::{Context, Result};
use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use waybill_artifact::{Artifacts, Store};
use waybill_bus::nats::Nats;
use waybill_core::id::ProjectId;
use waybill_kernel::{
    project,
    work::{Actor, Config, Kernel, UnitOfWork},
};

/// The service's connection: the role `waybill_service`.
#[derive(Debug, Args)]
pub(crate) struct Service {
    /// URL of the role `waybill_service`: postgres://waybill_service:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, env = "WAYBILL_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: SecretString,
}

impl Service {
    pub(crate) fn config(&self) -> Config {
        Config { database_url: self.database_url.clone(), ..Config::new("") }
    }

    pub(crate) async fn kernel(&self) -> Result<Kernel> {
        Ok(Kernel::connect(&self.config()).await?)
    }

    /// With so many connections at most.
    pub(crate) async fn kernel_with(&self, max_connections: u32) -> Result<Kernel> {
        Ok(Kernel::connect(&Config { max_connections, ..self.config() }).await?)
    }
}

/// The bus: doorbells and the stream of events.
#[derive(Debug, Args)]
pub(crate) struct Bus {
    /// URL of NATS 2.10 or newer. Without it nobody is rung, and work is found by looking.
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

/// The kernel, heard on the bus where there is one.
pub(crate) fn on_bus(kernel: Kernel, nats: Option<&Nats>) -> Kernel {
    match nats {
        Some(nats) => kernel.on(Arc::new(nats.clone())),
        None => kernel,
    }
}

/// The object store of artifacts.
#[derive(Debug, Args)]
pub(crate) struct Storage {
    /// Where artifacts are kept: a folder, or s3://BUCKET/PREFIX, gs://…, az://…, reached as their own tools are told to (AWS_ACCESS_KEY_ID, …).
    #[arg(long, env = "WAYBILL_ARTIFACTS", value_name = "URL")]
    pub(crate) artifacts: Option<String>,
}

impl Storage {
    pub(crate) fn open(&self, kernel: &Kernel) -> Result<Option<Artifacts>> {
        let Some(place) = &self.artifacts else { return Ok(None) };
        let store = match place.contains("://") {
            true => Store::open(place, std::env::vars())?,
            false => Store::in_folder(place)?,
        };
        Ok(Some(Artifacts::new(kernel.clone(), store)))
    }

    pub(crate) fn need(&self, kernel: &Kernel) -> Result<Artifacts> {
        let opened = self.open(kernel)?;
        opened.context("where are artifacts kept? name the object store with --artifacts or WAYBILL_ARTIFACTS")
    }
}

/// The owner's connection: beyond the rights of the service.
#[derive(Debug, Args)]
pub(crate) struct Owner {
    /// URL of the role that owns the schema: postgres://OWNER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, env = "WAYBILL_OWNER_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) owner_url: SecretString,
}

/// The account that the process runs as.
pub(crate) fn uid() -> Option<u32> {
    std::fs::metadata("/proc/self").ok().map(|own| own.uid())
}

/// Who does this, for the audit: the account that the process runs as, whatever its environment says. The database adds its own view of who is connected.
pub(crate) fn actor() -> String {
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_uid = |uid: u32| {
        let account = accounts.lines().find(|line| line.split(':').nth(2) == Some(&uid.to_string()));
        account.and_then(|line| line.split(':').next()).map_or_else(|| format!("uid-{uid}"), str::to_owned)
    };
    let name = uid().map(of_uid).or_else(|| std::env::var("USER").ok());
    format!("cli:{}", name.as_deref().unwrap_or("unknown"))
}

/// A unit of work that is on record as whoever runs this command.
pub(crate) async fn begin(kernel: &Kernel, project_id: ProjectId) -> Result<UnitOfWork> {
    Ok(kernel.begin_as(project_id, &Actor { name: actor(), address: None }).await?)
}

/// A project, and the way there.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// Slug or id.
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

/// The id behind what people write: a slug or the id itself.
pub(crate) async fn project_id(kernel: &Kernel, named: &str) -> Result<ProjectId> {
    match named.parse() {
        Ok(project_id) => Ok(project_id),
        Err(_) => Ok(project::find(kernel, named).await?),
    }
}

//! How a command reaches the database, and the project it works in.

use anyhow::Result;
use clap::Args;
use secrecy::SecretString;
use waybill_core::id::ProjectId;
use waybill_kernel::{
    project,
    work::{Config, Kernel},
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
}

/// The owner's connection: beyond the rights of the service.
#[derive(Debug, Args)]
pub(crate) struct Owner {
    /// URL of the role that owns the schema: postgres://OWNER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, env = "WAYBILL_OWNER_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) owner_url: SecretString,
}

/// The id behind what people write: a slug or the id itself.
pub(crate) async fn project_id(kernel: &Kernel, named: &str) -> Result<ProjectId> {
    match named.parse() {
        Ok(project_id) => Ok(project_id),
        Err(_) => Ok(project::find(kernel, named).await?),
    }
}

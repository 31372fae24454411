//! Starts and ends the services that all test runs of this checkout share.

use anyhow::{Result, bail};
use waybill_lab::services::{Shared, nats};

#[tokio::main]
async fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("up") => {
            let shared = Shared::get().await?;
            println!("export DATABASE_URL={}", shared.postgres.admin_url("postgres"));
            println!("export NATS_URL={}", shared.nats_url);
            eprintln!("PostgreSQL on port {}, NATS {}", shared.postgres.port(), nats::info(&shared.nats_url)?.version);
            Ok(())
        }
        Some("down") => Shared::end(),
        _ => bail!("usage: services up|down"),
    }
}

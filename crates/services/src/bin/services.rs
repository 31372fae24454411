//! Starts and ends the services that all test runs of this checkout share, and makes a database to play with.
//!
//! `eval "$(services up)"` sets what `waybill` commands need. Durability is off: nothing here is to be kept.

use anyhow::{Result, bail};
use waybill_services::{Shared, nats};

const DATABASE: &str = "waybill";

#[tokio::main]
async fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("up") => {
            let shared = Shared::get().await?;
            if !shared.postgres.has_database(DATABASE).await? {
                shared.postgres.create_database(DATABASE).await?;
            }
            println!("export WAYBILL_OWNER_URL='{}'", shared.postgres.owner_url(DATABASE));
            println!("export WAYBILL_DATABASE_URL='{}'", shared.postgres.service_url(DATABASE));
            eprintln!("PostgreSQL on port {}, NATS {}", shared.postgres.port(), nats::info(&shared.nats_url)?.version);
            Ok(())
        }
        Some("down") => Shared::end(),
        _ => bail!("usage: services up|down"),
    }
}

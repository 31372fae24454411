//! `waybill migrate`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use waybill_kernel::migrate;

use crate::{connect::Owner, output};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    owner: Owner,
}

pub(crate) async fn run(arguments: Arguments, json: bool) -> Result<ExitCode> {
    let mut owner = migrate::connect_owner(&arguments.owner.owner_url).await?;
    let applied = migrate::run(&mut owner, |applied| {
        if !json {
            println!("applying {:04} {}", applied.version, applied.name);
        }
    })
    .await?;
    if json {
        output::json(&serde_json::json!({ "applied": applied, "version": migrate::newest() }))?;
    } else {
        println!("the schema is at version {}", migrate::newest());
        if !applied.is_empty() {
            println!(
                "next: set the passwords of waybill_service, waybill_orchestrator and waybill_worker, then run `waybill doctor`"
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

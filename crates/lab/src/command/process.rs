//! `waybill-lab process …`: the processes that `chaos` starts. Not meant for direct use.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::{Args, Subcommand};
use waybill_lab::{
    bulk, pages,
    storm::{
        ledger,
        process::{self, Post, Role},
    },
    tools::{self, Ledger},
};

use waybill_artifact::{Artifacts, Store};
use waybill_kernel::work::{Config, Kernel};
use waybill_services::orphaned;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ledger {
        #[arg(long)]
        file: PathBuf,
    },
    Worker(Arguments),
    Tool(Arguments),
    Orchestrator(Arguments),
    Sweep(Arguments),
    Relay(Arguments),
    /// Run an MCP server on standard input and output, which acts once for each idempotency key.
    Mcp {
        #[arg(long)]
        ledger: PathBuf,
    },
    /// Serve the console with a tree of many turns, and write events when told to, until standard input ends.
    Pages {
        #[arg(long, default_value_t = 10_000)]
        turns: i32,
    },
    /// Store artifacts and send packages until killed.
    Bring {
        #[arg(long, env = "WAYBILL_DATABASE_URL", hide_env_values = true)]
        database_url: String,
        #[arg(long, env = "WAYBILL_ARTIFACTS")]
        artifacts: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    name: String,
    #[arg(long)]
    ledger: u16,
    /// The lease in milliseconds.
    #[arg(long)]
    lease: u64,
    #[arg(long, env = "WAYBILL_DATABASE_URL", hide_env_values = true)]
    database_url: String,
    #[arg(long, env = "WAYBILL_NATS_URL", hide_env_values = true)]
    nats_url: String,
}

pub(crate) async fn run(command: Command) -> Result<ExitCode> {
    let (role, arguments) = match command {
        Command::Ledger { file } => {
            tokio::select! {
                kept = tokio::task::spawn_blocking(move || ledger::keep(&file)) => kept??,
                () = orphaned() => std::process::exit(0), // the keeper does not listen
            }
            return Ok(ExitCode::SUCCESS);
        }
        Command::Mcp { ledger } => {
            tools::stdio(&Ledger::at(ledger), tools::killed::PACE).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Pages { turns } => {
            pages::serve(turns).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Bring { database_url, artifacts } => {
            let kernel = Kernel::connect(&Config::new(database_url)).await?;
            let artifacts = Artifacts::new(kernel.clone(), Store::at(&artifacts)?);
            tokio::select! {
                brought = bulk::bring(kernel, artifacts) => brought?,
                () = orphaned() => {}
            }
            return Ok(ExitCode::SUCCESS);
        }
        Command::Worker(arguments) => (Role::Worker, arguments),
        Command::Tool(arguments) => (Role::Tool, arguments),
        Command::Orchestrator(arguments) => (Role::Orchestrator, arguments),
        Command::Sweep(arguments) => (Role::Sweep, arguments),
        Command::Relay(arguments) => (Role::Relay, arguments),
    };
    let post = Post {
        name: arguments.name,
        database_url: arguments.database_url,
        nats_url: arguments.nats_url,
        ledger_port: arguments.ledger,
        lease: Duration::from_millis(arguments.lease),
    };
    tokio::select! {
        ended = process::run(role, post) => ended?,
        // If the storm is killed, its processes end too.
        () = orphaned() => {}
    }
    Ok(ExitCode::SUCCESS)
}

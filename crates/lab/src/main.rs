//! `waybill-lab`: benchmarks and storms. It ships with nothing.

mod command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use command::{bench, chaos, process};
use tracing_subscriber::EnvFilter;

#[derive(Debug, Parser)]
#[command(name = "waybill-lab", version, about = "Benchmarks and storms of Waybill")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object for each figure instead of a table.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure performance against a baseline in the same run. Exits with 1 if a figure falls short.
    #[command(subcommand)]
    Bench(bench::Command),
    /// Inject faults into a private system and check the results. Exits with 1 if a figure falls short.
    #[command(subcommand)]
    Chaos(chaos::Command),
    #[command(subcommand, hide = true)]
    Process(process::Command),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    // One crypto provider for every TLS connection. It fails only if one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let filter = EnvFilter::try_from_env("WAYBILL_LOG")
        .unwrap_or_else(|_| EnvFilter::new("warn,waybill=info,sqlx=error,async_nats=off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let outcome = match cli.command {
        Command::Bench(command) => bench::run(command, cli.json).await,
        Command::Chaos(command) => chaos::run(command, cli.json).await,
        Command::Process(command) => process::run(command).await,
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

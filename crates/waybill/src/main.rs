//! `waybill`: one binary. Reads arguments and environment, wires the parts, prints for people or as JSON.

mod command;
mod connect;
mod figures;
mod output;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use command::{
    admin, agent, apply, bench, card, chaos, context, doctor, grant, lab, lint, migrate, orchestrator, project,
    resource, turn, worker,
};

#[derive(Debug, Parser)]
#[command(name = "waybill", version, about = "A context kernel for multi-agent LLM systems")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring the database schema up to date.
    Migrate(migrate::Arguments),
    /// Check that the database is safe to serve from. Exits with 1 if it is not.
    Doctor(doctor::Arguments),
    /// Make and list projects.
    #[command(subcommand)]
    Project(project::Command),
    /// Apply profiles, tools, plans and settings from YAML. Applying the same again changes nothing.
    Apply(apply::Arguments),
    /// Look at what a project has: profiles, tools, plans, settings.
    #[command(subcommand)]
    Resource(resource::Command),
    /// The roster: who there is, and what each is doing.
    #[command(subcommand)]
    Agent(agent::Command),
    /// Let an agent read a box, on record; and see what was refused.
    #[command(subcommand)]
    Grant(grant::Command),
    /// Look at cards, who could see them, or destroy their content on record.
    #[command(subcommand)]
    Card(card::Command),
    /// What a model saw: every call of a turn, rendered again, verified and compared.
    #[command(subcommand)]
    Context(context::Command),
    /// Look after a running system: watchdogs, quarantine, lost state, partitions.
    #[command(subcommand)]
    Admin(admin::Command),
    /// Keep everything going: what agents ask for (delegate, fork, …), the watchdogs, and the relay of events to NATS. Run at least one, better
    /// two.
    Orchestrator(orchestrator::Arguments),
    /// Run turns: gather what the model sees, ask it, act, deliver. Run as many as there is work.
    Worker(worker::Arguments),
    /// Start a turn, look at what it did and cost, or stop it.
    #[command(subcommand)]
    Turn(turn::Command),
    /// Find what is wrong with model requests and transcripts, whoever made them. Exits with 1 if anything is.
    ///
    /// Orphaned tool results, calls without results, doubled input, empty messages, system text in the middle, broken
    /// alternation, prompt-cache breaks between requests that follow each other.
    Lint(lint::Arguments),
    /// Measure, against a baseline in the same run. Exits with 1 if a figure falls short.
    #[command(subcommand)]
    Bench(bench::Command),
    /// Let a storm loose on a private system and hold what is left to account. Exits with 1 if a figure falls short.
    #[command(subcommand)]
    Chaos(chaos::Command),
    #[command(subcommand, hide = true)]
    Lab(lab::Command),
    /// Print the completion script of a shell.
    Completions { shell: clap_complete::Shell },
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    // One crypto provider for every TLS connection; a second call would find it installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let filter = EnvFilter::try_from_env("WAYBILL_LOG")
        .unwrap_or_else(|_| EnvFilter::new("warn,waybill=info,sqlx=error,async_nats=off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let json = cli.json;
    let outcome = match cli.command {
        Command::Migrate(arguments) => migrate::run(arguments, json).await,
        Command::Doctor(arguments) => doctor::run(arguments, json).await,
        Command::Project(command) => project::run(command, json).await,
        Command::Apply(arguments) => apply::run(arguments, json).await,
        Command::Resource(command) => resource::run(command, json).await,
        Command::Agent(command) => agent::run(command, json).await,
        Command::Grant(command) => grant::run(command, json).await,
        Command::Card(command) => card::run(command, json).await,
        Command::Context(command) => context::run(command, json).await,
        Command::Admin(command) => admin::run(command, json).await,
        Command::Orchestrator(arguments) => orchestrator::run(arguments).await,
        Command::Worker(arguments) => worker::run(arguments).await,
        Command::Turn(command) => turn::run(command, json).await,
        Command::Chaos(command) => chaos::run(command, json).await,
        Command::Lab(command) => lab::run(command).await,
        Command::Lint(arguments) => lint::run(&arguments, json),
        Command::Bench(command) => bench::run(command, json).await,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "waybill", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|error| {
        output::error(&error, json);
        ExitCode::FAILURE
    })
}

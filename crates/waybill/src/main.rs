//! The `waybill` binary. It reads arguments and the environment, connects the parts, and prints text for people or JSON.

/// These replace the macros of the standard library, which panic when a program such as `head` closes the output.
macro_rules! println {
    () => { $crate::output::out(format_args!("\n")) };
    ($($said:tt)*) => { $crate::output::out(format_args!("{}\n", format_args!($($said)*))) };
}
macro_rules! print {
    ($($said:tt)*) => { $crate::output::out(format_args!($($said)*)) };
}
macro_rules! eprintln {
    () => { $crate::output::err(format_args!("\n")) };
    ($($said:tt)*) => { $crate::output::err(format_args!("{}\n", format_args!($($said)*))) };
}

mod command;
mod config;
mod connect;
mod follow;
mod live;
mod log;
mod named;
mod output;
mod reload;
mod story;
mod table;
mod tree;
mod usage;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use command::{
    admin, agent, apply, artifact, cache_misses, card, chat, context, demo, dev, doctor, fork, grant, handoff, health,
    import, inbox, init, keys, knowledge, lint, look, migrate, orchestrator, project, record, replay, resource, run,
    serve, session, spend, tool, top, turn, worker,
};
use config::File;
use serde_json::Value;
use waybill_core::request::Decision;

#[derive(Debug, Parser)]
#[command(name = "waybill", version = VERSION, about = "A context kernel for multi-agent LLM systems")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print the result as JSON instead of text. Log lines stay as they are.
    #[arg(long, global = true)]
    json: bool,
    /// Format of log lines: `text` or `json`.
    #[arg(
        long,
        global = true,
        env = "WAYBILL_LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT",
        hide_possible_values = true
    )]
    log_format: log::Format,
}

/// The version. A build that sets `WAYBILL_VERSION` can include the commit.
pub(crate) const VERSION: &str = match option_env!("WAYBILL_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

#[derive(Debug, Subcommand)]
enum Command {
    /// Run everything in one command: a private database, the API, the orchestrator, a worker and a demo team.
    Dev(dev::Arguments),
    /// Record what the models of your existing agents see: point them here by one environment variable.
    Record(record::Arguments),
    /// Put the model calls of logs on record: JSON lines, transcripts of Claude Code, exports of Langfuse and Helicone.
    Import(import::Arguments),
    /// Make a project folder that works at once: a team of two agents, a tool in Python, a test, and a README with the next commands.
    Init(init::Arguments),
    /// Show the demo team of `waybill dev` at work: it researches a question, its workers are killed, and a person approves the answer.
    Demo(demo::Arguments),
    /// Start a turn and wait for its result.
    Run(run::Arguments),
    /// Talk to an agent in the terminal.
    ///
    /// The conversation is a session with as many turns as you like. Each turn is shown while it runs.
    Chat(chat::Arguments),
    /// Open, list, show, end, forget or erase sessions (conversations of several turns).
    #[command(subcommand)]
    Session(session::Command),
    /// Serve the HTTP API.
    Serve(serve::Arguments),
    /// Bring the database schema up to date.
    Migrate(migrate::Arguments),
    /// Check the database: server version, login, migrations, row security, connection pooler and more. Exits with 1 if a check fails.
    Doctor(doctor::Arguments),
    /// Ask a process on this machine whether it takes work, for the health checks of containers. Exits with 1 if it does not.
    Health(health::Arguments),
    /// Show the live state of the system: queues and processes of each target, open batches, and the work and cost of the busiest projects.
    Top(top::Arguments),
    /// Show what the turns of a project have spent: by hour, day, profile, model, agent or session.
    Spend(spend::Arguments),
    /// Show where calls found less in the provider's prompt cache than it could have kept, what had changed, and what it cost.
    CacheMisses(cache_misses::Arguments),
    /// Create, list and delete projects, and set how long they keep what.
    #[command(subcommand)]
    Project(project::Command),
    /// Apply profiles, tools, plans, package types and settings from YAML.
    ///
    /// Applying the same files again changes nothing.
    Apply(apply::Arguments),
    /// Show the profiles, tools, plans and settings of a project, and delete profiles and tools.
    #[command(subcommand)]
    Resource(resource::Command),
    /// Add agents to the roster, and list agents with their status.
    #[command(subcommand)]
    Agent(agent::Command),
    /// Give agents the right to read boxes, revoke such a right, list these rights, and list requests for boxes that were refused.
    #[command(subcommand)]
    Grant(grant::Command),
    /// Show cards, set when they expire, delete or erase them, and list which agents could see a card.
    #[command(subcommand)]
    Card(card::Command),
    /// Store, fetch, list and remove artifacts (bulk content by path).
    #[command(subcommand)]
    Artifact(artifact::Command),
    /// Manage and search what agents can search: the documents of a project, and published results of earlier turns.
    #[command(subcommand)]
    Knowledge(knowledge::Command),
    /// Make tool manifests from OpenAPI documents and MCP servers.
    #[command(subcommand)]
    Tool(tool::Command),
    /// Check and send handoff packages, and show their types.
    #[command(subcommand)]
    Handoff(handoff::Command),
    /// List the questions and approval requests that wait for a person.
    Inbox(inbox::Arguments),
    /// Approve a request of an agent.
    Approve(inbox::Deciding),
    /// Reject a request of an agent.
    Reject(inbox::Deciding),
    /// Answer a question of an agent.
    Answer(inbox::Answering),
    /// Show a box and the cards in it.
    #[command(subcommand)]
    Box(look::CardBox),
    /// Show a batch: the child turns that one call started together, and the result of each.
    #[command(subcommand)]
    Batch(look::Batch),
    /// Run a recorded turn again from one of its model calls, with changes, and compare the results.
    ///
    /// A card, the profile or the model can be changed, and each variant can run several times. Exits with 1 if a run does not succeed.
    Fork(fork::Arguments),
    /// Render the model calls of a turn, and of the turns that it started, again, and verify that the bytes are those that were sent.
    ///
    /// Exits with 1 if a call cannot be reproduced.
    Replay(replay::Arguments),
    /// Create, rotate, list and revoke the API keys of a project.
    #[command(subcommand)]
    Keys(keys::Command),
    /// List administrative actions and their actors, newest first.
    Audit(look::Audit),
    /// Show the settings and where each value comes from.
    #[command(subcommand)]
    Config(command::config::Command),
    /// Show what a model saw: list, render, verify and compare the model calls of a turn.
    #[command(subcommand)]
    Context(context::Command),
    /// Maintain a running system: run the watchdogs once, retry rows in quarantine, rebuild lost state, delete old history, create partitions.
    #[command(subcommand)]
    Admin(admin::Command),
    /// Run the orchestrator. It carries out the commands of agents (delegate_async, fork_join, …), runs the watchdogs, and publishes events to NATS.
    ///
    /// Run at least one; two are better.
    Orchestrator(orchestrator::Arguments),
    /// Run a worker: collect the context of a turn, call the model, run tools, deliver the result.
    ///
    /// Run as many workers as the load needs.
    Worker(worker::Arguments),
    /// Start a turn, show what it did and cost, or stop it.
    #[command(subcommand)]
    Turn(turn::Command),
    /// Check model requests and transcripts, from any program, for errors. Exits with 1 if there are any.
    ///
    /// Finds orphaned tool results, calls without results, doubled input, empty messages, system text in the middle, broken
    /// alternation, and prompt-cache breaks between consecutive requests.
    Lint(lint::Arguments),
    /// Show the version of this program, of its database schema, and of the PostgreSQL inside it.
    Version,
    /// Print the OpenAPI document of the HTTP API, which `waybill serve` also serves at `/openapi.json`.
    Openapi,
    /// Print the script that completes commands and options in a shell.
    Completions {
        /// The shell that the script is for.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, one for each command.
    Man {
        /// The folder to write to. It is created if it does not exist.
        folder: std::path::PathBuf,
    },
}

/// Checks whether the log shows problems only.
fn is_quiet(command: &Command) -> bool {
    match command {
        Command::Dev(arguments) => !arguments.verbose,
        Command::Record(arguments) => !arguments.dev.verbose,
        _ => false,
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let prepared = File::find().and_then(|file| Ok((file.apply(Cli::command())?, file)));
    let (command, file) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            output::error(&error, std::env::args().any(|argument| argument == "--json"));
            return ExitCode::FAILURE;
        }
    };
    let cli = command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = cli.unwrap_or_else(|error| usage::refuse(&error, &file));
    // One crypto provider for every TLS connection. It fails only if one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    log::begin(cli.log_format, is_quiet(&cli.command));
    let json = cli.json;
    if matches!(
        cli.command,
        Command::Dev(_) | Command::Record(_) | Command::Serve(_) | Command::Orchestrator(_) | Command::Worker(_)
    ) {
        output::go_on();
    }
    let outcome = match cli.command {
        Command::Dev(arguments) => dev::run(arguments).await,
        Command::Record(arguments) => record::run(arguments).await,
        Command::Import(arguments) => import::run(arguments, json).await,
        Command::Init(arguments) => init::run(&arguments, json),
        Command::Demo(arguments) => demo::run(arguments, json).await,
        Command::Run(arguments) => run::run(arguments, json).await,
        Command::Chat(arguments) => chat::run(arguments).await,
        Command::Session(command) => session::run(command, json).await,
        Command::Serve(arguments) => serve::run(arguments).await,
        Command::Artifact(command) => artifact::run(command, json).await,
        Command::Knowledge(command) => knowledge::run(command, json).await,
        Command::Tool(command) => tool::run(command, json).await,
        Command::Handoff(command) => handoff::run(command, json).await,
        Command::Inbox(arguments) => inbox::list(arguments, json).await,
        Command::Approve(arguments) => inbox::decide(arguments, Decision::Approved, Value::Null, json).await,
        Command::Reject(arguments) => inbox::decide(arguments, Decision::Rejected, Value::Null, json).await,
        Command::Answer(arguments) => inbox::answer(arguments, json).await,
        Command::Box(command) => look::card_box(command, json).await,
        Command::Batch(command) => look::batch(command, json).await,
        Command::Fork(arguments) => fork::run(arguments, json).await,
        Command::Replay(arguments) => replay::run(arguments, json).await,
        Command::Keys(command) => keys::run(command, json).await,
        Command::Audit(arguments) => look::audit(arguments, json).await,
        Command::Config(command) => command::config::run(command, &Cli::command(), &file, json),
        Command::Migrate(arguments) => migrate::run(arguments, json).await,
        Command::Doctor(arguments) => doctor::run(arguments, json).await,
        Command::Health(arguments) => health::run(arguments, json).await,
        Command::Top(arguments) => top::run(arguments, json).await,
        Command::Spend(arguments) => spend::run(arguments, json).await,
        Command::CacheMisses(arguments) => cache_misses::run(arguments, json).await,
        Command::Man { folder } => man(&folder),
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
        Command::Lint(arguments) => lint::run(&arguments, json),
        Command::Version => command::version::run(json),
        Command::Openapi => output::json(&waybill_api::document()).map(|()| ExitCode::SUCCESS),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "waybill", &mut script);
            output::bytes(&script);
            Ok(ExitCode::SUCCESS)
        }
    };
    outcome.unwrap_or_else(|error| {
        output::error(&error, json);
        ExitCode::FAILURE
    })
}

fn man(folder: &std::path::Path) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command and every argument has a help text.
    #[test]
    fn every_command_explains_itself() {
        fn check(command: &clap::Command, path: &str, silent: &mut Vec<String>) -> usize {
            let path = format!("{path} {}", command.get_name());
            if command.get_about().is_none() {
                silent.push(path.clone());
            }
            // These names need no explanation.
            let obvious = ["most", "reason", "agent", "turn"];
            let arguments = command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional());
            let arguments =
                arguments.filter(|arg| arg.get_help().is_none() && !obvious.contains(&arg.get_id().as_str()));
            silent.extend(arguments.map(|arg| format!("{path} --{}", arg.get_id())));
            let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
            1 + subcommands.map(|subcommand| check(subcommand, &path, silent)).sum::<usize>()
        }
        let (mut command, mut silent) = (Cli::command(), Vec::new());
        command.build();
        let n = check(&command, "", &mut silent);
        assert_eq!(silent, Vec::<String>::new());
        assert!(n > 60, "{n}");
    }
}

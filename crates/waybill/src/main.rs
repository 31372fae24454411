//! `waybill`: one binary. Reads arguments and environment, wires the parts, prints for people or as JSON.

mod command;
mod config;
mod connect;
mod figures;
mod log;
mod output;
mod tree;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use command::{
    admin, agent, apply, artifact, bench, card, chaos, chat, context, dev, doctor, fork, grant, handoff, inbox, keys,
    knowledge, lab, lint, look, migrate, orchestrator, project, replay, resource, run, serve, session, tool, top, turn,
    worker,
};
use config::File;
use serde_json::Value;
use waybill_core::request::Decision;

#[derive(Debug, Parser)]
#[command(name = "waybill", version = VERSION, about = "A context kernel for multi-agent LLM systems")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    /// How lines of the log are written.
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

/// The version, with the commit where whoever built it said so.
pub(crate) const VERSION: &str = match option_env!("WAYBILL_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything, in one command: a private database, the API, the orchestrator, a worker, and a team to try.
    Dev(dev::Arguments),
    /// Have something done, and wait for it.
    Run(run::Arguments),
    /// Talk to an agent in the terminal: a session of as many turns as you like, shown as they happen.
    Chat(chat::Arguments),
    /// Conversations of several turns: open, list, show, end, forget.
    #[command(subcommand)]
    Session(session::Command),
    /// Serve the HTTP API.
    Serve(serve::Arguments),
    /// Bring the database schema up to date.
    Migrate(migrate::Arguments),
    /// Check that the database is safe to serve from. Exits with 1 if it is not.
    Doctor(doctor::Arguments),
    /// How the system is, live: targets, projects, queues, processes, forks, what is spent.
    Top(top::Arguments),
    /// Make and list projects.
    #[command(subcommand)]
    Project(project::Command),
    /// Apply profiles, tools, plans, types of packages and settings from YAML. Applying the same again changes nothing.
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
    /// Bulk content by path: store it, fetch it, list it.
    #[command(subcommand)]
    Artifact(artifact::Command),
    /// What a project knows, and what it publishes of what it has done: put it there, look for it.
    #[command(subcommand)]
    Knowledge(knowledge::Command),
    /// Manifests out of what others say of their tools: OpenAPI documents, MCP servers.
    #[command(subcommand)]
    Tool(tool::Command),
    /// Handoff packages: their types, what is wrong with one, and sending it.
    #[command(subcommand)]
    Handoff(handoff::Command),
    /// What people are asked and nobody has decided yet.
    Inbox(inbox::Arguments),
    /// Say yes to what somebody asks approval for.
    Approve(inbox::Deciding),
    /// Say no to what somebody asks approval for.
    Reject(inbox::Deciding),
    /// Answer a question.
    Answer(inbox::Answering),
    /// Look at a box and the cards it holds.
    #[command(subcommand)]
    Box(look::CardBox),
    /// Look at a fork of many children.
    #[command(subcommand)]
    Batch(look::Batch),
    /// Do a recorded turn again from a model call on, with a card, the profile or the model changed, several times; and compare.
    Fork(fork::Arguments),
    /// Render every model call of a run again, and verify that it is the same, byte for byte. Exits with 1 where one is not.
    Replay(replay::Arguments),
    /// Who may use the API of a project, and for what.
    #[command(subcommand)]
    Keys(keys::Command),
    /// What was managed, and by whom, the newest first.
    Audit(look::Audit),
    /// Settings: where each value comes from.
    #[command(subcommand)]
    Config(command::config::Command),
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
    /// Write the manual pages, one for each command.
    Man {
        /// Where to.
        folder: std::path::PathBuf,
    },
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
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    // One crypto provider for every TLS connection; a second call would find it installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    log::begin(cli.log_format);
    let json = cli.json;
    let outcome = match cli.command {
        Command::Dev(arguments) => dev::run(arguments).await,
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
        Command::Top(arguments) => top::run(arguments, json).await,
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

fn man(folder: &std::path::Path) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command says what it does, and every argument what it is for.
    #[test]
    fn every_command_explains_itself() {
        fn check(command: &clap::Command, path: &str, silent: &mut Vec<String>) -> usize {
            let path = format!("{path} {}", command.get_name());
            if command.get_about().is_none() {
                silent.push(path.clone());
            }
            // What names its own type needs no more words.
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

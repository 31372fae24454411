//! `waybill handoff …`

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use serde_json::{Map, Value, json};
use waybill_context::handoff::{built_in, published};
use waybill_core::id::{AgentId, Name};
use waybill_kernel::{audit, resource};
use waybill_orchestrator::{
    handoff,
    launch::{Launch, launch},
};

use crate::{
    connect::{self, Bus, Place, Storage},
    named::{Named, find_some},
    output,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the package types: the built-in ones and those of the project.
    Types {
        #[command(flatten)]
        place: Place,
    },
    /// Print the JSON Schema of a package type.
    Schema {
        /// The name of the type, as `waybill handoff types` shows it.
        name: Name,
        #[command(flatten)]
        place: Place,
    },
    /// Check a package and list every problem. Exits with 1 if there is one.
    Check {
        /// The JSON file that contains the package, or `-` for standard input.
        file: PathBuf,
        #[command(flatten)]
        storage: Storage,
        #[command(flatten)]
        place: Place,
    },
    /// Check a package and send it to an agent.
    Send {
        /// The JSON file that contains the package, or `-` for standard input.
        file: PathBuf,
        /// The profile of the receiving agent.
        #[arg(long)]
        profile: Name,
        /// What the agent should do with the package. If omitted, a standard instruction is used.
        #[arg(long)]
        instruction: Option<String>,
        /// Send it to this existing agent, which has a memory. If omitted, a new agent is created for the task.
        #[arg(long)]
        agent: Option<Named<AgentId>>,
        #[command(flatten)]
        bus: Bus,
        #[command(flatten)]
        storage: Storage,
        #[command(flatten)]
        place: Place,
    },
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Types { place } => {
            let mut work = place.begin().await?;
            let listed = resource::list(&mut work).await?.into_iter();
            let own = listed.filter(|listed| listed.kind == resource::Kind::HandoffType);
            let own: Vec<Name> = own.map(|listed| listed.name).collect();
            let ours = built_in().iter().map(|known| &known.name).filter(|name| !own.contains(name));
            let mut types = Vec::new();
            for (name, whose) in ours.map(|name| (name, "built in")).chain(own.iter().map(|name| (name, "project"))) {
                if let Some(found) = handoff::find_type(&mut work, name).await? {
                    types.push((found, whose));
                }
            }
            if as_json {
                let types = types.iter().map(|(found, whose)| json!({ "handoff_type": found, "from": whose }));
                output::json(&types.collect::<Vec<_>>())?;
            } else {
                output::table(
                    ["name", "from", "tokens", "description"],
                    types.iter().map(|(found, whose)| {
                        let (name, most) = (found.name.to_string(), found.max_tokens.to_string());
                        [name, (*whose).to_owned(), most, found.description.clone()]
                    }),
                );
            }
        }
        Command::Schema { name, place } => {
            let found = handoff::find_type(&mut place.begin().await?, &name).await?;
            let found = found.with_context(|| {
                format!("there is no package type `{name}`: `waybill handoff types` lists the types")
            })?;
            println!("{}", serde_json::to_string_pretty(&published(&found))?);
        }
        Command::Check { file, storage, place } => {
            let package = read(&file)?;
            let (kernel, project_id) = place.open().await?;
            let verdict = handoff::check(&kernel, &storage.need(&kernel)?, project_id, &package, None).await?;
            if as_json {
                output::json(&verdict)?;
            } else {
                verdict.problems.iter().for_each(|problem| println!("{problem}"));
                verdict.warnings.iter().for_each(|warning| println!("warning: {warning}"));
                let (n, n_tokens) = (verdict.artifacts.len(), verdict.n_tokens);
                println!("{} problems; {n_tokens} tokens, {n} artifacts", verdict.problems.len());
            }
            return Ok(if verdict.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Send { file, profile, instruction, agent, bus, storage, place } => {
            let package = read(&file)?;
            let nats = bus.connect().await?;
            let (kernel, project_id) = place.open().await?;
            let kernel = connect::on_bus(kernel, nats.as_ref());
            let verdict = handoff::check(&kernel, &storage.need(&kernel)?, project_id, &package, None).await?;
            let content = verdict.content(&package)?;
            let instruction = instruction.unwrap_or_else(|| handoff::instruction(&content));
            let mut work = connect::begin(&kernel, project_id).await?;
            let agent_id = find_some(agent.as_ref(), &mut work).await?;
            let wanted = Launch { package: Some(content), agent_id, ..Launch::new(profile, instruction) };
            let launched = launch(&mut work, &wanted).await?;
            let detail = json!({ "n_tokens": verdict.n_tokens, "warnings": verdict.warnings });
            let subject = launched.agent_turn_id.to_string();
            audit::record(&mut work, &connect::actor(), "handoff.send", &subject, &detail).await?;
            work.commit().await?;
            if as_json {
                output::json(&json!({ "launched": launched, "warnings": verdict.warnings }))?;
            } else {
                verdict.warnings.iter().for_each(|warning| println!("warning: {warning}"));
                println!("sent, {} tokens: turn {}", verdict.n_tokens, launched.agent_turn_id);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &std::path::Path) -> Result<Map<String, Value>> {
    let bytes = match file.to_str() {
        Some("-") => {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes)?;
            bytes
        }
        _ => std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?,
    };
    match waybill_core::json::parse(&bytes).with_context(|| format!("cannot read {} as JSON", file.display()))? {
        Value::Object(package) => Ok(package),
        _ => bail!("{}: a package must be a JSON object", file.display()),
    }
}

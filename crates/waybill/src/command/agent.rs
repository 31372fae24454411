//! `waybill agent …`: the roster.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use waybill_core::id::{AgentId, Name};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    audit, handover,
};

use crate::{
    connect::{self, Place},
    named::{Named, find_some},
    output, usage,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add a permanent agent with a memory to the roster, and print its id.
    Provision {
        /// The profile of the agent.
        profile: Name,
        #[command(flatten)]
        place: Place,
    },
    /// List the agents on the roster with their status.
    List {
        /// Continue after this agent, the last one of the previous page. If omitted, start with the first.
        #[arg(long)]
        after: Option<Named<AgentId>>,
        /// How many to list at most.
        #[arg(long, default_value_t = 100)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Provision { profile, place } => {
            let mut work = place.begin().await?;
            let target = match handover::target(&mut work, &profile).await {
                Ok(target) => target,
                Err(error) => {
                    let (kernel, project_id) = place.open().await?;
                    return Err(usage::of_profile(&kernel, project_id, &profile, error.into()).await);
                }
            };
            let made = NewAgent::of(AgentId::new(), &target);
            agent::provision(&mut work, std::slice::from_ref(&made), Stay::Long, None).await?;
            let detail = serde_json::json!({ "profile_name": profile });
            audit::record(&mut work, &connect::actor(), "agent.provision", &made.agent_id.to_string(), &detail).await?;
            work.commit().await?;
            if as_json {
                output::json(&serde_json::json!({ "agent_id": made.agent_id }))?;
            } else {
                println!("{}", made.agent_id);
            }
        }
        Command::List { after, most, place } => {
            let mut work = place.begin().await?;
            let after = find_some(after.as_ref(), &mut work).await?;
            let listed = agent::list(&mut work, after, most).await?;
            if as_json {
                output::json(&listed)?;
            } else {
                output::table(
                    ["agent_id", "profile", "target", "status", "stay"],
                    listed.into_iter().map(|agent| {
                        [
                            output::id(&agent.agent_id),
                            agent.profile_name.map(|name| name.to_string()).unwrap_or_default(),
                            agent.worker_target.to_string(),
                            agent.status.unwrap_or_default(),
                            if agent.ephemeral { "ephemeral" } else { "long" }.to_owned(),
                        ]
                    }),
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

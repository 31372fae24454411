//! `waybill grant …`: lets an agent read a box that it neither owns nor was handed.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use waybill_core::id::{AgentId, BoxId, GrantId};
use waybill_kernel::grant;

use crate::{
    connect::Place,
    named::{Named, find_some},
    output,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Give an agent the right to read a box and to hand it over to other agents.
    Give {
        /// The agent that gets the right.
        #[arg(long)]
        agent: Named<AgentId>,
        /// The box that it may read.
        #[arg(long = "box", value_name = "BOX")]
        card_box: Named<BoxId>,
        /// Only the first UPTO cards of the box. If omitted, all cards, including those added later.
        #[arg(long)]
        upto: Option<i64>,
        /// Why the right is given. It is kept on record.
        #[arg(long)]
        reason: String,
        /// Who decided this. It is kept on record.
        #[arg(long, env = "USER", default_value = "operator")]
        by: String,
        #[command(flatten)]
        place: Place,
    },
    /// Revoke a grant. Agents to which the box was already handed over can still read it.
    Revoke {
        /// The grant to revoke, as `waybill grant list` shows it.
        grant: Named<GrantId>,
        /// Who decided this. It is kept on record.
        #[arg(long, env = "USER", default_value = "operator")]
        by: String,
        #[command(flatten)]
        place: Place,
    },
    /// List grants, newest first.
    List {
        /// Only grants of this agent. If omitted, grants of all agents.
        #[arg(long)]
        agent: Option<Named<AgentId>>,
        /// How many to list at most.
        #[arg(long, default_value_t = 100)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
    /// List the requests of agents for boxes that do not exist or that they may not use, newest first.
    Refusals {
        /// How many to list at most.
        #[arg(long, default_value_t = 100)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Give { agent, card_box, upto, reason, by, place } => {
            let mut work = place.begin().await?;
            let (agent_id, box_id) = (agent.find(&mut work).await?, card_box.find(&mut work).await?);
            let grant_id = grant::give(&mut work, agent_id, box_id, upto, &by, &reason).await?;
            work.commit().await?;
            if as_json {
                output::json(&serde_json::json!({ "grant_id": grant_id }))?;
            } else {
                println!("{grant_id}");
            }
        }
        Command::Revoke { grant, by, place } => {
            let mut work = place.begin().await?;
            let grant_id = grant.find(&mut work).await?;
            grant::revoke(&mut work, grant_id, &by).await?;
            work.commit().await?;
        }
        Command::List { agent, most, place } => {
            let mut work = place.begin().await?;
            let agent_id = find_some(agent.as_ref(), &mut work).await?;
            let grants = grant::list(&mut work, agent_id, None, most).await?;
            if as_json {
                output::json(&grants)?;
            } else {
                output::table(
                    ["grant_id", "agent_id", "box_id", "upto", "by", "reason", "revoked_at"],
                    grants.into_iter().map(|grant| {
                        [
                            output::id(&grant.grant_id),
                            output::id(&grant.agent_id),
                            output::id(&grant.box_id),
                            grant.upto.map_or("all".to_owned(), |upto| upto.to_string()),
                            grant.granted_by,
                            grant.reason,
                            grant.revoked_at.map(output::time).unwrap_or_default(),
                        ]
                    }),
                );
            }
        }
        Command::Refusals { most, place } => {
            let refusals = grant::refusals(&mut place.begin().await?, None, most).await?;
            if as_json {
                output::json(&refusals)?;
            } else {
                output::table(
                    ["at", "agent_id", "box_id", "tool", "why"],
                    refusals.into_iter().map(|refusal| {
                        [
                            output::time(refusal.created_at),
                            output::id(&refusal.agent_id),
                            output::id(&refusal.box_id),
                            refusal.tool_suffix,
                            refusal.why,
                        ]
                    }),
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

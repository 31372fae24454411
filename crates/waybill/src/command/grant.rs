//! `waybill grant …`: who may read a box beyond what was made for it or handed to it.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use waybill_core::id::{AgentId, BoxId, GrantId};
use waybill_kernel::grant;

use crate::{connect::Place, output};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Let an agent read a box, and hand it on.
    Give {
        #[arg(long)]
        agent: AgentId,
        /// What it may read.
        #[arg(long = "box", value_name = "BOX")]
        card_box: BoxId,
        /// So many of its first cards. Without it all, also what is yet to come.
        #[arg(long)]
        upto: Option<i64>,
        /// Why: kept on record.
        #[arg(long)]
        reason: String,
        /// Who decides.
        #[arg(long, env = "USER", default_value = "operator")]
        by: String,
        #[command(flatten)]
        place: Place,
    },
    /// End a grant. What was handed over by it stays where it is.
    Revoke {
        grant: GrantId,
        /// Who decides.
        #[arg(long, env = "USER", default_value = "operator")]
        by: String,
        #[command(flatten)]
        place: Place,
    },
    /// Grants, the newest first.
    List {
        #[arg(long)]
        agent: Option<AgentId>,
        #[arg(long, default_value_t = 100)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
    /// What agents asked for and were refused, the newest first.
    Refusals {
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
            let grant_id = grant::give(&mut work, agent, card_box, upto, &by, &reason).await?;
            work.commit().await?;
            if as_json {
                output::json(&serde_json::json!({ "grant_id": grant_id }))?;
            } else {
                println!("{grant_id}");
            }
        }
        Command::Revoke { grant, by, place } => {
            let mut work = place.begin().await?;
            grant::revoke(&mut work, grant, &by).await?;
            work.commit().await?;
        }
        Command::List { agent, most, place } => {
            let grants = grant::list(&mut place.begin().await?, agent, most).await?;
            if as_json {
                output::json(&grants)?;
            } else {
                output::table(
                    ["grant_id", "agent_id", "box_id", "upto", "by", "reason", "revoked_at"],
                    grants.into_iter().map(|grant| {
                        [
                            grant.grant_id.to_string(),
                            grant.agent_id.to_string(),
                            grant.box_id.to_string(),
                            grant.upto.map_or("all".to_owned(), |upto| upto.to_string()),
                            grant.granted_by,
                            grant.reason,
                            grant.revoked_at.map(|at| at.to_string()).unwrap_or_default(),
                        ]
                    }),
                );
            }
        }
        Command::Refusals { most, place } => {
            let refusals = grant::refusals(&mut place.begin().await?, most).await?;
            if as_json {
                output::json(&refusals)?;
            } else {
                output::table(
                    ["at", "agent_id", "box_id", "tool", "why"],
                    refusals.into_iter().map(|refusal| {
                        [
                            refusal.created_at.to_string(),
                            refusal.agent_id.to_string(),
                            refusal.box_id.to_string(),
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

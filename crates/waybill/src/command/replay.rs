//! `waybill replay`: renders every model call of a run again.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use waybill_core::id::{StepId, TurnId};
use waybill_orchestrator::replay;

use crate::{command::turn::tree_of, connect::Place, named::Named, output};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The turn to check.
    turn: Named<TurnId>,
    /// Check only this turn. If omitted, the turns that it started are checked too.
    #[arg(long)]
    alone: bool,
    #[command(flatten)]
    place: Place,
}

/// One model call.
#[derive(Serialize)]
struct Rendered {
    agent_turn_id: TurnId,
    profile_name: Option<String>,
    step_id: StepId,
    request_hash: String,
    /// Why the same bytes could not be rendered. `None` means that they were.
    failed: Option<String>,
}

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    let mut work = arguments.place.begin().await?;
    let turn_id = arguments.turn.find(&mut work).await?;
    let mut turns = tree_of(&mut work, turn_id).await?;
    if arguments.alone {
        turns.truncate(1);
    }
    let mut rendered = Vec::new();
    for turn in &turns {
        for (step_id, receipt) in replay::list(&mut work, turn.agent_turn_id).await? {
            let again = replay::replay(&mut work, turn.agent_turn_id, Some(step_id)).await;
            rendered.push(Rendered {
                agent_turn_id: turn.agent_turn_id,
                profile_name: turn.profile_name.as_ref().map(ToString::to_string),
                step_id,
                request_hash: receipt.request_hash.to_string(),
                failed: again.err().map(|error| error.to_string()),
            });
        }
    }
    let failed = rendered.iter().filter(|one| one.failed.is_some()).count();
    if as_json {
        rendered.iter().try_for_each(output::json)?;
    } else {
        output::table(
            ["turn", "profile", "step", "request_hash", ""],
            rendered.iter().map(|one| {
                [
                    output::id(&one.agent_turn_id),
                    one.profile_name.clone().unwrap_or_default(),
                    output::id(&one.step_id),
                    one.request_hash.chars().take(16).collect(),
                    one.failed.clone().unwrap_or_else(|| "the same bytes".to_owned()),
                ]
            }),
        );
        println!("{} turns, {} model calls, {failed} that cannot be reproduced", turns.len(), rendered.len());
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

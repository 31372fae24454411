//! `waybill turn …`: start one, look at it, stop it.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use waybill_core::{
    card::{Content, Reading},
    id::{AgentId, Name, SessionId, TurnId},
};
use waybill_kernel::{
    card,
    turn::{self, Stopped, Taken, Turn},
    work::UnitOfWork,
};
use waybill_orchestrator::launch::{Launch, launch};

use crate::{
    connect::{self, Bus, Place},
    output,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Have something done by an agent of a profile.
    Start {
        profile: Name,
        instruction: String,
        /// What the result must have: `[{"name": …, "description": …}]`
        #[arg(long, value_name = "JSON")]
        result_fields: Option<String>,
        /// An agent that there is, with what it remembers; without it one is made for the task.
        #[arg(long)]
        agent: Option<AgentId>,
        /// A conversation that it is part of.
        #[arg(long)]
        session: Option<SessionId>,
        /// Wait for the deliverable and print it. Exits with 1 where the turn does not end well.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        bus: Bus,
        #[command(flatten)]
        place: Place,
    },
    /// Its steps, what each used and cost, and what came of it.
    Show {
        turn: TurnId,
        #[command(flatten)]
        place: Place,
    },
    /// Have it end. It still delivers.
    Stop {
        turn: TurnId,
        #[arg(long, default_value = "stopped from the command line")]
        reason: String,
        #[command(flatten)]
        bus: Bus,
        #[command(flatten)]
        place: Place,
    },
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Start { profile, instruction, result_fields, agent, session, wait, bus, place } => {
            let fields =
                result_fields.map(|text| serde_json::from_str(&text)).transpose().context("--result-fields")?;
            let launched = {
                let nats = bus.connect().await?;
                let (kernel, project_id) = place.open().await?;
                let kernel = connect::on_bus(kernel, nats.as_ref());
                let mut work = kernel.begin(project_id).await?;
                let wanted = Launch {
                    result_fields: fields,
                    agent_id: agent,
                    session_id: session,
                    ..Launch::new(profile, instruction)
                };
                let launched = launch(&mut work, &wanted).await?;
                work.commit().await?;
                launched
            };
            if !wait {
                if as_json {
                    output::json(&launched)?;
                } else {
                    println!("{}", launched.agent_turn_id);
                }
                return Ok(ExitCode::SUCCESS);
            }
            let (kernel, project_id) = place.open().await?;
            loop {
                let mut work = kernel.begin(project_id).await?;
                let turn = find(&mut work, launched.agent_turn_id).await?;
                if turn.status != "open" {
                    let content = deliverable(&mut work, &turn).await?;
                    if as_json {
                        output::json(&serde_json::json!({ "turn": turn, "deliverable": content }))?;
                    } else {
                        println!("{}", in_text(content.as_ref()));
                    }
                    return Ok(if turn.status == "success" { ExitCode::SUCCESS } else { ExitCode::FAILURE });
                }
                drop(work);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        Command::Show { turn, place } => {
            let mut work = place.begin().await?;
            let found = find(&mut work, turn).await?;
            let steps = turn::steps(&mut work, turn).await?;
            let content = deliverable(&mut work, &found).await?;
            if as_json {
                output::json(&serde_json::json!({ "turn": found, "steps": steps, "deliverable": content }))?;
                return Ok(ExitCode::SUCCESS);
            }
            output::table(
                ["step", "outcome", "model", "read", "cached", "written", "$", "ms", "asked", "calls"],
                steps.iter().map(row),
            );
            let microdollars: i64 = steps.iter().filter_map(|step| step.microdollars).sum();
            let tokens: i64 =
                steps.iter().flat_map(|s| [s.input_tokens, s.output_tokens]).flatten().map(i64::from).sum();
            let again = steps.iter().filter(|step| step.asked_again == Some(true)).count();
            println!(
                "{}: {} steps, {tokens} tokens, {}; {again} asked again after a takeover",
                found.status,
                steps.len(),
                dollars(microdollars)
            );
            if content.is_some() {
                println!("{}", in_text(content.as_ref()));
            }
        }
        Command::Stop { turn, reason, bus, place } => {
            let nats = bus.connect().await?;
            let (kernel, project_id) = place.open().await?;
            let mut work = connect::on_bus(kernel, nats.as_ref()).begin(project_id).await?;
            let stopped = turn::stop(&mut work, turn, &reason).await?;
            work.commit().await?;
            let said = match stopped {
                Stopped::Ended => "ended",
                Stopped::Asked => "asked",
                Stopped::Over => "over",
            };
            if as_json {
                output::json(&serde_json::json!({ "agent_turn_id": turn, "stopped": said }))?;
            } else {
                println!("{said}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn find(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Turn> {
    let mut found = turn::find(work, &[turn_id]).await?;
    ensure!(!found.is_empty(), "there is no turn {turn_id} in this project");
    Ok(found.remove(0))
}

async fn deliverable(work: &mut UnitOfWork, turn: &Turn) -> Result<Option<Content>> {
    let Some(card_id) = turn.deliverable_card_id else { return Ok(None) };
    let found = card::fetch(work, &[card_id], None).await?.found.pop();
    Ok(found.and_then(Reading::into_live).map(|card| card.content))
}

fn in_text(content: Option<&Content>) -> String {
    match content {
        Some(Content::Text(text)) => text.clone(),
        Some(other) => serde_json::to_string_pretty(other).unwrap_or_default(),
        None => "the deliverable is gone".to_owned(),
    }
}

fn dollars(microdollars: i64) -> String {
    format!("${:.6}", microdollars as f64 / 1_000_000.0)
}

fn row(step: &Taken) -> [String; 10] {
    let number = |n: Option<i32>| n.map(|n| n.to_string()).unwrap_or_default();
    [
        step.step_id.to_string(),
        step.outcome.clone(),
        step.model.clone().unwrap_or_default(),
        number(step.input_tokens),
        number(step.cached_tokens),
        number(step.output_tokens),
        step.microdollars.map(dollars).unwrap_or_default(),
        number(step.took_ms),
        number(step.n_asked.map(i32::from)),
        step.n_calls.to_string(),
    ]
}

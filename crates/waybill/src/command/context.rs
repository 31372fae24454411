//! `waybill context …`: shows what a model saw.

use std::{collections::HashMap, process::ExitCode};

use anyhow::Result;
use clap::Subcommand;
use serde_json::json;
use waybill_context::{call::Call, diff, lint::lint, record::receipt::RestsOn};
use waybill_core::id::{CardId, StepId, TurnId};
use waybill_kernel::{handover, turn};
use waybill_orchestrator::replay;

use crate::{
    connect::Place,
    named::{Named, NamedCall},
    output,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the model calls of a turn, each with its time, its number of messages and tokens, and the hash of its request.
    List {
        /// The turn whose calls are listed.
        turn: Named<TurnId>,
        #[command(flatten)]
        place: Place,
    },
    /// Render a model call again, verify that the bytes are those that were sent, and show where each message came from.
    ///
    /// If the same bytes cannot be reproduced, prints the reason and exits with 1.
    Show {
        /// The model call: `TURN/STEP`, such as `@last/1`, or `TURN` for the last call of the turn. STEP is the number or the id of the step.
        call: NamedCall,
        /// Print the request, byte for byte as it was sent. If omitted, a table of its messages is printed.
        #[arg(long)]
        request: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Check the request of a model call for defects, as `waybill lint` does with files.
    ///
    /// Exits with 1 if there are any.
    Lint {
        /// The model call: `TURN/STEP`, such as `@last/1`, or `TURN` for the last call of the turn. STEP is the number or the id of the step.
        call: NamedCall,
        #[command(flatten)]
        place: Place,
    },
    /// Show how a turn got a card: by which handover and rule, from which agent and box, and why this was allowed.
    ///
    /// Exits with 1 if the turn does not have the card.
    Why {
        /// The id of the card.
        #[arg(value_name = "CARD")]
        card: Named<CardId>,
        /// The turn that has the card.
        #[arg(long)]
        turn: Named<TurnId>,
        #[command(flatten)]
        place: Place,
    },
    /// Compare the context of two model calls: cards, order, tokens, and the first message that a prompt cache cannot reuse.
    Diff {
        /// The first call: `TURN/STEP`, or `TURN` for the last call of the turn.
        left: NamedCall,
        /// The second call, in the same form.
        right: NamedCall,
        #[command(flatten)]
        place: Place,
    },
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::List { turn, place } => list(&turn, &place, as_json).await?,
        Command::Show { call, request, place } => {
            let call = render(&place, &call).await?;
            if request {
                output::bytes(&call.request);
            } else {
                show(&call, as_json)?;
            }
        }
        Command::Lint { call, place } => return check(&render(&place, &call).await?, as_json),
        Command::Why { card, turn, place } => return why(&card, &turn, &place, as_json).await,
        Command::Diff { left, right, place } => {
            let (left, right) = (render(&place, &left).await?, render(&place, &right).await?);
            print_diff(&diff::diff(&left, &right), as_json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn render(place: &Place, call: &NamedCall) -> Result<Call<'static>> {
    let mut work = place.begin().await?;
    let (turn_id, step_id) = call.find(&mut work).await?;
    Ok(replay::replay(&mut work, turn_id, step_id).await?)
}

/// Shows the defects of a request.
fn check(call: &Call<'_>, as_json: bool) -> Result<ExitCode> {
    let found = lint(&String::from_utf8_lossy(&call.request))?;
    if as_json {
        found.iter().try_for_each(output::json)?;
    } else if !found.is_empty() {
        output::table(
            ["message", "rule", "what"],
            found.iter().map(|finding| [finding.message.to_string(), finding.rule.to_string(), finding.what.clone()]),
        );
    }
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows which handover gave a card to a turn.
async fn why(card: &Named<CardId>, turn: &Named<TurnId>, place: &Place, as_json: bool) -> Result<ExitCode> {
    let mut work = place.begin().await?;
    let (card_id, turn_id) = (card.find(&mut work).await?, turn.find(&mut work).await?);
    let found = handover::why(&mut work, card_id, turn_id).await?;
    if as_json {
        output::json(&found)?;
    } else if found.is_empty() {
        println!("turn {turn_id} does not have card {card_id}");
    } else {
        output::table(
            ["rule", "argument", "tool", "from", "box", "upto", "right", "place"],
            found.iter().map(|why| {
                let from = match (why.rule.as_str(), why.source_agent_id) {
                    ("wrote", _) => "itself".to_owned(),
                    (_, Some(agent_id)) => output::id(&agent_id),
                    (_, None) => "a person".to_owned(),
                };
                [
                    why.rule.clone(),
                    why.arg_key.clone().unwrap_or_default(),
                    why.tool_suffix.clone().unwrap_or_default(),
                    from,
                    output::id(&why.source_box_id.unwrap_or(why.box_id)),
                    why.upto.map(|upto| upto.to_string()).unwrap_or_default(),
                    why.via.clone().unwrap_or_default(),
                    why.place.to_string(),
                ]
            }),
        );
    }
    Ok(if found.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn list(turn: &Named<TurnId>, place: &Place, as_json: bool) -> Result<()> {
    let mut work = place.begin().await?;
    let turn_id = turn.find(&mut work).await?;
    let listed = replay::list(&mut work, turn_id).await?;
    if as_json {
        for (step_id, receipt) in &listed {
            output::json(&json!({ "step_id": step_id, "receipt": receipt }))?;
        }
        return Ok(());
    }
    let steps = turn::steps(&mut work, turn_id).await?;
    let numbers: HashMap<StepId, usize> = steps.iter().enumerate().map(|(n, step)| (step.step_id, n + 1)).collect();
    output::table(
        ["step", "step_id", "read_at", "messages", "tokens", "left out", "adapter", "hash"],
        listed.iter().map(|(step_id, receipt)| {
            let left_out: Vec<&str> = receipt.left_out.iter().map(|left| left.key.as_str()).collect();
            [
                numbers.get(step_id).map(ToString::to_string).unwrap_or_default(),
                output::id(step_id),
                output::time(receipt.read_at),
                receipt.n_messages.to_string(),
                receipt.n_tokens.get().to_string(),
                left_out.join(" "),
                receipt.adapter.clone(),
                output::preview(&receipt.request_hash.to_string(), 8),
            ]
        }),
    );
    Ok(())
}

fn show(call: &Call<'_>, as_json: bool) -> Result<()> {
    if as_json {
        let manifest: Vec<_> = call.composed.manifest().collect();
        return output::json(&json!({
            "receipt": call.receipt, "manifest": manifest, "omitted": call.composed.omitted, "messages": call.composed.messages,
        }));
    }
    output::table(
        ["", "layer", "role", "tokens", "cards", "says"],
        call.composed.messages.iter().enumerate().map(|(n, message)| {
            let cards: Vec<String> = message.sources.iter().map(|source| output::id(&source.card_id)).collect();
            let calls: Vec<&str> = message.tool_calls.iter().map(|call| call.tool_name.as_str()).collect();
            let says = output::preview(&message.content, 100);
            [
                (n + 1).to_string(),
                message.layer.to_string(),
                message.role.as_str().to_owned(),
                message.n_tokens.get().to_string(),
                cards.join(" "),
                if calls.is_empty() { says } else { format!("{says} → {}", calls.join(", ")) },
            ]
        }),
    );
    for omitted in &call.composed.omitted {
        let reason = serde_json::to_value(omitted.reason)?;
        println!("left out, {}: {} cards", reason.as_str().unwrap_or_default(), omitted.card_ids.len());
    }
    let how = match &call.receipt.recorded {
        Some(recorded) if recorded.rests_on == RestsOn::Import => "the request is what a log says of it",
        Some(recorded) if !recorded.withheld.is_empty() => "the request is as it was sent, but for what was withheld",
        _ => "the request is as it was sent",
    };
    println!("{} tokens; {how}: {}", call.composed.n_tokens.get(), call.receipt.request_hash);
    Ok(())
}

fn print_diff(diff: &diff::Diff, as_json: bool) -> Result<()> {
    if as_json {
        return output::json(diff);
    }
    for (sign, lines) in [("-", &diff.only_left), ("+", &diff.only_right)] {
        for line in lines {
            println!("{sign} {} {}", line.layer, line.card_id);
        }
    }
    for card_id in &diff.moved {
        println!("~ moved {card_id}");
    }
    for (layer, diff::Sides { left, right }) in &diff.layers {
        println!("{layer}: {} → {} tokens", left.get(), right.get());
    }
    println!(
        "{} → {} tokens; the first {} messages, {} tokens, are the same",
        diff.left_tokens.get(),
        diff.right_tokens.get(),
        diff.same_messages,
        diff.same_tokens.get()
    );
    match &diff.first_break {
        None => println!("the right one continues where the left one ends: a prompt cache misses nothing"),
        Some(place) if place.message == 0 => {
            println!("a prompt cache misses everything: the tools differ, {:?}", place.card_ids)
        }
        Some(place) => {
            let layer = place.right.as_ref().or(place.left.as_ref()).map(ToString::to_string).unwrap_or_default();
            println!(
                "a prompt cache misses from message {} on ({layer}), because of {:?}",
                place.message, place.card_ids
            );
        }
    }
    Ok(())
}

//! `waybill box show`, `waybill batch show`, `waybill audit`: commands that only read.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use waybill_core::{
    card::Reading,
    card_box::Span,
    id::{AuditId, BatchId, BoxId},
};
use waybill_kernel::{audit, batch, card_box};

use crate::{connect::Place, named::Named, output};

#[derive(Debug, Subcommand)]
pub(crate) enum CardBox {
    /// Show the cards of a box in order, each with the box that it was first put into.
    Show {
        /// The box to show.
        #[arg(value_name = "BOX")]
        card_box: Named<BoxId>,
        /// Continue after the card at this position of the box. 0 starts with the first card.
        #[arg(long, default_value_t = 0)]
        after: i64,
        /// How many cards to show at most.
        #[arg(long, default_value_t = 100)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
}

pub(crate) async fn card_box(command: CardBox, as_json: bool) -> Result<ExitCode> {
    let CardBox::Show { card_box: named, after, most, place } = command;
    let mut work = place.begin().await?;
    let box_id = named.find(&mut work).await?;
    let found = card_box::find(&mut work, &[box_id]).await?.found.pop();
    let found = found.with_context(|| format!("there is no box {box_id} in this project"))?;
    let from = after.max(0) + 1;
    let cards = card_box::read(&mut work, Span { box_id, from, upto: from + most - 1 }, None).await?;
    if as_json {
        output::json(&json!({ "box": found, "cards": cards }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::table(
        ["place", "card", "type", "role", "tokens", "put into", "says"],
        cards.iter().map(|placed| {
            let by =
                if placed.origin.box_id == box_id { "this box".to_owned() } else { output::id(&placed.origin.box_id) };
            let (kind, role, tokens, says) = match &placed.reading {
                Reading::Live(card) => (
                    card.metadata.card_type.to_string(),
                    card.metadata.role.as_str(),
                    card.n_tokens.get().to_string(),
                    output::preview(&serde_json::to_string(&card.content).unwrap_or_default(), 60),
                ),
                Reading::Gone(_) => ("gone".to_owned(), "", String::new(), String::new()),
            };
            [placed.place.to_string(), output::id(&placed.reading.card_id()), kind, role.to_owned(), tokens, by, says]
        }),
    );
    println!("{} cards in all", found.length);
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Batch {
    /// Show the tasks of a batch with their status and result.
    Show {
        /// The batch to show.
        #[arg(value_name = "BATCH")]
        batch: Named<BatchId>,
        /// Continue after the task with this index. -1 starts with the first task.
        #[arg(long, default_value_t = -1)]
        after: i32,
        /// How many tasks to show at most.
        #[arg(long, default_value_t = 100)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
}

pub(crate) async fn batch(command: Batch, as_json: bool) -> Result<ExitCode> {
    let Batch::Show { batch: named, after, most, place } = command;
    let mut work = place.begin().await?;
    let batch_id = named.find(&mut work).await?;
    let found = batch::find(&mut work, batch_id).await?;
    let found = found.with_context(|| format!("there is no batch {batch_id} in this project"))?;
    let tasks = batch::tasks(&mut work, batch_id, after, most).await?;
    if as_json {
        output::json(&json!({ "batch": found, "tasks": tasks }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::table(
        ["task", "agent", "turn", "status", "deliverable", "error"],
        tasks.into_iter().map(|task| {
            [
                task.task_index.to_string(),
                output::id(&task.agent_id),
                output::id(&task.agent_turn_id),
                task.status.as_str().to_owned(),
                output::id_or_none(task.deliverable_card_id),
                task.error.unwrap_or_default(),
            ]
        }),
    );
    println!("{}: {} tasks, {} failed", found.status.as_str(), found.n_tasks, found.n_failed);
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// Continue after this entry, the last one of the previous page. If omitted, start with the newest.
    #[arg(long)]
    after: Option<AuditId>,
    /// How many to list at most.
    #[arg(long, default_value_t = 50)]
    most: i64,
    #[command(flatten)]
    place: Place,
}

pub(crate) async fn audit(arguments: Audit, as_json: bool) -> Result<ExitCode> {
    let entries = audit::list(&mut arguments.place.begin().await?, arguments.after, arguments.most).await?;
    if as_json {
        output::json(&entries)?;
    } else {
        output::table(
            ["at", "who", "did", "to", "detail"],
            entries.into_iter().map(|entry| {
                [output::time(entry.created_at), entry.actor, entry.action, entry.subject, entry.detail.to_string()]
            }),
        );
    }
    Ok(ExitCode::SUCCESS)
}

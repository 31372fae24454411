//! `waybill top`

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::Result;
use chrono::Utc;
use clap::Args;
use serde::Serialize;
use waybill_kernel::{
    vitals::{self, Busy, Spent, Vital},
    work::Kernel,
};

use crate::{connect::Service, figures::interrupted, output};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    service: Service,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 2.0)]
    every: f64,
    /// Look once. With --json, or where nobody watches, it does so anyway.
    #[arg(long)]
    once: bool,
    /// Projects at most.
    #[arg(long, default_value_t = 20)]
    projects: i32,
}

#[derive(Debug, Serialize)]
struct Seen {
    vitals: Vec<Vital>,
    projects: Vec<Project>,
}

#[derive(Debug, Serialize)]
struct Project {
    #[serde(flatten)]
    busy: Busy,
    /// By turns that were asked for in the last hour.
    spent: Spent,
}

pub(crate) async fn run(arguments: Arguments, json: bool) -> Result<ExitCode> {
    let kernel = arguments.service.kernel_with(2).await?;
    if json {
        output::json(&look(&kernel, arguments.projects).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_live = !arguments.once && std::io::stdout().is_terminal();
    loop {
        let seen = look(&kernel, arguments.projects).await?;
        if is_live {
            // From the top of an empty screen.
            print!("\x1b[2J\x1b[H");
        }
        show(&seen);
        if !is_live {
            return Ok(ExitCode::SUCCESS);
        }
        std::io::stdout().flush()?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs_f64(arguments.every.max(0.2))) => {}
            heard = interrupted() => {
                heard?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

async fn look(kernel: &Kernel, most: i32) -> Result<Seen> {
    let (vitals, busy) = (vitals::read(kernel).await?, vitals::busiest(kernel, most).await?);
    let hour_ago = Utc::now() - chrono::Duration::hours(1);
    let mut projects = Vec::new();
    for busy in busy {
        let mut work = kernel.begin(busy.project_id).await?;
        projects.push(Project { spent: vitals::spent(&mut work, hour_ago).await?, busy });
    }
    Ok(Seen { vitals, projects })
}

fn show(seen: &Seen) {
    let value =
        |vital: &str| seen.vitals.iter().filter(|found| found.vital == vital).map(|found| found.value).sum::<f64>();
    println!(
        "{}  batches {}  unpublished {} ({:.0} s)  quarantined {}  oldest transaction {:.0} s\n",
        Utc::now().format("%H:%M:%S"),
        value("waybill_batches"),
        value("waybill_outbox_events"),
        value("waybill_outbox_oldest_seconds"),
        value("waybill_quarantined"),
        value("waybill_oldest_transaction_seconds"),
    );
    let mut targets: Vec<&str> = seen
        .vitals
        .iter()
        .filter(|vital| matches!(vital.vital.as_str(), "waybill_queue_turns" | "waybill_calls" | "waybill_workers"))
        .filter_map(|vital| vital.target.as_deref())
        .collect();
    targets.sort_unstable();
    targets.dedup();
    let of = |vital: &str, target: &str, status: Option<&str>| {
        let found = seen.vitals.iter().find(|found| {
            found.vital == vital
                && found.target.as_deref() == Some(target)
                && (status.is_none() || found.status.as_deref() == status)
        });
        found.map_or(0.0, |found| found.value)
    };
    output::table(
        ["target", "processes", "ready", "running", "queued", "deferred", "oldest", "calls"],
        targets.into_iter().map(|target| {
            let turns = |status| of("waybill_queue_turns", target, Some(status)).to_string();
            let calls: f64 = seen
                .vitals
                .iter()
                .filter(|found| found.vital == "waybill_calls" && found.target.as_deref() == Some(target))
                .map(|found| found.value)
                .sum();
            [
                target.to_owned(),
                of("waybill_workers", target, None).to_string(),
                turns("pending"),
                turns("processing"),
                turns("queued"),
                turns("deferred"),
                format!("{:.1} s", of("waybill_queue_oldest_seconds", target, None)),
                calls.to_string(),
            ]
        }),
    );
    println!();
    output::table(
        ["project", "ready", "running", "waiting", "oldest", "steps/h", "tokens/h", "$/h"],
        seen.projects.iter().map(|Project { busy, spent }| {
            [
                busy.slug.clone().unwrap_or_else(|| busy.project_id.to_string()),
                busy.n_pending.to_string(),
                busy.n_processing.to_string(),
                busy.n_waiting.to_string(),
                format!("{:.1} s", busy.oldest_seconds),
                spent.n_steps.to_string(),
                (spent.input_tokens + spent.output_tokens).to_string(),
                format!("{:.4}", spent.microdollars as f64 / 1e6),
            ]
        }),
    );
}

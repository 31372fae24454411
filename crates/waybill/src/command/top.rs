//! `waybill top`

use std::{
    collections::BTreeSet,
    io::{IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::Result;
use chrono::Utc;
use clap::Args;
use serde::Serialize;
use waybill_core::metric;
use waybill_kernel::{
    vitals::{self, Busy, Spent, Vital},
    work::Kernel,
};
use waybill_services::interrupted;

use crate::{connect::Service, output};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    service: Service,
    /// Seconds between two refreshes.
    #[arg(long, default_value_t = 2.0)]
    every: f64,
    /// Print once and exit. This is the default with --json, or if the output is not a terminal.
    #[arg(long)]
    once: bool,
    /// How many projects to show at most.
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
    /// Of turns that were started in the last hour.
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
            // Clear the screen and start at the top.
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

/// Returns the sum of a metric over one target and status. `None` means all.
fn sum(seen: &Seen, name: &str, target: Option<&str>, status: Option<&str>) -> f64 {
    let of = |vital: &&Vital| {
        vital.vital == name
            && (target.is_none() || vital.target.as_deref() == target)
            && (status.is_none() || vital.status.as_deref() == status)
    };
    seen.vitals.iter().filter(of).map(|vital| vital.value).sum()
}

fn show(seen: &Seen) {
    let all = |name| sum(seen, name, None, None);
    println!(
        "{}  batches {}  unpublished {} ({:.0} s)  quarantined {}  oldest transaction {:.0} s\n",
        Utc::now().format("%H:%M:%S"),
        all(metric::BATCHES),
        all(metric::OUTBOX_EVENTS),
        all(metric::OUTBOX_OLDEST_SECONDS),
        all(metric::QUARANTINED),
        all(metric::OLDEST_TRANSACTION_SECONDS),
    );
    let named = [metric::QUEUE_TURNS, metric::CALLS, metric::WORKERS];
    let of_targets = seen.vitals.iter().filter(|vital| named.contains(&vital.vital.as_str()));
    let targets: BTreeSet<&str> = of_targets.filter_map(|vital| vital.target.as_deref()).collect();
    output::table(
        ["target", "processes", "ready", "running", "queued", "deferred", "oldest", "calls"],
        targets.into_iter().map(|target| {
            let of = |name, status| sum(seen, name, Some(target), status);
            let turns = |status| of(metric::QUEUE_TURNS, Some(status)).to_string();
            [
                target.to_owned(),
                of(metric::WORKERS, None).to_string(),
                turns("pending"),
                turns("processing"),
                turns("queued"),
                turns("deferred"),
                format!("{:.1} s", of(metric::QUEUE_OLDEST_SECONDS, None)),
                of(metric::CALLS, None).to_string(),
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

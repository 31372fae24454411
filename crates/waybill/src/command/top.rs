//! `waybill top`

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal, Read, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::Result;
use chrono::Utc;
use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde::Serialize;
use tokio::sync::mpsc;
use waybill_core::metric;
use waybill_kernel::{
    outbox::RELAY,
    vitals::{self, Busy, Spent, Vital},
    work::Kernel,
};
use waybill_services::interrupted;

use crate::{connect::Service, output, usage};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    service: Service,
    /// Seconds between two refreshes.
    #[arg(long, default_value_t = 2.0, value_parser = usage::seconds)]
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
    let is_live = !arguments.once && io::stdout().is_terminal();
    let mut keys = Keys::read(is_live);
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
        println!("\nq quits");
        io::stdout().flush()?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs_f64(arguments.every.max(0.2))) => {}
            () = keys.quit() => return Ok(ExitCode::SUCCESS),
            heard = interrupted() => {
                heard?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// The keys that are pressed, each at once. When it is dropped, the terminal is as it was.
struct Keys {
    pressed: mpsc::UnboundedReceiver<u8>,
    before: Option<Termios>,
}

impl Keys {
    fn read(is_live: bool) -> Keys {
        let (send, pressed) = mpsc::unbounded_channel();
        let before = tcgetattr(io::stdin()).ok().filter(|_| is_live);
        if let Some(before) = &before {
            let mut at_once = before.clone();
            at_once.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &at_once);
            // A thread of its own: a read that waits for a key must not keep the program from ending.
            std::thread::spawn(move || {
                let mut key = [0];
                while matches!(io::stdin().read(&mut key), Ok(1)) && send.send(key[0]).is_ok() {}
            });
        }
        Keys { pressed, before }
    }

    /// Waits until q is pressed.
    async fn quit(&mut self) {
        while let Some(key) = self.pressed.recv().await {
            if key == b'q' {
                return;
            }
        }
        std::future::pending().await
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
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
    // The sum of no numbers is -0, which would be printed so.
    seen.vitals.iter().filter(of).map(|vital| vital.value).sum::<f64>() + 0.0
}

/// Returns how many events wait to be published, and for how long. Without NATS no relay runs, and how long does not matter.
fn unpublished(seen: &Seen) -> String {
    let n = sum(seen, metric::OUTBOX_EVENTS, None, None);
    if sum(seen, metric::WORKERS, Some(RELAY), None) == 0.0 {
        return format!("  unpublished {n}, no relay runs");
    }
    format!("  unpublished {n} ({:.0} s)", sum(seen, metric::OUTBOX_OLDEST_SECONDS, None, None))
}

fn show(seen: &Seen) {
    let all = |name| sum(seen, name, None, None);
    println!(
        "{}  batches {}{}  quarantined {}  oldest transaction {:.0} s\n",
        Utc::now().format("%H:%M:%S"),
        all(metric::BATCHES),
        unpublished(seen),
        all(metric::QUARANTINED),
        all(metric::OLDEST_TRANSACTION_SECONDS),
    );
    let named = [metric::QUEUE_TURNS, metric::CALLS, metric::WORKERS];
    let of_targets = seen.vitals.iter().filter(|vital| named.contains(&vital.vital.as_str()));
    let targets: BTreeSet<&str> = of_targets.filter_map(|vital| vital.target.as_deref()).collect();
    if targets.is_empty() {
        println!("no turn waits or runs. Idle processes are not listed: they ask for nothing until there is work");
    }
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

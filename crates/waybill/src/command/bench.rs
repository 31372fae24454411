//! `waybill bench …`

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, bail, ensure};
use clap::Subcommand;
use tokio::signal::unix::{SignalKind, signal};
use waybill_lab::{
    bench::{card_box, turns},
    figure::{Bar, Figure},
};

use crate::output;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What cards and boxes cost, and that it does not grow with history.
    ///
    /// Starts a private PostgreSQL with durability on; with DATABASE_URL, uses that throw-away server instead.
    Box {
        /// Cards in the largest box.
        #[arg(long, default_value_t = 1_000_000)]
        cards: i64,
        /// The size for CI: 50,000 cards, fewer samples.
        #[arg(long)]
        short: bool,
    },
    /// What turns cost, against the same rows written by pgbench; growth with agents; fairness between projects.
    ///
    /// Starts a private PostgreSQL with durability on; with DATABASE_URL, uses that throw-away server instead.
    Turns {
        /// Agents with history in the larger database.
        #[arg(long, default_value_t = 1_000_000)]
        agents: u32,
        /// The size for CI: 20,000 agents, fewer and shorter windows, and no bar beside pgbench.
        #[arg(long)]
        short: bool,
    },
}

pub(crate) async fn run(command: Command, json: bool) -> Result<ExitCode> {
    let measured = async {
        match command {
            Command::Box { cards, short } => {
                ensure!(cards >= 10_000, "--cards {cards}: the largest box holds at least 10,000");
                let long = card_box::Options { cards, samples: 400 };
                card_box::run(if short { card_box::Options { cards: 50_000, samples: 120 } } else { long }).await
            }
            Command::Turns { agents, short } => {
                ensure!(agents >= 10_000, "--agents {agents}: the larger database has at least 10,000");
                let long = turns::Options {
                    agents,
                    window: Duration::from_millis(500),
                    rounds: 60,
                    beside_pgbench: Bar::AtLeast(0.8),
                };
                let brief = turns::Options {
                    agents: 20_000,
                    window: Duration::from_millis(400),
                    rounds: 12,
                    beside_pgbench: Bar::None,
                };
                turns::run(if short { brief } else { long }).await
            }
        }
    };
    tokio::select! {
        figures = measured => report(&figures?, json),
        // Dropping the run ends the server it started.
        heard = interrupted() => {
            heard?;
            bail!("interrupted")
        }
    }
}

/// Ctrl-C, or a polite request to end.
async fn interrupted() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupt = tokio::signal::ctrl_c() => interrupt,
    }
}

/// Prints the figures; fails where one falls short.
fn report(figures: &[Figure], json: bool) -> Result<ExitCode> {
    if json {
        figures.iter().try_for_each(output::json)?;
    } else {
        let mark = |figure: &Figure| if figure.ok { "ok" } else { "SHORT" }.to_owned();
        output::table(
            ["", "figure", "value", "unit", "bar"],
            figures.iter().map(|f| [mark(f), f.figure.clone(), f.value.to_string(), f.unit.into(), f.bar.to_string()]),
        );
    }
    Ok(if figures.iter().all(|figure| figure.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

//! What `bench` and `chaos` share: printing figures and comparing them with their bars.

use std::process::ExitCode;

use anyhow::{Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use waybill_lab::figure::Figure;

use crate::output;

/// Waits for the figures and prints them. Exits with failure if one falls short.
pub(crate) async fn report(measured: impl Future<Output = Result<Vec<Figure>>>, json: bool) -> Result<ExitCode> {
    tokio::select! {
        figures = measured => print(&figures?, json),
        // Dropping the run ends the servers it started.
        heard = interrupted() => {
            heard?;
            bail!("interrupted")
        }
    }
}

/// Waits for Ctrl-C or SIGTERM.
pub(crate) async fn interrupted() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupt = tokio::signal::ctrl_c() => interrupt,
    }
}

fn print(figures: &[Figure], json: bool) -> Result<ExitCode> {
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

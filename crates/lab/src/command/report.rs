//! What `bench` and `chaos` share: printing figures and comparing them with their bars.

use std::process::ExitCode;

use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use waybill_lab::figure::Figure;
use waybill_services::interrupted;

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

fn print(figures: &[Figure], json: bool) -> Result<ExitCode> {
    if json {
        for figure in figures {
            println!("{}", serde_json::to_string(figure)?);
        }
    } else {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["", "figure", "value", "unit", "bar"]);
        for figure in figures {
            let mark = if figure.ok { "ok" } else { "SHORT" };
            let (value, bar) = (figure.value.to_string(), figure.bar.to_string());
            table.add_row([mark, &figure.figure, &value, figure.unit, &bar]);
        }
        println!("{table}");
    }
    Ok(if figures.iter().all(|figure| figure.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

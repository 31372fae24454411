//! `waybill spend`: what the turns of a project have spent.

use std::process::ExitCode;

use anyhow::Result;
use chrono::{TimeDelta, Utc};
use clap::Args;
use serde_json::Value;
use waybill_kernel::spend::{self, By};

use crate::{connect::Place, output, tree::dollars};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What to group by. Hours and days are those in which the turns began, in UTC.
    #[arg(long, default_value = "day", value_parser = ["hour", "day", "profile", "model", "agent", "session"])]
    by: String,
    /// Count turns that began in the last so many hours.
    #[arg(long, default_value_t = 24)]
    hours: u16,
    #[command(flatten)]
    place: Place,
}

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    let by: By = serde_json::from_value(Value::String(arguments.by.clone()))?;
    let until = Utc::now() + TimeDelta::seconds(1);
    let since = until - TimeDelta::hours(arguments.hours.into());
    let spent = spend::spend(&mut arguments.place.begin().await?, by, since, until).await?;
    if as_json {
        output::json(&spent)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::table(
        [arguments.by.as_str(), "turns", "steps", "read", "cached", "written", "$", "asked again"],
        spent.rows.iter().map(|row| {
            [
                row.key.clone().unwrap_or_else(|| "none".to_owned()),
                row.n_turns.to_string(),
                row.n_steps.to_string(),
                row.input.to_string(),
                row.cached.to_string(),
                row.output.to_string(),
                dollars(row.microdollars),
                row.asked_again.to_string(),
            ]
        }),
    );
    if let Some(until) = spent.complete_until {
        println!("only turns that began before {until}: later ones have too many steps for one answer");
    }
    Ok(ExitCode::SUCCESS)
}

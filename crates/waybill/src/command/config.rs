//! `waybill config …`

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use crate::{
    config::{self, File},
    output,
};

#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Command {
    /// Show every setting, its value, and where the value comes from: an environment variable, the settings file, or the built-in default. The value
    /// of a default or of a secret is not shown.
    Show,
}

pub(crate) fn run(command: Command, cli: &clap::Command, file: &File, as_json: bool) -> Result<ExitCode> {
    let Command::Show = command;
    let shown = config::show(cli, file);
    if as_json {
        output::json(&shown)?;
    } else {
        output::table(
            ["setting", "value", "from"],
            shown.into_iter().map(|shown| [shown.setting, shown.value.unwrap_or_default(), shown.from]),
        );
    }
    Ok(ExitCode::SUCCESS)
}

//! `waybill resource …`: shows the profiles, tools, plans and settings of a project, and deletes profiles and tools.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};
use serde_json::json;
use waybill_core::id::Name;
use waybill_kernel::{audit, register, resource};

use crate::{
    connect::{self, Place},
    output,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List profiles, tools, plans, package types and the settings by name, with their versions.
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Show a profile, a tool, a plan or the settings of the project as JSON.
    Show {
        /// What to show.
        kind: Kind,
        /// The name of the profile, tool or plan. Not used for settings.
        name: Option<Name>,
        /// The version of a plan. If omitted, the newest.
        #[arg(long)]
        version: Option<i32>,
        #[command(flatten)]
        place: Place,
    },
    /// Delete a profile or a tool that is not in use: no open turn has the profile, and no other profile names it or may call the tool.
    ///
    /// Turns that have ended keep the version that they ran with.
    Delete {
        /// What to delete.
        kind: Deleted,
        /// The name of the profile or tool.
        name: Name,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Deleted {
    Profile,
    Tool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kind {
    Profile,
    Tool,
    Plan,
    Settings,
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::List { place } => {
            let mut work = place.begin().await?;
            let listed = resource::list(&mut work).await?;
            if as_json {
                output::json(&listed)?;
            } else {
                output::table(
                    ["kind", "name", "version", "target", "card_id", "updated_at"],
                    listed.into_iter().map(|row| {
                        let target = row.worker_target.map(|target| target.to_string()).unwrap_or_default();
                        [
                            row.kind.to_string(),
                            row.name.to_string(),
                            row.version.to_string(),
                            target,
                            output::id(&row.card_id),
                            output::time(row.updated_at),
                        ]
                    }),
                );
            }
        }
        Command::Show { kind, name, version, place } => {
            let mut work = place.begin().await?;
            let name = || name.as_ref().context("name what to show: `waybill resource list` lists the names");
            match kind {
                Kind::Profile => output::json(&resource::profile(&mut work, name()?).await?.profile)?,
                Kind::Tool => output::json(&resource::tool(&mut work, name()?).await?)?,
                Kind::Plan => output::json(&resource::plan(&mut work, name()?, version).await?.1)?,
                Kind::Settings => output::json(&resource::settings(&mut work).await?)?,
            }
        }
        Command::Delete { kind, name, place } => {
            let mut work = place.begin().await?;
            let (kind, target) = match kind {
                Deleted::Profile => (resource::Kind::Profile, register::remove_profile(&mut work, &name).await?),
                Deleted::Tool => (resource::Kind::Tool, register::remove(&mut work, &name, None).await?),
            };
            let subject = format!("{kind}/{name}");
            audit::record(&mut work, &connect::actor(), "resource.remove", &subject, &json!({ "target": target }))
                .await?;
            work.commit().await?;
            if as_json {
                output::json(&json!({ "kind": kind, "name": name }))?;
            } else {
                println!("deleted {kind} `{name}`");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

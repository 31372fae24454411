//! `waybill keys …`: manages the API keys of a project.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use clap::Subcommand;
use serde_json::json;
use waybill_core::{
    artifact::ArtifactPath,
    id::{KeyId, Name, Target},
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{
    audit,
    key::{self, Listed},
    work::UnitOfWork,
};

use crate::{
    connect::{self, Place},
    output,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a key. It is shown only once.
    Create {
        /// A name for the key, such as the program that uses it: `ci`, `billing-worker`.
        name: Name,
        /// What the key may do: admin (everything), operator (start and stop turns), worker (run turns), tool (answer tool calls), reader (read only),
        /// approver (decide requests), auditor (read the record, without content) or developer (apply profiles and tools).
        #[arg(long)]
        scope: Scope,
        #[command(flatten)]
        bounds: Bound,
        /// Days until it expires. If omitted, it works until it is revoked.
        #[arg(long, value_name = "DAYS")]
        days: Option<u32>,
        #[command(flatten)]
        place: Place,
    },
    /// Replace a key with a new one of the same name and rights. The old key still works for the number of hours in --hours.
    Rotate {
        /// The name of the key to replace.
        name: Name,
        /// How many hours the old key still works.
        #[arg(long, value_name = "HOURS", default_value_t = 24)]
        hours: u32,
        #[command(flatten)]
        place: Place,
    },
    /// List the keys of the project, without their secrets.
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Revoke a key at once.
    Revoke {
        /// The id of the key, as `waybill keys list` shows it.
        #[arg(value_name = "KEY")]
        key_id: KeyId,
        #[command(flatten)]
        place: Place,
    },
}

/// The bounds of a key, in addition to its scope.
#[derive(Debug, clap::Args)]
pub(crate) struct Bound {
    /// A target whose turns and calls the key may claim; can be repeated. The scopes worker, tool and developer need at least one.
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<Target>,
    /// An artifact path that the key may read and write, with all paths below it; can be repeated. If omitted, all artifacts; for a tool, none.
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<ArtifactPath>,
    /// A profile that the key may start turns of; can be repeated. If omitted, all profiles.
    #[arg(long = "profile", value_name = "PROFILE")]
    profiles: Vec<Name>,
    /// Treat everything that the key starts or stores as content from outside.
    #[arg(long)]
    external: bool,
}

impl From<Bound> for Bounds {
    fn from(Bound { targets, paths, profiles, external }: Bound) -> Bounds {
        Bounds { targets, paths, profiles, external }
    }
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Create { name, scope, bounds, days, place } => {
            let mut work = place.begin().await?;
            let lasts = days.map(|days| Duration::from_secs(u64::from(days) * 86_400));
            make(&mut work, &name, scope, &bounds.into(), lasts, "key.create").await?.print(work, as_json).await?;
        }
        Command::Rotate { name, hours, place } => {
            let mut work = place.begin().await?;
            let keys = key::list(&mut work, None, 10_000).await?;
            let now = chrono::Utc::now();
            let works = |key: &&Listed| {
                key.name == name && key.revoked_at.is_none() && key.expires_at.is_none_or(|at| at > now)
            };
            let old = keys.iter().rev().find(works).with_context(|| {
                format!("there is no valid key with the name `{name}`: `waybill keys list` lists the keys")
            })?;
            // The new key lasts as long as the old one did in total.
            let lasts = old.expires_at.and_then(|at| (at - old.created_at).to_std().ok());
            let made = make(&mut work, &name, old.scope, &old.bounds, lasts, "key.rotate").await?;
            let ended = key::revoke(&mut work, old.key_id, Duration::from_secs(u64::from(hours) * 3_600)).await?;
            let detail = json!({ "name": name, "expires_at": ended.expires_at, "revoked_at": ended.revoked_at });
            audit::record(&mut work, &connect::actor(), "key.end", &old.key_id.to_string(), &detail).await?;
            made.print(work, as_json).await?;
        }
        Command::List { place } => {
            let keys = key::list(&mut place.begin().await?, None, 10_000).await?;
            if as_json {
                output::json(&keys)?;
            } else {
                let at = |at: Option<chrono::DateTime<chrono::Utc>>| {
                    at.map(|at| at.format("%F %T").to_string()).unwrap_or_default()
                };
                output::table(
                    ["key", "name", "scope", "bounds", "created", "expires", "revoked"],
                    keys.into_iter().map(|key| {
                        [
                            key.key_id.to_string(),
                            key.name.to_string(),
                            key.scope.as_str().to_owned(),
                            said(&key.bounds),
                            at(Some(key.created_at)),
                            at(key.expires_at),
                            at(key.revoked_at),
                        ]
                    }),
                );
            }
        }
        Command::Revoke { key_id, place } => {
            let mut work = place.begin().await?;
            let revoked = key::revoke(&mut work, key_id, Duration::ZERO).await?;
            let detail = json!({ "name": revoked.name });
            audit::record(&mut work, &connect::actor(), "key.revoke", &key_id.to_string(), &detail).await?;
            work.commit().await?;
            if as_json {
                output::json(&revoked)?;
            } else {
                println!("revoked {} ({})", revoked.name, revoked.key_id);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes the bounds of a key in one line.
fn said(bounds: &Bounds) -> String {
    let list = |name: &str, values: Vec<String>| (!values.is_empty()).then(|| format!("{name} {}", values.join(", ")));
    let parts = [
        list("targets", bounds.targets.iter().map(Target::to_string).collect()),
        list("paths", bounds.paths.iter().map(ArtifactPath::to_string).collect()),
        list("profiles", bounds.profiles.iter().map(Name::to_string).collect()),
        bounds.external.then(|| "external".to_owned()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// A new key. It is shown after it is committed.
struct Made {
    listed: Listed,
    key: String,
}

async fn make(
    work: &mut UnitOfWork,
    name: &Name,
    scope: Scope,
    bounds: &Bounds,
    lasts: Option<Duration>,
    action: &str,
) -> Result<Made> {
    let made = ApiKey::mint("live");
    let listed = key::create(work, &made, name, scope, bounds, lasts).await?;
    let detail = json!({ "name": name, "scope": scope, "bounds": bounds, "expires_at": listed.expires_at });
    audit::record(work, &connect::actor(), action, &listed.key_id.to_string(), &detail).await?;
    Ok(Made { listed, key: made.expose().to_owned() })
}

impl Made {
    async fn print(self, work: UnitOfWork, as_json: bool) -> Result<()> {
        work.commit().await?;
        if as_json {
            output::json(&json!({ "key": self.key, "listed": self.listed }))
        } else {
            println!("{}", self.key);
            eprintln!("store the key now: it is not shown again");
            Ok(())
        }
    }
}

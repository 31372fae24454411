//! `waybill project …`

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Subcommand;
use waybill_core::id::ProjectId;
use waybill_kernel::{
    migrate,
    project::{self, Project},
};

use crate::{
    command::retention,
    connect::{Owner, Service, Storage},
    output,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a project.
    Create {
        /// The slug, a short name for people: 1 to 63 characters (a-z, 0-9 and `-`), beginning with a letter or digit.
        slug: String,
        #[command(flatten)]
        service: Service,
    },
    /// Delete a project and all its data for good: cards, boxes, turns, keys, audit. Needs --owner-url, and --artifacts to delete the artifacts too.
    Delete {
        /// The slug of the project.
        slug: String,
        /// The slug again, as a confirmation: this cannot be undone.
        #[arg(long, value_name = "SLUG")]
        yes: String,
        #[command(flatten)]
        storage: Storage,
        #[command(flatten)]
        service: Service,
        #[command(flatten)]
        owner: Owner,
    },
    /// List projects, ordered by slug.
    List {
        /// Continue after this slug. If omitted, start with the first.
        #[arg(long, default_value = "")]
        after: String,
        /// How many to list at most.
        #[arg(long, default_value_t = 100)]
        most: i32,
        #[command(flatten)]
        service: Service,
    },
    /// Show or set how long a project keeps content and record, and place or lift a legal hold.
    ///
    /// What becomes longer does so at once, what becomes shorter after seven days. Orchestrators remove what is no longer kept.
    Retention(retention::Arguments),
}

pub(crate) async fn run(command: Command, json: bool) -> Result<ExitCode> {
    let projects = match command {
        Command::Delete { slug, yes, storage, service, owner } => {
            ensure!(slug == yes, "--yes {yes} does not match: repeat the slug of the project, as in --yes {slug}");
            let kernel = service.kernel().await?;
            let project_id = project::find(&kernel, &slug).await?;
            let artifacts = storage.open(&kernel)?;
            let mut owner = migrate::connect_owner(&owner.owner_url).await?;
            let deleted = project::delete(&mut owner, project_id, |table, n| eprintln!("{table}: {n} rows")).await?;
            match artifacts {
                Some(artifacts) => {
                    let n = artifacts.store().delete_project(project_id).await?;
                    eprintln!("artifacts: {n} objects");
                }
                None => eprintln!(
                    "--artifacts is not set, so the objects below {} in the object store are not deleted",
                    project_id.simple()
                ),
            }
            if json {
                output::json(&serde_json::json!({ "project_id": project_id, "slug": slug, "deleted": deleted }))?;
            } else {
                println!("{slug} ({project_id}) is deleted: {} rows", deleted.values().sum::<u64>());
            }
            return Ok(ExitCode::SUCCESS);
        }
        Command::Retention(arguments) => return retention::run(arguments, json).await,
        Command::Create { slug, service } => {
            let project_id = ProjectId::new();
            let mut work = service.kernel().await?.begin(project_id).await?;
            project::create(&mut work, &slug).await?;
            work.commit().await?;
            vec![Project { project_id, slug }]
        }
        Command::List { after, most, service } => project::list(&service.kernel().await?, &after, most).await?,
    };
    if json {
        output::json(&projects)?;
    } else {
        output::table(["slug", "project_id"], projects.into_iter().map(|p| [p.slug, p.project_id.to_string()]));
    }
    Ok(ExitCode::SUCCESS)
}

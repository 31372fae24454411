//! `waybill project …`

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use waybill_core::id::ProjectId;
use waybill_kernel::project::{self, Project};

use crate::{connect::Service, output};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a project.
    Create {
        /// The name people use: a-z, 0-9 and `-`.
        slug: String,
        #[command(flatten)]
        service: Service,
    },
    /// List projects in the order of their slugs.
    List {
        /// Begin after this slug.
        #[arg(long, default_value = "")]
        after: String,
        /// How many at most.
        #[arg(long, default_value_t = 100)]
        most: i32,
        #[command(flatten)]
        service: Service,
    },
}

pub(crate) async fn run(command: Command, json: bool) -> Result<ExitCode> {
    let projects = match command {
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

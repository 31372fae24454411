//! `waybill apply`: applies profiles, tools, plans and settings from files.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::de::DeserializeOwned;
use waybill_core::resource::Manifest;
use waybill_kernel::{audit, resource};
use waybill_tool::check;
use waybill_worker::model::without_price;

use crate::{
    command::worker::Reached,
    connect::{self, Service, project_id},
    output,
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A YAML file, a folder of YAML files (`*.yaml`, `*.yml`), or `-` for standard input. Can be repeated. `---` separates documents in a file.
    #[arg(short = 'f', long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The project: its slug or its id.
    #[arg(long, env = "WAYBILL_PROJECT")]
    project: String,
    /// Check everything and show what would change, without changing it.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    models: Reached,
    #[command(flatten)]
    service: Service,
}

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    let manifests = read_all(&arguments.files)?;
    ensure!(
        !manifests.is_empty(),
        "found nothing to apply in {:?}: name YAML files, or folders that contain *.yaml or *.yml files",
        arguments.files
    );
    for manifest in &manifests {
        check::check_manifest(manifest).map_err(anyhow::Error::msg)?;
    }
    // Only the providers file knows which models have a price.
    let providers = arguments.models.providers.is_some().then(|| arguments.models.read()).transpose()?;
    for manifest in &manifests {
        let (Manifest::Profile(profile), Some(installation)) = (manifest, &providers) else { continue };
        // A summariser that was applied earlier is checked by `waybill doctor`.
        let summariser = manifests.iter().find_map(|manifest| match manifest {
            Manifest::Profile(other) if Some(&other.name) == profile.summariser.as_ref() => Some(&**other),
            _ => None,
        });
        for model in without_price(&installation.providers, profile, summariser) {
            eprintln!(
                "warning: profile `{}` has a cost limit and uses {model}, which has no price in the providers file: its turns will end \
                 with `no_price`. Add a price there, or 0 if the model is free.",
                profile.name
            );
        }
    }
    let kernel = arguments.service.kernel().await?;
    let mut work = kernel.begin(project_id(&kernel, &arguments.project).await?).await?;
    let applied = resource::apply(&mut work, &manifests).await?;
    if !arguments.dry_run {
        audit::applied(&mut work, &connect::actor(), &applied).await?;
        work.commit().await?;
    }
    if as_json {
        output::json(&applied)?;
    } else {
        let change = |change| serde_json::to_value(change).ok().and_then(|word| word.as_str().map(str::to_owned));
        output::table(
            ["kind", "name", "version", "change"],
            applied.iter().map(|a| {
                [a.kind.to_string(), a.name.to_string(), a.version.to_string(), change(a.change).unwrap_or_default()]
            }),
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn read_all(files: &[PathBuf]) -> Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for file in files {
        if file == Path::new("-") {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            manifests.extend(parse("standard input", &text)?);
        } else if file.is_dir() {
            let mut inside: Vec<PathBuf> = fs::read_dir(file)
                .with_context(|| format!("cannot read {}", file.display()))?
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<io::Result<_>>()?;
            inside.retain(|path| path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml"));
            inside.sort();
            manifests.extend(read_all(&inside)?);
        } else {
            let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            manifests.extend(parse(&file.display().to_string(), &text)?);
        }
    }
    Ok(manifests)
}

/// Parses YAML documents. Every error names the file, line and field. None shows the line itself, which may hold a key by mistake.
pub(crate) fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<Vec<T>> {
    serde_saphyr::from_multiple(text).map_err(|error| {
        let said = error.without_snippet().to_string();
        anyhow::anyhow!("{name}: {}", said.strip_prefix("error: ").unwrap_or(&said))
    })
}

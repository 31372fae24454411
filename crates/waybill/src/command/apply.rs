//! `waybill apply`: applies profiles, tools, plans and settings from files.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::de::DeserializeOwned;
use waybill_core::{id::Name, resource::Manifest};
use waybill_kernel::{
    audit,
    resource::{self, Kind},
    work::UnitOfWork,
};
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
    #[arg(required_unless_present = "named", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The same as FILE.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    named: Vec<PathBuf>,
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
    let files = [arguments.named, arguments.files].concat();
    let manifests = read_all(&files)?;
    ensure!(
        !manifests.is_empty(),
        "found nothing to apply in {}: name YAML files, or folders that contain *.yaml or *.yml files",
        files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
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
    let unknown = unknown_targets(&mut work, &manifests).await?;
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
    for (profile, target) in unknown {
        eprintln!(
            "warning: profile `{profile}` may delegate to `{target}`, which is not a profile of this project: correct the name in \
             `delegation_policy.target_profiles`, or apply a profile with this name"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the profiles that may delegate to a profile that the project does not have, each with the name that it gives. Reads what was just applied too.
async fn unknown_targets<'a>(work: &mut UnitOfWork, manifests: &'a [Manifest]) -> Result<Vec<(&'a Name, &'a Name)>> {
    let mut named: Vec<(&Name, &Name)> = Vec::new();
    for manifest in manifests {
        if let Manifest::Profile(profile) = manifest {
            named.extend(profile.delegation_policy.target_profiles.iter().map(|target| (&profile.name, target)));
        }
    }
    if !named.is_empty() {
        let listed = resource::list(work).await?;
        let known: BTreeSet<Name> =
            listed.into_iter().filter(|listed| listed.kind == Kind::Profile).map(|listed| listed.name).collect();
        named.retain(|(_, target)| !known.contains(*target));
    }
    Ok(named)
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
        let error = error.without_snippet();
        let said = error.to_string();
        let said = said.strip_prefix("error: ").unwrap_or(&said);
        match error {
            serde_saphyr::Error::Unexpected { .. } => match field(error, text) {
                Some(field) => anyhow::anyhow!("{name}: `{field}`: {said}"),
                None => anyhow::anyhow!("{name}: {said}"),
            },
            serde_saphyr::Error::SerdeUnknownVariant { variant, expected, .. } => {
                anyhow::anyhow!("{name}: {said}{}", elsewhere(variant, expected))
            }
            _ => anyhow::anyhow!("{name}: {said}"),
        }
    })
}

/// Returns the field whose value the error is about, if the value stands on the same line.
fn field<'a>(error: &serde_saphyr::Error, text: &'a str) -> Option<&'a str> {
    let place = error.location()?;
    let line = text.lines().nth(usize::try_from(place.line()).ok()?.checked_sub(1)?)?;
    let column = usize::try_from(place.column()).ok()?.checked_sub(1)?;
    let end = line.char_indices().nth(column).map_or(line.len(), |(at, _)| at);
    let before = line[..end].trim_end().strip_suffix(':')?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    before.rsplit(|c: char| !is_word(c)).next().filter(|field| !field.is_empty())
}

/// Says where a document belongs that stands in the wrong file: the operator's file, or one that is applied.
fn elsewhere(variant: &str, expected: &[&str]) -> &'static str {
    let (is_applied, is_operators) = (expected.contains(&"profile"), expected.contains(&"provider"));
    match variant {
        "provider" | "egress" | "mcp_server" if is_applied => {
            ". This document belongs in the operator's file: `waybill dev --providers FILE` or `waybill worker --providers FILE`"
        }
        "profile" | "tool" | "plan" | "handoff_type" | "settings" if is_operators => {
            ". This document belongs in a file for `waybill apply`"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// An error names the field, or the file in which a document belongs, and never shows a value.
    #[test]
    fn a_mistake_is_named() {
        let said = |text: &str| parse::<Manifest>("team.yaml", text).unwrap_err().to_string();
        let profile = "profile:\n  name: clerk\n  worker_target: llm\n  system_prompt_template: Hello.\n";
        let list = said(&format!("{profile}  allowed_tools: stock\n"));
        assert!(list.starts_with("team.yaml: `allowed_tools`: expected") && list.contains("line 5"), "{list}");
        assert!(!list.contains("stock"), "{list}");
        for operators in ["provider: {name: mine}", "egress: {}", "mcp_server: {name: web}"] {
            let wrong = said(operators);
            assert!(wrong.contains("unknown variant") && wrong.contains("--providers"), "{wrong}");
        }
        let neither = said("profil: {}");
        assert!(neither.contains("unknown variant `profil`") && !neither.contains("--providers"), "{neither}");
    }
}

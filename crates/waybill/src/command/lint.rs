//! `waybill lint`

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use waybill_context::lint::{Finding, lint};

use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Requests or transcripts, as JSON or JSONL; a folder for all `.json` and `.jsonl` files in it; `-` for standard input.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Found {
    file: String,
    #[serde(flatten)]
    finding: Finding,
}

pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<ExitCode> {
    let mut found = Vec::new();
    for file in arguments.files.iter().map(|path| expand(path)).collect::<Result<Vec<_>>>()?.into_iter().flatten() {
        let text = read(&file)?;
        let name = file.display().to_string();
        let findings = lint(&text).with_context(|| format!("{name} cannot be checked"))?;
        found.extend(findings.into_iter().map(|finding| Found { file: name.clone(), finding }));
    }
    if json {
        found.iter().try_for_each(output::json)?;
    } else if !found.is_empty() {
        output::table(
            ["file", "request", "message", "rule", "what"],
            found.iter().map(|found| {
                let Finding { rule, request, message, what } = &found.finding;
                [found.file.clone(), request.to_string(), message.to_string(), rule.to_string(), what.clone()]
            }),
        );
    }
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Expands a folder to the files in it, ordered by name.
fn expand(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|end| end == "json" || end == "jsonl"))
        .collect();
    ensure!(!files.is_empty(), "folder {} contains no .json or .jsonl file", path.display());
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

//! Another build beside this one: both run the same benchmark, alternately, and what is compared is turns a second.

use std::{collections::BTreeMap, path::Path, process::Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tokio::process::Command;

use super::{median, progress};
use crate::figure::{Bar, Figure};

/// How often each build is run.
const ROUNDS: usize = 2;

/// A figure as `--json` prints it.
#[derive(Deserialize)]
struct Printed {
    figure: String,
    value: f64,
    unit: String,
}

/// Runs a benchmark of this build and of another. `other` is its program, with arguments if it needs some before `bench`.
pub async fn run(other: &str, benchmark: &[String]) -> Result<Vec<Figure>> {
    let own = std::env::current_exe()?;
    let mut words = other.split_whitespace();
    let program = words.next().context("--against: name the program of another build")?;
    let builds = [(own.as_path(), Vec::new()), (Path::new(program), words.collect::<Vec<&str>>())];
    let mut rates: BTreeMap<String, [Vec<f64>; 2]> = BTreeMap::new();
    let bar = progress("this build and the other", 2 * ROUNDS as u64);
    for _ in 0..ROUNDS {
        for (build, (program, arguments)) in builds.iter().enumerate() {
            for printed in measure(program, arguments, benchmark).await? {
                rates.entry(printed.figure).or_default()[build].push(printed.value);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut figures = Vec::new();
    for (figure, [ours, theirs]) in rates {
        // Of figures that only one of them has, there is nothing to compare.
        if !ours.is_empty() && !theirs.is_empty() {
            let ratio = median(ours) / median(theirs);
            figures.push(Figure::new(format!("this build ÷ the other: {figure}"), ratio, "ratio", Bar::None));
        }
    }
    ensure!(!figures.is_empty(), "the other build has none of these figures");
    Ok(figures)
}

async fn measure(program: &Path, arguments: &[&str], benchmark: &[String]) -> Result<Vec<Printed>> {
    let mut command = Command::new(program);
    command.args(arguments).arg("bench").args(benchmark).arg("--json");
    // One that falls short of a bar exits with 1, and has printed its figures.
    let started = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true).spawn();
    let started = started.with_context(|| format!("cannot start {}", program.display()))?;
    let ran = started.wait_with_output().await?;
    let printed = String::from_utf8_lossy(&ran.stdout);
    let figures: Vec<Printed> = printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    ensure!(!figures.is_empty(), "{} printed no figures", program.display());
    Ok(figures.into_iter().filter(|printed| printed.unit == "turns/s").collect())
}

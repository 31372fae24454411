//! `waybill import`: puts the model calls of logs on record.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use waybill_api::{ImportError, Importer, Put};
use waybill_core::{error::causes, id::TurnId};

use crate::{connect::Place, output};

mod claude_code;
mod logs;

/// How many unreadable calls are shown.
const SHOWN: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Files with model calls, or folders of `*.jsonl` and `*.json` files. Read are: calls as JSON lines (`{"request":…,"answer":…}`), transcripts of Claude
    /// Code, and exports of Langfuse and Helicone.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    place: Place,
}

/// What became of the calls.
#[derive(Default)]
struct Done {
    n_recorded: usize,
    n_known: usize,
    turns: BTreeSet<TurnId>,
    /// Files of folders without a call.
    n_empty: usize,
    /// Where they are, and why they cannot be read.
    unread: Vec<(String, String)>,
}

impl Done {
    fn n_calls(&self) -> usize {
        self.n_recorded + self.n_known
    }
}

pub(crate) async fn run(arguments: Arguments, as_json: bool) -> Result<ExitCode> {
    let files = found(&arguments.files)?;
    let (kernel, project_id) = arguments.place.open().await?;
    let importer = Importer::new(kernel, project_id, "import".to_owned());
    let n_bytes = files.iter().map(|file| fs::metadata(file).map_or(0, |file| file.len())).sum();
    let bar = output::bytes_bar(n_bytes);
    let mut done = Done::default();
    let mut stopped = Ok(());
    for file in &files {
        bar.set_message(name(file));
        stopped = put_file(&importer, file, arguments.files.contains(file), &mut done, &bar).await;
        if stopped.is_err() {
            break;
        }
    }
    bar.finish_and_clear();
    say(&done, files.len(), as_json)?;
    stopped?;
    Ok(if done.unread.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the files, those of folders in the order of their names, transcripts of sub-agents last: by then the agents that asked for them are known.
fn found(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in named {
        let n_before = files.len();
        collect(path, true, &mut files).with_context(|| format!("{} cannot be read", path.display()))?;
        ensure!(files.len() > n_before, "{} has no *.jsonl or *.json file", path.display());
    }
    Ok(files)
}

fn collect(path: &Path, is_named: bool, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        let entries: io::Result<Vec<PathBuf>> = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect();
        let mut entries = entries?;
        let is_agent =
            |entry: &PathBuf| entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with("agent-"));
        entries.sort_by_key(|entry| (entry.is_dir(), is_agent(entry), entry.clone()));
        for entry in entries {
            // What a link leads to may be this folder.
            if !(entry.is_symlink() && entry.is_dir()) {
                collect(&entry, false, files)?;
            }
        }
    } else if is_named || path.extension().is_some_and(|end| end == "jsonl" || end == "json") {
        files.push(path.to_owned());
    }
    Ok(())
}

fn name(file: &Path) -> String {
    file.file_name().map(|name| output::printable(&name.to_string_lossy())).unwrap_or_default()
}

/// Imports a file. An error means that nothing can be written at the moment; what cannot be read is noted.
async fn put_file(importer: &Importer, file: &Path, is_named: bool, done: &mut Done, bar: &ProgressBar) -> Result<()> {
    let shown = output::printable(&file.display().to_string());
    let read = match fs::read(file) {
        Ok(read) => read,
        Err(error) => {
            done.unread.push((shown, error.to_string()));
            return Ok(());
        }
    };
    let n_bytes = u64::try_from(read.len()).unwrap_or_default();
    let read = match String::from_utf8(read) {
        Ok(read) => read,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    };
    let log: String = name(file).chars().take(200).collect();
    let before = bar.position();
    let (n_before, mut unread) = (done.n_calls(), Vec::new());
    for (share, call) in logs::calls(&read, &log) {
        bar.set_position(before + (share * n_bytes as f64) as u64);
        let (at, call) = match call {
            Ok((at, call)) => (at, call),
            Err((at, why)) => {
                unread.push((format!("{shown}:{at}"), why));
                continue;
            }
        };
        match importer.put(call).await {
            Ok(Put::Recorded(turn_id)) => {
                done.n_recorded += 1;
                done.turns.insert(turn_id);
            }
            Ok(Put::Known) => done.n_known += 1,
            Err(error @ ImportError::Unwritten(_)) => {
                return Err(error).with_context(|| format!("{shown}:{at} could not be imported"));
            }
            Err(error) => unread.push((format!("{shown}:{at}"), causes(&error))),
        }
    }
    bar.set_position(before + n_bytes);
    if done.n_calls() > n_before {
        done.unread.extend(unread);
    } else if is_named {
        let why = unread.into_iter().next();
        done.unread.push(why.unwrap_or_else(|| (shown, "there is no model call in it".to_owned())));
    } else {
        done.n_empty += 1;
    }
    Ok(())
}

fn say(done: &Done, n_files: usize, as_json: bool) -> Result<()> {
    let Done { n_recorded, n_known, turns, n_empty, unread } = done;
    if as_json {
        let unread: Vec<_> = unread.iter().map(|(at, why)| json!({ "at": at, "why": why })).collect();
        return output::json(
            &json!({ "recorded": n_recorded, "known": n_known, "turns": turns, "files_without_calls": n_empty, "unread": unread }),
        );
    }
    let (calls, files) = (count(*n_recorded, "call"), count(n_files, "file"));
    println!("Imported {calls} from {files}, in {}.", count(turns.len(), "turn"));
    if *n_known > 0 {
        println!("Imported before: {}.", count(*n_known, "call"));
    }
    if *n_empty > 0 {
        println!("Without a model call: {}.", count(*n_empty, "file"));
    }
    for (at, why) in unread.iter().take(SHOWN) {
        println!("Not read: {at}: {}", output::printable(why));
    }
    if unread.len() > SHOWN {
        println!("Not read: {} more", unread.len() - SHOWN);
    }
    if !turns.is_empty() {
        println!("Look: waybill turn list, or the console.");
    }
    Ok(())
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

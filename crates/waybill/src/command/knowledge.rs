//! `waybill knowledge`: manages the documents of a project, and the results that it publishes as experience.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Subcommand, ValueEnum};
use serde_json::json;
use waybill_core::{artifact::ArtifactPath, id::TurnId, resource::Shelf};
use waybill_kernel::{knowledge, resource};
use waybill_orchestrator::knowledge::{Applied, apply, publish, remove};
use waybill_worker::knowledge as librarian;

use crate::{
    command::worker::Reached,
    connect::{self, Place},
    named::Named,
    output,
};

/// What to search: documents, or published results of earlier turns.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Kind {
    #[default]
    Knowledge,
    Experience,
}

impl From<Kind> for knowledge::Kind {
    fn from(kind: Kind) -> knowledge::Kind {
        match kind {
            Kind::Knowledge => knowledge::Kind::Knowledge,
            Kind::Experience => knowledge::Kind::Experience,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add or update documents: Markdown or plain text, or folders of them. Unchanged documents stay as they are.
    Put {
        /// Files, or folders that contain `*.md` and `*.txt` files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Folder of the project to store them in, each under its own name. If omitted, the top level.
        #[arg(long, value_name = "FOLDER")]
        below: Option<ArtifactPath>,
        /// Mark them as content from outside: a turn that sees them may need an approval for some tools.
        #[arg(long)]
        external: bool,
        #[command(flatten)]
        place: Place,
    },
    /// List documents by path.
    List {
        /// `knowledge` for documents, `experience` for published results of earlier turns.
        #[arg(long, value_enum, default_value_t)]
        kind: Kind,
        /// How many to list at most.
        #[arg(long, default_value_t = 1000)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
    /// Remove a document, so that searches no longer find it.
    Remove {
        /// The path of the document.
        path: ArtifactPath,
        /// `knowledge` for documents, `experience` for published results of earlier turns.
        #[arg(long, value_enum, default_value_t)]
        kind: Kind,
        #[command(flatten)]
        place: Place,
    },
    /// Search for passages, as an agent does.
    Search {
        /// What to search for.
        question: String,
        /// Folder whose documents are searched; can be repeated.
        #[arg(long = "below", required = true, value_name = "FOLDER")]
        below: Vec<ArtifactPath>,
        /// `knowledge` for documents, `experience` for published results of earlier turns.
        #[arg(long, value_enum, default_value_t)]
        kind: Kind,
        /// How many passages to return at most.
        #[arg(long, default_value_t = 5)]
        most: usize,
        #[command(flatten)]
        reached: Reached,
        #[command(flatten)]
        place: Place,
    },
    /// Publish the result of a turn as experience, so that agents can find it when they search.
    Publish {
        /// The turn whose result is published.
        turn: Named<TurnId>,
        /// The path to publish it under.
        path: ArtifactPath,
        /// The title of the document.
        #[arg(long, default_value = "")]
        title: String,
        #[command(flatten)]
        place: Place,
    },
    /// Compute embedding vectors for documents that have none, with the model under `embedding` in the settings of the project.
    Embed {
        #[command(flatten)]
        reached: Reached,
        #[command(flatten)]
        place: Place,
    },
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Put { files, below, external, place } => put(&files, below.as_ref(), external, &place, as_json).await,
        Command::List { kind, most, place } => {
            let listed = knowledge::list(&mut place.begin().await?, kind.into(), "", most).await?;
            if as_json {
                output::json(&listed)?;
                return Ok(ExitCode::SUCCESS);
            }
            output::table(
                ["path", "version", "chunks", "tokens", "vectors", "title"],
                listed.iter().map(|one| {
                    let vectors = one.embedded_by.clone().unwrap_or_else(|| "none".to_owned());
                    [
                        one.path.to_string(),
                        one.version.to_string(),
                        one.n_chunks.to_string(),
                        one.n_tokens.to_string(),
                        vectors,
                        output::preview(&one.title, 60),
                    ]
                }),
            );
            Ok(ExitCode::SUCCESS)
        }
        Command::Remove { path, kind, place } => {
            let mut work = place.begin().await?;
            let kind = knowledge::Kind::from(kind);
            remove(&mut work, kind, &path, &connect::actor()).await?;
            work.commit().await?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Search { question, below, kind, most, reached, place } => {
            let (kernel, project_id) = place.open().await?;
            let shelf = Shelf { folders: below.into_iter().collect(), block_tokens: None };
            let models = reached.read()?.models();
            let query = librarian::Query { kind: kind.into(), shelf: &shelf, question: &question, most };
            let answer = librarian::search(&kernel, &models, project_id, &query).await?;
            if as_json {
                output::json(&json!({ "found": answer.found, "how": answer.how }))?;
            } else {
                println!(
                    "{} passages, found by {}\n\n{}",
                    answer.found.len(),
                    answer.how,
                    librarian::render(&answer.found)
                );
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Publish { turn, path, title, place } => {
            let mut work = place.begin().await?;
            let turn_id = turn.find(&mut work).await?;
            let published = publish(&mut work, turn_id, &path, (&title, false), &connect::actor()).await?;
            work.commit().await?;
            tell(&[published], as_json)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Embed { reached, place } => {
            let (kernel, project_id) = place.open().await?;
            let mut work = kernel.begin(project_id).await?;
            if resource::settings(&mut work).await?.embedding.is_none() {
                bail!(
                    "the project has no embedding model: apply a manifest with `settings: {{embedding: {{provider: NAME, model: MODEL}}}}`"
                );
            }
            if !knowledge::has_vectors(&mut work).await? {
                eprintln!("note: {}", knowledge::Error::NoVectors);
            }
            drop(work);
            let models = reached.read()?.models();
            let (mut n_documents, mut n_chunks) = (0, 0);
            while let Some(n) = librarian::embed_next(&kernel, &models, project_id).await? {
                (n_documents, n_chunks) = (n_documents + 1, n_chunks + n);
                eprintln!("{n_documents} documents, {n_chunks} chunks");
            }
            if as_json {
                output::json(&json!({ "n_documents": n_documents, "n_chunks": n_chunks }))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn put(
    files: &[PathBuf],
    below: Option<&ArtifactPath>,
    is_external: bool,
    place: &Place,
    as_json: bool,
) -> Result<ExitCode> {
    let mut found = Vec::new();
    for file in files {
        walk(file, &mut found)?;
    }
    let (kernel, project_id) = place.open().await?;
    let mut done = Vec::new();
    for (name, file) in &found {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = below.map_or_else(|| name.clone(), |below| format!("{below}/{name}"));
        let path: ArtifactPath = name.parse().with_context(|| format!("cannot store {}", file.display()))?;
        let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default().trim();
        let mut work = kernel.begin(project_id).await?;
        let applied = Applied { path: &path, title, text: &text, is_external };
        let applied = apply(&mut work, applied, &connect::actor()).await;
        done.push(applied.with_context(|| format!("cannot store {}", file.display()))?);
        work.commit().await?;
        if done.len() % 100 == 0 {
            eprintln!("{} of {}", done.len(), found.len());
        }
    }
    tell(&done, as_json)?;
    Ok(ExitCode::SUCCESS)
}

/// Collects a file under its name, or the files of a folder under their paths relative to it.
fn walk(file: &std::path::Path, found: &mut Vec<(String, PathBuf)>) -> Result<()> {
    let is_text = |path: &std::path::Path| path.extension().is_some_and(|ending| ending == "md" || ending == "txt");
    if !file.is_dir() {
        let name = file
            .file_name()
            .and_then(|name| name.to_str())
            .context("the path does not end with a file name in UTF-8")?;
        found.push((name.to_owned(), file.to_owned()));
        return Ok(());
    }
    let mut open = vec![file.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if is_text(&path) {
                let name = path
                    .strip_prefix(file)
                    .unwrap_or(&path)
                    .to_str()
                    .context("the name of a file is not UTF-8: rename it")?;
                found.push((name.to_owned(), path.clone()));
            }
        }
    }
    found.sort();
    Ok(())
}

fn tell(done: &[(knowledge::Document, bool)], as_json: bool) -> Result<()> {
    if as_json {
        let said: Vec<_> = done.iter().map(|(one, changed)| json!({ "document": one, "changed": changed })).collect();
        return output::json(&said);
    }
    output::table(
        ["path", "version", "chunks", "change"],
        done.iter().map(|(one, changed)| {
            let change = if *changed { "changed" } else { "unchanged" };
            [one.path.to_string(), one.version.to_string(), one.n_chunks.to_string(), change.to_owned()]
        }),
    );
    Ok(())
}

//! `waybill artifact …`

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use waybill_artifact::{Artifacts, Put};
use waybill_core::{artifact::ArtifactPath, id::ProjectId};
use waybill_kernel::{
    artifact::{self, Artifact, Remove, Which},
    audit,
};

use crate::{
    connect::{self, Place, Storage},
    output,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Store a file, or all files of a folder. Storing the same content again makes no new version.
    Put {
        /// The file or folder to store, or `-` for standard input.
        file: PathBuf,
        /// The path to store it under. If omitted, the name of the file or folder. Required for standard input.
        path: Option<ArtifactPath>,
        /// The media type, such as `application/json`. If omitted, it is derived from the file name.
        #[arg(long, value_name = "TYPE")]
        media_type: Option<String>,
        /// Mark it as content from outside: a turn that reads it may need an approval for some tools.
        #[arg(long)]
        external: bool,
        #[command(flatten)]
        storage: Storage,
        #[command(flatten)]
        place: Place,
    },
    /// Fetch an artifact, or all artifacts below a folder, and verify the content.
    Get {
        /// The path of the artifact or folder.
        path: ArtifactPath,
        /// The file to write to, or the folder if PATH is a folder. `-` for standard output.
        #[arg(default_value = "-")]
        to: PathBuf,
        /// The version to fetch. If omitted, the newest.
        #[arg(long)]
        version: Option<i32>,
        #[command(flatten)]
        storage: Storage,
        #[command(flatten)]
        place: Place,
    },
    /// List the artifacts below a prefix, each with its newest version.
    List {
        /// Only paths that begin with this. If omitted, all.
        #[arg(default_value = "")]
        prefix: String,
        /// Continue after this path. If omitted, start with the first.
        #[arg(long, default_value = "")]
        after: String,
        /// How many to list at most.
        #[arg(long, default_value_t = 1000)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
    /// List the versions of an artifact, newest first.
    Versions {
        /// The path of the artifact.
        path: ArtifactPath,
        /// Continue after this version, with older ones. If omitted, start with the newest.
        #[arg(long)]
        after: Option<i32>,
        /// How many to list at most.
        #[arg(long, default_value_t = 1000)]
        most: i64,
        #[command(flatten)]
        place: Place,
    },
    /// Remove an artifact, so that it is no longer found by its path. Agents that were handed a version of it can still read that version.
    Remove {
        /// The path of the artifact.
        path: ArtifactPath,
        /// Remove all versions except the newest. If omitted, all versions are removed.
        #[arg(long)]
        older: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Release the storage of removed versions that no card refers to any more.
    ///
    /// The orchestrator deletes their content from the object store after a grace period of one hour.
    Collect {
        #[command(flatten)]
        place: Place,
    },
    /// Show how many bytes the project stores, and its quota.
    Usage {
        #[command(flatten)]
        place: Place,
    },
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Put { file, path, media_type, external, storage, place } => {
            let (kernel, project_id) = place.open().await?;
            let artifacts = storage.need(&kernel)?;
            let mut stored = Vec::new();
            for (file, path) in sources(&file, path)? {
                stored.push(put(&artifacts, project_id, &file, &path, media_type.as_deref(), external).await?);
            }
            show(&stored, as_json)?;
        }
        Command::Get { path, to, version, storage, place } => {
            let (kernel, project_id) = place.open().await?;
            let artifacts = storage.need(&kernel)?;
            let mut work = connect::begin(&kernel, project_id).await?;
            let which = version.map_or(Which::Newest, Which::Version);
            if artifact::find(&mut work, &path, which).await?.is_some() {
                get(&artifacts, project_id, &path, which, &to).await?;
                return Ok(ExitCode::SUCCESS);
            }
            let below = artifact::list(&mut work, &format!("{path}/"), "", i64::MAX).await?;
            drop(work);
            if below.is_empty() {
                bail!("there is no artifact {path}, and no artifact below a folder of that name");
            }
            ensure!(
                to != Path::new("-"),
                "{path} is a folder with {} artifacts: also name a local folder to write them to",
                below.len()
            );
            for one in &below {
                let name = one.path.as_str().strip_prefix(path.as_str()).unwrap_or_default().trim_start_matches('/');
                get(&artifacts, project_id, &one.path, Which::Newest, &to.join(name)).await?;
            }
            show(&below, as_json)?;
        }
        Command::List { prefix, after, most, place } => {
            show(&artifact::list(&mut place.begin().await?, &prefix, &after, most).await?, as_json)?;
        }
        Command::Versions { path, after, most, place } => {
            let versions = artifact::versions(&mut place.begin().await?, &path, after, most).await?;
            ensure!(!versions.is_empty() || after.is_some(), "there is no artifact {path}");
            show(&versions, as_json)?;
        }
        Command::Remove { path, older, place } => {
            let mut work = place.begin().await?;
            let which = if older { Remove::Older } else { Remove::All };
            let n_removed = artifact::remove(&mut work, &path, which).await?;
            ensure!(n_removed > 0 || older, "there is no artifact {path}");
            let n_collected = artifact::collect(&mut work, 1_000).await?;
            let detail = serde_json::json!({ "n_removed": n_removed });
            audit::record(&mut work, &connect::actor(), "artifact.remove", path.as_str(), &detail).await?;
            work.commit().await?;
            if as_json {
                output::json(&serde_json::json!({ "n_removed": n_removed, "n_collected": n_collected }))?;
            } else {
                println!("{n_removed} versions removed; {n_collected} that no card refers to released");
            }
        }
        Command::Collect { place } => {
            let mut work = place.begin().await?;
            let n_collected = artifact::collect(&mut work, i32::MAX).await?;
            work.commit().await?;
            if as_json {
                output::json(&serde_json::json!({ "n_collected": n_collected }))?;
            } else {
                println!("{n_collected} versions released");
            }
        }
        Command::Usage { place } => {
            let usage = artifact::usage(&mut place.begin().await?).await?;
            if as_json {
                output::json(&usage)?;
            } else {
                println!("{} of {} bytes", usage.bytes, usage.quota);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(artifacts: &[Artifact], as_json: bool) -> Result<()> {
    if as_json {
        return output::json(artifacts);
    }
    let tokens = |one: &Artifact| {
        let about = if one.is_estimate { "~" } else { "" };
        one.n_tokens.map_or_else(String::new, |n| format!("{about}{n}"))
    };
    output::table(
        ["path", "version", "type", "bytes", "tokens", "hash"],
        artifacts.iter().map(|one| {
            let hash = one.hash.to_string()[..12].to_owned();
            let (version, size) = (one.version.to_string(), one.size.to_string());
            [one.path.to_string(), version, one.media_type.clone(), size, tokens(one), hash]
        }),
    );
    Ok(())
}

/// Returns what to store under which path: one file, or all files of a folder. Links are not followed.
fn sources(file: &Path, path: Option<ArtifactPath>) -> Result<Vec<(PathBuf, ArtifactPath)>> {
    let name = || file.file_name().and_then(|name| name.to_str()).unwrap_or_default().parse::<ArtifactPath>();
    if file == Path::new("-") {
        return Ok(vec![(
            file.to_owned(),
            path.context("a path is required to store standard input: waybill artifact put - PATH")?,
        )]);
    }
    let root = path.map_or_else(name, Ok)?;
    if !file.is_dir() {
        return Ok(vec![(file.to_owned(), root)]);
    }
    let (mut found, mut left) = (Vec::new(), vec![(file.to_owned(), root)]);
    while let Some((folder, below)) = left.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let name = name
                .to_str()
                .with_context(|| format!("the name of {} is not UTF-8: rename it", entry.path().display()))?;
            let (kind, path) = (entry.file_type()?, below.join(name)?);
            if kind.is_dir() {
                left.push((entry.path(), path));
            } else if kind.is_file() {
                found.push((entry.path(), path));
            } else {
                eprintln!("{}: skipped, because it is neither a file nor a folder", entry.path().display());
            }
        }
    }
    found.sort();
    Ok(found)
}

async fn put(
    artifacts: &Artifacts,
    project_id: ProjectId,
    file: &Path,
    path: &ArtifactPath,
    media_type: Option<&str>,
    is_external: bool,
) -> Result<Artifact> {
    let actor = connect::actor();
    let put = Put { path, media_type, author_id: Some(&actor), is_external };
    if file == Path::new("-") {
        return Ok(artifacts.put(project_id, put, content(tokio::io::stdin())).await?);
    }
    let opened = tokio::fs::File::open(file).await.with_context(|| format!("cannot read {}", file.display()))?;
    let bar = bar(opened.metadata().await?.len(), path);
    let content = content(opened).inspect_ok(|bytes| bar.inc(bytes.len() as u64));
    let stored = artifacts.put(project_id, put, content).await;
    bar.finish_and_clear();
    Ok(stored?)
}

/// Returns a progress bar, hidden for small content.
fn bar(size: u64, path: &ArtifactPath) -> indicatif::ProgressBar {
    if size < 64 << 20 {
        return indicatif::ProgressBar::hidden();
    }
    output::bytes_bar(size).with_message(path.to_string())
}

/// Turns a reader into a stream of portions.
pub(crate) fn content(
    reader: impl AsyncRead + Send + Unpin + 'static,
) -> impl Stream<Item = std::io::Result<bytes::Bytes>> + Send {
    stream::try_unfold(reader, |mut reader| async move {
        let mut portion = bytes::BytesMut::with_capacity(1 << 18);
        let n = reader.read_buf(&mut portion).await?;
        Ok((n > 0).then(|| (portion.freeze(), reader)))
    })
    .boxed()
}

async fn get(artifacts: &Artifacts, project_id: ProjectId, path: &ArtifactPath, which: Which, to: &Path) -> Result<()> {
    let found = artifacts.find(project_id, path, which).await?;
    let mut content = artifacts.read(project_id, &found, 0..found.stored.size);
    if to == Path::new("-") {
        while let Some(bytes) = content.try_next().await? {
            output::bytes(&bytes);
        }
        return Ok(());
    }
    if let Some(folder) = to.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        tokio::fs::create_dir_all(folder).await.with_context(|| format!("cannot create {}", folder.display()))?;
    }
    // The file gets its name only when it is complete.
    let begun =
        to.with_file_name(format!(".{}.part", to.file_name().and_then(|name| name.to_str()).unwrap_or("artifact")));
    let mut file =
        tokio::fs::File::create(&begun).await.with_context(|| format!("cannot write {}", begun.display()))?;
    let bar = bar(found.stored.size, path);
    while let Some(bytes) = content.try_next().await? {
        file.write_all(&bytes).await?;
        bar.inc(bytes.len() as u64);
    }
    file.flush().await?;
    bar.finish_and_clear();
    tokio::fs::rename(&begun, to).await.with_context(|| format!("cannot write {}", to.display()))
}

//! Artifacts, as an agent reads and writes them (HO-8): those that it was handed, that it wrote, and that its profile names. Each answer
//! says how many tokens it cost.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::TryStreamExt;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use waybill_artifact::{Artifacts, Error, Put};
use waybill_context::handoff::{
    self,
    load::{self, Part},
    plan::{self, ADVISED, Priority},
};
use waybill_core::{
    artifact::{ArtifactPath, Pins},
    card::{Card, Content},
    error::causes,
    id::{Name, ProjectId, TurnId},
    json,
    tokens::{self, Tokens},
};
use waybill_kernel::{
    artifact::{self, Artifact, Found, Which},
    external, resource,
    work::Kernel,
};

/// An artifact up to this size is read into memory; of a longer one, only a part.
const IN_MEMORY: u64 = 16 << 20;
/// How many bytes of a long one are scanned for lines.
const MOST_SCANNED: u64 = 256 << 20;
/// How many tokens of an artifact are read at once.
pub(super) const MOST_TOKENS: i32 = 100_000;
/// How many artifacts are listed or searched at once.
const MOST_LISTED: usize = 500;
const MOST_FOUND: usize = 50;

/// What a call asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    List { prefix: String },
    Plan { paths: Vec<ArtifactPath> },
    Read { path: ArtifactPath, part: Part, most: Tokens },
    Search { text: String, prefix: String },
    Write { path: ArtifactPath, content: String, media_type: Option<String> },
}

impl Request {
    /// Checks whether it reads or writes one artifact below these folders, and nothing else.
    pub fn is_within(&self, folders: &[ArtifactPath]) -> bool {
        match self {
            Request::Read { path, .. } | Request::Write { path, .. } => {
                folders.iter().any(|folder| path.is_within(folder))
            }
            Request::List { .. } | Request::Plan { .. } | Request::Search { .. } => false,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Reading {
    path: ArtifactPath,
    part: String,
    max_tokens: Option<i32>,
    from_line: Option<u64>,
    to_line: Option<u64>,
    json_path: Option<String>,
    around: Option<String>,
}

impl Reading {
    pub(super) fn request(self) -> Result<Request, String> {
        let Reading { path, part, max_tokens, from_line, to_line, json_path, around } = self;
        let (part, usual) = match part.as_str() {
            "head" => (Part::Head, 2_000),
            "tail" => (Part::Tail, 2_000),
            "lines" => {
                let from = from_line.unwrap_or(1);
                (Part::Lines(from, to_line.unwrap_or(from.saturating_add(199))), 10_000)
            }
            "json_path" => (
                Part::JsonPath(json_path.ok_or("`json_path` is missing: write one such as `$.problems[*].title`")?),
                10_000,
            ),
            "key_turns" => (Part::KeyTurns { around }, 8_000),
            _ => (Part::Whole, 10_000),
        };
        let most = Tokens::new(max_tokens.unwrap_or(usual)).filter(|most| (1..=MOST_TOKENS).contains(&most.get()));
        let most = most.ok_or_else(|| format!("`max_tokens` must be 1 to {MOST_TOKENS}"))?;
        Ok(Request::Read { path, part, most })
    }
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub struct Done {
    pub status: &'static str,
    pub text: String,
    /// What was read and written, for the record.
    pub extra: Map<String, Value>,
    /// Whether external content was read.
    pub is_external: bool,
}

/// The outcome of one request.
struct Told {
    head: String,
    text: String,
    extra: Map<String, Value>,
    is_external: bool,
}

impl Told {
    fn plain(head: String, text: String) -> Told {
        Told { head, text, extra: Map::new(), is_external: false }
    }
}

/// Folders that a profile names.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    pub readable: BTreeSet<ArtifactPath>,
    pub writable: BTreeSet<ArtifactPath>,
}

/// The turn that reads and writes, and the folders that its profile names.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    pub project_id: ProjectId,
    pub agent_turn_id: TurnId,
    /// The author of what it writes.
    pub author_id: &'a str,
    pub folders: &'a Folders,
    /// Whether another process says what it writes: that is content from outside.
    pub is_reported: bool,
}

/// What one turn may read, and has read.
#[derive(Clone, Debug)]
pub struct Desk<'a> {
    pub kernel: &'a Kernel,
    pub artifacts: Option<&'a Artifacts>,
    pub owner: Owner<'a>,
    /// The versions that cards name.
    pins: Pins,
    packages: Vec<Map<String, Value>>,
    /// How many tokens were read before.
    used: i64,
}

impl<'a> Desk<'a> {
    /// Makes a desk from the cards that a turn sees, in their order: for each path, the last card counts.
    pub fn new<'c>(
        kernel: &'a Kernel,
        artifacts: Option<&'a Artifacts>,
        owner: Owner<'a>,
        cards: impl Iterator<Item = &'c Card>,
    ) -> Desk<'a> {
        let mut desk = Desk { kernel, artifacts, owner, pins: Pins::new(), packages: Vec::new(), used: 0 };
        for card in cards {
            desk.pins.extend(card.content.artifacts().unwrap_or_default());
            match &card.content {
                Content::Handoff(handoff) => desk.packages.push(handoff.package.clone()),
                Content::ToolResult(result) => desk.used += read_before(&result.extra),
                _ => {}
            }
        }
        desk
    }

    /// Answers a request, and counts its tokens.
    pub async fn answer(&mut self, request: &Request) -> Done {
        let outcome = match self.artifacts {
            Some(artifacts) => self.done(artifacts, request).await,
            None => Err("this worker has no object store: the operator must start it with --artifacts".to_owned()),
        };
        let Told { head, text, mut extra, is_external } = match outcome {
            Ok(told) => told,
            Err(why) => {
                return Done {
                    status: "failed",
                    text: json::text(&why).into_owned(),
                    extra: Map::new(),
                    is_external: false,
                };
            }
        };
        if let Some(pins) = extra.get("artifacts").cloned() {
            self.pins.extend(serde_json::from_value::<Pins>(pins).unwrap_or_default());
        }
        let text = json::text(&text).into_owned();
        let n_tokens = i64::from(tokens::count(&text).get());
        self.used += n_tokens;
        let left = match ADVISED - self.used {
            left @ 0.. => format!("{left} left of the {ADVISED} advised"),
            beyond => format!("{} beyond the {ADVISED} advised", -beyond),
        };
        let mut read = extra.remove("read").unwrap_or_else(|| json!({}));
        read["n_tokens"] = n_tokens.into();
        read["total"] = self.used.into();
        extra.insert("read".to_owned(), read);
        Done { status: "success", text: format!("[{head}; {n_tokens} tokens; {left}]\n{text}"), extra, is_external }
    }

    async fn done(&self, artifacts: &Artifacts, request: &Request) -> Result<Told, String> {
        match request {
            Request::List { prefix } => self.list(prefix).await,
            Request::Plan { paths } => self.plan(paths).await,
            Request::Search { text, prefix } => self.search(artifacts, text, prefix).await,
            Request::Read { path, part, most } => self.read(artifacts, path, part, *most).await,
            Request::Write { path, content, media_type } => {
                self.write(artifacts, path, content, media_type.as_deref()).await
            }
        }
    }

    /// Returns all artifacts that may be read, each in the version that applies to this turn.
    async fn readable(&self) -> Result<Vec<Found>, String> {
        let mut work = self.kernel.begin(self.owner.project_id).await.map_err(unreachable)?;
        let pinned = artifact::find_pinned(&mut work, &self.pins).await.map_err(unreachable)?;
        let mut all: BTreeMap<ArtifactPath, Found> = BTreeMap::new();
        for folder in &self.owner.folders.readable {
            let prefix = format!("{folder}/");
            let below = artifact::list(&mut work, &prefix, "", MOST_LISTED as i64 + 1).await.map_err(unreachable)?;
            let below: Vec<ArtifactPath> = below.into_iter().map(|artifact| artifact.path).collect();
            let newest = artifact::find_all(&mut work, &below).await.map_err(unreachable)?;
            all.extend(newest.into_iter().map(|found| (found.artifact.path.clone(), found)));
        }
        all.extend(pinned.into_iter().map(|found| (found.artifact.path.clone(), found)));
        Ok(all.into_values().collect())
    }

    async fn list(&self, prefix: &str) -> Result<Told, String> {
        let readable = self.readable().await?;
        let all = readable.iter().map(|found| &found.artifact);
        let below: Vec<&Artifact> = all.filter(|one| one.path.as_str().starts_with(prefix)).collect();
        let lines: Vec<String> = below.iter().take(MOST_LISTED).map(|one| describe(one)).collect();
        let head = format!("{} artifacts, {} of them listed", below.len(), lines.len());
        // A name is content too: an external sender may have chosen it.
        let is_external = below.iter().take(MOST_LISTED).any(|one| one.is_external);
        Ok(Told { is_external, ..Told::plain(head, lines.join("\n")) })
    }

    async fn plan(&self, paths: &[ArtifactPath]) -> Result<Told, String> {
        let mut priorities: BTreeMap<ArtifactPath, Priority> = BTreeMap::new();
        let mut work = self.kernel.begin(self.owner.project_id).await.map_err(unreachable)?;
        for package in &self.packages {
            let name = package.get("handoff_type").and_then(Value::as_str).and_then(|name| name.parse::<Name>().ok());
            let Some(name) = name else { continue };
            let own = resource::handoff_type(&mut work, &name).await.map_err(unreachable)?;
            let built_in = || handoff::built_in().iter().find(|built_in| built_in.name == name).cloned();
            if let Some(handoff_type) = own.or_else(built_in) {
                priorities.extend(plan::priorities(&handoff_type, package));
            }
        }
        drop(work);
        let readable: Vec<Artifact> = self.readable().await?.into_iter().map(|found| found.artifact).collect();
        if let Some(unknown) = paths.iter().find(|path| readable.iter().all(|one| one.path != **path)) {
            return Err(unknown_path(unknown));
        }
        let wanted = readable.iter().filter(|one| paths.is_empty() || paths.contains(&one.path));
        let wanted = wanted.filter_map(|one| {
            let priority = priorities.get(&one.path).copied().unwrap_or(Priority::Unnamed);
            Some((one.path.clone(), priority, one.n_tokens?))
        });
        let items = plan::plan(wanted, ADVISED - self.used);
        let n_fitting = items.iter().filter(|item| item.fits).count();
        let lines = items.iter().take(MOST_LISTED).map(|item| {
            let priority = serde_json::to_value(item.priority).unwrap_or_default();
            let fits = if item.fits { "" } else { " (beyond what is left)" };
            let priority = priority.as_str().unwrap_or_default().to_owned();
            format!("{priority} {} {} tokens, {} so far{fits}", item.path, item.n_tokens, item.total)
        });
        let lines: Vec<String> = lines.collect();
        let head = format!("{} artifacts, the first {n_fitting} fit what is left", items.len());
        let is_external = readable.iter().any(|one| one.is_external && items.iter().any(|item| item.path == one.path));
        Ok(Told { is_external, ..Told::plain(head, lines.join("\n")) })
    }

    async fn search(&self, artifacts: &Artifacts, text: &str, prefix: &str) -> Result<Told, String> {
        if text.trim().is_empty() {
            return Err("`text` must not be empty: it is what to search for".to_owned());
        }
        let (mut found, mut n_searched, mut skipped, mut is_external) = (Vec::new(), 0, 0, false);
        let readable = self.readable().await?;
        for stored in readable.iter().filter(|stored| stored.artifact.path.as_str().starts_with(prefix)) {
            let one = &stored.artifact;
            if one.n_tokens.is_none() || one.size.unsigned_abs() > IN_MEMORY || n_searched >= MOST_LISTED {
                skipped += 1;
                continue;
            }
            n_searched += 1;
            let content = self.text(artifacts, stored, 0..stored.stored.size).await?;
            for (line, around) in load::search(&content, text, MOST_FOUND - found.len()) {
                is_external |= one.is_external;
                found.push(format!("{}:{line}: {around}", one.path));
            }
            if found.len() >= MOST_FOUND {
                break;
            }
        }
        let mut head = format!("{} places in {n_searched} artifacts", found.len());
        if skipped > 0 {
            head += &format!(", {skipped} skipped: too large or not text");
        }
        Ok(Told { is_external, ..Told::plain(head, found.join("\n")) })
    }

    async fn read(
        &self,
        artifacts: &Artifacts,
        path: &ArtifactPath,
        part: &Part,
        most: Tokens,
    ) -> Result<Told, String> {
        let found = self.find(artifacts, path).await?;
        let Some(n_tokens) = found.artifact.n_tokens else {
            return Err(format!("{path} cannot be read as text: its media type is {}", found.artifact.media_type));
        };
        let size = found.stored.size;
        // Enough bytes for this many tokens of any kind.
        let enough = (u64::from(most.get().unsigned_abs()) * 64).min(IN_MEMORY);
        let too_long = || {
            format!(
                "{path} has about {n_tokens} tokens, which is too long for this `part`: use `head`, `tail` or `lines`"
            )
        };
        let loaded = match part {
            Part::Whole if n_tokens > i64::from(most.get()) => {
                return Err(format!("{path} has {n_tokens} tokens: read a part of it, or set a larger `max_tokens`"));
            }
            Part::Head if size > IN_MEMORY => load::load(&self.text(artifacts, &found, 0..enough).await?, part, most),
            Part::Tail if size > IN_MEMORY => {
                load::load(&self.text(artifacts, &found, size.saturating_sub(enough)..size).await?, part, most)
            }
            Part::Lines(from, to) if size > IN_MEMORY => {
                let lines = self.lines(artifacts, &found, *from, *to, enough).await?;
                load::load(&lines, &Part::Whole, most)
            }
            _ if size > IN_MEMORY => return Err(too_long()),
            part => load::load(&self.text(artifacts, &found, 0..size).await?, part, most),
        }
        .map_err(|why| format!("{path}: {why}"))?;
        let whole_turns = matches!(part, Part::KeyTurns { .. });
        if loaded.n_tokens > most && !whole_turns {
            return Err(format!(
                "{path}: that part has {} tokens: ask for less, or set a larger `max_tokens`",
                loaded.n_tokens
            ));
        }
        let Artifact { version, hash, is_external, .. } = found.artifact;
        let what = if size > IN_MEMORY { format!("a part of {size} bytes") } else { loaded.what };
        let read = json!({ "path": path, "version": version, "hash": hash, "part": what });
        let extra = Map::from_iter([("read".to_owned(), read)]);
        Ok(Told { head: format!("{path} v{version}, {what}"), text: loaded.text, extra, is_external })
    }

    async fn write(
        &self,
        artifacts: &Artifacts,
        path: &ArtifactPath,
        content: &str,
        media_type: Option<&str>,
    ) -> Result<Told, String> {
        if !self.owner.folders.writable.iter().any(|folder| path.is_within(folder)) {
            let folders: Vec<&str> = self.owner.folders.writable.iter().map(ArtifactPath::as_str).collect();
            return Err(format!("you may not write {path}: you may write only below {folders:?}"));
        }
        let mut work = self.kernel.begin(self.owner.project_id).await.map_err(unreachable)?;
        let saw_external = external::saw(&mut work, self.owner.agent_turn_id).await.map_err(unreachable)?;
        drop(work);
        let is_external = saw_external || self.owner.is_reported;
        let put = Put { path, media_type, author_id: Some(self.owner.author_id), is_external };
        let bytes = Bytes::from(content.to_owned().into_bytes());
        let written = artifacts.put_bytes(self.owner.project_id, put, bytes).await.map_err(|error| causes(&error))?;
        let Artifact { version, hash, size, .. } = written;
        let extra = Map::from_iter([("artifacts".to_owned(), json!({ path.as_str(): hash }))]);
        Ok(Told { extra, ..Told::plain(format!("{path} v{version} is stored, {size} bytes"), String::new()) })
    }

    /// Finds an artifact: the version that the turn was handed, else the newest one if its profile names the folder.
    async fn find(&self, artifacts: &Artifacts, path: &ArtifactPath) -> Result<Found, String> {
        let which = match self.pins.get(path) {
            Some(hash) => Which::Pinned(*hash),
            None if self.owner.folders.readable.iter().any(|folder| path.is_within(folder)) => Which::Newest,
            None => return Err(unknown_path(path)),
        };
        match artifacts.find(self.owner.project_id, path, which).await {
            Err(Error::NotFound(path)) => Err(unknown_path(&path)),
            found => found.map_err(|error| causes(&error)),
        }
    }

    /// Reads bytes as text. If a part begins or ends inside a character, that character is left out.
    async fn text(&self, artifacts: &Artifacts, found: &Found, range: std::ops::Range<u64>) -> Result<String, String> {
        let bytes = artifacts.read_whole(self.owner.project_id, found, range).await.map_err(|error| causes(&error))?;
        let begin = bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
        Ok(String::from_utf8_lossy(&bytes[begin..]).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned())
    }

    /// Reads lines of an artifact that is too long for memory.
    async fn lines(
        &self,
        artifacts: &Artifacts,
        found: &Found,
        from: u64,
        to: u64,
        most: u64,
    ) -> Result<String, String> {
        let mut content = artifacts.read(self.owner.project_id, found, 0..MOST_SCANNED);
        let (mut line, mut kept) = (1_u64, Vec::new());
        while let Some(bytes) = content.try_next().await.map_err(|error| causes(&error))? {
            for part in bytes.split_inclusive(|byte| *byte == b'\n') {
                if line >= from && line <= to {
                    kept.extend_from_slice(part);
                }
                if kept.len() as u64 > most {
                    return Err("those lines are too long: ask for fewer lines".to_owned());
                }
                line += u64::from(part.ends_with(b"\n"));
            }
            if line > to {
                return Ok(String::from_utf8_lossy(&kept).into_owned());
            }
        }
        if kept.is_empty() {
            return Err(format!(
                "those lines are not in its first {MOST_SCANNED} bytes, which have {line} lines, and the rest is not searched: ask for earlier lines, or use `tail`"
            ));
        }
        Ok(String::from_utf8_lossy(&kept).into_owned())
    }
}

/// Returns how many tokens an earlier answer says were read.
fn read_before(extra: &Map<String, Value>) -> i64 {
    extra.get("read").and_then(|read| read["n_tokens"].as_i64()).unwrap_or_default()
}

fn describe(one: &Artifact) -> String {
    let about = if one.is_estimate { "about " } else { "" };
    let long = one.n_tokens.map_or_else(|| format!("{} bytes", one.size), |n| format!("{about}{n} tokens"));
    format!("{} v{} {} {long}", one.path, one.version, one.media_type)
}

fn unknown_path(path: &ArtifactPath) -> String {
    format!("artifact {path} does not exist, or you may not read it: `list_artifacts` lists what you may read")
}

fn unreachable(error: impl std::error::Error) -> String {
    format!("the artifacts cannot be read at the moment, try again later: {}", causes(&error))
}

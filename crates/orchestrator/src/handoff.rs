//! Checks whether a handoff package may be sent (HO-1, HO-2, HO-5 … HO-7), and reports all problems at once.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::{Map, Value};
use waybill_artifact::{Artifacts, store};
use waybill_context::handoff::{self, Check, Mentioned, Problem};
use waybill_core::{
    artifact::{ArtifactPath, Pins},
    card::{CardType, HandoffContent},
    handoff::HandoffType,
    handover::{Handover, PackArgument},
    id::{Name, ProjectId, TurnId},
    resource::Profile,
    tokens::Tokens,
};
use waybill_kernel::{
    artifact::{self, Found},
    resource, turn,
    work::{Kernel, UnitOfWork},
};

use crate::command::Error;

/// How many artifacts one package may name.
const MOST_ARTIFACTS: usize = 10_000;
/// Content up to this size is verified to its end; of larger content, only its size, its beginning and its end.
const VERIFIED: u64 = 64 << 20;
/// The largest artifact with a schema: it is read into memory.
const MOST_CHECKED: u64 = 16 << 20;
const AT_ONCE: usize = 8;

/// The result of checking a package.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// In the order of the checks. If empty, the package may be sent.
    pub problems: Vec<Problem>,
    pub warnings: Vec<String>,
    pub n_tokens: Tokens,
    /// The version of each artifact.
    pub artifacts: Pins,
    #[serde(skip)]
    pub handoff_type: Option<HandoffType>,
}

impl Verdict {
    /// Returns what goes into the card; or an error that lists all problems.
    pub fn content(&self, package: &Map<String, Value>) -> Result<HandoffContent, Error> {
        if self.problems.is_empty() {
            return Ok(HandoffContent { package: package.clone(), artifacts: self.artifacts.clone() });
        }
        let lines: Vec<String> = self.problems.iter().map(|problem| format!("- {problem}")).collect();
        let n = lines.len();
        Err(Error::refused(
            "invalid_package",
            format!("the package was not sent. Problems ({n}):\n{}", lines.join("\n")),
        ))
    }
}

/// Returns the handover of every delegation, with the package added.
pub fn handover() -> Handover {
    let mut handover = Handover::instruction();
    let package = PackArgument::new("package").typed(CardType::handoff_package());
    handover.context_packing_config.pack_arguments.push(package);
    handover
}

/// Returns the instruction for the receiver, if the sender gives none.
pub fn instruction(content: &HandoffContent) -> String {
    let name = content.package.get("handoff_type").and_then(Value::as_str).unwrap_or("handoff");
    format!(
        "The `{name}` package below was handed to you. It names artifacts but does not contain them: read what you need of them, and no more."
    )
}

/// A sender with limited read access: it cannot hand over what it may not read.
#[derive(Clone, Copy, Debug)]
pub enum Sender<'a> {
    /// An agent may read what its profile names, what it was handed and what it wrote.
    Turn { agent_turn_id: TurnId, profile: &'a Profile },
    /// A key may read what is at its paths.
    Key { paths: &'a [ArtifactPath] },
}

/// Finds the type of this name: the project's own, else a built-in one.
pub async fn find_type(work: &mut UnitOfWork, name: &Name) -> Result<Option<HandoffType>, Error> {
    let own = resource::handoff_type(work, name).await?;
    Ok(own.or_else(|| handoff::built_in().iter().find(|built_in| built_in.name == *name).cloned()))
}

/// Checks a package of an agent or of a person: its schema; whether the artifacts that it names exist and are intact; whether they are as
/// its type requires; and its size.
pub async fn check(
    kernel: &Kernel,
    artifacts: &Artifacts,
    project_id: ProjectId,
    package: &Map<String, Value>,
    sender: Option<Sender<'_>>,
) -> Result<Verdict, Error> {
    let mut verdict = Verdict {
        problems: Vec::new(),
        warnings: Vec::new(),
        n_tokens: handoff::count(package),
        artifacts: Pins::new(),
        handoff_type: None,
    };
    let mut work = kernel.begin(project_id).await.map_err(turn::Error::from)?;
    let name: Option<Name> = package.get("handoff_type").and_then(Value::as_str).and_then(|name| name.parse().ok());
    let handoff_type = match &name {
        Some(name) => find_type(&mut work, name).await?,
        None => None,
    };
    let Some(handoff_type) = handoff_type else {
        let advice = "use a type that `waybill handoff types` lists, or apply a new one";
        verdict.problems.push(Problem::new(Check::Schema, "/handoff_type", "this package type does not exist", advice));
        return Ok(verdict);
    };
    let Mentioned { artifacts: named, folders, problems } = handoff::mentioned(&handoff_type, package);
    let paths: Vec<ArtifactPath> = named.iter().map(|named| named.path.clone()).collect();
    let mut found: BTreeMap<ArtifactPath, Found> = BTreeMap::new();
    for one in artifact::find_all(&mut work, &paths).await? {
        found.insert(one.artifact.path.clone(), one);
    }
    let mut along = Vec::new();
    for folder in &folders {
        let below = artifact::list(&mut work, &format!("{folder}/"), "", MOST_ARTIFACTS as i64 + 1).await?;
        along.extend(below.into_iter().map(|artifact| artifact.path).filter(|path| !found.contains_key(path)));
    }
    let too_many = along.len() + found.len() > MOST_ARTIFACTS;
    if !too_many {
        for one in artifact::find_all(&mut work, &along).await? {
            found.insert(one.artifact.path.clone(), one);
        }
    }
    let forbidden = match sender {
        Some(sender) => forbidden(&mut work, sender, &found).await?,
        None => Vec::new(),
    };
    drop(work); // nothing was written, and the store may take its time

    let schema = handoff::check_schema(&handoff_type, package);
    let (mut path, mut gate) = (problems, Vec::new());
    if too_many {
        let problem = format!("it names more than {MOST_ARTIFACTS} artifacts, counting those in folders");
        path.push(Problem::new(Check::Path, "", problem, "name fewer artifacts, or a smaller folder"));
    }
    // Treated as missing: a sender that may not read an artifact does not learn whether it exists.
    for at in forbidden {
        found.remove(&at);
    }
    let broken = broken(artifacts, project_id, found.values().cloned().collect()).await?;
    for (at, why) in &broken {
        path.push(Problem::new(Check::Path, at.as_str(), why.clone(), "store it again"));
    }
    for named in &named {
        let Some(found) = found.get(&named.path) else {
            let at = if named.at.is_empty() { named.path.to_string() } else { named.at.clone() };
            let problem = format!("artifact {} does not exist, or you may not read it", named.path);
            path.push(Problem::new(Check::Path, at, problem, "store it first, then send the package again"));
            continue;
        };
        if broken.contains_key(&named.path) {
            continue;
        }
        let content = match named.schema {
            Some(_) if found.stored.size > MOST_CHECKED => {
                let problem = format!("it has {} bytes, but at most {MOST_CHECKED} can be checked", found.stored.size);
                gate.push(Problem::new(Check::Gate, named.path.as_str(), problem, "make it shorter"));
                continue;
            }
            Some(_) => Some(artifacts.read_whole(project_id, found, 0..found.stored.size).await.map_err(unavailable)?),
            None => None,
        };
        gate.extend(handoff::check_content(named, &found.artifact.media_type, content.as_deref()));
    }
    let size = handoff::check_size(&handoff_type, package);
    verdict.problems = schema.into_iter().chain(path).chain(gate).chain(size).collect();
    verdict.warnings = handoff::warnings(&handoff_type, package);
    verdict.artifacts = found.into_iter().map(|(path, found)| (path, found.artifact.hash)).collect();
    verdict.handoff_type = Some(handoff_type);
    Ok(verdict)
}

/// Returns the artifacts that the sender was not handed, did not write, and may neither read nor write by its profile.
async fn forbidden(
    work: &mut UnitOfWork,
    sender: Sender<'_>,
    found: &BTreeMap<ArtifactPath, Found>,
) -> Result<Vec<ArtifactPath>, Error> {
    let folders: Vec<&ArtifactPath> = match sender {
        Sender::Turn { profile, .. } => profile.readable_artifacts.iter().chain(&profile.writable_artifacts).collect(),
        Sender::Key { paths } => paths.iter().collect(),
    };
    let others = found.iter().filter(|(path, _)| !folders.iter().any(|folder| path.is_within(folder)));
    let others: Pins = others.map(|(path, found)| (path.clone(), found.artifact.hash)).collect();
    let Sender::Turn { agent_turn_id, .. } = sender else { return Ok(others.into_keys().collect()) };
    let handed = artifact::handed(work, agent_turn_id, &others).await?;
    Ok(others.into_keys().filter(|path| !handed.contains(path)).collect())
}

/// Returns the artifacts that are missing or corrupt in the store, and why.
async fn broken(
    artifacts: &Artifacts,
    project_id: ProjectId,
    found: Vec<Found>,
) -> Result<BTreeMap<ArtifactPath, String>, Error> {
    let verified = stream::iter(found).map(|found| {
        let artifacts = artifacts.clone();
        async move {
            let broken = match artifacts.verify(project_id, &found, VERIFIED).await {
                Ok(()) => None,
                Err(waybill_artifact::Error::Store(
                    error @ (store::Error::Missing(_) | store::Error::Corrupt { .. }),
                )) => Some(error.to_string()),
                Err(error) => return Err(unavailable(error)),
            };
            Ok(broken.map(|why| (found.artifact.path, why)))
        }
    });
    let verified: Vec<Option<(ArtifactPath, String)>> = verified.buffer_unordered(AT_ONCE).try_collect().await?;
    Ok(verified.into_iter().flatten().collect())
}

/// Converts an error of the index or of the store. Neither is the sender's fault.
fn unavailable(error: waybill_artifact::Error) -> Error {
    match error {
        waybill_artifact::Error::Index(error) => error.into(),
        other => Error::refused("unavailable", format!("the object store is not available: {other}; try again later")),
    }
}

//! Whether a handoff package may be sent (HO-1, HO-2, HO-5 … HO-7): everything that is wrong with it, at once.

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

/// Artifacts that one package may speak of.
const MOST_ARTIFACTS: usize = 10_000;
/// Up to here content is read to its end; beyond, its size, its beginning and its end are looked at.
const VERIFIED: u64 = 64 << 20;
/// What has a schema is read into memory.
const MOST_CHECKED: u64 = 16 << 20;
const AT_ONCE: usize = 8;

/// What is to be said of a package.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// In the order of the checks. None: it may be sent.
    pub problems: Vec<Problem>,
    pub warnings: Vec<String>,
    pub n_tokens: Tokens,
    /// Which version of each artifact is meant.
    pub artifacts: Pins,
    #[serde(skip)]
    pub handoff_type: Option<HandoffType>,
}

impl Verdict {
    /// What goes into the card; else everything that is wrong.
    pub fn content(&self, package: &Map<String, Value>) -> Result<HandoffContent, Error> {
        if self.problems.is_empty() {
            return Ok(HandoffContent { package: package.clone(), artifacts: self.artifacts.clone() });
        }
        let lines: Vec<String> = self.problems.iter().map(|problem| format!("- {problem}")).collect();
        let n = lines.len();
        Err(Error::refused("invalid_package", format!("the package was not sent; {n} to mend:\n{}", lines.join("\n"))))
    }
}

/// The recipe of every delegation, and the package.
pub fn handover() -> Handover {
    let mut handover = Handover::instruction();
    let package = PackArgument::new("package").typed(CardType::handoff_package());
    handover.context_packing_config.pack_arguments.push(package);
    handover
}

/// What a receiver is told where its sender says nothing.
pub fn instruction(content: &HandoffContent) -> String {
    let name = content.package.get("handoff_type").and_then(Value::as_str).unwrap_or("handoff");
    format!(
        "You are handed the `{name}` package below. It names artifacts and holds none: read what you need of them, and no more."
    )
}

/// An agent that sends: what it may not read it cannot hand over either.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    pub agent_turn_id: TurnId,
    pub profile: &'a Profile,
}

/// The type of this name: the project's own, else one that is built in.
pub async fn find_type(work: &mut UnitOfWork, name: &Name) -> Result<Option<HandoffType>, Error> {
    let own = resource::handoff_type(work, name).await?;
    Ok(own.or_else(|| handoff::built_in().iter().find(|built_in| built_in.name == *name).cloned()))
}

/// Checks a package, of an agent or of a person: what it says, whether what it names is there and whole, whether that is as its type wants it, how long it is.
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
        let advice = "say a type that `waybill handoff types` lists, or apply one";
        verdict.problems.push(Problem::new(Check::Schema, "/handoff_type", "there is no such type", advice));
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
        let problem = format!("it speaks of more than {MOST_ARTIFACTS} artifacts");
        path.push(Problem::new(Check::Path, "", problem, "name a smaller folder"));
    }
    // As what is not there: whoever may not read it learns nothing of it.
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
            let problem = format!("there is no artifact {}", named.path);
            path.push(Problem::new(Check::Path, at, problem, "store it before the package that names it"));
            continue;
        };
        if broken.contains_key(&named.path) {
            continue;
        }
        let content = match named.schema {
            Some(_) if found.stored.size > MOST_CHECKED => {
                let problem = format!("it is too large to be checked: {} bytes of {MOST_CHECKED}", found.stored.size);
                gate.push(Problem::new(Check::Gate, named.path.as_str(), problem, "say less in it"));
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

/// What the sender was neither handed nor wrote, and its profile does not let it read or write.
async fn forbidden(
    work: &mut UnitOfWork,
    sender: Sender<'_>,
    found: &BTreeMap<ArtifactPath, Found>,
) -> Result<Vec<ArtifactPath>, Error> {
    let Profile { readable_artifacts, writable_artifacts, .. } = sender.profile;
    let folders: Vec<&ArtifactPath> = readable_artifacts.iter().chain(writable_artifacts).collect();
    let others = found.iter().filter(|(path, _)| !folders.iter().any(|folder| path.is_within(folder)));
    let others: Pins = others.map(|(path, found)| (path.clone(), found.artifact.hash)).collect();
    let handed = artifact::handed(work, sender.agent_turn_id, &others).await?;
    Ok(others.into_keys().filter(|path| !handed.contains(path)).collect())
}

/// Which of them are not there as they were stored, and why.
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

/// What the index said, or the store. Neither is the sender's fault.
fn unavailable(error: waybill_artifact::Error) -> Error {
    match error {
        waybill_artifact::Error::Index(error) => error.into(),
        other => Error::refused("unavailable", format!("the object store cannot be asked: {other}; try again later")),
    }
}

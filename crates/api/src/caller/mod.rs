//! The caller of a request, its project, and what it may do there (SE-1, SE-2).

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde_json::Value;
use waybill_core::{
    artifact::ArtifactPath,
    bus::PMO,
    guard::Guard,
    id::{AgentId, KeyId, Name, ProjectId, Target, WorkerId},
    key::{ApiKey, Bounds, Scope},
    resource::{Manifest, Tool},
    tool::TOOLS,
    turn::Fence,
};
use waybill_kernel::{
    agent, browser, key, resource, turn,
    work::{Actor, UnitOfWork},
};
use waybill_orchestrator::handoff::Sender;

use crate::{
    Api,
    limit::{Answered, Lane},
    problem::Problem,
};

pub(crate) use recognize::{Here, address, asker, count, find_project, here, with_key, without_key};

use recognize::short;

mod recognize;

/// What the actor of an identity begins with.
pub(crate) const USER: &str = "user:";

/// How often a caller that waits or watches is checked again: a revoked or expired key ends both.
pub(crate) const STANDING: Duration = Duration::from_secs(3);

/// The caller of a request, in the project that it asks for.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The project of the key.
    pub(crate) project_id: ProjectId,
    /// The project that was asked for. It differs from `project_id` only where a test has taken that guard away.
    pub(crate) asked: ProjectId,
    pub(crate) slug: String,
    pub(crate) scope: Scope,
    pub(crate) bounds: Bounds,
    /// For the audit: `key:NAME`.
    pub(crate) actor: String,
    address: Option<IpAddr>,
    pub(crate) lane: Lane,
    standing: Standing,
    /// Its slot among the requests that are answered, from its first use of the database on.
    place: Arc<Mutex<Option<Answered>>>,
}

/// What gives a caller access, and how to check that it still does.
#[derive(Clone, Debug)]
enum Standing {
    Key(Box<ApiKey>),
    /// When the token ends, in seconds since 1970.
    Token(i64),
    /// The hash of a browser session, and when the session ends.
    Browser([u8; 32], DateTime<Utc>),
    Loopback,
}

impl Caller {
    /// Checks whether the key has one of these scopes. An admin may do everything.
    pub(crate) fn may(&self, scopes: &[Scope]) -> Result<(), Problem> {
        if self.scope == Scope::Admin || scopes.contains(&self.scope) || !Guard::Scope.stands() {
            return Ok(());
        }
        let allowed: Vec<&str> = scopes.iter().chain([&Scope::Admin]).map(|scope| scope.as_str()).collect();
        let said = format!(
            "a key of scope `{}` may not do this: use a key with one of these scopes: {}",
            self.scope.as_str(),
            allowed.join(", ")
        );
        Err(forbidden(said))
    }

    /// Checks whether the caller may read content. All may, except those that only answer calls, decide requests, or audit.
    pub(crate) fn may_read(&self) -> Result<(), Problem> {
        self.may(&[Scope::Operator, Scope::Worker, Scope::Reader, Scope::Developer])
    }

    /// Checks whether the caller may read what happened, without the content.
    pub(crate) fn may_audit(&self) -> Result<(), Problem> {
        self.may(&[Scope::Operator, Scope::Worker, Scope::Reader, Scope::Developer, Scope::Auditor])
    }

    /// Checks whether the caller may claim turns or calls of this target. No caller may claim the orchestrator's over HTTP.
    pub(crate) fn may_claim(&self, target: &Target) -> Result<(), Problem> {
        let is_free = self.scope == Scope::Admin && self.bounds.targets.is_empty() && target.as_str() != TOOLS;
        let is_named = self.bounds.targets.contains(target) || !Guard::Targets.stands();
        if target.as_str() != PMO && (is_free || is_named) {
            return Ok(());
        }
        let said = match target.as_str() {
            PMO => format!("`{PMO}` is reserved for Waybill's own orchestrator: its work cannot be claimed over HTTP"),
            _ => {
                format!("this API key may not claim work of target `{target}`: it may claim work of its `targets` only")
            }
        };
        Err(forbidden(said))
    }

    /// Checks whether the caller may read or write the artifact at a path.
    pub(crate) fn may_touch(&self, path: &ArtifactPath) -> Result<(), Problem> {
        if self.sender().is_none() || self.bounds.paths.iter().any(|folder| path.is_within(folder)) {
            return Ok(());
        }
        Err(forbidden(format!(
            "this API key may not use the artifact `{path}`: it may use only artifacts below its `paths`"
        )))
    }

    /// Returns what the caller may hand over. `None` means everything.
    pub(crate) fn sender(&self) -> Option<Sender<'_>> {
        let is_bound = !self.bounds.paths.is_empty() || self.scope == Scope::Tool;
        (is_bound && Guard::Paths.stands()).then_some(Sender::Key { paths: &self.bounds.paths })
    }

    /// Checks whether the caller may write this content to a card: a card that names artifacts lets every turn that has it read them.
    pub(crate) fn may_say(&self, content: &Value) -> Result<(), Problem> {
        for path in content["artifacts"].as_object().into_iter().flat_map(|named| named.keys()) {
            let path = path.parse().map_err(|error| Problem::invalid(format!("`artifacts`: {error}")))?;
            self.may_touch(&path)?;
        }
        Ok(())
    }

    /// Checks whether the caller may start turns of this profile.
    pub(crate) fn may_start(&self, profile: &Name) -> Result<(), Problem> {
        if self.bounds.profiles.is_empty() || self.bounds.profiles.contains(profile) || !Guard::Profiles.stands() {
            return Ok(());
        }
        Err(forbidden(format!(
            "this API key may not start turns of profile `{profile}`: it may start only its `profiles`"
        )))
    }

    /// Checks whether the caller may apply these manifests. A developer may apply profiles, and tools of its own targets; it cannot take over a tool
    /// of another target.
    pub(crate) async fn may_apply(&self, work: &mut UnitOfWork, manifests: &[Manifest]) -> Result<(), Problem> {
        if self.scope == Scope::Admin || !Guard::Apply.stands() {
            return Ok(());
        }
        for manifest in manifests {
            match manifest {
                Manifest::Profile(profile) => {
                    self.may_start(&profile.name)?;
                    if !self.bounds.targets.contains(&profile.worker_target) {
                        let said = "is not among the `targets` of this API key";
                        return Err(forbidden(format!(
                            "profile `{}` has the worker target `{}`, which {said}",
                            profile.name, profile.worker_target
                        )));
                    }
                }
                Manifest::Tool(tool) => {
                    let now = match resource::tool(work, &tool.name).await {
                        Ok(now) => Some(now),
                        Err(resource::Error::NotFound { .. }) => None,
                        Err(error) => return Err(error.into()),
                    };
                    let is_own = |target: &Target| self.bounds.targets.contains(target);
                    let targets = now.iter().map(|now| &now.target).chain([&tool.target]);
                    if let Some(target) = targets.into_iter().find(|target| !is_own(target)) {
                        let said = "which is not among the `targets` of this API key";
                        return Err(forbidden(format!("tool `{}` has the target `{target}`, {said}", tool.name)));
                    }
                    may_declare(now.as_ref(), tool)?;
                }
                Manifest::Plan(_) | Manifest::HandoffType(_) | Manifest::Settings(_) => {
                    return Err(forbidden(
                        "a key of scope `developer` may apply only profiles and tools: use a key of scope `admin`"
                            .to_owned(),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks whether the caller may register this tool, which is now `now`: one whose calls its own processes claim.
    pub(crate) fn may_register(&self, now: Option<&Tool>, tool: &Tool) -> Result<(), Problem> {
        if self.scope == Scope::Admin || !Guard::Apply.stands() {
            return Ok(());
        }
        if tool.http.is_some() || tool.mcp.is_some() {
            let said = "a key can register only a tool whose calls its own processes claim: leave out `http` and `mcp`";
            return Err(forbidden(format!("tool `{}`: {said}", tool.name)));
        }
        if !self.bounds.targets.contains(&tool.target) {
            let said = "which is not among the `targets` of this API key";
            return Err(forbidden(format!("tool `{}` has the target `{}`, {said}", tool.name, tool.target)));
        }
        may_declare(now, tool)
    }

    /// Returns the id of a worker of this caller. A worker's name belongs to its key: workers of another key never share a lease with it, whatever
    /// their names are.
    pub(crate) fn worker_id(&self, name: &str) -> Result<WorkerId, Problem> {
        if !(1..=200).contains(&name.chars().count()) {
            return Err(Problem::invalid("`worker` must have 1 to 200 characters"));
        }
        let mut bytes = [0; 16];
        if Guard::WorkerName.stands() {
            bytes[..6].copy_from_slice(&self.mark());
        }
        bytes[6..].copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..10]);
        Ok(WorkerId::from_bytes(bytes))
    }

    /// Returns the idempotency key under which a request is stored: callers with different keys cannot meet under the same one.
    pub(crate) fn once(&self, key: &str) -> String {
        let mark: String = self.mark().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("http:{mark}:{key}")
    }

    /// Returns what the ids of all its workers begin with. A key that replaces another one of the same name has the same mark.
    fn mark(&self) -> [u8; 6] {
        let mut mark = [0; 6];
        mark.copy_from_slice(&blake3::hash(format!("{}/{}", self.project_id, self.actor).as_bytes()).as_bytes()[..6]);
        mark
    }

    /// Checks whether a worker of this caller holds the turn. Fails if a worker of another caller does; false if no worker has it under this claim.
    pub(crate) async fn holds(&self, work: &mut UnitOfWork, fence: &Fence) -> Result<bool, Problem> {
        match turn::holder(work, fence).await? {
            None => Ok(false),
            Some(worker_id) if worker_id.as_bytes().starts_with(&self.mark()) || !Guard::TurnHolder.stands() => {
                Ok(true)
            }
            Some(_) => Err(turn::Error::Stale(fence.to_string()).into()),
        }
    }

    /// Returns the owner whose sessions the caller may see. `None` means the sessions of all owners.
    pub(crate) fn owner(&self) -> Option<String> {
        (self.scope != Scope::Admin && Guard::SessionOwner.stands()).then(|| self.actor.clone())
    }

    /// Returns whether the caller may give a turn more than its profile allows.
    pub(crate) fn may_widen(&self) -> bool {
        self.scope == Scope::Admin || !Guard::Widening.stands()
    }

    /// Checks whether the caller may start turns of this agent: if its key names profiles, the agent must have one of them.
    pub(crate) async fn may_employ(&self, work: &mut UnitOfWork, agent_id: Option<AgentId>) -> Result<(), Problem> {
        let (false, Some(agent_id)) = (self.bounds.profiles.is_empty(), agent_id) else { return Ok(()) };
        let profile = agent::profiles(work, &[agent_id]).await?.remove(&agent_id);
        let unknown =
            || Problem::not_found(format!("agent {agent_id} does not exist in this project, or has no profile"));
        self.may_start(&profile.ok_or_else(unknown)?)
    }

    /// Returns the same caller without its slot, for what outlives the request.
    pub(crate) fn apart(&self) -> Caller {
        Caller { place: Arc::default(), ..self.clone() }
    }

    /// Gives up its slot, while the request waits for something other than the database.
    pub(crate) fn rest(&self) {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Takes its slot among the requests that are answered, once it is its turn.
    pub(crate) async fn enter(&self, api: &Api) -> Result<(), Problem> {
        let has_one = self.place.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if !has_one {
            let place = api.gate.enter(self.lane).await?;
            *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        }
        Ok(())
    }

    /// Returns the id of its key, or one for its browser session: all callers with the same can be checked with one lookup.
    pub(crate) fn key_id(&self) -> Option<KeyId> {
        match &self.standing {
            Standing::Key(key) => Some(key.key_id()),
            Standing::Browser(hash, _) => {
                let of_project = *blake3::Hasher::new().update(hash).update(self.slug.as_bytes()).finalize().as_bytes();
                Some(KeyId::from_bytes(short(&of_project)))
            }
            Standing::Token(_) | Standing::Loopback => None,
        }
    }

    /// Checks whether its key, token or browser session has been ended or has expired since. False if that cannot be found out.
    pub(crate) async fn is_shut_out(&self, api: &Api) -> bool {
        match &self.standing {
            Standing::Key(key) => matches!(key::find(&api.kernel, key).await, Ok(None)),
            Standing::Token(ends) => Utc::now().timestamp() >= *ends,
            Standing::Browser(hash, _) => {
                let found = browser::find(&api.kernel, hash).await;
                found.is_ok_and(|found| !found.iter().any(|reach| reach.project_id == self.project_id))
            }
            Standing::Loopback => false,
        }
    }

    /// Returns when its key, token or browser session ends. `None` means that it has no end.
    pub(crate) async fn expires_at(&self, api: &Api) -> Result<Option<DateTime<Utc>>, Problem> {
        Ok(match &self.standing {
            Standing::Key(key) => {
                key::show(&mut self.begin(api).await?, key.key_id()).await?.and_then(|key| key.expires_at)
            }
            Standing::Token(ends) => DateTime::from_timestamp(*ends, 0),
            Standing::Browser(_, ends) => Some(*ends),
            Standing::Loopback => None,
        })
    }

    pub(crate) async fn begin(&self, api: &Api) -> Result<UnitOfWork, Problem> {
        self.enter(api).await?;
        #[cfg(debug_assertions)]
        if self.asked != self.project_id {
            return Ok(api.kernel.begin_mistaken(self.project_id, self.asked).await?);
        }
        let actor = Actor { name: self.actor.clone(), address: self.address };
        Ok(api.kernel.begin_as(self.project_id, &actor).await?)
    }
}

/// Checks that a tool is not declared trusted, and demands no less of an approval than before.
fn may_declare(now: Option<&Tool>, tool: &Tool) -> Result<(), Problem> {
    let strict = |tool: &Tool| (tool.approval as u8, tool.four_eyes);
    let loosens = now.is_some_and(|now| {
        let ((was, eyes), (is, four)) = (strict(now), strict(tool));
        is < was || eyes && !four
    });
    if loosens || tool.trusted {
        let said = "may declare a tool `trusted`, or take away its `approval` or `four_eyes`";
        return Err(forbidden(format!("tool `{}`: only a key of scope `admin` {said}", tool.name)));
    }
    Ok(())
}

pub(crate) fn forbidden(said: String) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", said)
}

pub(crate) fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

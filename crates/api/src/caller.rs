//! The caller of a request, its project, and what it may do there (SE-1, SE-2).

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::{ConnectInfo, FromRequestParts, RawPathParams},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use chrono::{DateTime, Utc};
use serde_json::Value;
use waybill_core::{
    artifact::ArtifactPath,
    bus::PMO,
    guard::Guard,
    id::{AgentId, KeyId, Name, ProjectId, Target, WorkerId},
    key::{ApiKey, Bounds, MalformedKey, Scope},
    resource::{Manifest, Tool},
    tool::TOOLS,
    turn::Fence,
};
use waybill_kernel::{
    agent, key, project, resource, turn,
    work::{Actor, UnitOfWork},
};
use waybill_orchestrator::handoff::Sender;

use crate::{
    Access, Api, Peer,
    limit::{Answered, Lane},
    problem::Problem,
    refused::Asker,
    token::Tokens,
};

/// What our own keys begin with.
const PREFIX: &str = "wb_";

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
                    let strict = |tool: &Tool| (tool.approval as u8, tool.four_eyes);
                    let loosens = now.as_ref().is_some_and(|now| {
                        let ((was, eyes), (is, four)) = (strict(now), strict(tool));
                        is < was || eyes && !four
                    });
                    if loosens || tool.trusted {
                        let said = "may declare a tool `trusted`, or take away its `approval` or `four_eyes`";
                        return Err(forbidden(format!("tool `{}`: only a key of scope `admin` {said}", tool.name)));
                    }
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

    /// Returns the id of its key, if it has one: all callers with the same key can be checked with one lookup.
    pub(crate) fn key_id(&self) -> Option<KeyId> {
        match &self.standing {
            Standing::Key(key) => Some(key.key_id()),
            Standing::Token(_) | Standing::Loopback => None,
        }
    }

    /// Checks whether its key or token has been revoked or has expired since. False if that cannot be found out.
    pub(crate) async fn is_shut_out(&self, api: &Api) -> bool {
        match &self.standing {
            Standing::Key(key) => matches!(key::find(&api.kernel, key).await, Ok(None)),
            Standing::Token(ends) => Utc::now().timestamp() >= *ends,
            Standing::Loopback => false,
        }
    }

    /// Returns when its key or token ends. `None` means that it has no end.
    pub(crate) async fn expires_at(&self, api: &Api) -> Result<Option<DateTime<Utc>>, Problem> {
        Ok(match &self.standing {
            Standing::Key(key) => {
                key::show(&mut self.begin(api).await?, key.key_id()).await?.and_then(|key| key.expires_at)
            }
            Standing::Token(ends) => DateTime::from_timestamp(*ends, 0),
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

pub(crate) fn forbidden(said: String) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", said)
}

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Caller, Problem> {
        let params = RawPathParams::from_request_parts(parts, api).await;
        let params = params.map_err(|error| Problem::invalid(error.to_string()))?;
        // `None` means the project of the key or token itself.
        let asked = params.iter().find(|(name, _)| *name == "project").map(|(_, value)| value.to_owned());
        let asked = asked.as_deref();
        let address = peer(parts).map(|peer| peer.ip());
        let asker = parts.extensions.get::<Asker>().cloned().unwrap_or_default();
        let caller = match (bearer(&parts.headers)?, &api.tokens) {
            (None, _) => without_key(api, parts, address, asked).await,
            (Some(token), Some(tokens)) if !token.starts_with(PREFIX) => {
                with_token(api, tokens, token, address, asked).await
            }
            (Some(key), _) => {
                let key = key.parse().map_err(|error: MalformedKey| unauthorized(&error.to_string()))?;
                with_key(api, key, address, asked, &asker).await
            }
        }?;
        asker.is(caller.project_id, Actor { name: caller.actor.clone(), address });
        // For the body, which is read after this.
        parts.extensions.insert(caller.lane);
        Ok(caller)
    }
}

/// Refuses a project that is not the caller's, with the same words as one that never existed.
fn no_project(asked: &str) -> Problem {
    let asked: String = asked.chars().take(80).collect();
    Problem::not_found(format!("project {asked:?} does not exist, or this API key or token has no access to it"))
}

async fn with_key(
    api: &Api,
    key: ApiKey,
    address: Option<IpAddr>,
    asked: Option<&str>,
    asker: &Asker,
) -> Result<Caller, Problem> {
    // A known key waits in its own lane, before the database is asked whether it is still valid.
    let hash = key.hash();
    let known = api.gate.known(&hash);
    match &known {
        Some((lane, name)) => {
            asker.is(lane.project_id, Actor { name: format!("key:{name}"), address });
            api.gate.pass(lane.key_id)?;
        }
        None => api.gate.pass_stranger(address)?,
    }
    let is_known = known.is_some();
    let _place = api.gate.enter(known.map_or(Lane::STRANGERS, |(lane, _)| lane)).await?;
    let Some(holder) = key::find(&api.kernel, &key).await? else {
        api.gate.forget(&hash);
        return Err(unauthorized("this API key does not exist, has expired, or was revoked"));
    };
    asker.is(holder.project_id, Actor { name: format!("key:{}", holder.name), address });
    let lane = Lane { project_id: holder.project_id, key_id: key.key_id() };
    if !is_known {
        api.gate.remember(hash, lane, holder.name.clone());
        api.gate.pass(lane.key_id)?;
    }
    let asked = asked.unwrap_or(&holder.slug);
    let named = asked.parse::<ProjectId>().ok();
    let own = named == Some(holder.project_id) || asked == holder.slug;
    if !own && Guard::Project.stands() {
        return Err(no_project(asked));
    }
    let asked = if own { holder.project_id } else { named.ok_or_else(|| no_project(asked))? };
    Ok(Caller {
        project_id: holder.project_id,
        asked,
        slug: holder.slug,
        scope: holder.scope,
        bounds: holder.bounds,
        actor: format!("key:{}", holder.name),
        address,
        lane,
        standing: Standing::Key(Box::new(key)),
        place: Arc::default(),
    })
}

/// Identifies a caller by a token, which itself says what its holder may do in which project.
async fn with_token(
    api: &Api,
    tokens: &Tokens,
    token: &str,
    address: Option<IpAddr>,
    asked: Option<&str>,
) -> Result<Caller, Problem> {
    let holder = match tokens.read(token).await {
        Ok(holder) => holder,
        Err(problem) => {
            api.gate.pass_stranger(address)?;
            return Err(problem);
        }
    };
    let hashed = |text: &str| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..16]);
        bytes
    };
    let key_id = KeyId::from_bytes(hashed(&holder.subject));
    api.gate.pass(key_id)?;
    let only = holder.scopes.keys().next().filter(|_| holder.scopes.len() == 1);
    let asked = asked.or(only.map(String::as_str)).ok_or_else(|| {
        Problem::invalid("this token names several projects, or none: read `/v1/projects/PROJECT` for one of them")
    })?;
    // A caller never waits in the lane of a project that its token does not name.
    let project_id = match holder.scopes.contains_key(asked) {
        true => ProjectId::from_bytes(hashed(asked)),
        false => ProjectId::nil(),
    };
    let _place = api.gate.enter(Lane { project_id, key_id }).await?;
    let found = find_project(api, asked).await?;
    let scope = found.as_ref().and_then(|(project_id, slug)| {
        holder.scopes.get(&project_id.to_string()).or_else(|| holder.scopes.get(slug)).copied()
    });
    let ((project_id, slug), scope) = found.zip(scope).ok_or_else(|| no_project(asked))?;
    let lane = Lane { project_id, key_id };
    Ok(Caller {
        project_id,
        asked: project_id,
        slug,
        scope,
        bounds: Bounds::default(),
        actor: format!("user:{}", holder.subject),
        address,
        lane,
        standing: Standing::Token(holder.ends),
        place: Arc::default(),
    })
}

/// Finds a project by its slug or its id.
async fn find_project(api: &Api, asked: &str) -> Result<Option<(ProjectId, String)>, Problem> {
    Ok(match asked.parse::<ProjectId>() {
        Ok(project_id) => project::slug(&api.kernel, project_id).await?.map(|slug| (project_id, slug)),
        Err(_) => match project::find(&api.kernel, asked).await {
            Ok(project_id) => Some((project_id, asked.to_owned())),
            Err(project::Error::NotFound(_)) => None,
            Err(error) => return Err(error.into()),
        },
    })
}

/// Accepts a caller without a key, if it is on this machine and the configuration allows that; but not on behalf of a page in a browser.
async fn without_key(
    api: &Api,
    parts: &Parts,
    address: Option<IpAddr>,
    asked: Option<&str>,
) -> Result<Caller, Problem> {
    let here = address.is_some_and(|address| address.is_loopback());
    let may = api.config.access == Access::Loopback && here && names_loopback(&parts.headers);
    let Some(asked) = asked.filter(|_| may) else {
        return Err(unauthorized("send an API key in the header `Authorization: Bearer wb_…`"));
    };
    let _place = api.gate.enter(Lane::STRANGERS).await?;
    let found = find_project(api, asked).await?;
    let (project_id, slug) = found.ok_or_else(|| no_project(asked))?;
    Ok(Caller {
        project_id,
        asked: project_id,
        slug,
        scope: Scope::Admin,
        bounds: Bounds::default(),
        actor: "loopback".to_owned(),
        address,
        lane: Lane { project_id, key_id: KeyId::nil() },
        standing: Standing::Loopback,
        place: Arc::default(),
    })
}

fn peer(parts: &Parts) -> Option<SocketAddr> {
    parts.extensions.get::<ConnectInfo<Peer>>().map(|ConnectInfo(Peer(peer))| *peer)
}

pub(crate) fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(header) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = header.to_str().ok().and_then(|text| text.split_once(' '));
    let token = text.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    token.map(Some).ok_or_else(|| unauthorized("the header `Authorization` must have the form `Bearer wb_…`"))
}

/// Checks that the request names this machine as its host and origin: a page of another origin can make a browser send requests, but not these.
fn names_loopback(headers: &HeaderMap) -> bool {
    let is_loopback = |authority: &str| {
        let host = authority
            .rsplit_once(':')
            .map_or(authority, |(host, port)| if port.bytes().all(|b| b.is_ascii_digit()) { host } else { authority });
        matches!(host, "localhost" | "127.0.0.1" | "[::1]")
    };
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default().to_owned());
    let host = text(header::HOST).is_none_or(|host| is_loopback(&host));
    let origin = text(header::ORIGIN)
        .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, authority)| is_loopback(authority)));
    host && origin
}

//! How a caller is recognised: by a key, a token, the cookie of a browser session, or because it is on this machine.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{ConnectInfo, FromRequestParts, RawPathParams},
    http::{HeaderMap, header, request::Parts},
};
use waybill_core::{
    guard::Guard,
    id::{KeyId, ProjectId},
    key::{ApiKey, Bounds, BrowserSecret, MalformedKey, Scope},
};
use waybill_kernel::{
    browser::{self, Reach},
    key, project,
    work::Actor,
};

use super::{Caller, Standing, USER, forbidden, unauthorized};
use crate::{
    Access, Api, Peer, cookie,
    limit::{Answered, Lane},
    problem::Problem,
    refused::Asker,
    token::Tokens,
};

/// What our own keys begin with.
const PREFIX: &str = "wb_";

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Caller, Problem> {
        let params = RawPathParams::from_request_parts(parts, api).await;
        let params = params.map_err(|error| Problem::invalid(error.to_string()))?;
        // `None` means the project of the key or token itself.
        let asked = params.iter().find(|(name, _)| *name == "project").map(|(_, value)| value.to_owned());
        let asked = asked.as_deref();
        let (address, asker) = (address(parts), asker(parts));
        let caller = match (bearer(&parts.headers)?, &api.tokens) {
            (None, _) => match cookie::session(api, &parts.headers) {
                Some(secret) => {
                    let caller = with_browser(api, &secret, address, asked, &asker).await?;
                    cookie::own_pages_only(api, parts)?;
                    Ok(caller)
                }
                None => without_key(api, parts, address, asked).await,
            },
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
    Problem::not_found(format!(
        "project {asked:?} does not exist, or this API key or token has no access to it: `GET /v1/me` shows the project of a key"
    ))
}

/// Refuses a project that is not the caller's own, and returns the one that was asked for.
fn own_project(own: ProjectId, slug: &str, asked: Option<&str>) -> Result<ProjectId, Problem> {
    let asked = asked.unwrap_or(slug);
    let named = asked.parse::<ProjectId>().ok();
    let is_own = named == Some(own) || asked == slug;
    if !is_own && Guard::Project.stands() {
        return Err(no_project(asked));
    }
    if is_own { Ok(own) } else { named.ok_or_else(|| no_project(asked)) }
}

/// Counts a request against the rate of its key, if this is the hash of a known key or browser session, and otherwise of its address. A known caller
/// waits in its own lane, which is returned, before the database is asked whether it still has access.
pub(crate) fn count(
    api: &Api,
    hash: &[u8; 32],
    address: Option<IpAddr>,
    asker: &Asker,
) -> Result<Option<Lane>, Problem> {
    let Some((lane, name)) = api.gate.known(hash) else {
        api.gate.pass_stranger(address)?;
        return Ok(None);
    };
    api.gate.pass(lane.key_id).inspect_err(|_| asker.is(lane.project_id, Actor { name, address }))?;
    Ok(Some(lane))
}

pub(crate) async fn with_key(
    api: &Api,
    key: ApiKey,
    address: Option<IpAddr>,
    asked: Option<&str>,
    asker: &Asker,
) -> Result<Caller, Problem> {
    let hash = key.hash();
    let known = count(api, &hash, address, asker)?;
    let _place = api.gate.enter(known.unwrap_or(Lane::STRANGERS)).await?;
    let Some(holder) = key::find(&api.kernel, &key).await? else {
        api.gate.forget(&hash);
        return Err(unauthorized("this API key does not exist, has expired, or was revoked"));
    };
    let actor = format!("key:{}", holder.name);
    asker.is(holder.project_id, Actor { name: actor.clone(), address });
    let lane = Lane { project_id: holder.project_id, key_id: key.key_id() };
    if known.is_none() {
        api.gate.remember(hash, lane, actor.clone());
        api.gate.pass(lane.key_id)?;
    }
    let asked = own_project(holder.project_id, &holder.slug, asked)?;
    Ok(Caller {
        project_id: holder.project_id,
        asked,
        slug: holder.slug,
        scope: holder.scope,
        bounds: holder.bounds,
        actor,
        address,
        lane,
        standing: Standing::Key(Box::new(key)),
        place: Arc::default(),
    })
}

/// Identifies a caller by its browser session, which has the rights of a key, or those that an identity had at login.
async fn with_browser(
    api: &Api,
    secret: &BrowserSecret,
    address: Option<IpAddr>,
    asked: Option<&str>,
    asker: &Asker,
) -> Result<Caller, Problem> {
    let hash = secret.hash();
    let known = count(api, &hash, address, asker)?;
    let _place = api.gate.enter(known.unwrap_or(Lane::STRANGERS)).await?;
    let mut found = browser::find(&api.kernel, &hash).await?;
    if asked.is_none() && found.len() > 1 {
        return Err(Problem::invalid("this login reaches several projects: read `/ui/session`, which lists them"));
    }
    let named = asked.and_then(|asked| asked.parse::<ProjectId>().ok());
    let is_asked = |reach: &Reach| named == Some(reach.project_id) || asked == Some(reach.slug.as_str());
    let at = found.iter().position(is_asked).unwrap_or_default();
    if found.is_empty() {
        api.gate.forget(&hash);
        return Err(unauthorized("this browser session has ended: log in again"));
    }
    let Reach { project_id, slug, key_id, actor, scope, bounds, expires_at } = found.swap_remove(at);
    asker.is(project_id, Actor { name: actor.clone(), address });
    let key_id = key_id.unwrap_or_else(|| subject_id(actor.strip_prefix(USER).unwrap_or(&actor)));
    let lane = Lane { project_id, key_id };
    if known.is_none() {
        api.gate.remember(hash, lane, actor.clone());
        api.gate.pass(lane.key_id)?;
    }
    let asked = own_project(project_id, &slug, asked)?;
    let standing = Standing::Browser(hash, expires_at);
    Ok(Caller { project_id, asked, slug, scope, bounds, actor, address, lane, standing, place: Arc::default() })
}

pub(super) fn short(hash: &[u8; 32]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    bytes
}

/// What the requests of an identity are counted under, as those of a key are under its id.
fn subject_id(subject: &str) -> KeyId {
    KeyId::from_bytes(short(blake3::hash(subject.as_bytes()).as_bytes()))
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
    let key_id = subject_id(&holder.subject);
    api.gate.pass(key_id)?;
    let only = holder.scopes.keys().next().filter(|_| holder.scopes.len() == 1);
    let asked = asked.or(only.map(String::as_str)).ok_or_else(|| {
        Problem::invalid("this token names several projects, or none: read `/v1/projects/PROJECT` for one of them")
    })?;
    // A caller never waits in the lane of a project that its token does not name.
    let project_id = match holder.scopes.contains_key(asked) {
        true => ProjectId::from_bytes(short(blake3::hash(asked.as_bytes()).as_bytes())),
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
        actor: format!("{USER}{}", holder.subject),
        address,
        lane,
        standing: Standing::Token(holder.ends),
        place: Arc::default(),
    })
}

/// Finds a project by its slug or its id.
pub(crate) async fn find_project(api: &Api, asked: &str) -> Result<Option<(ProjectId, String)>, Problem> {
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
pub(crate) async fn without_key(
    api: &Api,
    parts: &Parts,
    address: Option<IpAddr>,
    asked: Option<&str>,
) -> Result<Caller, Problem> {
    let Some(asked) = asked.filter(|_| is_here(api, parts, address)) else {
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

/// Refuses a caller without a key, unless it is on this machine and the configuration lets such callers do everything.
pub(crate) fn here(api: &Api, parts: &Parts, address: Option<IpAddr>) -> Result<(), Problem> {
    let said = "send a key of scope `recorder`: in the header `x-waybill-key`, or in the URL, in place of the project";
    if is_here(api, parts, address) { Ok(()) } else { Err(unauthorized(said)) }
}

/// Checks whether a caller is on this machine, and the configuration lets such callers do everything.
fn is_here(api: &Api, parts: &Parts, address: Option<IpAddr>) -> bool {
    let here = address.is_some_and(|address| address.is_loopback());
    api.config.access == Access::Loopback && here && cookie::names_loopback(&parts.headers)
}

/// A caller on this machine that asks for no project, where the configuration lets such callers do everything.
pub(crate) struct Here {
    pub(crate) actor: Actor,
    /// Its slot among the requests that are answered.
    _place: Answered,
}

impl FromRequestParts<Arc<Api>> for Here {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Here, Problem> {
        let address = address(parts);
        if !is_here(api, parts, address) {
            let said = "only `waybill dev` manages projects over HTTP, and only for callers on its own machine: use `waybill project`";
            return Err(forbidden(said.to_owned()));
        }
        let place = api.gate.enter(Lane::STRANGERS).await?;
        parts.extensions.insert(Lane::STRANGERS);
        Ok(Here { actor: Actor { name: "loopback".to_owned(), address }, _place: place })
    }
}

/// Returns the address that a request comes from.
pub(crate) fn address(parts: &Parts) -> Option<IpAddr> {
    parts.extensions.get::<ConnectInfo<Peer>>().map(|ConnectInfo(Peer(peer))| peer.ip())
}

pub(crate) fn asker(parts: &Parts) -> Asker {
    parts.extensions.get::<Asker>().cloned().unwrap_or_default()
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(header) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = header.to_str().ok().and_then(|text| text.split_once(' '));
    let token = text.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    token.map(Some).ok_or_else(|| unauthorized("the header `Authorization` must have the form `Bearer wb_…`"))
}

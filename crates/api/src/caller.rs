//! Who asks, in which project, and what they may do (SE-1, SE-2).

use std::sync::Arc;

use axum::{
    extract::{ConnectInfo, FromRequestParts, RawPathParams},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use waybill_core::{
    id::{KeyId, ProjectId},
    key::{ApiKey, MalformedKey, Scope},
};
use waybill_kernel::{key, project, work::UnitOfWork};

use crate::{Access, Api, Peer, problem::Problem, token::Tokens};

/// What our own keys begin with.
const PREFIX: &str = "wb_";

/// Whoever asks, in the project they ask for.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The project of the key.
    pub(crate) project_id: ProjectId,
    /// The project that was asked for. Another one only where a test says that callers are trusted.
    pub(crate) asked: ProjectId,
    pub(crate) slug: String,
    pub(crate) scope: Scope,
    /// For the audit: `key:NAME`.
    pub(crate) actor: String,
}

impl Caller {
    /// Whether the key may do what needs one of these scopes. An admin may do everything.
    pub(crate) fn may(&self, scopes: &[Scope]) -> Result<(), Problem> {
        if self.scope == Scope::Admin || scopes.contains(&self.scope) {
            return Ok(());
        }
        let allowed: Vec<&str> = scopes.iter().chain([&Scope::Admin]).map(|scope| scope.as_str()).collect();
        let said =
            format!("a key of scope `{}` may not do this: it takes one of {}", self.scope.as_str(), allowed.join(", "));
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", said))
    }

    /// Reading is for everybody but those that only answer calls.
    pub(crate) fn may_read(&self) -> Result<(), Problem> {
        self.may(&[Scope::Operator, Scope::Worker, Scope::Reader])
    }

    /// Whose sessions it may see; none: everybody's.
    pub(crate) fn owner(&self) -> Option<String> {
        (self.scope != Scope::Admin).then(|| self.actor.clone())
    }

    pub(crate) async fn begin(&self, api: &Api) -> Result<UnitOfWork, Problem> {
        if self.asked != self.project_id {
            return Ok(api.kernel.begin_mistaken(self.project_id, self.asked).await?);
        }
        Ok(api.kernel.begin(self.project_id).await?)
    }
}

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Caller, Problem> {
        let params = RawPathParams::from_request_parts(parts, api).await;
        let params = params.map_err(|error| Problem::invalid(error.to_string()))?;
        let asked = params.iter().find(|(name, _)| *name == "project").map(|(_, value)| value.to_owned());
        let asked = asked.unwrap_or_default();
        match (bearer(&parts.headers)?, &api.tokens) {
            (None, _) => without_key(api, parts, &asked).await,
            (Some(token), Some(tokens)) if !token.starts_with(PREFIX) => with_token(api, tokens, token, &asked).await,
            (Some(key), _) => {
                let key = key.parse().map_err(|error: MalformedKey| unauthorized(&error.to_string()))?;
                with_key(api, &key, &asked).await
            }
        }
    }
}

/// The same words for what is another project's and for what never was.
fn no_project(asked: &str) -> Problem {
    let asked: String = asked.chars().take(80).collect();
    Problem::not_found(format!("there is no project {asked:?} for this key"))
}

async fn with_key(api: &Api, key: &ApiKey, asked: &str) -> Result<Caller, Problem> {
    let holder = key::find(&api.kernel, key).await?;
    let holder = holder.ok_or_else(|| unauthorized("there is no such key, or it has expired or was revoked"))?;
    api.gate.pass(key.key_id())?;
    let named = asked.parse::<ProjectId>().ok();
    let own = named == Some(holder.project_id) || asked == holder.slug;
    if !own && !api.config.trusting {
        return Err(no_project(asked));
    }
    let asked = if own { holder.project_id } else { named.ok_or_else(|| no_project(asked))? };
    Ok(Caller {
        project_id: holder.project_id,
        asked,
        slug: holder.slug,
        scope: holder.scope,
        actor: format!("key:{}", holder.name),
    })
}

/// A token says itself what its holder may do in which project.
async fn with_token(api: &Api, tokens: &Tokens, token: &str, asked: &str) -> Result<Caller, Problem> {
    let holder = tokens.read(token).await?;
    let mut name = [0; 16];
    name.copy_from_slice(&blake3::hash(holder.subject.as_bytes()).as_bytes()[..16]);
    api.gate.pass(KeyId::from_bytes(name))?;
    let found = find_project(api, asked).await?;
    let scope = found.as_ref().and_then(|(_, slug)| holder.scopes.get(slug)).copied();
    let ((project_id, slug), scope) = found.zip(scope).ok_or_else(|| no_project(asked))?;
    Ok(Caller { project_id, asked: project_id, slug, scope, actor: format!("user:{}", holder.subject) })
}

/// By its slug or its id.
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

/// On the machine itself, where that was said to be enough; and not on behalf of a page that a browser shows.
async fn without_key(api: &Api, parts: &Parts, asked: &str) -> Result<Caller, Problem> {
    let peer = parts.extensions.get::<ConnectInfo<Peer>>();
    let here = peer.is_some_and(|ConnectInfo(Peer(peer))| peer.ip().is_loopback());
    if api.config.access != Access::Loopback || !here || !names_loopback(&parts.headers) {
        return Err(unauthorized("send a key: `Authorization: Bearer wb_…`"));
    }
    let found = find_project(api, asked).await?;
    let (project_id, slug) = found.ok_or_else(|| no_project(asked))?;
    Ok(Caller { project_id, asked: project_id, slug, scope: Scope::Admin, actor: "loopback".to_owned() })
}

pub(crate) fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(header) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = header.to_str().ok().and_then(|text| text.split_once(' '));
    let token = text.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    token.map(Some).ok_or_else(|| unauthorized("the header is `Authorization: Bearer wb_…`"))
}

/// A page of another origin can make a browser ask, but not in our name.
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

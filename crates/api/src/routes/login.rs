//! Logging in and out with a browser (SE-11): with an API key, or with the identity provider.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use axum::{
    extract::{FromRequestParts, State},
    http::{StatusCode, header, request::Parts},
    response::{AppendHeaders, IntoResponse, Json, Response},
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use waybill_core::{
    id::ProjectId,
    key::{ApiKey, BrowserSecret, MalformedKey, Scope},
};
use waybill_kernel::{
    audit,
    browser::{self, Reach},
    work::Actor,
};

use crate::{
    Api,
    caller::{USER, address, asker, count, find_project, forbidden, unauthorized, with_key},
    cookie::{self, Sent},
    limit::Lane,
    login::{self, Client},
    problem::Problem,
    request::{Body, Query},
    token::{Holder, Tokens},
    write::Once,
};

/// How long a login with the identity provider may take, in seconds.
const LOGIN_SECONDS: i64 = 600;
/// The most projects that one login reaches.
const MOST_PROJECTS: usize = 100;

/// The head of a request whose caller is not known yet.
pub(crate) struct Visitor(Parts);

impl FromRequestParts<Arc<Api>> for Visitor {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Visitor, Infallible> {
        // For the body, which is read after this.
        parts.extensions.insert(Lane::STRANGERS);
        Ok(Visitor(parts.clone()))
    }
}

/// The key to log in with.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogIn {
    /// API key: `wb_…`.
    key: String,
}

/// A browser session: who has logged in, and what they may do in which project.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Login {
    /// Who logged in, as the audit names it: `key:NAME` or `user:SUBJECT`.
    actor: String,
    /// Projects that the session reaches. With an API key, its own project.
    projects: Vec<LoginProject>,
    /// When the session ends: after 12 hours, or when its key or the login at the identity provider ends.
    expires_at: DateTime<Utc>,
}

/// A project that a browser session reaches.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoginProject {
    /// Id of the project.
    project_id: ProjectId,
    /// Slug of the project.
    slug: String,
    /// What the session may do there.
    scope: Scope,
}

impl Login {
    /// `None` if the session reaches no project: it has ended.
    fn of(found: Vec<Reach>) -> Option<Login> {
        let first = found.first()?;
        let (actor, expires_at) = (first.actor.clone(), first.expires_at);
        let project = |Reach { project_id, slug, scope, .. }: Reach| LoginProject { project_id, slug, scope };
        Some(Login { actor, projects: found.into_iter().map(project).collect(), expires_at })
    }
}

/// Log in with an API key. The session has the scope and bounds of the key, for 12 hours at most, and ends with the key.
///
/// The response sets a cookie, which replaces the header `Authorization`. With the cookie, a request that changes something must have
/// `Sec-Fetch-Site: same-origin`, or an `Origin` that is this server's: browsers send them by themselves.
#[utoipa::path(
    post, path = "/ui/session", tag = "browser", request_body = LogIn, security(()),
    responses((status = 200, body = Login, headers(("Set-Cookie" = String, description = "The cookie of the session.")))),
)]
pub(crate) async fn log_in(
    State(api): State<Arc<Api>>,
    Visitor(parts): Visitor,
    once: Once,
    Body { value: LogIn { key }, .. }: Body<LogIn>,
) -> Result<Response, Problem> {
    cookie::no_other_pages(&api, &parts)?;
    once.refuse("leave out this header, because the cookie of a login cannot be sent again")?;
    let key: ApiKey = key.parse().map_err(|error: MalformedKey| unauthorized(&error.to_string()))?;
    let key_id = key.key_id();
    let caller = with_key(&api, key, address(&parts), None, &asker(&parts)).await?;
    let secret = BrowserSecret::mint();
    let mut work = caller.begin(&api).await?;
    let expires_at = browser::open(&mut work, &secret, key_id).await?.ok_or_else(|| {
        let said =
            "1,000 browsers are logged in to this project: log out of some of them, or wait until their sessions end";
        Problem::busy("quota", said, 60)
    })?;
    let detail = json!({ "expires_at": expires_at });
    audit::record(&mut work, &caller.actor, "browser.login", &key_id.to_string(), &detail).await?;
    work.commit().await?;
    let project = LoginProject { project_id: caller.project_id, slug: caller.slug, scope: caller.scope };
    let login = Login { actor: caller.actor, projects: vec![project], expires_at };
    Ok(answer(login, Some(session_cookie(&api, &secret, expires_at))))
}

/// Show the browser session: who has logged in, and what they may do in which project.
#[utoipa::path(
    get, path = "/ui/session", tag = "browser", security(("cookie" = [])),
    responses((status = 200, body = Login)),
)]
pub(crate) async fn show_login(State(api): State<Arc<Api>>, Visitor(parts): Visitor) -> Response {
    let found = session(&api, &parts).await;
    let answer = found.and_then(|(_, found)| Ok(answer(Login::of(found).ok_or_else(ended)?, None))).into_response();
    if answer.status() != StatusCode::UNAUTHORIZED {
        return answer;
    }
    // A cookie that says nothing any more, or that another server of this machine set, would keep its browser out of `waybill dev`.
    let removed = cookie::set(&api, cookie::SESSION, "", 0, Sent::Strict);
    (AppendHeaders([(header::SET_COOKIE, removed)]), answer).into_response()
}

/// Log out: end the browser session, and its streams.
#[utoipa::path(
    delete, path = "/ui/session", tag = "browser", security(("cookie" = [])),
    responses((status = 200, body = Login, headers(("Set-Cookie" = String, description = "Removes the cookie.")))),
)]
pub(crate) async fn log_out(State(api): State<Arc<Api>>, Visitor(parts): Visitor) -> Result<Response, Problem> {
    let (hash, found) = session(&api, &parts).await?;
    let _place = api.gate.enter(Lane::STRANGERS).await?;
    for reach in &found {
        let actor = Actor { name: reach.actor.clone(), address: address(&parts) };
        let subject = reach.key_id.map_or_else(|| reach.actor.clone(), |key_id| key_id.to_string());
        let mut work = api.kernel.begin_as(reach.project_id, &actor).await?;
        if browser::end(&mut work, &hash).await? {
            audit::record(&mut work, &actor.name, "browser.logout", &subject, &json!({})).await?;
            work.commit().await?;
        }
    }
    let removed = cookie::set(&api, cookie::SESSION, "", 0, Sent::Strict);
    Ok(answer(Login::of(found).ok_or_else(ended)?, Some(removed)))
}

/// Returns the hash of the browser's session, and what it reaches.
async fn session(api: &Api, parts: &Parts) -> Result<([u8; 32], Vec<Reach>), Problem> {
    let (address, secret) = (address(parts), cookie::session(api, &parts.headers));
    let hash = secret.ok_or_else(ended)?.hash();
    let known = count(api, &hash, address, &asker(parts))?;
    let _place = api.gate.enter(known.unwrap_or(Lane::STRANGERS)).await?;
    let found = browser::find(&api.kernel, &hash).await?;
    let first = found.first().ok_or_else(ended)?;
    asker(parts).is(first.project_id, Actor { name: first.actor.clone(), address });
    cookie::own_pages_only(api, parts)?;
    Ok((hash, found))
}

fn ended() -> Problem {
    unauthorized("this browser has not logged in, or its session has ended: log in")
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LoginParams {
    /// Where to go afterwards: a path below `/ui/`. If omitted, `/ui/`.
    #[param(max_length = 1000, pattern = "^/ui/")]
    next: Option<String>,
}

/// Log in with the identity provider. Sends the browser to the provider's login page.
///
/// For this, the server needs a client id: `waybill serve --oidc-client-id`.
#[utoipa::path(
    get, path = "/ui/login", tag = "browser", params(LoginParams), security(()),
    responses((status = 302, description = "To the login page of the identity provider.")),
)]
pub(crate) async fn begin_login(
    State(api): State<Arc<Api>>,
    Visitor(parts): Visitor,
    Query(params): Query<LoginParams>,
) -> Result<Response, Problem> {
    let (tokens, client) = provider(&api)?;
    api.gate.pass_stranger(address(&parts))?;
    let next = login::local(params.next.as_deref().unwrap_or("/ui/"));
    let next =
        next.ok_or_else(|| Problem::invalid("`next` must be a path below `/ui/`, of at most 1,000 characters"))?;
    let secret = BrowserSecret::mint();
    let location = login::begin(tokens, client, &callback(&api, &parts)?, &secret).await?;
    let value = format!("{}.{next}", secret.expose());
    Ok(redirect(location, vec![cookie::set(&api, cookie::LOGIN, &value, LOGIN_SECONDS, Sent::Lax)]))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CallbackParams {
    /// Code of the identity provider.
    code: Option<String>,
    /// State that the login began with.
    state: Option<String>,
    /// Issuer, if the identity provider names itself.
    iss: Option<String>,
}

/// Finish a login. The identity provider sends the browser here.
///
/// The session may do what the ID token says, in each project that it names, until the token expires, and for 12 hours at most.
#[utoipa::path(
    get, path = "/ui/callback", tag = "browser", params(CallbackParams), security(()),
    responses((
        status = 302, description = "To where the login was begun from.",
        headers(("Set-Cookie" = String, description = "The cookie of the session.")),
    )),
)]
pub(crate) async fn finish_login(
    State(api): State<Arc<Api>>,
    Visitor(parts): Visitor,
    Query(params): Query<CallbackParams>,
) -> Result<Response, Problem> {
    let (tokens, client) = provider(&api)?;
    api.gate.pass_stranger(address(&parts))?;
    let begun = cookie::read(&api, &parts.headers, cookie::LOGIN).and_then(|value| value.split_once('.'));
    let begun = begun.and_then(|(secret, next)| Some((secret.parse::<BrowserSecret>().ok()?, login::local(next)?)));
    let (secret, next) = begun.ok_or_else(|| {
        unauthorized("this browser has not begun a login, or did so more than ten minutes ago: begin at `/ui/login`")
    })?;
    let hash = |text: &str| blake3::hash(text.as_bytes());
    let is_ours = params.state.is_some_and(|state| hash(&state) == hash(&secret.derive("state")));
    if !is_ours || params.iss.is_some_and(|iss| iss != tokens.identity.issuer) {
        return Err(unauthorized("this is not the login that this browser has begun: begin again at `/ui/login`"));
    }
    let code = params.code.ok_or_else(|| {
        unauthorized("the identity provider did not log you in: begin again at `/ui/login`, or ask its administrator")
    })?;
    let holder = login::finish(tokens, client, &callback(&api, &parts)?, &secret, &code).await?;
    let (session, expires_at) = open(&api, &parts, &holder).await?;
    let removed = cookie::set(&api, cookie::LOGIN, "", 0, Sent::Lax);
    Ok(redirect(next, vec![session_cookie(&api, &session, expires_at), removed]))
}

/// Opens a session of an identity, in each of its projects.
async fn open(api: &Api, parts: &Parts, holder: &Holder) -> Result<(BrowserSecret, DateTime<Utc>), Problem> {
    let actor = Actor { name: format!("{USER}{}", holder.subject), address: address(parts) };
    let latest = Utc::now() + browser::LONGEST;
    let until = DateTime::from_timestamp(holder.ends, 0).unwrap_or(latest).min(latest);
    let _place = api.gate.enter(Lane::STRANGERS).await?;
    let (session, mut expires_at) = (BrowserSecret::mint(), None);
    for (project_id, scope) in projects(api, holder).await? {
        let mut work = api.kernel.begin_as(project_id, &actor).await?;
        let ends = browser::open_as(&mut work, &session, &actor.name, scope, until).await?;
        let detail = json!({ "scope": scope, "expires_at": ends });
        audit::record(&mut work, &actor.name, "browser.login", &actor.name, &detail).await?;
        work.commit().await?;
        expires_at = Some(ends);
    }
    let expires_at = expires_at.ok_or_else(|| {
        forbidden(
            "the identity provider gives you no access to a project of this server: ask its administrator".to_owned(),
        )
    })?;
    Ok((session, expires_at))
}

/// Returns the projects that an identity reaches. One that is named by its id and by its slug has the scope of its id.
async fn projects(api: &Api, holder: &Holder) -> Result<BTreeMap<ProjectId, Scope>, Problem> {
    if holder.scopes.len() > MOST_PROJECTS {
        return Err(forbidden(format!("the identity provider names more than {MOST_PROJECTS} projects")));
    }
    let mut named: Vec<(&String, &Scope)> = holder.scopes.iter().collect();
    named.sort_by_key(|(name, _)| name.parse::<ProjectId>().is_ok());
    let mut projects = BTreeMap::new();
    for (name, scope) in named {
        if let Some((project_id, _)) = find_project(api, name).await? {
            projects.insert(project_id, *scope);
        }
    }
    Ok(projects)
}

/// Returns the identity provider, if browsers can log in with it.
fn provider(api: &Api) -> Result<(&Tokens, &Client), Problem> {
    let tokens = api.tokens.as_ref();
    let found = tokens.and_then(|tokens| Some((tokens, tokens.identity.client.as_ref()?)));
    found.ok_or_else(|| Problem::not_found("this server has no identity provider for browsers: log in with an API key"))
}

/// Returns the address that the identity provider sends browsers to.
fn callback(api: &Api, parts: &Parts) -> Result<String, Problem> {
    let origin = cookie::origin(api, &parts.uri, &parts.headers);
    origin.map(|origin| format!("{origin}/ui/callback")).ok_or_else(|| Problem::invalid("send the header `Host`"))
}

fn session_cookie(api: &Api, secret: &BrowserSecret, expires_at: DateTime<Utc>) -> String {
    let seconds = (expires_at - Utc::now()).num_seconds().max(0);
    cookie::set(api, cookie::SESSION, secret.expose(), seconds, Sent::Strict)
}

fn answer(login: Login, cookie: Option<String>) -> Response {
    let cookie = AppendHeaders(cookie.map(|cookie| (header::SET_COOKIE, cookie)));
    ([(header::CACHE_CONTROL, "no-store")], cookie, Json(login)).into_response()
}

fn redirect(to: String, cookies: Vec<String>) -> Response {
    let cookies = AppendHeaders(cookies.into_iter().map(|cookie| (header::SET_COOKIE, cookie)));
    let headers = [(header::LOCATION, to), (header::CACHE_CONTROL, "no-store".to_owned())];
    (StatusCode::FOUND, headers, cookies).into_response()
}

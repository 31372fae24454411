//! What a project has: profiles, tools, plans, settings, agents, keys; and the audit of who managed what.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Json};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use waybill_core::{
    id::{AgentId, AuditId, KeyId, Name},
    key::{ApiKey, Bounds, Scope},
    resource::{Manifest, Plan, Profile, Settings},
};
use waybill_kernel::{
    agent::{self, Head, Listed as Agent, NewAgent, Stay},
    audit::{self, Entry},
    handover,
    key::{self, Listed as Key},
    project::Project,
    register,
    resource::{self, Applied, Listed},
};
use waybill_tool::check::check_manifest;

use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Page, Path, Query, and_one, most, not_too_many},
    write::{Once, OnceParams},
};

/// The caller of a request, and what it may do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Me {
    /// Who the caller is, as the audit names it: `key:NAME` or `user:SUBJECT`.
    actor: String,
    /// What the caller may do.
    scope: Scope,
    /// What its key is for, beside its scope.
    bounds: Bounds,
    /// Its project.
    project: Project,
    /// When its key or token ends. `null` if it has no end.
    expires_at: Option<DateTime<Utc>>,
}

/// Show the caller: its key, what it may do, in which project, and until when.
///
/// A token that names several projects is refused.
#[utoipa::path(
    get, path = "/v1/me", tag = "resources",
    responses((status = 200, body = Me)),
)]
pub(crate) async fn show_me(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Me>, Problem> {
    let expires_at = caller.expires_at(&api).await?;
    let Caller { actor, scope, bounds, project_id, slug, .. } = caller;
    Ok(Json(Me { actor, scope, bounds, project: Project { project_id, slug }, expires_at }))
}

/// Show the id and the slug of the project that your API key belongs to.
#[utoipa::path(
    get, path = "/", tag = "resources",
    responses((status = 200, body = Project)),
)]
pub(crate) async fn show_project(caller: Caller) -> Json<Project> {
    Json(Project { project_id: caller.project_id, slug: caller.slug })
}

/// Manifests of the resources to create or change.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Apply {
    /// Manifests, each `{"profile": …}`, `{"tool": …}`, `{"plan": …}`, `{"handoff_type": …}` or `{"settings": …}`.
    #[schema(max_items = 1000)]
    manifests: Vec<Manifest>,
    /// If true, nothing is written: the response shows what would change. If omitted, false.
    #[serde(default)]
    dry_run: bool,
}

/// Create or change profiles, tools, plans, handoff types and settings: all of them, or none if one is refused.
///
/// Applying the same manifests again changes nothing.
#[utoipa::path(
    post, path = "/resources", tag = "resources", request_body = Apply,
    params(OnceParams),
    responses((status = 200, body = Vec<Applied>)),
)]
pub(crate) async fn apply_resources(
    State(api): State<Arc<Api>>,
    caller: Caller,
    once: Once,
    Body { value: Apply { manifests, dry_run }, bytes, .. }: Body<Apply>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Developer])?;
    not_too_many("manifests", &manifests)?;
    for manifest in &manifests {
        check_manifest(manifest).map_err(Problem::invalid)?;
    }
    if dry_run {
        let mut work = caller.begin(&api).await?;
        caller.may_apply(&mut work, &manifests).await?;
        let applied = resource::apply(&mut work, &manifests).await?;
        return serde_json::to_value(applied).map(Json).map_err(Problem::internal);
    }
    let acting = caller.clone();
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            acting.may_apply(work, &manifests).await?;
            let applied = resource::apply(work, &manifests).await?;
            audit::applied(work, &acting.actor, &applied).await?;
            Ok(applied)
        })
    })
    .await
}

/// List all resources of the project, by kind and name.
#[utoipa::path(
    get, path = "/resources", tag = "resources",
    responses((status = 200, body = Vec<Listed>)),
)]
pub(crate) async fn list_resources(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Vec<Listed>>, Problem> {
    caller.may_audit()?;
    Ok(Json(resource::list(&mut caller.begin(&api).await?).await?))
}

#[derive(Debug, Deserialize)]
pub(crate) struct Named {
    pub(super) name: Name,
}

/// Show the manifest of a profile, in its newest version.
#[utoipa::path(
    get, path = "/profiles/{name}", tag = "resources", params(("name" = Name, Path)),
    responses((status = 200, body = Profile)),
)]
pub(crate) async fn show_profile(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(Named { name }): Path<Named>,
) -> Result<Json<Profile>, Problem> {
    caller.may_read()?;
    Ok(Json(resource::profile(&mut caller.begin(&api).await?, &name).await?.profile))
}

/// The profile that was removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedProfile {
    /// Name of the profile.
    name: Name,
}

/// Remove a profile that no other profile names and that has no open turn.
///
/// Turns that have ended keep the version that they ran with. A key of scope `developer` removes profiles whose `worker_target` is among its targets.
#[utoipa::path(
    delete, path = "/profiles/{name}", tag = "resources",
    params(("name" = Name, Path), OnceParams),
    responses((status = 200, body = RemovedProfile)),
)]
pub(crate) async fn remove_profile(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(Named { name }): Path<Named>,
    once: Once,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Developer])?;
    let acting = caller.clone();
    once.write(&api, &caller, &[], move |work| {
        Box::pin(async move {
            let now = resource::profile(work, &name).await?.profile;
            acting.may_apply(work, &[Manifest::Profile(Box::new(now))]).await?;
            let target = register::remove_profile(work, &name).await?;
            let subject = format!("profile/{name}");
            audit::record(work, &acting.actor, "resource.remove", &subject, &json!({ "target": target })).await?;
            Ok(RemovedProfile { name })
        })
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PlanParams {
    /// Version of the plan. If omitted, the newest.
    version: Option<i32>,
}

/// Show the manifest of a plan.
#[utoipa::path(
    get, path = "/plans/{name}", tag = "resources", params(("name" = Name, Path), PlanParams),
    responses((status = 200, body = Plan)),
)]
pub(crate) async fn show_plan(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(Named { name }): Path<Named>,
    Query(params): Query<PlanParams>,
) -> Result<Json<Plan>, Problem> {
    caller.may_read()?;
    Ok(Json(resource::plan(&mut caller.begin(&api).await?, &name, params.version).await?.1))
}

/// Show the settings of the project.
#[utoipa::path(
    get, path = "/settings", tag = "resources",
    responses((status = 200, body = Settings)),
)]
pub(crate) async fn show_settings(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Settings>, Problem> {
    caller.may_read()?;
    Ok(Json(resource::settings(&mut caller.begin(&api).await?).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AgentParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<AgentId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the agents of the project with their status. Retired agents are left out.
#[utoipa::path(
    get, path = "/agents", tag = "resources", params(AgentParams),
    responses((status = 200, body = Page<Agent>)),
)]
pub(crate) async fn list_agents(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<AgentParams>,
) -> Result<Json<Page<Agent>>, Problem> {
    caller.may_audit()?;
    let n = most(params.most)?;
    let listed = agent::list(&mut caller.begin(&api).await?, params.after, and_one(n)).await?;
    Ok(Json(Page::new(listed, n, |agent| agent.agent_id)))
}

/// The permanent agent to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Provision {
    /// Profile of the new agent.
    profile_name: Name,
}

/// The agent that was added.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Provisioned {
    /// Id of the new agent.
    agent_id: AgentId,
}

/// Add a permanent agent to the project.
///
/// It stays in the project also while it has no work. It remembers its earlier turns, except those in sessions.
#[utoipa::path(
    post, path = "/agents", tag = "resources", request_body = Provision,
    params(OnceParams),
    responses((status = 200, body = Provisioned)),
)]
pub(crate) async fn provision_agent(
    State(api): State<Arc<Api>>,
    caller: Caller,
    once: Once,
    Body { value: Provision { profile_name }, bytes, .. }: Body<Provision>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    caller.may_start(&profile_name)?;
    let actor = caller.actor.clone();
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            let made = NewAgent::of(AgentId::new(), &handover::target(work, &profile_name).await?);
            agent::provision(work, std::slice::from_ref(&made), Stay::Long, None).await?;
            let detail = json!({ "profile_name": profile_name });
            audit::record(work, &actor, "agent.provision", &made.agent_id.to_string(), &detail).await?;
            Ok(Provisioned { agent_id: made.agent_id })
        })
    })
    .await
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneAgent {
    agent: AgentId,
}

/// Show the status of an agent, its current turn, and how many of its turns are queued.
///
/// An agent that was created for a task has a status only while it has work. Without work, the response is 404 `not_found`.
#[utoipa::path(
    get, path = "/agents/{agent}", tag = "resources", params(("agent" = AgentId, Path)),
    responses((status = 200, body = Head)),
)]
pub(crate) async fn show_agent(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneAgent { agent: agent_id }): Path<OneAgent>,
) -> Result<Json<Head>, Problem> {
    caller.may_audit()?;
    let head = agent::find(&mut caller.begin(&api).await?, agent_id).await?;
    head.map(Json).ok_or_else(|| {
        Problem::not_found(format!("agent {agent_id} does not exist in this project, or has never had a turn"))
    })
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeyParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<KeyId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the API keys of the project, including revoked ones.
///
/// The keys themselves cannot be shown: the server stores only their hashes.
#[utoipa::path(
    get, path = "/keys", tag = "resources", params(KeyParams),
    responses((status = 200, body = Page<Key>)),
)]
pub(crate) async fn list_keys(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<KeyParams>,
) -> Result<Json<Page<Key>>, Problem> {
    caller.may(&[Scope::Auditor])?;
    let n = most(params.most)?;
    let listed = key::list(&mut caller.begin(&api).await?, params.after, and_one(n)).await?;
    Ok(Json(Page::new(listed, n, |key| key.key_id)))
}

/// The API key to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateKey {
    /// Name of the key. At most two valid keys can have the same name, so that a new key can replace an old one.
    name: Name,
    /// Scope of the key: what it may do.
    scope: Scope,
    /// Limits what the key may do within its scope. Keys of scope `worker`, `tool` and `developer` must list their `targets`. If omitted, there are
    /// no further limits.
    #[serde(default)]
    bounds: Bounds,
    /// Seconds until the key expires. If omitted, it is valid until it is revoked.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 315360000)]
    expires_in_seconds: Option<u32>,
}

/// The API key that was created.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedKey {
    #[serde(flatten)]
    listed: Key,
    /// The key itself. It is shown only once.
    key: String,
}

/// Create an API key.
///
/// The key is shown only in this response, so a request with an `Idempotency-Key` is refused. If the response is lost, revoke the key and create
/// another one.
#[utoipa::path(
    post, path = "/keys", tag = "resources", request_body = CreateKey,
    responses((status = 200, body = CreatedKey)),
)]
pub(crate) async fn create_key(
    State(api): State<Arc<Api>>,
    caller: Caller,
    once: Once,
    Body { value, .. }: Body<CreateKey>,
) -> Result<Json<CreatedKey>, Problem> {
    caller.may(&[])?;
    once.refuse("leave out this header, because a new API key is shown only once and its response cannot be repeated")?;
    if value.expires_in_seconds.is_some_and(|seconds| !(1..=315_360_000).contains(&seconds)) {
        return Err(Problem::invalid("`expires_in_seconds` must be 1 to 315,360,000 (ten years)"));
    }
    let key = ApiKey::mint("live");
    let mut work = caller.begin(&api).await?;
    let lasts = value.expires_in_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let listed = key::create(&mut work, &key, &value.name, value.scope, &value.bounds, lasts).await?;
    let detail =
        json!({ "name": value.name, "scope": value.scope, "bounds": value.bounds, "expires_at": listed.expires_at });
    audit::record(&mut work, &caller.actor, "key.create", &listed.key_id.to_string(), &detail).await?;
    work.commit().await?;
    Ok(Json(CreatedKey { listed, key: key.expose().to_owned() }))
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneKey {
    key: KeyId,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RevokeParams {
    /// Seconds for which the key still works, so that callers can switch to another key. If omitted, the key stops working at once.
    #[param(maximum = 2592000)]
    after_seconds: Option<u32>,
}

/// Revoke an API key, at once or after some time.
#[utoipa::path(
    delete, path = "/keys/{key}", tag = "resources",
    params(("key" = KeyId, Path), RevokeParams, OnceParams),
    responses((status = 200, body = Key)),
)]
pub(crate) async fn revoke_key(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneKey { key: key_id }): Path<OneKey>,
    Query(params): Query<RevokeParams>,
    once: Once,
) -> Result<Json<Value>, Problem> {
    caller.may(&[])?;
    let after = params.after_seconds.unwrap_or(0);
    if after > 2_592_000 {
        return Err(Problem::invalid("`after_seconds` must be at most 2,592,000 (thirty days)"));
    }
    let after = Duration::from_secs(after.into());
    let actor = caller.actor.clone();
    once.write(&api, &caller, &[], move |work| {
        Box::pin(async move {
            let revoked = key::revoke(work, key_id, after).await?;
            let detail = json!({ "name": revoked.name, "after_seconds": after.as_secs() });
            audit::record(work, &actor, "key.revoke", &key_id.to_string(), &detail).await?;
            Ok(revoked)
        })
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<AuditId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the audit log, newest first: which management actions were done, and by which caller.
#[utoipa::path(
    get, path = "/audit", tag = "resources", params(AuditParams),
    responses((status = 200, body = Page<Entry>)),
)]
pub(crate) async fn list_audit(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<AuditParams>,
) -> Result<Json<Page<Entry>>, Problem> {
    caller.may(&[Scope::Auditor])?;
    let n = most(params.most)?;
    let listed = audit::list(&mut caller.begin(&api).await?, params.after, and_one(n)).await?;
    Ok(Json(Page::new(listed, n, |entry| entry.audit_id)))
}

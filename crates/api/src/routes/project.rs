//! Projects over HTTP: only `waybill dev` makes and lists them, for callers on its own machine, so that each test can have a project.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use waybill_core::{
    id::{Name, ProjectId},
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{
    audit, key,
    project::{self, Project},
};

use crate::{
    Api,
    caller::Here,
    problem::Problem,
    request::{Body, Page, Query, and_one, most},
    write::Once,
};

/// The project to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateProject {
    /// Slug of the project, a short name for people: 1 to 63 characters (a-z, 0-9 and `-`), beginning with a letter or digit.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    slug: String,
    /// Whether to create a key of scope `admin` too. If omitted, false: a caller on this machine needs none.
    #[serde(default)]
    with_key: bool,
}

/// The project that was created.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedProject {
    #[serde(flatten)]
    project: Project,
    /// With `with_key`: a key of scope `admin`. It is shown only once.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// Create a project. Only `waybill dev` does this over HTTP, and only for callers on its own machine.
///
/// Elsewhere the answer is 403 `forbidden`: use `waybill project create`. A request with an `Idempotency-Key` is refused: a slug can be used once.
#[utoipa::path(
    post, path = "/v1/projects", tag = "resources", security(()), request_body = CreateProject,
    responses((status = 200, body = CreatedProject)),
)]
pub(crate) async fn create_project(
    State(api): State<Arc<Api>>,
    here: Here,
    once: Once,
    Body { value: CreateProject { slug, with_key }, .. }: Body<CreateProject>,
) -> Result<Json<CreatedProject>, Problem> {
    once.refuse("leave out this header, because a slug can be used once")?;
    let project_id = ProjectId::new();
    let mut work = api.kernel.begin_as(project_id, &here.actor).await?;
    project::create(&mut work, &slug).await?;
    let actor = &here.actor.name;
    audit::record(&mut work, actor, "project.create", &slug, &json!({})).await?;
    let key = match with_key {
        true => {
            let (key, name) = (ApiKey::mint("dev"), "dev".parse::<Name>().map_err(Problem::internal)?);
            let made = key::create(&mut work, &key, &name, Scope::Admin, &Bounds::default(), None).await?;
            let detail = json!({ "name": name, "scope": Scope::Admin });
            audit::record(&mut work, actor, "key.create", &made.key_id.to_string(), &detail).await?;
            Some(key.expose().to_owned())
        }
        false => None,
    };
    work.commit().await?;
    Ok(Json(CreatedProject { project: Project { project_id, slug }, key }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ProjectParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[param(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    after: Option<String>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List all projects, ordered by slug. Only `waybill dev` does this over HTTP, and only for callers on its own machine.
#[utoipa::path(
    get, path = "/v1/projects", tag = "resources", security(()), params(ProjectParams),
    responses((status = 200, body = Page<Project>)),
)]
pub(crate) async fn list_projects(
    State(api): State<Arc<Api>>,
    _here: Here,
    Query(params): Query<ProjectParams>,
) -> Result<Json<Page<Project>>, Problem> {
    let n = most(params.most)?;
    let after = params.after.unwrap_or_default();
    if !after.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-')) {
        return Err(Problem::invalid("`after` must be the `next` of the previous page"));
    }
    let listed = project::list(&api.kernel, &after, i32::try_from(and_one(n)).unwrap_or(i32::MAX)).await?;
    Ok(Json(Page::new(listed, n, |project| project.slug.clone())))
}

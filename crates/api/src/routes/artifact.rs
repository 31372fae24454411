//! Artifacts: bulk content by path, streamed in and out (HO-1). A path may contain slashes, so it is a parameter of the query.

use std::sync::Arc;

use axum::{
    body::Body as Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Json, Response},
};
use futures::{StreamExt, TryStreamExt, stream::unfold};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};
use waybill_artifact::{Artifacts, Put};
use waybill_core::{artifact::ArtifactPath, key::Scope};
use waybill_kernel::{
    artifact::{self, Artifact, Remove, Which},
    audit,
};

use crate::{
    Api,
    caller::{Caller, forbidden},
    kept::range,
    problem::Problem,
    request::{Page, Query, and_one, most},
};

impl Api {
    pub(crate) fn artifacts(&self) -> Result<&Artifacts, Problem> {
        let said = "this server has no object store: its operator must start it with --artifacts";
        self.config.artifacts.as_ref().ok_or_else(|| Problem::busy("unavailable", said, 60))
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PutParams {
    /// Path to store the content at, such as `reports/2026/summary.json`.
    path: ArtifactPath,
    /// Media type of the content. If omitted, it is derived from the extension of the path.
    #[param(min_length = 3, max_length = 127, pattern = "^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$")]
    media_type: Option<String>,
    /// Whether the content is external: it came from outside your system, such as an email or a website, or was made from external content. A turn
    /// that reads it counts as having seen external content. For a key of scope `worker` or `tool`, the server always uses true. If omitted, false.
    external: Option<bool>,
}

/// Store content at a path, as a new version.
///
/// The content is stored completely or not at all. If it is the same as in the newest version, no new version is created, unless the media type
/// changes or the content is marked as external for the first time.
#[utoipa::path(
    put, path = "/artifacts", tag = "artifacts", params(PutParams),
    request_body(content = Option<String>, content_type = "application/octet-stream", description = "The whole content. It may be empty."),
    responses((status = 200, body = Artifact)),
)]
pub(crate) async fn put_artifact(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(PutParams { path, media_type, external }): Query<PutParams>,
    body: Bytes,
) -> Result<Json<Artifact>, Problem> {
    caller.may(&[Scope::Operator, Scope::Worker, Scope::Tool])?;
    caller.may_touch(&path)?;
    // Workers and tools cannot say that what they store did not come from outside.
    let is_external =
        caller.bounds.external || matches!(caller.scope, Scope::Worker | Scope::Tool) || external.unwrap_or(false);
    let put = Put { media_type: media_type.as_deref(), author_id: Some(&caller.actor), is_external, path: &path };
    let _place = api.gate.uploads.take(caller.lane, 1)?;
    let most_silent = api.config.limits.body_timeout;
    let content = unfold(body.into_data_stream(), move |mut body| async move {
        let silent = || std::io::Error::new(std::io::ErrorKind::TimedOut, "no more of the body arrived in time");
        let piece = timeout(most_silent, body.next()).await.unwrap_or_else(|_| Some(Err(axum::Error::new(silent()))));
        Some((piece?.map_err(std::io::Error::other), body))
    });
    Ok(Json(api.artifacts()?.put(caller.project_id, put, content).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Prefix of the paths to list, such as `reports/`. If omitted, all paths are listed.
    #[serde(default)]
    prefix: String,
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[serde(default)]
    after: String,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List artifacts in the order of their paths, each in its newest version.
#[utoipa::path(
    get, path = "/artifacts", tag = "artifacts", params(ListParams),
    responses((status = 200, body = Page<Artifact>)),
)]
pub(crate) async fn list_artifacts(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<Page<Artifact>>, Problem> {
    caller.may_read()?;
    // The whole folder, or what lies in it: a path that only begins with the same letters is not in the folder.
    let lies_in =
        |folder: &ArtifactPath| params.prefix.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/'));
    if !caller.bounds.paths.is_empty() && !caller.bounds.paths.iter().any(lies_in) {
        let said = "this API key may list only artifacts below its `paths`: set `prefix` to one of these paths followed by `/`";
        return Err(forbidden(said.to_owned()));
    }
    let n = most(params.most)?;
    let listed = artifact::list(&mut caller.begin(&api).await?, &params.prefix, &params.after, and_one(n)).await?;
    Ok(Json(Page::new(listed, n, |artifact| artifact.path.clone())))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct VersionsParams {
    /// Path of the artifact.
    path: ArtifactPath,
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[param(minimum = 1)]
    after: Option<i32>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the versions of an artifact, newest first.
#[utoipa::path(
    get, path = "/artifacts/versions", tag = "artifacts", params(VersionsParams),
    responses((status = 200, body = Page<Artifact>)),
)]
pub(crate) async fn list_versions(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(VersionsParams { path, after, most: asked }): Query<VersionsParams>,
) -> Result<Json<Page<Artifact>>, Problem> {
    caller.may_read()?;
    caller.may_touch(&path)?;
    let n = most(asked)?;
    if after.is_some_and(|after| after < 1) {
        return Err(Problem::invalid("`after` must be the `next` of the previous page"));
    }
    let versions = artifact::versions(&mut caller.begin(&api).await?, &path, after, and_one(n)).await?;
    if versions.is_empty() && after.is_none() {
        return Err(waybill_artifact::Error::NotFound(path).into());
    }
    Ok(Json(Page::new(versions, n, |artifact| artifact.version)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ContentParams {
    /// Path of the artifact.
    path: ArtifactPath,
    /// Version to read. If omitted, the newest.
    version: Option<i32>,
}

/// Read the content of an artifact.
///
/// The server checks the content against its hash while it sends it. The header `Range: bytes=0-99` returns a part. The content type is always
/// `application/octet-stream`, so that browsers do not display the content. The list of artifacts shows the media type.
#[utoipa::path(
    get, path = "/artifacts/content", tag = "artifacts", params(ContentParams),
    responses(
        (status = 200, body = String, content_type = "application/octet-stream"),
        (status = 206, body = String, content_type = "application/octet-stream"),
    ),
)]
pub(crate) async fn read_artifact(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(ContentParams { path, version }): Query<ContentParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    caller.may(&[Scope::Operator, Scope::Worker, Scope::Reader, Scope::Developer, Scope::Tool])?;
    caller.may_touch(&path)?;
    let artifacts = api.artifacts()?;
    let which = version.map_or(Which::Newest, Which::Version);
    let found = artifact::find(&mut caller.begin(&api).await?, &path, which).await?;
    let found = found.ok_or(waybill_artifact::Error::NotFound(path))?;
    let size = found.stored.size;
    let asked = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let part = asked.map(|asked| range(asked, size)).transpose()?;
    let wanted = part.as_ref().map_or(0..size, |(part, _)| part.clone());
    let length = wanted.end - wanted.start;
    let content = artifacts.read(caller.asked, &found, wanted);
    let content = content.inspect_err(|error| tracing::error!(%error, "the content of an artifact could not be read"));
    let mut response = (
        [
            (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
            (header::ACCEPT_RANGES, "bytes".to_owned()),
            (header::ETAG, format!("\"{}\"", found.artifact.hash)),
            (header::CONTENT_LENGTH, length.to_string()),
        ],
        Bytes::from_stream(content),
    )
        .into_response();
    if let Some((_, said)) = part {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        response.headers_mut().insert(header::CONTENT_RANGE, said.parse().map_err(Problem::internal)?);
    }
    Ok(response)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RemoveParams {
    /// Path of the artifact.
    path: ArtifactPath,
    /// If true, only the older versions are removed, and the newest one stays. If omitted, all versions are removed.
    #[serde(default)]
    older: bool,
}

/// How many versions of the artifact were removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Removed {
    /// Number of versions that were removed.
    n_removed: u64,
}

/// Remove an artifact, or only its older versions.
///
/// A removed version can no longer be listed, or read by its path. If a card refers to it, turns that have this card can still read it. Otherwise its
/// content is deleted later.
#[utoipa::path(
    delete, path = "/artifacts", tag = "artifacts", params(RemoveParams),
    responses((status = 200, body = Removed)),
)]
pub(crate) async fn remove_artifact(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(RemoveParams { path, older }): Query<RemoveParams>,
) -> Result<Json<Removed>, Problem> {
    caller.may(&[Scope::Operator])?;
    caller.may_touch(&path)?;
    let mut work = caller.begin(&api).await?;
    let which = if older { Remove::Older } else { Remove::All };
    let n_removed = artifact::remove(&mut work, &path, which).await?;
    if n_removed == 0 && !older {
        return Err(waybill_artifact::Error::NotFound(path).into());
    }
    artifact::collect(&mut work, 1_000).await?;
    audit::record(&mut work, &caller.actor, "artifact.remove", path.as_str(), &json!({ "n_removed": n_removed }))
        .await?;
    work.commit().await?;
    Ok(Json(Removed { n_removed }))
}

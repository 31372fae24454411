//! Documents that a project knows, and deliverables that it publishes as experience (CX-4).

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use waybill_context::knowledge::question;
use waybill_core::{artifact::ArtifactPath, id::TurnId, key::Scope};
use waybill_kernel::knowledge::{self, Document, Found, Kind, Search};
use waybill_orchestrator::knowledge::{Applied, apply, publish, remove};

use super::turn::OneTurn;
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Page, Path, Plain, Query, and_one, most, not_empty, not_too_many},
};

const LONGEST_TITLE: usize = 300;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ApplyParams {
    /// Path of the document, such as `handbook/leave.md`. Profiles name its folder.
    path: ArtifactPath,
    /// Title of the document. If omitted, it has none.
    #[serde(default)]
    #[param(max_length = 300)]
    title: String,
    /// Whether the document came from outside. A turn that sees it may then need an approval for some tools.
    #[serde(default)]
    external: bool,
}

/// A document as it is now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AppliedDocument)]
pub(crate) struct Put {
    /// The document.
    document: Document,
    /// Whether it is new, or has changed.
    changed: bool,
}

/// Store a document, Markdown or plain text, so that agents can find it.
///
/// Applying the same document again changes nothing.
#[utoipa::path(
    put, path = "/knowledge", tag = "knowledge", params(ApplyParams),
    request_body(content = String, content_type = "text/plain", description = "The whole text, as UTF-8."),
    responses((status = 200, body = Put)),
)]
pub(crate) async fn apply_document(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(ApplyParams { path, title, external }): Query<ApplyParams>,
    Plain { bytes: body, .. }: Plain,
) -> Result<Json<Put>, Problem> {
    caller.may(&[Scope::Operator])?;
    not_too_long(&title)?;
    let text = std::str::from_utf8(&body)
        .map_err(|error| Problem::invalid(format!("the body of the request is not UTF-8 text: {error}")))?;
    waybill_core::json::check_string(text).map_err(|error| Problem::invalid(error.to_string()))?;
    let applied = Applied { path: &path, title: &title, text, is_external: external || caller.bounds.external };
    let mut work = caller.begin(&api).await?;
    let (document, changed) = apply(&mut work, applied, &caller.actor).await?;
    work.commit().await?;
    Ok(Json(Put { document, changed }))
}

fn not_too_long(title: &str) -> Result<(), Problem> {
    if title.chars().count() > LONGEST_TITLE {
        return Err(Problem::invalid(format!("`title` must have at most {LONGEST_TITLE} characters")));
    }
    waybill_core::json::check_string(title).map_err(|error| Problem::invalid(error.to_string()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Kind of the documents.
    kind: Kind,
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[serde(default)]
    after: String,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List documents, by path.
#[utoipa::path(
    get, path = "/knowledge", tag = "knowledge", params(ListParams),
    responses((status = 200, body = Page<Document>)),
)]
pub(crate) async fn list_documents(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<Page<Document>>, Problem> {
    caller.may_read()?;
    let n = most(params.most)?;
    let listed = knowledge::list(&mut caller.begin(&api).await?, params.kind, &params.after, and_one(n)).await?;
    Ok(Json(Page::new(listed, n, |document| document.path.clone())))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RemoveParams {
    /// Kind of the document.
    kind: Kind,
    /// Path of the document.
    path: ArtifactPath,
}

/// The document that was removed. It can no longer be found.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RemovedDocument)]
pub(crate) struct Removed {
    /// Path of the document.
    path: ArtifactPath,
}

/// Remove a document, so that it can no longer be found.
///
/// What turns were shown of it stays with their receipts.
#[utoipa::path(
    delete, path = "/knowledge", tag = "knowledge", params(RemoveParams),
    responses((status = 200, body = Removed)),
)]
pub(crate) async fn remove_document(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(RemoveParams { kind, path }): Query<RemoveParams>,
) -> Result<Json<Removed>, Problem> {
    caller.may(&[Scope::Operator])?;
    let mut work = caller.begin(&api).await?;
    remove(&mut work, kind, &path, &caller.actor).await?;
    work.commit().await?;
    Ok(Json(Removed { path }))
}

/// What to search for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Question {
    /// The question.
    #[schema(min_length = 1, max_length = 4000)]
    question: String,
    /// Kind of the documents. If omitted, `knowledge`.
    #[serde(default = "knowledge_kind")]
    kind: Kind,
    /// Folders to search.
    #[schema(min_items = 1, max_items = 1000)]
    folders: Vec<ArtifactPath>,
    /// The most passages to return, up to 20. If omitted, 5.
    #[serde(default = "five")]
    #[schema(minimum = 1, maximum = 20)]
    most: u8,
}

const fn knowledge_kind() -> Kind {
    Kind::Knowledge
}

const fn five() -> u8 {
    5
}

/// Find passages by the words of a question.
///
/// An agent also finds passages by meaning, if the project has set that up.
#[utoipa::path(
    post, path = "/knowledge/search", tag = "knowledge", request_body = Question,
    responses((status = 200, body = Vec<Found>)),
)]
pub(crate) async fn search_knowledge(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Body { value: asked, .. }: Body<Question>,
) -> Result<Json<Vec<Found>>, Problem> {
    caller.may_read()?;
    if !(1..=4000).contains(&asked.question.chars().count()) {
        return Err(Problem::invalid("`question` must have 1 to 4,000 characters"));
    }
    if !(1..=20).contains(&asked.most) {
        return Err(Problem::invalid("`most` must be 1 to 20"));
    }
    if asked.folders.is_empty() {
        return Err(Problem::invalid("`folders` must contain at least one folder"));
    }
    not_too_many("folders", &asked.folders)?;
    let search = Search {
        kind: asked.kind,
        folders: asked.folders.iter().map(ArtifactPath::as_str).collect(),
        words: &question(&asked.question),
        meaning: None,
        most: asked.most.into(),
    };
    let (found, _) = knowledge::search(&mut caller.begin(&api).await?, &search).await?;
    Ok(Json(found))
}

/// The path and title under which a deliverable is published.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Publish {
    /// Path of the document.
    path: ArtifactPath,
    /// Title of the document. If omitted, it has none.
    #[serde(default)]
    #[schema(max_length = 300)]
    title: String,
}

/// Add what a turn delivered to what agents can search, as experience.
///
/// Agents whose profile names its folder can then find it.
#[utoipa::path(
    post, path = "/turns/{turn}/publish", tag = "knowledge", request_body = Publish,
    params(("turn" = TurnId, Path)),
    responses((status = 200, body = Put)),
)]
pub(crate) async fn publish_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    Body { value: Publish { path, title }, .. }: Body<Publish>,
) -> Result<Json<Put>, Problem> {
    caller.may(&[Scope::Operator])?;
    not_empty("path", path.as_str())?;
    not_too_long(&title)?;
    let mut work = caller.begin(&api).await?;
    let (document, changed) = publish(&mut work, turn, &path, (&title, caller.bounds.external), &caller.actor).await?;
    work.commit().await?;
    Ok(Json(Put { document, changed }))
}

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
    /// Path of the document, such as `handbook/leave.md`. Agents find the document if their profile lists its folder.
    path: ArtifactPath,
    /// Title of the document. If omitted, it has none.
    #[serde(default)]
    #[param(max_length = 300)]
    title: String,
    /// Whether the document is external content: it came from outside your system, such as an email or a website. A turn that sees it may then need
    /// an approval to call some tools. If omitted, false.
    #[serde(default)]
    external: bool,
}

/// The stored document, and whether this request changed it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AppliedDocument)]
pub(crate) struct Put {
    /// The document as it is stored now.
    document: Document,
    /// Whether this request created or changed the document.
    changed: bool,
}

/// Store a document, Markdown or plain text, so that agents can find it.
///
/// Storing the same document again changes nothing.
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
    /// Kind of the documents to list: `knowledge` (stored by people) or `experience` (published deliverables of turns).
    kind: Kind,
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    #[serde(default)]
    after: String,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the documents of one kind, in the order of their paths.
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
    /// Kind of the document: `knowledge` (stored by people) or `experience` (published deliverables of turns).
    kind: Kind,
    /// Path of the document.
    path: ArtifactPath,
}

/// The document that was removed. Searches no longer find it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RemovedDocument)]
pub(crate) struct Removed {
    /// Path of the document.
    path: ArtifactPath,
}

/// Remove a document, so that searches no longer find it.
///
/// Passages that turns have already seen are kept, so that their model calls can still be shown.
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
    /// Question, or words to search for.
    #[schema(min_length = 1, max_length = 4000)]
    question: String,
    /// Kind of the documents to search: `knowledge` (stored by people) or `experience` (published deliverables of turns). If omitted, `knowledge`.
    #[serde(default = "knowledge_kind")]
    kind: Kind,
    /// Folders to search.
    #[schema(min_items = 1, max_items = 1000)]
    folders: Vec<ArtifactPath>,
    /// Maximum number of passages to return, at most 20. If omitted, 5.
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

/// Search documents for passages that contain words of a question.
///
/// This search compares words only. Agents can also search by meaning, if the settings of the project name an embedding model.
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

/// Publish the deliverable of a turn as an `experience` document, so that agents can find it.
///
/// Agents find the document if their profile lists its folder. The turn must have ended as `success`.
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

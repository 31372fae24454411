//! What a project knows, and what it publishes of what it has done (CX-4).

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
    /// What it is known by: `handbook/leave.md`. A profile names the folder.
    path: ArtifactPath,
    /// What it is called.
    #[serde(default)]
    #[param(max_length = 300)]
    title: String,
    /// It came from outside: a turn that is shown it may need an approval for some tools.
    #[serde(default)]
    external: bool,
}

/// A document as it is now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AppliedDocument)]
pub(crate) struct Put {
    document: Document,
    /// It was not there, or said something else.
    changed: bool,
}

/// Apply a document: Markdown or plain text. The same again changes nothing.
#[utoipa::path(
    put, path = "/knowledge", tag = "knowledge", params(ApplyParams),
    request_body(content = String, content_type = "text/plain", description = "All of it, as UTF-8."),
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
    let text = std::str::from_utf8(&body).map_err(|error| Problem::invalid(format!("the body is no text: {error}")))?;
    waybill_core::json::check_string(text).map_err(|error| Problem::invalid(error.to_string()))?;
    let applied = Applied { path: &path, title: &title, text, is_external: external || caller.bounds.external };
    let mut work = caller.begin(&api).await?;
    let (document, changed) = apply(&mut work, applied, &caller.actor).await?;
    work.commit().await?;
    Ok(Json(Put { document, changed }))
}

fn not_too_long(title: &str) -> Result<(), Problem> {
    if title.chars().count() > LONGEST_TITLE {
        return Err(Problem::invalid(format!("`title` has {LONGEST_TITLE} characters at most")));
    }
    waybill_core::json::check_string(title).map_err(|error| Problem::invalid(error.to_string()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    kind: Kind,
    /// Go on after this: the `next` of the page before.
    #[serde(default)]
    after: String,
    /// How many at most, up to 1,000.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// Documents, by path.
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
    kind: Kind,
    path: ArtifactPath,
}

/// Nothing more is found of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RemovedDocument)]
pub(crate) struct Removed {
    path: ArtifactPath,
}

/// Take a document out of what can be found. What was shown of it stays with the receipts.
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

/// What is looked for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Question {
    #[schema(min_length = 1, max_length = 4000)]
    question: String,
    #[serde(default = "knowledge_kind")]
    kind: Kind,
    /// Only below these.
    #[schema(min_items = 1, max_items = 1000)]
    folders: Vec<ArtifactPath>,
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

/// Find passages by the words of a question. An agent finds them by meaning too, where the project has set that up.
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
        return Err(Problem::invalid("`question` has 1 to 4,000 characters"));
    }
    if !(1..=20).contains(&asked.most) {
        return Err(Problem::invalid("`most` is 1 to 20"));
    }
    if asked.folders.is_empty() {
        return Err(Problem::invalid("`folders` names one at least"));
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

/// Under which name a deliverable is published.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Publish {
    path: ArtifactPath,
    #[serde(default)]
    #[schema(max_length = 300)]
    title: String,
}

/// Publish what a turn delivered, as experience: whoever's profile names its folder may find it.
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

//! Sessions: conversations of several turns. Only the key that opened a session, and admins, can see it.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{Json, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use waybill_core::{
    card::Reading,
    card_box::Placed,
    id::{SessionId, StepId, TurnId},
    key::Scope,
};
use waybill_kernel::{
    audit, card,
    session::{self, About, Change, Session},
    turn::Summary,
};

use super::card::Places;
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Page, Path, Query, and_one, most},
    write::{Once, OnceParams},
};

/// New title and labels of a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Describe {
    /// New title. If omitted, the title stays.
    #[serde(default)]
    #[schema(max_length = 300)]
    title: Option<String>,
    /// New labels. If omitted, the labels stay.
    #[serde(default)]
    #[schema(max_items = 32)]
    labels: Option<Vec<String>>,
}

/// A session to open.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Open {
    /// Id of the session: a UUIDv7 that you generate. If omitted, the server generates one.
    #[serde(default)]
    session_id: Option<SessionId>,
    /// Title of the session. If omitted, a new session has none.
    #[serde(default)]
    #[schema(max_length = 300)]
    title: Option<String>,
    /// Labels of the session. If omitted, a new session has none.
    #[serde(default)]
    #[schema(max_items = 32)]
    labels: Option<Vec<String>>,
}

/// Open a session: a conversation of several turns.
///
/// Only your API key and keys of scope `admin` can see the session. You can also open a session by starting a turn with a new `session_id`.
#[utoipa::path(
    post, path = "/sessions", tag = "sessions", request_body = Open,
    params(OnceParams),
    responses((status = 200, body = Session)),
)]
pub(crate) async fn open_session(
    State(api): State<Arc<Api>>,
    caller: Caller,
    once: Once,
    Body { value: open, bytes, .. }: Body<Open>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    let (owner, actor) = (caller.owner(), caller.actor.clone());
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            let session_id = open.session_id.unwrap_or_else(SessionId::new);
            session::enter(work, session_id, owner.as_deref()).await?;
            session::describe(work, session_id, &About { title: open.title, labels: open.labels }).await?;
            audit::record(work, &actor, "session.open", &session_id.to_string(), &json!({})).await?;
            Ok(session::find(work, session_id, owner.as_deref()).await?)
        })
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<SessionId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the sessions that your API key opened, newest first.
///
/// With a key of scope `admin`, all sessions of the project are listed.
#[utoipa::path(
    get, path = "/sessions", tag = "sessions", params(ListParams),
    responses((status = 200, body = Page<Session>)),
)]
pub(crate) async fn list_sessions(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<Page<Session>>, Problem> {
    caller.may_read()?;
    let n = most(params.most)?;
    let mut work = caller.begin(&api).await?;
    let listed = session::list(&mut work, caller.owner().as_deref(), params.after, and_one(n)).await?;
    Ok(Json(Page::new(listed, n, |session| session.session_id)))
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneSession {
    session: SessionId,
}

/// A session, with its todo list and the summary of its older messages.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownSession {
    #[serde(flatten)]
    session: Session,
    /// Todo list, if there is one.
    todo: Option<Reading>,
    /// Summary of the older messages, if there is one. Its `covers` lists the messages that it replaces.
    summary: Option<Reading>,
}

/// Show a session, with its todo list and the summary of its older messages.
#[utoipa::path(
    get, path = "/sessions/{session}", tag = "sessions", params(("session" = SessionId, Path)),
    responses((status = 200, body = ShownSession)),
)]
pub(crate) async fn show_session(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneSession { session }): Path<OneSession>,
) -> Result<Json<ShownSession>, Problem> {
    caller.may_read()?;
    let mut work = caller.begin(&api).await?;
    let session = session::find(&mut work, session, caller.owner().as_deref()).await?;
    let named: Vec<_> = [session.todo_card_id, session.compression_card_id].into_iter().flatten().collect();
    let mut cards = card::fetch(&mut work, &named, None).await?.found;
    let mut take = |card_id| {
        let at = cards.iter().position(|card| Some(card.card_id()) == card_id)?;
        Some(cards.swap_remove(at))
    };
    let (todo, summary) = (take(session.todo_card_id), take(session.compression_card_id));
    Ok(Json(ShownSession { session, todo, summary }))
}

/// Change the title or the labels of a session.
#[utoipa::path(
    patch, path = "/sessions/{session}", tag = "sessions", request_body = Describe,
    params(("session" = SessionId, Path), OnceParams),
    responses((status = 200, body = Session)),
)]
pub(crate) async fn describe_session(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneSession { session: session_id }): Path<OneSession>,
    once: Once,
    Body { value: Describe { title, labels }, bytes, .. }: Body<Describe>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    let (owner, actor) = (caller.owner(), caller.actor.clone());
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            session::find(work, session_id, owner.as_deref()).await?;
            session::describe(work, session_id, &About { title, labels }).await?;
            audit::record(work, &actor, "session.describe", &session_id.to_string(), &json!({})).await?;
            Ok(session::find(work, session_id, owner.as_deref()).await?)
        })
    })
    .await
}

/// End a session: no more turns can start in it.
///
/// Turns that are open continue, and their messages are still added to the session.
#[utoipa::path(
    post, path = "/sessions/{session}/end", tag = "sessions",
    params(("session" = SessionId, Path), OnceParams),
    responses((status = 200, body = Session)),
)]
pub(crate) async fn end_session(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneSession { session: session_id }): Path<OneSession>,
    once: Once,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    let (owner, actor) = (caller.owner(), caller.actor.clone());
    once.write(&api, &caller, &[], move |work| {
        Box::pin(async move {
            session::find(work, session_id, owner.as_deref()).await?;
            session::end(work, session_id).await?;
            audit::record(work, &actor, "session.end", &session_id.to_string(), &json!({})).await?;
            Ok(session::find(work, session_id, owner.as_deref()).await?)
        })
    })
    .await
}

/// The session that was forgotten.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Forgotten {
    /// Id of the session.
    session_id: SessionId,
}

/// Forget a session: delete its list of messages, its todo list and its summary.
///
/// The cards of the messages are kept with the turns that wrote them, until they are erased.
#[utoipa::path(
    delete, path = "/sessions/{session}", tag = "sessions",
    params(("session" = SessionId, Path), OnceParams),
    responses((status = 200, body = Forgotten)),
)]
pub(crate) async fn forget_session(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneSession { session: session_id }): Path<OneSession>,
    once: Once,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    let (owner, actor) = (caller.owner(), caller.actor.clone());
    once.write(&api, &caller, &[], move |work| {
        Box::pin(async move {
            session::find(work, session_id, owner.as_deref()).await?;
            session::forget(work, session_id).await?;
            audit::record(work, &actor, "session.forget", &session_id.to_string(), &json!({})).await?;
            Ok(Forgotten { session_id })
        })
    })
    .await
}

/// List the messages of a session, oldest first.
///
/// Messages are the instructions that started turns, what callers sent to running turns, and the deliverables of turns.
#[utoipa::path(
    get, path = "/sessions/{session}/messages", tag = "sessions", params(("session" = SessionId, Path), Places),
    responses((status = 200, body = Page<Placed>)),
)]
pub(crate) async fn list_messages(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneSession { session }): Path<OneSession>,
    Query(params): Query<Places>,
) -> Result<Response, Problem> {
    caller.may_read()?;
    let mut work = caller.begin(&api).await?;
    let session = session::find(&mut work, session, caller.owner().as_deref()).await?;
    params.page(work, session.messages_box_id, session.n_messages).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TurnsParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<TurnId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the turns of a session, newest first.
#[utoipa::path(
    get, path = "/sessions/{session}/turns", tag = "sessions", params(("session" = SessionId, Path), TurnsParams),
    responses((status = 200, body = Page<Summary>)),
)]
pub(crate) async fn list_session_turns(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneSession { session }): Path<OneSession>,
    Query(params): Query<TurnsParams>,
) -> Result<Json<Page<Summary>>, Problem> {
    caller.may_read()?;
    let n = most(params.most)?;
    let mut work = caller.begin(&api).await?;
    session::find(&mut work, session, caller.owner().as_deref()).await?;
    let turns = session::turns(&mut work, session, params.after, and_one(n)).await?;
    Ok(Json(Page::new(turns, n, |turn| turn.agent_turn_id)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChangesParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<StepId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List the changes of a session's todo list, summary and results, newest first.
#[utoipa::path(
    get, path = "/sessions/{session}/changes", tag = "sessions", params(("session" = SessionId, Path), ChangesParams),
    responses((status = 200, body = Page<Change>)),
)]
pub(crate) async fn list_changes(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneSession { session }): Path<OneSession>,
    Query(params): Query<ChangesParams>,
) -> Result<Json<Page<Change>>, Problem> {
    caller.may_read()?;
    let n = most(params.most)?;
    let mut work = caller.begin(&api).await?;
    session::find(&mut work, session, caller.owner().as_deref()).await?;
    let changes = session::changes(&mut work, session, params.after, and_one(n)).await?;
    Ok(Json(Page::new(changes, n, |change| change.step_id)))
}

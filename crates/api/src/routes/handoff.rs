//! Handoff packages: check and send; and requests that people decide (HO-2 … HO-7).

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};
use waybill_context::handoff::{Check, published};
use waybill_core::{
    id::{AgentId, CardId, Name, SessionId, ToolCallId},
    key::Scope,
    request::{Decided, Decision},
};
use waybill_kernel::{
    audit, external, handover,
    request::{self, Outcome},
    resource,
};
use waybill_orchestrator::{
    handoff,
    launch::{DispatchResult, Launch, launch},
};

use crate::{
    Api,
    caller::{Caller, forbidden},
    problem::Problem,
    request::{Body, Page, Path, Query, Traced, and_one, most, not_empty},
    write::{Once, OnceParams},
};

/// The handoff package to check.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Package {
    /// The package: `version` "2.0", `handoff_type`, `timestamp`, and what its type requires.
    package: Map<String, Value>,
}

/// The result of checking a handoff package.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Verdict {
    /// Whether the package can be sent.
    ok: bool,
    /// Problems of the package, in the order of the checks: `schema`, `path`, `gate`, `size`. Empty if the package can be sent.
    problems: Vec<Wrong>,
    /// Warnings. They do not prevent the package from being sent.
    warnings: Vec<String>,
    /// Size of the package in tokens.
    n_tokens: i32,
    /// Number of artifacts that the package hands over: those that it names, and those in folders that it names.
    n_artifacts: usize,
}

/// One problem of a handoff package.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Wrong {
    /// Check that failed: `schema` (the content of the package), `path` (an artifact is missing, damaged or not readable for the sender), `gate`
    /// (an artifact is not as the package type requires) or `size` (the package is too long).
    check: &'static str,
    /// Place of the problem: a JSON Pointer into the package, or the path of an artifact.
    at: String,
    /// What is wrong.
    problem: String,
    /// What to do about it.
    advice: String,
}

/// Check a handoff package without sending it.
///
/// The response lists all problems that were found.
#[utoipa::path(
    post, path = "/handoffs/check", tag = "handoffs", request_body = Package,
    responses((status = 200, body = Verdict)),
)]
pub(crate) async fn check_handoff(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Body { value: Package { package }, .. }: Body<Package>,
) -> Result<Json<Verdict>, Problem> {
    caller.may(&[Scope::Operator, Scope::Worker])?;
    caller.enter(&api).await?;
    let verdict = handoff::check(&api.kernel, api.artifacts()?, caller.project_id, &package, caller.sender()).await?;
    let problems = verdict.problems.into_iter().map(|problem| Wrong {
        check: match problem.check {
            Check::Schema => "schema",
            Check::Path => "path",
            Check::Gate => "gate",
            Check::Size => "size",
        },
        at: problem.at,
        problem: problem.problem,
        advice: problem.advice,
    });
    let problems: Vec<Wrong> = problems.collect();
    Ok(Json(Verdict {
        ok: problems.is_empty(),
        problems,
        warnings: verdict.warnings,
        n_tokens: verdict.n_tokens.get(),
        n_artifacts: verdict.artifacts.len(),
    }))
}

/// A handoff package, and the agent that receives it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Send {
    /// Profile of the agent that receives the package.
    profile_name: Name,
    /// The package: `version` "2.0", `handoff_type`, `timestamp`, and what its type requires.
    package: Map<String, Value>,
    /// What to do with the package. If omitted, a standard instruction is used.
    #[serde(default)]
    #[schema(min_length = 1)]
    instruction: Option<String>,
    /// Agent that receives the package. If omitted, a new agent is created for it.
    #[serde(default)]
    agent_id: Option<AgentId>,
    /// Session (conversation) that the turn is part of. If omitted, the turn is part of no session.
    #[serde(default)]
    session_id: Option<SessionId>,
    /// Whether the package is external content: it came from outside your system, such as an email or a website. The turn then counts as having seen
    /// external content. If omitted, false.
    #[serde(default)]
    external: bool,
    /// User of your own system for whom you send the package. If omitted, no user is recorded.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200)]
    on_behalf_of: Option<String>,
}

/// Send a handoff package to an agent, and start a turn for it.
///
/// The server checks the package first, and refuses it if it finds a problem. It asks no person for an approval: by sending the package, the caller
/// approves it.
#[utoipa::path(
    post, path = "/handoffs", tag = "handoffs", request_body = Send,
    params(OnceParams),
    responses((status = 200, body = DispatchResult)),
)]
pub(crate) async fn send_handoff(
    State(api): State<Arc<Api>>,
    caller: Caller,
    once: Once,
    Traced(traceparent): Traced,
    Body { value: send, bytes, .. }: Body<Send>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    caller.may_start(&send.profile_name)?;
    caller.enter(&api).await?;
    let verdict =
        handoff::check(&api.kernel, api.artifacts()?, caller.project_id, &send.package, caller.sender()).await?;
    let content = verdict.content(&send.package)?;
    let instruction = send.instruction.unwrap_or_else(|| handoff::instruction(&content));
    not_empty("instruction", &instruction)?;
    let wanted = Launch {
        package: Some(content),
        agent_id: send.agent_id,
        session_id: send.session_id,
        owner: caller.owner(),
        external: send.external || caller.bounds.external,
        on_behalf_of: send.on_behalf_of,
        emit_state_event: true,
        traceparent,
        ..Launch::new(send.profile_name, instruction)
    };
    let (late, acting) = (api.backlog.late(&api.kernel).await, caller.clone());
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            acting.may_employ(work, wanted.agent_id).await?;
            late.room(work.project_id(), &handover::target(work, &wanted.profile_name).await?.worker_target)?;
            let launched = launch(work, &wanted).await?;
            let detail = json!({ "n_tokens": verdict.n_tokens, "warnings": verdict.warnings });
            audit::record(work, &acting.actor, "handoff.send", &launched.agent_turn_id.to_string(), &detail).await?;
            Ok(launched)
        })
    })
    .await
}

#[derive(Debug, Deserialize)]
pub(crate) struct Named {
    name: Name,
}

/// Show the JSON Schema of a handoff type: the project's own, or a built-in one.
#[utoipa::path(
    get, path = "/handoff-types/{name}/schema", tag = "handoffs", params(("name" = Name, Path)),
    responses((status = 200, description = "A JSON Schema, version 2020-12.", body = Value)),
)]
pub(crate) async fn show_schema(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(Named { name }): Path<Named>,
) -> Result<Json<Value>, Problem> {
    caller.may_read()?;
    let found = handoff::find_type(&mut caller.begin(&api).await?, &name).await?;
    let kind = resource::Kind::HandoffType;
    Ok(Json(published(&found.ok_or(resource::Error::NotFound { kind, name })?)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RequestsParams {
    /// Which requests to list: `open` (they wait for a decision) or `decided`. If omitted, `open`.
    #[serde(default)]
    #[param(inline)]
    state: request::State,
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<ToolCallId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// The scopes that may see requests.
const ASKED: [Scope; 5] = [Scope::Operator, Scope::Worker, Scope::Reader, Scope::Developer, Scope::Approver];

/// List the approvals and questions that wait for a person's decision, or that were decided, newest first.
///
/// A request whose turn ended before a decision is in neither list.
#[utoipa::path(
    get, path = "/requests", tag = "handoffs", params(RequestsParams),
    responses((status = 200, body = Page<request::Shown>)),
)]
pub(crate) async fn list_requests(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<RequestsParams>,
) -> Result<Json<Page<request::Shown>>, Problem> {
    caller.may(&ASKED)?;
    let n = most(params.most)?;
    let listed = request::list(&mut caller.begin(&api).await?, params.state, params.after, and_one(n)).await?;
    Ok(Json(Page::new(listed, n, |request| request.tool_call_id)))
}

/// One request, and the external content that its turn has seen.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WholeRequest {
    #[serde(flatten)]
    request: request::Shown,
    /// Cards with external content that the turn has seen, newest first: up to 100, from the last 1,000 places of its context box and of its output
    /// box.
    external_card_ids: Vec<CardId>,
}

/// The most cards with external content in one answer.
const MOST_EXTERNAL: i64 = 100;

/// Show a request: what is asked, about which tool call, and how it was decided.
#[utoipa::path(
    get, path = "/requests/{call}", tag = "handoffs", params(("call" = ToolCallId, Path)),
    responses((status = 200, body = WholeRequest)),
)]
pub(crate) async fn show_request(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneRequest { call }): Path<OneRequest>,
) -> Result<Json<WholeRequest>, Problem> {
    caller.may(&ASKED)?;
    let mut work = caller.begin(&api).await?;
    let found = request::show(&mut work, call).await?;
    let request = found.ok_or_else(|| {
        Problem::not_found(format!("there is no request about call {call}, or its turn ended before a decision"))
    })?;
    let external_card_ids = external::cards(&mut work, request.agent_turn_id, MOST_EXTERNAL).await?;
    Ok(Json(WholeRequest { request, external_card_ids }))
}

/// The decision about a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decide {
    /// `approved` or `rejected` for an approval, `answered` for a question.
    decision: Verb,
    /// Answer to the question, as text or other JSON. It is required if the decision is `answered`.
    #[serde(default)]
    answer: Value,
    /// Note for the agent that asked, such as the reason for the decision. If omitted, there is none.
    #[serde(default)]
    note: Option<String>,
}

/// The decision of a person: `approved` or `rejected` for an approval request, `answered` for a question.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verb {
    Approved,
    Rejected,
    Answered,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OneRequest {
    call: ToolCallId,
}

/// Decide a request: approve, reject or answer it.
///
/// Only the first decision counts. If the request was decided before, or its turn has ended, the response is 404 `not_found`.
#[utoipa::path(
    post, path = "/requests/{call}", tag = "handoffs", params(("call" = ToolCallId, Path), OnceParams), request_body = Decide,
    responses((status = 200, body = Outcome)),
)]
pub(crate) async fn decide_request(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneRequest { call }): Path<OneRequest>,
    once: Once,
    Body { value: Decide { decision, answer, note }, bytes, .. }: Body<Decide>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator, Scope::Approver])?;
    if caller.bounds.external {
        return Err(forbidden("a key with the bound `external` may not decide requests: a person must".to_owned()));
    }
    let decision = match decision {
        Verb::Approved => Decision::Approved,
        Verb::Rejected => Decision::Rejected,
        Verb::Answered => Decision::Answered,
    };
    let (actor, acting) = (caller.actor.clone(), caller.clone());
    let decided = Decided { answer, note, ..Decided::new(decision, actor) };
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            // A key that names profiles decides for their agents alone.
            if let Some(asked) = request::show(work, call).await? {
                acting.may_employ(work, Some(asked.agent_id)).await?;
            }
            Ok(request::decide_as(work, call, &decided).await?)
        })
    })
    .await
}

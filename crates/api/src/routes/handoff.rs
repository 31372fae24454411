//! Handoff packages: checked, sent; and what people are asked (HO-2 … HO-7).

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};
use waybill_context::handoff::{Check, published};
use waybill_core::{
    id::{AgentId, Name, SessionId, ToolCallId},
    key::Scope,
    request::{Decided, Decision},
};
use waybill_kernel::{
    audit, handover,
    request::{self, Open, Outcome},
    resource,
};
use waybill_orchestrator::{
    handoff,
    launch::{DispatchResult, Launch, launch},
};

use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Page, Path, Query, Traced, and_one, most, not_empty},
    write::{Once, OnceParams},
};

/// A package, as somebody wrote it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Package {
    /// With `version` "2.0", `handoff_type`, `timestamp`, and what its type wants.
    #[schema(value_type = Object)]
    package: Map<String, Value>,
}

/// What is to be said of a package.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Verdict {
    ok: bool,
    /// In the order of the checks.
    problems: Vec<Wrong>,
    warnings: Vec<String>,
    n_tokens: i32,
    n_artifacts: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Wrong {
    /// `schema`, `path`, `gate` or `size`.
    check: &'static str,
    /// Where in the package, as a JSON Pointer; or the path of an artifact.
    at: String,
    problem: String,
    advice: String,
}

/// What is wrong with a package, all of it. Nothing is sent.
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
    let verdict = handoff::check(&api.kernel, api.artifacts()?, caller.project_id, &package, None).await?;
    verdict.artifacts.keys().try_for_each(|path| caller.may_touch(path))?;
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

/// A package, and whom it is for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Send {
    profile_name: Name,
    #[schema(value_type = Object)]
    package: Map<String, Value>,
    /// What is to be done with it.
    #[serde(default)]
    #[schema(min_length = 1)]
    instruction: Option<String>,
    /// Who is to have it; none: somebody who is made for it.
    #[serde(default)]
    agent_id: Option<AgentId>,
    /// A conversation that it is part of.
    #[serde(default)]
    session_id: Option<SessionId>,
    /// It came from outside: the turn has seen content from outside from the start.
    #[serde(default)]
    external: bool,
    /// The user of yours for whom this is done.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200)]
    on_behalf_of: Option<String>,
}

/// Hand a package to an agent. It is checked first; whoever sends it here approves of it.
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
    let verdict = handoff::check(&api.kernel, api.artifacts()?, caller.project_id, &send.package, None).await?;
    verdict.artifacts.keys().try_for_each(|path| caller.may_touch(path))?;
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

/// The JSON Schema of a type of packages: the project's own, or one that is built in.
#[utoipa::path(
    get, path = "/handoff-types/{name}/schema", tag = "handoffs", params(("name" = Name, Path)),
    responses((status = 200, body = Object)),
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
    /// Go on after this: the `next` of the page before.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// How many at most, up to 1,000.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// What people are asked and nobody has decided yet, the oldest first.
#[utoipa::path(
    get, path = "/requests", tag = "handoffs", params(RequestsParams),
    responses((status = 200, body = Page<Open>)),
)]
pub(crate) async fn list_requests(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<RequestsParams>,
) -> Result<Json<Page<Open>>, Problem> {
    caller.may(&[Scope::Operator, Scope::Worker, Scope::Reader, Scope::Developer, Scope::Approver])?;
    let n = most(params.most)?;
    let after = params.after.unwrap_or_default();
    if after < 0 {
        return Err(Problem::invalid("`after` is the `next` of a page"));
    }
    let open = request::list(&mut caller.begin(&api).await?, after, and_one(n)).await?;
    Ok(Json(Page::new(open, n, |open| open.call_seq)))
}

/// What is decided, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decide {
    decision: Verb,
    /// Of a question.
    #[serde(default)]
    answer: Value,
    #[serde(default)]
    note: Option<String>,
}

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

/// Decide what people were asked: approve, reject, or answer. Of two at a time the first holds.
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
    let decision = match decision {
        Verb::Approved => Decision::Approved,
        Verb::Rejected => Decision::Rejected,
        Verb::Answered => Decision::Answered,
    };
    let actor = caller.actor.clone();
    let decided = Decided { answer, note, ..Decided::new(decision, actor) };
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move { Ok(request::decide_as(work, call, &decided).await?) })
    })
    .await
}

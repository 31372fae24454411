//! Rights to read a box that were granted outside of any handover, and requests of agents that were refused (SE-3).

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use waybill_core::id::{AgentId, BoxId, GrantId, RefusalId};
use waybill_kernel::{
    audit,
    grant::{self, Grant, Refusal},
};

use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Page, Path, Query, and_one, check_reason, most},
    write::{Once, OnceParams},
};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct GrantParams {
    /// Agent whose grants are listed. If omitted, the grants of all agents.
    agent_id: Option<AgentId>,
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<GrantId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List grants, revoked ones included, newest first.
#[utoipa::path(
    get, path = "/grants", tag = "cards", params(GrantParams),
    responses((status = 200, body = Page<Grant>)),
)]
pub(crate) async fn list_grants(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<GrantParams>,
) -> Result<Json<Page<Grant>>, Problem> {
    caller.may_audit()?;
    let n = most(params.most)?;
    let listed = grant::list(&mut caller.begin(&api).await?, params.agent_id, params.after, and_one(n)).await?;
    Ok(Json(Page::new(listed, n, |grant| grant.grant_id)))
}

/// A right to give.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Give {
    /// Agent that gets the right.
    agent_id: AgentId,
    /// Box that it may read.
    box_id: BoxId,
    /// How many of the first cards of the box it may read. If omitted, all cards, including those added later.
    #[serde(default)]
    #[schema(minimum = 0)]
    upto: Option<i64>,
    /// Why the right is given, in 1 to 1,000 characters. It is kept on record.
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

/// The grant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OneGrant {
    /// The grant.
    grant_id: GrantId,
}

/// Let an agent read a box, and pass it on to other agents.
#[utoipa::path(
    post, path = "/grants", tag = "cards", request_body = Give, params(OnceParams),
    responses((status = 200, body = OneGrant)),
)]
pub(crate) async fn give_grant(
    State(api): State<Arc<Api>>,
    caller: Caller,
    once: Once,
    Body { value: Give { agent_id, box_id, upto, reason }, bytes, .. }: Body<Give>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[])?;
    if upto.is_some_and(|upto| upto < 0) {
        return Err(Problem::invalid("`upto` must not be negative"));
    }
    check_reason(&reason)?;
    let actor = caller.actor.clone();
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            let grant_id = grant::give(work, agent_id, box_id, upto, &actor, &reason).await?;
            let detail = json!({ "agent_id": agent_id, "box_id": box_id, "upto": upto, "reason": reason });
            audit::record(work, &actor, "grant.give", &grant_id.to_string(), &detail).await?;
            Ok(OneGrant { grant_id })
        })
    })
    .await
}

#[derive(Debug, Deserialize)]
pub(crate) struct GrantPath {
    grant: GrantId,
}

/// Revoke a grant.
///
/// What was handed over under it stays where it is.
#[utoipa::path(
    delete, path = "/grants/{grant}", tag = "cards", params(("grant" = GrantId, Path), OnceParams),
    responses((status = 200, body = OneGrant)),
)]
pub(crate) async fn revoke_grant(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(GrantPath { grant: grant_id }): Path<GrantPath>,
    once: Once,
) -> Result<Json<Value>, Problem> {
    caller.may(&[])?;
    let actor = caller.actor.clone();
    once.write(&api, &caller, &[], move |work| {
        Box::pin(async move {
            grant::revoke(work, grant_id, &actor).await?;
            audit::record(work, &actor, "grant.revoke", &grant_id.to_string(), &json!({})).await?;
            Ok(OneGrant { grant_id })
        })
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RefusalParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<RefusalId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// List boxes that agents named and may not read, newest first.
#[utoipa::path(
    get, path = "/refusals", tag = "cards", params(RefusalParams),
    responses((status = 200, body = Page<Refusal>)),
)]
pub(crate) async fn list_refusals(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(params): Query<RefusalParams>,
) -> Result<Json<Page<Refusal>>, Problem> {
    caller.may_audit()?;
    let n = most(params.most)?;
    let listed = grant::refusals(&mut caller.begin(&api).await?, params.after, and_one(n)).await?;
    Ok(Json(Page::new(listed, n, |refusal| refusal.refusal_id)))
}

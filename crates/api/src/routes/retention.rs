//! How long the project keeps content and record, and its legal hold.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use waybill_core::key::Scope;
use waybill_kernel::{
    audit,
    retain::{self, Kept, Plan, Retention},
};

use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Query, check_reason},
    write::{Once, OnceParams},
};

/// The subject of the audit entries.
const SUBJECT: &str = "retention";

/// Show how long the project keeps content and record, and whether it is under a legal hold.
#[utoipa::path(
    get, path = "/retention", tag = "resources",
    responses((status = 200, body = Retention)),
)]
pub(crate) async fn show_retention(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Retention>, Problem> {
    caller.may(&[Scope::Auditor])?;
    Ok(Json(retain::show(&mut caller.begin(&api).await?).await?))
}

/// Set how long the project keeps content and record.
///
/// What becomes longer does so at once. What becomes shorter does so after seven days; until then, set it back to undo it.
#[utoipa::path(
    put, path = "/retention", tag = "resources", request_body = Kept,
    params(OnceParams),
    responses((status = 200, body = Retention)),
)]
pub(crate) async fn set_retention(
    State(api): State<Arc<Api>>,
    caller: Caller,
    once: Once,
    Body { value: kept, bytes, .. }: Body<Kept>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[])?;
    let actor = caller.actor.clone();
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            let changed = retain::set(work, kept).await?;
            let shown = retain::show(work).await?;
            if changed {
                let detail = json!({
                    "content_months": kept.content_months, "record_months": kept.record_months, "next_at": shown.next_at,
                });
                audit::record(work, &actor, "retention.set", SUBJECT, &detail).await?;
            }
            Ok(shown)
        })
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PlanParams {
    /// Months for which content would be kept. If this and `record_months` are omitted, what is set, with a shortening that is still to take effect.
    #[param(minimum = 1, maximum = 120)]
    content_months: Option<i32>,
    /// Months for which the record would be kept. If omitted, for ever.
    #[param(minimum = 1, maximum = 120)]
    record_months: Option<i32>,
}

/// Count what retention would remove now, without removing anything.
///
/// It counts for two seconds at most. If `is_all` is `false`, there is more.
#[utoipa::path(
    get, path = "/retention/plan", tag = "resources", params(PlanParams),
    responses((status = 200, body = Plan)),
)]
pub(crate) async fn plan_retention(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(PlanParams { content_months, record_months }): Query<PlanParams>,
) -> Result<Json<Plan>, Problem> {
    caller.may(&[Scope::Auditor])?;
    let mut work = caller.begin(&api).await?;
    let kept = match (content_months, record_months) {
        (None, None) => retain::show(&mut work).await?.last(),
        _ => Kept { content_months, record_months },
    };
    Ok(Json(retain::plan(&mut work, kept).await?))
}

/// Why the project is put under a legal hold.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hold {
    /// The reason, in 1 to 1,000 characters. It is kept in the audit.
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

/// Put the project under a legal hold, so that retention removes nothing.
///
/// If the project is under a hold already, nothing changes: the first reason stays.
#[utoipa::path(
    put, path = "/retention/hold", tag = "resources", request_body = Hold,
    params(OnceParams),
    responses((status = 200, body = Retention)),
)]
pub(crate) async fn place_hold(
    State(api): State<Arc<Api>>,
    caller: Caller,
    once: Once,
    Body { value: Hold { reason }, bytes, .. }: Body<Hold>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[])?;
    check_reason(&reason)?;
    let actor = caller.actor.clone();
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            if retain::hold(work, Some(&reason)).await? {
                audit::record(work, &actor, "retention.hold", SUBJECT, &json!({ "reason": reason })).await?;
            }
            Ok(retain::show(work).await?)
        })
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LiftParams {
    /// Why the hold is lifted, in 1 to 1,000 characters. It is kept in the audit.
    #[param(min_length = 1, max_length = 1000)]
    reason: String,
}

/// Lift the legal hold of the project. Retention goes on at once.
#[utoipa::path(
    delete, path = "/retention/hold", tag = "resources", params(LiftParams, OnceParams),
    responses((status = 200, body = Retention)),
)]
pub(crate) async fn lift_hold(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(LiftParams { reason }): Query<LiftParams>,
    once: Once,
) -> Result<Json<Value>, Problem> {
    caller.may(&[])?;
    check_reason(&reason)?;
    let actor = caller.actor.clone();
    once.write(&api, &caller, &[], move |work| {
        Box::pin(async move {
            if retain::hold(work, None).await? {
                audit::record(work, &actor, "retention.lift", SUBJECT, &json!({ "reason": reason })).await?;
            }
            Ok(retain::show(work).await?)
        })
    })
    .await
}

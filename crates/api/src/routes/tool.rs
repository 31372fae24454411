//! Tools one by one: shown, and registered and removed by the key of the service that answers their calls.

use std::sync::Arc;

use axum::{extract::State, response::Json};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use waybill_core::{
    id::Name,
    key::Scope,
    resource::{Manifest, Tool},
};
use waybill_kernel::{
    audit, register,
    resource::{self, Applied},
    work::UnitOfWork,
};
use waybill_tool::check::check_manifest;

use super::resource::Named;
use crate::{
    Api,
    caller::Caller,
    problem::Problem,
    request::{Body, Path},
    write::{Once, OnceParams},
};

/// Show the manifest of a tool, in its newest version.
///
/// A key of scope `tool` sees the tools of its targets.
#[utoipa::path(
    get, path = "/tools/{name}", tag = "resources", params(("name" = Name, Path)),
    responses((status = 200, body = Tool)),
)]
pub(crate) async fn show_tool(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(Named { name }): Path<Named>,
) -> Result<Json<Tool>, Problem> {
    if caller.scope != Scope::Tool {
        caller.may_read()?;
    }
    let tool = resource::tool(&mut caller.begin(&api).await?, &name).await?;
    if caller.scope == Scope::Tool && !caller.bounds.targets.contains(&tool.target) {
        return Err(Problem::not_found(format!("there is no tool `{name}` among the `targets` of this API key")));
    }
    Ok(Json(tool))
}

/// Register a tool whose calls your own process claims, or change it.
///
/// A key of scope `tool` or `developer` registers tools of its targets. It cannot change a tool that has another target or was applied (409
/// `conflict`), and cannot register tools with `http` or `mcp`. With a key of scope `admin` the tool is applied. Agents can call the tool once it is
/// among the `allowed_tools` of their profile.
#[utoipa::path(
    put, path = "/tools/{name}", tag = "resources", request_body = Tool,
    params(("name" = Name, Path), OnceParams),
    responses((status = 200, body = Applied)),
)]
pub(crate) async fn register_tool(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(Named { name }): Path<Named>,
    once: Once,
    Body { value: tool, bytes, .. }: Body<Tool>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Tool, Scope::Developer])?;
    if tool.name != name {
        return Err(Problem::invalid(format!("`name` is `{}`, but the path names the tool `{name}`", tool.name)));
    }
    let manifest = Manifest::Tool(Box::new(tool.clone()));
    check_manifest(&manifest).map_err(Problem::invalid)?;
    let acting = caller.clone();
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            let now = known(work, &name).await?;
            acting.may_register(now.as_ref(), &tool)?;
            let applied = match acting.scope {
                Scope::Admin => resource::apply(work, &[manifest]).await?,
                _ => vec![register::register(work, &tool, &acting.actor).await?],
            };
            audit::applied(work, &acting.actor, &applied).await?;
            applied.into_iter().next().ok_or_else(|| Problem::internal("a tool was applied without an outcome"))
        })
    })
    .await
}

/// Returns the tool as it is now, if there is one.
async fn known(work: &mut UnitOfWork, name: &Name) -> Result<Option<Tool>, Problem> {
    match resource::tool(work, name).await {
        Ok(now) => Ok(Some(now)),
        Err(resource::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The tool that was removed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedTool {
    /// Name of the tool.
    name: Name,
}

/// Remove a tool that no profile may call.
///
/// A key of scope `tool` or `developer` removes tools that were registered for one of its targets, and none that was applied (409 `conflict`).
#[utoipa::path(
    delete, path = "/tools/{name}", tag = "resources",
    params(("name" = Name, Path), OnceParams),
    responses((status = 200, body = RemovedTool)),
)]
pub(crate) async fn remove_tool(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(Named { name }): Path<Named>,
    once: Once,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Tool, Scope::Developer])?;
    let acting = caller.clone();
    once.write(&api, &caller, &[], move |work| {
        Box::pin(async move {
            let targets = (acting.scope != Scope::Admin).then_some(acting.bounds.targets.as_slice());
            let target = register::remove(work, &name, targets).await?;
            let subject = format!("tool/{name}");
            audit::record(work, &acting.actor, "resource.remove", &subject, &json!({ "target": target })).await?;
            Ok(RemovedTool { name })
        })
    })
    .await
}

//! What happens to a tool's answer before it is applied, from any sender: it is checked against the tool's own schema, labelled if it is
//! external, and stored as an artifact if it is too long for a context window (HO-8).

use bytes::Bytes;
use serde_json::{Map, Value, json};
use waybill_artifact::{Artifacts, Put};
use waybill_context::handoff::load::{self, Part};
use waybill_core::{
    artifact::ArtifactPath,
    card::{Content, Draft, ResultContent},
    id::{CardId, Name},
    json,
    tokens::{self, Tokens},
    turn::MessageType,
};
use waybill_kernel::{
    call::{self, ClaimedCall},
    resource,
    retry::retry,
    turn::{Error, Report, Reported},
    work::Kernel,
};

use crate::check::{checked, readable};

/// If a result is stored as an artifact, this many tokens of its beginning and of its end are shown.
const HEAD: i32 = 400;
const TAIL: i32 = 100;

/// An answer as it was sent.
#[derive(Clone, Debug)]
pub struct ToolOutcome {
    /// `success`, `failed`, …
    pub status: String,
    pub result: Value,
    /// Further fields, such as `after_execution`.
    pub extra: Map<String, Value>,
    /// The API key that sent it. `None` means Waybill's own tool service.
    pub author_id: Option<String>,
}

impl ToolOutcome {
    pub fn new(status: &str, result: Value) -> ToolOutcome {
        ToolOutcome { status: status.to_owned(), result, extra: Map::new(), author_id: None }
    }

    pub fn failed(why: impl Into<String>) -> ToolOutcome {
        ToolOutcome::new("failed", json::text(&why.into()).into_owned().into())
    }
}

/// Applies an answer to a claimed call, once. `card_id` identifies the answer: sending it again changes nothing.
pub async fn conclude(
    kernel: &Kernel,
    artifacts: Option<&Artifacts>,
    call: &ClaimedCall,
    card_id: CardId,
    said: ToolOutcome,
) -> Result<Reported, Error> {
    let mut work = kernel.begin(call.project_id).await?;
    // Checked before anything is stored: a claimant that lost the call stores nothing.
    let held = call::hold(&mut work, call).await;
    let asked = call::asked(&mut work, call).await?;
    let name = asked.and_then(|asked| asked.tool_name.parse::<Name>().ok());
    let tool = match &name {
        Some(name) => readable(resource::tool(&mut work, name).await)?,
        None => None,
    };
    let settings = readable(resource::settings(&mut work).await)?.unwrap_or_default();
    drop(work);
    let ToolOutcome { status, result, mut extra, author_id } = said;
    let result = match json::check(&result) {
        Ok(()) => result,
        // JSON that cannot be stored exactly, such as numbers that would be rounded, is kept as text.
        Err(_) => json::text(&result.to_string()).into_owned().into(),
    };
    let (status, mut result) = match &tool {
        Some(tool) => checked(tool, &status, result),
        None => (status, result),
    };
    let is_external = tool.as_ref().is_none_or(|tool| !tool.trusted);
    if held.is_ok()
        && let Some((text, is_json)) = too_long(&result, settings.result_tokens)
    {
        result = keep(artifacts, call, text, is_json, is_external, &mut extra).await;
    }
    let content = Content::ToolResult(ResultContent { status: status.clone(), result, extra });
    let mut draft = Draft { card_id, content, ..Draft::tool_result(call.tool_call_id, &status, Value::Null) };
    draft.metadata.author_id = author_id;
    let report = Report {
        tool_call_id: call.tool_call_id,
        claim_token: Some(call.claim_token),
        message_type: MessageType::ToolResult,
        status,
        is_external,
        card: draft.seal()?,
    };
    let project_id = call.project_id;
    retry(|| {
        Box::pin(async {
            let mut alone = kernel.alone(project_id).await?;
            waybill_kernel::turn::report(&mut alone, &report).await
        })
    })
    .await
}

/// Returns the text of a result that has more tokens than allowed.
fn too_long(result: &Value, most: Tokens) -> Option<(String, bool)> {
    let (text, is_json) = match result {
        Value::String(text) => (text.clone(), false),
        Value::Object(_) | Value::Array(_) => (serde_json::to_string_pretty(result).unwrap_or_default(), true),
        _ => return None,
    };
    let most_bytes = usize::try_from(most.get()).unwrap_or_default().saturating_mul(64);
    // A token has at least one byte, so short texts need no counting.
    let is_long = text.len() > most_bytes
        || i64::try_from(text.len()).unwrap_or(i64::MAX) > most.get().into() && tokens::count(&text) > most;
    is_long.then_some((text, is_json))
}

/// Stores the whole result as an artifact. Returns its beginning, its end, and where the rest is.
async fn keep(
    artifacts: Option<&Artifacts>,
    call: &ClaimedCall,
    text: String,
    is_json: bool,
    is_external: bool,
    extra: &mut Map<String, Value>,
) -> Value {
    let n_bytes = text.len();
    let ending = if is_json { "json" } else { "txt" };
    let part = |part: &Part, most: i32| {
        let most = Tokens::new(most).unwrap_or_default();
        load::load(&text, part, most).map(|loaded| loaded.text).unwrap_or_default()
    };
    let (head, tail) = (part(&Part::Head, HEAD), part(&Part::Tail, TAIL));
    let stored = async {
        let artifacts = artifacts.ok_or("the process that made the call has no object store (--artifacts)")?;
        let path = format!("results/{}/{}.{ending}", call.agent_turn_id, call.tool_call_id);
        let path: ArtifactPath = path.parse().map_err(|_| "the path for it is not valid")?;
        let put = Put { is_external, ..Put::new(&path) };
        let artifact = artifacts.put_bytes(call.project_id, put, Bytes::from(text.into_bytes())).await;
        artifact.map_err(|error| error.to_string())
    };
    let head_line = match stored.await {
        Ok(artifact) => {
            extra.insert("artifacts".to_owned(), json!({ artifact.path.as_str(): artifact.hash }));
            let n_tokens = artifact.n_tokens.map_or_else(|| format!("{n_bytes} bytes"), |n| format!("{n} tokens"));
            format!(
                "[{n_tokens}: too long to show. The whole result is stored as the artifact {}: search it with `search_artifacts`, read parts of it with `read_artifact`. Its beginning and its end:]",
                artifact.path
            )
        }
        Err(why) => {
            tracing::warn!(tool_call_id = %call.tool_call_id, n_bytes, %why, "a tool result was too long to store whole: only its beginning and its end were kept");
            format!("[{n_bytes} bytes: too long to show, and not stored: {why}. Its beginning and its end:]")
        }
    };
    format!("{head_line}\n{head}\n[…]\n{tail}").into()
}

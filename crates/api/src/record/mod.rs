//! The recorder (RC-1 …): forwards requests of agents elsewhere to a model provider, and records what passed.
//!
//! Forwarding comes first. Bodies pass unchanged in both directions, piece by piece, and no client ever waits for the database: what passed is put
//! into a bounded queue, and one of a few writers takes it from there. What could not be recorded is counted.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
    routing::any,
};
use reqwest::Client;
use serde::Deserialize;
use waybill_context::{record::withhold, wire::Adapter};
use waybill_core::{id::Name, metric};
use waybill_tool::outside;

use crate::{Api, problem::Problem};

use self::{
    credentials::Credentials,
    headers::{own, text},
    pieces::Counted,
    queue::{Call, Queue},
    replay::Replays,
    sender::Senders,
    source::Projects,
    tee::{Tee, Underway},
};

mod answer;
mod credentials;
mod headers;
pub(crate) mod import;
mod pieces;
mod queue;
pub(crate) mod replay;
mod sender;
mod source;
mod tee;
mod write;

/// What the recorder of a server needs.
#[derive(Debug)]
pub(crate) struct Recorder {
    http: Client,
    senders: Senders,
    projects: Projects,
    counted: Arc<Counted>,
    queue: Queue,
    replays: Replays,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        let http = outside::client().build().expect("a client without a certificate of its own");
        Recorder {
            http,
            senders: Senders::default(),
            projects: Projects::default(),
            counted: Arc::default(),
            queue: Queue::new(),
            replays: Replays::default(),
        }
    }

    /// Returns once everything that was taken is recorded.
    pub(crate) async fn emptied(&self) {
        self.queue.emptied().await;
    }
}

/// Starts the writers.
pub(crate) fn start(api: &Arc<Api>) {
    // A rate needs a first value.
    metrics::counter!(metric::RECORDED).increment(0);
    for why in ["database", "queue_full"] {
        metrics::counter!(metric::NOT_RECORDED, "why" => why).increment(0);
    }
    queue::start(api);
}

pub(crate) fn routes() -> Router<Arc<Api>> {
    Router::new().route("/record/{project}/{provider}/{*path}", any(forward))
}

#[derive(Deserialize)]
struct Where {
    /// A project, or a key of the recorder, for clients that can set nothing but a URL.
    project: String,
    provider: String,
}

/// Forwards a request, and records what passes.
async fn forward(
    State(api): State<Arc<Api>>,
    Path(Where { project, provider }): Path<Where>,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let upstream = upstream(&api, &provider)?;
    let sender = sender::recognise(&api, &parts, &project).await?;
    if headers::is_websocket(&parts.headers) {
        count("websocket");
        let said =
            "the recorder does not forward WebSockets: let the client use HTTP, or connect it to the provider itself";
        return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, "websocket", said).into());
    }
    let replay = replay::wanted(&parts.headers, &api.config, &sender)?;
    if api.config.record_all && !replay.as_ref().is_some_and(replay::Wanted::is_strict) {
        api.recorder.queue.ready(&api, sender.project_id).await?;
    }
    let begun = Instant::now();
    // As the client has written it, not decoded: `/record/PROJECT/PROVIDER/` comes before it.
    let path = parts.uri.path().splitn(5, '/').nth(4).unwrap_or_default();
    let url = joined(&upstream, path, parts.uri.query());
    let (sent, body) = api.recorder.queue.read(body).await?;
    let passed = headers::passed(&parts.headers);
    let adapter = adapter(path).filter(|_| parts.method == "POST");
    let call = match (adapter, sent) {
        (Some(adapter), Some((request, room))) => Some(Call {
            room,
            sender,
            provider: provider.clone(),
            adapter,
            encoding: text(&parts.headers, &header::CONTENT_ENCODING),
            session: own(&parts.headers, "x-waybill-session"),
            agent: own(&parts.headers, "x-waybill-agent"),
            parent: own(&parts.headers, "x-waybill-parent"),
            traceparent: text(&parts.headers, &HeaderName::from_static("traceparent")),
            address: address(path, parts.uri.query()),
            request,
            credentials: Credentials::of(&passed, parts.uri.query()),
            status: 0,
            answer_type: None,
            answer_encoding: None,
            answer: Vec::new(),
            n_bytes: 0,
            is_whole: false,
            begun,
            took: Duration::ZERO,
        }),
        (Some(_), None) => {
            count("queue_full");
            None
        }
        (None, _) => {
            count("not_a_model_call");
            None
        }
    };
    if let Some(replay) = replay
        && let Some(answer) = replay.answer(&api, call.as_ref(), adapter.is_some()).await?
    {
        return Ok(answer);
    }
    // From here on it is on record, also if the client goes away before the provider answers.
    let mut underway = call.map(|call| Underway::new(&api, call));
    let answer = match api.recorder.http.request(parts.method, &url).headers(passed).body(body).send().await {
        Ok(answer) => answer,
        Err(error) => {
            // Of a request that never left there is nothing to say.
            if let Some(underway) = underway.filter(|_| error.is_connect() || error.is_builder()) {
                underway.forget();
                count("provider");
            }
            return Err(unanswered(&provider, &error).into());
        }
    };
    if let Some(underway) = &mut underway {
        underway.answered(&answer);
    }
    let (status, headers) = (answer.status(), headers::answered(answer.headers()));
    let mut response = (status, Body::from_stream(Tee::new(answer.bytes_stream(), underway))).into_response();
    *response.headers_mut() = headers;
    Ok(response)
}

/// A problem as clients of models read it: what is wrong stands in `error.message` too.
#[derive(Debug)]
struct Refusal(Problem);

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        Refusal(problem)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut said = serde_json::to_value(&self.0).unwrap_or_default();
        said["error"] = serde_json::json!({ "message": said["detail"], "type": said["code"], "code": said["code"] });
        let mut response = self.0.into_response();
        *response.body_mut() = Body::from(said.to_string());
        response
    }
}

/// Says why a provider did not answer. The error itself would show the URL, and with it what the query says.
fn unanswered(provider: &str, error: &reqwest::Error) -> Problem {
    let why = if error.is_connect() { "it does not accept connections" } else { "the connection broke" };
    let detail = format!("the provider `{provider}` cannot be reached: {why}");
    Problem::new(StatusCode::BAD_GATEWAY, "no_provider_answer", detail)
}

/// Counts a call that passes unrecorded, and why.
fn count(why: &'static str) {
    metrics::counter!(metric::NOT_RECORDED, "why" => why).increment(1);
}

/// Returns the address of a provider that the operator lets requests be recorded for.
fn upstream(api: &Api, provider: &str) -> Result<String, Problem> {
    let name: Option<Name> = provider.parse().ok();
    name.and_then(|name| api.config.models.upstream(&name)).ok_or_else(|| {
        let shown: String = provider.chars().take(64).collect();
        Problem::not_found(format!(
            "requests to the provider {shown:?} are not recorded: the operator can add it to the file of --providers, with `record: true`"
        ))
    })
}

/// Returns the address at the provider. Clients differ in whether the version is part of their base URL.
fn joined(upstream: &str, path: &str, query: Option<&str>) -> String {
    let base = upstream.trim_end_matches('/');
    let version =
        base.rsplit('/').next().filter(|last| last.starts_with('v') && last[1..].bytes().all(|b| b.is_ascii_digit()));
    let path = version.and_then(|version| path.strip_prefix(version)?.strip_prefix('/')).unwrap_or(path);
    // Anthropic's own SDK has the version in its paths; other clients of Anthropic expect it in their base URL.
    let is_short = version.is_none() && (path == "messages" || path.starts_with("messages/"));
    let path = if is_short { &format!("v1/{path}") } else { path };
    match query {
        Some(query) => format!("{base}/{path}?{query}"),
        None => format!("{base}/{path}"),
    }
}

/// Returns the path and the query of a request, without the credentials in it.
fn address(path: &str, query: Option<&str>) -> String {
    let is_kept = |parameter: &&str| !withhold::is_credential(parameter.split('=').next().unwrap_or_default());
    let kept: Vec<&str> = query.unwrap_or_default().split('&').filter(is_kept).collect();
    format!("{path}?{}", kept.join("&"))
}

/// Returns the format of a request, by its path.
fn adapter(path: &str) -> Option<Adapter> {
    let path = path.trim_end_matches('/');
    let ends = |with: &str| path == with || path.strip_suffix(with).is_some_and(|rest| rest.ends_with('/'));
    if ends("chat/completions") {
        Some(Adapter::OpenaiChat)
    } else if ends("responses") {
        Some(Adapter::OpenaiResponses)
    } else if ends("messages") {
        Some(Adapter::AnthropicMessages)
    } else {
        None
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RC-1: whether or not a client's base URL has the version, the request goes to the same address.
    #[test]
    fn the_version_stands_once_in_the_address() {
        let base = "https://api.example.com/v1";
        assert_eq!(joined(base, "chat/completions", None), "https://api.example.com/v1/chat/completions");
        assert_eq!(joined(base, "v1/chat/completions", None), "https://api.example.com/v1/chat/completions");
        assert_eq!(
            joined("https://api.example.com/", "v1/messages", Some("beta=true")),
            "https://api.example.com/v1/messages?beta=true"
        );
        assert_eq!(joined(base, "v2/messages", None), "https://api.example.com/v1/v2/messages");
        let bare = "https://api.example.com";
        assert_eq!(joined(bare, "messages", None), "https://api.example.com/v1/messages");
        assert_eq!(joined(bare, "messages/count_tokens", None), "https://api.example.com/v1/messages/count_tokens");
    }

    #[test]
    fn the_path_says_the_format() {
        assert_eq!(adapter("v1/chat/completions"), Some(Adapter::OpenaiChat));
        assert_eq!(adapter("responses/"), Some(Adapter::OpenaiResponses));
        assert_eq!(adapter("v1/messages"), Some(Adapter::AnthropicMessages));
        assert_eq!(adapter("v1/messages/count_tokens"), None);
        assert_eq!(adapter("v1/responses/resp_1/cancel"), None);
        assert_eq!(adapter("mymessages"), None);
    }
}

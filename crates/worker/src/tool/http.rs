//! A tool over HTTP: one request, with the call's own key, and what came back.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
    time::Duration,
};

use futures::StreamExt;
use reqwest::{
    Client, RequestBuilder, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use waybill_core::{
    error::innermost,
    id::{Name, ProjectId},
    json,
    tool::{Header, HttpTool, Method},
};

use super::{admit::Admitted, conclude::Said, egress::Egress};
use crate::secret::{Secrets, told};

/// The largest answer of a tool.
pub(super) const MOST_BYTES: usize = 8 << 20;
/// Of all answers that this process is reading, and of those for one project.
const MOST_READ: usize = 64 << 20;
const MOST_READ_OF_ONE: usize = MOST_READ / 2;

static READ: Semaphore = Semaphore::const_new(MOST_READ >> 10);
static READ_BY_PROJECT: LazyLock<Mutex<HashMap<ProjectId, Weak<Semaphore>>>> = LazyLock::new(Mutex::default);

/// Memory for an answer, until this is dropped.
struct Room {
    _of_project: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'static>,
}

impl Room {
    /// Waits until there is room for an answer of this length; of an unknown one, for the longest that is read.
    async fn take(project_id: ProjectId, length: Option<u64>) -> Option<Room> {
        let bytes = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(MOST_BYTES).min(MOST_BYTES);
        let n = u32::try_from((bytes >> 10) + 1).ok()?;
        let of_project = {
            let mut all = READ_BY_PROJECT.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, one| one.strong_count() > 0);
            let found = all.get(&project_id).and_then(Weak::upgrade);
            let one = found.unwrap_or_else(|| Arc::new(Semaphore::new(MOST_READ_OF_ONE >> 10)));
            all.insert(project_id, Arc::downgrade(&one));
            one
        };
        let of_project = of_project.acquire_many_owned(n).await.ok()?;
        Some(Room { _of_project: of_project, _of_all: READ.acquire_many(n).await.ok()? })
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Nothing was sent, or whoever was asked says that nothing was done: it may be tried again, whatever the tool does.
    NotDone(String, Option<Duration>),
    /// It may have been done.
    Unknown(String, Option<Duration>),
    /// Trying again does not help.
    Refused(String),
}

/// Headers with their secrets, as `find` knows them: known here alone.
pub(super) fn headers<'a>(
    find: impl Fn(&Name) -> Result<SecretString, String>,
    said: impl IntoIterator<Item = (&'a String, &'a Header)>,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in said {
        let name: HeaderName = name.parse().map_err(|_| format!("{name:?} is no header"))?;
        let text = told(value, &find)?;
        let mut value = HeaderValue::from_str(text.expose_secret())
            .map_err(|_| format!("what `{name}` says cannot stand in a header"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// The way outside, of one project.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub(super) client: &'a Client,
    pub(super) egress: &'a Egress,
    pub(super) secrets: &'a Secrets,
    pub(super) project_id: ProjectId,
}

impl Way<'_> {
    /// A secret that the project's own manifest names.
    pub(super) fn own_secret(&self, name: &Name) -> Result<SecretString, String> {
        let found = self.secrets.find_own(self.project_id, name, &self.egress.shared_secrets);
        found.map_err(|error| error.to_string())
    }
}

/// `key` is the same for the same call, whoever makes it and however often.
pub(super) async fn call(way: Way<'_>, admitted: &Admitted, key: &str, http: &HttpTool) -> Result<Said, Trouble> {
    let secrets = way.secrets;
    let request = prepare(way, admitted, key, http).map_err(Trouble::Refused)?;
    let response = request.send().await.map_err(|error| {
        let why = in_short(secrets, &error);
        if error.is_connect() { Trouble::NotDone(why, None) } else { Trouble::Unknown(why, None) }
    })?;
    let status = response.status();
    let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let is_json = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|said| {
        let kind = said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        kind == "application/json" || kind.ends_with("+json")
    });
    let _room = Room::take(way.project_id, response.content_length()).await;
    let mut body = Vec::new();
    let mut stream = response.bytes_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| Trouble::Unknown(in_short(secrets, &error), None))?;
        if body.len() + piece.len() > MOST_BYTES {
            return Ok(Said::failed(format!("the answer has more than {MOST_BYTES} bytes")));
        }
        body.extend_from_slice(&piece);
    }
    match status {
        StatusCode::TOO_MANY_REQUESTS => {
            return Err(Trouble::NotDone(format!("it answered {status}"), wait.map(Duration::from_secs)));
        }
        // Whoever stands before it may say so after it has begun.
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
            return Err(Trouble::Unknown(format!("it answered {status}"), wait.map(Duration::from_secs)));
        }
        _ => {}
    }
    let parsed = is_json.then(|| json::parse(&body).ok()).flatten();
    let result = match parsed {
        Some(value) => value,
        None => match String::from_utf8(body) {
            Ok(text) => json::text(&text).into_owned().into(),
            Err(error) => format!("{} bytes that are no text", error.as_bytes().len()).into(),
        },
    };
    let result = blotted(secrets, result);
    if status.is_success() {
        return Ok(Said::new("success", result));
    }
    let result = json!({ "http_status": status.as_u16(), "body": result });
    Ok(Said::new("failed", result))
}

fn prepare(way: Way<'_>, admitted: &Admitted, key: &str, http: &HttpTool) -> Result<RequestBuilder, String> {
    let Way { client, egress, .. } = way;
    let filled = http.url.fill(&admitted.arguments).map_err(|error| error.to_string())?;
    let in_path = http.url.names();
    let rest = admitted.arguments.iter().filter(|(name, _)| !in_path.contains(&name.as_str()));
    let (query, body): (Vec<_>, Vec<_>) =
        rest.partition(|(name, _)| !http.method.has_body() || http.query.contains(name));
    let plain = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut url = Url::parse(&filled).map_err(|error| format!("{filled}: {error}"))?;
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query.iter().map(|(name, value)| (name.as_str(), plain(value))));
    }
    egress.allows(&url, &admitted.egress_hosts)?;
    let (is_open, at) = (url.scheme() != "https", url.clone());
    let method = match http.method {
        Method::Get => reqwest::Method::GET,
        Method::Post => reqwest::Method::POST,
        Method::Put => reqwest::Method::PUT,
        Method::Patch => reqwest::Method::PATCH,
        Method::Delete => reqwest::Method::DELETE,
    };
    let mut request = client.request(method, url).header("idempotency-key", key);
    request = request.header("traceparent", &admitted.traceparent);
    if let Some(user) = admitted.on_behalf_of.as_ref().and_then(|user| HeaderValue::from_str(user).ok()) {
        request = request.header("waybill-on-behalf-of", user);
    }
    let secret = |name: &Name| match is_open && !egress.is_named_private(&at) {
        true => Err(format!(
            "the secret `{name}` is not sent in the clear to {}: use https",
            at.host_str().unwrap_or_default()
        )),
        false => way.own_secret(name),
    };
    request = request.headers(headers(secret, &http.headers)?);
    if http.method.has_body() {
        let body: Map<String, Value> = body.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        request = request.header(CONTENT_TYPE, "application/json").body(Value::Object(body).to_string());
    }
    Ok(request)
}

/// An echo of a secret goes no further.
pub(super) fn blotted(secrets: &Secrets, result: Value) -> Value {
    match result {
        Value::String(text) => secrets.blot(text).into(),
        Value::Array(values) => values.into_iter().map(|value| blotted(secrets, value)).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (secrets.blot(name), blotted(secrets, value)));
            Value::Object(fields.collect())
        }
        other => other,
    }
}

/// The innermost cause, without the address, which may say more than whoever asked may know.
fn in_short(secrets: &Secrets, error: &reqwest::Error) -> String {
    secrets.blot(innermost(error).unwrap_or_else(|| "it could not be reached".to_owned()))
}

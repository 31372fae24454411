//! A tool over HTTP: one request with the call's idempotency key, and its response.

use std::{
    collections::HashMap,
    error::Error as _,
    io,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use reqwest::{
    Client, RequestBuilder, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use waybill_core::{
    error::innermost,
    id::{Name, ProjectId},
    json,
    tool::{Header, HttpTool, Method},
};

use waybill_kernel::offload;

use crate::secret::{Secrets, told};
use crate::{admit::Admitted, conclude::ToolOutcome, egress::Egress};

/// The largest answer of a tool.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// The most bytes of answers that this process reads at once. It is large enough that some of them can always be read to their end.
const MOST_READ: usize = 128 << 20;
/// The room that an answer of unknown length gets first.
const UNKNOWN: usize = 1 << 20;

/// The bytes that are being read, in total and by project.
static READ: LazyLock<Mutex<(usize, HashMap<ProjectId, usize>)>> = LazyLock::new(Mutex::default);
static LESS_IS_READ: Notify = Notify::const_new();

/// Memory reserved for an answer, until this is dropped.
struct Room {
    project_id: ProjectId,
    n: usize,
}

impl Room {
    fn new(project_id: ProjectId) -> Room {
        Room { project_id, n: 0 }
    }

    /// Waits until there is room for this many more bytes. A project may not hold more than what stays free: alone it gets half, and some is
    /// always left for other projects.
    async fn grow(&mut self, more: usize) {
        loop {
            let less = LESS_IS_READ.notified();
            if self.has_grown(more) {
                return;
            }
            less.await;
        }
    }

    fn has_grown(&mut self, more: usize) -> bool {
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, of_project) = &mut *read;
        let free = MOST_READ.saturating_sub(*all);
        let of_this = of_project.entry(self.project_id).or_default();
        if *of_this + more > free {
            return false;
        }
        *of_this += more;
        *all += more;
        self.n += more;
        true
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, of_project) = &mut *read;
        *all -= self.n;
        if let Some(of_this) = of_project.get_mut(&self.project_id) {
            *of_this -= self.n;
            if *of_this == 0 {
                of_project.remove(&self.project_id);
            }
        }
        LESS_IS_READ.notify_waiters();
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Nothing was sent, or the server says that nothing was done: a retry is safe for every tool.
    NotDone(String, Option<Duration>),
    /// It may have been done.
    Unknown(String, Option<Duration>),
    /// A retry does not help.
    Refused(String),
}

/// Returns headers with their secrets, which `find` looks up. Secrets are known only here.
pub(crate) fn headers<'a>(
    find: impl Fn(&Name) -> Result<SecretString, String>,
    said: impl IntoIterator<Item = (&'a String, &'a Header)>,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in said {
        let name: HeaderName = name.parse().map_err(|_| format!("{name:?} is not a valid header name"))?;
        let text = told(value, &find)?;
        let mut value = HeaderValue::from_str(text.expose_secret()).map_err(|_| {
            format!("the value of header `{name}` contains characters that a header must not have, such as line breaks")
        })?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// What a project's calls to other hosts need.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) client: &'a Client,
    pub(crate) egress: &'a Egress,
    pub(crate) secrets: &'a Arc<Secrets>,
    pub(crate) project_id: ProjectId,
}

impl Way<'_> {
    /// Finds a secret that the project's own manifest names.
    pub(crate) fn own_secret(&self, name: &Name) -> Result<SecretString, String> {
        let found = self.secrets.find_own(self.project_id, name, &self.egress.shared_secrets);
        found.map_err(|error| error.to_string())
    }
}

/// Makes the call. `key` is its idempotency key: the same for every attempt, on every worker.
pub(crate) async fn call(
    way: Way<'_>,
    admitted: &Admitted,
    key: &str,
    http: &HttpTool,
) -> Result<ToolOutcome, Trouble> {
    let secrets = way.secrets;
    let request = prepare(way, admitted, key, http).map_err(Trouble::Refused)?;
    let response = request.send().await.map_err(|error| {
        let why = in_short(secrets, http, &error);
        if error.is_connect() { Trouble::NotDone(why, None) } else { Trouble::Unknown(why, None) }
    })?;
    let status = response.status();
    let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let is_json = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|said| {
        let kind = said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        kind == "application/json" || kind.ends_with("+json")
    });
    let mut room = Room::new(way.project_id);
    let length = response.content_length().and_then(|length| usize::try_from(length).ok());
    room.grow(length.unwrap_or(UNKNOWN).min(MOST_BYTES)).await;
    let mut body = Vec::new();
    let mut stream = response.bytes_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| Trouble::Unknown(in_short(secrets, http, &error), None))?;
        if body.len() + piece.len() > MOST_BYTES {
            return Ok(ToolOutcome::failed(format!("the response of the tool has more than {MOST_BYTES} bytes")));
        }
        if body.len() + piece.len() > room.n {
            room.grow(MOST_BYTES - room.n).await;
        }
        body.extend_from_slice(&piece);
    }
    match status {
        StatusCode::TOO_MANY_REQUESTS => {
            return Err(Trouble::NotDone(
                format!("the server of the tool responded with {status}"),
                wait.map(Duration::from_secs),
            ));
        }
        // A proxy may answer this after the server has begun to work.
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
            return Err(Trouble::Unknown(
                format!("the server of the tool responded with {status}"),
                wait.map(Duration::from_secs),
            ));
        }
        _ => {}
    }
    let secrets = Arc::clone(secrets);
    let result = offload::run(body.len(), move || {
        let _room = room;
        let parsed = is_json.then(|| json::parse(&body).ok()).flatten();
        let result = match parsed {
            Some(value) => value,
            None => match String::from_utf8(body) {
                Ok(text) => json::text(&text).into_owned().into(),
                Err(error) => format!("{} bytes that are not text", error.as_bytes().len()).into(),
            },
        };
        blotted(&secrets, result)
    })
    .await;
    if status.is_success() {
        return Ok(ToolOutcome::new("success", result));
    }
    let result = json!({ "http_status": status.as_u16(), "body": result });
    Ok(ToolOutcome::new("failed", result))
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
            "the secret `{name}` is not sent to {} without encryption: use https",
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

/// Masks secrets that a server echoes.
pub(crate) fn blotted(secrets: &Secrets, result: Value) -> Value {
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

/// Returns the method, the server and the innermost cause. The path and the query are left out: they may contain more than the model may know,
/// such as the key of a webhook.
fn in_short(secrets: &Secrets, http: &HttpTool, error: &reqwest::Error) -> String {
    let why = match is_refused(error) {
        true => "connection refused: no server listens at this address".to_owned(),
        false => innermost(error).unwrap_or_else(|| "the server of the tool could not be reached".to_owned()),
    };
    secrets.blot(format!("{} {}: {why}", http.method.as_str(), http.url.origin()))
}

/// Checks whether there is no server at the address.
fn is_refused(error: &reqwest::Error) -> bool {
    let mut causes = std::iter::successors(error.source(), |cause| (**cause).source());
    causes.any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    })
}

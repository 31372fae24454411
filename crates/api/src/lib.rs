//! Waybill over HTTP (UI-1, UI-2).
//!
//! * A request carries a key (SE-1), which belongs to one project, or the cookie of a browser session (SE-11). What belongs to another project does
//!   not exist for it: the answer is the same as for something that never existed.
//! * Every write is one unit of work of the kernel, and may carry an idempotency key (`Idempotency-Key`): sent again, it gets the same answer.
//! * Errors have one shape (RFC 9457) and a stable code.
//! * The OpenAPI document is made from these handlers, and served at `/openapi.json`.
//!
//! Not here: SQL, and any rule of how turns are run. A worker over HTTP writes under the same fence as one with a database connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, DefaultBodyLimit, Request, State},
    http::{HeaderValue, StatusCode, Version, header::CONNECTION},
    middleware::Next,
    response::{IntoResponse, Json, Response},
    routing::get,
    serve::Listener,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::{
    Modify, OpenApi, PartialSchema,
    openapi::{
        Content, Ref, RefOr, Required, ResponseBuilder,
        path::{ParameterBuilder, ParameterIn},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_axum::router::OpenApiRouter;
use waybill_artifact::Artifacts;
use waybill_context::framework::Framework;
use waybill_kernel::{turn::Told, work::Kernel};
use waybill_tool::secret::Secrets;
use waybill_worker::{collect::Collector, model::Models, serve::Worker};

use routes::{StreamEvent, TokenEvent};
use tls::Greeted;

mod cached;
mod caller;
mod compress;
mod console;
mod cookie;
mod kept;
mod limit;
mod login;
mod problem;
mod reader;
mod record;
mod recorded;
mod refused;
mod request;
mod routes;
mod shape;
mod tls;
mod token;
mod write;

pub use limit::Limits;
pub use login::Client;
pub use problem::Problem;
pub use record::{
    import::{ImportError, ImportedCall, Importer, Put},
    replay::{Replay, Unknown},
};
pub use tls::{Tls, TlsError};
pub use token::{Identity, IdentityError};

/// Which callers the API answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Callers with a key.
    Keys,
    /// Also callers without a key, as long as they are on this machine. They may do everything.
    Loopback,
}

/// How the API is served.
#[derive(Clone, Debug)]
pub struct Config {
    pub access: Access,
    pub limits: Limits,
    /// `None` means plain HTTP.
    pub tls: Option<Tls>,
    /// A proxy in front of the server speaks TLS: browsers get cookies for TLS.
    pub behind_tls: bool,
    /// Bulk content. With `None`, artifacts can be neither stored nor read.
    pub artifacts: Option<Artifacts>,
    /// The identity provider whose tokens are accepted beside our own keys.
    pub identity: Option<Identity>,
    /// The operator's providers: requests are composed for them for workers that ask models themselves, and the usage that workers report is priced
    /// by their prices.
    pub models: Models,
    /// How often refused requests are written to the audit.
    pub refusals_every: Duration,
    /// How long the server goes on once it is to end, while `/ready` says that it leaves: proxies send it new connections until they have seen that.
    pub drain: Duration,
    /// Whether browsers get the console at `/ui/`.
    pub console: bool,
    /// Whether the recorder refuses calls that it cannot record. If not, they pass and are counted.
    pub record_all: bool,
    /// Whether the recorder answers from the record, for clients that do not say so themselves.
    pub replay: Option<Replay>,
    /// Whether clients with a key may have recorded answers replayed: they get back what they have recorded. Those on this machine always may.
    pub may_replay: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            access: Access::Keys,
            limits: Limits::default(),
            tls: None,
            behind_tls: false,
            artifacts: None,
            identity: None,
            models: Models::new(Vec::new(), Secrets::default()),
            refusals_every: refused::EVERY,
            drain: Duration::ZERO,
            console: true,
            record_all: false,
            replay: None,
            may_replay: false,
        }
    }
}

/// What every request needs.
#[derive(Debug)]
pub(crate) struct Api {
    kernel: Kernel,
    config: Config,
    gate: limit::Gate,
    backlog: limit::Backlog,
    tokens: Option<token::Tokens>,
    reader: reader::Reader,
    refused: refused::Refused,
    recorder: record::Recorder,
    /// Composes requests and takes answers for workers that ask models themselves. It claims nothing.
    worker: Worker,
    /// Whether the server drains: it still answers, and proxies are to send requests to others.
    leaving: AtomicBool,
    /// True once the server is to end: callers that wait or watch are let go.
    ending: watch::Receiver<bool>,
}

impl Api {
    /// Returns once the server is to end.
    async fn ended(&self) {
        let mut ending = self.ending.clone();
        // An error means that the sender is gone: the server has ended.
        let _ = ending.wait_for(|ending| *ending).await;
    }
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Waybill", description = "HTTP API of Waybill: run turns of LLM agents, and see exactly what each model saw."),
    modifiers(&Security),
    components(schemas(Problem, Told, TokenEvent, StreamEvent)),
    security(("key" = []), ("cookie" = [])),
    tags(
        (name = "turns", description = "Start, watch, inspect, stop and fork turns."),
        (name = "sessions", description = "Conversations of several turns: messages, todo list, summary."),
        (name = "context", description = "Show what a model saw, byte for byte, and where it came from."),
        (name = "cards", description = "Read cards, and the boxes that contain them. Delete cards, or set when they expire."),
        (name = "artifacts", description = "Store, list, read and remove files by path. New content becomes a new version."),
        (name = "handoffs", description = "Check and send handoff packages. List and decide the requests of agents to people."),
        (name = "knowledge", description = "Manage and search documents, and published results of earlier turns."),
        (name = "resources", description = "Profiles, tools, plans, handoff types, settings, retention, agents, keys, audit."),
        (name = "browser", description = "Log in and out with a browser, which then has a cookie instead of a key."),
        (name = "worker", description = "For workers and tools of your own: claim turns and calls, write steps, report results."),
    )
)]
struct Document;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let key = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("wb_…").build();
        let said = "Cookie of a browser session, which `POST /ui/session` or `/ui/login` sets. Over plain HTTP on loopback it is named `waybill`. Requests \
                    that change something must also have `Sec-Fetch-Site: same-origin` or an `Origin` that is this server's.";
        let cookie = ApiKey::Cookie(ApiKeyValue::with_description("__Host-waybill", said));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(key));
        components.add_security_scheme("cookie", SecurityScheme::ApiKey(cookie));
    }
}

fn routes() -> (Router<Arc<Api>>, utoipa::openapi::OpenApi) {
    let routes = OpenApiRouter::with_openapi(Document::openapi())
        .merge(routes::outside())
        .nest("/v1/projects/{project}", routes::all());
    let (router, mut document) = routes.split_for_parts();
    Everywhere.modify(&mut document);
    shape::shape(&mut document);
    recorded::show(&mut document);
    (router, document)
}

/// What every operation has: the project parameter, if it is below a project, and the shape of a refusal.
struct Everywhere;

impl Modify for Everywhere {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let project = ParameterBuilder::new()
            .name("project")
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some("Slug or id of the project."))
            .schema(Some(String::schema()))
            .build();
        let problem = Content::new(Some(Ref::from_schema_name("Problem")));
        let refusal = ResponseBuilder::new()
            .description("The request failed. The body says what is wrong and what to do.")
            .content("application/problem+json", problem)
            .build();
        for (path, item) in &mut document.paths.paths {
            let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                if path.contains("{project}") {
                    operation.parameters.get_or_insert_default().insert(0, RefOr::T(project.clone()));
                }
                operation.responses.responses.insert("default".to_owned(), RefOr::T(refusal.clone()));
            }
        }
    }
}

/// Returns the OpenAPI document.
pub fn document() -> utoipa::openapi::OpenApi {
    routes().1
}

/// Serves until `stop` is done, and then for as long as `Config::drain` says. Then callers that wait are let go, and requests in progress have
/// `grace` to end.
pub async fn serve(
    listener: TcpListener,
    kernel: Kernel,
    config: Config,
    stop: impl Future<Output = ()> + Send,
    grace: Duration,
) -> std::io::Result<()> {
    match config.tls.clone() {
        Some(tls) => serve_on(Greeted::new(listener, tls)?, kernel, config, stop, grace).await,
        None => serve_on(listener, kernel, config, stop, grace).await,
    }
}

async fn serve_on<L>(
    mut listener: L,
    kernel: Kernel,
    config: Config,
    stop: impl Future<Output = ()> + Send,
    grace: Duration,
) -> std::io::Result<()>
where
    L: Listener<Addr = SocketAddr>,
{
    let (end, ending) = watch::channel(false);
    let (limits, drain) = (config.limits, config.drain);
    let (app, api) = app(kernel, config, ending.clone()).map_err(std::io::Error::other)?;
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head_timeout);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(limits.head_timeout).keep_alive_timeout(limits.head_timeout);
    http2.max_concurrent_streams(100);
    let connections = limit::Connections::new(limits.most_connections);
    let mut open = JoinSet::new();
    let stop = async {
        stop.await;
        api.leaving.store(true, Ordering::Relaxed);
        tokio::time::sleep(drain).await;
    };
    tokio::pin!(stop);
    loop {
        let (io, peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next() => continue,
            () = &mut stop => break,
        };
        // A connection above the limit is closed without an answer: before its first request there is nothing to answer.
        let Some(place) = connections.take(peer.ip()) else { continue };
        let accepted = Accepted { io, peer, place };
        open.spawn(connection(builder.clone(), accepted, app.clone(), ending.clone(), limits.head_timeout));
    }
    drop(listener);
    let _ = end.send(true);
    // The server does not wait longer for an idle connection that a client keeps open.
    let _ = tokio::time::timeout(grace, async { while open.join_next().await.is_some() {} }).await;
    // What passed on the others is on record too.
    open.shutdown().await;
    // Writes what has passed and the refusals so far, if the database can be reached.
    let _ = tokio::time::timeout(RECORDED, api.recorder.emptied()).await;
    let _ = tokio::time::timeout(RECORDED, api.refused.write(&api)).await;
    Ok(())
}

/// A connection that was accepted, and its place among those that may be open.
struct Accepted<I> {
    io: I,
    peer: SocketAddr,
    place: limit::Connection,
}

/// Answers the requests of a connection, until it is closed, or the server is to end and requests in progress are answered.
async fn connection<I>(
    builder: Builder<TokioExecutor>,
    accepted: Accepted<I>,
    app: Router,
    mut ending: watch::Receiver<bool>,
    most_silent: Duration,
) where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    // Kept to the end: the place is free once the connection is closed.
    let Accepted { io, peer, place: _place } = accepted;
    let asked = Arc::new(AtomicBool::new(false));
    let has_asked = asked.clone();
    let service = hyper::service::service_fn(move |mut request: Request<hyper::body::Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(ConnectInfo(Peer(peer)));
        app.clone().oneshot(request.map(Body::new))
    });
    let served = builder.serve_connection(TokioIo::new(io), service);
    tokio::pin!(served);
    let ended = async { drop(ending.wait_for(|ending| *ending).await) };
    // A client that sends nothing at all is not known to speak HTTP/1 yet, so none of its timeouts apply.
    let silent = async {
        tokio::time::sleep(most_silent).await;
        if asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        served = served.as_mut() => return noted(served),
        () = silent => return,
        () = ended => served.as_mut().graceful_shutdown(),
    }
    noted(served.await);
}

/// Logs how a connection ended, at debug level: an error on it matters to the other end only.
fn noted(served: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = served {
        tracing::debug!(error, "a connection ended");
    }
}

/// The address of the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The longest that writing the last calls, or the last refusals, may take.
const RECORDED: Duration = Duration::from_secs(5);

fn app(kernel: Kernel, config: Config, ending: watch::Receiver<bool>) -> Result<(Router, Arc<Api>), IdentityError> {
    let (router, document) = routes();
    // A request that is being answered uses the database: more at a time would only wait for a connection.
    let answered = kernel.connections().most * 2;
    let (gate, backlog) = (limit::Gate::new(&config.limits, answered), limit::Backlog::new(&config.limits));
    let (most_bytes, has_console) = (config.limits.most_bytes, config.console);
    let tokens = config.identity.clone().map(Identity::tokens).transpose()?;
    let (reader, refused) = (reader::Reader::default(), refused::Refused::default());
    let worker = Worker::new(kernel.clone(), config.models.clone(), Collector::new(Framework::builtin()));
    let worker = worker.with_artifacts(config.artifacts.clone());
    let leaving = AtomicBool::new(false);
    let recorder = record::Recorder::new();
    let api =
        Arc::new(Api { kernel, config, gate, backlog, tokens, leaving, ending, reader, refused, recorder, worker });
    record::start(&api);
    tokio::spawn(reader::read(api.clone()));
    tokio::spawn(reader::stand(api.clone()));
    tokio::spawn(refused::keep(api.clone()));
    let document = Arc::new(document.to_json().unwrap_or_default());
    let served = move || {
        let document = document.clone();
        async move { ([("content-type", "application/json")], document.as_str().to_owned()).into_response() }
    };
    let router = router
        .route_layer(axum::middleware::from_fn_with_state(api.clone(), refused::note))
        .route_layer(axum::middleware::from_fn(limit::count))
        .route_layer(axum::middleware::from_fn(compress::compress))
        .route("/openapi.json", get(served))
        .route("/health", get(|| async { Json(serde_json::json!({ "status": "up" })) }))
        .route("/ready", get(ready))
        .merge(if has_console { console::routes() } else { Router::new() })
        .merge(record::routes())
        .fallback(|| async { missing() })
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this path does not support the HTTP method of the request: `/openapi.json` lists the methods of each path")
        })
        .layer(DefaultBodyLimit::max(most_bytes))
        .layer(CatchPanicLayer::custom(|_| Problem::internal("a handler panicked").into_response()))
        .layer(axum::middleware::from_fn_with_state(api.clone(), let_go))
        .with_state(api.clone());
    Ok((router, api))
}

fn missing() -> Problem {
    Problem::not_found("this path does not exist: `/openapi.json` lists all paths")
}

/// Answers whether this process takes requests. Not whether the database can be reached: all processes lose it at the same time, and a service
/// without processes could not even answer that it is unavailable and when to retry.
async fn ready(State(api): State<Arc<Api>>) -> Result<Json<serde_json::Value>, Problem> {
    if api.leaving.load(Ordering::Relaxed) {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "this process is shutting down"));
    }
    Ok(Json(serde_json::json!({ "status": "ready" })))
}

/// While the server drains, ends the connection of a client with its answer. HTTP/2 has no such header; its clients hear it when the listener closes.
async fn let_go(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let has_header = request.version() < Version::HTTP_2;
    let mut answer = next.run(request).await;
    if has_header && api.leaving.load(Ordering::Relaxed) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

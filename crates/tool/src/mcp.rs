//! Tools of MCP servers, through the official client: over stdio if the operator has named a program, over streamable HTTP for an
//! address. The stateless protocol of 2026-07 is used if the server supports it, else an older one.
//!
//! A tool's definition is pinned by its hash. Before a call the server's list is read again, at most every few seconds, and a tool whose
//! definition has changed is not called.

use std::{
    collections::{BTreeMap, HashMap},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use reqwest::{Url, header::HeaderMap};
use rmcp::{
    ClientLifecycleMode, ClientServiceExt, RoleClient,
    model::{
        CallToolRequestParams, CallToolResponse, ContentBlock, ProtocolVersion, RequestMetaObject, ResourceContents,
        Tool as Listed,
    },
    service::{ClientCacheConfig, RunningService, ServiceError},
    transport::{
        StreamableHttpClientTransport, TokioChildProcess, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};
use tokio::{process::Command, sync::Mutex as AsyncMutex, time::timeout};
use waybill_core::{
    id::{Name, ProjectId},
    json,
    tool::{Header, McpTool, UrlTemplate, schema_hash},
};

use crate::secret::{Secrets, told};
use crate::{
    admit::Admitted,
    conclude::ToolOutcome,
    egress::Egress,
    http::{Trouble, Way, blotted, headers},
};

/// How long a server's list of tools is cached.
const LIST: Duration = Duration::from_secs(5);
/// How long a server may take to start or to connect.
const START: Duration = Duration::from_secs(30);
/// The metadata key for a call's idempotency key.
pub const KEY: &str = "waybill/idempotency_key";

/// A server that the operator has named: a program, or an address that need not be public.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    pub name: Name,
    /// The program and its arguments. It is started here, once, with the variables of `env` and few others.
    #[serde(default)]
    pub command: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, Header>,
    #[serde(default)]
    pub url: Option<UrlTemplate>,
    #[serde(default)]
    pub headers: BTreeMap<String, Header>,
    /// The projects that may use it: each of them can do whatever the server can do. This field is required.
    pub projects: Projects,
}

/// `"*"`, or a list of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Projects {
    All,
    These(Vec<ProjectId>),
}

impl Projects {
    fn contain(&self, project_id: ProjectId) -> bool {
        match self {
            Projects::All => true,
            Projects::These(projects) => projects.contains(&project_id),
        }
    }
}

impl<'de> Deserialize<'de> for Projects {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Projects, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "`projects` must be a list of project ids, or \"*\" for all projects")]
        enum ToolOutcome {
            Word(String),
            These(Vec<ProjectId>),
        }
        match ToolOutcome::deserialize(deserializer)? {
            ToolOutcome::Word(word) if word == "*" => Ok(Projects::All),
            ToolOutcome::Word(word) => Err(de::Error::custom(format!(
                "`projects: {word}`: write a list of project ids, or \"*\" for all projects"
            ))),
            ToolOutcome::These(projects) => Ok(Projects::These(projects)),
        }
    }
}

type Connection = RunningService<RoleClient, ()>;

/// Connections to servers. Each is opened when it is first needed, and again after it was lost.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    named: BTreeMap<Name, McpServer>,
    lines: Mutex<HashMap<String, Arc<AsyncMutex<Line>>>>,
}

#[derive(Debug, Default)]
struct Line {
    connection: Option<Arc<Connection>>,
    /// When the tools were listed, and the hash of each by name.
    listed: Option<(Instant, HashMap<String, String>)>,
}

/// A tool of a server, with the fields that a manifest needs.
#[derive(Clone, Debug)]
pub struct Offered {
    pub tool: String,
    pub description: String,
    pub input_schema: Value,
    pub output_schema: Option<Value>,
    pub schema_hash: String,
}

/// Where a server is.
enum Place<'a> {
    /// Named by the operator, and may get the operator's secrets.
    Named(&'a McpServer),
    /// Named by the project.
    Own(&'a UrlTemplate, &'a BTreeMap<String, Header>),
}

impl Servers {
    pub(crate) fn new(named: impl IntoIterator<Item = McpServer>) -> Servers {
        let named = named.into_iter().map(|server| (server.name.clone(), server)).collect();
        Servers { named, lines: Mutex::default() }
    }

    /// Checks whether these are the servers that the operator has named.
    pub(crate) fn are(&self, named: &[McpServer]) -> bool {
        self.named.len() == named.len() && named.iter().all(|server| self.named.get(&server.name) == Some(server))
    }

    pub(crate) async fn call(
        &self,
        way: Way<'_>,
        admitted: &Admitted,
        key: &str,
        mcp: &McpTool,
    ) -> Result<ToolOutcome, Trouble> {
        let Way { egress, secrets, project_id, .. } = way;
        let place = self.place(egress, project_id, admitted, mcp).map_err(Trouble::Refused)?;
        let line = self.line(project_id, mcp);
        let name = mcp.tool.clone().unwrap_or_else(|| admitted.tool.name.to_string());
        let connection = {
            let mut line = line.lock().await;
            let connection = connected(&mut line, way, place).await?;
            check(&mut line, secrets, &connection, &name, &mcp.schema_hash).await?;
            connection
        };
        let mut meta = Map::from_iter([(KEY.to_owned(), Value::from(key))]);
        meta.insert("traceparent".to_owned(), admitted.traceparent.clone().into());
        let mut params = CallToolRequestParams::new(name.clone()).with_arguments(admitted.arguments.clone());
        params.meta = Some(RequestMetaObject::from(meta));
        let answered = connection.peer().call_tool_once(params).await;
        let result = match answered {
            Ok(CallToolResponse::Complete(result)) => result,
            Ok(_) => {
                return Ok(ToolOutcome::failed(format!(
                    "tool `{name}` of the MCP server asked for more input, which is not supported"
                )));
            }
            Err(error) => {
                if !matches!(error, ServiceError::McpError(_)) {
                    line.lock().await.connection = None;
                }
                return match error {
                    ServiceError::McpError(error) => Ok(ToolOutcome::failed(
                        secrets.blot(format!("the MCP server refused the call: {}", error.message)),
                    )),
                    other => Err(Trouble::Unknown(secrets.blot(other.to_string()), None)),
                };
            }
        };
        let is_error = result.is_error.unwrap_or(false);
        let said = match result.structured_content {
            Some(value) => value,
            None => json::text(&text_of(&result.content)).into_owned().into(),
        };
        let status = if is_error { "failed" } else { "success" };
        Ok(ToolOutcome::new(status, blotted(secrets, said)))
    }

    /// Lists the tools of a server that the operator named.
    pub(crate) async fn offered(&self, way: Way<'_>, server: &Name) -> Result<Vec<Offered>, String> {
        let named = self.named.get(server).ok_or_else(|| format!("the providers file has no MCP server `{server}`"))?;
        let connection = connected(&mut Line::default(), way, Place::Named(named)).await;
        let connection = connection.map_err(|trouble| match trouble {
            Trouble::NotDone(why, _) | Trouble::Unknown(why, _) | Trouble::Refused(why) => why,
        })?;
        let listed = connection.peer().list_all_tools().await.map_err(|error| error.to_string())?;
        Ok(listed.into_iter().map(offer).collect())
    }

    /// Returns where the server is, if the project may use it.
    fn place<'a>(
        &'a self,
        egress: &Egress,
        project_id: ProjectId,
        admitted: &Admitted,
        mcp: &'a McpTool,
    ) -> Result<Place<'a>, String> {
        match (&mcp.server, &mcp.url) {
            (Some(name), None) => {
                let server = self.named.get(name).filter(|server| server.projects.contain(project_id));
                let server = server.ok_or_else(|| format!("the MCP server `{name}` is not in the providers file of this worker, or this project may not use it"))?;
                Ok(Place::Named(server))
            }
            (None, Some(url)) => {
                let parsed = Url::parse(url.as_str()).map_err(|error| format!("{url}: {error}"))?;
                egress.allows(&parsed, &admitted.egress_hosts)?;
                Ok(Place::Own(url, &mcp.headers))
            }
            _ => Err("an MCP tool must have either a `server` or a `url`".to_owned()),
        }
    }

    /// Returns the connection for this server and project. Projects do not share one, because it may use the project's own secrets.
    fn line(&self, project_id: ProjectId, mcp: &McpTool) -> Arc<AsyncMutex<Line>> {
        let server = match &mcp.server {
            Some(name) => name.to_string(),
            None => serde_json::to_string(&(&mcp.url, &mcp.headers)).unwrap_or_default(),
        };
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.entry(format!("{project_id} {server}")).or_default().clone()
    }
}

async fn connected(line: &mut Line, way: Way<'_>, place: Place<'_>) -> Result<Arc<Connection>, Trouble> {
    let Way { client, secrets, project_id, .. } = way;
    if let Some(connection) = line.connection.as_ref().filter(|connection| !connection.is_transport_closed()) {
        return Ok(connection.clone());
    }
    line.listed = None;
    let lifecycle =
        ClientLifecycleMode::Auto { preferred_versions: vec![ProtocolVersion::V_2026_07_28], legacy_version: None };
    let any = |name: &Name| secrets.find(project_id, name).map_err(|error| error.to_string());
    let at = |url: &UrlTemplate, headers: HeaderMap| {
        let headers = headers.into_iter().filter_map(|(name, value)| Some((name?, value))).collect();
        let config = StreamableHttpClientTransportConfig::with_uri(url.as_str()).custom_headers(headers);
        StreamableHttpClientTransport::with_client(client.clone(), config)
    };
    let starting = async {
        match place {
            Place::Named(server) => match &server.url {
                Some(url) => {
                    let headers = headers(any, &server.headers).map_err(Trouble::Refused)?;
                    ().serve_with_lifecycle(at(url, headers), lifecycle).await
                }
                None => {
                    let transport = program(any, server).map_err(Trouble::Refused)?;
                    ().serve_with_lifecycle(transport, lifecycle).await
                }
            },
            Place::Own(url, said) => {
                let headers = headers(|name| way.own_secret(name), said).map_err(Trouble::Refused)?;
                ().serve_with_lifecycle(at(url, headers), lifecycle).await
            }
        }
        // Nothing was called yet.
        .map_err(|error| Trouble::NotDone(secrets.blot(format!("the MCP server cannot be reached: {error}")), None))
    };
    let started = timeout(START, starting).await;
    let connection =
        started.map_err(|_| Trouble::NotDone("the MCP server did not respond in time".to_owned(), None))??;
    // The server must not decide how long its list is cached.
    connection.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
    Ok(line.connection.insert(Arc::new(connection)).clone())
}

/// Starts a program in its own process group, with very little of this process's environment.
fn program(
    find: impl Fn(&Name) -> Result<SecretString, String>,
    server: &McpServer,
) -> Result<TokioChildProcess, String> {
    let (program, arguments) = server
        .command
        .split_first()
        .ok_or("the MCP server has neither a `command` nor a `url`: set one of them in the providers file")?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    for kept in ["PATH", "HOME", "LANG"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    for (name, value) in &server.env {
        command.env(name, told(value, &find)?.expose_secret());
    }
    let started = TokioChildProcess::builder(command).stderr(Stdio::null()).spawn();
    let (transport, _) = started.map_err(|error| format!("the MCP server `{program}` cannot be started: {error}"))?;
    Ok(transport)
}

/// Checks that a tool is still what it was when its manifest was applied.
async fn check(
    line: &mut Line,
    secrets: &Secrets,
    connection: &Connection,
    name: &str,
    pinned: &str,
) -> Result<(), Trouble> {
    let is_fresh = line.listed.as_ref().is_some_and(|(at, _)| at.elapsed() < LIST);
    if !is_fresh {
        let listed = connection.peer().list_all_tools().await;
        let listed = listed.map_err(|error| {
            line.connection = None;
            Trouble::NotDone(secrets.blot(format!("the MCP server did not list its tools: {error}")), None)
        })?;
        let hashes = listed.into_iter().map(offer).map(|offered| (offered.tool, offered.schema_hash)).collect();
        line.listed = Some((Instant::now(), hashes));
    }
    match line.listed.as_ref().and_then(|(_, hashes)| hashes.get(name)) {
        Some(hash) if hash == pinned => Ok(()),
        Some(hash) => Err(Trouble::Refused(format!(
            "the MCP server has changed the tool `{name}` (its hash was {pinned}, and is now {hash}): review it, then apply it again"
        ))),
        None => Err(Trouble::Refused(format!("the MCP server no longer has a tool `{name}`"))),
    }
}

fn offer(listed: Listed) -> Offered {
    let input_schema = Value::Object(listed.input_schema.as_ref().clone());
    let output_schema = listed.output_schema.map(|schema| Value::Object(schema.as_ref().clone()));
    let description = listed.description.as_deref();
    let hash = schema_hash(&listed.name, description, &input_schema, output_schema.as_ref());
    Offered {
        schema_hash: hash,
        description: description.unwrap_or_default().to_owned(),
        tool: listed.name.into_owned(),
        input_schema,
        output_schema,
    }
}

fn text_of(content: &[ContentBlock]) -> String {
    let part = |block: &ContentBlock| match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[an image, {}]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[a recording, {}]", audio.mime_type),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            _ => "[a resource that is not text]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[a resource: {}]", link.uri),
        _ => "[content that is not text]".to_owned(),
    };
    content.iter().map(part).collect::<Vec<_>>().join("\n")
}

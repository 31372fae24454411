//! Waybill's own tool service: it answers calls of tools over HTTP or MCP.
//!
//! ```text
//!   claim ──▶ admit ──▶ reach, with the call's own key ──▶ conclude, under the claim's token
//! ```
//! The call is stored before anything is sent. If this process dies on the way, another one retries the call with the same idempotency
//! key; a call that must not be done twice is answered with `outcome_unknown` instead (WK-7).

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use waybill_artifact::Artifacts;
use waybill_core::{
    error::innermost,
    id::{CardId, Name, ProjectId, Target},
    metric,
    resource::Effect,
    tool::TOOLS,
};
use waybill_kernel::{
    call::ClaimedCall,
    intake::{self, Intake},
    lease,
    retry::retry,
    turn,
    work::Kernel,
};

use crate::{
    admit::{self, Admitted, Verdict},
    conclude::{ToolOutcome, conclude},
    egress::Egress,
    http::{self, Trouble, Way},
    mcp::{McpServer, Offered, Servers},
    secret::Secrets,
};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Settings of the service.
#[derive(Clone, Debug)]
pub struct Config {
    /// The target whose calls it answers.
    pub target: Target,
    pub lease: Duration,
    /// How many calls at a time.
    pub most: usize,
    /// The poll interval for calls while no ring arrives.
    pub look: Duration,
    /// How long it waits for running calls when it stops.
    pub grace: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            target: TOOLS.parse().expect("a target"),
            lease: lease::LEASE,
            most: 32,
            look: intake::Config::default().poll_interval,
            grace: Duration::from_secs(30),
        }
    }
}

/// Everything that is needed to call tools. Cheap to clone: all clones reach the same hosts and servers.
#[derive(Clone, Debug)]
pub struct Tools(Arc<RwLock<Arc<Inner>>>);

#[derive(Debug)]
struct Inner {
    kernel: Kernel,
    artifacts: Option<Artifacts>,
    secrets: Arc<Secrets>,
    egress: Egress,
    http: reqwest::Client,
    /// The client for servers that the operator has named, which may be private.
    trusted: reqwest::Client,
    servers: Servers,
}

impl Inner {
    fn new(
        kernel: Kernel,
        artifacts: Option<Artifacts>,
        secrets: Arc<Secrets>,
        egress: Egress,
        servers: Vec<McpServer>,
    ) -> Inner {
        let http = egress.client();
        let named = servers.iter().filter_map(|server| server.url.as_ref()?.origin().split_once("://"));
        let private_hosts = named.filter_map(|(_, host)| host.parse().ok()).collect();
        let trusted = Egress { private_hosts, ..Egress::default() }.client();
        let servers = Servers::new(servers);
        Inner { kernel, artifacts, secrets, egress, http, trusted, servers }
    }
}

impl Tools {
    pub fn new(
        kernel: Kernel,
        artifacts: Option<Artifacts>,
        secrets: Arc<Secrets>,
        egress: Egress,
        servers: Vec<McpServer>,
    ) -> Tools {
        Tools(Arc::new(RwLock::new(Arc::new(Inner::new(kernel, artifacts, secrets, egress, servers)))))
    }

    /// Takes these hosts and servers in place of the earlier ones, for every call that begins from now on.
    pub fn replace(&self, egress: Egress, servers: Vec<McpServer>) {
        let now = self.now();
        if now.egress == egress && now.servers.are(&servers) {
            return;
        }
        let (kernel, artifacts, secrets) = (now.kernel.clone(), now.artifacts.clone(), now.secrets.clone());
        let next = Arc::new(Inner::new(kernel, artifacts, secrets, egress, servers));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    fn now(&self) -> Arc<Inner> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lists the tools of an MCP server that the operator named, for a person who writes their manifests.
    pub async fn offered(&self, project_id: ProjectId, server: &Name) -> Result<Vec<Offered>, String> {
        let now = self.now();
        let Inner { secrets, egress, trusted, servers, .. } = &*now;
        servers.offered(Way { client: trusted, egress, secrets, project_id }, server).await
    }

    /// Answers calls until `end` resolves; then waits for running ones to complete.
    pub async fn serve(&self, config: &Config, end: impl Future<Output = ()>) {
        let intake = intake::Config {
            lease: config.lease,
            most: config.most,
            poll_interval: config.look,
            ..intake::Config::default()
        };
        let intake = Intake::<ClaimedCall>::open(&self.now().kernel, config.target.clone(), intake);
        intake
            .serve(end, config.grace, |holding| {
                let tools = self.clone();
                async move {
                    match tools.answer(&holding.claimed).await {
                        Ok(()) | Err(turn::Error::Stale(_)) => Ok(()),
                        Err(error) => {
                            let tool_call_id = holding.claimed.tool_call_id;
                            tracing::error!(%tool_call_id, %error, cause = innermost(&error), "a tool call could not be answered");
                            Err(error.to_string())
                        }
                    }
                }
            })
            .await;
    }

    /// Answers one call, or requests a person's approval for it.
    pub async fn answer(&self, call: &ClaimedCall) -> Result<(), turn::Error> {
        let now = self.now();
        let Inner { kernel, artifacts, .. } = &*now;
        let verdict = retry(|| {
            Box::pin(async {
                let mut work = kernel.begin(call.project_id).await?;
                let verdict = admit::admit(&mut work, call).await?;
                work.commit().await?;
                Ok::<_, turn::Error>(verdict)
            })
        })
        .await?;
        let said = match verdict {
            Verdict::Asking => return Ok(()),
            Verdict::Refused(said) => said,
            Verdict::Go(admitted) => {
                let (begun, kind) = (Instant::now(), if admitted.tool.mcp.is_some() { "mcp" } else { "http" });
                let said = self.reach(call, &admitted).await;
                metrics::histogram!(metric::TOOL_SECONDS, "kind" => kind).record(begun.elapsed());
                metrics::counter!(metric::TOOL_CALLS, "kind" => kind, "outcome" => said.status.clone()).increment(1);
                said
            }
        };
        let reported = conclude(kernel, artifacts.as_ref(), call, CardId::new(), said).await?;
        tracing::debug!(tool_call_id = %call.tool_call_id, outcome = reported.outcome.as_str(), "a call was answered");
        Ok(())
    }

    /// Calls the tool, with retries where they are allowed, until the timeout.
    async fn reach(&self, call: &ClaimedCall, admitted: &Admitted) -> ToolOutcome {
        let longest = Duration::from_secs(admitted.tool.timeout_seconds.into()).min(admitted.left);
        let (ends, mut pause) = (Instant::now() + longest, FIRST_PAUSE);
        let is_once = admitted.tool.effect == Effect::Once;
        let mut is_first = true;
        loop {
            let left = ends.saturating_duration_since(Instant::now());
            let (why, is_unknown, wait) = match timeout(left, self.once(call, admitted)).await {
                Ok(Ok(said)) => return said,
                Ok(Err(Trouble::Refused(why))) => return ToolOutcome::failed(why),
                Ok(Err(Trouble::NotDone(why, wait))) => (why, false, wait),
                Ok(Err(Trouble::Unknown(why, wait))) => (why, true, wait),
                Err(_) => (format!("the tool did not respond within {longest:?}"), true, None),
            };
            if is_first {
                let (tool, tool_call_id) = (&admitted.tool.name, call.tool_call_id);
                tracing::warn!(%tool, %tool_call_id, why, "a tool could not be called");
                is_first = false;
            }
            let wait = wait.unwrap_or(pause).min(LONGEST_PAUSE);
            if is_once && is_unknown {
                let why = format!("the call may or may not have been done, and it is not retried: {why}");
                return ToolOutcome { status: "outcome_unknown".to_owned(), ..ToolOutcome::failed(why) };
            }
            if Instant::now() + wait >= ends {
                let status = if is_unknown { "timeout" } else { "failed" };
                return ToolOutcome { status: status.to_owned(), ..ToolOutcome::failed(why) };
            }
            tracing::debug!(tool_call_id = %call.tool_call_id, why, "a call is retried with the same key");
            sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn once(&self, call: &ClaimedCall, admitted: &Admitted) -> Result<ToolOutcome, Trouble> {
        let now = self.now();
        let Inner { secrets, egress, http, trusted, servers, .. } = &*now;
        let (project_id, key) = (call.project_id, call.tool_call_id.to_string());
        let way = Way { client: http, egress, secrets, project_id };
        match (&admitted.tool.http, &admitted.tool.mcp) {
            (Some(said), None) => http::call(way, admitted, &key, said).await,
            (None, Some(mcp)) => {
                let client = if mcp.server.is_some() { trusted } else { http };
                servers.call(Way { client, ..way }, admitted, &key, mcp).await
            }
            _ => Err(Trouble::Refused(format!("tool `{}` must have either `http` or `mcp`", admitted.tool.name))),
        }
    }
}

//! `waybill serve`

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use secrecy::SecretString;
use tokio::net::TcpListener;
use waybill_api::{Access, Client, Config, Identity, Limits, Tls};
use waybill_kernel::check;
use waybill_services::interrupted;

use crate::{
    command::worker::Reached,
    connect::{self, Bus, Service, Storage},
    usage,
    watch::Watch,
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    service: Service,
    #[command(flatten)]
    bus: Bus,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    storage: Storage,
    /// YAML file of providers with the prices of their models. The API composes requests for workers over HTTP in the format of these providers, and
    /// computes the cost of the model calls that they report from these prices. The file is read again when it changes. If omitted, it knows the
    /// built-in providers, and uses the cost that the worker reports.
    #[arg(long, env = "WAYBILL_PROVIDERS", value_name = "FILE")]
    providers: Option<PathBuf>,
    /// Address to listen on.
    #[arg(long, env = "WAYBILL_LISTEN", default_value = "127.0.0.1:7070", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// PEM file of the certificate chain. If omitted, the address must be a loopback address, or --behind-tls must be set.
    #[arg(long, env = "WAYBILL_TLS_CERTIFICATE", value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// PEM file of the private key of the certificate. Required with --tls-certificate.
    #[arg(long, env = "WAYBILL_TLS_KEY", value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Allow an address other than loopback without TLS, for use behind a proxy that terminates TLS. Browsers then get cookies for TLS.
    #[arg(long, env = "WAYBILL_BEHIND_TLS")]
    behind_tls: bool,
    /// Also accept tokens of this OpenID Connect provider: its issuer URL, exactly as in the tokens. If omitted, only API keys are accepted.
    #[arg(long, env = "WAYBILL_OIDC_ISSUER", value_name = "URL", requires = "oidc_audience")]
    oidc_issuer: Option<String>,
    /// The audience that an OpenID Connect token must have. Required with --oidc-issuer.
    #[arg(long, env = "WAYBILL_OIDC_AUDIENCE", value_name = "NAME", requires = "oidc_issuer")]
    oidc_audience: Option<String>,
    /// The claim of an OpenID Connect token that says which scope its holder has in which project: {"PROJECT": "SCOPE"}
    #[arg(long, env = "WAYBILL_OIDC_CLAIM", value_name = "NAME", default_value = "waybill")]
    oidc_claim: String,
    /// Client id of this server at the OpenID Connect provider, so that people can log in with a browser at /ui/login. The provider must allow the
    /// address /ui/callback of this server. If omitted, browsers log in with API keys.
    #[arg(long, env = "WAYBILL_OIDC_CLIENT_ID", value_name = "ID", requires = "oidc_issuer")]
    oidc_client_id: Option<String>,
    /// Secret of the client id. If omitted, this server is a public client.
    #[arg(
        long,
        env = "WAYBILL_OIDC_CLIENT_SECRET",
        hide_env_values = true,
        value_name = "SECRET",
        requires = "oidc_client_id"
    )]
    oidc_client_secret: Option<SecretString>,
    /// Maximum size of a request body in bytes, except for artifacts.
    #[arg(long, default_value_t = Limits::default().most_bytes)]
    most_bytes: usize,
    /// Maximum number of requests per second of one API key. A short burst may have twice as many.
    #[arg(long, default_value_t = Limits::default().per_second)]
    per_second: f64,
    /// Maximum number of requests at a time. One project can use at most half of it, and at most half of --most-polls and of --most-uploads.
    #[arg(long, default_value_t = Limits::default().most_at_once)]
    most_at_once: usize,
    /// Maximum number of workers and tools that wait for work at a time. Event streams have the same limit, but are counted separately.
    #[arg(long, default_value_t = Limits::default().most_polls)]
    most_polls: usize,
    /// Maximum number of artifact uploads at a time.
    #[arg(long, default_value_t = Limits::default().most_uploads)]
    most_uploads: usize,
    /// Maximum number of client connections at a time. One client address can use at most half of them.
    #[arg(long, default_value_t = Limits::default().most_connections)]
    most_connections: usize,
    /// Seconds that a ready turn may wait for a worker of its target. While a turn of a project waits longer, the project cannot start turns for that
    /// target.
    #[arg(long, default_value_t = Limits::default().most_backlog.as_secs_f64(), value_parser = usage::seconds)]
    most_backlog: f64,
    /// Maximum number of database connections.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Seconds to go on accepting requests at shutdown, while `/ready` already answers 503: as long as a proxy or Kubernetes needs to send them to
    /// other processes. Requests that are then in progress have --grace to end.
    #[arg(long, default_value_t = 0.0, value_parser = usage::seconds)]
    drain: f64,
    /// Do not serve the console, the pages for browsers at /ui/.
    #[arg(long, env = "WAYBILL_NO_CONSOLE")]
    no_console: bool,
    /// Let clients with a key of the recorder have their own recorded answers replayed, with the header `x-waybill-replay`. They can then read what was
    /// recorded with that key.
    #[arg(long, env = "WAYBILL_REPLAY")]
    replay: bool,
    /// Seconds to wait for running requests at shutdown.
    #[arg(long, default_value_t = 10.0, value_parser = usage::seconds)]
    grace: f64,
}

pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode> {
    let tls = match (&arguments.tls_certificate, &arguments.tls_key) {
        (Some(certificate), Some(key)) => Some(Tls::read(certificate, key)?),
        _ => None,
    };
    if tls.is_none() && !arguments.listen.ip().is_loopback() && !arguments.behind_tls {
        bail!(
            "{} is not a loopback address, so API keys would be sent without encryption: \
             set --tls-certificate and --tls-key, or --behind-tls if a proxy terminates TLS",
            arguments.listen
        );
    }
    let limits = Limits {
        most_bytes: arguments.most_bytes,
        per_second: arguments.per_second,
        most_at_once: arguments.most_at_once,
        most_polls: arguments.most_polls,
        most_uploads: arguments.most_uploads,
        most_connections: arguments.most_connections,
        most_backlog: Duration::from_secs_f64(arguments.most_backlog),
        ..Limits::default()
    };
    let (installation, followed) =
        Reached { providers: arguments.providers, secrets: None, also: Vec::new() }.read_and_follow()?;
    let models = installation.models();
    followed.follow(models.clone(), None);
    let nats = arguments.bus.connect().await?;
    let kernel = connect::on_bus(arguments.service.kernel_with(arguments.connections).await?, nats.as_ref());
    let login = check::login(&kernel).await?;
    ensure!(
        login == check::SERVICE,
        "`waybill serve` must connect to the database as {}, but connects as {login}: change the database URL",
        check::SERVICE
    );
    // Before `/ready` says so: connections wait until they are accepted.
    let listener = TcpListener::bind(arguments.listen).await.with_context(|| {
        format!(
            "cannot listen on {}: another program may use the port. Name another address with --listen",
            arguments.listen
        )
    })?;
    let leaving = arguments.watch.begin("api", &kernel, false).await?;
    connect::extend_history(&kernel).await;
    tracing::info!(address = %listener.local_addr()?, tls = tls.is_some(), "serving the HTTP API");
    let artifacts = arguments.storage.open(&kernel)?;
    let identity = arguments.oidc_issuer.zip(arguments.oidc_audience);
    let (claim, secret) = (arguments.oidc_claim, arguments.oidc_client_secret);
    let client = arguments.oidc_client_id.map(|id| Client { id, secret });
    let identity = identity.map(|(issuer, audience)| Identity { issuer, audience, claim, client });
    let behind_tls = arguments.behind_tls;
    let drain = Duration::from_secs_f64(arguments.drain);
    let config = Config {
        access: Access::Keys,
        limits,
        tls,
        behind_tls,
        artifacts,
        identity,
        models,
        drain,
        console: !arguments.no_console,
        may_replay: arguments.replay,
        ..Config::default()
    };
    let stop = async {
        if let Err(error) = interrupted().await {
            tracing::error!(%error, "cannot wait for Ctrl-C or SIGTERM: shutting down");
        }
        leaving.begin();
    };
    waybill_api::serve(listener, kernel, config, stop, Duration::from_secs_f64(arguments.grace)).await?;
    Ok(ExitCode::SUCCESS)
}

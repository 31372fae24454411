//! `waybill dev`: runs everything in one command.

mod folder;
mod said;

use std::{
    env,
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use tokio::{process::Child, sync::watch, task::JoinSet};
use waybill_api::{Access, Config as ApiConfig, Replay, Unknown};
use waybill_artifact::Artifacts;
use waybill_bus::local::Local;
use waybill_context::framework::Framework;
use waybill_core::{
    id::{Name, ProjectId},
    key::{ApiKey, Bounds, Scope},
    tokens,
};
use waybill_kernel::{
    key, migrate, project, resource,
    work::{Config, Kernel},
};
use waybill_orchestrator::command;
use waybill_services::{Home, Server, interrupted, postgres::Kept};
use waybill_tool::service::{self, Tools};
use waybill_worker::{
    collect::Collector,
    model::{Models, Provider},
    serve::{Config as WorkerConfig, Worker},
};

use self::{
    folder::{Lock, Ready},
    said::{Greeting, Said},
};
use crate::{
    command::{
        apply, demo,
        orchestrator::{STREAM, keep_going},
        record,
        worker::Reached,
    },
    connect::{self, Bus, Storage},
    log,
    watch::Watch,
};

/// The team of the demo project, from `examples/demo`.
const TEAM: &str = include_str!("../../../../../examples/demo/profiles.yaml");
const PROJECT: &str = "demo";
/// The project of `waybill record`.
const RECORDED: &str = "local";
const DATABASE: &str = "waybill";
const LEASE: Duration = Duration::from_secs(2);
/// Poll interval. Other commands add work too, and cannot ring a doorbell in this process.
const LOOK: Duration = Duration::from_millis(300);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Folder for all data: the database, and the settings file that other commands read to find it.
    #[arg(long, default_value = ".waybill", value_name = "FOLDER")]
    data: PathBuf,
    /// URL of a database to use, with the login of its owner. If omitted, a private PostgreSQL is started. Only this option sets it, no environment
    /// variable and no settings file.
    #[arg(long, value_name = "URL")]
    database_url: Option<SecretString>,
    #[command(flatten)]
    bus: Bus,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    storage: Storage,
    /// Address that the API listens on. On a loopback address, programs of this machine need no key. On any other address every request needs one, and
    /// an admin key is made and printed once. If omitted, 127.0.0.1:7070, or the next free port.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// File that is written when everything is up, as JSON: `url`, `project` and `pid`. It is removed at the end. If omitted, `ready.json` in the data
    /// folder.
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Open the console in the browser.
    #[arg(long)]
    open: bool,
    /// Print all log lines. If omitted, only those that report a problem.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Number of separate worker processes. A process that exits is restarted. With 0, turns run in this process.
    #[arg(long, default_value_t = 0)]
    workers: usize,
    #[command(flatten)]
    models: Reached,
}

/// How `waybill record` differs: it records the calls of agents elsewhere, into a project of its own.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// Providers that calls may go to.
    pub(crate) upstreams: Vec<Provider>,
    pub(crate) require_record: bool,
    /// Whether answers come from the record.
    pub(crate) replay: Option<Replay>,
    /// A command to run with the addresses in its environment. Everything ends with it. Empty: until Ctrl-C.
    pub(crate) command: Vec<OsString>,
}

pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode> {
    let mut arguments = arguments;
    // Others have no encryption: no client's key may be sent there.
    arguments.models.also = record::usual().into_iter().filter(|usual| usual.check_recorded().is_ok()).collect();
    run_with(arguments, None).await
}

/// Runs everything until it is interrupted, or until the command of a recording has ended.
pub(crate) async fn run_with(mut arguments: Arguments, recording: Option<Recording>) -> Result<ExitCode> {
    if let Some(recording) = &recording {
        arguments.models.also.clone_from(&recording.upstreams);
    }
    let project = if recording.is_some() { RECORDED } else { PROJECT };
    let said = Said::new();
    // The first count of tokens unpacks a table: meanwhile the database starts.
    tokio::task::spawn_blocking(|| tokens::count(""));
    let (installation, followed) = arguments.models.read_and_follow()?;
    let home = folder::prepare(&arguments.data)?;
    let mut lock = Lock::take(&arguments.data)?;
    let ready = Ready::at(arguments.ready_file.clone().unwrap_or_else(|| arguments.data.join("ready.json")))?;
    let listener = folder::listen(arguments.listen, &said).await?;
    let address = listener.local_addr()?;
    let api_url = folder::url(address);
    lock.say(&api_url)?;

    let database = Database::open(&home, arguments.database_url.as_ref(), &said).await?;
    let nats = arguments.bus.connect().await?;
    let kernel = Kernel::connect(&Config::new(database.service_url.clone())).await?;
    let kernel = match &nats {
        Some(_) => connect::on_bus(kernel, nats.as_ref()),
        None => kernel.on(Arc::new(Local::beside_others())),
    };
    arguments.watch.begin("dev", &kernel, true).await?;
    let key_file = arguments.data.join("key");
    let set_up = async { keep_key(&kernel, seed(&kernel, project).await?, &key_file).await };
    let new_key = said.step(&format!("set up the project `{project}`"), set_up).await?;
    let usual = home.path("artifacts").display().to_string();
    let place = arguments.storage.artifacts.clone().unwrap_or(usual);
    let artifacts = Storage { artifacts: Some(place.clone()) }.open(&kernel)?;
    folder::write(&arguments.data.join("waybill.toml"), &settings(&database, &place, &api_url, &key_file, project)?)?;

    let mut parts = Parts::new();
    if let Some(kept) = database.kept.clone() {
        parts.keep_up(kept);
    }
    let access = if address.ip().is_loopback() { Access::Loopback } else { Access::Keys };
    let models = installation.models();
    let record_all = recording.as_ref().is_some_and(|recording| recording.require_record);
    let api = ApiConfig {
        access,
        artifacts: artifacts.clone(),
        models: models.clone(),
        record_all,
        replay: recording.as_ref().and_then(|recording| recording.replay),
        ..ApiConfig::default()
    };
    let (serving, until) = (kernel.clone(), parts.end());
    parts.running.spawn(async move {
        if let Err(error) = waybill_api::serve(listener, serving, api, until, Duration::from_secs(2)).await {
            tracing::error!(%error, "the HTTP API stopped because of an error");
        }
    });
    let (keeping, until) = (kernel.clone(), parts.end());
    let commands =
        command::Config { lease: LEASE, look: LOOK, artifacts: artifacts.clone(), ..command::Config::default() };
    parts.running.spawn(async move {
        tokio::select! {
            () = keep_going(&keeping, nats.as_ref(), None, commands, STREAM.to_owned(), None) => {}
            () = until => {}
        }
    });
    let environment = environment(&arguments, &database, place);
    let mut pids = Vec::new();
    for n in 1..=arguments.workers {
        let child = start_worker(&environment, n)?;
        pids.push(child.id().unwrap_or_default());
        let until = parts.end();
        parts.running.spawn(keep_worker(child, environment.clone(), n, until));
    }
    if arguments.workers == 0 {
        let tools = installation.tools(kernel.clone(), artifacts.clone());
        followed.follow(models.clone(), Some(tools.clone()));
        parts.work(&kernel, models, tools, artifacts)?;
    } else {
        followed.follow(models, None);
    }
    ready.write(&api_url, project)?;
    let new_key = new_key.as_deref();
    let (data, place) = (arguments.data.as_path(), database.place.as_str());
    let greeting =
        Greeting { api_url: &api_url, address, new_key, key_file: &key_file, data, place, pids: &pids, project };
    if arguments.open {
        open_browser(&format!("{api_url}/ui/"), &said);
    }
    let code = run_until_end(recording, &greeting).await?;
    eprintln!("shutting down (Ctrl-C again: at once)");
    drop(ready);
    tokio::select! {
        () = parts.stop() => {}
        _ = interrupted() => {}
    }
    drop(database);
    drop(lock);
    Ok(code)
}

/// Says that everything is up, and waits for Ctrl-C, or runs the command of a recording to its end.
async fn run_until_end(recording: Option<Recording>, greeting: &Greeting<'_>) -> Result<ExitCode> {
    let Some(Recording { upstreams, replay, command, .. }) = recording else {
        said::greet(greeting);
        interrupted().await?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut addresses: Vec<(String, String)> = upstreams.iter().map(|to| address_of(greeting.api_url, to)).collect();
    let places: Vec<String> = upstreams.iter().map(said::upstream).collect();
    match replay.map(|replay| replay.unknown) {
        Some(Unknown::Refuse) => {
            eprintln!(
                "answering from the record: requests that are not recorded are refused, and nothing goes to a provider"
            );
        }
        Some(Unknown::Record) => {
            eprintln!("answering from the record: requests that are not recorded go on to the provider");
        }
        None => {}
    }
    if !command.is_empty() {
        places.iter().for_each(|place| eprintln!("recording calls to {place}"));
        // If it names another address than the other name does, it is not ours to change.
        let (older, newer) = (env::var(record::OLDER).ok(), env::var("OPENAI_BASE_URL").ok());
        if older.is_none() || newer.is_none() || older == newer {
            let openai = addresses.iter().find(|(name, _)| name == "OPENAI_BASE_URL").map(|(_, url)| url.clone());
            addresses.extend(openai.map(|url| (record::OLDER.to_owned(), url)));
        }
        return run_recorded(&command, &addresses).await;
    }
    said::greet_recorder(greeting, &addresses, &places);
    interrupted().await?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the environment variable and the address with which clients of a provider send their calls through the recorder.
fn address_of(api_url: &str, provider: &Provider) -> (String, String) {
    let name = provider.name.as_str();
    let variable = format!("{}_BASE_URL", name.to_uppercase().replace('-', "_"));
    // OpenAI's clients have the version in their base URL, Anthropic's do not. A gateway may have a path of its own in its place.
    let (_, place) = provider.base_url.split_once("://").unwrap_or_default();
    let path = place.split_once('/').map_or("v1", |(_, path)| path.trim_end_matches('/'));
    let version = if name == "openai" && path.rsplit('/').next() == Some("v1") { "/v1" } else { "" };
    (variable, format!("{api_url}/record/{RECORDED}/{name}{version}"))
}

/// Runs a command whose model calls are recorded, and returns its exit code.
async fn run_recorded(command: &[OsString], addresses: &[(String, String)]) -> Result<ExitCode> {
    let (program, arguments) = command.split_first().context("a command has a name")?;
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .envs(addresses.iter().cloned())
        .spawn()
        .with_context(|| format!("cannot start `{}`", program.display()))?;
    let status = tokio::select! {
        ended = child.wait() => ended?,
        // The command gets the same signal from the terminal. It is waited for.
        _ = interrupted() => child.wait().await?,
    };
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

/// Opens an address in the user's browser. If that fails, prints what to open.
fn open_browser(address: &str, said: &Said) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let opened = std::process::Command::new(program)
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = opened {
        said.note(&format!("cannot start a browser with `{program}` ({error}): open {address}"));
    }
}

/// What runs until the end.
struct Parts {
    running: JoinSet<()>,
    end: watch::Sender<bool>,
}

impl Parts {
    fn new() -> Parts {
        Parts { running: JoinSet::new(), end: watch::Sender::new(false) }
    }

    /// Returns what resolves when everything shall end.
    fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ending = self.end.subscribe();
        async move {
            let _ = ending.wait_for(|ending| *ending).await;
        }
    }

    /// Starts the database server again whenever it has ended.
    fn keep_up(&mut self, kept: Arc<Kept>) {
        let until = self.end();
        self.running.spawn(async move {
            tokio::select! {
                never = kept.keep_up() => match never {},
                () = until => {}
            }
        });
    }

    /// Runs turns and calls in this process.
    fn work(&mut self, kernel: &Kernel, models: Models, tools: Tools, artifacts: Option<Artifacts>) -> Result<()> {
        let grace = Duration::from_secs(2);
        let calls = service::Config { lease: LEASE, look: LOOK, grace, ..service::Config::default() };
        let until = self.end();
        self.running.spawn(async move { tools.serve(&calls, until).await });
        let worker = Worker::new(kernel.clone(), models, Collector::new(Framework::builtin()));
        let (worker, until) = (worker.with_artifacts(artifacts), self.end());
        let config = WorkerConfig { lease: LEASE, look: LOOK, grace, ..WorkerConfig::new("llm".parse()?) };
        self.running.spawn(async move { worker.serve(&config, until).await });
        Ok(())
    }

    async fn stop(mut self) {
        self.end.send_replace(true);
        while self.running.join_next().await.is_some() {}
    }
}

/// Returns the environment of worker processes. They reach models and the bus with the settings of this process.
fn environment(arguments: &Arguments, database: &Database, artifacts: String) -> Vec<(&'static str, OsString)> {
    let quiet = !arguments.verbose && env::var_os("WAYBILL_LOG").is_none();
    [
        ("WAYBILL_DATABASE_URL", Some(database.service_url.clone().into())),
        ("WAYBILL_ARTIFACTS", Some(artifacts.into())),
        ("WAYBILL_NATS_URL", arguments.bus.url().map(OsString::from)),
        ("WAYBILL_PROVIDERS", arguments.models.providers.clone().map(OsString::from)),
        ("WAYBILL_SECRETS", arguments.models.secrets.clone().map(OsString::from)),
        ("WAYBILL_LOG", quiet.then(|| log::QUIET.into())),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

/// The database in use.
struct Database {
    service_url: String,
    owner_url: String,
    /// A description of the database for people.
    place: String,
    kept: Option<Arc<Kept>>,
}

impl Database {
    async fn open(home: &Home, given: Option<&SecretString>, said: &Said) -> Result<Database> {
        let Some(url) = given else {
            let folder = home.path("postgres");
            if env::var_os("DATABASE_URL").is_some() {
                said.note("DATABASE_URL is set but not used: to use that database, pass it with `--database-url`");
            }
            let is_new = !folder.join("data").join("PG_VERSION").exists();
            let verb = if is_new { "create and start" } else { "start" };
            let what = format!("{verb} PostgreSQL in {}", folder.display());
            let kept = said
                .step(&what, async {
                    let kept = Kept::start(&folder).await?;
                    if !kept.server.has_database(DATABASE).await? {
                        kept.server.create_database(DATABASE).await?;
                    }
                    anyhow::Ok(kept)
                })
                .await?;
            let (service_url, owner_url) = (kept.server.service_url(DATABASE), kept.server.owner_url(DATABASE));
            let place = format!("{}, private to this folder", kept.server.place(DATABASE));
            match said.step("migrate the database", migrate(&owner_url)).await {
                Err(error) if error.is_of_another_build() => {
                    drop(kept);
                    let aside = set_aside(home)?;
                    said.note(
                        "this build of Waybill cannot read the data in the folder, because another build wrote it",
                    );
                    said.note(&format!(
                        "nothing was deleted: the data was moved to {}, and this build starts without data",
                        aside.display()
                    ));
                    return Box::pin(Database::open(home, None, said)).await;
                }
                migrated => migrated?,
            }
            kept.server.open_logins().await?;
            return Ok(Database { service_url, owner_url, place, kept: Some(Arc::new(kept)) });
        };
        let server = Server::given(url.expose_secret(), home)?;
        let place = format!("{}, named by --database-url", server.place(server.database()));
        let (service_url, owner_url) = (server.service_url(server.database()), server.owner_url(server.database()));
        said.step(&format!("migrate the database {place}"), migrate(&owner_url)).await?;
        server.open_logins().await?;
        Ok(Database { service_url, owner_url, place, kept: None })
    }
}

async fn migrate(owner_url: &str) -> Result<(), migrate::Error> {
    let mut owner = migrate::connect_owner(&SecretString::from(owner_url)).await?;
    migrate::run(&mut owner, |_| {}).await?;
    Ok(())
}

/// Moves the database and what it refers to into a folder of their own, and returns it.
fn set_aside(home: &Home) -> Result<PathBuf> {
    let aside = (1..).map(|n| home.path(&format!("old-{n}"))).find(|path| !path.exists()).context("no name is free")?;
    fs::create_dir(&aside).with_context(|| format!("cannot create {}", aside.display()))?;
    // The database last: where its files cannot be moved, it stays as it was.
    for name in ["artifacts", "postgres"] {
        let from = home.path(name);
        let moved = if from.exists() { fs::rename(&from, aside.join(name)) } else { Ok(()) };
        if let Err(error) = moved {
            let _ = fs::rename(aside.join("artifacts"), home.path("artifacts"));
            let _ = fs::remove_dir(&aside);
            return Err(error).with_context(|| {
                format!(
                    "another build of Waybill wrote this data, and {} cannot be moved to {}",
                    from.display(),
                    aside.display()
                )
            });
        }
    }
    Ok(aside)
}

/// Creates the project, unless it is there; the one of the demo with its documents and its team. What a user changed or deleted stays so.
async fn seed(kernel: &Kernel, slug: &str) -> Result<ProjectId> {
    match project::find(kernel, slug).await {
        Err(project::Error::NotFound(_)) => {}
        found => return Ok(found?),
    }
    let mut work = kernel.begin(ProjectId::new()).await?;
    project::create(&mut work, slug).await?;
    if slug == PROJECT {
        demo::shelve(&mut work).await?;
        resource::apply(&mut work, &apply::parse("the demo team", TEAM)?).await?;
    }
    let project_id = work.project_id();
    work.commit().await?;
    Ok(project_id)
}

/// Keeps the key in the file if it still works. Otherwise makes one, writes it to the file, and returns it.
async fn keep_key(kernel: &Kernel, project_id: ProjectId, path: &Path) -> Result<Option<String>> {
    if let Some(known) = fs::read_to_string(path).ok().and_then(|key| key.trim().parse::<ApiKey>().ok())
        && key::find(kernel, &known).await?.is_some_and(|holder| holder.project_id == project_id)
    {
        return Ok(None);
    }
    let name: Name = "dev".parse()?;
    let made = ApiKey::mint("dev");
    let mut work = kernel.begin(project_id).await?;
    // Earlier keys were lost with the file: nothing can use them any more.
    for lost in key::list(&mut work, None, 1_000).await? {
        if lost.name == name && lost.revoked_at.is_none() {
            key::revoke(&mut work, lost.key_id, Duration::ZERO).await?;
        }
    }
    key::create(&mut work, &made, &name, Scope::Admin, &Bounds::default(), None).await?;
    work.commit().await?;
    folder::write(path, &format!("{}\n", made.expose()))?;
    Ok(Some(made.expose().to_owned()))
}

/// Returns the settings file that lets other commands find the database.
fn settings(database: &Database, artifacts: &str, api_url: &str, key_file: &Path, project: &str) -> Result<String> {
    let Database { service_url, owner_url, .. } = database;
    let key_file = std::path::absolute(key_file)?;
    Ok(format!(
        "# Written by `waybill dev`.\ndatabase_url = {service_url:?}\nowner_url = {owner_url:?}\nartifacts = {artifacts:?}\napi_url = {api_url:?}\n\
         api_key_file = {key_file:?}\nproject = {project:?}\n"
    ))
}

fn start_worker(environment: &[(&str, OsString)], n: usize) -> Result<Child> {
    let program = env::current_exe().context("the path of the waybill program cannot be found")?;
    let child = tokio::process::Command::new(program)
        .args([
            "worker",
            "--with-parent",
            "--lease",
            &LEASE.as_secs_f64().to_string(),
            "--grace",
            "2",
            "--look",
            &LOOK.as_secs_f64().to_string(),
        ])
        .envs(environment.iter().cloned())
        // This process listens on that address.
        .env_remove("WAYBILL_METRICS_LISTEN")
        .stdin(Stdio::null())
        // Ctrl-C must reach only this process, which then ends the worker in order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    child.with_context(|| format!("worker {n} cannot be started"))
}

/// Restarts a worker process that has ended, until `until` resolves.
async fn keep_worker(
    mut child: Child,
    environment: Vec<(&'static str, OsString)>,
    n: usize,
    until: impl Future<Output = ()>,
) {
    let mut until = std::pin::pin!(until);
    loop {
        tokio::select! {
            _ = child.wait() => {}
            () = &mut until => {
                if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
                let _ = tokio::time::timeout(Duration::from_secs(5), child.wait()).await;
                return;
            }
        }
        eprintln!("worker {n} has exited; other workers continue its work when its lease ends");
        tokio::time::sleep(Duration::from_secs(1)).await;
        match start_worker(&environment, n) {
            Ok(started) => {
                child = started;
                eprintln!("worker {n} restarted: process {}", child.id().unwrap_or_default());
            }
            Err(error) => eprintln!("{error:#}"),
        }
    }
}

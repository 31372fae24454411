//! `waybill dev`: runs everything in one command.

use std::{
    env,
    ffi::OsString,
    fs,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use tokio::{net::TcpListener, process::Child, sync::watch, task::JoinSet};
use waybill_api::{Access, Config as ApiConfig};
use waybill_bus::local::Local;
use waybill_context::framework::Framework;
use waybill_core::{
    id::{Name, ProjectId},
    key::{ApiKey, Bounds, Scope},
    resource::Manifest,
};
use waybill_kernel::{
    key, migrate, project, resource,
    work::{Config, Kernel},
};
use waybill_orchestrator::command;
use waybill_services::{Home, Server, interrupted, postgres::Kept};
use waybill_tool::service;
use waybill_worker::{
    collect::Collector,
    serve::{Config as WorkerConfig, Worker},
};

use crate::{
    command::{
        apply,
        orchestrator::{STREAM, keep_going},
        worker::Reached,
    },
    connect::{self, Bus, Storage},
    watch::Watch,
};

/// The team of the demo project, from `examples/demo`.
const TEAM: &str = include_str!("../../../../examples/demo/profiles.yaml");
const PROJECT: &str = "demo";
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
    /// Address that the API listens on. It must be a loopback address, because the API accepts requests without a key.
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Number of separate worker processes. A process that exits is restarted. With 0, turns run in this process.
    #[arg(long, default_value_t = 0)]
    workers: usize,
    #[command(flatten)]
    models: Reached,
}

pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode> {
    if !arguments.listen.ip().is_loopback() {
        bail!(
            "--listen {}: `waybill dev` accepts requests without a key, so it must listen on a loopback address such as 127.0.0.1:7070; for other addresses use `waybill serve`",
            arguments.listen
        );
    }
    let installation = arguments.models.read()?;
    let home = prepare(&arguments.data)?;
    let mut lock = Lock::take(&arguments.data)?;
    let listener = listen(arguments.listen).await?;
    let api_url = format!("http://{}", listener.local_addr()?);
    lock.say(&api_url)?;

    let database = Database::open(&home, arguments.database_url.as_ref()).await?;
    let nats = arguments.bus.connect().await?;
    let kernel = Kernel::connect(&Config::new(database.service_url.clone())).await?;
    let kernel = match &nats {
        Some(_) => connect::on_bus(kernel, nats.as_ref()),
        None => kernel.on(Arc::new(Local::beside_others())),
    };
    arguments.watch.begin("dev", &kernel, true).await?;
    let project_id = seed(&kernel).await?;
    let api_key = keep_key(&kernel, project_id, &arguments.data.join("key")).await?;
    let folder = home.path("artifacts");
    let place = arguments.storage.artifacts.clone().unwrap_or_else(|| folder.display().to_string());
    let artifacts = Storage { artifacts: Some(place.clone()) }.open(&kernel)?;
    write(&arguments.data.join("waybill.toml"), &settings(&database, &place))?;
    write(&arguments.data.join("key"), &format!("{api_key}\n"))?;

    let (end, ending) = watch::channel(false);
    let ended = move || {
        let mut ending = ending.clone();
        async move {
            let _ = ending.wait_for(|ending| *ending).await;
        }
    };
    let mut parts = JoinSet::new();
    if let Some(kept) = database.kept.clone() {
        let until = ended();
        parts.spawn(async move {
            tokio::select! {
                never = kept.keep_up() => match never {},
                () = until => {}
            }
        });
    }
    let api = ApiConfig {
        access: Access::Loopback,
        artifacts: artifacts.clone(),
        prices: installation.prices(),
        models: installation.models(),
        ..ApiConfig::default()
    };
    let (serving, until) = (kernel.clone(), ended());
    parts.spawn(async move {
        if let Err(error) = waybill_api::serve(listener, serving, api, until, Duration::from_secs(2)).await {
            tracing::error!(%error, "the HTTP API stopped because of an error");
        }
    });
    let (keeping, until) = (kernel.clone(), ended());
    let commands =
        command::Config { lease: LEASE, look: LOOK, artifacts: artifacts.clone(), ..command::Config::default() };
    parts.spawn(async move {
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
        parts.spawn(keep_worker(child, environment.clone(), n, ended()));
    }
    if arguments.workers == 0 {
        let tools = installation.tools(kernel.clone(), artifacts.clone());
        let calls =
            service::Config { lease: LEASE, look: LOOK, grace: Duration::from_secs(2), ..service::Config::default() };
        let until = ended();
        parts.spawn(async move { tools.serve(&calls, until).await });
        let worker = Worker::new(kernel.clone(), installation.models(), Collector::new(Framework::builtin()));
        let (worker, until) = (worker.with_artifacts(artifacts), ended());
        let config = WorkerConfig {
            lease: LEASE,
            look: LOOK,
            grace: Duration::from_secs(2),
            ..WorkerConfig::new("llm".parse()?)
        };
        parts.spawn(async move { worker.serve(&config, until).await });
    }
    greet(&api_url, &api_key, &database.place, &pids);
    interrupted().await?;
    eprintln!("shutting down");
    let _ = end.send(true);
    while parts.join_next().await.is_some() {}
    drop(database);
    drop(lock);
    Ok(ExitCode::SUCCESS)
}

/// Makes the data folder, which only its owner may enter and which git ignores.
fn prepare(data: &Path) -> Result<Home> {
    let home = Home::at(data)?;
    // As root, the database runs as another account, which must be able to enter the folder.
    if connect::uid() != Some(0) {
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(data, own).context("cannot make the data folder private to this account")?;
    }
    fs::write(data.join(".gitignore"), "*\n").context("cannot write to the data folder")?;
    Ok(home)
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| {
        format!(
            "cannot listen on {address}: is another `waybill dev` running? `--listen 127.0.0.1:0` uses any free port"
        )
    })
}

/// Returns the environment of worker processes. They reach models and the bus with the settings of this process.
fn environment(arguments: &Arguments, database: &Database, artifacts: String) -> Vec<(&'static str, OsString)> {
    [
        ("WAYBILL_DATABASE_URL", Some(database.service_url.clone().into())),
        ("WAYBILL_ARTIFACTS", Some(artifacts.into())),
        ("WAYBILL_NATS_URL", arguments.bus.url().map(OsString::from)),
        ("WAYBILL_PROVIDERS", arguments.models.providers.clone().map(OsString::from)),
        ("WAYBILL_SECRETS", arguments.models.secrets.clone().map(OsString::from)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect()
}

fn greet(api_url: &str, api_key: &str, place: &str, pids: &[u32]) {
    println!("Waybill is up: {api_url}  (OpenAPI: {api_url}/openapi.json)");
    println!("database: {place}");
    println!("a key of project `{PROJECT}`: {api_key}");
    for (n, pid) in pids.iter().enumerate() {
        println!("worker {}: process {pid}", n + 1);
    }
    println!("\nIn another terminal, in this folder:\n");
    println!("  waybill run editor \"How is bread made?\" --watch    # a team at work, without any model provider");
    println!("  waybill turn list                                  # what was done, and what it took");
    println!("  waybill context show TURN                          # what a model saw, and where it came from\n");
    println!("Ctrl-C ends everything. The data stays in the folder.");
}

/// The right to use a data folder. The operating system releases it when the process ends, for whatever reason.
struct Lock(fs::File);

impl Lock {
    fn take(data: &Path) -> Result<Lock> {
        let path = data.join("dev.lock");
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock(file)),
            Err(fs::TryLockError::WouldBlock) => {
                let said = fs::read_to_string(&path).unwrap_or_default();
                let found = if said.is_empty() { "it is just starting" } else { said.trim() };
                bail!(
                    "another `waybill dev` uses {} ({found}): use that one, stop it with Ctrl-C, or use another folder with `--data FOLDER`",
                    data.display()
                )
            }
            Err(fs::TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
        }
    }

    /// Writes the address and process id into the lock file, for the error message of a later process.
    fn say(&mut self, api_url: &str) -> Result<()> {
        use std::io::Write;
        self.0.set_len(0)?;
        self.0.write_all(format!("{api_url}, process {}\n", std::process::id()).as_bytes())?;
        Ok(())
    }
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
    async fn open(home: &Home, given: Option<&SecretString>) -> Result<Database> {
        let Some(url) = given else {
            let folder = home.path("postgres");
            if env::var_os("DATABASE_URL").is_some() {
                eprintln!("DATABASE_URL is set but not used: to use that database, pass it with `--database-url`");
            }
            eprintln!("starting PostgreSQL in {}", folder.display());
            let kept = Kept::start(&folder).await?;
            if !kept.server.has_database(DATABASE).await? {
                kept.server.create_database(DATABASE).await?;
            }
            let (service_url, owner_url) = (kept.server.service_url(DATABASE), kept.server.owner_url(DATABASE));
            let place = format!("{}, private to this folder", kept.server.place(DATABASE));
            match migrate(&owner_url).await {
                Err(error) if error.is_of_another_build() => {
                    drop(kept);
                    let aside = set_aside(home)?;
                    eprintln!(
                        "this build of Waybill cannot read the data in the folder, because another build wrote it"
                    );
                    eprintln!(
                        "nothing was deleted: the data was moved to {}, and this build starts without data",
                        aside.display()
                    );
                    return Box::pin(Database::open(home, None)).await;
                }
                migrated => migrated?,
            }
            return Ok(Database { service_url, owner_url, place, kept: Some(Arc::new(kept)) });
        };
        let server = Server::given(url.expose_secret(), home)?;
        let place = format!("{}, named by --database-url", server.place(server.database()));
        eprintln!("using the database {place}");
        let (service_url, owner_url) = (server.service_url(server.database()), server.owner_url(server.database()));
        migrate(&owner_url).await?;
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

/// Creates the demo project and those of its profiles that do not exist yet.
async fn seed(kernel: &Kernel) -> Result<ProjectId> {
    let project_id = match project::find(kernel, PROJECT).await {
        Ok(project_id) => project_id,
        Err(project::Error::NotFound(_)) => {
            let mut work = kernel.begin(ProjectId::new()).await?;
            project::create(&mut work, PROJECT).await?;
            let project_id = work.project_id();
            work.commit().await?;
            project_id
        }
        Err(error) => return Err(error.into()),
    };
    let mut work = kernel.begin(project_id).await?;
    let there = resource::list(&mut work).await?;
    // Profiles that a user has changed stay as they are.
    let is_new = |manifest: &Manifest| match manifest {
        Manifest::Profile(profile) => {
            !there.iter().any(|listed| listed.kind == resource::Kind::Profile && listed.name == profile.name)
        }
        _ => true,
    };
    let team: Vec<Manifest> = apply::parse("the demo team", TEAM)?.into_iter().filter(is_new).collect();
    if !team.is_empty() {
        resource::apply(&mut work, &team).await?;
        work.commit().await?;
    }
    Ok(project_id)
}

/// Returns the key in the file if it still works, or creates a new one.
async fn keep_key(kernel: &Kernel, project_id: ProjectId, path: &Path) -> Result<String> {
    if let Some(known) = fs::read_to_string(path).ok().and_then(|key| key.trim().parse::<ApiKey>().ok())
        && key::find(kernel, &known).await?.is_some_and(|holder| holder.project_id == project_id)
    {
        return Ok(known.expose().to_owned());
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
    Ok(made.expose().to_owned())
}

/// Returns the settings file that lets other commands find the database.
fn settings(database: &Database, artifacts: &str) -> String {
    let Database { service_url, owner_url, .. } = database;
    format!(
        "# Written by `waybill dev`.\ndatabase_url = {service_url:?}\nowner_url = {owner_url:?}\nartifacts = {artifacts:?}\nproject = {PROJECT:?}\n"
    )
}

/// Writes a file that only its owner can read.
fn write(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
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

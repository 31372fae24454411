//! A private PostgreSQL server: found or installed, initialised, started, stopped.

mod install;
mod kept;

use std::{
    env, fmt,
    fs::{self, File},
    io::Write,
    os::unix::{
        fs::{OpenOptionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::Signal;
use sqlx::{Connection, PgConnection};
use url::Url;
use waybill_core::key::ApiKey;

use self::install::unprivileged;
use crate::{Home, abandoned, end_process, free_port, is_alive};

pub use self::{
    install::{as_unprivileged, binaries, install_debian},
    kept::Kept,
};

/// Loses everything in a crash, and is three times as fast: for tests, which create their databases again in each run.
const FORGETFUL: &[&str] = &[
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=256MB",
    "max_connections=300",
    "max_prepared_transactions=8",
    "max_wal_size=4GB",
];

/// For servers that are measured or killed: their data must survive.
const DURABLE: &[&str] = &[
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "shared_buffers=1GB",
    "max_connections=100",
    "max_wal_size=16GB",
    "checkpoint_timeout=30min",
    "wal_compression=off",
];

/// For servers that are killed again and again: they must also come back soon.
const SHAKEN: &[&str] = &[
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "shared_buffers=512MB",
    "max_connections=200",
    "max_wal_size=1GB",
    "checkpoint_timeout=1min",
    "log_min_messages=fatal",
];

/// A server on which we may create databases.
#[derive(Clone)]
pub struct Server {
    admin_url: Url,
    owner: Login,
}

#[derive(Clone)]
enum Login {
    /// On a server that we started: roles have no passwords, and the owner is no superuser.
    Ours,
    /// On an external server: the user in its URL owns the databases, and the service logs in with this password.
    Given { password: String },
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}:{})", self.admin_url.host_str().unwrap_or_default(), self.port())
    }
}

impl Server {
    fn ours(port: u16) -> Result<Server> {
        let admin_url = Url::parse(&format!("postgres://postgres@127.0.0.1:{port}/postgres"))?;
        Ok(Server { admin_url, owner: Login::Ours })
    }

    /// Uses an external server, by the URL of a user that may create databases on it. The service's password on it is kept in the home.
    pub fn given(url: &str, home: &Home) -> Result<Server> {
        let admin_url = Url::parse(url).map_err(|_| {
            anyhow!("this is not a valid database URL: write postgres://USER:PASSWORD@HOST:PORT/DATABASE")
        })?;
        Ok(Server { admin_url, owner: Login::Given { password: kept_password(home)? } })
    }

    /// Connects as the administrator, who may create and drop databases.
    pub async fn admin(&self) -> Result<PgConnection> {
        PgConnection::connect(self.admin_url.as_str())
            .await
            .context("cannot connect to PostgreSQL with the administrator's login: does the server run, and is DATABASE_URL right?")
    }

    /// Returns the database that its URL names.
    pub fn database(&self) -> &str {
        self.admin_url.path().trim_start_matches('/')
    }

    pub fn port(&self) -> u16 {
        self.admin_url.port().unwrap_or(5432)
    }

    pub fn admin_url(&self, database: &str) -> String {
        self.url(database, None)
    }

    /// Returns the URL for the owner of the schema, who runs migrations.
    pub fn owner_url(&self, database: &str) -> String {
        match self.owner {
            Login::Ours => self.url(database, Some("waybill_owner")),
            Login::Given { .. } => self.url(database, None),
        }
    }

    /// Returns the URL for the login of the API and of commands, which may do what all processes together may.
    pub fn service_url(&self, database: &str) -> String {
        self.url_of("serve", database)
    }

    /// Returns the URL for the login of a part of Waybill: `serve`, `orchestrator` or `worker`.
    pub fn url_of(&self, part: &str, database: &str) -> String {
        self.url(database, Some(&login_of(part)))
    }

    /// Returns the role that owns the databases made here.
    pub fn owner(&self) -> &str {
        match self.owner {
            Login::Ours => "waybill_owner",
            Login::Given { .. } => self.admin_url.username(),
        }
    }

    fn url(&self, database: &str, user: Option<&str>) -> String {
        let mut url = self.admin_url.clone();
        url.set_path(database);
        if let Some(user) = user {
            url.set_username(user).expect("a postgres URL has a user");
            let password = match &self.owner {
                Login::Ours => None,
                Login::Given { password } => Some(password.as_str()),
            };
            url.set_password(password).expect("a postgres URL has a password");
        }
        url.into()
    }

    pub async fn has_database(&self, name: &str) -> Result<bool> {
        let found = sqlx::query_scalar("select exists (select from pg_database where datname = $1)").bind(name);
        Ok(found.fetch_one(&mut self.admin().await?).await?)
    }

    /// Creates an empty database that the owner owns.
    pub async fn create_database(&self, name: &str) -> Result<()> {
        let mut admin = self.admin().await?;
        let sql = format!("create database {name:?} owner {:?}", self.owner());
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await?;
        Ok(())
    }

    /// Returns the server's host, port and this database, without user and password.
    pub fn place(&self, database: &str) -> String {
        format!("{}:{}/{database}", self.admin_url.host_str().unwrap_or_default(), self.port())
    }

    /// Sets a password for Waybill's logins on an external server, where no process can log in without one. A login that already has a password
    /// belongs to another installation, and keeps it.
    pub async fn open_logins(&self) -> Result<()> {
        let Login::Given { password } = &self.owner else { return Ok(()) };
        let mut admin = self.admin().await?;
        for part in ["serve", "orchestrator", "worker"] {
            if PgConnection::connect(&self.url_of(part, self.database())).await.is_ok() {
                continue;
            }
            let login = login_of(part);
            let taken: bool = sqlx::query_scalar("select rolpassword is not null from pg_authid where rolname = $1")
                .bind(&login)
                .fetch_one(&mut admin)
                .await
                .with_context(|| {
                    format!("cannot see whether the role {login} has a password: connect as a superuser")
                })?;
            ensure!(
                !taken,
                "the role {login} of this server has a password that `waybill dev` did not set here, so another installation uses the \
                 server: use another server"
            );
            let sql = format!("alter role {login} password '{password}'");
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await?;
        }
        Ok(())
    }
}

/// Returns the login of a part of Waybill: `serve`, `orchestrator` or `worker`.
fn login_of(part: &str) -> String {
    if part == "serve" { "waybill_service".to_owned() } else { format!("waybill_{part}") }
}

/// Returns the password of Waybill's logins on external servers: random, and made once for each home.
fn kept_password(home: &Home) -> Result<String> {
    let path = home.path("service-password");
    if let Ok(known) = fs::read_to_string(&path) {
        return Ok(known);
    }
    let made = ApiKey::mint("lab").expose().to_owned();
    // Of several concurrent processes, one gives the file its name; the others read it.
    let draft = home.path(&format!("service-password-{}", std::process::id()));
    let file = File::options().write(true).create_new(true).mode(0o600).open(&draft);
    file.and_then(|mut file| file.write_all(made.as_bytes()))
        .with_context(|| format!("cannot write {}", draft.display()))?;
    let linked = fs::hard_link(&draft, &path);
    fs::remove_file(&draft)?;
    match linked {
        Ok(()) => Ok(made),
        Err(_) => fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// A private PostgreSQL server that ends when this value is dropped.
#[derive(Debug)]
pub struct Private {
    pub server: Server,
    folder: Option<PathBuf>,
    settings: &'static [&'static str],
    /// Must be waited for after a kill: while it is a zombie, no other server can take its place.
    child: Mutex<Option<Child>>,
}

impl Private {
    /// Starts a server with durability on. If `DATABASE_URL` is set, uses that server instead.
    pub async fn start() -> Result<Private> {
        if let Ok(url) = env::var("DATABASE_URL") {
            return Ok(Private {
                server: Server::given(&url, &Home::find()?)?,
                folder: None,
                settings: DURABLE,
                child: Mutex::default(),
            });
        }
        Private::launch(DURABLE).await
    }

    /// Starts a server that may be killed, whatever `DATABASE_URL` says.
    pub async fn to_be_killed() -> Result<Private> {
        Private::launch(SHAKEN).await
    }

    /// Starts a server that may be killed, in a folder that the caller manages.
    pub async fn in_folder(folder: &Path) -> Result<Private> {
        let (server, child) = launch(folder, SHAKEN).await?;
        Ok(Private { server, folder: Some(folder.to_owned()), settings: SHAKEN, child: Mutex::new(Some(child)) })
    }

    /// Returns the path of its log. `None` means an external server.
    pub fn log(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join("log"))
    }

    /// Checks whether the server has ended by itself.
    pub fn is_gone(&self) -> bool {
        self.child().as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    async fn launch(settings: &'static [&'static str]) -> Result<Private> {
        let home = Home::find()?;
        sweep(&home)?;
        let folder = home.path(&format!("private-{}-{}", std::process::id(), uuid::Uuid::now_v7().simple()));
        let (server, child) = launch(&folder, settings).await?;
        Ok(Private { server, folder: Some(folder), settings, child: Mutex::new(Some(child)) })
    }

    /// Starts a copy that follows this server as a hot standby.
    pub async fn standby(&self) -> Result<Private> {
        let home = Home::find()?;
        let folder = home.path(&format!("private-{}-{}", std::process::id(), uuid::Uuid::now_v7().simple()));
        fs::create_dir_all(&folder)?;
        if let Some(user) = unprivileged()? {
            chown(&folder, Some(user.uid), Some(user.gid))?;
        }
        let copied = as_unprivileged(&binaries()?.join("pg_basebackup"))?
            .args(["-h", "127.0.0.1", "-U", "postgres", "-R", "-X", "stream", "--checkpoint=fast", "--no-sync"])
            .args(["-p", &self.server.port().to_string()])
            .arg("-D")
            .arg(folder.join("data"))
            .output()?;
        ensure!(copied.status.success(), "pg_basebackup failed: {}", String::from_utf8_lossy(&copied.stderr));
        let port = free_port()?;
        let mut child = spawn(&folder, self.settings, port)?;
        let server = until_up(Server::ours(port)?, &mut child).await?;
        Ok(Private { server, folder: Some(folder), settings: self.settings, child: Mutex::new(Some(child)) })
    }

    /// Promotes a standby to a primary.
    pub async fn promote(&self) -> Result<()> {
        let promoted: bool =
            sqlx::query_scalar("select pg_promote(true, 60)").fetch_one(&mut self.server.admin().await?).await?;
        ensure!(promoted, "the standby was not promoted within one minute");
        Ok(())
    }

    /// Freezes all its processes, or lets them continue.
    pub fn freeze(&self, is_frozen: bool) {
        let Some((postmaster, _)) = self.folder.as_deref().and_then(running) else { return };
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        for pid in
            [vec![postmaster], children(postmaster)].concat().into_iter().filter_map(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Kills the server and all its processes at once, like a loss of power, except that the operating system still writes its buffers.
    pub fn kill(&self) {
        let Some((postmaster, _)) = self.folder.as_deref().and_then(running) else { return };
        let doomed = [vec![postmaster], children(postmaster)].concat();
        for pid in doomed.into_iter().filter_map(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        if let Some(mut child) = self.child().take() {
            let _ = child.wait();
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restarts a killed server on the same port. Returns the time until it answered.
    pub async fn restart(&self) -> Result<Duration> {
        let folder = self.folder.as_deref().context("only a server that this program started has a folder")?;
        let begun = Instant::now();
        loop {
            // The first attempts may find that the old server's shared memory is still in use.
            let mut child = spawn(folder, self.settings, self.server.port())?;
            while child.try_wait()?.is_none() {
                if self.server.admin().await.is_ok() {
                    *self.child() = Some(child);
                    return Ok(begun.elapsed());
                }
                ensure!(
                    begun.elapsed() < Duration::from_secs(120),
                    "PostgreSQL did not restart within two minutes: see its log in the data folder"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            ensure!(
                begun.elapsed() < Duration::from_secs(120),
                "PostgreSQL did not restart within two minutes: see its log in the data folder"
            );
        }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            end(&folder);
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Ends and removes servers that killed owners have left behind.
fn sweep(home: &Home) -> Result<()> {
    for folder in abandoned(home, "private")? {
        end(&folder);
        let _ = fs::remove_dir_all(folder);
    }
    Ok(())
}

pub(super) async fn shared(home: &Home) -> Result<Server> {
    if let Ok(url) = env::var("DATABASE_URL") {
        return Server::given(&url, home);
    }
    let folder = home.path("postgres");
    if let Some((_, port)) = running(&folder) {
        return Server::ours(port);
    }
    let _ = fs::remove_dir_all(&folder);
    Ok(launch(&folder, FORGETFUL).await?.0)
}

pub(super) fn end_shared(home: &Home) -> Result<()> {
    let folder = home.path("postgres");
    end(&folder);
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

async fn launch(folder: &Path, settings: &[&str]) -> Result<(Server, Child)> {
    let bin = binaries()?;
    fs::create_dir_all(folder)?;
    if let Some(user) = unprivileged()? {
        chown(folder, Some(user.uid), Some(user.gid))?;
    }
    let data = folder.join("data");
    let log = folder.join("log");
    let made = as_unprivileged(&bin.join("initdb"))?
        .arg("-D")
        .arg(&data)
        .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"])
        .stdout(Stdio::null())
        .output()?;
    ensure!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));

    let port = free_port()?;
    let mut child = spawn(folder, settings, port)?;
    let up = until_up(Server::ours(port)?, &mut child).await;
    if up.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let up = up.with_context(|| format!("postgres did not start: {}", fs::read_to_string(&log).unwrap_or_default()));
    Ok((up?, child))
}

fn spawn(folder: &Path, settings: &[&str], port: u16) -> Result<Child> {
    let mut command = as_unprivileged(&binaries()?.join("postgres"))?;
    command.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string()]);
    command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    for setting in settings {
        command.args(["-c", setting]);
    }
    let output = File::options().create(true).append(true).open(folder.join("log"))?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
    command.spawn().context("cannot start postgres")
}

/// Returns the child processes of a process.
fn children(parent: i32) -> Vec<i32> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        after.split(' ').nth(1).and_then(|of| of.parse().ok()) == Some(parent)
    })
    .collect()
}

async fn until_up(server: Server, child: &mut Child) -> Result<Server> {
    let begun = Instant::now();
    loop {
        if let Ok(mut admin) = server.admin().await {
            let known = "select exists (select from pg_roles where rolname = 'waybill_owner')";
            if !sqlx::query_scalar::<_, bool>(known).fetch_one(&mut admin).await? {
                sqlx::query("create role waybill_owner login createrole createdb").execute(&mut admin).await?;
            }
            return Ok(server);
        }
        ensure!(child.try_wait()?.is_none(), "postgres has exited");
        ensure!(begun.elapsed() < Duration::from_secs(60), "postgres did not answer within one minute");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns process id and port from the server's own lock file, if that process is the server of this folder: the file outlives a killed
/// server, and its process id may belong to another process by now.
fn running(folder: &Path) -> Option<(i32, u16)> {
    let data = folder.join("data");
    let file = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let lines: Vec<&str> = file.lines().map(str::trim).collect();
    let pid = lines.first()?.parse().ok()?;
    let alive = rustix::process::Pid::from_raw(pid).is_some_and(is_alive);
    let ours = fs::read_link(format!("/proc/{pid}/cwd")).ok()? == data.canonicalize().ok()?;
    (alive && ours).then_some((pid, lines.get(3)?.parse().ok()?))
}

fn end(folder: &Path) {
    if let Some((pid, _)) = running(folder) {
        end_process(pid, Signal::INT, Signal::QUIT);
    }
}

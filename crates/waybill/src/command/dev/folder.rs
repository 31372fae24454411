//! The data folder of `waybill dev` and the address of its API: who uses them, and where other programs find them.

use std::{
    fs,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tokio::net::TcpListener;
use waybill_services::Home;

use super::said::Said;
use crate::{config::LOCK_OF_DEV, connect};

/// The first port that is tried where none is named, and how many are.
const FIRST_PORT: u16 = 7070;
const N_PORTS: u16 = 20;

/// Makes the data folder, which only its owner may enter and which git ignores.
pub(super) fn prepare(data: &Path) -> Result<Home> {
    make(data).with_context(|| {
        format!(
            "cannot use the data folder {}: name a folder that this account can write to, with `--data FOLDER`",
            data.display()
        )
    })
}

fn make(data: &Path) -> Result<Home> {
    let home = Home::at(data)?;
    // As root, the database runs as another account, which must be able to enter the folder.
    if connect::uid() != Some(0) {
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(data, own).context("cannot make it private to this account")?;
    }
    fs::write(data.join(".gitignore"), "*\n").context("cannot write to it")?;
    Ok(home)
}

/// Writes a file that only its owner can read.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// The right to use a data folder. The operating system releases it when the process ends, for whatever reason.
pub(super) struct Lock(fs::File);

impl Lock {
    pub(super) fn take(data: &Path) -> Result<Lock> {
        let path = data.join(LOCK_OF_DEV);
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {
                // What a killed process wrote.
                file.set_len(0).with_context(|| format!("cannot write {}", path.display()))?;
                Ok(Lock(file))
            }
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
    pub(super) fn say(&mut self, api_url: &str) -> Result<()> {
        self.0.set_len(0)?;
        self.0.write_all(format!("{api_url}, process {}\n", std::process::id()).as_bytes())?;
        Ok(())
    }
}

/// The file that says that everything is up. It exists only while that is so, except after a kill.
pub(super) struct Ready(PathBuf);

impl Ready {
    /// Takes the path, and removes the file that a killed process left there.
    pub(super) fn at(path: PathBuf) -> Result<Ready> {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot write the ready file {}", path.display()))
            }
            _ => Ok(Ready(path)),
        }
    }

    /// Writes the file. A reader never finds a part of it.
    pub(super) fn write(&self, api_url: &str, project: &str) -> Result<()> {
        let pid = std::process::id();
        let mut draft = self.0.clone().into_os_string();
        draft.push(format!(".{pid}"));
        let said = json!({ "url": api_url, "project": project, "pid": pid });
        let written = fs::write(&draft, format!("{said}\n")).and_then(|()| fs::rename(&draft, &self.0));
        written.with_context(|| format!("cannot write the ready file {}", self.0.display()))
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Listens on the named address, or else on the first free port from 7070 on.
pub(super) async fn listen(named: Option<SocketAddr>, said: &Said) -> Result<TcpListener> {
    if let Some(address) = named {
        let listener = TcpListener::bind(address).await;
        return listener.map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::AddrInUse => "another program uses this port. Omit `--listen` to use the next free one",
                io::ErrorKind::AddrNotAvailable => {
                    "this machine has no such address. Use 127.0.0.1, or 0.0.0.0 for all"
                }
                io::ErrorKind::PermissionDenied => "ports below 1024 need more rights. Use a higher one",
                _ => "use another address",
            };
            anyhow::Error::new(error)
                .context(format!("cannot listen on {address}: {advice}, or `--listen 127.0.0.1:0` for any free port"))
        });
    }
    for port in FIRST_PORT..FIRST_PORT + N_PORTS {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            listener => {
                if port > FIRST_PORT {
                    said.note(&format!("port {FIRST_PORT} is in use: the API listens on {port}"));
                }
                return listener.with_context(|| format!("cannot listen on 127.0.0.1:{port}"));
            }
        }
    }
    bail!(
        "the ports {FIRST_PORT} to {} are all in use: name another one with `--listen 127.0.0.1:PORT`",
        FIRST_PORT + N_PORTS - 1
    )
}

/// Returns the URL under which programs of this machine reach the API.
pub(super) fn url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
}

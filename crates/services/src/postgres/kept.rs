//! The server of `waybill dev`, whose data is kept.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Child,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::{Server, end, install::for_new_data, kept_password, launch, running, spawn, start, until_up};
use crate::end_process;

/// For people to work with: data is kept, and the server uses little memory.
const KEPT: &[&str] =
    &["fsync=on", "synchronous_commit=on", "shared_buffers=128MB", "max_connections=60", "max_wal_size=1GB"];

/// A PostgreSQL server whose data is kept in a folder. It runs while this value lives. The caller makes sure that there is one per folder.
#[derive(Debug)]
pub struct Kept {
    pub server: Server,
    folder: PathBuf,
    /// `None` means a server that a killed process left running.
    child: Mutex<Option<Child>>,
}

impl Kept {
    /// Starts the folder's server, and creates it first if needed. If a killed process left the server running, uses that one.
    pub async fn start(folder: &Path) -> Result<Kept> {
        let folder = folder.to_owned();
        let is_new = !folder.join("data").join("PG_VERSION").exists();
        let file = folder.join("password");
        // Data that was made before there was a password has none.
        let password = match is_new || file.exists() {
            true => {
                fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
                Some(kept_password(&file)?)
            }
            false => None,
        };
        if let Some((_, port)) = running(&folder) {
            return Ok(Kept { server: Server::ours(port, password)?, folder, child: Mutex::default() });
        }
        let (server, child) = match is_new {
            true => launch(&for_new_data()?, &folder, KEPT, password).await?,
            false => start(&folder, KEPT, password).await?,
        };
        Ok(Kept { server, folder, child: Mutex::new(Some(child)) })
    }

    /// Restarts the server on the same port whenever it has ended. Never returns.
    pub async fn keep_up(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if !self.has_ended() {
                continue;
            }
            eprintln!("PostgreSQL has exited; starting it again");
            match self.start_again().await {
                Ok(()) => eprintln!("PostgreSQL is up again"),
                // The processes of a killed server may hold its shared memory for a moment.
                Err(error) => eprintln!("PostgreSQL cannot be started: {error:#}"),
            }
        }
    }

    fn has_ended(&self) -> bool {
        // Also waits for a child that has ended: until then no other server can take its place.
        match &mut *self.child() {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => running(&self.folder).is_none(),
        }
    }

    async fn start_again(&self) -> Result<()> {
        let mut child = spawn(&self.folder, KEPT, self.server.port())?;
        let up = until_up(self.server.clone(), &mut child).await;
        *self.child() = Some(child);
        up.map(drop)
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        match self.child().take() {
            Some(mut child) => {
                end_process(child.id().cast_signed(), Signal::INT, Signal::QUIT);
                let _ = child.wait();
            }
            None => end(&self.folder),
        }
    }
}

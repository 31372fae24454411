//! LangGraph, as a package of its own in a virtual environment, for a comparison of what long turns store and take.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use waybill_services::{Home, Server};

/// The two ways in which it keeps its messages: as a whole list after every step, or as what each step added.
pub(super) const CHANNELS: [&str; 2] = ["LangGraph", "LangGraph with DeltaChannel"];

/// The interpreter and the script.
pub(super) struct Peer {
    python: PathBuf,
    script: PathBuf,
}

/// What the script prints.
#[derive(Deserialize)]
pub(super) struct PeerLeft {
    pub bytes_stored: i64,
    pub bytes_new: i64,
    pub ms_per_step: f64,
}

impl Peer {
    const SCRIPT: &str = include_str!("../../../../bench/peers/langgraph_storage.py");
    const PINNED: &str = include_str!("../../../../bench/peers/requirements.txt");

    /// Fetches LangGraph once per checkout, and again when the pinned versions change.
    pub(super) fn install() -> Result<Peer> {
        if let Some(peer) = Peer::installed()? {
            return Ok(peer);
        }
        let folder = Home::find()?.path("peers");
        eprintln!("fetching LangGraph into {}", folder.display());
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let pinned = folder.join("requirements.txt");
        fs::write(&pinned, Peer::PINNED)?;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "-r"];
        succeed(Command::new(folder.join("bin/python")).args(install).arg(&pinned))?;
        fs::copy(&pinned, folder.join("installed.txt"))?;
        Peer::installed()?.context("LangGraph was fetched, and is not there")
    }

    /// Returns LangGraph if the pinned versions were fetched before.
    pub(super) fn installed() -> Result<Option<Peer>> {
        let folder = Home::find()?.path("peers");
        if fs::read_to_string(folder.join("installed.txt")).unwrap_or_default() != Peer::PINNED {
            return Ok(None);
        }
        let peer = Peer { python: folder.join("bin/python"), script: folder.join("langgraph_storage.py") };
        fs::write(&peer.script, Peer::SCRIPT)?;
        Ok(Some(peer))
    }

    /// Runs a turn. `work` is the number of calls, the bytes that it begins with, and the bytes that each call adds.
    pub(super) async fn run(
        &self,
        server: &Server,
        model_url: &str,
        work: [usize; 3],
        is_delta: bool,
    ) -> Result<PeerLeft> {
        let mut command = Command::new(&self.python);
        command.arg(&self.script).args(work.map(|n| n.to_string()));
        command.env("DATABASE_URL", server.admin_url("postgres")).env("MODEL_URL", model_url);
        command.env("DELTA", if is_delta { "1" } else { "0" });
        let printed = tokio::task::spawn_blocking(move || succeed(&mut command)).await??;
        Ok(serde_json::from_slice(&printed)?)
    }
}

/// Runs a command and returns its output; fails if the command fails.
fn succeed(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().context("LangGraph needs python3 with venv; --short goes without")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{:?} failed, and without LangGraph there is only --short: {said}",
        command.get_program()
    );
    Ok(output.stdout)
}

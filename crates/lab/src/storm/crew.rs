//! The processes of a storm, each in a place of its own: started, killed, frozen, started again.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{process::Role, proxy::Proxy};

/// Where one process stands, whichever it is just now.
#[derive(Debug)]
pub(super) struct Place {
    pub role: Role,
    pub number: usize,
    /// Its ways to PostgreSQL and NATS.
    pub database: Proxy,
    pub bus: Proxy,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Option<Child>,
    incarnation: usize,
    frozen: bool,
}

/// All of them, and what they are told when they start.
#[derive(Debug)]
pub(super) struct Crew {
    pub places: BTreeMap<(Role, usize), Place>,
    program: PathBuf,
    folder: PathBuf,
    database: String,
    ledger_port: u16,
    lease: Duration,
}

impl Place {
    pub(super) fn new(role: Role, number: usize, database: Proxy, bus: Proxy) -> Place {
        Place { role, number, database, bus, state: Mutex::new(State { child: None, incarnation: 0, frozen: false }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, incarnation: usize) -> String {
        format!("{}-{}.{incarnation}", self.role.as_str(), self.number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut child) = self.state().child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Crew {
    pub(super) fn new(
        folder: &Path,
        database: &str,
        ledger_port: u16,
        lease: Duration,
        places: Vec<Place>,
    ) -> Result<Crew> {
        Ok(Crew {
            places: places.into_iter().map(|place| ((place.role, place.number), place)).collect(),
            program: std::env::current_exe()?,
            folder: folder.to_owned(),
            database: database.to_owned(),
            ledger_port,
            lease,
        })
    }

    /// Starts the process of a place, if none stands there.
    pub(super) fn start(&self, role: Role, number: usize) -> Result<()> {
        let place = &self.places[&(role, number)];
        let mut state = place.state();
        if state.child.is_some() {
            return Ok(());
        }
        state.incarnation += 1;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{}-{number}.log", role.as_str())))?;
        let child = Command::new(&self.program)
            .args(["lab", role.as_str(), "--name", &place.name(state.incarnation)])
            .args(["--ledger", &self.ledger_port.to_string()])
            .args(["--lease", &self.lease.as_millis().to_string()])
            .env(
                "WAYBILL_DATABASE_URL",
                format!("postgres://waybill_service@127.0.0.1:{}/{}", place.database.port, self.database),
            )
            .env("WAYBILL_NATS_URL", format!("nats://127.0.0.1:{}", place.bus.port))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("cannot start a process of the storm")?;
        state.child = Some(child);
        Ok(())
    }

    /// Kills what stands at a place. Says who that was; none: nobody, or somebody frozen, whose time is to be whole.
    pub(super) fn kill(&self, role: Role, number: usize) -> Option<String> {
        let place = &self.places[&(role, number)];
        let mut state = place.state();
        if state.frozen {
            return None;
        }
        let mut child = state.child.take()?;
        let _ = child.kill();
        let _ = child.wait();
        Some(place.name(state.incarnation))
    }

    /// Freezes what stands at a place. Says which incarnation; none: nobody stands there, or it is frozen already.
    pub(super) fn freeze(&self, role: Role, number: usize) -> Option<usize> {
        let mut state = self.places[&(role, number)].state();
        if state.frozen {
            return None;
        }
        kill_process(Pid::from_child(state.child.as_ref()?), Signal::STOP).ok()?;
        state.frozen = true;
        Some(state.incarnation)
    }

    /// Lets it go on. False: it is no longer the one that was frozen.
    pub(super) fn thaw(&self, role: Role, number: usize, incarnation: usize) -> bool {
        let mut state = self.places[&(role, number)].state();
        if let (true, Some(child)) = (state.incarnation == incarnation && state.frozen, state.child.as_ref()) {
            let _ = kill_process(Pid::from_child(child), Signal::CONT);
            state.frozen = false;
            return true;
        }
        false
    }
}

/// The ledger's process. It ends with this value.
#[derive(Debug)]
pub(super) struct LedgerKeeper {
    child: Child,
    pub port: u16,
}

impl LedgerKeeper {
    pub(super) fn start(file: &Path) -> Result<LedgerKeeper> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["lab", "ledger", "--file"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("it prints its port")?).read_line(&mut line)?;
        ensure!(!line.is_empty(), "the ledger did not come up");
        Ok(LedgerKeeper { port: line.trim().parse()?, child })
    }
}

impl Drop for LedgerKeeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

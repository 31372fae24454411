//! The processes of a storm, each in its own place: started, killed, frozen, restarted.

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
use waybill_services::ChildProcess;

/// A place for one process. Each restart puts a new process (incarnation) there.
#[derive(Debug)]
pub(super) struct Place {
    pub role: Role,
    pub number: usize,
    /// Its proxies to PostgreSQL and NATS.
    pub database: Proxy,
    pub bus: Proxy,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Option<Child>,
    incarnation: usize,
    frozen: bool,
    partitioned: bool,
    /// How often the process ended by itself, which must not happen.
    died: u64,
}

/// All places, and the settings that their processes get at start.
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
        Place {
            role,
            number,
            database,
            bus,
            state: Mutex::new(State { child: None, incarnation: 0, frozen: false, partitioned: false, died: 0 }),
        }
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

    /// Starts the process of a place, if none runs there.
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
            .args(["process", role.as_str(), "--name", &place.name(state.incarnation)])
            .args(["--ledger", &self.ledger_port.to_string()])
            .args(["--lease", &self.lease.as_millis().to_string()])
            .env(
                "WAYBILL_DATABASE_URL",
                format!("postgres://{}@127.0.0.1:{}/{}", role.login(), place.database.port, self.database),
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

    /// Kills the process at a place and returns its name. Returns `None` if there is no process, or if it is frozen: a freeze is not cut short.
    pub(super) fn kill(&self, role: Role, number: usize) -> Option<String> {
        let place = &self.places[&(role, number)];
        let mut state = place.state();
        if state.frozen {
            return None;
        }
        let mut child = state.child.take()?;
        if matches!(child.try_wait(), Ok(Some(_))) {
            state.died += 1;
        }
        let _ = child.kill();
        let _ = child.wait();
        Some(place.name(state.incarnation))
    }

    /// Marks a place as cut off. Returns false if it already is.
    pub(super) fn cut_off(&self, role: Role, number: usize) -> bool {
        !std::mem::replace(&mut self.places[&(role, number)].state().partitioned, true)
    }

    pub(super) fn reconnect(&self, role: Role, number: usize) {
        self.places[&(role, number)].state().partitioned = false;
    }

    /// Returns how many processes ended by themselves, and the number of log lines with a text of `UNSAID`.
    pub(super) fn complaints(&self) -> (u64, u64) {
        let mut died = 0;
        for place in self.places.values() {
            let mut state = place.state();
            let over = state.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))));
            died += state.died + u64::from(over);
        }
        let logs = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let texts = logs.filter(|file| file.path().extension().is_some_and(|end| end == "log"));
        let lines = texts.map(|file| {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            text.lines().filter(|line| UNSAID.iter().any(|said| line.contains(said))).count() as u64
        });
        (died, lines.sum())
    }

    /// Freezes the process at a place and returns its incarnation. Returns `None` if there is no process, or if it is already frozen.
    pub(super) fn freeze(&self, role: Role, number: usize) -> Option<usize> {
        let mut state = self.places[&(role, number)].state();
        if state.frozen {
            return None;
        }
        kill_process(Pid::from_child(state.child.as_ref()?), Signal::STOP).ok()?;
        state.frozen = true;
        Some(state.incarnation)
    }

    /// Lets the process continue. Returns false if it is no longer the one that was frozen.
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

/// Texts that must not be in a log. A sweep that was given up because the server did not answer is no fault.
const UNSAID: [&str; 3] = ["a tool call could not be answered", "could not carry out a command", "panicked at"];

/// The ledger's process.
#[derive(Debug)]
pub(super) struct LedgerKeeper {
    _process: ChildProcess,
    pub port: u16,
}

impl LedgerKeeper {
    pub(super) fn start(file: &Path) -> Result<LedgerKeeper> {
        let child = Command::new(std::env::current_exe()?)
            .args(["process", "ledger", "--file"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut process = ChildProcess(child);
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().context("it prints its port")?).read_line(&mut line)?;
        ensure!(!line.is_empty(), "the ledger did not come up");
        Ok(LedgerKeeper { port: line.trim().parse()?, _process: process })
    }
}

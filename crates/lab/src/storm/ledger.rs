//! The ledger: a separate process that is never killed. Every other process reports to it what it did. At the end, the ledger and the
//! database must agree.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, BufWriter, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::{Mutex, PoisonError, mpsc},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use waybill_core::{
    id::{CardId, StepId, ToolCallId, TurnId},
    turn::ClaimToken,
};

/// What a process did, reported once it is known to be true.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "did", rename_all = "snake_case")]
pub enum Entry {
    /// A turn was accepted. `ready` means that no other turn was before it.
    Accepted {
        turn_id: TurnId,
        ready: bool,
    },
    Claimed {
        turn_id: TurnId,
        token: ClaimToken,
        by: String,
    },
    /// A model call, for which a real worker would pay.
    Asked {
        turn_id: TurnId,
        step: usize,
    },
    /// A step was written. `leaves` means that the worker no longer holds the turn; `again` means that an earlier attempt had already written it,
    /// and its writer had not learned of it.
    Wrote {
        turn_id: TurnId,
        token: ClaimToken,
        step_id: StepId,
        card_id: CardId,
        leaves: bool,
        again: bool,
    },
    /// A write was refused as stale.
    Refused {
        turn_id: TurnId,
        token: ClaimToken,
        card_id: CardId,
    },
    /// A tool's effect outside the system.
    Executed {
        tool_call_id: ToolCallId,
    },
    /// An answer was applied. `again` means that an earlier attempt had already applied it, and its writer had not learned of it.
    Answered {
        tool_call_id: ToolCallId,
        card_id: CardId,
        again: bool,
    },
    Killed {
        by: String,
    },
    /// The database answers again.
    Back {
        after_seconds: f64,
    },
}

/// An entry, and when the ledger received it, in seconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    pub at: f64,
    #[serde(flatten)]
    pub entry: Entry,
}

/// How long a line may wait until it is in the file.
const FLUSHED: Duration = Duration::from_millis(200);

/// Runs the ledger for ever. Prints the port that it listens on.
pub fn keep(file: &Path) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    // Uses the same clock as the database, and never goes backwards.
    let (since, begun) = (SystemTime::now().duration_since(UNIX_EPOCH)?, Instant::now());
    let (told, hear) = mpsc::channel::<(Duration, String)>();
    let mut file = BufWriter::new(File::create(file)?);
    std::thread::spawn(move || {
        let mut flushed = Instant::now();
        loop {
            if let Ok((at, line)) = hear.recv_timeout(FLUSHED) {
                // The line is an object: the time goes in front.
                let _ = writeln!(file, "{{\"at\":{:.6},{}", at.as_secs_f64(), &line[1..]);
            }
            // Also while more is reported all the time.
            if flushed.elapsed() >= FLUSHED {
                let _ = file.flush();
                flushed = Instant::now();
            }
        }
    });
    for stream in listener.incoming() {
        let (stream, told) = (stream?, told.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok).filter(|line| line.starts_with('{')) {
                let _ = told.send((since + begun.elapsed(), line));
            }
        });
    }
    Ok(())
}

/// A connection to the ledger. Once an entry is written it arrives, even if its writer is killed right after.
#[derive(Debug)]
pub struct Ledger(Mutex<TcpStream>);

impl Ledger {
    pub fn connect(port: u16) -> Result<Ledger> {
        let stream = TcpStream::connect(("127.0.0.1", port)).context("the ledger cannot be reached")?;
        stream.set_nodelay(true)?;
        Ok(Ledger(Mutex::new(stream)))
    }

    pub fn note(&self, entry: &Entry) {
        let mut line = serde_json::to_vec(entry).expect("an entry is JSON");
        line.push(b'\n');
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An error is ignored here: if the ledger is gone, the end of the run fails.
        let _ = stream.write_all(&line);
    }
}

pub fn read(file: &Path) -> Result<Vec<Line>> {
    let text = fs::read_to_string(file).context("the ledger is gone")?;
    let mut lines = Vec::new();
    // The last line may be half there, while a process still reports.
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    for line in whole.lines() {
        lines.push(serde_json::from_str(line).with_context(|| format!("the ledger says {line:?}"))?);
    }
    Ok(lines)
}

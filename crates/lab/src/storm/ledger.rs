//! The ledger: a process of its own that is never killed, and that everybody tells what it did. What it was told and what the database says
//! must agree in the end.

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

/// What somebody did, told after it is known to be true.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "did", rename_all = "snake_case")]
pub enum Entry {
    /// A turn was accepted; `ready`: and nothing was before it.
    Accepted {
        turn_id: TurnId,
        ready: bool,
    },
    Claimed {
        turn_id: TurnId,
        token: ClaimToken,
        by: String,
    },
    /// What a real worker would pay a model for.
    Asked {
        turn_id: TurnId,
        step: usize,
    },
    /// A step was written; `leaves`: and the turn is no longer ours; `again`: it had been, without its writer's learning of it.
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
    /// What a real tool would do outside.
    Executed {
        tool_call_id: ToolCallId,
    },
    /// An answer was applied; `again`: it had been, without its writer's learning of it.
    Answered {
        tool_call_id: ToolCallId,
        card_id: CardId,
        again: bool,
    },
    Killed {
        by: String,
    },
    /// The database is there again.
    Back {
        after_seconds: f64,
    },
}

/// An entry, and when the ledger heard of it, in seconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    pub at: f64,
    #[serde(flatten)]
    pub entry: Entry,
}

/// Keeps the ledger for ever. Prints the port it listens on.
pub fn keep(file: &Path) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    // By the same clock as the database, and never backwards.
    let (since, begun) = (SystemTime::now().duration_since(UNIX_EPOCH)?, Instant::now());
    let (told, hear) = mpsc::channel::<(Duration, String)>();
    let mut file = BufWriter::new(File::create(file)?);
    std::thread::spawn(move || {
        loop {
            let Ok((at, line)) = hear.recv_timeout(Duration::from_millis(200)) else {
                let _ = file.flush();
                continue;
            };
            // The line is an object: the time goes in front.
            let _ = writeln!(file, "{{\"at\":{:.6},{}", at.as_secs_f64(), &line[1..]);
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

/// The way to the ledger. Once an entry is written it is heard, also if its writer is killed right after.
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
        // Without the ledger nothing can be proved: the end of the run fails.
        let _ = stream.write_all(&line);
    }
}

pub fn read(file: &Path) -> Result<Vec<Line>> {
    let text = fs::read_to_string(file).context("the ledger is gone")?;
    let mut lines = Vec::new();
    for line in text.lines() {
        lines.push(serde_json::from_str(line).with_context(|| format!("the ledger says {line:?}"))?);
    }
    Ok(lines)
}

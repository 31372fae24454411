//! A small TCP proxy that can be set to misbehave: delay, stall (half-open), lose answers, cut, drop and duplicate doorbells.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::watch,
    task::JoinHandle,
};

use super::dice::Dice;

/// What a proxy does with what passes through it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Pass,
    Delay(Duration),
    /// Half-open: nothing passes, and neither side gets an error. Data in flight arrives when the stall ends.
    Stall,
    /// Requests arrive, answers are lost: the client cannot know the outcome. Connections are cut when the mode ends.
    LoseAnswers,
    /// Connections are cut as they come.
    Cut,
    /// To PostgreSQL: this share of the commits is delayed, for less time than the server's idle timeout for transactions.
    SlowCommits {
        share: f64,
    },
    /// The shares of NATS messages that are dropped and duplicated.
    Bells {
        drop: f64,
        double: f64,
    },
}

/// How long a commit is delayed that must still succeed: the server ends a transaction that idles for five seconds.
pub const SLOW: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(4));

/// How many messages were sent, dropped and duplicated; how many commits were delayed and then done.
#[derive(Debug, Default)]
pub struct Counts {
    pub sent: AtomicU64,
    pub dropped: AtomicU64,
    pub doubled: AtomicU64,
    pub slow_commits: AtomicU64,
}

#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    mode: watch::Sender<Mode>,
    to: Arc<AtomicU16>,
    pub counts: Arc<Counts>,
    accepting: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Proxy {
    pub async fn start(to: u16, mode: Mode, seed: u64) -> Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let (mode, modes) = watch::channel(mode);
        let counts = Arc::new(Counts::default());
        let (counted, to) = (counts.clone(), Arc::new(AtomicU16::new(to)));
        let target = to.clone();
        let accepting = tokio::spawn(async move {
            let mut dice = Dice::new(seed);
            while let Ok((client, _)) = listener.accept().await {
                let (modes, counts, seed, to) = (modes.clone(), counted.clone(), dice.throw(), target.load(Relaxed));
                tokio::spawn(async move { drop(connection(client, to, modes, counts, seed).await) });
            }
        });
        Ok(Proxy { port, mode, to, counts, accepting })
    }

    /// Sends new connections to another server.
    pub fn move_to(&self, to: u16) {
        self.to.store(to, Relaxed);
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn connection(
    client: TcpStream,
    to: u16,
    modes: watch::Receiver<Mode>,
    counts: Arc<Counts>,
    seed: u64,
) -> Result<()> {
    if *modes.borrow() == Mode::Cut {
        return Ok(());
    }
    let server = TcpStream::connect(("127.0.0.1", to)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let mut cutting = modes.clone();
    let mut before = *cutting.borrow();
    let cut = async {
        // When `LoseAnswers` ends, the connection is cut.
        while cutting.changed().await.is_ok() {
            let now = *cutting.borrow();
            if now == Mode::Cut || before == Mode::LoseAnswers {
                return;
            }
            before = now;
        }
    };
    let wire = Wire { modes, counts, slowed: AtomicBool::new(false) };
    tokio::select! {
        ended = pipe(from_client, to_server, &wire, Direction::Asking(Dice::new(seed))) => ended,
        ended = pipe(from_server, to_client, &wire, Direction::Answering) => ended,
        () = cut => Ok(()),
    }
}

/// State that both directions of a connection share.
struct Wire {
    modes: watch::Receiver<Mode>,
    counts: Arc<Counts>,
    /// Whether a commit was delayed and is not answered yet.
    slowed: AtomicBool,
}

enum Direction {
    Asking(Dice),
    Answering,
}

/// The bytes of a unit of work's commit, and of the answer that it is done.
const COMMIT: &[u8] = b"select; commit\0";
const COMMITTED: &[u8] = b"C\0\0\0\x0bCOMMIT\0";

async fn pipe(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, wire: &Wire, mut direction: Direction) -> Result<()> {
    let (mut modes, counts) = (wire.modes.clone(), &wire.counts);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        let chunk = &buffer[..n];
        let mode = *modes.borrow_and_update();
        if let (Mode::SlowCommits { share }, Direction::Asking(dice)) = (mode, &mut direction)
            && find(chunk, COMMIT).is_some()
            && dice.chance(share)
        {
            wire.slowed.store(true, Relaxed);
            tokio::time::sleep(dice.between(SLOW.0, SLOW.1)).await;
        }
        match (mode, &mut direction) {
            (Mode::Delay(delay), _) => tokio::time::sleep(delay).await,
            (Mode::Stall, _) => {
                modes.wait_for(|mode| *mode != Mode::Stall).await?;
            }
            (Mode::LoseAnswers, Direction::Answering) => continue,
            (_, Direction::Answering) if wire.slowed.load(Relaxed) => {
                wire.slowed.store(false, Relaxed);
                counts.slow_commits.fetch_add(u64::from(find(chunk, COMMITTED).is_some()), Relaxed);
            }
            (Mode::Bells { drop, double }, Direction::Asking(dice)) => {
                for message in messages(chunk) {
                    let is_bell = message.starts_with(b"PUB ");
                    counts.sent.fetch_add(u64::from(is_bell), Relaxed);
                    if is_bell && dice.chance(drop) {
                        counts.dropped.fetch_add(1, Relaxed);
                        continue;
                    }
                    to.write_all(message).await?;
                    if is_bell && dice.chance(double / (1.0 - drop)) {
                        counts.doubled.fetch_add(1, Relaxed);
                        to.write_all(message).await?;
                    }
                }
                continue;
            }
            _ => {}
        }
        to.write_all(chunk).await?;
    }
}

/// Splits what a NATS client sent into messages. A doorbell is `PUB subject 0` and an empty line; anything else stays in one piece.
fn messages(chunk: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = chunk;
    while !rest.is_empty() {
        let end = if rest.starts_with(b"PUB ") {
            find(rest, b" 0\r\n\r\n").map_or(rest.len(), |at| at + 6)
        } else {
            find(&rest[1..], b"PUB ").map_or(rest.len(), |at| at + 1)
        };
        let (message, after) = rest.split_at(end);
        parts.push(message);
        rest = after;
    }
    parts
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bells_are_cut_apart_and_nothing_is_lost() {
        let sent = b"PUB a.b 0\r\n\r\nPUB c.d 0\r\n\r\nPING\r\nPUB e 0\r\n\r\n";
        let parts = messages(sent);
        assert_eq!(parts.concat(), sent);
        assert_eq!(parts.iter().filter(|part| part.starts_with(b"PUB ")).count(), 3);
        assert_eq!(parts[1], b"PUB c.d 0\r\n\r\n");
    }
}

//! Serves a script.

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use super::{
    Answer, Fault, Format, Script, asked, fault,
    ledger::{Entry, Ledger},
    wire::{Request, Wire},
};

/// A running server. When it is dropped, it stops and cuts all its connections.
pub struct Server {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    script: Box<dyn Script>,
    ledger: Ledger,
    started_at: SystemTime,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    pub async fn start(script: impl Script) -> Result<Server> {
        Server::start_on(0, script).await
    }

    /// Starts on a port; 0 means any free port.
    pub async fn start_on(port: u16, script: impl Script) -> Result<Server> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let port = listener.local_addr()?.port();
        let shared =
            Arc::new(Shared { script: Box::new(script), ledger: Ledger::default(), started_at: SystemTime::now() });
        let serving = shared.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let shared = serving.clone();
                connections.spawn(async move { drop(connection(client, &shared).await) });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Server { port, shared, accepting })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    /// Returns all entries. A client that has read a complete answer finds it noted here.
    pub fn ledger(&self) -> Vec<Entry> {
        self.shared.ledger.book.borrow().entries.clone()
    }

    /// Waits until the entries satisfy `is_so`.
    pub async fn until(&self, is_so: impl Fn(&[Entry]) -> bool) {
        let seen = self.shared.ledger.book.subscribe().wait_for(|book| is_so(&book.entries)).await.map(drop);
        seen.expect("the server keeps the sender");
    }

    pub fn n_asked(&self) -> usize {
        self.shared.ledger.book.borrow().entries.len()
    }

    /// Returns the number of requests whose key had already been answered completely.
    pub fn repeats(&self) -> usize {
        self.shared.ledger.book.borrow().n_repeats
    }

    /// Calls `f` whenever a complete request was read, before the script runs.
    pub fn on_asked(&self, f: impl Fn(&Entry) + Send + Sync + 'static) {
        self.shared.ledger.on_asked.add(Arc::new(f));
    }

    /// Calls `f` right after the last byte of a complete answer without a fault was written.
    pub fn on_answered(&self, f: impl Fn(&Entry) + Send + Sync + 'static) {
        self.shared.ledger.on_answered.add(Arc::new(f));
    }
}

async fn connection(client: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut wire = Wire::new(client)?;
    while let Some(request) = wire.read().await? {
        let mut is_last = request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        match (request.method.as_str(), Format::at(&request.path)) {
            _ if request.header("transfer-encoding").is_some() => {
                is_last = true;
                send(&mut wire, 411, "", &json!({"error": {"message": "a request needs a content-length"}})).await?;
            }
            ("POST", Some(format)) => is_last |= !serve(&mut wire, shared, format, &request).await?,
            ("GET", _) if request.path == "/ledger" => send(&mut wire, 200, "", &shared.ledger.json()).await?,
            _ => send(&mut wire, 404, "", &json!({"error": {"message": "no such path"}})).await?,
        }
        if is_last {
            break;
        }
    }
    Ok(())
}

/// Serves one request. Returns whether the connection can serve another.
async fn serve(wire: &mut Wire, shared: &Shared, format: Format, request: &Request) -> io::Result<bool> {
    let ledger = &shared.ledger;
    let mut asked = match asked::read(format, request) {
        Ok(asked) => asked,
        Err(error) => {
            send(wire, 400, "", &fault::body(format, 400, &error.to_string())).await?;
            return Ok(true);
        }
    };
    ledger.note_asked(&mut asked, request.body().len());
    ledger.on_asked.call(&ledger.entry(asked.n));
    let reply = shared.script.reply(&asked);
    let since_epoch = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = format!("{:x}{:06x}", since_epoch(shared.started_at).as_nanos(), asked.n);
    let created = since_epoch(SystemTime::now()).as_secs();
    let end = answer(wire, ledger, &Answer { asked: &asked, reply: &reply, id, created }).await;
    if end.is_err() {
        ledger.book.send_modify(|book| book.entries[asked.n].hung_up = true);
    } else if reply.fault.is_none() {
        ledger.on_answered.call(&ledger.entry(asked.n));
    }
    end
}

/// Sends the answer; fails if the client hangs up. Returns whether the connection can serve another request.
async fn answer(wire: &mut Wire, ledger: &Ledger, answer: &Answer<'_>) -> io::Result<bool> {
    let (asked, pace) = (answer.asked, &answer.reply.pace);
    wire.wait(pace.before).await?;
    let last = match (&answer.reply.fault, asked.stream) {
        (Some(Fault::Status { code, retry_after, message }), _) => {
            let more = retry_after.map(|seconds| format!("retry-after: {seconds}\r\n")).unwrap_or_default();
            send(wire, *code, &more, &fault::body(asked.format, *code, message)).await?;
            return Ok(true);
        }
        (Some(Fault::ErrorInStream { message, .. }), false) => {
            send(wire, 500, "", &fault::body(asked.format, 500, message)).await?;
            return Ok(true);
        }
        (_, true) => stream(wire, answer).await?,
        (fault, false) => {
            let body = match fault {
                Some(Fault::NotJson { .. }) => fault::GARBAGE.to_owned(),
                _ => answer.whole().to_string(),
            };
            let is_broken = matches!(fault, Some(Fault::CutOff { .. } | Fault::HalfOpen { .. }));
            wire.head(200, Some(body.len()), "").await?;
            let n_sent = if is_broken { body.len() / 2 } else { body.len() };
            wire.body(&body.as_bytes()[..n_sent], pace).await?.to_vec()
        }
    };
    match answer.reply.fault {
        None => {
            let n_tokens = u64::from(answer.reply.n_input) + u64::from(answer.reply.n_output);
            wire.finish(&last, &ledger.book, |book| book.note_answered(asked.n, n_tokens)).await?;
        }
        Some(_) => wire.send(&last).await?,
    }
    if let Some(Fault::HalfOpen { .. }) = answer.reply.fault {
        wire.wait(Duration::MAX).await?;
    }
    Ok(!matches!(answer.reply.fault, Some(Fault::CutOff { .. })))
}

/// Sends all but the last bytes, which it returns.
async fn stream(wire: &mut Wire, answer: &Answer<'_>) -> io::Result<Vec<u8>> {
    let mut events = answer.events();
    let mut ends = true;
    match &answer.reply.fault {
        Some(Fault::ErrorInStream { after_events, message }) => {
            events.truncate(*after_events);
            events.push(fault::event(answer, events.len(), message));
        }
        Some(Fault::CutOff { after_events } | Fault::HalfOpen { after_events }) => {
            events.truncate(*after_events);
            ends = false;
        }
        Some(Fault::NotJson { after_events }) => {
            events.insert(events.len().min(*after_events), fault::GARBAGE.to_owned());
        }
        Some(Fault::Status { .. }) | None => {}
    }
    wire.head(200, None, "").await?;
    wire.chunks(&events, &answer.reply.pace, ends).await
}

async fn send(wire: &mut Wire, code: u16, more: &str, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    wire.head(code, Some(body.len()), more).await?;
    wire.send(body.as_bytes()).await
}

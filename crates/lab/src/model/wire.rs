//! The part of HTTP/1.1 that a model client needs: request bodies of a known length, answers as bodies or chunks, keep-alive.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::sleep,
};

use super::Pace;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    /// Names in lower case.
    pub(super) headers: Vec<(String, String)>,
    bytes: Vec<u8>,
    body_at: usize,
}

impl Request {
    pub(super) fn body(&self) -> &[u8] {
        &self.bytes[self.body_at..]
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    /// Read, but not yet used.
    buffer: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> io::Result<Wire> {
        stream.set_nodelay(true)?;
        Ok(Wire { stream, buffer: Vec::new() })
    }

    /// Reads the next request. Returns `None` when the client is done.
    pub(super) async fn read(&mut self) -> io::Result<Option<Request>> {
        let mut searched = 0;
        let body_at = loop {
            if let Some(at) = self.buffer[searched..].windows(4).position(|window| window == b"\r\n\r\n") {
                break searched + at + 4;
            }
            searched = self.buffer.len().saturating_sub(3);
            if self.fill().await? == 0 {
                return Ok(None);
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..body_at]);
        let mut lines = head.lines();
        let mut words = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let header = |(name, value): (&str, &str)| (name.to_ascii_lowercase(), value.trim().to_owned());
        let headers = lines.filter_map(|line| line.split_once(':')).map(header).collect();
        let mut request = Request { method, path, headers, bytes: Vec::new(), body_at };

        let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let end = body_at + length;
        if self.buffer.len() < end && request.header("expect").is_some() {
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        self.buffer.reserve(end.saturating_sub(self.buffer.len()));
        while self.buffer.len() < end {
            if self.fill().await? == 0 {
                return Ok(None);
            }
        }
        let after = self.buffer.split_off(end);
        request.bytes = std::mem::replace(&mut self.buffer, after);
        Ok(Some(request))
    }

    async fn fill(&mut self) -> io::Result<usize> {
        if self.buffer.len() == self.buffer.capacity() {
            self.buffer.reserve(16 * 1024);
        }
        self.stream.read_buf(&mut self.buffer).await
    }

    /// Waits, and fails as soon as the client hangs up. What the client sends meanwhile is kept for later.
    pub(super) async fn wait(&mut self, time: Duration) -> io::Result<()> {
        // A timer with a duration of zero takes up to a millisecond.
        let slept = async {
            if !time.is_zero() {
                sleep(time).await;
            }
        };
        tokio::pin!(slept);
        loop {
            tokio::select! {
                biased;
                read = self.fill() => if read? == 0 {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                },
                () = &mut slept => return Ok(()),
            }
        }
    }

    /// Sends a status and headers; the body is `length` bytes, or chunks.
    pub(super) async fn head(&mut self, code: u16, length: Option<usize>, more: &str) -> io::Result<()> {
        let reason = match code {
            200 => "OK",
            400 => "Bad Request",
            401 => "Unauthorized",
            404 => "Not Found",
            429 => "Too Many Requests",
            500 => "Internal Server Error",
            503 => "Service Unavailable",
            _ => "Unnamed",
        };
        let body = match length {
            Some(length) => format!("content-type: application/json\r\ncontent-length: {length}"),
            None => "content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n\
                     transfer-encoding: chunked"
                .to_owned(),
        };
        self.send(format!("HTTP/1.1 {code} {reason}\r\n{body}\r\n{more}\r\n").as_bytes()).await
    }

    /// Sends events at a pace, as HTTP chunks. Returns the last event, with the end if there is one, for the caller to send. So a client that
    /// has read the last event and leaves does not count as hung up.
    pub(super) async fn chunks(&mut self, events: &[String], pace: &Pace, ends: bool) -> io::Result<Vec<u8>> {
        let mut pending = Vec::new();
        for (index, event) in events.iter().enumerate() {
            self.wait(if index == 0 { Duration::ZERO } else { pace.between }).await?;
            pending.extend_from_slice(event.as_bytes());
            let size = if pace.chunk == 0 { pending.len() } else { pace.chunk };
            let is_last = index + 1 == events.len();
            let n_ready = (pending.len() - usize::from(is_last)) / size * size;
            for piece in pending[..n_ready].chunks(size) {
                self.send(&framed(piece)).await?;
            }
            pending.drain(..n_ready);
        }
        let mut last = if pending.is_empty() { Vec::new() } else { framed(&pending) };
        last.extend_from_slice(if ends { b"0\r\n\r\n" } else { b"" });
        Ok(last)
    }

    /// Sends a body except for its last bytes, which it returns.
    pub(super) async fn body<'b>(&mut self, bytes: &'b [u8], pace: &Pace) -> io::Result<&'b [u8]> {
        let size = if pace.chunk == 0 { bytes.len().max(1) } else { pace.chunk };
        let (ready, last) = bytes.split_at(bytes.len().saturating_sub(1) / size * size);
        for piece in ready.chunks(size) {
            self.send(piece).await?;
        }
        Ok(last)
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Sends the last bytes and makes the note under one lock: a client that has read them always finds the note in the book.
    pub(super) async fn finish<B>(
        &mut self,
        mut bytes: &[u8],
        book: &watch::Sender<B>,
        note: impl Fn(&mut B),
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.writable().await?;
            let mut written = Ok(0);
            book.send_if_modified(|book| {
                written = self.stream.try_write(bytes);
                let is_all = matches!(written, Ok(n) if n == bytes.len());
                if is_all {
                    note(book);
                }
                is_all
            });
            match written {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn framed(piece: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{:x}\r\n", piece.len()).into_bytes();
    bytes.extend_from_slice(piece);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

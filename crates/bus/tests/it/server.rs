//! A private server, and a fake one.

use std::{net::TcpListener, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::mpsc,
};
use waybill_services::nats::Private;

/// Starts a private server.
pub(crate) fn running() -> Private {
    running_with(&[])
}

pub(crate) fn running_with(options: &[&'static str]) -> Private {
    let mut server = Private::with_options(options).unwrap();
    server.start().unwrap();
    server
}

/// A fake server that greets like NATS of a given version, and answers pings.
pub(crate) struct Pretender {
    pub(crate) url: String,
    greeted: mpsc::UnboundedReceiver<()>,
    gone: mpsc::UnboundedReceiver<()>,
}

impl Pretender {
    pub(crate) async fn at(port: u16, version: &'static str) -> Pretender {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let (tell_greeted, greeted) = mpsc::unbounded_channel();
        let (tell_gone, gone) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tell_greeted, tell_gone) = (tell_greeted.clone(), tell_gone.clone());
                tokio::spawn(async move {
                    pretend(stream, version, tell_greeted).await.ok();
                    tell_gone.send(()).ok();
                });
            }
        });
        Pretender { url, greeted, gone }
    }

    /// Waits until a client has connected and was answered.
    pub(crate) async fn has_greeted(&mut self) {
        crate::soon(self.greeted.recv()).await;
    }

    /// Waits until a client has disconnected.
    pub(crate) async fn was_left(&mut self) {
        crate::soon(self.gone.recv()).await;
    }
}

async fn pretend(stream: TcpStream, version: &str, greeted: mpsc::UnboundedSender<()>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let info =
        format!(r#"INFO {{"server_id":"P","version":"{version}","proto":1,"headers":true,"max_payload":1048576}}"#);
    stream.write_all(format!("{info}\r\n").as_bytes()).await?;
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        if line.trim() == "PING" {
            stream.write_all(b"PONG\r\n").await?;
            greeted.send(()).ok();
        }
        line.clear();
    }
    Ok(())
}

/// Checks whether a client tries to connect to a port while we listen there.
pub(crate) async fn is_knocked_at(port: u16, within: Duration) -> bool {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::time::timeout(within, listener.accept()).await.is_ok()
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

//! Servers of one's own: a real one that can be killed and frozen, and one that only pretends.

use std::{
    env, fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::mpsc,
};
use waybill_lab::services::{Home, Shared, nats};

/// A private `nats-server` with JetStream. It ends with this value.
pub(crate) struct Server {
    binary: PathBuf,
    port: u16,
    store: PathBuf,
    options: Vec<&'static str>,
    child: Option<Child>,
}

impl Server {
    /// One that is not running yet.
    pub(crate) async fn away() -> Server {
        // Fetches the binary where there is none. With NATS_URL set it does not; then one must be installed.
        Shared::get().await.unwrap();
        let fetched = Home::find().unwrap().path("nats-server").join("bin/nats-server");
        let binary = if fetched.exists() { fetched } else { PathBuf::from("nats-server") };
        let port = free_port();
        let store = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("nats-{}-{port}", std::process::id()));
        Server { binary, port, store, options: Vec::new(), child: None }
    }

    pub(crate) async fn running() -> Server {
        Server::running_with(&[]).await
    }

    pub(crate) async fn running_with(options: &[&'static str]) -> Server {
        let mut server = Server::away().await;
        server.options = options.to_vec();
        server.start().await;
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) async fn start(&mut self) {
        let child = Command::new(&self.binary)
            .args(["--addr", "127.0.0.1", "--port", &self.port.to_string(), "--jetstream", "--store_dir"])
            .arg(&self.store)
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nats-server is needed: unset NATS_URL, and it is fetched");
        self.child = Some(child);
        let url = self.url();
        crate::until(|| nats::info(&url).is_ok()).await;
    }

    /// Ends it without a warning.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// It keeps its connections and does nothing any more.
    pub(crate) fn freeze(&self) {
        let child = self.child.as_ref().unwrap();
        kill_process(Pid::from_child(child), Signal::STOP).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        fs::remove_dir_all(&self.store).ok();
    }
}

/// Something that greets like a NATS server of some version, and answers pings.
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

    /// Waits until somebody has connected and was answered.
    pub(crate) async fn has_greeted(&mut self) {
        crate::soon(self.greeted.recv()).await;
    }

    /// Waits until somebody has gone away.
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

/// Whether somebody tries to connect to a port while we listen there.
pub(crate) async fn is_knocked_at(port: u16, within: Duration) -> bool {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::time::timeout(within, listener.accept()).await.is_ok()
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

//! A client that sees every byte.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::model::Server;

pub(super) struct Client(pub(super) BufReader<TcpStream>);

pub(super) struct Got {
    pub(super) code: u16,
    pub(super) head: String,
    pub(super) body: String,
    /// Whether the body ended properly.
    pub(super) is_whole: bool,
}

impl Client {
    pub(super) async fn connect(server: &Server) -> Client {
        let url = server.url();
        let address = url.trim_start_matches("http://").trim_end_matches("/v1");
        Client(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    pub(super) async fn send(&mut self, path: &str, key: &str, body: &Value) {
        let body = body.to_string();
        let head = format!("POST /v1{path} HTTP/1.1\r\nIdempotency-Key: {key}\r\nContent-Length: {}", body.len());
        self.0.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
    }

    pub(super) async fn receive(&mut self) -> Got {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).await.unwrap(), 0, "no whole head: {head:?}");
        }
        let code = head["HTTP/1.1 ".len()..][..3].parse().unwrap();
        let mut body = Vec::new();
        let is_whole = if let Some((_, length)) = head.split_once("content-length: ") {
            let length = length.lines().next().unwrap().parse().unwrap();
            (&mut self.0).take(length).read_to_end(&mut body).await.unwrap() as u64 == length
        } else {
            loop {
                let mut size = String::new();
                self.0.read_line(&mut size).await.unwrap();
                let Ok(size) = u64::from_str_radix(size.trim(), 16) else { break false };
                (&mut self.0).take(size).read_to_end(&mut body).await.unwrap();
                self.0.read_line(&mut String::new()).await.unwrap();
                if size == 0 {
                    break true;
                }
            }
        };
        Got { code, head, body: String::from_utf8(body).unwrap(), is_whole }
    }

    pub(super) async fn ask(&mut self, path: &str, stream: bool) -> Got {
        let body = json!({"model": "m", "stream": stream, "stream_options": {"include_usage": true}});
        self.send(path, "key", &body).await;
        self.receive().await
    }
}

impl Got {
    pub(super) fn events(&self) -> Vec<Value> {
        let lines = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter_map(|data| serde_json::from_str(data).ok()).collect()
    }
}

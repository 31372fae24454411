//! The text of a model while it is written (WK-5): from NATS, or from the API of `waybill dev`.

use std::{fs, net::SocketAddr, path::PathBuf};

use clap::Args;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::{
    io::{self, AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
};
use waybill_core::id::{AgentId, ProjectId, TurnId};
use waybill_kernel::work::Kernel;

/// Where text comes from while it is written.
#[derive(Debug, Default, Args)]
pub(crate) struct Live {
    /// URL of the API of `waybill dev`. Text is read from it while a model writes it, if there is no NATS. `waybill dev` sets it in its settings
    /// file.
    #[arg(long, env = "WAYBILL_API_URL", value_name = "URL", hide = true)]
    api_url: Option<String>,
    /// The file with a key for it. `waybill dev` sets it too, where its API demands one.
    #[arg(long, env = "WAYBILL_API_KEY_FILE", value_name = "FILE", hide = true)]
    api_key_file: Option<PathBuf>,
}

impl Live {
    /// Returns the pieces of what a turn is writing, from now on, each as JSON with `agent_turn_id`, `step_id`, `attempt` and `text`.
    pub(crate) fn pieces(
        &self,
        kernel: &Kernel,
        project_id: ProjectId,
        agent_id: AgentId,
        turn_id: TurnId,
    ) -> BoxStream<'static, Vec<u8>> {
        match self.api_url.as_deref().and_then(address) {
            Some(address) if !kernel.bus().is_up() => {
                let path = format!("/v1/projects/{project_id}/turns/{turn_id}/events?tokens=true");
                let key = self.api_key_file.as_ref().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
                let opened = stream::once(open(address, path, key));
                Box::pin(opened.filter_map(|opened| async { opened.ok() }).flat_map(|lines| Box::pin(tokens(lines))))
            }
            _ => kernel.bus().watch(project_id, agent_id),
        }
    }
}

/// Returns the address in a URL such as http://127.0.0.1:7070. A key is not sent to other machines.
fn address(url: &str) -> Option<SocketAddr> {
    let address: SocketAddr = url.strip_prefix("http://")?.trim_end_matches('/').parse().ok()?;
    address.ip().is_loopback().then_some(address)
}

/// Asks for the events of a turn. With HTTP/1.0 the body comes as it is, without chunks.
async fn open(address: SocketAddr, path: String, key: String) -> io::Result<Lines<BufReader<TcpStream>>> {
    let mut connection = TcpStream::connect(address).await?;
    let key = if key.is_empty() { key } else { format!("authorization: Bearer {}\r\n", key.trim()) };
    let asked = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n{key}accept: text/event-stream\r\n\r\n");
    connection.write_all(asked.as_bytes()).await?;
    Ok(BufReader::new(connection).lines())
}

/// Returns the data of the events `token`.
fn tokens(lines: Lines<BufReader<TcpStream>>) -> impl futures::Stream<Item = Vec<u8>> {
    stream::unfold((lines, false), |(mut lines, mut is_token)| async move {
        loop {
            let line = lines.next_line().await.ok()??;
            if let Some(kind) = line.strip_prefix("event: ") {
                is_token = kind == "token";
            } else if let Some(data) = line.strip_prefix("data: ")
                && is_token
            {
                return Some((data.as_bytes().to_vec(), (lines, is_token)));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    /// WK-5: of the events of a turn, the pieces of text are passed on.
    #[tokio::test]
    async fn pieces_are_read_from_the_events_of_a_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let said = "HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
                    event: step\nid: 1\ndata: {}\n\nevent: token\ndata: {\"text\":\"so\"}\n\n:\n\nevent: token\ndata: {\"text\":\" on\"}\n\n";
        tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut asked = [0; 1024];
            assert!(connection.read(&mut asked).await.unwrap() > 0);
            connection.write_all(said.as_bytes()).await.unwrap();
        });
        let lines = open(address, "/".to_owned(), String::new()).await.unwrap();
        let pieces: Vec<Vec<u8>> = tokens(lines).collect().await;
        assert_eq!(pieces, [&br#"{"text":"so"}"#[..], br#"{"text":" on"}"#]);
        assert_eq!(super::address("http://127.0.0.1:7070"), Some("127.0.0.1:7070".parse().unwrap()));
        assert_eq!(super::address("http://192.0.2.1:80"), None);
    }
}

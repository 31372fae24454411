//! `waybill health`

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::output;

const PATIENCE: Duration = Duration::from_secs(2);
const HINT: &str = "`waybill dev` can be asked only if it was started with `--metrics-listen ADDRESS` too. `waybill doctor` checks the database";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The --metrics-listen of the process. There is no default: a process that was started without it cannot be asked.
    #[arg(long, env = "WAYBILL_METRICS_LISTEN", value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
}

pub(crate) async fn run(arguments: Arguments, json: bool) -> Result<ExitCode> {
    let mut address = arguments.metrics_listen.with_context(|| {
        format!(
            "which process is asked? Name the address that it was started with: `waybill health --metrics-listen \
             ADDRESS`. {HINT}"
        )
    })?;
    // A process that listens on all addresses is asked on this machine.
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        });
    }
    let answer = match timeout(PATIENCE, ask(address)).await {
        Ok(answer) => answer,
        Err(late) => Err(late.into()),
    };
    let answer = answer.with_context(|| format!("no process of Waybill answers at {address}. {HINT}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    ensure!(head.split(' ').nth(1) == Some("200"), "the process at {address} is not ready: {}", body.trim());
    if json {
        output::json(&serde_json::json!({ "status": "ready" }))?;
    } else {
        println!("ready");
    }
    Ok(ExitCode::SUCCESS)
}

async fn ask(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /ready HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

//! The scripted model as a program: `scripted-model RULES.json [--port N]`. `GET /ledger` lists the requests; Ctrl-C ends it.

use anyhow::{Context, Result, bail};
use waybill_lab::model::{Rules, Server};

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (file, port) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [file] => (file, 0),
        [file, "--port", port] => (file, port.parse().context("a port is a number")?),
        _ => bail!("usage: scripted-model RULES.json [--port N]"),
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("{file} cannot be read"))?;
    let rules: Rules = serde_json::from_str(&text).with_context(|| format!("{file} holds no rules"))?;
    let server = Server::start_on(port, rules).await?;
    println!("listening on {}", server.url());
    tokio::signal::ctrl_c().await?;
    Ok(())
}

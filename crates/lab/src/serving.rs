//! `waybill serve` as a process of its own.

use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::time::sleep;
use waybill_services::ChildProcess;

/// Starts a server that limits no caller, and waits until it is ready.
pub(crate) async fn serve(
    program: &Path,
    address: &str,
    database_url: &str,
    options: &[&OsStr],
) -> Result<ChildProcess> {
    let mut command = Command::new(program);
    command.args(["serve", "--listen", address, "--per-second", "100000"]).args(options);
    command.env("WAYBILL_DATABASE_URL", database_url).env_remove("WAYBILL_NATS_URL");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let process = ChildProcess(command.spawn().context("a server cannot be started")?);
    let http = reqwest::Client::builder().no_proxy().build()?;
    for _ in 0..200 {
        let answer = http.get(format!("http://{address}/ready")).send().await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(process);
        }
        sleep(Duration::from_millis(50)).await;
    }
    bail!("the server does not come up")
}

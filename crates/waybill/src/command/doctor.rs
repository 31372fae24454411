//! `waybill doctor`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use waybill_core::bus::Bus as _;
use waybill_kernel::{
    check::{self, Check},
    work::{Error, Kernel},
};

use crate::{
    connect::{Bus, Service},
    output,
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    service: Service,
    #[command(flatten)]
    bus: Bus,
}

pub(crate) async fn run(arguments: Arguments, json: bool) -> Result<ExitCode> {
    let mut checks = match Kernel::connect_unchecked(&arguments.service.config()).await {
        Ok(kernel) => [vec![reachable(None)], check::run(&kernel).await].concat(),
        Err(error @ Error::Unreachable { .. }) => vec![reachable(Some(error))],
        Err(error) => return Err(error.into()),
    };
    if arguments.bus.url().is_some() {
        checks.push(bus(&arguments.bus).await);
    }
    if json {
        output::json(&checks)?;
    } else {
        let mark = |check: &Check| if check.ok { "ok" } else { "FAILED" }.to_owned();
        output::table(
            ["", "check", "found", "advice"],
            checks.iter().map(|check| [mark(check), check.check.into(), check.found.clone(), check.advice.into()]),
        );
    }
    Ok(if checks.iter().all(|check| check.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Away is no failure: nothing depends on it. Too old, or a login that is refused, is.
async fn bus(bus: &Bus) -> Check {
    const CHECK: &str = "NATS usable";
    match bus.connect().await {
        Ok(nats) if nats.as_ref().is_some_and(|nats| nats.is_up()) => {
            Check { check: CHECK, ok: true, found: "yes".to_owned(), advice: "" }
        }
        Ok(_) => Check {
            check: CHECK,
            ok: true,
            found: "away".to_owned(),
            advice: "Work goes on, found by looking. Check that the server runs and that WAYBILL_NATS_URL points at it.",
        },
        Err(error) => Check {
            check: CHECK,
            ok: false,
            found: format!("{error:#}"),
            advice: "Use NATS 2.10 or newer, and a login that it knows.",
        },
    }
}

fn reachable(error: Option<Error>) -> Check {
    const CHECK: &str = "database reachable";
    match error {
        None => Check { check: CHECK, ok: true, found: "yes".to_owned(), advice: "" },
        Some(error) => Check {
            check: CHECK,
            ok: false,
            found: format!("{:#}", anyhow::Error::from(error)), // with its causes
            advice: "Check that the server runs and that WAYBILL_DATABASE_URL points at it.",
        },
    }
}

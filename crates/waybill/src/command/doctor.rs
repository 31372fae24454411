//! `waybill doctor`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use waybill_kernel::{
    check::{self, Check},
    work::{Error, Kernel},
};

use crate::{connect::Service, output};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    service: Service,
}

pub(crate) async fn run(arguments: Arguments, json: bool) -> Result<ExitCode> {
    let checks = match Kernel::connect_unchecked(&arguments.service.config()).await {
        Ok(kernel) => [vec![reachable(None)], check::run(&kernel).await].concat(),
        Err(error @ Error::Unreachable { .. }) => vec![reachable(Some(error))],
        Err(error) => return Err(error.into()),
    };
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

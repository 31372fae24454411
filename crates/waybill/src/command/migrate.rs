//! `waybill migrate`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use secrecy::SecretString;
use waybill_kernel::{check, login, migrate};

use crate::{connect::Owner, output};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    owner: Owner,
    /// Set the password of the login `waybill_service`. The server gets only a verifier (SCRAM-SHA-256). If omitted, the password stays as it is.
    #[arg(long, env = "WAYBILL_SERVICE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    service_password: Option<SecretString>,
    /// The same for the login `waybill_orchestrator`.
    #[arg(long, env = "WAYBILL_ORCHESTRATOR_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    orchestrator_password: Option<SecretString>,
    /// The same for the login `waybill_worker`.
    #[arg(long, env = "WAYBILL_WORKER_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    worker_password: Option<SecretString>,
}

pub(crate) async fn run(arguments: Arguments, json: bool) -> Result<ExitCode> {
    let passwords = [arguments.service_password, arguments.orchestrator_password, arguments.worker_password];
    for (login, password) in check::LOGINS.into_iter().zip(&passwords) {
        if let Some(password) = password {
            login::check_password(login, password)?;
        }
    }
    let mut owner = migrate::connect_owner(&arguments.owner.owner_url).await?;
    let applied = migrate::run(&mut owner, |applied| {
        if !json {
            println!("applying {:04} {}", applied.version, applied.name);
        }
    })
    .await?;
    let (mut set, mut unset) = (Vec::new(), Vec::new());
    for (login, password) in check::LOGINS.into_iter().zip(passwords) {
        match password {
            Some(password) => {
                login::set_password(&mut owner, login, &password).await?;
                set.push(login);
            }
            None => unset.push(login),
        }
    }
    if json {
        output::json(&serde_json::json!({ "applied": applied, "version": migrate::newest(), "passwords": set }))?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("the schema is at version {}", migrate::newest());
    if !set.is_empty() {
        println!("passwords were set: {}", set.join(", "));
    }
    match (applied.is_empty(), unset.as_slice()) {
        (true, _) => {}
        (false, []) => println!("next: run `waybill doctor`"),
        (false, unset) => println!("next: set the passwords of {}, then run `waybill doctor`", unset.join(", ")),
    }
    Ok(ExitCode::SUCCESS)
}

//! `waybill version`

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use waybill_kernel::migrate;
use waybill_services::postgres::Inside;

use crate::{VERSION, output};

/// What this program is made of.
#[derive(Debug, Serialize)]
struct Version {
    version: &'static str,
    /// The version of the database schema.
    schema: i64,
    /// The PostgreSQL inside this program.
    postgres: Option<Postgres>,
}

#[derive(Debug, Serialize)]
struct Postgres {
    version: String,
    sha256: String,
}

pub(crate) fn run(as_json: bool) -> Result<ExitCode> {
    let postgres = Inside::find()?.map(|inside| Postgres { version: inside.version, sha256: inside.sha256 });
    let version = Version { version: VERSION, schema: migrate::newest(), postgres };
    if as_json {
        output::json(&version)?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("waybill {}", version.version);
    println!("database schema: version {}", version.schema);
    match &version.postgres {
        Some(postgres) => println!("PostgreSQL inside: {} (sha256 {})", postgres.version, postgres.sha256),
        None => println!("PostgreSQL inside: none; `waybill dev` uses the installed one"),
    }
    Ok(ExitCode::SUCCESS)
}

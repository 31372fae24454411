//! What it would cost to cut the tables of records into leaves by a hash of the project: turns a second and the locks of a turn, in a model of these
//! tables, with plans that are made once and with plans that are made each time.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{median, progress};
use crate::figure::{Bar, Figure};
use waybill_services::{Private, Server, postgres};

/// How long each way runs, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub window: Duration,
    pub rounds: usize,
}

const DATABASE: &str = "waybill_leaves";
const LEAVES: [u32; 3] = [0, 16, 64];
const PLANS: [&str; 2] = ["generic", "custom"];
const CLIENTS: &str = "8";
const DROP: &str = "drop database if exists waybill_leaves with (force)";

/// Plans are made for tables that have rows.
const SOME_TURNS: &str = "select count(trial.turn(md5((n % 200)::text)::uuid)) from generate_series(1, 1000) n";

/// Measures on a private PostgreSQL. No figure has a bar: they inform a decision.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::start().await?;
    let server = &private.server;
    sqlx::query(DROP).execute(&mut server.admin().await?).await?;
    server.create_database(DATABASE).await?;
    let mut admin = PgConnection::connect(&server.admin_url(DATABASE)).await?;
    for leaves in LEAVES {
        let schema = format!("trial_{leaves}");
        let make = format!("{}\ncall trial.make({leaves});\n{SOME_TURNS}", include_str!("leaves.sql"));
        let make = make.replace("trial.", &format!("{schema}.")).replace("schema trial;", &format!("schema {schema};"));
        sqlx::raw_sql(AssertSqlSafe(make)).execute(&mut admin).await?;
    }
    sqlx::raw_sql("vacuum analyze").execute(&mut admin).await?;
    let ways: Vec<(u32, &str)> = LEAVES.iter().flat_map(|leaves| PLANS.map(|plans| (*leaves, plans))).collect();
    let mut rates = vec![Vec::new(); ways.len()];
    let bar = progress("tables whole and in leaves", (options.rounds * ways.len()) as u64);
    for _ in 0..options.rounds {
        for ((leaves, plans), rates) in ways.iter().zip(&mut rates) {
            rates.push(turns_per_second(server, *leaves, plans, options.window).await?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut figures = Vec::new();
    let rates: Vec<f64> = rates.into_iter().map(median).collect();
    figures.push(Figure::new("turns/s, whole tables, generic plans, 8 clients", rates[0], "turns/s", Bar::None));
    for ((leaves, plans), rate) in ways.iter().zip(&rates).skip(1) {
        let name = format!("turns/s, {}, {plans} plans ÷ whole tables, generic plans", named(*leaves));
        figures.push(Figure::new(name, rate / rates[0], "ratio", Bar::None));
    }
    for (leaves, plans) in ways {
        let name = format!("relation locks held by a turn, {}, {plans} plans", named(leaves));
        figures.push(Figure::new(name, locks(server, leaves, plans).await?, "locks", Bar::None));
    }
    drop(admin);
    sqlx::query(DROP).execute(&mut server.admin().await?).await?;
    Ok(figures)
}

fn named(leaves: u32) -> String {
    if leaves == 0 { "whole tables".to_owned() } else { format!("{leaves} leaves") }
}

/// Runs turns of two hundred projects by pgbench. Nothing waits for the disk: it would hide what plans and locks cost.
async fn turns_per_second(server: &Server, leaves: u32, plans: &str, window: Duration) -> Result<f64> {
    let script = std::env::temp_dir().join(format!("waybill-leaves-{}.sql", std::process::id()));
    let turn = format!("select trial_{leaves}.turn(md5((random() * 200)::int::text)::uuid);\n");
    std::fs::write(&script, turn)?;
    let mut command = Command::new(postgres::binaries()?.join("pgbench"));
    command
        .args(["-n", "-M", "prepared", "-j", "1", "-c", CLIENTS, "-T", &window.as_secs().to_string(), "-f"])
        .arg(&script)
        .arg(server.admin_url(DATABASE))
        .env("PGOPTIONS", format!("-c plan_cache_mode=force_{plans}_plan -c synchronous_commit=off"))
        .stderr(Stdio::inherit());
    let printed =
        tokio::task::spawn_blocking(move || command.output()).await?.context("pgbench comes with PostgreSQL")?;
    std::fs::remove_file(&script)?;
    ensure!(printed.status.success(), "pgbench failed");
    let printed = String::from_utf8_lossy(&printed.stdout);
    let rate: Option<f64> =
        printed.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.context("pgbench prints its rate")
}

/// Returns the locks of a turn whose plans are made.
async fn locks(server: &Server, leaves: u32, plans: &str) -> Result<f64> {
    let mut admin = PgConnection::connect(&server.admin_url(DATABASE)).await?;
    let mode = format!("set plan_cache_mode = force_{plans}_plan");
    sqlx::raw_sql(AssertSqlSafe(mode)).execute(&mut admin).await?;
    let turn = format!("select trial_{leaves}.turn(md5('1')::uuid)");
    let mut locks = 0;
    for _ in 0..3 {
        locks = sqlx::query_scalar(AssertSqlSafe(turn.clone())).fetch_one(&mut admin).await?;
    }
    Ok(f64::from(locks))
}

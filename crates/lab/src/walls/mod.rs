//! Whether one project can reach another over HTTP (SE-1, SE-2).
//!
//! A victim has a team that worked, and work under way; a neighbour has valid keys of every scope, and knows every id of the victim, its fences and
//! the tokens of its claims. With its keys, and with the cookies of browsers that have logged in with them (SE-11), it asks for the victim's data: in
//! paths, queries and bodies, in streams and claims, in its own name and in the victim's. Each attempt is made twice: with ids of the victim, and with ids that never existed. The two answers must be the same, no answer may
//! contain anything of the victim's that was not in the request, and nothing of the victim's may change.
//!
//! There are two walls, and each must hold alone. In one run the API trusts the caller's choice of project, and only the database's row security
//! protects; in another, row security is off, and only the API's own checks protect. With both off, the same attack must find something.

mod attack;
pub(crate) mod loot;
pub(crate) mod requests;
pub(crate) mod settle;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use anyhow::Result;
use reqwest::Client;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use waybill_api::{Config, Limits};
use waybill_artifact::{Artifacts, Store};
use waybill_bus::local::Local;
use waybill_core::guard::{self, Guard};
use waybill_services::{Home, Private, Server};

use self::{
    attack::{Account, Attack},
    loot::{Loot, books},
    settle::settle,
};
use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    roles::log_in,
    storm::dice::Dice,
};

/// `attempts` is the number with both walls up; each wall alone gets a fifth as many.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub attempts: u64,
}

const DATABASE: &str = "waybill_walls";
const CLIENTS: usize = 8;

/// Which walls stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walls {
    Both,
    /// The API trusts the caller's choice of project.
    RowSecurity,
    /// The database lets everything through.
    Api,
    /// Shows that the attack would find something.
    None,
}

impl Walls {
    fn api_trusts(self) -> bool {
        matches!(self, Walls::RowSecurity | Walls::None)
    }

    fn rows_are_open(self) -> bool {
        matches!(self, Walls::Api | Walls::None)
    }

    fn name(self) -> &'static str {
        match self {
            Walls::Both => "both walls",
            Walls::RowSecurity => "row security alone",
            Walls::Api => "the API's checks alone",
            Walls::None => "no wall",
        }
    }
}

/// Makes the attempts and returns the figures.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    eprintln!("chaos walls: seed {}", options.seed);
    let private = Private::start().await?;
    let mut figures = Vec::new();
    for (walls, attempts) in [
        (Walls::Both, options.attempts),
        (Walls::RowSecurity, options.attempts / 5),
        (Walls::Api, options.attempts / 5),
        (Walls::None, options.attempts / 20),
    ] {
        if walls.api_trusts() && !cfg!(debug_assertions) {
            eprintln!("chaos walls: guards are taken away in a build with debug assertions only");
            continue;
        }
        figures.extend(attack(&private.server, walls, attempts, options.seed).await?);
    }
    Ok(figures)
}

async fn attack(server: &Server, walls: Walls, attempts: u64, seed: u64) -> Result<Vec<Figure>> {
    let (kernel, mut admin) = fresh_database(server, DATABASE).await?;
    let kernel = kernel.on(Arc::new(Local::default()));
    let folder = Home::find()?.path("walls-artifacts");
    let _ = std::fs::remove_dir_all(&folder);
    let artifacts = Artifacts::new(kernel.clone(), Store::in_folder(folder)?);
    let victim = settle(&kernel, &artifacts, "victim", true).await?;
    let neighbour = settle(&kernel, &artifacts, "neighbour", false).await?;
    let loot = Loot::of(&mut admin, victim.project_id).await?;
    if walls.rows_are_open() {
        let mut owner = PgConnection::connect(&server.owner_url(DATABASE)).await?;
        let off = "select format('alter table %s no force row level security; alter table %1$s disable row level security', c.oid::regclass)
                     from pg_class c where c.relrowsecurity";
        let off: Vec<String> = sqlx::query_scalar(off).fetch_all(&mut owner).await?;
        sqlx::raw_sql(AssertSqlSafe(off.join(";"))).execute(&mut owner).await?;
    }
    let before = books(&mut admin, victim.project_id).await?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let base = format!("http://{}/v1/projects", listener.local_addr()?);
    let (end, mut ended) = watch::channel(false);
    let limits = Limits { per_second: 1e9, ..Limits::default() };
    let config = Config { limits, artifacts: Some(artifacts), ..Config::default() };
    guard::take_away(walls.api_trusts().then_some(Guard::Project));
    let until = async move {
        let _ = ended.wait_for(|ended| *ended).await;
    };
    let serving = tokio::spawn(waybill_api::serve(listener, kernel.clone(), config, until, Duration::from_secs(2)));

    let http = Client::builder().no_proxy().build()?;
    let mut cookies = Vec::new();
    for (_, key) in &neighbour.keys {
        cookies.push(log_in(&http, &base, key).await?);
    }
    let shared = Arc::new(Attack {
        http,
        base,
        loot,
        victim,
        neighbour,
        cookies,
        walls,
        n_left: AtomicU64::new(attempts),
        bar: progress(walls.name(), attempts),
    });
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let (attack, dice) = (shared.clone(), Dice::new(seed.rotate_left(n as u32) ^ n as u64));
        clients.spawn(async move { attack.go_on(dice).await });
    }
    let mut account = Account::default();
    while let Some(done) = clients.join_next().await {
        account.add(done??);
    }
    shared.bar.finish_and_clear();
    let after = books(&mut admin, shared.victim.project_id).await?;
    let changed = before.iter().filter(|(table, rows)| after.get(*table) != Some(rows)).count();
    for (table, rows) in before.iter().filter(|(table, rows)| walls != Walls::None && after.get(*table) != Some(*rows))
    {
        eprintln!("{}: {table} of the victim: {rows:?} before, {:?} after", walls.name(), after.get(table));
    }
    let _ = end.send(true);
    serving.await??;
    let figure =
        |what: &str, value: u64, bar| Figure::new(format!("{}: {what}", walls.name()), value as f64, "answers", bar);
    if walls == Walls::None {
        let found = figure("answers that hold something of the victim's", account.leaks, Bar::AtLeast(1.0));
        return Ok(vec![found, figure("tables of the victim that have changed", changed as u64, Bar::AtLeast(1.0))]);
    }
    let mut figures = vec![
        figure("attempts", account.attempts, Bar::AtLeast(attempts as f64)),
        figure("answers that hold something of the victim's", account.leaks, Bar::AtMost(0.0)),
        figure("tables of the victim that have changed", changed as u64, Bar::AtMost(0.0)),
    ];
    // An API that trusts every caller answers with a server error when the database refuses a write.
    if !walls.api_trusts() {
        figures.push(figure("answers that differ between foreign and missing", account.differences, Bar::AtMost(0.0)));
        figures.push(figure("answers that are a fault of the server", account.faults, Bar::AtMost(0.0)));
    }
    Ok(figures)
}

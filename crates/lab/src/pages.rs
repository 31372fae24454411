//! What the tests of the console look at with a browser: a tree of many turns, and events at any rate.
//!
//! Prints one line of JSON: where the console is, the project and the root of the tree. A line `500 60` on standard input writes 500 events per second
//! for 60 seconds, and is answered with how many there were.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use sqlx::PgConnection;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    sync::oneshot,
    time::interval,
};
use waybill_api::{Access, Config};
use waybill_core::id::ProjectId;
use waybill_services::Private;

use crate::bench::{fresh_database, lists};

const DATABASE: &str = "waybill_pages";
const PROJECT: &str = "large";
/// How often events are written.
const TICK: Duration = Duration::from_millis(50);

pub async fn serve(turns: i32) -> Result<()> {
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    lists::prepare(&mut admin).await?;
    let (project_id, _) = lists::found(&kernel, PROJECT).await?;
    lists::load(&mut admin, project_id, turns).await?;
    let root = lists::tree(&mut admin, project_id).await?;
    sqlx::raw_sql("vacuum analyze").execute(&mut admin).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (end, ended) = oneshot::channel::<()>();
    let ended = async { ended.await.unwrap_or_default() };
    let config = Config { access: Access::Loopback, ..Config::default() };
    let serving = tokio::spawn(waybill_api::serve(listener, kernel, config, ended, Duration::from_secs(2)));
    println!("{}", json!({ "url": url, "project": PROJECT, "root": root }));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (rate, seconds) = line.split_once(' ').context("write a rate and seconds: 500 60")?;
        println!("{}", events(&mut admin, project_id, rate.parse()?, seconds.parse()?).await?);
    }
    let _ = end.send(());
    serving.await??;
    Ok(())
}

/// Writes state events of turns that are open, and returns how many.
async fn events(admin: &mut PgConnection, project_id: ProjectId, rate: f64, seconds: f64) -> Result<u64> {
    let mut ticks = interval(TICK);
    let (mut due, mut written) = (0.0, 0);
    for _ in 0..(seconds / TICK.as_secs_f64()) as u64 {
        ticks.tick().await;
        due += rate * TICK.as_secs_f64();
        let n = due as i64;
        due -= n as f64;
        let done = sqlx::query(
            // The transaction has its id before it draws the numbers of its events, as everywhere.
            "with begun as materialized (select pg_current_xact_id())
             insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, turn_epoch)
             select t.project_id, t.agent_turn_id, 'state', gen_random_uuid(), t.agent_id,
                    (array['dispatched', 'running', 'suspended'])[1 + (random() * 2.9)::integer % 3]::state.event_status, 1
               from begun, state.turns t
              where t.project_id = $1 and t.status = 'open'
              order by random()
              limit $2",
        );
        written += done.bind(project_id).bind(n).execute(&mut *admin).await?.rows_affected();
    }
    Ok(written)
}

//! Readiness of `waybill serve`: while the database is away, and when the process is to end.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command},
    time::Duration,
};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use waybill_services::free_port;
use waybill_testkit::fresh_db;

use crate::cli::{json, text, waybill};

/// A process that is killed if a test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a request over a connection of its own, and reads until the server closes it. `None` means that the connection failed.
fn get(version: &str, port: u16, path: &str, key: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = format!("GET {path} {version}\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer))
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}");
}

/// UI-12
#[tokio::test]
async fn readiness_outlives_the_database_and_ends_before_the_listener() {
    let t = fresh_db().await;
    let service = t.server.service_url(&t.name);
    let urls = [("WAYBILL_DATABASE_URL", service.as_str()), ("WAYBILL_PROJECT", "acme")];
    assert!(waybill(&["project", "create", "acme"], &urls).status.success());
    let made = waybill(&["keys", "create", "ci", "--scope", "operator", "--days", "1", "--json"], &urls);
    let key = json(&made)["key"].as_str().unwrap().to_owned();
    let (api, metrics) = (free_port().unwrap(), free_port().unwrap());
    let child = Command::new(env!("CARGO_BIN_EXE_waybill"))
        .args(["serve", "--listen", &format!("127.0.0.1:{api}"), "--metrics-listen", &format!("127.0.0.1:{metrics}")])
        .args(["--drain", "3"])
        .envs(urls)
        .env_remove("WAYBILL_NATS_URL")
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let status = |port, path: &str| get("HTTP/1.0", port, path, &key).map(|(status, _)| status);
    let turns = "/v1/projects/acme/turns";
    until("it does not come up", || status(metrics, "/ready") == Some(200)).await;
    assert_eq!((status(api, "/ready"), status(api, turns)), (Some(200), Some(200)));
    let health = || waybill(&["health"], &[("WAYBILL_METRICS_LISTEN", &format!("0.0.0.0:{metrics}"))]);
    assert!(health().status.success(), "{:?}", health());

    // The database is away: the API answers so, and stays where clients find it.
    let mut admin = PgConnection::connect(&t.server.admin_url("postgres")).await.unwrap();
    let open = async |admin: &mut PgConnection, whether: bool| {
        let sql = format!("alter database {:?} allow_connections {whether}", t.name);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(admin).await.unwrap();
    };
    open(&mut admin, false).await;
    let ended = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1";
    sqlx::query(ended).bind(&t.name).execute(&mut admin).await.unwrap();
    // The first request may use a connection that was just ended, so that its outcome is unknown: 500 says so.
    let is_told = |answer: Option<(u16, String)>| {
        answer.is_some_and(|(status, text)| status == 503 && text.contains("retry-after: "))
    };
    until("it does not answer 503", || is_told(get("HTTP/1.0", api, turns, &key))).await;
    assert_eq!((status(api, "/ready"), status(metrics, "/ready")), (Some(200), Some(200)));
    open(&mut admin, true).await;
    until("it does not find the database again", || status(api, turns) == Some(200)).await;

    // It is to end: first it says so, and still answers; then it closes.
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    until("it does not say that it ends", || status(metrics, "/ready") == Some(503)).await;
    assert_eq!(status(api, "/ready"), Some(503));
    let (answered, answer) = get("HTTP/1.1", api, turns, &key).expect("a new connection is accepted");
    assert!(answered == 200 && answer.contains("connection: close"), "{answer}");
    assert!(text(&health().stderr).contains("is not ready: shutting down"), "{:?}", health());
    assert!(child.0.wait().unwrap().success());
    assert_eq!(status(api, "/ready"), None);
    assert!(text(&health().stderr).contains("no process of Waybill answers at 127.0.0.1"), "{:?}", health());
}

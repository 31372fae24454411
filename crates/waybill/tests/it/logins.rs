//! `waybill migrate` sets the passwords of the three logins.

use std::fs;

use waybill_services::postgres::Private;

use crate::cli::{json, text, waybill};

/// SE-4: the server is sent a verifier, and its log has no password.
#[tokio::test]
async fn migrate_sets_passwords_that_the_server_never_sees() {
    let private = Private::to_be_killed().await.unwrap();
    let (server, log) = (&private.server, private.log().unwrap());
    // The logins need a password; the administrator and the owner do not.
    let rules = "host all waybill_service,waybill_orchestrator,waybill_worker 127.0.0.1/32 scram-sha-256\n\
                 host all all 127.0.0.1/32 trust\n";
    fs::write(log.with_file_name("data").join("pg_hba.conf"), rules).unwrap();
    let mut admin = server.admin().await.unwrap();
    let logged =
        "alter role waybill_owner set log_statement = 'all'; alter role waybill_owner set log_min_messages = 'info'";
    sqlx::raw_sql(logged).execute(&mut admin).await.unwrap();
    sqlx::query("select pg_reload_conf()").execute(&mut admin).await.unwrap();
    server.create_database("app").await.unwrap();
    let owner = server.owner_url("app");

    let first = waybill(&["migrate"], &[("WAYBILL_OWNER_URL", &owner)]);
    let advice = "set the passwords of waybill_service, waybill_orchestrator, waybill_worker";
    assert!(first.status.success() && text(&first.stdout).contains(advice), "{first:?}");
    let given = [
        ("WAYBILL_OWNER_URL", owner.as_str()),
        ("WAYBILL_SERVICE_PASSWORD", "it's a canary$1"),
        ("WAYBILL_ORCHESTRATOR_PASSWORD", "canary-2"),
        ("WAYBILL_WORKER_PASSWORD", "canary-3"),
    ];
    // Again with the same: a repeated hook changes nothing that a process would notice.
    for _ in 0..2 {
        let set = waybill(&["migrate", "--json"], &given);
        let logins = serde_json::json!(["waybill_service", "waybill_orchestrator", "waybill_worker"]);
        assert_eq!(json(&set)["passwords"], logins, "{set:?}");
    }
    for (login, password, opens) in [
        ("waybill_service", "it%27s%20a%20canary%241", true),
        ("waybill_orchestrator", "canary-2", true),
        ("waybill_worker", "canary-3", true),
        ("waybill_worker", "canary-2", false),
    ] {
        let url = format!("postgres://{login}:{password}@127.0.0.1:{}/app", server.port());
        let checked = waybill(&["doctor"], &[("WAYBILL_DATABASE_URL", &url)]);
        assert_eq!(checked.status.success(), opens, "{login}: {checked:?}");
    }
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("alter role waybill_worker password 'SCRAM-SHA-256$4096:"), "{said}");
    assert!(!said.contains("canary"), "{said}");

    let empty = waybill(&["migrate"], &[("WAYBILL_OWNER_URL", &owner), ("WAYBILL_WORKER_PASSWORD", "")]);
    assert!(!empty.status.success() && text(&empty.stderr).contains("waybill_worker"), "{empty:?}");
}

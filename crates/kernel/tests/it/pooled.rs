//! Poolers: which ones a start accepts, what needs a session, and that no transaction leaves anything behind for the next.

use std::{fs, path::Path};

use secrecy::SecretString;
use sqlx::{Connection, PgConnection};
use waybill_kernel::{
    migrate,
    work::{Config, Kernel},
};
use waybill_testkit::{
    fresh_db,
    pooler::{PgBouncer, Pooling},
};

use crate::start::refusal;

/// The poolers of these tests let every client in, which only our own server allows.
fn is_our_server() -> bool {
    std::env::var_os("DATABASE_URL").is_none()
}

const SERVICE: Pooling<'static> = Pooling { mode: "transaction", user: "waybill_service", size: 4, tracks: false };

/// Such a pooler answers one client with another's text, without an error.
#[tokio::test]
async fn a_pooler_that_mixes_answers_is_refused() {
    if !is_our_server() {
        return;
    }
    let t = fresh_db().await;
    let mixing = PgBouncer::start(&t, &SERVICE).await;
    let refused = refusal(mixing.url.clone()).await;
    assert!(
        refused.contains("pooler: ") && refused.contains("test queries failed or got the answer to another query"),
        "{refused}"
    );
    let faithful = PgBouncer::start(&t, &Pooling { mode: "session", size: 8, ..SERVICE }).await;
    Kernel::connect(&Config::new(faithful.url.clone())).await.unwrap();
}

/// The owner's commands need a session: locks and settings that outlast a transaction.
#[tokio::test]
async fn the_owner_is_refused_behind_a_pooler_of_transactions() {
    if !is_our_server() {
        return;
    }
    let t = fresh_db().await;
    let user = t.server.owner().to_owned();
    for size in [1, 4] {
        let pooling = Pooling { user: &user, size, ..SERVICE };
        let pooler = PgBouncer::start(&t, &pooling).await;
        // Others are at work there too.
        let mut other = PgConnection::connect(&pooler.url).await.unwrap();
        sqlx::raw_sql("select 1").execute(&mut other).await.unwrap();
        let refused = migrate::connect_owner(&SecretString::from(pooler.url.clone())).await.unwrap_err();
        assert!(matches!(refused, migrate::Error::Pooled { .. }), "{size}: {refused:?}");
        assert!(refused.to_string().contains("WAYBILL_OWNER_URL"), "{refused}");
    }
    let pooler = PgBouncer::start(&t, &Pooling { mode: "session", user: &user, ..SERVICE }).await;
    migrate::connect_owner(&SecretString::from(pooler.url.clone())).await.unwrap();
}

/// SE-2: what a statement sets or locks ends with its transaction, since the next one on the connection may be another project's. Only the owner,
/// who has a session, may do otherwise.
#[test]
fn nothing_outlasts_its_transaction() {
    let mut folders = vec![
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations"),
    ];
    let mut n_settings = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let (text, name) = (fs::read_to_string(&path).unwrap(), entry.file_name().into_string().unwrap());
            for setting in text.split("set_config(").skip(1) {
                let ends = |word: &str| setting.find(word).unwrap_or(usize::MAX);
                assert!(ends("true)") < ends("false)"), "{name}: set_config({setting:.80}");
                n_settings += 1;
            }
            for statement in text.split("raw_sql(\"set ").skip(1) {
                let is_local = ["local ", "transaction "].iter().any(|word| statement.starts_with(word));
                assert!(is_local || name == "retention.rs", "{name}: set {statement:.80}");
            }
            for session in ["pg_advisory_lock(", "pg_try_advisory_lock(", "PgListener", "create temp"] {
                assert!(!text.contains(session) || name == "project.rs", "{name}: {session}");
            }
        }
    }
    assert!(n_settings >= 5, "the scan finds them: {n_settings}");
}

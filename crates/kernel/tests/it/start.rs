//! What a start refuses: a role too powerful, a schema from elsewhere.

use secrecy::SecretString;
use waybill_kernel::{
    check, migrate,
    work::{Config, Error, Kernel},
};
use waybill_testkit::{empty_db, fresh_db};

pub(crate) async fn refusal(url: String) -> String {
    match Kernel::connect(&Config::new(url)).await {
        Ok(_) => panic!("a start was not refused"),
        Err(Error::Unfit(unfit)) => unfit.to_string(),
        Err(error) => panic!("refused for another reason: {error:?}"),
    }
}

#[tokio::test]
async fn a_migrated_database_may_be_served_from() {
    let t = fresh_db().await;
    let kernel = Kernel::connect(&Config::new(t.server.service_url(&t.name))).await.unwrap();
    assert!(check::run(&kernel).await.iter().all(|check| check.ok && check.advice.is_empty()));
}

#[tokio::test]
async fn migrating_twice_changes_nothing_and_needs_no_superuser() {
    let (server, name) = empty_db().await;
    let mut owner = migrate::connect_owner(&SecretString::from(server.owner_url(&name))).await.unwrap();
    let superuser: bool = sqlx::query_scalar("select rolsuper from pg_roles where rolname = current_user")
        .fetch_one(&mut owner)
        .await
        .unwrap();
    assert!(!superuser || std::env::var_os("DATABASE_URL").is_some());
    let mut announced = Vec::new();
    let done = migrate::run(&mut owner, |applied| announced.push(applied.clone())).await.unwrap();
    assert_eq!(done, announced);
    assert_eq!(done.last().unwrap().version, migrate::newest());
    assert_eq!(migrate::run(&mut owner, |_| ()).await.unwrap(), []);
}

#[tokio::test]
async fn a_start_refuses_what_is_not_safe_to_serve_from() {
    let (server, empty) = empty_db().await;
    assert!(
        refusal(server.service_url(&empty)).await.contains(
            "migrations: the database was never migrated, or only by an older version. Run `waybill migrate`"
        )
    );

    let t = fresh_db().await;
    assert!(refusal(t.server.owner_url(&t.name)).await.contains("role: "), "the owner must not serve");
    assert!(refusal(t.server.admin_url(&t.name)).await.contains("is a superuser"));

    let broken = |sql: &'static str| async move {
        let t = fresh_db().await;
        sqlx::raw_sql(sql).execute(&mut t.admin().await).await.unwrap();
        refusal(t.server.service_url(&t.name)).await
    };
    for opened in [
        "alter table cardbox.boxes no force row level security",
        "create policy open on cardbox.cards using (true)",
        "grant update (content) on cardbox.cards to waybill_service",
        "alter table cardbox.cards disable trigger guard",
        "grant select on cardbox.cards to waybill_scheduler",
        "grant execute on function cardbox.erase to waybill_service",
        "create function cardbox.peek() returns json language sql security definer as 'select content from cardbox.cards'",
    ] {
        let refused = broken(opened).await;
        assert!(refused.contains("walls: ") && refused.contains("changed by hand"), "{opened}: {refused}");
    }
    // Rule 1 of docs/protocol.md holds at one level of isolation only.
    let t = fresh_db().await;
    let set = format!(
        "alter role waybill_service in database {} set default_transaction_isolation = 'repeatable read'",
        t.name
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut t.admin().await).await.unwrap();
    let refused = refusal(t.server.service_url(&t.name)).await;
    assert!(refused.contains("transactions: repeatable read, read write"), "{refused}");
    // What is said of the database, or of all of them, is overruled.
    let t = fresh_db().await;
    let set = format!("alter database {} set default_transaction_isolation = 'serializable'", t.name);
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut t.admin().await).await.unwrap();
    Kernel::connect(&Config::new(t.server.service_url(&t.name))).await.unwrap();

    let refused = broken(
        "create function scheduler.peek() returns json language sql security definer as 'select content from cardbox.cards';
         alter function scheduler.peek owner to waybill_scheduler",
    )
    .await;
    assert!(refused.contains("scheduler.peek"), "{refused}");
    let refused = broken("update waybill.schema set version = 1, oldest = 1").await;
    assert!(refused.contains("at version 1, but this program needs"), "{refused}");
}

/// SE-4: a password is in no error and no debug output.
#[tokio::test]
async fn a_password_is_never_printed() {
    let secret = "hunter2-canary";
    for url in [
        format!("postgres://waybill_service:{secret}@127.0.0.1:1/waybill"),
        format!("postgres://waybill_service:{secret}@127.0.0.1:port/waybill"),
        format!("nonsense {secret}"),
    ] {
        let config = Config::new(url.clone());
        let error = Kernel::connect(&config).await.unwrap_err();
        let owner = migrate::connect_owner(&SecretString::from(url)).await.unwrap_err();
        let printed = format!("{config:?} {error} {error:?} {owner} {owner:?}");
        assert!(!printed.contains(secret), "{printed}");
    }
}

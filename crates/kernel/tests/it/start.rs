//! What a start refuses: a role too powerful, a schema from elsewhere. What the owner and a backup need, and no more.

use std::{
    fs,
    process::{Command, Output},
};

use secrecy::SecretString;
use sqlx::Connection;
use waybill_core::error::causes;
use waybill_kernel::{
    check, migrate,
    work::{Config, Error, Kernel},
};
use waybill_services::postgres::{self, Private};
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

/// PG-3: where the owner may not set up the roles, `migrate` lists the statements for an administrator, and works after them. Two installations in
/// one cluster share the roles.
#[tokio::test]
async fn an_administrator_can_set_up_the_roles_that_installations_share() {
    let private = Private::to_be_killed().await.unwrap();
    let mut admin = private.server.admin().await.unwrap();
    let number = "select current_setting('server_version_num')::int";
    let number: i32 = sqlx::query_scalar(number).fetch_one(&mut admin).await.unwrap();
    // Before PostgreSQL 16, a role that may create roles may also give away those that others made.
    for (owner, rights, is_refused) in [("plain", "login", true), ("builder", "login createrole", number >= 160_000)] {
        let made = [format!("create role {owner} {rights}"), format!("create database of_{owner} owner {owner}")];
        for sql in made {
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
        }
        let url = format!("postgres://{owner}@127.0.0.1:{}/of_{owner}", private.server.port());
        let mut connection = migrate::connect_owner(&SecretString::from(url)).await.unwrap();
        let first = migrate::run(&mut connection, |_| ()).await;
        assert_eq!(first.is_err(), is_refused, "{owner}: {first:?}");
        if let Err(error) = first {
            let said = causes(&error);
            assert!(said.contains("Run these statements as a superuser"), "{said}");
            let statements = said.rsplit("migrate again:\n").next().unwrap().to_owned();
            sqlx::raw_sql(sqlx::AssertSqlSafe(statements)).execute(&mut admin).await.unwrap();
            migrate::run(&mut connection, |_| ()).await.unwrap();
        }
        let kernel = Kernel::connect(&Config::new(private.server.service_url(&format!("of_{owner}")))).await.unwrap();
        assert!(check::run(&kernel).await.iter().all(|check| check.ok));
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(postgres::binaries().unwrap().join(program)).args(arguments).output().unwrap()
}

/// PG-4: a role that reads everything and is exempt from row security takes a whole dump, and the owner restores it. Neither is a superuser.
#[tokio::test]
async fn a_backup_and_its_restore_need_no_superuser() {
    let t = fresh_db().await;
    let backup = format!("backup_{}", t.name);
    let slug = "insert into resource.projects (project_id, slug) values (gen_random_uuid(), 'kept')";
    let made = format!("create role {backup}; grant pg_read_all_data to {backup}; {slug}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(made)).execute(&mut t.admin().await).await.unwrap();
    let file = std::env::temp_dir().join(format!("{backup}.dump"));
    let (file, url) = (file.to_str().unwrap(), t.server.admin_url(&t.name));
    let role = format!("--role={backup}");
    let dump = || run("pg_dump", &["-Fc", "-f", file, &role, "--dbname", &url]);

    let refused = String::from_utf8(dump().stderr).unwrap();
    assert!(refused.contains("row-level security"), "rather no dump than a part of one: {refused}");
    let exempt = format!("alter role {backup} bypassrls");
    sqlx::raw_sql(sqlx::AssertSqlSafe(exempt)).execute(&mut t.admin().await).await.unwrap();
    let dumped = dump();
    assert!(dumped.status.success(), "{dumped:?}");

    // The schemas first, with their grants: only then can functions be given to the roles that own them.
    let (server, copy) = empty_db().await;
    let listed = String::from_utf8(run("pg_restore", &["-l", file]).stdout).unwrap();
    let is_schema = |line: &&str| line.contains(" SCHEMA ");
    let first: Vec<&str> = listed.lines().filter(is_schema).collect();
    let rest: Vec<&str> = listed.lines().filter(|line| !is_schema(line)).collect();
    for lines in [first, rest] {
        let list = format!("{file}.list");
        fs::write(&list, lines.join("\n")).unwrap();
        let restored = run("pg_restore", &["--exit-on-error", "-L", &list, "-d", &server.owner_url(&copy), file]);
        assert!(restored.status.success(), "{restored:?}");
        fs::remove_file(list).unwrap();
    }
    fs::remove_file(file).unwrap();
    let kernel = Kernel::connect(&Config::new(server.service_url(&copy))).await.unwrap();
    assert!(check::run(&kernel).await.iter().all(|check| check.ok));
    let mut admin = sqlx::PgConnection::connect(&server.admin_url(&copy)).await.unwrap();
    let kept: i64 = sqlx::query_scalar("select count(*) from resource.projects where slug = 'kept'")
        .fetch_one(&mut admin)
        .await
        .unwrap();
    assert_eq!(kept, 1);
    let gone = format!("drop owned by {backup}; drop role {backup}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(gone)).execute(&mut admin).await.unwrap();
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

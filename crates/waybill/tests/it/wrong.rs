//! Wrong ways to start: each error says what is wrong and what to do.

use std::{
    fs::{self, File},
    net::TcpListener,
};

use waybill_services::postgres::Private;

use crate::{cli::text, dev::Folder};

/// UI-13
#[tokio::test]
async fn a_wrong_start_says_what_is_wrong_and_what_to_do() {
    let folder = Folder::new("wrong");
    let private = Private::in_folder(&folder.0.join("server")).await.unwrap();
    let server = &private.server;
    let rules = "host all locked 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
    fs::write(folder.0.join("server/data/pg_hba.conf"), rules).unwrap();
    server.create_database("app").await.unwrap();
    server.create_database("empty").await.unwrap();
    let mut admin = server.admin().await.unwrap();
    let made = "create role locked login password 'right'; create role stranger login; select pg_reload_conf()";
    sqlx::raw_sql(made).execute(&mut admin).await.unwrap();
    let on = |url: &str, command: &str| {
        format!("WAYBILL_DATABASE_URL='{url}' timeout 30 ./target/release/waybill {command}")
    };
    let app = server.service_url("app");
    let place = server.place("app");
    let migrate = format!("WAYBILL_OWNER_URL='{}' ./target/release/waybill migrate", server.owner_url("app"));
    let team = "profile: {name: editor, worker_target: llm, system_prompt_template: x, llm_config: {provider: demo, model: demo}}";
    fs::write(folder.0.join("team.yaml"), team).unwrap();
    fs::write(folder.0.join("providers.yaml"), "provider:\n  name: mine\n  adapter: openai_chat\n  base_ulr: x\n")
        .unwrap();
    for line in [migrate, on(&app, "project create acme"), on(&app, "apply -f team.yaml --project acme")] {
        let done = folder.run(&line);
        assert!(done.status.success(), "{done:?}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    fs::create_dir(folder.0.join("busy")).unwrap();
    let lock = File::create(folder.0.join("busy/dev.lock")).unwrap();
    lock.lock().unwrap();

    let serve = "serve --listen 127.0.0.1:0";
    let table: Vec<(String, Vec<&str>)> = vec![
        (on("", "dev --data /proc/waybill"), vec!["cannot use the data folder /proc/waybill", "`--data FOLDER`"]),
        (on("", "dev --data busy"), vec!["another `waybill dev` uses busy", "`--data FOLDER`"]),
        (
            on("", &format!("dev --data other --listen {taken}")),
            vec!["another program uses this port", "Omit `--listen`"],
        ),
        (on(&app, &format!("serve --listen {taken}")), vec!["another program may use the port", "--listen"]),
        (
            on("postgres://waybill_service@127.0.0.1:1/app", "worker"),
            vec!["127.0.0.1:1/app", "no server listens there", "correct the host and the port"],
        ),
        (
            on(&app.replace("waybill_service@", "locked:wrong@"), serve),
            vec![place.as_str(), "the password is wrong", "Correct it in the URL"],
        ),
        (
            on(&app.replace("waybill_service@", "nosuch@"), serve),
            vec!["does not accept this login", "`waybill migrate`"],
        ),
        (on(&server.service_url("nosuch"), serve), vec!["the server has no such database", "`createdb`"]),
        (on(&server.service_url("empty"), serve), vec!["was never migrated", "Run `waybill migrate`"]),
        (
            on(&app.replace("waybill_service@", "stranger@"), serve),
            vec!["logged in as stranger", "Log in as waybill_service"],
        ),
        (on(&server.owner_url("app"), serve), vec!["the URL of the owner is for `waybill migrate` only"]),
        (on("nonsense", serve), vec!["postgres://USER:PASSWORD@HOST:PORT/DATABASE"]),
        (
            on(&app, "worker --providers providers.yaml"),
            vec!["providers.yaml: unknown field `base_ulr`", "base_url", "line 4"],
        ),
        (on(&app, "worker --target pmo"), vec!["belongs to `waybill orchestrator`", "--target"]),
        (on(&app, "worker --target 'no such'"), vec!["invalid value 'no such' for '--target"]),
        (on(&app, "run editr x --project acme"), vec!["there is no profile `editr`", "Did you mean `editor`?"]),
        (on(&app, "run editor x --project amce"), vec!["there is no project \"amce\"", "`waybill project list`"]),
        ("./target/release/waybill turn list".to_owned(), vec!["no settings were found", "Run `waybill dev` here"]),
    ];
    for (line, parts) in &table {
        let output = folder.run(line);
        let said = text(&output.stderr);
        assert!(!output.status.success() && output.status.code() != Some(124), "{line}: {output:?}");
        for part in parts {
            assert!(said.contains(part), "{line}: {part}: {said}");
        }
        for part in ["panicked", "walls:", "crossing projects:"] {
            assert!(!said.contains(part), "{line}: {part}: {said}");
        }
        assert!(said.lines().count() <= 8, "{line} says too much: {said}");
    }
}

//! The commands as a person or a script calls them.

use std::process::{Command, Output};

use serde_json::Value;
use waybill_core::{card::Draft, id::CardId};
use waybill_kernel::card;
use waybill_testkit::{TestDb, empty_db, fresh_db};

fn waybill(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    command.args(arguments).env_remove("WAYBILL_DATABASE_URL").env_remove("WAYBILL_OWNER_URL");
    command.envs(environment.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn every_command_explains_itself() {
    let commands: [&[&str]; 10] = [
        &[],
        &["migrate"],
        &["doctor"],
        &["project"],
        &["project", "create"],
        &["project", "list"],
        &["card", "show"],
        &["card", "erase"],
        &["bench", "box"],
        &["completions"],
    ];
    for command in commands {
        let output = waybill(&[command, &["--help"]].concat(), &[]);
        assert!(output.status.success() && text(&output.stdout).contains("Usage:"), "{command:?}: {output:?}");
    }
    assert!(text(&waybill(&["completions", "bash"], &[]).stdout).contains("_waybill"));
}

#[test]
fn a_missing_address_is_named() {
    let output = waybill(&["doctor"], &[]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("--database-url"), "{output:?}");
}

#[tokio::test]
async fn migrate_and_doctor_bring_up_an_empty_database() {
    let (server, name) = empty_db().await;
    let (owner, service) = (server.owner_url(&name), server.service_url(&name));

    let before = waybill(&["doctor", "--json"], &[("WAYBILL_DATABASE_URL", &service)]);
    assert_eq!(before.status.code(), Some(1), "{before:?}");

    let first = waybill(&["migrate"], &[("WAYBILL_OWNER_URL", &owner)]);
    assert!(first.status.success() && text(&first.stdout).contains("applying 0002 cardbox"), "{first:?}");
    let second = waybill(&["migrate", "--json"], &[("WAYBILL_OWNER_URL", &owner)]);
    assert_eq!(json(&second)["applied"], serde_json::json!([]));

    let after = waybill(&["doctor", "--json"], &[("WAYBILL_DATABASE_URL", &service)]);
    assert!(after.status.success(), "{after:?}");
    let names: Vec<String> =
        json(&after).as_array().unwrap().iter().map(|c| c["check"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        names,
        ["database reachable", "server version", "pooler", "role", "migrations", "walls", "crossing projects"]
    );

    let as_owner = waybill(&["doctor"], &[("WAYBILL_DATABASE_URL", &owner)]);
    assert_eq!(as_owner.status.code(), Some(1));
    assert!(text(&as_owner.stdout).contains("Log in as waybill_service"), "{as_owner:?}");
}

/// SE-4
#[test]
fn an_unreachable_database_is_reported_without_its_password() {
    let url = "postgres://waybill_service:hunter2-canary@127.0.0.1:1/waybill";
    for arguments in [&["doctor"][..], &["doctor", "--json"], &["project", "list"], &["migrate"]] {
        let output = waybill(arguments, &[("WAYBILL_DATABASE_URL", url), ("WAYBILL_OWNER_URL", url)]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(printed.contains("127.0.0.1:1/waybill"), "{printed}");
        assert!(!printed.contains("canary"), "{printed}");
    }
    let nonsense = waybill(&["project", "list"], &[("WAYBILL_DATABASE_URL", "hunter2-canary")]);
    assert!(!text(&nonsense.stderr).contains("canary"), "{nonsense:?}");
}

async fn a_card(t: &TestDb, project: &str, said: &str) -> CardId {
    let project_id = waybill_kernel::project::find(&t.kernel, project).await.unwrap();
    let sealed = Draft::instruction(said).seal().unwrap();
    let mut work = t.kernel.begin(project_id).await.unwrap();
    card::insert(&mut work, std::slice::from_ref(&sealed)).await.unwrap();
    work.commit().await.unwrap();
    sealed.card_id()
}

#[tokio::test]
async fn a_card_is_shown_erased_and_shown_as_a_tombstone() {
    let t = fresh_db().await;
    let (service, owner) = (t.server.service_url(&t.name), t.server.owner_url(&t.name));
    let urls = [("WAYBILL_DATABASE_URL", service.as_str()), ("WAYBILL_OWNER_URL", owner.as_str())];
    let made = waybill(&["project", "create", "acme", "--json"], &urls);
    assert_eq!(json(&made)[0]["slug"], "acme", "{made:?}");
    assert_eq!(json(&waybill(&["project", "list", "--json"], &urls)), json(&made));
    let taken = waybill(&["project", "create", "acme"], &urls);
    assert!(text(&taken.stderr).contains("there is already a project \"acme\""), "{taken:?}");

    let card_id = a_card(&t, "acme", "5 Elm Street").await.to_string();
    let shown = waybill(&["card", "show", &card_id, "--project", "acme"], &urls);
    assert_eq!(json(&shown)["content"], "5 Elm Street", "{shown:?}");

    let erase = ["card", "erase", &card_id, "--project", "acme", "--reason", "request 17", "--json"];
    let erased = waybill(&erase, &urls);
    assert_eq!(json(&erased)[0]["reason"], "request 17", "{erased:?}");
    let shown = waybill(&["card", "show", &card_id, "--project", "acme"], &urls);
    assert_eq!((&json(&shown)["state"], &json(&shown)["why"]), (&"gone".into(), &"erased".into()), "{shown:?}");

    let missing = waybill(&["card", "show", &CardId::new().to_string(), "--project", "acme"], &urls);
    assert!(text(&missing.stderr).contains("not found in this project"), "{missing:?}");
    let nowhere = waybill(&["card", "show", &card_id, "--project", "nobody"], &urls);
    assert!(text(&nowhere.stderr).contains("there is no project \"nobody\""), "{nowhere:?}");
}

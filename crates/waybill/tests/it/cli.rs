//! The commands, called as a person or a script calls them.

use std::{
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;
use waybill_context::{
    call::RenderConfig,
    framework::Framework,
    policy::{Audience, Policy},
    wire::{Adapter, Params},
};
use waybill_core::{
    card::{CardType, Content, Draft, Role},
    id::{AgentId, CardId, ProjectId, StepId},
    resource::{Order, Process},
    tokens::Tokens,
};
use waybill_kernel::{
    agent, card, lease,
    turn::{self, Claiming, DispatchRequest, Step},
};
use waybill_services::nats;
use waybill_testkit::{TestDb, empty_db, fresh_db};
use waybill_worker::{
    collect::Collector,
    gather::{Setting, gather},
    toolbox::Toolbox,
};

pub(crate) fn waybill(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waybill"));
    command
        .args(arguments)
        .env_remove("WAYBILL_DATABASE_URL")
        .env_remove("WAYBILL_OWNER_URL")
        .env_remove("WAYBILL_NATS_URL")
        .env_remove("WAYBILL_PROJECT");
    command.envs(environment.iter().copied()).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn there_is_help_and_there_are_completions() {
    let output = waybill(&["turn", "--help"], &[]);
    assert!(output.status.success() && text(&output.stdout).contains("Usage:"), "{output:?}");
    assert!(text(&waybill(&["completions", "bash"], &[]).stdout).contains("_waybill"));
}

#[test]
fn a_missing_address_is_named() {
    let output = waybill(&["doctor"], &[]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("--database-url") && said.contains("Run `waybill dev` here"), "{said}");
    // UI-14: `--json` holds for errors of usage too.
    for arguments in [&["doctor", "--json"][..], &["turn", "show", "nonsense", "--json"]] {
        let refused = waybill(arguments, &[]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let said: Value = serde_json::from_slice(&refused.stderr).unwrap();
        assert!(said["error"].is_string(), "{said}");
    }
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
        [
            "database reachable",
            "server version",
            "pooler",
            "transactions",
            "role",
            "migrations",
            "walls",
            "crossing projects",
            "statistics",
            "role memberships",
            "history partitions",
            "quarantine"
        ]
    );

    let as_owner = waybill(&["doctor"], &[("WAYBILL_DATABASE_URL", &owner)]);
    assert_eq!(as_owner.status.code(), Some(1));
    assert!(text(&as_owner.stdout).contains("Log in as waybill_service"), "{as_owner:?}");

    let worker = service.replace("waybill_service", "waybill_worker");
    let as_worker = waybill(&["doctor"], &[("WAYBILL_DATABASE_URL", &worker)]);
    assert!(as_worker.status.success(), "{as_worker:?}");
    assert!(text(&as_worker.stdout).contains("waybill_worker owns nothing"), "{as_worker:?}");
    let serving = waybill(&["serve", "--listen", "127.0.0.1:0"], &[("WAYBILL_DATABASE_URL", &worker)]);
    assert_eq!(serving.status.code(), Some(1), "{serving:?}");
    assert!(
        text(&serving.stderr)
            .contains("must connect to the database as waybill_service, but connects as waybill_worker"),
        "{serving:?}"
    );
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

    // One that expires, and one that is deleted: each end is set once, and on record.
    let [short, deleted] = [a_card(&t, "acme", "one").await.to_string(), a_card(&t, "acme", "two").await.to_string()];
    let expire = |ttl: &str| waybill(&["card", "expire", &short, "--ttl", ttl, "--project", "acme", "--json"], &urls);
    let set = expire("3600");
    assert_eq!(json(&set)[0]["ttl_seconds"], 3600, "{set:?}");
    assert!(text(&expire("7200").stderr).contains("already have an expiry time"));
    let gone = waybill(&["card", "delete", &deleted, "--reason", "wrong", "--project", "acme", "--json"], &urls);
    assert_eq!((&json(&gone)[0]["why"], &json(&gone)[0]["reason"]), (&"deleted".into(), &"wrong".into()), "{gone:?}");
    let audit = json(&waybill(&["audit", "--project", "acme", "--json"], &urls));
    let actions: Vec<&str> = audit.as_array().unwrap().iter().filter_map(|entry| entry["action"].as_str()).collect();
    assert!(actions.contains(&"card.delete") && actions.contains(&"card.expire"), "{actions:?}");

    let missing = waybill(&["card", "show", &CardId::new().to_string(), "--project", "acme"], &urls);
    assert!(text(&missing.stderr).contains("not found in this project"), "{missing:?}");
    let nowhere = waybill(&["card", "show", &card_id, "--project", "nobody"], &urls);
    assert!(text(&nowhere.stderr).contains("there is no project \"nobody\""), "{nowhere:?}");
}

/// RT-1, RT-2: set, planned, held and undone, on record.
#[tokio::test]
async fn what_a_project_keeps_is_set_planned_and_held() {
    let t = fresh_db().await;
    let service = t.server.service_url(&t.name);
    let urls = [("WAYBILL_DATABASE_URL", service.as_str())];
    waybill(&["project", "create", "acme"], &urls);
    let retention = |more: &[&str]| waybill(&[&["project", "retention", "acme"], more].concat(), &urls);
    let shown = retention(&["--json"]);
    assert_eq!(json(&shown)["content_months"], serde_json::Value::Null, "{shown:?}");
    let set = retention(&["--content-months", "6", "--record-months", "36", "--json"]);
    assert_eq!(
        (&json(&set)["next_content_months"], &json(&set)["next_record_months"]),
        (&6.into(), &36.into()),
        "{set:?}"
    );
    assert!(text(&retention(&[]).stdout).contains("36 months from "));
    let plan = retention(&["--dry-run", "--json"]);
    assert_eq!((&json(&plan)["contents"], &json(&plan)["is_all"]), (&0.into(), &true.into()), "{plan:?}");
    assert!(json(&plan)["content_before"].is_string(), "{plan:?}");
    let undone = retention(&["--undo", "--json"]);
    assert_eq!(json(&undone)["next_at"], serde_json::Value::Null, "{undone:?}");
    let held = retention(&["--hold", "case 17"]);
    assert!(text(&held.stdout).contains("so nothing is removed: case 17"), "{held:?}");
    assert_eq!(json(&retention(&["--lift", "settled", "--json"]))["hold_reason"], serde_json::Value::Null);
    for wrong in [&["--content-months", "0"][..], &["--record-months", "6"], &["--undo", "--hold", "x"]] {
        assert!(!retention(wrong).status.success(), "{wrong:?}");
    }
    let audit = json(&waybill(&["audit", "--project", "acme", "--json"], &urls));
    let actions: Vec<&str> = audit.as_array().unwrap().iter().filter_map(|entry| entry["action"].as_str()).collect();
    assert_eq!(actions, ["retention.lift", "retention.hold", "retention.set", "retention.set"]);
}

/// PM-1: manifests, and the errors of wrong ones, which name file, line, field, and what to do.
#[tokio::test]
async fn manifests_are_applied_and_bad_ones_are_named() {
    let t = fresh_db().await;
    let service = t.server.service_url(&t.name);
    let urls = [("WAYBILL_DATABASE_URL", service.as_str())];
    waybill(&["project", "create", "acme"], &urls);
    let team = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/research-team");
    let apply =
        |file: &str, more: &[&str]| waybill(&[&["apply", "-f", file, "--project", "acme"], more].concat(), &urls);
    let tried = apply(team, &["--dry-run", "--json"]);
    assert!(json(&tried).as_array().unwrap().iter().all(|row| row["change"] == "created"), "{tried:?}");
    let applied = apply(team, &["--json"]);
    assert_eq!(json(&applied), json(&tried), "a trial writes nothing");
    let again = apply(team, &["--json"]);
    assert!(json(&again).as_array().unwrap().iter().all(|row| row["change"] == "unchanged"), "{again:?}");
    let listed = text(&waybill(&["resource", "list", "--project", "acme"], &urls).stdout);
    assert!(
        ["principal", "associate", "expert", "search", "house-rules"].iter().all(|name| listed.contains(name)),
        "{listed}"
    );
    let shown = json(&waybill(&["resource", "show", "profile", "principal", "--project", "acme"], &urls));
    assert_eq!(
        (&shown["llm_config"]["api_key"]["secret"], &shown["process"]),
        (&"openai".into(), &"hierarchical".into())
    );
    let shown = json(&waybill(&["resource", "show", "settings", "--project", "acme"], &urls));
    assert_eq!(shown["max_recursion_depth"], 6);

    let file = std::env::temp_dir().join(format!("waybill-{}.yaml", uuid::Uuid::now_v7()));
    let good = std::fs::read_to_string(format!("{team}/profiles.yaml")).unwrap();
    for (from, to, said) in [
        ("api_key: {secret: openai}", "api_key: sk-123", "do not write a secret into a manifest"),
        ("process: hierarchical", "process: chaotic", "unknown variant `chaotic`"),
        ("{{result_fields}}", "{{results}}", "`{{results}}` is not a known slot"),
        ("must_end_with", "must_begin_with", "unknown field `must_begin_with`"),
        ("name: principal", "name: The Principal", "is not a valid name"),
    ] {
        std::fs::write(&file, good.replacen(from, to, 1)).unwrap();
        let refused = apply(file.to_str().unwrap(), &[]);
        let stderr = text(&refused.stderr);
        assert!(!refused.status.success() && stderr.contains(said), "{to}: {stderr}");
        assert!(stderr.contains(file.to_str().unwrap()) && stderr.contains(" at line "), "{to}: {stderr}");
        assert!(!stderr.contains("sk-123"), "{stderr}");
    }
    std::fs::remove_file(file).unwrap();
}

/// A cost limit with a model that has no price: `apply` warns and `doctor` lists the profile, if the providers file is named.
#[tokio::test]
async fn a_model_without_a_price_under_a_limit_of_money_is_told_of() {
    let t = fresh_db().await;
    let service = t.server.service_url(&t.name);
    let urls = [("WAYBILL_DATABASE_URL", service.as_str())];
    waybill(&["project", "create", "acme"], &urls);
    let folder = std::env::temp_dir().join(format!("waybill-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir(&folder).unwrap();
    let [profile, providers] = ["profile.yaml", "providers.yaml"].map(|file| folder.join(file));
    std::fs::write(
        &profile,
        "profile: {name: miser, worker_target: llm, system_prompt_template: You save., llm_config: {provider: house, model: big}, limits: {microdollars: 500}}",
    )
    .unwrap();
    let provider = |prices: &str| {
        let text = format!(
            "provider: {{name: house, adapter: openai_chat, base_url: 'http://127.0.0.1:1', prices: {{{prices}}}}}"
        );
        std::fs::write(&providers, text).unwrap();
    };
    let [profile, providers_file] = [&profile, &providers].map(|path| path.to_str().unwrap());
    let apply = |more: &[&str]| waybill(&[&["apply", "-f", profile, "--project", "acme"], more].concat(), &urls);
    let doctor = |more: &[&str]| waybill(&[&["doctor", "--json"], more].concat(), &urls);

    provider("small: {input: 1, output: 1}");
    let applied = apply(&["--providers", providers_file]);
    assert!(applied.status.success(), "{applied:?}");
    let warned = text(&applied.stderr);
    assert!(warned.contains("`miser`") && warned.contains("house/big") && warned.contains("no_price"), "{warned}");
    let found = doctor(&["--providers", providers_file]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(text(&found.stdout).contains("acme: miser asks house/big"), "{found:?}");

    provider("big: {input: 0, output: 0}");
    assert_eq!(text(&apply(&["--providers", providers_file]).stderr), "");
    assert!(doctor(&["--providers", providers_file]).status.success());
    // Without the providers file the prices are not known.
    assert_eq!(text(&apply(&[]).stderr), "");
    assert!(doctor(&[]).status.success());
    std::fs::remove_dir_all(folder).unwrap();
}

/// CX-11, NX-1, NX-2: what a model saw can be listed, rendered and compared.
#[tokio::test]
async fn what_a_model_saw_can_be_shown_and_compared() {
    let t = fresh_db().await;
    let service = t.server.service_url(&t.name);
    let urls = [("WAYBILL_DATABASE_URL", service.as_str())];
    let project = t.project_id.to_string();
    let place = ["--project", &project];
    let (target, agent_id) = ("llm".parse().unwrap(), AgentId::new());
    let question = Draft::instruction("Which river runs north?").seal().unwrap();
    let mut work = t.begin().await;
    agent::create(&mut work, &[agent_id], &target).await.unwrap();
    turn::enqueue(&mut work, &[DispatchRequest::instructed(agent_id, question.card_id())], &[question]).await.unwrap();
    work.commit().await.unwrap();
    let worker = lease::start(&t.kernel, &target, Duration::from_secs(600)).await.unwrap();
    let claimed = turn::claim(&t.kernel, &mut Claiming::new(worker, target)).await.unwrap().remove(0);
    let policy = Policy { order: Order::Layered, budget: Tokens::new(2_000).unwrap(), per_message: Tokens::ZERO };
    let setting = Setting {
        knowledge: None,
        experience: None,
        system_prompt_template: None,
        toolbox: Toolbox::default(),
        audience: Audience::of(Process::React),
        policy,
        n_pinned: 0,
        fork: None,
        budget: None,
        framework: None,
    };
    let mut requests = Vec::new();
    for answer in ["The Nile.", "And the Rhine."] {
        let gathered =
            gather(&t.kernel, &claimed, &setting, &Collector::new(Framework::builtin()), None).await.unwrap();
        let config = RenderConfig { adapter: Adapter::OpenaiChat, policy, params: Params::default() };
        let call = gathered.materials.call(&config).unwrap();
        let said = Draft::new(CardType::thought(), Role::Assistant, Content::Text(answer.into())).seal().unwrap();
        let step = Step {
            step_id: StepId::new(),
            cards: vec![said],
            calls: Vec::new(),
            suspend: false,
            receipt: Some(serde_json::to_string(&call.receipt).unwrap()),
            usage: None,
        };
        turn::step(&mut t.kernel.alone(t.project_id).await.unwrap(), &claimed.fence, &step).await.unwrap();
        requests.push((step.step_id, call.request));
    }

    let turn_id = claimed.fence.agent_turn_id().to_string();
    let command = |arguments: &[&str]| waybill(&[&["context"], arguments, &place].concat(), &urls);
    let listed = text(&command(&["list", &turn_id]).stdout);
    assert!(requests.iter().all(|(step_id, _)| listed.contains(&step_id.to_string())), "{listed}");
    let first = format!("{turn_id}/{}", requests[0].0);
    assert_eq!(command(&["show", &first, "--request"]).stdout, requests[0].1, "byte for byte");
    assert_eq!(command(&["show", &turn_id, "--request"]).stdout, requests[1].1, "the last one, if no step is named");
    let shown = text(&command(&["show", &turn_id]).stdout);
    assert!(
        shown.contains("framework__context") && shown.contains("The Nile.") && shown.contains("as it was sent"),
        "{shown}"
    );
    let compared = json(&command(&["diff", &first, &turn_id, "--json"]));
    assert_eq!((&compared["first_break"], &compared["only_right"][0]["layer"]), (&Value::Null, &"steps".into()));
    let compared = text(&command(&["diff", &turn_id, &first]).stdout);
    assert!(compared.contains("misses from message 3"), "{compared}");
    let unknown = command(&["show", &format!("{turn_id}/{}", StepId::new())]);
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("has no receipt"), "{unknown:?}");
    let elsewhere = waybill(&["context", "show", &first, "--project", &ProjectId::new().to_string()], &urls);
    assert!(!elsewhere.status.success(), "{elsewhere:?}");
}

/// L0-14, L0-15: the commands of an operator for lost state, quarantine and sweeps.
#[tokio::test]
async fn lost_state_is_rebuilt_and_quarantine_is_shown_and_emptied() {
    let t = fresh_db().await;
    let service = t.server.service_url(&t.name);
    let urls = [("WAYBILL_DATABASE_URL", service.as_str())];
    let made = waybill(&["project", "create", "acme", "--json"], &urls);
    let project_id: ProjectId = json(&made)[0]["project_id"].as_str().unwrap().parse().unwrap();
    let agents: Vec<AgentId> = (0..3).map(|_| AgentId::new()).collect();
    let mut work = t.kernel.begin(project_id).await.unwrap();
    agent::create(&mut work, &agents, &"llm".parse().unwrap()).await.unwrap();
    work.commit().await.unwrap();
    sqlx::raw_sql("delete from state.agent_state_head").execute(&mut t.admin().await).await.unwrap();
    let rebuilt = waybill(&["admin", "rebuild-state", "--project", "acme", "--json"], &urls);
    assert_eq!(json(&rebuilt)["rebuilt"], 3, "{rebuilt:?}");
    let one = waybill(&["admin", "rebuild-state", "--project", "acme", "--agent", &agents[0].to_string()], &urls);
    assert_eq!(text(&one.stdout), "rebuilt 1\n", "{one:?}");
    let unknown = AgentId::new().to_string();
    let none = waybill(&["admin", "rebuild-state", "--project", "acme", "--agent", &unknown], &urls);
    assert!(!none.status.success() && text(&none.stderr).contains(&unknown), "{none:?}");

    let subject = uuid::Uuid::now_v7();
    sqlx::query(
        "insert into state.quarantine (project_id, sweep, subject_id, n_failures, last_error, quarantined_at)
         values ($1, 'overdue_calls', $2, 5, 'database: it broke', now())",
    )
    .bind(project_id)
    .bind(subject)
    .execute(&mut t.admin().await)
    .await
    .unwrap();
    let listed = waybill(&["admin", "quarantine", "list", "--json"], &urls);
    assert_eq!((&json(&listed)[0]["n_failures"], &json(&listed)[0]["sweep"]), (&5.into(), &"overdue_calls".into()));
    assert!(text(&waybill(&["admin", "quarantine", "list"], &urls).stdout).contains("it broke"));
    let retry = ["admin", "quarantine", "retry", "--project", "acme", "--subject", &subject.to_string()];
    assert_eq!(text(&waybill(&retry, &urls).stdout), "freed 1\n");
    let again = waybill(&retry, &urls);
    assert!(
        !again.status.success() && text(&again.stderr).contains("project \"acme\" has no row in quarantine"),
        "{again:?}"
    );

    let swept = waybill(&["admin", "sweep", "--json"], &urls);
    assert_eq!(json(&swept)["failures"], 0, "{swept:?}");
}

/// HI-1, HI-2: an operator sees the partitions, sets their step, and makes what is missing.
#[tokio::test]
async fn partitions_are_shown_set_and_made() {
    let t = fresh_db().await;
    let (service, owner) = (t.server.service_url(&t.name), t.server.owner_url(&t.name));
    let urls = [("WAYBILL_DATABASE_URL", service.as_str()), ("WAYBILL_OWNER_URL", owner.as_str())];
    let shown = json(&waybill(&["admin", "history", "--json"], &urls));
    assert_eq!((&shown["step"], shown["tables"].as_array().unwrap().len()), (&"week".into(), 6), "{shown}");
    assert!(shown["days_ahead"].as_i64().unwrap() >= 28, "{shown}");
    assert_eq!(json(&waybill(&["admin", "extend-partitions", "--json"], &urls))["made"], 0);
    let set = waybill(&["admin", "set-history-step", "month"], &urls);
    assert_eq!(text(&set.stdout), "each new partition covers a month\n", "{set:?}");
    let made = json(&waybill(&["admin", "extend-partitions", "--json"], &urls))["made"].as_i64().unwrap();
    assert!(made > 0 && made % 6 == 0, "two months of six tables: {made}");
    let shown = text(&waybill(&["admin", "history"], &urls).stdout);
    assert!(shown.contains("execution_edges") && shown.contains("covers a month"), "{shown}");
    let wrong = waybill(&["admin", "set-history-step", "year"], &urls);
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("day, week or month"), "{wrong:?}");
}

/// L0-14, L0-9: the orchestrator process sweeps, holds the outbox, and ends on a signal.
#[tokio::test]
async fn an_orchestrator_runs_until_it_is_asked_to_end() {
    let t = fresh_db().await;
    let mut nats = nats::Private::new().unwrap();
    nats.start().unwrap();
    let (service, bus) = (t.server.service_url(&t.name), nats.url());
    let urls = [("WAYBILL_DATABASE_URL", service.as_str()), ("WAYBILL_NATS_URL", bus.as_str())];
    let checked = waybill(&["doctor"], &urls);
    assert!(checked.status.success() && text(&checked.stdout).contains("NATS usable"), "{checked:?}");
    let mut orchestrator = Command::new(env!("CARGO_BIN_EXE_waybill")).arg("orchestrator").envs(urls).spawn().unwrap();
    let at_work = "select (select count(*) = 16 from state.relay_shards where worker_id is not null and stream_made_at is not null)
                      and (select beat_at > steady_since from state.sweep_clock)";
    let mut admin = t.admin().await;
    for attempt in 0.. {
        if sqlx::query_scalar(at_work).fetch_one(&mut admin).await.unwrap() {
            break;
        }
        assert!(attempt < 400 && orchestrator.try_wait().unwrap().is_none(), "it is not at work");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lag = waybill(&["admin", "outbox", "--json"], &urls);
    assert_eq!(json(&lag)["n_unpublished"], 0, "{lag:?}");
    let pid = rustix::process::Pid::from_child(&orchestrator);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(orchestrator.wait().unwrap().success());

    let alone = waybill(&["orchestrator", "--only", "relay"], &urls[..1]);
    assert!(!alone.status.success() && text(&alone.stderr).contains("WAYBILL_NATS_URL"), "{alone:?}");
}

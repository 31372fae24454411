//! `waybill dev`, as a new user runs it, and a worker in another language.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use sqlx::Connection;
use waybill_services::postgres::Private;

use crate::cli::{json, text};

pub(crate) fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A separate folder, with the program where `cargo build --release` would put it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("waybill-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("target/release")).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_waybill"), folder.join("target/release/waybill")).unwrap();
        Folder(folder)
    }

    /// Returns a command as the README has it, run in this folder.
    pub(crate) fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", self.0.join("target/release").display());
        command.args(["-c", line]).current_dir(&self.0).stdin(Stdio::null()).env("PATH", path);
        for name in [
            "DATABASE_URL",
            "WAYBILL_DATABASE_URL",
            "WAYBILL_OWNER_URL",
            "WAYBILL_NATS_URL",
            "WAYBILL_PROJECT",
            "WAYBILL_CONFIG",
        ] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn run(&self, line: &str) -> Output {
        self.shell(line).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running `waybill dev`. Dropping this value ends it with Ctrl-C.
pub(crate) struct Dev {
    pub(crate) child: Child,
    log: PathBuf,
}

impl Dev {
    pub(crate) fn start(folder: &Folder, line: &str) -> Dev {
        Dev::start_as(folder, &format!("{line} --listen 127.0.0.1:0"))
    }

    /// Starts it with exactly this command.
    pub(crate) fn start_as(folder: &Folder, line: &str) -> Dev {
        let log = folder.0.join("dev.log");
        let file = File::create(&log).unwrap();
        // `exec`, so that the signal reaches the program and not a shell.
        let line = format!("exec {line}");
        let child = folder.shell(&line).stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        let mut dev = Dev { child, log };
        let begun = Instant::now();
        while !dev.said().contains("Ctrl-C ends everything") {
            assert!(
                dev.child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60),
                "{}",
                dev.said()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        dev
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn url(&self) -> String {
        let said = self.said();
        let after = said.split("Waybill is up: ").nth(1).unwrap();
        after.split_whitespace().next().unwrap().to_owned()
    }

    /// Ends it with Ctrl-C, and checks that nothing that it started is left.
    pub(crate) fn end(mut self, folder: &Folder) {
        interrupt(&self.child);
        assert!(self.child.wait().unwrap().success(), "{}", self.said());
        let left = folder.0.join(".waybill/postgres/data/postmaster.pid");
        assert!(!left.exists(), "PostgreSQL goes on");
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            interrupt(&self.child);
            let _ = self.child.wait();
        }
    }
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
}

/// Only one `waybill dev` runs per folder, its PostgreSQL is restarted when it dies, and data that it cannot read is kept.
#[test]
fn a_second_dev_in_a_folder_is_refused_and_a_dead_server_is_started_again() {
    let folder = Folder::new("two-devs");
    let dev = Dev::start(&folder, "./target/release/waybill dev");
    let postmaster = || {
        let file = fs::read_to_string(folder.0.join(".waybill/postgres/data/postmaster.pid")).unwrap();
        file.lines().next().unwrap().trim().to_owned()
    };
    let first = postmaster();
    let second = folder.run("timeout 30 ./target/release/waybill dev --listen 127.0.0.1:0");
    assert!(!second.status.success(), "{second:?}");
    let said = text(&second.stderr);
    for part in ["another `waybill dev` uses", &dev.url(), "--data FOLDER"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(postmaster(), first, "the first one's PostgreSQL goes on");
    assert!(folder.run("./target/release/waybill turn list").status.success());

    assert!(folder.run(&format!("kill -9 {first}")).status.success());
    let begun = Instant::now();
    while !dev.said().contains("PostgreSQL is up again") {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", dev.said());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_ne!(postmaster(), first);
    let run = folder.run("timeout 60 ./target/release/waybill run archivist 'What is bread?'");
    assert!(run.status.success(), "{run:?}\n{}", dev.said());
    // Data of another build is moved aside, and nothing of it is deleted.
    let settings = fs::read_to_string(folder.0.join(".waybill/waybill.toml")).unwrap();
    let owner_url = settings.lines().find_map(|line| line.strip_prefix("owner_url = ")).unwrap().trim_matches('"');
    let tamper = async {
        let mut owner = sqlx::PgConnection::connect(owner_url).await.unwrap();
        let other = "update waybill.migrations set checksum = '\\x00' where version = 1";
        sqlx::raw_sql(other).execute(&mut owner).await.unwrap();
    };
    tokio::runtime::Runtime::new().unwrap().block_on(tamper);
    dev.end(&folder);
    let dev = Dev::start(&folder, "./target/release/waybill dev");
    assert!(dev.said().contains("nothing was deleted"), "{}", dev.said());
    assert!(folder.0.join(".waybill/old-1/postgres/data/PG_VERSION").exists());
    assert!(folder.run("./target/release/waybill turn list").status.success());
    dev.end(&folder);
}

/// A database of another owner is used only if the command line names it, and its roles keep their passwords.
#[tokio::test]
async fn dev_uses_another_database_only_when_it_is_named() {
    let (folder, other) = (Folder::new("named"), Folder::new("other"));
    let server = Private::in_folder(&folder.0.join("server")).await.unwrap();
    // The service needs a password; the administrator does not.
    let rules = "host all waybill_service 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
    fs::write(folder.0.join("server/data/pg_hba.conf"), rules).unwrap();
    let mut admin = server.server.admin().await.unwrap();
    sqlx::query("select pg_reload_conf()").execute(&mut admin).await.unwrap();
    server.server.create_database("app").await.unwrap();
    let app = server.server.admin_url("app");
    let touched =
        "select (select count(*) from pg_roles where rolname like 'waybill\\_%' and rolname <> 'waybill_owner')";
    let n_roles =
        async |admin: &mut sqlx::PgConnection| -> i64 { sqlx::query_scalar(touched).fetch_one(admin).await.unwrap() };

    let dev = Dev::start(&folder, &format!("env DATABASE_URL={app} ./target/release/waybill dev"));
    for part in ["DATABASE_URL is set but not used", "private to this folder"] {
        assert!(dev.said().contains(part), "{part}: {}", dev.said());
    }
    assert_eq!(n_roles(&mut admin).await, 0, "nothing was made on the server of DATABASE_URL");
    dev.end(&folder);

    // A named database is used. The service gets a password that no other installation knows.
    let dev = Dev::start(&folder, &format!("./target/release/waybill dev --database-url {app}"));
    let port = server.server.port();
    assert!(dev.said().contains(&format!("database: 127.0.0.1:{port}/app, named by --database-url")), "{}", dev.said());
    assert!(n_roles(&mut admin).await > 0);
    assert!(folder.run("./target/release/waybill turn list").status.success());
    let known = |password: &str| format!("postgres://waybill_service:{password}@127.0.0.1:{port}/app");
    assert!(sqlx::PgConnection::connect(&known("waybill-lab")).await.is_err(), "a constant password opens it");

    // SE-2: `doctor` names an account that was made a member of a Waybill role.
    assert!(folder.run("./target/release/waybill doctor").status.success());
    let grant = "create role intruder; grant waybill_scheduler to intruder";
    sqlx::raw_sql(grant).execute(&mut admin).await.unwrap();
    let doctor = folder.run("./target/release/waybill doctor");
    assert!(
        !doctor.status.success() && text(&doctor.stdout).contains("intruder belongs to waybill_scheduler"),
        "{doctor:?}"
    );
    dev.end(&folder);

    // Another folder does not know the password, and does not change it.
    let hash = "select rolpassword from pg_authid where rolname = 'waybill_service'";
    let before: String = sqlx::query_scalar(hash).fetch_one(&mut admin).await.unwrap();
    let refused =
        other.run(&format!("timeout 30 ./target/release/waybill dev --listen 127.0.0.1:0 --database-url {app}"));
    assert!(!refused.status.success(), "{refused:?}");
    assert!(text(&refused.stderr).contains("another installation uses the server"), "{refused:?}");
    assert_eq!(sqlx::query_scalar::<_, String>(hash).fetch_one(&mut admin).await.unwrap(), before);
}

#[test]
fn a_setting_that_is_none_is_named() {
    let folder = Folder::new("settings");
    fs::write(folder.0.join("waybill.toml"), "colour = \"red\"\n").unwrap();
    let refused = folder.run("./target/release/waybill config show");
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(said.contains("no setting `colour`") && said.contains("database_url"), "{said}");
    fs::write(folder.0.join("waybill.toml"), "nats_url = \"nats://127.0.0.1:4222\"\nproject = \"acme\"\n").unwrap();
    let shown = text(&folder.run("WAYBILL_PROJECT=other ./target/release/waybill config show").stdout);
    let line = |name: &str| shown.lines().find(|line| line.trim().starts_with(name)).unwrap().to_owned();
    assert!(line("project").contains("other") && line("project").contains("environment"), "{shown}");
    assert!(line("nats_url").contains("waybill.toml"), "{shown}");
    // A file that every account may write is not trusted, unless it is named explicitly.
    let file = folder.0.join("waybill.toml");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let refused = folder.run("./target/release/waybill config show");
    assert!(!refused.status.success() && text(&refused.stderr).contains("is not used"), "{refused:?}");
    assert!(folder.run("WAYBILL_CONFIG=waybill.toml ./target/release/waybill config show").status.success());
}

/// UI-2: workers in plain Python are killed repeatedly. Every turn ends once, and no step is written twice.
#[test]
fn a_worker_in_python_survives_a_storm() {
    const TURNS: usize = 30;
    const KILLS: usize = 12;
    let folder = Folder::new("python");
    let dev = Dev::start(&folder, "./target/release/waybill dev");
    let waybill = |arguments: &str| folder.run(&format!("./target/release/waybill {arguments}"));
    let example = repository().join("examples/python-worker").canonicalize().unwrap();
    let applied = waybill(&format!("apply -f {}", example.display()));
    assert!(applied.status.success(), "{applied:?}");
    let key = text(&waybill("keys create python --scope worker --target python --target python-tools").stdout)
        .trim()
        .to_owned();
    let start = |tool: bool| {
        let mut command = Command::new("python3");
        command.arg(example.join("worker.py")).args(["--lease", "1"]).env("WAYBILL_API_URL", dev.url());
        if tool {
            command.arg("--tool")
        } else {
            command.args(["--slow", "0.3"])
        };
        let log = File::options().create(true).append(true).open(folder.0.join("python.log")).unwrap();
        command
            .env("WAYBILL_API_KEY", &key)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    };
    let mut crew = vec![start(false), start(false), start(true)];
    let turns: Vec<String> = (0..TURNS)
        .map(|n| {
            let profile = if n % 5 == 0 { "reader" } else { "counter" };
            text(&waybill(&format!("turn start {profile} 'count these words {n}'")).stdout).trim().to_owned()
        })
        .collect();
    for n in 0..KILLS {
        std::thread::sleep(Duration::from_millis(500));
        let place = n % crew.len();
        let mut killed = std::mem::replace(&mut crew[place], start(place == 2));
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    let begun = Instant::now();
    let mut delivered = 0;
    for turn_id in &turns {
        let shown = loop {
            let shown = json(&waybill(&format!("turn show {turn_id} --json")));
            if shown["turn"]["status"] != "open" {
                break shown;
            }
            let log = || fs::read_to_string(folder.0.join("python.log")).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(90), "{shown}\n{}", log());
            std::thread::sleep(Duration::from_millis(200));
        };
        assert_eq!(shown["turn"]["status"], "success", "{shown}");
        let output = json(&waybill(&format!("box show {} --json", shown["turn"]["output_box_id"].as_str().unwrap())));
        let kinds: Vec<&str> = output["cards"]
            .as_array()
            .unwrap()
            .iter()
            .map(|card| card["reading"]["metadata"]["type"].as_str().unwrap())
            .collect();
        let wanted: &[&str] = match shown["turn"]["profile_name"].as_str().unwrap() {
            "counter" => &["agent.thought", "task.deliverable"],
            _ => &["agent.thought", "tool.call", "tool.result", "task.deliverable"],
        };
        assert_eq!(kinds, wanted, "{shown}");
        if let Some(result) = kinds.iter().position(|kind| *kind == "tool.result") {
            assert_eq!(output["cards"][result]["reading"]["content"]["status"], "success", "{output}");
        }
        delivered += 1;
    }
    for mut worker in crew {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    assert_eq!(delivered, TURNS);
    dev.end(&folder);
}

/// A process that is ended when this value is dropped.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// HO-1 … HO-9: the loop of design and evaluation, as in its README. A person decides, by CLI and over HTTP, and everything is restarted in
/// between.
#[test]
fn the_loop_of_design_and_evaluation_goes_round() {
    let folder = Folder::new("loop");
    let example = repository().join("examples/eval-synthesis");
    let mut dev = Dev::start(&folder, "./target/release/waybill dev");
    let waybill = |arguments: &str| folder.run(&format!("./target/release/waybill {arguments}"));
    let evaluator = |dev: &Dev| {
        let line =
            format!("exec python3 {} --url {} >>evaluator.log 2>&1", example.join("evaluator.py").display(), dev.url());
        Killed(folder.shell(&line).spawn().unwrap())
    };
    assert!(waybill(&format!("apply -f {}", example.join("team.yaml").display())).status.success());
    let mut tool = evaluator(&dev);
    let run = waybill("run init 生成请假申请场景的评测样本");
    assert!(run.status.success(), "{run:?}\n{}", dev.said());
    let asked = |dev: &Dev| {
        let begun = Instant::now();
        loop {
            if let Some(open) = json(&waybill("inbox --json")).as_array().and_then(|open| open.first()) {
                return open.clone();
            }
            let evaluated = fs::read_to_string(folder.0.join("evaluator.log")).unwrap_or_default();
            assert!(begun.elapsed() < Duration::from_secs(60), "{}\n{evaluated}", dev.said());
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let call = |open: &Value| open["tool_call_id"].as_str().unwrap().to_owned();

    // The first decision is by the CLI, with everything stopped and restarted while the turn waits.
    let first = asked(&dev);
    assert_eq!(first["request"]["kind"], "approval", "{first}");
    drop(tool);
    dev.end(&folder);
    dev = Dev::start(&folder, "./target/release/waybill dev");
    tool = evaluator(&dev);
    assert_eq!(call(&asked(&dev)), call(&first), "it still waits");
    assert!(waybill(&format!("approve {} --note 'go on'", call(&first))).status.success());
    let again = waybill(&format!("approve {}", call(&first)));
    assert!(!again.status.success() && text(&again.stderr).contains("no turn waits"), "{again:?}");
    // The second decision is over HTTP.
    let begun = Instant::now();
    let second = loop {
        let open = asked(&dev);
        if call(&open) != call(&first) {
            break open;
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    };
    let key = fs::read_to_string(folder.0.join(".waybill/key")).unwrap();
    let decide = format!(
        "python3 - <<'PY'\nimport urllib.request\nrequest = urllib.request.Request('{}/v1/projects/demo/requests/{}', b'{{\"decision\": \"approved\"}}', {{'Authorization': 'Bearer {}', 'Content-Type': 'application/json'}})\nprint(urllib.request.urlopen(request).read().decode())\nPY",
        dev.url(),
        call(&second),
        key.trim()
    );
    let decided = folder.run(&decide);
    assert!(text(&decided.stdout).contains("\"decided\""), "{decided:?}");
    // The third result is good enough.
    let third = loop {
        let open = asked(&dev);
        if ![call(&first), call(&second)].contains(&call(&open)) {
            break open;
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    };
    assert!(waybill(&format!("reject {} --note 'good enough'", call(&third))).status.success());
    let begun = Instant::now();
    let turns = loop {
        let turns = json(&waybill("turn list --all --json")).as_array().unwrap().clone();
        if turns.iter().all(|turn| turn["status"] != "open") {
            break turns;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{turns:?}");
    };
    let n_of = |profile: &str| turns.iter().filter(|turn| turn["profile_name"] == profile).count();
    assert_eq!((n_of("init"), n_of("execute"), n_of("review")), (1, 3, 3));
    assert!(turns.iter().all(|turn| turn["status"] == "success"), "{turns:?}");
    let last = json(&waybill(&format!("turn show {} --json", turns[0]["agent_turn_id"].as_str().unwrap())));
    assert!(last.to_string().contains("good enough"), "{last}");

    check_artifacts(&folder);
    check_packages(&folder, &turns);
    // The store holds what the index says, and it can be read back.
    let fetched = waybill("artifact get scenarios/leave_application out");
    assert!(fetched.status.success(), "{fetched:?}");
    let report =
        fs::read_to_string(folder.0.join("out/execution_outputs/iteration_1/layer1_problems_report.json")).unwrap();
    assert!(report.contains("L1P_001"));
    drop(tool);
    dev.end(&folder);
}

/// Checks that the files that were written are those in the tree of the README.
fn check_artifacts(folder: &Folder) {
    let waybill = |arguments: &str| folder.run(&format!("./target/release/waybill {arguments}"));
    let listed = json(&waybill("artifact list scenarios/ --json"));
    let paths: Vec<&str> = listed.as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    for (iteration, failures) in [(1, 18), (2, 7), (3, 2)] {
        let below = format!("scenarios/leave_application/execution_outputs/iteration_{iteration}/");
        let n = |of: &str| {
            paths.iter().filter(|path| path.strip_prefix(&below).is_some_and(|rest| rest.starts_with(of))).count()
        };
        let counts = ["samples/", "execution_traces/", "evaluation_results/", "attribution_analysis/", ""].map(n);
        assert_eq!(counts, [27, 27, 27, failures, 27 * 3 + failures + 3], "{below}");
    }
    let rules = json(&waybill("artifact versions scenarios/leave_application/BusinessRules.md --json"));
    assert_eq!(rules.as_array().unwrap().len(), 2);
}

/// HO-2: checks the sizes of the packages.
fn check_packages(folder: &Folder, turns: &[Value]) {
    let waybill = |arguments: &str| folder.run(&format!("./target/release/waybill {arguments}"));
    let mut sizes = Vec::new();
    for turn in turns.iter().filter(|turn| turn["profile_name"] != "init") {
        let context = json(&waybill(&format!("box show {} --json", turn["context_box_id"].as_str().unwrap())));
        let cards = context["cards"].as_array().unwrap().iter().map(|placed| &placed["reading"]);
        let is_package = |card: &&Value| card["metadata"]["type"] == "handoff.package";
        let card = cards.clone().find(is_package).unwrap_or_else(|| panic!("{context}"));
        let kind = card["content"]["package"]["handoff_type"].as_str().unwrap().to_owned();
        sizes.push((kind, card["n_tokens"].as_i64().unwrap()));
    }
    for (kind, n_tokens) in &sizes {
        let most = if kind == "init_to_execute" { 300 } else { 5_000 };
        assert!(*n_tokens <= most, "{kind}: {n_tokens}");
    }
    let largest = sizes.iter().max_by_key(|(_, n)| *n).unwrap();
    assert!(largest.0 == "execute_to_init" && largest.1 > 1_000, "{sizes:?}");
    println!("{sizes:?}");
}

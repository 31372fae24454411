//! What a newcomer does after the first start: other folders, other addresses, a team of one's own, a providers file that changes.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    cli::{json, text},
    dev::{Dev, Folder, Killed},
};

const WAYBILL: &str = "./target/release/waybill";

/// Waits until `look` finds something.
#[track_caller]
fn wait<T>(dev: &dyn Fn() -> String, look: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", dev());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn ready(path: &Path) -> Option<Value> {
    Some(serde_json::from_str(&fs::read_to_string(path).ok()?).unwrap())
}

/// Returns the status and the answer to a request.
fn get(folder: &Folder, url: &str, key: &str) -> String {
    let program = "import sys, urllib.request, urllib.error\n\
         url, key = sys.argv[1:]\n\
         request = urllib.request.Request(url, headers={'Authorization': f'Bearer {key}'} if key else {})\n\
         try: answer = urllib.request.urlopen(request, timeout=30)\n\
         except urllib.error.HTTPError as error: answer = error\n\
         print(answer.status, answer.read().decode())";
    text(&folder.run(&format!("python3 -c \"{program}\" '{url}' '{key}'")).stdout)
}

/// UI-13, WK-10: two run at once and say where; one that was killed starts again; beyond loopback every request needs a key, which is shown once; and a
/// providers file that changes is used, unless it has a mistake.
#[test]
fn several_run_at_once_and_say_when_they_are_up() {
    let (one, two) = (Folder::new("one"), Folder::new("two"));
    fs::write(one.0.join("providers.yaml"), "egress: {}\n").unwrap();
    let first = Dev::start_as(&one, &format!("{WAYBILL} dev --providers providers.yaml"));
    let mut second = Dev::start_as(&two, &format!("{WAYBILL} dev --listen 0.0.0.0:0 --ready-file up.json"));

    let up = ready(&one.0.join(".waybill/ready.json")).unwrap();
    assert_eq!((&up["url"], &up["project"]), (&Value::from(first.url()), &Value::from("demo")));
    assert_eq!(up["pid"], first.child.id());
    let up = ready(&two.0.join("up.json")).unwrap();
    assert_eq!(up["pid"], second.child.id());
    assert!(second.url().starts_with("http://127.0.0.1:") && second.url() != first.url(), "{up}");
    for dev in [&first, &second] {
        let said = dev.said();
        for part in ["create and start PostgreSQL in ", "migrate the database: ", "set up the project `demo`: "] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains('\x1b') && !said.contains("INFO"), "plain, and only what matters: {said}");
    }

    // On loopback no key is needed; elsewhere one is, and it opens only its own project.
    assert!(get(&one, &format!("{}/v1/projects/demo/turns", first.url()), "").starts_with("200"));
    let turns = format!("{}/v1/projects/demo/turns", second.url());
    assert!(get(&two, &turns, "").starts_with("401"));
    let said = second.said();
    let key = said.split("which is shown only now: ").nth(1).unwrap().lines().next().unwrap();
    assert!(get(&two, &turns, key).starts_with("200"));
    let other = get(&two, &turns.replace("/demo/", "/other/"), key);
    assert!(other.starts_with("404") && other.contains("`GET /v1/me`"), "{other}");

    // PG-1: other accounts of the machine do not know the password of its database.
    let settings = fs::read_to_string(one.0.join(".waybill/waybill.toml")).unwrap();
    let url = settings.split("database_url = \"").nth(1).unwrap().split('"').next().unwrap();
    let (login, place) = url.split_once("//waybill_service:").unwrap().1.split_once('@').unwrap();
    let without = format!("WAYBILL_DATABASE_URL=postgres://waybill_service@{place} {WAYBILL} turn list --project demo");
    let refused = one.run(&without);
    assert!(!login.is_empty() && !refused.status.success(), "{refused:?}");
    assert!(text(&refused.stderr).contains("password"), "{refused:?}");

    reload(&one, &first);
    first.end(&one);
    assert!(!one.0.join(".waybill/ready.json").exists());

    // Killed, and started again in a terminal.
    let killed = second.child.id();
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    let line = format!("script -qefc '{WAYBILL} dev --listen 0.0.0.0:0 --ready-file up.json' typescript >/dev/null");
    let mut terminal = Killed(two.shell(&line).spawn().unwrap());
    let typed = || String::from_utf8_lossy(&fs::read(two.0.join("typescript")).unwrap_or_default()).into_owned();
    let up = wait(&typed, || ready(&two.0.join("up.json")).filter(|up| up["pid"] != killed));
    assert!(two.run(&format!("{WAYBILL} turn list")).status.success());
    let pid = up["pid"].as_u64().unwrap();
    wait(&typed, || typed().contains("Ctrl-C ends everything").then_some(()));
    assert!(two.run(&format!("kill -INT {pid}")).status.success());
    assert!(terminal.0.wait().unwrap().success(), "{}", typed());
    assert!(typed().contains("\x1b[32m✓\x1b[0m start PostgreSQL in "), "{}", typed());
    assert!(!typed().contains("shown only now"), "{}", typed());
    assert!(!two.0.join("up.json").exists());
}

/// WK-10
fn reload(folder: &Folder, dev: &Dev) {
    let profile = "{name: asker, worker_target: llm, system_prompt_template: You ask., \
         llm_config: {provider: late, model: m}, limits: {microdollars: 500}}";
    fs::write(folder.0.join("asker.yaml"), format!("profile: {profile}\n")).unwrap();
    let applied = folder.run(&format!("{WAYBILL} apply -f asker.yaml"));
    assert!(applied.status.success(), "{applied:?}");
    let asked = || text(&folder.run(&format!("timeout 60 {WAYBILL} run asker 'What is bread?'")).stdout);
    let said = || dev.said();
    let write = |provider: &str, heard: &str| {
        let n = said().matches(heard).count();
        fs::write(folder.0.join("providers.yaml"), provider).unwrap();
        wait(&said, || (said().matches(heard).count() > n).then_some(()));
    };
    assert!(asked().contains("has no provider `late`"));
    let late = "provider:\n  name: late\n  adapter: openai_chat\n  base_url: http://127.0.0.1:1\n";
    write(late, "the providers file has changed, and is in use");
    assert!(asked().contains("no_price"), "the provider is known, and the model has no price: {}", dev.said());
    write(&late.replace("base_url", "base_ulr"), "what it said before stays in use");
    write("", "what it said before stays in use");
    let said = dev.said();
    assert!(said.contains("it is empty"), "{said}");
    assert!(said.contains("unknown field `base_ulr`") && said.contains("line 4"), "{said}");
    assert!(asked().contains("no_price"), "the provider is still known");
}

/// Returns the first block of commands in a README, without comments.
fn commands(readme: &str) -> Vec<String> {
    let block = readme.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    block.lines().map(|line| line.split(" #").next().unwrap().trim().to_owned()).collect()
}

/// UI-3: what `waybill init` writes works as its README says, without a model provider. PM-1: what is in use is not deleted.
#[test]
fn a_new_project_works_as_its_readme_says() {
    let folder = Folder::new("init");
    let made = folder.run(&format!("{WAYBILL} init my-team"));
    assert!(made.status.success() && text(&made.stdout).contains("waybill apply -f team.yaml"), "{made:?}");
    let again = folder.run(&format!("{WAYBILL} init my-team"));
    assert!(!again.status.success() && text(&again.stderr).contains("nothing was written"), "{again:?}");

    let team = Folder(folder.0.join("my-team"));
    for name in ["README.md", "team.yaml", "tool.py", "test_tool.py"] {
        let n_lines = fs::read_to_string(team.0.join(name)).unwrap().lines().count();
        assert!((10..=40).contains(&n_lines), "{name} has {n_lines} lines");
    }
    let lines = commands(&fs::read_to_string(team.0.join("README.md")).unwrap());
    let [dev, tool, apply, run, test] = &lines[..] else { panic!("{lines:?}") };
    let with_path = |line: &str| format!("env PATH=$PWD/../target/release:$PATH {line}");
    let dev = Dev::start_as(&team, &with_path(dev));
    let tool = Killed(team.shell(&format!("exec {tool} >tool.log 2>&1")).spawn().unwrap());
    let applied = team.run(&with_path(apply));
    assert!(applied.status.success(), "{applied:?}");
    let answered = team.run(&format!("timeout 60 {}", with_path(run)));
    let log = fs::read_to_string(team.0.join("tool.log")).unwrap();
    assert_eq!(text(&answered.stdout), "The clerk says: in stock: 12 apples\n", "{answered:?} {log} {}", dev.said());
    let tested = team.run(test);
    assert!(tested.status.success(), "{tested:?}");
    drop(tool);

    let waybill = |arguments: &str| team.run(&with_path(&format!("waybill {arguments}")));
    // A name that no profile has is allowed, since the profile may follow, but `apply` warns.
    let boss = "{name: boss, worker_target: llm, system_prompt_template: You lead., \
         delegation_policy: {target_profiles: [clerk, clrk]}, llm_config: {provider: late, model: m}}";
    fs::write(team.0.join("boss.yaml"), format!("profile: {boss}\n")).unwrap();
    let applied = waybill("apply boss.yaml --dry-run");
    let warned = text(&applied.stderr);
    assert!(applied.status.success() && warned.contains("profile `boss` may delegate to `clrk`, which"), "{applied:?}");
    assert!(!warned.contains("`clerk`"), "{warned}");
    for (named, user) in [("tool stock", "profile `clerk` may call"), ("profile clerk", "profile `lead` names")] {
        let refused = waybill(&format!("resource delete {named}"));
        assert!(!refused.status.success() && text(&refused.stderr).contains(user), "{refused:?}");
    }
    for named in ["profile lead", "profile clerk", "tool stock"] {
        let deleted = waybill(&format!("resource delete {named}"));
        assert!(deleted.status.success(), "{deleted:?}");
    }
    let left = text(&waybill("resource list --json").stdout);
    assert!(["clerk", "lead", "stock"].iter().all(|name| !left.contains(&format!("\"{name}\""))), "{left}");
    let audit = json(&waybill("audit --json"));
    let removed = audit.as_array().unwrap().iter().filter(|entry| entry["action"] == "resource.remove");
    assert_eq!(removed.count(), 3, "{audit}");
    dev.end(&team);
}

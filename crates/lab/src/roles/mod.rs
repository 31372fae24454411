//! Whether a key of a project can do what its scope and bounds do not allow (SE-1, SE-6, SE-7).
//!
//! A project has a team that worked, and work under way that other processes hold. The attackers are one key of every scope, each bound to
//! targets, paths and profiles that are not the team's; each knows every id, fence and token of the project. They try every operation of the
//! OpenAPI document: those that their scope does not have, and those that it has, on what belongs to the team; with their key, and with the cookie of
//! a browser that has logged in with it (SE-11). Another attacker is a page of another site, in the browser of an admin of the team. No attempt may
//! succeed, and nothing of the project may change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use waybill_api::{Config, Limits};
use waybill_artifact::{Artifacts, Store};
use waybill_bus::local::Local;
use waybill_core::{
    guard::{self, Guard},
    id::ProjectId,
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{key, resource, work::Kernel};
use waybill_services::{Home, Private};

use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    storm::dice::Dice,
    walls::{
        loot::{Loot, books},
        settle::{CANARY, settle},
    },
};

use operations::Operation;
pub(crate) use operations::operations;

mod operations;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub attempts: u64,
}

const DATABASE: &str = "waybill_roles";
const CLIENTS: usize = 4;

/// Makes the attempts and returns the figures. Then takes each guard away in turn, and prints which attack succeeds without it.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    eprintln!("chaos roles: seed {}", options.seed);
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let kernel = kernel.on(Arc::new(Local::default()));
    let folder = Home::find()?.path("roles-artifacts");
    let _ = std::fs::remove_dir_all(&folder);
    let artifacts = Artifacts::new(kernel.clone(), Store::in_folder(folder)?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (end, mut ended) = watch::channel(false);
    let limits = Limits { per_second: 1e9, ..Limits::default() };
    let config = Config { limits, artifacts: Some(artifacts.clone()), ..Config::default() };
    let until = async move { drop(ended.wait_for(|ended| *ended).await) };
    let serving = tokio::spawn(waybill_api::serve(listener, kernel.clone(), config, until, Duration::from_secs(2)));
    let house = House { kernel, artifacts, url: format!("http://{address}/v1/projects") };

    let attack = Arc::new(house.attack(&mut admin, "roles").await?);
    let tried: BTreeSet<&str> = attack.operations.iter().map(|operation| operation.name).collect();
    let untried: Vec<&String> = attack.methods.keys().filter(|name| !tried.contains(name.as_str())).collect();
    untried.iter().for_each(|name| eprintln!("chaos roles: operation {name} is not tried"));
    let n_untried = untried.len();
    let before = books(&mut admin, attack.project_id).await?;
    let bar = progress("attempts", options.attempts);
    let n_left = Arc::new(AtomicU64::new(options.attempts));
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let mut dice = Dice::new(options.seed.rotate_left(n as u32) ^ n as u64);
        let (attack, bar, n_left) = (attack.clone(), bar.clone(), n_left.clone());
        clients.spawn(async move {
            let mut account = Account::default();
            while n_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                let n = dice.one_of(attack.attempts.len());
                account.add(attack.attempt(n, &mut dice).await?);
                bar.inc(1);
            }
            anyhow::Ok(account)
        });
    }
    let mut all = Account::default();
    while let Some(done) = clients.join_next().await {
        let done = done??;
        all =
            Account { n: all.n + done.n, succeeded: all.succeeded + done.succeeded, faults: all.faults + done.faults };
    }
    bar.finish_and_clear();
    let after = books(&mut admin, attack.project_id).await?;
    let changed = before.iter().filter(|(table, rows)| after.get(*table) != Some(rows));
    let changed = changed.inspect(|(table, _)| eprintln!("chaos roles: {table} has changed")).count();
    let mut figures = vec![
        Figure::new("attempts", all.n as f64, "attempts", Bar::AtLeast(options.attempts as f64)),
        Figure::new("operations that were not tried", n_untried as f64, "operations", Bar::AtMost(0.0)),
        Figure::new("attempts that succeeded", all.succeeded as f64, "attempts", Bar::AtMost(0.0)),
        Figure::new("answers that are a fault of the server", all.faults as f64, "answers", Bar::AtMost(0.0)),
        Figure::new("tables that have changed", changed as f64, "tables", Bar::AtMost(0.0)),
    ];
    if cfg!(debug_assertions) {
        let unnoticed = house.without_guards(&mut admin, options.seed).await?;
        figures.push(Figure::new(
            "guards without which no attack succeeds",
            unnoticed as f64,
            "guards",
            Bar::AtMost(0.0),
        ));
    } else {
        eprintln!("chaos roles: guards are taken away in a build with debug assertions only");
    }
    let _ = end.send(true);
    serving.await??;
    Ok(figures)
}

/// Where the attacks take place.
struct House {
    kernel: Kernel,
    artifacts: Artifacts,
    url: String,
}

/// Returns whether these attacks test a guard. `chaos walls` tests the guard between projects; a test of the API tests four eyes.
fn is_attacked(guard: &Guard) -> bool {
    !matches!(guard, Guard::Project | Guard::FourEyes)
}

/// Several tries are needed: ids are chosen at random, and not every turn can be forked.
const TRIES: usize = 8;

impl House {
    /// Makes a project with a team, and attackers inside it.
    async fn attack(&self, admin: &mut PgConnection, slug: &'static str) -> Result<Attack> {
        let House { kernel, artifacts, url } = self;
        let team = settle(kernel, artifacts, slug, true).await?;
        let mut work = kernel.begin(team.project_id).await?;
        let mine = json!({ "profile": { "name": "mine", "worker_target": "mine", "system_prompt_template": "x",
            "llm_config": { "provider": "demo", "model": "demo" } } });
        let slow = json!({ "tool": { "name": "slow", "description": "d", "target": "slow" } });
        let manifests = [mine, slow].map(serde_json::from_value).into_iter().collect::<Result<Vec<_>, _>>()?;
        resource::apply(&mut work, &manifests).await?;
        let bounds = Bounds {
            targets: vec!["mine".parse()?],
            paths: vec!["mine".parse()?],
            profiles: vec!["mine".parse()?],
            external: false,
        };
        let mut keys = Vec::new();
        for scope in Scope::ALL.into_iter().filter(|scope| *scope != Scope::Admin) {
            let made = ApiKey::mint("test");
            let name = format!("attacker-{}", scope.as_str()).parse()?;
            key::create(&mut work, &made, &name, scope, &bounds, None).await?;
            keys.push((scope, made.expose().to_owned()));
        }
        work.commit().await?;
        let (http, base) = (Client::builder().no_proxy().build()?, format!("{url}/{}", team.slug));
        let mut attackers = Vec::new();
        for (scope, key) in keys {
            attackers.push(Attacker { scope, cookie: log_in(&http, url, &key).await?, key: Some(key) });
        }
        let boss = team.keys.iter().find(|(scope, _)| *scope == Scope::Admin).context("the team has an admin")?;
        attackers.push(Attacker { scope: Scope::Admin, cookie: log_in(&http, url, &boss.1).await?, key: None });
        // A worker of the team holds a turn over HTTP, under a name that the attackers know.
        let worker = team.keys.iter().find(|(scope, _)| *scope == Scope::Worker).context("the team has a worker")?;
        let claim = json!({ "worker": "w", "target": "held", "lease_seconds": 300 });
        let claimed = http.post(format!("{base}/worker/claim")).bearer_auth(&worker.1).json(&claim).send().await?;
        let claimed: Value = claimed.json().await?;
        anyhow::ensure!(claimed["turns"].as_array().is_some_and(|turns| turns.len() == 1), "it claims: {claimed}");
        let loot = Loot::of(admin, team.project_id).await?;
        let operations = operations();
        let attempts = (0..attackers.len())
            .flat_map(|attacker| (0..operations.len()).map(move |operation| (attacker, operation)))
            .filter(|(attacker, operation)| {
                let (attacker, operation) = (&attackers[*attacker], &operations[*operation]);
                attacker.key.is_none() || operation.bound || !operation.may.contains(&attacker.scope)
            })
            .collect();
        let (methods, project_id) = (methods(), team.project_id);
        Ok(Attack { http, base, loot, attackers, operations, methods, attempts, project_id })
    }

    /// Takes each guard away in turn, and attacks a new project until an attempt succeeds. Returns the number of guards without which
    /// no attack succeeded.
    async fn without_guards(&self, admin: &mut PgConnection, seed: u64) -> Result<usize> {
        let mut unnoticed = 0;
        let bar =
            progress("guards that are taken away", Guard::ALL.iter().filter(|guard| is_attacked(guard)).count() as u64);
        let mut table = Vec::new();
        for (n, guard) in Guard::ALL.into_iter().filter(is_attacked).enumerate() {
            guard::take_away(Some(guard));
            let slug: &'static str = guard.as_str().replace(' ', "-").leak();
            let found = async {
                let attack = self.attack(admin, slug).await?;
                let mut dice = Dice::new(seed ^ n as u64);
                for _ in 0..TRIES {
                    for attempt in 0..attack.attempts.len() {
                        if attack.attempt(attempt, &mut dice).await?.status.is_success() {
                            return anyhow::Ok(Some(attack.name(attempt)));
                        }
                    }
                }
                Ok(None)
            };
            let found = found.await;
            guard::take_away(None);
            let found = found?;
            unnoticed += usize::from(found.is_none());
            table.push((guard, found.unwrap_or_else(|| "no attack".to_owned())));
            bar.inc(1);
        }
        bar.finish_and_clear();
        eprintln!("{:<16} the attack that succeeds without it", "guard");
        table.iter().for_each(|(guard, attack)| eprintln!("{:<16} {attack}", guard.as_str()));
        Ok(unnoticed)
    }
}

/// Returns the method of each operation of the document.
fn methods() -> BTreeMap<String, Method> {
    let document = serde_json::to_value(waybill_api::document()).unwrap_or_default();
    let paths = document["paths"].as_object().cloned().unwrap_or_default();
    let operations = paths.into_iter().flat_map(|(_, item)| item.as_object().cloned().unwrap_or_default());
    let named = operations.filter_map(|(method, operation)| {
        let name = operation["operationId"].as_str()?.to_owned();
        Some((name, Method::from_bytes(method.to_uppercase().as_bytes()).ok()?))
    });
    named.collect()
}

/// The outcome of one attempt.
struct Outcome {
    status: StatusCode,
    said: String,
    what: String,
}

/// The outcome of many attempts.
#[derive(Default)]
struct Account {
    n: u64,
    succeeded: u64,
    faults: u64,
}

impl Account {
    fn add(&mut self, Outcome { status, said, what }: Outcome) {
        self.n += 1;
        if status.is_success() {
            self.succeeded += 1;
            eprintln!("chaos roles: it succeeded: {what}");
        }
        if status.is_server_error() {
            self.faults += 1;
            eprintln!("chaos roles: {what}: {status} {said}");
        }
    }
}

/// A key with its browser session. Without a key: a page of another site, in a browser that has the session.
struct Attacker {
    scope: Scope,
    key: Option<String>,
    cookie: String,
}

/// Logs a browser in, and returns its cookie. `projects` is the address of the projects of the API.
pub(crate) async fn log_in(http: &Client, projects: &str, key: &str) -> Result<String> {
    let url = projects.replace("/v1/projects", "/ui/session");
    let body = json!({ "key": key }).to_string();
    let response = http.post(url).header("content-type", "application/json").body(body).send().await?;
    let cookie = response.headers().get("set-cookie").and_then(|cookie| cookie.to_str().ok()?.split(';').next());
    Ok(cookie.context("a key logs in")?.to_owned())
}

struct Attack {
    http: Client,
    base: String,
    project_id: ProjectId,
    loot: Loot,
    attackers: Vec<Attacker>,
    operations: Vec<Operation>,
    methods: BTreeMap<String, Method>,
    /// Indexes of attacker and operation.
    attempts: Vec<(usize, usize)>,
}

impl Attack {
    fn name(&self, attempt: usize) -> String {
        let (attacker, operation) = self.attempts[attempt];
        let Operation { name, path, .. } = &self.operations[operation];
        match &self.attackers[attacker] {
            Attacker { key: None, .. } => format!("a page of another site: {name}, {path}"),
            Attacker { scope, .. } => format!("a key of scope {}: {name}, {path}", scope.as_str()),
        }
    }

    async fn attempt(&self, attempt: usize, dice: &mut Dice) -> Result<Outcome> {
        let (attacker, operation) = self.attempts[attempt];
        let (attacker, operation) = (&self.attackers[attacker], &self.operations[operation]);
        let method = self.methods.get(operation.name).with_context(|| format!("no operation {}", operation.name))?;
        let path = if operation.path == "/" { "" } else { operation.path };
        // Path and body name the same turn or call.
        let held = dice.one_of(64);
        let path = self.fill(path, held, dice);
        let mut request = self.http.request(method.clone(), format!("{}{path}", self.base));
        request = match &attacker.key {
            Some(key) if dice.chance(0.5) => request.bearer_auth(key),
            // A browser says which page made the request; no page can change that.
            Some(_) => request.header("cookie", &attacker.cookie).header("sec-fetch-site", "same-origin"),
            None => request.header("cookie", &attacker.cookie).header("origin", "https://evil.example"),
        };
        match &operation.body {
            Value::Null => {}
            Value::String(text) => request = request.body(text.clone()),
            body => {
                let body = self.fill(&body.to_string(), held, dice);
                request = request.header("content-type", "application/json").body(body);
            }
        }
        let response = request.send().await.context("the server answers")?;
        let status = response.status();
        let said = if status.is_success() { String::new() } else { response.text().await? };
        Ok(Outcome { status, said, what: self.name(attempt) })
    }

    fn fill(&self, text: &str, held: usize, dice: &mut Dice) -> String {
        let fence = &self.loot.fences[held % self.loot.fences.len()];
        let call = &self.loot.calls[held % self.loot.calls.len()];
        let mut filled = text.replace("\"{epoch}\"", &fence[2]).replace("{name}", CANARY);
        for (place, value) in [
            ("{fence_turn}", &fence[0]),
            ("{fence_agent}", &fence[1]),
            ("{token}", &fence[3]),
            ("{held_call}", &call[0]),
            ("{call_token}", &call[1]),
        ] {
            filled = filled.replace(place, value);
        }
        for (place, known) in &self.loot.ids {
            filled = filled.replace(place, &known[dice.one_of(known.len())]);
        }
        while filled.contains("{fresh}") {
            filled = filled.replacen("{fresh}", &uuid::Uuid::now_v7().to_string(), 1);
        }
        filled
    }
}

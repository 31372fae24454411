//! Agents that run away: they call themselves, fan out, retry and delegate without end, each tree under a limit, while the real workers and
//! orchestrators are killed. No tree may use more than its root was given.

use std::{
    collections::HashMap,
    convert::Infallible,
    fs::File,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sqlx::{FromRow, PgConnection};
use tokio::time::sleep;
use waybill_bus::nats::Nats;
use waybill_core::{
    id::{Name, ProjectId, TurnId},
    turn::Limits,
};
use waybill_kernel::{project, resource, work::Kernel};
use waybill_orchestrator::launch::{Launch, launch};

use super::{dice::Dice, mutant::Mutant};
use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    waybill,
};
use waybill_services::{Home, nats, postgres};

const DATABASE: &str = "runaway";
/// `max_recursion_depth` of each project: in some the depth ends a tree, in the others only the budget does.
const DEPTHS: [u32; 4] = [20, 3, 20, 20];
/// Another root is launched only while fewer turns than this are open.
const OPEN: i64 = 150;
const LEASE: &str = "1";
const POSTS: [&str; 5] = ["worker", "worker", "worker", "orchestrator", "orchestrator"];
/// Texts that must not be in a log.
const UNSAID: [&str; 4] =
    ["a turn or call failed", "could not continue a turn", "could not carry out a command", "panicked at"];

/// How many agents run away, and for how long they are watched.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Turns of roots and of all their descendants.
    pub agents: usize,
    pub patience: Duration,
    /// The number of kills that must be reached.
    pub kills: u64,
}

/// Runs them, and compares every tree with its limit.
pub async fn run(plan: &Plan, mutant: Option<Mutant>) -> Result<Vec<Figure>> {
    eprintln!("chaos budgets: seed {}", plan.seed);
    let folder = Home::find()?.path(&format!("storm-{}-{}", std::process::id(), uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&folder)?;
    let postgres = postgres::Private::to_be_killed().await?;
    let mut nats = nats::Private::new()?;
    nats.start()?;
    let server = &postgres.server;
    let (kernel, mut admin) = fresh_database(server, DATABASE).await?;
    if let Some(mutant) = mutant {
        mutant.install(&mut admin).await?;
    }
    let kernel = kernel.on(Arc::new(Nats::connect(&nats.url()).await?));

    // Declared after the servers, so that it is dropped before them, also if we are interrupted.
    let mut crew = Crew::start(&folder, POSTS.map(|role| server.url_of(role, DATABASE)), nats.url())?;
    let (mut dice, mut fate) = (Dice::new(plan.seed), Dice::new(plan.seed.rotate_left(17)));
    let begun = Instant::now();
    let let_loose = tokio::select! {
        let_loose = let_loose(plan, &kernel, &mut admin, &mut dice) => let_loose?,
        killed = crew.kill_for_ever(&mut fate) => match killed? {},
    };
    let took = begun.elapsed();

    let mut figures = account(plan, &mut admin, &let_loose).await?;
    figures.extend(crew.figures(plan));
    figures.push(Figure::new("from the first launch to the last end", took.as_secs_f64(), "s", Bar::None));
    drop(crew);
    if figures.iter().all(|figure| figure.ok) {
        let _ = std::fs::remove_dir_all(&folder);
    } else {
        eprintln!("the logs of its processes are in {}", folder.display());
    }
    Ok(figures)
}

/// Returns the ways to run away. The last line of a script repeats for ever.
fn scripts() -> [(&'static str, Value); 6] {
    let tasks = |names: &[&str]| -> Value {
        names.iter().map(|name| json!({ "target_ref": name, "instruction": "go on" })).collect()
    };
    [
        ("deep", json!({ "delegate_async": { "target_ref": "deep", "instruction": "go on", "wait": true } })),
        ("wide", json!({ "fork_join": { "tasks": tasks(&["wide", "deep", "stubborn", "forgetful"]) } })),
        // The first task that fails stops the others, with everything that they have delegated.
        (
            "racing",
            json!({ "fork_join": { "tasks": tasks(&["stubborn", "racing", "wide", "deep"]), "fail_fast": true } }),
        ),
        ("hasty", json!({ "fork_join": { "tasks": tasks(&["hasty", "deep", "forgetful"]), "deadline_seconds": 0.7 } })),
        ("stubborn", json!({ "no_such_tool": {} })),
        ("forgetful", json!({ "delegate_async": { "target_ref": "forgetful", "instruction": "go on" } })),
    ]
}

async fn found(kernel: &Kernel, max_recursion_depth: u32) -> Result<ProjectId> {
    let scripts = scripts();
    let names: Vec<&str> = scripts.iter().map(|(name, _)| *name).collect();
    let mut documents = vec![json!({ "settings": { "max_recursion_depth": max_recursion_depth } })];
    documents.extend(scripts.iter().map(|(name, call)| {
        json!({ "profile": {
            "name": name, "worker_target": "llm", "system_prompt_template": "You never stop.",
            "allowed_internal_tools": ["delegate_async", "fork_join"], "delegation_policy": { "target_profiles": names },
            "llm_config": { "provider": "demo", "model": "demo", "params": { "script": [{ "say": "On.", "call": call }] } },
        } })
    }));
    let project_id = ProjectId::new();
    let mut work = kernel.begin(project_id).await?;
    project::create(&mut work, &format!("runaway-{}", project_id.to_string().replace('-', ""))).await?;
    let documents: Vec<_> = documents.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?;
    resource::apply(&mut work, &documents).await?;
    work.commit().await?;
    Ok(project_id)
}

/// The roots, and what was observed while they ran.
struct LetLoose {
    limits: HashMap<TurnId, Limits>,
    /// The largest number of open turns without a budget at one moment.
    unlimited: i64,
}

#[derive(FromRow)]
struct Seen {
    turns: i64,
    open: i64,
    unlimited: i64,
    over: bool,
}

/// Launches roots until there are as many agents as planned, and waits until all have ended, or until `patience` runs out.
async fn let_loose(plan: &Plan, kernel: &Kernel, admin: &mut PgConnection, dice: &mut Dice) -> Result<LetLoose> {
    let mut projects = Vec::new();
    for depth in DEPTHS {
        projects.push(found(kernel, depth).await?);
    }
    let names: Vec<Name> = scripts().iter().map(|(name, _)| name.parse()).collect::<Result<_, _>>()?;
    let (begun, mut let_loose) = (Instant::now(), LetLoose { limits: HashMap::new(), unlimited: 0 });
    let bar = progress("chaos budgets", plan.agents as u64);
    loop {
        // A turn's budget is made and removed in the transactions that begin and end the turn.
        let seen: Seen = sqlx::query_as(
            "select count(*) as turns, count(*) filter (where t.status = 'open') as open,
                    count(*) filter (where t.status = 'open' and b.agent_turn_id is null) as unlimited,
                    count(*) filter (where t.status = 'open') = 0
                    and not exists (select from state.waiting_calls)
                    and not exists (select from state.pmo_batches where status = 'open' or stopping) as over
               from state.turns t
               left join state.budgets b on b.project_id = t.project_id and b.agent_turn_id = t.agent_turn_id",
        )
        .fetch_one(&mut *admin)
        .await?;
        let_loose.unlimited = let_loose.unlimited.max(seen.unlimited);
        bar.set_position(seen.turns.unsigned_abs());
        let enough = seen.turns.unsigned_abs() >= plan.agents as u64;
        if enough && seen.over || begun.elapsed() > plan.patience {
            bar.finish_and_clear();
            return Ok(let_loose);
        }
        let wanted = if enough { 0 } else { OPEN - seen.open };
        for _ in 0..wanted.clamp(0, 8) {
            let n = let_loose.limits.len();
            let mut work = kernel.begin(projects[n % projects.len()]).await?;
            let limits = Limits {
                steps: Some(10 + dice.one_of(51) as u32),
                tokens: dice.chance(0.3).then(|| 3_000 + dice.one_of(17_001) as u32),
                ..Limits::default()
            };
            let name = names[dice.one_of(names.len())].clone();
            let root = launch(&mut work, &Launch { limits: Some(limits), ..Launch::new(name, "go on") }).await?;
            work.commit().await?;
            let_loose.limits.insert(root.agent_turn_id, limits);
        }
        sleep(Duration::from_millis(250)).await;
    }
}

#[derive(FromRow)]
struct Tree {
    root: TurnId,
    steps: i64,
    tokens: i64,
    /// The tokens of its most expensive step.
    dearest: i64,
}

const TREES: &str = "
  with recursive tree (root, project_id, agent_turn_id) as (
    select t.agent_turn_id, t.project_id, t.agent_turn_id from state.turns t where t.parent_agent_turn_id is null
     union all
    select r.root, t.project_id, t.agent_turn_id
      from tree r
      join state.turns t on t.project_id = r.project_id and t.parent_agent_turn_id = r.agent_turn_id
  )
  select r.root, count(s.step_id) as steps, coalesce(sum(s.input_tokens + s.output_tokens), 0)::bigint as tokens,
         coalesce(max(s.input_tokens + s.output_tokens), 0)::bigint as dearest
    from tree r
    left join state.agent_steps s on s.project_id = r.project_id and s.agent_turn_id = r.agent_turn_id and s.model is not null
   group by r.root";

/// Each must be 0.
const WRONG: [(&str, &str); 4] = [
    ("turns that have not ended", "select count(*) from state.turns where status = 'open'"),
    ("budgets that are left", "select count(*) from state.budgets"),
    (
        "turns that did not end with one deliverable",
        "select count(*)
           from state.turns t
          where t.deliverable_card_id is null
             or 1 <> (select count(*) from cardbox.box_entries e
                        join cardbox.cards c on c.project_id = e.project_id and c.card_id = e.card_id
                       where e.project_id = t.project_id and e.box_id = t.output_box_id and c.type = 'task.deliverable')",
    ),
    (
        "calls, batches and inbox rows that are left",
        "select (select count(*) from state.waiting_calls) + (select count(*) from state.agent_inbox)
              + (select count(*) from state.pmo_batches where status = 'open' or stopping)",
    ),
];

/// Reported, not judged.
const COUNTED: [(&str, &str, &str); 5] = [
    (
        "turns that ended at their limit",
        "turns",
        "select count(*) from state.turns t
           join cardbox.cards c on c.project_id = t.project_id and c.card_id = t.deliverable_card_id
          where c.content ->> 'reason' = 'limit_reached'",
    ),
    ("turns that were stopped with their batch", "turns", "select count(*) from state.turns where status = 'canceled'"),
    (
        "refused with budget_exhausted",
        "spawns",
        "select (select count(*) from cardbox.cards c
                  where c.type = 'tool.result' and c.content -> 'result' -> 'error' ->> 'code' = 'budget_exhausted')
              + (select count(*) from state.pmo_batch_tasks where error = 'budget_exhausted')",
    ),
    (
        "refused with recursion_depth_exceeded",
        "spawns",
        "select count(*) from cardbox.cards c
          where c.type = 'tool.result' and c.content -> 'result' -> 'error' ->> 'code' = 'recursion_depth_exceeded'",
    ),
    (
        "deadlocks that the database ended",
        "deadlocks",
        "select deadlocks from pg_stat_database where datname = current_database()",
    ),
];

async fn account(plan: &Plan, admin: &mut PgConnection, let_loose: &LetLoose) -> Result<Vec<Figure>> {
    let count = async |admin: &mut PgConnection, what: &str, sql: &'static str| -> Result<f64> {
        Ok(sqlx::query_scalar::<_, i64>(sql).fetch_one(admin).await.with_context(|| what.to_owned())? as f64)
    };
    let turns = count(admin, "turns", "select count(*) from state.turns").await?;
    let trees: Vec<Tree> = sqlx::query_as(TREES).fetch_all(&mut *admin).await?;
    let limited = |tree: &Tree| let_loose.limits.get(&tree.root).copied().unwrap_or_default();
    let beyond = |tree: &Tree| tree.steps - limited(tree).steps.map_or(0, i64::from);
    // In units of the most expensive step of the tree.
    let dear = |tree: &Tree| {
        let over = tree.tokens - i64::from(limited(tree).tokens?);
        Some(over.max(0) as f64 / tree.dearest.max(1) as f64)
    };
    let (steps, given) = trees
        .iter()
        .fold((0, 0), |(steps, given), tree| (steps + tree.steps, given + limited(tree).steps.map_or(0, i64::from)));
    let none = Bar::AtMost(0.0);
    let most = |overshoot: &mut dyn Iterator<Item = f64>| overshoot.fold(0.0, f64::max);
    let steps_over = most(&mut trees.iter().map(|tree| beyond(tree) as f64));
    let tokens_over = most(&mut trees.iter().filter_map(dear));
    let n_over = trees.iter().filter(|tree| beyond(tree) > 0).count();
    let n_dear = trees.iter().filter_map(dear).filter(|over| *over > 1.0).count();
    let mut figures = vec![
        Figure::new("agents, in all trees", turns, "turns", Bar::AtLeast(plan.agents as f64)),
        Figure::new("trees", trees.len() as f64, "roots", Bar::None),
        Figure::new("largest overshoot of steps in a tree", steps_over, "steps", Bar::AtMost(1.0)),
        Figure::new("trees that took more steps than their limit", n_over as f64, "roots", Bar::None),
        Figure::new("largest overshoot of tokens in a tree", tokens_over, "steps", Bar::AtMost(1.0)),
        Figure::new("trees more than one step beyond their tokens", n_dear as f64, "roots", none),
        Figure::new("open turns at once that no limit held", let_loose.unlimited as f64, "turns", none),
    ];
    for (what, sql) in WRONG {
        figures.push(Figure::new(what, count(admin, what, sql).await?, "rows", none));
    }
    figures.push(Figure::new("steps taken", steps as f64, "steps", Bar::None));
    figures.push(Figure::new("steps taken ÷ steps given", steps as f64 / given.max(1) as f64, "ratio", Bar::None));
    for (what, unit, sql) in COUNTED {
        figures.push(Figure::new(what, count(admin, what, sql).await?, unit, Bar::None));
    }
    Ok(figures)
}

/// Workers and orchestrators, each this same binary. They end when this value is dropped, and also if our own process is killed.
struct Crew {
    posts: Vec<Post>,
    /// Kills its process group, which contains all of them, as soon as our process ends.
    warden: Child,
    program: PathBuf,
    folder: PathBuf,
    nats_url: String,
}

struct Post {
    role: &'static str,
    database_url: String,
    child: Option<Child>,
    kills: u64,
    /// How often the process ended by itself, which must not happen.
    died: u64,
}

impl Crew {
    fn start(folder: &Path, database_urls: [String; POSTS.len()], nats_url: String) -> Result<Crew> {
        let warden = Command::new("sh")
            .args(["-c", "read nothing; kill -9 0"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start the warden")?;
        let post = |(role, database_url)| Post { role, database_url, child: None, kills: 0, died: 0 };
        let posts = POSTS.into_iter().zip(database_urls).map(post).collect();
        let program = waybill()?;
        let mut crew = Crew { posts, warden, program, folder: folder.to_owned(), nats_url };
        for place in 0..crew.posts.len() {
            crew.man(place)?;
        }
        Ok(crew)
    }

    fn man(&mut self, place: usize) -> Result<()> {
        let post = &mut self.posts[place];
        let log = self.folder.join(format!("{}-{place}.log", post.role));
        let log = File::options().create(true).append(true).open(log)?;
        let child = Command::new(&self.program)
            .args([post.role, "--lease", LEASE])
            .env("WAYBILL_DATABASE_URL", &post.database_url)
            .env("WAYBILL_NATS_URL", &self.nats_url)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(i32::try_from(self.warden.id())?)
            .spawn()
            .context("cannot start a process of the storm")?;
        post.child = Some(child);
        Ok(())
    }

    /// Kills random processes at random times, one after the other, and restarts each soon.
    async fn kill_for_ever(&mut self, dice: &mut Dice) -> Result<Infallible> {
        loop {
            sleep(dice.between(Duration::from_millis(100), Duration::from_millis(1_500))).await;
            let place = dice.one_of(self.posts.len());
            self.posts[place].kill();
            sleep(dice.between(Duration::ZERO, Duration::from_millis(300))).await;
            self.man(place)?;
        }
    }

    fn figures(&mut self, plan: &Plan) -> [Figure; 4] {
        let kills = |role| self.posts.iter().filter(|post| post.role == role).map(|post| post.kills).sum::<u64>();
        let (workers, orchestrators) = (kills("worker"), kills("orchestrator"));
        let died: u64 = self.posts.iter_mut().map(|post| post.died + u64::from(post.has_ended())).sum();
        let logs = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let unsaid = |text: String| text.lines().filter(|line| UNSAID.iter().any(|said| line.contains(said))).count();
        let unsaid: usize = logs.map(|log| unsaid(std::fs::read_to_string(log.path()).unwrap_or_default())).sum();
        let least = |share: u64| Bar::AtLeast((plan.kills * share / 10) as f64);
        [
            Figure::new("kills of workers", workers as f64, "kills", least(6)),
            Figure::new("kills of orchestrators", orchestrators as f64, "kills", least(3)),
            Figure::new("processes that ended by themselves", died as f64, "processes", Bar::AtMost(0.0)),
            Figure::new("lines in the logs of what must not be", unsaid as f64, "lines", Bar::AtMost(0.0)),
        ]
    }
}

impl Post {
    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    fn kill(&mut self) {
        self.died += u64::from(self.has_ended());
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            self.kills += 1;
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.posts.iter_mut().for_each(Post::kill);
        drop(self.warden.stdin.take());
        let _ = self.warden.wait();
    }
}

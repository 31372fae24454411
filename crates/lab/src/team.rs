//! A team at work: a principal forks three associates, asks an expert and submits, run by a real worker process against the scripted model.
//! The process is killed at every step boundary and at random instants, and the result is compared with a run without kills: what was delivered, and
//! what was paid. A second piece has one agent that writes until its context is compacted, with some summaries that gain nothing.

use std::{
    collections::{BTreeMap, HashMap},
    future::pending,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, bail};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::{sync::Notify, task::JoinSet, time::sleep};
use waybill_bus::nats::Nats;
use waybill_core::{
    card::Draft,
    id::{ProjectId, StepId, TurnId},
    turn::MessageType,
};
use waybill_kernel::{
    call::ClaimedCall,
    intake::{Config as Hands, Intake},
    project, resource,
    retry::Transient,
    sweep,
    turn::{self, Report},
    work::Kernel,
};
use waybill_orchestrator::replay;
use waybill_orchestrator::{
    command,
    launch::{Launch, launch},
    watch,
};
use waybill_services::{Home, Private, nats};

use crate::{
    bench::fresh_database,
    bench::progress,
    figure::{Bar, Figure},
    model::{Asked, Entry, Pace, Reply, Server},
    storm::dice::Dice,
};

/// How many kills, and of which piece.
#[derive(Clone, Debug)]
pub struct Options {
    /// `waybill` itself.
    pub program: PathBuf,
    pub piece: Piece,
    pub adapters: Vec<&'static str>,
    /// Kills at random instants, for each adapter.
    pub random: usize,
    pub lease: Duration,
    pub seed: u64,
}

pub const ADAPTERS: [&str; 3] = ["openai_chat", "openai_responses", "anthropic_messages"];
const DATABASE: &str = "waybill_team";

/// The piece that is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A principal, three associates and an expert.
    Team,
    /// One agent that writes until its context is compacted.
    Compaction,
}

impl Piece {
    const fn root(self) -> &'static str {
        match self {
            Piece::Team => "principal",
            Piece::Compaction => "scribe",
        }
    }

    /// Returns the number of model calls of one run, and the least number of additional calls for summaries.
    const fn calls(self) -> (usize, usize) {
        match self {
            Piece::Team => (10, 0),
            Piece::Compaction => (ROUNDS + 1, 3),
        }
    }
}

/// How often the scribe looks something up.
const ROUNDS: usize = 12;
/// The prefix of the idempotency key of a request for a summary.
const SUMMARY: &str = "waybill-summary-";
/// A run that takes longer counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// When the worker is killed: at the beginning or end of a call, counted from the run's first, or after a time.
#[derive(Clone, Copy, Debug)]
enum Kill {
    Asked(usize),
    Answered(usize),
    After(Duration),
}

/// Runs the team without kills and with kills.
pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    eprintln!("{:?}: seed {}", options.piece, options.seed);
    let mut house = House::open(options).await?;
    let mut dice = Dice::new(options.seed);
    let mut sums = Sums::default();
    for adapter in &options.adapters {
        house.hire(adapter)?;
        house.play(None).await?; // warms up connections and plans
        let peace = house.play(None).await?;
        let (n_calls, n_summaries) = options.piece.calls();
        let n_summarised = peace.entries.iter().filter(|entry| is_summary(entry)).count();
        if peace.entries.len() - n_summarised != n_calls || n_summarised < n_summaries {
            bail!(
                "{adapter}: a run in peace took {} calls and {n_summarised} summaries, not {n_calls} and at least {n_summaries}: {}",
                peace.entries.len() - n_summarised,
                peace.deliverable
            );
        }
        if n_summaries > 0 && !(1..n_summarised).contains(&peace.n_unused) {
            bail!(
                "{adapter}: {} of {n_summarised} summaries were not used: some are to be, and some not",
                peace.n_unused
            );
        }
        sums.pay(&peace);
        let boundaries = (0..peace.entries.len()).flat_map(|n| [Kill::Asked(n), Kill::Answered(n)]);
        let random = (0..options.random).map(|_| Kill::After(dice.between(Duration::ZERO, peace.took)));
        let kills: Vec<Kill> = boundaries.chain(random).collect();
        let bar = progress(&format!("{adapter}: killed while it works"), kills.len() as u64);
        for kill in kills {
            let run = house.play(Some(kill)).await.with_context(|| format!("{adapter}, killed at {kill:?}"))?;
            sums.add(&peace, &run, kill);
            bar.inc(1);
        }
        bar.finish_and_clear();
    }
    Ok(sums.figures(options.lease))
}

/// The outcome of one run.
struct Run {
    deliverable: Value,
    /// The number of cards that each turn wrote, in order of creation.
    cards: Vec<i64>,
    entries: Vec<Entry>,
    /// When the answer to each key was committed.
    written: HashMap<String, SystemTime>,
    killed_at: Option<SystemTime>,
    n_receipts: usize,
    /// Receipts that do not render to the same bytes.
    n_broken: usize,
    /// Tokens on the steps of all its turns.
    n_stepped: u64,
    /// Steps that record only the cost of a summary that was not used.
    n_unused: usize,
    took: Duration,
}

fn is_summary(entry: &Entry) -> bool {
    entry.key.as_ref().is_some_and(|key| key.starts_with(SUMMARY))
}

#[derive(Default)]
struct Sums {
    kills: usize,
    missed: usize,
    other_deliverables: usize,
    other_cards: usize,
    asked_after_written: usize,
    repeats: usize,
    /// Repeated calls without a kill between answer and commit.
    unexplained: usize,
    receipts: usize,
    broken: usize,
    resumed: Vec<f64>,
    n_paid: u64,
    n_paid_again: u64,
    n_stepped: u64,
    /// Runs in which the tokens of steps and of repeated answers do not add up to what was paid.
    uneven: usize,
}

impl Sums {
    /// Compares payments: each token that the model server was paid for is on a step, or on an answer that was lost and asked for again under
    /// the same key.
    fn pay(&mut self, run: &Run) {
        let mut keys: BTreeMap<Option<&str>, Vec<&Entry>> = BTreeMap::new();
        for entry in &run.entries {
            keys.entry(entry.key.as_deref()).or_default().push(entry);
        }
        let n_paid: u64 = run.entries.iter().map(|entry| entry.n_tokens).sum();
        // Only the last answer of each key can be on a step.
        let n_again: u64 = keys.values().flat_map(|asked| asked.iter().rev().skip(1)).map(|entry| entry.n_tokens).sum();
        if n_paid != run.n_stepped + n_again {
            eprintln!("{n_paid} tokens paid; {} on steps, {n_again} asked for again", run.n_stepped);
            self.uneven += 1;
        }
        self.n_paid += n_paid;
        self.n_paid_again += n_again;
        self.n_stepped += run.n_stepped;
    }

    fn add(&mut self, peace: &Run, run: &Run, kill: Kill) {
        let Some(killed_at) = run.killed_at else {
            self.missed += 1;
            return;
        };
        self.kills += 1;
        self.pay(run);
        if run.deliverable != peace.deliverable || run.cards != peace.cards {
            eprintln!("killed at {kill:?}: {} and {:?} cards", run.deliverable, run.cards);
        }
        self.other_deliverables += usize::from(run.deliverable != peace.deliverable);
        self.other_cards += usize::from(run.cards != peace.cards);
        let mut keys: HashMap<&str, Vec<&Entry>> = HashMap::new();
        // Summaries have no receipt, which would show when an answer was committed; their cost is checked above.
        for entry in run.entries.iter().filter(|entry| !is_summary(entry)) {
            keys.entry(entry.key.as_deref().unwrap_or_default()).or_default().push(entry);
        }
        for (key, entries) in keys {
            let written = run.written.get(key);
            self.asked_after_written +=
                entries.iter().filter(|entry| written.is_none_or(|at| entry.asked_at > *at)).count();
            let answered = entries[0].answered_at.is_some_and(|at| at <= killed_at);
            // The worker that resumes the turn repeats the calls that were in flight.
            let again = entries[1..].iter().filter_map(|entry| entry.asked_at.duration_since(killed_at).ok());
            self.resumed.extend(again.map(|after| after.as_secs_f64()));
            let is_repeated = answered && entries.len() > 1;
            self.repeats += usize::from(is_repeated);
            // The opposite is no fault: a commit that was under way at the kill is written after it, and no call is repeated. An answer that was
            // neither written nor asked for again shows in what was paid.
            self.unexplained += usize::from(is_repeated && written.is_some_and(|at| *at <= killed_at));
        }
        self.receipts += run.n_receipts;
        self.broken += run.n_broken;
    }

    fn figures(mut self, lease: Duration) -> Vec<Figure> {
        self.resumed.sort_by(f64::total_cmp);
        let p99 =
            self.resumed.get((self.resumed.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default();
        let count = |what: &str, n: usize| Figure::new(what, n as f64, "runs", Bar::AtMost(0.0));
        let none = |what: &str, n: usize, unit| Figure::new(what, n as f64, unit, Bar::AtMost(0.0));
        vec![
            Figure::new("workers killed", self.kills as f64, "kills", Bar::AtLeast(1.0)),
            Figure::new("runs that were over before their kill", self.missed as f64, "runs", Bar::None),
            count("deliverables that differ from a run in peace", self.other_deliverables),
            count("runs with other cards than a run in peace", self.other_cards),
            none("calls made again whose answer was written down", self.asked_after_written, "calls"),
            Figure::new("answers asked for again", self.repeats as f64, "calls", Bar::None),
            none("those without a kill between answer and commit", self.unexplained, "calls"),
            Figure::new("receipts", self.receipts as f64, "receipts", Bar::AtLeast(1.0)),
            none("receipts that do not render to the same bytes", self.broken, "receipts"),
            Figure::new("tokens that the model server was paid for", self.n_paid as f64, "tokens", Bar::AtLeast(1.0)),
            Figure::new("tokens on steps", self.n_stepped as f64, "tokens", Bar::AtLeast(1.0)),
            Figure::new("tokens of answers asked for again", self.n_paid_again as f64, "tokens", Bar::None),
            none(
                "tokens paid for, less those on steps and of answers asked for again",
                usize::try_from(self.n_paid.abs_diff(self.n_stepped + self.n_paid_again)).unwrap_or(usize::MAX),
                "tokens",
            ),
            count("runs in which these differ", self.uneven),
            Figure::new("kill to resumed, p99", p99, "s", Bar::AtMost(2.0 * lease.as_secs_f64() + 2.0)),
        ]
    }
}

/// The current worker process.
#[derive(Default)]
struct Hand {
    child: Option<Child>,
    /// The entry of the ledger at which it is killed, and whether after the answer (true) or at the request (false).
    at: Option<(usize, bool)>,
    killed_at: Option<SystemTime>,
}

impl Hand {
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            self.killed_at = Some(SystemTime::now());
            let _ = child.wait();
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.kill();
    }
}

struct House {
    options: Options,
    folder: PathBuf,
    kernel: Kernel,
    admin: PgConnection,
    project_id: ProjectId,
    hand: Arc<Mutex<Hand>>,
    killed: Arc<Notify>,
    server: Server,
    _crew: JoinSet<()>,
    nats: nats::Private,
    private: Private,
}

impl House {
    async fn open(options: &Options) -> Result<House> {
        let private = Private::start().await?;
        let mut nats = nats::Private::new()?;
        nats.start()?;
        let server = Server::start(script).await?;
        let (kernel, admin) = fresh_database(&private.server, DATABASE).await?;
        let kernel = kernel.on(Arc::new(Nats::connect(&nats.url()).await?));
        let project_id = ProjectId::new();
        let mut work = kernel.begin(project_id).await?;
        project::create(&mut work, "team").await?;
        resource::apply(&mut work, &manifests()?).await?;
        work.commit().await?;

        let mut crew = JoinSet::new();
        let (commands, sweeps, tools) = (kernel.clone(), kernel.clone(), kernel.clone());
        let lease = options.lease;
        crew.spawn(async move {
            match command::run(&commands, &command::Config { lease, ..command::Config::default() }).await {}
        });
        crew.spawn(async move {
            let sweep = sweep::Config { lease, ..sweep::Config::default() };
            match watch::run(&sweeps, &watch::Config { sweep, artifacts: None }).await {}
        });
        crew.spawn(search(tools));

        let (hand, killed) = (Arc::new(Mutex::new(Hand::default())), Arc::new(Notify::new()));
        for after in [false, true] {
            let (hand, killed) = (hand.clone(), killed.clone());
            let strike = move |entry: &Entry| {
                let mut hand = locked(&hand);
                if hand.at == Some((entry.n, after)) {
                    hand.kill();
                    killed.notify_one();
                }
            };
            if after { server.on_answered(strike) } else { server.on_asked(strike) }
        }
        let folder = Home::find()?.path("team");
        std::fs::create_dir_all(&folder)?;
        let options = options.clone();
        Ok(House { options, folder, kernel, admin, project_id, hand, killed, server, _crew: crew, nats, private })
    }

    /// Starts a worker process that uses this wire format for model calls.
    fn hire(&self, adapter: &str) -> Result<()> {
        let file = self.folder.join("providers.yaml");
        let provider = json!({ "provider": { "name": "scripted", "adapter": adapter, "base_url": self.server.url() } });
        std::fs::write(&file, provider.to_string())?;
        self.start()
    }

    fn start(&self) -> Result<()> {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.join("worker.log"))?;
        let child = Command::new(&self.options.program)
            .arg("worker")
            .arg("--providers")
            .arg(self.folder.join("providers.yaml"))
            .arg("--lease")
            .arg(self.options.lease.as_secs_f64().to_string())
            .env("WAYBILL_DATABASE_URL", self.private.server.url_of("worker", DATABASE))
            .env("WAYBILL_NATS_URL", self.nats.url())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("the worker cannot be started")?;
        let mut hand = locked(&self.hand);
        hand.kill();
        *hand = Hand { child: Some(child), at: None, killed_at: None };
        Ok(())
    }

    /// Runs the team once. A killed worker is replaced at once.
    async fn play(&mut self, kill: Option<Kill>) -> Result<Run> {
        let from = self.server.n_asked();
        {
            let mut hand = locked(&self.hand);
            hand.killed_at = None;
            hand.at = match kill {
                Some(Kill::Asked(n)) => Some((from + n, false)),
                Some(Kill::Answered(n)) => Some((from + n, true)),
                _ => None,
            };
        }
        let begun = Instant::now();
        let mut work = self.kernel.begin(self.project_id).await?;
        let principal = self.options.piece.root().parse()?;
        let root = launch(&mut work, &Launch::new(principal, "Where is the water?")).await?.agent_turn_id;
        work.commit().await?;
        let mut killed_at = None;
        let mut strike = match kill {
            Some(Kill::After(after)) => Some(begun + after),
            _ => None,
        };
        let deliverable = loop {
            if begun.elapsed() > PATIENCE {
                bail!("the turn did not end within {PATIENCE:?}; its worker's log is in {}", self.folder.display());
            }
            let mut work = self.kernel.begin(self.project_id).await?;
            let turn = turn::show(&mut work, &[root]).await?.pop().context("the turn")?;
            if turn.deliverable_card_id.is_some() {
                break json!({ "status": turn.status, "content": turn::delivered(&mut work, &turn).await? });
            }
            drop(work);
            let next = strike.map_or(Duration::from_millis(10), |at| at.saturating_duration_since(Instant::now()));
            tokio::select! {
                () = self.killed.notified() => {}
                () = sleep(next.min(Duration::from_millis(10))) => {}
            }
            if strike.is_some_and(|at| at <= Instant::now()) {
                strike = None;
                locked(&self.hand).kill();
            }
            let struck = locked(&self.hand).killed_at;
            if struck.is_some() {
                killed_at = struck;
                self.start()?;
            }
        };
        let took = begun.elapsed();
        locked(&self.hand).at = None;
        let entries = self.server.ledger().split_off(from);
        self.account(root, deliverable, entries, killed_at, took).await
    }

    /// Reads the outcome of a run from the database.
    async fn account(
        &mut self,
        root: TurnId,
        deliverable: Value,
        entries: Vec<Entry>,
        killed_at: Option<SystemTime>,
        took: Duration,
    ) -> Result<Run> {
        let cards = sqlx::query_scalar(
            "select b.length
               from state.turns t join cardbox.boxes b on b.box_id = t.output_box_id
              where $1 in (t.agent_turn_id, t.parent_agent_turn_id)
              order by t.agent_turn_id",
        )
        .bind(root)
        .fetch_all(&mut self.admin)
        .await?;
        let (n_stepped, n_unused): (i64, i64) = sqlx::query_as(
            "select coalesce(sum(s.input_tokens::bigint + s.output_tokens), 0)::bigint,
                    count(*) filter (where s.input_tokens is not null and s.to_seq < s.from_seq)
               from state.turns t join state.agent_steps s on s.agent_turn_id = t.agent_turn_id
              where $1 in (t.agent_turn_id, t.parent_agent_turn_id)",
        )
        .bind(root)
        .fetch_one(&mut self.admin)
        .await?;
        let (n_stepped, n_unused) = (u64::try_from(n_stepped)?, usize::try_from(n_unused)?);
        let receipts: Vec<(TurnId, StepId, String, DateTime<Utc>)> = sqlx::query_as(
            "select r.agent_turn_id, r.step_id, r.receipt ->> 'request_hash', s.created_at
               from state.turns t
               join state.receipts r on r.agent_turn_id = t.agent_turn_id
               join state.agent_steps s on s.agent_turn_id = r.agent_turn_id and s.step_id = r.step_id
              where $1 in (t.agent_turn_id, t.parent_agent_turn_id)",
        )
        .bind(root)
        .fetch_all(&mut self.admin)
        .await?;
        let mut n_broken = 0;
        let mut written = HashMap::new();
        for (turn_id, step_id, hash, at) in &receipts {
            let rendered =
                replay::replay(&mut self.kernel.begin(self.project_id).await?, *turn_id, Some(*step_id)).await;
            n_broken += usize::from(rendered.is_err());
            let is_of = |key: &&String| key.contains(&turn_id.to_string()) && key.ends_with(hash.as_str());
            let keys = entries.iter().filter_map(|entry| entry.key.as_ref()).filter(is_of);
            written.extend(keys.map(|key| (key.clone(), SystemTime::from(*at))));
        }
        let n_receipts = receipts.len();
        Ok(Run { deliverable, cards, entries, written, killed_at, n_receipts, n_broken, n_stepped, n_unused, took })
    }
}

fn locked(hand: &Mutex<Hand>) -> MutexGuard<'_, Hand> {
    hand.lock().unwrap_or_else(PoisonError::into_inner)
}

fn manifests() -> Result<Vec<waybill_core::resource::Manifest>> {
    let profile = |name: &str, prompt: &str, more: Value| -> Result<Value> {
        let mut profile = json!({
            "name": name, "worker_target": "llm", "system_prompt_template": prompt,
            "llm_config": { "provider": "scripted", "model": name },
        });
        profile.as_object_mut().context("an object")?.extend(more.as_object().context("an object")?.clone());
        Ok(json!({ "profile": profile }))
    };
    let principal = json!({
        "allowed_internal_tools": ["fork_join", "ask_expert", "submit_result"], "must_end_with": ["submit_result"],
        "delegation_policy": { "target_profiles": ["associate", "expert"] },
    });
    let manifests = [
        json!({ "tool": { "name": "search", "description": "Finds pages.", "target": "web", "effect": "pure" } }),
        profile("principal", "You lead.", principal)?,
        profile("associate", "You look into one part.", json!({ "allowed_tools": ["search"] }))?,
        profile("expert", "You are asked.", json!({}))?,
        profile(
            "scribe",
            "You write much.",
            json!({
                "allowed_tools": ["search"],
                "memory": {
                    "order": "cache_first", "budget": 2_500, "n_pinned": 0,
                    "compaction": { "at_percent": 60, "keep": 300, "least": 100 },
                },
            }),
        )?,
    ];
    Ok(manifests.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?)
}

/// Answers for each agent, from the request alone, so that a repeated request gets the same answer. Words come slowly enough for a kill
/// between two of them.
fn script(asked: &Asked) -> Reply {
    let n_results = asked.messages.iter().filter(|said| said.result_of.is_some()).count();
    let task = |part: &str| json!({ "target_ref": "associate", "instruction": format!("Look into {part}.") });
    let reply = match (asked.model.as_str(), n_results) {
        ("principal", 0) => {
            let tasks = ["rivers", "lakes", "seas"].map(task);
            Reply::call("fork_join", &json!({ "tasks": tasks }))
        }
        ("principal", 1) => {
            let question =
                json!({ "expert_profile": "expert", "question": "Whom do you believe?", "include_history": true });
            Reply::call("ask_expert", &question)
        }
        ("principal", _) => Reply::call("submit_result", &json!({ "result": "There is water in three places." })),
        ("associate", 0) => Reply { text: "Let me look.".into(), ..Reply::call("search", &json!({})) },
        ("associate", _) => Reply::say("There is water."),
        ("scribe", _) => scribe(asked),
        _ => Reply::say("I believe all of them."),
    };
    let pace =
        Pace { before: Duration::from_millis(4), between: Duration::from_millis(2), pieces: 4, ..Pace::default() };
    // Each request has a different cost, so that two mistakes do not cancel each other out.
    let n_input = 100 + u32::try_from(asked.body.to_string().len() % 1_000).unwrap_or_default();
    reply.with_reasoning("Hm.").with_usage(n_input, 50, 10).paced(pace)
}

/// Answers with one page per round, up to `ROUNDS`. Early summaries are empty, later ones are not.
fn scribe(asked: &Asked) -> Reply {
    let said: Vec<&str> = asked.messages.iter().map(|said| said.text.as_str()).collect();
    let round = (1..=ROUNDS).rev().find(|n| said.iter().any(|text| text.contains(&format!("Page {n} ")))).unwrap_or(0);
    if said.iter().any(|text| text.contains("You keep the memory of an agent")) {
        return Reply::say(if round < ROUNDS / 2 { "" } else { "There is water on every page." });
    }
    if round == ROUNDS {
        return Reply::say("It is written.");
    }
    let page = format!("Page {} {}", round + 1, "is about the water. ".repeat(50));
    Reply { text: page, ..Reply::call("search", &json!({})) }
}

/// Serves the tool `search`: every search finds a page.
async fn search(kernel: Kernel) {
    let intake = Intake::<ClaimedCall>::open(&kernel, "web".parse().expect("a target"), Hands::default());
    let calls = intake.serve(pending(), Duration::ZERO, |holding| {
        let kernel = kernel.clone();
        async move { answer(&kernel, &holding.claimed).await.map_err(|error| error.to_string()) }
    });
    calls.await;
}

async fn answer(kernel: &Kernel, call: &ClaimedCall) -> Result<(), turn::Error> {
    let report = Report {
        is_external: false,
        tool_call_id: call.tool_call_id,
        claim_token: Some(call.claim_token),
        message_type: MessageType::ToolResult,
        status: "success".to_owned(),
        card: Draft::tool_result(call.tool_call_id, "success", json!(["a page"])).seal()?,
    };
    loop {
        let reported = async { turn::report(&mut kernel.alone(call.project_id).await?, &report).await };
        match reported.await {
            Err(error) if error.is_transient() => sleep(Duration::from_millis(50)).await,
            Err(turn::Error::Stale(_)) => return Ok(()),
            known => return known.map(|_| ()),
        }
    }
}

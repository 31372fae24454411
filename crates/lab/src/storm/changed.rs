//! Someone who may write the database's tables changes one column of one card at a time (CX-11): the model is asked with what was written, or not at all.
//!
//! Each changed card must be refused by name when a context with it is composed, and `waybill doctor --deep --hashes` must name all changed cards, and
//! no others. Also measured is what the comparison costs.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reqwest::Client;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::net::TcpListener;
use waybill_core::{
    card::{Card, CardType, Content, Draft, NewCard, Role, ToolCall, changed},
    card_box::Span,
    id::{BoxId, CardId, ProjectId, ToolCallId},
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{card, card_box, key, project, work::Kernel};
use waybill_services::{ChildProcess, Private};

use super::dice::Dice;
use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    model::{Asked, Reply, Server},
    serving::serve,
};

#[derive(Clone, Debug)]
pub struct Options {
    pub program: PathBuf,
    pub seed: u64,
    pub changes: usize,
}

const DATABASE: &str = "waybill_changed";
const SLUG: &str = "changed";
/// Cards of the context, and words of each: 40,000 tokens in all.
const CARDS: usize = 200;
const WORDS: usize = 100;
/// Cards that are changed for one run of `waybill doctor`.
const AT_ONCE: usize = 100;
const SAMPLES: usize = 20;
/// Every so many turns make a step first.
const STEPPED: usize = 8;
/// Seconds. Each claim renews it.
const LEASE: u32 = 300;
/// The share of a step that comparing may take.
const MOST_SHARE: f64 = 0.03;

/// What a change does to a row.
const CHANGES: [(&str, &str); 8] = [
    ("content", "content = to_json(coalesce(content #>> '{}', '') || ' not')"),
    ("content of another form", "content = json_build_object('text', content)"),
    ("role", "role = case role when 'user' then 'assistant' else 'user' end"),
    ("type", "type = case when type like 'sys.%' then 'sys.changed' else 'agent.changed' end"),
    ("author", "author_id = coalesce(author_id, '') || 'x'"),
    (
        "tool calls",
        "tool_calls = json_build_array(json_build_object('tool_call_id', gen_random_uuid(), 'tool_name', 'send', 'arguments', '{}'))",
    ),
    ("answered call", "tool_call_id = gen_random_uuid()"),
    ("hash", "hash = set_byte(hash, 7, (get_byte(hash, 7) + 1) % 256)"),
];

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    eprintln!("chaos hashes: seed {}", options.seed);
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let desk = Desk::open(&kernel, &options.program, &private.server.service_url(DATABASE)).await?;
    // Past every trigger, as a superuser can.
    sqlx::raw_sql("set session_replication_role = replica").execute(&mut admin).await?;
    let mut dice = Dice::new(options.seed);
    let (share, n_tokens) = desk.share().await?;

    let (mut composed, mut unnamed) = (0, 0);
    let bar = progress("changes", options.changes as u64);
    for n in 0..options.changes {
        let turn = desk.claim(n % STEPPED == 0).await?;
        let card_id = turn.seen[dice.one_of(turn.seen.len())];
        let (what, change) = CHANGES[n % CHANGES.len()];
        let before = apply(&mut admin, card_id, change).await.with_context(|| format!("{what} of card {card_id}"))?;
        let answer = desk.compose(&turn).await?;
        restore(&mut admin, &[(card_id, before)]).await?;
        let said = desk.outcome(&turn).await?.to_string();
        if answer["next"] == "ask" {
            eprintln!("composed although {what} of card {card_id} was changed");
            composed += 1;
            desk.stop(&turn).await?;
        } else if !said.contains("card_changed") || !said.contains(&card_id.to_string()) {
            eprintln!("{what} of card {card_id}: {answer} {said}");
            unnamed += 1;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let turn = desk.claim(true).await?;
    let answer = desk.compose(&turn).await?;
    ensure!(answer["next"] == "ask", "with all cards as they were written: {answer}");

    let all: Vec<CardId> =
        sqlx::query_scalar("select card_id from cardbox.cards order by card_id").fetch_all(&mut admin).await?;
    let (mut n_changed, mut unfound, mut accused) = (0, 0, 0);
    let bar = progress("changes for the doctor", options.changes as u64);
    while n_changed < options.changes {
        let (mut wrong, mut before) = (BTreeSet::new(), Vec::new());
        while wrong.len() < AT_ONCE.min(options.changes - n_changed) {
            let card_id = all[dice.one_of(all.len())];
            if wrong.insert(card_id) {
                let change = CHANGES[(n_changed + wrong.len()) % CHANGES.len()].1;
                before.push((card_id, apply(&mut admin, card_id, change).await?));
            }
        }
        let named = desk.doctor()?;
        unfound += wrong.difference(&named).count();
        accused += named.difference(&wrong).count();
        n_changed += wrong.len();
        restore(&mut admin, &before).await?;
        bar.set_position(n_changed as u64);
    }
    bar.finish_and_clear();
    let at_rest = desk.doctor()?.len();
    let none = Bar::AtMost(0.0);
    Ok(vec![
        Figure::new("cards changed one at a time", options.changes as f64, "cards", Bar::AtLeast(1.0)),
        Figure::new("contexts composed with a changed card", f64::from(composed), "contexts", none),
        Figure::new("contexts refused without naming the card", f64::from(unnamed), "contexts", none),
        Figure::new("cards changed for doctor --deep --hashes", n_changed as f64, "cards", Bar::AtLeast(1.0)),
        Figure::new("changed cards that it does not name", unfound as f64, "cards", none),
        Figure::new("unchanged cards that it names", (accused + at_rest) as f64, "cards", none),
        Figure::new("tokens of a context", n_tokens as f64, "tokens", Bar::AtLeast(39_000.0)),
        Figure::new(
            "comparing its cards with their hashes ÷ a step over HTTP",
            share,
            "ratio",
            Bar::AtMost(MOST_SHARE),
        ),
    ])
}

/// Changes a card, and returns the row as it was.
async fn apply(admin: &mut PgConnection, card_id: CardId, change: &'static str) -> Result<Value> {
    let before = sqlx::query_scalar(
        "select to_jsonb(c) || jsonb_build_object('hash', encode(c.hash, 'hex'), 'content', c.content::text, 'tool_calls', c.tool_calls::text) from cardbox.cards c where card_id = $1",
    );
    let before = before.bind(card_id).fetch_one(&mut *admin).await?;
    let sql = format!("update cardbox.cards set {change} where card_id = $1");
    let done = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(card_id).execute(admin).await?;
    ensure!(done.rows_affected() == 1, "{} rows were changed", done.rows_affected());
    Ok(before)
}

async fn restore(admin: &mut PgConnection, before: &[(CardId, Value)]) -> Result<()> {
    let sql = "update cardbox.cards c
                  set content = ($2 ->> 'content')::json, role = $2 ->> 'role', type = $2 ->> 'type', author_id = $2 ->> 'author_id',
                      tool_calls = ($2 ->> 'tool_calls')::json, tool_call_id = ($2 ->> 'tool_call_id')::uuid, hash = decode($2 ->> 'hash', 'hex')
                where c.card_id = $1";
    for (card_id, row) in before {
        sqlx::query(sql).bind(card_id).bind(row).execute(&mut *admin).await?;
    }
    Ok(())
}

/// A turn that was claimed over HTTP, and the cards of its context.
struct Turn {
    claimed: Value,
    seen: Vec<CardId>,
}

impl Turn {
    fn path(&self, what: &str) -> String {
        format!("/turns/{}{what}", self.claimed["agent_turn_id"].as_str().unwrap_or_default())
    }
}

/// A server, and a worker that claims turns from it.
struct Desk {
    program: PathBuf,
    database_url: String,
    http: Client,
    url: String,
    key: String,
    box_id: BoxId,
    kernel: Kernel,
    project_id: ProjectId,
    // End with it.
    model: Server,
    _process: ChildProcess,
}

impl Desk {
    async fn open(kernel: &Kernel, program: &Path, database_url: &str) -> Result<Desk> {
        let model = Server::start(|_: &Asked| Reply::say("I look.").and_call("read_plan", &json!({}))).await?;
        let mut work = kernel.begin(ProjectId::new()).await?;
        let project_id = work.project_id();
        project::create(&mut work, SLUG).await?;
        let key = ApiKey::mint("test");
        key::create(&mut work, &key, &"admin".parse()?, Scope::Admin, &Bounds::default(), None).await?;
        let (box_id, cards) = (BoxId::new(), conversation()?);
        card::insert(&mut work, &cards).await?;
        card_box::create(&mut work, &[box_id]).await?;
        card_box::append(&mut work, box_id, &cards.iter().map(NewCard::card_id).collect::<Vec<_>>()).await?;
        work.commit().await?;

        let folder = std::env::temp_dir().join(format!("waybill-chaos-hashes-{}.yaml", std::process::id()));
        let provider = json!({ "name": "model", "adapter": "openai_chat", "base_url": model.url() });
        std::fs::write(&folder, format!("provider: {provider}\n"))?;
        let address = format!("127.0.0.1:{}", TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port());
        let process = serve(program, &address, database_url, &[OsStr::new("--providers"), folder.as_os_str()]).await;
        std::fs::remove_file(&folder)?;
        let desk = Desk {
            program: program.to_owned(),
            database_url: database_url.to_owned(),
            http: Client::builder().no_proxy().build()?,
            url: format!("http://{address}/v1/projects/{SLUG}"),
            key: key.expose().to_owned(),
            box_id,
            kernel: kernel.clone(),
            project_id,
            model,
            _process: process?,
        };
        let profile = json!({
            "name": "clerk", "worker_target": "desk", "system_prompt_template": "You read.",
            "llm_config": { "provider": "model", "model": "m" }, "allowed_internal_tools": ["read_plan"],
        });
        desk.ask("/resources", &json!({ "manifests": [{ "profile": profile }] })).await?;
        Ok(desk)
    }

    /// Starts and claims a turn. With `steps`, it makes a step: then there are cards in its output box, and its prompt is read and not made.
    async fn claim(&self, steps: bool) -> Result<Turn> {
        let start =
            json!({ "profile_name": "clerk", "instruction": "Which plan holds?", "context_box_ids": [self.box_id] });
        self.ask("/turns", &start).await?;
        let claim = json!({ "worker": "desk", "target": "desk", "wait_seconds": 10, "lease_seconds": LEASE });
        let mut turn = Turn { claimed: self.ask("/worker/claim", &claim).await?["turns"][0].clone(), seen: Vec::new() };
        turn.seen = self.context().await?.iter().map(|card| card.card_id).collect();
        if !steps {
            return Ok(turn);
        }
        let receipt = self.step(&turn).await?;
        for name in ["system_prompt_card_id", "tools_card_id"] {
            turn.seen.push(serde_json::from_value(receipt[name].clone())?);
        }
        turn.seen.extend(serde_json::from_value::<Vec<CardId>>(receipt["query_card_ids"].clone())?);
        let output: Span = serde_json::from_value(self.compose(&turn).await?["receipt"]["output"].clone())?;
        ensure!(output.upto >= 2, "the step wrote nothing: {output:?}");
        turn.seen.extend(self.read(output).await?.iter().map(|card| card.card_id));
        Ok(turn)
    }

    /// Makes a step of a turn: composes, asks the model, and reports its answer. Returns the receipt.
    async fn step(&self, turn: &Turn) -> Result<Value> {
        let composed = self.compose(turn).await?;
        let receipt = &composed["receipt"];
        let request = composed["request"].as_str().context("no request")?.to_owned();
        let sent = self.http.post(format!("{}/chat/completions", self.model.url())).body(request);
        // As a stream, which is what was asked for.
        let response = sent.send().await?.error_for_status()?.text().await?;
        let [step_id, seal] = ["step_id", "seal"].map(|key| &composed[key]);
        let answer = json!({
            "fence": turn.claimed["fence"], "step_id": step_id, "receipt": receipt, "seal": seal, "response": response,
        });
        let taken = self.ask(&turn.path("/answer"), &answer).await?;
        ensure!(taken["next"] == "again", "{taken}");
        Ok(receipt.clone())
    }

    async fn post(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        let asked = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.key).json(body).send().await?;
        Ok((asked.status().as_u16(), asked.json().await?))
    }

    async fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let (status, answer) = self.post(path, body).await?;
        ensure!(status < 300, "POST {path}: {status} {answer}");
        Ok(answer)
    }

    async fn compose(&self, turn: &Turn) -> Result<Value> {
        self.ask(&turn.path("/compose"), &json!({ "fence": turn.claimed["fence"] })).await
    }

    async fn stop(&self, turn: &Turn) -> Result<Value> {
        self.ask(&turn.path("/stop"), &json!({ "reason": "next" })).await
    }

    /// Returns what a turn delivered.
    async fn outcome(&self, turn: &Turn) -> Result<Value> {
        let asked = self.http.get(format!("{}{}", self.url, turn.path(""))).bearer_auth(&self.key).send().await?;
        Ok(asked.json::<Value>().await?["deliverable"].clone())
    }

    async fn read(&self, span: Span) -> Result<Vec<Card>> {
        let mut work = self.kernel.begin(self.project_id).await?;
        let placed = card_box::read(&mut work, span, None).await?;
        Ok(placed.into_iter().filter_map(|placed| placed.reading.into_live()).collect())
    }

    async fn context(&self) -> Result<Vec<Card>> {
        self.read(Span::prefix(self.box_id, CARDS as i64)).await
    }

    /// Lists the cards that `waybill doctor --deep --hashes` names.
    fn doctor(&self) -> Result<BTreeSet<CardId>> {
        let mut command = Command::new(&self.program);
        command.args(["doctor", "--deep", "--hashes", "--json"]).env("WAYBILL_DATABASE_URL", &self.database_url);
        let output = command.env_remove("WAYBILL_NATS_URL").output()?;
        let said: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let check = said["checks"].as_array().into_iter().flatten().find(|check| check["check"] == CHECK);
        let ok = check.with_context(|| format!("no such check: {said}"))?["ok"] == true;
        let broken = said["broken"].as_array().into_iter().flatten().filter(|broken| broken["invariant"] == CHECK);
        let named: BTreeSet<CardId> = broken
            .flat_map(|broken| broken["subjects"].as_array().into_iter().flatten())
            .map(|subject| serde_json::from_value(subject.clone()))
            .collect::<Result<_, _>>()?;
        ensure!(ok == named.is_empty(), "{said}");
        Ok(named)
    }

    /// Returns the share of a step that comparing takes, and how many tokens the context has.
    async fn share(&self) -> Result<(f64, i64)> {
        let cards = self.context().await?;
        let (mut comparing, mut stepping) = (Vec::new(), Vec::new());
        let mut n_tokens = 0;
        for _ in 0..SAMPLES {
            let begun = Instant::now();
            ensure!(changed(&cards).is_empty(), "a card is changed");
            comparing.push(begun.elapsed());
            let turn = self.claim(false).await?;
            let begun = Instant::now();
            n_tokens = self.step(&turn).await?["n_tokens"].as_i64().unwrap_or_default();
            stepping.push(begun.elapsed());
            self.stop(&turn).await?;
        }
        let median = |mut times: Vec<Duration>| {
            times.sort();
            times[times.len() / 2].as_secs_f64()
        };
        Ok((median(comparing) / median(stepping), n_tokens))
    }
}

const CHECK: &str = "cards match their hashes";

/// A conversation of texts, calls and results.
fn conversation() -> Result<Vec<NewCard>> {
    let mut cards = Vec::with_capacity(CARDS);
    let mut call_id = None;
    for n in 0..CARDS {
        let text = Content::Text(
            (0..WORDS).map(|word| format!("word{}", (n * 31 + word) % 977)).collect::<Vec<_>>().join(" "),
        );
        let mut draft = match n % 4 {
            0 => Draft::new(CardType::instruction(), Role::User, text),
            1 => Draft::new(CardType::thought(), Role::Assistant, text),
            2 => {
                let made = ToolCallId::new();
                call_id = Some(made);
                let mut draft = Draft::new(CardType::thought(), Role::Assistant, text);
                draft.tool_calls = vec![ToolCall {
                    tool_call_id: made,
                    tool_name: "read_plan".into(),
                    arguments: "{}".into(),
                    provider_call_id: None,
                }];
                draft
            }
            _ => Draft::new(CardType::tool_result(), Role::Tool, text),
        };
        if n % 4 == 3 {
            draft.tool_call_id = call_id;
        }
        cards.push(draft.seal()?);
    }
    Ok(cards)
}

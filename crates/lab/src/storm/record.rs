//! Agents elsewhere talk to their model through the recorder while clients, the database and the recorder itself are killed at random instants (RC-1, RC-2).
//!
//! No answer may change, no call may be recorded twice, and no client may wait for the database. While only clients and the database are killed,
//! every call must be on record in the end. If the recorder is killed, those that it held then may be missing.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::StreamExt;
use reqwest::Client;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::{net::TcpListener, task::JoinSet, time::sleep};
use waybill_core::{
    id::ProjectId,
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{key, project};
use waybill_services::{ChildProcess, Private};

use super::dice::Dice;
use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    model::{Asked, Pace, Reply, Server},
    serving::serve,
};

#[derive(Clone, Debug)]
pub struct Options {
    pub program: PathBuf,
    pub seed: u64,
    /// Kills of the database, then of the recorder.
    pub kills: usize,
}

const DATABASE: &str = "waybill_chaos_record";
const SLUG: &str = "recorded";
const CLIENTS: usize = 8;
/// Calls of a conversation, and how many of them their client leaves at a random piece.
const CALLS: usize = 3;
const LEFT: f64 = 0.1;
/// The answer of the model, piece by piece.
const PIECES: usize = 10;
const BETWEEN: Duration = Duration::from_millis(15);
/// How long a client may wait for the first piece: for the model alone, on a busy machine.
const PATIENCE: f64 = 1.5;
/// What the recorder may still hold when it is killed: calls that ended so shortly before.
const HELD: Duration = Duration::from_millis(300);
const SETTLED: Duration = Duration::from_secs(90);

/// A call as its client saw it.
#[derive(Clone, Debug)]
struct Call {
    session: String,
    began: Instant,
    ended: Instant,
    /// Until the first piece, in seconds.
    first: Option<f64>,
    is_whole: bool,
    is_changed: bool,
    /// The recorder itself refused it, so that the model got nothing.
    is_refused: bool,
}

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    eprintln!("chaos record: seed {}", options.seed);
    let private = Private::to_be_killed().await?;
    let studio = Studio::open(&private, &options.program).await?;
    let mut dice = Dice::new(options.seed);
    let none = Bar::AtMost(0.0);

    // First only clients and the database.
    let mut server = studio.serve().await?;
    let agents = Agents::start(&studio, options.seed, "a");
    let bar = progress("kills", 2 * options.kills as u64);
    for _ in 0..options.kills {
        sleep(dice.between(Duration::from_millis(300), Duration::from_millis(1_500))).await;
        private.kill();
        sleep(dice.between(Duration::from_millis(100), Duration::from_millis(1_500))).await;
        private.restart().await?;
        bar.inc(1);
    }
    let first = agents.stop().await?;
    let missing = studio.settle(&private, &first).await?;
    let (mut twice, mut slow) = (missing.twice, slowest(&first));
    let mut figures = vec![
        Figure::new("kills of the database", options.kills as f64, "kills", Bar::AtLeast(1.0)),
        Figure::new("calls while the database was killed", first.len() as f64, "calls", Bar::AtLeast(1.0)),
        Figure::new("of these, calls that their client left", n_left(&first), "calls", Bar::AtLeast(1.0)),
        Figure::new("of these, calls that are not on record", missing.n as f64, "calls", none),
        Figure::new("of these, calls that the recorder refused", n_refused(&first), "calls", none),
    ];

    // Then the recorder itself.
    let agents = Agents::start(&studio, options.seed + 1, "b");
    let mut killed = Vec::new();
    for _ in 0..options.kills {
        sleep(dice.between(Duration::from_millis(300), Duration::from_millis(1_500))).await;
        server.kill();
        killed.push(Instant::now());
        server = studio.serve().await?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let second = agents.stop().await?;
    let missing = studio.settle(&private, &second).await?;
    twice += missing.twice;
    slow = slow.max(slowest(&second));
    let held = |call: &&Call| killed.iter().any(|at| call.began <= *at && call.ended + HELD >= *at);
    let n_held = second.iter().filter(held).count();
    server.kill();
    let changed = first.iter().chain(&second).filter(|call| call.is_changed).count();
    figures.extend([
        Figure::new("kills of the recorder", options.kills as f64, "kills", Bar::AtLeast(1.0)),
        Figure::new("calls while the recorder was killed", second.len() as f64, "calls", Bar::AtLeast(1.0)),
        Figure::new("of these, calls that are not on record", missing.n as f64, "calls", Bar::AtMost(n_held as f64)),
        Figure::new("answers that were changed", changed as f64, "answers", none),
        Figure::new("calls that are recorded twice", twice as f64, "calls", none),
        Figure::new("longest wait for the first piece of an answer", slow, "s", Bar::AtMost(PATIENCE)),
    ]);
    Ok(figures)
}

fn slowest(calls: &[Call]) -> f64 {
    // One that never began lasted until it broke.
    let wait = |call: &Call| call.first.unwrap_or_else(|| (call.ended - call.began).as_secs_f64());
    calls.iter().map(wait).fold(0.0, f64::max)
}

fn n_refused(calls: &[Call]) -> f64 {
    calls.iter().filter(|call| call.is_refused).count() as f64
}

fn n_left(calls: &[Call]) -> f64 {
    calls.iter().filter(|call| !call.is_whole).count() as f64
}

/// What the record lacks, or has too often.
struct Missing {
    n: usize,
    twice: usize,
}

/// A model, and how a recorder in front of it is started.
struct Studio {
    // Ends with it.
    _model: Server,
    program: PathBuf,
    database_url: String,
    admin_url: String,
    address: String,
    providers: PathBuf,
    key: String,
}

impl Drop for Studio {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.providers);
    }
}

impl Studio {
    async fn open(private: &Private, program: &Path) -> Result<Studio> {
        let pace = Pace { between: BETWEEN, pieces: PIECES, ..Pace::default() };
        let model = Server::start(move |asked: &Asked| Reply::say(answer_to(asked.last())).paced(pace)).await?;
        let (kernel, _) = fresh_database(&private.server, DATABASE).await?;
        let mut work = kernel.begin(ProjectId::new()).await?;
        project::create(&mut work, SLUG).await?;
        let key = ApiKey::mint("test");
        key::create(&mut work, &key, &"agents".parse()?, Scope::Recorder, &Bounds::default(), None).await?;
        work.commit().await?;
        let providers = std::env::temp_dir().join(format!("waybill-chaos-record-{}.yaml", std::process::id()));
        let provider = json!({ "name": "model", "adapter": "openai_chat", "base_url": model.url(), "record": true });
        fs::write(&providers, format!("provider: {provider}\n"))?;
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        Ok(Studio {
            _model: model,
            program: program.to_owned(),
            database_url: private.server.service_url(DATABASE),
            admin_url: private.server.admin_url(DATABASE),
            address: format!("127.0.0.1:{port}"),
            providers,
            key: key.expose().to_owned(),
        })
    }

    /// Starts the recorder.
    async fn serve(&self) -> Result<ChildProcess> {
        let providers = [OsStr::new("--providers"), self.providers.as_os_str()];
        serve(&self.program, &self.address, &self.database_url, &providers).await
    }

    /// Waits until all that is still to be recorded is, and compares the record with what clients saw.
    async fn settle(&self, private: &Private, calls: &[Call]) -> Result<Missing> {
        let mut sent: BTreeMap<&str, usize> = BTreeMap::new();
        for call in calls.iter().filter(|call| !call.is_refused) {
            *sent.entry(&call.session).or_default() += 1;
        }
        let begun = Instant::now();
        loop {
            let recorded = self.recorded().await.with_context(|| format!("is it gone: {}", private.is_gone()))?;
            let of = |session: &str| recorded.get(session).copied().unwrap_or_default();
            let n = sent.iter().map(|(session, n)| n.saturating_sub(of(session))).sum();
            let twice = sent.iter().map(|(session, n)| of(session).saturating_sub(*n)).sum();
            // What would come twice comes now.
            if n == 0 && begun.elapsed() > Duration::from_secs(3)
                || begun.elapsed() > SETTLED
                || n < sent.len() && begun.elapsed() > SETTLED / 4
            {
                return Ok(Missing { n, twice });
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Counts the recorded calls of each session.
    async fn recorded(&self) -> Result<BTreeMap<String, usize>> {
        let mut admin = PgConnection::connect(&self.admin_url).await?;
        let rows: Vec<(String, i64)> = sqlx::query_as(
            "select l.value, count(*)
               from state.labels l
               join state.agent_steps s on s.project_id = l.project_id and s.agent_turn_id = l.agent_turn_id
              where l.name = 'session'
              group by 1",
        )
        .fetch_all(&mut admin)
        .await?;
        Ok(rows.into_iter().map(|(session, n)| (session, n as usize)).collect())
    }
}

fn answer_to(question: &str) -> String {
    format!("This is the whole answer to {question}, and it has a few pieces, so that it can be cut anywhere.")
}

/// Clients that talk to the model until they are told to stop.
struct Agents {
    over: Arc<AtomicBool>,
    calls: Arc<Mutex<Vec<Call>>>,
    at_work: JoinSet<Result<()>>,
}

impl Agents {
    fn start(studio: &Studio, seed: u64, name: &'static str) -> Agents {
        let (over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let mut at_work = JoinSet::new();
        for n in 0..CLIENTS {
            let agent = Agent {
                url: format!("http://{}/record/{SLUG}/model/v1/chat/completions", studio.address),
                key: studio.key.clone(),
                name: format!("{name}{n}"),
                dice: Dice::of(&format!("{seed} {name} {n}")),
                calls: calls.clone(),
            };
            at_work.spawn(agent.talk(over.clone()));
        }
        Agents { over, calls, at_work }
    }

    async fn stop(mut self) -> Result<Vec<Call>> {
        self.over.store(true, Relaxed);
        while let Some(ended) = self.at_work.join_next().await {
            ended??;
        }
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(calls.clone())
    }
}

struct Agent {
    url: String,
    key: String,
    name: String,
    dice: Dice,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Agent {
    async fn talk(mut self, over: Arc<AtomicBool>) -> Result<()> {
        let http = Client::builder().no_proxy().build()?;
        let mut n = 0;
        while !over.load(Relaxed) {
            n += 1;
            let session = format!("{}-{n}", self.name);
            let mut messages = vec![json!({ "role": "system", "content": "Be brief." })];
            for call in 0..CALLS {
                let question = format!("question {call} of {session}");
                messages.push(json!({ "role": "user", "content": question }));
                let Some((call, said)) = self.ask(&http, &session, &question, &messages).await else {
                    // The recorder was away: nothing was sent.
                    sleep(Duration::from_millis(20)).await;
                    break;
                };
                let is_whole = call.is_whole;
                self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
                if !is_whole {
                    break;
                }
                messages.push(json!({ "role": "assistant", "content": said }));
            }
        }
        Ok(())
    }

    /// Sends one call, and reads the answer, or leaves in the middle of it. None means that it was not sent.
    async fn ask(
        &mut self,
        http: &Client,
        session: &str,
        question: &str,
        messages: &[Value],
    ) -> Option<(Call, String)> {
        let leaves = self.dice.chance(LEFT).then(|| self.dice.one_of(PIECES));
        let body = json!({ "model": "m", "stream": true, "messages": messages }).to_string();
        let request = http.post(&self.url).header("x-waybill-key", &self.key).header("x-waybill-session", session);
        let began = Instant::now();
        let call = |first, is_whole, is_changed| {
            let session = session.to_owned();
            Call { session, began, ended: Instant::now(), first, is_whole, is_changed, is_refused: false }
        };
        let answer = match request.header("content-type", "application/json").body(body).send().await {
            Ok(answer) if answer.status().is_success() => answer,
            Ok(_) => return Some((Call { is_refused: true, ..call(None, false, false) }, String::new())),
            Err(error) if error.is_connect() => return None,
            Err(_) => return Some((call(None, false, false), String::new())),
        };
        let (mut pieces, mut read, mut n, mut first) = (answer.bytes_stream(), Vec::new(), 0, None);
        let mut is_broken = false;
        while let Some(piece) = pieces.next().await {
            first.get_or_insert_with(|| began.elapsed().as_secs_f64());
            match piece {
                Ok(piece) => read.extend_from_slice(&piece),
                Err(_) => is_broken = true,
            }
            n += 1;
            if is_broken || leaves == Some(n) {
                break;
            }
        }
        let (said, is_over) = said(&read);
        let expected = answer_to(question);
        let is_whole = is_over && !is_broken && leaves.is_none_or(|at| at != n);
        let is_changed = if is_over { said != expected } else { !expected.starts_with(&said) };
        Some((call(first, is_whole, is_changed), said))
    }
}

/// Joins the text of a stream, and says whether it came to its end.
fn said(read: &[u8]) -> (String, bool) {
    let text = String::from_utf8_lossy(read);
    let (mut said, mut is_over) = (String::new(), false);
    // The last line may be cut.
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let Some(data) = line.trim().strip_prefix("data: ") else { continue };
        is_over |= data == "[DONE]";
        if let Ok(event) = serde_json::from_str::<Value>(data) {
            said.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        }
    }
    (said, is_over)
}

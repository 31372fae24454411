//! What recording costs: the same streams through the recorder, of which one half is put on record and the other passes only; with the database, and
//! while it is away. And how many bytes a conversation takes, compared with what it says and with a plain log of its calls.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::JoinSet,
    time::{interval, sleep},
};
use waybill_api::{Config, Limits};
use waybill_core::{
    id::ProjectId,
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{key, project, work::Kernel};
use waybill_services::Private;
use waybill_tool::secret::Secrets;
use waybill_worker::model::{Models, Provider};

use super::{fresh_database, median, noise, progress};
use crate::{
    figure::{Bar, Figure},
    model::{Asked, Pace, Reply, Server},
    storm::verdict::percentile,
};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Streams that begin each second.
    pub rate: f64,
    pub window: Duration,
    pub rounds: usize,
    /// Calls of a conversation, to measure what it takes.
    pub calls: usize,
    /// The bars for the median and the 99th percentile of what recording adds, as factors.
    pub p50: Bar,
    pub p99: Bar,
    /// The bars for stored ÷ new bytes, with little and with much in each call, and of the second half ÷ of the first.
    pub small: Bar,
    pub large: Bar,
    pub flat: Bar,
}

const DATABASE: &str = "waybill_bench_record";
const SLUG: &str = "recorded";
/// Events of an answer, and the time between them.
const PIECES: usize = 20;
const BETWEEN: Duration = Duration::from_millis(2);
/// By how many more of the recorded streams than of the others may come in less than half of their time. Any pause of the machine makes a stream do so.
const MOST_LATE: f64 = 0.001;
/// How long it may take until all calls are on record.
const RECORDED: Duration = Duration::from_secs(120);

/// Measures on a private PostgreSQL with durability on.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let private = Private::to_be_killed().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let studio = Studio::open(kernel).await?;
    let mut figures = studio.stored(&mut admin, options).await?;
    figures.extend(studio.passes(&mut admin, options).await?);
    figures.extend(studio.passes_without(&private, options).await?);
    studio.close().await?;
    Ok(figures)
}

/// A server that records, in front of a model.
struct Studio {
    // Ends with it.
    _model: Server,
    http: reqwest::Client,
    url: String,
    key: String,
    end: oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

/// How long streams took to begin, and from the first piece to the last, in seconds.
#[derive(Default)]
struct Times {
    first: Vec<f64>,
    rest: Vec<f64>,
    n_late: usize,
}

impl Studio {
    async fn open(kernel: Kernel) -> Result<Studio> {
        let pace = Pace { between: BETWEEN, pieces: PIECES, ..Pace::default() };
        let said = "The recorder passes each piece on as it comes. ".repeat(4);
        let model = Server::start(move |_: &Asked| Reply::say(said.clone()).with_usage(600, 0, 40).paced(pace)).await?;
        let mut work = kernel.begin(ProjectId::new()).await?;
        project::create(&mut work, SLUG).await?;
        let key = ApiKey::mint("bench");
        key::create(&mut work, &key, &"bench".parse()?, Scope::Recorder, &Bounds::default(), None).await?;
        work.commit().await?;
        // What passes under `off` is no model call by its path, so the same recorder does not put it on record.
        let providers = vec![
            Provider::recorded("on".parse()?, model.url()),
            Provider::recorded("off".parse()?, format!("{}/chat", model.url())),
        ];
        let limits = Limits { per_second: 1e9, ..Limits::default() };
        let config = Config { limits, models: Models::new(providers, Secrets::default()), ..Config::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/record/{SLUG}", listener.local_addr()?);
        let (end, ended) = oneshot::channel::<()>();
        let ended = async { ended.await.unwrap_or_default() };
        let serving = tokio::spawn(waybill_api::serve(listener, kernel, config, ended, Duration::from_secs(2)));
        let http = reqwest::Client::builder().no_proxy().build()?;
        Ok(Studio { _model: model, http, url, key: key.expose().to_owned(), end, serving })
    }

    async fn close(self) -> Result<()> {
        let _ = self.end.send(());
        Ok(self.serving.await??)
    }

    fn request(&self, is_recorded: bool, body: &Value) -> reqwest::RequestBuilder {
        let path = if is_recorded { "on/v1/chat/completions" } else { "off/completions" };
        let request = self.http.post(format!("{}/{path}", self.url)).header("x-waybill-key", &self.key);
        request.header("content-type", "application/json").body(body.to_string())
    }

    /// Begins streams at an even rate for a while, and reads them.
    async fn window(&self, is_recorded: bool, options: Options) -> Result<Times> {
        let mut ticks = interval(Duration::from_secs_f64(1.0 / options.rate));
        let begun = Instant::now();
        let mut streams = JoinSet::new();
        while begun.elapsed() < options.window {
            ticks.tick().await;
            let content = noise().repeat(3);
            let messages =
                json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": content }]);
            let request = self.request(is_recorded, &json!({ "model": "m", "stream": true, "messages": messages }));
            // Many conversations at a time, as of many agents.
            streams.spawn(read(request.header("x-waybill-session", format!("agent {}", streams.len() % 50))));
        }
        let mut times = Times::default();
        while let Some(read) = streams.join_next().await {
            let (first, rest, is_late) = read??;
            times.first.push(first);
            times.rest.push(rest);
            times.n_late += usize::from(is_late);
        }
        Ok(times)
    }

    /// Compares streams that are recorded with those that only pass.
    async fn compare(&self, options: Options, mut after: impl AsyncFnMut(usize) -> Result<()>) -> Result<Compared> {
        let bar = progress("streams", options.rounds as u64);
        let mut compared = Compared::default();
        for round in 0..=options.rounds {
            let mut sides = [Times::default(), Times::default()];
            for side in [round % 2, (round + 1) % 2] {
                let is_recorded = side == 1;
                sides[side] = self.window(is_recorded, options).await?;
                if is_recorded {
                    compared.n_recorded += sides[side].first.len();
                    after(compared.n_recorded).await?;
                }
            }
            // The first round warms up connections.
            if round > 0 {
                let [off, on] = &sides;
                compared.add(off, on);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(compared)
    }

    async fn passes(&self, admin: &mut PgConnection, options: Options) -> Result<Vec<Figure>> {
        let before = on_record(admin).await?;
        // What is still written would slow the next window down, which is not recorded.
        let compared = self.compare(options, async |n| until_recorded(admin, before + n as i64).await).await?;
        Ok(compared.figures("", options))
    }

    /// The same while the database is away. Then it comes back, and what passed meanwhile is put on record.
    async fn passes_without(&self, private: &Private, options: Options) -> Result<Vec<Figure>> {
        let mut admin = PgConnection::connect(&private.server.admin_url(DATABASE)).await?;
        let before = on_record(&mut admin).await?;
        drop(admin);
        private.kill();
        // Within the minute that calls wait in memory.
        let brief =
            Options { rounds: options.rounds.min(2), window: options.window.min(Duration::from_secs(5)), ..options };
        let compared = self.compare(brief, async |_| Ok(())).await;
        private.restart().await?;
        let compared = compared?;
        let mut admin = PgConnection::connect(&private.server.admin_url(DATABASE)).await?;
        let all = before + compared.n_recorded as i64;
        let _ = until_recorded(&mut admin, all).await;
        let n_missing = all - on_record(&mut admin).await?;
        let mut figures = compared.figures(", while the database is away", options);
        let what = "calls while the database was away that are not on record once it is back";
        figures.push(Figure::new(what, n_missing as f64, "calls", Bar::AtMost(0.0)));
        Ok(figures)
    }

    /// Lets conversations grow, and returns how many bytes they take for each new one.
    async fn stored(&self, admin: &mut PgConnection, options: Options) -> Result<Vec<Figure>> {
        let sql =
            "create table public.log (id uuid primary key, at timestamptz default now(), request text, answer text)";
        sqlx::raw_sql(sql).execute(&mut *admin).await?;
        // The first rows of a database take whole pages of many tables.
        self.converse(admin, 40, 2).await?;
        let mut figures = Vec::new();
        for (kilobytes, most) in [(2, options.small), (20, options.large)] {
            let grown = self.converse(admin, options.calls, kilobytes).await?;
            let what = format!("stored ÷ new bytes, {kilobytes} kB in each of {} calls", options.calls);
            let flat = (grown.all - grown.half) / grown.half;
            figures.extend([
                Figure::new(what.clone(), grown.all / grown.new, "factor", most),
                Figure::new(format!("{what}: of the second half ÷ of the first"), flat, "factor", options.flat),
                Figure::new(format!("{what}, as a plain log of the calls"), grown.log / grown.new, "factor", Bar::None),
            ]);
        }
        Ok(figures)
    }

    /// Lets one conversation grow by so many kilobytes with each call.
    async fn converse(&self, admin: &mut PgConnection, calls: usize, kilobytes: usize) -> Result<Grown> {
        let mut messages = vec![json!({ "role": "system", "content": "Be brief." })];
        let (first, log_first) = (stored(admin, false).await?, stored(admin, true).await?);
        let (mut grown, before) = (Grown::default(), on_record(admin).await?);
        let bar = progress("calls of a conversation", calls as u64);
        for n in 1..=calls {
            messages.push(json!({ "role": "user", "content": text(kilobytes << 10) }));
            let body = json!({ "model": "m", "messages": messages });
            let answer = self.request(true, &body).send().await?.error_for_status()?.text().await?;
            let said = serde_json::from_str::<Value>(&answer)?["choices"][0]["message"]["content"].clone();
            messages.push(json!({ "role": "assistant", "content": said }));
            grown.new += messages[messages.len() - 2..].iter().map(|one| one.to_string().len() as f64).sum::<f64>();
            sqlx::query("insert into public.log (id, request, answer) values (gen_random_uuid(), $1, $2)")
                .bind(body.to_string())
                .bind(&answer)
                .execute(&mut *admin)
                .await?;
            if n % 20 == 0 || n == calls / 2 || n == calls {
                until_recorded(admin, before + n as i64).await?;
            }
            if n == calls / 2 {
                grown.half = (stored(admin, false).await? - first) as f64;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        grown.all = (stored(admin, false).await? - first) as f64;
        grown.log = (stored(admin, true).await? - log_first) as f64;
        Ok(grown)
    }
}

/// Bytes of a conversation: new ones, those that are stored, after its first half too, and those of a plain log.
#[derive(Default)]
struct Grown {
    new: f64,
    half: f64,
    all: f64,
    log: f64,
}

/// What recording adds, in each round.
#[derive(Default)]
struct Compared {
    first_p50: Vec<f64>,
    first_p99: Vec<f64>,
    rest_p50: Vec<f64>,
    rest_p99: Vec<f64>,
    n_recorded: usize,
    n_streams: usize,
    n_late: usize,
    /// Of the streams that passed only.
    n_late_off: usize,
}

impl Compared {
    fn add(&mut self, off: &Times, on: &Times) {
        let ratio =
            |of: fn(&Times) -> &Vec<f64>, share| percentile(of(on).clone(), share) / percentile(of(off).clone(), share);
        self.first_p50.push(ratio(|times| &times.first, 0.5));
        self.first_p99.push(ratio(|times| &times.first, 0.99));
        self.rest_p50.push(ratio(|times| &times.rest, 0.5));
        self.rest_p99.push(ratio(|times| &times.rest, 0.99));
        self.n_streams += on.first.len();
        self.n_late += on.n_late;
        self.n_late_off += off.n_late;
    }

    fn figures(&self, when: &str, options: Options) -> Vec<Figure> {
        let figure = |what: &str, ratios: &Vec<f64>, bar| {
            Figure::new(format!("{what}, recorded ÷ passed on only{when}"), median(ratios.clone()), "ratio", bar)
        };
        vec![
            figure("time to the first piece, p50", &self.first_p50, options.p50),
            figure("time to the first piece, p99", &self.first_p99, options.p99),
            figure("time from the first piece to the last, p50", &self.rest_p50, options.p50),
            figure("time from the first piece to the last, p99", &self.rest_p99, options.p99),
            Figure::new(
                format!("streams that came in less than half of their time, recorded − passed on only{when}"),
                self.n_late as f64 - self.n_late_off as f64,
                "streams",
                Bar::AtMost(MOST_LATE * self.n_streams as f64),
            ),
            Figure::new(
                format!("recorded streams that came in less than half of their time{when}"),
                self.n_late as f64,
                "streams",
                Bar::None,
            ),
            Figure::new(
                format!("streams passed on only that came in less than half of their time{when}"),
                self.n_late_off as f64,
                "streams",
                Bar::None,
            ),
            Figure::new(
                format!("recorded streams that were measured{when}"),
                self.n_streams as f64,
                "streams",
                Bar::None,
            ),
        ]
    }
}

/// Reads a stream: how long it took to begin, from then to its end, and whether it came in less than half of its time.
async fn read(request: reqwest::RequestBuilder) -> Result<(f64, f64, bool)> {
    let begun = Instant::now();
    let answer = request.send().await?;
    ensure!(answer.status().is_success(), "the model answers {}", answer.status());
    let mut pieces = answer.bytes_stream();
    let mut times = Vec::with_capacity(PIECES);
    while let Some(piece) = pieces.next().await {
        piece?;
        times.push(begun.elapsed().as_secs_f64());
    }
    let (first, last) = (times.first().copied().context("the stream is empty")?, times[times.len() - 1]);
    let is_late = last - first < BETWEEN.as_secs_f64() * PIECES as f64 / 2.0;
    Ok((first, last - first, is_late))
}

/// Returns a text of so many bytes that compresses about as well as prose.
fn text(n_bytes: usize) -> String {
    let mut said = String::with_capacity(n_bytes + 64);
    while said.len() < n_bytes {
        // Its last digits are noise.
        let id = uuid::Uuid::now_v7().simple().to_string();
        said.push_str(&id[20..]);
        said.push_str(" and then the agent looks ");
    }
    said.truncate(n_bytes);
    said
}

async fn on_record(admin: &mut PgConnection) -> Result<i64> {
    Ok(sqlx::query_scalar("select count(*) from state.agent_steps").fetch_one(admin).await?)
}

async fn until_recorded(admin: &mut PgConnection, n: i64) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < RECORDED {
        if on_record(admin).await? >= n {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    bail!("{n} calls are not on record")
}

/// Returns the bytes of all tables with their indexes: of Waybill, or of the plain log.
async fn stored(admin: &mut PgConnection, is_log: bool) -> Result<i64> {
    let sql = "select sum(pg_total_relation_size(c.oid))::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where c.relkind = 'r' and case when $1 then n.nspname = 'public' and c.relname = 'log'
                                     else n.nspname in ('cardbox', 'resource', 'state', 'parts') end";
    Ok(sqlx::query_scalar(sql).bind(is_log).fetch_one(admin).await?)
}

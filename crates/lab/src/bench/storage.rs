//! What a long turn leaves on disk and how long its steps take, compared with LangGraph, plain and with its `DeltaChannel`.
//!
//! The worker is the real one, over PostgreSQL and HTTP; the model follows a script. Each call sends everything before it, and adds one text
//! and one small tool call that is answered in the same transaction; the last adds only a text. LangGraph does the same, with the same model.
//! All texts are noise, so that compression does not make them smaller.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use waybill_bus::local::Local;
use waybill_context::framework::Framework;
use waybill_core::{
    card::{CardType, Content, Draft, NewCard, Role},
    id::{AgentId, BoxId, ProjectId},
    tokens::Tokens,
    turn::End,
};
use waybill_kernel::{
    agent,
    intake::{Config, Intake},
    project, resource,
    turn::{self, Claimed, DispatchRequest},
    work::{self, Kernel},
};
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::Models,
    serve::Worker,
    turn::{Outcome, run as run_turn},
};

use super::{
    CARD_TOKENS, fresh_database, median,
    peer::{CHANNELS, Peer, PeerLeft},
    progress, timed,
};
use crate::{
    figure::{Bar, Figure},
    model::{self, Asked, Pace, Reply},
};
use waybill_services::{Private, Server};

/// How long the turns are, and how often they are run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Model calls of the shorter turn and of the longer turn.
    pub calls: [usize; 2],
    /// Bytes of text that a turn begins with.
    pub history: usize,
    pub rounds: usize,
    /// The bar for bytes stored per new byte, beyond an empty database.
    pub stored: Bar,
    /// The same, beyond a database in which a turn ran before: every table already has its first pages.
    pub stored_after: Bar,
    /// The bar for bytes stored per call: longer turn ÷ shorter turn.
    pub growth: Bar,
    /// The bars for time per step ÷ LangGraph's, plain and with `DeltaChannel`.
    pub step: [Bar; 2],
    /// Whether to fetch LangGraph if it is not there, with python3, venv and pip. Otherwise it is measured only if it was fetched before.
    pub fetch_peer: bool,
}

const DATABASE: &str = "waybill_bench_storage";
/// Bytes that each call adds.
const TEXT: usize = 2_000;
const HISTORY_CARDS: usize = 50;

/// Measures on a private PostgreSQL with durability on.
pub async fn run(options: Options) -> Result<Vec<Figure>> {
    let peer = if options.fetch_peer { Some(Peer::install()?) } else { Peer::installed()? };
    let private = Private::start().await?;
    let mut ours = [vec![], vec![]];
    // By channel, then by the number of calls.
    let mut theirs = [[vec![], vec![]], [vec![], vec![]]];
    let bar = progress("long turns", (options.rounds * options.calls.iter().sum::<usize>()) as u64);
    for _ in 0..options.rounds {
        for (size, calls) in options.calls.into_iter().enumerate() {
            ours[size].push(long_turn(&private.server, calls, options.history).await?);
            for (channel, theirs) in theirs.iter_mut().enumerate() {
                let Some(peer) = &peer else { continue };
                let model = start_model(calls).await?;
                let work = [calls, options.history, TEXT];
                theirs[size].push(peer.run(&private.server, &model.url(), work, channel == 1).await?);
            }
            bar.inc(calls as u64);
        }
    }
    bar.finish_and_clear();

    let mut figures = of_ours(options, &ours);
    if peer.is_some() {
        for ((name, theirs), step) in CHANNELS.into_iter().zip(&theirs).zip(options.step) {
            figures.extend(of_theirs(options, name, step, &ours, theirs));
        }
    }
    figures.extend(profile(options, &ours)?);
    Ok(figures)
}

fn of_ours(options: Options, ours: &[Vec<Left>; 2]) -> Vec<Figure> {
    let [few, many] = options.calls;
    let mut figures = Vec::new();
    for (calls, ours) in options.calls.into_iter().zip(ours) {
        let new = (options.history + calls * TEXT) as f64;
        let name = format!("{calls} calls: bytes stored ÷ bytes that are new");
        let stored = median(ours.iter().map(|left| left.bytes).collect()) as f64;
        figures.push(Figure::new(&name, stored / new, "ratio", options.stored));
        let stored = median(ours.iter().map(|left| left.bytes_after).collect()) as f64;
        figures.push(Figure::new(format!("{name}, after another turn"), stored / new, "ratio", options.stored_after));
        let step = median(ours.iter().map(|left| left.ms_per_step).collect());
        figures.push(Figure::new(format!("{calls} calls: time per step"), step, "ms", Bar::None));
    }
    let [at_few, at_many] = ours.each_ref().map(|ours| median(ours.iter().map(|left| left.bytes_per_call).collect()));
    let name = format!("bytes stored per call at {many} calls ÷ at {few}");
    figures.push(Figure::new(name, at_many / at_few, "ratio", options.growth));
    figures.push(Figure::new(format!("{many} calls: bytes stored per call"), at_many, "bytes", Bar::None));
    figures
}

fn of_theirs(
    options: Options,
    name: &str,
    step: Bar,
    ours: &[Vec<Left>; 2],
    theirs: &[Vec<PeerLeft>; 2],
) -> Vec<Figure> {
    let mut figures = Vec::new();
    for ((calls, ours), theirs) in options.calls.into_iter().zip(ours).zip(theirs) {
        let stored = median(theirs.iter().map(|left| left.bytes_stored as f64 / left.bytes_new as f64).collect());
        let figure = format!("{calls} calls, {name}: bytes stored ÷ bytes that are new");
        figures.push(Figure::new(figure, stored, "ratio", Bar::None));
        let their_step = median(theirs.iter().map(|left| left.ms_per_step).collect());
        figures.push(Figure::new(format!("{calls} calls, {name}: time per step"), their_step, "ms", Bar::None));
        let our_step: f64 = median(ours.iter().map(|left| left.ms_per_step).collect());
        let figure = format!("{calls} calls: time per step ÷ {name}'s");
        figures.push(Figure::new(figure, our_step / their_step, "ratio", step));
    }
    figures
}

/// Says where the time of a step of the longer turn goes.
fn profile(options: Options, [_, ours]: &[Vec<Left>; 2]) -> Result<Vec<Figure>> {
    let of = |part: fn(&Left) -> f64| median(ours.iter().map(part).collect());
    let (step, http, database) = (of(|left| left.ms_per_step), of(|left| left.ms_http), of(|left| left.ms_database));
    let [hash, tokens] = sealing()?;
    let rest = step - http - database - hash - tokens;
    let parts = [
        ("HTTP, in whole milliseconds as steps record it", http),
        ("in the database, as its server counts", database),
        ("writing and hashing the text that is new", hash),
        ("counting its tokens", tokens),
        ("the rest: gathering, composing, writing and hashing the request", rest),
    ];
    let [_, many] = options.calls;
    let figure = |(what, ms): (&str, f64)| Figure::new(format!("{many} calls, of a step: {what}"), ms, "ms", Bar::None);
    Ok(parts.map(figure).into())
}

/// Returns how long it takes to write and hash a text, and to count its tokens, in milliseconds.
fn sealing() -> Result<[f64; 2]> {
    const SAMPLES: u32 = 200;
    let mut noise = Noise(3);
    let texts: Vec<String> = (0..SAMPLES).map(|_| noise.text(TEXT)).collect();
    let drafts =
        || texts.iter().map(|text| Draft::new(CardType::thought(), Role::Assistant, Content::Text(text.clone())));
    let known = Tokens::new(CARD_TOKENS).expect("positive");
    let begun = std::time::Instant::now();
    for draft in drafts() {
        std::hint::black_box(draft.seal_counted(known)?);
    }
    let hashing = begun.elapsed();
    for draft in drafts() {
        std::hint::black_box(draft.seal()?);
    }
    let counting = begun.elapsed().saturating_sub(hashing * 2);
    Ok([hashing, counting].map(|time| time.as_secs_f64() * 1_000.0 / f64::from(SAMPLES)))
}

/// What a turn leaves in the database.
struct Left {
    bytes: i64,
    /// Beyond a database in which any turn has run.
    bytes_after: i64,
    /// Beyond the history and everything else that is stored before the first call.
    bytes_per_call: f64,
    ms_per_step: f64,
    ms_http: f64,
    ms_database: f64,
}

/// Starts the model: it says a text in each call, and uses a tool in all but the first, which is a turn of its own, and the last.
async fn start_model(calls: usize) -> Result<model::Server> {
    let mut noise = Noise(2);
    let texts: Vec<String> = (0..=calls).map(|_| noise.text(TEXT)).collect();
    let script = move |asked: &Asked| {
        let text = texts.get(asked.n).cloned().unwrap_or_default();
        let reply = Reply::say(text).paced(Pace { pieces: 1, ..Pace::default() });
        let is_last = [0, calls].contains(&asked.n);
        if is_last { reply } else { reply.and_call("update_todo", &json!({ "changes": [] })) }
    };
    model::Server::start(script).await
}

/// Runs a turn of `calls` calls in a new database, after a turn of a single call: by then connections are open, and every table that turns
/// write has its first pages.
async fn long_turn(server: &Server, calls: usize, history: usize) -> Result<Left> {
    let (_, admin) = fresh_database(server, DATABASE).await?;
    admin.close().await?;
    // As many connections as a worker opens.
    let kernel =
        Kernel::connect(&work::Config::new(server.service_url(DATABASE))).await?.on(Arc::new(Local::default()));
    let mut noise = Noise(1);
    let history = (0..HISTORY_CARDS).map(|_| noise.text(history / HISTORY_CARDS)).collect();
    let model = start_model(calls).await?;
    let mut house = House::open(kernel, &model.url()).await?;
    let empty = stored(server).await?;
    house.dispatch(Vec::new()).await?;
    house.run().await?;

    let used = stored(server).await?;
    house.dispatch(history).await?;
    let before = stored(server).await?;
    let busy = busy(server).await?;
    let time = timed(async || house.run().await).await?;
    ensure!(model.n_asked() == 1 + calls, "{} calls instead of {calls}", model.n_asked() - 1);
    // A connection tells the server how long it was busy when it ends.
    house.kernel.close().await;
    let busy = self::busy(server).await? - busy;
    let ms_http = http(server).await?;
    let after = stored(server).await?;

    let grown = |since: &BTreeMap<String, i64>| -> i64 { after.values().sum::<i64>() - since.values().sum::<i64>() };
    for (table, bytes) in &after {
        let [all, own, later] = [&empty, &used, &before].map(|then| bytes - then.get(table).copied().unwrap_or(0));
        if all != 0 {
            eprintln!("{calls} calls: {table}: {all} bytes, {own} without its first pages, {later} by calls");
        }
    }
    Ok(Left {
        bytes: grown(&empty),
        bytes_after: grown(&used),
        bytes_per_call: grown(&before) as f64 / calls as f64,
        ms_per_step: time.as_secs_f64() * 1_000.0 / calls as f64,
        ms_http,
        ms_database: busy / calls as f64,
    })
}

/// An agent, and a worker that runs its turns.
struct House {
    kernel: Kernel,
    worker: Worker,
    intake: Intake<Claimed>,
    project_id: ProjectId,
    agent_id: AgentId,
    profile_box_id: BoxId,
}

impl House {
    async fn open(kernel: Kernel, model_url: &str) -> Result<House> {
        let provider = json!({ "name": "scripted", "adapter": "openai_chat", "base_url": model_url });
        let models = Models::new(vec![serde_json::from_value(provider)?], Secrets::new(None, []));
        let worker = Worker::new(kernel.clone(), models, Collector::new(Framework::builtin()));
        let profile = serde_json::from_value(json!({ "profile": {
            "name": "a", "worker_target": "llm", "system_prompt_template": "You go on.",
            "llm_config": { "provider": "scripted", "model": "m" },
            "allowed_internal_tools": ["update_todo"],
            "memory": { "budget": 2_000_000, "compaction": null },
        } }))?;
        // More than a turn may take unless a project says so.
        let settings =
            serde_json::from_value(json!({ "settings": { "max_steps": 1_000, "max_tokens": 2_000_000_000 } }))?;
        let (project_id, agent_id, target) = (ProjectId::new(), AgentId::new(), "llm".parse()?);
        let mut work = kernel.begin(project_id).await?;
        project::create(&mut work, "bench").await?;
        resource::apply(&mut work, &[profile, settings]).await?;
        agent::create(&mut work, &[agent_id], &target).await?;
        let profile_box_id = resource::profile(&mut work, &"a".parse()?).await?.profile_box_id;
        work.commit().await?;
        let intake = Intake::open(&kernel, target, Config::default());
        Ok(House { kernel, worker, intake, project_id, agent_id, profile_box_id })
    }

    /// Enqueues a turn with these texts in its context, before its instruction.
    async fn dispatch(&self, history: Vec<String>) -> Result<()> {
        let thought = |text| Draft::new(CardType::thought(), Role::Assistant, Content::Text(text)).seal();
        let mut cards: Vec<NewCard> = history.into_iter().map(thought).collect::<Result<_, _>>()?;
        let instruction = Draft::instruction("Go on.").seal()?;
        let mut request = DispatchRequest {
            profile_box_id: Some(self.profile_box_id),
            ..DispatchRequest::instructed(self.agent_id, instruction.card_id())
        };
        cards.push(instruction);
        request.context_card_ids = Some(cards.iter().map(NewCard::card_id).collect());
        turn::enqueue(&mut self.kernel.alone(self.project_id).await?, &[request], &cards).await?;
        Ok(())
    }

    /// Claims the turn and runs it to its end.
    async fn run(&mut self) -> Result<()> {
        let holding = self.intake.next().await;
        let outcome = run_turn(&self.worker, &holding).await?;
        ensure!(outcome == Outcome::Finished(End::Success), "the turn did not come to its end: {outcome:?}");
        Ok(())
    }
}

/// Returns how long statements have run in the database, in milliseconds.
async fn busy(server: &Server) -> Result<f64> {
    // Connections that have ended are still being counted.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let busy = sqlx::query_scalar("select active_time from pg_stat_database where datname = $1");
    Ok(busy.bind(DATABASE).fetch_one(&mut server.admin().await?).await?)
}

/// Returns how long a call of the model took on average, in milliseconds, as the steps record it.
async fn http(server: &Server) -> Result<f64> {
    let mut admin = PgConnection::connect(&server.admin_url(DATABASE)).await?;
    let took = sqlx::query_scalar("select coalesce(avg(took_ms), 0)::float8 from state.agent_steps");
    Ok(took.fetch_one(&mut admin).await?)
}

/// Returns the bytes of every table with its indexes and TOAST values, except for the outbox: published events leave it.
async fn stored(server: &Server) -> Result<BTreeMap<String, i64>> {
    let mut admin = PgConnection::connect(&server.admin_url(DATABASE)).await?;
    sqlx::query("vacuum").execute(&mut admin).await?;
    let tables: Vec<(String, i64)> = sqlx::query_as(
        "select coalesce(i.inhparent, c.oid)::regclass::text, sum(pg_total_relation_size(c.oid))::bigint
           from pg_class c
           join pg_namespace n on n.oid = c.relnamespace
           left join pg_inherits i on i.inhrelid = c.oid
          where c.relkind = 'r'
            and n.nspname not in ('pg_catalog', 'information_schema')
            and i.inhparent is distinct from 'state.outbox'::regclass
          group by 1",
    )
    .fetch_all(&mut admin)
    .await?;
    // It ends here, so that the server has counted what it did before anything is measured.
    admin.close().await?;
    Ok(tables.into_iter().collect())
}

/// A source of random letters, the same ones in every run.
struct Noise(u64);

impl Noise {
    fn text(&mut self, bytes: usize) -> String {
        const LETTERS: &[u8; 27] = b"abcdefghijklmnopqrstuvwxyz ";
        let letter = |_| {
            // splitmix64
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            char::from(LETTERS[((mixed ^ (mixed >> 31)) % 27) as usize])
        };
        (0..bytes).map(letter).collect()
    }
}

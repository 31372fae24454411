//! What reading over HTTP takes: the bytes of a graph of many turns, and the first page of each list in a project of many turns, compared with one of
//! few.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::Value;
use sqlx::PgConnection;
use waybill_core::{
    id::{ProjectId, TurnId},
    key::{ApiKey, Bounds, Scope},
};
use waybill_kernel::{key, project, work::Kernel};

use super::{progress, ratio};
use crate::figure::{Bar, Figure};

/// How many turns, and how often each list is read.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Thousands of turns of the graph.
    pub graph: i32,
    /// Turns of the large project. The small one has 1,000.
    pub turns: i32,
    pub samples: u64,
    /// The bar for a page of the large project ÷ one of the small project.
    pub growth: Bar,
}

const FEW: i32 = 1_000;
/// Turns that are written by one statement.
const PORTION: i32 = 20_000;
/// Entries of a page, if the request does not say how many.
const PAGE: usize = 100;
const LISTS: [&str; 13] = [
    "turns",
    "turns?roots=true",
    "turns?open=true",
    "turns?status=success",
    "agents",
    "sessions",
    "requests",
    "requests?state=decided",
    "grants",
    "refusals",
    "audit",
    "keys",
    "artifacts",
];

/// Makes ids of this time whose other digits are noise: those of a sequence would compress too well.
const IDS: &str = "
  create schema bench;
  create sequence bench.ids;
  create function bench.id() returns uuid language sql volatile as $$
    select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || left(h, 3) || '8' || right(h, 15))::uuid
      from md5(nextval('bench.ids')::text) as h
  $$";

/// Measures against a running server. `projects` is the address of its projects.
pub(super) async fn run(
    options: Options,
    kernel: &Kernel,
    admin: &mut PgConnection,
    http: &reqwest::Client,
    projects: &str,
) -> Result<Vec<Figure>> {
    prepare(admin).await?;
    let mut readers = Vec::new();
    for (slug, turns) in [("many", options.turns), ("few", FEW), ("graph", options.graph * 1_000)] {
        let (project_id, key) = found(kernel, slug).await?;
        load(admin, project_id, turns).await?;
        let reader = Reader { http: http.clone(), url: format!("{projects}/{slug}"), key: key.expose().to_owned() };
        readers.push((project_id, reader));
    }
    let [(_, many), (_, few), (graph_id, graph)] = &readers[..] else { unreachable!("there are three projects") };
    let root = tree(admin, *graph_id).await?;
    sqlx::raw_sql("vacuum analyze").execute(&mut *admin).await?;
    let most = f64::from(options.graph) * 100_000.0;
    let mut figures = vec![Figure::new(
        format!("graph of {},000 turns on the wire", options.graph),
        graph.graph(root, options.graph * 1_000).await?,
        "bytes",
        Bar::AtMost(most),
    )];
    for list in LISTS {
        for reader in [many, few] {
            let n = reader.entries(list).await?;
            ensure!(n == PAGE, "the first page of {list} has {n} entries");
        }
        let (of_many, of_few) = (async || many.first(list).await, async || few.first(list).await);
        let grown = ratio(list, options.samples, of_many, of_few).await?;
        let name = format!("first page of {list}: with {} turns ÷ with {FEW}", options.turns);
        figures.push(Figure::new(name, grown, "ratio", options.growth));
    }
    Ok(figures)
}

/// Lets a connection load turns: without triggers, because what they would write is written too.
pub(crate) async fn prepare(admin: &mut PgConnection) -> Result<()> {
    sqlx::raw_sql("set session_replication_role = replica").execute(&mut *admin).await?;
    sqlx::raw_sql(IDS).execute(&mut *admin).await?;
    Ok(())
}

/// Makes one tree of all turns of a project, and returns its root.
pub(crate) async fn tree(admin: &mut PgConnection, project_id: ProjectId) -> Result<TurnId> {
    Ok(sqlx::query_scalar(include_str!("tree.sql")).bind(project_id).fetch_one(admin).await?)
}

/// Makes a project, and a key that may see all its lists.
pub(crate) async fn found(kernel: &Kernel, slug: &str) -> Result<(ProjectId, ApiKey)> {
    let mut work = kernel.begin(ProjectId::new()).await?;
    project::create(&mut work, slug).await?;
    let key = ApiKey::mint("bench");
    key::create(&mut work, &key, &"bench".parse()?, Scope::Admin, &Bounds::default(), None).await?;
    let project_id = work.project_id();
    work.commit().await?;
    Ok((project_id, key))
}

/// Writes the turns of a project, and what its lists show.
pub(crate) async fn load(admin: &mut PgConnection, project_id: ProjectId, turns: i32) -> Result<()> {
    let bar = progress("turns in lists", u64::try_from(turns)?);
    for from in (0..turns).step_by(PORTION as usize) {
        let n = PORTION.min(turns - from);
        sqlx::query(include_str!("lists.sql")).bind(project_id).bind(n).execute(&mut *admin).await?;
        bar.inc(u64::try_from(n)?);
    }
    bar.finish_and_clear();
    Ok(())
}

/// A client of one project.
struct Reader {
    http: reqwest::Client,
    url: String,
    key: String,
}

impl Reader {
    /// Returns the body of an answer as it came over the wire.
    async fn get(&self, path: &str, coding: &str) -> Result<Bytes> {
        let request = self.http.get(format!("{}/{path}", self.url)).bearer_auth(&self.key);
        let response = request.header("accept-encoding", coding).send().await?;
        let status = response.status();
        let is_packed = response.headers().contains_key("content-encoding");
        let body = response.bytes().await?;
        ensure!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&body));
        ensure!(is_packed == (coding == "gzip"), "{path}: asked for {coding}, and packed: {is_packed}");
        Ok(body)
    }

    /// Reads the first page of a list.
    async fn first(&self, list: &str) -> Result<()> {
        self.get(list, "identity").await.map(drop)
    }

    /// Returns how many entries the first page of a list has.
    async fn entries(&self, list: &str) -> Result<usize> {
        let page: Value = serde_json::from_slice(&self.get(list, "identity").await?)?;
        Ok(page["items"].as_array().context("a page has items")?.len())
    }

    /// Returns the bytes of all pages of a graph in gzip. Each page is read plainly too, to know where the next one begins.
    async fn graph(&self, root: TurnId, turns: i32) -> Result<f64> {
        let (mut n_bytes, mut n_turns, mut path) = (0, 0, format!("turns/{root}/graph"));
        loop {
            n_bytes += self.get(&path, "gzip").await?.len();
            let page: Value = serde_json::from_slice(&self.get(&path, "identity").await?)?;
            n_turns += page["n"].as_i64().context("a graph has a number of turns")?;
            let Some(next) = page["next"].as_str() else { break };
            path = format!("turns/{root}/graph?after={next}");
        }
        ensure!(n_turns == i64::from(turns), "the graph has {n_turns} turns");
        Ok(n_bytes as f64)
    }
}

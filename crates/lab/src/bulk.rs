//! Artifacts and packages, while the processes that store and send them are killed (HO-1): no package names a missing artifact, no
//! half-written artifact is visible, and no object is left in the store without a row.

use std::{
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::stream;
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use tokio::time::sleep;
use waybill_artifact::{Artifacts, Put, Store};
use waybill_core::{
    artifact::{ArtifactHash, ArtifactPath},
    id::{ProjectId, UploadId},
};
use waybill_kernel::{artifact::Which, project, resource, work::Kernel};
use waybill_orchestrator::{
    handoff,
    launch::{Launch, launch},
};
use waybill_services::{Home, Private};

use crate::{
    bench::{fresh_database, progress},
    figure::{Bar, Figure},
    storm::dice::Dice,
};

/// How many kills, and which store.
#[derive(Clone, Debug)]
pub struct Options {
    /// `waybill` itself.
    pub kills: usize,
    pub seed: u64,
    /// URL of an object store, with credentials from the environment. `None` means a folder.
    pub store: Option<String>,
}

const DATABASE: &str = "waybill_bulk";
const PROJECT: &str = "bulk";
const PROCESSES: usize = 2;

pub async fn run(options: &Options) -> Result<Vec<Figure>> {
    eprintln!("chaos artifacts: seed {}", options.seed);
    let private = Private::start().await?;
    let (kernel, mut admin) = fresh_database(&private.server, DATABASE).await?;
    let project_id = found(&kernel).await?;
    let place = match &options.store {
        Some(url) => url.clone(),
        None => {
            let folder = Home::find()?.path("bulk");
            let _ = std::fs::remove_dir_all(&folder);
            format!("file://{}", folder.display())
        }
    };
    let artifacts = Artifacts::new(kernel.clone(), Store::open(&place, std::env::vars())?);
    let url = private.server.service_url(DATABASE);
    let start = || Bringer::start(&url, &place);
    let mut bringers = (0..PROCESSES).map(|_| start()).collect::<Result<Vec<_>>>()?;
    let mut dice = Dice::new(options.seed);
    let bar = progress("killed while they store and send", options.kills as u64);
    let (mut broken_off, mut given_up) = (0, 0);
    for kill in 0..options.kills {
        sleep(dice.between(Duration::from_millis(100), Duration::from_millis(900))).await;
        let victim = kill % PROCESSES;
        bringers[victim].kill();
        // Expires all uploads under way: those of the killed process, and those that the other process is about to finish.
        if kill % 4 == 3 {
            broken_off += count(&mut admin, "select count(*) from cardbox.uploads where not condemned").await?;
            given_up += 1;
            expire(&mut admin).await?;
            artifacts.sweep(1_000).await?;
        }
        bringers[victim] = start()?;
        bar.inc(1);
    }
    bringers.iter_mut().for_each(Bringer::kill);
    bar.finish_and_clear();
    broken_off += count(&mut admin, "select count(*) from cardbox.uploads where not condemned").await?;
    expire(&mut admin).await?;
    while artifacts.sweep(1_000).await? > 0 {}

    let named: Vec<(ArtifactPath, ArtifactHash)> =
        sqlx::query_as("select path, hash from cardbox.pins").fetch_all(&mut admin).await?;
    let seen: Vec<(ArtifactPath, ArtifactHash)> =
        sqlx::query_as("select path, hash from cardbox.artifacts").fetch_all(&mut admin).await?;
    let (n_named, n_seen) = (named.len(), seen.len());
    let bar = progress("reading everything that is named", (n_named + n_seen) as u64);
    let (mut missing, mut half) = (0, 0);
    for (wanted, bad) in [(named, &mut missing), (seen, &mut half)] {
        for (path, hash) in wanted {
            if !is_whole(&artifacts, project_id, &path, hash).await {
                eprintln!("{path} of {hash} is not there as it was stored");
                *bad += 1;
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let blobs = count(&mut admin, "select count(*) from cardbox.blobs").await?;
    let objects = artifacts.store().count(project_id).await?;
    let packages = count(&mut admin, "select count(*) from cardbox.cards where type = 'handoff.package'").await?;
    let turns = count(&mut admin, "select count(*) from state.turns").await?;
    let whole = |what: &str, value: i64, bar| Figure::new(what, value as f64, "", bar);
    Ok(vec![
        whole("kill -9 while storing and sending", options.kills as i64, Bar::None),
        whole("uploads that a kill or a deadline broke off", broken_off, Bar::AtLeast(1.0)),
        whole("times that all uploads under way were given up", given_up, Bar::None),
        whole("packages sent", packages, Bar::AtLeast(options.kills as f64 / 2.0)),
        whole("artifacts that packages name", n_named as i64, Bar::AtLeast(1.0)),
        whole("artifacts that a package names and that are missing or not whole", missing, Bar::AtMost(0.0)),
        whole("artifacts that can be seen and are not whole", half, Bar::AtMost(0.0)),
        whole("packages without a turn, or turns without one", (packages - turns).abs(), Bar::AtMost(0.0)),
        whole("objects in the store without a row, or rows without one", (objects - blobs).abs(), Bar::AtMost(0.0)),
    ])
}

async fn is_whole(artifacts: &Artifacts, project_id: ProjectId, path: &ArtifactPath, hash: ArtifactHash) -> bool {
    match artifacts.find(project_id, path, Which::Pinned(hash)).await {
        Ok(found) => artifacts.verify(project_id, &found, u64::MAX).await.is_ok(),
        Err(_) => false,
    }
}

async fn count(admin: &mut PgConnection, sql: &'static str) -> Result<i64> {
    Ok(sqlx::query_scalar(sql).fetch_one(admin).await?)
}

async fn expire(admin: &mut PgConnection) -> Result<()> {
    sqlx::query("update cardbox.uploads set expires_at = now()").execute(admin).await?;
    Ok(())
}

async fn found(kernel: &Kernel) -> Result<ProjectId> {
    let mut work = kernel.begin(ProjectId::new()).await?;
    project::create(&mut work, PROJECT).await?;
    let profile = json!({ "profile": {
        "name": "receiver", "worker_target": "llm", "system_prompt_template": "",
        "llm_config": { "provider": "demo", "model": "demo" },
    } });
    resource::apply(&mut work, &[serde_json::from_value(profile)?]).await?;
    let project_id = work.project_id();
    work.commit().await?;
    Ok(project_id)
}

/// A process that stores artifacts and sends packages.
struct Bringer(Child);

impl Bringer {
    fn start(database_url: &str, place: &str) -> Result<Bringer> {
        let child = Command::new(std::env::current_exe()?)
            .args(["process", "bring"])
            .env("WAYBILL_DATABASE_URL", database_url)
            .env("WAYBILL_ARTIFACTS", place)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn();
        Ok(Bringer(child.context("cannot start a process of the storm")?))
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Bringer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Stores the artifacts of a package and sends the package, for ever. After an error it starts with a new package.
pub async fn bring(kernel: Kernel, artifacts: Artifacts) -> Result<()> {
    let project_id = project::find(&kernel, PROJECT).await?;
    let mut dice = Dice::new(u64::from_le_bytes(UploadId::new().simple().as_bytes()[24..].try_into()?));
    loop {
        if let Err(error) = bring_once(&kernel, &artifacts, project_id, &mut dice).await {
            tracing::debug!(%error, "starting with a new package");
        }
    }
}

async fn bring_once(kernel: &Kernel, artifacts: &Artifacts, project_id: ProjectId, dice: &mut Dice) -> Result<()> {
    let folder = UploadId::new();
    let mut design = Map::new();
    for n in 0..=dice.one_of(4) {
        // Sizes range from a few words, some identical for all processes, to several upload parts.
        let (size, byte) = match dice.one_of(6) {
            0 => (1_000, b'='),
            1 => (9 << 20, 0xFF),
            2 => (300_000, 0xFE),
            _ => (20 + dice.one_of(2_000), b'a' + (n as u8)),
        };
        let path: ArtifactPath = format!("designs/{folder}/{n}.bin").parse()?;
        let id = folder.simple();
        let head = if byte == b'=' { Bytes::new() } else { Bytes::from(format!("{id} {n} ").into_bytes()) };
        let portions = std::iter::once(Ok(head))
            .chain((0..size).step_by(200_000).map(|from| Ok(Bytes::from(vec![byte; (size - from).min(200_000)]))));
        artifacts.put(project_id, Put::new(&path), stream::iter(portions.collect::<Vec<_>>())).await?;
        design.insert(format!("part_{n}"), Value::from(path.as_str()));
    }
    let package = json!({
        "version": "2.0", "handoff_type": "init_to_execute", "timestamp": "2026-01-04T10:30:00",
        "user_requirement": "as designed", "design_artifacts": design,
    });
    let package = package.as_object().cloned().unwrap_or_default();
    let verdict = handoff::check(kernel, artifacts, project_id, &package, None).await?;
    let wanted =
        Launch { package: Some(verdict.content(&package)?), ..Launch::new("receiver".parse()?, "carry it out") };
    let mut work = kernel.begin(project_id).await?;
    launch(&mut work, &wanted).await?;
    Ok(work.commit().await?)
}

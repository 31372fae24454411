//! `waybill doctor`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use indicatif::ProgressBar;
use waybill_core::{bus::Bus as _, id::CardId};
use waybill_kernel::{
    card,
    check::{self, Check},
    invariant::{self, Broken, INVARIANTS, OF_DATABASE},
    project, resource,
    work::{Error, Kernel},
};
use waybill_worker::model::{Provider, without_price};

use crate::{
    command::worker::Reached,
    connect::{Bus, Service},
    output,
};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    service: Service,
    #[command(flatten)]
    bus: Bus,
    #[command(flatten)]
    models: Reached,
    /// Also check that the turns, calls and boxes of every project are consistent. This only reads, and takes a while.
    #[arg(long)]
    deep: bool,
    /// With --deep, also compare every card with its hash, to find cards that someone has changed in the database. This reads all content.
    #[arg(long, requires = "deep")]
    hashes: bool,
}

pub(crate) async fn run(arguments: Arguments, json: bool) -> Result<ExitCode> {
    let mut broken = Vec::new();
    let mut checks = match Kernel::connect_unchecked(&arguments.service.config()).await {
        Ok(kernel) => {
            let mut checks = check::run(&kernel).await;
            // The checks below need the expected schema.
            let is_fit = checks.iter().all(|check| check.ok);
            checks.insert(0, reachable(None));
            checks.push(check::statistics(&kernel).await);
            if is_fit {
                checks.push(check::memberships(&kernel).await);
                checks.push(check::partitions(&kernel).await);
                checks.push(check::quarantined(&kernel).await);
            }
            if arguments.models.providers.is_some() && is_fit {
                checks.push(priced(&kernel, &arguments.models.read()?.providers).await?);
            }
            if arguments.deep && is_fit {
                checks.extend(deep(&kernel, &mut broken).await?);
            }
            if arguments.hashes && is_fit {
                checks.push(hashes(&kernel, &mut broken).await?);
            }
            checks
        }
        Err(error @ Error::Unreachable { .. }) => vec![reachable(Some(error))],
        Err(error) => return Err(error.into()),
    };
    if arguments.bus.url().is_some() {
        checks.push(bus(&arguments.bus).await);
    }
    if json && arguments.deep {
        output::json(&serde_json::json!({ "checks": checks, "broken": broken }))?;
    } else if json {
        output::json(&checks)?;
    } else {
        let mark = |check: &Check| if check.ok { "ok" } else { "FAILED" }.to_owned();
        output::table(
            ["", "check", "found", "advice"],
            checks.iter().map(|check| [mark(check), check.check.into(), check.found.clone(), check.advice.into()]),
        );
    }
    if !json && !broken.is_empty() {
        println!();
        output::table(
            ["project_id", "does not hold", "of"],
            broken.iter().map(|broken| {
                let project_id =
                    broken.project_id.map_or_else(|| "all".to_owned(), |project_id| project_id.to_string());
                [project_id, broken.invariant.to_owned(), broken.subjects.join(" ")]
            }),
        );
    }
    Ok(if checks.iter().all(|check| check.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks whether every model that is used under a cost limit has a price.
async fn priced(kernel: &Kernel, providers: &[Provider]) -> Result<Check> {
    let (mut after, mut found) = (String::new(), Vec::new());
    loop {
        let projects = project::list(kernel, &after, 1_000).await?;
        let Some(last) = projects.last() else { break };
        after = last.slug.clone();
        for project in &projects {
            let mut work = kernel.begin(project.project_id).await?;
            let listed = resource::list(&mut work).await?;
            for listed in listed.iter().filter(|listed| listed.kind == resource::Kind::Profile) {
                let profile = resource::profile(&mut work, &listed.name).await?.profile;
                let asks = |model: &String| format!("{}: {} asks {model}", project.slug, profile.name);
                let summariser = match &profile.summariser {
                    Some(name) => resource::profile(&mut work, name).await.ok().map(|found| found.profile),
                    None => None,
                };
                found.extend(without_price(providers, &profile, summariser.as_ref()).iter().map(asks));
            }
        }
    }
    let advice = if found.is_empty() {
        ""
    } else {
        "Add a price for these models to the providers file, or 0 if they are free."
    };
    let told = if found.is_empty() { "yes".to_owned() } else { found.join(", ") };
    Ok(Check { check: "models under a cost limit have a price", ok: found.is_empty(), found: told, advice })
}

/// Checks every invariant of the database and of every project.
async fn deep(kernel: &Kernel, broken: &mut Vec<Broken>) -> Result<Vec<Check>> {
    broken.extend(invariant::of_database(kernel).await?);
    let (mut after, mut n_projects) = (String::new(), 0);
    loop {
        let projects = project::list(kernel, &after, 1_000).await?;
        let Some(last) = projects.last() else { break };
        after = last.slug.clone();
        for project in &projects {
            let found = invariant::of_project(kernel, project.project_id).await?;
            if !found.is_empty() && project::is_kept(kernel, project.project_id).await? {
                broken.extend(found);
            }
        }
        n_projects += projects.len();
    }
    let of = |invariant: &'static str, found: fn(usize, usize) -> String| {
        let n = broken.iter().filter(|broken| broken.invariant == invariant).count();
        let advice = if n == 0 { "" } else { "See docs/operations.md, Broken invariants." };
        Check { check: invariant, ok: n == 0, found: found(n, n_projects), advice }
    };
    let of_database = |n: usize, _| if n == 0 { "yes" } else { "no" }.to_owned();
    let of_projects = |n: usize, n_projects: usize| format!("{} of {n_projects} projects", n_projects - n);
    let whole = OF_DATABASE.iter().map(|(invariant, _)| of(invariant, of_database));
    Ok(whole.chain(INVARIANTS.iter().map(|(invariant, _)| of(invariant, of_projects))).collect())
}

/// How many cards are read at a time.
const CARDS: i64 = 200;
/// How many changed cards of a project are named.
const NAMED: usize = 1_000;

/// Compares every card of every project with its hash.
async fn hashes(kernel: &Kernel, broken: &mut Vec<Broken>) -> Result<Check> {
    const CHECK: &str = "cards match their hashes";
    let bar = ProgressBar::new_spinner();
    let (mut after, mut n_cards, mut n_changed) = (String::new(), 0, 0);
    loop {
        let projects = project::list(kernel, &after, 1_000).await?;
        let Some(last) = projects.last() else { break };
        after = last.slug.clone();
        for project in &projects {
            let (mut last, mut subjects) = (None, Vec::new());
            let next = async |last| card::check_hashes(&mut kernel.begin(project.project_id).await?, last, CARDS).await;
            while let Some(hashed) = next(last).await? {
                last = Some(hashed.last);
                n_cards += hashed.n_cards;
                n_changed += hashed.changed.len();
                subjects.extend(hashed.changed.iter().take(NAMED - subjects.len()).map(CardId::to_string));
                bar.set_message(format!("{n_cards} cards compared with their hashes, {n_changed} changed"));
            }
            if !subjects.is_empty() {
                broken.push(Broken { project_id: Some(project.project_id), invariant: CHECK, subjects });
            }
        }
    }
    bar.finish_and_clear();
    let ok = n_changed == 0;
    let found = if ok { format!("yes, all {n_cards}") } else { format!("{n_changed} of {n_cards} do not") };
    Ok(Check { check: CHECK, ok, found, advice: if ok { "" } else { "See docs/operations.md, Changed cards." } })
}

/// Checks NATS. An unreachable server is no failure, because nothing depends on it. A server that is too old or refuses the login is one.
async fn bus(bus: &Bus) -> Check {
    const CHECK: &str = "NATS usable";
    match bus.connect().await {
        Ok(nats) if nats.as_ref().is_some_and(|nats| nats.is_up()) => {
            Check { check: CHECK, ok: true, found: "yes".to_owned(), advice: "" }
        }
        Ok(_) => Check {
            check: CHECK,
            ok: true,
            found: "unreachable".to_owned(),
            advice: "Work continues by polling. Check that the server runs and that WAYBILL_NATS_URL points at it.",
        },
        Err(error) => Check {
            check: CHECK,
            ok: false,
            found: format!("{error:#}"),
            advice: "Use NATS 2.10 or newer, and a login that it accepts.",
        },
    }
}

fn reachable(error: Option<Error>) -> Check {
    const CHECK: &str = "database reachable";
    match error {
        None => Check { check: CHECK, ok: true, found: "yes".to_owned(), advice: "" },
        Some(error) => Check {
            check: CHECK,
            ok: false,
            found: format!("{:#}", anyhow::Error::from(error)), // with its causes
            advice: "Check that the server runs and that WAYBILL_DATABASE_URL points at it.",
        },
    }
}

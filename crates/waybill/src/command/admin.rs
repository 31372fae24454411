//! `waybill admin …`

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use chrono::{DateTime, Utc};
use clap::Subcommand;
use uuid::Uuid;
use waybill_core::id::AgentId;
use waybill_kernel::{
    agent, migrate, outbox, quarantine,
    retention::{self, Step},
    sweep::{self, Swept},
};

use crate::{
    connect::{self, Bus, Owner, Service},
    named::{Named, find_some},
    output,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List and retry what is in quarantine: rows that the watchdogs failed on repeatedly, and agents whose events NATS refuses.
    #[command(subcommand)]
    Quarantine(Quarantine),
    /// Rebuild the lost state of agents from their turns, steps and calls. Agents that still have their state are not changed.
    RebuildState {
        /// The project: its slug or its id.
        #[arg(long, env = "WAYBILL_PROJECT")]
        project: String,
        /// Only this agent. If omitted, every agent of the project that has lost its state.
        #[arg(long)]
        agent: Option<Named<AgentId>>,
        #[command(flatten)]
        service: Service,
    },
    /// Run the watchdogs once and print what they did. They handle expired leases, missed deadlines, and turns that are due.
    ///
    /// `waybill orchestrator` runs them all the time.
    Sweep {
        #[command(flatten)]
        service: Service,
        #[command(flatten)]
        bus: Bus,
    },
    /// Show how many events of the outbox are not published yet.
    Outbox {
        #[command(flatten)]
        service: Service,
    },
    /// Delete old history, one partition after the other: steps, edges, events, receipts, patches, refusals.
    ///
    /// Without --yes, this only shows what would be deleted. History that an open turn may still need is kept. Cards, boxes, turns, grants, packages
    /// and artifacts are not deleted.
    Prune {
        /// Delete history older than this age, in days, weeks or years, such as 90d, 12w or 2y.
        #[arg(long, value_name = "AGE", value_parser = age)]
        older_than: Duration,
        /// Also delete events that were not published, for an installation that will never run a relay again. If omitted, they are kept.
        #[arg(long)]
        drop_unpublished: bool,
        /// Delete the history. If omitted, only show what would be deleted.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        service: Service,
        #[command(flatten)]
        owner: Owner,
    },
    /// Show the partitions of the history tables: the period that a new one covers, the first and the last time that they cover, and their size.
    History {
        #[command(flatten)]
        service: Service,
    },
    /// Set how much time each new partition of history covers: day, week or month.
    ///
    /// Existing partitions stay as they are, and the next one begins where they end. History is deleted by whole partitions, so a shorter step deletes
    /// closer to the age that `waybill admin prune` is given; a longer step means fewer partitions, which is better for history that is kept for years.
    SetHistoryStep {
        /// day, week or month.
        step: Step,
        #[command(flatten)]
        owner: Owner,
    },
    /// Create the missing partitions of history for the next four weeks, or for two steps if those are longer.
    ///
    /// `waybill migrate` and every process do so when they start, and `waybill orchestrator` every hour. Without the partition of the current time, no
    /// turn can be written.
    ExtendPartitions {
        #[command(flatten)]
        service: Service,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Quarantine {
    /// List the rows that failed, in all projects, most recent first. Shows of each whether it is in quarantine or still retried.
    List {
        /// How many to list at most.
        #[arg(long, default_value_t = 100)]
        most: i32,
        #[command(flatten)]
        service: Service,
    },
    /// Take the rows of a project out of quarantine, so that the orchestrator retries them.
    Retry {
        /// The project: its slug or its id.
        #[arg(long, env = "WAYBILL_PROJECT")]
        project: String,
        /// Only this turn, call or batch, or the events of this agent. If omitted, all rows of the project.
        #[arg(long)]
        subject: Option<Uuid>,
        #[command(flatten)]
        service: Service,
    },
}

pub(crate) async fn run(command: Command, json: bool) -> Result<ExitCode> {
    match command {
        Command::Quarantine(Quarantine::List { most, service }) => list_quarantined(most, service, json).await?,
        Command::Quarantine(Quarantine::Retry { project, subject, service }) => {
            let kernel = service.kernel().await?;
            let mut work = kernel.begin(connect::project_id(&kernel, &project).await?).await?;
            let freed = quarantine::retry(&mut work, subject).await?;
            work.commit().await?;
            report(json, "freed", freed)?;
            if freed == 0 {
                bail!(
                    "nothing to retry: project {project:?} has no row in quarantine, or none with that id. `waybill admin quarantine list` lists the rows"
                );
            }
        }
        Command::RebuildState { project, agent, service } => {
            rebuild_state(&project, agent.as_ref(), service, json).await?;
        }
        Command::Sweep { service, bus } => {
            let nats = bus.connect().await?;
            let kernel = connect::on_bus(service.kernel().await?, nats.as_ref());
            show(&sweep::tick(&kernel, &sweep::Config::default()).await?, json)?;
            if let Some(nats) = nats {
                nats.flush().await;
            }
        }
        Command::Prune { older_than, drop_unpublished, yes, service, owner } => {
            prune(older_than, drop_unpublished, yes, service, owner, json).await?;
        }
        Command::Outbox { service } => {
            let lag = outbox::lag(&service.kernel().await?).await?;
            if json {
                output::json(&lag)?;
            } else {
                let oldest = lag.oldest_at.map(|at| at.to_rfc3339()).unwrap_or_default();
                output::table(
                    ["unpublished", "oldest_at", "shards replaying"],
                    [[lag.n_unpublished.to_string(), oldest, lag.n_replaying.to_string()]],
                );
            }
        }
        Command::ExtendPartitions { service } => {
            let kernel = service.kernel().await?;
            let made = retention::extend_here(&kernel).await?;
            report(json, "made", u64::from(made.unsigned_abs()))?;
        }
        Command::History { service } => show_history(service, json).await?,
        Command::SetHistoryStep { step, owner } => {
            let mut owner = migrate::connect_owner(&owner.owner_url).await?;
            retention::set_step(&mut owner, step).await?;
            match json {
                true => output::json(&serde_json::json!({ "step": step }))?,
                false => println!("each new partition covers a {}", step.as_str()),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the rows of all projects that failed last.
async fn list_quarantined(most: i32, service: Service, json: bool) -> Result<()> {
    let rows = quarantine::list(&service.kernel().await?, most).await?;
    if json {
        output::json(&rows)?;
    } else {
        let state = |at: bool| if at { "quarantined" } else { "being tried" }.to_owned();
        output::table(
            ["project_id", "sweep", "subject_id", "failures", "state", "last_at", "last_error"],
            rows.into_iter().map(|row| {
                [
                    row.project_id.to_string(),
                    row.sweep,
                    row.subject_id.to_string(),
                    row.n_failures.to_string(),
                    state(row.quarantined_at.is_some()),
                    row.last_at.to_rfc3339(),
                    row.last_error,
                ]
            }),
        );
    }
    Ok(())
}

/// Rebuilds the head row of one agent, or of every agent of the project that has lost it.
async fn rebuild_state(project: &str, agent: Option<&Named<AgentId>>, service: Service, json: bool) -> Result<()> {
    let kernel = service.kernel().await?;
    let project_id = connect::project_id(&kernel, project).await?;
    let agent = find_some(agent, &mut kernel.begin(project_id).await?).await?;
    let mut rebuilt = 0;
    loop {
        let mut work = kernel.begin(project_id).await?;
        let lost = match agent {
            Some(agent_id) => vec![agent_id],
            None => agent::without_head(&mut work, 100).await?,
        };
        for agent_id in &lost {
            agent::rebuild(&mut work, *agent_id).await?;
        }
        work.commit().await?;
        rebuilt += lost.len() as u64;
        if agent.is_some() || lost.is_empty() {
            break;
        }
    }
    report(json, "rebuilt", rebuilt)
}

/// Drops old history, or shows what would be dropped.
async fn prune(
    older_than: Duration,
    drop_unpublished: bool,
    yes: bool,
    service: Service,
    owner: Owner,
    json: bool,
) -> Result<()> {
    let mut owner = migrate::connect_owner(&owner.owner_url).await?;
    let kernel = service.kernel().await?;
    let plan = retention::plan(&kernel, &mut owner, older_than, drop_unpublished).await?;
    if yes {
        retention::drop(&kernel, &mut owner, &plan, |partition| tracing::info!(partition.partition, "history deleted"))
            .await?;
    }
    if json {
        output::json(&plan)?;
        return Ok(());
    }
    output::table(
        ["partition", "until", "rows", "MB"],
        plan.partitions.iter().map(|partition| {
            [
                partition.partition.clone(),
                partition.ends_at.date_naive().to_string(),
                partition.n_rows.to_string(),
                format!("{:.1}", partition.bytes as f64 / 1e6),
            ]
        }),
    );
    if let Some(held) = &plan.held {
        println!("history is kept from {} on, because {}", held.since, held.why);
    }
    let n = plan.partitions.len();
    println!("{n} partitions {}", if yes { "deleted" } else { "would be deleted: add --yes to delete them" });
    Ok(())
}

/// Prints how history is partitioned.
async fn show_history(service: Service, json: bool) -> Result<()> {
    let history = retention::history(&service.kernel().await?).await?;
    if json {
        output::json(&history)?;
        return Ok(());
    }
    let date = |at: Option<DateTime<Utc>>| at.map(|at| at.date_naive().to_string()).unwrap_or_default();
    output::table(
        ["table", "partitions", "from", "until", "MB"],
        history.tables.iter().map(|table| {
            [
                table.parent.clone(),
                table.n_partitions.to_string(),
                date(table.starts_at),
                date(table.ends_at),
                format!("{:.1}", table.bytes as f64 / 1e6),
            ]
        }),
    );
    let (step, days) = (history.step.as_str(), history.days_ahead);
    println!("each new partition covers a {step}; they exist for {days} days ahead");
    Ok(())
}

fn report(json: bool, what: &str, n: u64) -> Result<()> {
    if json {
        return output::json(&serde_json::json!({ what: n }));
    }
    println!("{what} {n}");
    Ok(())
}

fn show(swept: &Swept, json: bool) -> Result<()> {
    if json {
        return output::json(swept);
    }
    println!("{swept:?}");
    Ok(())
}

/// Parses an age in days, weeks or years.
fn age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not an age: write days, weeks or years, such as 90d, 12w or 2y");
    let units = [("d", 1), ("w", 7), ("y", 365)];
    let (number, days) =
        units.iter().find_map(|(unit, days)| Some((text.strip_suffix(unit)?, *days))).ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = number.checked_mul(days * 24 * 3600).filter(|seconds| *seconds > 0).ok_or_else(wrong)?;
    Ok(Duration::from_secs(seconds))
}

//! `waybill admin …`

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use clap::Subcommand;
use uuid::Uuid;
use waybill_core::id::AgentId;
use waybill_kernel::{
    agent, migrate, outbox, quarantine, retention,
    sweep::{self, Swept},
};

use crate::{
    connect::{self, Bus, Owner, Service},
    output,
};

pub(crate) const WEEKS_AHEAD: i32 = 4;

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
        agent: Option<AgentId>,
        #[command(flatten)]
        service: Service,
    },
    /// Run the watchdogs once and print what they did: expired leases, deadlines, turns that are due.
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
    /// Delete old history, week by week: steps, edges, events, receipts, patches, refusals.
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
    /// Move history from the default partition ("the rest") to the partition of its week.
    ///
    /// History is in the default partition if its week had no partition. Turns continue meanwhile, unless the partition of the current week is missing.
    EmptyRest {
        #[command(flatten)]
        owner: Owner,
    },
    /// Create the partitions of the coming weeks. History of a week without a partition goes to the default partition.
    ExtendPartitions {
        /// For how many weeks ahead to create partitions.
        #[arg(long, default_value_t = WEEKS_AHEAD)]
        weeks: i32,
        #[command(flatten)]
        service: Service,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Quarantine {
    /// List the rows of all projects that failed, most recent first, and whether each is in quarantine or still retried.
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
        Command::RebuildState { project, agent, service } => rebuild_state(&project, agent, service, json).await?,
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
        Command::ExtendPartitions { weeks, service } => {
            let kernel = service.kernel().await?;
            let made = retention::extend_here(&kernel, weeks).await?;
            report(json, "made", u64::from(made.unsigned_abs()))?;
        }
        Command::EmptyRest { owner } => empty_rest(owner, json).await?,
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
async fn rebuild_state(project: &str, agent: Option<AgentId>, service: Service, json: bool) -> Result<()> {
    let kernel = service.kernel().await?;
    let project_id = connect::project_id(&kernel, project).await?;
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
    let plan = retention::plan(&service.kernel().await?, &mut owner, older_than, drop_unpublished).await?;
    if yes {
        retention::drop(&mut owner, &plan, |partition| tracing::info!(partition.partition, "dropped")).await?;
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

/// Moves history out of the default partition, and prints what was moved and what is left.
async fn empty_rest(owner: Owner, json: bool) -> Result<()> {
    let mut owner = migrate::connect_owner(&owner.owner_url).await?;
    let say = |found: &retention::Rest| tracing::info!(found.parent, found.n_rows, "moved");
    let moved = retention::empty_rest(&mut owner, say).await?;
    let left = retention::rest(&mut owner).await?;
    if json {
        output::json(&serde_json::json!({ "moved": moved, "left": left }))?;
        return Ok(());
    }
    let week = |rest: &retention::Rest| rest.week.map(|week| week.date_naive().to_string()).unwrap_or_default();
    let row = |done: &str, rest: &retention::Rest| {
        [done.to_owned(), rest.parent.clone(), week(rest), rest.n_rows.to_string()]
    };
    let rows = moved.iter().map(|rest| row("moved", rest)).chain(left.iter().map(|rest| row("left", rest)));
    output::table(["", "table", "week of", "rows"], rows);
    if left.iter().any(|rest| rest.week.is_some()) {
        println!("more rows were added to the default partition in the meantime: run this command again");
    }
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

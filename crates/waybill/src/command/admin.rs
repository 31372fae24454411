//! `waybill admin …`

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Subcommand;
use uuid::Uuid;
use waybill_core::id::AgentId;
use waybill_kernel::{
    agent, quarantine,
    sweep::{self, Swept},
};

use crate::{
    connect::{self, Service},
    output,
};

const AN_HOUR: Duration = Duration::from_secs(3600);
const WEEKS_AHEAD: i32 = 4;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Rows that a sweep could not handle, again and again.
    #[command(subcommand)]
    Quarantine(Quarantine),
    /// Make lost head rows anew, from inbox, turns, steps and edges. Agents that have theirs are left alone.
    RebuildState {
        /// Slug or id.
        #[arg(long)]
        project: String,
        /// Only this agent; without it, every agent of the project that has lost its head row.
        #[arg(long)]
        agent: Option<AgentId>,
        #[command(flatten)]
        service: Service,
    },
    /// Run the watchdogs: lapsed leases, deadlines, turns whose time has come. Any number may run at once.
    ///
    /// Also makes partitions ahead of time. Prints what it did, tick by tick.
    Sweep {
        /// One tick, then end.
        #[arg(long)]
        once: bool,
        /// Seconds between ticks.
        #[arg(long, default_value_t = 1.0)]
        every: f64,
        #[command(flatten)]
        service: Service,
    },
    /// Make the partitions of the weeks to come. What has none goes to a partition for the rest.
    ExtendPartitions {
        /// How many weeks ahead.
        #[arg(long, default_value_t = WEEKS_AHEAD)]
        weeks: i32,
        #[command(flatten)]
        service: Service,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Quarantine {
    /// The rows that failed last, of all projects.
    List {
        /// How many at most.
        #[arg(long, default_value_t = 100)]
        most: i32,
        #[command(flatten)]
        service: Service,
    },
    /// Let the sweeps try rows of a project again.
    Retry {
        /// Slug or id.
        #[arg(long)]
        project: String,
        /// Only this turn, call or batch; without it, all of the project's.
        #[arg(long)]
        subject: Option<Uuid>,
        #[command(flatten)]
        service: Service,
    },
}

pub(crate) async fn run(command: Command, json: bool) -> Result<ExitCode> {
    match command {
        Command::Quarantine(Quarantine::List { most, service }) => {
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
        }
        Command::Quarantine(Quarantine::Retry { project, subject, service }) => {
            let kernel = service.kernel().await?;
            let mut work = kernel.begin(connect::project_id(&kernel, &project).await?).await?;
            let freed = quarantine::retry(&mut work, subject).await?;
            work.commit().await?;
            report(json, "freed", freed)?;
            if freed == 0 {
                bail!("nothing of project {project:?} is in quarantine under that id");
            }
        }
        Command::RebuildState { project, agent, service } => {
            let kernel = service.kernel().await?;
            let project_id = connect::project_id(&kernel, &project).await?;
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
            report(json, "rebuilt", rebuilt)?;
        }
        Command::Sweep { once, every, service } => {
            let kernel = service.kernel().await?;
            let mut extended = None::<Instant>;
            loop {
                if !once && extended.is_none_or(|at| at.elapsed() > AN_HOUR) {
                    if let Err(error) = sweep::extend_partitions(&kernel, WEEKS_AHEAD).await {
                        output::error(&error.into(), json);
                    }
                    extended = Some(Instant::now());
                }
                match sweep::tick(&kernel, &sweep::Config::default()).await {
                    Ok(swept) if once || swept.did_something() => show(&swept, json)?,
                    Ok(_) => {}
                    Err(error) if once => return Err(error.into()),
                    // The database is away: a watchdog waits for it.
                    Err(error) => output::error(&error.into(), json),
                }
                if once {
                    break;
                }
                tokio::time::sleep(Duration::from_secs_f64(every.max(0.05))).await;
            }
        }
        Command::ExtendPartitions { weeks, service } => {
            let made = sweep::extend_partitions(&service.kernel().await?, weeks).await?;
            report(json, "made", u64::from(made.unsigned_abs()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
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

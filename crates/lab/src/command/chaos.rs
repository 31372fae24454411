//! `waybill-lab chaos …`

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use waybill_lab::{
    bulk,
    figure::{Bar, Figure},
    operate::{day, failover, faults, neighbours, overload},
    roles,
    storm::{
        self, changed,
        mutant::{self, MUTANTS, Mutant, Trial},
        proxy::Mode,
        record, runaway,
        schedule::Plan,
        watch,
    },
    team,
    tools::{hostile, killed, washing},
    walls, waybill,
};

use super::report;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run turns while workers, tools, sweeps, relays, NATS and PostgreSQL are killed, frozen and cut off.
    ///
    /// Starts its own PostgreSQL and NATS. Full size: 100,000 turns in 22 minutes.
    Turns {
        #[command(flatten)]
        options: Options,
        /// Break the database in this way first; the run should notice it. If omitted, the database is not broken.
        #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(MUTANTS.map(|mutant| mutant.name)))]
        mutant: Option<String>,
    },
    /// Run turns without NATS, then with doorbells dropped and doubled, then with the event stream deleted repeatedly.
    Bells {
        #[command(flatten)]
        options: Options,
    },
    /// Run turns while workers and tools are cut off from PostgreSQL, without noticing, for longer than their lease.
    Partition {
        #[command(flatten)]
        options: Options,
    },
    /// Run a team of agents on the scripted model, and kill its worker at every step boundary and at random instants.
    ///
    /// Starts its own PostgreSQL and NATS.
    Team {
        #[command(flatten)]
        options: Options,
    },
    /// Run an agent whose context is compacted, and kill its worker: every paid model call must be on record.
    ///
    /// The worker is killed at every step boundary and at random instants. Uses the scripted model, and starts its own PostgreSQL and NATS.
    Compaction {
        #[command(flatten)]
        options: Options,
    },
    /// Run agents that call themselves, fan out and retry without end, each tree under a limit, while processes are killed.
    ///
    /// Workers and orchestrators are killed. Full size: 10,000 agents.
    Budgets {
        #[command(flatten)]
        options: Options,
        /// Number of runaway agents over all trees. If omitted, 10,000, or 500 with --short.
        #[arg(long)]
        agents: Option<usize>,
    },
    /// Let one project try to reach another over HTTP, with its own valid keys and every id of the other.
    ///
    /// Then again with the API's checks off, and with row security off. Full size: 100,000 attempts, each paired with one for an id that never
    /// existed.
    Walls {
        #[command(flatten)]
        options: Options,
    },
    /// Let keys of one project try what they are not allowed to do, knowing every id, fence and token of the others.
    ///
    /// Full size: 20,000 attempts.
    Roles {
        #[command(flatten)]
        options: Options,
    },
    /// Let one project abuse the API with all its keys while another project works beside it.
    ///
    /// Uses long polls, streams, idle uploads, half-sent headers, large pages, schemas that would take hours, and forged keys.
    /// Full size: 30 seconds of each part.
    Neighbours {
        #[command(flatten)]
        options: Options,
    },
    /// Let many callers watch many trees over HTTP while turns run, and cut them off at random.
    ///
    /// Full size: 500 watchers of 50 trees, about 500 events per second, 1,000 cuts.
    Watch {
        #[command(flatten)]
        options: Options,
    },
    /// Record the calls of agents elsewhere while clients, the database and the recorder are killed at random instants.
    ///
    /// Starts its own PostgreSQL. Full size: 100 kills of the database and 100 of the recorder.
    Record {
        #[command(flatten)]
        options: Options,
    },
    /// Change cards in the database, one column at a time, as a superuser can: each must be refused by name when a context is composed.
    ///
    /// Starts its own PostgreSQL. Full size: 10,000 changes for contexts, and 10,000 for `waybill doctor --deep --hashes`.
    Hashes {
        #[command(flatten)]
        options: Options,
    },
    /// Kill processes that store artifacts and send packages, at random instants.
    ///
    /// Full size: 200 kills.
    Artifacts {
        #[command(flatten)]
        options: Options,
        /// An object store, such as s3://BUCKET/PREFIX, with the credentials of the environment. If omitted, a folder.
        #[arg(long, value_name = "URL")]
        store: Option<String>,
    },
    /// Run tools of every kind while workers and a tool service are killed, then attack through hostile tools.
    ///
    /// The attacks are flows among hostile tools, and every way to remove the label of content from outside. Full size: 300 turns and 150 kills;
    /// 2,000 flows.
    Tools {
        #[command(flatten)]
        options: Options,
    },
    /// Fail over to a synchronous standby under write load: the primary is killed and the standby promoted, repeatedly.
    ///
    /// Full size: 20 failovers.
    Failover {
        #[command(flatten)]
        options: Options,
    },
    /// Send three times the possible load over HTTP while another project works beside it.
    ///
    /// Full size: one minute of overload.
    Overload {
        #[command(flatten)]
        options: Options,
    },
    /// Run with clocks that are an hour off, workers that reach their memory limit, and a full disk under PostgreSQL.
    Faults {
        #[command(flatten)]
        options: Options,
    },
    /// Run an operator's day under load: replace every part, migrate the schema, restore a backup.
    ///
    /// Every part is a separate process, which is killed and replaced.
    Day {
        #[command(flatten)]
        options: Options,
    },
    /// Run short storms, or short budgets, on databases that are broken on purpose. One of its own figures must notice each.
    Mutants {
        /// Only this mutant. If omitted, all.
        #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(MUTANTS.map(|mutant| mutant.name)))]
        only: Option<String>,
        /// Only two mutants, chosen by this text, such as a commit. If omitted, all.
        #[arg(long, value_name = "TEXT", conflicts_with = "only")]
        rotate: Option<String>,
        /// Seed of the storms. If omitted, a new one.
        #[arg(long)]
        seed: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Options {
    /// Use the small size for CI. If omitted, the full size.
    #[arg(long)]
    short: bool,
    /// Seed of an earlier run, to repeat its faults. If omitted, a new one.
    #[arg(long)]
    seed: Option<u64>,
}

impl Options {
    fn seed(self) -> u64 {
        self.seed.unwrap_or_else(any_seed)
    }
}

fn any_seed() -> u64 {
    let (_, low) = uuid::Uuid::now_v7().as_u64_pair();
    low >> 32
}

/// Returns a plan without faults. The storms below override parts of it.
fn calm(name: &'static str, seed: u64) -> Plan {
    Plan {
        name,
        seed,
        turns: 0,
        duration: Duration::ZERO,
        lease: Duration::from_secs(4),
        kills: 0,
        freezes: 0,
        nats_kills: 0,
        postgres_kills: 0,
        partitions: 0,
        streams_lost: 0,
        slow: 0.0,
        without_nats: false,
        bells: Mode::Pass,
        prompt: false,
        patience: Duration::from_secs(90),
    }
}

fn turns(options: Options) -> Plan {
    let calm = calm("chaos turns", options.seed());
    if options.short {
        Plan {
            turns: 2_000,
            duration: Duration::from_secs(45),
            kills: 24,
            freezes: 6,
            nats_kills: 1,
            postgres_kills: 1,
            partitions: 2,
            slow: 0.03,
            ..calm
        }
    } else {
        Plan {
            turns: 100_000,
            duration: Duration::from_secs(22 * 60),
            // Half again as many as required: some find no process to kill, or one that is frozen already.
            kills: 1_500,
            freezes: 300,
            nats_kills: 52,
            postgres_kills: 21,
            partitions: 60,
            slow: 0.02,
            ..calm
        }
    }
}

/// Returns a storm that is long enough for every mutant to be noticed.
fn brief(seed: u64) -> Plan {
    Plan {
        turns: 700,
        duration: Duration::from_secs(20),
        kills: 14,
        freezes: 8,
        slow: 0.05,
        patience: Duration::from_secs(25),
        ..calm("chaos mutants", seed)
    }
}

fn bells(options: Options) -> [Plan; 3] {
    let seed = options.seed();
    let (turns, seconds, lost) = if options.short { (300, 10, 2) } else { (6_000, 120, 20) };
    let of = |name| Plan { turns, duration: Duration::from_secs(seconds), ..calm(name, seed) };
    [
        Plan { without_nats: true, prompt: true, ..of("without NATS") },
        Plan { bells: Mode::Bells { drop: 0.3, double: 0.3 }, prompt: true, ..of("doorbells dropped and doubled") },
        Plan { streams_lost: lost, ..of("streams deleted") },
    ]
}

fn partition(options: Options) -> Plan {
    let (turns, seconds, partitions) = if options.short { (400, 15, 4) } else { (10_000, 400, 120) };
    Plan { turns, duration: Duration::from_secs(seconds), partitions, ..calm("chaos partition", options.seed()) }
}

fn team(options: Options, piece: team::Piece) -> Result<team::Options> {
    let (adapters, random, lease) = match options.short {
        true => (&team::ADAPTERS[..1], 8, Duration::from_millis(500)),
        // About fifty over all formats.
        false => (&team::ADAPTERS[..], 17, Duration::from_secs(1)),
    };
    let program = waybill()?;
    Ok(team::Options { program, piece, adapters: adapters.to_vec(), random, lease, seed: options.seed() })
}

fn budgets(options: Options, agents: Option<usize>) -> runaway::Plan {
    let (usual, seconds, kills) = if options.short { (500, 180, 10) } else { (10_000, 600, 100) };
    runaway::Plan {
        seed: options.seed(),
        agents: agents.unwrap_or(usual),
        patience: Duration::from_secs(seconds),
        kills,
    }
}

fn watching(options: Options) -> Result<watch::Options> {
    let (watchers, trees, cuts, pace, seconds) =
        if options.short { (50, 5, 50, 20.0, 12) } else { (500, 50, 1_000, 100.0, 30) };
    let (program, seed, window) = (waybill()?, options.seed(), Duration::from_secs(seconds));
    Ok(watch::Options { program, seed, watchers, trees, cuts, pace, window })
}

pub(crate) async fn run(command: Command, json: bool) -> Result<ExitCode> {
    report::report(measure(command), json).await
}

async fn measure(command: Command) -> Result<Vec<Figure>> {
    match command {
        Command::Turns { options, mutant } => {
            let mutant = mutant.map(|name| Mutant::find(&name).context("a mutant")).transpose()?;
            storm::run(&turns(options), mutant).await
        }
        Command::Bells { options } => {
            let mut figures = Vec::new();
            for plan in bells(options) {
                for figure in storm::run(&plan, None).await? {
                    figures.push(Figure { figure: format!("{}: {}", plan.name, figure.figure), ..figure });
                }
            }
            Ok(figures)
        }
        Command::Partition { options } => storm::run(&partition(options), None).await,
        Command::Team { options } => team::run(&team(options, team::Piece::Team)?).await,
        Command::Compaction { options } => team::run(&team(options, team::Piece::Compaction)?).await,
        Command::Budgets { options, agents } => runaway::run(&budgets(options, agents), None).await,
        Command::Walls { options } => {
            let attempts = if options.short { 5_000 } else { 100_000 };
            walls::run(walls::Options { seed: options.seed(), attempts }).await
        }
        Command::Roles { options } => {
            let attempts = if options.short { 1_000 } else { 20_000 };
            roles::run(roles::Options { seed: options.seed(), attempts }).await
        }
        Command::Neighbours { options } => {
            let lasts = Duration::from_secs(if options.short { 8 } else { 30 });
            let program = waybill()?;
            neighbours::run(&neighbours::Options { program, lasts }).await
        }
        Command::Watch { options } => watch::run(&watching(options)?).await,
        Command::Record { options } => {
            let (program, seed, kills) = (waybill()?, options.seed(), if options.short { 4 } else { 100 });
            record::run(&record::Options { program, seed, kills }).await
        }
        Command::Hashes { options } => {
            let (program, seed, changes) = (waybill()?, options.seed(), if options.short { 500 } else { 10_000 });
            changed::run(&changed::Options { program, seed, changes }).await
        }
        Command::Artifacts { options, store } => {
            let kills = if options.short { 10 } else { 200 };
            bulk::run(&bulk::Options { kills, seed: options.seed(), store }).await
        }
        Command::Tools { options } => {
            let (turns, kills, flows) = if options.short { (24, 12, 200) } else { (300, 150, 2_000) };
            let (program, seed) = (waybill()?, options.seed());
            let mut figures = killed::run(&killed::Options { program, turns, kills, seed }).await?;
            figures.extend(hostile::run(&hostile::Options { flows, seed }).await?);
            figures.extend(washing::run().await?);
            Ok(figures)
        }
        Command::Failover { options } => {
            failover::run(&failover::Options { failovers: if options.short { 5 } else { 20 } }).await
        }
        Command::Overload { options } => {
            let [normal, overload, after, most_backlog] =
                if options.short { [6, 10, 40, 3] } else { [20, 60, 100, 10] }.map(Duration::from_secs);
            overload::run(&overload::Options { normal, overload, after, most_backlog }).await
        }
        Command::Faults { options } => {
            let (turns, kills, full) = if options.short { (12, 3, 3) } else { (120, 40, 20) };
            let program = waybill()?;
            faults::run(&faults::Options { program, turns, kills, full: Duration::from_secs(full) }).await
        }
        Command::Day { options } => {
            let (turns, kills) = if options.short { (60, 8) } else { (1_500, 100) };
            let program = waybill()?;
            day::run(&day::Options { program, turns, kills, seed: options.seed() }).await
        }
        Command::Mutants { only, rotate, seed } => {
            let mut figures = Vec::new();
            let mutants = match (only, rotate) {
                (Some(name), _) => vec![Mutant::find(&name).context("a mutant")?],
                (_, Some(by)) => mutant::rotate(&by).to_vec(),
                _ => MUTANTS.to_vec(),
            };
            for mutant in mutants {
                let (mut by, mut storms) = (Vec::new(), 0);
                // It is a matter of chance whether a storm meets what is broken. With a given seed, a second storm would be the same.
                while by.is_empty() && storms < if seed.is_some() { 1 } else { MOST_STORMS } {
                    storms += 1;
                    by = noticed(mutant, seed.unwrap_or_else(any_seed)).await?;
                }
                let caught = if by.is_empty() { "nothing".to_owned() } else { by.join(", ") };
                let what = format!("{}, {}: caught in storm {storms} by {caught}", mutant.name, mutant.says);
                figures.push(Figure::new(what, by.len() as f64, "figures", Bar::AtLeast(1.0)));
            }
            Ok(figures)
        }
    }
}

/// Storms that a mutant may survive before it counts as not noticed.
const MOST_STORMS: usize = 4;

/// Runs one storm and returns those of the mutant's own figures that fall short.
async fn noticed(mutant: Mutant, seed: u64) -> Result<Vec<String>> {
    let measured = match mutant.trial {
        Trial::Storm => storm::run(&brief(seed), Some(mutant)).await?,
        Trial::Budgets => {
            let plan = runaway::Plan { seed, agents: 120, patience: Duration::from_secs(60), kills: 0 };
            runaway::run(&plan, Some(mutant)).await?
        }
    };
    let short: Vec<&Figure> = measured.iter().filter(|figure| !figure.ok).collect();
    for figure in &short {
        eprintln!("{}: {} {}", mutant.name, figure.figure, figure.value);
    }
    let shown = short.iter().filter(|figure| mutant.shows.contains(&figure.figure.as_str()));
    Ok(shown.map(|figure| format!("{} {}", figure.figure, figure.value)).collect())
}

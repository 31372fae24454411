//! `waybill chaos …`

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use waybill_lab::{
    bulk,
    figure::{Bar, Figure},
    operate::{day, failover, faults, neighbours, overload},
    roles,
    storm::{
        self,
        mutant::{self, MUTANTS, Mutant, Trial},
        proxy::Mode,
        runaway,
        schedule::Plan,
    },
    team,
    tools::{hostile, killed, washing},
    walls,
};

use crate::figures;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Turns, while workers, tools, sweeps, relays, NATS and PostgreSQL are killed, frozen and cut off.
    ///
    /// Starts a PostgreSQL and a NATS of its own. Long: 100,000 turns in 22 minutes.
    Turns {
        #[command(flatten)]
        options: Options,
        /// Break the database first: the run is to notice.
        #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(MUTANTS.map(|mutant| mutant.name)))]
        mutant: Option<String>,
    },
    /// Turns without NATS; with doorbells dropped and doubled; with the stream of events deleted again and again.
    Bells {
        #[command(flatten)]
        options: Options,
    },
    /// Turns, while workers and tools are cut off from PostgreSQL without noticing, for longer than their lease.
    Partition {
        #[command(flatten)]
        options: Options,
    },
    /// A team of agents on the scripted model, whose worker is killed at every step boundary and at random instants.
    ///
    /// Starts a PostgreSQL and a NATS of its own.
    Team {
        #[command(flatten)]
        options: Options,
    },
    /// An agent on the scripted model whose context is compacted, its worker killed at every step boundary and at random instants: all that is paid for is on
    /// record.
    ///
    /// Starts a PostgreSQL and a NATS of its own.
    Compaction {
        #[command(flatten)]
        options: Options,
    },
    /// Agents that call themselves, fan out and retry without end, each tree under a limit, while workers and orchestrators are killed.
    ///
    /// Long: 10,000 agents.
    Budgets {
        #[command(flatten)]
        options: Options,
        /// How many run away, those of all trees together.
        #[arg(long)]
        agents: Option<usize>,
    },
    /// One project tries to reach another over HTTP, with valid keys of its own and every id of the other; then with the API's checks off, and
    /// with row security off.
    ///
    /// Long: 100,000 attempts, each beside one for what never was.
    Walls {
        #[command(flatten)]
        options: Options,
    },
    /// Keys inside one project try what they are not for, with every id, fence and token of the others known to them.
    ///
    /// Long: 20,000 attempts.
    Roles {
        #[command(flatten)]
        options: Options,
    },
    /// One project does its worst to the API with all its keys: long polls, streams, idle uploads, half heads, large pages, schemas that would take hours,
    /// forged keys. Another goes on beside it.
    ///
    /// Long: 30 seconds of each part.
    Neighbours {
        #[command(flatten)]
        options: Options,
    },
    /// Processes that store artifacts and send packages, killed at random instants.
    ///
    /// Long: 200 kills.
    Artifacts {
        #[command(flatten)]
        options: Options,
        /// An object store instead of a folder, reached as the environment says: s3://BUCKET/PREFIX.
        #[arg(long, value_name = "URL")]
        store: Option<String>,
    },
    /// Tools of every kind, while workers and a tool service are killed; then flows among tools that do not mean well; then every way to wash off the label
    /// of content from outside.
    ///
    /// Long: 300 turns and 150 kills; 2,000 flows.
    Tools {
        #[command(flatten)]
        options: Options,
    },
    /// Failover to a synchronous standby, beside writers: the primary is killed, the standby promoted, again and again.
    ///
    /// Long: 20 failovers.
    Failover {
        #[command(flatten)]
        options: Options,
    },
    /// Three times as much as can be done, over HTTP, beside another project.
    ///
    /// Long: a minute of it.
    Overload {
        #[command(flatten)]
        options: Options,
    },
    /// Clocks that are an hour off, workers that reach their limit of memory, a full disk under PostgreSQL.
    Faults {
        #[command(flatten)]
        options: Options,
    },
    /// An operator's day: every part is a process of its own, is killed and replaced beside load; the schema moves ahead; a backup is restored.
    Day {
        #[command(flatten)]
        options: Options,
    },
    /// A short storm, or short budgets, on databases that are broken on purpose. Each must be noticed by a figure of its own.
    Mutants {
        /// Only this one.
        #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(MUTANTS.map(|mutant| mutant.name)))]
        only: Option<String>,
        /// Only two, chosen by this text: a commit, say.
        #[arg(long, value_name = "TEXT", conflicts_with = "only")]
        rotate: Option<String>,
        /// Of the storms. Without it, a new one.
        #[arg(long)]
        seed: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Options {
    /// The size for CI.
    #[arg(long)]
    short: bool,
    /// Of an earlier run, to have its faults again. Without it, a new one.
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

/// A calm: what the storms below differ from.
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
            // Half as many again as must be: some find nobody to kill, or somebody frozen already.
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

/// Long enough for every mutant to show itself.
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
        // Fifty, over all formats.
        false => (&team::ADAPTERS[..], 17, Duration::from_secs(1)),
    };
    let program = std::env::current_exe().context("this program cannot be found")?;
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

pub(crate) async fn run(command: Command, json: bool) -> Result<ExitCode> {
    figures::report(measure(command), json).await
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
            let program = std::env::current_exe().context("this program cannot be found")?;
            neighbours::run(&neighbours::Options { program, lasts }).await
        }
        Command::Artifacts { options, store } => {
            let kills = if options.short { 10 } else { 200 };
            let program = std::env::current_exe().context("this program cannot be found")?;
            bulk::run(&bulk::Options { program, kills, seed: options.seed(), store }).await
        }
        Command::Tools { options } => {
            let (turns, kills, flows) = if options.short { (24, 12, 200) } else { (300, 150, 2_000) };
            let (program, seed) = (std::env::current_exe().context("this program cannot be found")?, options.seed());
            let mut figures = killed::run(&killed::Options { program, turns, kills, seed }).await?;
            figures.extend(hostile::run(&hostile::Options { flows, seed }).await?);
            figures.extend(washing::run().await?);
            Ok(figures)
        }
        Command::Failover { options } => {
            failover::run(&failover::Options { failovers: if options.short { 5 } else { 20 } }).await
        }
        Command::Overload { options } => {
            let [normal, overload, after, most_wait] =
                if options.short { [6, 10, 40, 3] } else { [20, 60, 100, 10] }.map(Duration::from_secs);
            overload::run(&overload::Options { normal, overload, after, most_wait }).await
        }
        Command::Faults { options } => {
            let (turns, kills, full) = if options.short { (12, 3, 3) } else { (120, 40, 20) };
            let program = std::env::current_exe().context("this program cannot be found")?;
            faults::run(&faults::Options { program, turns, kills, full: Duration::from_secs(full) }).await
        }
        Command::Day { options } => {
            let (turns, kills) = if options.short { (60, 8) } else { (1_500, 100) };
            let program = std::env::current_exe().context("this program cannot be found")?;
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
                // Whether a storm meets what is broken is a matter of chance. A storm of a given seed is not another the second time.
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

/// Storms that a mutant may outlast before it counts as not noticed.
const MOST_STORMS: usize = 4;

/// The mutant's own figures that one storm makes fall short.
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

//! `waybill-lab bench …`

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use clap::Subcommand;
use waybill_lab::{
    bench::{
        against, api, artifact, bells, cache, card_box, compose, delete, fork, groups, growth, knowledge, leaves,
        lists, record, serve, skew, storage, turns,
    },
    figure::Bar,
    operate::{held, weeks},
    waybill,
};

use super::report;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure what cards and boxes cost, and that the cost does not grow with history.
    ///
    /// Starts a private PostgreSQL with durability on; with DATABASE_URL, uses that throw-away server instead.
    Box {
        /// Cards in the largest box.
        #[arg(long, default_value_t = 1_000_000)]
        cards: i64,
        /// Use the small size for CI: 50,000 cards, fewer samples.
        #[arg(long)]
        short: bool,
    },
    /// Measure what a doorbell costs with NATS and inside one process, and what idle workers cost.
    ///
    /// Starts a private NATS, and a private PostgreSQL with durability on; with DATABASE_URL, uses that throw-away server instead.
    Bells {
        /// Use the small size for CI: fewer samples, a shorter window.
        #[arg(long)]
        short: bool,
    },
    /// Measure what a model call costs before it is sent: composing, writing and hashing the request.
    ///
    /// The baseline writes the messages without any of that.
    Compose {
        /// Number of messages, of a hundred tokens each.
        #[arg(long, default_value_t = 10_000)]
        messages: usize,
        /// Use the small size for CI: fewer samples.
        #[arg(long)]
        short: bool,
    },
    /// Measure what a fork costs: commits and rows per child, growth with their number, fairness between batches.
    ///
    /// Starts a private NATS, and a private PostgreSQL with durability on; with DATABASE_URL, uses that throw-away server instead.
    Fork {
        /// Children of the largest fork.
        #[arg(long, default_value_t = 10_000)]
        children: usize,
        /// Use the small size for CI: 1,000 children, once.
        #[arg(long)]
        short: bool,
    },
    /// Measure the disk space and step time of a turn of 400 model calls, compared with LangGraph, plain and with its DeltaChannel.
    ///
    /// Starts a private PostgreSQL with durability on; with DATABASE_URL, uses that throw-away server instead. LangGraph is fetched once, by
    /// pip.
    Storage {
        /// Use the small size for CI: measured once, with a shorter history, and without LangGraph unless it was fetched before.
        #[arg(long)]
        short: bool,
    },
    /// Measure how much of the model input a provider's prompt cache serves.
    ///
    /// Covers siblings of a fork, an expert with history, and the turns of a session. Starts a private PostgreSQL with durability on.
    Cache {
        /// Use the small size for CI: 12 children, 8,000 tokens of history, 20 turns.
        #[arg(long)]
        short: bool,
    },
    /// Measure what the API adds: starting a turn over HTTP with a key, compared with the same launch inside the process.
    ///
    /// Covers also the bytes of a graph of 10,000 turns, and the first page of each list in a project of a million turns, compared with one of 1,000.
    /// Starts a private PostgreSQL with durability on; with DATABASE_URL, uses that throw-away server instead.
    Api {
        /// Use the small size for CI: fewer and shorter windows, a graph of 1,000 turns, lists of 50,000 turns.
        #[arg(long)]
        short: bool,
    },
    /// Measure what recording costs: streams through the recorder that are put on record, compared with streams that only pass.
    ///
    /// Covers also the time while the database is away, and how many bytes conversations take. Starts a private PostgreSQL with durability on.
    Record {
        /// Use the small size for CI: fewer streams, and conversations of 40 calls.
        #[arg(long)]
        short: bool,
    },
    /// Measure the memory that streaming large content through the API takes, and storing the same content under many paths.
    ///
    /// Starts a private PostgreSQL with durability on; with DATABASE_URL, uses that throw-away server instead.
    Artifacts {
        /// Size of the large content in megabytes.
        #[arg(long, default_value_t = 5_120)]
        megabytes: u64,
        /// An object store, such as s3://BUCKET/PREFIX, with the credentials of the environment. If omitted, a folder.
        #[arg(long, value_name = "URL")]
        store: Option<String>,
        /// Use the small size for CI: 512 MB, 100 paths.
        #[arg(long)]
        short: bool,
    },
    /// Run turns at half of the possible rate while another connection holds a transaction open.
    ///
    /// Starts a private PostgreSQL with durability on. Full size: the transaction is open for three minutes.
    Held {
        /// Use the small size for CI: ten seconds.
        #[arg(long)]
        short: bool,
    },
    /// Measure `waybill worker` as a process, with and without load.
    ///
    /// It must never hold more than `--most` turns, must know all turns that it holds, and turns must end as soon under load as without.
    /// Starts a private NATS, a private PostgreSQL with durability on, and two worker processes on the demo model.
    Serve {
        /// Use the small size for CI: a backlog of 300 turns, 6 seconds at each load.
        #[arg(long)]
        short: bool,
    },
    /// Measure what it gives that `waybill worker` ends turns together: turns a second, p99, and what a turn that is alone pays for it.
    ///
    /// Starts a private NATS, a private PostgreSQL with durability on, and one worker process at a time on the demo model, which answers at once;
    /// beside its database, and half a millisecond away from it.
    Groups {
        /// Use the small size for CI: 400 turns once with each setting.
        #[arg(long)]
        short: bool,
    },
    /// Run turns during a database dump, while partitions of future weeks are missing and orchestrators create them.
    ///
    /// Starts a private PostgreSQL with durability on. Full size: twenty rounds of ten seconds.
    Weeks {
        /// Use the small size for CI: three rounds of four seconds.
        #[arg(long)]
        short: bool,
    },
    /// Measure knowledge search: recall by exact terms in Chinese and English and by meaning, and time as the data grows.
    ///
    /// Starts a private PostgreSQL with durability on; with DATABASE_URL, uses that throw-away server instead.
    Knowledge {
        /// Also search by meaning. The server must have the extension `vector`, which `.ci/vectors` builds. If omitted, only by terms.
        #[arg(long)]
        vectors: bool,
        /// Use the small size for CI: up to 15,000 chunks, fewer questions.
        #[arg(long)]
        short: bool,
    },
    /// Measure transitions in a large project among thousands of small ones: their time and the rows they read.
    ///
    /// Neither may depend on the planner's statistics. Starts a private PostgreSQL with durability on.
    Skew {
        /// Agents of the large project, with five cards each.
        #[arg(long, default_value_t = 200_000)]
        agents: i32,
        /// Use the small size for CI: 4,000 agents among 200 projects, fewer rounds.
        #[arg(long)]
        short: bool,
    },
    /// Measure a year of turns in 10,000 projects, one of which holds a third of everything, compared with a hundredth of it.
    ///
    /// Covers turns a second, transitions, locks, bytes, turns beside a vacuum that freezes, and beside retention. Starts a private PostgreSQL with durability on.
    Growth {
        /// Turns of the larger database, with six cards each. If omitted, as many as the disk has room for with 30 % to spare, up to 5 million.
        #[arg(long)]
        turns: Option<u64>,
        /// Use the small size for CI: 20,000 turns, fewer and shorter windows, and no bars for time.
        #[arg(long)]
        short: bool,
    },
    /// Measure how fast a project is deleted, compared with the guard that the tables had before.
    ///
    /// Starts a private PostgreSQL with durability on.
    Delete {
        /// Cards of four projects together, two of which are deleted in each way.
        #[arg(long, default_value_t = 5_000_000)]
        cards: u64,
        /// Use the small size for CI: 100,000 cards.
        #[arg(long)]
        short: bool,
    },
    /// Measure what it would cost to cut the tables of records into leaves by a hash of the project.
    ///
    /// Starts a private PostgreSQL, with a model of these tables in a database of its own. No figure has a bar.
    Leaves {
        /// Use the small size for CI: two seconds for each way.
        #[arg(long)]
        short: bool,
    },
    /// Measure what turns cost, compared with pgbench writing the same rows; growth with agents; fairness between projects.
    ///
    /// Starts a private PostgreSQL with durability on; with DATABASE_URL, uses that throw-away server instead.
    Turns {
        /// Agents with history in the larger database.
        #[arg(long, default_value_t = 1_000_000)]
        agents: u32,
        /// Run the whole benchmark with this build and with another by turns, and compare turns/s. Names its program, with arguments if needed.
        #[arg(long, value_name = "COMMAND")]
        against: Option<String>,
        /// Use the small size for CI: 20,000 agents, fewer and shorter windows, and no bar for the comparison with pgbench.
        #[arg(long)]
        short: bool,
    },
}

pub(crate) async fn run(command: Command, json: bool) -> Result<ExitCode> {
    let measured = async {
        match command {
            Command::Box { cards, short } => {
                ensure!(cards >= 10_000, "--cards {cards}: must be at least 10,000");
                let long = card_box::Options { cards, samples: 400 };
                card_box::run(if short { card_box::Options { cards: 50_000, samples: 120 } } else { long }).await
            }
            Command::Bells { short } => {
                let long = bells::Options { samples: 1_000, window: Duration::from_secs(180) };
                let brief = bells::Options { samples: 100, window: Duration::from_secs(20) };
                bells::run(if short { brief } else { long }).await
            }
            Command::Compose { messages, short } => {
                ensure!(messages >= 100, "--messages {messages}: must be at least 100");
                compose::run(compose::Options { messages, samples: if short { 20 } else { 100 } }).await
            }
            Command::Held { short } => {
                let (before, held) = if short { (6, 10) } else { (30, 180) };
                let (before, held) = (Duration::from_secs(before), Duration::from_secs(held));
                let alert = (!short).then_some(Duration::from_secs(60));
                held::run(&held::Options { before, held, alert }).await
            }
            Command::Serve { short } => {
                let program = waybill()?;
                let (backlog, window) = if short { (300, 6) } else { (5_000, 60) };
                serve::run(&serve::Options { program, backlog, window: Duration::from_secs(window) }).await
            }
            Command::Groups { short } => {
                let program = waybill()?;
                let (backlog, alone, window, rounds) = if short { (400, 20, 3, 1) } else { (4_000, 100, 20, 4) };
                let window = Duration::from_secs(window);
                groups::run(&groups::Options { program, backlog, alone, window, rounds }).await
            }
            Command::Weeks { short } => {
                let (window, rounds) = if short { (2, 3) } else { (5, 20) };
                weeks::run(&weeks::Options { window: Duration::from_secs(window), rounds }).await
            }
            Command::Knowledge { vectors, short } => {
                let (many, questions) = if short { (15_000, 100) } else { (100_000, 400) };
                knowledge::run(knowledge::Options { few: 5_000, many, questions, vectors }).await
            }
            Command::Fork { children, short } => {
                ensure!((1_000..=20_000).contains(&children), "--children {children}: must be 1,000 to 20,000");
                let long = fork::Options { children, rounds: 3 };
                fork::run(if short { fork::Options { children: 1_000, rounds: 1 } } else { long }).await
            }
            Command::Cache { short } => {
                let long = cache::Options { children: 100, history: 40_000, turns: 20 };
                cache::run(if short { cache::Options { children: 12, history: 8_000, turns: 20 } } else { long }).await
            }
            Command::Storage { short } => storage::run(storage_options(short)).await,
            Command::Api { short } => {
                let lists = lists::Options { graph: 10, turns: 1_000_000, samples: 40, growth: Bar::AtMost(1.5) };
                let long = api::Options { window: Duration::from_secs(3), rounds: 20, cost: 1.5, lists };
                let lists = lists::Options { graph: 1, turns: 50_000, samples: 20, growth: Bar::AtMost(2.0) };
                // A development build does not optimise the API, so that HTTP costs more there.
                let brief = api::Options { window: Duration::from_millis(1000), rounds: 6, cost: 2.5, lists };
                api::run(if short { brief } else { long }).await
            }
            Command::Record { short } => record::run(record_options(short)).await,
            Command::Artifacts { megabytes, store, short } => {
                let program = waybill()?;
                let long = artifact::Options { program, megabytes, paths: 1_000, memory: Bar::AtMost(100.0), store };
                // CI builds without optimisation: the pages of the program alone are a large part of the memory.
                let brief = artifact::Options { megabytes: 512, paths: 100, memory: Bar::None, ..long.clone() };
                artifact::run(if short { &brief } else { &long }).await
            }
            Command::Skew { agents, short } => {
                ensure!(agents >= 4_000, "--agents {agents}: must be at least 4,000");
                let long = skew::Options { agents, projects: 10_000, rounds: 20 };
                skew::run(if short { skew::Options { agents: 4_000, projects: 200, rounds: 6 } } else { long }).await
            }
            Command::Growth { turns, short } => growth::run(growth_options(turns, short)).await,
            Command::Delete { cards, short } => {
                ensure!(cards >= 24_000, "--cards {cards}: must be at least 24,000");
                let long = delete::Options { cards, gain: Bar::AtLeast(5.0) };
                let brief = delete::Options { cards: 100_000, gain: Bar::AtLeast(1.3) };
                delete::run(if short { brief } else { long }).await
            }
            Command::Leaves { short } => {
                let (window, rounds) = if short { (2, 1) } else { (5, 3) };
                leaves::run(leaves::Options { window: Duration::from_secs(window), rounds }).await
            }
            Command::Turns { against: Some(other), agents, short } => {
                let size = if short { "--short".to_owned() } else { format!("--agents={agents}") };
                against::run(&other, &["turns".to_owned(), size]).await
            }
            Command::Turns { against: None, agents, short } => {
                ensure!(agents >= 10_000, "--agents {agents}: must be at least 10,000");
                turns::run(turns_options(agents, short)).await
            }
        }
    };
    report::report(measured, json).await
}

fn turns_options(agents: u32, short: bool) -> turns::Options {
    if short {
        return turns::Options {
            agents: 20_000,
            window: Duration::from_millis(400),
            rounds: 12,
            beside_pgbench: Bar::None,
            logged: 1_000,
            // Few turns share the pages that are written whole.
            log_bars: [Bar::None; 2],
        };
    }
    turns::Options {
        agents,
        window: Duration::from_millis(500),
        rounds: 60,
        beside_pgbench: Bar::AtLeast(0.8),
        logged: 20_000,
        log_bars: [Bar::AtMost(40.0), Bar::AtMost(6_000.0)],
    }
}

fn record_options(short: bool) -> record::Options {
    let long = record::Options {
        rate: 100.0,
        window: Duration::from_secs(10),
        rounds: 10,
        calls: 400,
        p50: Bar::AtMost(1.1),
        p99: Bar::AtMost(1.5),
        small: Bar::AtMost(3.0),
        large: Bar::AtMost(1.5),
        flat: Bar::AtMost(1.2),
    };
    if !short {
        return long;
    }
    // A development build does not optimise the API, and has two cores for all of it. Of few streams the 99th percentile is the slowest one, and few calls
    // do not fill the pages that they take.
    let (p50, p99) = (Bar::AtMost(1.5), Bar::None);
    let (window, small, flat) = (Duration::from_secs(2), Bar::None, Bar::None);
    record::Options { rate: 20.0, window, rounds: 2, calls: 40, p50, p99, small, flat, ..long }
}

fn growth_options(turns: Option<u64>, short: bool) -> growth::Options {
    if short {
        return growth::Options {
            turns: Some(20_000),
            window: Duration::from_millis(400),
            rounds: 8,
            beside: Duration::from_secs(5),
            growth: Bar::None,
            beside_work: Bar::None,
            locks: Bar::None,
        };
    }
    growth::Options {
        turns,
        window: Duration::from_secs(1),
        rounds: 40,
        beside: Duration::from_secs(180),
        growth: Bar::AtLeast(0.9),
        beside_work: Bar::AtLeast(0.9),
        locks: Bar::AtMost(16.0),
    }
}

fn storage_options(short: bool) -> storage::Options {
    if short {
        // As many calls as the long run: of fewer, a page more or less of each table is a large part of what is stored.
        return storage::Options {
            calls: [100, 400],
            history: 40_000,
            rounds: 1,
            stored: Bar::None,
            stored_after: Bar::AtMost(3.5),
            growth: Bar::AtMost(1.1),
            step: [Bar::None; 2],
            fetch_peer: false,
        };
    }
    storage::Options {
        calls: [100, 400],
        history: 200_000,
        rounds: 3,
        stored: Bar::AtMost(3.0),
        stored_after: Bar::AtMost(3.0),
        growth: Bar::AtMost(1.05),
        step: [Bar::AtMost(0.3), Bar::AtMost(1.0)],
        fetch_peer: true,
    }
}

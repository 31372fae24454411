//! Checks the turn protocol: every reachable state within the bounds, and that each way to write it wrongly (a mutant) is caught.
//!
//! `db` is a small database with PostgreSQL's rules. `protocol` has the transactions, statement by statement. `system` has the processes that
//! run them, the faults, and the properties that must hold. `docs/protocol.md` describes the protocol in prose.

mod db;
mod protocol;
mod system;

use std::{
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::Instant,
};

use clap::Parser;
use stateright::{Checker, HasDiscoveries, Model};
use waybill_lab::figure::{Bar, Figure};

use protocol::{Fault, Mutant, Plan, Protocol, Shows, Work};
use system::{Faults, System};

#[derive(Debug, Parser)]
#[command(name = "waybill-model", about = "Check the turn protocol state by state. Exits with 1 if it is refuted")]
struct Arguments {
    /// Explore a hundred million states instead of one million.
    #[arg(long)]
    long: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

const NO_FAULTS: Faults = Faults { crashes: 0, pauses: 0, unknown: 0, replays: 0, stops: 0, lost_bells: 0, forgets: 0 };
const ONE_OF_EACH: Faults =
    Faults { crashes: 1, pauses: 1, unknown: 1, replays: 1, stops: 1, lost_bells: 0, forgets: 1 };

/// How many states may be explored until a mutant is caught.
const MUTANT_STATES: usize = 4_000_000;

/// Returns the scenarios: three turns that queue at one agent; a turn that waits for two tools, with another turn behind it; a turn that forks,
/// and one whose fork gives the call back; two agents whose queue has a mark and is claimed from, many turns at a time; and two agents whose turns are
/// claimed and end together, with another turn behind them and without.
fn scenarios(mutant: Option<Mutant>, faults: Faults) -> [(&'static str, System); 7] {
    let system = |agent_of, work, roots: &[u8], results| System {
        protocol: Protocol {
            plan: Plan { agent_of, work, marks: false, many: false, resumes: false, deadlines: true },
            mutant,
        },
        roots: roots.to_vec(),
        faults,
        results,
    };
    let forks = system([0, 1, 2], [Work::Fork, Work::Child(0), Work::Child(1)], &[0], [0, 0]);
    let mut resumes = forks.clone();
    resumes.protocol.plan.resumes = true;
    // A mutant that loses the call must not be saved by its deadline.
    resumes.protocol.plan.deadlines = mutant.is_none();
    let mut marks = system([0, 1, 0], [Work::Plain; 3], &[0, 1, 2], [0, 0]);
    (marks.protocol.plan.marks, marks.protocol.plan.many) = (true, true);
    let mut ends = system([0, 1, 1], [Work::Plain; 3], &[0, 1, 2], [0, 0]);
    ends.protocol.plan.many = true;
    let pair = System { roots: vec![0, 1], ..ends.clone() };
    [
        ("queue", system([0, 0, 0], [Work::Plain; 3], &[0, 1, 2], [0, 0])),
        ("tools", system([0, 0, 1], [Work::Tools, Work::Plain, Work::Plain], &[0, 1], [2, 1])),
        ("batch", forks),
        ("resume", resumes),
        ("marks", marks),
        ("ends", ends),
        ("pair", pair),
    ]
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let wanted = if arguments.long { 100_000_000 } else { 1_000_000 };
    let figures = [check_protocol(wanted, arguments.json), check_mutants(arguments.json)].concat();
    for figure in &figures {
        if arguments.json {
            println!("{}", serde_json::to_string(figure).expect("a figure is JSON"));
        } else {
            let mark = if figure.ok { "ok" } else { "SHORT" };
            println!("{mark:6} {:48} {:>12} {} {}", figure.figure, figure.value, figure.unit, figure.bar);
        }
    }
    if figures.iter().all(|figure| figure.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Explores each scenario for a part of the states: first what is reachable without faults, then with one fault of each kind.
fn check_protocol(wanted: usize, quiet: bool) -> Vec<Figure> {
    let (mut states, mut violations) = (0, 0);
    for faults in [NO_FAULTS, ONE_OF_EACH] {
        for (name, system) in scenarios(None, faults) {
            let begun = Instant::now();
            // A state is generated about four times, and each time counts towards the bound. Most of the runs reach it.
            let checker = system.checker().threads(2).target_state_count(wanted * 7 / 8).spawn_bfs().join();
            states += checker.unique_state_count();
            violations += checker.discoveries().len();
            if !quiet {
                let (unique, depth) = (checker.unique_state_count(), checker.max_depth());
                eprintln!("{name}: {unique} states, {depth} deep, {:.1?}", begun.elapsed());
            }
            for (property, path) in checker.discoveries() {
                eprintln!("{name}: refuted: {property}");
                path.into_actions().iter().for_each(|action| eprintln!("    {action:?}"));
            }
        }
    }
    vec![
        Figure::new("states explored", states as f64, "states", Bar::AtLeast(wanted as f64)),
        Figure::new("properties refuted", violations as f64, "properties", Bar::AtMost(0.0)),
    ]
}

/// Checks two mutants at a time, each with one thread, so that the order and the outcome are the same every time.
fn check_mutants(quiet: bool) -> Vec<Figure> {
    let (next, caught) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let explore = || {
        while let Some((mutant, shows)) = Mutant::ALL.get(next.fetch_add(1, Relaxed)) {
            match catch(*mutant, *shows) {
                Some(how) => {
                    caught.fetch_add(1, Relaxed);
                    if !quiet {
                        eprintln!("{mutant:?}: {how}");
                    }
                }
                None => eprintln!("{mutant:?}: NOT CAUGHT"),
            }
        }
    };
    thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(explore))));
    let all = Mutant::ALL.len() as f64;
    vec![Figure::new("mutants refuted", caught.into_inner() as f64, "mutants", Bar::AtLeast(all))]
}

fn catch(mutant: Mutant, shows: Shows) -> Option<String> {
    let (Shows::Queue(fault)
    | Shows::Tools(fault)
    | Shows::Batch(fault)
    | Shows::Resume(fault)
    | Shows::Marks(fault)
    | Shows::Ends(fault)
    | Shows::Pair(fault)) = shows;
    let faults = match fault {
        Fault::None => NO_FAULTS,
        Fault::Crash => Faults { crashes: 1, ..NO_FAULTS },
        Fault::Pause => Faults { pauses: 1, ..NO_FAULTS },
        Fault::UnknownCommit => Faults { unknown: 1, ..NO_FAULTS },
        Fault::Replay => Faults { replays: 1, ..NO_FAULTS },
        Fault::Stop => Faults { stops: 1, ..NO_FAULTS },
        Fault::LostBell => Faults { lost_bells: 1, ..NO_FAULTS },
    };
    let [(_, queue), (_, tools), (_, batch), (_, resume), (_, marks), (_, ends), (_, pair)] =
        scenarios(Some(mutant), faults);
    let system = match shows {
        Shows::Queue(_) => queue,
        Shows::Tools(_) => tools,
        Shows::Batch(_) => batch,
        Shows::Resume(_) => resume,
        Shows::Marks(_) => marks,
        Shows::Ends(_) => ends,
        Shows::Pair(_) => pair,
    };
    let checker = system.checker().threads(1).target_state_count(MUTANT_STATES);
    let checker = checker.finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let (property, path) = checker.discoveries().into_iter().next()?;
    let (states, actions) = (checker.state_count(), path.into_actions().len());
    Some(format!("{shows:?}, {states} states, {actions} actions: not \"{property}\""))
}

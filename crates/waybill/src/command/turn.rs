//! `waybill turn …`: starts, shows and stops turns.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use waybill_core::{
    card_box::Span,
    id::{AgentId, Name, ProjectId, SessionId, TurnId},
    label::Label,
    turn::TurnStatus,
};
use waybill_kernel::{
    audit, card_box, receipt,
    turn::{self, Edge, Filter, Listing, Stopped, Summary, Taken},
    work::{Kernel, UnitOfWork},
};

use crate::{
    command::run,
    connect::{self, Bus, Place},
    follow::{self, Run},
    live::Live,
    named::{Named, find_some},
    output, story,
    tree::{self, dollars},
};

/// How often a stop is retried when the database was busy, and the pause between two tries: five seconds in all.
const MOST_TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a turn and print its id, without waiting for the result. `waybill run` waits.
    Start(run::Wanted),
    /// List turns, newest first.
    List {
        /// Continue after this turn, the last one of the previous page. If omitted, start with the newest.
        #[arg(long)]
        after: Option<Named<TurnId>>,
        /// How many to list at most.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(i32).range(1..=10_000))]
        most: i32,
        /// Also list turns that other turns started. If omitted, only root turns.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        wanted: Wanted,
        #[command(flatten)]
        place: Place,
    },
    /// Show a turn as a conversation: its instruction, what it wrote, its tool calls with their results, what people decided, its result, and what
    /// it used.
    Show {
        /// The turn to show: its id, the last 8 digits of the id, or @last for the newest turn that no other turn started.
        turn: Named<TurnId>,
        #[command(flatten)]
        place: Place,
    },
    /// Watch a turn and the turns that it starts until it ends, then print its result. Ctrl-C leaves the turn running.
    Watch {
        /// The turn to watch.
        turn: Named<TurnId>,
        #[command(flatten)]
        bus: Bus,
        #[command(flatten)]
        live: Live,
        #[command(flatten)]
        place: Place,
    },
    /// Print the log of a turn and of all turns that it started, directly or indirectly, oldest first: starts, steps, calls with their results, ends.
    Logs {
        /// The turn at the root of the tree to print.
        turn: Named<TurnId>,
        #[command(flatten)]
        place: Place,
    },
    /// Export a turn and all turns that it started, directly or indirectly, as JSON lines: turns, steps, edges, receipts, boxes and cards.
    Export {
        /// The turn at the root of the tree to export.
        turn: Named<TurnId>,
        #[command(flatten)]
        place: Place,
    },
    /// Stop a turn. It ends with a deliverable that says that it was stopped.
    Stop {
        /// The turn to stop.
        turn: Named<TurnId>,
        /// Why it is stopped. It is kept on record.
        #[arg(long, default_value = "stopped from the command line")]
        reason: String,
        #[command(flatten)]
        bus: Bus,
        #[command(flatten)]
        place: Place,
    },
}

/// Which turns to list.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// List only turns that have not ended. If omitted, all turns.
    #[arg(long)]
    open: bool,
    /// List only turns with this status: `open`, `success`, `failed`, `canceled` or `timeout`. If omitted, turns with any status.
    #[arg(long, value_parser = status)]
    status: Option<TurnStatus>,
    /// List only turns of this profile. If omitted, turns of all profiles.
    #[arg(long)]
    profile: Option<Name>,
    /// List only turns of this agent. If omitted, turns of all agents.
    #[arg(long)]
    agent: Option<AgentId>,
    /// List only turns of this session. If omitted, turns of any session or none.
    #[arg(long)]
    session: Option<SessionId>,
    /// List only turns with this label. If omitted, turns with any labels.
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<Label>,
    /// List only turns that were started at this time or later, such as 2026-01-31T08:00:00Z. If omitted, from the first turn on.
    #[arg(long, value_name = "TIME")]
    since: Option<DateTime<Utc>>,
}

impl Wanted {
    fn filter(&self) -> Filter {
        let label = self.label.clone().map(|Label { name, value }| (name, value));
        let (label_name, label_value) = label.unzip();
        Filter {
            open: self.open,
            status: self.status,
            profile_name: self.profile.clone(),
            agent_id: self.agent,
            session_id: self.session,
            label_name,
            label_value,
            ..Filter::default()
        }
    }
}

fn status(text: &str) -> Result<TurnStatus, String> {
    let said = "must be `open`, `success`, `failed`, `canceled` or `timeout`";
    serde_json::from_value(text.into()).map_err(|_| said.to_owned())
}

/// Lists turns. A page of the kernel may be short: this goes on until there are as many as wanted, or no more.
async fn list(
    work: &mut UnitOfWork,
    filter: Filter,
    (since, after): (Option<TurnId>, Option<TurnId>),
    most: i32,
) -> Result<Vec<Summary>> {
    let mut turns = Vec::new();
    let mut listing = Listing { filter, before: after, since, most };
    loop {
        let listed = turn::list(work, &listing).await?;
        turns.extend(listed.turns);
        let left = most - i32::try_from(turns.len())?;
        if left <= 0 || listed.next.is_none() {
            return Ok(turns);
        }
        listing = Listing { before: listed.next, most: left, ..listing };
    }
}

pub(crate) async fn run(command: Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Start(wanted) => {
            let (_, _, launched) = wanted.start().await?;
            if as_json {
                output::json(&launched)?;
            } else {
                println!("{}", launched.agent_turn_id);
            }
        }
        Command::List { after, most, all, wanted, place } => {
            let mut work = place.begin().await?;
            let after = find_some(after.as_ref(), &mut work).await?;
            let filter = Filter { roots: !all, ..wanted.filter() };
            let since = wanted.since.map(TurnId::at);
            let turns = list(&mut work, filter, (since, after), most).await?;
            if as_json {
                output::json(&turns)?;
            } else {
                output::table(
                    ["turn", "profile", "state", "steps", "read", "written", "$", "begun", "title"],
                    turns.iter().map(line),
                );
            }
        }
        Command::Show { turn, place } => show(&turn, &place, as_json).await?,
        Command::Watch { turn, bus, live, place } => {
            let nats = bus.connect().await?;
            let (kernel, project_id) = place.open().await?;
            let kernel = connect::on_bus(kernel, nats.as_ref());
            let root = turn.find(&mut connect::begin(&kernel, project_id).await?).await?;
            let run = Run { kernel: &kernel, project_id, root, live: &live };
            let Some(tree) = follow::follow(&run, true).await? else { return Ok(follow::left()) };
            let content = turn::delivered(&mut connect::begin(&kernel, project_id).await?, &tree[0]).await?;
            if as_json {
                output::json(&json!({ "turn": tree[0], "tree": tree, "deliverable": content }))?;
            } else {
                output::deliverable(content.as_ref());
            }
        }
        Command::Logs { turn, place } => logs(&turn, &place, as_json).await?,
        Command::Export { turn, place } => export(&turn, &place).await?,
        Command::Stop { turn, reason, bus, place } => {
            let nats = bus.connect().await?;
            let (kernel, project_id) = place.open().await?;
            let kernel = connect::on_bus(kernel, nats.as_ref());
            let turn = turn.find(&mut connect::begin(&kernel, project_id).await?).await?;
            let said = stop(&kernel, project_id, turn, &reason).await?.as_str();
            if as_json {
                output::json(&json!({ "agent_turn_id": turn, "stopped": said }))?;
            } else {
                println!("turn {turn}: {said}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Stops a turn, on record.
pub(crate) async fn stop(kernel: &Kernel, project_id: ProjectId, turn: TurnId, reason: &str) -> Result<Stopped> {
    let mut n_tries = 0;
    let (mut work, stopped) = loop {
        let mut work = connect::begin(kernel, project_id).await?;
        match turn::stop(&mut work, turn, reason).await {
            // Another transaction is counting a child of the turn.
            Err(turn::Error::TryAgain(_)) if n_tries < MOST_TRIES => n_tries += 1,
            stopped => break (work, stopped?),
        }
        tokio::time::sleep(PAUSE).await;
    };
    let detail = json!({ "reason": reason });
    audit::record(&mut work, &connect::actor(), "turn.stop", &turn.to_string(), &detail).await?;
    work.commit().await?;
    Ok(stopped)
}

fn line(turn: &Summary) -> [String; 9] {
    [
        output::id(&turn.agent_turn_id),
        turn.profile_name.as_ref().map(ToString::to_string).unwrap_or_default(),
        tree::state(turn).to_owned(),
        turn.n_steps.to_string(),
        turn.input_tokens.to_string(),
        turn.output_tokens.to_string(),
        dollars(turn.microdollars),
        output::time(turn.created_at),
        output::short(turn.title.as_deref().unwrap_or_default(), 60),
    ]
}

/// Returns the whole tree of a turn.
pub(crate) async fn tree_of(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Vec<Summary>> {
    let tree = turn::tree(work, turn_id, 10_000).await?;
    ensure!(!tree.is_empty(), "there is no turn {turn_id} in this project");
    Ok(tree)
}

async fn show(turn: &Named<TurnId>, place: &Place, as_json: bool) -> Result<()> {
    let mut work = place.begin().await?;
    let turn_id = turn.find(&mut work).await?;
    let tree = tree_of(&mut work, turn_id).await?;
    let steps = turn::steps(&mut work, turn_id).await?;
    let content = turn::delivered(&mut work, &tree[0]).await?;
    if as_json {
        return output::json(&json!({ "turn": tree[0], "tree": tree, "steps": steps, "deliverable": content }));
    }
    story::print(&mut work, &tree[0], &steps).await?;
    for line in follow::held_up(&mut work, &tree).await? {
        println!();
        output::indented(&line, "");
    }
    if content.is_some() || !tree[0].status.is_open() {
        println!("\ndeliverable");
        output::indented(&output::content(content.as_ref()), "  ");
    }
    println!();
    if tree.len() > 1 {
        println!("{}\n", tree::draw(&tree, Utc::now()));
    }
    output::table(
        ["step", "outcome", "model", "read", "cached", "written", "$", "ms", "calls"],
        steps.iter().enumerate().map(|(n, step)| row(n + 1, step)),
    );
    for (n, step) in steps.iter().enumerate() {
        if let Some(why) = &step.cache_miss {
            println!("step {}: cache miss, as reported by the provider: {why}", n + 1);
        }
    }
    let microdollars: i64 = steps.iter().filter_map(|step| step.microdollars).sum();
    let tokens: i64 = steps.iter().flat_map(|s| [s.input_tokens, s.output_tokens]).flatten().map(i64::from).sum();
    let again = steps.iter().filter(|step| step.asked_again == Some(true)).count();
    println!(
        "{}: {} steps, {tokens} tokens, {}; {again} asked again after a takeover",
        tree[0].status.as_str(),
        steps.len(),
        dollars(microdollars)
    );
    if let Some(limits) = &tree[0].limits {
        println!("limits: {}", json!(limits));
    }
    Ok(())
}

/// One line of the log.
#[derive(Serialize)]
struct Happened {
    at: DateTime<Utc>,
    agent_turn_id: TurnId,
    profile_name: Option<String>,
    what: String,
}

async fn logs(turn: &Named<TurnId>, place: &Place, as_json: bool) -> Result<()> {
    let mut work = place.begin().await?;
    let turn_id = turn.find(&mut work).await?;
    let mut happened = Vec::new();
    for turn in tree_of(&mut work, turn_id).await? {
        let profile_name = turn.profile_name.as_ref().map(ToString::to_string);
        let mut add = |at, what| {
            happened.push(Happened { at, agent_turn_id: turn.agent_turn_id, profile_name: profile_name.clone(), what });
        };
        add(turn.created_at, "was created".to_owned());
        for step in turn::steps(&mut work, turn.agent_turn_id).await? {
            let asked = step.model.as_ref().map_or_else(String::new, |model| {
                format!(", {model}: {} → {} tokens", step.input_tokens.unwrap_or(0), step.output_tokens.unwrap_or(0))
            });
            let calls = if step.n_calls > 0 { format!(", {} calls", step.n_calls) } else { String::new() };
            add(step.created_at, format!("step {}: {}{asked}{calls}", output::id(&step.step_id), step.outcome));
        }
        let tools = story::tools(&mut work, &turn).await?;
        for edge in turn::edges(&mut work, turn.agent_turn_id).await? {
            if let Some(what) = of_edge(&edge, tools.get(&edge.correlation_id)) {
                add(edge.created_at, what);
            }
        }
        if let Some(at) = turn.finished_at {
            add(at, format!("ended: {}", turn.status.as_str()));
        }
    }
    happened.sort_by_key(|happened| happened.at);
    for one in happened {
        if as_json {
            output::json(&one)?;
        } else {
            let who = one.profile_name.unwrap_or_default();
            println!("{}  {}  {who}: {}", one.at.format("%T%.3f"), output::id(&one.agent_turn_id), one.what);
        }
    }
    Ok(())
}

/// Describes calls and their answers. The start and the end of a turn come from the turn itself.
fn of_edge(edge: &Edge, tool: Option<&String>) -> Option<String> {
    let status = edge.status.as_deref().unwrap_or_default();
    let call = output::id(&edge.correlation_id);
    let call = tool.map_or_else(|| call.clone(), |tool| format!("{tool} ({call})"));
    match (edge.primitive.as_str(), edge.edge_phase.as_str()) {
        ("command", "request") => Some(format!("call {call} was sent")),
        ("report", "response") => Some(format!("call {call} was answered: {status}")),
        ("report", "dropped") => Some(format!("call {call}: an answer came too late")),
        _ => None,
    }
}

async fn export(turn: &Named<TurnId>, place: &Place) -> Result<()> {
    let mut work = place.begin().await?;
    let turn_id = turn.find(&mut work).await?;
    let tree = tree_of(&mut work, turn_id).await?;
    let mut boxes = BTreeSet::new();
    for turn in &tree {
        output::json(&json!({ "turn": turn }))?;
        for step in turn::steps(&mut work, turn.agent_turn_id).await? {
            output::json(&json!({ "step": step, "agent_turn_id": turn.agent_turn_id }))?;
        }
        for edge in turn::edges(&mut work, turn.agent_turn_id).await? {
            output::json(&json!({ "edge": edge }))?;
        }
        for receipt in receipt::list(&mut work, turn.agent_turn_id).await? {
            output::json(&json!({ "receipt": receipt }))?;
        }
        boxes.extend([Some(turn.context_box_id), Some(turn.output_box_id), turn.profile_box_id].into_iter().flatten());
    }
    let mut seen = BTreeSet::new();
    for box_id in boxes {
        let length = card_box::find(&mut work, &[box_id]).await?.found.pop().map_or(0, |found| found.length);
        let mut card_ids = Vec::new();
        for from in (1..=length).step_by(1_000) {
            for placed in card_box::read(&mut work, Span { box_id, from, upto: from + 999 }, None).await? {
                let card_id = placed.reading.card_id();
                card_ids.push(card_id);
                if seen.insert(card_id) {
                    output::json(&json!({ "card": placed.reading }))?;
                }
            }
        }
        output::json(&json!({ "box": { "box_id": box_id, "card_ids": card_ids } }))?;
    }
    Ok(())
}

fn row(n: usize, step: &Taken) -> [String; 9] {
    let number = |n: Option<i32>| n.map(|n| n.to_string()).unwrap_or_default();
    let again = step.n_asked.filter(|asked| *asked > 1);
    [
        n.to_string(),
        again.map_or_else(|| step.outcome.clone(), |again| format!("{} (asked {again}×)", step.outcome)),
        step.model.clone().unwrap_or_default(),
        number(step.input_tokens),
        number(step.cached_tokens),
        number(step.output_tokens),
        step.microdollars.map(dollars).unwrap_or_default(),
        number(step.took_ms),
        step.n_calls.to_string(),
    ]
}

//! The processes that a storm kills: scripted workers and tools, sweeps, and relays. Each is this same binary, started as a separate process.
//!
//! A worker and a tool do what a real one does, through the same kernel, intake and bus; only the model and the effect are made up.
//! They connect without checking the database's schema, so that a storm can also test a database that is broken on purpose.

use std::{future::pending, sync::Arc, time::Duration};

use anyhow::Result;
use serde_json::json;
use tokio::time::sleep;
use waybill_bus::{
    feed::{Config as FeedConfig, NatsFeed},
    nats::Nats,
};
use waybill_core::{
    bus::PMO,
    card::{CallContent, CardType, Content, Draft, NewCard, Role as Speaker},
    card_box::Span,
    id::{CardId, StepId, Target, ToolCallId, TurnId},
    turn::{ClaimToken, End, MessageType},
};
use waybill_kernel::{
    call::ClaimedCall,
    card_box,
    intake::{self, Holding, Intake, Order},
    retry::Transient,
    sweep,
    turn::{self, Call, Claimed, Ending, Error, Report, ReportOutcome, Step},
    work::{self, DbError, Kernel},
};
use waybill_orchestrator::{command, relay, watch};

use super::{
    dice::Dice,
    ledger::{Entry, Ledger},
    script::{self, Op, Script},
};

/// The role of a process in a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Worker,
    Tool,
    Orchestrator,
    Sweep,
    Relay,
}

impl Role {
    pub const ALL: [Role; 5] = [Role::Worker, Role::Tool, Role::Orchestrator, Role::Sweep, Role::Relay];

    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Tool => "tool",
            Role::Orchestrator => "orchestrator",
            Role::Sweep => "sweep",
            Role::Relay => "relay",
        }
    }

    /// Returns the database login that such a process uses.
    pub const fn login(self) -> &'static str {
        match self {
            Role::Worker | Role::Tool => "waybill_worker",
            Role::Orchestrator | Role::Sweep | Role::Relay => "waybill_orchestrator",
        }
    }
}

/// The profile of every agent in a storm.
pub const PROFILE: &str = "storm";

/// What a process needs to know.
#[derive(Clone, Debug)]
pub struct Post {
    pub name: String,
    pub database_url: String,
    pub nats_url: String,
    pub ledger_port: u16,
    pub lease: Duration,
}

/// Runs until it is killed.
pub async fn run(role: Role, post: Post) -> Result<()> {
    let bus = Arc::new(Nats::connect(&post.nats_url).await?);
    let kernel = connect(&post).await.on(bus.clone());
    match role {
        Role::Sweep => {
            let sweep = sweep::Config { lease: post.lease, ..sweep::Config::default() };
            watch::run(&kernel, &watch::Config { sweep, artifacts: None }).await;
        }
        Role::Relay => {
            let feed = NatsFeed::new(&bus, FeedConfig::default());
            relay::run(&kernel, &feed, &relay::Config { lease: post.lease, ..relay::Config::default() }).await;
        }
        Role::Worker => {
            let desk = Desk::open(&kernel, &post)?;
            let intake = Intake::<Claimed>::open(&kernel, target("llm"), config(&post, 16));
            let turns = intake.serve(pending(), Duration::ZERO, |holding| {
                let desk = desk.clone();
                async move { desk.turn(&holding).await }
            });
            turns.await;
        }
        Role::Tool => {
            let desk = Desk::open(&kernel, &post)?;
            let intake = Intake::<ClaimedCall>::open(&kernel, target("tool"), config(&post, 16));
            let calls = intake.serve(pending(), Duration::ZERO, |holding| {
                let desk = desk.clone();
                async move { desk.call(&holding.claimed).await }
            });
            calls.await;
        }
        Role::Orchestrator => {
            command::run(&kernel, &command::Config { lease: post.lease, ..command::Config::default() }).await;
        }
    }
    Ok(())
}

pub fn target(name: &str) -> Target {
    name.parse().expect("a target")
}

fn config(post: &Post, most: usize) -> intake::Config {
    intake::Config { lease: post.lease, most, ..intake::Config::default() }
}

/// Connects, however long it takes: the server may be down.
async fn connect(post: &Post) -> Kernel {
    let config = work::Config { max_connections: 8, ..work::Config::new(post.database_url.as_str()) };
    loop {
        match tokio::time::timeout(Duration::from_secs(2), Kernel::connect_unchecked(&config)).await {
            Ok(Ok(kernel)) => return kernel,
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Retries until the outcome is known. The ids are the same each time, so the transition is done once.
macro_rules! known {
    ($transition:block) => {
        loop {
            let outcome: Result<_, Error> = async $transition.await;
            match outcome {
                // The pause keeps waiting processes from overloading a server that has just started.
                Err(error) if error.is_transient() => sleep(Duration::from_millis(500)).await,
                outcome => break outcome,
            }
        }
    };
}

#[derive(Clone, Debug)]
struct Desk {
    kernel: Kernel,
    ledger: Arc<Ledger>,
    name: Arc<str>,
}

impl Desk {
    fn open(kernel: &Kernel, post: &Post) -> Result<Desk> {
        let ledger = Arc::new(Ledger::connect(post.ledger_port)?);
        Ok(Desk { kernel: kernel.clone(), ledger, name: post.name.as_str().into() })
    }

    async fn turn(&self, holding: &Holding<Claimed>) -> Result<(), String> {
        let claimed = &holding.claimed;
        let (turn_id, token) = (claimed.fence.agent_turn_id(), claimed.fence.claim_token());
        self.ledger.note(&Entry::Claimed { turn_id, token, by: self.name.to_string() });
        match self.follow(holding).await {
            Err(trouble) if !matches!(trouble.downcast_ref(), Some(Error::Stale(_))) => Err(format!("{trouble:#}")),
            _ => Ok(()),
        }
    }

    /// Follows the script from the step that the cards show.
    async fn follow(&self, holding: &Holding<Claimed>) -> Result<()> {
        let claimed = &holding.claimed;
        let fence = claimed.fence;
        let (turn_id, token) = (fence.agent_turn_id(), fence.claim_token());
        let mut dice = Dice::of(&fence);
        loop {
            let (context, output) = known!({
                let mut work = self.kernel.begin(fence.project_id()).await?;
                let context = card_box::read(&mut work, Span::whole(claimed.context_box_id), None).await;
                let output = card_box::read(&mut work, Span::whole(claimed.output_box_id), None).await;
                match (context, output) {
                    (Ok(context), Ok(output)) => Ok((context, output)),
                    // A broken connection. Any other error would come again.
                    _ => Err(Error::TryAgain(DbError::no_answer())),
                }
            })?;
            let script = Script::read(&context)?;
            let place = script::steps_taken(&output);
            self.ledger.note(&Entry::Asked { turn_id, step: place });
            // Most answers come soon, some are slow.
            let slowest = Duration::from_millis(if dice.chance(0.05) { 1_000 } else { 60 });
            sleep(dice.between(Duration::from_millis(2), slowest)).await;
            let stopping = claimed.stop_asked || holding.order() == Order::Stop;
            let Some(op) = script.ops.get(place).filter(|_| !stopping) else {
                let status = if stopping { End::Canceled } else { End::Success };
                return self.finish(claimed, status, script::answers(&output)).await;
            };
            if *op == Op::Fail {
                return self.finish(claimed, End::Failed, 0).await;
            }
            let step = step(place, op)?;
            let card_id = step.cards[0].card_id();
            let written = known!({
                let mut alone = self.kernel.alone(fence.project_id()).await?;
                turn::step(&mut alone, &fence, &step).await
            });
            match written {
                Ok(stepped) => {
                    let leaves = stepped.suspended;
                    let (step_id, again) = (step.step_id, stepped.duplicate);
                    self.ledger.note(&Entry::Wrote { turn_id, token, step_id, card_id, leaves, again });
                    if leaves {
                        return Ok(());
                    }
                    if stepped.stop_reason.is_some() {
                        return self.finish(claimed, End::Canceled, 0).await;
                    }
                }
                Err(error) => return Err(self.refused(turn_id, token, card_id, error)),
            }
        }
    }

    async fn finish(&self, claimed: &Claimed, status: End, answers: usize) -> Result<()> {
        let fence = claimed.fence;
        let (turn_id, token) = (fence.agent_turn_id(), fence.claim_token());
        let content = Content::Json(serde_json::json!({ "answers": answers }));
        let deliverable = Draft::new(CardType::deliverable(), Speaker::Assistant, content).seal()?;
        let (step_id, card_id) = (StepId::new(), deliverable.card_id());
        let ending = [Ending {
            fence,
            status,
            step_id: Some(step_id),
            receipt: None,
            usage: None,
            seen: None,
            cards: vec![deliverable],
        }];
        let ended = known!({
            // A task of a batch may have to join it.
            if claimed.batch_id.is_some() {
                let mut work = self.kernel.begin(fence.project_id()).await?;
                let ended = turn::finish(&mut work, &ending).await?;
                work.commit().await?;
                Ok(ended)
            } else {
                let mut alone = self.kernel.alone(fence.project_id()).await?;
                turn::finish(&mut alone, &ending).await
            }
        });
        match ended {
            Ok(ended) => {
                let again = ended.duplicate;
                self.ledger.note(&Entry::Wrote { turn_id, token, step_id, card_id, leaves: true, again });
                Ok(())
            }
            Err(error) => Err(self.refused(turn_id, token, card_id, error)),
        }
    }

    fn refused(&self, turn_id: TurnId, token: ClaimToken, card_id: CardId, error: Error) -> anyhow::Error {
        if matches!(error, Error::Stale(_)) {
            self.ledger.note(&Entry::Refused { turn_id, token, card_id });
        }
        error.into()
    }

    async fn call(&self, claimed: &ClaimedCall) -> Result<(), String> {
        match self.answer(claimed).await {
            Err(trouble) if !matches!(trouble.downcast_ref(), Some(Error::Stale(_) | Error::NotFound(_))) => {
                Err(format!("{trouble:#}"))
            }
            _ => Ok(()),
        }
    }

    async fn answer(&self, claimed: &ClaimedCall) -> Result<()> {
        let tool_call_id = claimed.tool_call_id;
        self.ledger.note(&Entry::Executed { tool_call_id });
        let mut dice = Dice::of(&tool_call_id);
        sleep(dice.between(Duration::from_millis(1), Duration::from_millis(20))).await;
        let card = Draft::tool_result(tool_call_id, "success", serde_json::json!("seen")).seal()?;
        let card_id = card.card_id();
        let report = Report {
            is_external: false,
            tool_call_id,
            claim_token: Some(claimed.claim_token),
            message_type: MessageType::ToolResult,
            status: "success".to_owned(),
            card,
        };
        let reported = known!({
            let mut alone = self.kernel.alone(claimed.project_id).await?;
            turn::report(&mut alone, &report).await
        })?;
        if reported.outcome != ReportOutcome::Dropped {
            let again = reported.outcome == ReportOutcome::Duplicate;
            self.ledger.note(&Entry::Answered { tool_call_id, card_id, again });
        }
        Ok(())
    }
}

fn step(place: usize, op: &Op) -> Result<Step> {
    let thought = Content::Text(format!("step {place}"));
    let mut cards = vec![Draft::new(CardType::thought(), Speaker::Assistant, thought).seal()?];
    let mut calls = Vec::new();
    let mut call = |tool: &str, arguments: String, timeout: Duration| -> Result<NewCard> {
        let content = CallContent { tool_name: tool.to_owned(), arguments, extra: serde_json::Map::new() };
        let card = Draft::new(CardType::tool_call(), Speaker::Assistant, Content::ToolCall(content)).seal()?;
        calls.push(Call {
            tool_call_id: ToolCallId::new(),
            target: target(if tool == "fork_join" { PMO } else { tool }),
            tool_call_card_id: card.card_id(),
            timeout,
            once: false,
        });
        Ok(card)
    };
    const LONG: Duration = Duration::from_secs(900);
    match op {
        Op::Think | Op::Fail => {}
        Op::Call(n) => {
            for _ in 0..*n {
                cards.push(call("tool", "{}".to_owned(), LONG)?);
            }
        }
        Op::Wait => cards.push(call("nobody", "{}".to_owned(), Duration::from_secs(1))?),
        Op::Fork { tasks, fail_fast } => {
            let task = |task: &script::Task| -> Result<_> {
                let (strategy, target_ref) = match task.agent_id {
                    Some(agent_id) => ("reuse", agent_id.to_string()),
                    None => ("new", PROFILE.to_owned()),
                };
                let instruction = serde_json::to_string(&task.script)?;
                Ok(json!({ "target_strategy": strategy, "target_ref": target_ref, "instruction": instruction }))
            };
            let tasks: Vec<_> = tasks.iter().map(task).collect::<Result<_>>()?;
            let arguments = json!({ "tasks": tasks, "fail_fast": fail_fast, "deadline_seconds": 600 });
            cards.push(call("fork_join", arguments.to_string(), LONG)?);
        }
    }
    let suspend = !calls.is_empty();
    Ok(Step { step_id: StepId::new(), cards, calls, suspend, receipt: None, usage: None })
}

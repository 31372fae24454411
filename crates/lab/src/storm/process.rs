//! The processes that a storm kills: scripted workers and tools, sweeps, and relays. Each is this same binary, started apart.
//!
//! A worker and a tool do what a real one does, through the same kernel, intake and bus; only the model and the effect are made up.
//! They connect without asking whether the database is fit to serve from, so that a storm can also try a database that is broken.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use tokio::time::sleep;
use waybill_bus::{
    feed::{Config as FeedConfig, NatsFeed},
    nats::Nats,
};
use waybill_core::{
    card::{CallContent, CardType, Content, Draft, NewCard, Reading, Role as Speaker},
    card_box::Span,
    id::{AgentId, BatchId, CardId, StepId, Target, ToolCallId, TurnId},
    turn::{ClaimToken, End, MessageType},
};
use waybill_kernel::{
    batch::{self, Fork, Task},
    call::ClaimedCall,
    card, card_box,
    intake::{self, Holding, Intake, Order},
    sweep,
    turn::{self, Call, Claimed, DispatchRequest, Ending, Error, Report, Step},
    work::{self, Kernel},
};
use waybill_orchestrator::{relay, watch};

use super::{
    dice::Dice,
    ledger::{Entry, Ledger},
    script::{self, Op, Script},
};

/// What a process of a storm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Worker,
    Tool,
    Sweep,
    Relay,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Worker, Role::Tool, Role::Sweep, Role::Relay];

    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Tool => "tool",
            Role::Sweep => "sweep",
            Role::Relay => "relay",
        }
    }
}

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
            watch::run(&kernel, &watch::Config { sweep, weeks_ahead: 1 }).await;
        }
        Role::Relay => {
            let feed = NatsFeed::new(&bus, FeedConfig::default());
            relay::run(&kernel, &feed, &relay::Config { lease: post.lease, ..relay::Config::default() }).await;
        }
        Role::Worker => {
            let desk = Desk::open(&kernel, &post)?;
            let mut intake = Intake::<Claimed>::open(&kernel, target("llm"), config(&post, 16));
            loop {
                let holding = intake.next().await;
                let desk = desk.clone();
                tokio::spawn(async move { desk.turn(holding).await });
            }
        }
        Role::Tool => {
            let desk = Desk::open(&kernel, &post)?;
            let forks = Intake::<ClaimedCall>::open(&kernel, target("fork"), config(&post, 4));
            tokio::spawn(serve(desk.clone(), forks, true));
            let tools = Intake::<ClaimedCall>::open(&kernel, target("tool"), config(&post, 16));
            serve(desk, tools, false).await;
        }
    }
    Ok(())
}

async fn serve(desk: Desk, mut intake: Intake<ClaimedCall>, forks: bool) {
    loop {
        let holding = intake.next().await;
        let desk = desk.clone();
        tokio::spawn(async move { desk.call(holding, forks).await });
    }
}

pub fn target(name: &str) -> Target {
    name.parse().expect("a target")
}

fn config(post: &Post, most: usize) -> intake::Config {
    intake::Config { lease: post.lease, most, ..intake::Config::default() }
}

/// However long it takes: the server may be down just now.
async fn connect(post: &Post) -> Kernel {
    let config = work::Config { max_connections: 8, ..work::Config::new(post.database_url.as_str()) };
    loop {
        match tokio::time::timeout(Duration::from_secs(2), Kernel::connect_unchecked(&config)).await {
            Ok(Ok(kernel)) => return kernel,
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Asks again until the outcome is known. The ids are the same each time, so it is done once.
macro_rules! known {
    ($transition:block) => {
        loop {
            let outcome: Result<_, Error> = async $transition.await;
            match outcome {
                // A server that comes up again must not be overrun by those who waited for it.
                Err(error) if error.is_of_the_server() => sleep(Duration::from_millis(500)).await,
                outcome => break outcome,
            }
        }
    };
}

/// Waits until it is somebody else's.
async fn lost<T: intake::Claimable>(holding: &Holding<T>) {
    while holding.called_off().await != Order::Lost {
        sleep(Duration::from_millis(20)).await;
    }
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

    async fn turn(&self, holding: Holding<Claimed>) {
        let claimed = &holding.claimed;
        let (turn_id, token) = (claimed.fence.agent_turn_id(), claimed.fence.claim_token());
        self.ledger.note(&Entry::Claimed { turn_id, token, by: self.name.to_string() });
        let lost = lost(&holding);
        let outcome = tokio::select! {
            outcome = self.follow(&holding) => outcome,
            () = lost => return,
        };
        match outcome {
            Ok(()) => {}
            Err(trouble) if trouble.downcast_ref::<Error>().is_some_and(|e| matches!(e, Error::Stale(_))) => {}
            Err(trouble) => tracing::error!(%turn_id, error = format!("{trouble:#}"), "a turn was given up"),
        }
    }

    /// Follows the script from where the cards say that the turn stands.
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
                    // A connection that broke: anything else would come again.
                    _ => Err(Error::TryAgain(sqlx::Error::PoolTimedOut)),
                }
            })?;
            let script = Script::read(&context)?;
            let place = script::steps_taken(&output);
            self.ledger.note(&Entry::Asked { turn_id, step: place });
            // Most answers come soon, some take their time.
            let slowest = Duration::from_millis(if dice.chance(0.05) { 1_000 } else { 60 });
            sleep(dice.between(Duration::from_millis(2), slowest)).await;
            let stopping = claimed.stop_asked || holding.order() == Order::Stop;
            let Some(op) = script.ops.get(place).filter(|_| !stopping) else {
                let status = if stopping { End::Canceled } else { End::Success };
                return self.finish(claimed, status, script::answers(&output)).await;
            };
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
        let ending = [Ending { fence, status, step_id: Some(step_id), receipt: None, cards: vec![deliverable] }];
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

    async fn call(&self, holding: Holding<ClaimedCall>, forks: bool) {
        let tool_call_id = holding.claimed.tool_call_id;
        let lost = lost(&holding);
        let outcome = tokio::select! {
            outcome = async { if forks { self.fork(&holding.claimed).await } else { self.answer(&holding.claimed).await } } => outcome,
            () = lost => return,
        };
        if let Err(trouble) = outcome {
            match trouble.downcast_ref::<Error>() {
                Some(Error::Stale(_) | Error::NotFound(_)) => {}
                _ => tracing::error!(%tool_call_id, error = format!("{trouble:#}"), "a call was given up"),
            }
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
        if reported.outcome != "dropped" {
            let again = reported.outcome == "duplicate";
            self.ledger.note(&Entry::Answered { tool_call_id, card_id, again });
        }
        Ok(())
    }

    /// Opens a batch, or finds it open, and dispatches its children.
    async fn fork(&self, claimed: &ClaimedCall) -> Result<()> {
        let asked = known!({
            let mut work = self.kernel.begin(claimed.project_id).await?;
            let read = card::fetch(&mut work, &[claimed.tool_call_card_id], None).await;
            read.map_err(|_| Error::TryAgain(sqlx::Error::PoolTimedOut))
        })?;
        let arguments = asked.found.iter().find_map(|reading| match reading {
            Reading::Live(card) => match &card.content {
                Content::ToolCall(call) => Some(call.arguments.clone()),
                _ => None,
            },
            Reading::Gone(_) => None,
        });
        let agents: Vec<AgentId> = serde_json::from_str(&arguments.context("a fork names its agents")?)?;
        let tasks = agents.into_iter().map(|agent_id| Task { agent_id, agent_turn_id: TurnId::new() }).collect();
        let fork = Fork { batch_id: BatchId::new(), fail_fast: false, timeout: Duration::from_secs(600), tasks };
        let opened = known!({
            let mut alone = self.kernel.alone(claimed.project_id).await?;
            batch::open(&mut alone, claimed.tool_call_id, claimed.claim_token, &fork).await
        })?;
        let tasks = if opened.duplicate {
            known!({
                let mut work = self.kernel.begin(claimed.project_id).await?;
                batch::tasks(&mut work, opened.batch_id).await
            })?
        } else {
            fork.tasks
        };
        let (mut requests, mut cards) = (Vec::new(), Vec::new());
        for (task_index, task) in tasks.iter().enumerate() {
            let card = Draft::instruction(&serde_json::to_string(&Script::task())?).seal()?;
            requests.push(DispatchRequest {
                agent_turn_id: task.agent_turn_id,
                parent_agent_turn_id: Some(claimed.agent_turn_id),
                parent_tool_call_id: Some(claimed.tool_call_id),
                batch_id: Some(opened.batch_id),
                task_index: Some(i32::try_from(task_index)?),
                recursion_depth: 1,
                ..DispatchRequest::instructed(task.agent_id, card.card_id())
            });
            cards.push(card);
        }
        known!({
            let mut alone = self.kernel.alone(claimed.project_id).await?;
            turn::enqueue(&mut alone, &requests, &cards).await
        })?;
        for request in &requests {
            self.ledger.note(&Entry::Accepted { turn_id: request.agent_turn_id, ready: false });
        }
        known!({
            let mut alone = self.kernel.alone(claimed.project_id).await?;
            batch::dispatched(&mut alone, claimed.tool_call_id, claimed.claim_token).await
        })?;
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
            target: target(tool),
            tool_call_card_id: card.card_id(),
            timeout,
        });
        Ok(card)
    };
    const LONG: Duration = Duration::from_secs(900);
    match op {
        Op::Think => {}
        Op::Call(n) => {
            for _ in 0..*n {
                cards.push(call("tool", "{}".to_owned(), LONG)?);
            }
        }
        Op::Wait => cards.push(call("nobody", "{}".to_owned(), Duration::from_secs(1))?),
        Op::Fork(agents) => cards.push(call("fork", serde_json::to_string(agents)?, LONG)?),
    }
    let suspend = !calls.is_empty();
    Ok(Step { step_id: StepId::new(), cards, calls, suspend, receipt: None })
}

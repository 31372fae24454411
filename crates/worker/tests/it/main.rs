//! One model call and what is around it, on a real database.

#![allow(clippy::unwrap_used)]

mod collecting;
mod compacting;
mod reading;
mod replaying;
mod running;
mod shop;
mod tools;
mod troubles;

use std::time::Duration;

use futures::future::BoxFuture;
use waybill_context::{
    call::RenderConfig,
    compose::without_blocks,
    framework::Framework,
    policy::{Audience, Policy},
    unit::Message,
    wire::{Adapter, Params},
};
use waybill_core::{
    card::{CardType, Content, Draft, NewCard, Role, ToolCall},
    card_box::Span,
    id::{AgentId, BoxId, CardId, SessionId, StepId, Target, ToolCallId, WorkerId},
    resource::{Compaction, Order, Process},
    tokens::Tokens,
    turn::End,
};
use waybill_kernel::{
    agent,
    blackboard::{self, Patch},
    card, card_box, lease, sweep,
    turn::{self, Claimed, Claiming, DispatchRequest, Ending, Step},
    work::Kernel,
};
use waybill_testkit::{TestDb, fresh_db};
use waybill_worker::{
    collect::Collector,
    compact::{Summarised, Summariser},
    gather::{Gathered, Setting, gather},
    toolbox::Toolbox,
};

const LONG: Duration = Duration::from_secs(600);

fn tokens(n: i32) -> Tokens {
    Tokens::new(n).unwrap()
}

fn target() -> Target {
    "llm".parse().unwrap()
}

fn said(role: Role, text: &str) -> Draft {
    let card_type = if role == Role::User { CardType::instruction() } else { CardType::thought() };
    Draft::new(card_type, role, Content::Text(text.to_owned()))
}

fn sealed(role: Role, text: &str) -> NewCard {
    said(role, text).seal().unwrap()
}

/// An assistant who calls a tool, and the tool's answer.
fn tool_round(thought: &str, answer: &str) -> [NewCard; 2] {
    let tool_call_id = ToolCallId::new();
    let call = ToolCall { tool_call_id, tool_name: "look".into(), arguments: "{}".into(), provider_call_id: None };
    let thought = Draft { tool_calls: vec![call], ..said(Role::Assistant, thought) };
    [thought.seal().unwrap(), Draft::tool_result(tool_call_id, "success", answer.into()).seal().unwrap()]
}

/// A house with one worker.
struct Desk {
    t: TestDb,
    worker: WorkerId,
    collector: Collector,
    setting: Setting,
}

impl Desk {
    async fn new() -> Desk {
        let t = fresh_db().await;
        let worker = lease::start(&t.kernel, &target(), LONG).await.unwrap();
        let policy = Policy { order: Order::Layered, budget: tokens(4_000), per_message: tokens(4) };
        let setting = Setting {
            knowledge: None,
            experience: None,
            system_prompt_template: None,
            toolbox: Toolbox::default(),
            audience: Audience::of(Process::React),
            policy,
            n_pinned: 0,
            fork: None,
            budget: None,
            framework: None,
        };
        Desk { t, worker, collector: Collector::new(Framework::builtin()), setting }
    }

    fn kernel(&self) -> &Kernel {
        &self.t.kernel
    }

    async fn session(&self) -> SessionId {
        let session_id = SessionId::new();
        let mut work = self.t.begin().await;
        blackboard::open(&mut work, None, &[session_id]).await.unwrap();
        work.commit().await.unwrap();
        session_id
    }

    /// Lets a session remember what was said.
    async fn remember(&self, session_id: SessionId, cards: &[NewCard]) {
        let mut work = self.t.begin().await;
        card::insert(&mut work, cards).await.unwrap();
        let card_ids: Vec<CardId> = cards.iter().map(NewCard::card_id).collect();
        blackboard::patch(&mut work, session_id, StepId::new(), &Patch::default().append(&card_ids)).await.unwrap();
        work.commit().await.unwrap();
    }

    /// Starts and claims a turn: its context is the question and what the session remembers, by range.
    async fn ask(&self, session_id: SessionId, question: &str) -> Claimed {
        self.ask_with(session_id, question, &[]).await
    }

    /// Does the same, with more cards after the question.
    async fn ask_with(&self, session_id: SessionId, question: &str, more: &[NewCard]) -> Claimed {
        let agent_id = AgentId::new();
        let question = sealed(Role::User, question);
        let context = BoxId::new();
        let mut work = self.t.begin().await;
        agent::create(&mut work, &[agent_id], &target()).await.unwrap();
        let board = blackboard::find(&mut work, session_id).await.unwrap().unwrap();
        card::insert(&mut work, std::slice::from_ref(&question)).await.unwrap();
        card_box::create(&mut work, &[context]).await.unwrap();
        card_box::append(&mut work, context, &[question.card_id()]).await.unwrap();
        card::insert(&mut work, more).await.unwrap();
        let more: Vec<CardId> = more.iter().map(NewCard::card_id).collect();
        card_box::append(&mut work, context, &more).await.unwrap();
        card_box::inherit(&mut work, context, Span::whole(board.messages_box_id)).await.unwrap();
        let request = DispatchRequest {
            session_id: Some(session_id),
            query_card_ids: vec![question.card_id()],
            ..DispatchRequest::new(agent_id, context)
        };
        turn::enqueue(&mut work, &[request], &[]).await.unwrap();
        work.commit().await.unwrap();
        self.claim().await
    }

    async fn claim(&self) -> Claimed {
        let mut claiming = Claiming::new(self.worker, target());
        turn::claim(self.kernel(), &mut claiming).await.unwrap().remove(0)
    }

    async fn gather(&self, claimed: &Claimed) -> Gathered {
        gather(self.kernel(), claimed, &self.setting, &self.collector, None).await.unwrap()
    }

    fn config(&self) -> RenderConfig {
        RenderConfig { adapter: Adapter::OpenaiChat, policy: self.setting.policy, params: Params::default() }
    }

    async fn step(&self, claimed: &Claimed, cards: &[NewCard], receipt: Option<String>) -> StepId {
        let step = Step {
            step_id: StepId::new(),
            cards: cards.to_vec(),
            calls: Vec::new(),
            suspend: false,
            receipt,
            usage: None,
        };
        let mut alone = self.kernel().alone(self.t.project_id).await.unwrap();
        turn::step(&mut alone, &claimed.fence, &step).await.unwrap();
        step.step_id
    }

    async fn finish(&self, claimed: &Claimed, answer: &str) {
        let draft = Draft::new(CardType::deliverable(), Role::Assistant, Content::Text(answer.to_owned()));
        let ending = Ending {
            fence: claimed.fence,
            status: End::Success,
            step_id: None,
            receipt: None,
            usage: None,
            seen: None,
            cards: vec![draft.seal().unwrap()],
        };
        let mut work = self.t.begin().await;
        turn::finish(&mut work, &[ending]).await.unwrap();
        work.commit().await.unwrap();
    }

    /// Lets the worker die, and returns its turn as another worker claims it.
    async fn take_over(&mut self) -> Claimed {
        lease::end(self.kernel(), self.worker).await.unwrap();
        self.worker = lease::start(self.kernel(), &target(), LONG).await.unwrap();
        let config = sweep::Config { lease: Duration::ZERO, ..Default::default() };
        sweep::tick(self.kernel(), &config).await.unwrap();
        self.claim().await
    }
}

/// Returns in short what is shown, and by which role, without the framework's text.
fn shown(gathered: &Gathered, policy: &Policy) -> Vec<String> {
    let composed = gathered.materials.compose(policy).unwrap();
    let line = |message: &Message<'_>| format!("{}: {}", message.role.as_str(), without_blocks(&message.content));
    composed.messages.iter().map(line).filter(|line| !line.contains("You are one of several agents")).collect()
}

/// Says how many messages there were, and what was said before.
struct Counting;

impl Summariser for Counting {
    fn summarise<'a>(
        &'a self,
        previous: Option<&'a str>,
        messages: &'a [Message<'a>],
    ) -> BoxFuture<'a, Result<Summarised, Box<dyn std::error::Error + Send + Sync>>> {
        let firsts: Vec<&str> = messages.iter().map(|message| message.content.split(' ').next().unwrap()).collect();
        let text = format!("[{}{}]", previous.map(|p| format!("{p} then ")).unwrap_or_default(), firsts.join(" "));
        Box::pin(async { Ok(Summarised { text, usage: None }) })
    }
}

const COMPACTION: Compaction = Compaction { at_percent: 60, keep: Tokens::ZERO, least: Tokens::ZERO };

/// Returns a text of about this many tokens that begins with its name.
fn long(name: &str, n: usize) -> String {
    format!("{name} {}", "and so on ".repeat(n / 3))
}

//! A worker at work: a real database, a scripted model over HTTP, tools that the test answers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};
use waybill_artifact::{Artifacts, Store};
use waybill_bus::local::Local;
use waybill_context::framework::Framework;
use waybill_core::{
    card::{Card, CardType, Content, Draft, NewCard},
    card_box::Span,
    id::{AgentId, BoxId, Name, SessionId, TurnId, UploadId},
    resource::Manifest,
    turn::{Limits, MessageType},
};
use waybill_kernel::{
    agent, call, card, card_box, lease,
    resource::{self, apply},
    sweep,
    turn::{self, Claiming, DispatchRequest, Report, Summary, Taken},
};
use waybill_lab::model::{Asked, Reply, Script, Server};
use waybill_orchestrator::replay;
use waybill_testkit::{TestDb, fresh_db};
use waybill_tool::secret::Secrets;
use waybill_worker::{
    collect::Collector,
    model::{Models, Provider},
    serve::{Config, Worker},
};

use crate::target;

pub(crate) const ADAPTERS: [&str; 3] = ["openai_chat", "openai_responses", "anthropic_messages"];
pub(crate) const LEASE: Duration = Duration::from_millis(400);

/// What a model is to call: tool and arguments.
pub(crate) type Calls = Arc<Mutex<Vec<(&'static str, Value)>>>;

pub(crate) struct Shop {
    pub(crate) t: TestDb,
    pub(crate) server: Arc<Server>,
    providers: Vec<Value>,
    secrets: Vec<(String, String)>,
    lease: Duration,
    pub(crate) artifacts: Option<Artifacts>,
    sweeper: JoinHandle<()>,
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

/// A process that takes turns, until it is ended or killed.
pub(crate) struct Hand {
    end: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Hand {
    pub(crate) async fn end(mut self) {
        self.end.take();
        self.task.await.unwrap();
    }
}

impl Shop {
    pub(crate) async fn new(script: impl Script) -> Shop {
        let mut t = fresh_db().await;
        t.kernel = t.kernel.on(Arc::new(Local::default()));
        let server = Arc::new(Server::start(script).await.unwrap());
        let provider = |adapter: &str| {
            json!({
                "name": adapter, "adapter": adapter, "base_url": server.url(), "silence_seconds": 1, "max_attempts": 3,
                "prices": { "m": { "input": 2.0, "cached": 0.5, "output": 10.0 } },
            })
        };
        let providers = ADAPTERS.map(provider).to_vec();
        let kernel = t.kernel.clone();
        let sweeper = tokio::spawn(async move {
            loop {
                let config = sweep::Config { lease: LEASE, ..sweep::Config::default() };
                let _ = sweep::tick(&kernel, &config).await;
                tokio::time::sleep(LEASE / 4).await;
            }
        });
        Shop { t, server, providers, secrets: Vec::new(), lease: LEASE * 20, artifacts: None, sweeper }
    }

    /// Whose workers are soon missed.
    pub(crate) fn hasty(mut self) -> Shop {
        self.lease = LEASE;
        self
    }

    /// Makes a shop with an object store, whose model makes the calls of a list, one per step, and then ends.
    pub(crate) async fn scripted() -> (Shop, Calls) {
        let calls = Calls::default();
        let made = calls.clone();
        let mut shop = Shop::new(move |asked: &Asked| {
            let done = asked.messages.iter().filter(|said| said.result_of.is_some()).count();
            match made.lock().unwrap().get(done) {
                Some((tool, arguments)) => Reply::call(tool, arguments),
                None => Reply::say("done"),
            }
        })
        .await;
        let folder = std::env::temp_dir().join(format!("waybill-shop-{}", UploadId::new()));
        shop.artifacts = Some(Artifacts::new(shop.t.kernel.clone(), Store::in_folder(folder).unwrap()));
        (shop, calls)
    }

    pub(crate) fn artifacts(&self) -> &Artifacts {
        self.artifacts.as_ref().unwrap()
    }

    /// Says more of every provider.
    pub(crate) fn provider(&mut self, more: Value) {
        for provider in &mut self.providers {
            provider.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
    }

    pub(crate) fn secrets(&mut self, secrets: impl IntoIterator<Item = (String, String)>) {
        self.secrets = secrets.into_iter().collect();
    }

    /// Another process.
    pub(crate) fn hire(&self) -> Hand {
        let read = |value: &Value| serde_json::from_value::<Provider>(value.clone()).unwrap();
        let providers = self.providers.iter().map(read).collect();
        let models = Models::new(providers, Secrets::new(None, self.secrets.clone()));
        let worker = Worker::new(self.t.kernel.clone(), models, Collector::new(Framework::builtin()));
        let worker = worker.with_artifacts(self.artifacts.clone());
        let config = Config { lease: self.lease, ..Config::new(target()) };
        let (end, ended) = oneshot::channel::<()>();
        let task = tokio::spawn(async move { worker.serve(&config, async { drop(ended.await) }).await });
        Hand { end: Some(end), task }
    }

    /// Kills a process at once: its task is gone, and its lease expires.
    pub(crate) fn kill(&self, hand: Hand) {
        hand.task.abort();
    }

    pub(crate) async fn apply(&self, manifests: &[Value]) {
        let read = |value: &Value| serde_json::from_value::<Manifest>(value.clone()).unwrap();
        let manifests: Vec<Manifest> = manifests.iter().map(read).collect();
        let mut work = self.t.begin().await;
        apply(&mut work, &manifests).await.unwrap();
        work.commit().await.unwrap();
    }

    /// Applies a profile `a` for this adapter, with further fields.
    pub(crate) async fn profile(&self, adapter: &str, more: Value) {
        let mut profile = json!({
            "name": "a", "worker_target": "llm", "system_prompt_template": "You bake bread.",
            "llm_config": { "provider": adapter, "model": "m" },
        });
        profile.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.apply(&[json!({ "profile": profile })]).await;
    }

    /// Applies a tool for the target `web`.
    pub(crate) async fn tool(&self, name: &str, more: Value) {
        let mut tool = json!({
            "name": name, "description": "Finds.", "target": "web", "effect": "pure",
            "parameters": { "type": "object", "properties": { "q": { "type": "string" } }, "required": ["q"] },
        });
        tool.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.apply(&[json!({ "tool": tool })]).await;
    }

    pub(crate) async fn ask(&self, question: &str) -> TurnId {
        self.ask_with(question, &[], None, None).await
    }

    /// Starts a turn with more cards after the question, in a session, with limits.
    pub(crate) async fn ask_with(
        &self,
        question: &str,
        more: &[NewCard],
        session_id: Option<SessionId>,
        limits: Option<Limits>,
    ) -> TurnId {
        let agent_id = AgentId::new();
        let question = Draft::instruction(question).seal().unwrap();
        let mut work = self.t.begin().await;
        agent::create(&mut work, &[agent_id], &target()).await.unwrap();
        let found = resource::profile(&mut work, &"a".parse::<Name>().unwrap()).await.unwrap();
        let cards: Vec<NewCard> = std::iter::once(question.clone()).chain(more.iter().cloned()).collect();
        let request = DispatchRequest {
            profile_box_id: Some(found.profile_box_id),
            context_card_ids: Some(cards.iter().map(NewCard::card_id).collect()),
            session_id,
            limits,
            ..DispatchRequest::instructed(agent_id, question.card_id())
        };
        turn::enqueue(&mut work, std::slice::from_ref(&request), &cards).await.unwrap();
        work.commit().await.unwrap();
        request.agent_turn_id
    }

    pub(crate) async fn find(&self, turn_id: TurnId) -> Summary {
        turn::show(&mut self.t.begin().await, &[turn_id]).await.unwrap().remove(0)
    }

    pub(crate) async fn steps(&self, turn_id: TurnId) -> Vec<Taken> {
        turn::steps(&mut self.t.begin().await, turn_id).await.unwrap()
    }

    /// Waits for the end of a turn: how it ended, and with what.
    pub(crate) async fn ended(&self, turn_id: TurnId) -> (String, Value) {
        for _ in 0..750 {
            let turn = self.find(turn_id).await;
            if let Some(card_id) = turn.deliverable_card_id {
                let mut work = self.t.begin().await;
                let found = card::fetch(&mut work, &[card_id], None).await.unwrap().found.remove(0);
                let content = serde_json::to_value(found.into_live().unwrap().content).unwrap();
                return (turn.status.as_str().to_owned(), content);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the turn did not end; the model was asked {:#?}", self.server.ledger());
    }

    pub(crate) async fn cards(&self, box_id: BoxId) -> Vec<Card> {
        let read = card_box::read(&mut self.t.begin().await, Span::whole(box_id), None).await.unwrap();
        read.into_iter().filter_map(|placed| placed.reading.into_live()).collect()
    }

    /// Returns in short what a turn has written: card types, and contents.
    pub(crate) async fn output(&self, turn_id: TurnId) -> Vec<(String, Value)> {
        let mut work = self.t.begin().await;
        let box_id: BoxId = sqlx::query_scalar("select output_box_id from state.turns where agent_turn_id = $1")
            .bind(turn_id)
            .fetch_one(&mut *work)
            .await
            .unwrap();
        drop(work);
        let cards = self.cards(box_id).await;
        let short = |card: Card| (card.metadata.card_type.to_string(), serde_json::to_value(card.content).unwrap());
        cards.into_iter().map(short).collect()
    }

    /// Claims the next call of a target as a service would, and answers it.
    pub(crate) async fn answer(&self, status: &str, result: Value, extra: Value) -> Value {
        let worker = lease::start(&self.t.kernel, &"web".parse().unwrap(), Duration::from_secs(60)).await.unwrap();
        for _ in 0..500 {
            let mut claiming = Claiming::new(worker, "web".parse().unwrap());
            if let Some(claimed) = call::claim(&self.t.kernel, &mut claiming).await.unwrap().pop() {
                let asked = call::asked(&mut self.t.begin().await, &claimed).await.unwrap().unwrap();
                let mut draft = Draft::tool_result(claimed.tool_call_id, status, result);
                if let Content::ToolResult(content) = &mut draft.content {
                    content.extra = extra.as_object().unwrap().clone();
                }
                let report = Report {
                    is_external: false,
                    tool_call_id: claimed.tool_call_id,
                    claim_token: Some(claimed.claim_token),
                    message_type: MessageType::ToolResult,
                    status: status.into(),
                    card: draft.seal().unwrap(),
                };
                turn::report(&mut self.t.kernel.alone(self.t.project_id).await.unwrap(), &report).await.unwrap();
                return json!({ "tool": asked.tool_name, "arguments": asked.arguments });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no call came");
    }

    /// NX-1: every call of a turn renders again to the same bytes. Says how many there were.
    pub(crate) async fn verify(&self, turn_id: TurnId) -> usize {
        let receipts = replay::list(&mut self.t.begin().await, turn_id).await.unwrap();
        for (step_id, _) in &receipts {
            replay::replay(&mut self.t.begin().await, turn_id, Some(*step_id)).await.unwrap();
        }
        receipts.len()
    }
}

/// Counts the messages of a request that contain a text.
pub(crate) fn n_said(asked: &waybill_lab::model::Asked, text: &str) -> usize {
    asked.messages.iter().filter(|said| said.text.contains(text)).count()
}

pub(crate) fn thought(text: &str) -> NewCard {
    Draft::new(CardType::thought(), waybill_core::card::Role::Assistant, Content::Text(text.into())).seal().unwrap()
}

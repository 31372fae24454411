//! One turn, from start to end (WK-1 … WK-7).
//!
//! ```text
//!   claim ─▶ hydrate ─▶ gather ─▶ compact ─▶ compose ─▶ ask the model ─▶ one transaction for what came back ─┬▶ again, from gather
//!                                                                                                            ├▶ suspend, for calls
//!                                                                                                            └▶ finish, with the deliverable
//! ```
//! Between two steps nothing is kept but what is in the database: a turn that another worker left half done continues from its cards. A
//! model call that was in flight when its worker died is repeated with the same idempotency key. A call whose answer was written is never
//! repeated.

use std::{collections::HashSet, time::Duration};

use futures::future::OptionFuture;
use serde_json::{Value, json};
use tokio::time::Instant;
use waybill_context::{
    call::{self, Manner},
    framework::Framework,
    layer::BlockKey,
    policy::{Audience, Policy},
    todo::{Change, Todo},
    wire::{self, Adapter},
};
use waybill_core::{
    bus::Chunk,
    card::{CallContent, Card, CardType, Content, Draft, Invalid, NewCard, ResultContent, Role},
    id::{Name, StepId, ToolCallId},
    json,
    resource::{InternalTool, LlmConfig, Memory, Profile, Settings},
    tokens::Tokens,
    turn::{Budget, End, Fence, Limits, Usage},
};
use waybill_kernel::{
    blackboard::{self, Patch},
    external, fork,
    intake::{Holding, Order},
    knowledge::Kind,
    resource,
    retry::retry,
    turn::{self, Call, Claimed, Ending, Loss, Step, ending_card},
    work::{self, Kernel},
};
use waybill_tool::check::of_resource;

use crate::{
    compact,
    gather::{self, Gathered, Setting, gather},
    knowledge,
    model::{self, Answered, Asking, Called},
    serve::Worker,
    summarise::Summarise,
    toolbox::{
        Sorted, Toolbox,
        artifact::{Desk, Done, Folders},
    },
    write,
};

/// How many reminders to end with a required tool a model gets in one turn. After that, the turn fails.
const MOST_REMINDERS: usize = 3;
/// What the model reads when it ended its work while a new message for it arrived.
const UNSEEN: &str =
    "New information arrived while you wrote this; it is shown above. Take it into account, then finish again.";
/// The model gets a warning when this many steps are left.
const FEW_STEPS: i64 = 2;
/// How long to wait after the first failed attempt; doubled after each further one.
const BACKOFF: Duration = Duration::from_secs(2);

/// How a turn ended, as far as this worker is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Finished(End),
    /// It waits for the results of its calls.
    Suspended,
    /// The attempt failed. The turn is retried later, or was given up.
    Failed,
    /// This worker stops; another one continues the turn with its next step.
    Left,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Turn(#[from] turn::Error),
    #[error(transparent)]
    Gather(gather::Error),
    #[error(transparent)]
    Compact(compact::Error),
    #[error(transparent)]
    Blackboard(#[from] blackboard::Error),
    #[error("what the model said cannot be a card")]
    Invalid(#[from] Invalid),
}

/// Runs a turn until it ends, waits or is lost.
pub async fn run(worker: &Worker, holding: &Holding<Claimed>) -> Result<Outcome, Error> {
    let mut turn = match Turn::hydrate(worker, &holding.claimed).await? {
        Ok(turn) => turn,
        Err(why) => return give_up(worker, &holding.claimed, End::Failed, "no_profile", &why).await,
    };
    loop {
        if turn.stop_asked || holding.order() == Order::Stop {
            return turn.cancel().await;
        }
        if let Some(limit) = turn.exhausted() {
            return turn.over(limit).await;
        }
        if let Some(why) = turn.without_price() {
            return turn.give_up("no_price", &why).await;
        }
        if worker.is_leaving() {
            return Ok(Outcome::Left);
        }
        if let Err(why) = turn.gather().await? {
            return turn.give_up("unreadable", &why).await;
        }
        if let Some(result) = turn.ending_result() {
            match turn.finish(End::Success, Vec::new(), delivering(result), None).await? {
                Some(outcome) => return Ok(outcome),
                None => continue,
            }
        }
        let out_of_time = turn.out_of_time();
        let thought = tokio::select! {
            thought = turn.think() => thought?,
            () = stopped(holding) => continue,
            Some(()) = out_of_time => continue,
        };
        let written = match thought {
            Ok(thought) => turn.write(thought).await?,
            Err(Trouble::Passing(error)) => return turn.fail_attempt(&error).await,
            Err(Trouble::Lasting(code, why)) => return turn.give_up(code, &why).await,
            Err(Trouble::Over(limit)) => return turn.over(limit).await,
        };
        if let Some(outcome) = written {
            return Ok(outcome);
        }
    }
}

async fn stopped(holding: &Holding<Claimed>) {
    if holding.called_off().await == Order::Lost {
        // The turn is lost: the caller drops this future.
        std::future::pending().await
    }
}

/// What the model said, before it is written.
struct Thought {
    step_id: StepId,
    adapter: Adapter,
    answered: Answered,
    receipt: String,
}

/// Why the model gave nothing to write.
enum Trouble {
    /// Another attempt may help.
    Passing(model::Error),
    /// No attempt would help: an error code, and why.
    Lasting(&'static str, String),
    /// The request alone would use more than what is left of this limit.
    Over(&'static str),
}

struct Turn<'w> {
    worker: &'w Worker,
    claimed: &'w Claimed,
    llms: Vec<LlmConfig>,
    /// The models and the prompt of the profile that writes the summaries, if that is another profile.
    summariser: Option<(Vec<LlmConfig>, String)>,
    memory: Memory,
    setting: Setting,
    /// The profile's name, as the author of artifacts.
    author: String,
    folders: Folders,
    budget: Option<Budget>,
    /// When its time is over, by this process's clock.
    expires: Option<Instant>,
    /// The project's limits, which apply where the turn's budget sets none.
    default: Limits,
    /// How many steps and tokens it has used so far.
    n_steps: i64,
    n_tokens: i64,
    stop_asked: bool,
    stop_reason: Option<String>,
    /// Another worker, whose lease was lost, may already have made the call that comes next.
    asked_again: bool,
    /// The provider's id of the model's last answer, since this worker has the turn.
    previous_message: Option<String>,
    /// Attempts that failed since the turn last wrote something.
    n_failed: i32,
    gathered: Option<Gathered>,
    /// The length of its output box at that reading.
    seen: i64,
    /// In a fork: the recorded results, which are returned instead of calling tools again.
    recorded: Option<Vec<fork::Answered>>,
}

impl<'w> Turn<'w> {
    /// Loads who the agent is, and what it may call and spend (WK-1).
    async fn hydrate(worker: &'w Worker, claimed: &'w Claimed) -> Result<Result<Turn<'w>, String>, Error> {
        let found = resources(worker, claimed).await?;
        let Some(profile) = found.profile else {
            return Ok(Err("the turn was dispatched without a profile that can be read".to_owned()));
        };
        let Settings { enable_share_context, max_steps, max_tokens, max_seconds, framework, .. } =
            found.settings.unwrap_or_default();
        let toolbox = Toolbox::new(&profile, &found.tools).with_delegates(found.delegates);
        let folders = Folders { readable: profile.readable_artifacts, writable: profile.writable_artifacts };
        let author = profile.name.to_string();
        let Profile { system_prompt_template, llm_config, process, memory, knowledge, experience, summariser, .. } =
            profile;
        let summariser = match &summariser {
            Some(name) => match summariser_of(worker, claimed, name).await? {
                Ok(summariser) => Some(summariser),
                Err(why) => return Ok(Err(why)),
            },
            None => None,
        };
        let demands = [(BlockKey::Knowledge, &knowledge), (BlockKey::Experience, &experience)];
        let demands = demands.into_iter().filter(|(_, shelf)| shelf.is_some()).map(|(key, _)| key).collect();
        let policy = Policy { order: memory.order, budget: memory.budget, per_message: per_message() };
        let llms = with_fallbacks(llm_config);
        let setting = Setting {
            system_prompt_template: Some(system_prompt_template),
            toolbox,
            audience: Audience { enable_share_context, demands, ..Audience::of(process) },
            policy,
            n_pinned: memory.n_pinned.into(),
            knowledge,
            experience,
            fork: found.fork,
            budget: found.budget,
            framework: framework.as_ref().map(Framework::of),
        };
        let recorded = match &setting.fork {
            Some(fork) if !fork.live_tools => Some(recorded(worker, claimed, fork).await?),
            _ => None,
        };
        let mut turn = Turn {
            worker,
            claimed,
            llms,
            summariser,
            memory,
            setting,
            author,
            folders,
            budget: None,
            expires: None,
            default: Limits {
                steps: Some(max_steps),
                tokens: Some(max_tokens),
                microdollars: None,
                seconds: Some(max_seconds),
            },
            n_steps: found.n_steps,
            n_tokens: found.n_tokens,
            stop_asked: claimed.stop_asked,
            stop_reason: found.stop_reason,
            asked_again: claimed.n_lost_leases + claimed.retry_count > 0,
            previous_message: None,
            n_failed: claimed.retry_count,
            gathered: None,
            seen: 0,
            recorded,
        };
        turn.set_budget(found.budget);
        if turn.expires.is_none() {
            let left = f64::from(max_seconds) - found.age_seconds;
            turn.expires = Some(Instant::now() + Duration::from_secs_f64(left.max(0.0)));
        }
        Ok(Ok(turn))
    }

    fn kernel(&self) -> &'w Kernel {
        self.worker.kernel()
    }

    fn fence(&self) -> &'w Fence {
        &self.claimed.fence
    }

    fn set_budget(&mut self, budget: Option<Budget>) {
        if let Some(seconds) = budget.and_then(|budget| budget.seconds) {
            self.expires = Some(Instant::now() + Duration::from_secs_f64(seconds.max(0.0)));
        }
        self.budget = budget.or(self.budget);
    }

    /// Returns the name of a limit that is used up.
    fn exhausted(&self) -> Option<&'static str> {
        if self.expires.is_some_and(|at| at <= Instant::now()) {
            return Some("seconds");
        }
        if let Some(exhausted) = self.budget.and_then(|budget| budget.exhausted()) {
            return Some(exhausted);
        }
        // The budget sets no such limit: the project's settings apply.
        let unsaid = |said: fn(&Budget) -> bool| !self.budget.as_ref().is_some_and(said);
        let Limits { steps, tokens, .. } = self.default;
        if unsaid(|budget| budget.steps.is_some()) && steps.is_some_and(|most| self.n_steps >= i64::from(most)) {
            return Some("steps");
        }
        let over = |most: u32| self.n_tokens >= i64::from(most);
        (unsaid(|budget| budget.tokens.is_some()) && tokens.is_some_and(over)).then_some("tokens")
    }

    /// Returns an error if money is limited and one of the models has no known price: the limit could never end the turn.
    fn without_price(&self) -> Option<String> {
        self.budget?.microdollars?;
        let summarisers =
            self.summariser.iter().flat_map(|(llms, _)| llms).filter(|_| self.memory.compaction.is_some());
        let llm = self.llms.iter().chain(summarisers).find(|llm| !self.worker.models().has_price(llm))?;
        Some(format!(
            "the turn has a money limit, but the file of providers has no price for model `{}` of provider `{}` (write 0 if it is free)",
            llm.model, llm.provider
        ))
    }

    fn out_of_time(&self) -> OptionFuture<tokio::time::Sleep> {
        self.expires.map(tokio::time::sleep_until).into()
    }

    /// Reads what the next call is made of. The inner error says why it cannot be read.
    async fn gather(&mut self) -> Result<Result<(), String>, Error> {
        let (kernel, claimed, collector) = (self.kernel(), self.claimed, self.worker.collector());
        let (setting, mut before) = (&self.setting, self.gathered.take());
        let gathered = retry(|| Box::pin(gather(kernel, claimed, setting, collector, before.take()))).await;
        match gathered {
            Ok(gathered) => {
                self.seen = gathered.materials.output.upto;
                self.gathered = Some(gathered);
            }
            Err(gone @ gather::Error::QueryGone(_)) => return Ok(Err(gone.to_string())),
            Err(error) => return Err(Error::Gather(error)),
        }
        Ok(Ok(()))
    }

    fn gathered(&self) -> &Gathered {
        self.gathered.as_ref().expect("it is gathered before every step")
    }

    /// Returns the result that ends the turn, if one of its last calls has it (WK-3).
    fn ending_result(&self) -> Option<Content> {
        let steps = &self.gathered().materials.steps;
        let cards: Vec<_> = steps.iter().filter_map(|placed| placed.reading.live()).collect();
        let is = |card: &Card, card_type: CardType| card.metadata.card_type == card_type;
        let behind = cards.iter().rposition(|card| is(card, CardType::tool_call()))?;
        let first = cards[..behind].iter().rposition(|card| !is(card, CardType::tool_call())).map_or(0, |at| at + 1);
        // A new message came since: the model answers that first.
        if cards[first..].iter().any(|card| is(card, CardType::instruction())) {
            return None;
        }
        let calls: Vec<_> = cards[first..=behind].iter().rev().collect();
        calls.into_iter().rev().find_map(|call| {
            let Content::ToolCall(CallContent { tool_name, .. }) = &call.content else { return None };
            let answers = |card: &&&Card| {
                card.tool_call_id == call.tool_call_id && card.metadata.card_type == CardType::tool_result()
            };
            let Content::ToolResult(result) = &cards.iter().find(answers)?.content else { return None };
            self.setting.toolbox.ends_with(tool_name, result).then(|| delivered(result))
        })
    }

    /// Compacts if it is time to, composes, and asks the model, then its fallbacks.
    async fn think(&mut self) -> Result<Result<Thought, Trouble>, Error> {
        let models = self.worker.models();
        if let (Some(compaction), Some(gathered)) = (self.memory.compaction, self.gathered.as_mut()) {
            let (llms, prompt) = match &self.summariser {
                Some((llms, prompt)) => (llms, Some(prompt.as_str())),
                None => (&self.llms, None),
            };
            let summariser = Summarise { models, llms, prompt, project_id: self.claimed.fence.project_id() };
            let compacted = compact::compact(
                self.worker.kernel(),
                self.claimed,
                gathered,
                &self.setting.policy,
                compaction,
                &summariser,
            );
            match compacted.await {
                Ok(done) => {
                    let wrote = done.n_summaries > 0;
                    self.set_budget(done.budget);
                    // A caller may have sent the turn a message meanwhile: then the positions of its cards have changed.
                    if wrote && let Err(why) = self.gather().await? {
                        return Ok(Err(Trouble::Lasting("unreadable", why)));
                    }
                }
                Err(compact::Error::Call(error)) => return Ok(Err(lasting(error))),
                Err(error) => return Err(Error::Compact(error)),
            }
        }
        let step_id = StepId::new();
        let (asked_again, mut trouble) = (std::mem::take(&mut self.asked_again), None);
        for llm in &self.llms {
            let (adapter, params) = match models.manner(llm) {
                Ok(manner) => manner,
                Err(error) => {
                    trouble = Some(error);
                    continue;
                }
            };
            let materials = &self.gathered().materials;
            let call = match materials.call(&Manner { adapter, policy: self.setting.policy, params }) {
                Ok(call) => call,
                Err(error) => return Ok(Err(lasting(error))),
            };
            let n_tokens = call.receipt.n_tokens.get();
            if self.budget.and_then(|budget| budget.tokens).is_some_and(|left| left < i64::from(n_tokens)) {
                return Ok(Err(Trouble::Over("tokens")));
            }
            // This includes steps that a summary covers.
            let said = materials.steps.iter().filter_map(|placed| placed.reading.live());
            let said = said.filter(|card| card.metadata.role == Role::Assistant);
            let own: HashSet<_> = said.filter_map(|card| card.metadata.step_id).collect();
            let key = format!(
                "waybill-{}-{}-{}",
                self.fence().agent_turn_id(),
                materials.output.upto,
                call.receipt.request_hash
            );
            let asking = Asking {
                project_id: self.fence().project_id(),
                llm,
                request: &call.request,
                key: &key,
                n_tokens: u32::try_from(n_tokens).unwrap_or_default(),
                n_before: own.len(),
                previous: self.previous_message.as_deref(),
            };
            let asked = models.ask(&asking, &|attempt, text| self.tell(step_id, attempt, text)).await;
            match asked {
                Ok(mut answered) => {
                    answered.usage.asked_again = asked_again;
                    let receipt = serde_json::to_string(&call.receipt).unwrap_or_default();
                    return Ok(Ok(Thought { step_id, adapter, answered, receipt }));
                }
                Err(error) => {
                    tracing::warn!(turn = %self.fence().agent_turn_id(), provider = %llm.provider, model = llm.model, %error, "no answer");
                    trouble = Some(error);
                }
            }
        }
        let error = trouble.unwrap_or_else(|| model::Error::Refused("the profile names no model".into()));
        Ok(Err(match error {
            error if error.may_pass() => Trouble::Passing(error),
            error @ model::Error::TooLong(_) => Trouble::Lasting("context_too_long", error.to_string()),
            error => Trouble::Lasting("model_refused", error.to_string()),
        }))
    }

    /// Sends a piece of the model's text to the clients that watch this turn (WK-5).
    fn tell(&self, step_id: StepId, attempt: u16, text: &str) {
        let agent_turn_id = self.fence().agent_turn_id();
        let text = self.worker.models().blot(text.to_owned());
        let content = json!({ "agent_turn_id": agent_turn_id, "step_id": step_id, "attempt": attempt, "text": text });
        self.kernel().bus().send(Chunk {
            project_id: self.fence().project_id(),
            channel: self.claimed.channel.clone(),
            agent_id: self.fence().agent_id(),
            content: content.to_string().into_bytes(),
        });
    }

    /// Writes what came back in one transaction, which continues, suspends or finishes the turn.
    async fn write(&mut self, thought: Thought) -> Result<Option<Outcome>, Error> {
        let Thought { step_id, adapter, answered, receipt } = thought;
        let Answered { answer, usage } = answered;
        self.previous_message = answer.message_id;
        let mut cards = Vec::new();
        if let Some(reasoning) = answer.reasoning {
            let draft = wire::reasoning_draft(adapter, reasoning.text, reasoning.verbatim);
            cards.push(self.seal(step_id, draft)?);
        }
        let speaks = !answer.text.trim().is_empty();
        let text = || Content::Text(json::text(&answer.text).into_owned());
        let asked = Asked { step_id, receipt, usage };
        if answer.calls.is_empty() && speaks && self.setting.toolbox.must_end_with().is_none() {
            let deliverable = marked(delivering(text()), answer.is_cut);
            return self.finish(End::Success, cards, deliverable, Some(asked)).await;
        }
        if speaks {
            let draft = Draft::new(CardType::thought(), Role::Assistant, text());
            cards.push(self.seal(step_id, marked(draft, answer.is_cut))?);
        }
        if answer.calls.is_empty() {
            return self.remind(cards, asked).await;
        }
        self.act(cards, answer.calls, asked).await
    }

    /// Handles an answer that does not end as required: writes a reminder, or ends the turn after too many.
    async fn remind(&mut self, mut cards: Vec<NewCard>, asked: Asked) -> Result<Option<Outcome>, Error> {
        let reminder = CardType::reminder();
        let steps = self.gathered().materials.steps.iter().filter_map(|placed| placed.reading.live());
        let n = steps.filter(|card| card.metadata.card_type == reminder).count();
        if n >= MOST_REMINDERS {
            let why = format!("it got {n} reminders of how to end, and did not");
            let deliverable = failure(End::Failed, "did_not_end", &why);
            return self.finish(End::Failed, cards, deliverable, Some(asked)).await;
        }
        let text = match self.setting.toolbox.must_end_with() {
            Some(tools) => format!("End your work by calling one of these tools: {tools}."),
            None => "Your answer was empty. Continue, or give your result.".to_owned(),
        };
        cards.push(self.remark(asked.step_id, &text)?);
        self.step(cards, Vec::new(), asked, None).await
    }

    /// Makes the model's calls. Each gets a card; those that the worker can answer are answered at once, the others are sent out (WK-3).
    async fn act(
        &mut self,
        mut cards: Vec<NewCard>,
        calls: Vec<Called>,
        asked: Asked,
    ) -> Result<Option<Outcome>, Error> {
        let step_id = asked.step_id;
        let fields = self.gathered().result_fields.clone();
        let (mut leaving, mut results, mut submitted, mut todo) = (Vec::new(), Vec::new(), None, None);
        let mut desk = self.desk();
        for called in calls {
            let tool_call_id = ToolCallId::new();
            let sorted = self.setting.toolbox.sort(&called, &fields);
            let card = self.seal(step_id, call_draft(tool_call_id, &called))?;
            let tool_call_card_id = card.card_id();
            cards.push(card);
            let answer = |status: &str, result: Value| Draft::tool_result(tool_call_id, status, result);
            match sorted {
                Sorted::Refused(why) => results.push(answer("failed", why.into())),
                Sorted::Submits(_) if submitted.is_some() => {
                    results.push(answer("failed", "a turn ends once: this result was left out".into()));
                }
                Sorted::Submits(content) => {
                    submitted = Some(content);
                    results.push(answer("success", "submitted".into()));
                }
                Sorted::Todo(changes) => match self.change_todo(&changes, todo.as_ref()) {
                    Ok(changed) => {
                        results.push(answer("success", changed.render().into()));
                        todo = Some(changed);
                    }
                    Err(why) => results.push(answer("failed", why.into())),
                },
                Sorted::Leaves { .. } | Sorted::Artifact(_) | Sorted::Knowledge { .. } | Sorted::Plan { .. }
                    if self.recorded.is_some() =>
                {
                    let content = Content::ToolResult(self.remember(&called, &cards));
                    results.push(Draft { content, ..answer("", Value::Null) });
                }
                Sorted::Artifact(request) => {
                    let Done { status, text, extra, is_external } = desk.answer(&request).await;
                    if is_external {
                        self.mark_external().await?;
                    }
                    let content =
                        Content::ToolResult(ResultContent { status: status.to_owned(), result: text.into(), extra });
                    results.push(Draft { content, ..answer("", Value::Null) });
                }
                Sorted::Knowledge { kind, question, most } => match self.look_up(kind, &question, most).await? {
                    Ok(text) => results.push(answer("success", text.into())),
                    Err(why) => results.push(answer("failed", why.into())),
                },
                Sorted::Plan { name, version } => match self.read_plan(name, version).await? {
                    Ok(text) => results.push(answer("success", text.into())),
                    Err(why) => results.push(answer("failed", why.into())),
                },
                Sorted::Leaves { target, timeout, once } => {
                    leaving.push(Call { tool_call_id, target, tool_call_card_id, timeout, once });
                }
            }
        }
        if submitted.is_some() {
            // The turn is over: calls that would have been sent out are not.
            let left_out = |call: &Call| {
                Draft::tool_result(call.tool_call_id, "canceled", "the turn ended with its result".into())
            };
            results.extend(leaving.iter().map(left_out));
        }
        for result in results {
            cards.push(self.seal(step_id, result)?);
        }
        if let Some(content) = submitted {
            return self.finish(End::Success, cards, delivering(content), Some(asked)).await;
        }
        if let Some(warning) = self.warning(&asked.usage) {
            cards.push(self.remark(step_id, &warning)?);
        }
        let todo = todo.map(|todo: Todo| self.seal(step_id, todo.draft())).transpose()?;
        self.step(cards, leaving, asked, todo).await
    }

    /// Returns a plan as YAML, or the names of all plans if no name is given.
    async fn read_plan(&self, name: Option<Name>, version: Option<i32>) -> Result<Result<String, String>, Error> {
        let mut work = self.kernel().begin(self.fence().project_id()).await.map_err(turn::Error::from)?;
        let Some(name) = name else {
            let plans = of_resource(resource::plans(&mut work).await)?.unwrap_or_default();
            let lines = plans.iter().map(|(name, version)| format!("- {name} (version {version})"));
            let lines = lines.collect::<Vec<_>>().join("\n");
            return Ok(Ok(if lines.is_empty() { "the project has no plans".to_owned() } else { lines }));
        };
        Ok(match of_resource(resource::plan(&mut work, &name, version).await)? {
            Ok((version, plan)) => {
                let plan = serde_json::to_string_pretty(&plan).unwrap_or_default();
                Ok(format!("plan `{name}`, version {version}\n{plan}"))
            }
            Err(error) => Err(error.to_string()),
        })
    }

    /// Searches the project's knowledge, or its published results, for a question.
    async fn look_up(&self, kind: Kind, question: &str, most: usize) -> Result<Result<String, String>, Error> {
        let shelf = match kind {
            Kind::Knowledge => &self.setting.knowledge,
            Kind::Experience => &self.setting.experience,
        };
        let Some(shelf) = shelf else {
            return Ok(Err(format!("your profile names no `{}` that you may look into", kind.as_str())));
        };
        let (models, project_id) = (self.worker.models(), self.fence().project_id());
        let answer = knowledge::search(self.kernel(), models, project_id, kind, shelf, question, most).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(json::text(&error.to_string()).into_owned())),
        };
        if answer.found.iter().any(|found| found.is_external) {
            self.mark_external().await?;
        }
        let head = format!("[{} passages, found by {}]", answer.found.len(), answer.how);
        Ok(Ok(json::text(&format!("{head}\n{}", knowledge::render(&answer.found))).into_owned()))
    }

    /// Marks the turn as having seen external content: what it writes from now on is labelled so.
    async fn mark_external(&self) -> Result<(), Error> {
        let (kernel, claimed) = (self.kernel(), self.claimed);
        retry(|| {
            Box::pin(async {
                let mut work = kernel.begin(claimed.fence.project_id()).await?;
                external::mark(&mut work, claimed.output_box_id).await?;
                Ok::<_, turn::Error>(work.commit().await?)
            })
        })
        .await?;
        Ok(())
    }

    /// Returns the artifacts that the turn may read, from the packages and results that it sees.
    fn desk(&self) -> Desk<'_> {
        let materials = &self.gathered().materials;
        let placed = materials.history.iter().filter_map(|placed| placed.reading.live());
        let steps = materials.steps.iter().filter_map(|placed| placed.reading.live());
        let cards = placed.chain(&materials.query).chain(steps);
        let project_id = self.fence().project_id();
        let turn_id = self.fence().agent_turn_id();
        Desk::new(self.kernel(), self.worker.artifacts(), project_id, turn_id, &self.author, &self.folders, cards)
    }

    /// Returns the recorded result of this call. If the same call is made a second time, that is the second recorded result.
    fn remember(&self, called: &Called, written: &[NewCard]) -> ResultContent {
        let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
        let arguments = parsed(&called.arguments);
        let is_this = |name: &str, text: &str| name == called.tool_name && parsed(text) == arguments;
        let steps = self.gathered().materials.steps.iter().filter_map(|placed| placed.reading.live());
        let made = steps.map(|card| &card.content).chain(written.iter().map(NewCard::content));
        let made = made.filter(|content| match content {
            Content::ToolCall(call) => is_this(&call.tool_name, &call.arguments),
            _ => false,
        });
        // The last one is this call itself.
        let nth = made.count().saturating_sub(1);
        let recorded = self.recorded.iter().flatten().filter(|known| is_this(&known.tool_name, &known.arguments));
        let known: Vec<_> = recorded.collect();
        known.get(nth).or(known.last()).map_or_else(
            || ResultContent {
                status: "not_recorded".to_owned(),
                result: "the recorded turn did not make this call, and tools are not called here".into(),
                extra: serde_json::Map::new(),
            },
            |known| known.result.clone(),
        )
    }

    /// Returns the changed list. `changed` is the list after earlier changes in this step.
    fn change_todo(&self, changes: &[Change], changed: Option<&Todo>) -> Result<Todo, String> {
        if self.claimed.session_id.is_none() {
            return Err("there is no session, and so no todo list".to_owned());
        }
        let list = match (changed, &self.gathered().todo) {
            (Some(changed), _) => changed.clone(),
            (None, Some(card)) => Todo::read(card).map_err(|error| error.to_string())?,
            (None, None) => Todo::default(),
        };
        list.changed(changes).map_err(|error| error.to_string())
    }

    /// Returns a warning that little of a limit is left. It is given once, with the step that made it little.
    fn warning(&self, usage: &Usage) -> Option<String> {
        let budget = self.budget?;
        if budget.steps == Some(FEW_STEPS + 1) {
            return Some(format!("You have {FEW_STEPS} steps left. Bring your work to its end now."));
        }
        let used = i64::from(usage.input_tokens) + i64::from(usage.output_tokens);
        // What is left is not enough for two more steps like this one.
        let runs_out = |left: Option<i64>, used: i64| {
            left.is_some_and(|left| left - used < 2 * used && left >= 2 * used && used > 0)
        };
        let what = if runs_out(budget.tokens, used) {
            "tokens"
        } else if runs_out(budget.microdollars, i64::try_from(usage.microdollars).unwrap_or_default()) {
            "money"
        } else {
            return None;
        };
        Some(format!("You have little {what} left: enough for a step or two. Bring your work to its end now."))
    }

    /// Writes a step after which the turn continues, or waits for calls.
    async fn step(
        &mut self,
        cards: Vec<NewCard>,
        calls: Vec<Call>,
        asked: Asked,
        todo: Option<NewCard>,
    ) -> Result<Option<Outcome>, Error> {
        let Asked { step_id, receipt, usage } = asked;
        self.n_steps += 1;
        self.n_tokens += i64::from(usage.input_tokens) + i64::from(usage.output_tokens);
        let suspend = !calls.is_empty();
        let mut step = Step { step_id, cards, calls, suspend, receipt: Some(receipt), usage: Some(usage) };
        let (kernel, fence) = (self.kernel(), self.fence());
        let patched = match (todo, self.claimed.session_id) {
            (Some(card), Some(session_id)) => {
                let patch = Patch::default().todo(card, self.gathered().todo_card_id());
                match write::step_and_patch(kernel, fence, &step, session_id, &patch).await? {
                    Ok(stepped) => Some(stepped),
                    Err(conflict @ (blackboard::Error::Conflict { .. } | blackboard::Error::NotFound(_))) => {
                        step = self.without_todo(step, &conflict.to_string())?;
                        None
                    }
                    Err(other) => return Err(other.into()),
                }
            }
            _ => None,
        };
        let stepped = match patched {
            Some(stepped) => stepped,
            None => write::step(kernel, fence, &step).await?,
        };
        if let Some(gathered) = &mut self.gathered {
            gathered.wrote(step.cards);
        }
        self.n_failed = 0;
        self.set_budget(stepped.budget);
        if stepped.suspended {
            return Ok(Some(Outcome::Suspended));
        }
        if let Some(reason) = stepped.stop_reason {
            self.stop_reason = Some(reason);
            self.stop_asked = true;
        }
        Ok(None)
    }

    /// Turns the results of todo changes into failures, because another turn changed the list first.
    fn without_todo(&self, step: Step, why: &str) -> Result<Step, Invalid> {
        let is_todo = |card: &NewCard| match card.content() {
            Content::ToolCall(call) => call.tool_name == InternalTool::UpdateTodo.as_str(),
            _ => false,
        };
        let changed: Vec<_> = step.cards.iter().filter(|card| is_todo(card)).map(NewCard::tool_call_id).collect();
        let mut cards = Vec::new();
        for card in step.cards {
            cards.push(match (card.content(), card.tool_call_id()) {
                (Content::ToolResult(result), Some(call))
                    if result.status == "success" && changed.contains(&Some(call)) =>
                {
                    self.seal(step.step_id, Draft::tool_result(call, "failed", why.into()))?
                }
                _ => card,
            });
        }
        Ok(Step { cards, ..step })
    }

    /// Ends the turn, together with everything that the last step wrote. If a message for the turn arrived meanwhile, the answer is written
    /// as a step instead, and the turn continues.
    async fn finish(
        &mut self,
        status: End,
        mut cards: Vec<NewCard>,
        deliverable: Draft,
        asked: Option<Asked>,
    ) -> Result<Option<Outcome>, Error> {
        let (step_id, receipt, usage) = match &asked {
            Some(asked) => (Some(asked.step_id), Some(asked.receipt.clone()), Some(asked.usage.clone())),
            None => (None, None, None),
        };
        cards.push(self.seal(step_id.unwrap_or_else(StepId::new), deliverable)?);
        let seen = (status == End::Success).then_some(self.seen);
        let ending = Ending { fence: *self.fence(), status, step_id, receipt, usage, seen, cards: cards.clone() };
        match write::end(self.kernel(), self.claimed, ending).await {
            Ok(()) => return Ok(Some(Outcome::Finished(status))),
            Err(turn::Error::Unseen(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let Some(asked) = asked else { return Ok(None) };
        let said = cards.pop().map(|card| card.content().clone());
        let submits = cards.iter().any(|card| card.metadata().card_type == CardType::tool_result());
        if let Some(content @ Content::Text(_)) = said.filter(|_| !submits) {
            cards.push(self.seal(asked.step_id, Draft::new(CardType::thought(), Role::Assistant, content))?);
        }
        for card in &mut cards {
            if let (Content::ToolResult(_), Some(call)) = (card.content(), card.tool_call_id()) {
                *card = self.seal(asked.step_id, Draft::tool_result(call, "failed", UNSEEN.into()))?;
            }
        }
        cards.push(self.remark(asked.step_id, UNSEEN)?);
        self.step(cards, Vec::new(), asked, None).await
    }

    async fn cancel(&self) -> Result<Outcome, Error> {
        let reason = match &self.stop_reason {
            Some(reason) => Some(reason.clone()),
            // The order to stop came during this run, without its reason.
            None => resources(self.worker, self.claimed).await?.stop_reason,
        };
        let reason = reason.as_deref().unwrap_or("it was stopped");
        end_with(self.worker, self.claimed, End::Canceled, ending_card(End::Canceled, reason)?).await
    }

    /// Ends the turn because a limit is used up.
    async fn over(&self, limit: &str) -> Result<Outcome, Error> {
        let status = if limit == "seconds" { End::Timeout } else { End::Failed };
        give_up(self.worker, self.claimed, status, "limit_reached", &format!("nothing is left of its {limit}")).await
    }

    async fn give_up(&self, code: &str, why: &str) -> Result<Outcome, Error> {
        give_up(self.worker, self.claimed, End::Failed, code, why).await
    }

    /// No model answered: gives the turn back, to be retried later by any worker. After too many attempts it fails.
    async fn fail_attempt(&self, error: &model::Error) -> Result<Outcome, Error> {
        let doubled = BACKOFF * 2_u32.pow(self.n_failed.clamp(0, 8).unsigned_abs());
        let backoff = error.retry_after().unwrap_or(doubled);
        let loss = Loss::Attempt { error: error.to_string(), backoff };
        write::give_back(self.kernel(), self.fence(), &loss, self.worker.attempts()).await?;
        Ok(Outcome::Failed)
    }

    /// Seals a card of this step, with its lineage (L0-10).
    fn seal(&self, step_id: StepId, mut draft: Draft) -> Result<NewCard, Invalid> {
        draft.metadata.trace_id = self.claimed.trace_id;
        draft.metadata.step_id = Some(step_id);
        draft.metadata.parent_step_id = self.claimed.parent_step_id;
        draft.seal()
    }

    /// Makes a card with which the worker reminds the model of something.
    fn remark(&self, step_id: StepId, text: &str) -> Result<NewCard, Invalid> {
        self.seal(step_id, Draft::new(CardType::reminder(), Role::User, Content::Text(text.to_owned())))
    }
}

/// Returns a model and its fallbacks.
fn with_fallbacks(mut llm: LlmConfig) -> Vec<LlmConfig> {
    let fallbacks = std::mem::take(&mut llm.fallbacks);
    std::iter::once(llm).chain(fallbacks).collect()
}

/// Returns the models and the prompt of the profile that writes the summaries.
async fn summariser_of(
    worker: &Worker,
    claimed: &Claimed,
    name: &Name,
) -> Result<Result<(Vec<LlmConfig>, String), String>, Error> {
    let found = retry(|| {
        Box::pin(async {
            let mut work = worker.kernel().begin(claimed.fence.project_id()).await?;
            of_resource(resource::profile(&mut work, name).await)
        })
    })
    .await?;
    Ok(match found {
        Ok(found) => {
            let prompt = found.profile.system_prompt_template.render(|_| None);
            Ok((with_fallbacks(found.profile.llm_config), prompt))
        }
        Err(error) => Err(format!("the summariser: {error}")),
    })
}

async fn resources(worker: &Worker, claimed: &Claimed) -> Result<turn::Resources, turn::Error> {
    retry(|| {
        Box::pin(async {
            let mut work = worker.kernel().begin(claimed.fence.project_id()).await?;
            turn::resources(&mut work, claimed).await
        })
    })
    .await
}

/// Returns the results of all calls of the turn that is forked.
async fn recorded(worker: &Worker, claimed: &Claimed, forked: &fork::Fork) -> Result<Vec<fork::Answered>, Error> {
    retry(|| {
        Box::pin(async {
            let mut work = worker.kernel().begin(claimed.fence.project_id()).await.map_err(work::Error::Db)?;
            Ok(fork::answered(&mut work, forked.source_turn_id).await?)
        })
    })
    .await
    .map_err(Error::Gather)
}

/// A step in which a model was asked.
struct Asked {
    step_id: StepId,
    receipt: String,
    usage: Usage,
}

fn delivering(content: Content) -> Draft {
    Draft::new(CardType::deliverable(), Role::Assistant, content)
}

/// Notes on the card that the model's answer was cut off at its token limit.
fn marked(mut draft: Draft, is_cut: bool) -> Draft {
    if is_cut {
        draft.metadata.extra.insert("is_cut".to_owned(), true.into());
    }
    draft
}

/// Returns what a provider adds to each message: a generous estimate.
fn per_message() -> Tokens {
    Tokens::new(4).unwrap_or_default()
}

fn lasting(error: call::Error) -> Trouble {
    Trouble::Lasting("cannot_compose", error.to_string())
}

fn call_draft(tool_call_id: ToolCallId, called: &Called) -> Draft {
    let label = (!called.provider_call_id.is_empty()).then(|| json::text(&called.provider_call_id).into_owned());
    let content = CallContent {
        tool_name: json::text(&called.tool_name).into_owned(),
        arguments: json::text(&called.arguments).into_owned(),
        extra: label.map(|label| ("provider_call_id".to_owned(), label.into())).into_iter().collect(),
    };
    let draft = Draft::new(CardType::tool_call(), Role::Assistant, Content::ToolCall(content));
    Draft { tool_call_id: Some(tool_call_id), ..draft }
}

/// Returns a tool's result as the content of a deliverable.
fn delivered(result: &ResultContent) -> Content {
    match &result.result {
        Value::String(text) => Content::Text(text.clone()),
        other => Content::Json(other.clone()),
    }
}

/// Makes the deliverable of a turn that did not succeed.
fn failure(status: End, code: &str, why: &str) -> Draft {
    let message = json::text(why);
    delivering(Content::Json(json!({ "status": status.as_str(), "reason": code, "message": message })))
}

/// Ends a turn that cannot succeed.
async fn give_up(worker: &Worker, claimed: &Claimed, status: End, code: &str, why: &str) -> Result<Outcome, Error> {
    end_with(worker, claimed, status, failure(status, code, why).seal()?).await
}

/// Ends a turn without a step.
async fn end_with(worker: &Worker, claimed: &Claimed, status: End, deliverable: NewCard) -> Result<Outcome, Error> {
    let cards = vec![deliverable];
    let ending = Ending { fence: claimed.fence, status, step_id: None, receipt: None, usage: None, seen: None, cards };
    write::end(worker.kernel(), claimed, ending).await?;
    Ok(Outcome::Finished(status))
}

//! Carries out the tool calls of the model's answer (WK-3). Each gets a card; those that the worker can answer are answered at once, the others are sent out.

use serde_json::Value;
use waybill_context::todo::{Change, Todo};
use waybill_core::{
    card::{CallContent, CardType, Content, Draft, NewCard, ResultContent, Role},
    id::{Name, StepId, ToolCallId},
    json,
    turn::End,
};
use waybill_kernel::{
    external,
    knowledge::Kind,
    offload, resource,
    retry::retry,
    turn::{self, Call},
};
use waybill_tool::check::{fault, readable};

use super::{Error, Next, Turn, answer::StepRecord, end::delivering};
use crate::{
    knowledge::{self, Query},
    model::ModelToolCall,
    toolbox::{
        Disposition,
        artifact::{Desk, Done, Owner, Request},
    },
};

/// Once the results of the calls that were answered at once have more bytes, further calls of the step are refused.
const MOST_RESULT_BYTES: usize = 32 << 20;
/// What a call counts beside its arguments when it is decided how to handle it: its schema.
const PER_CALL: usize = 8 << 10;

/// What the calls of one answer came to.
#[derive(Default)]
struct Acted {
    /// The results of the calls that were answered at once.
    results: Vec<Draft>,
    /// The calls that are sent out.
    leaving: Vec<Call>,
    /// What ends the turn.
    submitted: Option<Content>,
    /// The todo list, if a call changed it.
    todo: Option<Todo>,
}

impl Turn<'_> {
    /// Carries out the tool calls of the model's answer, and writes what they came to.
    pub(super) async fn act(
        &mut self,
        mut cards: Vec<NewCard>,
        calls: Vec<ModelToolCall>,
        record: StepRecord,
    ) -> Result<Next, Error> {
        let step_id = record.step_id;
        let Acted { mut results, leaving, submitted, todo } = self.make_calls(&mut cards, calls, step_id).await?;
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
            return self.finish(End::Success, cards, delivering(content), Some(record)).await;
        }
        if let Some(warning) = self.warning(&record.usage) {
            cards.push(self.remark(step_id, &warning)?);
        }
        let todo = todo.map(|todo| self.seal(step_id, todo.draft())).transpose()?;
        self.write_step(cards, leaving, record, todo).await
    }

    /// Handles each call as its tool demands. `cards` gets a card for each.
    async fn make_calls(
        &self,
        cards: &mut Vec<NewCard>,
        calls: Vec<ModelToolCall>,
        step_id: StepId,
    ) -> Result<Acted, Error> {
        let mut acted = Acted::default();
        let mut desk = self.desk();
        let mut n_bytes = 0;
        for (called, sorted) in self.sorted(calls).await {
            let tool_call_id = ToolCallId::new();
            let card = self.seal(step_id, call_draft(tool_call_id, &called))?;
            let tool_call_card_id = card.card_id();
            cards.push(card);
            let result = match sorted {
                Disposition::Refused(why) => failed(why),
                Disposition::Submits(content) => submit(content, &mut acted.submitted),
                _ if n_bytes > MOST_RESULT_BYTES => {
                    failed("the results of this step are too large together: make this call again in your next step")
                }
                Disposition::Todo(changes) => self.change_todo(&changes, &mut acted.todo),
                Disposition::Leaves { .. }
                | Disposition::Artifact(_)
                | Disposition::Knowledge { .. }
                | Disposition::Plan { .. }
                    if self.recorded.is_some() =>
                {
                    self.recorded_result(&called, cards)
                }
                Disposition::Artifact(request) => self.use_artifacts(&mut desk, &request).await?,
                Disposition::Knowledge { kind, question, most } => self.look_up(kind, &question, most).await?,
                Disposition::Plan { name, version } => self.read_plan(name, version).await?,
                Disposition::Leaves { target, timeout, once } => {
                    acted.leaving.push(Call { tool_call_id, target, tool_call_card_id, timeout, once });
                    continue;
                }
            };
            n_bytes += size(&result.result);
            let draft = Draft::tool_result(tool_call_id, "", Value::Null);
            acted.results.push(Draft { content: Content::ToolResult(result), ..draft });
        }
        Ok(acted)
    }

    /// Decides how each call is handled. Long arguments and many calls are checked apart from the threads that answer requests.
    async fn sorted(&self, calls: Vec<ModelToolCall>) -> Vec<(ModelToolCall, Disposition)> {
        let (toolbox, form) = (self.setting.toolbox.clone(), self.gathered().result_form.clone());
        let n_bytes = calls.iter().map(|call| call.arguments.len() + PER_CALL).sum();
        offload::run(n_bytes, move || {
            let sorted = toolbox.sort(&calls, &form);
            calls.into_iter().zip(sorted).collect()
        })
        .await
    }

    /// Changes the todo list. `todo` is the list after earlier changes in this step.
    fn change_todo(&self, changes: &[Change], todo: &mut Option<Todo>) -> ResultContent {
        match self.changed_todo(changes, todo.as_ref()) {
            Ok(changed) => {
                let result = succeeded(changed.render());
                *todo = Some(changed);
                result
            }
            Err(why) => failed(why),
        }
    }

    /// Returns the changed list. `changed` is the list after earlier changes in this step.
    fn changed_todo(&self, changes: &[Change], changed: Option<&Todo>) -> Result<Todo, String> {
        if self.claimed.session_id.is_none() {
            return Err("this turn does not belong to a session, so it has no todo list".to_owned());
        }
        let list = match (changed, &self.gathered().todo) {
            (Some(changed), _) => changed.clone(),
            (None, Some(card)) => Todo::read(card).map_err(|error| error.to_string())?,
            (None, None) => Todo::default(),
        };
        list.changed(changes).map_err(|error| error.to_string())
    }

    /// Returns the recorded result of this call: the n-th for its n-th repetition, the last one after that.
    fn recorded_result(&self, called: &ModelToolCall, written: &[NewCard]) -> ResultContent {
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
            || {
                answered(
                    "not_recorded",
                    "the recorded turn did not make this call, and this run uses recorded results only",
                )
            },
            |known| known.result.clone(),
        )
    }

    /// Reads or writes artifacts.
    async fn use_artifacts(&self, desk: &mut Desk<'_>, request: &Request) -> Result<ResultContent, Error> {
        if let Some(paths) = self.reporter.as_ref().and_then(|reporter| reporter.paths.as_ref())
            && !request.is_within(paths)
        {
            return Ok(failed("the key of this worker may only read and write artifacts below its `paths`"));
        }
        let Done { status, text, extra, is_external } = desk.answer(request).await;
        if is_external {
            self.mark_external().await?;
        }
        Ok(ResultContent { extra, ..answered(status, text) })
    }

    /// Returns the artifacts that the turn may read, from the packages and results that it sees.
    fn desk(&self) -> Desk<'_> {
        let materials = &self.gathered().materials;
        let placed = materials.history.iter().filter_map(|placed| placed.reading.live());
        let steps = materials.steps.iter().filter_map(|placed| placed.reading.live());
        let cards = placed.chain(&materials.query).chain(steps);
        let owner = Owner {
            project_id: self.fence().project_id(),
            agent_turn_id: self.fence().agent_turn_id(),
            author_id: self.reporter.as_ref().map_or(self.author.as_str(), |reporter| reporter.actor.as_str()),
            folders: &self.folders,
            is_reported: self.reporter.is_some(),
        };
        Desk::new(self.kernel(), self.worker.artifacts(), owner, cards)
    }

    /// Searches the project's knowledge, or its published results, for a question.
    async fn look_up(&self, kind: Kind, question: &str, most: usize) -> Result<ResultContent, Error> {
        let shelf = match kind {
            Kind::Knowledge => &self.setting.knowledge,
            Kind::Experience => &self.setting.experience,
        };
        let Some(shelf) = shelf else {
            return Ok(failed(format!("your profile does not let you search `{}`", kind.as_str())));
        };
        let query = Query { kind, shelf, question, most };
        let answer = knowledge::search(self.kernel(), self.worker.models(), self.fence().project_id(), &query).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Ok(failed(json::text(&error.to_string()).into_owned())),
        };
        if answer.found.iter().any(|found| found.is_external) {
            self.mark_external().await?;
        }
        let head = format!("[{} passages, found by {}]", answer.found.len(), answer.how);
        let text = format!("{head}\n{}", knowledge::render(&answer.found));
        Ok(succeeded(json::text(&text).into_owned()))
    }

    /// Returns a plan as JSON, or the names of all plans if no name is given.
    async fn read_plan(&self, name: Option<Name>, version: Option<i32>) -> Result<ResultContent, Error> {
        let mut work = self.kernel().begin(self.fence().project_id()).await.map_err(turn::Error::from)?;
        let Some(name) = name else {
            let plans = readable(resource::plans(&mut work).await)?.unwrap_or_default();
            let lines = plans.iter().map(|(name, version)| format!("- {name} (version {version})"));
            let lines = lines.collect::<Vec<_>>().join("\n");
            return Ok(succeeded(if lines.is_empty() { "the project has no plans".to_owned() } else { lines }));
        };
        match resource::plan(&mut work, &name, version).await {
            Ok((version, plan)) => {
                let plan = serde_json::to_string_pretty(&plan).unwrap_or_default();
                Ok(succeeded(format!("plan `{name}`, version {version}\n{plan}")))
            }
            Err(error) => Ok(failed(fault(error)?.to_string())),
        }
    }

    /// Marks the turn as having seen external content: what it writes from now on is labelled so.
    pub(super) async fn mark_external(&self) -> Result<(), Error> {
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
}

/// Returns about how many bytes a result has.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        other => other.to_string().len(),
    }
}

/// Takes what ends the turn, once.
fn submit(content: Content, submitted: &mut Option<Content>) -> ResultContent {
    if submitted.is_some() {
        return failed("a turn can end only once: this result was ignored");
    }
    *submitted = Some(content);
    succeeded("submitted")
}

fn succeeded(result: impl Into<Value>) -> ResultContent {
    answered("success", result)
}

fn failed(why: impl Into<Value>) -> ResultContent {
    answered("failed", why)
}

fn answered(status: &str, result: impl Into<Value>) -> ResultContent {
    ResultContent { status: status.to_owned(), result: result.into(), extra: serde_json::Map::new() }
}

fn call_draft(tool_call_id: ToolCallId, called: &ModelToolCall) -> Draft {
    let label = (!called.provider_call_id.is_empty()).then(|| json::text(&called.provider_call_id).into_owned());
    let content = CallContent {
        tool_name: json::text(&called.tool_name).into_owned(),
        arguments: json::text(&called.arguments).into_owned(),
        extra: label.map(|label| ("provider_call_id".to_owned(), label.into())).into_iter().collect(),
    };
    let draft = Draft::new(CardType::tool_call(), Role::Assistant, Content::ToolCall(content));
    Draft { tool_call_id: Some(tool_call_id), ..draft }
}

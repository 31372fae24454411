//! Compaction between two steps of a running turn (CX-10): no tool is called again, and other writers can append meanwhile.
//!
//! ```text
//!   plan (pure) ──▶ summarise (no transaction) ──▶ one write, fenced:   of the session   the blackboard's summary, if it is still the one
//!                                                                                        that was gone on from
//!                                                                       of the turn      a card in its output box
//! ```
//! A crash before the write leaves everything as it was; a crash after it leaves the summary. The worker that resumes composes from what is
//! there.
//!
//! A summary that is not used was paid for all the same: a step without cards records what it cost. Such a step also records how long the
//! turn was then, so that the next summary is asked for only once the turn has grown, on whichever worker.

use std::error;

use futures::future::BoxFuture;
use waybill_context::{
    call,
    compact::{InForce, Plan, Scope},
    policy::Policy,
    unit::Message,
};
use waybill_core::{
    card::{NewCard, Reading},
    id::{CardId, SessionId, StepId},
    json,
    resource::Compaction,
    tokens::Tokens,
    turn::{Budget, Fence, Usage},
};
use waybill_kernel::{
    blackboard::{self, Patch},
    card,
    turn::{self, Claimed, OpenChild, Step, Stepped},
    work::{self, Kernel},
};

use crate::{
    gather::{self, Gathered},
    write,
};

/// A summary, and what it cost if a model was asked.
#[derive(Clone, Debug, Default)]
pub struct Summarised {
    pub text: String,
    pub usage: Option<Usage>,
}

/// Puts messages into fewer words.
pub trait Summariser: Send + Sync {
    /// Summarises the messages. The new summary must also include what `previous`, the summary before them, says. This may take as long as a
    /// call to its model may: a caller that stops waiting does not learn what the answer costs.
    fn summarise<'a>(
        &'a self,
        previous: Option<&'a str>,
        messages: &'a [Message<'a>],
    ) -> BoxFuture<'a, Result<Summarised, Box<dyn error::Error + Send + Sync>>>;
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Call(#[from] call::Error),
    #[error(transparent)]
    Turn(#[from] turn::Error),
    #[error(transparent)]
    Blackboard(#[from] blackboard::Error),
    #[error(transparent)]
    Card(#[from] card::Error),
    #[error(transparent)]
    Work(#[from] work::Error),
    #[error(transparent)]
    Gather(#[from] gather::Error),
}

/// What a compaction did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compacted {
    /// How many summaries were written.
    pub n_summaries: usize,
    /// How often another turn wrote the session's summary first; that one is used.
    pub n_conflicts: usize,
    /// The tokens of the messages that the summaries now replace.
    pub n_tokens: Tokens,
    /// Why it stopped: the summariser failed, or saved nothing now or recently. The call is then composed without a new summary.
    pub failure: Option<String>,
    /// What the turn may still spend, if a model was asked and there is a limit.
    pub budget: Option<Budget>,
}

/// What became of a summary.
enum Written {
    /// It replaces the messages that it stands for.
    Used(Stepped),
    /// Another turn was faster. What this summary cost must still be recorded.
    Unused(Option<Usage>),
}

/// How many running children a summary lists at most.
const MOST_CHILDREN: i64 = 20;

/// One for the session and one for the turn, and one more if another turn was faster.
const MOST_ROUNDS: usize = 3;

/// After a summary that was not used, the next one is asked for once the turn has written this share of its budget: rarely enough to cost
/// little, and still a few times before what must be shown no longer fits.
const GROWTH_PERCENT: i32 = 10;

/// Compacts while it is needed. Afterwards `gathered` holds what the call is made of.
pub async fn compact(
    kernel: &Kernel,
    claimed: &Claimed,
    gathered: &mut Gathered,
    policy: &Policy,
    compaction: Compaction,
    summariser: &dyn Summariser,
) -> Result<Compacted, Error> {
    let mut done = Compacted::default();
    for round in 0..MOST_ROUNDS {
        let plan = gathered.materials.plan_compaction(policy, compaction, gathered.messages_box_id)?;
        let Some(plan) = plan else { break };
        if round == 0
            && let Some(wait) = waits(kernel, claimed, gathered, policy).await?
        {
            done.failure = Some(wait);
            break;
        }
        let in_force = gathered.materials.in_force()?;
        let children = match plan.scope {
            Scope::Turn => {
                let mut work = kernel.begin(claimed.fence.project_id()).await.map_err(work::Error::Db)?;
                turn::open_children(&mut work, claimed.fence.agent_turn_id(), MOST_CHILDREN + 1).await?
            }
            Scope::Session => Vec::new(),
        };
        let (card, usage) = match summarise(&plan, &in_force, &children, summariser).await {
            Ok(summarised) => summarised,
            Err((failure, usage)) => {
                tracing::warn!(turn = %claimed.fence.agent_turn_id(), failure, "the context of a turn could not be compacted");
                done.failure = Some(failure);
                done.budget = charge(kernel, &claimed.fence, usage).await?.or(done.budget);
                break;
            }
        };
        let (scope, n_tokens) = (plan.scope, plan.n_tokens);
        let written = match scope {
            Scope::Turn => Written::Used(write_to_turn(kernel, &claimed.fence, gathered, card, usage).await?),
            Scope::Session => write_to_session(kernel, claimed, gathered, card, usage).await?,
        };
        match written {
            Written::Used(stepped) => {
                done.budget = stepped.budget.or(done.budget);
                tracing::info!(turn = %claimed.fence.agent_turn_id(), ?scope, n_tokens = n_tokens.get(), "a summary replaced older messages in the context of a turn");
                done.n_summaries += 1;
                done.n_tokens = done.n_tokens + n_tokens;
            }
            Written::Unused(usage) => {
                done.budget = charge(kernel, &claimed.fence, usage).await?.or(done.budget);
                done.n_conflicts += 1;
            }
        }
    }
    Ok(done)
}

/// Returns why no summary is asked for yet: the last one was not used, and the turn has hardly grown since.
async fn waits(
    kernel: &Kernel,
    claimed: &Claimed,
    gathered: &Gathered,
    policy: &Policy,
) -> Result<Option<String>, Error> {
    let mut work = kernel.begin(claimed.fence.project_id()).await.map_err(work::Error::Db)?;
    let unused = turn::unused_summary(&mut work, claimed.fence.agent_turn_id(), claimed.session_id).await?;
    let Some(upto) = unused else { return Ok(None) };
    let since = gathered.materials.steps.iter().filter(|placed| placed.place > upto);
    let since: i32 = since.filter_map(|placed| placed.reading.live()).map(|card| card.n_tokens.get()).sum();
    let enough = policy.budget.get() / 100 * GROWTH_PERCENT;
    Ok((since < enough)
        .then(|| format!("a summary was not used, and since then {since} tokens of {enough} were written")))
}

/// Records the cost of a summary that is not used, as a step of its own.
async fn charge(kernel: &Kernel, fence: &Fence, usage: Option<Usage>) -> Result<Option<Budget>, Error> {
    if usage.is_none() {
        return Ok(None);
    }
    Ok(write::step(kernel, fence, &step(Vec::new(), usage)).await?.budget)
}

/// Returns the summary as a card, and its cost; or why there is none, and what that cost.
async fn summarise(
    plan: &Plan<'_>,
    in_force: &InForce,
    children: &[OpenChild],
    summariser: &dyn Summariser,
) -> Result<(NewCard, Option<Usage>), (String, Option<Usage>)> {
    let previous = in_force.previous(plan.scope).map(|previous| previous.summary.text.as_str());
    let asked = summariser.summarise(previous, &plan.messages).await;
    let Summarised { text, usage } = asked.map_err(|failure| (failure.to_string(), None))?;
    let told = format!("{text}{}", still_running(children));
    let summary = plan.summary(json::text(&told).into_owned(), in_force);
    let shown = plan.shown_tokens(in_force);
    if text.trim().is_empty() || summary.n_tokens >= shown {
        let (summary, shown) = (summary.n_tokens.get(), shown.get());
        return Err((
            format!("the summary is empty or not shorter than what it replaces: {summary} tokens instead of {shown}"),
            usage,
        ));
    }
    match summary.draft().seal() {
        Ok(card) => Ok((card, usage)),
        Err(invalid) => Err((format!("the summary cannot be stored as a card: {invalid}"), usage)),
    }
}

/// Lists the children that still run and that the turn does not wait for: a summary of the calls that started them must not lose them.
fn still_running(children: &[OpenChild]) -> String {
    if children.is_empty() {
        return String::new();
    }
    let most = usize::try_from(MOST_CHILDREN).unwrap_or_default();
    let lines = children.iter().take(most).map(|child| {
        let OpenChild { agent_turn_id, agent_id, profile_name, instruction } = child;
        let profile_name = profile_name.as_deref().unwrap_or("an agent");
        let instruction = instruction.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("\n- {profile_name}, agent {agent_id}, turn {agent_turn_id}: {instruction}")
    });
    let lines: String = lines.collect();
    let more = if children.len() > most { "\n- and more" } else { "" };
    format!("\n\nWork that you handed out and that still ran when this was written:{lines}{more}")
}

fn step(cards: Vec<NewCard>, usage: Option<Usage>) -> Step {
    Step { step_id: StepId::new(), cards, calls: Vec::new(), suspend: false, receipt: None, usage }
}

/// Writes the summary as a step of the turn.
async fn write_to_turn(
    kernel: &Kernel,
    fence: &Fence,
    gathered: &mut Gathered,
    card: NewCard,
    usage: Option<Usage>,
) -> Result<Stepped, Error> {
    let step = step(vec![card.clone()], usage);
    let stepped = write::step(kernel, fence, &step).await?;
    gathered.wrote([card]);
    Ok(stepped)
}

/// Writes the summary to the session. If another turn was faster, its summary is used instead.
async fn write_to_session(
    kernel: &Kernel,
    claimed: &Claimed,
    gathered: &mut Gathered,
    card: NewCard,
    usage: Option<Usage>,
) -> Result<Written, Error> {
    let (Some(session_id), Some(messages_box_id)) = (claimed.session_id, gathered.messages_box_id) else {
        return Ok(Written::Unused(usage));
    };
    let patch = Patch::default().compression(card.clone(), gathered.compression_card_id, messages_box_id);
    let step = step(Vec::new(), usage);
    match write::step_and_patch(kernel, &claimed.fence, &step, session_id, &patch).await {
        Ok(stepped) => {
            gathered.compression_card_id = Some(card.card_id());
            gathered.materials.session_summary = Some(card.into_card(gathered.materials.read_at));
            Ok(Written::Used(stepped))
        }
        Err(write::Error::Patch(blackboard::Error::Conflict { .. })) => {
            look_again(kernel, claimed, session_id, gathered).await?;
            Ok(Written::Unused(step.usage))
        }
        Err(write::Error::Patch(other)) => {
            charge(kernel, &claimed.fence, step.usage).await?;
            Err(other.into())
        }
        Err(write::Error::Turn(error)) => Err(error.into()),
    }
}

/// Loads the summary that the session has now.
async fn look_again(
    kernel: &Kernel,
    claimed: &Claimed,
    session_id: SessionId,
    gathered: &mut Gathered,
) -> Result<(), Error> {
    let mut work = kernel.begin(claimed.fence.project_id()).await.map_err(work::Error::Db)?;
    let Some(board) = blackboard::find(&mut work, session_id).await? else { return Ok(()) };
    gathered.compression_card_id = board.compression_card_id;
    let card_ids: Vec<CardId> = board.compression_card_id.into_iter().collect();
    let found = card::fetch(&mut work, &card_ids, None).await?.found.pop();
    gather::verify(&found)?;
    gathered.materials.session_summary = found.and_then(Reading::into_live);
    // If the session's memory was replaced, what this turn read of the old one belongs to the turn alone.
    gathered.messages_box_id = Some(board.messages_box_id).filter(|now| gathered.messages_box_id == Some(*now));
    Ok(())
}

//! Forks: running a recorded turn again with something changed, once or many times, and comparing what came of it (NX-6).

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use axum::{extract::State, response::Json};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use waybill_context::{
    call::Call,
    diff::{self, Diff},
    layer::Layer,
};
use waybill_core::{
    id::{CardId, Name, StepId, TurnId},
    key::Scope,
};
use waybill_kernel::{
    audit, external,
    fork::{self as record, Listed},
    offload,
    turn::{self, Summary},
    work::UnitOfWork,
};
use waybill_orchestrator::{
    fork,
    outcome::{Outcome, outcome},
    replay,
};

use super::{
    context::rendered,
    turn::{OneTurn, one},
};
use crate::{
    Api,
    caller::Caller,
    limit::Late,
    problem::Problem,
    request::{Body, Page, Path, Query, and_one, most, not_too_many},
    write::{Once, OnceParams},
};

/// What to change in the fork. If you change nothing, the turn runs again as it was.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fork {
    /// Step of the model call from which the turn is run again. If omitted, the first model call.
    #[serde(default)]
    step_id: Option<StepId>,
    /// Cards that get new content in the fork.
    #[serde(default)]
    #[schema(max_items = 1000)]
    cards: Vec<ChangedCard>,
    /// Profile that the fork uses. If omitted, the profile of the recorded turn.
    #[serde(default)]
    profile_name: Option<Name>,
    /// JSON merge patch for the profile. It may change the prompt and the parameters of the model, and remove rights. Adding rights, or using a patch
    /// together with `live_tools`, needs a key of scope `admin`. If omitted, the profile is not changed.
    #[serde(default)]
    profile_patch: Option<serde_json::Map<String, Value>>,
    /// Whether to call tools and agents again. If omitted, they answer as they did in the recorded turn.
    #[serde(default)]
    live_tools: bool,
}

/// A card that gets new content in the fork.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangedCard {
    /// Id of the card. The turn must have had this card when it made the model call.
    card_id: CardId,
    /// New content, in the form that the type of the card requires.
    content: Value,
}

impl Fork {
    fn wanted(self, caller: &Caller, turn_id: TurnId) -> Result<fork::Wanted, Problem> {
        not_too_many("cards", &self.cards)?;
        self.cards.iter().try_for_each(|card| caller.may_say(&card.content))?;
        Ok(fork::Wanted {
            turn_id,
            step_id: self.step_id,
            change: fork::Change {
                cards: self.cards.into_iter().map(|card| (card.card_id, card.content)).collect(),
                profile_name: self.profile_name,
                profile_patch: self.profile_patch.map(Value::Object),
            },
            live_tools: self.live_tools,
            may_widen: caller.may_widen(),
            external: caller.bounds.external,
        })
    }
}

/// Checks whether the caller may start turns of the profiles that the forks of a turn have.
async fn may_start(api: &Api, caller: &Caller, turn_id: TurnId, wanted: &[fork::Wanted]) -> Result<(), Problem> {
    if caller.bounds.profiles.is_empty() {
        return Ok(());
    }
    let source = one(&mut caller.begin(api).await?, turn_id).await?.profile_name;
    let unnamed = || Problem::not_found(format!("turn {turn_id} has no profile: set `profile_name`"));
    for fork in wanted {
        let profile = fork.change.profile_name.as_ref().or(source.as_ref());
        caller.may_start(profile.ok_or_else(unnamed)?)?;
    }
    Ok(())
}

/// Starts a fork, and puts on record who did it.
async fn start(
    work: &mut UnitOfWork,
    caller: &Caller,
    late: &Late,
    wanted: &fork::Wanted,
) -> Result<fork::Forked, Problem> {
    external::label(work, caller.bounds.external).await?;
    let forked = fork::fork(work, wanted).await?;
    let detail = json!({ "source": wanted.turn_id, "live_tools": wanted.live_tools });
    audit::record(work, &caller.actor, "turn.fork", &forked.agent_turn_id.to_string(), &detail).await?;
    late.room(work.project_id(), &forked.worker_target)?;
    Ok(forked)
}

/// Fork a turn: run it again, starting at one of its model calls, with other cards or another profile.
///
/// The fork is a new turn. The recorded turn does not change.
#[utoipa::path(
    post, path = "/turns/{turn}/fork", tag = "turns", request_body = Fork,
    params(("turn" = TurnId, Path), OnceParams),
    responses((status = 200, body = fork::Forked)),
)]
pub(crate) async fn fork_turn(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    once: Once,
    Body { value, bytes, .. }: Body<Fork>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    let wanted = value.wanted(&caller, turn)?;
    may_start(&api, &caller, turn, std::slice::from_ref(&wanted)).await?;
    let (late, acting) = (api.backlog.late(&api.kernel).await, caller.clone());
    once.write(&api, &caller, &bytes, move |work| Box::pin(async move { start(work, &acting, &late, &wanted).await }))
        .await
}

/// The most forks that one request starts or compares, and the most cards that all of them change.
const MOST_FORKS: usize = 100;
const MOST_CHANGED: usize = 1_000;

/// The forks to start: each variant, so many times.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Forks {
    /// What to change, for each variant.
    #[schema(min_items = 1, max_items = 100)]
    variants: Vec<Fork>,
    /// How often each variant is run. All variants together have at most 100 forks. If omitted, 1.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 100)]
    times: Option<u16>,
}

/// A fork that was started.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StartedFork {
    /// Number of the variant in the request, from 0.
    variant: usize,
    #[serde(flatten)]
    forked: fork::Forked,
}

/// The forks that were started.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StartedForks {
    /// Forks, variant by variant.
    forks: Vec<StartedFork>,
}

/// Fork a turn many times: several variants, each so many times, up to 100 forks.
///
/// All forks are started, or none: if one of them is refused, the answer says which variant it was.
#[utoipa::path(
    post, path = "/turns/{turn}/forks", tag = "turns", request_body = Forks,
    params(("turn" = TurnId, Path), OnceParams),
    responses((status = 200, body = StartedForks)),
)]
pub(crate) async fn start_forks(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn }): Path<OneTurn>,
    once: Once,
    Body { value: Forks { variants, times }, bytes, .. }: Body<Forks>,
) -> Result<Json<Value>, Problem> {
    caller.may(&[Scope::Operator])?;
    let times = usize::from(times.unwrap_or(1));
    let n_forks = variants.len() * times;
    if !(1..=MOST_FORKS).contains(&n_forks) {
        return Err(Problem::invalid(format!(
            "`variants` and `times` must give 1 to {MOST_FORKS} forks, not {n_forks}"
        )));
    }
    let n_changed = variants.iter().map(|fork| fork.cards.len()).sum::<usize>() * times;
    if n_changed > MOST_CHANGED {
        return Err(Problem::invalid(format!("all forks together may change {MOST_CHANGED} cards, not {n_changed}")));
    }
    let wanted = variants.into_iter().map(|fork| fork.wanted(&caller, turn)).collect::<Result<Vec<_>, _>>()?;
    may_start(&api, &caller, turn, &wanted).await?;
    let (late, acting) = (api.backlog.late(&api.kernel).await, caller.clone());
    once.write(&api, &caller, &bytes, move |work| {
        Box::pin(async move {
            let mut forks = Vec::new();
            for (variant, wanted) in wanted.iter().enumerate() {
                for _ in 0..times {
                    let started = start(work, &acting, &late, wanted).await;
                    let forked = started.map_err(|problem| problem.about(&format!("`variants[{variant}]`")))?;
                    forks.push(StartedFork { variant, forked });
                }
            }
            Ok(StartedForks { forks })
        })
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ForksParams {
    /// Where to continue: the `next` of the previous page. If omitted, the first page is returned.
    after: Option<TurnId>,
    /// Entries per page, at most 1,000. If omitted, 100.
    #[param(minimum = 1, maximum = 1000)]
    most: Option<u16>,
}

/// A fork of a turn: what was changed, and the turn that runs it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShownFork {
    #[serde(flatten)]
    fork: Listed,
    /// The turn that runs the fork.
    turn: Summary,
}

/// List the forks of a turn, newest first: what was changed, and how each of them is.
#[utoipa::path(
    get, path = "/turns/{turn}/forks", tag = "turns", params(("turn" = TurnId, Path), ForksParams),
    responses((status = 200, body = Page<ShownFork>)),
)]
pub(crate) async fn list_forks(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(OneTurn { turn: turn_id }): Path<OneTurn>,
    Query(params): Query<ForksParams>,
) -> Result<Json<Page<ShownFork>>, Problem> {
    caller.may_read()?;
    let n = most(params.most)?;
    let mut work = caller.begin(&api).await?;
    one(&mut work, turn_id).await?;
    let forks = record::list(&mut work, turn_id, params.after, and_one(n)).await?;
    let turn_ids: Vec<TurnId> = forks.iter().map(|fork| fork.agent_turn_id).collect();
    let turns = turn::show(&mut work, &turn_ids).await?.into_iter();
    let mut turns: HashMap<TurnId, Summary> = turns.map(|turn| (turn.agent_turn_id, turn)).collect();
    let shown = forks.into_iter().filter_map(|fork| {
        let turn = turns.remove(&fork.agent_turn_id)?;
        Some(ShownFork { fork, turn })
    });
    Ok(Json(Page::new(shown.collect(), n, |shown| shown.fork.agent_turn_id)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct CompareParams {
    /// Turns to compare, separated by commas: 2 to 100. The first one is what the others are compared with.
    #[param(pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(,[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}){1,99}$")]
    turns: String,
}

/// What a run came to, compared with the first one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ComparedRun {
    #[serde(flatten)]
    outcome: Outcome,
    /// Where the context of its first model call differs from the context of the first run. `null` for the first run itself, and if one of the two
    /// calls cannot be rendered again or there is too much to compare. A fork is compared with the call from which it starts.
    context: Option<FirstDifference>,
    /// Whether it delivered the same as the first run. `null` for the first run itself, and if one of the two has no deliverable that can be shown.
    same_deliverable: Option<bool>,
}

/// Where two contexts differ first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FirstDifference {
    /// Messages at the beginning that are the same.
    same_messages: usize,
    /// Number of the first message that differs, from 1. 0 means the tools, which come before all messages. `null` if the context is the same, or
    /// only continues where the first one ends.
    message: Option<usize>,
    /// Layer of that message.
    layer: Option<Layer>,
    /// Cards that caused the difference.
    card_ids: Vec<CardId>,
}

impl From<Diff> for FirstDifference {
    fn from(diff: Diff) -> FirstDifference {
        let same_messages = diff.same_messages;
        match diff.first_break {
            None => FirstDifference { same_messages, message: None, layer: None, card_ids: Vec::new() },
            Some(place) => FirstDifference {
                same_messages,
                message: Some(place.message),
                layer: place.right.or(place.left),
                card_ids: place.card_ids,
            },
        }
    }
}

/// The most turns and cards that are counted for one answer, the most tokens that are rendered, and the most bytes of deliverables. Each run has an
/// equal share of them, except of what is rendered.
const MOST_TURNS: usize = 2_000;
const MOST_CARDS: usize = 20_000;
const MOST_TOKENS: usize = 10_000_000;
const MOST_BYTES: usize = 4 << 20;

/// Compare runs: a turn and its forks, or any other turns.
///
/// Each run is a turn with the turns that it started. The answer says what each came to, where its context differs from the first one, and whether it
/// delivered the same. A deliverable that is too long for the answer is `null`: read its card.
#[utoipa::path(
    get, path = "/forks/compare", tag = "turns", params(CompareParams),
    responses((status = 200, body = Vec<ComparedRun>)),
)]
pub(crate) async fn compare_forks(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Query(CompareParams { turns }): Query<CompareParams>,
) -> Result<Json<Vec<ComparedRun>>, Problem> {
    caller.may_read()?;
    let wrong = || Problem::invalid(format!("`turns` must be the ids of 2 to {MOST_FORKS} turns, separated by commas"));
    let ids = turns.split(',').map(|id| id.parse::<TurnId>().map_err(|_| wrong()));
    let ids = ids.collect::<Result<Vec<TurnId>, Problem>>()?;
    if !(2..=MOST_FORKS).contains(&ids.len()) {
        return Err(wrong());
    }
    if ids.iter().collect::<HashSet<_>>().len() < ids.len() {
        return Err(Problem::invalid("`turns` names a turn twice: name each once"));
    }
    let mut compared: Vec<ComparedRun> = Vec::new();
    let mut delivered = None;
    let mut calls = Calls { first: ids[0], made: HashMap::new(), n_tokens: 0 };
    for turn_id in &ids {
        let mut outcome = run(&api, &caller, *turn_id, ids.len()).await?;
        let first = compared.first();
        // Only a deliverable that fits into the answer is kept.
        let said = outcome.deliverable.as_ref().map(Value::to_string);
        let hash = said.as_ref().map(|said| blake3::hash(said.as_bytes()));
        if said.is_some_and(|said| said.len() > MOST_BYTES / ids.len()) {
            outcome.deliverable = None;
        }
        let same_deliverable = first.and_then(|_| Some(delivered? == hash?));
        delivered = if first.is_none() { hash } else { delivered };
        let context = match first {
            None => None,
            Some(_) => calls.compare(&api, &caller, *turn_id).await?.map(FirstDifference::from),
        };
        compared.push(ComparedRun { outcome, context, same_deliverable });
    }
    Ok(Json(compared))
}

/// Adds up one of so many runs.
async fn run(api: &Api, caller: &Caller, turn_id: TurnId, n_runs: usize) -> Result<Outcome, Problem> {
    let most_turns = MOST_TURNS / n_runs;
    let mut work = caller.begin(api).await?;
    let mut tree = turn::tree(&mut work, turn_id, and_one(most_turns)).await?;
    let is_cut = tree.len() > most_turns;
    tree.truncate(most_turns);
    let most_cards = i64::try_from(MOST_CARDS / n_runs).unwrap_or(i64::MAX);
    let added = outcome(&mut work, &tree, most_cards).await?;
    let mut added = added.ok_or_else(|| Problem::not_found(format!("there is no turn {turn_id} in this project")))?;
    added.truncated |= is_cut;
    Ok(added)
}

/// The model calls of the first run, which the others are compared with.
struct Calls {
    first: TurnId,
    /// By their step. `None` means that it cannot be rendered again.
    made: HashMap<StepId, Option<Arc<Call<'static>>>>,
    /// How much was rendered so far.
    n_tokens: usize,
}

impl Calls {
    /// Compares the first call of a turn with the call of the first run from which it starts, or with the first one. `None` if one of the two
    /// cannot be rendered again.
    async fn compare(&mut self, api: &Api, caller: &Caller, turn_id: TurnId) -> Result<Option<Diff>, Problem> {
        let mut work = caller.begin(api).await?;
        let Some(step_id) = replay::first(&mut work, turn_id).await? else { return Ok(None) };
        let base = match record::source_step(&mut work, turn_id, self.first).await? {
            Some(step_id) => Some(step_id),
            None => replay::first(&mut work, self.first).await?,
        };
        drop(work);
        let Some(base) = base else { return Ok(None) };
        let left = match self.made.get(&base) {
            Some(made) => made.clone(),
            None => {
                let made = self.render(api, caller, self.first, base).await?;
                self.made.insert(base, made.clone());
                made
            }
        };
        let Some(left) = left else { return Ok(None) };
        let Some(right) = self.render(api, caller, turn_id, step_id).await? else { return Ok(None) };
        let n_bytes = left.request.len() + right.request.len();
        Ok(Some(offload::run(n_bytes, move || diff::diff(&left, &right)).await))
    }

    async fn render(
        &mut self,
        api: &Api,
        caller: &Caller,
        turn_id: TurnId,
        step_id: StepId,
    ) -> Result<Option<Arc<Call<'static>>>, Problem> {
        if self.n_tokens > MOST_TOKENS {
            return Ok(None);
        }
        let recorded = replay::recorded(&mut caller.begin(api).await?, turn_id, Some(step_id)).await;
        let recorded = match recorded {
            Ok(recorded) => recorded,
            Err(replay::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.n_tokens += recorded.n_bytes() / 4;
        match rendered(recorded).await {
            Ok(call) => Ok(Some(Arc::new(call))),
            Err(replay::Error::Render(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

//! Forks: running a recorded turn again from one of its model calls on, with something changed (NX-6).
//!
//! The fork is a turn like any other, of an agent made for it. It begins with what the recorded turn had been shown and had written before
//! that call, by reference. It belongs to no session, so no agent remembers what it does.

use std::collections::BTreeSet;

use serde_json::Value;
use waybill_context::receipt::Receipt;
use waybill_core::{
    artifact::ArtifactPath,
    card::{Card, CardType, Content, Draft, Invalid, NewCard, Reading, Role},
    card_box::Span,
    id::{AgentId, BoxId, CardId, Name, StepId, Target, TurnId},
    resource::{LlmConfig, Profile, Shelf},
};
use waybill_kernel::{
    agent::{self, NewAgent, Stay},
    card, card_box, external,
    fork::{self, Fork},
    receipt, resource,
    turn::{self, DispatchRequest},
    work::{self, UnitOfWork},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no turn {0} in this project")]
    NotFound(TurnId),
    #[error("turn {0} cannot be forked: it made no model calls, or its receipts were deleted")]
    NoCall(TurnId),
    #[error(
        "turn {turn_id} made no model call in step {step_id}: `waybill context list {turn_id}` lists its model calls"
    )]
    NoStep { turn_id: TurnId, step_id: StepId },
    #[error("card {card_id} cannot be changed: turn {turn_id} did not have it at this model call")]
    NotSeen { turn_id: TurnId, card_id: CardId },
    #[error("card {0} cannot be changed, because it has expired or was deleted")]
    Gone(CardId),
    #[error(
        "turn {0} cannot be forked with its own profile, because it has none, or the profile has expired or was deleted: name another profile"
    )]
    NoProfile(TurnId),
    #[error(
        "the fork would have more rights in `{0}` than its profile allows: leave that field as it is, or use a key of scope `admin`"
    )]
    Widens(String),
    #[error(
        "`live_tools` with a changed profile needs a key of scope `admin`: leave out `live_tools`, or do not change the profile"
    )]
    Live,
    #[error("the profile is not valid after the change")]
    Profile(#[source] serde_json::Error),
    #[error("this version of Waybill cannot read the receipt of the model call")]
    Unreadable(#[from] serde_json::Error),
    #[error("the card is not valid after the change")]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Resource(#[from] resource::Error),
    #[error(transparent)]
    Card(#[from] card::Error),
    #[error(transparent)]
    CardBox(#[from] card_box::Error),
    #[error(transparent)]
    Turn(#[from] turn::Error),
    #[error(transparent)]
    Work(#[from] work::Error),
}

/// What is changed. With no change, the turn runs again as it was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// New contents for cards.
    pub cards: Vec<(CardId, Value)>,
    /// The profile that runs it instead.
    pub profile_name: Option<Name>,
    /// A JSON merge patch for the profile.
    pub profile_patch: Option<Value>,
}

/// A request for a fork.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub turn_id: TurnId,
    /// The model call to start from. `None` means the first.
    pub step_id: Option<StepId>,
    pub change: Change,
    /// Whether tools and agents are really called. If not, their recorded answers are used.
    pub live_tools: bool,
    /// Whether the changed profile may do more than the current one.
    pub may_widen: bool,
    /// Whether the request counts as external content.
    pub external: bool,
}

/// The new turn that runs the fork, and its agent.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Forked {
    pub agent_id: AgentId,
    pub agent_turn_id: TurnId,
    /// Step of the model call from which the fork starts.
    pub source_step_id: StepId,
    /// The target whose workers run it.
    #[serde(skip)]
    pub worker_target: Target,
}

/// Dispatches a fork, in the caller's transaction.
pub async fn fork(work: &mut UnitOfWork, wanted: &Wanted) -> Result<Forked, Error> {
    let Wanted { turn_id, step_id, change, live_tools, may_widen, external } = wanted;
    if *live_tools && !may_widen && change.profile_patch.is_some() {
        return Err(Error::Live);
    }
    let source = turn::show(work, &[*turn_id]).await?.pop().ok_or(Error::NotFound(*turn_id))?;
    let (source_step_id, seen) = call(work, *turn_id, *step_id).await?;
    let (profile, profile_box_id) = profile(work, *turn_id, source.profile_box_id, change, *may_widen).await?;
    if let Some(user) = &source.on_behalf_of {
        work::on_behalf_of(work, user).await.map_err(turn::Error::from)?;
    }

    // A fork of an old turn must not do what the profile no longer allows.
    if *live_tools && !may_widen && change.profile_name.is_none() {
        let now = resource::profile(work, &profile.name).await?;
        if let Some(field) = widens(&now.profile, &profile) {
            return Err(Error::Widens(field));
        }
    }
    let context = card_box::find(work, &[source.context_box_id]).await?.found.pop();
    let context = Span::prefix(source.context_box_id, context.map_or(0, |found| found.length));
    let mut query_card_ids = source.query_card_ids.clone();
    let (mut in_context, mut in_output) = (Vec::new(), Vec::new());
    for (card_id, value) in &change.cards {
        let written = instead(work, *card_id, value).await?;
        card::insert(work, std::slice::from_ref(&written)).await?;
        let places =
            (fork::place_in(work, context, *card_id).await?, fork::place_in(work, seen.output, *card_id).await?);
        match places {
            (Some(place), _) => in_context.push((place, written.card_id())),
            (None, Some(place)) => in_output.push((place, written.card_id())),
            (None, None) => return Err(Error::NotSeen { turn_id: *turn_id, card_id: *card_id }),
        }
        query_card_ids.iter_mut().filter(|asking| *asking == card_id).for_each(|asking| *asking = written.card_id());
    }
    in_context.sort_unstable();
    in_output.sort_unstable();

    let made = NewAgent {
        profile_name: Some(profile.name.clone()),
        ..NewAgent::new(AgentId::new(), profile.worker_target.clone())
    };
    agent::provision(work, std::slice::from_ref(&made), Stay::Ephemeral, None).await?;
    let mut request = DispatchRequest {
        profile_box_id: Some(profile_box_id),
        query_card_ids,
        channel: Some(source.channel),
        limits: profile.limits.filter(|limits| !limits.is_none()),
        ..DispatchRequest::new(made.agent_id, source.context_box_id)
    };
    if !in_context.is_empty() {
        request.context_box_id = BoxId::new();
        card_box::create_for(work, request.context_box_id, made.agent_id, request.agent_turn_id).await?;
        fork::fill(work, request.context_box_id, context, &in_context).await?;
        fork::hand_over_alike(work, request.context_box_id, source.context_box_id, made.agent_id).await?;
    }
    turn::enqueue(work, std::slice::from_ref(&request), &[]).await?;
    fork::fill(work, request.output_box_id, seen.output, &in_output).await?;
    // It sees again what the source turn saw: blocks and results.
    if *external || external::saw(work, *turn_id).await? {
        external::mark(work, request.output_box_id).await?;
    }
    let record = Fork {
        source_turn_id: *turn_id,
        source_step_id: Some(source_step_id),
        live_tools: *live_tools,
        change: change.on_record(),
    };
    fork::record(work, request.agent_turn_id, &record).await?;
    let worker_target = profile.worker_target;
    Ok(Forked { agent_id: made.agent_id, agent_turn_id: request.agent_turn_id, source_step_id, worker_target })
}

impl Change {
    fn on_record(&self) -> Value {
        let mut said = serde_json::Map::new();
        if !self.cards.is_empty() {
            said.insert("cards".to_owned(), self.cards.iter().map(|(card_id, _)| card_id.to_string()).collect());
        }
        if self.profile_name.is_some() || self.profile_patch.is_some() {
            let name = self.profile_name.as_ref().map(Name::as_str);
            said.insert("profile".to_owned(), serde_json::json!({ "name": name, "patch": self.profile_patch }));
        }
        Value::Object(said)
    }
}

/// Finds the model call to start from, and its receipt.
async fn call(work: &mut UnitOfWork, turn_id: TurnId, step_id: Option<StepId>) -> Result<(StepId, Receipt), Error> {
    let found = receipt::list(work, turn_id).await?;
    let stored = match step_id {
        None => found.first().ok_or(Error::NoCall(turn_id))?,
        Some(step_id) => {
            found.iter().find(|stored| stored.step_id == step_id).ok_or(Error::NoStep { turn_id, step_id })?
        }
    };
    Ok((stored.step_id, serde_json::from_str(stored.receipt.get())?))
}

/// Returns the profile that runs the fork, and the box that its turn is dispatched with.
async fn profile(
    work: &mut UnitOfWork,
    turn_id: TurnId,
    profile_box_id: Option<BoxId>,
    change: &Change,
    may_widen: bool,
) -> Result<(Profile, BoxId), Error> {
    let (profile, profile_box_id) = match &change.profile_name {
        Some(name) => {
            let found = resource::profile(work, name).await?;
            (found.profile, found.profile_box_id)
        }
        None => {
            let box_id = profile_box_id.ok_or(Error::NoProfile(turn_id))?;
            let card = card_box::read(work, Span::prefix(box_id, 1), None).await?.pop();
            let card = card.and_then(|placed| placed.reading.into_live()).ok_or(Error::NoProfile(turn_id))?;
            let Content::Json(value) = card.content else { return Err(Error::NoProfile(turn_id)) };
            (serde_json::from_value(value).map_err(Error::Profile)?, box_id)
        }
    };
    let Some(patch) = &change.profile_patch else { return Ok((profile, profile_box_id)) };
    let mut value = serde_json::to_value(&profile)?;
    merge(&mut value, patch);
    let changed: Profile = serde_json::from_value(value).map_err(Error::Profile)?;
    if let (false, Some(field)) = (may_widen, widens(&profile, &changed)) {
        return Err(Error::Widens(field));
    }
    let profile = changed;
    let draft = Draft::new(CardType::profile(), Role::System, Content::Json(serde_json::to_value(&profile)?));
    let card_ids = card::intern(work, &[draft.seal()?]).await?;
    let box_id = BoxId::new();
    card_box::create(work, &[box_id]).await?;
    card_box::append(work, box_id, &card_ids).await?;
    Ok((profile, box_id))
}

/// Returns a field in which the changed profile may do more than the current one. Prompt, description, parameters and process may change
/// freely. Lists of permissions may only become shorter, and limits lower. Everything else must stay the same.
fn widens(now: &Profile, changed: &Profile) -> Option<String> {
    let folders = |now: &BTreeSet<ArtifactPath>, changed: &BTreeSet<ArtifactPath>| {
        changed.iter().all(|folder| now.iter().any(|allowed| folder.is_within(allowed)))
    };
    let shelf = |now: &Option<Shelf>, changed: &Option<Shelf>| match (now, changed) {
        (Some(now), Some(changed)) => folders(&now.folders, &changed.folders),
        (_, None) => true,
        (None, Some(_)) => false,
    };
    let models = |now: &LlmConfig, changed: &LlmConfig| {
        let of = |llm: &LlmConfig| (llm.provider.clone(), llm.api_key.clone());
        std::iter::once(changed)
            .chain(&changed.fallbacks)
            .all(|one| std::iter::once(now).chain(&now.fallbacks).any(|allowed| of(allowed) == of(one)))
    };
    let limits = match (now.limits, changed.limits) {
        (Some(now), Some(changed)) => changed.is_within(now),
        (Some(_), None) => false,
        (None, _) => true,
    };
    let (delegates, delegated) = (&now.delegation_policy, &changed.delegation_policy);
    [
        ("name", now.name == changed.name),
        ("worker_target", now.worker_target == changed.worker_target),
        ("tags", now.tags == changed.tags),
        ("allowed_tools", changed.allowed_tools.is_subset(&now.allowed_tools)),
        ("allowed_internal_tools", changed.allowed_internal_tools.is_subset(&now.allowed_internal_tools)),
        ("readable_artifacts", folders(&now.readable_artifacts, &changed.readable_artifacts)),
        ("writable_artifacts", folders(&now.writable_artifacts, &changed.writable_artifacts)),
        ("knowledge", shelf(&now.knowledge, &changed.knowledge)),
        ("experience", shelf(&now.experience, &changed.experience)),
        (
            "delegation_policy",
            delegated.target_tags.is_subset(&delegates.target_tags)
                && delegated.target_profiles.is_subset(&delegates.target_profiles),
        ),
        ("llm_config", models(&now.llm_config, &changed.llm_config)),
        ("summariser", changed.summariser.is_none() || now.summariser == changed.summariser),
        ("limits", limits),
    ]
    .into_iter()
    .find(|(_, is_within)| !is_within)
    .map(|(field, _)| field.to_owned())
}

/// RFC 7396
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = into else { return };
    for (key, value) in fields {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Makes a copy of a card with another content.
async fn instead(work: &mut UnitOfWork, card_id: CardId, value: &Value) -> Result<NewCard, Error> {
    let found = card::fetch(work, &[card_id], None).await?;
    let reading = found.found.into_iter().next().ok_or(card::Error::NotFound(found.missing))?;
    let Reading::Live(card) = reading else { return Err(Error::Gone(card_id)) };
    let Card { metadata, tool_calls, tool_call_id, .. } = *card;
    let content = Content::read(&metadata.card_type, value.clone())?;
    let draft = Draft { tool_calls, tool_call_id, ..Draft::new(metadata.card_type.clone(), metadata.role, content) };
    Ok(Draft { metadata, ..draft }.seal()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The examples of RFC 7396.
    #[test]
    fn a_merge_patch_is_as_the_rfc_has_it() {
        for (mut original, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!(["a"]), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            merge(&mut original, &patch);
            assert_eq!(original, result);
        }
    }
}

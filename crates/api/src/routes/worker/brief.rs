//! What a claim brings along with each turn, so that a worker needs no further requests before it begins.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waybill_core::{
    card::Reading,
    id::{BoxId, CardId},
    resource::{Profile, Tool},
};
use waybill_kernel::{
    card, external,
    turn::{self, Brief, Claimed, Offered},
    work::UnitOfWork,
};

use super::claim::ClaimedTurn;
use crate::{problem::Problem, routes::card::MOST_BYTES};

/// What to bring along with each claimed turn. `query`: the cards that say what to do. `profile`: the profile with its tools. `limits`: what is left
/// to spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Include {
    Query,
    Profile,
    Limits,
}

/// A profile as the turn was dispatched with it, and its tools.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ClaimedProfile {
    #[serde(flatten)]
    profile: Profile,
    /// Manifests of the tools in `allowed_tools`, as they are now.
    tools: Vec<Tool>,
}

/// Returns claimed turns as the worker is shown them, with what it asked for, as far as the answer has room.
pub(super) async fn shown(
    work: &mut UnitOfWork,
    claimed: Vec<Claimed>,
    include: &[Include],
) -> Result<Vec<ClaimedTurn>, Problem> {
    if claimed.is_empty() {
        return Ok(Vec::new());
    }
    let wants = |what: Include| include.contains(&what);
    let briefs = turn::briefs(work, &claimed, wants(Include::Limits), wants(Include::Query)).await?;
    let queries = if wants(Include::Query) { queries(work, &claimed, &briefs).await? } else { Vec::new() };
    let profiles = if wants(Include::Profile) { profiles(work, &claimed).await? } else { Vec::new() };
    let (mut queries, mut profiles) = (queries.into_iter(), profiles.into_iter());
    let turns = claimed.into_iter().zip(briefs).map(|(claimed, brief)| {
        let mut turn = ClaimedTurn::from(claimed);
        turn.profile_name = brief.profile_name;
        turn.query = queries.next().flatten();
        turn.profile = profiles.next().flatten();
        turn.limits = brief.budget;
        turn
    });
    Ok(turns.collect())
}

/// Reads the cards that say what each turn must do, and what its result must be. `None` means that the answer has no room for them.
async fn queries(
    work: &mut UnitOfWork,
    claimed: &[Claimed],
    briefs: &[Brief],
) -> Result<Vec<Option<Vec<Reading>>>, Problem> {
    let wanted: Vec<Vec<CardId>> = claimed
        .iter()
        .zip(briefs)
        .map(|(claimed, brief)| claimed.query_card_ids.iter().copied().chain(brief.form_card_id).collect())
        .collect();
    let all = wanted.concat();
    let n_within = card::n_within(work, &all, MOST_BYTES).await?;
    let found = card::fetch(work, &all[..n_within], None).await?.found;
    let found: HashMap<CardId, Reading> = found.into_iter().map(|reading| (reading.card_id(), reading)).collect();
    let mut n = 0;
    let query = |card_ids: Vec<CardId>| {
        n += card_ids.len();
        (n <= n_within).then(|| card_ids.iter().filter_map(|card_id| found.get(card_id).cloned()).collect())
    };
    Ok(wanted.into_iter().map(query).collect())
}

/// Reads the profile of each turn. A turn that is shown a tool which a key registered has seen content from outside. `None` means that it has none
/// which can be read, or that the answer has no room for it.
async fn profiles(work: &mut UnitOfWork, claimed: &[Claimed]) -> Result<Vec<Option<ClaimedProfile>>, Problem> {
    let box_ids: BTreeSet<BoxId> = claimed.iter().filter_map(|claimed| claimed.profile_box_id).collect();
    let most = usize::try_from(MOST_BYTES).unwrap_or_default();
    let (mut offered, mut n_read) = (HashMap::new(), 0);
    for box_id in box_ids {
        // One after the other: what has no room is not read.
        let Some(read) = turn::offered(work, &[box_id]).await?.pop() else { continue };
        let Offered { profile, tools, has_registered, .. } = read;
        for claimed in claimed.iter().filter(|claimed| has_registered && claimed.profile_box_id == Some(box_id)) {
            external::mark(work, claimed.output_box_id).await?;
        }
        let profile = ClaimedProfile { profile, tools };
        let n_bytes = serde_json::to_string(&profile).map_or(0, |text| text.len());
        offered.insert(box_id, (profile, n_bytes));
        n_read += n_bytes;
        if n_read > most {
            break;
        }
    }
    let mut room = most;
    let profile = |claimed: &Claimed| {
        let (profile, n_bytes) = offered.get(&claimed.profile_box_id?)?;
        room = room.checked_sub(*n_bytes)?;
        Some(profile.clone())
    };
    Ok(claimed.iter().map(profile).collect())
}

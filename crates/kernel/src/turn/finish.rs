//! Transaction 5: the end of a turn: deliverable, event, next turn, batch, in one (L0-1, L0-8).

use serde::Serialize;
use sqlx::{FromRow, types::Json};
use waybill_core::{
    bus::Door,
    card::NewCard,
    id::{BatchId, StepId, Target, TurnId},
    metric,
    turn::{End, Fence, Usage},
};

use super::{Error, check_cards, check_fresh, ids, is_deliverable};
use crate::{
    batch,
    work::{self, Work},
};

/// How a turn ends, with its last step.
#[derive(Clone, Debug)]
pub struct Ending {
    pub fence: Fence,
    pub status: End,
    /// The last step, if the ending is one.
    pub step_id: Option<StepId>,
    /// What the model saw in it, as JSON, where it was asked.
    pub receipt: Option<String>,
    pub usage: Option<Usage>,
    /// How much of its output box it had seen: if it got a message since, it does not end ([`Error::Unseen`]). `None` means that it ends in any case.
    pub seen: Option<i64>,
    /// What the last step wrote; the deliverable is the last of them.
    pub cards: Vec<NewCard>,
}

waybill_core::composite!(ending: Ending => "state.ending" {
    ending.fence.agent_id(),
    ending.fence.agent_turn_id(),
    ending.fence.turn_epoch(),
    ending.fence.claim_token(),
    ending.status,
    ending.step_id,
    ending.receipt.as_deref(),
    ending.usage.as_ref().map(Json),
    ending.seen,
    ids(&ending.cards),
});

/// Confirmation that turns have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Ended {
    /// Whether the same request was carried out before, so that this one changed nothing.
    pub duplicate: bool,
}

#[derive(FromRow)]
pub(super) struct EndedRow {
    pub(super) worker_targets: Vec<Target>,
    pub(super) batches: Vec<BatchId>,
    /// A session still has to remember the turn, or a budget has to be settled, once the batches are joined.
    pub(super) talks: bool,
    #[sqlx(default)]
    pub(super) duplicate: bool,
}

/// The row of a transition that may have ended a turn.
#[derive(FromRow)]
pub(super) struct MaybeEndedRow<T> {
    pub(super) outcome: T,
    #[sqlx(flatten)]
    pub(super) ended: EndedRow,
}

/// Joins the batches that have ended with the turns, in the same transaction; rings for the next turns of their agents.
pub(super) async fn joined(work: &mut impl Work, row: EndedRow, turn_ids: &[TurnId]) -> Result<Ended, Error> {
    for batch_id in &row.batches {
        batch::join(work, *batch_id).await?;
    }
    if row.talks {
        // Only now: budgets and sessions are locked after every head.
        sqlx::query("select state.settle($1, $2), state.remember_turns($1, $2)")
            .bind(work.project_id())
            .bind(turn_ids)
            .execute(work.connection())
            .await?;
    }
    row.worker_targets.into_iter().for_each(|target| work.ring(Door::Agent(target)));
    Ok(Ended { duplicate: row.duplicate })
}

/// Ends turns of one project, all or none. With several, `Stale` names those that are no longer ours.
pub async fn finish<W: Work>(work: &mut W, endings: &[Ending]) -> Result<Ended, Error> {
    for ending in endings {
        if ending.fence.project_id() != work.project_id() {
            return Err(Error::OtherProject);
        }
        if (ending.receipt.is_some() || ending.usage.is_some()) && ending.step_id.is_none() {
            return Err(Error::Invalid("`receipt` and `usage` belong to a step: set `step_id` too"));
        }
        let minted = ending.step_id.iter().map(StepId::minted_at);
        check_fresh(
            minted,
            "the id of a step must be a UUIDv7 that was generated within the last day: check this machine's clock",
        )?;
        match ending.cards.split_last() {
            Some((last, others)) if is_deliverable(last) => check_cards(others)?,
            _ => return Err(Error::Invalid("the last card that ends a turn must be its `task.deliverable`")),
        }
    }
    let row = match endings {
        [] => return Ok(Ended { duplicate: false }),
        [ending] => finish_one(work, ending).await?,
        many => finish_many(work, many).await?,
    };
    for ending in endings.iter().filter(|_| !row.duplicate) {
        metrics::counter!(metric::TURNS_FINISHED, "status" => ending.status.as_str()).increment(1);
    }
    let turn_ids: Vec<TurnId> = endings.iter().map(|ending| ending.fence.agent_turn_id()).collect();
    joined(work, row, &turn_ids).await
}

async fn finish_one<W: Work>(work: &mut W, ending: &Ending) -> Result<EndedRow, Error> {
    let query = sqlx::query_as(
        "select worker_targets, batches, duplicate,
                batches <> '{}' and state.talks($1, array[$2::uuid]) as talks
           from state.finish(p_project => $1, p_end => $3, p_alone => $4, p_cards => $5)",
    )
    .bind(work.project_id())
    .bind(ending.fence.agent_turn_id())
    .bind(ending)
    .bind(W::ALONE)
    .bind(&ending.cards);
    Ok(work::one(work, query).await?)
}

async fn finish_many<W: Work>(work: &mut W, endings: &[Ending]) -> Result<EndedRow, Error> {
    let cards: Vec<NewCard> = endings.iter().flat_map(|ending| ending.cards.iter().cloned()).collect();
    let query = sqlx::query_as(
        "select worker_targets, batches, duplicate,
                batches <> '{}' and state.talks($1, $3) as talks
           from state.finish_many(p_project => $1, p_agents => $2, p_turns => $3, p_ends => $4, p_alone => $5, p_cards => $6)",
    )
    .bind(work.project_id())
    .bind(endings.iter().map(|ending| ending.fence.agent_id()).collect::<Vec<_>>())
    .bind(endings.iter().map(|ending| ending.fence.agent_turn_id()).collect::<Vec<_>>())
    .bind(endings)
    .bind(W::ALONE)
    .bind(&cards);
    Ok(work::one(work, query).await?)
}

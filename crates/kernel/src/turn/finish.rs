//! Transaction 5: the end of a turn: deliverable, event, next turn, batch, in one (L0-1, L0-8).

use serde::Serialize;
use sqlx::{FromRow, types::Json};
use waybill_core::{
    bus::Door,
    card::NewCard,
    id::{BatchId, CardId, StepId, Target, TurnId},
    metric,
    turn::{End, Fence, Usage},
};

use super::{Error, check_cards, check_fresh, ids, is_deliverable};
use crate::{batch, card::bind_cards, work::Work};

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

/// The end of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Ended {
    /// The same end was written before, and its answer may have been lost.
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
pub(super) struct MaybeEndedRow {
    pub(super) outcome: String,
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
                batches <> '{}' and state.talks($1, array[$3]) as talks
           from state.finish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
                             $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)",
    )
    .bind(ending.fence.project_id())
    .bind(ending.fence.agent_id())
    .bind(ending.fence.agent_turn_id())
    .bind(ending.fence.turn_epoch())
    .bind(ending.fence.claim_token())
    .bind(ending.status)
    .bind(ending.step_id)
    .bind(ending.receipt.as_deref())
    .bind(ending.usage.as_ref().map(Json))
    .bind(W::ALONE);
    Ok(bind_cards!(query, &ending.cards).bind(ending.seen).fetch_one(work.connection()).await?)
}

async fn finish_many<W: Work>(work: &mut W, endings: &[Ending]) -> Result<EndedRow, Error> {
    #[derive(Serialize)]
    struct Wire<'a> {
        #[serde(flatten)]
        fence: Fence,
        status: End,
        deliverable_card_id: Option<CardId>,
        card_ids: Vec<CardId>,
        step_id: Option<StepId>,
        #[serde(skip_serializing_if = "Option::is_none")]
        receipt: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<&'a Usage>,
    }
    let wire = endings.iter().map(|ending| Wire {
        fence: ending.fence,
        status: ending.status,
        deliverable_card_id: ending.cards.last().map(NewCard::card_id),
        card_ids: ids(&ending.cards),
        step_id: ending.step_id,
        receipt: ending.receipt.as_deref(),
        usage: ending.usage.as_ref(),
    });
    let cards: Vec<NewCard> = endings.iter().flat_map(|ending| ending.cards.iter().cloned()).collect();
    let query = sqlx::query_as(
        "select worker_targets, batches, duplicate,
                batches <> '{}' and state.talks($1, $3) as talks
           from state.finish_many($1, $2, $3, $4, $5,
                                  $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)",
    )
    .bind(work.project_id())
    .bind(endings.iter().map(|ending| ending.fence.agent_id()).collect::<Vec<_>>())
    .bind(endings.iter().map(|ending| ending.fence.agent_turn_id()).collect::<Vec<_>>())
    .bind(Json(wire.collect::<Vec<_>>()))
    .bind(W::ALONE);
    Ok(bind_cards!(query, &cards).fetch_one(work.connection()).await?)
}

//! Where content came from: the label that the kernel puts on what came from outside, and on whatever was written by a turn that saw it.
//!
//! Boxes carry it: a trigger marks a box that has held such a card, and every box that inherits from it.

use waybill_core::id::{BoxId, CardId, TurnId};

use crate::{
    turn::Error,
    work::{UnitOfWork, Work},
};

/// Labels what this unit of work writes from here on: it came from outside, or it did not.
pub async fn label(work: &mut impl Work, is_external: bool) -> Result<(), Error> {
    sqlx::query("select state.label($1)").bind(is_external).execute(work.connection()).await?;
    Ok(())
}

/// Labels what this unit of work writes from here on as this turn's: external if the turn has seen content from outside.
pub async fn label_as(work: &mut UnitOfWork, agent_turn_id: TurnId) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query("select state.label(state.saw_external($1, $2))")
        .bind(project_id)
        .bind(agent_turn_id)
        .execute(&mut **work)
        .await?;
    Ok(())
}

/// Checks whether a turn has seen content from outside.
pub async fn saw(work: &mut UnitOfWork, agent_turn_id: TurnId) -> Result<bool, Error> {
    let project_id = work.project_id();
    let saw = sqlx::query_scalar("select state.saw_external($1, $2)").bind(project_id).bind(agent_turn_id);
    Ok(saw.fetch_one(&mut **work).await?)
}

/// Lists cards from outside that a turn has read or been answered with, the newest first: of the last thousand places of its context box and of its
/// output box.
pub async fn cards(work: &mut UnitOfWork, agent_turn_id: TurnId, most: i64) -> Result<Vec<CardId>, Error> {
    let project_id = work.project_id();
    let cards = sqlx::query_scalar(
        "select c.card_id
           from state.turns t
          cross join lateral (values (t.context_box_id), (t.output_box_id)) as u (box_id)
          cross join lateral (
                select b.box_id, b.length, greatest(b.length - 999, 1) as first
                  from cardbox.boxes b
                 where b.project_id = $1 and b.box_id = u.box_id and b.has_external
                offset 0) b
          cross join lateral (select p.place, p.card_id from cardbox.places($1, b.box_id, b.first, b.length) p offset 0) p
          cross join lateral (
                select c.card_id from cardbox.cards c where c.project_id = $1 and c.card_id = p.card_id and c.is_external offset 0) c
          where t.project_id = $1 and t.agent_turn_id = $2
          group by c.card_id
          order by max(p.place) desc
          limit $3",
    )
    .bind(project_id)
    .bind(agent_turn_id)
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(cards)
}

/// Marks an output box whose turn has seen something from outside that is no card of the box: a block, an artifact.
pub async fn mark(work: &mut UnitOfWork, output_box_id: BoxId) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query(
        "update cardbox.boxes
            set has_external = true
          where project_id = $1 and box_id = $2 and not has_external",
    )
    .bind(project_id)
    .bind(output_box_id)
    .execute(&mut **work)
    .await?;
    Ok(())
}

//! Where content came from: the label that the kernel puts on what came from outside, and on whatever was written by a turn that saw it.
//!
//! Boxes carry it: a trigger marks a box that has held such a card, and every box that inherits from it.

use waybill_core::id::{BoxId, TurnId};

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

//! Where content came from: the label that the kernel puts on what came from outside, and on whatever was written by a turn that saw it.
//!
//! Boxes carry it: one that has held such a card is marked by a trigger, and so is whichever inherits from it.

use waybill_core::id::{BoxId, TurnId};

use crate::{
    turn::Error,
    work::{UnitOfWork, Work},
};

/// What this unit of work writes from here on came from outside, or did not.
pub async fn label(work: &mut impl Work, is_external: bool) -> Result<(), Error> {
    sqlx::query("select state.label($1)").bind(is_external).execute(work.connection()).await?;
    Ok(())
}

/// What this unit of work writes from here on is this turn's word.
pub async fn label_as(work: &mut UnitOfWork, agent_turn_id: TurnId) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query("select state.label(state.saw_external($1, $2))")
        .bind(project_id)
        .bind(agent_turn_id)
        .execute(&mut **work)
        .await?;
    Ok(())
}

/// Whether a turn has seen what came from outside.
pub async fn saw(work: &mut UnitOfWork, agent_turn_id: TurnId) -> Result<bool, Error> {
    let project_id = work.project_id();
    let saw = sqlx::query_scalar("select state.saw_external($1, $2)").bind(project_id).bind(agent_turn_id);
    Ok(saw.fetch_one(&mut **work).await?)
}

/// Whoever writes this box has seen something from outside that is no card of it: a block, an artifact.
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

//! Labels of turns: what a caller files them under. A turn without labels costs nothing.

use waybill_core::{id::TurnId, label::Labels};

use super::Error;
use crate::work::UnitOfWork;

/// Gives labels to a turn that this unit of work starts.
pub async fn label(work: &mut UnitOfWork, turn_id: TurnId, labels: &Labels) -> Result<(), Error> {
    if labels.is_empty() {
        return Ok(());
    }
    let project_id = work.project_id();
    let (names, values): (Vec<&str>, Vec<&str>) = labels.iter().unzip();
    sqlx::query(
        "insert into state.labels (project_id, agent_turn_id, name, value)
         select $1, $2, l.name, l.value from unnest($3::text[], $4::text[]) as l (name, value)",
    )
    .bind(project_id)
    .bind(turn_id)
    .bind(names)
    .bind(values)
    .execute(&mut **work)
    .await?;
    Ok(())
}

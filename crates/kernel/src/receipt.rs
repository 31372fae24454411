//! Receipts: what each model call saw, written with its step (CX-11). The kernel does not look into them.

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use sqlx::{FromRow, types::Json};
use waybill_core::id::{BoxId, StepId, TurnId};

use crate::work::{self, UnitOfWork};

/// One receipt, as it was written.
#[derive(Debug, FromRow, serde::Serialize)]
pub struct Stored {
    pub agent_turn_id: TurnId,
    pub step_id: StepId,
    pub created_at: DateTime<Utc>,
    pub receipt: Json<Box<RawValue>>,
}

/// Lists the receipts of a turn, in the order of its steps.
pub async fn list(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Vec<Stored>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select r.agent_turn_id, r.step_id, r.created_at, r.receipt
           from state.receipts r
          where r.project_id = $1 and r.agent_turn_id = $2
          order by r.created_at, r.step_id",
    )
    .bind(project_id)
    .bind(turn_id)
    .fetch_all(&mut **work)
    .await?;
    Ok(found)
}

/// Returns the receipt of a step. `None` for the step means the newest receipt of the turn.
pub async fn find(
    work: &mut UnitOfWork,
    turn_id: TurnId,
    step_id: Option<StepId>,
) -> Result<Option<Stored>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select r.agent_turn_id, r.step_id, r.created_at, r.receipt
           from state.receipts r
          where r.project_id = $1 and r.agent_turn_id = $2 and ($3::uuid is null or r.step_id = $3)
          order by r.created_at desc, r.step_id desc
          limit 1",
    )
    .bind(project_id)
    .bind(turn_id)
    .bind(step_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// Returns the first receipt of a turn.
pub async fn first(work: &mut UnitOfWork, turn_id: TurnId) -> Result<Option<Stored>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select r.agent_turn_id, r.step_id, r.created_at, r.receipt
           from state.receipts r
          where r.project_id = $1 and r.agent_turn_id = $2
          order by r.created_at, r.step_id
          limit 1",
    )
    .bind(project_id)
    .bind(turn_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(found)
}

/// Lists the turns that may have read boxes, box by box: those that the boxes were made for, and up to `most` forks of each of these, in the order of
/// their ids. With `after`, only forks after this one.
pub async fn readers(
    work: &mut UnitOfWork,
    box_ids: &[BoxId],
    after: Option<TurnId>,
    most: i64,
) -> Result<Vec<(BoxId, TurnId)>, work::Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select b.box_id, t.agent_turn_id
           from unnest($2::uuid[]) with ordinality as u (box_id, n)
          cross join lateral (
                select b.box_id, b.agent_turn_id
                  from cardbox.boxes b
                 where b.project_id = $1 and b.box_id = u.box_id and b.agent_turn_id is not null
                offset 0) b
          cross join lateral (
                select b.agent_turn_id where $3::uuid = '00000000-0000-0000-0000-000000000000'
                 union all
                (select f.agent_turn_id
                   from state.forks f
                  where f.source_turn_id = b.agent_turn_id and f.project_id = $1
                    and f.agent_turn_id > $3
                  order by f.agent_turn_id
                  limit $4)) t
          order by u.n, t.agent_turn_id <> b.agent_turn_id, t.agent_turn_id",
    )
    .bind(project_id)
    .bind(box_ids)
    .bind(after.unwrap_or(TurnId::nil()))
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(found)
}

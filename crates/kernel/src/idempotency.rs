//! Idempotency keys: a caller's own key for its request, and the answer that the request got (CB-4). Never an id of ours.
//!
//! The key is written in the transaction of the request itself: either both are written or neither. Of two concurrent requests the second
//! waits for the first.

use std::time::Duration;

use serde_json::Value;
use waybill_core::card::CardHash;

use crate::{
    turn::{Error, interval},
    work::UnitOfWork,
};

/// What a key was used for.
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    /// Not used yet: handle the request, then call [`answer`].
    New,
    /// The same request was answered before, like this.
    Answered(Value),
    /// Another request used this key.
    Mismatch,
}

/// Takes a key for a request.
pub async fn take(work: &mut UnitOfWork, key: &str, request: CardHash, kept: Duration) -> Result<Key, Error> {
    let project_id = work.project_id();
    let taken = sqlx::query(
        "insert into state.idempotency (project_id, key, request_hash, expires_at)
         values ($1, $2, $3, now() + $4)
             on conflict (project_id, key) do update
                set request_hash = excluded.request_hash, answer = null, created_at = now(), expires_at = excluded.expires_at
              where state.idempotency.expires_at <= now()",
    )
    .bind(project_id)
    .bind(key)
    .bind(request.as_bytes().as_slice())
    .bind(interval(kept))
    .execute(&mut **work)
    .await?;
    if taken.rows_affected() == 1 {
        return Ok(Key::New);
    }
    // A later statement: the insert may have waited for a transaction that its own snapshot cannot see.
    let (same, answer): (bool, Option<Value>) = sqlx::query_as(
        "select request_hash = $3, answer
           from state.idempotency
          where project_id = $1 and key = $2",
    )
    .bind(project_id)
    .bind(key)
    .bind(request.as_bytes().as_slice())
    .fetch_one(&mut **work)
    .await?;
    Ok(if same { Key::Answered(answer.unwrap_or(Value::Null)) } else { Key::Mismatch })
}

/// Stores the answer with the key.
pub async fn answer(work: &mut UnitOfWork, key: &str, answer: &Value) -> Result<(), Error> {
    let project_id = work.project_id();
    sqlx::query("update state.idempotency set answer = $3 where project_id = $1 and key = $2")
        .bind(project_id)
        .bind(key)
        .bind(answer)
        .execute(&mut **work)
        .await?;
    Ok(())
}

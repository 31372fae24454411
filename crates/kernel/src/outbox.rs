//! The outbox (L0-9): events, written in the transaction that makes them true, and what a relay needs to publish them.
//!
//! An event is published until it is known to have arrived: at least once, in order per agent. Each of 16 shards has one owner at
//! a time, a relay whose lease holds. An event that the stream refuses for good is set aside with all later events of its agent. Two relays can
//! still publish the same event, one of them late; the stream drops the second one by its id.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::FromRow;
use waybill_core::{
    bus::Event,
    id::{Target, WorkerId},
};

use crate::{
    turn::{Error, interval},
    work::Kernel,
};

/// The target under which relays hold their leases.
pub const RELAY: &str = "waybill-relay";

/// One event that is to be published.
#[derive(Clone, Debug, FromRow)]
pub struct Unpublished {
    pub shard: i16,
    /// Published again, because the stream was lost.
    pub replayed: bool,
    /// The stream it is for.
    pub stream_made_at: Option<DateTime<Utc>>,
    #[sqlx(flatten)]
    pub event: Event,
}

/// How far behind the relays are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, FromRow)]
pub struct Lag {
    /// Counted to 100,000.
    pub n_unpublished: i64,
    pub oldest_at: Option<DateTime<Utc>>,
    /// Shards that are being replayed from their beginning.
    pub n_replaying: i32,
}

/// Renews a relay's lease and gives it its share of the shards. On `LeaseLost`, go on under another name.
pub async fn hold(kernel: &Kernel, worker_id: WorkerId, target: &Target, lease: Duration) -> Result<Vec<i16>, Error> {
    let shards = sqlx::query_scalar("select scheduler.hold_shards($1, $2, $3)")
        .bind(worker_id)
        .bind(target)
        .bind(interval(lease))
        .fetch_one(&mut *kernel.lease().await?)
        .await?;
    Ok(shards)
}

/// Notes which stream events go to, identified by when it was made. If it is another one than before, everything is published again. Returns
/// whether it is.
pub async fn publish_to(kernel: &Kernel, made_at: DateTime<Utc>) -> Result<bool, Error> {
    let moved: i32 = sqlx::query_scalar("select scheduler.publish_to($1)")
        .bind(made_at)
        .fetch_one(&mut *kernel.lease().await?)
        .await?;
    Ok(moved > 0)
}

/// Returns what is to be published next: up to `most` of each shard that the relay owns, in order.
pub async fn unpublished(kernel: &Kernel, worker_id: WorkerId, most: i32) -> Result<Vec<Unpublished>, Error> {
    let events = sqlx::query_as("select * from scheduler.unpublished($1, $2)").bind(worker_id).bind(most);
    Ok(events.fetch_all(&mut *kernel.lease().await?).await?)
}

/// Notes which events of a portion have arrived. In a replay, a shard continues after the last event up to which all have arrived.
pub async fn mark(
    kernel: &Kernel,
    worker_id: WorkerId,
    portion: &[Unpublished],
    arrived: &[bool],
) -> Result<(), Error> {
    let done: Vec<&Event> =
        portion.iter().zip(arrived).filter(|(_, arrived)| **arrived).map(|(row, _)| &row.event).collect();
    let (mut shards, mut replayed) = (Vec::new(), Vec::new());
    for shard in 0..16 {
        let rows = || portion.iter().zip(arrived).filter(|(row, _)| row.shard == shard && row.replayed);
        if let Some((last, _)) = rows().take_while(|(_, arrived)| **arrived).last() {
            shards.push(shard);
            replayed.push(last.event.outbox_seq);
        }
    }
    sqlx::query(
        "select scheduler.mark_published(p_worker => $1, p_projects => $2, p_turns => $3, p_events => $4, p_event_ids => $5, p_shards => $6,
                                         p_replayed => $7, p_made_at => $8)",
    )
        .bind(worker_id)
        .bind(done.iter().map(|event| event.project_id).collect::<Vec<_>>())
        .bind(done.iter().map(|event| event.agent_turn_id).collect::<Vec<_>>())
        .bind(done.iter().map(|event| event.event.as_str()).collect::<Vec<_>>())
        .bind(done.iter().map(|event| event.event_id).collect::<Vec<_>>())
        .bind(shards)
        .bind(replayed)
        .bind(portion.first().and_then(|row| row.stream_made_at))
        .execute(&mut *kernel.lease().await?)
        .await?;
    Ok(())
}

/// How often the stream may refuse an event before those of its agent are set aside.
#[derive(Clone, Copy, Debug)]
pub struct Refusals {
    pub most: i32,
    /// Refusals that follow each other sooner count as one.
    pub apart: Duration,
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals { most: 10, apart: Duration::from_secs(2) }
    }
}

/// Notes that the stream, which accepts other events, has refused this one. After enough refusals the events of its agent are put into quarantine,
/// under the agent's id: they wait in their order and do not hold up those of other agents. Returns whether this refusal put them there.
pub async fn refuse(kernel: &Kernel, event: &Event, error: &str, refusals: &Refusals) -> Result<bool, Error> {
    let error = format!("event {}: {error}", event.message_id());
    let set_aside = sqlx::query_scalar("select scheduler.refuse_event($1, $2, $3, $4, $5)")
        .bind(event.project_id)
        .bind(event.agent_id)
        .bind(error)
        .bind(refusals.most)
        .bind(interval(refusals.apart))
        .fetch_one(&mut *kernel.lease().await?)
        .await?;
    Ok(set_aside)
}

/// Returns how far behind the relays are. What is in quarantine does not count.
pub async fn lag(kernel: &Kernel) -> Result<Lag, Error> {
    Ok(sqlx::query_as("select * from scheduler.outbox_lag()").fetch_one(&mut *kernel.lease().await?).await?)
}

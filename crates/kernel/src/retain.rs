//! How long a project keeps what (RT-1 … RT-6): what is set, legal holds, what would be removed, and the walk that removes it.
//!
//! Content is what cards say; the record is turns that have ended, with all that belongs to them. The database decides what is in effect and what
//! may go: `cardbox.retain` (`retain.sql`) takes a project and no date. History of all projects together is [`crate::retention`].

use std::collections::BTreeMap;

use chrono::{DateTime, Months, Utc};
use serde::{Deserialize, Serialize};
use sqlx::{FromRow, types::Json};
use waybill_core::id::ProjectId;

use crate::work::{self, DbError, Kernel, UnitOfWork, from_driver};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("content and record are kept for 1 to 120 months, or for ever")]
    Months,
    #[error("the record cannot be kept for a shorter time than the content")]
    Order,
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// For how long content and record are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RetentionMonths)]
pub struct Kept {
    /// Months for which content is kept: what cards say. If omitted, for ever.
    #[schema(minimum = 1, maximum = 120)]
    pub content_months: Option<i32>,
    /// Months for which the record is kept: turns with their steps, receipts, boxes and cards. At least as many as `content_months`. If omitted, for
    /// ever.
    #[schema(minimum = 1, maximum = 120)]
    pub record_months: Option<i32>,
}

impl Kept {
    /// The longest time that can be set.
    pub const MOST: i32 = 120;

    /// Checks the numbers.
    pub fn check(self) -> Result<(), Error> {
        let months = [self.content_months, self.record_months];
        if months.into_iter().flatten().any(|months| !(1..=Kept::MOST).contains(&months)) {
            return Err(Error::Months);
        }
        let longer = |months: Option<i32>| months.unwrap_or(i32::MAX);
        if longer(self.content_months) > longer(self.record_months) { Err(Error::Order) } else { Ok(()) }
    }
}

/// What a project keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, FromRow, utoipa::ToSchema)]
pub struct Retention {
    /// Months for which content is kept now. `null` means for ever.
    pub content_months: Option<i32>,
    /// Months for which the record is kept now. `null` means for ever.
    pub record_months: Option<i32>,
    /// Months for which content is kept from `next_at` on.
    pub next_content_months: Option<i32>,
    /// Months for which the record is kept from `next_at` on.
    pub next_record_months: Option<i32>,
    /// When a shortening takes effect. Until then it can be set back. `null` means that there is none.
    pub next_at: Option<DateTime<Utc>>,
    /// Why the project is under a legal hold: nothing is removed. `null` means that it is not.
    pub hold_reason: Option<String>,
    /// Since when it is under a hold.
    pub held_since: Option<DateTime<Utc>>,
    /// When the last walk over the project came to its end.
    pub walked_at: Option<DateTime<Utc>>,
}

impl Retention {
    /// Returns what is kept now.
    pub fn now(&self) -> Kept {
        Kept { content_months: self.content_months, record_months: self.record_months }
    }

    /// Returns what is kept once a pending shortening has taken effect.
    pub fn last(&self) -> Kept {
        match self.next_at {
            Some(_) => Kept { content_months: self.next_content_months, record_months: self.next_record_months },
            None => self.now(),
        }
    }
}

/// Returns what the project keeps.
pub async fn show(work: &mut UnitOfWork) -> Result<Retention, DbError> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select content_months, record_months, next_content_months, next_record_months, next_at, hold_reason, held_since, walked_at
           from resource.retention_of($1)",
    )
    .bind(project_id)
    .fetch_optional(&mut **work)
    .await?;
    Ok(found.unwrap_or_default())
}

/// Sets what the project keeps: longer at once, shorter after seven days. Returns whether that changed something.
pub async fn set(work: &mut UnitOfWork, kept: Kept) -> Result<bool, Error> {
    kept.check()?;
    let project_id = work.project_id();
    let changed = sqlx::query_scalar("select cardbox.set_retention($1, $2, $3)")
        .bind(project_id)
        .bind(kept.content_months)
        .bind(kept.record_months)
        .fetch_one(&mut **work)
        .await?;
    Ok(changed)
}

/// Puts the project under a legal hold; `None` lifts it. Returns whether that changed something: a hold that is there keeps its reason.
pub async fn hold(work: &mut UnitOfWork, reason: Option<&str>) -> Result<bool, DbError> {
    let project_id = work.project_id();
    let changed = sqlx::query_scalar("select cardbox.hold_retention($1, $2)")
        .bind(project_id)
        .bind(reason)
        .fetch_one(&mut **work)
        .await?;
    Ok(changed)
}

/// What walks would remove now.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = RetentionPlan)]
pub struct Plan {
    /// Content of cards that were written before this time would be removed. `null` means none.
    pub content_before: Option<DateTime<Utc>>,
    /// Turns that ended before this time would be removed. `null` means none.
    pub record_before: Option<DateTime<Utc>>,
    /// Cards whose content would be removed.
    pub contents: i64,
    /// Bytes of that content, as they are stored.
    pub bytes: i64,
    /// Turns that would be removed.
    pub turns: i64,
    /// Boxes of these turns.
    pub boxes: i64,
    /// Places in these boxes. The cards there are removed too, unless another box holds them.
    pub cards: i64,
    /// What would stay beyond its time, by the reason: turns, and contents that open turns read.
    pub kept: BTreeMap<String, i64>,
    /// Whether everything was counted. `false` means that there is more: the project is too large to be counted in two seconds.
    pub is_all: bool,
}

#[derive(FromRow)]
struct Counted {
    contents: i64,
    bytes: i64,
    turns: i64,
    boxes: i64,
    cards: i64,
    kept: Json<BTreeMap<String, i64>>,
    is_all: bool,
}

/// Counts what would be removed if this were in effect, hold or not. Changes nothing.
pub async fn plan(work: &mut UnitOfWork, kept: Kept) -> Result<Plan, Error> {
    kept.check()?;
    let project_id = work.project_id();
    let now: DateTime<Utc> = sqlx::query_scalar("select now()").fetch_one(&mut **work).await?;
    let before = |months: Option<i32>| {
        let months = months.and_then(|months| u32::try_from(months).ok())?;
        now.checked_sub_months(Months::new(months))
    };
    let (content_before, record_before) = (before(kept.content_months), before(kept.record_months));
    let Counted { contents, bytes, turns, boxes, cards, kept, is_all } = sqlx::query_as(
        "select contents, bytes, turns, boxes, cards, kept, is_all from state.plan_retention($1, $2, $3)",
    )
    .bind(project_id)
    .bind(content_before)
    .bind(record_before)
    .fetch_one(&mut **work)
    .await?;
    Ok(Plan { content_before, record_before, contents, bytes, turns, boxes, cards, kept: kept.0, is_all })
}

/// Returns projects whose walk goes on, the one that has waited longest first. Crosses projects, through the scheduler's function.
pub async fn due(kernel: &Kernel, most: i32) -> Result<Vec<ProjectId>, DbError> {
    let due = sqlx::query_scalar("select project_id from scheduler.projects_to_retain($1)").bind(most);
    Ok(due.fetch_all(&mut *kernel.lease().await?).await?)
}

/// What one portion of a walk did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// How much was removed, by kind: `turns`, `cards`, `contents`, `bytes`, …
    pub removed: BTreeMap<String, i64>,
    /// Whether the walk has come to its end.
    pub is_over: bool,
}

/// Does the next portion of a project's walk: looks at so many rows, and removes what is no longer kept. `None` means that another process removes
/// something at the moment, or that the project has never set anything.
pub async fn portion(kernel: &Kernel, project_id: ProjectId, most: i32) -> Result<Option<Portion>, work::Error> {
    let mut work = kernel.begin(project_id).await?;
    // A turn is removed whole, however much it wrote.
    sqlx::raw_sql("set local statement_timeout = '1min'").execute(&mut *work).await?;
    let done: Option<(Json<BTreeMap<String, i64>>, bool)> =
        sqlx::query_as("select removed, is_over from cardbox.retain($1, $2)")
            .bind(project_id)
            .bind(most)
            .fetch_optional(&mut *work)
            .await?;
    work.commit().await?;
    Ok(done.map(|(removed, is_over)| Portion { removed: removed.0, is_over }))
}

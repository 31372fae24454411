//! The audit log: what was managed, and by whom: resources, agents, keys, grants, erasures, stops. Written with what it records, and never changed.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use waybill_core::id::AuditId;

use crate::{
    resource::{Applied, Change},
    work::{DbError, Recorded, UnitOfWork},
};

/// An entry of the audit log: one management action.
#[derive(Clone, Debug, PartialEq, Serialize, sqlx::FromRow, utoipa::ToSchema)]
pub struct Entry {
    pub audit_id: AuditId,
    /// Caller that did it: `key:NAME` (API key), `user:SUBJECT` (token of the identity provider), `cli:USER` (command line) or `loopback` (`waybill
    /// dev` without a key).
    pub actor: String,
    pub action: String,
    pub subject: String,
    pub detail: Value,
    /// Database login that wrote the entry.
    pub db_role: String,
    /// IP address of the caller. `null` means a local connection to the database.
    pub address: Option<String>,
    pub created_at: DateTime<Utc>,
}

/// The action of requests that were refused: the subject is the code, and `n` how many there were since the last such entry.
pub const REFUSED: &str = "request.refused";

/// Puts on record what the unit of work does.
pub async fn record(
    work: &mut UnitOfWork,
    actor: &str,
    action: &str,
    subject: &str,
    detail: &Value,
) -> Result<(), DbError> {
    let (project_id, audit_id) = (work.project_id(), AuditId::new());
    sqlx::query(
        "insert into state.audit (project_id, audit_id, actor, action, subject, detail)
         values ($1, $2, $3, $4, $5, $6)",
    )
    .bind(project_id)
    .bind(audit_id)
    .bind(actor)
    .bind(action)
    .bind(subject)
    .bind(detail)
    .execute(&mut **work)
    .await?;
    let (actor, action, subject) = (actor.to_owned(), action.to_owned(), subject.to_owned());
    work.recorded.push(Recorded { audit_id, actor, action, subject });
    Ok(())
}

/// Puts on record what was applied, as far as it changed something.
pub async fn applied(work: &mut UnitOfWork, actor: &str, applied: &[Applied]) -> Result<(), DbError> {
    for done in applied.iter().filter(|done| done.change != Change::Unchanged) {
        let subject = format!("{}/{}", done.kind, done.name);
        let detail = serde_json::json!({ "version": done.version, "change": done.change });
        record(work, actor, "resource.apply", &subject, &detail).await?;
    }
    Ok(())
}

/// Lists the record, the newest first.
pub async fn list(work: &mut UnitOfWork, before: Option<AuditId>, most: i64) -> Result<Vec<Entry>, DbError> {
    let project_id = work.project_id();
    let entries = sqlx::query_as(
        "select audit_id, actor, action, subject, detail, db_role, address, created_at
           from state.audit
          where project_id = $1 and audit_id < $2
          order by audit_id desc
          limit $3",
    )
    .bind(project_id)
    .bind(before.unwrap_or(AuditId::max()))
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(entries)
}

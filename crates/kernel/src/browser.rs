//! Browser sessions (SE-1, SE-11): a person in a browser, with the rights of an API key or of an identity of the provider. What is kept is a hash; the
//! cookie has the secret.

use std::time::Duration;

use chrono::{DateTime, Utc};
use waybill_core::{
    id::{KeyId, ProjectId},
    key::{Bounds, BrowserSecret, Scope},
};

use crate::{
    turn::interval,
    work::{DbError, Kernel, UnitOfWork},
};

/// How long a session lasts at most. The database holds it to that too.
pub const LONGEST: Duration = Duration::from_secs(12 * 3600);

/// The most sessions that a project has at a time.
const MOST: i64 = 1_000;

/// Opens a session with the rights of a key of the project. Returns when it ends: the key may end it sooner. `None` means that the project has too many
/// sessions.
pub async fn open(
    work: &mut UnitOfWork,
    secret: &BrowserSecret,
    key_id: KeyId,
) -> Result<Option<DateTime<Utc>>, DbError> {
    let project_id = work.project_id();
    let ends = sqlx::query_scalar(
        "insert into resource.browser_sessions (project_id, hash, key_id, expires_at)
         select k.project_id, $3, k.key_id, least(now() + $4, k.expires_at)
           from resource.api_keys k
          where k.project_id = $1 and k.key_id = $2
            and (select count(*) from (select from resource.browser_sessions s where s.project_id = $1 limit $5) s) < $5
         returning expires_at",
    );
    let ends = ends.bind(project_id).bind(key_id).bind(secret.hash().to_vec()).bind(interval(LONGEST)).bind(MOST);
    Ok(ends.fetch_optional(&mut **work).await?)
}

/// Opens a session of an identity in the project. It may do what `scope` says, until its token ends. Returns when the session ends.
pub async fn open_as(
    work: &mut UnitOfWork,
    secret: &BrowserSecret,
    actor: &str,
    scope: Scope,
    until: DateTime<Utc>,
) -> Result<DateTime<Utc>, DbError> {
    let project_id = work.project_id();
    let ends = sqlx::query_scalar(
        "insert into resource.browser_sessions (project_id, hash, actor, scope, expires_at)
         values ($1, $2, $3, $4, least(now() + $5, $6))
         returning expires_at",
    );
    let ends = ends.bind(project_id).bind(secret.hash().to_vec()).bind(actor).bind(scope);
    Ok(ends.bind(interval(LONGEST)).bind(until).fetch_one(&mut **work).await?)
}

/// One project that a session reaches, and what it may do there.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Reach {
    pub project_id: ProjectId,
    pub slug: String,
    /// `None` means an identity of the provider.
    pub key_id: Option<KeyId>,
    /// `key:NAME` or `user:SUBJECT`.
    pub actor: String,
    pub scope: Scope,
    #[sqlx(json)]
    pub bounds: Bounds,
    pub expires_at: DateTime<Utc>,
}

/// Returns what a session reaches, in the order of slugs. Nothing means that there is no such session, or that it has ended. Crosses projects, through
/// the scheduler's function.
pub async fn find(kernel: &Kernel, hash: &[u8; 32]) -> Result<Vec<Reach>, DbError> {
    let found = sqlx::query_as(
        "select project_id, slug, key_id, actor, scope, bounds, expires_at from scheduler.find_browser_session($1)",
    );
    Ok(found.bind(hash.to_vec()).fetch_all(&mut *kernel.lease().await?).await?)
}

/// Ends a session in the project. Returns false if there is none.
pub async fn end(work: &mut UnitOfWork, hash: &[u8; 32]) -> Result<bool, DbError> {
    let project_id = work.project_id();
    let ended = sqlx::query_scalar("select scheduler.end_browser_session($1, $2)");
    Ok(ended.bind(project_id).bind(hash.to_vec()).fetch_one(&mut **work).await?)
}

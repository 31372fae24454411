//! API keys (SE-1): each belongs to a project and has a scope. What is kept is a hash; a key is shown when it is made, and never again.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::types::Json;
use waybill_core::{
    id::{KeyId, Name, ProjectId},
    key::{ApiKey, Bounds, Scope, Unfit},
};

use crate::{
    turn::interval,
    work::{DbError, Kernel, UnitOfWork, from_driver},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the project already has two valid keys with the name `{0}`, which is the limit: revoke one first")]
    Enough(Name),
    #[error("key {0} does not exist in this project, or has already been revoked")]
    NotFound(KeyId),
    #[error(transparent)]
    Unfit(#[from] Unfit),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// An API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, sqlx::FromRow, utoipa::ToSchema)]
#[schema(as = Key)]
pub struct Listed {
    pub key_id: KeyId,
    pub name: Name,
    pub scope: Scope,
    #[sqlx(json)]
    #[schema(inline)]
    pub bounds: Bounds,
    pub created_at: DateTime<Utc>,
    pub expires_at: Option<DateTime<Utc>>,
    pub revoked_at: Option<DateTime<Utc>>,
}

/// How many keys of one name may be in use: the old one, and the one that replaces it.
const MOST_OF_A_NAME: i64 = 2;

/// Stores a minted key. A name may have two keys at a time, so that one can replace the other.
pub async fn create(
    work: &mut UnitOfWork,
    key: &ApiKey,
    name: &Name,
    scope: Scope,
    bounds: &Bounds,
    lasts: Option<Duration>,
) -> Result<Listed, Error> {
    bounds.check(scope).map_err(|unfit| work.refuse(unfit))?;
    let project_id = work.project_id();
    // Keys are created one after the other: two at once would each see room.
    sqlx::query("select from resource.projects where project_id = $1 for no key update")
        .bind(project_id)
        .execute(&mut **work)
        .await?;
    let made = sqlx::query_as(
        "insert into resource.api_keys (project_id, key_id, name, scope, hash, expires_at, bounds)
         select $1, $2, $3, $4, $5, now() + $6, $8
          where (select count(*) from resource.api_keys k
                  where k.project_id = $1 and k.name = $3 and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())) < $7
         returning key_id, name, scope::text, bounds, created_at, expires_at, revoked_at",
    )
    .bind(project_id)
    .bind(key.key_id())
    .bind(name)
    .bind(scope)
    .bind(key.hash().as_slice())
    .bind(lasts.map(interval))
    .bind(MOST_OF_A_NAME)
    .bind(Json(bounds))
    .fetch_optional(&mut **work)
    .await?;
    made.ok_or_else(|| work.refuse(Error::Enough(name.clone())))
}

/// Lists the keys of the project, the newest last.
pub async fn list(work: &mut UnitOfWork, after: Option<KeyId>, most: i64) -> Result<Vec<Listed>, Error> {
    let project_id = work.project_id();
    let listed = sqlx::query_as(
        "select key_id, name, scope::text, bounds, created_at, expires_at, revoked_at
           from resource.api_keys
          where project_id = $1 and key_id > $2
          order by key_id
          limit $3",
    )
    .bind(project_id)
    .bind(after.unwrap_or(KeyId::nil()))
    .bind(most)
    .fetch_all(&mut **work)
    .await?;
    Ok(listed)
}

/// Looks up a key.
pub async fn show(work: &mut UnitOfWork, key_id: KeyId) -> Result<Option<Listed>, Error> {
    let project_id = work.project_id();
    let found = sqlx::query_as(
        "select key_id, name, scope::text, bounds, created_at, expires_at, revoked_at
           from resource.api_keys
          where project_id = $1 and key_id = $2",
    );
    Ok(found.bind(project_id).bind(key_id).fetch_optional(&mut **work).await?)
}

/// Revokes a key: at once, or after some time to switch to another.
pub async fn revoke(work: &mut UnitOfWork, key_id: KeyId, after: Duration) -> Result<Listed, Error> {
    let project_id = work.project_id();
    let revoked = sqlx::query_as(
        "update resource.api_keys
            set revoked_at = case when $3 = interval '0' then now() end,
                expires_at = case when $3 = interval '0' then expires_at else least(expires_at, now() + $3) end
          where project_id = $1 and key_id = $2 and revoked_at is null
        returning key_id, name, scope::text, bounds, created_at, expires_at, revoked_at",
    )
    .bind(project_id)
    .bind(key_id)
    .bind(interval(after))
    .fetch_optional(&mut **work)
    .await?;
    revoked.ok_or_else(|| work.refuse(Error::NotFound(key_id)))
}

/// The caller that a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Holder {
    pub project_id: ProjectId,
    pub slug: String,
    pub name: Name,
    pub scope: Scope,
    #[sqlx(json)]
    pub bounds: Bounds,
}

/// Returns the caller that a key belongs to. `None` means that there is no such key, or that it is no longer valid. Crosses projects, through the
/// scheduler's function.
pub async fn find(kernel: &Kernel, key: &ApiKey) -> Result<Option<Holder>, Error> {
    let found = sqlx::query_as("select project_id, slug, name, scope, bounds from scheduler.find_key($1, $2)")
        .bind(key.key_id())
        .bind(key.hash().as_slice())
        .fetch_optional(&mut *kernel.lease().await?)
        .await?;
    Ok(found)
}

//! Projects: the tenants. The name people use is a slug; everything else carries the id.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row};
use waybill_core::id::ProjectId;

use crate::work::{DbError, Kernel, UnitOfWork, from_driver};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is not a project slug: use 1 to 63 characters (a-z, 0-9 and `-`), beginning with a letter or digit")]
    Slug(String),
    #[error("there is already a project {0:?}")]
    Taken(String),
    #[error("there is no project {0:?}: `waybill project list` lists the projects")]
    NotFound(String),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// Id and slug of a project.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, sqlx::FromRow, utoipa::ToSchema)]
pub struct Project {
    pub project_id: ProjectId,
    pub slug: String,
}

/// Writes the row of the unit of work's own project.
pub async fn create(work: &mut UnitOfWork, slug: &str) -> Result<(), Error> {
    let project_id = work.project_id();
    let made = sqlx::query("insert into resource.projects (project_id, slug) values ($1, $2)")
        .bind(project_id)
        .bind(slug)
        .execute(&mut **work)
        .await;
    match made {
        Ok(_) => Ok(()),
        Err(sqlx::Error::Database(error)) if error.is_check_violation() => Err(Error::Slug(slug.to_owned())),
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Err(Error::Taken(slug.to_owned())),
        Err(error) => Err(error.into()),
    }
}

/// Returns the id of a slug. Crosses projects, through the scheduler's function.
pub async fn find(kernel: &Kernel, slug: &str) -> Result<ProjectId, Error> {
    let found: Option<ProjectId> = sqlx::query_scalar("select scheduler.find_project($1)")
        .bind(slug)
        .fetch_one(&mut *kernel.lease().await?)
        .await?;
    found.ok_or_else(|| Error::NotFound(slug.to_owned()))
}

/// Returns the slug of an id. `None` means that there is no such project.
pub async fn slug(kernel: &Kernel, project_id: ProjectId) -> Result<Option<String>, Error> {
    let mut work = kernel.begin(project_id).await?;
    let slug = sqlx::query_scalar("select slug from resource.projects where project_id = $1").bind(project_id);
    Ok(slug.fetch_optional(&mut *work).await?)
}

/// Returns the key with which the API seals what it will recognise later. Only the login of the API can read it, and no caller is shown it.
pub async fn seal_key(work: &mut UnitOfWork) -> Result<[u8; 32], DbError> {
    let project_id = work.project_id();
    let key = sqlx::query_scalar("select seal_key from resource.projects where project_id = $1").bind(project_id);
    let key: Vec<u8> = key.fetch_one(&mut **work).await?;
    key.try_into().map_err(|_| sqlx::Error::Protocol("the seal key of a project has 32 bytes".into()).into())
}

/// Lists projects in the order of their slugs. Crosses projects, through the scheduler's function.
pub async fn list(kernel: &Kernel, after: &str, most: i32) -> Result<Vec<Project>, Error> {
    let listed = sqlx::query_as("select project_id, slug from scheduler.list_projects($1, $2)")
        .bind(after)
        .bind(most)
        .fetch_all(&mut *kernel.lease().await?)
        .await?;
    Ok(listed)
}

/// Checks whether a project exists and is not being deleted.
pub async fn is_kept(kernel: &Kernel, project_id: ProjectId) -> Result<bool, Error> {
    let mut work = kernel.begin(project_id).await?;
    let kept = sqlx::query_scalar(
        "select pg_try_advisory_xact_lock_shared(hashtextextended($1::uuid::text, 0))
            and exists (select from resource.projects where project_id = $1)",
    );
    Ok(kept.bind(project_id).fetch_one(&mut *work).await?)
}

/// Rows that are deleted at a time: a fraction of a second, and some tens of megabytes of the server's log.
const PORTION: u32 = 20_000;

/// A table that has rows of projects.
#[derive(FromRow)]
struct Table {
    name: String,
    /// Its primary key, without the project.
    key: Vec<String>,
}

/// Deletes a project with all it has, for good, as the owner of the schema. Returns the number of rows by table. A process that still works on the
/// project finds that it is gone; what it writes meanwhile is deleted too. If it is interrupted, it can be run again.
pub async fn delete(
    owner: &mut PgConnection,
    project_id: ProjectId,
    mut progress: impl FnMut(&str, u64),
) -> Result<BTreeMap<String, u64>, Error> {
    // Held until we are done, or the connection ends: a process that looks at the project can see that it is being deleted.
    sqlx::query("select pg_advisory_lock(hashtextextended($1::uuid::text, 0))")
        .bind(project_id)
        .execute(&mut *owner)
        .await?;
    let tables: Vec<Table> = sqlx::query_as(
        "select c.oid::regclass::text as name,
                array(select quote_ident(k.attname)
                        from unnest(i.indkey) with ordinality as u (attnum, place)
                       cross join lateral (select k.attname from pg_attribute k where k.attrelid = c.oid and k.attnum = u.attnum offset 0) k
                       where k.attname <> 'project_id'
                       order by u.place) as key
           from pg_class c
           join pg_index i on i.indrelid = c.oid and i.indisprimary
          where c.relkind = 'r' and c.relnamespace = any (array['cardbox', 'resource', 'state', 'parts']::regnamespace[])
            and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'project_id' offset 0)
          order by c.oid = 'resource.projects'::regclass, c.oid::regclass::text not in ('resource.api_keys', 'resource.browser_sessions'), 1",
    )
    .fetch_all(&mut *owner)
    .await?;
    let mut deleted: BTreeMap<String, u64> = BTreeMap::new();
    loop {
        let mut found = false;
        for table in &tables {
            let mut after: Option<String> = None;
            loop {
                let (n, last) = delete_portion(owner, project_id, table, after.as_deref()).await?;
                if n > 0 {
                    found = true;
                    progress(&table.name, n);
                    *deleted.entry(table.name.clone()).or_default() += n;
                }
                if last.is_none() {
                    break;
                }
                after = last;
            }
        }
        if !found {
            let unlock = sqlx::query("select pg_advisory_unlock(hashtextextended($1::uuid::text, 0))");
            unlock.bind(project_id).execute(&mut *owner).await?;
            return Ok(deleted);
        }
    }
}

/// Deletes the next rows of a table in the order of its key, those after the given one: so that no portion passes over what the others have left
/// for vacuum. Returns how many, and the last key. `None` means that these were all.
async fn delete_portion(
    owner: &mut PgConnection,
    project_id: ProjectId,
    Table { name, key }: &Table,
    after: Option<&str>,
) -> sqlx::Result<(u64, Option<String>)> {
    // Names come from the catalogue, keys are quoted by the database, and the id prints as hex digits and dashes.
    // By the key, however few rows the planner expects.
    let begin = format!(
        "begin; set local enable_seqscan = off; set local enable_sort = off;
         set local waybill.project = '{project_id}'; set local waybill.deleting = '{project_id}'"
    );
    let columns = key.join(", ");
    let after = after.map(|after| format!(" and ({columns}) > {after}")).unwrap_or_default();
    let rows = format!("from {name} where project_id = '{project_id}'{after}");
    let mut last: Option<String> = None;
    if !key.is_empty() {
        let marks = vec!["%L"; key.len()].join(", ");
        let sql = format!("select format('({marks})', {columns}) {rows} order by {columns} offset {PORTION} limit 1");
        let found = sqlx::raw_sql(AssertSqlSafe(format!("{begin}; {sql}; commit"))).fetch_all(&mut *owner).await?;
        last = found.first().map(|row| row.try_get(0)).transpose()?;
    }
    let until = last.as_ref().map(|last| format!(" and ({columns}) <= {last}")).unwrap_or_default();
    let sql = format!("{begin}; delete {rows}{until}; commit");
    let n = sqlx::raw_sql(AssertSqlSafe(sql)).execute(owner).await?.rows_affected();
    Ok((n, last))
}

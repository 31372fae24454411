//! Projects: the tenants. The name people use is a slug; everything else carries the id.

use waybill_core::id::ProjectId;

use crate::work::{Kernel, UnitOfWork};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is not a project slug: use 1 to 63 of a-z, 0-9 and `-`, beginning with a letter or digit")]
    Slug(String),
    #[error("there is already a project {0:?}")]
    Taken(String),
    #[error("there is no project {0:?}")]
    NotFound(String),
    #[error("database")]
    Db(#[from] sqlx::Error),
}

/// A project as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, sqlx::FromRow)]
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

/// The id behind a slug. Crosses projects, through the scheduler's function.
pub async fn find(kernel: &Kernel, slug: &str) -> Result<ProjectId, Error> {
    let found: Option<ProjectId> =
        sqlx::query_scalar("select scheduler.find_project($1)").bind(slug).fetch_one(kernel.pool()).await?;
    found.ok_or_else(|| Error::NotFound(slug.to_owned()))
}

/// Projects in the order of their slugs. Crosses projects, through the scheduler's function.
pub async fn list(kernel: &Kernel, after: &str, most: i32) -> Result<Vec<Project>, Error> {
    let listed = sqlx::query_as("select project_id, slug from scheduler.list_projects($1, $2)")
        .bind(after)
        .bind(most)
        .fetch_all(kernel.pool())
        .await?;
    Ok(listed)
}

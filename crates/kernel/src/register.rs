//! Tools that the key of their own service registers (PM-1, SE-7), and the removal of tools and profiles that are not in use. Such a key changes and
//! removes what was registered for one of its targets, and nothing that was applied.

use sqlx::FromRow;
use waybill_core::{
    id::{Name, Target, TurnId},
    resource::{Manifest, Tool},
};

use crate::{
    card,
    resource::{Applied, Change, Error, Kind, seal},
    work::UnitOfWork,
};

/// Where a name points after a key has tried to register a tool under it.
#[derive(FromRow)]
struct Put {
    version: i32,
    /// Whether this wrote it.
    changed: bool,
    /// Whether it is the tool that was to be registered.
    same: bool,
    target: Target,
}

/// Registers a tool for `registered_by`. The name must be new, registered for the same target, or that of a removed tool of the same target. The
/// same again changes nothing.
pub async fn register(work: &mut UnitOfWork, tool: &Tool, registered_by: &str) -> Result<Applied, Error> {
    let sealed = seal(&Manifest::Tool(Box::new(tool.clone())))?;
    let card_ids = card::intern(work, &[sealed]).await?;
    let project_id = work.project_id();
    let put: Put = sqlx::query_as(
        "with put as (
           insert into resource.tools as t (project_id, name, tool_card_id, target, registered_by)
           select $1, $2, card_id, $4, $5 from unnest($3::uuid[]) as made (card_id)
               on conflict (project_id, name) do update
              set version = t.version + 1, tool_card_id = excluded.tool_card_id, registered_by = $5, updated_at = now()
            where t.tool_card_id is distinct from excluded.tool_card_id and (t.registered_by is not null or t.tool_card_id is null)
              and t.target = $4
        returning version, target
         )
         select version, true as changed, true as same, target::text from put
          union all
         select version, false, coalesce(tool_card_id = any ($3), false), target::text
           from resource.tools
          where project_id = $1 and name = $2 and not exists (select from put)",
    )
    .bind(project_id)
    .bind(&tool.name)
    .bind(card_ids)
    .bind(&tool.target)
    .bind(registered_by)
    .fetch_one(&mut **work)
    .await?;
    let name = tool.name.clone();
    let change = match put {
        Put { changed: true, version: 1, .. } => Change::Created,
        Put { changed: true, .. } => Change::Changed,
        Put { same: true, .. } => Change::Unchanged,
        Put { target, .. } if target != tool.target => return Err(work.refuse(Error::OtherTarget { name, target })),
        Put { .. } => return Err(work.refuse(Error::NotRegistered(name))),
    };
    Ok(Applied { kind: Kind::Tool, name, version: put.version, change })
}

/// Removes a tool that no profile may call. Its name stays with its target: only an admin gives it to another. `targets` are those of the key that removes it; `None` removes any tool.
pub async fn remove(work: &mut UnitOfWork, name: &Name, targets: Option<&[Target]>) -> Result<Target, Error> {
    let project_id = work.project_id();
    let gone: Option<Target> = sqlx::query_scalar(
        "update resource.tools
            set tool_card_id = null, registered_by = null, updated_at = now()
          where project_id = $1 and name = $2 and tool_card_id is not null and ($3::text[] is null or registered_by is not null and target = any ($3))
      returning target::text",
    )
    .bind(project_id)
    .bind(name)
    .bind(targets.map(|targets| targets.iter().map(Target::as_str).collect::<Vec<_>>()))
    .fetch_optional(&mut **work)
    .await?;
    let Some(target) = gone else { return Err(kept(work, name, targets.unwrap_or_default()).await) };
    let user: Option<Name> = sqlx::query_scalar(
        "select p.name
           from resource.profiles p
          cross join lateral cardbox.reading($1, p.profile_card_id, statement_timestamp()) r
          where p.project_id = $1 and r.content::jsonb -> 'allowed_tools' ? $2
          order by p.name
          limit 1",
    )
    .bind(project_id)
    .bind(name)
    .fetch_optional(&mut **work)
    .await?;
    match user {
        Some(profile) => Err(work.refuse(Error::InUse { name: name.clone(), profile })),
        None => Ok(target),
    }
}

/// Removes a profile that no other profile names and that has no open turn. Turns that have ended keep the version that they ran with.
pub async fn remove_profile(work: &mut UnitOfWork, name: &Name) -> Result<Target, Error> {
    let project_id = work.project_id();
    let gone: Option<Target> = sqlx::query_scalar(
        "delete from resource.profiles where project_id = $1 and name = $2 returning worker_target::text",
    )
    .bind(project_id)
    .bind(name)
    .fetch_optional(&mut **work)
    .await?;
    let Some(target) = gone else { return Err(Error::NotFound { kind: Kind::Profile, name: name.clone() }) };
    let user: Option<Name> = sqlx::query_scalar(
        "select p.name
           from resource.profiles p
          cross join lateral cardbox.reading($1, p.profile_card_id, statement_timestamp()) r
          where p.project_id = $1
            and (r.content::jsonb -> 'delegation_policy' -> 'target_profiles' ? $2 or r.content::jsonb ->> 'summariser' = $2)
          order by p.name
          limit 1",
    )
    .bind(project_id)
    .bind(name)
    .fetch_optional(&mut **work)
    .await?;
    if let Some(profile) = user {
        return Err(work.refuse(Error::ProfileInUse { name: name.clone(), profile }));
    }
    let open: Option<TurnId> = sqlx::query_scalar(
        "select i.agent_turn_id
           from state.agent_inbox i
          cross join lateral (
                select a.profile_name from resource.project_agents a where a.project_id = $1 and a.agent_id = i.agent_id offset 0) a
          where i.project_id = $1 and a.profile_name = $2
          order by i.agent_turn_id
          limit 1",
    )
    .bind(project_id)
    .bind(name)
    .fetch_optional(&mut **work)
    .await?;
    match open {
        Some(turn) => Err(work.refuse(Error::OpenTurn { name: name.clone(), turn })),
        None => Ok(target),
    }
}

/// Returns why a tool was not removed.
async fn kept(work: &mut UnitOfWork, name: &Name, targets: &[Target]) -> Error {
    let project_id = work.project_id();
    let found: sqlx::Result<Option<Target>> = sqlx::query_scalar(
        "select target::text from resource.tools where project_id = $1 and name = $2 and tool_card_id is not null",
    )
    .bind(project_id)
    .bind(name)
    .fetch_optional(&mut **work)
    .await;
    match found {
        Ok(Some(target)) if !targets.contains(&target) => Error::OtherTarget { name: name.clone(), target },
        Ok(Some(_)) => Error::NotRegistered(name.clone()),
        Ok(None) => Error::NotFound { kind: Kind::Tool, name: name.clone() },
        Err(error) => error.into(),
    }
}
